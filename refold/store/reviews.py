"""Reviews: questions that rules over a session's events ask a human."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple

from refold.domain import errors
from refold.domain.envelope import NOTE, Draft, Envelope, Meta
from refold.domain.events import HumanReview, JsonObject, SystemPrompt
from refold.domain.ids import StreamId, bounded, check_id, check_session_id
from refold.domain.ports import EventLog, Head, Scope, StoredView, listed
from refold.projections.context.units import joined
from refold.projections.review import incidents
from refold.projections.review.bundle import MOST_BYTES, Source, bare, bundle_of
from refold.projections.review.incidents import (
    Decision,
    Question,
    Recovery,
    Review,
    Watch,
)
from refold.projections.review.rules import ReviewRules, describe
from refold.store.appends import Order, Receipt, Writer
from refold.store.history import read_pages
from refold.store.recorded import recorded

# The type of the events with questions and decisions: "human in the loop".
_TYPE: Final = "hitl"

# The state of the rules is stored once this many events are new.  Fewer events are read
# again in each call.
_STORE_AFTER_EVENTS: Final = 200
# A bundle is chosen from this many of the newest events of the turn.
_MOST_EVENTS: Final = 200
# The errors of an append that succeeds with a smaller bundle.
_REFUSED: Final = (errors.EventTooLarge, errors.InvalidEvent, errors.RedactionFailed)
# The largest sizes of a bundle in bytes, which are tried in this order.
_SIZES: Final = (MOST_BYTES, MOST_BYTES // 4, MOST_BYTES // 16)


class Unreadable(NamedTuple):
    """A session whose questions cannot be read, and why."""

    user_id: str
    session_id: str
    error: errors.CorruptEvent | errors.KeyUnavailable


class ReviewList(list[Review]):
    """Questions to a human; ``unreadable`` lists sessions that may have more."""

    def __init__(
        self, reviews: Iterable[Review] = (), unreadable: Iterable[Unreadable] = ()
    ) -> None:
        super().__init__(reviews)
        self.unreadable = tuple(unreadable)


@dataclass(frozen=True, slots=True)
class Reviews:
    """The questions to humans in all sessions; ``session.reviews.ask`` asks them."""

    writer: Writer

    @recorded("review_list", "questions")
    def list(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        open_only: bool = True,
    ) -> ReviewList:
        """List the questions to a human: the most severe first, then the oldest.

        Sessions that cannot be read are in ``unreadable``.

        open_only: leave out questions for which no decision can be recorded any more.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
        log = self.writer.log
        reviews: list[Review] = []
        unreadable: list[Unreadable] = []
        for info in listed(log.sessions, Scope(user_id, session_id)):
            if info.is_erased_or_internal:
                continue
            closed = info.status in ("closed", "frozen-closed")
            stream = StreamId(info.user_id, info.session_id)
            try:
                envelopes = read_pages(log, stream, types=(_TYPE,))
                reviews += incidents.reviews_of(envelopes, closed=closed)
            except errors.Erased:
                continue  # erased during the listing
            except (errors.CorruptEvent, errors.KeyUnavailable) as error:
                unreadable.append(Unreadable(info.user_id, info.session_id, error))
        if open_only:
            reviews = [review for review in reviews if review.is_open]
        return ReviewList(sorted(reviews, key=incidents.urgency), unreadable)


def decide(
    writer: Writer,
    stream: StreamId,
    seq: int,
    decision: Decision,
    *,
    by: str,
    note: str,
) -> Receipt:
    """Record a decision once; ``SessionReviews.decide`` documents the parameters."""
    if decision not in incidents.DECISIONS:
        raise errors.InvalidEvent(
            f"a decision is one of {', '.join(incidents.DECISIONS)}"
        )
    if not isinstance(by, str) or not by.strip():
        raise errors.InvalidEvent(
            "by is the name or the role of the person who decided"
        )
    if not isinstance(note, str):
        raise errors.InvalidEvent("a note is a text")
    if writer.log.head(stream).seq == 0:
        raise errors.SessionNotFound(stream.user_id, stream.session_id)
    question = _open_question(writer.log, stream, seq)
    event = HumanReview(
        trigger=question.trigger,
        severity=question.severity,
        # Contexts keep decisions longer than the events that asked for them.
        question=question.question,
        decision=decision,
        decided_by=by,
        refers_to=question.seq,
    )
    meta = Meta.of({NOTE: note} if note else None)
    order = Order(stream, (Draft(event, meta=meta),), f"refold.decision/{question.seq}")
    try:
        receipt = writer.append(order)
    except errors.IdempotencyConflict as earlier:
        raise errors.AlreadyDecided(seq, decided_at=earlier.first_seq) from None
    if receipt.duplicate:
        raise errors.AlreadyDecided(seq, decided_at=receipt.first_seq)
    return receipt


def _open_question(log: EventLog, stream: StreamId, seq: int) -> Review:
    """Return the question at ``seq``; raises AlreadyDecided if it has a decision."""
    if type(seq) is not int:
        raise errors.InvalidEvent("seq is the number of the question's event")
    seq = bounded("seq", seq)
    reviews = incidents.reviews_of(
        read_pages(log, stream, after=max(seq - 1, 0), types=(_TYPE,))
    )
    if not reviews or reviews[0].seq != seq:
        raise errors.InvalidEvent(
            f"seq {seq} of the session is not a question to a human: "
            "`refold review list` lists the questions"
        )
    decided = reviews[0].decided
    if decided is not None:
        raise errors.AlreadyDecided(seq, decided_at=decided.seq)
    return reviews[0]


