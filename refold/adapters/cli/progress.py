"""A progress bar on stderr, for work that takes a while in front of a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar, TaskID

_LONG: Final = 500


class Progress:
    """Shows how much of ``total`` is done; nothing for short work or no terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._stack = total, ExitStack()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._total >= _LONG and sys.stderr.isatty():
            self._bar = self._stack.enter_context(_bar())
            self._task = self._bar.add_task("", total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextmanager
    def of(self, name: str, total: int) -> Iterator[Part]:
        """The part that is called ``name``; it ends with all of its ``total`` done."""
        part = Part(self, name)
        yield part
        part(total)

    def advance(self, name: str, by: int) -> None:
        """Say that ``by`` more are done, of what is called ``name``."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=by, description=name)


class Part:
    """Is told how many of a part are done, those that were there before first."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._before: int | None = None
        self._done = 0

    def __call__(self, done: int) -> None:
        if self._before is None:
            self._before = done
        self._progress.advance(self._name, done - self._done)
        self._done = done

    @property
    def written(self) -> int:
        """How many were done beyond those that were there before."""
        return self._done - (self._before or 0)


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
        console=Console(stderr=True),
        transient=True,
    )
