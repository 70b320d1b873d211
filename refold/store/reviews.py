"""Questions to a human: asked by rules over a session's events, and decided once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

from refold.domain import errors
from refold.domain.envelope import Draft, Meta
from refold.domain.events import HumanReview, JsonObject
from refold.domain.ids import StreamId, bounded, check_id, check_session_id
from refold.domain.ports import EventLog, Head, Scope, StoredView, listed
from refold.projections.context.units import joined
from refold.projections.review import incidents
from refold.projections.review.bundle import MOST_BYTES, Source, bare, bundle_of
from refold.projections.review.incidents import Decision, Due, Recovery, Review, Watch
from refold.projections.review.rules import ReviewRules, told
from refold.store.appends import Order, Receipt, Writer
from refold.store.history import read_on

_TYPE: Final = "hitl"

# So many new events are read again rather than kept.
_WORTH: Final = 200
# So many of the newest events of a turn are looked at for a bundle.
_NEWEST: Final = 200
# What a store can have against a bundle; with less in it, it may take it.
_REFUSED: Final = (errors.EventTooLarge, errors.InvalidEvent, errors.RedactionFailed)
_SMALLER: Final = (MOST_BYTES, MOST_BYTES // 4, MOST_BYTES // 16)


class Unreadable(NamedTuple):
    """A session whose questions cannot be read, and why."""

    user_id: str
    session_id: str
    error: errors.CorruptEvent | errors.KeyUnavailable


class ReviewList(list[Review]):
    """Questions to a human; ``unreadable`` are the sessions that may have more."""

    def __init__(
        self, found: Iterable[Review] = (), unreadable: Iterable[Unreadable] = ()
    ) -> None:
        super().__init__(found)
        self.unreadable = tuple(unreadable)


@dataclass(frozen=True, slots=True)
class Reviews:
    """What humans were asked, in all sessions; ``session.review`` asks."""

    writer: Writer

    def list(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        open_only: bool = True,
    ) -> ReviewList:
        """The questions to a human, the gravest first, then those that wait longest.

        A session that cannot be read is left out, and stands in ``unreadable``.

        open_only: only those that can be decided, and were not.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
        found, unreadable, log = ReviewList(), [], self.writer.log
        for info in listed(log.sessions, Scope(user_id, session_id)):
            if info.is_apart:
                continue
            closed = info.status in ("closed", "frozen-closed")
            stream = StreamId(info.user_id, info.session_id)
            try:
                asked = read_on(log, stream, types=(_TYPE,))
                found += incidents.reviews_of(asked, closed=closed)
            except errors.Erased:
                continue  # meanwhile
            except (errors.CorruptEvent, errors.KeyUnavailable) as error:
                unreadable.append(Unreadable(*stream[:2], error))
        wanted = [one for one in found if one.is_open] if open_only else found
        return ReviewList(sorted(wanted, key=incidents.urgency), unreadable)


def decide(
    writer: Writer,
    stream: StreamId,
    seq: int,
    decision: Decision,
    *,
    by: str,
    note: str,
) -> Receipt:
    """Record what a human decided, once; ``Session.decide`` says how."""
    if decision not in incidents.DECISIONS:
        raise errors.InvalidEvent(
            f"a decision is one of {', '.join(incidents.DECISIONS)}"
        )
    if not isinstance(by, str) or not by.strip():
        raise errors.InvalidEvent("by says who decided: a name or a role")
    if not isinstance(note, str):
        raise errors.InvalidEvent("a note is a text")
    if writer.log.head(stream).seq == 0:
        raise errors.SessionNotFound(stream.user_id, stream.session_id)
    asked = _question(writer.log, stream, seq)
    event = HumanReview(
        trigger=asked.trigger,
        severity=asked.severity,
        decision=decision,
        decided_by=by,
        refers_to=asked.seq,
    )
    meta = Meta.of({incidents.NOTE: note} if note else None)
    order = Order(stream, (Draft(event, meta=meta),), f"refold.decision/{asked.seq}")
    try:
        receipt = writer.append(order)
    except errors.IdempotencyConflict as earlier:
        raise errors.AlreadyDecided(seq, decided_at=earlier.first_seq) from None
    if receipt.duplicate:
        raise errors.AlreadyDecided(seq, decided_at=receipt.first_seq)
    return receipt


