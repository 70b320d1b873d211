"""What a program reads of a command: JSON on stdout, sentences on stderr."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from typing import Any

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
