"""The exact text that a compaction summarises: what its digest and its words are of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope
from refold.domain.events import Summary, SummaryKind, ToolResult
from refold.projections.context.entries import Entry, entry_of, questions
from refold.projections.context.markup import own_words
from refold.projections.context.readers import seen_by
from refold.projections.context.spans import Spans, holds
from refold.projections.context.units import Thread, place
from refold.projections.context.words import count_value_words

if TYPE_CHECKING:
    from refold.projections.context.compaction import Compaction
    from refold.projections.context.notes import Notes


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be summarised.

    text:      the absorbed summaries, then the span's events, one after another.
    words:     of what the log says in it; the markup that Refold adds is not counted.
    events:    how many events it tells of.
    envelopes: the events of the span that no absorbed summary stands for.
    summaries: the texts of the absorbed summaries.
    goes_on:   whether it ends inside a turn that goes on behind it.
    kind:      what the summary is to be of: the session, or a memory layer.
    notes:     of notes, how they are to be rewritten.
    """

    text: str
    words: int
    events: int
    envelopes: tuple[Envelope, ...] = ()
    summaries: tuple[str, ...] = ()
    goes_on: bool = False
    kind: SummaryKind = "session"
    notes: Notes | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return text_digest(self.text)


def source_of(
    compaction: Compaction,
    *,
    events: Iterable[Envelope] = (),
    summaries: Iterable[Envelope] = (),
) -> Source:
    """The source of a compaction: what it absorbs, then the events of its span.

    An event that an absorbed summary stands for, or that is omitted, is no part of it.

    events:    of the main stream, oldest first; those outside the span are left out.
    summaries: of the derived stream; those it does not absorb are left out.

    Raises ValueError if an absorbed summary is missing.
    """
    absorbed = _absorbed(compaction, summaries)
    first = _first_new(compaction, absorbed)
    span = [
        event
        for event in _seen(compaction.reader, events)
        if first <= event.seq <= compaction.last_seq
        and not holds(compaction.omitted, event.seq)
    ]
    whole = _joined(
        _of_summaries(absorbed), of_events(span), goes_on=compaction.goes_on
    )
    return replace(whole, kind=compaction.kind)


def new_in(compaction: Compaction, summaries: Iterable[Envelope]) -> Spans:
    """The seqs of the main stream that its source is made of, beside what it absorbs.

    Raises ValueError if an absorbed summary is missing.
    """
    first = _first_new(compaction, _absorbed(compaction, summaries))
    return ((first, compaction.last_seq),) if first <= compaction.last_seq else ()


def _first_new(compaction: Compaction, absorbed: Sequence[Summary]) -> int:
    return max((one.last_seq + 1 for one in absorbed), default=compaction.first_seq)


def _joined(earlier: Source, new: Source, *, goes_on: bool) -> Source:
    if not earlier.summaries:
        return replace(new, goes_on=goes_on)
    if not new.envelopes:
        return earlier
    return Source(
        text=f"{earlier.text}\n{new.text}",
        words=earlier.words + new.words,
        events=earlier.events + new.events,
        envelopes=new.envelopes,
        summaries=earlier.summaries,
        goes_on=goes_on,
    )


def of_events(events: Sequence[Envelope]) -> Source:
    """The source made of those of ``events`` that a context shows."""
    thread, shown, asked = Thread(), [], questions(events)
    for envelope in events:
        thread, placed = place(thread, envelope)
        entry = entry_of(envelope.payload, asked)
        if placed is not None and entry is not None:
            shown.append((envelope, entry))
    return Source(
        text="\n".join(_text(envelope, entry) for envelope, entry in shown),
        words=sum(count_value_words(entry.content) for _, entry in shown),
        events=len(shown),
        envelopes=tuple(events),
    )


def summary_text(summary: Summary) -> str:
    """A summary's words: its abridged history, its text, or both."""
    return "\n".join(part for part in (summary.abridged, summary.text) if part)


def _seen(reader: str | None, events: Iterable[Envelope]) -> Iterator[Envelope]:
    for event in events:
        seen = seen_by(reader, event)
        if seen is not None:
            yield seen


def _text(envelope: Envelope, entry: Entry) -> str:
    if isinstance(envelope.payload, ToolResult):
        entry = entry._replace(tag="result")
    return entry.text(seq=envelope.seq)


def _absorbed(compaction: Compaction, envelopes: Iterable[Envelope]) -> list[Summary]:
    if not compaction.absorbs:
        return []
    found = {envelope.seq: envelope.payload for envelope in envelopes}
    absorbed = [found.get(seq) for seq in compaction.absorbs]
    summaries = [summary for summary in absorbed if isinstance(summary, Summary)]
    if len(summaries) < len(absorbed):
        raise ValueError(f"of the summaries {compaction.absorbs} some are missing")
    return summaries


def _of_summaries(summaries: Sequence[Summary]) -> Source:
    texts = tuple(summary_text(summary) for summary in summaries)
    return Source(
        text="\n".join(texts),
        words=sum(own_words(text) for text in texts),
        events=sum(summary.source_event_count for summary in summaries),
        summaries=texts,
    )
