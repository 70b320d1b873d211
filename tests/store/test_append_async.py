"""Appends from asyncio: grouping, order, isolation, cancellation and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.rows import Batch
from refold.adapters.sql import database
from refold.domain.envelope import Draft
from refold.domain.errors import (
    EventTooLarge,
    InvalidEvent,
    SessionClosed,
    StaleSession,
)
from refold.store import Session, SessionStore
from refold.store.appends import Order, Receipt
from tests.support.stores import open_at, prepare

pytestmark = pytest.mark.each_engine


def user_input(text: str) -> refold.UserInput:
    return refold.UserInput(text=text)


def texts(store: SessionStore, session_id: str) -> list[str]:
    events = store.session(user_id="ada", session_id=session_id).history.pages()
    return [str(event.payload.payload()["text"]) for event in events]


def gather_all(*appends: Coroutine[Any, Any, Receipt]) -> list[Receipt | BaseException]:
    async def work() -> list[Receipt | BaseException]:
        return await asyncio.gather(*appends, return_exceptions=True)

    return asyncio.run(work())


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every append fail that uses a thread."""

    def refuse(*_: object) -> None:
        raise AssertionError("the append used a thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)


def test_appends_to_cached_sessions_are_written_in_groups(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [
        store.session(user_id="ada", session_id=f"s{number}") for number in range(20)
    ]
    for session in sessions:
        session.append(user_input("first"))
    sizes: list[int] = []
    group = store.log.recorder._group  # type: ignore[attr-defined]  # a store over SQL
    write_group = group._write_group

    def counted_write(batches: Sequence[Batch]) -> object:
        sizes.append(len(batches))
        return write_group(batches)

    monkeypatch.setattr(group, "_write_group", counted_write)

    receipts = gather_all(
        *(session.append_async(user_input("more")) for session in sessions)
    )

    assert all(
        isinstance(receipt, Receipt) and receipt.last_seq == 2 for receipt in receipts
    )
    assert sum(sizes) == 20
    assert max(sizes) > 1
    assert all(not session.verify().problems for session in sessions)


@pytest.mark.usefixtures("no_threads")
def test_appends_to_one_session_keep_their_order(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(user_input("0"))

    receipts = gather_all(
        *(session.append_async(user_input(f"{n}")) for n in range(1, 15))
    )

    assert [
        receipt.first_seq for receipt in receipts if isinstance(receipt, Receipt)
    ] == [*range(2, 16)]
    assert texts(store, "s") == [f"{n}" for n in range(15)]


def test_new_sessions_large_events_and_repeats_are_accepted(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    large = user_input("word " * 40_000)

    first, second, third, again = gather_all(
        session.append_async(user_input("a"), idempotency_key="k"),
        session.append_async(large),
        session.append_async(user_input("b"), idempotency_key="l"),
        session.append_async(user_input("b"), idempotency_key="l"),
    )

    assert isinstance(first, Receipt)
    assert isinstance(second, Receipt)
    assert isinstance(third, Receipt)
    assert again == third._replace(duplicate=True)
    assert session.head().seq == 3
    assert not session.verify().problems


def test_the_failure_of_one_append_does_not_affect_others(store: SessionStore) -> None:
    failing = store.session(user_id="ada", session_id="one")
    working = store.session(user_id="ada", session_id="other")
    for session in (failing, working):
        session.append(user_input("first"))

    bad, stale, empty, good, result = gather_all(
        failing.append_async(refold.ToolResult(call_id="x", content="no call")),
        failing.append_async(user_input("late"), expected_seq=7),
        failing.append_async([]),
        working.append_async(user_input("second")),
        failing.append_async(user_input("second")),
    )

    assert [type(failure) for failure in (bad, stale, empty)] == [
        InvalidEvent,
        StaleSession,
        InvalidEvent,
    ]
    assert isinstance(good, Receipt)
    assert isinstance(result, Receipt)
    assert texts(store, "one") == texts(store, "other") == ["first", "second"]


def test_an_append_follows_events_of_another_process(
    store: SessionStore, store_url: str, tmp_path: Path
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(user_input("a"))
    with open_at(store_url, tmp_path) as second_store:
        second_store.session(user_id="ada", session_id="s").append(user_input("b"))

        (receipt,) = gather_all(session.append_async(user_input("c")))

        assert isinstance(receipt, Receipt)
        assert texts(store, "s") == ["a", "b", "c"]
        second_store.session(user_id="ada", session_id="s").end()
        (refused,) = gather_all(session.append_async(user_input("d")))
    assert isinstance(refused, SessionClosed)


def test_a_cancelled_append_leaves_a_complete_log(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(user_input("a"))

    async def work() -> None:
        append = asyncio.create_task(session.append_async(user_input("b")))
        await asyncio.sleep(0)  # it begins
        append.cancel()
        await session.append_async(user_input("c"))

    asyncio.run(work())

    assert texts(store, "s") in (["a", "c"], ["a", "b", "c"])
    assert not session.verify().problems


def test_closing_a_store_waits_for_pending_appends(
    store: SessionStore, store_url: str, tmp_path: Path
) -> None:
    closing = open_at(store_url, tmp_path)
    session = closing.session(user_id="ada", session_id="s")
    receipts: list[object] = []
    session.append(user_input("a"))
    writer = session.writer
    head = writer.heads.get(session.stream)
    assert head is not None
    order = Order(session.stream, (Draft(user_input("b")),))

    assert closing.log.append_soon(writer.request(head, order), receipts.append)
    closing.close()

    assert len(receipts) == 1
    assert texts(store, "s") == ["a", "b"]


def test_more_appends_than_the_queue_holds_are_written(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "QUEUED", 2)
    sessions = [
        store.session(user_id="ada", session_id=f"s{number}") for number in range(12)
    ]
    for session in sessions:
        session.append(user_input("first"))

    receipts = gather_all(
        *(session.append_async(user_input("more")) for session in sessions)
    )

    assert all(
        isinstance(receipt, Receipt) and receipt.last_seq == 2 for receipt in receipts
    )


def test_an_event_over_the_limit_is_refused(store_url: str, tmp_path: Path) -> None:
    limits = refold.redaction.Limits(leaf_bytes=1024, event_bytes=1024)
    with refold.open(prepare(store_url, tmp_path), limits=limits) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(user_input("a"))
        call = refold.ToolCall(
            call_id="c", tool_name="t", arguments={f"k{n}": "v" * 60 for n in range(30)}
        )

        (refused,) = gather_all(session.append_async(call))

        assert isinstance(refused, EventTooLarge)
        assert session.head().seq == 1


def test_threads_and_tasks_write_concurrently(store: SessionStore) -> None:
    """The lead passes between waiting threads and the writer for tasks."""
    threaded = [
        store.session(user_id="ada", session_id=f"thread{number}")
        for number in range(4)
    ]
    tasked = [
        store.session(user_id="ada", session_id=f"task{number}") for number in range(4)
    ]
    for session in (*threaded, *tasked):
        session.append(user_input("first"))

    def by_thread(session: Session) -> None:
        for number in range(15):
            session.append(user_input(f"{number}"))

    async def by_task(session: Session) -> None:
        for number in range(15):
            await session.append_async(user_input(f"{number}"))

    async def work() -> None:
        threads = (asyncio.to_thread(by_thread, session) for session in threaded)
        await asyncio.gather(*threads, *map(by_task, tasked))

    asyncio.run(work())

    for session in (*threaded, *tasked):
        assert texts(store, session.session_id)[1:] == [f"{n}" for n in range(15)]
        assert not session.verify().problems
