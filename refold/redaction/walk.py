"""Redaction of JSON: every string, key and telling number, JSON in strings included."""

from __future__ import annotations

import json
import re
from collections import Counter
from math import isinf
from typing import NamedTuple, NoReturn

from refold.redaction.placeholder import PLACEHOLDER, renamed, spoken
from refold.redaction.scan import Rules, Survey
from refold.redaction.settle import Finds, Settler
from refold.redaction.values import (
    MAX_DEPTH,
    MAX_NESTED,
    NO_SKIP,
    JsonObject,
    JsonValue,
    RedactionError,
    Skip,
    TooDeep,
    below,
)

_OPENS = re.compile(r"\s*[\[{]")
# {"name": "DB_PASSWORD", "value": "…"}: the name is the key of the value.
_NAMES = ("name", "key", "field", "label", "header")


class _At(NamedTuple):
    """Where a value stands.  ``nested`` counts the strings of JSON around it."""

    skip: Skip = NO_SKIP
    parent: str = ""
    key: str = ""
    depth: int = 0
    nested: int = 0

    @property
    def context(self) -> str:
        return f"{self.parent} {self.key}" if self.parent else self.key

    def under(self, name: str, key: str) -> _At:
        skip = below(self.skip, name)
        return _At(skip, self.key, key, self.depth + 1, self.nested)

    def item(self, index: int) -> _At:
        skip = below(self.skip, str(index)) if self.skip else self.skip
        return _At(skip, self.parent, self.key, self.depth + 1, self.nested)

    def inside(self) -> _At:
        """In the JSON that a string here holds."""
        return _At(NO_SKIP, self.parent, self.key, self.depth + 1, self.nested + 1)


def redacted(
    value: JsonValue, engine: Finds, counts: Counter[str], skip: Skip = NO_SKIP
) -> JsonValue:
    """``value`` without what ``engine`` finds; the same object if that is nothing.

    Raises TooDeep, and RedactionError for what is not JSON.
    """
    return _redacted(value, _At(skip), Settler(engine, counts))


def _redacted(value: JsonValue, at: _At, settler: Settler) -> JsonValue:
    texts = _texts(value, at.skip, at.depth)
    survey = settler.engine.survey([at.context, *texts])
    return _Walk(settler, survey).value(value, at) if survey.by_text else value


def _texts(value: JsonValue, skip: Skip, depth: int) -> list[str]:
    """All that a rule may look at, so that one scan can tell whether any has to."""
    found: list[str] = []
    stack = [(value, skip, depth)]
    while stack:
        item, paths, level = stack.pop()
        if () in paths:
            continue
        if isinstance(item, dict | list):
            if level >= MAX_DEPTH:
                raise TooDeep
            if isinstance(item, dict):
                found += item
                stack += [(v, below(paths, k), level + 1) for k, v in item.items()]
            elif set(map(type, item)) != {float}:
                stack += [
                    (v, below(paths, str(i)) if paths else paths, level + 1)
                    for i, v in enumerate(item)
                ]
        elif isinstance(item, str):
            found.append(item)
        elif isinstance(item, int) and not isinstance(item, bool):
            if _long(item):
                found.append(str(item))
        elif not isinstance(item, float | bool | None):
            raise RedactionError(f"a {type(item).__name__} is not JSON")
    return found


def _long(number: int) -> bool:
    """Whether the number has 7 to 19 digits: fewer say nothing, more are no card."""
    return 10**6 <= abs(number) < 10**19


