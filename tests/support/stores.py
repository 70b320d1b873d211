"""Opens stores in tests, and starts processes that open the same stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.sql.database import Database
from refold.adapters.sql.postgres import PostgresDatabase
from refold.store import SessionStore
from tests.support import warm

ROOT = warm.ROOT


def prepare(url: str, folder: Path) -> str:
    """Set the keys that ``url`` needs, for this process and its children."""
    if url.startswith("postgresql"):
        MasterKeyFile().create()
        os.environ["REFOLD_KEYS"] = f"sqlite:///{folder / 'keys.db'}"
    return url


def open_at(url: str, folder: Path, **how: Any) -> SessionStore:
    """Open the store at ``url``, with its keys in ``folder`` if it is PostgreSQL."""
    return refold.open(prepare(url, folder), **how)


def use_the_callers_clock_for_leases(patch: pytest.MonkeyPatch) -> None:
    """Make a server judge leases by the clock of the test, not by its own."""
    patch.setattr(PostgresDatabase, "lease_time", Database.lease_time)


def start(*arguments: str) -> warm.Process:
    """Start ``tests.support.writer`` in a separate process."""
    return warm.module("tests.support.writer", *arguments)


def lines(process: warm.Process, count: int) -> list[str]:
    """Return the next ``count`` lines that ``process`` prints."""
    return [process.stdout.readline().strip() for _ in range(count)]


def release(processes: Sequence[warm.Process]) -> None:
    """Wait until all processes are ready, then let them all start."""
    for process in processes:
        assert lines(process, 1) == ["ready"], process.communicate()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
