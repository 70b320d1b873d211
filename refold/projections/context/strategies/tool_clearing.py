"""tool_clearing: old results become stubs; no model is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, ToolResult
from refold.domain.tokens import estimate_text
from refold.projections.context import outline as folded
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategy import Pinning, Shown, Weighed, everything
from refold.projections.context.text import cleared_text
from refold.projections.context.units import Unit, holds


class ToolClearing(Pinning, Weighed):
    """Show old results as stubs, which name the event and how to read it whole.

    It follows ``clear_tool_uses`` of the Messages API.

    trigger_input_tokens: from so many tokens on, results are cleared.
    trigger_tool_uses:    or from so many results that are shown on; None: never.
    keep:                 so many of the newest results are never cleared.
    clear_at_least:       if less than so many tokens would go, nothing does.
    exclude_tools:        tools whose results are never cleared.
    clear_tool_inputs:    clear the arguments of these calls too.
    pin_tokens:           what pinned exchanges may take behind summaries.
    model, weight:        count tokens as this model does, or times the estimate.

    It is judged before each response.  Results of pinned events stay.
    """

    name: ClassVar[str] = "tool_clearing"
    needs: ClassVar[Detail] = "units"

    trigger_input_tokens: int = Field(default=100_000, ge=1)
    trigger_tool_uses: int | None = Field(default=None, ge=1)
    keep: int = Field(default=3, ge=0)
    clear_at_least: int = Field(default=0, ge=0)
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)
    clear_tool_inputs: bool = False

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Remember results that can go, as seq and tokens; judge before a response."""
        result = envelope.payload
        if isinstance(result, AgentResponse):
            self._judge(builder)
        if (
            isinstance(result, ToolResult)
            and result.tool_name not in self.exclude_tools
        ):
            builder.notes = (*builder.notes, envelope.seq, envelope.token_estimate)
        builder.take(envelope)

    def judged(self, outline: Outline) -> Outline:
        """With all but the newest results cleared, and pins effective, if it is due."""
        builder = OutlineBuilder(outline)
        return builder.outline() if self._judge(builder) else outline

    def _judge(self, builder: OutlineBuilder) -> bool:
        """Clear what is due; whether anything was."""
        shown = len(builder.notes) // 2
        many = self.trigger_tool_uses is not None and shown >= self.trigger_tool_uses
        tokens = self.weighed(self.measured(builder))
        if not (many or tokens >= self.trigger_input_tokens):
            return False
        gone = max(0, shown - self.keep)
        notes = builder.notes[: 2 * gone]
        saved = {
            seq: max(0, tokens - estimate_text(cleared_text(seq, tokens)))
            for seq, tokens in zip(notes[::2], notes[1::2], strict=True)
        }
        if not gone or sum(saved.values()) < self.clear_at_least:
            return False
        builder.pinned = folded.pinned_at(builder, builder.through_seq)
        builder.pin_changes = ()
        builder.notes = builder.notes[2 * gone :]
        builder.cleared = notes[-2]
        builder.raw_tokens -= _lighten(builder.units, saved)
        return True

    def measured(self, outline: OutlineBuilder) -> int:
        """The tokens that ``trigger_input_tokens`` is about."""
        return outline.tokens

    def show(self, outline: Outline) -> Shown:
        """Everything, and of old results stubs."""
        outline = self.judged(outline)
        cleared, excluded, pinned = outline.cleared, self.exclude_tools, outline.pinned

        def is_cleared(envelope: Envelope) -> bool:
            result = envelope.payload
            return (
                envelope.seq <= cleared
                and isinstance(result, ToolResult)
                and result.tool_name not in excluded
                and not holds(pinned, envelope.seq)
            )

        shown = everything(outline)
        return shown._replace(
            is_cleared=is_cleared, clears_inputs=self.clear_tool_inputs
        )


class ResultClearing(ToolClearing):
    """The same by the tokens of the results that are shown, whatever is summarised.

    When results are cleared must follow from the session alone, in a pipeline too.
    """

    def measured(self, outline: OutlineBuilder) -> int:
        """The tokens of all results that are not cleared."""
        return sum(outline.notes[1::2])


def _lighten(units: list[Unit], saved: Mapping[int, int]) -> int:
    """Take what is saved from the exchanges of these seqs; returns how much it was."""
    total = 0
    for seq, tokens in saved.items():
        for place in range(len(units) - 1, -1, -1):  # it is near the end
            unit = units[place]
            if unit.first <= seq <= unit.last and holds(unit.seqs, seq):
                units[place] = unit._replace(tokens=unit.tokens - tokens)
                total += tokens
                break
    return total
