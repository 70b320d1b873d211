"""Extents of values that no group of a pattern can mark.

Such values are the lines of a key, the cells of a table, and the items of an object or
a statement of SQL.  A rule names one of the functions here in its field ``parts``.  The
function takes the text, the match of the rule's pattern, and a set of places.  It
returns the (start, end) of each value.

All calls for one rule and one text share the set.  It holds the places that an earlier
call has covered, so that many matches in the same lines do not cost their square.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from refold.redaction.checks.names import ABOUT, patterns
from refold.redaction.checks.secrets import odd

_Extents: TypeAlias = list[tuple[int, int]]

_PATTERNS = patterns("extents")

# How many places of a text are remembered together.
_BLOCK: Final = 16


def _is_covered(place: int, covered: set[int]) -> bool:
    """Whether an earlier call has covered ``place``, or the block that it is in."""
    return place in covered or _block(place) in covered


def _cover(start: int, end: int, covered: set[int]) -> None:
    """Remember ``start``, and all whole blocks between it and ``end``."""
    covered.add(start)
    first_whole = (start + _BLOCK - 1) // _BLOCK
    after_last = end // _BLOCK
    # The numbers of the blocks, as ``_block`` writes them, are a range too.
    covered.update(range(-after_last, -first_whole))


def _block(place: int) -> int:
    """The number of the block that a place is in.

    It is negative, so that it is no place: the first block has the number -1.
    """
    return -1 - place // _BLOCK


# Private keys in PEM
#
# A line of a key is a run of base64.  A tool may have put a number, a name, quotes or
# other signs before and behind it.

# Every line of a key except the last is at least this long.
FULL_LINE: Final = 32
# The most lines of a key, the most characters of it, and of one line.
_MOST_LINES: Final = 1024
_FURTHEST: Final = 32_768
_LONGEST_LINE: Final = 16_384
# The part of a key in base64 that must have its first line.
_HEAD_OF: Final = 256
# The most characters that a tool puts before a line.
_LONGEST_PREFIX: Final = 160
# The characters of a line on which a tool has put nothing but signs and its number.
_SIGNS_OF_TOOLS: Final = " \t\"'+,;|>#*/│-→:0123456789"


def has_full_line(text: str, start: int, stop: int) -> bool:
    """Whether a part of ``text`` has a run that is a line of a key."""
    return any(map(_is_full, _PATTERNS.RUN.finditer(text, start, stop)))


def key_lines(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """A private key from its first line to its last.

    Without a last line, the key ends with the lines that may belong to it.
    """
    if _is_covered(match.start(), covered):
        return []
    head = _PATTERNS.HEAD.match(text, match.start())
    start = head.end() if head else match.start()
    if head and _PATTERNS.TAIL.search(match.group()):
        return [match.span()] if _has_part_of_key(text, start, match.end()) else []
    end = _end_of_key_lines(text, start)
    _cover(match.start(), end, covered)
    return [(match.start(), end)] if end > start else []


def key_lines_before(text: str, match: re.Match[str], _: set[int]) -> _Extents:
    """A private key that the text shows only from some line on to its last line.

    The match is its last line, ``-----END …``.  Lines are read upwards from there.
    """
    start = match.start()
    is_first = True  # no line above the last one belongs to the key yet
    shorter_lines = 0  # lines that are too short for a key, or hold no part of one
    for line_start, line_end in _lines_upwards(text, match.start()):
        stop = line_end
        end_of_other = text.rfind("-----END", line_start, stop)
        if end_of_other >= 0:
            # The text behind the last line of another key is no part of this one.
            line_start = max(line_start, end_of_other + len("-----END"))
        if text.rfind("-----BEGIN", line_start, stop) >= 0:
            break  # the first line of the key, which has a trigger of its own
        runs = list(_PATTERNS.RUN.finditer(text, line_start, stop))
        is_last_line_of_key = (
            is_first
            and len(runs) > 0
            and _is_only_material(text, line_start, stop, runs)
        )
        if is_last_line_of_key or any(map(_is_full, runs)):
            is_first = False
            # The text before the last run of a line is a tool's, or another field.
            start = runs[-1].start()
            if not _is_prefix(text[line_start:start]):
                break
        elif stop != match.start() and (
            runs or _PATTERNS.LETTERS.search(text, line_start, stop)
        ):
            shorter_lines += 1
            # One line of a tool may stand before the last line of the key.
            if shorter_lines > 1 or not is_first:
                break
        if end_of_other >= 0:
            break
    return [(start, match.end())] if start < match.start() else []


def _lines_upwards(text: str, stop: int) -> list[tuple[int, int]]:
    """The lines before ``stop``, the last one first: (start, end) without its break.

    They begin at most ``_FURTHEST`` characters before, and behind the last line of
    another key.
    """
    first = max(0, stop - _FURTHEST)
    first = max(first, text.rfind("-----END", first, stop))
    lines: list[tuple[int, int]] = []
    start = first
    for line_break in _PATTERNS.BREAK.finditer(text, first, stop):
        lines.append((start, line_break.start()))
        start = line_break.end()
    lines.append((start, stop))
    lines.reverse()
    return lines


def encoded_key(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """Base64 of a private key in PEM, on one line or wrapped."""
    start = match.start()
    if _is_covered(start, covered):
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
    end = _end_of_key_lines(text, start)
    _cover(start, end, covered)
    return [(start, end)]


def _end_of_key_lines(text: str, start: int) -> int:
    """The end of the lines from ``start`` on that are lines of a key.

    Lines without a part of a key may stand between them: fields such as ``Proc-Type``,
    and lines that have nothing but signs.
    """
    end = start
    place = start
    if _PATTERNS.ASKED.match(text, start):
        return end
    for number in range(_MOST_LINES):
        limit = min(len(text), place + _LONGEST_LINE)
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
        else:
            is_field = _PATTERNS.FIELD.search(text, place, stop) is not None
            has_words = text[place:stop].strip(_SIGNS_OF_TOOLS) != ""
            # Anything may stand behind the first line of a key.
            if number > 0 and has_words and not is_field:
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


def _is_only_material(
    text: str, place: int, stop: int, runs: list[re.Match[str]]
) -> bool:
    """Whether a line holds a part of a key, and nothing else but a tool's signs.

    Such a line may be short: the last line of a key is.

    runs: the runs of base64 in the line, at least one.
    """
    first = runs[0].group()
    if not (_PATTERNS.TOLD.search(first) and _PATTERNS.LETTERS.search(first)):
        return False
    return not re.search("[A-Za-z]{2}", _PATTERNS.RUN.sub("", text[place:stop]))


def _is_prefix(text: str) -> bool:
    """Whether a tool may have put ``text`` before a line: a number, a name, a command.

    Another field of an object or an assignment is no such text.
    """
    return len(text) <= _LONGEST_PREFIX and not _PATTERNS.OTHER_FIELD.search(text)


def _has_part_of_key(text: str, start: int, end: int) -> bool:
    """Whether a run has a capital or a digit, and is no word of a sentence."""
    for run in _PATTERNS.RUN.finditer(text, start, end):
        in_sentence = re.match(" [a-z]", text[run.end() : run.end() + 2])
        if _PATTERNS.TOLD.search(run.group()) and not in_sentence:
            return True
    return False


# Tables
#
# The first line of a table is its head, which names the columns.  Cells are divided by
# a delimiter, and rows have as many cells as the head.

_DELIMITERS: Final = ("|", "\t", ",", ";", "│", "  ")
# Cells between these may be in quotes.
_DELIMITERS_OF_CSV: Final = (",", ";", "\t")
_STRING_IN_QUOTES: Final = r'[ ]?"(?:[^"]|"")*+"'
# The most lines of a row that has a cell with line breaks.
_MOST_LINES_OF_ROW: Final = 8
_MOST_ROWS: Final = 100_000

# Few texts have CSV with quotes, so these patterns are compiled when they are needed.


@cache
def _cell(delimiter: str) -> re.Pattern[str]:
    """A cell of CSV, in quotes or without them (RFC 4180)."""
    start = rf"(?:(?<={delimiter})|\A)"
    in_quotes = rf"{_STRING_IN_QUOTES}[ \r]?(?={delimiter}|\Z)"
    return re.compile(rf"{start}(?:{in_quotes}|[^{delimiter}]*)")


@cache
def _open_row(delimiter: str) -> re.Pattern[str]:
    """A row of CSV whose last cell begins with a quote that nothing closes.

    A quote inside of a cell without quotes, such as an inch sign, opens nothing.  A
    malformed cell may have text behind its quotes.
    """
    cell = rf'(?:{_STRING_IN_QUOTES}|(?![ ]?"))[^{delimiter}]*+'
    return re.compile(rf'\A(?:{cell}{delimiter})*+[ ]?"(?:[^"]|"")*+\Z')


@cache
def _opened_cell(delimiter: str) -> re.Pattern[str]:
    """The beginning of a cell of CSV that begins with a quote."""
    return re.compile(rf'(?:\A|{delimiter})[ ]?"')


class _Table(NamedTuple):
    """A table with columns whose cells may be values.

    head:   the line that names the columns.
    wanted: the indexes of those columns.
    rows:   for each row after the head, the (start, end) of its cells.
    """

    head: str
    wanted: list[int]
    rows: Iterator[_Extents]


def cells(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The cells of a table in columns that are named after secrets.

    In a table of users, a plain word is a password too.
    """
    table = _table(text, match, covered, _names_secret)
    if table is None:
        return []
    is_of_users = _PATTERNS.OF_USERS.search(table.head) is not None
    extents: _Extents = []
    for start, end in _contents(text, table):
        content = text[start:end]
        if odd(content) or (is_of_users and _PATTERNS.WORD.fullmatch(content)):
            extents.append((start, end))
    return extents


