"""Keys: a master key wraps each user's key, a user's key wraps each session's.

Destroying one wrapped key makes all that is under it unreadable, wherever copies
of the ciphertext survive.  The key store holds no name of a user or session, only
keyed hashes of them.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import ref

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from refold.adapters.keys.master import SIZE, MasterKey
from refold.adapters.keys.signatures import CONTEXT, SETTING, Signer
from refold.adapters.keys.store import PEPPER, Refs, UserEntry
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.chain import length_prefixed
from refold.domain.errors import Erased, KeyUnavailable
from refold.domain.ids import StreamId
from refold.domain.locks import forkable_lock

_MOST = 10_000
# Of so many sessions at most, what was opened is kept.
_MOST_OPENED: Final = 32
K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = forkable_lock()

    def get(self, key: K) -> V | None:
        """The value, if it is there."""
        found = self._kept.get(key)
        if found is None:
            return None
        # Without the lock: it is asked for with each row that is read.
        try:  # noqa: SIM105  # `suppress` takes longer than all of this
            self._kept.move_to_end(key)
        except KeyError:  # another thread let it go meanwhile
            pass
        return found

    def put(self, key: K, value: V) -> V:
        """Keep the value, and let the oldest go where there is no room."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Keep it no longer."""
        with self._lock:
            self._kept.pop(key, None)

    def forget_all(self, unwanted: Callable[[K], bool]) -> None:
        """Keep none that is ``unwanted``."""
        with self._lock:
            for key in [key for key in self._kept if unwanted(key)]:
                del self._kept[key]


PEPPER_CONTEXT: Final = b"refold pepper"
_NONCE = 12
_TRIES: Final = 5


class UserKey(NamedTuple):
    """A user's key, ready for use.

    ``key`` names things (``mac``) and stays when the user's key is rotated;
    ``wrapping`` opens the keys of sessions.  ``wrapped`` is the key as it was stored.
    """

    ref: str
    key: bytes
    cipher: AESGCM
    wrapping: AESGCM
    wrapped: bytes
    epoch: int = 1

    @classmethod
    def of(cls, ref: str, plain: bytes, entry: UserEntry) -> UserKey:
        """The key that ``plain`` holds, once it was unwrapped."""
        key, secret = plain[:SIZE], plain[SIZE:] or plain
        cipher = AESGCM(_derive(key, "blobs"))
        wrapping = AESGCM(_derive(secret, "sessions"))
        return cls(ref, key, cipher, wrapping, entry.wrapped or b"", entry.epoch)

    def mac(self, purpose: str, *parts: bytes) -> bytes:
        """A keyed hash of ``parts`` for one ``purpose``; 32 bytes."""
        message = length_prefixed((purpose.encode(), *parts))
        return hmac.digest(self.key, message, "sha256")


class Opened:
    """What was opened under a session's key, by the hash of its row.

    It is part of the key, and so gone as soon as that is let go of.
    """

    __slots__ = ("__weakref__", "rows")

    def __init__(self) -> None:
        self.rows: Mapping[bytes, Any] = {}


class SessionKey(NamedTuple):
    """A session's key, ready for use; ``check`` tells it from another key."""

    cipher: AESGCM
    check: bytes
    user: UserKey
    opened: Opened
    version: int = 1


