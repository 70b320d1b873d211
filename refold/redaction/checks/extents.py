"""Where values are that go on over lines: keys in PEM, the columns of tables."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import TypeAlias

from refold.redaction.checks.names import ABOUT, patterns
from refold.redaction.checks.secrets import odd

_Extents: TypeAlias = list[tuple[int, int]]

_LIKE = patterns("extents")
# A line of a key is as long as this, but for the last; a key has no more lines.
_FULL_LINE, _MOST_LINES, _FURTHEST = 32, 1024, 32_768
# Where its first line is said in base64, and what is remembered together.
_HEAD_OF, _BLOCK = 256, 16


def key_lines(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """A private key from its first line on, to its last or as far as it goes."""
    if _is_covered(match.start(), seen):
        return []
    head = _LIKE.HEAD.match(text, match.start())
    start = head.end() if head else match.start()
    if head and _LIKE.TAIL.search(match.group()):
        return [match.span()] if _material(text, start, match.end()) else []
    end = _down(text, start)
    _cover(match.start(), end, seen)
    return [(match.start(), end)] if end > start else []


def _is_covered(place: int, seen: set[int]) -> bool:
    """Whether ``place``, or some characters around it, were looked at as lines."""
    return place in seen or -1 - place // _BLOCK in seen


def _cover(start: int, end: int, seen: set[int]) -> None:
    """What begins between these places needs no look of its own."""
    seen.add(start)
    seen.update(range(-(end // _BLOCK), -((start + _BLOCK - 1) // _BLOCK)))


def key_lines_before(text: str, match: re.Match[str], _: set[int]) -> _Extents:
    """The lines of a private key of which only the last ones are there."""
    first = max(0, match.start() - _FURTHEST)
    # What is before the end of another key is no part of this one.
    first = max(first, text.rfind("-----END", first, match.start()))
    breaks = [
        found.span() for found in _LIKE.BREAK.finditer(text, first, match.start())
    ]
    start, stop = match.start(), match.start()
    # The last line of a key is short, and may be behind words that tools put there.
    short = 1
    for after, before in (*((e, b) for b, e in reversed(breaks)), (first, first)):
        ended = text.rfind("-----END", after, stop)  # of another key
        after = max(after, ended + len("-----END")) if ended >= 0 else after
        runs = list(_LIKE.RUN.finditer(text, after, stop))
        if any(map(_is_full, runs)) or (
            start == match.start() and runs and _by_itself(text, after, stop, runs)
        ):
            start = runs[0].start()
        elif stop != match.start() and (
            runs or _LIKE.LETTERS.search(text, after, stop)
        ):
            short -= 1
            if short < 0 or start < match.start():
                break
        if ended >= 0:
            break
        stop = before
    return [(start, match.end())] if start < match.start() else []


def encoded_key(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """Base64 of a private key in PEM, on one line or wrapped."""
    start = match.start()
    if _is_covered(start, seen):
        return []
    runs = re.findall(
        r"[A-Za-z0-9+/]{40,}|^[A-Za-z0-9+/]+", text[start : start + _HEAD_OF]
    )
    head = "".join(runs)[:128]
    try:
        plain = base64.b64decode(head[: len(head) // 4 * 4])
    except ValueError:
        return []
    if b"PRIVATE KEY" not in plain:
        return []
    end = _down(text, start)
    _cover(start, end, seen)
    return [(start, end)]


def _material(text: str, start: int, end: int) -> bool:
    """Whether there is any of a key: a word of a sentence is none."""
    return any(
        _LIKE.TOLD.search(run.group())
        and not re.match(" [a-z]", text[run.end() : run.end() + 2])
        for run in _LIKE.RUN.finditer(text, start, end)
    )


def _down(text: str, start: int) -> int:
    """Where the lines of a key end that go on from ``start``."""
    end = place = start
    if _LIKE.ASKED.match(text, start):
        return end
    for number in range(_MOST_LINES):
        limit = min(len(text), place + 16_384)
        # Where another key begins, a trigger of its own is.
        begins = text.find("-----BEGIN", place, limit)
        limit = limit if begins < 0 else begins
        found = _LIKE.BREAK.search(text, place, limit)
        stop = found.start() if found else limit
        runs = list(_LIKE.RUN.finditer(text, place, stop))
        if runs:
            if not (any(map(_is_full, runs)) or _by_itself(text, place, stop, runs)):
                return end
            end = runs[-1].end()
        elif (
            number
            and not _LIKE.FIELD.search(text, place, stop)
            and text[place:stop].strip(" \t\"'+,;|>#*/│-→:0123456789")
        ):
            return end
        if not found:
            return end
        place = found.end()
    return end


def _is_full(run: re.Match[str]) -> bool:
    """Whether it is as long as a line of a key, and no digest in hex."""
    long = run.end() - run.start() >= _FULL_LINE
    return long and not _LIKE.HEX.fullmatch(run.group())


def _by_itself(text: str, place: int, stop: int, runs: list[re.Match[str]]) -> bool:
    """Whether a line holds nothing but material, and what tools put around it."""
    first = runs[0].group()
    if not (_LIKE.TOLD.search(first) and _LIKE.LETTERS.search(first)):
        return False
    return not re.search("[A-Za-z]{2}", _LIKE.RUN.sub("", text[place:stop]))


_DELIMITERS = ("|", "\t", ",", ";", "│", "  ")
_MOST_ROWS = 100_000


def cells(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The cells below those of a table's head that name a secret."""
    first = text.rfind("\n", 0, match.start()) + 1
    if first in seen:
        return []
    seen.add(first)
    last = text.find("\n", match.start())
    head = text[first:last]
    for delimiter in _DELIMITERS:
        names = _split(head, 0, delimiter)
        if len(names) < 2 or not _is_head([head[a:b] for a, b in names], delimiter):
            continue
        wanted = [
            index
            for index, (a, b) in enumerate(names)
            if (name := _LIKE.NAME.fullmatch(head, a, b))
            and not ABOUT.search(name["joined"])
        ]
        # What the line below repeats is no head.
        same = names[0][1] > names[0][0] and text.startswith(
            head[: names[0][1] + 1], last + 1
        )
        if wanted and not same:
            known = bool(_LIKE.OF_USERS.search(head))
            return list(
                _below(text, last + 1, delimiter, len(names), wanted, known, seen)
            )
    return []


