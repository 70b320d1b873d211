"""Master keys: what wraps the keys of users, at hand or in a key service (KMS)."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from refold.adapters import config
from refold.domain.errors import InvalidConfiguration, KeyUnavailable, remedy_for

_NONCE = 12
SIZE = 32
_HEX: Final = 2 * SIZE  # digits


class MasterKey(Protocol):
    """What wraps user keys: 32 bytes at hand, or a key service (KMS).

    ``context`` is bound to the wrapped key: it opens with the same context only.  While
    a master key is replaced there are several: the newest wraps, all of them open.
    ``refold.testing.MasterKeyContract`` has these promises as tests.
    """

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt ``key`` for storage, under the newest master key."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Give back what ``wrap`` encrypted.

        Raises KeyUnavailable if this is not the key that wrapped it.
        """

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        """Whether an older master key than the newest wrapped it.

        Raises KeyUnavailable if none of them did.
        """


class LocalMasterKey:
    """Master keys of 32 bytes that this process holds, the newest first.

    ``origin`` says where they came from, for people; ``reload`` reads them again there:
    another process may have replaced them since, and what it wrapped is under the new
    one.
    """

    def __init__(
        self,
        key: bytes,
        *older: bytes,
        origin: str,
        reload: Callable[[], Sequence[bytes]] | None = None,
    ) -> None:
        self.origin, self._reload = origin, reload
        self._ciphers = [self._cipher(one) for one in (key, *older)]

    def _cipher(self, key: bytes) -> AESGCM:
        if len(key) != SIZE:
            raise KeyUnavailable(
                f"the master key from {self.origin} has {len(key)} bytes",
                remedy="give 32 bytes, in base64 or hex",
            )
        return AESGCM(key)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._ciphers[0].encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        return self._opened(wrapped, context)[1]

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        return self._opened(wrapped, context)[0] > 0

    def _opened(self, wrapped: bytes, context: bytes) -> tuple[int, bytes]:
        """Which of the keys wrapped it, the newest being 0, and what was wrapped."""
        found = self._tried(wrapped, context)
        if found is None and self._reload is not None:
            self._ciphers = [self._cipher(key) for key in self._reload()]
            found = self._tried(wrapped, context)
        if found is None:
            raise KeyUnavailable(
                f"the master key from {self.origin} does not open this key store",
                remedy="set REFOLD_MASTER_KEY or REFOLD_HOME to those it was made with",
            )
        return found

    def _tried(self, wrapped: bytes, context: bytes) -> tuple[int, bytes] | None:
        for place, cipher in enumerate(self._ciphers):
            try:
                key = cipher.decrypt(wrapped[:_NONCE], wrapped[_NONCE:], context)
            except (InvalidTag, ValueError):
                continue
            return place, key
        return None


VARIABLE: Final = "REFOLD_MASTER_KEY"
log = logging.getLogger("refold")


def from_environment(given: str) -> LocalMasterKey:
    """The master key that the variable holds.  Raises InvalidConfiguration."""
    keys = decoded(given)
    if not keys:
        raise InvalidConfiguration(f"{VARIABLE} must be 32 bytes, in base64 or hex")
    return LocalMasterKey(*keys, origin=VARIABLE)


class MasterKeyFile:
    """A private file with the master key, and the one before while it is replaced."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config.home() / "master.key"

    def create(self) -> None:
        """Make it, unless it is there; says so, for without it nothing can be read."""
        with self._writing():
            made = create_private(self.path, _written([os.urandom(SIZE)]))
        if made:
            log.warning(
                "made a new master key at %s (mode 0600): back it up apart from the "
                "database, without it nothing can be read",
                self.path,
            )

    def open(self) -> LocalMasterKey:
        """The master key in it.  Raises KeyUnavailable."""
        return LocalMasterKey(*self.read(), origin=str(self.path), reload=self.read)

    def read(self) -> Sequence[bytes]:
        """All keys in it, the newest first.  Raises KeyUnavailable."""
        try:
            remark_on_mode(self.path)
            keys = decoded(self.path.read_text())
        except OSError as error:
            raise KeyUnavailable(
                f"the master key {self.path} cannot be read ({error.strerror})",
                remedy="restore it, or set REFOLD_MASTER_KEY or REFOLD_HOME",
            ) from None
        if not keys:
            raise KeyUnavailable(
                f"the master key {self.path} is not a key",
                remedy="restore it: a line of 32 bytes in base64 or hex",
            )
        return keys

    def add(self) -> bool:
        """Put a new key before the one there is; False if there are two already."""
        keys = self.read()
        if len(keys) > 1:
            return False
        self._replace([os.urandom(SIZE), *keys])
        return True

    def drop_older(self) -> None:
        """Keep the newest key alone."""
        self._replace(self.read()[:1])

    def _replace(self, keys: Sequence[bytes]) -> None:
        """Put another file in its place, whole or not at all."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with self._writing():
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(_written(keys))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises KeyUnavailable for what the file system refuses."""
        try:
            yield
        except OSError as error:
            raise KeyUnavailable(
                f"the master key {self.path} cannot be written ({error.strerror})",
                remedy=remedy_for(error),
            ) from None


def decoded(text: str) -> list[bytes]:
    """The keys of 32 bytes in a text, in base64 or hex; none if one of them is not."""
    parts = re.split(r"[\s,]+", text.strip())
    try:
        keys = [
            bytes.fromhex(part) if len(part) == _HEX else b64decode(part, validate=True)
            for part in parts
        ]
    except ValueError:
        return []
    return keys if all(len(key) == SIZE for key in keys) else []


def _written(keys: Sequence[bytes]) -> bytes:
    return b"".join(b64encode(key) + b"\n" for key in keys)


_remarked: Final[set[Path]] = set()


def remark_on_mode(path: Path) -> None:
    """Warn, once in a process, of a file with keys that others can read or write."""
    if sys.platform == "win32" or path in _remarked or not path.exists():
        return
    if path.stat().st_mode & 0o066:
        _remarked.add(path)
        log.warning(
            "other users of this machine can read or write the keys in %s: run "
            "chmod 600 %s",
            path,
            shlex.quote(str(path)),
        )


def create_private(path: Path, content: bytes = b"") -> bool:
    """Make the file with mode 0600 if there is none; True if it was made here.

    It appears whole or not at all, so that another process never reads half of it.
    """
    if path.exists():
        return False
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
