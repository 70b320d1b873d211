"""Redaction of JSON: every string, key and telling number, JSON in strings included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import isinf
from typing import NamedTuple, NoReturn

from refold.redaction.engines import UNPAIRED
from refold.redaction.plan import Tagger
from refold.redaction.scan import Concern, Prepared
from refold.redaction.settle import NAMES, VALUES, Flat, Node, Settler, Text
from refold.redaction.types import renamed
from refold.redaction.values import (
    MAX_NESTED,
    JsonObject,
    JsonValue,
    Skip,
    Tally,
    TooDeep,
    check_length,
)

_OPENS = re.compile(r"\s*[\[{]")


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


class Around(NamedTuple):
    """What is around a value: keys, and how many strings of JSON it is inside of."""

    skip: Skip
    parent: str = ""
    key: str = ""
    depth: int = 0
    nested: int = 0

    @property
    def context(self) -> str:
        return f"{self.parent} {self.key}" if self.parent else self.key


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
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        work: Work,
        around: Around,
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
        first.spoken = bool(speaks(around.context).rules or speaks(around.key).rules)
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
