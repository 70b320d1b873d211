"""Record a tour of the commands as an animated picture for the README.

``make recording`` runs the commands on the bundled sample, in a terminal of their own,
and writes what they print into ``docs/pictures/recording.svg``.  The styles of the
picture animate it, so it needs no script and no other file.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from shutil import copyfile
from typing import Final, NamedTuple

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
SAMPLE: Final = ROOT / "examples" / "sample" / "agent_run.jsonl"
PICTURE: Final = ROOT / "docs" / "pictures" / "recording.svg"

_SESSION: Final = "--user lin --session demo"
COMMANDS: Final = (
    f"refold import run.jsonl {_SESSION}",
    "grep -c AKIAFAKE4DEMO7KEY2QZ run.jsonl run.db",
    f"refold log {_SESSION} --verbosity compact --limit 11",
    f"refold compact {_SESSION} --strategy turn_window:full_turns=2,cached_turns=2",
    "refold verify",
    f"refold view {_SESSION} --html run.html",
)

SECONDS: Final = 20  # of the whole recording, which then begins again
COLUMNS: Final = 96
ROWS: Final = 26
_CELL: Final = 8.4  # the width of a character in pixels, at 14 pixels of height
_LINE: Final = 19  # the height of a line
_MARGIN: Final = 16
_BAR: Final = 30  # the height of the title bar

# Parts of the time, which are then stretched to SECONDS.
_TYPE: Final = 0.03  # for each character
_THINK: Final = 0.4  # from the last character to the first line of output
_PRINT: Final = 0.06  # for each line of output
_READ: Final = 2.4  # after the output of a command


class Line(NamedTuple):
    """A line of the recording.

    at:    the second at which it appears, before the time is stretched.
    typed: the seconds that its typing takes; 0 for output.
    """

    text: Text
    at: float
    typed: float = 0


def record() -> list[tuple[str, str]]:
    """Run the commands in an empty folder; return each with its output."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copyfile(SAMPLE, place / "run.jsonl")
        environment = {
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "HOME": folder,
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "REFOLD_HOME": str(place / "keys"),
            "REFOLD_DB": "sqlite:///run.db",
        }
        return [(command, _output(command, place, environment)) for command in COMMANDS]


def _output(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Return what a command prints on a terminal of the picture's size."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,  # the remark about a new key
    )
    os.close(terminal)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(reader, 65536):
            chunks.append(chunk)
    except OSError:
        pass  # Linux reports the end of the output so
    finally:
        os.close(reader)
    # grep exits with 1 only if it finds the secret in no file at all.
    if process.wait():
        raise SystemExit(f"failed: {command}")
    return b"".join(chunks).decode().replace("\r\n", "\n").strip("\n")


def timed(recorded: Sequence[tuple[str, str]]) -> tuple[list[Line], float]:
    """Return the lines with the times at which they appear, and the length."""
    lines: list[Line] = []
    now = 0.5
    for command, output in recorded:
        typing = _TYPE * len(command)
        prompt = Text.assemble(("$ ", "bold green"), (command, "bold"))
        lines.append(Line(prompt, now, typing))
        now += typing + _THINK
        for text in output.split("\n"):
            for row in _wrapped(Text.from_ansi(text)):
                lines.append(Line(row, now))
                now += _PRINT
        lines.append(Line(Text(), now))
        now += _READ
    return lines, now


def _wrapped(text: Text) -> Iterable[Text]:
    """Return the rows that a line takes, as a terminal breaks it."""
    return text.divide(range(COLUMNS, len(text), COLUMNS))


