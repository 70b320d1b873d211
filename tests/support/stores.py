"""Opening stores in tests, and starting processes that open the same ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import refold
from refold.store import SessionStore

ROOT = Path(__file__).parents[2]


def prepare(url: str, folder: Path) -> str:
    """Set the key store that ``url`` needs, for this process and its children."""
    if url.startswith("postgresql"):
        os.environ["REFOLD_KEYS"] = f"sqlite:///{folder / 'keys.db'}"
    return url


def open_at(url: str, folder: Path) -> SessionStore:
    """The store at ``url``, its keys in ``folder`` if it is PostgreSQL."""
    return refold.open(prepare(url, folder))


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start ``tests.support.writer`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.writer", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next ``count`` lines that ``process`` prints."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def release(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all are ready, then let all go at once."""
    for process in processes:
        assert lines(process, 1) == ["ready"], process.communicate()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