class KeyRing:
    """The keys of one store, unwrapped as they are needed and kept in memory."""

    def __init__(self, store: SqlKeyStore, master: MasterKey) -> None:
        self.store, self.master = store, master
        self.reopen()
        self._users: Recent[str, UserKey] = Recent()
        self._sessions: Recent[tuple[str, str], SessionKey] = Recent()
        self._keeping: deque[ref[Opened]] = deque()

    def reopen(self) -> None:
        """Read again what the master key wraps here, after it was replaced."""
        self._pepper, self._wrapped_pepper = self._setting(PEPPER, PEPPER_CONTEXT)

    def signer(self) -> Signer:
        """What signs certificates and tree heads; its key is made where none is yet.

        Raises KeyUnavailable if the master key does not open it.
        """
        return Signer(self._setting(SETTING, CONTEXT)[0])

    def _setting(self, name: str, context: bytes) -> tuple[bytes, bytes]:
        """A secret of the store, plain and wrapped, made if there is none."""
        wrapped = self.store.get_setting(name)
        if wrapped is None:
            fresh = self.master.wrap(os.urandom(SIZE), context)
            wrapped = self.store.add_setting(name, fresh)
        return self.master.unwrap(wrapped, context), wrapped

    def session(
        self, user_id: str, session_id: str, *, now: int | None, check: bytes = b""
    ) -> SessionKey:
        """The session's key.  ``now`` lets a missing one be made, None does not.

        ``now`` is in microseconds since 1970.  ``check`` names the key that is meant
        where there are several; without it, or if it is not there, it is the one
        that was used last here, or the oldest.

        Raises KeyUnavailable if the key is missing or cannot be opened, Erased.
        """
        place = user_id, session_id
        key = self._sessions.get(place)
        if key is None:
            key = self._sessions.put(place, self._open_session(*place, now))
        if not check or key.check == check:
            return key
        for other in self._versions(user_id, session_id):
            if other.check == check:
                return self._sessions.put((user_id, session_id), other)
        return key

    def keep(self, opened: Opened, rows: Mapping[bytes, Any]) -> None:
        """Keep these rows with their key, instead of those that were kept with it.

        Of most sessions none are kept: those kept first are let go of.
        """
        if rows and not opened.rows:
            self._keeping.append(ref(opened))
            while len(self._keeping) > _MOST_OPENED:
                first = self._keeping.popleft()()
                if first is not None:
                    first.rows = {}
        opened.rows = rows

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
                if other.check == key.check:
                    continue
                with suppress(InvalidTag):
                    plain = unseal(other.cipher, sealed, context)
                    self._sessions.put((user_id, session_id), other)
                    return plain
            raise

    def successor(
        self, user_id: str, session_id: str, *, of: SessionKey, now: int
    ) -> SessionKey:
        """The key after ``of``: one that was made and not used yet, or a new one."""
        for key in self._versions(user_id, session_id):
            if key.version > of.version:
                return key
        return self._add_session(user_id, session_id, now, of.version + 1)

    def retire(self, user_id: str, session_id: str, *, before: SessionKey) -> int:
        """Destroy the keys of lower versions for good; returns how many."""
        self._sessions.put((user_id, session_id), before)
        ref = self.session_ref(user_id, session_id)
        return self.store.destroy_sessions(before.user.ref, ref, before=before.version)

    def older(self, user_id: str, session_id: str, *, than: SessionKey) -> int:
        """How many keys of lower versions there are."""
        keys = self._versions(user_id, session_id)
        return sum(key.version < than.version for key in keys)

    def surplus(self, user_id: str | None = None, session_id: str | None = None) -> int:
        """How many keys there are beyond one for each session: of all, a user, or one.

        A rewriting that was cut off leaves them.
        """
        user = None if user_id is None else self.user_ref(user_id)
        if user_id is None or session_id is None:
            return self.store.surplus(user)
        return self.store.surplus(user, self.session_ref(user_id, session_id))

    def user(self, user_id: str, *, now: int | None) -> UserKey:
        """The user's key, with the same rules as ``session``."""
        if (known := self._users.get(user_id)) is not None:
            return known
        ref = self.user_ref(user_id)
        entry = self.store.get_user(ref)
        if entry is None:
            if now is None:
                raise _missing("the user's key")
            entry = self._add_user(ref, now)
        return self._users.put(user_id, self.unwrapped(ref, entry))

    def refs(self, user: UserKey, stream: StreamId) -> Refs:
        """What a new session is known by that is sealed under this key."""
        return Refs(user.ref, self.session_ref(*stream[:2]), user.epoch)

    def refuse_erased(self, user_id: str, session_id: str) -> None:
        """Ask the key store itself, not what is remembered here.  Raises Erased."""
        self.forget(user_id, session_id)
        entry, _ = self.store.standing(*self._refs(user_id, session_id))
        if entry is not None and entry.wrapped is None:
            raise Erased("the user")

    def forget(self, user_id: str, session_id: str | None = None) -> None:
        """Forget the key of the user and of the session, or of all the user's."""
        self._users.forget(user_id)
        if session_id is not None:
            self._sessions.forget((user_id, session_id))
        else:
            self._sessions.forget_all(lambda known: known[0] == user_id)

    def user_of(self, ref: str) -> UserKey | None:
        """The key of the user whom ``ref`` stands for; None if there is none."""
        entry = self.store.get_user(ref)
        if entry is None or entry.wrapped is None:
            return None
        return self.unwrapped(ref, entry)

    def unwrapped(self, ref: str, entry: UserEntry) -> UserKey:
        """The user's key, opened with the master key.

        Raises Erased, and KeyUnavailable if the master key does not open it.
        """
        if entry.wrapped is None:
            raise Erased("the user")
        context = user_context(ref, entry.epoch)
        return UserKey.of(ref, self.master.unwrap(entry.wrapped, context), entry)

    def _add_user(
        self, ref: str, now: int, session_ref: str | None = None
    ) -> UserEntry:
        """Keep a new key, under the master key that is the newest by now.

        With it a first session's, if it is said of which.
        """
        for _ in range(_TRIES):
            plain, pepper, first = os.urandom(SIZE), self._wrapped_pepper, None
            fresh = self.master.wrap(plain, user_context(ref, 1))
            if session_ref is not None:
                user = UserKey.of(ref, plain, UserEntry(1, fresh))
                first = session_ref, _fresh(user, session_ref, 1)
            entry = self.store.add_user(ref, fresh, now, pepper=pepper, session=first)
            if entry is not None:
                return entry
            self.reopen()
        raise _busy()

    def _open_session(
        self, user_id: str, session_id: str, now: int | None
    ) -> SessionKey:
        refs = self._refs(user_id, session_id)
        entry, keys = self.store.standing(*refs)
        if entry is None and now is not None:
            self._add_user(refs[0], now, refs[1])
            entry, keys = self.store.standing(*refs)
        if entry is None:
            raise _missing("the user's key")
        known = self._users.get(user_id)
        if known is None or known.wrapped != entry.wrapped:
            self._users.forget(user_id)
            self._users.put(user_id, self.unwrapped(refs[0], entry))
        if keys:
            return self._opened(user_id, refs[1], *min(keys.items()))
        if now is None:
            raise _missing("the session's key")
        return self._add_session(user_id, session_id, now, 1)

    def _add_session(
        self, user_id: str, session_id: str, now: int, version: int
    ) -> SessionKey:
        """Keep a new key, under the key that the user has by now."""
        ref = self.session_ref(user_id, session_id)
        for _ in range(_TRIES):
            user = self.user(user_id, now=None)
            fresh, under = _fresh(user, ref, version), user.wrapped
            wrapped = self.store.add_session(
                user.ref, ref, fresh, now, under=under, version=version
            )
            if wrapped is not None:
                return self._opened(user_id, ref, version, wrapped)
            self.forget(user_id)
        raise _busy()

    def _versions(self, user_id: str, session_id: str) -> list[SessionKey]:
        """The session's keys that are in the key store now, the oldest first."""
        ref = self.session_ref(user_id, session_id)
        user = self.user(user_id, now=None)
        found = sorted(self.store.session_keys(user.ref, ref).items())
        return [self._opened(user_id, ref, version, key) for version, key in found]

    def _opened(
        self, user_id: str, ref: str, version: int, wrapped: bytes
    ) -> SessionKey:
        """The session's key; the user's is read again if it was rotated meanwhile."""
        for _ in range(2):
            user = self.user(user_id, now=None)
            with suppress(InvalidTag):
                return _opened(user, ref, version, wrapped)
            self._users.forget(user_id)
            again = self.store.session_keys(self.user(user_id, now=None).ref, ref)
            wrapped = again.get(version, wrapped)
        raise KeyUnavailable(
            "the session's key does not open with its user's key",
            remedy="restore the key store from its newest backup",
        )

    def user_ref(self, user_id: str) -> str:
        """The keyed hash that names the user."""
        return self._ref(b"user", user_id)

    def session_ref(self, user_id: str, session_id: str) -> str:
        """The keyed hash that names the session."""
        return self._ref(b"session", user_id, session_id)

    def _refs(self, user_id: str, session_id: str) -> tuple[str, str]:
        return self.user_ref(user_id), self.session_ref(user_id, session_id)

    def _ref(self, kind: bytes, *names: str) -> str:
        message = length_prefixed((kind, *(name.encode() for name in names)))
        return hmac.digest(self._pepper, message, "sha256").hex()

    def close(self) -> None:
        """Let go of the key store and forget the keys."""
        self._users, self._sessions = Recent(), Recent()
        self.store.close()