def _is_head(names: list[str], delimiter: str) -> bool:
    """Whether a line of cells names columns: short names, and nothing is left out."""
    inner = names[bool(delimiter in "|│" and not names[0].strip()) :]
    inner = inner[: len(inner) - bool(delimiter in "|│" and not inner[-1].strip())]
    return len(inner) > 0 and all(map(_LIKE.COLUMN.fullmatch, inner))


def _below(
    text: str,
    place: int,
    delimiter: str,
    width: int,
    wanted: list[int],
    known: bool,
    seen: set[int],
) -> Iterator[tuple[int, int]]:
    for _ in range(_MOST_ROWS):
        stop = text.find("\n", place)
        stop = len(text) if stop < 0 else stop
        if stop <= place:
            return
        row = text[place:stop]
        if not _LIKE.RULE.fullmatch(row):
            parts = _split(row, place, delimiter)
            if len(parts) != width:
                return
            for index in wanted:
                a, b = parts[index]
                cell = _LIKE.PLAIN.fullmatch(text, a, b)
                if cell and (odd(cell[1]) or (known and _LIKE.WORD.fullmatch(cell[1]))):
                    yield cell.span(1)
        seen.add(place)
        place = stop + 1


def _split(row: str, offset: int, delimiter: str) -> list[tuple[int, int]]:
    """Where the cells of a row are."""
    if delimiter == "  ":
        spans = [match.span() for match in re.finditer(r"\S+(?: \S+)*", row)]
        return [(offset + start, offset + end) for start, end in spans]
    found = []
    for cell in row.split(delimiter):
        found.append((offset, offset + len(cell)))
        offset += len(cell) + 1
    return found
