"""What a caller hands in beside the session: it becomes part of the view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from refold.domain.events import JsonObject
from refold.projections.context.view import Message

WINDOW_TOKENS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Extras:
    """The parts of a context that no session holds.

    system:        a system prompt instead of the session's own.
    examples:      Messages API messages that come first, in alternating roles.
    memory:        texts about the user, then about the project, before the summaries.
    evidence:      documents for this request, inside the last user message.
    state:         the session's working memory, behind the evidence; None: not shown.
    tools_tokens:  what the tool definitions cost.
    window_tokens: the model's window; a message over a quarter of it is shortened.
    """

    system: str | None = None
    examples: tuple[Message, ...] = ()
    memory: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    state: JsonObject | None = None
    tools_tokens: int = 0
    window_tokens: int = WINDOW_TOKENS


NO_EXTRAS: Final = Extras()
