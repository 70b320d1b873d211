"""After an erasure on SQLite: what was deleted is overwritten, and looked for."""

from __future__ import annotations

import mmap
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

_SUFFIXES: Final = ("", "-wal", "-journal")
_BUSY: Final = 5.0
# A shorter name stands by chance in what is encrypted.
_TELLING: Final = 6


def clean(path: Path, *, vacuum: bool) -> dict[str, Any]:
    """Fold the write-ahead log into the file and empty it; ``vacuum`` writes all anew.

    Deleted cells were overwritten with zeros as they were deleted (``secure_delete``).
    """
    with closing(sqlite3.connect(path, timeout=_BUSY, isolation_level=None)) as own:
        own.execute("PRAGMA secure_delete=ON")
        if vacuum:
            own.execute("VACUUM")
        busy, *_ = own.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return {"vacuum": vacuum, "wal_emptied": not busy}


def found_in_files(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """How often each of the names stands in the file and in its logs."""
    telling = {name.encode() for name in names if len(name.encode()) >= _TELLING}
    files = {
        file.name: _count(file, telling)
        for file in (path.with_name(path.name + suffix) for suffix in _SUFFIXES)
        if file.exists()
    }
    return {
        "files": files,
        "names": len(telling),
        "too_short": len(names) - len(telling),
    }


def _count(file: Path, names: set[bytes]) -> int:
    if not file.stat().st_size:
        return 0
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        return sum(mapped.find(name) >= 0 for name in names)
