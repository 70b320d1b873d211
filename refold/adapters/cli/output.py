"""What a command gives back, and how it is printed: JSON, or lines and tables."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO

from refold.adapters.display.values import STUB, moment, visible
from refold.domain.errors import counted

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.text import Text

    from refold.domain.seals import TreeHead

Part = str | tuple[str, str]
"""A piece of a line: a text, or a text and its style."""


class Result(NamedTuple):
    """What came of a command.

    value: what ``--json`` prints, or what makes it; an iterator is a value a line, an
           ``Array`` is one line.
    show:  how people see it: a text, or what prints it.
    code:  the exit code.
    acted: whether the command changed something.  Such a report is always printed: on
           stderr if stdout does not take it.
    """

    value: Any
    show: str | Callable[[Screen], object]
    code: int = 0
    acted: bool = False

    def print(self, *, as_json: bool) -> None:
        """Print it whole; JSON in UTF-8, whatever the terminal speaks."""
        if not as_json:
            paint(self.show)
            return
        import orjson

        value = self.value() if callable(self.value) else self.value
        if isinstance(value, Array):
            value.print()
            return
        for one in value if isinstance(value, Iterator) else (value,):
            write_line(orjson.dumps(one))

    def try_to_print(self, *, as_json: bool) -> OSError | None:
        """Print it on stdout; returns why stdout did not take it, if it did not."""
        if is_closed(sys.stdout):
            return OSError(errno.EBADF, "it is closed")
        try:
            self.print(as_json=as_json)
            sys.stdout.flush()
        except OSError as error:
            hush()
            return error
        return None

    def print_on_stderr(self, *, as_json: bool) -> None:
        """Print it on stderr, as far as that takes it."""
        with contextlib.suppress(OSError), contextlib.redirect_stdout(sys.stderr):
            self.print(as_json=as_json)
            sys.stderr.flush()


def is_closed(stream: TextIO) -> bool:
    """Whether the process began without this stream: ``mend_streams`` opened it."""
    return getattr(stream, "name", None) == os.devnull


def paint(show: str | Callable[[Screen], object]) -> None:
    """Print something for people: on a terminal in its width, and in colours."""
    screen = Terminal() if sys.stdout.isatty() else Screen()
    if isinstance(show, str):
        if show:
            screen.line(shown(show))
    else:
        show(screen)


def one_line(text: str) -> str:
    """``text`` as a sentence on one line."""
    return " ".join(visible(text).split())


class Shown(str):
    """A text of the log, safe to print; on a terminal what was redacted is marked."""

    __slots__ = ()


def shown(value: object) -> Shown:
    """A text of the log, safe to print, what was redacted marked."""
    return Shown(visible(str(value)))


_LINE_END: Final = re.compile("\r\n|[\n\r\u2028\u2029]")


def shown_in_line(value: object) -> Shown:
    """As ``shown``, in one line: ends of lines are shown as signs."""
    return shown(_LINE_END.sub("\u2424", str(value)))


def cut(text: str, width: int) -> Shown:
    """``text`` in at most ``width`` columns, an ellipsis at its end if it is cut."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return Shown(text)
    return Shown(set_cell_size(text, max(width - 1, 0)) + "…")


class Array(NamedTuple):
    """A JSON array whose values are printed as they come."""

    values: Iterable[Any]

    def print(self) -> None:
        """Write it as one line; nothing, if the first value cannot be made."""
        import orjson

        sys.stdout.flush()
        is_empty = True
        for value in self.values:
            before = b"[" if is_empty else b","
            sys.stdout.buffer.write(before + orjson.dumps(value))
            is_empty = False
        sys.stdout.buffer.write(b"[]\n" if is_empty else b"]\n")


