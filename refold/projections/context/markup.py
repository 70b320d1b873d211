"""The markup of abridged histories: what of a summary is its own words."""

from __future__ import annotations

import re
from typing import Final

from refold.projections.context.words import count_words

LISTS: Final = ("created", "modified", "deleted", "viewed", "commands", "tools")
_TAGS: Final = ("turn", "user", "agent", "interrupted", "goes_on", "left_out", *LISTS)
_MARKUP: Final = re.compile(
    rf"</?(?:{'|'.join(_TAGS)})(?: [a-z]+=\"[0-9-]*\")*/?>|\[…\d+…\]"
)
_OURS: Final = re.compile(rf"<(?=/?(?:{'|'.join(_TAGS)})\b)")
_TURN: Final = re.compile(r"<turn .*?^</turn>", re.DOTALL | re.MULTILINE)
_LEFT_OUT: Final = re.compile(r"<left_out turns=\"(\d+)\"/>")


def stripped(text: str) -> str:
    """``text`` without the tags of an abridged history and the marks of its cuts."""
    return _MARKUP.sub("", text)


def harmless(text: str) -> str:
    """``text`` with what looks like a tag of an abridged history broken."""
    return _OURS.sub(r"<\\", text)


def own_words(text: str) -> int:
    """How many words of a summary are not markup that Refold added."""
    return count_words(stripped(text))


def turns_in(text: str) -> list[str]:
    """The turns of an abridged history, or the whole text if it is none."""
    return _TURN.findall(text) or [_LEFT_OUT.sub("", text).strip()]


def left_out_in(text: str) -> int:
    """How many turns an abridged history says it leaves out."""
    return sum(int(count) for count in _LEFT_OUT.findall(text))


def left_out(turns: int) -> str:
    """What says that so many older turns are left out; nothing if none are."""
    return f'<left_out turns="{turns}"/>' if turns else ""
