"""Text for people: control characters made visible, counts, sizes, and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

# The note that the size guard puts in place of text that it cut.
STUB: Final = re.compile(
    r"\[refold: \d+ of \d+ bytes left out here; whole text: "
    r'session\.blob\("[0-9a-f]{64}"\)\]'
)
# C0 and C1 controls except tab and newline, and characters that change the direction
# of text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """Return ``text`` with a visible symbol in place of each control character.

    So no text can control a terminal.
    """
    return _CONTROL.sub(_symbol, text.replace("\r\n", "\n"))


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def path_end(text: str) -> str:
    """Return the last two names of a path after an ellipsis, and other text as it is.

    The first folders of the projects of a user are mostly the same.
    """
    separator = "/" if "/" in text else "\\"
    names = text.rstrip(separator).split(separator)
    if len(names) <= 3:
        return text
    return separator.join(["…", *names[-2:]])


def short_number(count: int) -> str:
    """Return a count in at most five characters, such as 71.7K or 3.3M."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            digits = 0 if count >= 100 * size else 1
            return f"{count / size:.{digits}f}{unit}"
    return str(count)


def number(value: float) -> str:
    """Format a number with separators of thousands."""
    return f"{value:,}"


def size(count: int) -> str:
    """Format a number of bytes in the largest unit that fits."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,} bytes"


def duration(milliseconds: float) -> str:
    """Format a duration: ``350 ms``, ``2.3 s``, ``1 min 5 s``, ``2 h 3 min``."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24:,} d {hours % 24} h"


def type_counts(counts: Mapping[str, int]) -> str:
    """Format counts by type, the most frequent first: ``EMAIL×3, PHONE``."""
    texts: list[str] = []
    for kind in sorted(counts, key=lambda kind: (-counts[kind], kind)):
        count = counts[kind]
        texts.append(f"{kind}×{count:,}" if count > 1 else kind)
    return ", ".join(texts)


def moment(at: datetime | int) -> str:
    """Format a time for people: in UTC, to the second."""
    return f"{_time(at):%Y-%m-%d %H:%M:%S}"


def rfc3339(at: datetime | int) -> str:
    """Format a time for programs, by RFC 3339."""
    return _time(at).isoformat().replace("+00:00", "Z")


def _time(at: datetime | int) -> datetime:
    """The time; a number is in microseconds since 1970."""
    from refold.domain.envelope import from_microseconds

    return from_microseconds(at) if isinstance(at, int) else at
