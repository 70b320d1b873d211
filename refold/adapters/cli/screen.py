"""What people read of a command: lines and tables, as wide as the terminal.

Where stdout is no terminal nothing depends on a width: no text is cut or wrapped,
and there are no colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from refold.adapters.cli.marks import STUB
from refold.adapters.cli.output import visible
from refold.adapters.cli.wording import counted

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
