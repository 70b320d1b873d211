"""A command that creates no data creates no store if the path does not exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from refold.adapters.cli import main
from refold.adapters.cli.commands import COMMANDS
from tests.cli.conftest import Refold

# Arguments with which each command would use the store.
USES: Final[dict[str, list[str]]] = {
    "audit": ["audit"],
    "blame": ["blame", "app.py", "--user", "ada"],
    "compact": [
        "compact",
        "--user",
        "ada",
        "--session",
        "s",
        "--strategy",
        "turn_window",
    ],
    "compare": ["compare", "--user", "ada", "--session", "s"],
    "consent": ["consent", "--user", "ada"],
    "context": ["context", "--user", "ada", "--session", "s"],
    "erase": ["erase", "--user", "ada", "--yes", "--reason", "asked"],
    "erase --due": ["erase", "--due", "--yes"],
    "export": ["export", "--user", "ada"],
    "freeze": ["freeze", "--user", "ada", "--reason", "asked"],
    "hold": ["hold", "--user", "ada", "--name", "case", "--reason", "asked"],
    "keys reconcile": ["keys", "reconcile"],
    "keys rotate": ["keys", "rotate", "--master"],
    "keys status": ["keys", "status"],
    "label": ["label", "--user", "ada", "--session", "s", "a=b"],
    "log": ["log", "--user", "ada", "--session", "s"],
    "mcp": ["mcp", "--user", "ada"],
    "memory": ["memory", "--user", "ada"],
    "move": ["move", "--to", "postgresql://ada@127.0.0.1:1/agents"],
    "prove": ["prove", "--user", "ada", "--session", "s", "--seq", "1"],
    "readmit": ["readmit", "--user", "ada", "--reason", "asked"],
    "rebuild": ["rebuild", "--strategy", "turn_window"],
    "repair": ["repair", "--apply"],
    "rerun": ["rerun", "--user", "ada", "--session", "s"],
    "restore": ["restore", "--user", "ada", "--reason", "asked"],
    "resume": ["resume", "s", "--user", "ada", "--in", "codex"],
    "retain": ["retain", "--preset", "seed"],
    "review": ["review", "list", "--user", "ada"],
    "seal": ["seal"],
    "search": ["search", "word", "--user", "ada"],
    "sessions": ["sessions"],
    "share": [
        "share",
        "--user",
        "ada",
        "--session",
        "s",
        "--out",
        "run.html",
        "--yes",
    ],
    "stats": ["stats"],
    "verify": ["verify"],
    "view": ["view", "--user", "ada", "--session", "s"],
    "why": ["why", "--user", "ada", "--session", "s"],
    "worker": ["worker", "--do", "verify"],
}
CREATES_STORE: Final = {"import", "capture", "serve", "run", "proxy"}
# Wrong uses of the commands that create a store.
REFUSED: Final[dict[str, list[str]]] = {
    "a file that is not there": ["import", "absent.jsonl", "--user", "ada"],
    "a folder that is not there": ["capture", "absent", "--user", "ada"],
    "an unknown provider": ["run", "--upstream", "openai=nowhere", "--", "true"],
    "another machine's address": ["serve", "--host", "nowhere.invalid"],
    "a server for others without keys": ["serve", "--host", "0.0.0.0"],  # noqa: S104
    "a key without a certificate": ["serve", "--tls-key", "key.pem"],
    "an origin with a path": ["serve", "--origin", "https://a.test/b"],
    "every client as a proxy": ["serve", "--trusted-proxy", "0.0.0.0/0"],
}
USES_NO_STORE: Final = {"bench", "redact", "replay", "schema", "warm"}


def test_every_command_is_checked_or_listed_as_an_exception() -> None:
    checked = {arguments[0] for arguments in USES.values()}

    assert set(COMMANDS) == checked | CREATES_STORE | USES_NO_STORE


@pytest.mark.parametrize("use", USES)
def test_a_command_creates_no_store(refold: Refold, tmp_path: Path, use: str) -> None:
    before = sorted(tmp_path.rglob("*"))

    ran = refold("--db", "sqlite:///misspelt.db", *USES[use])

    assert "there is no database misspelt.db" in ran.err
    assert "`refold import` or `refold run` makes one" in ran.err
    assert ran.code == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("use", REFUSED)
def test_a_command_that_is_refused_creates_no_store(
    refold: Refold, tmp_path: Path, use: str
) -> None:
    before = sorted(tmp_path.rglob("*"))

    ran = refold("--db", "sqlite:///new.db", *REFUSED[use])

    assert ran.code in (1, 2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("missing", ["fastapi", "markdown_it", "uvicorn"])
def test_a_server_without_its_extra_creates_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    assert main(["--db", f"sqlite:///{tmp_path}/new.db", "serve"]) == 2

    assert list(tmp_path.iterdir()) == []
