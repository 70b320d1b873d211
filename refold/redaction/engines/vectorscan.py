"""Vectorscan as an engine, through ``hyperscan``: all triggers in one pass."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from operator import itemgetter
from pkgutil import get_data
from typing import Any, Final, NamedTuple

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
from refold.redaction.engines.patterns import fixed_width, is_ascii

_IN_RUN: Final = IN_RUN.encode()
# With a run of digits in this many bytes or fewer, one pass over all bytes is faster
# than a look at each run.
_DENSE = 1024


# Errors of databases that are damaged, or compiled for another processor or version.
UNUSABLE: Final = (hyperscan.HyperscanError, ValueError)
# Whatever turns triggers into expressions.
_CODE: Final = ("__init__.py", "fold.py", "patterns.py", "syntax.py", "vectorscan.py")


def identity_of(triggers: Sequence[Trigger]) -> str:
    """Return a digest of the triggers, and of all code that compiles them."""
    digest = sha256(json.dumps(triggers).encode())
    digest.update(_version().encode())
    for file in _CODE:
        source = get_data(__package__, file) or b""
        digest.update(sha256(source).digest())
    return digest.hexdigest()


@cache
def _version() -> str:
    """Return the version of hyperscan."""
    # Its module has it, too.  To read metadata takes longer than to load databases.
    of_module = str(getattr(hyperscan, "__version__", "unknown"))
    if of_module != "unknown":
        return of_module
    from importlib.metadata import version

    return version("hyperscan")


def serialized(engine: Triggers) -> list[bytes]:
    """Return the databases of the engine as bytes, for another process."""
    return [database.dump() for database in engine.databases]


class Triggers:
    """Several databases, each fast and scanned only where it can find something.

    One database for everything would be far slower.  Expressions that are not ASCII
    need a mode of their own, and shapes of digits have many states that most texts do
    not use.
    """

    gates = True

    def __init__(
        self, triggers: Sequence[Trigger], databases: Sequence[bytes] | None = None
    ) -> None:
        """Compile the triggers, or load the ``databases`` that ``serialized`` returned.

        Raises an error of ``UNUSABLE`` for databases that do not fit.
        """
        self.name = f"vectorscan/{_version()}"
        # The number of the expression for long runs of digits.
        self._run = len(triggers)
        if databases is None:
            self._compile(triggers)
        else:
            plain, of_keys, wide, shaped = map(_Database.load, databases)
            self._plain = plain
            # Only ``in_json`` needs words of keys: prose is not searched for them.
            self._of_keys = of_keys
            self._wide = wide
            self._shapes = shaped
        self._triggers = triggers
        # Matches of these end behind the text after their literal.
        self._followed = {
            number
            for number, trigger in enumerate(triggers)
            if trigger.literal and trigger.then and not trigger.rare
        }
        # Those that a text had: most texts have few.
        self._followed_literals: dict[int, _Followed] = {}
        self._keys = {number for number, trigger in enumerate(triggers) if trigger.key}
        self._keys_without_digits = {
            number for number in self._keys if not triggers[number].run
        }

    def _compile(self, triggers: Sequence[Trigger]) -> None:
        """Compile the databases."""
        texts: list[tuple[int, str]] = []
        keys: list[tuple[int, str]] = []
        shapes: list[tuple[int, str]] = []
        for number, trigger in enumerate(triggers):
            if trigger.key:
                keys.append((number, trigger.shape))
            elif trigger.near_digits:
                shapes.append((number, trigger.shape))
            else:
                texts.append((number, trigger.expression))
        texts.append((self._run, _LONG_RUN))
        self._plain = _caseless(_in_ascii(texts))
        self._of_keys = _caseless(_narrowed(keys))
        self._wide = _caseless(
            (number, text) for number, text in (*texts, *keys) if not text.isascii()
        )
        self._shapes = _caseless(shapes)

    @property
    def databases(self) -> list[_Database]:
        """The databases, in the order in which ``__init__`` takes them."""
        return [self._plain, self._of_keys, self._wide, self._shapes]

    def in_json(self, data: bytes) -> list[Hit] | None:
        hits = self._hits(data)
        hits += self._of_keys.hits(data)
        # Some words of keys give context only to long runs of digits.
        keys = self._keys_without_digits
        if self._run in map(itemgetter(0), hits):
            keys = self._keys
        ends = [end for number, end in hits if number in keys]
        has_value = bool(ends) and holds_value(data)
        for end in ends:
            if names(data, end, has_value=has_value):
                return None
        return self._in_texts(data, hits)

    def scan(self, data: bytes) -> list[Hit]:
        return self._in_texts(data, self._hits(data))

    def _hits(self, data: bytes) -> list[Hit]:
        hits = self._plain.hits(data)
        return hits if data.isascii() else hits + self._wide.hits(data)

    def _in_texts(self, data: bytes, hits: list[Hit]) -> list[Hit]:
        """The ``hits`` without those of keys, and shapes near long runs of digits."""
        if not hits:
            return hits
        run = self._run
        followed = self._followed
        ends_of_runs: list[int] = []
        ends_of_followed: dict[int, list[int]] = {}
        in_texts: list[Hit] = []
        for hit in hits:
            number = hit[0]
            if number in followed:
                ends_of_followed.setdefault(number, []).append(hit[1])
            elif number == run:
                ends_of_runs.append(hit[1])
            elif number not in self._keys:
                in_texts.append(hit)
        lower: bytes | None = None  # only some literals are looked for in it
        for number, ends in ends_of_followed.items():
            literal = self._followed_literals.get(number)
            if literal is None:
                literal = _Followed.of(self._triggers[number])
                self._followed_literals[number] = literal
            if literal.width < 0 and lower is None:
                lower = data.lower()
            for end in literal.literals(lower or data, ends):
                in_texts.append((number, end))
        if not ends_of_runs:
            return in_texts
        if len(ends_of_runs) * _DENSE > len(data):
            return in_texts + self._shapes.hits(data)
        for start, stop in windows(data, ends_of_runs):
            for number, end in self._shapes.hits(data[start:stop]):
                in_texts.append((number, start + end))
        return in_texts


class _Followed(NamedTuple):
    """A literal with a text after it, at whose end its matches end.

    width: the bytes of the text after the literal; -1 if they differ.
    reach: how far before the end of a match the literal may begin.
    """

    literal: bytes
    width: int
    reach: int

    @classmethod
    def of(cls, trigger: Trigger) -> _Followed:
        """The literal of a trigger, in bytes."""
        literal = trigger.literal.encode()
        after = trigger.after
        is_plain = is_ascii(after)
        bytes_of_character = 1 if is_plain else 4
        width = fixed_width(after) if is_plain else -1
        return cls(literal, width, trigger.reach * bytes_of_character)

    def literals(self, lower: bytes, ends: list[int]) -> list[int]:
        """The ends of the literal in lower-case data, before the ``ends`` of matches.

        Each match has at least one.
        """
        if self.width >= 0:
            return [end - self.width for end in ends]
        ends.sort()
        places: list[int] = []
        length = len(self.literal)
        searched = 0
        for end in ends:
            place = lower.find(self.literal, max(searched, end - self.reach), end)
            while place >= 0:
                places.append(place + length)
                searched = place + 1
                place = lower.find(self.literal, searched, end)
        return places


def _in_ascii(expressions: Iterable[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    """The parts of the expressions that can match in ASCII."""
    for number, text in expressions:
        only_ascii = narrow(text) or _unless_wide(text)
        if only_ascii:
            yield number, only_ascii


def _narrowed(expressions: Iterable[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    """The parts of the expressions that can be narrowed to ASCII."""
    for number, text in expressions:
        only_ascii = narrow(text)
        if only_ascii:
            yield number, only_ascii


class _Database:
    """Expressions over bytes, compiled together, with the memory to run them."""

    def __init__(self, compiled: Any) -> None:
        self._local = threading.local()
        # None without expressions.
        self._compiled = compiled

    @classmethod
    def compile(
        cls, expressions: Sequence[tuple[int, str]], *, flags: int
    ) -> _Database:
        """Compile expressions with their numbers."""
        if not expressions:
            return cls(None)
        compiled = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        compiled.compile(
            expressions=[text.encode() for _, text in expressions],
            ids=[number for number, _ in expressions],
            elements=len(expressions),
            flags=flags,
        )
        return cls(compiled)

    @classmethod
    def load(cls, content: bytes) -> _Database:
        """Return the database that ``dump`` returned as bytes."""
        if not content:
            return cls(None)
        compiled = hyperscan.loadb(content, hyperscan.HS_MODE_BLOCK)
        # Working memory is only made for a database that this processor can run.
        hyperscan.Scratch(compiled)
        return cls(compiled)

    def dump(self) -> bytes:
        """Return the database as bytes; without expressions, none."""
        if self._compiled is None:
            return b""
        content: bytes = hyperscan.dumpb(self._compiled)
        return content

    def hits(self, data: bytes) -> list[Hit]:
        """(number of an expression, end of a match) for each match."""
        compiled = self._compiled
        hits: list[Hit] = []
        if compiled is None:
            return hits
        try:
            # Working memory, which only one search may use at a time.
            scratch = self._local.scratch
        except AttributeError:
            scratch = self._local.scratch = hyperscan.Scratch(compiled)
        try:
            compiled.scan(
                data, match_event_handler=_note, context=hits, scratch=scratch
            )
        except hyperscan.ScratchInUseError:
            # A signal handler or a log line searches in the middle of a search.
            hits.clear()
            fresh = hyperscan.Scratch(compiled)
            compiled.scan(data, match_event_handler=_note, context=hits, scratch=fresh)
        return hits


def _caseless(expressions: Iterable[tuple[int, str]]) -> _Database:
    return _Database.compile(
        [(number, in_bytes(text)) for number, text in expressions],
        flags=hyperscan.HS_FLAG_CASELESS,
    )


def _note(number: int, _start: int, end: int, _flags: int, hits: list[Hit]) -> None:
    hits.append((number, end))


def literals(texts: Sequence[str]) -> Literals:
    """A search in one database of all literals, which compiles short ones fast."""
    database = _Database.compile(
        [(0, _telling()), *enumerate(map(_exactly, texts), start=1)],
        flags=hyperscan.HS_FLAG_SINGLEMATCH,
    )

    def search(text: str) -> tuple[list[str], bool]:
        numbers = sorted(number for number, _ in database.hits(_utf8(text)))
        # Number 0 stands for a telling form.
        folds = bool(numbers) and numbers[0] == 0
        if folds:
            numbers = numbers[1:]
        return [texts[number - 1] for number in numbers], folds

    return search


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")


@cache
def _telling() -> str:
    """The expression, over bytes, of telling forms, for which a text is folded."""
    from refold.redaction.engines.fold import TELLING

    return "|".join(map(in_bytes, TELLING))


def _exactly(literal: str) -> str:
    """The expression for ``literal``: its bytes in hex."""
    return "".join(f"\\x{byte:02x}" for byte in literal.encode())


def _unless_wide(expression: str) -> str:
    """An expression that cannot be narrowed, if it may still match in ASCII."""
    return expression if expression[:1].isascii() and expression[0] != "(" else ""


# Ten digits or more, with the character after them, or four separators.
_LONG_RUN: Final = (
    rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{MANY - 1},}}"
    r"(?:[ .()\-/]{0,3}[^0-9 .()\-/]|[ .()\-/]{4})"
)


def windows(data: bytes, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of ``data`` around the runs of digits at ``ends``, merged."""
    merged: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        first, last = _run_around(data, end)
        start = max(0, first - BEFORE)
        stop = min(len(data), last + AFTER)
        # No character is cut in two.
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        if merged and start <= merged[-1][1]:
            start, _ = merged.pop()
        merged.append((start, stop))
    return merged


