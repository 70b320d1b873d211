"""Every place that stores user data is registered, and an erasure visits it."""

from __future__ import annotations

import sqlite3
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from eventsourcing.application import Application

import refold
from refold.adapters import config
from refold.adapters.capture_state import CaptureState
from refold.adapters.importers.follower import Follower
from refold.adapters.log import EncryptedLog
from refold.adapters.sql import tables
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain import inventory
from refold.domain.inventory import PLACES
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.eventsourcing import MODULE

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
def test_an_erasure_removes_and_reports_the_state_of_captures(
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
        store.session(user_id="ada", session_id="s").append(user_inputs("x"))
        capture(store, "ada", tmp_path / "mine")
        store.seal()
        patterns = [place.pattern for place in PLACES if place.kind == "file"]
        registered = {
            path for pattern in patterns for path in config.home().glob(pattern)
        }

        files = {path for path in config.home().rglob("*") if path.is_file()}

        assert files - registered == set()
        assert len(files) > 3


def test_short_names_are_searched_as_rows_hold_them(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        store.session(user_id="ab", session_id="s").append(user_inputs("x"))
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


@pytest.mark.parametrize("schema", [None, "refold"])
def test_tables_with_erased_rows_have_the_user_and_heads_go_last(
    schema: str | None,
) -> None:
    built = tables.build(schema, rowid=schema is None)
    with_users = {
        str(table.name)
        for table in built.metadata.sorted_tables
        if "user_id" in table.c
    }

    deleted = [place.name for place in inventory.places("table", "delete rows")]

    assert set(deleted) == with_users
    assert len(deleted) == len(set(deleted))
    assert deleted[-1] == "heads"


def test_an_erasure_visits_every_registered_place(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = [place for place in PLACES if place.name not in ("blobs", "audit")]
    with refold.open(sqlite_url, access_log="table") as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(user_inputs("a line of text. " * 5_000))
        session.events()
        store.access_log.flush()
        log = store.log
        assert isinstance(log, EncryptedLog)
        rows = log.recorder.database
        monkeypatch.setattr(inventory, "PLACES", tuple(shorter))

        done = store.erase("ada", "asked")

        monkeypatch.undo()
        assert "blobs" not in done.left
        blobs = sa.select(rows.tables.blobs.c.user_id)
        named = sa.select(rows.tables.audit.c.user_hash)
        assert [row.user_id for row in rows.read(None, blobs)] == ["ada"]
        assert any(row.user_hash for row in rows.read(None, named))


def test_the_report_and_the_certificate_name_the_places_beyond_reach(
    sqlite_url: str,
) -> None:
    names = [place.name for place in inventory.outside()]
    with refold.open(sqlite_url) as store:
        store.session(user_id="ada", session_id="s").append(user_inputs("x"))

        done = store.erase("ada", "asked")
        again = store.erase("ada", "asked")

    assert done.certificate is not None
    assert done.certificate.statement["outside"] == names
    for report in (done, again):
        entries = report.to_json()["outside"]
        assert [entry["place"] for entry in entries] == names
        assert all(entry["advice"] for entry in entries)
    assert "backups" in names


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_place_that_keeps_data_has_a_reason(place: inventory.Place) -> None:
    stays = place.removal in ("leave", "out of reach", "mark leaves")

    assert not stays or place.remark
    assert (place.kind == "outside") == (place.removal == "out of reach")


def test_tables_of_other_applications_are_registered(
    sqlite_url: str, tmp_path: Path
) -> None:
    application = Application[UUID](
        {"PERSISTENCE_MODULE": MODULE, "REFOLD_DB": sqlite_url}
    )
    application.close()
    (place,) = (place for place in inventory.outside() if place.pattern == "es_*")

    with sqlite3.connect(tmp_path / "refold.db") as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        names = {name for (name,) in connection.execute(query)}

    others = names - registered("table")
    assert others
    assert all(fnmatchcase(name, place.pattern) for name in others)
