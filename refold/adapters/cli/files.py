"""Files that commands write: opened before a command acts, whole or not there."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from refold.adapters.config import home
from refold.domain.errors import InvalidConfiguration

# How a database of SQLite begins, and its write-ahead log in either byte order.
_DATABASES: Final = (
    b"SQLite format 3\0",
    b"\x37\x7f\x06\x82",
    b"\x37\x7f\x06\x83",
)
# What Refold has in REFOLD_HOME.
_OWN: Final = (
    "anchors",
    "capture",
    "keys",
    "master.key",
)


class Destination:
    """A file that a command writes when its work is done.

    It is opened at once, so that a missing folder, a directory in its place or missing
    rights are an error before the command has done anything.  ``commit`` brings it to
    the disk, whole.  Without a commit, ``with`` leaves everything as it was.

    path:      where the file goes.  A link is followed; what is no regular file, such
               as a pipe or ``/dev/stdout``, is written to as it is.
    overwrite: whether a file may be there already; an empty one always may.

    Raises OSError, and InvalidConfiguration for a file that must not be replaced: one
    that is there without ``overwrite``, and always a database, a key, or an anchor.
    """

    def __init__(self, path: Path, *, overwrite: bool = True) -> None:
        self.path = path
        self._place = Path(os.path.realpath(path))
        self._draft: Path | None = None  # what a failure removes
        mode = _mode(self._place)
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        folder = self._place.parent
        if not folder.is_dir():
            why = "There is no such folder"
            raise FileNotFoundError(errno.ENOENT, why, str(path.parent))
        if mode is not None and stat.S_ISREG(mode):
            _check_replaceable(self.path, self._place)
        if mode is not None and not stat.S_ISREG(mode):
            handle = os.open(path, os.O_WRONLY)
        elif overwrite:
            handle, name = tempfile.mkstemp(prefix=f".{self._place.name}.", dir=folder)
            self._draft = Path(name)
        else:
            handle = self._open_new(is_there=mode is not None)
        self._file = os.fdopen(handle, "wb")

    def _open_new(self, *, is_there: bool) -> int:
        """Open a file that is new or empty, at its own name."""
        if is_there:
            if self._place.stat().st_size:
                raise _is_there(self.path)
            return os.open(self._place, os.O_WRONLY)
        try:
            handle = os.open(self._place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise _is_there(self.path) from None
        self._draft = self._place
        return handle

    def write(self, data: bytes) -> None:
        """Add bytes to the file."""
        self._file.write(data)

    def commit(self) -> None:
        """Bring the file to the disk, and give it its name."""
        self._file.flush()
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            os.fsync(self._file.fileno())
        self._file.close()
        if self._draft not in (None, self._place):
            os.replace(self._draft, self._place)
        self._draft = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was not committed."""
        with suppress(OSError):  # of bytes that the disk did not take
            self._file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write a file of lines, whole or not at all; returns how many there are."""
    count = 0
    with Destination(path) as destination:
        for line in lines:
            destination.write(line + b"\n")
            count += 1
        destination.commit()
    return count


def _mode(path: Path) -> int | None:
    """The type of what is at ``path``; None if nothing is."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _check_replaceable(path: Path, place: Path) -> None:
    """Refuse to replace what a store needs: every other file can be made again."""
    own_folder = Path(os.path.realpath(home()))
    own_files = [own_folder / name for name in _OWN]
    if anchor := os.environ.get("REFOLD_ANCHOR"):
        own_files.append(Path(os.path.realpath(anchor)))
    if any(place.is_relative_to(own) for own in own_files):
        raise InvalidConfiguration(
            f"{path} holds keys or proofs of a store: name another file"
        )
    with place.open("rb") as file:
        start = file.read(max(map(len, _DATABASES)))
    if start.startswith(_DATABASES):
        raise InvalidConfiguration(f"{path} is a database: name another file")


def _is_there(path: Path) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{path} is there already: name a new file, or remove it first"
    )
