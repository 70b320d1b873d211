"""README, tutorial and how-tos run as written, and print the output that they show."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.importers.export_samples import CHATGPT
from tests.support import warm
from tests.support.messages_api import MessagesApi, Request, message, tool_use
from tests.support.messages_shapes import Reply
from tests.support.pages import ROOT, Block, blocks, commands

PAGES: Final = (
    "README.md",
    "docs/tutorial.md",
    *sorted(f"docs/how-to/{page.name}" for page in (ROOT / "docs/how-to").glob("*.md")),
    "examples/plugin/README.md",
)
SAMPLE: Final = ROOT / "examples" / "sample" / "agent_run.jsonl"
INSTALLED: Final = "Refold is installed where the tests run"
ENDLESS: Final = "it runs until it is stopped"
SERVER: Final = "it names a server that is not here: tests/isolation runs the same"


class Given(NamedTuple):
    """The things that a page assumes to exist."""

    before: str = ""
    """Run first."""
    anew: bool = False
    """Whether each section begins with that again: they are alternatives."""
    without: Mapping[str, str] = {}
    """What cannot run here, by a part of its text: the reason why."""


# `pip install` adds to a folder of the page, which Python searches, without a network.
PIP: Final = f"""
cat > bin/pip <<'END'
#!/bin/sh
shift  # the word install
exec "{sys.executable}" -m pip install --quiet --disable-pip-version-check \\
    --no-index --no-deps --no-build-isolation --target packages "$@"
END
chmod +x bin/pip
export PYTHONPATH="$PWD/packages"
"""
ADA: Final = "refold import run.jsonl --user ada --session s-1\n"
# Agents that only check that they were led to the proxy.
AGENTS: Final = r"""
for agent in claude my-agent; do
    printf '#!/bin/sh\necho "$ANTHROPIC_BASE_URL" | grep -q 127.0.0.1\n' > bin/$agent
    chmod +x bin/$agent
