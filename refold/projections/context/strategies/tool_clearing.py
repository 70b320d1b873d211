"""tool_clearing: views show old results as stubs, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, ToolResult
from refold.domain.tokens import estimate_text
from refold.projections.context import outline as folded
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import (
    RULES,
    Pinning,
    Shown,
    Weighed,
    everything,
)
from refold.projections.context.text import cleared_text
from refold.projections.context.units import Unit, holds


class ToolClearing(Pinning, Weighed):
    """Show old results as stubs, which name the event and say how to read it.

    It follows ``clear_tool_uses`` of the Messages API.

    trigger_input_tokens: the tokens from which results are cleared.
    trigger_tool_uses:    the number of shown results from which they are cleared; None
                          sets none.
    keep:                 the newest results, which are never cleared.
    clear_at_least:       the fewest tokens that are cleared at once.
    exclude_tools:        the tools whose results are never cleared.
    clear_tool_inputs:    whether the arguments of the calls are cleared too.
    pin_tokens:           the most tokens of pinned exchanges behind summaries.
    model, weight:        the model whose tokens are counted, or the factor of the
                          estimate.

    The triggers are checked before each response.  Results of pinned events stay.

    In an outline, ``notes`` are the results that can be cleared, as seq and tokens in
    turn, and ``cleared`` is the seq up to which they are.
    """

    name: ClassVar[str] = "tool_clearing"
    version: ClassVar[int] = 5
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "units"

    trigger_input_tokens: int = Field(default=100_000, ge=1)
    trigger_tool_uses: int | None = Field(default=None, ge=1)
    keep: int = Field(default=3, ge=0)
    clear_at_least: int = Field(default=0, ge=0)
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)
    clear_tool_inputs: bool = False

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Note results that can be cleared; check the triggers before a response."""
        event = envelope.payload
        if isinstance(event, AgentResponse):
            self._clear(builder)
        if isinstance(event, ToolResult) and event.tool_name not in self.exclude_tools:
            builder.notes = (*builder.notes, envelope.seq, envelope.token_estimate)
        builder.take(envelope)

    def as_shown(self, outline: Outline) -> Outline:
        """Return the outline with old results cleared if a trigger is reached."""
        builder = OutlineBuilder(outline)
        return builder.outline() if self._clear(builder) else outline

    def _clear(self, builder: OutlineBuilder) -> bool:
        """Clear old results if a trigger is reached; return whether any was cleared.

        Changes of pins become effective then too.
        """
        if not self._is_triggered(builder):
            return False
        count = max(0, len(builder.notes) // 2 - self.keep)
        notes = builder.notes[: 2 * count]
        saved = {
            seq: max(0, tokens - self._stub_tokens(seq, tokens))
            for seq, tokens in zip(notes[::2], notes[1::2], strict=True)
        }
        if not count or sum(saved.values()) < self.clear_at_least:
            return False
        builder.pinned = folded.pinned_at(builder, builder.through_seq)
        builder.pin_changes = ()
        builder.notes = builder.notes[2 * count :]
        builder.cleared = notes[-2]
        builder.raw_tokens -= _subtract(builder.units, saved)
        return True

    def _stub_tokens(self, seq: int, tokens: int) -> int:
        """Return the tokens of the stub for a result."""
        return estimate_text(cleared_text(seq, tokens, names_seq=self.names_seqs))

    def _is_triggered(self, builder: OutlineBuilder) -> bool:
        limit = self.trigger_tool_uses
        if limit is not None and len(builder.notes) // 2 >= limit:
            return True
        return self.weighed(self.measured(builder)) >= self.trigger_input_tokens

    def measured(self, outline: OutlineBuilder) -> int:
        """Return the estimated tokens that ``trigger_input_tokens`` limits."""
        return outline.tokens

    def show(self, outline: Outline) -> Shown:
        """Show everything, with old results as stubs."""
        outline = self.as_shown(outline)
        cleared = outline.cleared
        pinned = outline.pinned
        excluded = self.exclude_tools

        def is_cleared(envelope: Envelope) -> bool:
            result = envelope.payload
            return (
                envelope.seq <= cleared
                and isinstance(result, ToolResult)
                and result.tool_name not in excluded
                and not holds(pinned, envelope.seq)
            )

        return everything(outline)._replace(
            is_cleared=is_cleared, clears_inputs=self.clear_tool_inputs
        )


class ResultClearing(ToolClearing):
    """Clearing inside of a pipeline: it counts only the tokens of results.

    The session alone then determines what is cleared, whatever is summarized.
    """

    def measured(self, outline: OutlineBuilder) -> int:
        """Return the tokens of all results that are not cleared."""
        return sum(outline.notes[1::2])


def _subtract(units: list[Unit], saved: Mapping[int, int]) -> int:
    """Subtract saved tokens from the units of these events; return their total.

    saved: the tokens by seq; events that are in no unit do not count.
    """
    total = 0
    for seq, tokens in saved.items():
        for index in range(len(units) - 1, -1, -1):  # most are near the end
            unit = units[index]
            if unit.first <= seq <= unit.last and holds(unit.seqs, seq):
                units[index] = unit._replace(tokens=unit.tokens - tokens)
                total += tokens
                break
    return total
