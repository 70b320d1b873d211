"""Keys: a master key wraps each user's key, a user's key wraps each session's.

Destroying one wrapped key makes all that is under it unreadable, wherever copies
of the ciphertext survive.  The key store holds no name of a user or session, only
keyed hashes of them.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from refold.domain.chain import length_prefixed
from refold.domain.errors import KeyUnavailable
from refold.domain.ids import StreamId

_NONCE = 12
_CACHED = 10_000
T = TypeVar("T")


class MasterKey(Protocol):
    """What wraps user keys: 32 bytes at hand, or a key service (KMS).

    ``context`` is bound to the wrapped key: it opens with the same context only.
    """

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt ``key`` for storage."""
        ...

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Give back what ``wrap`` encrypted.

        Raises KeyUnavailable if this is not the key that wrapped it.
        """
        ...


class KeyStore(Protocol):
    """Where wrapped keys are kept, apart from the events they open.

    ``add_*`` are durable before they return; of two that add the same key at once
    one wins, and both are given the winner's.  A session has one key, or several by
    version while it is sealed anew; destroying is for good, and durable too.
    """

    def get_setting(self, name: str) -> bytes | None: ...
    def add_setting(self, name: str, value: bytes) -> bytes: ...
    def get_user(self, user_ref: str) -> bytes | None: ...
    def add_user(self, user_ref: str, wrapped: bytes, now: int) -> bytes: ...
    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]: ...
    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,
        *,
        version: int = 1,
    ) -> bytes: ...
    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        """How many keys there are beyond one for each session of these."""
        ...

    def destroy_sessions(
        self, user_ref: str, session_ref: str, *, before: int
    ) -> int: ...
    def close(self) -> None: ...


class LocalMasterKey:
    """A master key of 32 bytes that this process holds."""

    def __init__(self, key: bytes, *, origin: str) -> None:
        if len(key) != 32:
            raise KeyUnavailable(
                f"the master key from {origin} has {len(key)} bytes",
                remedy="give 32 bytes, in base64 or hex",
            )
        self._cipher, self._origin = AESGCM(key), origin

    def wrap(self, key: bytes, context: bytes) -> bytes:
        return seal(self._cipher, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        try:
            return unseal(self._cipher, wrapped, context)
        except InvalidTag:
            raise KeyUnavailable(
                f"the master key from {self._origin} does not open this key store",
                remedy="set REFOLD_MASTER_KEY or REFOLD_HOME to those it was made with",
            ) from None


class UserKey(NamedTuple):
    """A user's key, ready for use."""

    ref: str
    key: bytes
    cipher: AESGCM

    def mac(self, purpose: str, *parts: bytes) -> bytes:
        """A keyed hash of ``parts`` for one ``purpose``; 32 bytes."""
        message = length_prefixed((purpose.encode(), *parts))
        return hmac.digest(self.key, message, "sha256")


class SessionKey(NamedTuple):
    """A session's key, ready for use; ``check`` tells it from another key."""

    cipher: AESGCM
    check: bytes
    user: UserKey
    version: int = 1


