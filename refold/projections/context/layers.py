"""Memory layers: what a strategy shows before the summaries of the session.

The user's profile, a running digest of the scope, and the agent's notes.  They are
taken as soon as there is something new, and shown from the next compaction on, so that
the prefix stays as it is in between; before the first one, as the session's first
request had them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from refold.domain.canonical import text_digest
from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import (
    AgentResponse,
    JsonObject,
    Request,
    StateUpdate,
    ToolCall,
)
from refold.projections.context.compaction import Compaction
from refold.projections.context.memory import Fact, Memory, Note
from refold.projections.context.notes import Notes, note_lines
from refold.projections.context.outline import Outline
from refold.projections.context.outline_parts import Turn
from refold.projections.context.retries import too_soon
from refold.projections.context.spans import Spans, joined, without

USER: Final = "user:"
_LINE_TOKENS: Final = 40
# So much of the log at most is digested at once, where a layer comes to a long one.
_SCOPE_STEP: Final = 8_000


class Layers(BaseModel):
    """Which layers there are; all are off until asked for.

    user:         the user's profile and preferences, which the program keeps in the
                  working memory under names that begin with ``user:``.
    scope:        a running digest of the project or workspace, of ``scope_tokens``:
                  after every turn the digest before it and the turn become the next.
    notes:        the agent's own notes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    user: bool = False
    scope: bool = False
    scope_tokens: int = Field(default=1_000, ge=1)
    notes: Notes | None = None

    def kept(self, memory: Memory, envelope: Envelope) -> Memory:
        """What layers keep after this event."""
        if memory.shown_at is not None and not self.user and self.notes is None:
            return memory
        seq = envelope.seq
        match envelope.payload:
            case Request(through_seq=through) if envelope.meta.status != ACTIVATED:
                memory = memory.first_called(through)
            case AgentResponse() | ToolCall():
                memory = memory.first_called(seq - 1)
            case StateUpdate() as update if self.user and (names := _names(update)):
                keys = tuple(text_digest(name)[:8] for name in names)
                memory = memory.with_fact(Fact(seq, keys))
        if self.notes and (lines := note_lines(envelope, self.notes.tool)):
            memory = memory.with_note(Note(seq, len(lines)))
        return memory

    def due(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next thing that is due of a layer, or None.

        What fails here waits by itself: it holds back no compaction of the session.
        """
        memory = outline.memory
        if too_soon(memory.failures, memory.failed_at, now):
            return None
        return self._notes_due(outline) or self._scope_due(outline)

    def behind(self, outline: Outline) -> bool:
        """Whether the newest summary is a layer's, so that a batch may be due still."""
        newest = max((one.seq for one in outline.summaries), default=0)
        return outline.memory.newest > newest

    def _scope_due(self, outline: Outline) -> Compaction | None:
        if not self.scope:
            return None
        before = outline.memory.scope
        new = [
            turn
            for turn in outline.turns
            if turn.complete and (before is None or turn.first > before.last)
        ]
        if not new or outline.first_seq is None:
            return None
        new = _first(new, _SCOPE_STEP)
        tokens = sum(turn.tokens for turn in new)
        return Compaction(
            first_seq=before.first if before else outline.first_seq,
            last_seq=new[-1].last,
            target_tokens=self.scope_tokens,
            decided_at_seq=outline.through_seq,
            tokens_before=tokens + (before.tokens if before else 0),
            reason=f"{len(new)} turns that the digest of the scope does not tell of",
            absorbs=(before.seq,) if before else (),
            kind="scope",
        )

    def _notes_due(self, outline: Outline) -> Compaction | None:
        wanted, memory = self.notes, outline.memory
        if wanted is None or wanted.compression_prompt is None:
            return None
        lines = memory.lines
        keep = wanted.num_recent_memories_to_keep
        old = _older(memory.unwritten, keep)
        older = memory.written_lines + sum(note.lines for note in old)
        if lines <= wanted.max_lines or not old or older <= wanted.lines:
            return None
        before = memory.written
        first, last = before.first if before else old[0].seq, old[-1].seq
        seqs: Spans = tuple((note.seq, note.seq) for note in old)
        new = before.last + 1 if before else first
        return Compaction(
            first_seq=first,
            last_seq=last,
            target_tokens=wanted.lines * _LINE_TOKENS,
            decided_at_seq=outline.through_seq,
            tokens_before=lines * _LINE_TOKENS,
            reason=f"{lines} lines of notes, {wanted.max_lines} are kept",
            absorbs=(before.seq,) if before else (),
            omitted=without(((new, last),), joined(seqs)),
            kind="notes",
        )


NO_LAYERS: Final = Layers()


def profile(envelopes: Iterable[Envelope]) -> JsonObject:
    """What the working memory says of the user after these events, oldest first."""
    known: JsonObject = {}
    for envelope in envelopes:
        update = envelope.payload
        if isinstance(update, StateUpdate):
            for name in _names(update):
                known.pop(name, None)
                if name in update.set:
                    known[name] = update.set[name]
    return {name.removeprefix(USER): value for name, value in known.items()}


def _first(turns: list[Turn], tokens: int) -> list[Turn]:
    """The oldest turns that have so many tokens together, one at least."""
    count = 1
    while count < len(turns) and sum(t.tokens for t in turns[: count + 1]) <= tokens:
        count += 1
    return turns[:count]


def _names(update: StateUpdate) -> list[str]:
    return [name for name in (*update.set, *update.unset) if name.startswith(USER)]


def _older(notes: tuple[Note, ...], keep: int) -> tuple[Note, ...]:
    """The notes without the newest that have so many lines between them."""
    count, lines = len(notes), 0
    while count and lines < keep:
        count -= 1
        lines += notes[count].lines
    return notes[:count]
