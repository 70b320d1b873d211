"""Folding: one spelling for texts that look alike, with the way back to each place.

Full-width forms, odd spaces, odd dashes and letters whose other case is ASCII become
ASCII, one for one.  Invisible characters are removed.  Escapes of JSON such as
``\\u5bc6`` become their character, and so do long runs of percent escapes and of
numeric entities.  Rules match the folded text, and their findings are replaced in the
original.  Only lines with a telling form are folded.  A telling form is a group of
characters that could hide a value from the rules.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple
from unicodedata import normalize

# Sets of characters, written as they stand between the brackets of an expression.
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63"
_INVISIBLE = (
    "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\u3164\ufeff"
)
# Variation selectors, which choose the form of the character before them.  Prose has
# many after emoji.
_SELECTORS = "\ufe00-\ufe0f"
# Digits in the styles of mathematics: bold, double-struck, of one width.
_STYLED = "\U0001d7ce-\U0001d7ff"
_FULL_WIDTH = "＃＆＊＋－．／０-９＝＠Ａ-Ｚ＿ａ-ｚ"
# The letters outside ASCII whose other case is an ASCII letter.  No others equal an
# ASCII letter in a search that ignores case.
_CASE_PARTNERS = "\u0130\u0131\u017f\u212a"

# The telling forms: a text with one of them must be folded.  They are expressions that
# every engine can compile.  Those of the first group have characters outside ASCII, all
# others consist of ASCII.
#
# Spaces, dashes and selectors alone are no telling form, because prose is full of them.
# The characters around them must look like a value or like the end of its name.
_SPACE_OR_DASH = f"[{_SPACES}{_DASHES}]"
_NON_ASCII_FORMS = "|".join(
    (
        f"[{_FULL_WIDTH}{_INVISIBLE}{_CASE_PARTNERS}]",
        f"[{_STYLED}]{{2}}",
        f"[0-9A-Za-z][{_SELECTORS}]",
        f"[:：=][{_SPACES}]",
        f"[!-~][{_SPACES}]{{1,3}}[!-~]",
        # In identifiers.
        f"[0-9A-Za-z][{_DASHES}][A-Za-z]",
        f"[A-Za-z][{_DASHES}][0-9]",
        # In the line before a key: -----BEGIN PRIVATE KEY-----.
        f"[{_DASHES}]{{4}}",
        # In phone and card numbers: (555) 123-4567.
        rf"[0-9]{{3}}\)?{_SPACE_OR_DASH}{{1,3}}\(?[0-9]{{3}}",
        # In numbers that are written in pairs: 01 23 45 67 89.
        f"[0-9]{{2}}{_SPACE_OR_DASH}[0-9]{{2}}{_SPACE_OR_DASH}[0-9]",
    )
)
# An escape in JSON of a character that is not a control character.
_ESCAPE_FORM = r"\\u(?:[1-9a-fA-F]|0[1-9a-fA-F]|00[2-9a-fA-F])"
# The beginning of a terminal color code.  The code ends in a letter, which would
# otherwise seem to be part of the word after it.
_COLOR_FORM = r"(?:\x1b|\\u001[bB])\["
# The beginning of a value of which every character is an escape of a URL or an entity.
_PERCENT = "%[2-7][0-9A-Fa-f]"
_ENTITY = "&#(?:[0-9]{2,3}|[xX][0-9A-Fa-f]{2});"
_RUN_FORM = rf"(?:{_PERCENT}){{6}}|(?:{_ENTITY}){{4}}"
TELLING = (_NON_ASCII_FORMS, rf"{_ESCAPE_FORM}|{_COLOR_FORM}", _RUN_FORM)

_TELLING = re.compile("|".join(TELLING))
_ESCAPE_FORMS = re.compile(_ESCAPE_FORM)
_COLOR_FORMS = re.compile(_COLOR_FORM)
_RUN_FORMS = re.compile(_RUN_FORM)
_RUN_FORMS_IN_BYTES = re.compile(_RUN_FORM.encode())
# Each form outside ASCII has one of these characters, and most texts have hardly any.
_RARE = re.compile(
    f"[{_FULL_WIDTH}{_INVISIBLE}{_CASE_PARTNERS}{_SPACES}{_DASHES}{_SELECTORS}{_STYLED}]"
)
# No form extends further than this from a rare character in it.
_AROUND_RARE = 8

# A whole escape, with the code of its character.  It begins at the first of several
# backslashes, since each level of JSON in JSON doubles them.
_ESCAPE = r"\\(?<!\\\\)\\*+u([0-9a-fA-F]{4})"
_COLOR = r"(?:\x1b|(?<!\\)\\++u001[bB])\[[0-9;:?]{0,32}[A-Za-z]"
# A run of escapes of which each becomes a character, and one of them with its code.
_RUN = rf"(?P<run>(?:{_PERCENT}){{6,}}|(?:{_ENTITY}){{4,}})"
_CODE = re.compile("%([0-9A-Fa-f]{2})|&#([0-9]{2,3});|&#[xX]([0-9A-Fa-f]{2});")
# The parts that folding does not copy: it replaces escapes, and removes the others.
_NOT_COPIED = re.compile(rf"{_COLOR}|{_ESCAPE}|[{_INVISIBLE}{_SELECTORS}]+|{_RUN}")


def _styled() -> dict[int, str]:
    """Return by code the ASCII letter or digit of each mathematical letter or digit."""
    plain: dict[int, str] = {}
    for code in range(0x1D400, 0x1D800):
        letter = normalize("NFKC", chr(code))
        if letter.isascii():
            plain[code] = letter
    return plain


_FULL_WIDTH_SHIFT = 0xFEE0  # from each ASCII character to its full-width form


class Folded(NamedTuple):
    """A folded text, with the way from its places to those in the original.

    The text is in pieces.  In each, all places differ from the original by one number.

    starts:  where each piece begins in the folded text.
    origins: where each piece begins in the original.
    widths:  the length in the original of each escape, by the place in the folded text
             of the character that replaced it.
    """

    text: str
    starts: tuple[int, ...] = (0,)
    origins: tuple[int, ...] = (0,)
    widths: dict[int, int] = {}  # noqa: RUF012 - shared, and never changed

    def place(self, index: int) -> int:
        """Return the place in the original of the folded character at ``index``."""
        piece = bisect_right(self.starts, index) - 1
        return self.origins[piece] + index - self.starts[piece]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the extent in the original of ``text[start:end]``, a non-empty part.

        It ends after the last character of the part, or after the escape that this
        character replaced.
        """
        if len(self.starts) == 1:
            return start, end
        last = end - 1
        return self.place(start), self.place(last) + self.widths.get(last, 1)