done
"""
GIVEN: Final[Mapping[str, Given]] = {
    "README.md": Given(
        before=AGENTS,
        without={
            "python3 -m venv": INSTALLED,
            'export PATH="$PWD': INSTALLED,
            "pip install '.[": INSTALLED,
            "refold serve": ENDLESS,
            "your agent ──┐": "a drawing",
        },
    ),
    "docs/how-to/containers.md": Given(
        without={"docker compose": "no engine runs here: tests/release does the same"}
    ),
    "docs/how-to/install.md": Given(
        without={"python3 -m venv": INSTALLED, "pip install": INSTALLED}
    ),
    "docs/how-to/export-a-user.md": Given(before=ADA),
    "docs/how-to/extend-refold.md": Given(before=f"{PIP}{ADA}"),
    "examples/plugin/README.md": Given(before=PIP),
    "docs/how-to/follow-a-file.md": Given(before=ADA),
    "docs/how-to/continue-elsewhere.md": Given(
        before=ADA,
        without={"--in claude-code": "it starts a program"},
    ),
    "docs/how-to/share-a-run.md": Given(
        before=ADA,
        without={"example.com/shared/": "a link is another each time"},
    ),
    "docs/how-to/forget-a-user.md": Given(before=ADA, anew=True),
    "docs/how-to/give-memory-to-a-model.md": Given(
        before=ADA.replace("s-1", "s-7"),
        without={"mae50d02d07875f3": "the id of an item is another in each store"},
    ),
    "docs/how-to/operate.md": Given(
        before=f"{ADA}cp retention.toml retain.toml\n",
        without={"refold worker": ENDLESS},
    ),
    "docs/how-to/postgresql-roles.md": Given(
        without={
            "postgresql://": SERVER,
            "roles.sql": SERVER,
            "CREATE ROLE": SERVER,
        }
    ),
    "docs/how-to/citus.md": Given(
        without={
            "postgresql://": SERVER,
            "roles.sql": SERVER,
            "CREATE EXTENSION": SERVER,
        }
    ),
    "docs/how-to/capture.md": Given(
        without={
            "capture claude-code": ENDLESS,
            "capture codex": "it sets up a program",
        }
    ),
    "docs/how-to/record-any-agent.md": Given(
        before=AGENTS,
        without={"agents.db proxy": ENDLESS},
    ),
    "docs/how-to/ask-questions.md": Given(
        # Folders of other exports, and of other programs, are next to the tables.
        before=f"{ADA}refold compact --user ada --session s-1 --strategy turn_window\n"
        "refold export --user ada --out ada-export\n"
        "refold export --user ada --session s-1 --out run-copy.jsonl\n"
        "mkdir site && echo '{}' > site/manifest.json\n",
        without={"pip install": INSTALLED},
    ),
    "docs/how-to/exchange.md": Given(
        before=ADA,
        without={"localhost:6006": "tests/cli/test_export_traces.py has an endpoint"},
    ),
    "docs/how-to/import.md": Given(
        without={
            "--yes --watch": ENDLESS,
            "[y/N]": "tests/cli/test_import_homes.py answers the questions",
        }
    ),
    "docs/how-to/retention.md": Given(before=ADA),
    "docs/how-to/workers.md": Given(
        before=ADA,
        without={
            "refold worker": ENDLESS,
            "tcp://scheduler": "tests/store/test_jobs.py has a cluster",
            "livenessProbe": "it is for Kubernetes",
        },
    ),
    "docs/how-to/serve.md": Given(
        before=ADA,
        without={
            "pip install": INSTALLED,
            " serve": ENDLESS,
            "curl": "it asks a server that runs: tests/server does the same",
            '{"events"': "the same",
            "REFOLD_JWKS": SERVER,
            "http://127.0.0.1": "a token is another each time",
        },
    ),
    "docs/how-to/summarize-with-claude.md": Given(before=ADA),
    "docs/how-to/move-to-postgresql.md": Given(
        before=ADA, without={" move --to": SERVER.replace("isolation", "adapters")}
    ),
    "docs/how-to/replicate-and-restore.md": Given(
        before=ADA,
        without={
            part: SERVER.replace("isolation", "erasure")
            for part in ("pg_", "REPLICA", "recovery.signal")
        },
    ),
    "docs/how-to/tenants.md": Given(without={"CREATE DATABASE": SERVER}),
    "docs/how-to/redaction-policy.md": Given(
        without={"types.EMIAL": "it shows what a mistake is told"}
    ),
}


def steps(page: str) -> Iterator[list[tuple[Block, str]]]:
    """Return the runnable blocks of a page, divided where a new program begins."""
    given = GIVEN.get(page, Given())
    part = list[tuple[Block, str]]()
    section = 0
    for block in blocks(page):
        if given.anew and block.section != section and part:
            yield part
            part = []
        section = block.section
        part.append((block, _runnable(block, given)))
    yield part


def _runnable(block: Block, settings: Given) -> str:
    if block.language == "sh":
        lines = commands(block.text)
        return "".join(line for line in lines if not _without(line, settings))
    return "" if _without(block.text, settings) else block.text


def _without(text: str, settings: Given) -> bool:
    return any(part in text for part in settings.without)


def answer(request: Request) -> Reply:
    """A model's answer: it calls the first tool, once, then answers."""
    messages = request.body["messages"]
    tools = request.body.get("tools", [])
    newest = messages[-1]["content"]
    answered = isinstance(newest, list) and newest[0]["type"] == "tool_result"
    if tools and not answered:
        return message(tool_use(tools[0]["name"], _arguments(tools[0]["name"])))
    return message("<summary>a.o is missing.</summary>")


def _arguments(tool: str) -> dict[str, Any]:
    files = {"command": "create", "path": "/memories/plan.md", "file_text": "Book.\n"}
    arguments = {"memory": files, "memory_retrieval": {"user_id": "ada"}}
    return arguments.get(tool, {"command": "make"})


def furnish(place: Path) -> None:
    """Create everything that the pages mention in a directory that is also a home."""
    shutil.copytree(ROOT / "examples", place / "examples")
    (place / "refold").mkdir()
    shutil.copy(ROOT / "refold" / "auditor.py", place / "refold")
    project = place / ".claude" / "projects" / "cards"
    project.mkdir(parents=True)
    shutil.copy(SAMPLE, project)
    shutil.copy(SAMPLE, place / "run.jsonl")
    (place / "retention.toml").write_text('sessions = "30d"\n')
    (place / "build.log").write_text("make: *** [a.o] Error 1\n")
    (place / "talk.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "hello"}]}\n'
        '{"messages": [{"role": "user", "content": "bye"}]}\n'
    )
    with zipfile.ZipFile(place / "chatgpt-export.zip", "w") as archive:
        archive.writestr("conversations.json", json.dumps(CHATGPT))