class Reviewed(NamedTuple):
    """The result of applying review rules to a session.

    asked:      the seqs of the questions that this call asked.
    recoveries: steps that the agent must do now, before a human is asked.  Each has the
                ``meta`` and the ``idempotency_key`` with which to append it.
    """

    asked: list[int]
    recoveries: list[Recovery]


def ask(writer: Writer, head: Head, rules: ReviewRules | None) -> Reviewed:
    """Ask each question of the session that was not asked before.

    If the store refuses a question, the others are asked before the error is raised.

    rules: the rules; None means the rules that Refold ships.

    Raises InvalidConfiguration if ``rules`` are not ReviewRules, and the errors of an
    append.
    """
    if rules is None:
        rules = ReviewRules.default()
    if not isinstance(rules, ReviewRules):
        raise errors.InvalidConfiguration(
            "rules must be ReviewRules: ReviewRules.read(text) returns them"
        )
    watch = _folded_rules(writer.log, head, rules)
    asked: list[int] = []
    refused: errors.RefoldError | None = None
    for question in watch.unasked():
        source = _source(writer.log, head.state.stream, rules, question)
        try:
            seq = _ask_with_bundle(writer, head.state.stream, source)
        except _REFUSED as error:
            refused = refused or error
        else:
            if seq is not None:
                asked.append(seq)
    if refused is not None:
        raise refused
    return Reviewed(asked, watch.recoveries())


def _folded_rules(log: EventLog, head: Head, rules: ReviewRules) -> Watch:
    """Return the rules' state at the session's head.

    The stored state is continued with newer events, and stored again after many of
    them.  Nothing is stored in a frozen or closed session.
    """
    stream = head.state.stream
    name = incidents.name_of(rules)
    stored = log.load_view(stream, name) or StoredView(0, 0, {})
    if stored.body:
        watch = Watch.load(rules, stored.body)
        begin = stored.through_seq
    else:
        watch = Watch(rules)
        begin = 0
    through_seq = begin
    for envelope in read_pages(log, stream, after=begin):
        watch.take(envelope.seq, envelope.payload, envelope.meta.warnings)
        through_seq = envelope.seq
    is_writable = head.status == "open" and not head.frozen
    if is_writable and through_seq - begin >= _STORE_AFTER_EVENTS:
        view = StoredView(through_seq, 0, watch.dump())
        log.save_view(stream, name, view, replaces=stored.through_seq)
    return watch


def _ask_with_bundle(writer: Writer, stream: StreamId, source: Source) -> int | None:
    """Append a question with the largest bundle that the store accepts.

    Returns the seq of the question, or None if another process asked it first.
    """
    refused: errors.RefoldError | None = None
    for most in _SIZES:
        bundle = bundle_of(source, most)
        if not bundle.events:
            break
        try:
            return _append(writer, stream, source.question, bundle.to_json())
        except _REFUSED as error:
            refused = error
    reason = str(refused or "the events that show it are too large")
    without_events = bare(source, reason).to_json()
    try:
        return _append(writer, stream, source.question, without_events)
    except _REFUSED:
        # ``where`` identifies the question, which would be repeated without it.
        where: JsonObject = {"where": without_events["where"]}
        return _append(writer, stream, source.question, where)


def _append(
    writer: Writer, stream: StreamId, question: Question, bundle: JsonObject
) -> int | None:
    """Append a question; returns its seq, or None if another process asked it first."""
    event = HumanReview(
        trigger=question.rule.name,
        severity=question.rule.severity,
        question=f"{describe(question.figures)} {question.rule.question}".strip(),
        bundle=bundle,
    )
    key = f"refold.review/{question.rule.name}/{question.first_seq}"
    try:
        receipt = writer.append(Order(stream, (Draft(event),), key))
    except errors.IdempotencyConflict:
        return None  # other rules or another version of Refold asked this question
    if receipt.duplicate:
        return None
    return receipt.first_seq


def _source(
    log: EventLog, stream: StreamId, rules: ReviewRules, question: Question
) -> Source:
    """Read the events and texts from which the bundle of a question is chosen."""
    upto = question.at_seq
    turn = log.read(
        stream, after=question.turn_seq - 1, upto=upto, limit=_MOST_EVENTS, newest=True
    )
    seqs_read = {envelope.seq for envelope in turn}
    seqs_missing = {*question.seqs, question.turn_seq} - seqs_read
    earlier: list[Envelope] = []
    if seqs_missing:
        spans = joined([(seq, seq) for seq in seqs_missing])
        earlier = log.read(stream, spans=spans)
    return Source(
        question=question,
        rules=rules,
        # A plain import would be one from the store to the layers above it.
        refold=import_module("refold").__version__,
        events=[*earlier, *turn],
        system=_newest_prompt(log, stream, upto=upto),
        request=_newest_request(log, stream, upto=upto),
    )


def _newest(
    log: EventLog, stream: StreamId, type_: str, *, upto: int
) -> Envelope | None:
    """Return the newest event of a type up to a seq, or None."""
    envelopes = log.read(stream, upto=upto, types=(type_,), newest=True, limit=1)
    return envelopes[0] if envelopes else None


def _newest_request(log: EventLog, stream: StreamId, *, upto: int) -> Envelope | None:
    """Return the newest request that was sent to a model, or None."""
    while True:
        newest = _newest(log, stream, "request", upto=upto)
        if newest is None or not newest.activates_strategy:
            return newest
        upto = newest.seq - 1


def _newest_prompt(log: EventLog, stream: StreamId, *, upto: int) -> Envelope | None:
    """Return the newest system prompt, or None.

    System texts within the conversation are no prompts.
    """
    while True:
        newest = _newest(log, stream, "system", upto=upto)
        if newest is None:
            return None
        event = newest.payload
        if isinstance(event, SystemPrompt) and event.where is None:
            return newest
        upto = newest.seq - 1
