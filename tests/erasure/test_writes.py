"""A write to a place that the inventory does not register fails here."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from refold.adapters.cli.commands import GROUPS
from refold.adapters.rule_cache import VARIABLE as CACHE
from refold.domain import inventory
from tests.proxy.test_run import HTTP_AGENT
from tests.support import watched
from tests.support.provider import Provider, answer

ROOT: Final = Path(__file__).parents[2]
SAMPLE: Final = ROOT / "examples" / "sample" / "agent_run.jsonl"
WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"
RUN: Final = ("--user", "lin", "--session", "run")
YES_AS_JSON: Final = ("--yes", "--json")
# Its address is put in when the scenario runs.
UPSTREAM: Final = ("--upstream", "anthropic=ADDRESS")
LINE = '{"type":"user","uuid":"e-1","sessionId":"s-1","message":{"content":"hello"}}\n'
# All commands run in this order, on one store.
COMMANDS: Final[tuple[tuple[object, ...], ...]] = (
    ("import", SAMPLE, *RUN),
    ("sessions",),
    ("log", *RUN),
    ("search", "file", "--user", "lin"),
    ("label", *RUN, "project=tea"),
    ("context", *RUN, "--strategy", WINDOW),
    ("compact", *RUN, "--strategy", WINDOW, "--until-idle"),
    ("rebuild", "--strategy", "turn_window", "--user", "lin"),
    ("why", *RUN, "--strategy", WINDOW),
    ("compare", *RUN, "--strategy", WINDOW),
    ("rerun", *RUN),
    ("memory", "--user", "lin"),
    ("consent", "--user", "lin", "--grant", "training"),
    ("stats",),
    ("audit", "--user", "lin"),
    ("review", "scan", "--user", "lin"),
    ("review", "list", "--user", "lin"),
    ("blame", *RUN),
    ("view", *RUN, "--html", "out/run.html"),
    ("share", *RUN, "--out", "out/shared.html", "--yes"),
    ("share", *RUN, "--expires", "1d", "--yes"),
    ("resume", "run", "--user", "lin", "--in", "claude-code", "--print-command"),
    ("resume", "run", "--user", "lin", "--in", "codex", "--print-command"),
    ("resume", "run", "--user", "lin", "--in", "gemini", "--print-command"),
    ("schema",),
    ("warm",),
    ("redact", SAMPLE),
    ("redact", "--recheck"),
    ("keys", "status"),
    ("keys", "rotate", "--user", "lin"),
    ("keys", "rotate", *RUN),
    ("keys", "rotate", "--master"),
    ("seal",),
    ("prove", *RUN, "--seq", "1", "--out", "out/proof.json"),
    ("verify",),
    ("repair",),
    (
        "capture",
        "claude-code",
        "--once",
        "--user",
        "lin",
        "--folder",
        "client/projects",
    ),
    ("capture", "claude-code", "--install", "--user", "lin"),
    ("run", "--user", "lin", *UPSTREAM, "--", sys.executable, "-c", HTTP_AGENT, "hi"),
    ("proxy", "--variables"),
    ("export", "--out", "out/events.jsonl"),
    ("export", "--user", "lin", "--out", "out/folder", "--jobs", "2"),
    ("export", "--format", "otlp", "--out", "out/otlp.jsonl"),
    ("export", "--format", "atif", "--out", "out/atif.jsonl"),
    ("export", "--format", "dataset", "--out", "out/dataset.jsonl"),
    ("export", "--format", "parquet", "--columns", "all", "--out", "out/tables"),
    ("hold", "--user", "lin", "--name", "case", "--reason", "a court asked"),
    ("hold", "--user", "lin", "--name", "case", "--reason", "over", "--release"),
    ("freeze", "--user", "lin", "--reason", "asked"),
    ("freeze", "--user", "lin", "--reason", "over", "--lift"),
    ("retain", "--preset", "seed"),
    ("erase", "--user", "lin", "--reason", "asked", "--grace", "1d", "--yes"),
    ("restore", "--user", "lin", "--reason", "a mistake"),
    (
        "erase",
        "--user",
        "lin",
        "--reason",
        "a",
        "--out",
        "out/c.json",
        "--yes",
        "--json",
    ),
    ("readmit", "--user", "lin", "--reason", "signed up again"),
)
# Commands that the scenario does not run, and the reason.
NOT_RUN: Final = {
    "bench": "it needs a checkout, and measures in a temporary folder",
    "mcp": "it needs an extra, and only reads",
    "move": "it writes to the tables of another database, which are the same",
    "replay": "it opens no store, and only prints",
    "serve": "the scenario runs it apart, since it serves until a signal",
    "worker": "the scenario runs it apart, since it works until a signal",
}
# One process runs all commands: starting one for each takes a minute.
RUN_ALL: Final = """
import json, sys
from refold.adapters.cli import main
for command in json.loads(sys.argv[1]):
    code = main(command)
    sys.stdout.flush()
    if code not in (0, 1):
        sys.exit(f"{command} exited with {code}")
