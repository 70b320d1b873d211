"""Exchanges that wait for a result or a human, and the cuts that would part them.

An exchange that is open when a compaction is decided stays raw behind the summary.
Once it is answered, what a cut between the two would separate is remembered as a tie.
"""

from __future__ import annotations

from typing import NamedTuple

from refold.domain.events import Span
from refold.projections.context.spans import Spans, behind, joined, upto
from refold.projections.context.units import Place, Thread


class Hold(NamedTuple):
    """An exchange that is open since ``opened``, or was until ``closed``."""

    first: int
    spans: Spans
    opened: int
    closed: int | None = None


class Question(NamedTuple):
    """A review that waits for its decision, and the exchange it was asked in."""

    seq: int
    exchange: int


class Waiting(NamedTuple):
    """The open exchanges of a session.

    response: the seqs of the newest response and its results.
    holds:    open exchanges, and those closed in a later turn than their own.
    ties:     (first, last): a cut behind any seq from first up to last - 1 parts them.
    """

    response: Spans = ()
    holds: tuple[Hold, ...] = ()
    questions: tuple[Question, ...] = ()
    ties: tuple[Span, ...] = ()

    def member(
        self, seq: int, placed: Place, thread: Thread, turn: int | None
    ) -> Waiting:
        """Take in a response, call or result; ``turn`` is where the turn began."""
        kind, exchange = placed.kind, placed.exchange
        if kind == "entry":
            return self
        response, holds = self.response, self.holds
        if exchange == thread.response:
            response = behind(() if exchange == seq else response, seq)
        if kind == "call":
            holds = _opened(holds, exchange, response, seq)
        elif kind == "result":
            holds = _extended(holds, exchange, seq)
        answered = exchange if placed.answers is None else placed.answers.seq
        ties = _tied(self.ties, exchange, answered, seq, turn)
        waiting = Waiting(response, holds, self.questions, ties)
        return waiting._settled(exchange, seq, thread, turn) if holds else waiting

    def asked(self, seq: int, thread: Thread, user: int | None) -> Waiting:
        """Take in a question to a human: it holds the exchange it was asked in."""
        anchor, spans = seq, joined([(seq, seq)])
        response = thread.response
        if response is not None and (user is None or response > user):
            anchor, spans = response, joined((*self.response, *spans))
        elif user is not None:
            anchor, spans = user, joined(((user, user), *spans))
        questions = (*self.questions, Question(seq, anchor))
        holds = _opened(self.holds, anchor, spans, seq)
        return self._replace(questions=questions, holds=holds)

    def decided(
        self, seq: int, question: int, thread: Thread, turn: int | None
    ) -> Waiting:
        """Take in a human's decision on the question recorded at ``question``."""
        asked = next((asked for asked in self.questions if asked.seq == question), None)
        if asked is None:
            return self
        questions = tuple(other for other in self.questions if other is not asked)
        ties = _tied(self.ties, asked.exchange, question, seq, turn)
        waiting = self._replace(questions=questions, ties=ties)
        return waiting._settled(asked.exchange, seq, thread, turn)

    def compacted(
        self, through: int, decided_at: int
    ) -> tuple[tuple[Spans, ...], Waiting]:
        """What stays raw behind a compaction, and what is left to watch."""
        kept = tuple(
            upto(hold.spans, through)
            for hold in self.holds
            if hold.first <= through and _open_at(hold, decided_at)
        )
        holds = tuple(
            hold
            for hold in self.holds
            if hold.first > through or hold.closed is None or hold.closed > decided_at
        )
        return kept, self._replace(holds=holds).beyond(through)

    def beyond(self, through: int | None) -> Waiting:
        """Without the ties that no later cut can part."""
        if through is None or all(first > through for first, _ in self.ties):
            return self
        return self._replace(ties=tuple(tie for tie in self.ties if tie[0] > through))

    def allows(self, cut: int) -> bool:
        """Whether a cut right behind the seq ``cut`` parts nothing."""
        return not any(first <= cut < last for first, last in self.ties)

    def _settled(
        self, exchange: int, seq: int, thread: Thread, turn: int | None
    ) -> Waiting:
        """Close the exchange if nothing in it waits any more."""
        if exchange in [call.exchange for call in thread.open]:
            return self
        if exchange not in [hold.first for hold in self.holds]:
            return self
        if exchange in [asked.exchange for asked in self.questions]:
            return self
        later = turn is not None and exchange < turn
        holds = [
            hold._replace(closed=seq)
            if hold.first == exchange and hold.closed is None
            else hold
            for hold in self.holds
            if later or hold.first != exchange or hold.closed is not None
        ]
        return Waiting(self.response, tuple(holds), self.questions, self.ties)


def _opened(
    holds: tuple[Hold, ...], exchange: int, spans: Spans, seq: int
) -> tuple[Hold, ...]:
    """With the exchange open, which these seqs are so far."""
    for hold in holds:
        if hold.first == exchange and hold.closed is None:
            return _extended(holds, exchange, seq)
    return (*holds, Hold(exchange, spans, seq))


def _extended(holds: tuple[Hold, ...], exchange: int, seq: int) -> tuple[Hold, ...]:
    """With one more event of the exchange, where it is open."""
    return tuple(
        [
            Hold(hold.first, behind(hold.spans, seq), hold.opened)
            if hold.first == exchange and hold.closed is None
            else hold
            for hold in holds
        ]
    )


def _tied(
    ties: tuple[Span, ...], exchange: int, answered: int, seq: int, turn: int | None
) -> tuple[Span, ...]:
    """An exchange to its newest event, and what is ``answered`` to its answer.

    The second counts where a cut has taken the exchange in between.
    """
    if turn is None or exchange >= turn:
        return ties
    firsts = sorted({exchange, answered})
    others = (tie for tie in ties if tie[0] not in firsts)
    return (*others, *((first, seq) for first in firsts))


def _open_at(hold: Hold, seq: int) -> bool:
    return hold.opened <= seq and (hold.closed is None or hold.closed > seq)
