"""Compiled rules in a folder of the user, so that only one process compiles them.

Vectorscan takes seconds to compile the rules of redaction, and a millisecond to load
them.  The folder has a file for each set of rules, version, and kind of processor.  It
contains rules only: no text that was redacted, and no registered value.  A file that
nobody used for 30 days, such as that of an earlier version, is deleted when another one
is written.

A file is used only if this user owns it, nobody else can access it, it has one name,
and its digest is right.  Otherwise, and if the folder cannot be written, processes go
on without it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from refold.domain.locks import computed_once
from refold.redaction import engines

if TYPE_CHECKING:
    from refold.redaction.engines import Trigger

VARIABLE: Final = "REFOLD_CACHE"
_OFF: Final = "off"
_MAGIC: Final = b"refold compiled rules 1\n"
_DIGEST_SIZE: Final = hashlib.sha256().digest_size
_LENGTH_SIZE: Final = 8
_LARGEST: Final = 128 << 20  # bytes; larger files are not Refold's
_MOST_FILES: Final = 8
_COMPILED: Final = ".compiled"
# The triggers of rules that a process asked another one to compile.
_REQUESTED: Final = ".requested"
# A file that a process has not written completely.
_PART: Final = ".part"
# After this time, the process that was asked has failed.
_PATIENCE: Final = 600.0  # seconds
# After this time, no process writes a file or answers a request.
_ABANDONED_AFTER: Final = 86_400.0  # seconds
# After this time without a use, a file is of rules or a version that nobody has.
_UNUSED_AFTER: Final = 30 * 86_400.0  # seconds
# A use within this time of the last one is not noted.
_USES_NOTED_EVERY: Final = 86_400.0  # seconds
# The names of programs that run a module with ``-m``.
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*[a-z]?(\.exe)?", re.IGNORECASE)
_OTHERS: Final = 0o077
_WRITABLE_BY_OTHERS: Final = 0o022
_logger: Final = logging.getLogger("refold")
# The folders that cannot be resolved, of which the log has a warning.
_unusable: Final[set[str]] = set()


class RuleCache:
    """The files of compiled rules in a folder.

    folder: the folder; empty for that of the user's caches.
    fills:  whether this process stores what it compiles, and may start another process
            to compile.  A program that only imports Refold does neither.

    Raises OSError or RuntimeError for a relative folder without a working directory,
    or for the home of a user who does not exist.
    """

    def __init__(self, folder: str, *, fills: bool) -> None:
        self.folder = folder
        self.fills = fills
        self._requested: set[str] = set()
        self._path: Path | None = None
        if folder:
            self._path = Path(folder).expanduser().absolute()

    @computed_once
    def path(self) -> Path:
        """The path of the folder, which may not exist yet.

        Raises RuntimeError if this user has no folder for caches.
        """
        if self._path is not None:
            return self._path
        from platformdirs import user_cache_path

        path = user_cache_path("refold", appauthor=False)
        if not path.is_absolute():  # the user has no home
            raise RuntimeError("this user has no folder for caches")
        return path

    def load(self, rules: str) -> list[bytes] | None:
        """Return the databases of these rules; a damaged file is deleted."""
        name = _name_of(rules)
        content = self._read(name + _COMPILED)
        if content is None:
            return None
        databases = _unpacked(name, content)
        if databases is None:
            self.discard(rules)
        return databases

    def discard(self, rules: str) -> None:
        """Delete the file of these rules."""
        with suppress(OSError):
            self.file_of(rules).unlink()

    def file_of(self, rules: str) -> Path:
        """Return the path of the file of these rules."""
        return self.path / (_name_of(rules) + _COMPILED)

    def store(self, rules: str, databases: Sequence[bytes]) -> bool:
        """Store databases in one step; returns whether that succeeded."""
        if not self.fills:
            return False
        name = _name_of(rules)
        stored = self._write(name + _COMPILED, _packed(name, databases))
        if stored:
            self._delete_unused()
        return stored

    def request(self, rules: str, triggers: Sequence[Trigger]) -> None:
        """Start a process that compiles these rules, unless one does so already.

        That process goes on when this one ends.
        """
        name = _name_of(rules)
        if not self.fills or name in self._requested or not _can_start_python():
            return
        self._requested.add(name)
        request = self.path / (name + _REQUESTED)
        with suppress(OSError):
            age = time.time() - request.stat().st_mtime
            if 0 <= age < _PATIENCE:
                return
        # In a folder that cannot be written, a process would compile in vain.
        if self._write(request.name, json.dumps(triggers).encode()):
            _start_filler(request)

    def requested(self, name: str) -> list[Trigger]:
        """Return the triggers of a request; without a valid one, none."""
        content = self._read(name)
        if content is None:
            return []
        return [engines.Trigger(*fields) for fields in json.loads(content)]

    def _read(self, name: str) -> bytes | None:
        """Return the content of a file that nobody else can have written, or None."""
        # A link is not followed, and a pipe does not block.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            if not _is_private_folder(self.path):
                return None
            descriptor = os.open(self.path / name, flags)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            if not _is_private_file(status) or status.st_size > _LARGEST:
                return None
            if time.time() - status.st_mtime > _USES_NOTED_EVERY:
                with suppress(OSError):  # such as a disk that cannot be written
                    os.utime(descriptor)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read()
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _write(self, name: str, content: bytes) -> bool:
        """Write a file under another name first, so that nobody reads half of it."""
        from tempfile import mkstemp

        temporary: str | None = None
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private_folder(self.path):
                return False
            # Its mode is 0600.
            descriptor, temporary = mkstemp(_PART, f"{name}.", self.path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, self.path / name)
        except OSError:  # such as a full disk
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
            return False
        return True

    def _delete_unused(self) -> None:
        """Delete files that are no longer used, the oldest of many, and abandoned ones.

        The time of a file is that of its last use.
        """
        for number, (age, file) in enumerate(self._ages(_COMPILED)):
            if number >= _MOST_FILES or age > _UNUSED_AFTER:
                _delete(file)
        # A process that was killed leaves its unfinished file and its request.
        for age, file in [*self._ages(_PART), *self._ages(_REQUESTED)]:
            if age > _ABANDONED_AFTER:
                _delete(file)

    def _ages(self, suffix: str) -> list[tuple[float, Path]]:
        """Return the files with this suffix and their ages in seconds, newest first."""
        now = time.time()
        ages: list[tuple[float, Path]] = []
        with suppress(OSError):
            for file in self.path.glob(f"*{suffix}"):
                with suppress(OSError):  # another process may delete it, too
                    ages.append((now - file.lstat().st_mtime, file))
        return sorted(ages)


def _delete(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


def use(*, fills: bool) -> None:
    """Use the cache of this user in this process.

    ``REFOLD_CACHE`` is its folder, or ``off``.  Without a folder of that name, the
    process goes on without a cache, and logs a warning.

    fills: as for ``RuleCache``.  A process that fills goes on to do so.
    """
    folder = os.environ.get(VARIABLE, "")
    current = engines.cache_in_use()
    if is_off():
        engines.use_cache(None)
    elif isinstance(current, RuleCache) and current.folder == folder:
        current.fills = current.fills or fills
    else:
        engines.use_cache(_cache_in(folder, fills=fills))


def is_off() -> bool:
    """Whether processes use no cache here."""
    # On other systems, modes protect no file.
    return os.environ.get(VARIABLE) == _OFF or os.name != "posix"


def _cache_in(folder: str, *, fills: bool) -> RuleCache | None:
    """Return the cache in this folder; None if there can be no such folder."""
    try:
        return RuleCache(folder, fills=fills)
    except (OSError, RuntimeError) as error:
        if folder not in _unusable:
            _unusable.add(folder)
            _logger.warning(
                "%s does not name a folder (%s): redaction works without compiled "
                "rules",
                VARIABLE,
                type(error).__name__,
            )
        return None


def _name_of(rules: str) -> str:
    """Return the name of the files of these rules on this kind of processor."""
    identity = f"{rules}\0{_processor()}"
    return hashlib.sha256(identity.encode()).hexdigest()


@cache
def _processor() -> str:
    """Return the kind of processor with its features, as far as the system tells."""
    machine = os.uname().machine
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        # The first processor is at the beginning.
        for line in file.read(8192).splitlines():
            name, _, features = line.partition(b":")
            if name.strip() in (b"flags", b"Features"):
                return f"{machine} {b' '.join(sorted(features.split())).decode()}"
    return machine


def _is_private_folder(path: Path) -> bool:
    """Whether this user owns the folder, and it is not a link, and only they write it.

    Raises OSError if there is none.
    """
    status = path.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and _is_own(status)
        and not status.st_mode & _WRITABLE_BY_OTHERS
    )


def _is_private_file(status: os.stat_result) -> bool:
    """Whether this user alone can use it, a regular file with one name."""
    return (
        stat.S_ISREG(status.st_mode)
        and _is_own(status)
        and status.st_nlink == 1
        and not status.st_mode & _OTHERS
    )


def _is_own(status: os.stat_result) -> bool:
    """Whether this user is the owner."""
    return status.st_uid == os.geteuid()


def _packed(name: str, databases: Sequence[bytes]) -> bytes:
    """Return the content of a file: its digest, and each database with its length."""
    parts: list[bytes] = []
    for database in databases:
        parts.append(len(database).to_bytes(_LENGTH_SIZE, "big"))
        parts.append(database)
    body = b"".join(parts)
    return _MAGIC + _digest(name, memoryview(body)) + body


def _unpacked(name: str, content: bytes) -> list[bytes] | None:
    """Return the databases in a file; None if it is damaged or of another name."""
    start = len(_MAGIC) + _DIGEST_SIZE
    body = memoryview(content)[start:]  # a copy of megabytes takes a millisecond
    if content[:start] != _MAGIC + _digest(name, body):
        return None
    databases: list[bytes] = []
    place = 0
    while place < len(body):
        end_of_length = place + _LENGTH_SIZE
        length = int.from_bytes(body[place:end_of_length], "big")
        place = end_of_length + length
        databases.append(bytes(body[end_of_length:place]))
    return databases


def _digest(name: str, body: memoryview) -> bytes:
    """Return the digest of the content of a file with this name."""
    digest = hashlib.sha256(name.encode())
    digest.update(body)
    return digest.digest()


def _can_start_python() -> bool:
    """Whether this program is Python, and not one that contains it, such as uWSGI."""
    program = sys.executable
    if not isinstance(program, str) or getattr(sys, "frozen", False):
        return False
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def _start_filler(request: Path) -> None:
    """Start the process that answers a request, in a session of its own."""
    import subprocess
    from threading import Thread

    command = [sys.executable, "-P", "-m", __name__, str(request)]
    # Such as a process that is ending.
    with suppress(OSError, RuntimeError, TypeError, ValueError):
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # Collects the exit status, so that a server keeps no ended child.
        Thread(target=child.wait, name="refold-filler", daemon=True).start()


def fill(request: Path) -> int:
    """Compile the triggers of a request; returns the exit status of the process."""
    os.nice(10)  # nobody waits for this process
    cache = RuleCache(str(request.parent), fills=True)
    engines.use_cache(cache)
    triggers = cache.requested(request.name)
    if not triggers or not engines.fill_cache(triggers):
        return 1
    with suppress(OSError):
        request.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(fill(Path(sys.argv[1])))