"""
# Features without a command: blobs, forks, memory, names, applications.
PROGRAM: Final = """
import sys
from eventsourcing.application import Application
import refold
from refold.redaction.policy import Policy
url = sys.argv[1]
with refold.open(url, access_log="table") as store:
    session = store.session(user_id="ada", session_id="s-1")
    text = refold.UserInput(text="a line of text. " * 5_000)
    session.append(text, idempotency_key="k")
    session.append(refold.StateUpdate(set={"a": 1}))
    session.fork(1, session_id="fork")
    session.catch_up()
    store.named("a thread", user_id="ada").append(refold.UserInput(text="x"))
    store.memory.of("ada")
    store.user("ada").consent("declarative_memory", reason="asked")
    store.export_user("ada", "out/of-ada")
    list(store.verify())
environment = {"PERSISTENCE_MODULE": "refold.adapters.eventsourcing", "REFOLD_DB": url}
Application(environment).close()
"""


class Scenario:
    """A folder in which watched processes work on a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.person = folder / "person"
        self.cache = folder / "cache"
        self.copies: set[Path] = set()  # those that the report of the erasure names
        self.work = folder / "work"
        self.url = f"sqlite:///{self.work / 'refold.db'}"
        (self.work / "out").mkdir(parents=True)
        project = self.work / "client" / "projects" / "a-project"
        project.mkdir(parents=True)
        (project / "s-1.jsonl").write_text(LINE)
        temporary = folder / "temporary"
        temporary.mkdir()
        self.environment = {
            **os.environ,
            **watched.environment(folder / "watched"),
            "HOME": str(self.person),
            CACHE: str(self.cache),
            "TMPDIR": str(temporary),
            "REFOLD_HOME": str(self.home),
            "REFOLD_ACCESS_LOG": "table",
        }

    def popen(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *(str(argument) for argument in arguments)],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: object) -> tuple[int, str]:
        with self.popen(*arguments) as process:
            out, _ = process.communicate()
        return process.returncode, out

    def serve(self, *arguments: str) -> str:
        """Run a command that serves until SIGTERM; return its output."""
        with self.popen("-m", "refold", "--db", self.url, *arguments) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate()
        return first + rest

    def is_registered(self, path: Path) -> bool:
        """Whether the inventory names the place, or a command named the file."""
        path = Path(os.path.realpath(path))
        if path == self.home or path.is_relative_to(self.home):
            return self._is_of_home(str(path.relative_to(self.home)))
        if path.parent == self.work and path.name.startswith("refold.db"):
            return True  # the tables
        if path == self.cache or path.parent == self.cache:
            return any(
                fnmatchcase(path.name, place.pattern)
                for place in inventory.places("cache file")
            )
        # Exports, and hooks in settings of clients: places beyond reach.
        if path.is_relative_to(self.work / "out") or path.name.startswith(".claude"):
            return True
        if path.parent.name == ".claude" or path == Path(os.devnull):
            return True
        return self._is_copy(path) or self._is_of_python(path)

    def _is_copy(self, path: Path) -> bool:
        """Whether the report of the erasure names the file, or one below this folder.

        Clients find a session in the folder of its project, which a file there names.
        """
        if path.name == ".project_root":
            path = path.parent
        return any(copy.is_relative_to(path) for copy in self.copies)

    def _is_of_python(self, path: Path) -> bool:
        """Whether Python itself, and no feature of Refold, wrote this file."""
        if self.home.is_relative_to(path) or path == self.person:
            return True  # a folder above the home, or above settings
        if path.parent != self.folder / "temporary":
            return False
        # ``tempfile`` tests the folder with a file; multiprocessing puts sockets there.
        return bool(re.fullmatch("[a-z0-9_]{8}|pymp-[a-z0-9_]{8}", path.name))

    @staticmethod
    def _is_of_home(path: str) -> bool:
        if path == ".":
            return True
        for place in inventory.places("file"):
            names = (place.pattern, f"{place.pattern}.*", f".{place.pattern}*")
            if any(fnmatchcase(path, name) for name in names):
                return True
            if place.pattern == f"{path}/*":
                return True
        return False

    def folders(self) -> list[Path]:
        """Return the folders in which a command may have left a file."""
        temporary = self.folder / "temporary"
        return [self.work, self.home, self.person, self.cache, temporary]

    def unregistered(self) -> list[str]:
        return [
            f"{write.event} {write.path}"
            for write in watched.writes(self.folder / "watched")
            if not self.is_registered(Path(write.path))
        ]


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """A store on which every command and feature has worked."""
    worked = Scenario(Path(os.path.realpath(tmp_path_factory.mktemp("scenario"))))
    with Provider() as provider:
        provider.reply(answer("It works."))
        commands = [
            [
                str(argument).replace("ADDRESS", provider.url)
                for argument in ("--db", worked.url, *command)
            ]
            for command in COMMANDS
        ]
        code, out = worked.run("-c", RUN_ALL, json.dumps(commands))
        assert len(provider.requests) == 1
    assert code == 0, out[-2000:]
    assert "bug in Refold" not in out
    (report,) = (line for line in out.splitlines() if line.startswith('{"certificate"'))
    worked.copies = {Path(copy["location"]) for copy in json.loads(report)["copies"]}
    code, out = worked.run("-c", PROGRAM, worked.url)
    assert code == 0, out
    assert "http" in worked.serve("serve", "--port", "0", "--user", "ada")
    worked.serve("worker", "--health", "0", "--json")
    return worked