def birth_cells(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The cells of a table in columns of days of birth."""
    return _all_contents(text, _table(text, match, covered, _names_birth))


def phone_cells(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The cells of a table in columns of phones."""
    return _all_contents(text, _table(text, match, covered, _names_phone))


def person_cells(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The cells of a table in columns of names of people."""
    return _all_contents(text, _table(text, match, covered, _names_person))


def _all_contents(text: str, table: _Table | None) -> _Extents:
    """The contents of all wanted cells that are not empty."""
    if table is None:
        return []
    return [(start, end) for start, end in _contents(text, table) if start < end]


def _contents(text: str, table: _Table) -> Iterator[tuple[int, int]]:
    """The wanted cells of each row, without the quotes and spaces around them."""
    for row in table.rows:
        for index in table.wanted:
            cell = _PATTERNS.PLAIN.fullmatch(text, *row[index])
            if cell:
                yield cell.span(1)


def _table(
    text: str,
    match: re.Match[str],
    covered: set[int],
    is_wanted: Callable[[str, int, int], bool],
) -> _Table | None:
    """The table whose head is the line of a match; None if the line heads no table.

    covered:   the starts of lines that were read before, as heads or as rows.
    is_wanted: whether ``head[start:end]`` is the name of a wanted column.
    """
    first = text.rfind("\n", 0, match.start()) + 1
    if first in covered:
        return None
    covered.add(first)
    last = text.find("\n", match.start())
    head = text[first:last]
    for delimiter in _DELIMITERS:
        columns = _split(head, 0, delimiter)
        names = [head[start:end] for start, end in columns]
        if len(columns) < 2 or not _are_names(names, delimiter):
            continue
        wanted: list[int] = []
        for index, (start, end) in enumerate(columns):
            if is_wanted(head, start, end):
                wanted.append(index)
        # A line whose first cell the next line repeats is no head.
        start, end = columns[0]
        is_repeated = end > start and text.startswith(head[: end + 1], last + 1)
        if wanted and not is_repeated:
            # The first column of a table in columns may be a number without a name.
            numbered = delimiter == "  " and head[:1] == " "
            rows = _rows(
                text, last + 1, delimiter, len(columns), covered, numbered=numbered
            )
            return _Table(head, wanted, rows)
    return None


def _names_secret(head: str, start: int, end: int) -> bool:
    """Whether a part of a head is the name of a column of secrets."""
    name = _PATTERNS.NAME.fullmatch(head, start, end)
    return name is not None and not ABOUT.search(name["joined"])


def _names_birth(head: str, start: int, end: int) -> bool:
    """Whether a part of a head is the name of a column of days of birth."""
    return _PATTERNS.BIRTH_COLUMN.fullmatch(head, start, end) is not None


def _names_phone(head: str, start: int, end: int) -> bool:
    """Whether a part of a head is the name of a column of phones."""
    return _PATTERNS.PHONE_COLUMN.fullmatch(head, start, end) is not None


def _names_person(head: str, start: int, end: int) -> bool:
    """Whether a part of a head is the name of a column of people."""
    return _PATTERNS.PERSON_COLUMN.fullmatch(head, start, end) is not None


def _are_names(cells_of_head: list[str], delimiter: str) -> bool:
    """Whether all cells of a line look like names of columns; none may be empty."""
    names = cells_of_head
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
    covered: set[int],
    *,
    numbered: bool,
) -> Iterator[_Extents]:
    """The cells of each row from ``place`` on, up to a line that is no row.

    width:    the number of cells of every row.
    covered:  gets the starts of the lines.
    numbered: a row may begin with a number that is no cell.
    """
    for _ in range(_MOST_ROWS):
        end_of_line = text.find("\n", place)
        if end_of_line < 0:
            end_of_line = len(text)
        if end_of_line <= place:
            return
        end = end_of_line
        if delimiter in _DELIMITERS_OF_CSV:
            end = _end_of_row(text, place, end_of_line, delimiter, width)
        is_ruler = _PATTERNS.RULE.fullmatch(text, place, end)
        if not is_ruler:
            row = _split(text[place:end], place, delimiter)
            if numbered and len(row) == width + 1:
                row = row[1:]
            if len(row) != width:
                return
            yield row
        covered.add(place)
        place = end + 1


def _end_of_row(
    text: str, place: int, end_of_line: int, delimiter: str, width: int
) -> int:
    """The end of a row of CSV, of which a cell in quotes may go on over lines."""
    if text.find('"', place, end_of_line) < 0:
        return end_of_line
    for end in _possible_ends(text, place, end_of_line, delimiter):
        if len(_split(text[place:end], place, delimiter)) == width:
            return end
    return end_of_line


def _possible_ends(
    text: str, place: int, end_of_line: int, delimiter: str
) -> Iterator[int]:
    """The ends that a row with a quote may have, the likeliest first.

    In a malformed row, a quote at the start of a cell is a character of the cell.  The
    row then is one line, or ends at any of the next ones; if no cell begins with a
    quote, it ends where its quotes are balanced.
    """
    ends = [end_of_line]
    for _ in range(_MOST_LINES_OF_ROW - 1):
        if ends[-1] == len(text):
            break
        further = text.find("\n", ends[-1] + 1)
        ends.append(len(text) if further < 0 else further)
    for end in ends:
        if not _open_row(delimiter).match(text[place:end]):
            yield end
            break
    yield end_of_line
    opens_cell = _opened_cell(delimiter).search(text[place:end_of_line])
    for end in ends:
        if opens_cell or text.count('"', place, end) % 2 == 0:
            yield end


def _split(row: str, place: int, delimiter: str) -> _Extents:
    """The (start, end) of each cell of a row that begins at ``place`` of a text."""
    if delimiter == "  ":
        columns = [match.span() for match in re.finditer(r"\S+(?: \S+)*", row)]
        return [(place + start, place + end) for start, end in columns]
    if '"' in row and delimiter in _DELIMITERS_OF_CSV:
        return [
            (place + match.start(), place + match.end())
            for match in _cell(delimiter).finditer(row)
        ]
    row_cells: _Extents = []
    for cell in row.split(delimiter):
        row_cells.append((place, place + len(cell)))
        place += len(cell) + 1
    return row_cells


# Objects, arrays, and manifests

# The most characters of an object or an array that is searched for secrets.
_LONGEST: Final = 4096


def members(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The strings in the object or the array that a match begins with.

    Keys are left out, and so are the values of keys such as ``user`` that stand beside
    a secret.
    """
    start = match.start()
    if _is_covered(start, covered):
        return []
    stop = min(match.end(), start + _LONGEST)
    bracket = re.search(r"[\[{(]", text[start:stop])
    if not bracket:
        return []
    depth = 0
    extents: _Extents = []
    key = ""
    last = start
    for item in _PATTERNS.ITEM.finditer(text, start + bracket.start(), stop):
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
        string = 1 if item[1] is not None else 2  # in double quotes, in single quotes
        if _PATTERNS.AFTER_KEY.match(text, item.end()):
            key = item[string]
            continue
        if not _PATTERNS.BESIDE.fullmatch(key) and not ABOUT.search(key):
            extents.append(item.span(string))
        key = ""
    _cover(start, last, covered)
    return extents


def secret_data(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The values in the data of a manifest whose kind is Secret, in JSON or YAML."""
    start, stop = match.span()
    if _is_covered(start, covered):
        return []
    next_manifest = text.find("\n---", start, stop)
    if next_manifest >= 0:
        stop = next_manifest
    extents: _Extents = []
    last = start
    in_json = _PATTERNS.DATA_IN_JSON.search(text, start, stop)
    if in_json:
        strings, end = _values_in_json(text, in_json.end(), stop)
        extents += strings
        if end > in_json.end():
            last = end
    for block in _PATTERNS.DATA.finditer(text, start, stop):
        indent = len(block[1])
        entries, end = _values_in_yaml(text, block.end(), stop, indent)
        extents += entries
        last = max(last, end)
    _cover(start, last, covered)
    return extents


def data_before(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The values in data that stands before the kind Secret of its manifest."""
    start, stop = match.span()
    if _is_covered(start, covered):
        return []
    _cover(start, stop, covered)
    bracket = text.find("{", start, stop)
    is_json = bracket >= 0 and "\n" not in text[start:bracket]
    if is_json:
        return _values_in_json(text, bracket + 1, stop)[0]
    line_break = _PATTERNS.BREAK.search(text, start, stop)
    place = line_break.start() if line_break else stop
    return _values_in_yaml(text, place, stop, indent=-1)[0]


def _values_in_json(text: str, place: int, stop: int) -> tuple[_Extents, int]:
    """The strings up to the end of an object that are no keys, and that end.

    Without an end of the object, the end is that of the last item.
    """
    extents: _Extents = []
    end = place
    for item in _PATTERNS.ITEM.finditer(text, place, stop):
        end = item.end()
        if item.group() == "}":
            break
        is_key = _PATTERNS.AFTER_KEY.match(text, end)
        if item[1] and not is_key:
            extents.append(item.span(1))
    return extents, end


def _values_in_yaml(
    text: str, place: int, stop: int, indent: int
) -> tuple[_Extents, int]:
    """The values of the entries that are indented further, and the end of the entries.

    place: the end of the line before the first entry.
    """
    extents: _Extents = []
    while entry := _PATTERNS.ENTRY.match(text, place, stop):
        if len(entry[1]) <= indent:
            break
        if entry[2]:
            extents.append(entry.span(2))
        place = entry.end()
    return extents, place


# Statements of SQL


def sql_columns(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The values that a statement of SQL writes into columns named after secrets."""
    if _is_covered(match.start(), covered):
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
    _cover(match.start(), end, covered)
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


# Tokens, keys in JSON, and ends of values

# The signature of the shortest common algorithm has this many characters.
_SHORTEST_SIGNATURE: Final = 43


def wrapped_token(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """A JSON web token that is broken over lines, from its first to its last."""
    start = match.start()
    if _is_covered(start, covered):
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
    _cover(start, end, covered)
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


def key_members(text: str, match: re.Match[str], covered: set[int]) -> _Extents:
    """The private members of a key in JSON (RFC 7517), which stand before or after."""
    if _is_covered(match.start(), covered):
        return []
    first = max(text.rfind("{", max(0, match.start() - _LONGEST), match.start()), 0)
    extents = [
        member.span(1)
        for member in _PATTERNS.PRIVATE.finditer(text, first, match.end())
    ]
    _cover(match.start(), match.end(), covered)
    return extents


def trimmed(text: str, match: re.Match[str], _: set[int]) -> _Extents:
    """The value of a match without the signs and spaces that end it."""
    start, end = match.span("value")
    while end > start and not text[end - 1].isalnum():
        end -= 1
    if text[end - 1 : end] == "n" and text[end - 2 : end - 1] == "\\":
        end -= 2
    return [(start, end)]
