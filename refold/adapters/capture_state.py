"""The files that a capture keeps on this machine, and the lock that it works under.

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
# How often, and how fast, taking the lock is tried while ``holder`` asks for it.
_TRIES: Final = 200
_RETRY_SEC: Final = 0.005


class Holder(NamedTuple):
    """The process that holds the lock of a capture.

    pid:       0 if the process has not signed yet.
    temporary: it ends by itself; one that has not signed counts as such.
    """

    pid: int
    temporary: bool


@dataclass(frozen=True)
class CaptureState:
    """The files of one capture: of one client's folder into one store for one user.

    One process at a time holds the lock and appends.  Another one that finds it held
    has left a *request* before: the holder looks again for each request, also for one
    that arrives while it ends.  So a process that is refused the lock may leave.

    ``base`` is the path of all files without their suffixes.
    """

    base: Path

    @classmethod
    def of(cls, *, url: str, user_id: str, client: str, folder: Path) -> CaptureState:
        """The state of what ``client`` writes below ``folder``, an absolute path."""
        capture = _digest("\0".join((url, client, str(folder))))
        return cls(_folder() / f"{_digest(user_id)}-{capture}")

    @property
    def places(self) -> Path:
        """Where reading stopped in each file, as JSON."""
        return self.base.with_suffix(".json")

    @property
    def log(self) -> Path:
        """What the last process that a hook started has written to its stderr."""
        return self.base.with_suffix(".log")

    @property
    def _lock(self) -> Path:
        return self.base.with_suffix(".lock")

    @property
    def _request(self) -> Path:
        return self.base.with_suffix(".request")

    def request(self, *, since: float | None = None) -> float:
        """Ask the process that captures to look again.

        since: when this was first asked for; without it, now.

        Returns for how many seconds an earlier request has waited; 0.0 without one.
        """
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(self._request, os.O_CREAT | os.O_EXCL, 0o600))
            if since is not None:
                os.utime(self._request, (since, since))
        except FileExistsError:
            return self.waiting()
        except FileNotFoundError:
            pass  # taken at once
        return 0.0

    def waiting(self) -> float:
        """For how many seconds a request has waited; 0.0 without one."""
        try:
            return max(0.0, time.time() - self._request.stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def requested(self) -> bool:
        """Whether a request waits."""
        return self._request.exists()

    def take_request(self) -> float | None:
        """Take the request, if one waits: the taker must look at all files after this.

        Returns when it was made; None without one.
        """
        try:
            made = self._request.stat().st_mtime
            self._request.unlink()
        except FileNotFoundError:
            return None
        return made

    def acquire(self) -> int | None:
        """Take the lock; gives the descriptor that holds it until it is closed.

        Returns None if another process holds the lock.
        """
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_TRIES):
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
            if _locked(descriptor, fcntl.LOCK_EX):
                if self.holds(descriptor):
                    os.ftruncate(descriptor, 0)  # what the last holder has signed
                    return descriptor
                os.close(descriptor)  # ``forget`` removed the file since it was opened
                continue
            # ``holder`` takes a shared lock for a moment: that is no process at work.
            at_work = not _locked(descriptor, fcntl.LOCK_SH)
            os.close(descriptor)
            if at_work:
                return None
            time.sleep(_RETRY_SEC)
        return None

    def inherit(self, descriptor: int) -> bool:
        """Take over the lock that the process which started this one acquired."""
        try:
            os.set_inheritable(descriptor, False)
            return self.holds(descriptor) and _locked(descriptor, fcntl.LOCK_EX)
        except (OSError, OverflowError):
            return False

    def holds(self, descriptor: int) -> bool:
        """Whether this is still the lock's file; ``forget`` may have removed it."""
        try:
            there = self._lock.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), there)

    def sign(self, descriptor: int, *, temporary: bool) -> None:
        """Write into the lock's file which process holds it, and whether it ends."""
        kind = "temporary" if temporary else "follows"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {kind}\n".encode(), 0)

    def holder(self) -> Holder | None:
        """The process that holds the lock; None if none does."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            if _locked(descriptor, fcntl.LOCK_SH):
                return None
            signed = os.read(descriptor, 64).decode("ascii", "replace")
        finally:
            os.close(descriptor)
        pid, _, kind = signed.strip().partition(" ")
        return Holder(int(pid) if pid.isdigit() else 0, kind != "follows")

    def complain(self, sentence: str) -> None:
        """Leave a sentence where ``refold capture --status`` shows it."""
        self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.write_text(f"{sentence}\n", "utf-8")
        self.log.chmod(0o600)

    def files(self) -> list[Path]:
        """The files that are there."""
        paths = [self.base.with_suffix(suffix) for suffix in _SUFFIXES]
        return [path for path in paths if path.exists()]

    def forget(self) -> list[Path]:
        """Remove all files; gives those that were there.

        A process that still captures notices it at its next look, and ends.
        """
        files = self.files()
        # The lock goes first: a process that has lost it writes nothing any more.
        for path in sorted(files, key=lambda path: path.suffix != ".lock"):
            path.unlink(missing_ok=True)
        return files


def all_states() -> list[CaptureState]:
    """The captures of this machine."""
    return _states("*")


def states_of(user_id: str) -> list[CaptureState]:
    """The captures of a user on this machine."""
    return _states(f"{_digest(user_id)}-*")


def _states(pattern: str) -> list[CaptureState]:
    bases = {path.with_suffix("") for path in _folder().glob(pattern)}
    return [CaptureState(base) for base in sorted(bases)]


def forget_user(user_id: str) -> list[Path]:
    """Remove what captures keep of a user on this machine; gives the removed files."""
    return [path for state in states_of(user_id) for path in state.forget()]


def absolute(url: str) -> str:
    """The URL of a store, meaning the same database in any working directory."""
    scheme, separator, rest = url.partition(":///")
    path, mark, query = rest.partition("?")
    if scheme.partition("+")[0] != "sqlite" or not path:
        return url
    return f"{scheme}{separator}{Path(path).absolute()}{mark}{query}"


def _folder() -> Path:
    return home() / "capture"


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
