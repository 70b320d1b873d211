"""Defines the tests that every event log must pass: subclass ``EventLogContract``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue
from typing import Final

import pytest

from refold.adapters.keys.master import LocalMasterKey
from refold.adapters.keys.ring import KeyRing
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.schema import migrate
from refold.adapters.sql.sqlite import SqliteInMemory
from refold.domain.envelope import Draft, Envelope, from_microseconds
from refold.domain.erasure import FORMAT, FREEZE, LegalHold
from refold.domain.errors import LeaseLost
from refold.domain.events import (
    CompactionNote,
    Event,
    JsonObject,
    RedactionApplied,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    UserInput,
)
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    EventLog,
    Head,
    Holding,
    Keyed,
    ListedHead,
    ListOrder,
    Outcome,
    Place,
    Problem,
    Scope,
    StoredView,
)
from refold.domain.session import SessionState, decide
from refold.redaction.chokepoint import RedactedEvent, redact
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor

# Times and periods are in microseconds.
NOW: Final = 1_700_000_000_000_000
ADA: Final = StreamId("ada", "s-1")
BOB: Final = StreamId("bob", "s-1")
_OTHER: Final = StreamId("ada", "s-2")
_REDACTOR: Final = Redactor()


def memory_log(recorder: Recorder | None = None) -> EncryptedLog:
    """Return a log with keys in memory, and with rows in memory or in a recorder."""
    master = LocalMasterKey(os.urandom(32), origin="a test")
    keys = KeyRing(SqlKeyStore("memory://"), master)
    return EncryptedLog(recorder or memory_recorder(), keys)


def memory_recorder() -> Recorder:
    """Return the recorder of a new database in memory."""
    return Recorder(memory_database())


def memory_database() -> SqliteInMemory:
    """Return a new database in memory, with its tables.

    The tables are made once and then copied, which takes a tenth of the time.
    """
    database = SqliteInMemory()
    with database.writing() as connection:
        driver = connection.connection.driver_connection
        driver.deserialize(_with_tables())  # type: ignore[union-attr]  # SQLite's
    return database


@cache
def _with_tables() -> bytes:
    """Return the bytes of a database with all tables."""
    database = SqliteInMemory()
    migrate(database)
    with database.reading() as connection:
        driver = connection.connection.driver_connection
        content: bytes = driver.serialize()  # type: ignore[union-attr]  # SQLite's
    return content


def append_to(
    head: Head,
    *events: Event,
    idempotency_key: str | None = None,
    limits: Limits | None = None,
) -> Append:
    """Return the append of events to a head, decided and redacted as in a store."""
    decided, state = decide(head.state, events)
    redacted = []
    for event in decided:
        redacted.append(
            redact(
                Draft(event),
                now=NOW,
                redactor=_REDACTOR,
                limits=limits or Limits(),
            )
        )
    return Append(head, state, tuple(redacted), NOW, idempotency_key)


def write(log: EventLog, stream: StreamId, *events: Event) -> Outcome:
    """Append events to the end of a stream."""
    return log.append(append_to(log.head(stream), *events))


def user_inputs(*texts: str) -> tuple[UserInput, ...]:
    """Return a user input for each text."""
    return tuple(UserInput(text=text) for text in texts)


def texts(events: Sequence[Envelope]) -> list[str]:
    """Return the texts of the user inputs among the events."""
    user_texts = []
    for envelope in events:
        if isinstance(envelope.payload, UserInput):
            user_texts.append(envelope.payload.text)
    return user_texts


_DERIVED: Final = ADA._replace(stream="f" * 64)
_RETIRED: Final = CompactionNote(phase="retired")
_VIEW: Final = StoredView(1, 0, {"n": 1})
_PERIOD: Final = 1_000
_TEN_YEARS: Final = 315_360_000_000_000
_LATER: Final = NOW + _PERIOD
_FREE: Final = Holding(left=0, done=False)


def at(now: int) -> Callable[[], int]:
    """Return a clock that always shows this time."""
    return lambda: now


def take(log: EventLog, owner: str, *, now: int = NOW, period: int = _PERIOD) -> bool:
    """Take the lease of ``_DERIVED``; returns whether that succeeded."""
    return log.leases.take_lease(_DERIVED, owner, clock=at(now), period=period)


def renew(log: EventLog, owner: str, *, now: int) -> bool:
    """Renew the lease of ``_DERIVED``; returns whether that succeeded."""
    return log.leases.renew_lease(_DERIVED, owner, clock=at(now), period=_PERIOD)


class LeaseContract:
    """The contract of the port ``Leases``; part of ``EventLogContract``.

    If your log uses a server's clock, let it use the argument ``clock`` in these tests.
    """

    def test_one_of_many_concurrent_takers_gets_the_lease(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda i: take(log, f"o-{i}"), range(8)))

        assert sum(taken) == 1

    def test_a_lease_belongs_to_one_derived_stream(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        write(log, BOB, *user_inputs("b"))
        assert take(log, "first")
        other_view = _DERIVED._replace(stream="e" * 64)
        of_bob = BOB._replace(stream=_DERIVED.stream)
        of_store = StreamId("", "", "seal")

        assert not take(log, "second")
        for stream in (other_view, of_bob, of_store):
            assert log.leases.take_lease(
                stream, "second", clock=at(NOW), period=_PERIOD
            )

    def test_an_expired_lease_can_be_taken(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        assert not take(log, "second", now=_LATER - 1)
        assert take(log, "second", now=_LATER)
        assert not renew(log, "first", now=_LATER)
        assert not log.leases.release_lease(_DERIVED, "first")
        assert not take(log, "third", now=_LATER + _PERIOD - 1)

    def test_a_renewed_lease_stays_with_its_owner(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        assert renew(log, "first", now=_LATER)
        assert not renew(log, "second", now=_LATER)

        assert not take(log, "second", now=_LATER + _PERIOD - 1)
        assert take(log, "second", now=_LATER + _PERIOD)

    def test_a_released_lease_is_free(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        holding = log.leases.holding(_DERIVED, clock=at(NOW))
        assert holding == Holding(left=_PERIOD, done=False)
        # Returns whether others asked for the lease.
        assert log.leases.release_lease(_DERIVED, "first") is False
        assert log.leases.holding(_DERIVED, clock=at(NOW)) == _FREE

        assert take(log, "second")
        assert not take(log, "first")

    def test_a_lease_from_the_future_is_free(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        ahead = NOW + _TEN_YEARS
        assert take(log, "first", now=ahead)

        assert log.leases.holding(_DERIVED, clock=at(NOW)) == _FREE
        assert take(log, "second")

        assert not take(log, "third")
        assert not renew(log, "first", now=ahead)

    def test_a_clock_set_back_a_little_frees_no_lease(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        assert not take(log, "second", now=NOW - _PERIOD)
        assert log.leases.holding(_DERIVED, clock=at(NOW - _PERIOD)).left == 2 * _PERIOD

    def test_finished_work_leaves_a_mark(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        assert log.leases.mark_done(
            _DERIVED, "first", clock=at(NOW), period=9 * _PERIOD
        )
        mark = log.leases.holding(_DERIVED, clock=at(NOW))
        assert mark == Holding(left=9 * _PERIOD, done=True)
        assert not take(log, "second", now=_LATER)
        assert not renew(log, "first", now=NOW)
        assert take(log, "second", now=NOW + 9 * _PERIOD)
        late = at(_LATER)
        assert not log.leases.mark_done(_DERIVED, "first", clock=late, period=_PERIOD)

    def test_the_former_owner_of_a_lease_writes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")
        with log.leases.fenced(_DERIVED, "first"):
            assert isinstance(write(log, ADA, *user_inputs("b")), Appended)
            assert take(log, "second", now=_LATER)

            with pytest.raises(LeaseLost):
                write(log, ADA, *user_inputs("c"))
            assert not log.save_view(ADA, "counts", _VIEW, replaces=0)
        with log.leases.fenced(_DERIVED, "second"):
            assert isinstance(write(log, ADA, *user_inputs("d")), Appended)
        log.leases.release_lease(_DERIVED, "second")
        with log.leases.fenced(_DERIVED, "second"), pytest.raises(LeaseLost):
            write(log, ADA, *user_inputs("e"))

        assert isinstance(write(log, ADA, *user_inputs("f")), Appended)
        assert texts(log.read(ADA)) == ["a", "b", "d", "f"]

    def test_release_returns_whether_others_asked_for_the_lease(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")
        take(log, "second")

        assert log.leases.release_lease(_DERIVED, "first") is True
        assert log.leases.release_lease(_DERIVED, "first") is False

    def test_requests_before_a_new_owner_do_not_count(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")
        assert not take(log, "second")
        assert take(log, "third", now=_LATER)

        assert log.leases.release_lease(_DERIVED, "third") is False

    def test_the_owner_may_take_the_lease_again(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        take(log, "first")

        assert take(log, "first", now=NOW + 1)

        assert not take(log, "second", now=_LATER)
        assert log.leases.release_lease(_DERIVED, "first") is True

    def test_a_session_that_does_not_exist_has_no_leases(self, log: EventLog) -> None:
        nobody = StreamId("nobody", "s-1", "f" * 64)

        assert not log.leases.take_lease(nobody, "first", clock=at(NOW), period=_PERIOD)


_SMALL = Limits(leaf_bytes=2048, event_bytes=8192)


class WordReplacement:
    """A rewriting that replaces a word in user inputs with a dash."""

    def __init__(self, word: str) -> None:
        self._word = word

    def replacement(self, envelope: Envelope) -> RedactedEvent | None:
        """Return the event without the word, or None if it does not contain it."""
        event = envelope.payload
        if not isinstance(event, UserInput) or self._word not in event.text:
            return None
        return self._redacted(UserInput(text=event.text.replace(self._word, "-")))

    def state(self, state: SessionState) -> SessionState:
        """Return the state unchanged."""
        return state

    def record(self, event: RedactionApplied) -> RedactedEvent:
        """Return the record of the rewriting."""
        return self._redacted(event)

    @staticmethod
    def _redacted(event: UserInput | RedactionApplied) -> RedactedEvent:
        draft = Draft(event)
        return redact(draft, now=NOW, redactor=_REDACTOR, limits=Limits())


class RewritingContract:
    """The contract of ``rewrite``; part of ``EventLogContract``."""

    def test_a_rewriting_replaces_the_events_that_it_changes(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a", "b secret", "c"))
        before = dict(log.read(ADA)[1].redaction)

        rewritten = log.rewrite(ADA, WordReplacement("secret"), now=NOW)

        assert (rewritten.events, rewritten.key_version) == (1, 2)
        assert texts(log.read(ADA)) == ["a", "b -", "c"]
        assert log.read(ADA)[1].redaction["before"] == before

    def test_a_rewriting_changes_no_hash(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b secret"))
        before = [event.hash for event in log.read(ADA)]

        log.rewrite(ADA, WordReplacement("secret"), now=NOW)
        write(log, ADA, *user_inputs("c"))

        assert [event.hash for event in log.read(ADA)][:2] == before
        assert log.read(ADA)[2].prev_hash == before[-1]
        assert [item for item in log.audit(ADA) if isinstance(item, Problem)] == []
        # The three events and the record of the rewriting.
        assert len(list(log.audit(ADA))) == 4

    def test_a_rewriting_records_which_events_it_replaced(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b secret"))
        write(log, _DERIVED, _RETIRED)

        log.rewrite(ADA, WordReplacement("secret"), now=NOW)

        records = [event.payload for event in log.read(ADA, after=2)]
        assert [event.stream for event in records] == ["main", "f" * 64]  # type: ignore[union-attr]  # both are redaction_applied
        assert [event.seqs for event in records] == [(2,), ()]  # type: ignore[union-attr]  # the same
        assert [item for item in log.audit(_DERIVED) if isinstance(item, Problem)] == []

    def test_a_rewriting_can_follow_another(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("one two three"))

        for number, word in enumerate(("one", "two"), start=2):
            rewritten = log.rewrite(ADA, WordReplacement(word), now=NOW)
            assert rewritten.key_version == number

        assert texts(log.read(ADA)) == ["- - three"]
        # A rewriting destroys earlier keys at once.
        assert log.count_old_keys(ADA) == 0
        assert log.destroy_old_keys(ADA) == 0
        assert [item for item in log.audit(ADA) if isinstance(item, Problem)] == []

    def test_a_closed_session_can_be_rewritten(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("secret"), SystemPrompt(closed=True))

        log.rewrite(ADA, WordReplacement("secret"), now=NOW)

        head = log.head(ADA)
        assert (head.status, head.state.closed, head.seq) == ("closed", True, 3)
        outdated = head._replace(state=head.state._replace(closed=False))
        assert isinstance(log.append(append_to(outdated, *user_inputs("b"))), Conflict)

    def test_a_rewriting_drops_views_and_keeps_streams(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a secret"))
        write(log, _DERIVED, _RETIRED)
        log.save_view(ADA, "v", _VIEW, replaces=0)
        before = log.head(_DERIVED)
        assert log.view_names("ada", "s-1") == ["v"]

        log.rewrite(ADA, WordReplacement("secret"), now=NOW)

        assert log.view_names("ada", "s-1") == []
        assert log.head(_DERIVED) == before
        assert isinstance(write(log, _DERIVED, _RETIRED), Appended)

    def test_a_rewriting_deletes_the_blob_of_a_text_that_it_replaces(
        self, log: EventLog
    ) -> None:
        replaced = "secret. " * 2000
        unchanged = "a long line. " * 2000
        request = append_to(
            log.head(ADA), *user_inputs(replaced, unchanged), limits=_SMALL
        )
        log.append(request)
        digests = [event.blobs[0].sha256 for event in request.events]

        rewritten = log.rewrite(ADA, WordReplacement("secret"), now=NOW)

        assert rewritten.blobs == 1
        assert log.blob(ADA, digests[0]) is None
        assert log.blob(ADA, digests[1]) == unchanged.encode()

    def test_a_rewriting_that_fails_changes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a secret"))

        class Failing(WordReplacement):
            def record(self, event: RedactionApplied) -> RedactedEvent:
                raise LookupError(event.stream)

        with pytest.raises(LookupError):
            log.rewrite(ADA, Failing("secret"), now=NOW)
        assert texts(log.read(ADA)) == ["a secret"]
        write(log, ADA, *user_inputs("b"))
        assert log.head(ADA).seq == 2

    def test_an_unredacted_event_replaces_nothing(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a secret"))

        class Raw(WordReplacement):
            def replacement(self, envelope: Envelope) -> RedactedEvent | None:
                return envelope.payload  # type: ignore[return-value]  # on purpose

        with pytest.raises(TypeError):
            log.rewrite(ADA, Raw("secret"), now=NOW)
        assert texts(log.read(ADA)) == ["a secret"]


class EventLogContract(RewritingContract, LeaseContract):
    """The contract of the port ``EventLog``.  It needs a fixture ``log``."""

    def test_a_new_stream_is_at_seq_0(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))

        assert log.head(StreamId("ada", "other")).seq == 0
        assert log.head(ADA).seq == 1

    def test_events_come_back_in_order_without_gaps(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))
        write(log, ADA, *user_inputs("c"))

        events = log.read(ADA)

        assert texts(events) == ["a", "b", "c"]
        assert [event.seq for event in events] == [1, 2, 3]

    def test_an_append_returns_the_new_head(self, log: EventLog) -> None:
        outcome = write(log, ADA, *user_inputs("a", "b"))

        assert isinstance(outcome, Appended)
        assert outcome.head == log.head(ADA)
        assert outcome.head.seq == 2
        assert outcome.head.hash.hex() == log.read(ADA)[-1].hash

    def test_append_soon_calls_back_once_per_append(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        head = log.head(ADA)
        queue = SimpleQueue[Outcome | Exception]()

        for text in ("b", "late"):
            assert log.append_soon(append_to(head, *user_inputs(text)), queue.put)
        outcomes = [queue.get(timeout=30), queue.get(timeout=30)]

        assert [type(outcome) for outcome in outcomes] == [Appended, Conflict]
        assert all(outcome.head == log.head(ADA) for outcome in outcomes)  # type: ignore[union-attr]  # neither is a Duplicate
        assert texts(log.read(ADA)) == ["a", "b"]
        assert queue.empty()

    def test_each_event_is_chained_to_the_one_before(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))
        write(log, ADA, *user_inputs("c"))

        first, second, third = log.read(ADA)

        assert first.prev_hash == "00" * 32
        assert (second.prev_hash, third.prev_hash) == (first.hash, second.hash)
        assert log.read(ADA, after=2)[0].prev_hash == second.hash
        assert len({first.hash, second.hash, third.hash}) == 3

    def test_read_returns_the_requested_page(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs(*"abcdef"))

        assert texts(log.read(ADA, after=2, limit=2)) == ["c", "d"]
        assert texts(log.read(ADA, after=1, upto=3)) == ["b", "c"]
        assert log.read(ADA, after=6) == []
        assert texts(log.read(ADA, limit=2, newest=True)) == ["e", "f"]
        assert texts(log.read(ADA, upto=3, limit=2, newest=True)) == ["b", "c"]

    def test_read_returns_only_the_requested_spans(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs(*(f"{number}" for number in range(1, 31))))
        spans = [(2, 2), (5, 7), (20, 40)]

        events = log.read(ADA, spans=spans)
        every_other = log.read(ADA, spans=[(n, n) for n in range(1, 31, 2)])

        assert [event.seq for event in events] == [2, 5, 6, 7, *range(20, 31)]
        assert events == [event for event in log.read(ADA) if event in events]
        assert [event.seq for event in every_other] == list(range(1, 31, 2))

    def test_read_returns_only_the_requested_types(self, log: EventLog) -> None:
        call = ToolCall(call_id="c1", tool_name="bash")
        write(log, ADA, *user_inputs("a"), call, *user_inputs("b"))

        calls = log.read(ADA, types=("tool_call",))

        assert [event.seq for event in calls] == [2]
        assert calls[0].prev_hash == log.read(ADA)[0].hash

    def test_an_append_on_an_old_head_writes_nothing(self, log: EventLog) -> None:
        old = log.head(ADA)
        write(log, ADA, *user_inputs("a"))

        outcome = log.append(append_to(old, *user_inputs("b", "c")))

        assert isinstance(outcome, Conflict)
        assert outcome.head == log.head(ADA)
        assert texts(log.read(ADA)) == ["a"]

    def test_an_append_on_another_history_writes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        other_history = log.head(ADA)._replace(hash=bytes(32))

        outcome = log.append(append_to(other_history, *user_inputs("b")))

        assert isinstance(outcome, Conflict)
        assert texts(log.read(ADA)) == ["a"]

    def test_exactly_one_of_many_concurrent_appends_succeeds(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        requests = [append_to(log.head(ADA), *user_inputs(f"r{i}")) for i in range(8)]

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(log.append, requests))

        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
        assert log.head(ADA).seq == 2

    def test_conflicts_do_not_fail_appends_to_other_streams(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        streams = [StreamId("ada", f"t-{i}") for i in range(8)]
        requests = [
            append_to(log.head(stream), *user_inputs("x")) for stream in streams
        ]
        stale = Head(log.head(ADA).state)
        rivals = [append_to(stale, *user_inputs("y")) for _ in range(4)]

        with ThreadPoolExecutor(12) as pool:
            outcomes = list(pool.map(log.append, [*requests, *rivals]))

        assert all(isinstance(outcome, Appended) for outcome in outcomes[:8])
        assert all(isinstance(outcome, Conflict) for outcome in outcomes[8:])
        assert [log.head(stream).seq for stream in streams] == [1] * 8

    def test_an_exclusive_append_sees_the_current_head(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))

        def build(head: Head) -> Append:
            return append_to(head, *user_inputs(f"after {head.seq}"))

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(log.append_exclusive, [ADA] * 6, [build] * 6))

        assert all(isinstance(outcome, Appended) for outcome in outcomes)
        assert texts(log.read(ADA, after=1)) == [f"after {i}" for i in range(1, 7)]

    def test_an_exclusive_append_that_fails_writes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))

        def build(_: Head) -> Append:
            raise LookupError

        with pytest.raises(LookupError):
            log.append_exclusive(ADA, build)
        write(log, ADA, *user_inputs("b"))
        assert texts(log.read(ADA)) == ["a", "b"]

    def test_a_used_idempotency_key_returns_the_first_seqs(self, log: EventLog) -> None:
        log.append(
            append_to(log.head(ADA), *user_inputs("a", "b"), idempotency_key="k")
        )

        again = log.append(
            append_to(log.head(ADA), *user_inputs("a", "b"), idempotency_key="k")
        )

        assert again == log.receipt(ADA, "k") == Duplicate(1, 2)
        assert log.receipt(ADA, "other") is None
        assert log.head(ADA).seq == 2

    def test_keyed_events_have_v8_ids_unique_to_a_session(self, log: EventLog) -> None:
        other = ADA._replace(session_id="s-2")
        for stream in (ADA, other):
            log.append(
                append_to(log.head(stream), *user_inputs("a", "b"), idempotency_key="k")
            )

        ids = [event.event_id for s in (ADA, other) for event in log.read(s)]

        assert len(set(ids)) == 4
        assert {value.version for value in ids} == {8}

    def test_each_session_has_its_own_proof_key(self, log: EventLog) -> None:
        other = ADA._replace(session_id="s-2")
        for stream in (ADA, other):
            write(log, stream, *user_inputs("a"))

        key = log.session_proof_key(ADA)

        assert len(key) == 32
        assert key == log.session_proof_key(ADA)
        assert key != log.session_proof_key(other)

    def test_recorded_drafts_are_found_by_key(self, log: EventLog) -> None:
        keys = [Keyed("one", first=0, events=2), Keyed("two", first=2, events=1)]
        write(log, ADA, *user_inputs("a"))
        request = append_to(log.head(ADA), *user_inputs("b", "c", "d", "e"))
        log.append(request._replace(keys=keys))

        recorded = log.known(ADA, ["one", "two", "three"])

        assert recorded == {"one": Duplicate(2, 3), "two": Duplicate(4, 4)}
        assert log.known(ADA._replace(session_id="s-2"), ["one"]) == {}
        assert log.known(ADA._replace(user_id="bob"), ["one"]) == {}
        assert log.receipt(ADA, "one") is None
        # The version of a UUID is 8 if it is derived from a key, else 7.
        versions = [event.event_id.version for event in log.read(ADA)]
        assert versions == [7, 8, 8, 8, 7]

    def test_an_append_with_a_recorded_draft_returns_a_conflict(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        keys = [Keyed("one", 0, 1)]
        log.append(append_to(log.head(ADA), *user_inputs("b"))._replace(keys=keys))
        again = append_to(log.head(ADA), *user_inputs("c", "b"))
        again = again._replace(keys=[Keyed("two", 0, 1), Keyed("one", 1, 1)])

        assert log.append(again) == Conflict(log.head(ADA))
        assert log.known(ADA, ["two"]) == {}
        assert texts(log.read(ADA)) == ["a", "b"]

    def test_one_of_several_concurrent_uses_of_a_key_writes(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        request = append_to(log.head(ADA), *user_inputs("b"), idempotency_key="k")

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(log.append, [request] * 4))

        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
        assert outcomes.count(Duplicate(2, 2)) == 3
        assert texts(log.read(ADA)) == ["a", "b"]

    def test_users_do_not_see_each_other(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        write(log, BOB, *user_inputs("b"))

        assert texts(log.read(ADA)) == ["a"]
        assert texts(log.read(BOB)) == ["b"]
        assert [info.user_id for info in log.sessions("ada")] == ["ada"]
        assert [info.user_id for info in log.sessions()] == ["ada", "bob"]
        assert {user_id for user_id, *_ in log.listed_heads("ada")} == {"ada"}
        assert {user_id for user_id, *_ in log.listed_heads(None)} == {"ada", "bob"}

    def test_a_session_is_listed_with_its_head(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))

        (info,) = log.sessions("ada", session_id="s-1")

        assert (info.head_seq, info.status) == (2, "open")
        assert info.tokens == sum(event.token_estimate for event in log.read(ADA)) > 0
        assert info.created_at == info.updated_at == from_microseconds(NOW)

    def test_sessions_are_listed_page_by_page(self, log: EventLog) -> None:
        names = ["a", "b", "c", "d", "e"]
        for name in names:
            write(log, StreamId("ada", name), *user_inputs("x"))
        write(log, StreamId("bob", "a"), *user_inputs("x"))

        pages: list[list[str]] = []
        place: tuple[str, str] | None = None
        while infos := log.sessions("ada", after=place, limit=2):
            pages.append([info.session_id for info in infos])
            place = ("ada", infos[-1].session_id)

        assert pages == [["a", "b"], ["c", "d"], ["e"]]

    def test_sessions_can_be_listed_from_the_newest_change(self, log: EventLog) -> None:
        for later, name in enumerate(["b", "c", "a"]):
            order = append_to(log.head(StreamId("ada", name)), *user_inputs("x"))
            log.append(order._replace(now=NOW + later))

        newest = log.sessions("ada", limit=2, newest_first=True)

        assert [info.session_id for info in newest] == ["a", "c"]

    def test_a_session_is_found_by_all_of_its_labels(self, log: EventLog) -> None:
        for stream in (ADA, BOB, _OTHER):
            write(log, stream, *user_inputs("x"))

        log.label(ADA, {"project": "refold", "topic": "tea", "mood": "good"})
        log.label(BOB, {"project": "refold"})
        log.label(_OTHER, {"project": "refold", "topic": "refold"})
        log.label(ADA, {"topic": "rain", "mood": None})

        def labelled(user_id: str, **labels: str) -> list[str]:
            infos = log.sessions(user_id, labels=labels)
            return [info.session_id for info in infos]

        assert labelled("ada", project="refold") == ["s-1", "s-2"]
        assert labelled("ada", project="refold", topic="rain") == ["s-1"]
        assert labelled("ada", topic="tea") == labelled("ada", mood="good") == []
        assert labelled("ada", mood="refold") == labelled("eve", project="refold") == []
        assert labelled("bob", project="refold") == ["s-1"]

    def test_the_labels_of_a_session_are_compared_whole(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("x"))
        log.label(ADA, {"project": "refold", "topic": "rain"})

        assert log.has_exactly_labels(ADA, {"project": "refold", "topic": "rain"})
        for wrong in ({}, {"project": "refold", "topic": "tea"}, {"project": "refold"}):
            assert not log.has_exactly_labels(ADA, wrong)

    def test_a_redacted_label_matches_any_value(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("x"))
        log.label(ADA, {"project": "refold", "topic": "rain"})

        assert log.has_exactly_labels(
            ADA, {"project": "refold", "topic": "[REDACTED:NAME]"}
        )
        assert not log.has_exactly_labels(
            ADA, {"project": "else", "topic": "[REDACTED:NAME]"}
        )

    def test_a_session_that_does_not_exist_has_no_label(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("x"))
        log.label(_OTHER, {"project": "refold"})
        write(log, _OTHER, *user_inputs("x"))
        log.label(ADA, {"project": "refold"})

        infos = log.sessions("ada", labels={"project": "refold"})

        assert [info.session_id for info in infos] == ["s-1"]

    def test_a_derived_stream_has_its_own_seqs(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))

        write(log, _DERIVED, _RETIRED)

        assert log.head(_DERIVED).seq == 1
        assert log.head(ADA).seq == 2
        assert log.streams("ada", "s-1") == ["main", "f" * 64]

    def test_a_derived_stream_needs_its_session(self, log: EventLog) -> None:
        derived = StreamId("ada", "none", "f" * 64)
        write(log, ADA, *user_inputs("a"))

        assert isinstance(write(log, derived, _RETIRED), Conflict)
        assert log.streams("ada", "none") == []
        assert log.streams("ada", "s-1") == ["main"]

    def test_a_closed_stream_accepts_no_more_events(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"), SystemPrompt(closed=True))
        head = log.head(ADA)
        outdated = head._replace(state=head.state._replace(closed=False))

        assert (head.status, head.state.closed) == ("closed", True)
        assert isinstance(log.append(append_to(outdated, *user_inputs("b"))), Conflict)
        assert log.head(ADA) == head

    def test_open_calls_are_part_of_the_head(self, log: EventLog) -> None:
        write(log, ADA, ToolCall(call_id="c1", tool_name="bash"))

        assert log.head(ADA).state.open_calls["c1"].tool_name == "bash"

    def test_a_long_text_is_read_by_its_digest(self, log: EventLog) -> None:
        text = "a long line. " * 2000
        request = append_to(log.head(ADA), *user_inputs(text), limits=_SMALL)
        write(log, BOB, *user_inputs("x"))

        log.append(request)

        (blob,) = request.events[0].blobs
        assert log.blob(ADA, blob.sha256) == text.encode()
        assert log.blob(BOB, blob.sha256) is None
        assert log.blob(ADA._replace(session_id="s-2"), blob.sha256) is None
        assert len(texts(log.read(ADA))[0]) < 2048

    def test_several_long_texts_are_read_at_once(self, log: EventLog) -> None:
        of_bob = append_to(log.head(BOB), *user_inputs("c " * 2_000), limits=_SMALL)
        request = append_to(
            log.head(ADA), *user_inputs("a " * 2_000, "b " * 2_000), limits=_SMALL
        )
        log.append(request)
        log.append(of_bob)
        first, second = (event.blobs[0] for event in request.events)
        blob_of_bob = of_bob.events[0].blobs[0]

        blobs = log.blobs(ADA, [first.sha256, second.sha256, blob_of_bob.sha256])

        assert blobs == {first.sha256: first.data, second.sha256: second.data}
        assert log.blobs(ADA, []) == {}

    def test_only_a_writer_that_read_a_view_replaces_it(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        first = _VIEW
        second = StoredView(3, 1, {"n": 2})

        assert log.save_view(ADA, "v", first, replaces=0)
        assert not log.save_view(ADA, "v", second, replaces=0)
        assert log.load_view(ADA, "v") == first
        assert log.save_view(ADA, "v", second, replaces=1)
        assert log.load_view(ADA, "v") == second
        assert log.load_view(ADA, "other") is None
        assert log.view_names("ada", "s-1") == ["v"]

    def test_views_of_a_name_are_read_for_all_sessions_of_a_user(
        self, log: EventLog
    ) -> None:
        second = ADA._replace(session_id="s-2")
        for stream in (ADA, second, BOB):
            write(log, stream, *user_inputs("a"))
            assert log.save_view(stream, "v", _VIEW, replaces=0)
        assert log.save_view(ADA, "other", _VIEW, replaces=0)

        views = {view.session_id: view for view in log.views_named("ada", "v")}

        assert set(views) == {"s-1", "s-2"}
        assert views["s-1"].body == _VIEW.body
        assert views["s-1"].through_seq == _VIEW.through_seq
        assert [*log.views_named("ada", "v", ["s-2", "none"])] == [views["s-2"]]
        assert not [*log.views_named("ada", "none")]
        assert not [*log.views_named("nobody", "v")]

    def test_lists_have_the_sessions_with_the_newest_events_first(
        self, log: EventLog
    ) -> None:
        for number, minutes in enumerate((5, 9, 7, 9)):
            stream = ADA._replace(session_id=f"s-{number}")
            ts = from_microseconds(NOW + minutes * 60_000_000)
            drafts = (Draft(UserInput(text="a"), ts), Draft(StateUpdate(set={"x": 1})))
            head = log.head(stream)
            _, state = decide(head.state, [draft.event for draft in drafts])
            redacted = []
            for draft in drafts:
                redacted.append(
                    redact(draft, now=0, redactor=_REDACTOR, limits=Limits())
                )
            log.append(Append(head, state, tuple(redacted), NOW))
        write(log, BOB, *user_inputs("a"))

        def page(
            order: ListOrder = "newest_event",
            *,
            descending: bool = True,
            after: tuple[int, str] | None = None,
            limit: int = 9,
        ) -> list[str]:
            rows = log.listed_sessions(
                "ada", order=order, descending=descending, after=after, limit=limit
            )
            return [row.info.session_id for row in rows]

        newest = NOW + 9 * 60_000_000
        assert page() == ["s-3", "s-1", "s-2", "s-0"]
        assert page(limit=2) == ["s-3", "s-1"]
        assert page(after=(newest, "s-1")) == ["s-2", "s-0"]
        assert page(after=(newest, "s-1"), descending=False) == ["s-3"]
        assert page("name", descending=False, limit=2) == ["s-0", "s-1"]
        assert page("name", after=(0, "s-1")) == ["s-0"]
        listed = [ListedHead(*columns) for columns in log.listed_heads("ada")]
        heads = {head.session_id: head for head in listed}
        assert sorted(heads) == ["s-0", "s-1", "s-2", "s-3"]
        infos = {info.session_id: info for info in log.sessions("ada")}
        assert heads["s-2"].info() == infos["s-2"]
        assert log.count_listed("ada") == 4
        assert log.listed_names("ada", ["s-1", "none"]) == {"s-1"}

    def test_one_of_several_views_can_be_dropped(self, log: EventLog) -> None:
        for stream in (ADA, BOB):
            write(log, stream, *user_inputs("a"))
            for name in ("one", "other"):
                assert log.save_view(stream, name, _VIEW, replaces=0)

        log.drop_view(ADA, "one")

        assert log.view_names("ada", "s-1") == ["other"]
        assert log.view_names("bob", "s-1") == ["one", "other"]
        assert log.load_view(ADA, "one") is None

    def test_a_frozen_user_gets_no_stored_view(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a"))
        assert log.head(ADA).seq == 1
        statement: JsonObject = {
            "format": FORMAT,
            "act": "frozen",
            "certificate_id": "c-1",
        }
        certificate = log.erasures.sign("ada", statement, now=NOW)
        freeze = LegalHold(FREEZE, "disputed", NOW)
        assert log.retention.freeze("ada", freeze, certificate)

        assert not log.save_view(ADA, "v", _VIEW, replaces=0)
        assert log.load_view(ADA, "v") is None

    def test_a_snapshot_has_head_view_and_events(self, log: EventLog) -> None:
        # The derived stream of a view has the view's name.
        derived = ADA._replace(stream="v")
        write(log, ADA, *user_inputs(*"abcdef"))
        for _ in range(3):
            write(log, derived, _RETIRED)
        view = StoredView(
            through_seq=4,
            derived_seq=1,
            body={"n": 1},
            shows=((1, 1), (3, 4)),
            shows_derived=((1, 1),),
        )
        assert log.save_view(ADA, "v", view, replaces=0)

        snapshot = log.snapshot(ADA, "v", shown=True)

        assert snapshot.head == log.head(ADA)
        assert snapshot.view is not None
        assert (snapshot.view.through_seq, snapshot.view.derived_seq) == (4, 1)
        assert snapshot.view.body == {"n": 1}
        events = log.read(ADA)
        entries = log.read(derived)
        assert (snapshot.shown, snapshot.new) == ([events[0], *events[2:4]], events[4:])
        assert (snapshot.summaries, snapshot.derived) == (entries[:1], entries[1:])
        assert log.snapshot(ADA, "v").shown == []

    def test_a_snapshot_needs_no_view(self, log: EventLog) -> None:
        before = log.snapshot(ADA, "v", shown=True)
        write(log, ADA, *user_inputs("a", "b"))
        write(log, BOB, *user_inputs("c"))

        snapshot = log.snapshot(ADA, "v", shown=True)

        assert (before.head.seq, before.view, before.new) == (0, None, [])
        assert (snapshot.head.seq, snapshot.view) == (2, None)
        assert snapshot.new == log.read(ADA)

    def test_an_audit_yields_every_event_and_no_problem(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))
        write(log, ADA, *user_inputs("c"))

        audited = list(log.audit(ADA))

        events = [item for item in audited if isinstance(item, Envelope)]
        assert texts(events) == ["a", "b", "c"]
        assert not [item for item in audited if isinstance(item, Problem)]
        assert log.orphans() == []

    def test_an_unredacted_append_is_refused(self, log: EventLog) -> None:
        request = append_to(log.head(ADA), *user_inputs("a"))
        raw = Append(request.base, request.state, user_inputs("a"), NOW)  # type: ignore[arg-type]  # unredacted on purpose

        with pytest.raises(TypeError):
            log.append(raw)
        assert log.head(ADA).seq == 0

    def test_only_its_own_links_are_decrypted(self, log: EventLog) -> None:
        link = log.encrypt_link(b"names")
        changed = bytes([link[0] ^ 1]) + link[1:]

        assert log.decrypt_link(link) == b"names"
        assert b"names" not in link
        assert log.encrypt_link(b"names") != link
        assert log.decrypt_link(changed) is None
        assert log.decrypt_link(b"") is None

    def test_served_shares_are_listed_and_stay_when_views_are_dropped(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *user_inputs("a"))
        log.save_view(ADA, "share-1", _VIEW, replaces=0)
        log.save_view(ADA, "v", _VIEW, replaces=0)

        log.drop_views("ada", "s-1")

        assert log.share_places("ada") == [Place("ada", "s-1", "share-1")]
        assert log.share_places("bob") == []
        assert log.view_names("ada", "s-1") == ["share-1"]
        log.drop_view(ADA, "share-1")
        assert log.share_places("ada") == []

    def test_each_user_has_a_key_for_pseudonyms(self, log: EventLog) -> None:
        before = log.pseudonym_key("ada", now=NOW)
        write(log, ADA, *user_inputs("a"))

        assert log.pseudonym_key("ada", now=NOW + 1) == before
        assert log.pseudonym_key("bob", now=NOW) != before
        assert len(before) == 32

    def test_sizes_are_counted(self, log: EventLog) -> None:
        write(log, ADA, *user_inputs("a", "b"))

        stats = log.stats(Scope(), now=NOW)

        assert (stats["sessions"], stats["events"]) == (1, 2)
        assert stats["event_bytes"] > 0
