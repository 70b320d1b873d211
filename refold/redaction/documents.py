"""Redaction of JSON: every string, key and telling number, JSON in strings included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isinf
from typing import Final, NamedTuple, NoReturn

from refold.redaction.engines import UNPAIRED
from refold.redaction.plan import Tagger
from refold.redaction.scanner import Concern, Prepared
from refold.redaction.settler import Settler, Text
from refold.redaction.types import renamed
from refold.redaction.values import (
    MAX_DEPTH,
    MAX_NESTED,
    NO_SKIP,
    JsonObject,
    JsonValue,
    RedactionError,
    Skip,
    Tally,
    TooDeep,
    below,
    check_length,
)


class Around(NamedTuple):
    """What is around a value: keys, and how many strings of JSON it is inside of."""

    skip: Skip
    parent: str = ""
    key: str = ""
    depth: int = 0
    nested: int = 0


class Work(NamedTuple):
    """What does the redacting, and what it needs for one value."""

    settler: Settler
    tag: Tagger | None = None
    until: float = 0.0


def redacted(value: JsonValue, work: Work, around: Around) -> tuple[JsonValue, Tally]:
    """``value`` without what is found in it, and what that was.

    The same object is returned if nothing was found.  Raises TooDeep, and
    RedactionError for what is not JSON.
    """
    if isinstance(value, dict | list):
        return _Walk(value, work, around).walked()
    # A leaf by itself, as the only item of an array.
    clean, tally = _Walk([value], work, around).walked()
    return clean[0], tally  # type: ignore[index]  # it is that array


class _Walk:
    """One pass over an object or an array."""

    def __init__(
        self, value: dict[str, JsonValue] | list[JsonValue], work: Work, around: Around
    ) -> None:
        plan = work.settler.plan
        self._work, self._around, self._plan = work, around, plan
        self._scanner = work.settler.scanner
        self._placeholders = work.settler.placeholders
        self._flat = Flat(
            value, depth=around.depth, skip=around.skip, skip_keys=plan.skip_keys
        )
        self._tally, self._more = Tally(), False
        self._names: Mapping[str, str] = {}
        self._named: dict[int, str] = {}

    def walked(self) -> tuple[JsonValue, Tally]:
        flat = self._flat
        limit = self._plan.max_leaf_bytes
        if flat.texts and 4 * max(map(len, flat.texts)) > limit:
            for text in flat.texts:
                check_length(text, limit)
        keys = list(flat.keys) if self._plan.keys else []
        more = self._more = self._work.settler.finds_more_in([*keys, *flat.texts])
        prepared = self._scanner.survey([*keys, *flat.texts])
        hot = range(len(keys)) if more else [i for i in prepared if i < len(keys)]
        if hot:
            self._redact_keys(
                [Text(keys[i], prepared.get(i), whole=False) for i in hot]
            )
        if len(keys):
            least = len(keys)
            prepared = {i - least: one for i, one in prepared.items() if i >= least}
        if flat.named:
            self._name_values()
        if flat.pairs:
            self._name_seconds()
        if more:
            self._redact_texts(range(len(flat.texts)), prepared)
        else:
            named = {*prepared, *flat.documents, *self._spoken_to()}
            if named:
                self._redact_texts(sorted(named), prepared)
        return self._rebuilt(), self._tally

    def _redact_keys(self, hot: list[Text]) -> None:
        names = {}
        for given, (clean, tally) in zip(hot, self._settled(hot), strict=True):
            if clean != given.text:
                names[given.text] = clean
                self._count(tally, None, "")
        self._names = names

    def _name_values(self) -> None:
        """Find what siblings call the items ``value`` of objects, if that is clean."""
        for node in self._flat.named:
            value: dict[str, JsonValue] = node.value  # type: ignore[assignment]  # one
            for key in NAMES:
                name = value.get(key) or value.get(key.title())
                if isinstance(name, str) and self._scanner.concern(name).rules:
                    self._named[id(node)] = name if self._is_clean(name, key) else ""
                    break

    def _name_seconds(self) -> None:
        """Let the first of two strings be the key of the second, if that is clean.

        What has another context, or holds a placeholder, keeps what it has: a second
        pass sees no more than the first.
        """
        speaks = self._scanner.concern
        for node, name, second in self._flat.pairs:
            if (
                speaks(name).rules
                and not speaks(second).rules
                and not self._placeholders.within(second)
                and not self._concern(node, 0).rules
                and self._is_clean(name, "")
            ):
                self._flat.flags[id(node), 1] = name

    def _is_clean(self, name: str, key: str) -> bool:
        if len(name) > 256 or self._placeholders.within(name):
            return False
        prepared = self._scanner.survey([name]).get(0)
        concern = self._scanner.concern(key)
        if prepared is None and not concern.rules and not self._more:
            return True
        given = Text(name, prepared, concern)
        return self._settled([given])[0][0] == name

    def _settled(self, texts: list[Text]) -> list[tuple[str, Tally]]:
        return self._work.settler.settle(texts, self._work.tag, self._work.until)

    def _spoken_to(self) -> list[int]:
        """The texts to which a key may give context."""
        flat, around, speaks = self._flat, self._around, self._scanner.concern
        plain = self._placeholders.spoken
        loud = {
            key for key in flat.keys if speaks(plain(self._names.get(key, key))).rules
        }
        if any(self._named.values()):
            loud.update(VALUES)
        first = flat.nodes[0]
        first.spoken = bool(
            speaks(f"{around.parent} {around.key}").rules or speaks(around.key).rules
        )
        flags = {at for at, flag in flat.flags.items() if speaks(flag).rules}
        if not (loud or first.spoken or flags):
            return []
        for node in flat.nodes[1:]:
            above = node.parent
            node.spoken = node.name in loud or (above is not None and above.spoken)
        return [
            index
            for index, (node, name) in enumerate(flat.places)
            if name in loud or node.spoken or (flags and (id(node), name) in flags)
        ]

    def _redact_texts(
        self, indexes: Iterable[int], prepared: Mapping[int, Prepared]
    ) -> None:
        flat, more = self._flat, self._more
        documents = frozenset(flat.documents) if self._nests else frozenset()
        jobs: list[tuple[int, Text]] = []
        for index in indexes:
            text, (node, name) = flat.texts[index], flat.places[index]
            ready = prepared.get(index)
            concern = self._concern(node, name)
            if index in documents and self._documents(text, ready, node, name):
                continue
            if ready is None and not concern.rules and not more:
                continue
            if index in flat.numbers:
                self._number(index, text, concern, ready, jobs)
            else:
                jobs.append((index, Text(text, ready, concern)))
        if not jobs:
            return
        done = self._settled([given for _, given in jobs])
        for (index, given), (clean, tally) in zip(jobs, done, strict=True):
            if clean != given.text:
                self._write(index, clean, tally)

    @property
    def _nests(self) -> bool:
        return self._around.nested < MAX_NESTED and self._plan.nested_json

    def _number(
        self,
        index: int,
        text: str,
        concern: Concern,
        ready: Prepared | None,
        jobs: list[tuple[int, Text]],
    ) -> None:
        """A number stays unless its key or a checksum says what it is.

        In JSON that is text, it is judged like any text.
        """
        numbers = self._plan.numbers
        like_text = self._around.nested > 0 or numbers == "always"
        if numbers == "never" or not (like_text or text[0] != "-"):
            return
        jobs.append((index, Text(text, ready, concern, number=not like_text)))

    def _write(self, index: int, clean: str, tally: Tally) -> None:
        node, name = self._flat.places[index]
        self._count(tally, node, name)
        if self._nests and index in self._flat.documents:
            # It was no JSON, but without what is redacted it may become JSON.
            again, more = self._leaf(clean, node, name)
            self._count(more, node, name)
            clean = again if isinstance(again, str) else clean
        node.writes[name] = clean

    def _leaf(self, text: str, node: Node, name: str | int) -> tuple[JsonValue, Tally]:
        parent, key = self._keys_of(node, name)
        around = Around(frozenset(), parent, key, node.depth + 1, self._around.nested)
        return redacted(text, self._work, around)

    def _documents(
        self, text: str, ready: Prepared | None, node: Node, name: str | int
    ) -> bool:
        """Redact ``text`` as one JSON document or one a line; False: it is neither."""
        if not (
            ready
            or self._more
            or self._concern(node, name).rules
            or not self._scanner.clean(text.encode(errors=UNPAIRED))
        ):
            return False
        documents = parsed(text)
        if documents is None:
            return False
        parent, key = self._keys_of(node, name)
        inside = Around(
            frozenset(), parent, key, node.depth + 1, self._around.nested + 1
        )
        tally, clean = Tally(), []
        try:
            for source, value in documents:
                new, found = redacted(value, self._work, inside)
                clean.append(source if new is value else dumped(new))
                tally.update(found)
        except TooDeep:
            return False
        registered = self._work.settler.registered
        if registered and registered.find("\n".join(clean)):
            return False
        if tally:
            self._count(tally, node, name)
            node.writes[name] = "\n".join(clean)
        return True

    def _concern(self, node: Node, name: str | int) -> Concern:
        parent, key = self._keys_of(node, name)
        return self._scanner.concern(f"{parent} {key}" if parent else key)

    def _keys_of(self, node: Node, name: str | int) -> tuple[str, str]:
        """The key of an item's object, and its own; an array has those of itself."""
        if node.keys is None:
            node.keys = self._keys_around(node)
        if isinstance(name, int):
            flag = self._flat.flags.get((id(node), name))
            return (node.keys[1], flag) if flag else node.keys
        if len(name) == 1 and name.isascii() and name.isalpha():
            # It says nothing of its own: {"student_ids": {"a": …, "b": …}}.
            return node.keys
        named = self._named.get(id(node), "") if name in VALUES else ""
        key = named or self._names.get(name, name)
        return node.keys[1], named or self._placeholders.spoken(key)

    def _keys_around(self, node: Node) -> tuple[str, str]:
        if node.parent is None:
            return self._around.parent, self._around.key
        return self._keys_of(node.parent, node.name)

    def _count(self, tally: Tally, node: Node | None, name: str | int) -> None:
        if self._plan.audit == "paths" and node is not None and tally:
            tally.paths[:] = [self._pointer(node, name)]
        self._tally.update(tally)

    def _pointer(self, node: Node, name: str | int) -> str:
        steps = []
        here: Node | None = node
        while here is not None:
            step = self._names.get(name, name) if isinstance(name, str) else str(name)
            steps.append(step.replace("~", "~0").replace("/", "~1"))
            name, here = here.name, here.parent
        return "/" + "/".join(reversed(steps))

    def _rebuilt(self) -> JsonValue:
        """The value with all that was written; what did not change is shared."""
        for node in reversed(self._flat.nodes):
            new: JsonValue
            if isinstance(node.value, dict):
                if not node.writes and not any(k in self._names for k in node.value):
                    continue
                new = self._object(node, node.value)
            else:
                if not node.writes:
                    continue
                new = [
                    node.writes.get(index, item)
                    for index, item in enumerate(node.value)
                ]
            if node.parent is None:
                return new
            node.parent.writes[node.name] = new
        return self._flat.nodes[0].value

    def _object(self, node: Node, value: dict[str, JsonValue]) -> JsonValue:
        taken = {name for name in value if name not in self._names}
        clean: dict[str, JsonValue] = {}
        copies: dict[str, int] = {}
        for name, item in value.items():
            new = self._names.get(name, name)
            if new != name:
                new = renamed(new, taken, copies)
                taken.add(new)
            clean[new] = node.writes.get(name, item)
        return clean