def _run_around(data: bytes, place: int) -> tuple[int, int]:
    """The start and end of the run of digits that touches ``place``."""
    start = max(0, place - 16)
    if not data[start:place].strip(_IN_RUN):
        start = run_start(data, start, _IN_RUN)
    return start, run_end(data, place, _IN_RUN)


# These patterns are needed only to compile.  ``re`` compiles them at their first use.
#
# A class with its repeat, an escape, or any other character.
_PART: Final = (
    r"(?s)(?P<set>\[\^?(?:\\.|[^\]\\])+\])"
    r"(?:(?P<maybe>\?)|\{(?P<least>\d+),(?P<most>\d+)\})?"
    r"|(?P<other>\\.|.)"
)
_MEMBER: Final = r"(?s)(\\.|[^\\])(?:-(\\.|[^\\]))?"
# Any character that is not ASCII, which is close enough for a long range of them.
_ANY = r"[\xc2-\xf4][\x80-\xbf]{1,3}"
_MANY = 512


def in_bytes(pattern: str) -> str:
    """``pattern`` over bytes: it matches wherever that does, and maybe elsewhere."""
    parts: list[str] = []
    for token in re.finditer(_PART, pattern):
        characters = token["set"]
        if characters is None:
            parts.append(_hex(token["other"]))
        elif characters.startswith("[^"):
            parts.append(_negated(token, pattern))
        else:
            repeat = token[0][len(characters) :]
            parts.append(_members(characters) + repeat)
    return "".join(parts)


