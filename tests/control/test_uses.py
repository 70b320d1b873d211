"""Reads by name are counted separately, written later, and never twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.erasure import Accesses
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import StreamId
from refold.store import SessionStore
from refold.store.reads import MOST_SESSIONS, Reads
from tests.support.operations import log_of
from tests.support.stores import open_at
from tests.support.talking import talk
from tests.support.waiting import PATIENCE_SEC

S = StreamId("ada", "s")


@pytest.fixture
def uses(store: SessionStore) -> Iterator[Reads]:
    """The reads of a store that has a session; they are written only on demand."""
    talk(store.session(user_id="ada", session_id="s"), 1)
    counting = Reads(lambda: store.log.retention, store.clock, every=3600)
    yield counting
    counting.close()


def stored_counts(store: SessionStore) -> list[tuple[str, str, int]]:
    return [access[:3] for access in store.log.retention.accesses()]


def test_reads_by_name_are_counted_once_each(store_url: str, tmp_path: Path) -> None:
    with open_at(store_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        talk(session, 2)
        before = store.clock()

        session.events()
        session.context("keep_all")
        session.prepare("keep_all")
        list(session.history.timeline())
        session.state()
        list(session.proofs.replay())

        (used,) = store.access_log.accesses("ada")
        assert (used.reads, used.session_id) == (6, "s")
        assert before <= used.last_at <= store.clock()
        session.events()
    with open_at(store_url, tmp_path) as store:
        assert [access.reads for access in store.access_log.accesses()] == [7]


def test_appends_verifying_and_listing_are_no_reads(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
        list(store.verify())
        store.sessions()
        store.stats()
        list(store.rebuild("keep_all"))

        assert store.access_log.accesses() == []


def test_no_read_writes_anything(store: SessionStore, uses: Reads) -> None:
    for _ in range(1000):
        uses.note(S)
    assert stored_counts(store) == []

    uses.flush()
    uses.flush()

    assert stored_counts(store) == [("ada", "s", 1000)]


def test_a_thread_writes_counts_after_a_delay(store: SessionStore) -> None:
    talk(store.session(user_id="ada", session_id="s"), 1)
    written = threading.Event()

    class Busy:
        def add_accesses(self, user_id: str, accesses: list[Accesses]) -> None:
            store.log.retention.add_accesses(user_id, accesses)
            written.set()

    retention: Any = Busy()
    uses = Reads(lambda: retention, store.clock, every=0.01)

    uses.note(S)

    assert written.wait(PATIENCE_SEC)
    assert stored_counts(store) == [("ada", "s", 1)]
    uses.close()


def test_counts_that_cannot_be_written_are_kept(
    store: SessionStore, uses: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = type(store.log.retention)
    uses.note(S)

    def fail(*_: object) -> None:
        raise StoreUnavailable("it is down", remedy="wait")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "add_accesses", fail)
        uses.flush()
    uses.note(S)
    uses.flush()

    assert stored_counts(store) == [("ada", "s", 2)]


def test_memory_for_counts_is_bounded(store: SessionStore, uses: Reads) -> None:
    for number in range(MOST_SESSIONS + 10):
        uses.note(StreamId("ada", f"no-{number}"))

    assert len(uses._counts) == MOST_SESSIONS
    uses.flush()

    assert stored_counts(store) == []


def test_several_processes_add_up(store: SessionStore, uses: Reads) -> None:
    other = Reads(lambda: store.log.retention, lambda: 5, every=3600)
    uses.note(S)
    uses.flush()
    (first,) = store.log.retention.accesses("ada")

    other.note(S)
    other.close()

    (both,) = store.log.retention.accesses("ada")
    assert (both.reads, both.last_at) == (2, first.last_at)


def test_a_forked_child_writes_only_its_own_counts(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 1)
        store.session(user_id="ada", session_id="s").events()
        child = os.fork()
        if child == 0:
            with open_at(store_url, tmp_path) as own:
                store.access_log.close()
                own.session(user_id="ada", session_id="s").events()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

        assert [access.reads for access in store.access_log.accesses()] == [2]


def test_erased_data_is_not_counted(store: SessionStore, uses: Reads) -> None:
    uses.note(S)
    uses.flush()
    uses.note(S)

    erased = store.erase("ada", "asked")
    uses.flush()

    assert erased.certificate is not None
    assert erased.certificate.statement["counts"]["accesses"] == 1
    assert stored_counts(store) == []


def test_a_store_can_be_opened_without_counting(store_url: str, tmp_path: Path) -> None:
    open_at(store_url, tmp_path).close()
    with refold.open(store_url, count_uses=False) as store:
        talk(store.session(user_id="ada", session_id="s"), 1)
        store.session(user_id="ada", session_id="s").events()

        assert store.access_log.accesses() == []
        assert log_of(store).retention.accesses() == []
