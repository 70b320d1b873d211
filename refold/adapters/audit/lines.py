"""Audit records as JSON lines: for a logger, or a file of their own."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

import orjson

from refold.domain.audit import AuditRecord
from refold.domain.errors import InvalidConfiguration

LOGGER: Final = "refold.audit"
_LEVELS: Final = {"INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class _OwnFile(WatchedFileHandler):
    """A file that is made anew where it was moved away, for its owner alone."""

    def _open(self) -> Any:
        return open(
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )


class LinesSink:
    """Each record as a line: to the logger ``refold.audit``, or to one handler.

    What the handlers do with a line is theirs: one that fails is told by ``logging``,
    and the line is not written again.
    """

    def __init__(self, handler: logging.Handler | None = None) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._handler = handler

    @classmethod
    def file(cls, path: Path) -> LinesSink:
        """Lines at the end of a file that its owner alone can read.

        A file that was moved away is begun anew.  Raises InvalidConfiguration.
        """
        try:
            return cls(_OwnFile(path, encoding="utf-8"))
        except OSError as error:
            raise InvalidConfiguration(
                f"the audit file {path} cannot be written ({error.strerror})"
            ) from None

    def write(self, records: Sequence[AuditRecord]) -> None:
        for record in records:
            level = _LEVELS[record.level]
            if self._handler is None and not self._logger.isEnabledFor(level):
                continue
            line = orjson.dumps(record.to_json()).decode()
            if self._handler is None:
                self._logger.log(level, line)
            else:
                made = logging.LogRecord(LOGGER, level, "", 0, line, None, None)
                self._handler.handle(made)

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()
