"""Vectorscan, through the package ``hyperscan``: all triggers in one pass."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import version
from operator import itemgetter
from typing import Any, Final

import hyperscan

from refold.redaction.engines import (
    AFTER,
    BEFORE,
    IN_RUN,
    MANY,
    Hit,
    Literals,
    Trigger,
    holds_value,
    names,
    run_end,
    run_start,
)
from refold.redaction.engines.fold import TELLING

_IN_RUN: Final = IN_RUN.encode()
# With a run of digits in so many bytes, a pass over all is faster than a look at each.
_DENSE = 1024


class Triggers:
    """Databases that are each fast, and scanned only where they can find something.

    All in one would be far slower: expressions that are not ASCII need a mode of their
    own, and shapes of digits are many states that most texts have no use for.
    """

    gates = True

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self.name = f"vectorscan/{version('hyperscan')}"
        numbered = list(enumerate(triggers))
        self._run = len(triggers)
        plain = [(n, t.expression) for n, t in numbered if not (t.beside or t.key)]
        plain.append((self._run, _LONG_RUN))
        keys = [(n, t.shape) for n, t in numbered if t.key]
        in_ascii = [
            (n, only) for n, text in plain if (only := narrow(text) or _in_any(text))
        ]
        self._plain = _caseless(in_ascii)
        # What only ``in_json`` asks for: a text of prose is not searched for it.
        in_keys = [(n, only) for n, text in keys if (only := narrow(text))]
        self._of_keys = _caseless(in_keys)
        self._wide = _caseless(one for one in (*plain, *keys) if not one[1].isascii())
        self._keys = {n for n, _ in keys}
        self._keys_alone = {n for n in self._keys if not triggers[n].run}
        self._shapes = _caseless((n, t.shape) for n, t in numbered if t.beside)

    def in_json(self, data: bytes) -> list[Hit] | None:
        hits = self._hits(data)
        hits += self._of_keys.hits(data)
        # Some keys say something of long runs of digits alone.
        long = self._run in map(itemgetter(0), hits)
        asked = self._keys if long else self._keys_alone
        asked_at = [end for number, end in hits if number in asked]
        beside = bool(asked_at) and holds_value(data)
        for end in asked_at:
            if names(data, end, beside=beside):
                return None
        return self._in_texts(data, hits)

    def scan(self, data: bytes) -> list[Hit]:
        return self._in_texts(data, self._hits(data))

    def _hits(self, data: bytes) -> list[Hit]:
        hits = self._plain.hits(data)
        return hits if data.isascii() else hits + self._wide.hits(data)

    def _in_texts(self, data: bytes, hits: list[Hit]) -> list[Hit]:
        """The ``hits`` of no key, and what is around long runs of digits."""
        if not hits:
            return hits
        keys, run = self._keys, self._run
        hits = [hit for hit in hits if hit[0] not in keys]
        if run not in map(itemgetter(0), hits):
            return hits
        long = [end for number, end in hits if number == run]
        found = [hit for hit in hits if hit[0] != run]
        if len(long) * _DENSE > len(data):
            return found + self._shapes.hits(data)
        for start, stop in windows(data, long):
            inside = self._shapes.hits(data[start:stop])
            found += [(number, start + end) for number, end in inside]
        return found


class _Database:
    """Expressions over bytes, compiled together, and what it takes to run them."""

    def __init__(self, expressions: Sequence[tuple[int, str]], *, flags: int) -> None:
        self._local = threading.local()
        self._compiled: Any = None
        if not expressions:
            return
        self._compiled = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._compiled.compile(
            expressions=[text.encode() for _, text in expressions],
            ids=[number for number, _ in expressions],
            elements=len(expressions),
            flags=flags,
        )

    def hits(self, data: bytes) -> list[Hit]:
        """(number of an expression, where a match ends) for each match."""
        compiled, hits = self._compiled, list[Hit]()
        if compiled is None:
            return hits
        try:
            # Working memory, which no two searches may share at a time.
            scratch = self._local.scratch
        except AttributeError:
            scratch = self._local.scratch = hyperscan.Scratch(compiled)
        try:
            compiled.scan(
                data, match_event_handler=_note, context=hits, scratch=scratch
            )
        except hyperscan.ScratchInUseError:
            # A signal's handler, or a log line, in the middle of a search.
            hits.clear()
            fresh = hyperscan.Scratch(compiled)
            compiled.scan(data, match_event_handler=_note, context=hits, scratch=fresh)
        return hits


def _caseless(expressions: Iterable[tuple[int, str]]) -> _Database:
    return _Database(
        [(number, in_bytes(text)) for number, text in expressions],
        flags=hyperscan.HS_FLAG_CASELESS,
    )


def _note(number: int, _start: int, end: int, _flags: int, hits: list[Hit]) -> None:
    hits.append((number, end))


def literals(texts: Sequence[str]) -> Literals:
    """One database of all literals, made for short ones: a long one costs no more."""
    database = _Database(
        [(0, _telling()), *enumerate(map(_exactly, texts), start=1)],
        flags=hyperscan.HS_FLAG_SINGLEMATCH,
    )

    def found(text: str) -> tuple[list[str], bool]:
        there = sorted(database.hits(text.encode(errors="replace")))
        folds = bool(there) and there[0][0] == 0
        return [texts[number - 1] for number, _ in there[folds:]], folds

    return found


@cache
def _telling() -> str:
    """What a text holds that may look like something else, over bytes."""
    return "|".join(map(in_bytes, TELLING))


def _exactly(literal: str) -> str:
    """``literal`` for an expression: its bytes in hex."""
    return "".join(f"\\x{byte:02x}" for byte in literal.encode())


def _in_any(expression: str) -> str:
    """An expression that cannot be narrowed, if it may yet match in ASCII."""
    return expression if expression[:1].isascii() and expression[0] != "(" else ""


# Ten digits or more, and what ends them.
_LONG_RUN: Final = (
    rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{MANY - 1},}}"
    r"(?:[ .()\-/]{0,3}[^0-9 .()\-/]|[ .()\-/]{4})"
)


def windows(data: bytes, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of ``data`` around the runs of digits at ``ends``, merged."""
    found: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        start, last = _around(data, end)
        start, stop = max(0, start - BEFORE), min(len(data), last + AFTER)
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _around(data: bytes, place: int) -> tuple[int, int]:
    """Where what may be a run begins that ends before ``place`` or goes on after it."""
    start = max(0, place - 16)
    if not data[start:place].strip(_IN_RUN):
        start = run_start(data, start, _IN_RUN)
    return start, run_end(data, place, _IN_RUN)


