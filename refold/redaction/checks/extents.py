"""Extents of values that continue over lines: keys in PEM, the columns of tables."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from refold.redaction.checks.names import ABOUT, patterns
from refold.redaction.checks.secrets import odd

_Extents: TypeAlias = list[tuple[int, int]]

_PATTERNS = patterns("extents")
# Every line of a key except the last is at least this long.
FULL_LINE: Final = 32
# The most lines of a key, and the most characters.
_MOST_LINES: Final = 1024
_FURTHEST: Final = 32_768
# The part of a key in base64 that must have its first line.
_HEAD_OF: Final = 256
# The most characters of a tool's before a line.
_LONGEST_PREFIX: Final = 160
# How many places are remembered together.
_BLOCK: Final = 16


def has_full_line(text: str, start: int, stop: int) -> bool:
    """Whether there is a run in a part of ``text`` that is a line of a key."""
    return any(map(_is_full, _PATTERNS.RUN.finditer(text, start, stop)))


def key_lines(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """A private key from its first line to its last, or to the end of its lines."""
    if _is_covered(match.start(), seen):
        return []
    head = _PATTERNS.HEAD.match(text, match.start())
    start = head.end() if head else match.start()
    if head and _PATTERNS.TAIL.search(match.group()):
        return [match.span()] if _has_material(text, start, match.end()) else []
    end = _down(text, start)
    _cover(match.start(), end, seen)
    return [(match.start(), end)] if end > start else []


def _is_covered(place: int, seen: set[int]) -> bool:
    """Whether ``place`` or its block was covered by an earlier call."""
    return place in seen or -1 - place // _BLOCK in seen


def _cover(start: int, end: int, seen: set[int]) -> None:
    """Remember ``start`` and the blocks up to ``end``, so that no call looks again.

    Places are remembered as they are, blocks as negative numbers.
    """
    seen.add(start)
    seen.update(range(-(end // _BLOCK), -((start + _BLOCK - 1) // _BLOCK)))


def key_lines_before(text: str, match: re.Match[str], _: set[int]) -> _Extents:
    """The lines of a private key of which only the last ones are in the text."""
    first = max(0, match.start() - _FURTHEST)
    # Text before the end of another key is no part of this one.
    first = max(first, text.rfind("-----END", first, match.start()))
    lines: list[tuple[int, int]] = []  # upwards: (start, end of the line before)
    for line_break in _PATTERNS.BREAK.finditer(text, first, match.start()):
        before, after = line_break.span()
        lines.insert(0, (after, before))
    lines.append((first, first))
    start = match.start()
    stop = match.start()
    # The last line of a key is short, and may stand behind words of a tool.
    short = 1
    for after, before in lines:
        end_of_other = text.rfind("-----END", after, stop)
        if end_of_other >= 0:
            after = max(after, end_of_other + len("-----END"))
        if text.rfind("-----BEGIN", after, stop) >= 0:
            break  # the first line of the key, which has a trigger of its own
        runs = list(_PATTERNS.RUN.finditer(text, after, stop))
        is_last = start == match.start()
        if any(map(_is_full, runs)) or (
            is_last and runs and _is_only_material(text, after, stop, runs)
        ):
            # The text before the last run of a line is a tool's, or another field.
            start = runs[-1].start()
            if not _is_prefix(text[after:start]):
                break
        elif stop != match.start() and (
            runs or _PATTERNS.LETTERS.search(text, after, stop)
        ):
            short -= 1
            if short < 0 or not is_last:
                break
        if end_of_other >= 0:
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


def _has_material(text: str, start: int, end: int) -> bool:
    """Whether a part of a key is there; a word of a sentence is none."""
    for run in _PATTERNS.RUN.finditer(text, start, end):
        in_sentence = re.match(" [a-z]", text[run.end() : run.end() + 2])
        if _PATTERNS.TOLD.search(run.group()) and not in_sentence:
            return True
    return False


def _down(text: str, start: int) -> int:
    """The end of the lines of a key that continue from ``start``."""
    end = start
    place = start
    if _PATTERNS.ASKED.match(text, start):
        return end
    for number in range(_MOST_LINES):
        limit = min(len(text), place + 16_384)
        # Another key that begins has a trigger of its own.
        next_key = text.find("-----BEGIN", place, limit)
        if next_key >= 0:
            limit = next_key
        line_break = _PATTERNS.BREAK.search(text, place, limit)
        stop = line_break.start() if line_break else limit
        runs = list(_PATTERNS.RUN.finditer(text, place, stop))
        if runs:
            is_full = any(map(_is_full, runs))
            if not is_full and not _is_only_material(text, place, stop, runs):
                return end
            end = runs[-1].end()
        elif (
            number
            and not _PATTERNS.FIELD.search(text, place, stop)
            and text[place:stop].strip(" \t\"'+,;|>#*/│-→:0123456789")
        ):
            return end
        if not line_break:
            return end
        place = line_break.end()
    return end


def _is_full(run: re.Match[str]) -> bool:
    """Whether a run is as long as a line of a key, and no digest or word.

    Base64 of so many bytes has letters in both cases.
    """
    text = run.group()
    if len(text) < FULL_LINE or text.islower() or text.isupper():
        return False
    return (
        not _PATTERNS.HEX.fullmatch(text) and _PATTERNS.LETTERS.search(text) is not None
    )


def _is_prefix(text: str) -> bool:
    """Whether a tool may have put ``text`` before a line: a number, a name, a command.

    Another field of an object or an assignment is no such text.
    """
    return len(text) <= _LONGEST_PREFIX and not _PATTERNS.OTHER_FIELD.search(text)


def _is_only_material(
    text: str, place: int, stop: int, runs: list[re.Match[str]]
) -> bool:
    """Whether a line holds a part of a key and nothing else but a tool's signs."""
    first = runs[0].group()
    if not (_PATTERNS.TOLD.search(first) and _PATTERNS.LETTERS.search(first)):
        return False
    return not re.search("[A-Za-z]{2}", _PATTERNS.RUN.sub("", text[place:stop]))


