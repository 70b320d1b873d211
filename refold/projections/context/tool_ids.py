"""Names for tool calls that the Messages API takes: legal, and unique in a view."""

from __future__ import annotations

import re
from typing import Final

from refold.domain.canonical import text_digest

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ID_LENGTH: Final = 64
_NAME_LENGTH: Final = 128
_SUFFIX: Final = 8


class ToolIds:
    """Gives each call of one view its id, in the order in which they are shown."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, call_id: str, seq: int) -> str:
        """An id for the call recorded at ``seq``: its call_id, if that can be."""
        legal = _legal(call_id, _ID_LENGTH)
        chosen, number = legal, 0
        while chosen in self._taken:
            suffix = f"_{seq}" if not number else f"_{seq}_{number}"
            chosen, number = legal[: _ID_LENGTH - len(suffix)] + suffix, number + 1
        self._taken.add(chosen)
        return chosen


def tool_name(name: str) -> str:
    """The name of a tool as the API takes it."""
    return _legal(name, _NAME_LENGTH) if name else "unnamed"


def _legal(text: str, length: int) -> str:
    """``text`` if it is legal; else made so, with a digest that keeps it apart."""
    clean = _ILLEGAL.sub("_", text)
    if clean == text and 0 < len(text) <= length:
        return text
    return f"{clean[: length - _SUFFIX - 1]}_{text_digest(text)[:_SUFFIX]}"