def picture(lines: Sequence[Line], length: float) -> str:
    """Return the lines as an animated SVG.

    Without animation, it shows the end of the recording.
    """
    width = round(COLUMNS * _CELL + 2 * _MARGIN)
    height = _BAR + ROWS * _LINE + _MARGIN
    percent = 100 / length
    styles = list(_styles(lines, percent))
    texts = [_text(number, line) for number, line in enumerate(lines)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            "<title>Refold imports, shows, compacts and verifies a run</title>",
            "<style>",
            *styles,
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#16181d"/>',
            *_title_bar(),
            f'<svg y="{_BAR}" width="{width}" height="{ROWS * _LINE}">',
            '<g class="screen">',
            *texts,
            "</g>",
            "</svg>",
            "</svg>",
            "",
        ]
    )


def _styles(lines: Sequence[Line], percent: float) -> Iterator[str]:
    """Yield the rules that let lines appear, and the screen scroll."""
    scrolled = max(0, len(lines) - ROWS) * _LINE
    yield (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
        "monospace;white-space:pre;fill:#d8dee9}"
    )
    yield f"text,.screen{{animation:{SECONDS}s step-end infinite}}"
    yield f".screen{{animation-name:scroll;transform:translateY(-{scrolled}px)}}"
    steps = ["0%{transform:translateY(0)}"]
    for number, line in enumerate(lines):
        hidden = number + 1 - ROWS
        if hidden > 0:
            steps.append(
                f"{line.at * percent:.2f}%{{transform:translateY(-{hidden * _LINE}px)}}"
            )
        if not line.text.plain:
            continue
        name = f"l{number}"
        yield f".{name}{{animation-name:{name}}}"
        if line.typed:
            typed = "".join(_typing(line, percent))
            yield f"@keyframes {name}{{0%{{clip-path:inset(0 100% 0 0)}}{typed}}}"
        else:
            at = line.at * percent
            yield f"@keyframes {name}{{0%{{opacity:0}}{at:.2f}%{{opacity:1}}}}"
    yield f"@keyframes scroll{{{''.join(steps)}}}"
    yield "@media(prefers-reduced-motion:reduce){text,.screen{animation:none}}"


def _typing(line: Line, percent: float) -> Iterator[str]:
    """Yield the steps in which the characters of a command appear."""
    characters = len(line.text.plain)
    for typed in range(2, characters + 1):
        at = (line.at + line.typed * (typed - 2) / (characters - 2)) * percent
        rest = 100 - 100 * typed / characters
        yield f"{at:.2f}%{{clip-path:inset(0 {rest:.1f}% 0 0)}}"


def _text(number: int, line: Line) -> str:
    """Return a line of the terminal; each run of one style is a part of it."""
    plain = line.text.plain
    if not plain:
        return ""
    console = Console(width=COLUMNS, color_system="truecolor", legacy_windows=False)
    spans = "".join(
        _span(segment) for segment in line.text.render(console) if segment.text
    )
    y = (number + 1) * _LINE - 5
    width = line.text.cell_len * _CELL
    return (
        f'<text class="l{number}" x="{_MARGIN}" y="{y}" textLength="{width:.1f}" '
        f'xml:space="preserve">{spans}</text>'
    )


def _span(segment: Segment) -> str:
    text = escape(re.sub(r"[\x00-\x1f]", "", segment.text))
    style = segment.style or Style()
    attributes = ""
    if style.color and not style.color.is_default:
        attributes += f' fill="{style.color.get_truecolor(MONOKAI).hex}"'
    if style.bold:
        attributes += ' font-weight="bold"'
    if style.dim:
        attributes += ' opacity=".6"'
    return f"<tspan{attributes}>{text}</tspan>" if attributes else text


def _title_bar() -> Iterator[str]:
    """Yield the three buttons of a window."""
    for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{20 + 18 * number}" cy="15" r="5.5" fill="{color}"/>'


def main() -> None:
    """Record the commands and write the picture."""
    lines, length = timed(record())
    PICTURE.write_text(picture(lines, length), encoding="utf-8")
    kilobytes = PICTURE.stat().st_size / 1000
    print(f"wrote {PICTURE.relative_to(ROOT)}: {len(lines)} lines, {kilobytes:.0f} kB")


if __name__ == "__main__":
    main()