_STRING_IN_QUOTES: Final = r'[ ]?"(?:[^"]|"")*+"'


def _cell(delimiter: str) -> re.Pattern[str]:
    """A cell of CSV, in quotes or without them (RFC 4180)."""
    start = rf"(?:(?<={delimiter})|\A)"
    in_quotes = rf"{_STRING_IN_QUOTES}[ \r]?(?={delimiter}|\Z)"
    return re.compile(rf"{start}(?:{in_quotes}|[^{delimiter}]*)")


def _open_row(delimiter: str) -> re.Pattern[str]:
    """A row of CSV whose last cell begins with a quote that nothing closes.

    A quote inside of a cell without quotes, such as an inch sign, opens nothing.  A
    malformed cell may have text behind its quotes.
    """
    cell = rf'(?:{_STRING_IN_QUOTES}|(?![ ]?"))[^{delimiter}]*+'
    return re.compile(rf'\A(?:{cell}{delimiter})*+[ ]?"(?:[^"]|"")*+\Z')


_DELIMITERS_OF_CSV: Final = (",", ";", "\t")
_QUOTING: Final = {delimiter: _cell(delimiter) for delimiter in _DELIMITERS_OF_CSV}
_OPEN_ROW: Final = {delimiter: _open_row(delimiter) for delimiter in _DELIMITERS_OF_CSV}
_OPENED_CELL: Final = {
    sign: re.compile(rf'(?:\A|{sign})[ ]?"') for sign in _DELIMITERS_OF_CSV
}
# The most lines of a row that has a cell with line breaks.
_MOST_LINES_OF_ROW: Final = 8
_DELIMITERS = ("|", "\t", ",", ";", "│", "  ")
_MOST_ROWS: Final = 100_000


