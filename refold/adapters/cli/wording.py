"""Numbers, times and counts as people read them, and times as programs do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime


def number(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,}"


def size(count: int) -> str:
    """A count of bytes as a person says it."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{count:,} bytes" if unit == "bytes" else f"{amount:,.1f} {unit}"


def counted(count: int, what: str, many: str | None = None) -> str:
    """``count`` with its noun: 1 event, 2 events."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def types(counts: Mapping[str, int]) -> str:
    """Counts by type, the most frequent first: ``EMAIL×3, PHONE``."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind}×{n:,}" if n > 1 else kind for kind, n in ordered)


def moment(microseconds: int) -> str:
    """A time as people read it: UTC, to the second."""
    return _utc(microseconds).strftime("%Y-%m-%d %H:%M:%S")


def rfc3339(microseconds: int) -> str:
    """The same time for programs."""
    return _utc(microseconds).isoformat().replace("+00:00", "Z")


def _utc(microseconds: int) -> datetime:
    from refold.domain.envelope import from_microseconds

    return from_microseconds(microseconds).astimezone(UTC)
