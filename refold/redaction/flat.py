"""A JSON value laid flat: its texts in one list, to be scanned at once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from refold.redaction.values import (
    MAX_DEPTH,
    JsonValue,
    RedactionError,
    Skip,
    TooDeep,
    below,
)

# {"name": "DB_PASSWORD", "value": "…"}: the name is the key of the value.
_BEGINS, _OPENS = "{[ \t\r\n", re.compile(r"\s*[\[{]")
VALUES = ("value", "Value")
NAMES = ("name", "key", "field", "label", "header")
# ["X-Api-Key", "…"]: the first is the key of the second, if that is no name itself.
_LONGEST_NAME = 48
_SECOND = re.compile(r"(?=[^0-9]{0,64}[0-9])(?:\S{4,}|[^A-Za-z]{4,64}\Z)")


class Node:
    """An object or an array of a value, and what is to be written into it."""

    __slots__ = ("depth", "keys", "name", "parent", "skip", "spoken", "value", "writes")

    def __init__(
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        parent: Node | None,
        name: str | int,
        depth: int,
        skip: Skip,
    ) -> None:
        if depth >= MAX_DEPTH:
            raise TooDeep
        self.value, self.parent, self.name = value, parent, name
        self.depth, self.skip = depth, skip
        # The key of the object around it and its own, when that is known.
        self.keys: tuple[str, str] | None = None
        # Whether a key around it may give context to what it holds.
        self.spoken = False
        self.writes: dict[str | int, JsonValue] = {}


class Flat:
    """The leaves of a value that may hold something, and where each stands.

    texts:   strings, and integers as text.
    places:  the node and the name of each text.
    numbers: which of them are integers.
    documents: which of them may be JSON.
    keys:    every key, once.
    named:   objects with a ``value`` that a sibling names.
    flags:   by array and index, the flag that a string follows, as in a command line.
    pairs:   arrays of two strings, and these; the first may name the second.
    """

    def __init__(
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        *,
        depth: int,
        skip: Skip,
        skip_keys: frozenset[str],
    ) -> None:
        self.texts: list[str] = []
        self.places: list[tuple[Node, str | int]] = []
        self.numbers: set[int] = set()
        self.keys: dict[str, None] = {}
        self.named: list[Node] = []
        self.flags: dict[tuple[int, int], str] = {}
        self.pairs: list[tuple[Node, str, str]] = []
        self._skip_keys = skip_keys
        self._shapes: set[tuple[str, ...]] = set()
        self.nodes = [Node(value, None, "", depth, skip)]
        for node in self.nodes:
            if isinstance(node.value, dict):
                self._object(node, node.value)
            else:
                self._array(node, node.value)
        self.documents = [index for index, text in enumerate(self.texts) if opens(text)]

    def _object(self, node: Node, value: dict[str, JsonValue]) -> None:
        shape = tuple(value)
        if shape not in self._shapes:
            self._shapes.add(shape)
            self.keys.update(dict.fromkeys(shape))
        if "value" in value or "Value" in value:
            self.named.append(node)
        if self._skip_keys:
            items = [pair for pair in value.items() if pair[0] not in self._skip_keys]
            self._items(node, items)
        else:
            self._items(node, value.items())

    def _array(self, node: Node, value: list[JsonValue]) -> None:
        if value and type(value[0]) is float and set(map(type, value)) == {float}:
            return
        self._items(node, enumerate(value))
        for index, item in enumerate(value[:-1]):
            if type(item) is str and _is_flag(item) and type(value[index + 1]) is str:
                self.flags[id(node), index + 1] = item
        if len(value) == 2:
            self._pair(node, *value)

    def _pair(self, node: Node, first: JsonValue, second: JsonValue) -> None:
        if (
            isinstance(first, str)
            and isinstance(second, str)
            and len(first) <= _LONGEST_NAME
            and _SECOND.fullmatch(second)
        ):
            self.pairs.append((node, first, second))

    def _items(self, node: Node, items: Iterable[tuple[str | int, JsonValue]]) -> None:
        texts, places, plain = self.texts, self.places, not node.skip
        for name, item in items:
            kind = type(item)
            if kind is str and plain:
                texts.append(item)  # type: ignore[arg-type]  # a str, by its type
                places.append((node, name))
            elif kind is float or kind is bool or item is None:
                continue
            else:
                self._item(node, name, item)

    def _item(self, node: Node, name: str | int, item: JsonValue) -> None:
        skip = below(node.skip, str(name)) if node.skip else node.skip
        if () in skip:
            return
        if isinstance(item, str):
            self.texts.append(item)
        elif isinstance(item, dict | list | tuple):
            item = [*item] if isinstance(item, tuple) else item
            self.nodes.append(Node(item, node, name, node.depth + 1, skip))
            return
        elif isinstance(item, int) and not isinstance(item, bool):
            if not long(item):
                return
            self.numbers.add(len(self.texts))
            self.texts.append(str(item))
        elif isinstance(item, float | bool | None):
            return
        else:
            raise RedactionError(f"a {type(item).__name__} is not JSON")
        self.places.append((node, name))


def opens(text: str) -> bool:
    """Whether ``text`` begins as JSON does."""
    return text[:1] in _BEGINS and bool(_OPENS.match(text))


def _is_flag(text: str) -> bool:
    return text == "-u" or (text[:2] == "--" and text[2:3].isalpha())


def long(number: int) -> bool:
    """Whether the number has 7 to 19 digits: fewer say nothing, more are no card."""
    return 10**6 <= abs(number) < 10**19