def _question(log: EventLog, stream: StreamId, seq: int) -> Review:
    if type(seq) is not int:
        raise errors.InvalidEvent("seq says which question: a whole number")
    seq = bounded("seq", seq)
    found = incidents.reviews_of(
        read_on(log, stream, after=max(seq - 1, 0), types=(_TYPE,))
    )
    if not found or found[0].seq != seq:
        raise errors.InvalidEvent(
            f"seq {seq} of the session is not a question to a human: "
            "`refold review list` lists the questions"
        )
    decided = found[0].decided
    if decided is not None:
        raise errors.AlreadyDecided(seq, decided_at=decided.seq)
    return found[0]


class Reviewed(NamedTuple):
    """What rules found in a session that is to be done now.

    asked:      the seqs of the questions that were asked a human just now.
    recoveries: what the agent is to do before one is asked; each has the ``meta`` and
                the ``idempotency_key`` to append it with.
    """

    asked: list[int]
    recoveries: list[Recovery]


def ask(writer: Writer, head: Head, rules: ReviewRules | None) -> Reviewed:
    """Ask what is not asked yet in the session of this head.

    A question that cannot be asked is raised when all others were.

    Raises InvalidConfiguration for what are no rules, and what an append raises.
    """
    rules = ReviewRules.default() if rules is None else rules
    if not isinstance(rules, ReviewRules):
        why = "rules: they are made by ReviewRules.read(text)"
        raise errors.InvalidConfiguration(why)
    watch = _watched(writer.log, head, rules)
    asked: list[int] = []
    refused: errors.RefoldError | None = None
    for due in watch.unasked():
        source = _source(writer.log, head.state.stream, rules, due)
        try:
            asked.append(_ask(writer, head.state.stream, source))
        except _REFUSED as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return Reviewed([seq for seq in asked if seq], watch.recoveries())


def _watched(log: EventLog, head: Head, rules: ReviewRules) -> Watch:
    """What the rules know of a session; kept where much is new and it is not frozen."""
    stream, name = head.state.stream, incidents.name_of(rules)
    stored = log.load_view(stream, name) or StoredView(0, 0, {})
    watch = Watch.load(rules, stored.body) if stored.body else Watch(rules)
    begun = after = stored.through_seq if stored.body else 0
    for envelope in read_on(log, stream, after=begun):
        watch.take(envelope.seq, envelope.payload, envelope.meta.warnings)
        after = envelope.seq
    if after - begun >= _WORTH and head.status == "open" and not head.frozen:
        view = StoredView(after, 0, watch.dump())
        log.save_view(stream, name, view, replaces=stored.through_seq)
    return watch


def _ask(writer: Writer, stream: StreamId, source: Source) -> int:
    """The seq of the question, with less beside it if refused; 0 if asked meanwhile."""
    refused: errors.RefoldError | None = None
    for most in _SMALLER:
        bundle = bundle_of(source, most)
        if not bundle.events:
            break
        try:
            return _append(writer, stream, source.due, bundle.to_json())
        except _REFUSED as error:
            refused = error
    without = bare(source, str(refused or "what shows it is too large")).to_json()
    try:
        return _append(writer, stream, source.due, without)
    except _REFUSED:
        # Where it is names the question: without that it would be asked again.
        where: JsonObject = {"where": without["where"]}
        return _append(writer, stream, source.due, where)


def _append(writer: Writer, stream: StreamId, due: Due, bundle: JsonObject) -> int:
    event = HumanReview(
        trigger=due.rule.name,
        severity=due.rule.severity,
        question=f"{told(due.figures)} {due.rule.question}".strip(),
        bundle=bundle,
    )
    key = f"refold.review/{due.rule.name}/{due.first_seq}"
    try:
        receipt = writer.append(Order(stream, (Draft(event),), key))
    except errors.IdempotencyConflict:
        return 0  # by other rules, or another version: it is asked all the same
    return 0 if receipt.duplicate else receipt.first_seq


def _source(log: EventLog, stream: StreamId, rules: ReviewRules, due: Due) -> Source:
    """What the question's bundle is made of, read from the log."""
    before = due.turn_seq - 1
    turn = log.read(stream, after=before, upto=due.at_seq, limit=_NEWEST, newest=True)
    have = {envelope.seq for envelope in turn}
    spans = joined([(seq, seq) for seq in {*due.seqs, due.turn_seq} - have])
    events = [*(log.read(stream, spans=spans) if spans else []), *turn]
    newest: Any = {}
    for kind in ("system", "request"):
        found = log.read(stream, upto=due.at_seq, types=(kind,), newest=True, limit=1)
        newest[kind] = found[0] if found else None
    version = import_module("refold").__version__
    return Source(due=due, rules=rules, refold=version, events=events, **newest)
