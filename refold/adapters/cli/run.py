"""Runs a command and turns whatever comes of it into an exit code and one sentence."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import typer

from refold.adapters.cli.output import (
    complain,
    hush,
    one_line,
    show_warnings,
    speak_plainly,
)
from refold.domain.errors import (
    InvalidConfiguration,
    RefoldError,
    UnknownModel,
    UnknownStrategy,
)

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141


def run(app: typer.Typer, args: Sequence[str]) -> int:
    """Run the command that ``args`` name; returns the exit code, never raises.

    With ``REFOLD_DEBUG=1`` what was not expected is raised as it is.
    """
    show_warnings()
    speak_plainly()
    try:
        code = _invoke(app, list(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        hush()
        return READER_GONE
    except Exception as error:
        return _failed(error)
    return code


def mend_streams() -> None:
    """Give a closed stream an end, and an unbuffered stdout a buffer.

    Unbuffered (PYTHONUNBUFFERED), a write that the disk takes half of is no error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for good
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        old = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=old.isatty(),
        )


def _invoke(app: typer.Typer, args: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("refold", args) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return DONE


_WRONG: Final = (InvalidConfiguration, UnknownModel, UnknownStrategy)


def _failed(error: Exception) -> int:
    if hasattr(error, "format_message"):
        complain(_usage(error))
        return WRONG
    if isinstance(error, RefoldError):
        complain(str(error))
        return WRONG if isinstance(error, _WRONG) else FAILED
    if os.environ.get("REFOLD_DEBUG") == "1":
        raise error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror.lower()}: check the path and its permissions")
    else:
        complain(_unexpected(error))
    return FAILED


def _usage(error: Any) -> str:
    """Say what typer says of a wrong option or argument, in one sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "refold"
    message = one_line(error.format_message()).rstrip(".")
    if "--db" in message and path != "refold":
        return f"{message}: --db stands before the command, as in `refold --db URL …`"
    return f"{message}: `{path} --help` shows what it takes"


def _unexpected(error: Exception) -> str:
    """Name the place, not the message: it may hold text that is not redacted."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return (
        f"stopped by an unexpected {type(error).__name__} in {place}: this is a fault "
        "of Refold, and REFOLD_DEBUG=1 shows where it began"
    )