def parsed(text: str) -> list[tuple[str, JsonValue]] | None:
    """The JSON documents in ``text``, each with its source; empty lines have none."""
    try:
        return [(text, _loaded(text))]
    except (ValueError, RecursionError):
        pass
    lines = text.split("\n")
    if len(lines) == 1 or not all(
        _OPENS.match(line) or not line.strip() for line in lines
    ):
        return None
    try:
        return [(line, _loaded(line) if line.strip() else None) for line in lines]
    except (ValueError, RecursionError):
        return None


def _loaded(text: str) -> JsonValue:
    value: JsonValue = json.loads(
        text,
        strict=False,
        object_pairs_hook=_unique,
        parse_constant=_refused,
        parse_float=_finite,
    )
    return value


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Refuse an object that has a key twice: the first value would not be seen."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError("a number is too large")
    return number


def dumped(value: JsonValue) -> str:
    """``value`` as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair can only be written as its escape.
        return json.dumps(value, separators=(",", ":"))
    return text


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
            if type(item) is not str or type(value[index + 1]) is not str:
                continue
            if item == "-u" or (item[:2] == "--" and item[2:3].isalpha()):
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


def long(number: int) -> bool:
    """Whether the number has 7 to 19 digits: fewer say nothing, more are no card."""
    return 10**6 <= abs(number) < 10**19


_DEEPEST: Final = 4
# In a longer text something is found more often, and is looked for twice then.
_LONGEST: Final = 16_384
_SILENT: Final = (float, bool)


class Unsure(Exception):
    """The value is not of the kind that a glance is for."""


class Glance:
    """Sees at once that a plain value holds nothing.  Threads may share it."""

    def __init__(self, settler: Settler) -> None:
        plan = settler.plan
        self._scanner, self._placeholders = settler.scanner, settler.placeholders
        self._longest = min(plan.max_leaf_bytes // 4, _LONGEST)
        self._suits = not (
            plan.skip or plan.skip_keys or plan.budget_ms or plan.on_error != "block"
        )
        # Keys that hold nothing and give no context, as those of events are.
        self._quiet: set[str] = set()

    def sees_nothing(self, value: JsonValue, skip: Skip) -> bool | None:
        """Whether no rule finds anything in ``value``; None if a glance cannot tell.

        What else may find something has to be asked besides.
        """
        if not self._suits or type(value) is not dict:
            return None
        try:
            texts = [*self._texts(value, skip, "", 0)]
        except Unsure:
            return None
        findings = self._scanner.findings
        return not any(
            findings(prepared, whole=True)
            for prepared in self._scanner.survey(texts).values()
        )

    def _texts(
        self, value: dict[str, JsonValue], skip: Skip, parent: str, depth: int
    ) -> Iterator[str]:
        """The texts of an object in which no key says anything.  Raises Unsure."""
        if depth == _DEEPEST or VALUES[0] in value or VALUES[1] in value:
            raise Unsure
        for key, item in value.items():
            if key not in self._quiet:
                self._hear(key)
            inside = below(skip, key)
            if () in inside or item is None or item == []:
                continue
            if inside or (parent and self._scanner.concern(f"{parent} {key}").rules):
                raise Unsure
            yield from self._of_item(item, key, depth)

    def _of_item(self, item: JsonValue, key: str, depth: int) -> Iterator[str]:
        kind = type(item)
        if kind is str:
            text: str = item  # type: ignore[assignment]  # by its type
            marked = "[" in text and self._placeholders.within(text)
            if marked or len(text) > self._longest or opens(text):
                raise Unsure  # it is not looked at as a text alone
            yield text
        elif kind is dict:
            yield from self._texts(item, NO_SKIP, key, depth + 1)  # type: ignore[arg-type]  # one
        elif kind is list:
            for one in item:  # type: ignore[union-attr]  # a list, by its type
                if type(one) is not dict:
                    raise Unsure
                yield from self._texts(one, NO_SKIP, key, depth + 1)
        elif not (kind in _SILENT or (kind is int and not long(item))):  # type: ignore[arg-type]  # an int
            raise Unsure

    def _hear(self, key: str) -> None:
        """Remember that ``key`` says nothing.  Raises Unsure if it does."""
        if len(key) < 2 or self._scanner.concern(key).rules or self._scanner.look(key):
            raise Unsure
        if len(self._quiet) < 1000 and len(key) < 100:
            self._quiet.add(key)