# A class with what is said of how often, an escape, or any other character.
_TOKEN = re.compile(
    r"(?P<set>\[\^?(?:\\.|[^\]\\])+\])(?:(?P<maybe>\?)|\{(?P<least>\d+),(?P<most>\d+)\})?"
    r"|(?P<other>\\.|.)",
    re.DOTALL,
)
_MEMBER = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
# Any character that is not ASCII; for a range of many, that is near enough.
_ANY = r"[\xc2-\xf4][\x80-\xbf]{1,3}"
_MANY = 512


def in_bytes(pattern: str) -> str:
    """``pattern`` over bytes: it matches wherever that does, perhaps more often."""
    out = []
    for token in _TOKEN.finditer(pattern):
        if token["set"] is None:
            out.append(_hex(token["other"]))
        elif token["set"].startswith("[^"):
            out.append(_negated(token, pattern))
        else:
            often = token[0][len(token["set"]) :]
            out.append(_members(token["set"]) + often)
    return "".join(out)


def narrow(pattern: str) -> str:
    """What of ``pattern`` can match in ASCII; empty: nothing."""
    only = _CLASS_OR_WAY.sub(
        lambda m: _WIDE.sub("", m[0]) if m[0][0] == "[" else "", pattern
    )
    return only if only.isascii() and "[]" not in only else ""


# A class, or one way of a group that cannot match in ASCII.
_CLASS_OR_WAY = re.compile(
    r"\[(?:\\.|[^\]\\])+\]|\|[^\x00-\x7f]+(?=[|)])|(?<=\(\?:)[^\x00-\x7f]+\|"
)
_WIDE = re.compile(r"[^\x00-\x7f](?:-[^\x00-\x7f])?")


def _hex(text: str) -> str:
    return text if text.isascii() else f"(?:{_exactly(text)})"


def _negated(token: re.Match[str], pattern: str) -> str:
    """A character that is none of some ASCII ones may take four bytes.

    At either end of a pattern one of them is enough.
    """
    negated, most = token["set"], token["most"]
    if most:
        return f"{negated}{{{token['least']},{4 * int(most)}}}"
    if token["maybe"]:
        return f"{negated}{{0,4}}"
    first = pattern[: token.start()] in ("", "(?:", "(?:^|")
    return negated if first or token.end() == len(pattern) else f"{negated}{{1,4}}"


def _members(text: str) -> str:
    """A class, as ways of a group if some of its members take several bytes."""
    if text.isascii():
        return text
    plain, ways = "", []
    for first, last in _MEMBER.findall(text[1:-1]):
        if first.isascii():
            plain += f"{first}-{last}" if last else first
        elif last and ord(last) - ord(first) > _MANY:
            ways.append(_ANY)
        else:
            codes = range(ord(first), ord(last or first) + 1)
            ways += [_hex(chr(code))[3:-1] for code in codes]
    return f"(?:{'|'.join([f'[{plain}]'] * bool(plain) + ways)})"