def narrow(pattern: str) -> str:
    """The part of ``pattern`` that can match in ASCII; empty if there is none."""
    only_ascii = re.sub(_CLASS_OR_WAY, _without_wide, pattern)
    return only_ascii if only_ascii.isascii() and "[]" not in only_ascii else ""


def _without_wide(match: re.Match[str]) -> str:
    """A class without the characters that are not ASCII; no other alternative."""
    return re.sub(_WIDE, "", match[0]) if match[0][0] == "[" else ""


# A class, or an alternative of a group that cannot match in ASCII.
_CLASS_OR_WAY: Final = (
    r"\[(?:\\.|[^\]\\])+\]|\|[^\x00-\x7f]+(?=[|)])|(?<=\(\?:)[^\x00-\x7f]+\|"
)
_WIDE: Final = r"[^\x00-\x7f](?:-[^\x00-\x7f])?"


def _hex(text: str) -> str:
    return text if text.isascii() else f"(?:{_exactly(text)})"


def _negated(token: re.Match[str], pattern: str) -> str:
    """A negated class of ASCII, whose character may take four bytes.

    At either end of a pattern one byte is enough.
    """
    negated = token["set"]
    most = token["most"]
    if most:
        return f"{negated}{{{token['least']},{4 * int(most)}}}"
    if token["maybe"]:
        return f"{negated}{{0,4}}"
    is_first = pattern[: token.start()] in ("", "(?:", "(?:^|")
    is_last = token.end() == len(pattern)
    return negated if is_first or is_last else f"{negated}{{1,4}}"


def _members(text: str) -> str:
    """A class, as alternatives if some of its members take several bytes."""
    if text.isascii():
        return text
    plain = ""
    ways: list[str] = []
    for first, last in re.findall(_MEMBER, text[1:-1]):
        if first.isascii():
            plain += f"{first}-{last}" if last else first
        elif last and ord(last) - ord(first) > _MANY:
            ways.append(_ANY)
        else:
            for code in range(ord(first), ord(last or first) + 1):
                ways.append(_exactly(chr(code)))
    if plain:
        ways.insert(0, f"[{plain}]")
    return f"(?:{'|'.join(ways)})"
