"""Asks humans what rules say of a session, each question once."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

from refold.domain.errors import (
    EventTooLarge,
    IdempotencyConflict,
    InvalidConfiguration,
    InvalidEvent,
    RedactionFailed,
    RefoldError,
)
from refold.domain.events import HumanReview, JsonObject
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, Head, StoredView
from refold.domain.record import Draft
from refold.projections.context.spans import joined
from refold.projections.review import kept
from refold.projections.review.bundle import MOST_BYTES, Source, bare, bundle_of
from refold.projections.review.incidents import Due, Seen, Watching
from refold.projections.review.recovery import Recovery
from refold.projections.review.rules import ReviewRules
from refold.projections.review.triggers import told
from refold.store.paging import read_on
from refold.store.writing import Order, Writer

# So many new events are read again rather than kept.
_WORTH: Final = 200
# So many of the newest events of a turn are looked at for a bundle.
_NEWEST: Final = 200
# What a store can have against a bundle; with less in it, it may take it.
_REFUSED: Final = (EventTooLarge, InvalidEvent, RedactionFailed)
_SMALLER: Final = (MOST_BYTES, MOST_BYTES // 4, MOST_BYTES // 16)


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
    if rules is None:
        rules = ReviewRules.default()
    if not isinstance(rules, ReviewRules):
        raise InvalidConfiguration("rules: they are made by ReviewRules.read(text)")
    watching = _watched(writer.log, head, rules)
    asked: list[int] = []
    refused: RefoldError | None = None
    for due in watching.state.unasked():
        source = _source(writer.log, head.state.stream, rules, due)
        try:
            asked.append(_ask(writer, head.state.stream, source))
        except _REFUSED as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return Reviewed([seq for seq in asked if seq], watching.recoveries())


def _watched(log: EventLog, head: Head, rules: ReviewRules) -> Watching:
    """What the rules know of a session now; where much is new it is kept.

    Of a session that is frozen nothing is: what is there stays as it is.
    """
    stream, name = head.state.stream, kept.name_of(rules)
    stored = log.load_view(stream, name)
    known = stored.through_seq if stored else 0
    state = kept.load(rules, stored.body) if stored and stored.body else None
    watching = Watching(rules, state)
    begun = after = known if state else 0
    for envelope in read_on(log, stream, after=begun):
        watching.take(Seen.of(envelope))
        after = envelope.seq
    if after - begun >= _WORTH and head.status == "open" and not head.frozen:
        view = StoredView(after, 0, kept.dump(watching.state))
        log.save_view(stream, name, view, replaces=known)
    return watching


def _ask(writer: Writer, stream: StreamId, source: Source) -> int:
    """The seq of the question; 0 if it was asked meanwhile.

    A bundle that is refused is asked with less of it, then without its events.
    """
    refused: RefoldError | None = None
    for most in _SMALLER:
        bundle = bundle_of(source, most)
        if not bundle.events:
            break
        try:
            return _append(writer, stream, source.due, bundle.to_json())
        except _REFUSED as error:
            refused = error
    told_why = str(refused or "what shows it is too large")
    without = bare(source, told_why).to_json()
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
    except IdempotencyConflict:
        return 0  # by other rules, or another version: it is asked all the same
    return 0 if receipt.duplicate else receipt.first_seq


def _source(log: EventLog, stream: StreamId, rules: ReviewRules, due: Due) -> Source:
    """What the question's bundle is made of, read from the log."""
    before = due.turn_seq - 1
    turn = log.read(stream, after=before, upto=due.at_seq, limit=_NEWEST, newest=True)
    have = {envelope.seq for envelope in turn}
    spans = joined([(seq, seq) for seq in {*due.seqs, due.turn_seq} - have])
    events = [*(log.read(stream, spans=spans) if spans else []), *turn]
    system, request = (
        log.read(stream, upto=due.at_seq, types=(kind,), newest=True, limit=1)
        for kind in ("system", "request")
    )
    return Source(
        due=due,
        rules=rules,
        refold=import_module("refold").__version__,
        events=events,
        system=system[0] if system else None,
        request=request[0] if request else None,
    )