class _Walk:
    """One pass over a value with the rules that may concern each of its texts."""

    def __init__(self, settler: Settler, survey: Survey) -> None:
        self._settler, self._survey = settler, survey
        self._concerned: dict[str, Rules] = {}

    def value(self, value: JsonValue, at: _At) -> JsonValue:
        if () in at.skip:
            return value
        if isinstance(value, str):
            return self._leaf(value, at)
        if isinstance(value, dict):
            return self._object(value, at)
        if isinstance(value, list):
            return self._array(value, at)
        if isinstance(value, int) and not isinstance(value, bool) and _long(value):
            return self._number(value, at)
        return value

    def _array(self, value: list[JsonValue], at: _At) -> JsonValue:
        if set(map(type, value)) == {float}:
            return value
        clean = [
            item if self._inert(item) else self.value(item, at.item(index))
            for index, item in enumerate(value)
        ]
        same = all(new is old for new, old in zip(clean, value, strict=True))
        return value if same else clean

    def _object(self, value: JsonObject, at: _At) -> JsonValue:
        names = {name: self._plain(name) for name in value}
        taken = {name for name, new in names.items() if new == name}
        named = self._name(value, at) if "value" in value else ""
        same = len(taken) == len(value)
        clean: JsonObject = {}
        copies: dict[str, int] = {}
        for name, item in value.items():
            new = names[name]
            key = named if named and name == "value" else spoken(new)
            if new != name:
                new = renamed(new, taken, copies)
                taken.add(new)
            inert = self._inert(item)
            clean[new] = item if inert else self.value(item, at.under(name, key))
            same = same and clean[new] is item
        return value if same else clean

    def _inert(self, value: JsonValue) -> bool:
        """Whether a leaf is clean whatever its key is."""
        if isinstance(value, str):
            return not self._survey.by_key and value not in self._survey.by_text
        return not (
            isinstance(value, dict | list) or (isinstance(value, int) and _long(value))
        )

    def _name(self, value: JsonObject, at: _At) -> str:
        """What a sibling calls the item ``value`` of this object, if it is clean."""
        for key in _NAMES:
            name = value.get(key)
            if isinstance(name, str) and not PLACEHOLDER.search(name):
                trial = _Walk(Settler(self._settler.engine, Counter()), self._survey)
                return name if trial.value(name, at.under(key, key)) == name else ""
        return ""

    def _plain(self, text: str, key: str = "") -> str:
        rules = self._rules(text, key)
        return self._settler.text(text, rules, key) if rules else text

    def _rules(self, text: str, key: str) -> Rules:
        """The rules that may find something in ``text`` under ``key``."""
        rules = self._survey.by_text.get(text, ())
        if not (key and self._survey.by_key):
            return rules
        if key not in self._concerned:
            self._concerned[key] = [c for c in self._survey.by_key if c.concerns(key)]
        return [*rules, *(c for c in self._concerned[key] if c not in rules)]

    def _number(self, value: int, at: _At) -> JsonValue:
        """A number stays unless its key or a checksum says what it is.

        In JSON that is text, it is judged like any text.
        """
        text, key = str(value), at.context
        if at.nested:
            clean = self._plain(text, key)
        elif value > 0:
            telling = [
                compiled
                for compiled in self._rules(text, key)
                if len(text) >= compiled.rule.digits
                and (compiled.rule.certain or compiled.concerns(key))
            ]
            clean = self._settler.text(text, telling, key)
        else:
            return value
        return value if clean == text else clean

    def _leaf(self, text: str, at: _At) -> str:
        concerned = text in self._survey.by_text
        if not (concerned and at.nested < MAX_NESTED and _OPENS.match(text)):
            return self._plain(text, at.context)
        walked = self._documents(text, at)
        return self._opened(text, at) if walked is None else walked

    def _opened(self, text: str, at: _At) -> str:
        """``text`` is not JSON, but without what is redacted it may become JSON."""
        clean = self._plain(text, at.context)
        if clean is text:
            return text
        walked = _redacted(clean, at, self._settler)
        return walked if isinstance(walked, str) else clean

    def _documents(self, text: str, at: _At) -> str | None:
        """``text`` as one JSON document, or one a line; None if it is neither."""
        documents = _parsed(text)
        if documents is None:
            return None
        inner = Settler(self._settler.engine, Counter())
        inside = at.inside()
        try:
            clean = [
                _again(source, value, inside, inner) for source, value in documents
            ]
        except TooDeep:
            return None
        self._settler.counts.update(inner.counts)
        return "\n".join(clean) if inner.counts else text


def _again(source: str, value: JsonValue, at: _At, settler: Settler) -> str:
    clean = _redacted(value, at, settler)
    return source if clean is value else _dumped(clean)


def _parsed(text: str) -> list[tuple[str, JsonValue]] | None:
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


def _dumped(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair can only be written as its escape.
        return json.dumps(value, separators=(",", ":"))
    return text
