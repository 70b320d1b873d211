"""Redaction on the way out: of log records, and of what tools print."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol

from refold.redaction.streaming import StreamRedactor

if TYPE_CHECKING:
    from refold.redaction.engine import Redactor

# What every record has: all else came from `extra`, or from a formatter.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_FORMATTER: Final = logging.Formatter()


class TextSink(Protocol):
    """A stream that text is written to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class RedactingFilter(logging.Filter):
    """A filter of log records that lets all pass, redacted: for handlers and loggers.

    On a handler it sees every record that the handler writes; on a logger only those
    that are logged with that very logger.  It redacts the message with its arguments,
    the text of an exception and of a stack, and what ``extra`` added.  The exception
    itself is taken off the record: its text stands in ``exc_text``.

    It never raises: what cannot be redacted is withheld, and the record says why.
    """

    def __init__(self, redactor: Redactor, name: str = "") -> None:
        super().__init__(name)
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact ``record`` in place, if its logger is under the filter's name."""
        if not super().filter(record):
            return True
        record.msg = self._kept(lambda: self._message(record))
        record.args = None
        if record.exc_info or record.exc_text:
            record.exc_text = self._kept(lambda: self._text(_exception(record)))
            record.exc_info = None
        if record.stack_info:
            record.stack_info = self._kept(lambda: self._text(str(record.stack_info)))
        for name in vars(record).keys() - _STANDARD:
            extra = partial(self._extra, name, vars(record)[name])
            vars(record)[name] = self._kept(extra)
        return True

    def _message(self, record: logging.LogRecord) -> Any:
        if isinstance(record.msg, dict) and not record.args:
            return self._redactor.value(record.msg)[0]
        return self._text(record.getMessage())

    def _extra(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, str):
            return self._text(value, key=name)
        if isinstance(value, int | list | dict):
            (clean,) = self._redactor.value({name: value})[0].values()
            return clean
        for text in (str(value), repr(value)):
            clean = self._text(text, key=name)
            if clean != text:
                return clean
        return value

    def _text(self, text: str, key: str | None = None) -> str:
        return self._redactor.text(text, key=key)[0]

    def _kept(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            return _withheld(error)


class RedactingWriter(io.TextIOBase):
    """A text stream that writes to another what is redacted: for what tools print.

    What is written together is the text of all writes together, redacted, however the
    writes divide it.  So the end of it is held back until what follows shows that no
    value goes on there: ``flush`` writes what is safe, ``close`` all.  The other stream
    stays open.

    It has no ``fileno`` and no ``buffer``: bytes written to those would pass unseen.
    Threads may share it.
    """

    def __init__(self, stream: TextSink, redactor: Redactor) -> None:
        super().__init__()
        self._stream, self._redactor = stream, redactor
        self._redacting = StreamRedactor(redactor)
        self._lock = RLock()
        self._busy = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        """Take ``text``; return its length.  What cannot be redacted is withheld."""
        with self._lock:
            if self.closed:
                raise ValueError("write to a closed RedactingWriter")
            self._pass(lambda: self._redacting.feed(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream; what is held back stays held back."""
        with self._lock:
            if not self.closed:
                self._stream.flush()

    def close(self) -> None:
        """Write what is held back, and take no more."""
        with self._lock:
            if self.closed:
                return
            try:
                self._pass(self._redacting.close)
            finally:
                super().close()

    def _pass(self, work: Callable[[], str]) -> None:
        if self._busy:
            raise RuntimeError("a RedactingWriter was written to from its own write")
        self._busy = True
        try:
            text = work()
        except Exception as error:
            self._redacting = StreamRedactor(self._redactor)
            text = f"{_withheld(error)}\n"
        finally:
            self._busy = False
        if text:
            self._stream.write(text)


def redacted_lines(lines: Iterable[str], redactor: Redactor) -> Iterator[str]:
    """The lines of the text that ``lines`` are together, redacted.

    A value of several lines is found too; one that has become a placeholder leaves
    fewer lines.  Raises RedactionError.
    """
    redacting = StreamRedactor(redactor)
    rest = ""
    for line in lines:
        ready = rest + redacting.feed(line)
        *whole, rest = ready.split("\n")
        yield from (f"{one}\n" for one in whole)
    *whole, rest = (rest + redacting.close()).split("\n")
    yield from (f"{one}\n" for one in whole)
    if rest:
        yield rest


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0]:
        return _FORMATTER.formatException(record.exc_info)
    return record.exc_text or ""


def _withheld(error: Exception) -> str:
    return f"[withheld: redaction stopped with {type(error).__name__}]"
