"""A process that still holds a replaced key writes nothing with it."""

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


class Pair(NamedTuple):
    """Two processes with one store, each with its own key cache."""

    first: EncryptedLog
    second: EncryptedLog


def recorder(kind: str, request: pytest.FixtureRequest) -> Recorder:
    if kind == "memory":
        return memory_recorder()
    url = make_url(request.getfixturevalue(f"{kind}_url"))
    dialect = SqliteDatabase(url) if kind == "sqlite" else PostgresDatabase(url)
    migrate(dialect)
    return Recorder(dialect)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    rows = recorder(request.param, request)
    keys = SqlKeyStore("memory://")
    master = LocalMasterKey(os.urandom(32), origin="a test")
    first, second = (EncryptedLog(rows, KeyRing(keys, master)) for _ in range(2))
    write(first, ADA, *user_inputs("a secret"))
    write(first, DERIVED, NOTE)
    second.read(ADA)
    yield Pair(first, second)
    rows.close()


def rewrite(log: EncryptedLog) -> None:
    log.rewrite(ADA, WordReplacement("secret"), now=NOW)


def verifies(log: EncryptedLog) -> bool:
    return not any(
        isinstance(item, Problem) for s in (ADA, DERIVED) for item in log.audit(s)
    )


@pytest.mark.parametrize("stream", [ADA, DERIVED])
def test_an_append_with_the_old_key_is_a_conflict_and_the_next_is_not(
    pair: Pair, stream: object
) -> None:
    place = DERIVED if stream is DERIVED else ADA
    event = NOTE if place is DERIVED else user_inputs("b")[0]
    old = pair.second.head(place)
    rewrite(pair.first)

    outcome = pair.second.append(append_to(old, event))

    assert isinstance(outcome, Conflict)
    assert isinstance(pair.second.append(append_to(outcome.head, event)), Appended)
    assert verifies(pair.first)
    assert verifies(pair.second)


def test_a_stream_cannot_begin_under_the_old_key(pair: Pair) -> None:
    new = ADA._replace(stream="e" * 64)
    batch = pair.second.batch(append_to(pair.second.head(new), NOTE))
    rewrite(pair.first)

    assert isinstance(pair.second.recorder.write(batch), Moved)
    assert isinstance(write(pair.second, new, NOTE), Appended)
    assert len(pair.first.read(new)) == 1


def test_a_view_is_not_stored_under_the_old_key(pair: Pair) -> None:
    view = StoredView(1, 0, {"n": 1})
    rewrite(pair.first)

    assert not pair.second.save_view(ADA, "v", view, replaces=0)
    pair.second.read(ADA)
    assert pair.second.save_view(ADA, "v", view, replaces=0)
    assert pair.first.load_view(ADA, "v") == view


def test_everything_is_read_with_the_new_key(pair: Pair) -> None:
    rewrite(pair.first)

    assert texts(pair.second.read(ADA)) == ["a -"]
    assert pair.second.head(ADA).seq == pair.first.head(ADA).seq == 3
    assert verifies(pair.second)


def test_rows_that_were_read_before_and_decrypted_after_are_read_again(
    pair: Pair,
) -> None:
    fresh = EncryptedLog(pair.second.recorder, _without_cache(pair.second.keys))
    rows = fresh.recorder.select_events
    pages = iter([rows(ADA)])
    rewrite(pair.first)

    events = fresh.envelopes(lambda: next(pages, None) or rows(ADA))

    assert texts(events) == ["a -"]


def test_a_head_that_was_read_before_its_key_was_destroyed_is_read_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = EncryptedLog(pair.second.recorder, _without_cache(pair.second.keys))
    kind = type(fresh.recorder)
    now = kind.head_row
    before = fresh.recorder.head_row(ADA)
    rewrite(pair.first)
    stale = iter([before])
    monkeypatch.setattr(kind, "head_row", lambda s, a: next(stale, None) or now(s, a))

    assert fresh.head(ADA).seq == 3


def _without_cache(ring: KeyRing) -> KeyRing:
    """Return the same keys with an empty cache."""
    return KeyRing(ring.store, ring.master)