def fold(text: str, *, telling_ends: Sequence[int] = ()) -> Folded:
    """Fold the lines of ``text`` that have a telling form, and keep the others.

    telling_ends: the ends of all telling forms, in any order, if the caller knows them.
    """
    if not telling_ends:
        if not may_have_forms(text):
            return Folded(text)
        telling_ends = find_telling_ends(text)
    if not telling_ends:
        return Folded(text)
    return _fold_lines(text, _lines_with(text, telling_ends))


def may_have_forms(text: str) -> bool:
    """Return whether ``text`` may have a telling form."""
    return not text.isascii() or may_have_ascii_forms(text.encode())


def may_have_ascii_forms(data: bytes) -> bool:
    """Return whether a text in ASCII may have a telling form."""
    if b"\\u" in data or b"\x1b" in data:
        return True
    if b"%" not in data and b"&#" not in data:
        return False
    return _RUN_FORMS_IN_BYTES.search(data) is not None


def find_telling_ends(text: str) -> list[int]:
    """Return the ends of the telling forms in ``text``, in no order."""
    ends: list[int] = []
    if not text.isascii():
        for start, stop in _parts_around_rare(text):
            ends += [match.end() for match in _TELLING.finditer(text, start, stop)]
    if "\\u" in text:
        ends += [match.end() for match in _ESCAPE_FORMS.finditer(text)]
    if "\x1b" in text or "\\u001" in text:
        ends += [match.end() for match in _COLOR_FORMS.finditer(text)]
    if "%" in text or "&#" in text:
        ends += [match.end() for match in _RUN_FORMS.finditer(text)]
    return ends


