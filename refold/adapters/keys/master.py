"""Master keys, which wrap the keys of users: local ones, or a key service (KMS)."""

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

_NONCE_SIZE = 12  # bytes
SIZE = 32  # of a key, in bytes
_HEX_DIGITS: Final = 2 * SIZE


class MasterKey(Protocol):
    """Wraps the keys of users: 32 bytes in memory, or a key service (KMS).

    A wrapped key is bound to ``context``, and unwraps only with the same one.  While a
    master key is replaced, there are several: the newest wraps, and all of them unwrap.
    ``refold.testing.MasterKeyContract`` has these promises as tests.
    """

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt ``key`` for storage with the newest master key."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the key that ``wrap`` encrypted.

        Raises KeyUnavailable if none of the master keys wrapped it.
        """

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        """Whether a master key other than the newest wrapped this key.

        Raises KeyUnavailable if none of the master keys wrapped it.
        """


class LocalMasterKey:
    """Master keys of 32 bytes in the memory of this process, the newest first.

    origin: their source, for messages.
    reload: reads them from the source again.  Another process may have replaced them,
            and wrapped keys with the new one.
    """

    def __init__(
        self,
        key: bytes,
        *older: bytes,
        origin: str,
        reload: Callable[[], Sequence[bytes]] | None = None,
    ) -> None:
        self.origin = origin
        self._reload = reload
        self._ciphers = [self._cipher(master_key) for master_key in (key, *older)]

    def _cipher(self, key: bytes) -> AESGCM:
        """Return the cipher of a key.  Raises KeyUnavailable for a wrong size."""
        if len(key) != SIZE:
            raise KeyUnavailable(
                f"the master key from {self.origin} has {len(key)} bytes",
                remedy="give 32 bytes, in base64 or hex",
            )
        return AESGCM(key)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_SIZE)
        return nonce + self._ciphers[0].encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        _, key = self._unwrapped(wrapped, context)
        return key

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        index, _ = self._unwrapped(wrapped, context)
        return index > 0

    def _unwrapped(self, wrapped: bytes, context: bytes) -> tuple[int, bytes]:
        """Return the index of the master key that wrapped a key, and that key."""
        unwrapped = self._try_all(wrapped, context)
        if unwrapped is None and self._reload is not None:
            self._ciphers = [self._cipher(key) for key in self._reload()]
            unwrapped = self._try_all(wrapped, context)
        if unwrapped is None:
            raise KeyUnavailable(
                f"the master key from {self.origin} does not open this key store",
                remedy="set REFOLD_MASTER_KEY or REFOLD_HOME to those it was made with",
            )
        return unwrapped

    def _try_all(self, wrapped: bytes, context: bytes) -> tuple[int, bytes] | None:
        """Return the index and the key, None if no master key wrapped the key."""
        nonce = wrapped[:_NONCE_SIZE]
        ciphertext = wrapped[_NONCE_SIZE:]
        for index, cipher in enumerate(self._ciphers):
            try:
                key = cipher.decrypt(nonce, ciphertext, context)
            except (InvalidTag, ValueError):
                continue
            return index, key
        return None


VARIABLE: Final = "REFOLD_MASTER_KEY"
logger = logging.getLogger("refold")


def from_environment(value: str) -> LocalMasterKey:
    """Return the master key in the value of ``REFOLD_MASTER_KEY``.

    Raises InvalidConfiguration if the value is no key.
    """
    keys = decoded(value)
    if not keys:
        raise InvalidConfiguration(f"{VARIABLE} must be 32 bytes, in base64 or hex")
    return LocalMasterKey(*keys, origin=VARIABLE)


class MasterKeyFile:
    """A private file with the master key, and during a rotation also the one before."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config.home() / "master.key"

    def create(self) -> None:
        """Create the file if it does not exist, and log that it must be backed up."""
        with self._writing():
            is_new = create_private(self.path, _encoded([os.urandom(SIZE)]))
        if is_new:
            logger.warning(
                "made a new master key at %s (mode 0600): back it up apart from the "
                "database, without it nothing can be read",
                self.path,
            )

    def open(self) -> LocalMasterKey:
        """Return the master key in the file.  Raises KeyUnavailable."""
        return LocalMasterKey(*self.read(), origin=str(self.path), reload=self.read)

    def read(self) -> Sequence[bytes]:
        """Return all keys in the file, the newest first.  Raises KeyUnavailable."""
        try:
            warn_of_mode(self.path)
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
        """Add a new key before the existing one, and return True.

        Returns False, and adds none, if the file has two keys already.
        """
        keys = self.read()
        if len(keys) > 1:
            return False
        self._replace([os.urandom(SIZE), *keys])
        return True

    def drop_older(self) -> None:
        """Remove all keys except the newest."""
        self._replace(self.read()[:1])

    def _replace(self, keys: Sequence[bytes]) -> None:
        """Replace the file by one with these keys, atomically and durably."""
        new_file = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with self._writing():
            handle = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(_encoded(keys))
                file.flush()
                os.fsync(file.fileno())
            new_file.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise KeyUnavailable if the file system refuses a write."""
        try:
            yield
        except OSError as error:
            raise KeyUnavailable(
                f"the master key {self.path} cannot be written ({error.strerror})",
                remedy=remedy_for(error),
            ) from None


def decoded(text: str) -> list[bytes]:
    """Return the keys of 32 bytes in a text, in base64 or hex.

    If one of them is invalid, the list is empty.
    """
    keys: list[bytes] = []
    for part in re.split(r"[\s,]+", text.strip()):
        try:
            if len(part) == _HEX_DIGITS:
                key = bytes.fromhex(part)
            else:
                key = b64decode(part, validate=True)
        except ValueError:
            return []
        if len(key) != SIZE:
            return []
        keys.append(key)
    return keys


def _encoded(keys: Sequence[bytes]) -> bytes:
    """Return the content of a file with these keys."""
    return b"".join(b64encode(key) + b"\n" for key in keys)


_warned_of: Final[set[Path]] = set()


def warn_of_mode(path: Path) -> None:
    """Warn, once in a process, about a file with keys that others can read or write."""
    if sys.platform == "win32" or path in _warned_of or not path.exists():
        return
    if path.stat().st_mode & 0o066:
        _warned_of.add(path)
        logger.warning(
            "other users of this machine can read or write the keys in %s: run "
            "chmod 600 %s",
            path,
            shlex.quote(str(path)),
        )


def create_private(path: Path, content: bytes = b"") -> bool:
    """Create a file with mode 0600, and return True; False if the file exists.

    The file appears complete, so that no other process reads a part of it.
    """
    if path.exists():
        return False
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    new_file = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(new_file, path)
    except FileExistsError:
        return False
    finally:
        new_file.unlink()
    return True