def run(page: str, part: list[tuple[Block, str]], place: Path, url: str) -> list[str]:
    """Run a part of a page in a directory, and return the output of each block."""
    furnish(place)
    before = {"language": "sh", "name": f"before {page}", "file": None}
    todo = [{**before, "text": GIVEN.get(page, Given()).before}]
    for number, (block, text) in enumerate(part, start=1):
        name = f"{page}, block {number} of the part"
        language = block.language
        if language in ("sh", "python") or (language == "toml" and block.file):
            todo.append(
                {"language": language, "name": name, "text": text, "file": block.file}
            )
        else:
            todo.append({**before, "text": ""})
    (place / "steps.json").write_text(json.dumps(todo))
    path = os.pathsep.join([str(warm.shim(place / "bin")), os.environ["PATH"]])
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("REFOLD_")},
        "HOME": str(place),
        "XDG_CONFIG_HOME": str(place / "config"),
        "XDG_CACHE_HOME": str(place / "cache"),
        "PATH": path,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "a-key-for-tests",
    }
    ran = warm.code(
        "from tests.support.pages import main; main()",
        cwd=place,
        environment=environment,
    )
    _, errors = ran.communicate()
    assert ran.returncode == 0, errors
    _, *printed = json.loads((place / "printed.json").read_text())
    return [str(output) for output in printed]


@pytest.mark.timeout(600)  # some twenty processes
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    assert any(block.language in ("sh", "python") for block in blocks(page))
    with MessagesApi(answer) as api:
        for number, part in enumerate(steps(page)):
            place = tmp_path / str(number)
            place.mkdir()

            printed = run(page, part, place, api.url)

            assert missing(page, part, printed) == []


def missing(page: str, part: list[tuple[Block, str]], printed: list[str]) -> list[str]:
    """Return the lines that a page shows as output and its command does not print."""
    given = GIVEN.get(page, Given())
    previous = ""
    lines_missing = list[str]()
    for (block, _), now in zip(part, printed, strict=True):
        if block.language == "text" and not _without(block.text, given):
            lines = map(_steady, block.text.splitlines())
            lines_missing += [line for line in lines if line not in _steady(previous)]
        previous = now or previous
    return lines_missing


def _steady(text: str) -> str:
    """Without the time of day, which is another whenever this runs."""
    return re.sub(r" *\d\d:\d\d:\d\d", "", text)


def test_every_exception_is_of_something_that_a_page_has() -> None:
    texts = {page: [block.text for block in blocks(page)] for page in PAGES}

    idle = [
        (page, part)
        for page, settings in GIVEN.items()
        for part in settings.without
        if not any(part in text for text in texts.get(page, []))
    ]

    assert idle == []


def test_every_block_runs_is_shown_or_is_an_exception() -> None:
    """These settings have their own tests: tests/redaction, tests/projections."""
    languages = {"sh", "python", "toml", "text", "json"}

    left = [
        (page, block.text)
        for page in PAGES
        for block in blocks(page)
        if block.language not in languages
        and not _without(block.text, GIVEN.get(page, Given()))
    ]

    assert left == []


def test_the_tutorial_cleans_up() -> None:
    last = [block for block in blocks("docs/tutorial.md") if block.language == "sh"][-1]

    assert last.text.startswith("rm -r tutorial.db* tutorial-home\nunset REFOLD_DB")


def test_the_readme_begins_with_agents_that_are_recorded() -> None:
    agent, client, asked, shown, *_ = blocks("README.md")

    languages = [agent.language, client.language, asked.language, shown.language]
    assert languages == ["sh", "python", "sh", "text"]
    assert "refold run -- " in agent.text
    imports, five = client.text.split("\n\n")
    assert "import anthropic" in imports
    assert len(five.splitlines()) == 5
    assert "refold why" in asked.text
    assert "[EMAIL_1]" in shown.text