def write_line(line: bytes) -> None:
    """Write a line of bytes to stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line + b"\n")


def complain(sentence: str) -> None:
    """Print one sentence on stderr."""
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


def whose(one: Any) -> dict[str, str]:
    """The names of the user and session of ``one``, as JSON has them."""
    return {"user_id": one.user_id, "session_id": one.session_id}


def mark(ok: bool | None) -> tuple[str, str]:
    """The sign before a line: fine, broken or, for None, worth a look."""
    if ok is None:
        return "! ", "bold yellow"
    return ("✓ ", "bold green") if ok else ("✗ ", "bold red")


def tree_head(head: TreeHead | None) -> str:
    """A tree head in one line: its leaves, its time and its root."""
    if head is None:
        return "nothing is sealed yet"
    leaves = counted(head.size, "leaf", "leaves")
    sealed = moment(head.sealed_at)
    return f"{leaves}  sealed {sealed}  root {head.root.hex()[:16]}…"


_GAP: Final = 3  # columns between those of a table


class Screen:
    """Prints plain lines to stdout: nothing is wrapped, cut or coloured."""

    width: int = 100  # what a command fits its lines into

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        """Print one line; ``end`` stands at its right.

        On a terminal ``cut`` is shortened if there is no room, and nothing else is:
        then ``end`` has a line of its own.
        """
        text = _plain(*parts, cut) + ("  " + _plain(*end) if end else "")
        sys.stdout.write((text if text.strip() else "") + "\n")

    def body(
        self,
        body: str,
        *,
        indent: str | Sequence[Part] = "",
        tall: int | None = None,  # noqa: ARG002  # what is piped is not cut
    ) -> None:
        """Print a text of the log; a terminal wraps it, to ``tall`` lines at most."""
        for line in body.rstrip("\n").split("\n") if body else ():
            self.line(*indent, shown(line))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Part]]) -> None:
        """Print a table; a column whose name begins with ``#`` holds numbers."""
        from rich.cells import cell_len

        lines = [[name.lstrip("#") for name in columns]]
        for row in rows:
            cells = (visible(_plain(cell)).split("\n") for cell in row)
            lines += map(list, zip_longest(*cells, fillvalue=""))
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            text = ""
            for name, width, cell in zip(columns, widths, line, strict=True):
                room = " " * (width - cell_len(cell))
                text += room + cell if name.startswith("#") else cell + room
                text += " " * _GAP
            self.line(text.rstrip())


def _plain(*parts: Part) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in parts)


_NARROWEST: Final = 40  # columns of a terminal
_SHORTEST: Final = 20  # columns of a text that is cut
_READABLE: Final = 16  # columns of prose in a table
_Span = tuple[int, int]


