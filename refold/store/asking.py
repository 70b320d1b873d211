"""Asks humans what rules say of a session, each question once."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

from refold.domain.errors import IdempotencyConflict
from refold.domain.events import HumanReview
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, Head, StoredView
from refold.domain.record import Draft
from refold.projections.context.spans import joined
from refold.projections.review import kept
from refold.projections.review.bundle import Source, bundle_of
from refold.projections.review.incidents import Due, Seen, Watching
from refold.projections.review.recovery import Recovery
from refold.projections.review.rules import ReviewRules
from refold.store.paging import read_on
from refold.store.writing import Order, Writer

# So many new events are read again rather than kept.
_WORTH: Final = 200
# So many of the newest events of a turn are looked at for a bundle.
_NEWEST: Final = 200


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

    Raises what an append raises.
    """
    rules = rules or ReviewRules.default()
    watching = _watched(writer.log, head, rules)
    stream = head.state.stream
    asked = [_ask(writer, stream, rules, due) for due in watching.state.unasked()]
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


def _ask(writer: Writer, stream: StreamId, rules: ReviewRules, due: Due) -> int:
    """The seq of the question; 0 if it was asked meanwhile."""
    bundle = bundle_of(_source(writer.log, stream, rules, due))
    event = HumanReview(
        trigger=due.rule.name,
        severity=due.rule.severity,
        question=f"{bundle.says} {due.rule.question}".strip(),
        bundle=bundle.to_json(),
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