def cells(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The cells in those columns of a table whose head names a secret."""
    table = _table(text, match, seen, _names_secret)
    if table is None:
        return []
    of_users = bool(_PATTERNS.OF_USERS.search(table.head))
    return list(_secrets_in(text, table.rows, table.wanted, of_users=of_users))


def birth_cells(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The cells in the columns of days of birth."""
    return _cells_of(text, _table(text, match, seen, _names_birth))


def person_cells(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The cells in the columns of names of people."""
    return _cells_of(text, _table(text, match, seen, _names_person))


class _Table(NamedTuple):
    """A table whose head is read: the line, the indexes of columns, and the rows."""

    head: str
    wanted: list[int]
    rows: Iterator[list[tuple[int, int]]]


def _table(
    text: str,
    match: re.Match[str],
    seen: set[int],
    is_wanted: Callable[[str, int, int], bool],
) -> _Table | None:
    """The table whose head is the line of a match; None if there is none.

    is_wanted: whether the name of a column from one place to another is wanted.
    """
    first = text.rfind("\n", 0, match.start()) + 1
    if first in seen:
        return None
    seen.add(first)
    last = text.find("\n", match.start())
    head = text[first:last]
    for delimiter in _DELIMITERS:
        spans = _split(head, 0, delimiter)
        names = [head[start:end] for start, end in spans]
        if len(spans) < 2 or not _is_head(names, delimiter):
            continue
        wanted: list[int] = []
        for index, (start, end) in enumerate(spans):
            if is_wanted(head, start, end):
                wanted.append(index)
        # A line whose first cell the next line repeats is no head.
        start, end = spans[0]
        repeated = end > start and text.startswith(head[: end + 1], last + 1)
        if wanted and not repeated:
            # The first column of a table in columns may be a number without a name.
            numbered = delimiter == "  " and head[:1] == " "
            rows = _rows(text, last + 1, delimiter, len(spans), seen, numbered=numbered)
            return _Table(head, wanted, rows)
    return None


def _names_secret(head: str, start: int, end: int) -> bool:
    name = _PATTERNS.NAME.fullmatch(head, start, end)
    return name is not None and not ABOUT.search(name["joined"])


def _names_birth(head: str, start: int, end: int) -> bool:
    return _PATTERNS.BIRTH_COLUMN.fullmatch(head, start, end) is not None


def _names_person(head: str, start: int, end: int) -> bool:
    return _PATTERNS.PERSON_COLUMN.fullmatch(head, start, end) is not None


def _cells_of(text: str, table: _Table | None) -> _Extents:
    """The cells in the wanted columns, without quotes and spaces around them."""
    extents: _Extents = []
    if table is None:
        return extents
    for spans in table.rows:
        for index in table.wanted:
            cell = _PATTERNS.PLAIN.fullmatch(text, *spans[index])
            if cell and cell[1]:
                extents.append(cell.span(1))
    return extents


def _is_head(names: list[str], delimiter: str) -> bool:
    """Whether a line of cells names columns: short names, and none is empty."""
    if delimiter in "|│":
        # The delimiter may also stand at both ends of the line.
        if not names[0].strip():
            names = names[1:]
        if names and not names[-1].strip():
            names = names[:-1]
    return len(names) > 0 and all(map(_PATTERNS.COLUMN.fullmatch, names))


def _rows(
    text: str,
    place: int,
    delimiter: str,
    width: int,
    seen: set[int],
    *,
    numbered: bool = False,
) -> Iterator[list[tuple[int, int]]]:
    """The cells of each row from ``place`` on, while a line has ``width`` of them.

    numbered: a row may begin with a number that is no cell.
    """
    for _ in range(_MOST_ROWS):
        stop = text.find("\n", place)
        if stop < 0:
            stop = len(text)
        if stop <= place:
            return
        end = stop
        if delimiter in _QUOTING:
            end = _end_of_row(text, place, stop, delimiter, width)
        if not _PATTERNS.RULE.fullmatch(text, place, end):
            spans = _split(text[place:end], place, delimiter)
            if numbered and len(spans) == width + 1:
                spans = spans[1:]
            if len(spans) != width:
                return
            yield spans
        seen.add(place)
        place = end + 1


def _end_of_row(text: str, place: int, stop: int, delimiter: str, width: int) -> int:
    """The end of a row of which a cell in quotes may continue on the next lines.

    stop: the end of its first line.
    """
    if text.find('"', place, stop) < 0:
        return stop
    for end in _ends_of_row(text, place, stop, delimiter):
        if len(_split(text[place:end], place, delimiter)) == width:
            return end
    return stop


def _ends_of_row(text: str, place: int, stop: int, delimiter: str) -> Iterator[int]:
    """The ends that a row with a quote may have, the likeliest first.

    In a malformed row, a quote at the start of a cell is a character of the cell.  The
    row then is one line, or ends at any of the next ones; if no cell begins with a
    quote, it ends where its quotes are balanced.
    """
    ends = [stop]
    for _ in range(_MOST_LINES_OF_ROW - 1):
        if ends[-1] == len(text):
            break
        further = text.find("\n", ends[-1] + 1)
        ends.append(len(text) if further < 0 else further)
    for end in ends:
        if not _OPEN_ROW[delimiter].match(text[place:end]):
            yield end
            break
    yield stop
    opens_cell = _OPENED_CELL[delimiter].search(text[place:stop])
    for end in ends:
        if opens_cell or text.count('"', place, end) % 2 == 0:
            yield end


def _secrets_in(
    text: str,
    rows: Iterator[list[tuple[int, int]]],
    wanted: list[int],
    *,
    of_users: bool,
) -> Iterator[tuple[int, int]]:
    """The cells in the wanted columns that may be secrets.

    of_users: the table lists users, so that a plain word is a password too.
    """
    for spans in rows:
        for index in wanted:
            start, end = spans[index]
            cell = _PATTERNS.PLAIN.fullmatch(text, start, end)
            if not cell:
                continue
            if odd(cell[1]) or (of_users and _PATTERNS.WORD.fullmatch(cell[1])):
                yield cell.span(1)


def _split(row: str, offset: int, delimiter: str) -> list[tuple[int, int]]:
    """The cells of a row, as places from ``offset`` on."""
    if delimiter == "  ":
        spans = [match.span() for match in re.finditer(r"\S+(?: \S+)*", row)]
        return [(offset + start, offset + end) for start, end in spans]
    if '"' in row and delimiter in _QUOTING:
        return [
            (offset + match.start(), offset + match.end())
            for match in _QUOTING[delimiter].finditer(row)
        ]
    cells: list[tuple[int, int]] = []
    for cell in row.split(delimiter):
        cells.append((offset, offset + len(cell)))
        offset += len(cell) + 1
    return cells


# The most characters of an object or an array that is searched for secrets.
_LONGEST: Final = 4096


def members(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The values in the object or the array that a match begins with."""
    start = match.start()
    if _is_covered(start, seen):
        return []
    stop = min(match.end(), start + _LONGEST)
    bracket = re.compile(r"[\[{(]").search(text, start, stop)
    if not bracket:
        return []
    depth = 0
    extents: _Extents = []
    key = ""
    last = start
    for item in _PATTERNS.ITEM.finditer(text, bracket.start(), stop):
        sign = item.group()
        if sign in "[{(":
            depth += 1
            continue
        if sign in "]})":
            depth -= 1
            if depth <= 0:
                last = item.end()
                break
            continue
        last = item.end()
        group = 1 if item[1] is not None else 2
        if _PATTERNS.AFTER_KEY.match(text, item.end()):
            key = item[group]
            continue
        if not _PATTERNS.BESIDE.fullmatch(key) and not ABOUT.search(key):
            extents.append(item.span(group))
        key = ""
    _cover(start, last, seen)
    return extents


def secret_data(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The values in the data of a manifest whose kind is Secret."""
    start, stop = match.span()
    if _is_covered(start, seen):
        return []
    further = text.find("\n---", start, stop)
    if further >= 0:
        stop = further
    extents: _Extents = []
    last = start
    in_json = _PATTERNS.DATA_IN_JSON.search(text, start, stop)
    if in_json:
        for item in _PATTERNS.ITEM.finditer(text, in_json.end(), stop):
            last = item.end()
            if item.group() == "}":
                break
            is_key = _PATTERNS.AFTER_KEY.match(text, item.end())
            if item[1] and not is_key:
                extents.append(item.span(1))
    for block in _PATTERNS.DATA.finditer(text, start, stop):
        place = block.end()
        while entry := _PATTERNS.ENTRY.match(text, place, stop):
            if len(entry[1]) <= len(block[1]):
                break
            if entry[2]:
                extents.append(entry.span(2))
            place = entry.end()
        last = max(last, place)
    _cover(start, last, seen)
    return extents


def data_before(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The values of data that stands before the kind Secret of its manifest."""
    start, stop = match.span()
    if _is_covered(start, seen):
        return []
    _cover(start, stop, seen)
    extents: _Extents = []
    bracket = text.find("{", start, stop)
    if bracket >= 0 and "\n" not in text[start:bracket]:
        for item in _PATTERNS.ITEM.finditer(text, bracket + 1, stop):
            if item.group() == "}":
                break
            if item[1] and not _PATTERNS.AFTER_KEY.match(text, item.end()):
                extents.append(item.span(1))
        return extents
    line_break = _PATTERNS.BREAK.search(text, start, stop)
    place = line_break.start() if line_break else stop
    while entry := _PATTERNS.ENTRY.match(text, place, stop):
        if entry[2]:
            extents.append(entry.span(2))
        place = entry.end()
    return extents


def sql_columns(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The values that a statement of SQL writes into columns named after secrets."""
    if _is_covered(match.start(), seen):
        return []
    names = match["names"].split(",")
    wanted: set[int] = set()
    for index, name in enumerate(names):
        bare = name.strip(" \t\r\n`\"'[]\\")
        if _names_secret(bare, 0, len(bare)):
            wanted.add(index)
    if not wanted:
        return []
    if text[match.start()] in "cC":
        rows = _copied(text, match.end(), wanted, len(names))
    else:
        rows = _inserted(text, match.end(), wanted)
    extents: _Extents = []
    end = match.end()
    for strings, end_of_row in rows:
        extents += strings
        end = end_of_row
    _cover(match.start(), end, seen)
    return extents


def _copied(
    text: str, start: int, wanted: set[int], width: int
) -> Iterator[tuple[_Extents, int]]:
    """The wanted cells of each row in the format of COPY, and the end of the row."""
    place = text.find("\n", start) + 1
    while start < place < len(text):
        end = text.find("\n", place)
        if end < 0:
            end = len(text)
        cells_of_row = _split(text[place:end], place, "\t")
        if len(cells_of_row) != width or text.startswith("\\.", place):
            return
        yield [cells_of_row[index] for index in sorted(wanted)], end
        place = end + 1


# Within so many characters behind the head of an INSERT, rows need no comma.
_NEAR_HEAD: Final = 4096
# The most characters of a row.
_LONGEST_ROW: Final = 65_536
# The most strings of a row that contain the head of another statement.  With a limit,
# no part of a text is searched for more statements than that.
_MOST_HEADS: Final = 4


def _inserted(
    text: str, start: int, wanted: set[int]
) -> Iterator[tuple[_Extents, int]]:
    """The wanted strings of each row of an INSERT, and the end of the closed rows.

    Comments and the output of tools may stand between rows.
    """
    place = start
    while True:
        between_rows = _PATTERNS.SQL_COMMA_BEFORE_ROW
        if place <= start + _NEAR_HEAD:
            between_rows = _PATTERNS.SQL_BEFORE_ROW
        next_row = between_rows.match(text, place)
        if not next_row:
            return
        before_row = text[place : next_row.end()]
        if _is_before_call(before_row):
            return
        if place != start and _is_sentence(before_row):
            return
        # The columns of the next statement are no row.
        if _PATTERNS.SQL_HEAD.search(text, place, next_row.end() + 1):
            return
        strings, end = _strings_of_row(text, next_row.end(), wanted)
        if end is None:
            yield strings, place
            return
        yield strings, end
        place = end


def _is_before_call(before_row: str) -> bool:
    """Whether a bracket behind this text has the arguments of a function."""
    return _PATTERNS.SQL_CALL.search(before_row) is not None


def _is_sentence(before_row: str) -> bool:
    """Whether the bracket behind this text belongs to the words on its line.

    A comma always separates rows, so a text with a comma is no sentence here.
    """
    if "," in before_row:
        return False
    line = before_row.replace("\\n", "\n").rpartition("\n")[2]
    return _PATTERNS.SQL_WORD.search(line) is not None


def _strings_of_row(
    text: str, start: int, wanted: set[int]
) -> tuple[_Extents, int | None]:
    """The wanted strings of a row in brackets, and the end of the row.

    The end is None if a bracket or a string of the row is not closed.
    """
    depth = 0
    index = 0
    heads = 0
    strings: _Extents = []
    for item in _PATTERNS.SQL_ITEM.finditer(text, start, start + _LONGEST_ROW):
        kind = item.lastgroup
        if kind is None:
            break  # the head of another statement, or a string that is not closed
        sign = item["sign"]
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return strings, item.end()
        elif sign == "," and depth == 1:
            index += 1
        if kind == "sign":
            continue
        span = item.span(kind)
        if _PATTERNS.SQL_HEAD.search(text, *span):
            heads += 1
        line_end = _end_of_torn_string(text, span, item.end())
        if line_end is not None:
            span = (span[0], line_end)
        if depth == 1 and index in wanted and span[0] < span[1]:
            strings.append(span)
        if heads > _MOST_HEADS or line_end is not None:
            break
    return strings, None


def _end_of_torn_string(text: str, span: tuple[int, int], end: int) -> int | None:
    """The end of the first line of a string that goes on into other text.

    Its second quote then opens another string.  The result is None for any other
    string.

    end: the place behind its second quote.
    """
    line_break = _PATTERNS.BREAK.search(text, *span)
    if not line_break:
        return None
    is_before_word = text[end : end + 1].isalnum()
    if is_before_word or _PATTERNS.SQL_HEAD.search(text, *span):
        return line_break.start()
    return None


# The signature of the shortest common algorithm has this many characters.
_SHORTEST_SIGNATURE: Final = 43


def wrapped_token(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """A JSON web token that is broken over lines, from its first to its last."""
    start = match.start()
    if _is_covered(start, seen):
        return []
    widest = 0
    token = ""
    end = start
    for line in _PATTERNS.TOKEN_LINE.finditer(text, start, match.end()):
        width = line.end(1) - _start_of_line(text, line.start(), line.start(1))
        if token:
            parts = token.split(".")
            is_open = len(parts) < 3 or (
                width <= widest and len(parts[2]) < _SHORTEST_SIGNATURE
            )
            if not (is_open or token.endswith(".") or line[1].startswith(".")):
                break
        token += line[1]
        end = line.end(1)
        widest = max(widest, width)
    _cover(start, end, seen)
    if token.count(".") != 2 or token.endswith("."):
        return []
    return [(start, end)]


def _start_of_line(text: str, place: int, stop: int) -> int:
    """The start of the line that begins with a break at ``place``, or goes on there.

    stop: where a break at ``place`` has ended.
    """
    line_break = _PATTERNS.BREAK.match(text, place, stop)
    if line_break:
        return line_break.end()
    first = max(0, place - _LONGEST_PREFIX)
    start = first
    for line_break in _PATTERNS.BREAK.finditer(text, first, place):
        start = line_break.end()
    return start


def key_members(text: str, match: re.Match[str], seen: set[int]) -> _Extents:
    """The private members of a key in JSON (RFC 7517), which stand before or after."""
    if _is_covered(match.start(), seen):
        return []
    first = max(text.rfind("{", max(0, match.start() - _LONGEST), match.start()), 0)
    extents = [
        member.span(1)
        for member in _PATTERNS.PRIVATE.finditer(text, first, match.end())
    ]
    _cover(match.start(), match.end(), seen)
    return extents


def trimmed(text: str, match: re.Match[str], _: set[int]) -> _Extents:
    """The value of a match without the signs and spaces that end it."""
    start, end = match.span("value")
    while end > start and not text[end - 1].isalnum():
        end -= 1
    if text[end - 1 : end] == "n" and text[end - 2 : end - 1] == "\\":
        end -= 2
    return [(start, end)]
