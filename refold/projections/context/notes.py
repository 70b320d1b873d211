"""The agent's long-term notes: lines that it took, and their rewriting to fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, model_validator

from refold.domain.envelope import Envelope
from refold.domain.events import ToolCall

if TYPE_CHECKING:
    from refold.projections.context.source import Source


class Notes(BaseModel):
    """The agent's notes: a line for each that it took by calling ``tool``.

    max_lines:                   over so many, the older ones are rewritten,
    compression_target:          so that there are about so many in all,
    num_recent_memories_to_keep: of which so many, the newest, stay as they are.
    compression_prompt:          what a model is asked; left out, nothing is rewritten.
    recent_memories_subprompt:   what it is told of those that stay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_lines: int = Field(default=100, ge=1)
    compression_target: int = Field(default=50, ge=1)
    num_recent_memories_to_keep: int = Field(default=10, ge=0)
    compression_prompt: str | None = None
    recent_memories_subprompt: str = ""
    tool: str = Field(default="remember", min_length=1)

    @model_validator(mode="after")
    def _shrinks(self) -> Notes:
        if self.compression_prompt is not None and not self.compression_prompt.strip():
            raise ValueError("compression_prompt is empty: leave it out")
        if self.compression_target > self.max_lines:
            raise ValueError("compression_target is over max_lines")
        if self.num_recent_memories_to_keep >= self.compression_target:
            raise ValueError(
                "num_recent_memories_to_keep leaves nothing of compression_target"
            )
        return self

    @property
    def lines(self) -> int:
        """How many lines the older notes may have once they are rewritten."""
        return self.compression_target - self.num_recent_memories_to_keep


def note_lines(envelope: Envelope, tool: str | None = None) -> list[str]:
    """The lines of a note: the texts that a call of this tool (or any) was given."""
    call = envelope.payload
    if not isinstance(call, ToolCall) or tool not in (None, call.tool_name):
        return []
    given = call.arguments
    values = [given] if isinstance(given, str) else list(given.values())
    texts = [
        text
        for value in values
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
    ]
    lines = (line.strip() for text in texts for line in text.splitlines())
    return [line for line in lines if line]


def noted(source: Source) -> list[str]:
    """The lines of a source of notes: those written before, then the newer ones."""
    earlier = [line for text in source.summaries for line in text.splitlines()]
    return earlier + [line for one in source.envelopes for line in note_lines(one)]


def shortened(lines: list[str], most: int) -> list[str]:
    """Without a model: each line once, where it was said last, and the newest."""
    last = {line.casefold(): index for index, line in enumerate(lines)}
    kept = [line for i, line in enumerate(lines) if last[line.casefold()] == i]
    return kept[-most:]
