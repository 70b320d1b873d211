"""The README, the tutorial and the how-tos run as written, and print what they show."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import ROOT, SAMPLE
from tests.support import warm

PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/how-to/import.md",
    "docs/how-to/audit-a-compaction.md",
    "docs/how-to/change-strategy.md",
    "docs/how-to/prove-an-event.md",
    "docs/how-to/human-review.md",
)
# What these show of what is printed is held against it.
SHOWING = ("docs/tutorial.md", "docs/how-to/audit-a-compaction.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A clone has been installed already where these tests run.
_NOT_HERE = ("python3 -m venv", "export PATH=")


class Block(NamedTuple):
    """Something in a fence, and what it is."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((ROOT / page).read_text())]


def furnish(place: Path) -> None:
    """Put all that the pages speak of into a directory that is a home, too."""
    shutil.copytree(ROOT / "examples", place / "examples")
    project = place / ".claude" / "projects" / "cards"
    project.mkdir(parents=True)
    shutil.copy(SAMPLE, project)
    shutil.copy(SAMPLE, place / "run.jsonl")
    (place / "talk.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "hello"}]}\n'
        '{"messages": [{"role": "user", "content": "bye"}]}\n'
    )


def run(page: str, place: Path) -> Iterator[tuple[Block, str]]:
    """Run a page from top to bottom; yields each block with what was printed last."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("REFOLD_")},
        "HOME": str(place),
        "XDG_CONFIG_HOME": str(place / "config"),
        "PATH": os.pathsep.join([str(warm.shim(place / "bin")), os.environ["PATH"]]),
    }
    printed = ""
    for block in blocks(page):
        if block.language == "sh":
            lines = block.text.splitlines()
            kept = [line for line in lines if not line.startswith(_NOT_HERE)]
            for line in filter(lambda line: line.startswith("export "), kept):
                environment |= dict(
                    pair.split("=", 1) for pair in line.split()[1:] if "=" in pair
                )
            printed = _printed(["sh", "-ec", "\n".join(kept)], place, environment)
        elif block.language == "python":
            printed = _program(block.text, place, environment)
        yield block, printed


def _printed(command: list[str], place: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def _program(text: str, place: Path, environment: dict[str, str]) -> str:
    ran = warm.code(text, cwd=place, environment=environment)
    printed, errors = ran.communicate()
    assert ran.returncode == 0, f"{text}\n{printed}{errors}"
    return printed


def always_the_readme() -> list[Any]:
    """All pages; those beside the README are left out in part where all tests run."""
    first, *others = PAGES
    return [first, *others]


@pytest.mark.timeout(600)  # some twenty processes
@pytest.mark.parametrize("page", always_the_readme())
def test_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    furnish(tmp_path)

    ran = list(run(page, tmp_path))

    shown = [
        (line, printed)
        for block, printed in ran
        if block.language == "text" and page in SHOWING
        for line in block.text.splitlines()
    ]
    assert any("refold " in block.text for block, _ in ran)
    assert [line for line, printed in shown if line not in printed] == []


def test_the_tutorial_cleans_up() -> None:
    last = [block for block in blocks("docs/tutorial.md") if block.language == "sh"][-1]

    assert last.text == "rm -r tutorial.db* tutorial-home\n"


def test_the_first_example_of_the_readme_redacts(tmp_path: Path) -> None:
    (example,) = (block for block in blocks("README.md") if block.language == "python")

    printed = _program(example.text, tmp_path, {**os.environ})

    assert "[REDACTED:EMAIL]" in printed
    assert "bob@build.test" not in printed


def test_the_first_example_of_the_readme_is_short() -> None:
    (example,) = (block for block in blocks("README.md") if block.language == "python")

    assert len(example.text.strip().splitlines()) <= 12
