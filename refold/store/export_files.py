"""The files of an export: what each holds is digested as it is written, or as read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from refold.domain.events import JsonObject

FORMAT: Final = "refold-export/1"
MANIFEST: Final = "manifest.json"
_BLOCK: Final = 1 << 20


class File(NamedTuple):
    """A file of an export, by its path within it."""

    path: str
    bytes: int
    sha256: str

    def to_json(self) -> JsonObject:
        return dict(self._asdict())


class Files:
    """Writes the files of an export; each is on disk when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: dict[str, File] = {}

    def has(self, path: str) -> bool:
        return path in self.written

    def write(self, path: str, data: bytes) -> None:
        """A file of these bytes."""
        with self.opened(path) as write:
            write(data)

    @contextmanager
    def opened(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """A new file that only its owner can read, to be written piece by piece."""
        place = self._folder / path
        self._make(place.parent)
        hashed, size = hashlib.sha256(), 0
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:

            def write(data: bytes) -> None:
                nonlocal size
                file.write(data)
                hashed.update(data)
                size += len(data)

            yield write
            file.flush()
            os.fsync(file.fileno())
        self.written[path] = File(path, size, hashed.hexdigest())

    def _make(self, folder: Path) -> None:
        """The directories down to this one, the owner's alone whatever the umask."""
        if folder != self._folder and not folder.exists():
            self._make(folder.parent)
            folder.mkdir(mode=0o700)


def digested(folder: Path, path: str) -> File:
    """What is in the file at ``path`` now.  Raises OSError."""
    hashed, size = hashlib.sha256(), 0
    with (folder / path).open("rb") as file:
        while block := file.read(_BLOCK):
            hashed.update(block)
            size += len(block)
    return File(path, size, hashed.hexdigest())


def paths_in(folder: Path) -> set[str]:
    """Every file below ``folder``, by its path within it; links are files too."""
    found = set()
    for place, _, names in os.walk(folder):
        for name in names:
            found.add((Path(place) / name).relative_to(folder).as_posix())
    return found
