"""The result of a command, printed as JSON, or as lines and tables."""

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
    """The result of a command.

    value:   the value that ``--json`` prints, or a function that returns it.  Each
             value of an iterator is a line; an ``Array`` is one line.
    show:    the text that people see, or a function that prints it.
    code:    the exit code.
    changed: whether the command changed something.  Such a report is always printed:
             on stderr if stdout fails.
    """

    value: Any
    show: str | Callable[[Screen], object]
    code: int = 0
    changed: bool = False

    def print(self, *, as_json: bool) -> None:
        """Print all of it; JSON in UTF-8, whatever the encoding of the terminal."""
        if not as_json:
            paint(self.show)
            return
        import orjson

        value = self.value() if callable(self.value) else self.value
        if isinstance(value, Array):
            value.print()
        elif isinstance(value, Iterator):
            for item in value:
                write_line(orjson.dumps(item))
        else:
            write_line(orjson.dumps(value))

    def try_to_print(self, *, as_json: bool) -> OSError | None:
        """Print it on stdout; returns the error if stdout fails."""
        if is_closed(sys.stdout):
            return OSError(errno.EBADF, "it is closed")
        try:
            self.print(as_json=as_json)
            sys.stdout.flush()
        except OSError as error:
            discard_stdout()
            return error
        return None

    def print_on_stderr(self, *, as_json: bool) -> None:
        """Print it on stderr; if that fails too, stop."""
        with contextlib.suppress(OSError), contextlib.redirect_stdout(sys.stderr):
            self.print(as_json=as_json)
            sys.stderr.flush()


def is_closed(stream: TextIO) -> bool:
    """Whether the process began without this stream (see ``run.prepare_streams``)."""
    return getattr(stream, "name", None) == os.devnull


def paint(show: str | Callable[[Screen], object]) -> None:
    """Print a text for people; in colours and fitted to its width on a terminal."""
    screen = Terminal() if sys.stdout.isatty() else Screen()
    if isinstance(show, str):
        if show:
            screen.line(shown(show))
    else:
        show(screen)


def one_line(text: str) -> str:
    """Return the text as a sentence on one line."""
    return " ".join(visible(text).split())


class Shown(str):
    """A text of the log that is safe to print; a terminal marks redacted values."""

    __slots__ = ()


def shown(value: object) -> Shown:
    """Return a text of the log in a form that is safe to print."""
    return Shown(visible(str(value)))


_LINE_END: Final = re.compile("\r\n|[\n\r\u2028\u2029]")


def shown_in_line(value: object) -> Shown:
    """Return a text of the log on one line, with a sign for each end of a line."""
    return shown(_LINE_END.sub("\u2424", str(value)))


def columns_of(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int) -> str:
    """Return the text with spaces after it, up to ``width`` columns."""
    return text + " " * (width - columns_of(text))


def cut(text: str, width: int) -> Shown:
    """Return the text in at most ``width`` columns, with an ellipsis if it is cut."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return Shown(text)
    return Shown(set_cell_size(text, max(width - 1, 0)) + "…")


def cut_left(text: str, width: int) -> Shown:
    """Return the end of a text in at most ``width`` columns, after an ellipsis."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return Shown(text)
    end = text
    while end and cell_len(end) > width - 1:
        end = end[1:]
    return Shown(f"…{end}")


