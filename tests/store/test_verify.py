"""Written events verify, and changes behind the store's back are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.adapters.keys.ring import KeyRing
from refold.adapters.log import EncryptedLog
from refold.domain.envelope import Envelope
from refold.projections.context.outline import OutlineBuilder
from refold.projections.context.view import View
from refold.store import SessionStore
from tests.support.nested import problems_of
from tests.support.stores import open_at

WINDOW = "turn_window:full_turns=1,cached_turns=1"
TRIGGERS = {
    "sqlite": [
        "DROP TRIGGER events_refuse_update",
        "DROP TRIGGER events_refuse_delete",
    ],
    "postgresql": ["ALTER TABLE refold.events DISABLE TRIGGER ALL"],
}


@pytest.fixture
def filled(
    store_url: str, tmp_path: Path
) -> Iterator[tuple[SessionStore, Callable[[str], None]]]:
    with open_at(store_url, tmp_path) as store:
        for name in ("s-1", "s-2"):
            session = store.session(user_id="ada", session_id=name)
            for number in range(4):
                session.append(
                    [
                        refold.UserInput(text=f"question {number} " + "word " * 30),
                        refold.AgentResponse(text=f"answer {number} " + "word " * 30),
                    ]
                )
            while session.compact(WINDOW):
                pass
            session.record_request(session.context(WINDOW))
        yield store, lambda statement: tamper(store_url, statement)


def tamper(url: str, statement: str) -> None:
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    kind = url.split(":")[0]
    schema = "refold." if kind == "postgresql" else ""
    with create_engine(driver, poolclass=NullPool).begin() as connection:
        for trigger in TRIGGERS[kind]:
            _quietly(connection, trigger)
        connection.execute(text(statement.replace("@", schema)))


def _quietly(connection: Connection, statement: str) -> None:
    try:
        with connection.begin_nested():
            connection.execute(text(statement))
    except Exception:  # noqa: S110  # the trigger is gone already
        pass


def problems(
    store: SessionStore, *, chain_only: bool = False
) -> list[tuple[str, int | None, str]]:
    return [
        (problem.session_id, problem.seq, problem.code)
        for problem in problems_of(store.verify(chain_only=chain_only))
    ]


def test_a_store_verifies_after_writes(filled: Any) -> None:
    store, _ = filled

    results = [verified for _, verified in store.verify("ada")]

    assert problems(store) == []
    assert [result.compactions for result in results] == [3, 3]
    assert [result.requests for result in results] == [1, 1]
    assert [result.events for result in results] == [12, 12]


ROWS = [
    ("UPDATE @events SET type='final' WHERE seq=3 AND stream='main'", 3),
    ("UPDATE @events SET ts=ts+1 WHERE seq=3 AND stream='main'", 3),
    ("UPDATE @events SET token_estimate=1 WHERE seq=3 AND stream='main'", 3),
    ("UPDATE @events SET seq=99 WHERE seq=3 AND stream='main'", 3),
    ("DELETE FROM @events WHERE seq=3 AND stream='main'", 3),
    ("DELETE FROM @events WHERE seq=9 AND stream='main'", None),
    ("UPDATE @heads SET seq=8 WHERE stream='main'", None),
    (
        "UPDATE @events SET body=(SELECT body FROM @events e WHERE e.seq=4 AND "
        "e.stream='main' AND e.session_id='s-1') WHERE seq=3 AND stream='main'",
        3,
    ),
    (
        "UPDATE @events SET hash=(SELECT hash FROM @events e WHERE e.seq=4 AND "
        "e.stream='main' AND e.session_id='s-1') WHERE seq=3 AND stream='main'",
        3,
    ),
    ("UPDATE @events SET type='compaction' WHERE seq=1 AND stream<>'main'", 1),
    ("DELETE FROM @events WHERE seq=1 AND stream<>'main'", 1),
    ("DELETE FROM @heads WHERE stream='main'", None),
    ("DELETE FROM @heads WHERE stream<>'main'", None),
]


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        *ROWS,
        ("UPDATE @heads SET status='closed' WHERE stream='main'", None),
        ("UPDATE @heads SET tokens=1 WHERE stream='main'", None),
        ("UPDATE @heads SET updated_at=1 WHERE stream='main'", None),
    ],
)
def test_changed_data_is_located(filled: Any, statement: str, seq: int | None) -> None:
    store, change = filled
    change(statement + " AND session_id='s-1'")

    reported = problems(store)

    assert reported
    assert {session_id for session_id, _, _ in reported} == {"s-1"}
    if seq is not None:
        assert seq in {where for _, where, _ in reported}


@pytest.mark.parametrize(("statement", "seq"), ROWS)
def test_the_chain_alone_detects_changed_rows(
    filled: Any, statement: str, seq: int | None
) -> None:
    store, change = filled
    change(statement + " AND session_id='s-1'")

    reported = problems(store, chain_only=True)

    assert reported
    assert {session_id for session_id, _, _ in reported} == {"s-1"}
    if seq is not None:
        assert seq in {where for _, where, _ in reported}


def _append_until_set(store: SessionStore, end: Event) -> None:
    session = store.session(user_id="ada", session_id="busy")
    while not end.is_set():
        session.append(
            [refold.UserInput(text="more"), refold.AgentResponse(text="of it")],
            idempotency_key=f"step {session.head().seq}",
        )


@pytest.mark.parametrize("chain_only", [False, True])
def test_a_session_verifies_during_continuous_writes(
    store_url: str, tmp_path: Path, chain_only: bool
) -> None:
    with open_at(store_url, tmp_path) as store, open_at(store_url, tmp_path) as other:
        session = store.session(user_id="ada", session_id="busy")
        session.append([refold.UserInput(text="before")] * 500)
        end = Event()
        with ThreadPoolExecutor() as pool:
            writer = pool.submit(_append_until_set, other, end)
            try:
                runs = [session.verify(chain_only=chain_only) for _ in range(5)]
            finally:
                end.set()
            writer.result()

    assert [verified.problems for verified in runs] == [[]] * 5
    assert runs[0].events >= 500


@pytest.mark.parametrize("chain_only", [False, True])
def test_events_appended_during_verification_are_no_problem(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, chain_only: bool
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="first"))

    def while_reading(method: Callable[..., Any]) -> Callable[..., Any]:
        def with_appends(log: EncryptedLog, stream: Any, **how: Any) -> Iterator[Any]:
            for item in method(log, stream, **how):
                session.append(refold.UserInput(text="meanwhile"))
                yield item

        return with_appends

    for name in ("audit", "audit_chain"):
        monkeypatch.setattr(
            EncryptedLog, name, while_reading(getattr(EncryptedLog, name))
        )

    assert session.verify(chain_only=chain_only).problems == []


def test_the_chain_alone_needs_no_key(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(store_url, tmp_path) as store:
        store.session(user_id="ada", session_id="s-1").append(
            [refold.UserInput(text="a")] * 3
        )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a key was asked for")

    with open_at(store_url, tmp_path) as store:
        monkeypatch.setattr(KeyRing, "session", refuse)
        ((_, verified),) = store.verify(chain_only=True)

    assert (verified.events, verified.problems) == (3, [])


def test_one_walk_derives_all_requests_of_a_session(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="s")
    for number in range(12):
        session.append(refold.UserInput(text=f"question {number} " + "word " * 30))
        session.append(refold.AgentResponse(text=f"answer {number} " + "word " * 30))
        session.record_request(session.prepare(WINDOW if number % 3 else "keep_all"))
    sent = [request.digest for request, _ in map(_requested, session.proofs.replay())]
    folded: list[int] = []
    taken = OutlineBuilder.take

    def counted_take(builder: OutlineBuilder, envelope: Envelope) -> None:
        folded.append(envelope.seq)
        taken(builder, envelope)

    monkeypatch.setattr(OutlineBuilder, "take", counted_take)
    again = [view.digest for _, view in map(_requested, session.proofs.replay())]

    assert again == sent
    assert len(folded) <= 2 * session.head().seq  # once for each strategy
    assert session.verify().problems == []


def _requested(replayed: tuple[Envelope, View]) -> tuple[refold.Request, View]:
    envelope, view = replayed
    assert isinstance(envelope.payload, refold.Request)
    return envelope.payload, view


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM @blobs",
        "UPDATE @blobs SET body=hash FROM (SELECT hash FROM @events LIMIT 1) e",
    ],
)
def test_a_missing_or_changed_blob_is_found(filled: Any, statement: str) -> None:
    store, change = filled
    session = store.session(user_id="ada", session_id="s-1")
    receipt = session.append(refold.UserInput(text="long " * 20_000))
    assert problems(store) == []

    change(statement)

    assert problems(store) == [("s-1", receipt.last_seq, "blob")]


def test_a_fork_of_a_damaged_session_does_not_hide_the_others(filled: Any) -> None:
    store, change = filled
    fork = store.session(user_id="ada", session_id="s-1").fork(4, session_id="fork")
    fork.append(refold.UserInput(text="x"))
    change("UPDATE @events SET ts=ts+1 WHERE seq=3 AND session_id='s-1'")

    damaged = {session_id for session_id, _, _ in problems(store)}

    assert damaged == {"s-1", "fork"}
    assert len(list(store.verify())) == 3


def test_a_changed_row_is_reported_as_corrupt_with_its_place(filled: Any) -> None:
    store, change = filled
    change("UPDATE @events SET ts=ts+1 WHERE seq=3 AND stream='main'")

    with pytest.raises(refold.CorruptEvent, match="seq 3") as caught:
        store.session(user_id="ada", session_id="s-1").events()
    assert caught.value.seq == 3


@pytest.mark.parametrize("column", ["ts", "token_estimate", "schema_version"])
@pytest.mark.parametrize("value", ["{} + 0.5", "CAST({} AS BLOB)"])
def test_a_number_of_another_type_is_not_accepted_as_the_number(
    sqlite_url: str, tmp_path: Path, column: str, value: str
) -> None:
    with open_at(sqlite_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text="a"))
    tamper(sqlite_url, "DROP TRIGGER IF EXISTS events_refuse_update")
    tamper(sqlite_url, f"UPDATE events SET {column}={value.format(column)}")

    with open_at(sqlite_url, tmp_path) as store:
        assert problems(store) == [("s-1", 1, "unreadable")]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("events", "body", "-1"),
        ("events", "hash", "9223372036854775807"),
        ("blobs", "body", "'x'"),
        ("views", "body", "1.5"),
        ("views", "through_seq", "'x'"),
        ("views", "main_spans", "'x'"),
        ("certificates", "created_at", "4611686018427387904"),
        ("certificates", "body", "'x'"),
        ("leaves", "erasure", "x'ff'"),
        ("tree_heads", "size", "'x'"),
    ],
)
def test_a_value_of_another_type_is_found_and_stops_nothing(
    sqlite_url: str, tmp_path: Path, table: str, column: str, value: str
) -> None:
    with open_at(sqlite_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s-1")
        for text in ("long " * 20_000, "b", "c", "d"):
            session.append([refold.UserInput(text=text), refold.Final(text="so")])
        session.compact(WINDOW)
        session.strategies.catch_up()
        store.session(user_id="bob", session_id="b").append(refold.UserInput(text="x"))
        store.seal()
        store.erase("bob", "he asked")
    drop = f"DROP TRIGGER IF EXISTS {table}_refuse_update"
    tamper(sqlite_url, drop)
    tamper(sqlite_url, f"UPDATE {table} SET {column}={value}")  # ours

    with open_at(sqlite_url, tmp_path) as store:
        seals = store.verify_seals()
        assert seals is not None
        assert problems(store) + seals.problems
        with suppress(refold.RefoldError):
            store.erasures.certificates()
        with suppress(refold.RefoldError):
            store.session(user_id="ada", session_id="s-1").context(WINDOW)
