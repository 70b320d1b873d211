"""Folding: one spelling for texts that look alike, with the way back to each place.

Full-width forms, odd spaces, odd dashes and letters whose other case is ASCII become
ASCII, one for one.  Invisible characters are removed.  Escapes of JSON such as
``\\u5bc6`` become their character.  Rules match the folded text, and their findings are
replaced in the original.  Only lines with telling characters are folded.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63"

_HIDDEN = (
    "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f"
    "\u3164\ufeff"
)
# Characters that change how the one before looks: common in prose, after pictures.
_SELECTORS = "\ufe00-\ufe0f"
_WIDE = "＃＆＊＋－．／０-９＝＠Ａ-Ｚ＿ａ-ｚ"

# The letters whose other case is an ASCII letter: only these equal one in a search that
# ignores case.
_LETTERS = "\u0130\u0131\u017f\u212a"
_LETTERS_AS = str.maketrans(_LETTERS, "iisk")

# An escape of a character that is not a control character.
_TELLING_ESCAPE = r"\\u(?:[1-9a-fA-F]|0[1-9a-fA-F]|00[2-9a-fA-F])"
# The telling forms, for which a text is folded, as patterns of any engine.  Prose is
# full of dashes and wide spaces: these count only inside a value or right before one.
_EITHER = f"[{_SPACES}{_DASHES}]"
_TELLING_WIDE = "|".join(
    (
        f"[{_WIDE}{_HIDDEN}{_LETTERS}]",
        f"[0-9A-Za-z][{_SELECTORS}]",
        f"[:：=][{_SPACES}]",
        f"[!-~][{_SPACES}]{{1,3}}[!-~]",
        f"[0-9A-Za-z][{_DASHES}][A-Za-z]",
        f"[A-Za-z][{_DASHES}][0-9]",
        f"[{_DASHES}]{{4}}",
        rf"[0-9]{{3}}\)?{_EITHER}{{1,3}}\(?[0-9]{{3}}",
        f"[0-9]{{2}}{_EITHER}[0-9]{{2}}{_EITHER}[0-9]",
    )
)
# A color in a terminal: the last letter of its code is no part of the word after it.
_COLOR = r"(?:\x1b|\\u001[bB])\["
TELLING = (_TELLING_WIDE, rf"{_TELLING_ESCAPE}|{_COLOR}")
_TELLING = re.compile("|".join(TELLING))
# Every telling form has one of these characters, and most texts have hardly any.
_RARE = re.compile(f"[{_WIDE}{_HIDDEN}{_LETTERS}{_SPACES}{_DASHES}{_SELECTORS}]")
_ESCAPED = re.compile(_TELLING_ESCAPE)
_AROUND = 8
# Begins at the first backslash of several: each level of JSON in JSON doubles them.
_ESCAPE = r"\\(?<!\\\\)\\*+u([0-9a-fA-F]{4})"
_REMOVED = re.compile(
    rf"(?:\x1b|\\+u001[bB])\[[0-9;:?]{{0,32}}[A-Za-z]|{_ESCAPE}|[{_HIDDEN}{_SELECTORS}]+"
)
_ALL = "".join(map(chr, range(0x80, 0x10000)))
_ALIKE: dict[int, int | str] = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    **{ord(space): " " for space in re.findall(f"[{_SPACES}]", _ALL)},
    **{ord(dash): "-" for dash in re.findall(f"[{_DASHES}]", _ALL)},
    **_LETTERS_AS,
}


class Folded(NamedTuple):
    """A folded text, with the places at which it and the original correspond.

    starts:  places in the folded text from which the shift to the original is constant.
    origins: the same places in the original.
    widths:  the length in the original of each escape, by its folded place.
    """

    text: str
    starts: tuple[int, ...] = (0,)
    origins: tuple[int, ...] = (0,)
    widths: dict[int, int] = {}  # noqa: RUF012 - shared, and never changed

    def place(self, index: int) -> int:
        """The place in the original of the character at ``index``."""
        at = bisect_right(self.starts, index) - 1
        return self.origins[at] + index - self.starts[at]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The extent in the original of ``text[start:end]``, which is not empty."""
        if len(self.starts) == 1:
            return start, end
        return self.place(start), self.place(end - 1) + self.widths.get(end - 1, 1)


def fold(text: str, *, telling_ends: Sequence[int] = ()) -> Folded:
    """Fold the lines of ``text`` that need it; the others stay as they are.

    telling_ends: the ends of telling forms, if the caller knows them.
    """
    if not (telling_ends or "\\u" in text or "\x1b" in text or not text.isascii()):
        return Folded(text)
    ends = telling_ends or telling(text)
    lines = _lines(text, ends)
    return _folded(text, lines) if lines else Folded(text)


def telling(text: str) -> list[int]:
    """The ends of telling forms in ``text``, in no order."""
    ends: list[int] = []
    if not text.isascii():
        for start, stop in _near_rare(text):
            ends += [match.end() for match in _TELLING.finditer(text, start, stop)]
    if "\\u" in text:
        ends += [match.end() for match in _ESCAPED.finditer(text)]
    if "\x1b" in text or "\\u001" in text:
        ends += [match.end() for match in re.finditer(_COLOR, text)]
    return ends


def _near_rare(text: str) -> Iterator[tuple[int, int]]:
    """The parts of the text around characters of telling forms."""
    start = -1
    stop = -1
    for rare in _RARE.finditer(text):
        if rare.start() - _AROUND > stop:
            if stop >= 0:
                yield start, stop
            start = max(0, rare.start() - _AROUND)
        stop = rare.end() + _AROUND
    if stop >= 0:
        yield start, stop


def _lines(text: str, ends: Iterable[int]) -> list[tuple[int, int]]:
    """The lines in which telling forms with these ends stand, in order."""
    lines: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        # A telling form may end with the last character of its line.
        place = max(0, end - 1)
        start = text.rfind("\n", 0, place) + 1
        stop = text.find("\n", place)
        last = len(text) if stop < 0 else stop
        if not lines or start > lines[-1][0]:
            lines.append((start, last))
    return lines


def _folded(text: str, lines: list[tuple[int, int]]) -> Folded:
    """``text`` with these lines folded."""
    out: list[str] = []
    starts = [0]
    origins = [0]
    widths: dict[int, int] = {}
    # The length of the folded text so far, and the end of the original it stands for.
    length = 0
    end = 0
    for begin, stop in lines:
        out.append(text[end:begin])
        length += begin - end
        end = begin
        for match in _REMOVED.finditer(text, begin, stop):
            out.append(_alike(text[end : match.start()]))
            length += match.start() - end
            end = match.end()
            code = match[1]
            if code:
                out.append(_alike(chr(int(code, 16))))
                starts.append(length)
                origins.append(match.start())
                widths[length] = end - match.start()
                length += 1
            starts.append(length)
            origins.append(end)
        out.append(_alike(text[end:stop]))
        length += stop - end
        end = stop
    out.append(text[end:])
    return Folded("".join(out), tuple(starts), tuple(origins), widths)


def _alike(text: str) -> str:
    return text.translate(_ALIKE)
