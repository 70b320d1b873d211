"""Summarizers for tests: they count their calls, wait, or die where a test says."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from refold.domain.events import SummarizerRef
from refold.projections.context.compaction import Source, Written
from tests.support.waiting import PATIENCE_SEC


class Counting:
    """Writes the same for the same source; each call is a line in a file."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        line = f"{source.digest}\n".encode()
        file = os.open(self.calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        return Written(f"summary {source.digest[:12]}", SummarizerRef(kind="counting"))


def called(calls: Path) -> list[str]:
    """Return the digests of the sources with which a ``Counting`` was called."""
    return calls.read_text().split() if calls.exists() else []


class Slow(Counting):
    """Reports that it was called, and continues when the test lets it."""

    def __init__(self, calls: Path) -> None:
        super().__init__(calls)
        self.begun = Event()
        self.may_end = Event()

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        written = super().summarise(source, target_tokens=target_tokens)
        self.begun.set()
        assert self.may_end.wait(PATIENCE_SEC)
        return written