class Terminal(Screen):
    """Prints lines that fit the terminal, in colours."""

    def __init__(self) -> None:
        from rich.console import Console

        class Writer(Console):
            """A console that raises if its reader has gone, instead of exiting."""

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        self._console = Writer(highlight=False, markup=False, emoji=False)
        self.width = max(_NARROWEST, self._console.width)

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        if not end and not cut:
            self._console.print(styled(*parts), soft_wrap=True)
            return
        text = styled(*parts)
        right = styled(*end)
        room = self.width
        if end:
            room -= right.cell_len + 2
        if cut:
            left = room - text.cell_len
            if left < _SHORTEST:  # the end gets a line of its own
                left = max(self.width - text.cell_len, _SHORTEST)
            rest = styled(cut)
            rest.truncate(left, overflow="ellipsis")
            text.append_text(rest)
        lines = _wrapped(text, self.width)
        if end:
            if lines[-1].cell_len > room:
                lines.append(styled(""))
            last = lines[-1]
            last.append(" " * max(0, room - last.cell_len + 2))
            last.append_text(right)
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def body(
        self, body: str, *, indent: str | Sequence[Part] = "", tall: int | None = None
    ) -> None:
        margin = styled(*indent)
        room = max(_NARROWEST // 2, self.width - len(margin))
        lines = body.rstrip("\n").split("\n") if body else []
        printed = 0
        for index, line in enumerate(lines):
            pieces = list(styled(shown(line)).wrap(self._console, room))
            for at, piece in enumerate(pieces or [styled("")]):
                if printed == tall:
                    rest = [piece.plain for piece in pieces[at:]]
                    rest += lines[index + 1 :]
                    line_ends = len(lines) - index - 1
                    left = sum(map(len, rest)) + line_ends
                    note = styled((f"… {counted(left, 'more character')}", "dim"))
                    self._console.print(margin + note, soft_wrap=True)
                    return
                piece.rstrip()
                self._console.print(margin + piece, soft_wrap=True)
                printed += 1

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Part]]) -> None:
        """Print a table that never breaks a word or a number.

        Texts are wrapped between words.  If that is not enough, a table of figures is
        continued below, with its first column repeated; other tables become a list.
        """
        cells = [list(map(styled, row)) for row in rows]
        spans = [_span(name, cells, at) for at, name in enumerate(columns)]
        tables = self._tables(spans, all(name.startswith("#") for name in columns[1:]))
        if not tables:
            self._list(columns, cells)
        for nth, places in enumerate(tables):
            if nth:
                self.line("")
            widths = self._fitted([spans[at] for at in places]) or ()
            names = (columns[at] for at in places)
            self._grid(
                list(zip(names, widths, strict=True)),
                ([row[at] for at in places] for row in cells),
            )

    def _tables(self, spans: Sequence[_Span], figures: bool) -> list[list[int]]:
        """The indexes of the columns of each table; no table if a column is too wide.

        figures: whether all columns but the first hold numbers.
        """
        columns = list(range(len(spans)))
        if self._fitted(spans):
            return [columns]
        tables: list[list[int]] = []
        if not figures:
            return tables
        for column in columns[1:]:
            longer = [*tables[-1], column] if tables else []
            if longer and self._fitted([spans[index] for index in longer]):
                tables[-1] = longer
            elif self._fitted([spans[0], spans[column]]):
                tables.append([0, column])
            else:
                return []
        return tables

    def _fitted(self, spans: Sequence[_Span]) -> list[int]:
        """The width of each column; nothing if they do not fit."""
        room = self.width - _GAP * (len(spans) - 1)
        widths = [max(least, min(most, room)) for least, most in spans]
        while sum(widths) > room:
            wider = [at for at, width in enumerate(widths) if width > spans[at][0]]
            if not wider:
                return []
            widths[max(wider, key=widths.__getitem__)] -= 1
        return widths

    def _grid(
        self, columns: Sequence[tuple[str, int]], rows: Iterable[Sequence[Text]]
    ) -> None:
        from rich.table import Table

        table = Table(
            box=None, pad_edge=False, header_style="bold dim", padding=(0, _GAP, 0, 0)
        )
        for name, width in columns:
            table.add_column(
                name.lstrip("#"),
                justify="right" if name.startswith("#") else "left",
                width=width,
            )
        for row in rows:
            cells = zip(row, columns, strict=True)
            lines = (_wrapped(cell, width) for cell, (_, width) in cells)
            table.add_row(*(styled("\n").join(cell) for cell in lines))
        self._console.print(table)

    def _list(self, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Print a line for each cell, and its column's name before it."""
        for nth, row in enumerate(rows):
            pairs = list(zip(map(styled, columns), row, strict=True))
            if len(row) == 2:  # a name and its value already
                pairs = [(row[0], row[1])]
            elif nth:
                self.line("")
            for name, cell in pairs:
                line = styled((f"{name.plain.lstrip('#')}: ", "bold dim")) + cell
                for piece in _wrapped(line, self.width):
                    self._console.print(piece, soft_wrap=True)


# What is not broken: scripts without spaces are, between any two signs.
_WORD: Final = re.compile(r"[^\s\u2e80-\uffff]+|[\u2e80-\uffff]")


def _wrapped(text: Text, width: int) -> list[Text]:
    """The lines of a text; a word that is longer than a line is not broken."""
    from rich.cells import cell_len

    wrapped: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        start = 0
        breaks: list[int] = []
        for word in _WORD.finditer(line.plain):
            text_so_far = line.plain[start : word.end()]
            if start < word.start() and cell_len(text_so_far) > width:
                start = word.start()
                breaks.append(start)
        wrapped += line.divide(breaks)
    for piece in wrapped[:-1]:
        piece.rstrip()
    return wrapped or [text]


def _span(name: str, rows: Sequence[Sequence[Text]], at: int) -> _Span:
    """How narrow and how wide the column at ``at`` can be."""
    from rich.cells import cell_len

    widest = 0
    longest_word = 1
    for text in [name.lstrip("#"), *(row[at].plain for row in rows)]:
        for line in text.split("\n"):
            widest = max(widest, cell_len(line))
        for word in _WORD.findall(text):
            longest_word = max(longest_word, cell_len(word))
    if name.startswith("#"):
        return widest, widest
    return max(longest_word, min(widest, _READABLE)), widest


def styled(*parts: Part) -> Text:
    """The pieces of a line as a text in colours, without what drives a terminal."""
    from rich.text import Text

    from refold.domain.envelope import STANDS_FOR  # what loads it is heavy

    whole = Text()
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        text = Text(visible(content), style)
        if isinstance(content, Shown):
            text.highlight_regex(STANDS_FOR, "red")
            text.highlight_regex(STUB, "yellow")
        whole.append_text(text)
    return whole


_LONG: Final = 500  # less work shows no bar unasked
_EVERY_SEC: Final = 2.0  # between two lines of progress


class Progress:
    """Shows on stderr how much of ``total`` is done.

    of:    what is counted.
    shows: whether to show it; as lines if stderr is no terminal.  None shows only long
           work, on a terminal.
    """

    def __init__(self, total: int, *, of: str, shows: bool | None = None) -> None:
        self._total = total
        self._of = of
        is_terminal = sys.stderr.isatty()
        has_bar = is_terminal and (total >= _LONG if shows is None else shows)
        self._bar = _bar(of, total) if has_bar else None
        self._has_lines = bool(shows) and not is_terminal and total > 0
        self._done = 0
        self._next = 0.0
        self._parts = Counter[Hashable]()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, name: str, by: int) -> None:
        """Count ``by`` more as done, in the part called ``name``."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=by, description=name)
        self._done += by
        now = time.monotonic()
        if self._has_lines and by and (now >= self._next or self._done == self._total):
            self._next = now + _EVERY_SEC
            done = f"{self._done:,} of {counted(self._total, self._of[:-1])}"
            complain(f"{done}: {name}")

    def reach(self, part: Hashable, name: str, done: int) -> None:
        """Set how many of a part, which is called ``name``, are done by now."""
        self.advance(name, done - self._parts[part])
        self._parts[part] = done


def _bar(of: str, total: int) -> Bar:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(of),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=total)
    return bar
