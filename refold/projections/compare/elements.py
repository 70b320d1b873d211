"""A view as the elements that a prompt cache knows, and what two views share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold.domain.canonical import canonical
from refold.domain.tokens import estimate_text
from refold.projections.context.text import leaves
from refold.projections.context.view import View

_LONGEST: Final = 200
# Plain ASCII words: Chinese text, for one, has no spaces around a number.
_WORD: Final = re.compile(r"https?://[^\s\"'`<>{}|\\^]+|[\w@+~./-]+", re.ASCII)
_QUOTED: Final = re.compile(
    r'"(\w[^"\\\n]{1,78})\\?"'
    r"|`(\w[^`\n]{1,78})`"
    r"|(?<!\w)'(\w[^'\n]{1,78})'(?!\w)"
    r"|“(\w[^”\n]{1,78})”|「([^」\n]{2,78})」|《([^》\n]{2,78})》"
)
_PLACEHOLDER: Final = re.compile(r"\[REDACTED:[^\]\n]{1,80}\]")
_DOTTED: Final = re.compile(r"\w[\w-]+(?:\.[\w-]+)*\.[a-z]\w{0,11}", re.ASCII | re.I)
_SNAKE: Final = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+)+")
_NUMERIC: Final = re.compile(r"[\d./+-]+", re.ASCII)


def in_text(text: str) -> set[str]:
    """The identifiers in ``text``.

    A quoted word in lower case alone is an option rather than a name: it is none.
    Nor is what stands for a value that was redacted.
    """
    text = _PLACEHOLDER.sub(" ", text)
    found = {name for match in _WORD.finditer(text) if (name := _word(match[0]))}
    for match in _QUOTED.finditer(text):
        name = next(group for group in match.groups() if group).rstrip(" /")
        if _is_name(name):
            found.add(name)
    return found


def in_value(value: Any) -> set[str]:
    """The identifiers in a JSON value; a short text in it is a name, as if quoted."""
    if isinstance(value, str):
        return in_text(value)
    found: set[str] = set()
    for leaf in leaves(value, keys=False):
        found |= in_text(leaf)
        name = leaf.strip().rstrip("/")
        if len(name) < 80 and "\n" not in name and _is_name(name):
            found.add(name)
    return found


def stands_in(text: str, name: str) -> bool:
    """Whether ``text`` has ``name`` in it, and not as a part of a longer word."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (
            _joins(text[at - 1 : at], name[0]) or _joins(text[end : end + 1], name[-1])
        ):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(neighbour: str, edge: str) -> bool:
    """Whether a character beside a name's edge makes the name part of a word."""
    wordly = neighbour.isascii() and (neighbour.isalnum() or neighbour == "_")
    return wordly and (edge.isalnum() or edge == "_")


def _word(word: str) -> str | None:
    """The identifier that a run of characters is, if it is one."""
    word = word.rstrip(".-/+~@,:;!?)]*").lstrip("-+")
    if len(word) < 3 or len(word) > _LONGEST:
        return None
    if word.startswith(("http://", "https://")):
        return word
    digits = sum(map(str.isdigit, word))
    if _NUMERIC.fullmatch(word):
        return word if digits >= 3 else None
    if "/" in word:
        told = word[0] in "/~." or word.count("/") > 1 or digits or "." in word
        return word if told or "_" in word else None
    if digits:
        return word if len(word) > 3 else None
    return word if _DOTTED.fullmatch(word) or _SNAKE.fullmatch(word) else None


def _is_name(text: str) -> bool:
    if len(text) < 2 or text.isdigit() or _PLACEHOLDER.search(text):
        return False
    return not (text.isascii() and text.isalpha() and text.islower())


_IDS: Final = ("id", "tool_use_id")


class Element(NamedTuple):
    """The system prompt or one block: its weight, and what it names.

    key:   its role and its canonical JSON, but for the ids of calls.
    texts: what a model reads in it.
    """

    key: bytes
    weight: int
    names: frozenset[str]
    texts: tuple[str, ...]


@dataclass(slots=True)
class Elements:
    """Makes elements of views; equal blocks are read only once."""

    known: dict[bytes, Element] = field(default_factory=dict)

    def of(self, view: View) -> list[Element]:
        """The elements of ``view``, in the order in which they are sent."""
        system = [] if view.system is None else [("system", _text(view.system))]
        blocks = [
            (message["role"], block)
            for message in view.messages
            for block in message["content"]
        ]
        return [self._element(role, block) for role, block in [*system, *blocks]]

    def _element(self, role: str, block: dict[str, Any]) -> Element:
        said = {name: block[name] for name in block if name not in _IDS}
        key = role.encode() + canonical(said)
        element = self.known.get(key)
        if element is None:
            weight = estimate_text(key.decode())
            element = Element(
                key, weight, frozenset(_names(block)), tuple(_told(block))
            )
            self.known[key] = element
        return element


@dataclass(slots=True)
class Shown:
    """The elements that are shown now; only what changes is counted anew."""

    elements: list[Element] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def move(self, elements: list[Element]) -> int:
        """Show these elements now; returns how many of those before they begin with."""
        same = shared(self.elements, elements)
        for gone in self.elements[same:]:
            self.names.subtract(gone.names)
        for new in elements[same:]:
            self.names.update(new.names)
        self.elements = elements
        return same

    def holds(self, name: str) -> bool:
        """Whether ``name`` is in what is shown: as an identifier, or as plain words."""
        if self.names[name] > 0:
            return True
        texts = (text for element in self.elements for text in element.texts)
        return any(stands_in(text, name) for text in texts)


def shared(before: list[Element], after: list[Element]) -> int:
    """How many elements both begin with."""
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one is not other and one.key != other.key:
            return index
    return min(len(before), len(after))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _told(block: dict[str, Any]) -> Iterator[str]:
    """What a model reads in a block: no ids, no signatures, no images."""
    match block:
        case {"type": "text", "text": text} | {"type": "thinking", "thinking": text}:
            yield text
        case {"type": "tool_use", "input": arguments}:
            yield from leaves(arguments, keys=False)
        case {"type": "tool_result", "content": str(text)}:
            yield text
        case {"type": "tool_result", "content": list(blocks)}:
            for element in blocks:
                yield from _told(element)


def _names(block: dict[str, Any]) -> set[str]:
    if block["type"] == "tool_use":
        return in_value(block["input"])
    return {name for text in _told(block) for name in in_text(text)}
