"""Keys are replaced during reads and writes; restored old keys are detected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import refold
from refold.adapters import config
from refold.adapters.keys.master import MasterKeyFile
from refold.opener import reconcile_keys
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.nested import problems_of
from tests.support.operations import log_of
from tests.support.stores import open_at, prepare


class Pair(NamedTuple):
    """Two processes with one store, each with its own key cache."""

    first: SessionStore
    second: SessionStore


@pytest.fixture
def pair(store_url: str, tmp_path: Path) -> Iterator[Pair]:
    with open_at(store_url, tmp_path) as first, open_at(store_url, tmp_path) as second:
        fill(first, "ada", "one")
        second.session(user_id="ada", session_id="one").events()
        yield Pair(first, second)


def check_keys_work(store: SessionStore, name: str) -> None:
    """Assert that reading, a retry, a blob, a new session and a new user work."""
    session = store.session(user_id="ada", session_id="one")
    assert session.context(WINDOW).messages
    whole = user_inputs("a line of text. " * 5_000)
    assert session.append(whole, idempotency_key="once").duplicate
    shown = session.events()[16].payload.payload()
    sha256 = str(shown["text"]).split('blob("')[1].split('"')[0]
    assert session.history.blob(sha256).startswith("a line of text. ")
    store.session(user_id="ada", session_id=name).append(user_inputs("new"))
    store.session(user_id=name, session_id=name).append(user_inputs("new"))
    assert problems_of(store.verify()) == []


def test_rotation_wraps_every_key_with_the_new_master_key(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as before:
        fill(before, "ada", "one")
        before.session(user_id="eve", session_id="s").append(user_inputs("x"))
        before.erase("eve", "later", grace=timedelta(days=1))
        key = before.erasures.public_key()
        old = MasterKeyFile().path.read_bytes()
        MasterKeyFile().add()
        with open_at(store_url, tmp_path) as store:
            assert store.keys.status()["stale"] > 3
            store.keys.rotate_master()
            check_keys_work(before, "of-before")
            assert store.keys.status()["stale"] == 0
            check_keys_work(store, "of-after")
            assert store.keys.rotate_master() == 0
    MasterKeyFile().drop_older()

    with open_at(store_url, tmp_path) as store:
        check_keys_work(store, "at-last")
        assert store.erasures.public_key() == key
        store.erasures.restore("eve", "a mistake")
        assert store.session(user_id="eve", session_id="s").events()
    MasterKeyFile().path.write_bytes(old)
    with pytest.raises(refold.KeyUnavailable, match="does not open this key store"):
        open_at(store_url, tmp_path)


def test_a_users_key_is_replaced_during_other_work(pair: Pair) -> None:
    ring = log_of(pair.first).keys
    before = ring.user("ada", now=None)

    assert pair.first.keys.rotate_user("ada") == 2

    check_keys_work(pair.second, "others")
    check_keys_work(pair.first, "ours")
    assert ring.user("ada", now=None).wrapped != before.wrapped
    pair.first.erase("ada", "gone")
    with pytest.raises(refold.Erased):
        pair.second.keys.rotate_user("ada")


def test_the_slower_of_two_key_rotations_still_returns_its_version(pair: Pair) -> None:
    store: Any = log_of(pair.first).keys.store
    keys_of = store.keys_of

    def late(user_ref: str) -> Any:
        store.keys_of = keys_of
        pair.second.keys.rotate_user("ada")
        return keys_of(user_ref)

    store.keys_of = late
    assert pair.first.keys.rotate_user("ada") == 2

    check_keys_work(pair.second, "others")


def test_a_sessions_key_is_replaced_and_the_earlier_one_destroyed(pair: Pair) -> None:
    ring = log_of(pair.first).keys
    session = pair.first.session(user_id="ada", session_id="one")
    before = ring.session("ada", "one", now=None)
    events = session.events()
    view = session.context(WINDOW)

    done = pair.first.keys.rotate_session("ada", session_id="one")

    assert done.key_version == 2
    assert ring.session("ada", "one", now=None).check != before.check
    again = session.events()
    replaced = again[: len(events)]
    bound = again[len(events) :]
    assert [event.payload for event in replaced] == [event.payload for event in events]
    assert [event.hash for event in replaced] == [event.hash for event in events]
    assert {event.type for event in bound} == {"redaction_applied"}
    assert session.context(WINDOW).messages == view.messages
    assert pair.first.keys.status()["retired"] == 0
    check_keys_work(pair.second, "others")


def test_a_session_of_an_erased_user_has_no_key_to_replace(pair: Pair) -> None:
    pair.first.erase("ada", "she asked")

    with pytest.raises(refold.Erased):
        pair.second.keys.rotate_session("ada", session_id="one")


def test_a_missing_session_has_no_key_to_replace(pair: Pair) -> None:
    with pytest.raises(refold.SessionNotFound):
        pair.first.keys.rotate_session("ada", session_id="none")
    with pytest.raises(refold.errors.UserNotFound):
        pair.first.keys.rotate_user("nobody")


def key_file(tmp_path: Path) -> Path:
    explicit = tmp_path / "keys.db"
    return (
        explicit if explicit.exists() else next((config.home() / "keys").glob("*.db"))
    )


def test_an_older_key_store_is_detected_and_its_erased_keys_destroyed_again(
    store_url: str, tmp_path: Path
) -> None:
    url = prepare(store_url, tmp_path)
    with open_at(url, tmp_path) as store:
        fill(store, "ada", "one")
        fill(store, "bob", "one")
        fill(store, "eve", "one")
        keys = key_file(tmp_path)
        shutil.copyfile(keys, tmp_path / "backup")
        store.erase("ada", "she asked")
        store.erase("bob", "one of his", session_id="one")
        store.erase("eve", "she asked")
        store.erasures.readmit("eve", "back")
    shutil.copyfile(tmp_path / "backup", keys)

    with pytest.raises(refold.KeyUnavailable, match=r"older.*reconcile"):
        open_at(url, tmp_path)
    gone = reconcile_keys(url)

    assert gone >= 3 + 2 + 3
    with open_at(url, tmp_path) as store:
        for user in ("ada", "eve"):
            with pytest.raises(refold.Erased):
                store.session(user_id=user, session_id="one").append(user_inputs("x"))
        with pytest.raises(refold.Erased):
            store.session(user_id="bob", session_id="one").events()
        store.session(user_id="bob", session_id="two").append(user_inputs("x"))


def test_a_restored_database_without_the_keys_is_unreadable_and_erased_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "refold.db"
    with refold.open(sqlite_url) as store:
        fill(store, "ada", "one")
        fill(store, "bob", "one")
    shutil.copyfile(path, tmp_path / "backup")
    with refold.open(sqlite_url) as store:
        store.erase("ada", "she asked")
    shutil.copyfile(tmp_path / "backup", path)

    with refold.open(sqlite_url) as store:
        session = store.session(user_id="ada", session_id="one")
        for use in (
            session.events,
            session.context,
            lambda: session.append(user_inputs("x")),
        ):
            with pytest.raises(refold.Erased):
                use()
        assert store.session(user_id="bob", session_id="one").events()
        (erased,) = store.erasures.complete()
        assert erased.certificate is not None
        assert erased.certificate.statement["counts"]["events"] == 20
        assert set(erased.left.values()) == {0}
        assert list(store.erasures.complete()) == []
        assert store.erasures.plan("ada").counts["events"] == 0


def test_a_session_from_a_restored_database_is_erased_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "refold.db"
    with refold.open(sqlite_url) as store:
        fill(store, "ada", "one")
        store.session(user_id="ada", session_id="two").append(user_inputs("x"))
        store.session(user_id="ada", session_id="three").append(user_inputs("y"))
    shutil.copyfile(path, tmp_path / "backup")
    with refold.open(sqlite_url) as store:
        store.erase("ada", "she asked", session_id="one")
    shutil.copyfile(tmp_path / "backup", path)

    with refold.open(sqlite_url) as store:
        store.erase("ada", "another", session_id="two")
        assert store.erasures.plan("ada", session_id="one").counts["events"] > 0
        for name in ("one", "one-fork"):
            store.erase("ada", "again", session_id=name)
        (left,) = store.verify()
        assert left[0].session_id == "three"
        assert left[1].problems == []


def test_status_counts_keys_without_naming_users(pair: Pair) -> None:
    pair.first.erase("ada", "a slip", session_id="one")
    pair.first.session(user_id="bob", session_id="b").append(user_inputs("x"))
    pair.first.erase("bob", "later", grace=timedelta(days=1))

    status = pair.first.keys.status()

    assert status["users"] == 1
    assert status["erased_sessions"] == 2
    assert status["held"] == 2
    assert status["stale"] == status["retired"] == 0
    assert os.environ.get("REFOLD_MASTER_KEY") is None
    assert status["master"] == str(MasterKeyFile().path)
