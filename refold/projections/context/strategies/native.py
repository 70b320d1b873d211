"""native: the provider compacts by itself; what it did is recorded, not decided."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from refold.domain.events import JsonObject
from refold.projections.context.outline import Detail
from refold.projections.context.strategy import Manner, Strategy


class Native(Strategy):
    """Send everything raw, with parameters that let the Messages API clear or compact.

    clear_tool_uses:      ask for ``clear_tool_uses_20250919``.
    trigger_input_tokens: from so many input tokens on the API clears.
    keep:                 so many of the newest tool uses stay.
    clear_at_least:       if less than so many tokens would go, nothing does; 0: any.
    exclude_tools:        tools whose results are never cleared.
    clear_tool_inputs:    clear the calls' arguments too.
    compact:              ask for ``compact_20260112``, from so many input tokens on as
                          ``compact_trigger_tokens`` says.

    What the API did (applied edits, compaction blocks) is recorded as provider_edit
    events, byte for byte, so that hosted compaction can be audited too.  Its compaction
    blocks are sent back, and it passes over all that stands before the newest one; a
    block of which something was redacted is not, for the API would not know it again.
    """

    name: ClassVar[str] = "native"
    needs: ClassVar[Detail] = "counts"

    clear_tool_uses: bool = True
    trigger_input_tokens: int = Field(default=100_000, ge=1)
    keep: int = Field(default=3, ge=0)
    clear_at_least: int = Field(default=0, ge=0)
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)
    clear_tool_inputs: bool = False
    compact: bool = False
    compact_trigger_tokens: int = Field(default=150_000, ge=50_000)

    @cached_property
    def manner(self) -> Manner:
        """With the edits that a request asks for; compaction blocks are sent back."""
        edits: list[Any] = [self._clearing()] if self.clear_tool_uses else []
        if self.compact:
            trigger = {"type": "input_tokens", "value": self.compact_trigger_tokens}
            edits.append({"type": "compact_20260112", "trigger": trigger})
        return Manner(
            sends_back=frozenset({"compaction"} if self.compact else ()),
            api_parameters={"context_management": {"edits": edits}} if edits else None,
        )

    def _clearing(self) -> JsonObject:
        edit: JsonObject = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "input_tokens", "value": self.trigger_input_tokens},
            "keep": {"type": "tool_uses", "value": self.keep},
        }
        if self.clear_at_least:
            least: JsonObject = {"type": "input_tokens", "value": self.clear_at_least}
            edit["clear_at_least"] = least
        if self.exclude_tools:
            edit["exclude_tools"] = [*self.exclude_tools]
        if self.clear_tool_inputs:
            edit["clear_tool_inputs"] = True
        return edit