class KeyRing:
    """The keys of one store, unwrapped as they are needed and kept in memory."""

    def __init__(self, store: KeyStore, master: MasterKey) -> None:
        self._store, self._master = store, master
        self._pepper = self._open_pepper()
        self._users: _Recent[str, UserKey] = _Recent()
        self._sessions: _Recent[tuple[str, str], SessionKey] = _Recent()

    def _open_pepper(self) -> bytes:
        context = b"refold pepper"
        wrapped = self._store.get_setting("pepper")
        if wrapped is None:
            fresh = self._master.wrap(os.urandom(32), context)
            wrapped = self._store.add_setting("pepper", fresh)
        return self._master.unwrap(wrapped, context)

    def session(
        self, user_id: str, session_id: str, *, now: int | None, check: bytes = b""
    ) -> SessionKey:
        """The session's key.  ``now`` lets a missing one be made, None does not.

        ``now`` is in microseconds since 1970.  ``check`` names the key that is meant
        where there are several; without it, or if it is not there, it is the one
        that was used last here, or the oldest.

        Raises KeyUnavailable if the key is missing or cannot be opened.
        """
        key = self._sessions.get(
            (user_id, session_id), lambda: self._open_session(user_id, session_id, now)
        )
        if not check or key.check == check:
            return key
        for other in self._versions(user_id, session_id):
            if other.check == check:
                return self._sessions.put((user_id, session_id), other)
        return key

    def unseal(
        self, user_id: str, session_id: str, sealed: bytes, context: bytes
    ) -> bytes:
        """Open what was sealed under the session's key, or under another of its keys.

        Raises InvalidTag if it was not, KeyUnavailable if there is no key.
        """
        key = self.session(user_id, session_id, now=None)
        try:
            return unseal(key.cipher, sealed, context)
        except InvalidTag:
            for other in self._versions(user_id, session_id):
                if other.check != key.check and _opens(other, sealed, context):
                    self._sessions.put((user_id, session_id), other)
                    return unseal(other.cipher, sealed, context)
            raise

    def successor(
        self, user_id: str, session_id: str, *, of: SessionKey, now: int
    ) -> SessionKey:
        """The key after ``of``: one that was made and not used yet, or a new one."""
        for key in self._versions(user_id, session_id):
            if key.version > of.version:
                return key
        ref, version = self._session_ref(user_id, session_id), of.version + 1
        fresh = seal(_wrapper(of.user), os.urandom(32), _context(of.user, ref, version))
        wrapped = self._store.add_session(of.user.ref, ref, fresh, now, version=version)
        return _opened(of.user, ref, version, wrapped)

    def retire(self, user_id: str, session_id: str, *, before: SessionKey) -> int:
        """Destroy the keys of lower versions for good; returns how many."""
        self._sessions.put((user_id, session_id), before)
        ref = self._session_ref(user_id, session_id)
        return self._store.destroy_sessions(before.user.ref, ref, before=before.version)

    def older(self, user_id: str, session_id: str, *, than: SessionKey) -> int:
        """How many keys of lower versions there are."""
        keys = self._versions(user_id, session_id)
        return sum(key.version < than.version for key in keys)

    def surplus(self, user_id: str | None = None, session_id: str | None = None) -> int:
        """How many keys there are beyond one for each session: of all, a user, or one.

        A rewriting that was cut off leaves them.
        """
        user = None if user_id is None else self._user_ref(user_id)
        if user_id is None or session_id is None:
            return self._store.surplus(user)
        return self._store.surplus(user, self._session_ref(user_id, session_id))

    def user(self, user_id: str, *, now: int | None) -> UserKey:
        """The user's key, with the same rules as ``session``."""
        return self._users.get(user_id, lambda: self._open_user(user_id, now))

    def _open_user(self, user_id: str, now: int | None) -> UserKey:
        ref = self._user_ref(user_id)
        context = b"refold user key" + ref.encode()
        wrapped = self._store.get_user(ref)
        if wrapped is None:
            if now is None:
                raise _missing("the user's key")
            fresh = self._master.wrap(os.urandom(32), context)
            wrapped = self._store.add_user(ref, fresh, now)
        key = self._master.unwrap(wrapped, context)
        return UserKey(ref, key, AESGCM(_derive(key, "blobs")))

    def _open_session(
        self, user_id: str, session_id: str, now: int | None
    ) -> SessionKey:
        user = self.user(user_id, now=now)
        known = self._versions(user_id, session_id)
        if known:
            return known[0]
        if now is None:
            raise _missing("the session's key")
        ref = self._session_ref(user_id, session_id)
        fresh = seal(_wrapper(user), os.urandom(32), _context(user, ref, 1))
        wrapped = self._store.add_session(user.ref, ref, fresh, now)
        return _opened(user, ref, 1, wrapped)

    def _versions(self, user_id: str, session_id: str) -> list[SessionKey]:
        """The session's keys that are in the key store now, the oldest first."""
        user = self.user(user_id, now=None)
        ref = self._session_ref(user_id, session_id)
        found = sorted(self._store.session_keys(user.ref, ref).items())
        return [_opened(user, ref, version, wrapped) for version, wrapped in found]

    def _user_ref(self, user_id: str) -> str:
        return self._ref(b"user", user_id)

    def _session_ref(self, user_id: str, session_id: str) -> str:
        return self._ref(b"session", user_id, session_id)

    def _ref(self, kind: bytes, *names: str) -> str:
        message = length_prefixed((kind, *(name.encode() for name in names)))
        return hmac.digest(self._pepper, message, "sha256").hex()

    def close(self) -> None:
        """Let go of the key store and forget the keys."""
        self._users, self._sessions = _Recent(), _Recent()
        self._store.close()


