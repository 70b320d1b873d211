"""native: the provider compacts by itself, and Refold records its compactions."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from refold.domain.events import JsonObject
from refold.domain.locks import computed_once
from refold.projections.context.outline import Detail
from refold.projections.context.strategy import RULES, Manner, Strategy


class Native(Strategy):
    """Show all events raw, with parameters for the Messages API to clear or compact.

    clear_tool_uses:        request ``clear_tool_uses_20250919``.
    trigger_input_tokens:   the input tokens from which the API clears.
    keep:                   the newest tool uses that the API does not clear.
    clear_at_least:         the fewest tokens that the API clears at once; 0 sets none.
    exclude_tools:          the tools whose results are never cleared.
    clear_tool_inputs:      whether the arguments of the calls are cleared too.
    compact:                request ``compact_20260112``.
    compact_trigger_tokens: the input tokens from which the API compacts.

    The edits and compaction blocks of the API are recorded byte for byte as
    provider_edit events, so that hosted compaction can be audited.  Requests return the
    compaction blocks to the API, which ignores everything before the newest one.  A
    redacted block is not returned, because the API would not recognize it.
    """

    name: ClassVar[str] = "native"
    version: ClassVar[int] = 5
    rules: ClassVar[int] = RULES
    needs: ClassVar[Detail] = "counts"

    clear_tool_uses: bool = True
    trigger_input_tokens: int = Field(default=100_000, ge=1)
    keep: int = Field(default=3, ge=0)
    clear_at_least: int = Field(default=0, ge=0)
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)
    clear_tool_inputs: bool = False
    compact: bool = False
    compact_trigger_tokens: int = Field(default=150_000, ge=50_000)

    @computed_once
    def manner(self) -> Manner:
        """The manner with the edits that a request asks for."""
        edits: list[Any] = []
        if self.clear_tool_uses:
            edits.append(self._clearing())
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
            edit["clear_at_least"] = {
                "type": "input_tokens",
                "value": self.clear_at_least,
            }
        if self.exclude_tools:
            edit["exclude_tools"] = list(self.exclude_tools)
        if self.clear_tool_inputs:
            edit["clear_tool_inputs"] = True
        return edit
