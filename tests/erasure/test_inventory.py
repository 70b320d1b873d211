"""Every place that holds something of a user is registered, and an erasure walks it."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.adapters import config
from refold.adapters.capture_state import CaptureState
from refold.adapters.importers.follower import Follower
from refold.adapters.inventory import PLACES
from refold.adapters.log import EncryptedLog
from refold.adapters.sql import tables
from refold.adapters.sql.keystore import SqlKeyStore
from refold.store import SessionStore
from refold.testing.event_log import said

USERS = ("user-7d1f40c2", "u1")
LINE = '{"type":"user","uuid":"e-1","sessionId":"s-1","message":{"content":"hello"}}\n'


def registered(kind: str) -> set[str]:
    return {place.name for place in PLACES if place.kind == kind}


@pytest.mark.parametrize("schema", [None, "refold"])
def test_every_table_of_a_store_is_registered(schema: str | None) -> None:
    built = tables.build(schema, rowid=schema is None)

    names = {str(table.name) for table in built.metadata.sorted_tables}

    assert names == registered("table")


def test_every_table_of_a_key_store_is_registered() -> None:
    store = SqlKeyStore("memory://")

    assert set(store.tables) == registered("key table")
    store.close()


def capture(store: SessionStore, user_id: str, folder: Path) -> CaptureState:
    """Capture a transcript, as ``refold capture --once`` does."""
    transcript = folder / "project" / "s-1.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text(LINE)
    follower = Follower(store, "claude-code", user_id=user_id, folder=folder, url="x")
    follower.catch_up()
    return follower.state


@pytest.mark.parametrize("user_id", USERS)
def test_an_erasure_removes_the_state_of_captures_and_says_so(
    sqlite_url: str, tmp_path: Path, user_id: str
) -> None:
    with refold.open(sqlite_url) as store:
        state = capture(store, user_id, tmp_path / "mine")
        other = capture(store, "other-55aa01", tmp_path / "other")
        assert state.files()

        done = store.erase(user_id, "asked")

        assert done.certificate is not None
        removed = done.removed["capture state"]
        assert str(state.places) in removed
        files = done.certificate.statement["files_removed"]
        assert files == {"capture state": len(removed)}
        assert state.files() == []
        assert other.files()
        for path in config.home().rglob("*.json"):
            assert f'"{user_id}"'.encode() not in path.read_bytes()


def test_every_file_under_the_home_is_registered(
    sqlite_url: str, tmp_path: Path
) -> None:
    with refold.open(sqlite_url) as store:
        store.session(user_id="ada", session_id="s").append(said("x"))
        capture(store, "ada", tmp_path / "mine")
        store.seal()
        patterns = [place.files for place in PLACES if place.kind == "file"]
        known = {path for pattern in patterns for path in config.home().glob(pattern)}

        files = {path for path in config.home().rglob("*") if path.is_file()}

        assert files - known == set()
        assert len(files) > 3


def test_short_names_are_searched_as_rows_hold_them(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        store.session(user_id="ab", session_id="s").append(said("x"))
        log = store.log
        assert isinstance(log, EncryptedLog)
        before = log.erasures.found_in_files(["zz", "s"])
        there = log.recorder.database.found_in_files(["absmain"])["files"]
        assert sum(there.values()) > 0
        assert sum(before["files"].values()) == 0

        done = store.erase("ab", "asked")

        assert done.files["names"] > 0
        assert set(done.files["files"].values()) == {0}
        after = log.recorder.database.found_in_files(["absmain"])["files"]
        assert sum(after.values()) == 0