def _parts_around_rare(text: str) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``text`` that contain all forms outside ASCII, in order."""
    start = -1
    stop = -1  # -1 before the first part
    for rare in _RARE.finditer(text):
        if rare.start() - _AROUND_RARE > stop:
            if stop >= 0:
                yield start, stop
            start = max(0, rare.start() - _AROUND_RARE)
        stop = rare.end() + _AROUND_RARE
    if stop >= 0:
        yield start, stop


def _lines_with(text: str, ends: Iterable[int]) -> list[tuple[int, int]]:
    """Return the start and stop of each line in which a form has one of these ends."""
    lines: list[tuple[int, int]] = []
    line_stop = -1
    for end in sorted(ends):
        if end <= line_stop:
            continue
        # A form may include the end of its line, so look for the line of its last
        # character.
        last = max(0, end - 1)
        start = text.rfind("\n", 0, last) + 1
        newline = text.find("\n", last)
        line_stop = len(text) if newline < 0 else newline
        if not lines or start > lines[-1][0]:
            lines.append((start, line_stop))
    return lines


def _fold_lines(text: str, lines: list[tuple[int, int]]) -> Folded:
    """Fold these lines of ``text`` and copy the rest."""
    parts: list[str] = []
    starts = [0]
    origins = [0]
    widths: dict[int, int] = {}
    # ``length`` characters are folded so far, from ``text[:end]``.
    length = 0
    end = 0
    for line_start, line_stop in lines:
        parts.append(text[end:line_start])
        length += line_start - end
        end = line_start
        for match in _NOT_COPIED.finditer(text, line_start, line_stop):
            parts.append(_replace_look_alikes(text[end : match.start()]))
            length += match.start() - end
            end = match.end()
            code = match[1]  # of an escape
            if match["run"]:
                for escape in _CODE.finditer(text, match.start(), end):
                    percent, decimal, hexadecimal = escape.groups()
                    if decimal:
                        number = int(decimal)
                    else:
                        number = int(percent or hexadecimal, 16)
                    parts.append(_replace_look_alikes(chr(number)))
                    starts.append(length)
                    origins.append(escape.start())
                    widths[length] = escape.end() - escape.start()
                    length += 1
            elif code:
                parts.append(_replace_look_alikes(chr(int(code, 16))))
                starts.append(length)
                origins.append(match.start())
                widths[length] = end - match.start()
                length += 1
            # The next piece begins after the match.
            starts.append(length)
            origins.append(end)
        parts.append(_replace_look_alikes(text[end:line_stop]))
        length += line_stop - end
        end = line_stop
    parts.append(text[end:])
    return Folded("".join(parts), tuple(starts), tuple(origins), widths)


def _replace_look_alikes(text: str) -> str:
    return text.translate(_look_alikes())


@cache
def _look_alikes() -> dict[int, int | str]:
    """Return for ``str.translate`` the ASCII character of each look-alike."""
    non_ascii = "".join(map(chr, range(0x80, 0x10000)))  # up to U+FFFF
    look_alikes: dict[int, int | str] = {}
    for code in range(0xFF01, 0xFF5F):
        look_alikes[code] = code - _FULL_WIDTH_SHIFT
    for space in re.findall(f"[{_SPACES}]", non_ascii):
        look_alikes[ord(space)] = " "
    for dash in re.findall(f"[{_DASHES}]", non_ascii):
        look_alikes[ord(dash)] = "-"
    look_alikes.update(str.maketrans(_CASE_PARTNERS, "iisk"))
    look_alikes.update(_styled())
    return look_alikes
