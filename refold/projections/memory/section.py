"""The section of a context that says what memory shows.

It is apart from how it is chosen, so that a context needs to know no more than this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from refold.domain.events import JsonObject
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate_text
from refold.projections.context.tags import tagged

TITLE: Final = "## Memory (Verified)"


@dataclass(frozen=True, slots=True)
class Advice:
    """What is said to a model: a section of Markdown, and the items in it.

    tokens:      what it adds to a context; nothing to say costs nothing.
    left_out:    the next that were worth saying, and for which there was no room.
    sessions:    those that it cites.
    derived_seq: how far the session was compacted when it was chosen for it.
    """

    text: str = ""
    items: tuple[str, ...] = ()
    tokens: int = 0
    left_out: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    derived_seq: int = 0

    def handed(self) -> JsonObject:
        """As a request records it."""
        return {
            "text": self.text,
            "items": list(self.items),
            "sessions": list(self.sessions),
            "derived_seq": self.derived_seq,
        }

    @classmethod
    def recorded(cls, handed: JsonObject | None, items: tuple[str, ...]) -> Advice:
        """What ``handed`` made; NO_ADVICE if it is not that."""
        found: dict[str, Any] = dict(handed or {})
        text, sessions = found.get("text"), found.get("sessions")
        derived = found.get("derived_seq")
        if not isinstance(text, str) or not text.startswith(TITLE):
            return NO_ADVICE
        if not isinstance(sessions, list) or not isinstance(derived, int):
            return NO_ADVICE
        if not all(item in text for item in items):
            return NO_ADVICE
        names = tuple(map(str, sessions))
        return cls(text, items, cost(text), (), names, derived)


NO_ADVICE: Final = Advice()


def cost(text: str) -> int:
    """What a section of this text adds to a context, in tokens."""
    return estimate_text(framed(text)) + MESSAGE_OVERHEAD if text else 0


def framed(text: str) -> str:
    """The section as it stands in a message."""
    return tagged("memory", text, of="advice")
