"""Master keys: what wraps the keys of users, at hand or in a key service (KMS)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from refold.domain.errors import KeyUnavailable

_NONCE = 12
SIZE = 32


class MasterKey(Protocol):
    """What wraps user keys: 32 bytes at hand, or a key service (KMS).

    ``context`` is bound to the wrapped key: it opens with the same context only.  While
    a master key is replaced there are several: the newest wraps, all of them open.
    ``refold.testing.MasterKeyContract`` has these promises as tests.
    """

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt ``key`` for storage, under the newest master key."""
        ...

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Give back what ``wrap`` encrypted.

        Raises KeyUnavailable if this is not the key that wrapped it.
        """
        ...

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        """Whether an older master key than the newest wrapped it.

        Raises KeyUnavailable if none of them did.
        """
        ...


class LocalMasterKey:
    """Master keys of 32 bytes that this process holds, the newest first.

    ``reload`` reads them again where they came from: another process may have
    replaced them since, and what it wrapped is under the new one.
    """

    def __init__(
        self,
        key: bytes,
        *older: bytes,
        origin: str,
        reload: Callable[[], Sequence[bytes]] | None = None,
    ) -> None:
        self._origin, self._reload = origin, reload
        self._ciphers = [self._cipher(one) for one in (key, *older)]

    def _cipher(self, key: bytes) -> AESGCM:
        if len(key) != SIZE:
            raise KeyUnavailable(
                f"the master key from {self._origin} has {len(key)} bytes",
                remedy="give 32 bytes, in base64 or hex",
            )
        return AESGCM(key)

    @property
    def origin(self) -> str:
        """Where it came from, for people."""
        return self._origin

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
                f"the master key from {self._origin} does not open this key store",
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
