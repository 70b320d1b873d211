"""A view as the elements that a prompt cache knows, and what two views share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold.domain.canonical import canonical
from refold.domain.tokens import estimate_text
from refold.projections.compare.identifiers import in_text, in_value, stands_in
from refold.projections.context.view import View
from refold.projections.context.words import leaves

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
