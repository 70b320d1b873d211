"""Reports what a process opens for writing, renames, or creates on disk.

``environment`` returns the variables with which every Python process starts watched,
and its Python child processes as well.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_START: Final = "from tests.support.watched import start; start()\n"
_ROOT: Final = Path(__file__).parents[2]
REPORT: Final = "WATCHED_REPORT"


class Write(NamedTuple):
    """One change that a process made on the disk."""

    event: str
    path: str
    command: list[str]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a watched process, which reports to ``folder``."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_START)
    return {
        "PYTHONPATH": os.pathsep.join((str(folder), str(_ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        REPORT: str(folder / "report.jsonl"),
    }


def writes(folder: Path) -> list[Write]:
    """Return the reported changes of the processes."""
    report = (folder / "report.jsonl").read_text()
    return [Write(*json.loads(line)) for line in report.splitlines()]


def start() -> None:
    """Report every change on the disk by this process from now on."""
    report = os.environ[REPORT]
    reporting = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal reporting
        if reporting or event not in _PATH_OF:
            return
        path = _PATH_OF[event](arguments)
        if path is None or isinstance(path, int):
            return
        reporting = True
        try:
            line = [event, os.path.abspath(os.fsdecode(path)), sys.argv[:4]]
            descriptor = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, json.dumps(line).encode() + b"\n")
            os.close(descriptor)
        finally:
            reporting = False

    sys.addaudithook(hook)


def _opened(arguments: tuple[Any, ...]) -> Any:
    path, _, flags = arguments
    return path if flags is not None and flags & _WRITING else None


def _database(arguments: tuple[Any, ...]) -> Any:
    path = os.fsdecode(arguments[0])
    if path == ":memory:":
        return None
    return path.removeprefix("file:").partition("?")[0]


_PATH_OF: Final[dict[str, Any]] = {
    "open": _opened,
    "os.rename": lambda arguments: arguments[1],
    "os.link": lambda arguments: arguments[1],
    "os.symlink": lambda arguments: arguments[1],
    "os.mkdir": lambda arguments: arguments[0],
    "sqlite3.connect": _database,
}
