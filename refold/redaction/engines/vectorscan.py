"""Vectorscan, through the package ``hyperscan``: all triggers in one pass."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import hyperscan

from refold.redaction.engines.base import (
    LONG_RUN,
    Trigger,
    in_bytes,
    names,
    narrow,
    windows,
)

# With a run of digits in so many bytes, a pass over all is faster than a look at each.
_DENSE = 1024


class Vectorscan:
    """Databases that are each fast, and scanned only where they can find something.

    All in one would be far slower: expressions that are not ASCII need a mode of their
    own, and shapes of digits are many states that most texts have no use for.
    """

    gates = True

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self.name = f"vectorscan/{version('hyperscan')}"
        plain = [
            (n, _expression(t), 0)
            for n, t in enumerate(triggers)
            if not (t.beside or t.key)
        ]
        shapes = [(n, t.shape, 0) for n, t in enumerate(triggers) if t.beside]
        keys = [(n, t.shape, 0) for n, t in enumerate(triggers) if t.key]
        self._run = len(triggers)
        plain.append((self._run, LONG_RUN, 0))
        in_ascii = [
            (n, only, flags)
            for n, expression, flags in plain
            if (only := narrow(expression) or _in_any(expression))
        ]
        of_keys = [(n, only, 0) for n, e, _ in keys if (only := narrow(e))]
        wide = [one for one in plain if not one[1].isascii()]
        # What only ``clean`` asks for is in the same: it is in the caches then.
        self._plain = _Database([*in_ascii, *of_keys])
        self._wide = _Database([*wide, *(k for k in keys if not k[1].isascii())])
        self._keys = {n for n, _, _ in keys}
        self._of_digits = {self._run, *(n for n in self._keys if triggers[n].run)}
        self._shapes = _Database(shapes)

    def clean(self, data: bytes, *, beside: bool) -> bool:
        numbers = self._asked(data, self._plain.hits(data), beside)
        if not numbers <= self._of_digits:
            return False
        if data.isascii():
            if self._run not in numbers:
                return True
        else:
            numbers |= self._asked(data, self._wide.hits(data), beside)
        if not numbers <= self._of_digits or (
            len(numbers) > 1 and self._run in numbers
        ):
            return False
        return self._run not in numbers or not self.scan(data)

    def _asked(
        self, data: bytes, hits: list[tuple[int, int]], beside: bool
    ) -> set[int]:
        """The numbers of ``hits``, of keys only those that are where a key ends."""
        keys = self._keys
        return {
            number
            for number, end in hits
            if number not in keys or names(data, end, beside=beside)
        }

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        return self._placed(data, self._plain.hits(data), wide=not data.isascii())

    def _placed(
        self, data: bytes, hits: list[tuple[int, int]], *, wide: bool
    ) -> list[tuple[int, int]]:
        """All hits in ``data``, given what the first pass has found in it."""
        if wide:
            hits += self._wide.hits(data)
        keys, run = self._keys, self._run
        hits = [hit for hit in hits if hit[0] not in keys]
        long = [end for number, end in hits if number == run]
        if not long:
            return hits
        found = [hit for hit in hits if hit[0] != run]
        if len(long) * _DENSE > len(data):
            return found + self._shapes.hits(data)
        for start, stop in windows(data, long):
            inside = self._shapes.hits(data[start:stop])
            found += [(number, start + end) for number, end in inside]
        return found


class _Database:
    """Expressions compiled together, and working memory for each thread."""

    def __init__(self, expressions: Sequence[tuple[int, str, int]]) -> None:
        self._local = threading.local()
        self._compiled: Any = None
        if not expressions:
            return
        caseless = hyperscan.HS_FLAG_CASELESS
        self._compiled = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._compiled.compile(
            expressions=[in_bytes(text).encode() for _, text, _ in expressions],
            ids=[number for number, _, _ in expressions],
            elements=len(expressions),
            flags=[flags | caseless for _, _, flags in expressions],
        )

    def hits(self, data: bytes) -> list[tuple[int, int]]:
        """(number of an expression, where a match ends) for each match."""
        hits: list[tuple[int, int]] = []
        if self._compiled is not None:
            try:
                scratch = self._local.scratch
            except AttributeError:
                # No two scans may share it at a time.
                scratch = self._local.scratch = hyperscan.Scratch(self._compiled)
            self._compiled.scan(
                data, match_event_handler=_note, context=hits, scratch=scratch
            )
        return hits


def _expression(trigger: Trigger) -> str:
    """What to look for: the literal alone where that is rare enough."""
    return re.escape(trigger.literal) if trigger.rare else trigger.expression


def _in_any(expression: str) -> str:
    """An expression that cannot be narrowed, if it may yet match in ASCII."""
    return expression if expression[:1].isascii() and expression[0] != "(" else ""


def _note(
    number: int, _start: int, end: int, _flags: int, hits: list[tuple[int, int]]
) -> None:
    hits.append((number, end))


@lru_cache(maxsize=8)
def engine(triggers: tuple[Trigger, ...]) -> Vectorscan:
    """The engine over ``triggers``, compiled once."""
    return Vectorscan(triggers)