def idempotent_id(user: UserKey, session_id: str, key: str, index: int) -> bytes:
    """The event id that the same idempotency key gives each time it is used."""
    parts = (session_id.encode(), key.encode(), str(index).encode())
    return uuid_of(user.mac("event id", *parts)[:16], version=8)


def receipt_address(user: UserKey, stream: StreamId, key: str) -> bytes:
    """Where the receipt of an append with this idempotency key is."""
    return user.mac("receipt", str(stream).encode(), key.encode())


def uuid7(now: int) -> bytes:
    """A UUID of version 7: ``now`` in microseconds, the rest random (RFC 9562)."""
    stamp = now // 1000 & 0xFFFFFFFFFFFF
    return uuid_of(stamp.to_bytes(6, "big") + os.urandom(10), version=7)


def uuid_of(value: bytes, *, version: int) -> bytes:
    """The UUID of these 16 bytes, its version and variant bits set (RFC 9562)."""
    high, low = value[6] & 0x0F | version << 4, value[8] & 0x3F | 0x80
    return b"%b%c%c%c%b" % (value[:6], high, value[7], low, value[9:])


def seal(cipher: AESGCM, data: bytes, context: bytes) -> bytes:
    """Encrypt ``data`` under a fresh nonce, bound to ``context``."""
    nonce = os.urandom(_NONCE)
    return nonce + cipher.encrypt(nonce, data, context)


