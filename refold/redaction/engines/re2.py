"""RE2: one set says which triggers a block of text has, each of those where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import re2

from refold.redaction.engines.base import LONG_RUN, Trigger, names, windows
from refold.redaction.values import RedactionError

# A set finds in one pass which triggers are there, so small blocks make for few
# searches; each begins early enough to see all that ends in it.
_BLOCK, _OVERLAP = 8192, 512


class Re2:
    """Sets to ask first, and each trigger by itself to search with."""

    gates = True

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self.name = f"re2/{version('google-re2')}"
        self._options = options = re2.Options()
        options.max_mem = 256 << 20
        options.log_errors = False
        options.case_sensitive = False
        options.never_capture = True
        numbered = list(enumerate(triggers))
        self._triggers = triggers
        self._compiled: dict[int, Any] = {}
        plain = [(n, _expression(t)) for n, t in numbered if not (t.beside or t.key)]
        keys = [(n, t.shape) for n, t in numbered if t.key]
        self._keys = {n for n, _ in keys}
        self._long_keys = {n for n in self._keys if triggers[n].run}
        shapes = [(n, t.shape) for n, t in numbered if t.beside]
        self._long = re2.compile(LONG_RUN, options)
        self._places = _Set(options, plain)
        self._any = _Set(options, [*plain, *keys])
        self._shapes = _Set(options, shapes)

    def clean(self, data: bytes, *, beside: bool) -> bool:
        numbers = self._any.matched(data)
        keys = self._keys
        numbers = [n for n in numbers if n not in keys or self._has(n, data, beside)]
        if any(number not in self._long_keys for number in numbers):
            return False
        if numbers and self._long.search(data):
            return False
        return not self._in_runs(data)

    def _has(self, number: int, data: bytes, beside: bool) -> bool:
        """Whether ``data``, which is JSON, has such a key."""
        ends = _ends(self._pattern(number), data, 0, len(data))
        return any(names(data, end, beside=beside) for end in ends)

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        hits = [
            (number, end)
            for start, stop in _blocks(data)
            for number in self._places.matched(data, start, stop)
            for end in _ends(self._pattern(number), data, start, stop)
        ]
        return hits + self._in_runs(data)

    def _in_runs(self, data: bytes) -> list[tuple[int, int]]:
        ends = [
            end
            for start, stop in _blocks(data)
            for end in _ends(self._long, data, start, stop)
        ]
        return [
            (number, end)
            for start, stop in windows(data, ends)
            for number in self._shapes.matched(data, start, stop)
            for end in _ends(self._pattern(number), data, start, stop)
        ]

    def _pattern(self, number: int) -> Any:
        if number not in self._compiled:
            expression = _expression(self._triggers[number])
            self._compiled[number] = re2.compile(expression, self._options)
        return self._compiled[number]


class _Set:
    """Expressions asked together which of them match."""

    def __init__(self, options: Any, numbered: Sequence[tuple[int, str]]) -> None:
        self._numbers = [number for number, _ in numbered]
        self._set = re2.Set.SearchSet(options)
        for _, expression in numbered:
            self._set.Add(expression)
        # One that always matches: where it does not, RE2 gave up.
        self._set.Add(r"\C")
        self._set.Compile()

    def matched(
        self, data: bytes, start: int = 0, stop: int | None = None
    ) -> list[int]:
        """The numbers of those that match; the data is not empty."""
        found: list[int] | None = self._set.Match(data[start:stop])
        if not found:
            raise RedactionError("RE2 had not enough memory for the rules")
        last = len(self._numbers)
        return [self._numbers[index] for index in found if index < last]


def _expression(trigger: Trigger) -> str:
    return re.escape(trigger.literal) if trigger.rare else trigger.expression


def _blocks(data: bytes) -> Iterator[tuple[int, int]]:
    if len(data) <= _BLOCK + _OVERLAP:
        yield 0, len(data)
        return
    for start in range(0, len(data), _BLOCK):
        yield max(0, start - _OVERLAP), min(len(data), start + _BLOCK)


def _ends(pattern: Any, data: bytes, start: int, stop: int) -> Iterator[int]:
    """Where ``pattern`` ends; matches may share the character between them."""
    match = pattern.search(data, start, stop)
    while match:
        end = match.end()
        yield end
        again = end - 1
        while data[again] & 0xC0 == 0x80:
            again -= 1
        match = pattern.search(data, max(again, match.start() + 1), stop)


@lru_cache(maxsize=8)
def engine(triggers: tuple[Trigger, ...]) -> Re2:
    """The engine over ``triggers``, compiled once."""
    return Re2(triggers)
