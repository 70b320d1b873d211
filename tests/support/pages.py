"""Runs a page of the documentation: its blocks from top to bottom, in one process.

``main`` runs ``steps.json`` of the working directory, and writes the output of each
step to ``printed.json``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.forking import adopt_python_path

ROOT: Final = Path(__file__).parents[2]
_PART: Final = re.compile(
    r"^(?P<heading>#+) [^\n]*$"
    r"|(?:[Ss]ave\sthis\sas `(?P<file>[^`]+)`[^\n]*\n\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

_COMMAND: Final = re.compile(r".*<<'(\w+)'\n(?:.*\n)*?\1\n|(?:.*\\\n)*.*\n")


class Block(NamedTuple):
    """A fenced block: its content, its language, its section, and its file."""

    section: int
    language: str
    text: str
    file: str | None


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    section = 0
    for part in _PART.finditer((ROOT / page).read_text("utf-8")):
        if part["heading"]:
            section += 1
        else:
            yield Block(section, part["language"], part["text"], part["file"])


def commands(text: str) -> list[str]:
    """Return the commands of a shell block; a command may have several lines."""
    return [match[0] for match in _COMMAND.finditer(text)]


def run(step: dict[str, Any], names: dict[str, Any]) -> str:
    """Run one step and return its output."""
    if step["file"]:
        Path(step["file"]).write_text(step["text"])
        return ""
    if step["language"] == "python":
        with redirect_stdout(StringIO()) as printed:
            exec(compile(step["text"], step["name"], "exec"), names)  # noqa: S102  # our own page
        return printed.getvalue()
    if step["language"] == "sh":
        text = step["text"]
        done = subprocess.run(
            ["/bin/sh", "-ec", f"{text}\nenv -0 > .environment"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        environment = Path(".environment").read_text().split("\0")
        for name, equals, value in (pair.partition("=") for pair in environment):
            if equals:
                os.environ[name] = value
        adopt_python_path()
        return done.stdout
    raise AssertionError(step["language"])


def main() -> None:
    """Run all steps; stop at the first that fails, with its text and its output."""
    steps = json.loads(Path("steps.json").read_text())
    printed: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    for step in steps:
        try:
            printed.append(run(step, names))
        except BaseException:
            sys.stderr.write(f"{step['name']}:\n{step['text']}\n")
            raise
    Path("printed.json").write_text(json.dumps(printed))
