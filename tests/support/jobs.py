"""Work that tests give to other processes.

It is separate from the tests because each of these processes imports it.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from refold.domain import errors
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.store import SessionStore


class DiesOnce(Abridged):
    """A summarizer that kills the first process that calls it."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        marker = Path(os.environ["REFOLD_HOME"]) / "died"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return super().summarise(source, target_tokens=target_tokens)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class AlwaysDies(Abridged):
    """A summarizer that kills every process that calls it."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class NamesItsProcess:
    """A summarizer that writes the id of its process into its summaries."""

    costs = False

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        written = Abridged().summarise(source, target_tokens=target_tokens)
        return replace(written, text=f"process {os.getpid()}")


def fail(_store: SessionStore, item: int, _progress: object) -> int:
    """Raise an error that has its own arguments."""
    raise errors.StaleSession("s", expected=item, actual=2)


def count(_store: SessionStore, item: int, _progress: object) -> int:
    """Return the item."""
    return item


def setting(_store: SessionStore, name: str, _progress: object) -> str | None:
    """Return a variable of the process's environment."""
    return os.environ.get(name)


def parent(_store: SessionStore, _item: Any, _progress: object) -> int:
    """Return the id of the process that started this one."""
    return os.getppid()
