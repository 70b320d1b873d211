"""What a program reads of a command: JSON on stdout, sentences on stderr."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar, TaskID

    from refold.domain.envelope import Envelope

# C0 and C1 controls but tab and newline, and what turns the direction of text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def visible(text: str) -> str:
    """``text`` without what would drive a terminal; such characters show as signs."""
    text = text.replace("\r\n", "\n")
    return _CONTROL.sub(lambda match: _sign(match[0]), text)


def _sign(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"


def one_line(text: str) -> str:
    """``text`` as a sentence on one line."""
    return " ".join(visible(text).split())


def print_json(value: Any) -> None:
    """Write ``value`` as one line of JSON, in UTF-8 whatever the terminal speaks."""
    import orjson

    write_line(orjson.dumps(value))


def write_line(line: bytes) -> None:
    """Write a line of bytes to stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line + b"\n")


def complain(sentence: str) -> None:
    """Say on stderr what went wrong, in one sentence."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"refold: {one_line(sentence)}\n")
        sys.stderr.flush()


class _Notes(logging.Handler):
    """Shows what the package warns of, as a sentence on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "refold.audit":  # lines for programs
            complain(record.getMessage())


def show_warnings() -> None:
    """Let the warnings of the package appear as sentences, once."""
    log = logging.getLogger("refold")
    if not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(logging.WARNING))
        log.propagate = False


def speak_plainly() -> None:
    """Write what the terminal's encoding cannot hold as an escape, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def hush() -> None:
    """Write nothing more to stdout: its reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# What the size guard leaves where it cut a text.
STUB: Final = re.compile(
    r"\[refold: \d+ of \d+ bytes left out here; whole text: "
    r'session\.blob\("[0-9a-f]{64}"\)\]'
)


class Marks(NamedTuple):
    """Findings by type, leaves that became stubs, and warnings by code."""

    redacted: Mapping[str, int]
    guarded: int
    warnings: tuple[str, ...]


def marks(envelope: Envelope) -> Marks:
    """What was done to this event before it was written."""
    found = envelope.redaction.get("types")
    redacted = (
        {str(kind): n for kind, n in found.items()} if isinstance(found, dict) else {}
    )
    return Marks(
        Counter({kind: n for kind, n in redacted.items() if isinstance(n, int)}),
        sum(1 for text in _texts(envelope.payload.payload()) if STUB.search(text)),
        tuple(warning.code for warning in envelope.meta.warnings),
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


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


_LINE_END: Final = re.compile("\r\n|[\n\r\u2028\u2029]")
_NARROWEST: Final = 40
_UNBOUNDED: Final = 1 << 20


class _Console(Console):
    """A console whose reader may go: that ends the command, not the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """Prints to stdout.  ``width`` is the terminal's, None where there is none."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._console = _Console(
            width=None if terminal else _UNBOUNDED,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self.width = max(_NARROWEST, self._console.width) if terminal else None

    def line(self, *parts: str | tuple[str, str] | Text) -> None:
        """Print one line, put together of texts and (text, style)."""
        self.text(Text.assemble(*parts))

    def text(self, text: Text) -> None:
        """Print ``text`` as it is: never wrapped, cut or padded."""
        if self.width is None:
            plain = text.plain
            self._console.file.write((plain if plain.strip() else "") + "\n")
        else:
            self._console.print(text, soft_wrap=True)

    def body(
        self, body: str, *, indent: str | Text = "", tall: int | None = None
    ) -> None:
        """Print a text of the log behind ``indent``.

        On a terminal it is wrapped, and at most ``tall`` lines of it are printed.
        """
        if not body:
            return
        for line in self._wrapped(body.rstrip("\n").split("\n"), indent, tall):
            self.text(Text.assemble(indent, line))

    def _wrapped(
        self, lines: list[str], indent: str | Text, tall: int | None
    ) -> Iterator[Text]:
        if self.width is None:
            yield from map(shown, lines)
            return
        room, drawn = max(_NARROWEST // 2, self.width - len(indent)), 0
        for index, line in enumerate(lines):
            pieces = shown(line).wrap(self._console, room) or [Text()]
            for at, piece in enumerate(pieces):
                if drawn == tall:
                    rest = [part.plain for part in pieces[at:]] + lines[index + 1 :]
                    left = sum(len(part) for part in rest) + len(lines) - index - 1
                    yield Text(f"… {counted(left, 'more character')}", "dim")
                    return
                piece.rstrip()
                yield piece
                drawn += 1

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]
    ) -> None:
        """Print a table; a column whose name begins with ``#`` holds numbers."""
        table = Table(
            box=None, pad_edge=False, header_style="bold dim", padding=(0, 3, 0, 0)
        )
        for name in columns:
            table.add_column(
                name.lstrip("#"),
                justify="right" if name.startswith("#") else "left",
                overflow="fold",
                no_wrap=name.startswith("#"),
            )
        for row in rows:
            table.add_row(
                *(visible(cell) if isinstance(cell, str) else cell for cell in row)
            )
        if self.width is None:
            with self._console.capture() as captured:
                self._console.print(table)
            for line in captured.get().splitlines():
                self._console.file.write(line.rstrip() + "\n")
        else:
            self._console.print(table)


def shown_in_line(value: Any) -> Text:
    """As ``shown``, where a line must stay one: its ends are shown as signs."""
    return shown(_LINE_END.sub("\u2424", str(value)))


def shown(value: Any) -> Text:
    """A text of the log, safe to print, what was redacted marked."""
    text = Text(visible(str(value)))
    text.highlight_regex(r"\[REDACTED:[^\]]*\]", "red")
    text.highlight_regex(STUB, "yellow")
    return text


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


_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def duration(text: str | None) -> timedelta | None:
    """The time that ``text`` says; refuses what is none, as a wrong argument."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([dhms])", text.strip())
    if found is None:
        raise typer.BadParameter("a time is a number and d, h, m or s, such as 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