def unseal(cipher: AESGCM, sealed: bytes, context: bytes, begin: int = 0) -> bytes:
    """Give back what ``seal`` encrypted; raises InvalidTag if it is not that.

    It may begin behind the first bytes of ``sealed``.
    """
    if len(sealed) < begin + _NONCE + 16:
        raise InvalidTag
    data = begin + _NONCE
    return cipher.decrypt(sealed[begin:data], sealed[data:], context)


def user_context(user_ref: str, epoch: int) -> bytes:
    """What a user's wrapped key is bound to."""
    which = "" if epoch == 1 else f" {epoch}"
    return f"refold user key{user_ref}{which}".encode()


def session_context(user_ref: str, session_ref: str, version: int) -> bytes:
    """What a session's wrapped key is bound to."""
    which = "" if version == 1 else f" {version}"
    return f"refold session key {user_ref} {session_ref}{which}".encode()


def _fresh(user: UserKey, session_ref: str, version: int) -> bytes:
    """A new key of a session, wrapped."""
    context = session_context(user.ref, session_ref, version)
    return seal(user.wrapping, os.urandom(SIZE), context)


def _opened(
    user: UserKey, session_ref: str, version: int, wrapped: bytes
) -> SessionKey:
    """The session's key.  Raises InvalidTag if the user's key does not open it."""
    context = session_context(user.ref, session_ref, version)
    key = unseal(user.wrapping, wrapped, context)
    check = hmac.digest(key, b"refold key check", "sha256")[:8]
    return SessionKey(AESGCM(key), check, user, Opened(), version)


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, b"refold " + purpose.encode(), "sha256")


def _missing(what: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"{what} is not in the key store",
        remedy="point REFOLD_KEYS or REFOLD_HOME at the key store of this database",
    )


def _busy() -> KeyUnavailable:
    return KeyUnavailable(
        "keys are replaced by others all the time",
        remedy="try again when they are done",
    )
