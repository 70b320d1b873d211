"""An anchor in a file: one signed tree head a line, as JSON, each on disk for good."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from refold.adapters.sql.keystore import create_private
from refold.domain.errors import SealBroken, StoreUnavailable
from refold.domain.seals import TreeHead

_LONGEST: Final = 4096  # a line is a tenth of it


class FileAnchor:
    """An Anchor in the file ``path``, which is made when it is first added to.

    What stands there is never written again.  A second file is what is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locked = path.with_name(f"{path.name}.lock")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes and threads from reading and adding."""
        try:
            create_private(self._locked)
            file = self._locked.open("rb")
        except PermissionError:  # who may not write here cannot seal, but may look
            yield
            return
        except OSError as error:
            raise self._unusable(error) from None
        with file:
            _lock(file)
            yield

    def read(self) -> Iterator[TreeHead]:
        """All tree heads in it; a last line that was not finished is none."""
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from None
        for number, line in enumerate(lines, start=1):
            yield self._head(line, f"line {number}")

    def newest(self) -> TreeHead | None:
        """The tree head of the last line that was finished."""
        try:
            with self.path.open("rb") as file:
                return self._last(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None

    def add(self, heads: Sequence[TreeHead]) -> None:
        """Append the heads that are larger than the last, and wait for the disk."""
        if not heads:
            return
        try:
            create_private(self.path)
            with self.path.open("r+b") as file:
                last = self._last(file)
                # A line that was cut off was never answered for.
                file.truncate(file.seek(_end_of_lines(file)))
                for head in heads:
                    if last is None or head.size > last.size:
                        file.write(json.dumps(head.to_json()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from None

    def _last(self, file: BinaryIO) -> TreeHead | None:
        end = _end_of_lines(file)
        if not end:
            return None
        start = max(0, end - _LONGEST)
        file.seek(start)
        line = file.read(end - start)[:-1].rpartition(b"\n")[2]
        return self._head(line, "the last line")

    def _head(self, line: bytes, where: str) -> TreeHead:
        try:
            return TreeHead.from_json(json.loads(line))
        except ValueError:
            raise SealBroken(
                f"{where} of the anchor {self.path} is no tree head"
            ) from None

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the anchor {self.path} cannot be used ({error.strerror})",
            remedy="check the rights on the file and its folder",
        )


def _lock(file: BinaryIO) -> None:
    """Wait until nobody else has it; given back when the file is closed."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _LONGEST)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
