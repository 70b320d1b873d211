"""Memory layers as pieces of a view: the profile, the scope's digest, the notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.events import Event, Summary
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate_text
from refold.projections.context.blocks import text_block
from refold.projections.context.layers import profile
from refold.projections.context.notes import note_lines
from refold.projections.context.outline import Outline
from refold.projections.context.outline_parts import LiveSummary
from refold.projections.context.pieces import Piece
from refold.projections.context.source import summary_text
from refold.projections.context.spans import Spans, holds
from refold.projections.context.tags import tagged, value_text
from refold.projections.context.view import ViewSpan


def of_user(outline: Outline, rows: Sequence[Envelope]) -> Iterator[Piece]:
    """The user's profile and preferences, a line each."""
    spans = outline.memory.facts_shown
    known = profile(row for row in rows if holds(spans, row.seq))
    body = "\n".join(f"{name}: {_line(value)}" for name, value in known.items())
    if body:
        yield _piece(body, "user", _span(spans))


def of_scope(outline: Outline, summaries: Mapping[int, Event]) -> Iterator[Piece]:
    """The digest of the scope."""
    live = outline.memory.scope_shown
    if live is not None:
        span = ViewSpan("memory", live.first, live.last, live.seq)
        yield _piece(summary_text(_found(summaries, live)), "scope", span)


def of_notes(
    outline: Outline, rows: Sequence[Envelope], summaries: Mapping[int, Event]
) -> Iterator[Piece]:
    """The agent's notes: those that were rewritten, then the newer ones."""
    live, spans = outline.memory.written_shown, outline.memory.notes_shown
    if live is not None:
        span = ViewSpan("memory", live.first, live.last, live.seq)
        yield _piece(summary_text(_found(summaries, live)), "notes", span)
    new = [line for row in rows if holds(spans, row.seq) for line in note_lines(row)]
    if new:
        yield _piece("\n".join(new), "notes", _span(spans))


def by_seq(summaries: Iterable[Envelope]) -> dict[int, Event]:
    """The events of a derived stream by their seq."""
    return {envelope.seq: envelope.payload for envelope in summaries}


def _line(value: JsonValue) -> str:
    """On one line, so that no value can look like two."""
    text = value_text(value)
    return text if len(text.splitlines()) <= 1 else canonical(value).decode()


def _found(summaries: Mapping[int, Event], live: LiveSummary) -> Summary:
    summary = summaries.get(live.seq)
    if not isinstance(summary, Summary):
        raise ValueError(f"summary {live.seq} of the derived stream is missing")
    return summary


def _piece(body: str, about: str, span: ViewSpan) -> Piece:
    text = tagged("memory", body, of=about)
    tokens = estimate_text(text) + MESSAGE_OVERHEAD
    return Piece("user", [(None, text_block(text))], tokens, span)


def _span(spans: Spans) -> ViewSpan:
    return ViewSpan("memory", spans[0][0], spans[-1][1])
