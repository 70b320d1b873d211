"""Markup that Refold puts around texts, and texts cut in the middle."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from refold.domain.canonical import canonical


def tagged(name: str, text: str, /, **attributes: object) -> str:
    """``text`` between tags; it cannot close them itself.  None is no attribute."""
    opening = "".join(
        f' {key}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not text:
        return f"<{name}{opening}/>"
    return f"<{name}{opening}>\n{closed_in(name, text)}\n</{name}>"


def closed_in(name: str, text: str) -> str:
    """``text`` with what would close the tag ``name`` made harmless."""
    if "</" not in text:
        return text
    return re.sub(rf"</(?={re.escape(name)}\b)", r"<\\/", text, flags=re.IGNORECASE)


def value_text(value: Any) -> str:
    """A JSON value as text: a text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else canonical(value).decode()


def cut_middle(text: str, limit: int, mark: str = "[…{}…]") -> str:
    """At most ``limit`` characters of ``text``: both ends, and how much is left out.

    The mark counts towards the limit; where it does not fit, only the head is kept.
    """
    if len(text) <= limit:
        return text
    shown = mark.format(len(text))
    room = limit - len(shown)
    if room < 2:
        return text[: max(limit, 0)]
    head, tail = room - room // 2, room // 2
    shown = mark.format(len(text) - head - tail)
    return f"{text[:head]}{shown}{text[len(text) - tail :]}"


def _attribute(value: object) -> str:
    if type(value) is int:
        return str(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return escape(" ".join(cut_middle(text, 200).split()))
