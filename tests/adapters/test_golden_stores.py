"""A store that version 0.1.0 wrote can be opened, read, verified and continued."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import refold
from refold.adapters.sql.schema import STEPS
from refold.strategies import Strategy, parse
from tests.support.nested import problems_of
from tests.support.stores import ROOT

_GOLDEN = ROOT / "tests" / "adapters" / "golden"


class Golden(NamedTuple):
    """A store as an earlier version left it."""

    url: str
    content: dict[str, Any]

    def open(self) -> refold.SessionStore:
        return refold.open(self.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def golden(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Golden:
    engine = request.param
    with tarfile.open(_GOLDEN / f"{engine}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    home = tmp_path / "home"
    monkeypatch.setenv("REFOLD_HOME", str(home))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if engine == "postgresql":
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            dump = (tmp_path / "store.sql").read_text("utf-8")
            connection.execute(dump.encode())
        monkeypatch.setenv("REFOLD_KEYS", f"sqlite:///{home / 'keys.db'}")
    return Golden(url, json.loads((tmp_path / "content.json").read_text("utf-8")))


def test_it_is_migrated_when_it_is_opened(golden: Golden) -> None:
    assert _schema_version(golden.url) == "1"

    golden.open().close()

    assert _schema_version(golden.url) == str(len(STEPS))


def _schema_version(url: str) -> str:
    query = "SELECT value FROM {}settings WHERE name = 'schema_version'"
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            row = connection.execute(query.format("refold.").encode()).fetchone()
    else:
        import sqlite3

        database = sqlite3.connect(url.removeprefix("sqlite:///"))
        row = database.execute(query.format("")).fetchone()
        database.close()
    assert row is not None
    return str(row[0])


def test_its_events_and_contexts_are_the_same(golden: Golden) -> None:
    with golden.open() as store:
        content = {
            f"{info.user_id}/{info.session_id}": _content(store, info)
            for info in store.sessions()
        }

    assert content == golden.content


def _content(store: refold.SessionStore, info: Any) -> dict[str, Any]:
    session = store.session(user_id=info.user_id, session_id=info.session_id)
    events = session.events()
    return {
        "types": [recorded.type for recorded in events],
        "hashes": [recorded.hash for recorded in events],
        "keep_all": session.context(_first("keep_all")).digest,
        "turn_window": session.context(_first("turn_window")).digest,
    }


def _first(name: str) -> Strategy:
    """The strategy with the rules that version 0.1.0 had."""
    return parse({"name": name, "version": 1})


def test_it_verifies(golden: Golden) -> None:
    with golden.open() as store:
        problems = problems_of(store.verify())
        seals = store.verify_seals()

    assert problems == []
    assert seals is not None
    assert (seals.tree_heads, seals.leaves, seals.erased) == (1, 5, 1)


def test_it_can_be_continued(golden: Golden) -> None:
    with golden.open() as store:
        session = store.session(user_id="ada", session_id="s-1")
        before = len(session.events())

        session.append(refold.UserInput(text="Go on."))
        session.prepare("turn_window")
        store.seal()

        assert len(session.events()) == before + 1
        assert store.sessions("ada", label={"project": "cards"})
        assert all(not verified.problems for _, verified in store.verify())
        store.erase("bob", "asked")
    with golden.open() as store:
        assert {info.user_id for info in store.sessions()} == {"ada"}
