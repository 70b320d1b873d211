"""What an outline remembers of memory layers: which events and summaries they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from refold.domain.events import Summary
from refold.projections.context.outline_parts import LiveSummary
from refold.projections.context.spans import Spans, joined


class Fact(NamedTuple):
    """An event that says something of the user; ``keys`` are digests of the names."""

    seq: int
    keys: tuple[str, ...]


class Note(NamedTuple):
    """A call in which the agent noted something, of so many lines."""

    seq: int
    lines: int


class Memory(NamedTuple):
    """The layers of a session, as they are and as views show them.

    shown_at:      up to which seq of the main stream views show them; None before the
                   first request, which shows all there is.
    facts, notes:  of the main stream, oldest first: those that views need still.
    scope:         the newest digest, ``scope_shown`` the one that views show.
    written:       the newest rewriting of notes, of ``written_lines`` lines;
                   ``written_shown`` the one that views show.
    failures:      attempts at a layer that failed since its last success, the last at
                   ``failed_at`` (microseconds since 1970).
    """

    shown_at: int | None = None
    facts: tuple[Fact, ...] = ()
    notes: tuple[Note, ...] = ()
    scope: LiveSummary | None = None
    scope_shown: LiveSummary | None = None
    written: LiveSummary | None = None
    written_lines: int = 0
    written_shown: LiveSummary | None = None
    failures: int = 0
    failed_at: int | None = None

    @property
    def newest(self) -> int:
        """The newest summary of a layer, as a seq of the derived stream; 0: none."""
        return max((one.seq for one in (self.scope, self.written) if one), default=0)

    @property
    def unwritten(self) -> tuple[Note, ...]:
        """The notes that no rewriting tells of."""
        return _after(self.notes, self.written)

    @property
    def lines(self) -> int:
        """How many lines of notes there are, the rewritten ones included."""
        return self.written_lines + sum(note.lines for note in self.unwritten)

    @property
    def summaries(self) -> tuple[LiveSummary, ...]:
        """The summaries that views show of layers."""
        return tuple(one for one in (self.scope_shown, self.written_shown) if one)

    @property
    def facts_shown(self) -> Spans:
        """The events of which views show what they say of the user."""
        return _seqs(_standing(fact for fact in self.facts if self._shown(fact.seq)))

    @property
    def notes_shown(self) -> Spans:
        """The notes that views show word for word."""
        notes = _after(self.notes, self.written_shown)
        return _seqs(note for note in notes if self._shown(note.seq))

    def first_called(self, through: int) -> Memory:
        """The memory after a request that read the main stream up to there."""
        return self if self.shown_at is not None else self._replace(shown_at=through)

    def with_fact(self, fact: Fact) -> Memory:
        """The memory with one more event that says something of the user."""
        return self._replace(facts=(*self.facts, fact))

    def with_note(self, note: Note) -> Memory:
        """The memory with one more note."""
        return self._replace(notes=(*self.notes, note))

    def taken(self, seq: int, summary: Summary) -> Memory:
        """The memory after a summary of a layer, of that seq in the derived stream."""
        first, last = summary.first_seq, summary.last_seq
        live = LiveSummary(seq, first, last, summary.level, summary.tokens_after)
        done = self._replace(failures=0, failed_at=None)
        if summary.kind == "scope":
            return done._replace(scope=live)
        return done._replace(written=live, written_lines=len(summary.text.splitlines()))

    def failed(self, at: int) -> Memory:
        """The memory after an attempt at a layer that failed then."""
        return self._replace(failures=self.failures + 1, failed_at=at)

    def compacted(self, decided_at: int) -> Memory:
        """The memory after a compaction of the session: views show it as of then."""
        past = [fact for fact in self.facts if fact.seq <= decided_at]
        later = [fact for fact in self.facts if fact.seq > decided_at]
        return self._replace(
            shown_at=decided_at,
            facts=(*_standing(past), *later),
            notes=_after(self.notes, self.written),
            scope_shown=self.scope,
            written_shown=self.written,
        )

    def _shown(self, seq: int) -> bool:
        return self.shown_at is None or seq <= self.shown_at


def _after(notes: tuple[Note, ...], written: LiveSummary | None) -> tuple[Note, ...]:
    if written is None:
        return notes
    return tuple(note for note in notes if note.seq > written.last)


def _standing(facts: Iterable[Fact]) -> list[Fact]:
    """Those of which no later one says all that they say, oldest first."""
    said: set[str] = set()
    standing: list[Fact] = []
    for fact in reversed(list(facts)):
        if not said.issuperset(fact.keys):
            standing.append(fact)
        said.update(fact.keys)
    return standing[::-1]


def _seqs(found: Iterable[Fact | Note]) -> Spans:
    return joined((one.seq, one.seq) for one in found)
