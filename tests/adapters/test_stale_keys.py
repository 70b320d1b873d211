"""Whoever still holds a key that was replaced writes nothing with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import make_url

from refold.adapters.keys.master import LocalMasterKey
from refold.adapters.keys.ring import KeyRing
from refold.adapters.log import EncryptedLog
from refold.adapters.rows import Moved
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.schema import migrate
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.events import CompactionNote
from refold.domain.ports import Appended, Conflict, Problem, StoredView
from refold.testing import (
    ADA,
    NOW,
    append_to,
    memory_recorder,
    texts,
    user_inputs,
    write,
)
from refold.testing.event_log import WordReplacement

DERIVED = ADA._replace(stream="f" * 64)
NOTE = CompactionNote(phase="retired")


class Two(NamedTuple):
    """Two processes at one store: each has its own memory of the keys."""

    one: EncryptedLog
    other: EncryptedLog


def recorder(kind: str, request: pytest.FixtureRequest) -> Recorder:
    if kind == "memory":
        return memory_recorder()
    url = make_url(request.getfixturevalue(f"{kind}_url"))
    dialect = SqliteDatabase(url) if kind == "sqlite" else PostgresDatabase(url)
    migrate(dialect)
    return Recorder(dialect)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    rows, keys = recorder(request.param, request), SqlKeyStore("memory://")
    master = LocalMasterKey(os.urandom(32), origin="a test")
    one, other = (EncryptedLog(rows, KeyRing(keys, master)) for _ in range(2))
    write(one, ADA, *user_inputs("a secret"))
    write(one, DERIVED, NOTE)
    other.read(ADA)
    yield Two(one, other)
    rows.close()


def rewrite(log: EncryptedLog) -> None:
    log.rewrite(ADA, WordReplacement("secret"), now=NOW)


def whole(log: EncryptedLog) -> bool:
    return not any(
        isinstance(item, Problem) for s in (ADA, DERIVED) for item in log.audit(s)
    )


@pytest.mark.parametrize("stream", [ADA, DERIVED])
def test_an_append_with_the_old_key_is_a_conflict_and_the_next_is_not(
    two: Two, stream: object
) -> None:
    place = DERIVED if stream is DERIVED else ADA
    event = NOTE if place is DERIVED else user_inputs("b")[0]
    old = two.other.head(place)
    rewrite(two.one)

    outcome = two.other.append(append_to(old, event))

    assert isinstance(outcome, Conflict)
    assert isinstance(two.other.append(append_to(outcome.head, event)), Appended)
    assert whole(two.one)
    assert whole(two.other)


def test_a_stream_does_not_begin_under_the_old_key(two: Two) -> None:
    new = ADA._replace(stream="e" * 64)
    batch = two.other.batch(append_to(two.other.head(new), NOTE))
    rewrite(two.one)

    assert isinstance(two.other.recorder.write(batch), Moved)
    assert isinstance(write(two.other, new, NOTE), Appended)
    assert len(two.one.read(new)) == 1


def test_a_view_is_not_kept_under_the_old_key(two: Two) -> None:
    view = StoredView(1, 0, {"n": 1})
    rewrite(two.one)

    assert not two.other.save_view(ADA, "v", view, replaces=0)
    two.other.read(ADA)
    assert two.other.save_view(ADA, "v", view, replaces=0)
    assert two.one.load_view(ADA, "v") == view


def test_everything_is_read_with_the_new_key(two: Two) -> None:
    rewrite(two.one)

    assert texts(two.other.read(ADA)) == ["a -"]
    assert two.other.head(ADA).seq == two.one.head(ADA).seq == 3
    assert whole(two.other)


def test_rows_that_were_read_before_and_opened_after_are_read_again(two: Two) -> None:
    fresh = EncryptedLog(two.other.recorder, _forgetful(two.other.keys))
    rows = fresh.recorder.select_events
    pages = iter([rows(ADA)])
    rewrite(two.one)

    events = fresh.envelopes(lambda: next(pages, None) or rows(ADA))

    assert texts(events) == ["a -"]


def test_a_head_that_was_read_before_its_key_was_destroyed_is_read_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = EncryptedLog(two.other.recorder, _forgetful(two.other.keys))
    kind = type(fresh.recorder)
    now, before = kind.head_row, fresh.recorder.head_row(ADA)
    rewrite(two.one)
    stale = iter([before])
    monkeypatch.setattr(kind, "head_row", lambda s, a: next(stale, None) or now(s, a))

    assert fresh.head(ADA).seq == 3


def _forgetful(ring: KeyRing) -> KeyRing:
    """The same keys, none of them in memory."""
    return KeyRing(ring.store, ring.master)
