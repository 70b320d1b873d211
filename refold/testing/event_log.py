"""The promises of an event log, but for those of rewriting it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import pytest

from refold.domain.envelope import Envelope
from refold.domain.erasure import LegalHold
from refold.domain.events import (
    CompactionNote,
    SystemPrompt,
    ToolCall,
)
from refold.domain.ids import StreamId
from refold.domain.keeping import FREEZE
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    EventLog,
    Head,
    Outcome,
    Problem,
    StoredView,
)
from refold.domain.sizes import Scope
from refold.redaction.guard import Limits
from refold.testing.leasing import LeaseContract
from refold.testing.rewriting import RewritingContract
from refold.testing.support import ADA, BOB, NOW, append_to, said, texts, write


class EventLogContract(RewritingContract, LeaseContract):
    """The promises of the port.  Inherit it and give a fixture ``log``."""

    def test_a_stream_nobody_wrote_is_at_seq_0(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))

        assert log.head(StreamId("ada", "other")).seq == 0
        assert log.head(ADA).seq == 1

    def test_events_come_back_in_order_without_gaps(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b"))
        write(log, ADA, *said("c"))

        events = log.read(ADA)

        assert texts(events) == ["a", "b", "c"]
        assert [event.seq for event in events] == [1, 2, 3]

    def test_an_append_returns_the_new_head(self, log: EventLog) -> None:
        outcome = write(log, ADA, *said("a", "b"))

        assert isinstance(outcome, Appended)
        assert outcome.head == log.head(ADA)
        assert outcome.head.seq == 2
        assert outcome.head.hash.hex() == log.read(ADA)[-1].hash

    def test_who_cannot_wait_is_called_back_once(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        head, told = log.head(ADA), SimpleQueue[Outcome | Exception]()

        for text in ("b", "late"):
            assert log.append_soon(append_to(head, *said(text)), told.put)
        outcomes = [told.get(timeout=30), told.get(timeout=30)]

        assert [type(outcome) for outcome in outcomes] == [Appended, Conflict]
        assert all(outcome.head == log.head(ADA) for outcome in outcomes)  # type: ignore[union-attr]  # neither is a Duplicate
        assert texts(log.read(ADA)) == ["a", "b"]
        assert told.empty()

    def test_each_event_is_chained_to_the_one_before(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b"))
        write(log, ADA, *said("c"))

        first, second, third = log.read(ADA)

        assert first.prev_hash == "00" * 32
        assert (second.prev_hash, third.prev_hash) == (first.hash, second.hash)
        assert log.read(ADA, after=2)[0].prev_hash == second.hash
        assert len({first.hash, second.hash, third.hash}) == 3

    def test_a_page_holds_what_was_asked_for(self, log: EventLog) -> None:
        write(log, ADA, *said(*"abcdef"))

        assert texts(log.read(ADA, after=2, limit=2)) == ["c", "d"]
        assert texts(log.read(ADA, after=1, upto=3)) == ["b", "c"]
        assert log.read(ADA, after=6) == []
        assert texts(log.read(ADA, limit=2, newest=True)) == ["e", "f"]
        assert texts(log.read(ADA, upto=3, limit=2, newest=True)) == ["b", "c"]

    def test_spans_are_read_at_once_and_alone(self, log: EventLog) -> None:
        write(log, ADA, *said(*(f"{number}" for number in range(1, 31))))
        spans = [(2, 2), (5, 7), (20, 40)]

        found = log.read(ADA, spans=spans)
        many = log.read(ADA, spans=[(n, n) for n in range(1, 31, 2)])

        assert [e.seq for e in found] == [2, 5, 6, 7, *range(20, 31)]
        assert found == [event for event in log.read(ADA) if event in found]
        assert [e.seq for e in many] == list(range(1, 31, 2))

    def test_types_can_be_picked(self, log: EventLog) -> None:
        call = ToolCall(call_id="c1", tool_name="bash")
        write(log, ADA, *said("a"), call, *said("b"))

        picked = log.read(ADA, types=("tool_call",))

        assert [event.seq for event in picked] == [2]
        assert picked[0].prev_hash == log.read(ADA)[0].hash

    def test_an_append_on_an_old_head_writes_nothing(self, log: EventLog) -> None:
        old = log.head(ADA)
        write(log, ADA, *said("a"))

        outcome = log.append(append_to(old, *said("b", "c")))

        assert isinstance(outcome, Conflict)
        assert outcome.head == log.head(ADA)
        assert texts(log.read(ADA)) == ["a"]

    def test_an_append_on_another_history_writes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        elsewhere = replace(log.head(ADA), hash=bytes(32))

        outcome = log.append(append_to(elsewhere, *said("b")))

        assert isinstance(outcome, Conflict)
        assert texts(log.read(ADA)) == ["a"]

    def test_exactly_one_of_many_rivals_wins(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        requests = [append_to(log.head(ADA), *said(f"r{i}")) for i in range(8)]

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(log.append, requests))

        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
        assert log.head(ADA).seq == 2

    def test_rivals_do_not_fail_those_who_write_elsewhere(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        stale = log.head(StreamId("ada", "none"))
        streams = [StreamId("ada", f"t-{i}") for i in range(8)]
        requests = [append_to(log.head(stream), *said("x")) for stream in streams]
        rivals = [append_to(Head(log.head(ADA).state), *said("y")) for _ in range(4)]
        assert stale.seq == 0

        with ThreadPoolExecutor(12) as pool:
            outcomes = list(pool.map(log.append, [*requests, *rivals]))

        assert all(isinstance(outcome, Appended) for outcome in outcomes[:8])
        assert [log.head(stream).seq for stream in streams] == [1] * 8

    def test_an_exclusive_append_sees_the_head_that_counts(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))

        def build(head: Head) -> Append:
            return append_to(head, *said(f"after {head.seq}"))

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(
                pool.map(lambda _: log.append_exclusive(ADA, build), range(6))
            )

        assert all(isinstance(outcome, Appended) for outcome in outcomes)
        assert texts(log.read(ADA, after=1)) == [f"after {i}" for i in range(1, 7)]

    def test_an_exclusive_append_that_fails_leaves_all_as_it_was(
        self, log: EventLog
    ) -> None:
        write(log, ADA, *said("a"))

        def build(_: Head) -> Append:
            raise LookupError

        with pytest.raises(LookupError):
            log.append_exclusive(ADA, build)
        write(log, ADA, *said("b"))
        assert texts(log.read(ADA)) == ["a", "b"]

    def test_a_key_that_was_used_gives_the_first_seqs(self, log: EventLog) -> None:
        log.append(append_to(log.head(ADA), *said("a", "b"), key="k"))

        again = log.append(append_to(log.head(ADA), *said("a", "b"), key="k"))

        assert again == log.receipt(ADA, "k") == Duplicate(1, 2)
        assert log.receipt(ADA, "other") is None
        assert log.head(ADA).seq == 2

    def test_a_key_gives_the_same_event_ids_each_time(self, log: EventLog) -> None:
        other = ADA._replace(session_id="s-2")
        for stream in (ADA, other):
            log.append(append_to(log.head(stream), *said("a", "b"), key="k"))

        ids = [event.event_id for s in (ADA, other) for event in log.read(s)]

        assert len(set(ids)) == 4
        assert {value.version for value in ids} == {8}

    def test_one_of_two_uses_of_a_key_at_once_writes(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        request = append_to(log.head(ADA), *said("b"), key="k")

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(log.append, [request] * 4))

        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 1
        assert texts(log.read(ADA)) == ["a", "b"]

    def test_users_do_not_see_each_other(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        write(log, BOB, *said("b"))

        assert texts(log.read(ADA)) == ["a"]
        assert texts(log.read(BOB)) == ["b"]
        assert [info.user_id for info in log.sessions("ada")] == ["ada"]
        assert [info.user_id for info in log.sessions()] == ["ada", "bob"]

    def test_a_session_is_listed_with_its_head(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b"))

        (info,) = log.sessions("ada", session_id="s-1")

        assert (info.head_seq, info.status) == (2, "open")
        assert info.tokens == sum(event.token_estimate for event in log.read(ADA)) > 0
        assert info.created_at == info.updated_at == NOW

    def test_a_derived_stream_counts_for_itself(self, log: EventLog) -> None:
        derived = ADA._replace(stream="f" * 64)
        write(log, ADA, *said("a", "b"))

        write(log, derived, CompactionNote(phase="retired"))

        assert log.head(derived).seq == 1
        assert log.head(ADA).seq == 2
        assert log.streams("ada", "s-1") == ["main", "f" * 64]

    def test_a_derived_stream_needs_its_session(self, log: EventLog) -> None:
        derived = StreamId("ada", "none", "f" * 64)
        write(log, ADA, *said("a"))

        assert isinstance(
            write(log, derived, CompactionNote(phase="retired")), Conflict
        )
        assert log.streams("ada", "none") == []
        assert log.streams("ada", "s-1") == ["main"]

    def test_a_closed_stream_takes_nothing_more(self, log: EventLog) -> None:
        write(log, ADA, *said("a"), SystemPrompt(closed=True))
        head = log.head(ADA)
        unaware = replace(head, state=replace(head.state, closed=False))

        assert (head.status, head.state.closed) == ("closed", True)
        assert isinstance(log.append(append_to(unaware, *said("b"))), Conflict)
        assert log.head(ADA) == head

    def test_open_calls_are_part_of_the_head(self, log: EventLog) -> None:
        write(log, ADA, ToolCall(call_id="c1", tool_name="bash"))

        assert log.head(ADA).state.open_calls["c1"].tool_name == "bash"

    def test_a_long_text_is_found_by_its_digest(self, log: EventLog) -> None:
        text = "a long line. " * 2000
        request = append_to(
            log.head(ADA), *said(text), limits=Limits(leaf_bytes=2048, event_bytes=8192)
        )
        write(log, BOB, *said("x"))

        log.append(request)

        (blob,) = request.events[0].blobs
        assert log.blob(ADA, blob.sha256) == text.encode()
        assert log.blob(BOB, blob.sha256) is None
        assert log.blob(ADA._replace(session_id="s-2"), blob.sha256) is None
        assert len(texts(log.read(ADA))[0]) < 2048

    def test_a_view_is_replaced_only_by_who_knows_it(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        first, second = StoredView(1, 0, {"n": 1}), StoredView(3, 1, {"n": 2})

        assert log.save_view(ADA, "v", first, replaces=0)
        assert not log.save_view(ADA, "v", second, replaces=0)
        assert log.load_view(ADA, "v") == first
        assert log.save_view(ADA, "v", second, replaces=1)
        assert log.load_view(ADA, "v") == second
        assert log.load_view(ADA, "other") is None
        assert log.view_names("ada", "s-1") == ["v"]

    def test_of_who_is_frozen_no_view_is_stored(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        view = StoredView(1, 0, {"n": 1})
        assert log.keeping.freeze("ada", LegalHold(FREEZE, "disputed", NOW))

        assert not log.save_view(ADA, "v", view, replaces=0)
        assert log.load_view(ADA, "v") is None

    def test_how_a_session_stands_is_read_at_once(self, log: EventLog) -> None:
        derived = ADA._replace(stream="v")
        write(log, ADA, *said(*"abcdef"))
        for _ in range(3):
            write(log, derived, CompactionNote(phase="retired"))
        view = StoredView(
            4, 1, {"n": 1}, shows=((1, 1), (3, 4)), shows_derived=((1, 1),)
        )
        assert log.save_view(ADA, "v", view, replaces=0)

        standing = log.standing(ADA, "v", shown=True)

        assert standing.head == log.head(ADA)
        assert standing.view is not None
        assert (standing.view.through_seq, standing.view.derived_seq) == (4, 1)
        assert standing.view.body == {"n": 1}
        every, made = log.read(ADA), log.read(derived)
        assert (standing.shown, standing.new) == ([every[0], *every[2:4]], every[4:])
        assert (standing.summaries, standing.derived) == (made[:1], made[1:])
        assert log.standing(ADA, "v").shown == []

    def test_a_session_stands_without_a_view_too(self, log: EventLog) -> None:
        nothing = log.standing(ADA, "v", shown=True)
        write(log, ADA, *said("a", "b"))
        write(log, BOB, *said("c"))

        standing = log.standing(ADA, "v", shown=True)

        assert (nothing.head.seq, nothing.view, nothing.new) == (0, None, [])
        assert (standing.head.seq, standing.view) == (2, None)
        assert standing.new == log.read(ADA)

    def test_what_was_written_proves_itself(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b"))
        write(log, ADA, *said("c"))

        proved = list(log.audit(ADA))

        assert texts([item for item in proved if isinstance(item, Envelope)]) == [
            *"abc"
        ]
        assert not [item for item in proved if isinstance(item, Problem)]
        assert log.orphans() == []

    def test_what_did_not_pass_redaction_is_refused(self, log: EventLog) -> None:
        request = append_to(log.head(ADA), *said("a"))
        raw = Append(request.base, request.state, said("a"), NOW)  # type: ignore[arg-type]  # what must be refused

        with pytest.raises(TypeError):
            log.append(raw)
        assert log.head(ADA).seq == 0

    def test_each_user_has_a_key_for_pseudonyms(self, log: EventLog) -> None:
        before = log.pseudonym_key("ada", now=NOW)
        write(log, ADA, *said("a"))

        assert log.pseudonym_key("ada", now=NOW + 1) == before
        assert log.pseudonym_key("bob", now=NOW) != before
        assert len(before) == 32

    def test_sizes_are_counted(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b"))

        stats = log.stats(Scope(), now=NOW)

        assert (stats["sessions"], stats["events"]) == (1, 2)
        assert stats["event_bytes"] > 0
