"""Files that commands write, each completely or not at all."""

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
from refold.domain.inventory import places

# The first bytes of SQLite files, and of their write-ahead logs in both byte orders.
_DATABASES: Final = (
    b"SQLite format 3\0",
    b"\x37\x7f\x06\x82",
    b"\x37\x7f\x06\x83",
)


class Destination:
    """A file that a command writes when its work is done.

    It is opened at once, so that a missing folder, a directory of its name, or missing
    permissions are an error before the command does anything.  ``commit`` writes all of
    it to the disk.  If the ``with`` block ends without it, no file was changed.

    path:      the path of the file.  A link is followed.  A pipe, or ``/dev/stdout``,
               is written to directly.
    overwrite: whether the file may exist; an empty one always may.

    Raises OSError, and InvalidConfiguration for a file that must not be replaced: one
    that exists without ``overwrite``, and always a database, a key, or an anchor.
    """

    def __init__(self, path: Path, *, overwrite: bool = True) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))
        self._draft: Path | None = None  # removed after a failure
        mode = _mode(self._target)
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if not self._target.parent.is_dir():
            raise FileNotFoundError(
                errno.ENOENT, "There is no such folder", str(path.parent)
            )
        if mode is not None and not stat.S_ISREG(mode):
            handle = os.open(path, os.O_WRONLY)
        else:
            exists = mode is not None
            if exists:
                _check_replaceable(self.path, self._target)
            handle = self._open_draft() if overwrite else self._open_new(exists=exists)
        self._file = os.fdopen(handle, "wb")

    def _open_draft(self) -> int:
        """Open a temporary file in the same folder, which replaces the file later."""
        prefix = f".{self._target.name}."
        handle, name = tempfile.mkstemp(prefix=prefix, dir=self._target.parent)
        self._draft = Path(name)
        return handle

    def _open_new(self, *, exists: bool) -> int:
        """Open the file itself, which must be new or empty."""
        if exists:
            if self._target.stat().st_size:
                raise _file_exists(self.path)
            return os.open(self._target, os.O_WRONLY)
        try:
            handle = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise _file_exists(self.path) from None
        self._draft = self._target
        return handle

    def write(self, data: bytes) -> None:
        """Add bytes to the file."""
        self._file.write(data)

    def commit(self) -> None:
        """Write the file to the disk, and give it its name."""
        self._file.flush()
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            os.fsync(self._file.fileno())
        self._file.close()
        if self._draft is not None and self._draft != self._target:
            os.replace(self._draft, self._target)
        self._draft = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file unless it was committed."""
        with suppress(OSError):  # if the disk is full
            self._file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write a file of lines completely or not at all; returns how many there are."""
    count = 0
    with Destination(path) as destination:
        for line in lines:
            destination.write(line + b"\n")
            count += 1
        destination.commit()
    return count


def _mode(path: Path) -> int | None:
    """Return the mode of the file at ``path``; None if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _check_replaceable(path: Path, target: Path) -> None:
    """Raise InvalidConfiguration for a file that a store needs.

    path:   the file's path in the message.
    target: its path with links resolved.
    """
    own_folder = Path(os.path.realpath(home()))
    own_paths = [
        own_folder / place.pattern.partition("/")[0] for place in places("file")
    ]
    anchor = os.environ.get("REFOLD_ANCHOR")
    if anchor:
        own_paths.append(Path(os.path.realpath(anchor)))
    if any(target.is_relative_to(own_path) for own_path in own_paths):
        raise InvalidConfiguration(
            f"{path} is a file that Refold itself needs: name another file"
        )
    with target.open("rb") as file:
        start = file.read(max(map(len, _DATABASES)))
    if start.startswith(_DATABASES):
        raise InvalidConfiguration(f"{path} is a database: name another file")


def _file_exists(path: Path) -> InvalidConfiguration:
    """Return the error for a file that must not be overwritten."""
    return InvalidConfiguration(
        f"{path} exists already: name a new file, or remove it first"
    )