class Array(NamedTuple):
    """A JSON array, each value of which is printed before the next is computed."""

    values: Iterable[Any]

    def print(self) -> None:
        """Write it as one line; nothing if the first value raises an error."""
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
    """Print a sentence on stderr; a terminal gets it in lines that fit."""
    text = f"refold: {one_line(sentence)}"
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            width = WIDE
            with contextlib.suppress(OSError, ValueError):
                width = os.get_terminal_size(sys.stderr.fileno()).columns
            width = max(_NARROWEST, width)
            if len(text) > width:
                lines = _wrapped(styled(text), width, words=_WORD_OR_COMMAND)
                text = "\n".join(line.plain for line in lines)
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class _WarningHandler(logging.Handler):
    """Prints the warnings of the package as sentences on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "refold.audit":  # lines for programs
            complain(record.getMessage())


def show_warnings() -> None:
    """Print the warnings of the package as sentences; a second call does nothing."""
    logger = logging.getLogger("refold")
    if not any(isinstance(handler, _WarningHandler) for handler in logger.handlers):
        logger.addHandler(_WarningHandler(logging.WARNING))
        logger.propagate = False


def escape_unencodable() -> None:
    """Write characters that the terminal's encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Discard further output, because the reader of stdout has gone."""
    with contextlib.suppress(OSError, ValueError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)


def names_of(item: Any) -> dict[str, str]:
    """Return the names of an item's user and session for JSON."""
    return {"user_id": item.user_id, "session_id": item.session_id}


def mark(*, ok: bool | None) -> tuple[str, str]:
    """Return the sign before a line, with its style.

    ok: True for a success, False for a failure, None for a warning.
    """
    if ok is None:
        return "! ", "bold yellow"
    if ok:
        return "✓ ", "bold green"
    return "✗ ", "bold red"


def tree_head(head: TreeHead | None) -> str:
    """Return a tree head as one line: its leaves, its time and its root."""
    if head is None:
        return "nothing is sealed yet"
    leaves = counted(head.size, "leaf", "leaves")
    sealed = moment(head.sealed_at)
    return f"{leaves}  sealed {sealed}  root {head.root.hex()[:16]}…"


_GAP: Final = 3  # columns between those of a table
_SMALLEST_GAP: Final = 2  # where a terminal has no room for the other
WIDE: Final = 100  # columns; a narrower terminal gets tables with fewer columns


class Screen:
    """Prints plain lines to stdout: nothing is wrapped, cut or coloured."""

    width: int = WIDE  # for commands that fit their lines to the width
    cuts: bool = False  # whether long texts are cut

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        """Print a line of these parts.

        cut: a further part, which a terminal shortens if there is no room for it.
        end: parts at the right; a terminal gives them a line of their own if there is
             no room.
        """
        text = _plain(*parts, cut)
        if end:
            text += "  " + _plain(*end)
        if not text.strip():
            text = ""
        sys.stdout.write(f"{text}\n")

    def path(self, path: str, *, taken: int = 0) -> Shown:  # noqa: ARG002  # the same
        """Return a path; a terminal leaves out its beginning if there is no room.

        taken: the number of columns that other parts of the line take.
        """
        return shown_in_line(path)

    def body(
        self,
        body: str,
        *,
        indent: str | Sequence[Part] = "",
        max_lines: int | None = None,  # noqa: ARG002  # only a terminal cuts it
    ) -> None:
        """Print a text of the log; a terminal wraps it and prints the first lines.

        max_lines: the most lines of the terminal; None prints all.
        """
        for line in _lines(body):
            self.line(*indent, shown(line))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Part]]) -> None:
        """Print a table; a column whose name begins with ``#`` contains numbers."""
        from rich.cells import cell_len

        lines = [[name.lstrip("#") for name in columns]]
        for row in rows:
            cells = [visible(_plain(cell)).split("\n") for cell in row]
            lines += map(list, zip_longest(*cells, fillvalue=""))
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            text = ""
            for name, width, cell in zip(columns, widths, line, strict=True):
                padding = " " * (width - cell_len(cell))
                if name.startswith("#"):
                    text += padding + cell
                else:
                    text += cell + padding
                text += " " * _GAP
            self.line(text.rstrip())


def _plain(*parts: Part) -> str:
    """Return the text of the parts without their styles."""
    return "".join(part if isinstance(part, str) else part[0] for part in parts)


