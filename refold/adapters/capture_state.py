"""The files of a capture on this machine, and the lock that a capturing process holds.

The hooks of clients import this module, so it loads nothing heavy.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from refold.adapters.config import home

_SUFFIXES: Final = (".json", ".new", ".lock", ".request", ".log")
# A process in ``holder`` locks the file for a moment.  So ``acquire`` tries for 1 s.
_TRIES: Final = 200
_RETRY_SEC: Final = 0.005


class Holder(NamedTuple):
    """The process that holds the lock of a capture.

    pid:       0 if the process has not signed the lock yet.
    temporary: whether it exits after some time without new lines; also True for a
               process that has not signed.
    """

    pid: int
    temporary: bool


@dataclass(frozen=True)
class CaptureState:
    """The files of one capture: of one client's folder into one store for one user.

    One process at a time holds the lock and appends.  Other processes leave a *request*
    before they try the lock.  The holder looks for new lines after each request, even
    if it arrives while the holder exits.  So a process that does not get the lock can
    exit: the holder does its work.

    base: the path of all files, without their suffixes.
    """

    base: Path

    @classmethod
    def of(cls, *, url: str, user_id: str, client: str, folder: Path) -> CaptureState:
        """Return the state of the capture of a client's folder, an absolute path."""
        capture = _digest("\0".join((url, client, str(folder))))
        return cls(_folder() / f"{_digest(user_id)}-{capture}")

    @property
    def places(self) -> Path:
        """The file with the position in each transcript, as JSON."""
        return self.base.with_suffix(".json")

    @property
    def log(self) -> Path:
        """The file with the stderr of the last process that a hook started."""
        return self.base.with_suffix(".log")

    @property
    def _lock(self) -> Path:
        return self.base.with_suffix(".lock")

    @property
    def _request(self) -> Path:
        return self.base.with_suffix(".request")

    def request(self, *, since: float | None = None) -> float:
        """Request that the capturing process looks for new lines.

        since: the Unix time in seconds of an earlier request, which this one replaces;
               now by default.

        Returns how many seconds an earlier request has waited; 0.0 without one.
        """
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(self._request, os.O_CREAT | os.O_EXCL, 0o600))
            if since is not None:
                os.utime(self._request, (since, since))
        except FileExistsError:
            return self.waiting()
        except FileNotFoundError:
            pass  # another process has taken the request
        return 0.0

    def waiting(self) -> float:
        """Return how many seconds a request has waited; 0.0 without one."""
        try:
            return max(0.0, time.time() - self._request.stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def requested(self) -> bool:
        """Whether a request waits."""
        return self._request.exists()

    def take_request(self) -> float | None:
        """Take a waiting request; the caller must look at all files after this.

        Returns the time of the request; None without one.
        """
        try:
            requested_at = self._request.stat().st_mtime
            self._request.unlink()
        except FileNotFoundError:
            return None
        return requested_at

    def acquire(self) -> int | None:
        """Take the lock; returns the descriptor that holds it until it is closed.

        Returns None if another process holds the lock.
        """
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_TRIES):
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
            if _try_lock(descriptor, fcntl.LOCK_EX):
                if self.is_current_lock(descriptor):
                    os.ftruncate(descriptor, 0)  # the signature of the last holder
                    return descriptor
                os.close(descriptor)  # ``forget`` removed the file since it was opened
                continue
            # A process in ``holder`` has only a shared lock, and captures nothing.
            is_shared = _try_lock(descriptor, fcntl.LOCK_SH)
            os.close(descriptor)
            if not is_shared:
                return None
            time.sleep(_RETRY_SEC)
        return None

    def inherit(self, descriptor: int) -> bool:
        """Take over the lock from the process that started this one."""
        try:
            os.set_inheritable(descriptor, False)
            if not self.is_current_lock(descriptor):
                return False
            return _try_lock(descriptor, fcntl.LOCK_EX)
        except (OSError, OverflowError):
            return False

    def is_current_lock(self, descriptor: int) -> bool:
        """Whether this is still the lock's file; ``forget`` may have removed it."""
        try:
            current = self._lock.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), current)

    def sign(self, descriptor: int, *, temporary: bool) -> None:
        """Write into the lock's file what ``holder`` returns about this process."""
        kind = "temporary" if temporary else "follows"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {kind}\n".encode(), 0)

    def holder(self) -> Holder | None:
        """Return the process that holds the lock; None if none does."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return None
            signature = os.read(descriptor, 64).decode("ascii", "replace")
        finally:
            os.close(descriptor)
        digits, _, kind = signature.strip().partition(" ")
        pid = 0
        if digits.isdigit():
            pid = int(digits)
        return Holder(pid, temporary=kind != "follows")

    def complain(self, sentence: str) -> None:
        """Store a sentence that ``refold capture --status`` shows."""
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.write_text(f"{sentence}\n", "utf-8")
        self.log.chmod(0o600)

    def files(self) -> list[Path]:
        """Return the existing files."""
        paths = [self.base.with_suffix(suffix) for suffix in _SUFFIXES]
        return [path for path in paths if path.exists()]

    def forget(self) -> list[Path]:
        """Remove all files; returns the removed ones.

        A process that still captures notices this when it looks for new lines, and
        exits.
        """
        files = self.files()
        # The lock is first: a process that has lost the lock writes no more files.
        for path in sorted(files, key=lambda path: path.suffix != ".lock"):
            path.unlink(missing_ok=True)
        return files


def all_states() -> list[CaptureState]:
    """Return the captures on this machine."""
    return _states("*")


def states_of(user_id: str) -> list[CaptureState]:
    """Return the captures of a user on this machine."""
    return _states(f"{_digest(user_id)}-*")


def _states(pattern: str) -> list[CaptureState]:
    """Return the captures whose files match a pattern."""
    bases = {path.with_suffix("") for path in _folder().glob(pattern)}
    return [CaptureState(base) for base in sorted(bases)]


def forget_user(user_id: str) -> list[Path]:
    """Remove the files of a user's captures on this machine; returns them."""
    removed: list[Path] = []
    for state in states_of(user_id):
        removed.extend(state.forget())
    return removed


def absolute(url: str) -> str:
    """Return the URL of a store in a form that fits any working directory."""
    scheme, separator, rest = url.partition(":///")
    path, mark, query = rest.partition("?")
    engine, _, _ = scheme.partition("+")
    if engine != "sqlite" or not path:
        return url
    from refold.adapters.sql.urls import encoded

    absolute_path = Path(encoded(Path.cwd()), path)
    return f"{scheme}{separator}{absolute_path}{mark}{query}"


def _folder() -> Path:
    """Return the folder with the files of all captures."""
    return home() / "capture"


def _digest(text: str) -> str:
    """Return the first 24 hex digits of the SHA-256 of a text."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def _try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock of this kind without waiting; returns whether that succeeded."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
