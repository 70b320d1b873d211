"""One spelling for what looks alike, with the way back to the original places.

Full-width forms, odd spaces, odd dashes and letters whose other case is ASCII become
ASCII one for one; characters that show nothing are left out; escapes of JSON such as
``\\u5bc6`` become their character.  Rules match the folded text; what they find is
replaced in the original.  Only lines that hold something telling are folded.
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
# What changes how the character before looks: common in prose, after pictures.
_SELECTORS = "\ufe00-\ufe0f"
_WIDE = "＃＆＊＋－．／０-９＝＠Ａ-Ｚ＿ａ-ｚ"

# Letters whose other case is an ASCII letter: nothing else stands for one in a search
# that ignores case.
_LETTERS = "\u0130\u0131\u017f\u212a"
_LETTERS_AS = str.maketrans(_LETTERS, "iisk")

# An escape of a character that is not a control character.
_TELLING_ESCAPE = r"\\u(?:[1-9a-fA-F]|0[1-9a-fA-F]|00[2-9a-fA-F])"
# What a text must hold to be folded, as patterns of any engine.  Prose is full of
# dashes and wide spaces: they count only inside a value or right before one.
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
# What colours a terminal: its last letter is no part of the word after it.
_COLOUR = r"(?:\x1b|\\u001[bB])\["
TELLING = (_TELLING_WIDE, rf"{_TELLING_ESCAPE}|{_COLOUR}")
_TELLING = re.compile("|".join(TELLING))
# One of these is in all that is telling, and hardly any of them in most texts.
_RARE = re.compile(f"[{_WIDE}{_HIDDEN}{_LETTERS}{_SPACES}{_DASHES}{_SELECTORS}]")
_ESCAPED = re.compile(_TELLING_ESCAPE)
_AROUND = 8
# From the first backslash of a run on: each level of JSON in JSON doubles them.
_ESCAPE = r"\\(?<!\\\\)\\*+u([0-9a-fA-F]{4})"
_LEFT_OUT = re.compile(
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
    """A folded text; ``starts`` in it and ``origins`` in the original are equal places.

    ``widths`` holds the length in the original of each escape, by its folded place.
    """

    text: str
    starts: tuple[int, ...] = (0,)
    origins: tuple[int, ...] = (0,)
    widths: dict[int, int] = {}  # noqa: RUF012 - shared, and never changed

    def place(self, index: int) -> int:
        """Where the character at ``index`` stands in the original."""
        at = bisect_right(self.starts, index) - 1
        return self.origins[at] + index - self.starts[at]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The extent in the original of ``text[start:end]``, which is not empty."""
        if len(self.starts) == 1:
            return start, end
        return self.place(start), self.place(end - 1) + self.widths.get(end - 1, 1)


def fold(text: str, *, told: Sequence[int] = ()) -> Folded:
    """Fold the lines of ``text`` that need it; without any, it stays as it is.

    told: where something telling ends, if that is known already.
    """
    if not (told or "\\u" in text or "\x1b" in text or not text.isascii()):
        return Folded(text)
    ends = told or telling(text)
    lines = _lines(text, ends)
    return _folded(text, lines) if lines else Folded(text)


def telling(text: str) -> list[int]:
    """Where something ends for which ``text`` must be folded, in no order."""
    ends = []
    if not text.isascii():
        for start, stop in _around(text):
            ends += [match.end() for match in _TELLING.finditer(text, start, stop)]
    if "\\u" in text:
        ends += [match.end() for match in _ESCAPED.finditer(text)]
    if "\x1b" in text or "\\u001" in text:
        ends += [match.end() for match in re.finditer(_COLOUR, text)]
    return ends


def _around(text: str) -> Iterator[tuple[int, int]]:
    """The parts of the text with characters for which it may have to be folded."""
    start = stop = -1
    for rare in _RARE.finditer(text):
        if rare.start() - _AROUND > stop:
            if stop >= 0:
                yield start, stop
            start = max(0, rare.start() - _AROUND)
        stop = rare.end() + _AROUND
    if stop >= 0:
        yield start, stop


def _lines(text: str, ends: Iterable[int]) -> list[tuple[int, int]]:
    """The lines in which these places are."""
    found: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        # What is telling may be a line's last character.
        place = max(0, end - 1)
        start = text.rfind("\n", 0, place) + 1
        stop = text.find("\n", place)
        last = len(text) if stop < 0 else stop
        if not found or start > found[-1][0]:
            found.append((start, last))
    return found


def _folded(text: str, lines: list[tuple[int, int]]) -> Folded:
    out: list[str] = []
    starts, origins, widths = [0], [0], dict[int, int]()
    length = end = 0
    for begin, stop in lines:
        out.append(text[end:begin])
        length += begin - end
        end = begin
        for match in _LEFT_OUT.finditer(text, begin, stop):
            out.append(_alike(text[end : match.start()]))
            length += match.start() - end
            end = match.end()
            if match[1]:
                out.append(_alike(chr(int(match[1], 16))))
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