def _lines(body: str) -> list[str]:
    """Return the lines of a text; an empty text has none."""
    if not body:
        return []
    return body.rstrip("\n").split("\n")


_NARROWEST: Final = 40  # columns of a terminal
_SHORTEST: Final = 20  # columns of a path that is cut
_SHORTEST_CUT: Final = 8  # columns of a text that is cut at the end of a line
_TAB: Final = 4  # columns
_READABLE: Final = 16  # columns of prose in a table


class _Span(NamedTuple):
    """The width of a column in columns of the terminal: at least, and at most."""

    least: int
    most: int


class Terminal(Screen):
    """Prints lines that fit the terminal, in colours."""

    cuts = True

    def __init__(self) -> None:
        from rich.console import Console

        class Writer(Console):
            """A console that raises an error if its reader has gone."""

            def on_broken_pipe(self) -> None:
                raise BrokenPipeError

        self._console = Writer(highlight=False, markup=False, emoji=False)
        self.width = max(_NARROWEST, self._console.width)

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        text = styled(*parts)
        text.expand_tabs(_TAB)
        if not end and not cut:
            for line in self._below_each_other(text, breaks=_is_of_log(parts)):
                self._console.print(line, soft_wrap=True)
            return
        right = styled(*end)
        room = self.width  # before the end
        if end:
            room -= right.cell_len + 2
        if cut:
            room_for_cut = room - text.cell_len
            if room_for_cut < _SHORTEST_CUT:  # then the end gets its own line
                room_for_cut = max(self.width - text.cell_len, _SHORTEST_CUT)
            shortened = styled(cut)
            shortened.expand_tabs(1)
            shortened.truncate(room_for_cut, overflow="ellipsis")
            text.append_text(shortened)
        lines = _wrapped(text, self.width)
        if end:
            if lines[-1].cell_len > room:
                lines.append(styled(""))
            last = lines[-1]
            last.append(" " * max(0, room - last.cell_len + 2))
            last.append_text(right)
        for line in lines:
            self._console.print(line, soft_wrap=True)

    def _below_each_other(self, text: Text, *, breaks: bool) -> list[Text]:
        """Return the lines of a text; later ones have the indent of the first.

        breaks: whether a word that is longer than a line is broken.
        """
        if text.cell_len <= self.width:
            return [text]
        plain = text.plain
        indent = min(len(plain) - len(plain.lstrip(" ")), self.width // 2)
        margin = styled(" " * indent)
        room = self.width - indent
        lines: list[Text] = []
        for line in _wrapped(text[indent:], room, words=_WORD_OR_COMMAND):
            pieces: Iterable[Text] = [line]
            if breaks and line.cell_len > room:
                pieces = line.wrap(self._console, room)
            lines += [margin + piece for piece in pieces]
        return lines

    def path(self, path: str, *, taken: int = 0) -> Shown:
        return cut_left(shown_in_line(path), max(self.width - taken, _SHORTEST))

    def body(
        self,
        body: str,
        *,
        indent: str | Sequence[Part] = "",
        max_lines: int | None = None,
    ) -> None:
        margin = styled(*indent)
        room = max(_NARROWEST // 2, self.width - len(margin))
        lines = _lines(body)
        printed = 0
        for number, line in enumerate(lines, 1):
            pieces = list(styled(shown(line)).wrap(self._console, room))
            for index, piece in enumerate(pieces or [styled("")]):
                if printed == max_lines:
                    rest_of_line = sum(len(piece.plain) for piece in pieces[index:])
                    # With the end of the line before each of them.
                    later_lines = sum(1 + len(line) for line in lines[number:])
                    more = counted(rest_of_line + later_lines, "more character")
                    note = (f"… {more} (--full)", "dim")
                    self._console.print(margin + styled(note), soft_wrap=True)
                    return
                piece.rstrip()
                self._console.print(margin + piece, soft_wrap=True)
                printed += 1

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Part]]) -> None:
        """Print a table that never breaks a word or a number.

        Texts are wrapped between words.  If that is not enough, a table of numbers is
        continued below, with its first column repeated; other tables become a list.
        """
        cells = [list(map(styled, row)) for row in rows]
        spans: list[_Span] = []
        for index, name in enumerate(columns):
            spans.append(_span(name, [row[index] for row in cells]))
        has_numbers = all(name.startswith("#") for name in columns[1:])
        gap = _GAP
        if not self._fitted(spans, gap):
            gap = _SMALLEST_GAP
        tables = self._split(spans, gap, has_numbers=has_numbers)
        if not tables:
            self._list(columns, cells)
        for table_number, indexes in enumerate(tables):
            if table_number > 0:
                self.line("")
            names = [columns[index] for index in indexes]
            widths = self._fitted([spans[index] for index in indexes], gap)
            self._grid(
                list(zip(names, widths, strict=True)),
                [[row[index] for index in indexes] for row in cells],
                gap,
            )

    def _split(
        self, spans: Sequence[_Span], gap: int, *, has_numbers: bool
    ) -> list[list[int]]:
        """Split a table into tables that fit; returns the indexes of their columns.

        gap:         the number of columns of the terminal between those of the table.
        has_numbers: whether all columns after the first contain numbers.  Other tables
                     cannot be split.

        Returns no table if that is not possible.
        """
        columns = list(range(len(spans)))
        if self._fitted(spans, gap):
            return [columns]
        if not has_numbers:
            return []
        tables: list[list[int]] = []
        for column in columns[1:]:
            if tables:
                longer = [*tables[-1], column]
                if self._fitted([spans[index] for index in longer], gap):
                    tables[-1] = longer
                    continue
            if not self._fitted([spans[0], spans[column]], gap):
                return []
            tables.append([0, column])
        return tables

    def _fitted(self, spans: Sequence[_Span], gap: int) -> list[int]:
        """Return the width of each column; nothing if they do not fit."""
        room = self.width - gap * (len(spans) - 1)
        widths = [max(span.least, min(span.most, room)) for span in spans]
        while sum(widths) > room:
            narrowable = [
                index for index, span in enumerate(spans) if widths[index] > span.least
            ]
            if not narrowable:
                return []
            widest = max(narrowable, key=lambda index: widths[index])
            widths[widest] -= 1
        return widths

    def _grid(
        self,
        columns: Sequence[tuple[str, int]],
        rows: Iterable[Sequence[Text]],
        gap: int,
    ) -> None:
        """Print a table; each column has a name and a width."""
        from rich.table import Table

        table = Table(
            box=None, pad_edge=False, header_style="bold dim", padding=(0, gap, 0, 0)
        )
        for name, width in columns:
            table.add_column(
                name.lstrip("#"),
                justify="right" if name.startswith("#") else "left",
                width=width,
            )
        for row in rows:
            cells: list[Text] = []
            for text, (_, width) in zip(row, columns, strict=True):
                cells.append(styled("\n").join(_wrapped(text, width)))
            table.add_row(*cells)
        self._console.print(table)

    def _list(self, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Print a line for each cell, with its column's name before it."""
        for row_number, row in enumerate(rows):
            pairs = list(zip(map(styled, columns), row, strict=True))
            if len(row) == 2:  # such a row is a name and its value
                pairs = [(row[0], row[1])]
            elif row_number > 0:
                self.line("")
            for name, cell in pairs:
                line = styled((f"{name.plain.lstrip('#')}: ", "bold dim")) + cell
                for piece in _wrapped(line, self.width):
                    self._console.print(piece, soft_wrap=True)


# The parts of a text that are not broken.  Scripts without spaces are broken between
# any two characters.
_WORD: Final = re.compile(r"[^\s\u2e80-\uffff]+|[\u2e80-\uffff]")


# The same, and a command between backticks, which is one part.
_WORD_OR_COMMAND: Final = re.compile(rf"`[^`\n]+`|{_WORD.pattern}")


def _is_of_log(parts: Sequence[Part]) -> bool:
    """Whether one of the parts is a text of the log."""
    for part in parts:
        content = part if isinstance(part, str) else part[0]
        if isinstance(content, Shown):
            return True
    return False


def _wrapped(text: Text, width: int, words: re.Pattern[str] = _WORD) -> list[Text]:
    """Return the lines of a text; a word that is longer than a line is not broken.

    words: the parts that are not broken.
    """
    from rich.cells import cell_len

    wrapped: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        start = 0
        breaks: list[int] = []
        for word in words.finditer(line.plain):
            text_so_far = line.plain[start : word.end()]
            if start < word.start() and cell_len(text_so_far) > width:
                start = word.start()
                breaks.append(start)
        wrapped += line.divide(breaks)
    for piece in wrapped[:-1]:
        piece.rstrip()
    return wrapped or [text]


def _span(name: str, cells: Sequence[Text]) -> _Span:
    """Return the span of a column with this name and these cells."""
    from rich.cells import cell_len

    widest_line = 0
    longest_word = 1
    for text in [name.lstrip("#"), *(cell.plain for cell in cells)]:
        for line in text.split("\n"):
            widest_line = max(widest_line, cell_len(line))
        for word in _WORD.findall(text):
            longest_word = max(longest_word, cell_len(word))
    if name.startswith("#"):
        return _Span(widest_line, widest_line)
    readable = min(widest_line, _READABLE)
    return _Span(max(longest_word, readable), widest_line)


def styled(*parts: Part) -> Text:
    """Return the parts of a line as a text in colours, with visible control characters.

    Redacted values and stubs in texts of the log are highlighted.
    """
    from rich.text import Text

    from refold.domain.placeholders import STANDS_FOR

    line = Text()
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        text = Text(visible(content), style)
        if isinstance(content, Shown):
            text.highlight_regex(STANDS_FOR, "red")
            text.highlight_regex(STUB, "yellow")
        line.append_text(text)
    return line


_LONG: Final = 500  # items; shorter work shows a bar only if asked to
_EVERY_SEC: Final = 2.0  # between two lines of progress


class Progress:
    """Shows on stderr how much of ``total`` is done.

    total: the number of items; None if it is not known.
    of:    the plural name of the items that are counted.
    shows: whether to show it; as lines if stderr is no terminal.  None shows only long
           work, on a terminal.
    """

    def __init__(
        self, total: int | None, *, of: str, shows: bool | None = None
    ) -> None:
        self._total = total
        self._of = of
        self._bar: Bar | None = None
        self._has_lines = False
        if sys.stderr.isatty():
            is_long = total is not None and total >= _LONG
            if shows or (shows is None and is_long):
                self._bar = _bar(of, total)
        elif shows and total:
            self._has_lines = True
        self._done = 0
        self._next_line_at = 0.0
        self._done_of_part = Counter[Hashable]()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def hide(self) -> None:
        """Remove the bar for good, so that lines can be printed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, name: str, by: int) -> None:
        """Add ``by`` to the number of done items, in the part called ``name``."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=by, description=name)
        self._done += by
        if not self._has_lines or not by or self._total is None:
            return
        now = time.monotonic()
        if now >= self._next_line_at or self._done == self._total:
            self._next_line_at = now + _EVERY_SEC
            done = f"{self._done:,} of {counted(self._total, self._of[:-1])}"
            complain(f"{done}: {name}")

    def reach(self, part: Hashable, name: str, done: int) -> None:
        """Set the number of done items in a part, which is called ``name``."""
        self.advance(name, done - self._done_of_part[part])
        self._done_of_part[part] = done


def _bar(of: str, total: int | None) -> Bar:
    """Return a progress bar for ``total`` items, which are called ``of``."""
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
