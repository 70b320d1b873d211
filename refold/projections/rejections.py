"""Calls of tools that a person rejected."""

from __future__ import annotations

import re
from typing import Final

from refold.domain.events import Event, ToolResult

# The beginnings, or the whole texts, of the results that clients write for such a call.
_REJECTED: Final = re.compile(
    r"\s*+(?:The user doesn't want to "
    r"(?:proceed with this tool use|take this action right now)\."
    r"|Permission for this tool use was denied\."
    r"|The agent proposed a plan that was rejected by the user\."
    r"|(?:exec command |patch )?rejected by user\s*\Z"
    r"|user rejected MCP tool call\s*\Z)"
)


def is_rejected(event: Event) -> bool:
    """Whether an event is the result of a call that a person rejected.

    Such a call had no effect, and the agent did not fail.
    """
    if not isinstance(event, ToolResult) or event.status == "ok":
        return False
    content = event.content
    if isinstance(content, list) and content:
        content = content[0]
    if isinstance(content, dict):
        content = content.get("text")
    return isinstance(content, str) and _REJECTED.match(content) is not None