def test_every_command_is_run_or_has_a_reason() -> None:
    names = set(chain.from_iterable(GROUPS.values()))
    run = {str(command[0]) for command in COMMANDS}

    assert run | set(NOT_RUN) == names
    assert run & set(NOT_RUN) == set()


@pytest.mark.load
def test_every_write_goes_to_a_registered_place(scenario: Scenario) -> None:
    paths = {write.path for write in watched.writes(scenario.folder / "watched")}
    assert str(scenario.work / "refold.db") in paths
    assert str(scenario.home / "master.key") in paths
    assert str(scenario.home / "proxy.secret") in paths
    assert any(path.startswith(f"{scenario.home}/capture/") for path in paths)
    assert any(path.startswith(f"{scenario.work}/out/") for path in paths)
    assert any(path.startswith(f"{scenario.cache}/") for path in paths)
    for client in (".claude", ".codex", ".gemini"):
        folder = scenario.person / client
        assert any(copy.is_relative_to(folder) for copy in scenario.copies)

    assert "\n".join(scenario.unregistered()) == ""


@pytest.mark.load
def test_every_remaining_file_is_registered(scenario: Scenario) -> None:
    """SQLite opens its own files, and no Python hook sees that."""
    transcripts = scenario.work / "client" / "projects"
    left = [
        path
        for place in scenario.folders()
        for path in place.rglob("*")
        if path.is_file() and not path.is_relative_to(transcripts)
    ]

    assert len(left) > 10
    assert [path for path in left if not scenario.is_registered(path)] == []


@pytest.mark.load
def test_every_table_is_registered(scenario: Scenario) -> None:
    patterns = {
        place.pattern or place.name
        for place in inventory.PLACES
        if place.kind == "table" or place.pattern == "es_*"
    }
    key_tables = {place.name for place in inventory.places("key table")}
    (key_store,) = (scenario.home / "keys").glob("*.db")

    tables = names(scenario.work / "refold.db")
    keys = names(key_store)

    assert {name for name in tables if name.startswith("es_")}
    assert [
        name
        for name in tables
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    ] == []
    assert set(keys) == key_tables


def names(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return [name for (name,) in connection.execute(query)]


@pytest.mark.load
def test_a_write_to_another_place_is_detected(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path)
    program = """
import os, pathlib, sqlite3, subprocess, sys
pathlib.Path(os.environ["REFOLD_HOME"]).mkdir()
home = pathlib.Path(os.environ["REFOLD_HOME"])
(home / "cache.json").write_text("{}")
(home / "titles").mkdir()
sqlite3.connect("index.db").close()
os.rename(home / "cache.json", home / "keys.json")
subprocess.run([sys.executable, "-c", "open('left.txt', 'a')"], check=True)
"""

    assert scenario.run("-c", program) == (0, "")

    names = [Path(write).name for write in scenario.unregistered()]
    assert names == ["cache.json", "titles", "index.db", "keys.json", "left.txt"]
