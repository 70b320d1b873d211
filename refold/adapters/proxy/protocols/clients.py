"""The sessions that clients name in the headers and the bodies of their requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import SessionHint

# The first word of ``user-agent``, in lower case, up to a character that is no letter.
_AGENTS: Final = {
    "claude-cli": "claude-code",
    "codex": "codex",
    "geminicli": "gemini-cli",
    "qwencode": "qwen-code",
    "githubcopilotchat": "copilot",
    "charm-crush": "crush",
}
_PRODUCT: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9._-]*)")
# Copilot's client sends these with the user agent of a library.
_COPILOT: Final = frozenset({"x-initiator", "x-interaction-type"})
# Headers with the client's id of a session, from the most to the least specific.
_SESSION_HEADERS: Final = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "conversation-id",
    "conversation_id",
    "x-conversation-id",
)
_THREAD_HEADERS: Final = ("x-claude-code-agent-id", "thread-id", "thread_id")
_PARENT_HEADERS: Final = (
    "x-claude-code-parent-agent-id",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
)
# Fields of a body, or of its metadata, with the client's id of a session.
_SESSION_FIELDS: Final = ("session_id", "sessionId", "conversation_id", "thread_id")
_METADATA: Final = ("client_metadata", "metadata")
_CODEX_TURN: Final = "x-codex-turn-metadata"
# The user id of older versions of Claude Code.
_USER_ID: Final = re.compile(r"_session_([0-9a-fA-F-]{36})$")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST_ID: Final = 200


def hint(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    previous_response_id: str | None = None,
    conversation: str | None = None,
) -> SessionHint:
    """Return the session that a client names in a request.

    previous_response_id: the provider's id of the answer that the request continues.
    conversation:         the provider's id of the conversation; a last resort.
    """
    metadata: dict[str, Any] = {}
    for name in _METADATA:
        metadata |= base.mapping(body, name)
    turn = _json(headers.get(_CODEX_TURN) or metadata.get(_CODEX_TURN))
    session_id = (
        _first(headers, _SESSION_HEADERS)
        or _session_of_user_id(metadata.get("user_id"))
        or _first(metadata, _SESSION_FIELDS)
        or _first(body, _SESSION_FIELDS)
        or _uuid(body.get("prompt_cache_key"))
        or _id(conversation)
    )
    thread = (
        _first(headers, _THREAD_HEADERS)
        or _id(metadata.get("thread_id"))
        or _id(turn.get("thread_id"))
    )
    parent = _first(headers, _PARENT_HEADERS) or _id(turn.get("parent_thread_id"))
    return SessionHint(
        session_id=session_id,
        agent=agent(headers),
        parent=parent,
        previous_response_id=previous_response_id,
        thread=None if thread == session_id else thread,
    )


def agent(headers: Mapping[str, str]) -> str | None:
    """Return the name of the client, by its user agent; None without one."""
    if not _COPILOT.isdisjoint(headers):
        return "copilot"
    product = _PRODUCT.match(headers.get("user-agent", ""))
    if product is None:
        return None
    name = product[1].lower()
    for start, known_name in _AGENTS.items():
        if name.startswith(start):
            return known_name
    return name


def _session_of_user_id(user_id: Any) -> str | None:
    """Return the session in the user id that Claude Code sends: JSON, or words."""
    if not isinstance(user_id, str):
        return None
    words = _USER_ID.search(user_id)
    if words is not None:
        return words[1]
    return _id(_json(user_id).get("session_id"))


def _json(value: Any) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one for anything else."""
    if not isinstance(value, str) or not value.startswith("{"):
        return {}
    parsed, _ = base.parsed(value)
    return base.mapping(parsed)


def _first(values: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the first of these values that can be an id."""
    for name in names:
        value = _id(values.get(name))
        if value is not None:
            return value
    return None


def _id(value: Any) -> str | None:
    """Return a text that can be an id, else None."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    return value if 0 < len(value) <= _LONGEST_ID else None


def _uuid(value: Any) -> str | None:
    """Return a text that is a UUID: other keys of caches may be those of many sessions.

    Returns None for anything else.
    """
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value
    return None
