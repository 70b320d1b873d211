"""How values are written for people: texts, counts, sizes and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

# What the size guard leaves where it cut a text.
STUB: Final = re.compile(
    r"\[refold: \d+ of \d+ bytes left out here; whole text: "
    r'session\.blob\("[0-9a-f]{64}"\)\]'
)
# C0 and C1 controls but tab and newline, and what turns the direction of text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """``text`` without what would drive a terminal; such characters show as signs."""
    return _CONTROL.sub(_sign, text.replace("\r\n", "\n"))


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def number(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,}"


def size(count: int) -> str:
    """A count of bytes as a person says it."""
    for unit, least in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,} bytes"


def types(counts: Mapping[str, int]) -> str:
    """Counts by type, the most frequent first: ``EMAIL×3, PHONE``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind}×{n:,}" if n > 1 else kind for kind, n in ordered)


def moment(at: datetime | int) -> str:
    """A time as people read it: UTC, to the second."""
    return f"{_time(at):%Y-%m-%d %H:%M:%S}"


def rfc3339(at: datetime | int) -> str:
    """The same time for programs."""
    return _time(at).isoformat().replace("+00:00", "Z")


def _time(at: datetime | int) -> datetime:
    """It, or the time that is so many microseconds after 1970 began."""
    from refold.domain.envelope import from_microseconds

    return from_microseconds(at) if isinstance(at, int) else at
