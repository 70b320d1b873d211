"""When an attempt that failed is made again."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from refold.domain.envelope import from_microseconds, microseconds

FIRST_RETRY_SEC: Final = 30
LONGEST_RETRY_SEC: Final = 900


def too_soon(
    failures: int,
    failed_at: int | None,
    now: datetime,
    *,
    at_most: float = LONGEST_RETRY_SEC,
) -> bool:
    """Whether to wait still, after so many failures in a row."""
    if not failures or failed_at is None:
        return False
    return 0 <= microseconds(now) - failed_at < _wait(failures, at_most)


def retry_at(failures: int, failed_at: int | None) -> datetime | None:
    """When the attempt after a failed one may be made, if the last one failed."""
    if not failures or failed_at is None:
        return None
    return from_microseconds(failed_at + _wait(failures, LONGEST_RETRY_SEC))


def _wait(failures: int, at_most: float) -> int:
    """In microseconds."""
    wait = min(at_most, FIRST_RETRY_SEC * 2.0 ** min(failures - 1, 60))
    return int(wait * 1_000_000)
