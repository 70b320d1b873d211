"""One spelling for what looks alike, with the way back to the original places.

Full-width forms, odd spaces and odd dashes become ASCII one for one; characters that
show nothing are left out; ``\\u5bc6`` escapes of JSON become their character.  Rules
match the folded text; what they find is replaced in the original.
"""

import re
from bisect import bisect_right
from typing import NamedTuple

_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63"
_HIDDEN = (
    "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff"
)
_WIDE = "＃＆＊＋－．／０-９＝＠Ａ-Ｚ＿ａ-ｚ"

# Prose is full of dashes and wide spaces: only after ASCII can they be inside a value.
_TELLING = re.compile(f"[{_WIDE}{_HIDDEN}{_SPACES}{_DASHES}]")
_COMMON = re.compile(f"[{_SPACES}{_DASHES}](?<![!-~].)")
_SHOWS_NOTHING = re.compile(f"[{_HIDDEN}]+()")
# From the first backslash of a run on: each level of JSON in JSON doubles them.
_ESCAPE = r"\\(?<!\\\\)\\*+u([0-9a-fA-F]{4})"
_LEFT_OUT = re.compile(rf"{_ESCAPE}|[{_HIDDEN}]+")
_ALIKE = re.compile(f"[\uff01-\uff5e{_SPACES}{_DASHES}]")


def _ascii(match: re.Match[str]) -> str:
    character = match[0]
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    return " " if character.isspace() else "-"


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
        return self.place(start), self.place(end - 1) + self.widths.get(end - 1, 1)


def _telling(text: str) -> bool:
    return any(not _COMMON.match(text, m.start()) for m in _TELLING.finditer(text))


def fold(text: str) -> Folded:
    """Fold ``text``; it is returned as it is if there is nothing to fold."""
    escapes = "\\u" in text
    if not (escapes or (not text.isascii() and _telling(text))):
        return Folded(text)
    out: list[str] = []
    starts, origins, widths = [0], [0], dict[int, int]()
    length = end = 0
    for match in (_LEFT_OUT if escapes else _SHOWS_NOTHING).finditer(text):
        out.append(text[end : match.start()])
        length += match.start() - end
        end = match.end()
        if match[1]:
            out.append(chr(int(match[1], 16)))
            starts.append(length)
            origins.append(match.start())
            widths[length] = end - match.start()
            length += 1
        starts.append(length)
        origins.append(end)
    out.append(text[end:])
    folded = _ALIKE.sub(_ascii, "".join(out))
    return Folded(folded, tuple(starts), tuple(origins), widths)