def idempotent_id(user: UserKey, session_id: str, key: str, index: int) -> UUID:
    """The event id that the same idempotency key gives each time it is used."""
    parts = (session_id.encode(), key.encode(), str(index).encode())
    value = int.from_bytes(user.mac("event id", *parts)[:16], "big")
    return uuid_of(value, version=8)


def receipt_address(user: UserKey, stream: StreamId, key: str) -> bytes:
    """Where the receipt of an append with this idempotency key is."""
    return user.mac("receipt", str(stream).encode(), key.encode())


def uuid7(now: int) -> UUID:
    """A UUID of version 7: ``now`` in microseconds, the rest random (RFC 9562)."""
    stamp = (now // 1000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    return uuid_of(stamp << 80 | random, version=7)


def uuid_of(value: int, *, version: int) -> UUID:
    """``value`` as a UUID, its version and variant bits set (RFC 9562)."""
    value = value & ~(0xF << 76) | version << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def seal(cipher: AESGCM, data: bytes, context: bytes) -> bytes:
    """Encrypt ``data`` under a fresh nonce, bound to ``context``."""
    nonce = os.urandom(_NONCE)
    return nonce + cipher.encrypt(nonce, data, context)


def unseal(cipher: AESGCM, sealed: bytes, context: bytes) -> bytes:
    """Give back what ``seal`` encrypted; raises InvalidTag if it is not that."""
    if len(sealed) < _NONCE + 16:
        raise InvalidTag
    return cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], context)


def _wrapper(user: UserKey) -> AESGCM:
    return AESGCM(_derive(user.key, "sessions"))


def _context(user: UserKey, session_ref: str, version: int) -> bytes:
    which = "" if version == 1 else f" {version}"
    return f"refold session key {user.ref} {session_ref}{which}".encode()


def _opened(
    user: UserKey, session_ref: str, version: int, wrapped: bytes
) -> SessionKey:
    context = _context(user, session_ref, version)
    try:
        key = unseal(_wrapper(user), wrapped, context)
    except InvalidTag:
        raise KeyUnavailable(
            "the session's key does not open with its user's key",
            remedy="restore the key store from its newest backup",
        ) from None
    check = hmac.digest(key, b"refold key check", "sha256")[:8]
    return SessionKey(AESGCM(key), check, user, version)


def _opens(key: SessionKey, sealed: bytes, context: bytes) -> bool:
    try:
        unseal(key.cipher, sealed, context)
    except InvalidTag:
        return False
    return True


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"refold " + purpose.encode(), "sha256")


def _missing(what: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"{what} is not in the key store",
        remedy="point REFOLD_KEYS or REFOLD_HOME at the key store of this database",
    )


K = TypeVar("K")


class _Recent(OrderedDict[K, T]):
    """The values used last, at most as many as fit."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], T]) -> T:  # type: ignore[override]  # it makes what is missing
        with self._lock:
            if key in self:
                self.move_to_end(key)
                return self[key]
        return self.put(key, make())

    def put(self, key: K, value: T) -> T:
        with self._lock:
            self[key] = value
            while len(self) > _CACHED:
                self.popitem(last=False)
        return value
