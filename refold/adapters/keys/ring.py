"""Keys: a master key wraps each user's key, a user's key wraps each session's.

Without a wrapped key, nothing encrypted with it can be read, no matter where copies of
the ciphertext survive.  The key store has no ids of users and sessions, only keyed
hashes of them.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import ReferenceType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from refold.adapters.keys.master import SIZE, MasterKey
from refold.adapters.keys.signatures import SIGNING_KEY, SIGNING_KEY_CONTEXT, Signer
from refold.adapters.keys.store import PEPPER, Refs, UserEntry
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.chain import length_prefixed, pack_length
from refold.domain.errors import Erased, KeyUnavailable
from refold.domain.ids import StreamId
from refold.domain.locks import forkable_lock

_MOST = 10_000  # cached keys
_MOST_WITH_ROWS: Final = 32  # sessions whose decrypted rows are cached
K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of the values used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = forkable_lock()

    def get(self, key: K) -> V | None:
        """Return the cached value, if there is one."""
        value = self._values.get(key)
        if value is None:
            return None
        # No lock, because this is called for each row that is read.
        try:  # noqa: SIM105  # `suppress` takes longer than all of this
            self._values.move_to_end(key)
        except KeyError:  # another thread has just removed it
            pass
        return value

    def put(self, key: K, value: V) -> V:
        """Cache and return the value; drop the oldest values if there are too many."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > _MOST:
                self._values.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Drop a value."""
        with self._lock:
            self._values.pop(key, None)

    def forget_all(self, unwanted: Callable[[K], bool]) -> None:
        """Drop the values whose keys are ``unwanted``."""
        with self._lock:
            for key in [key for key in self._values if unwanted(key)]:
                del self._values[key]


PEPPER_CONTEXT: Final = b"refold pepper"
LINK_CONTEXT: Final = b"refold link"
_NONCE = 12  # bytes
_TAG = 16  # bytes
_TRIES: Final = 5


class UserKey(NamedTuple):
    """A user's key, ready for use.

    ref:      the keyed hash of the user.
    key:      makes keyed hashes (``mac``), and stays when the user's key is rotated.
    cipher:   encrypts blobs and other data of the user.
    wrapping: wraps the keys of sessions.
    wrapped:  the key as it is stored.
    epoch:    1, and one more for each readmission of the user.
    """

    ref: str
    key: bytes
    cipher: AESGCM
    wrapping: AESGCM
    wrapped: bytes
    epoch: int = 1

    @classmethod
    def of(cls, ref: str, plain: bytes, entry: UserEntry) -> UserKey:
        """Return the key with this plain text.

        A rotated key consists of the part for hashes, which stays, and a new secret.
        """
        key = plain[:SIZE]
        secret = plain[SIZE:] or plain
        return cls(
            ref=ref,
            key=key,
            cipher=AESGCM(_derive(key, "blobs")),
            wrapping=AESGCM(_derive(secret, "sessions")),
            wrapped=entry.wrapped or b"",
            epoch=entry.epoch,
        )

    def mac(self, purpose: str, *parts: bytes) -> bytes:
        """Return a keyed hash of ``parts`` for one ``purpose``; 32 bytes."""
        message = length_prefixed((purpose.encode(), *parts))
        return hmac.digest(self.key, message, "sha256")


class DecryptedRows:
    """Decrypted rows of a session, by their hashes.

    They are part of the session's key, and so disappear with it.

    shown: the events that a stored view of the session shows.
    """

    __slots__ = ("__weakref__", "rows", "shown")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self.rows: Mapping[bytes, Any] = {}
        self.shown: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cached."""
        return not self.rows and self.shown is None


class SessionKey(NamedTuple):
    """A session's key, ready for use; ``check`` distinguishes it from other keys."""

    cipher: AESGCM
    check: bytes
    user: UserKey
    decrypted: DecryptedRows
    version: int = 1


class KeyRing:
    """The keys of one store, which are unwrapped on demand and cached in memory."""

    def __init__(self, store: SqlKeyStore, master: MasterKey) -> None:
        self.store = store
        self.master = master
        self.reopen()
        self._users: Recent[str, UserKey] = Recent()
        self._sessions: Recent[tuple[str, str], SessionKey] = Recent()
        self._with_rows: deque[ReferenceType[DecryptedRows]] = deque()

    def reopen(self) -> None:
        """Read the pepper, the secret of keyed hashes, after a new master key."""
        self._pepper, self._wrapped_pepper = self._setting(PEPPER, PEPPER_CONTEXT)

    def signer(self) -> Signer:
        """Return the signer of certificates and tree heads; makes a key if necessary.

        Raises KeyUnavailable if the master key does not unwrap the signer's key.
        """
        secret, _ = self._setting(SIGNING_KEY, SIGNING_KEY_CONTEXT)
        return Signer(secret)

    def _setting(self, name: str, context: bytes) -> tuple[bytes, bytes]:
        """Return a secret of the store, plain and wrapped; makes it if necessary."""
        wrapped = self.store.get_setting(name)
        if wrapped is None:
            fresh = self.master.wrap(os.urandom(SIZE), context)
            wrapped = self.store.add_setting(name, fresh)
        return self.master.unwrap(wrapped, context), wrapped

    def session(
        self, user_id: str, session_id: str, *, now: int | None, check: bytes = b""
    ) -> SessionKey:
        """Return the session's key.

        now:   in microseconds since 1970; a missing key is made.  None makes no key.
        check: chooses one of several keys.  Without it, or if there is no such key,
               this is the key that was used last here, or the oldest one.

        Raises KeyUnavailable if the key is missing or cannot be unwrapped, Erased.
        """
        session = (user_id, session_id)
        key = self._sessions.get(session)
        if key is None:
            key = self._open_session(user_id, session_id, now)
            self._sessions.put(session, key)
        if not check or key.check == check:
            return key
        for other in self._versions(user_id, session_id):
            if other.check == check:
                return self._sessions.put(session, other)
        return key

    def cached(self, user_id: str, session_id: str) -> DecryptedRows | None:
        """Return the decrypted rows of a session; None if its key is not in memory."""
        key = self._sessions.get((user_id, session_id))
        return None if key is None else key.decrypted

    def cache_rows(
        self, decrypted: DecryptedRows, rows: Mapping[bytes, Any], shown: Any = None
    ) -> None:
        """Replace the decrypted rows of a session.

        shown: the events that a stored view shows.

        Only a few sessions have cached rows.  The one that got its rows first loses
        them first.
        """
        if decrypted.is_empty and (rows or shown is not None):
            self._with_rows.append(ReferenceType(decrypted))
            while len(self._with_rows) > _MOST_WITH_ROWS:
                first = self._with_rows.popleft()()
                if first is not None:
                    first.clear()
        decrypted.rows = rows
        decrypted.shown = shown

    def decrypt(
        self, user_id: str, session_id: str, ciphertext: bytes, context: bytes
    ) -> bytes:
        """Decrypt data with the session's key, or with another of its keys.

        Raises InvalidTag if no key fits, KeyUnavailable if there is no key.
        """
        key = self.session(user_id, session_id, now=None)
        try:
            return decrypt(key.cipher, ciphertext, context)
        except InvalidTag:
            for other in self._versions(user_id, session_id):
                if other.check == key.check:
                    continue
                with suppress(InvalidTag):
                    plain = decrypt(other.cipher, ciphertext, context)
                    self._sessions.put((user_id, session_id), other)
                    return plain
            raise

    def decrypt_each(
        self,
        user_id: str,
        rows: Iterable[tuple[str, bytes, bytes]],
        sessions: Sequence[str] | None = None,
    ) -> Iterator[bytes | None]:
        """Decrypt rows of many sessions of a user, whose keys are read at once.

        rows:     each with its session, its ciphertext, and its context.
        sessions: the sessions of the rows; None reads the keys of all sessions.

        Yields None for a row that no key of its session fits.

        Raises KeyUnavailable if the user's key is missing, Erased.
        """
        user = self.user(user_id, now=None)
        session_ref = self._session_refs(user_id)
        refs = None if sessions is None else [session_ref(name) for name in sessions]
        first, rotated = self.store.keys_by_session(user.ref, refs)
        first_context = session_context(user.ref, "", 1)
        unwrap = user.wrapping.decrypt
        # A list does this for each session, so no step of the loop is a function.
        for session_id, ciphertext, context in rows:
            ref = session_ref(session_id)
            plain: bytes | None = None
            if ref in rotated:
                plain = _decrypted(user, ref, rotated[ref], ciphertext, context)
            wrapped = first.get(ref)
            if plain is None and wrapped is not None:
                try:
                    key_context = first_context + ref.encode()
                    key = unwrap(wrapped[:_NONCE], wrapped[_NONCE:], key_context)
                    nonce = ciphertext[:_NONCE]
                    plain = AESGCM(key).decrypt(nonce, ciphertext[_NONCE:], context)
                except (InvalidTag, ValueError):  # not this key
                    pass
            yield plain

    def successor(
        self, user_id: str, session_id: str, *, of: SessionKey, now: int
    ) -> SessionKey:
        """Return the key after ``of``: an unused one that exists, or a new one."""
        for key in self._versions(user_id, session_id):
            if key.version > of.version:
                return key
        return self._add_session(user_id, session_id, now, of.version + 1)

    def destroy_older(
        self, user_id: str, session_id: str, *, before: SessionKey
    ) -> int:
        """Destroy the keys of lower versions for good; returns their number."""
        self._sessions.put((user_id, session_id), before)
        ref = self.session_ref(user_id, session_id)
        return self.store.destroy_sessions(before.user.ref, ref, before=before.version)

    def count_older(self, user_id: str, session_id: str, *, than: SessionKey) -> int:
        """Return the number of keys of lower versions."""
        keys = self._versions(user_id, session_id)
        return sum(1 for key in keys if key.version < than.version)

    def surplus(self, user_id: str | None = None, session_id: str | None = None) -> int:
        """Return the number of keys beyond one for each session.

        It counts those of all users, of a user, or of a session.  An interrupted
        rewriting leaves such keys.
        """
        if user_id is None:
            return self.store.surplus(None)
        user_ref = self.user_ref(user_id)
        if session_id is None:
            return self.store.surplus(user_ref)
        return self.store.surplus(user_ref, self.session_ref(user_id, session_id))

    def user(self, user_id: str, *, now: int | None) -> UserKey:
        """Return the user's key, by the same rules as ``session``."""
        cached = self._users.get(user_id)
        if cached is not None:
            return cached
        ref = self.user_ref(user_id)
        entry = self.store.get_user(ref)
        if entry is None:
            if now is None:
                raise _missing("the user's key")
            entry = self._add_user(ref, now)
        return self._users.put(user_id, self.unwrapped(ref, entry))

    def refs(self, user: UserKey, stream: StreamId) -> Refs:
        """Return the keyed hashes of a new session that is encrypted with this key."""
        session_ref = self.session_ref(stream.user_id, stream.session_id)
        return Refs(user.ref, session_ref, user.epoch)

    def refuse_erased(self, user_id: str, session_id: str) -> None:
        """Raise Erased if the key store says so, regardless of cached keys."""
        self.forget(user_id, session_id)
        user_ref = self.user_ref(user_id)
        session_ref = self.session_ref(user_id, session_id)
        entry, _ = self.store.user_and_session_keys(user_ref, session_ref)
        if entry is not None and entry.wrapped is None:
            raise Erased("the user")

    def forget(self, user_id: str, session_id: str | None = None) -> None:
        """Drop the cached keys of the user, and of the session or all sessions."""
        self._users.forget(user_id)
        if session_id is not None:
            self._sessions.forget((user_id, session_id))
        else:

            def is_of_user(session: tuple[str, str]) -> bool:
                owner, _ = session
                return owner == user_id

            self._sessions.forget_all(is_of_user)

    def user_of(self, ref: str) -> UserKey | None:
        """Return the key of the user with this keyed hash; None if there is none."""
        entry = self.store.get_user(ref)
        if entry is None or entry.wrapped is None:
            return None
        return self.unwrapped(ref, entry)

    def unwrapped(self, ref: str, entry: UserEntry) -> UserKey:
        """Unwrap a user's key with the master key.

        Raises Erased, and KeyUnavailable if the master key does not unwrap it.
        """
        if entry.wrapped is None:
            raise Erased("the user")
        context = user_context(ref, entry.epoch)
        return UserKey.of(ref, self.master.unwrap(entry.wrapped, context), entry)

    def _add_user(
        self, ref: str, now: int, session_ref: str | None = None
    ) -> UserEntry:
        """Store a new user's key, wrapped with the newest master key.

        session_ref: also store a key of this session.
        """
        for _ in range(_TRIES):
            plain = os.urandom(SIZE)
            wrapped = self.master.wrap(plain, user_context(ref, 1))
            session = None
            if session_ref is not None:
                user = UserKey.of(ref, plain, UserEntry(1, wrapped))
                session = (session_ref, _new_session_key(user, session_ref, 1))
            # A replaced master key has wrapped the pepper again, and this adds nothing.
            pepper = self._wrapped_pepper
            entry = self.store.add_user(
                ref, wrapped, now, pepper=pepper, session=session
            )
            if entry is not None:
                return entry
            self.reopen()
        raise _busy()

    def _open_session(
        self, user_id: str, session_id: str, now: int | None
    ) -> SessionKey:
        """Return the session's oldest key in the key store, or a new one."""
        user_ref = self.user_ref(user_id)
        session_ref = self.session_ref(user_id, session_id)
        entry, keys = self.store.user_and_session_keys(user_ref, session_ref)
        if entry is None and now is not None:
            self._add_user(user_ref, now, session_ref)
            entry, keys = self.store.user_and_session_keys(user_ref, session_ref)
        if entry is None:
            raise _missing("the user's key")
        cached = self._users.get(user_id)
        if cached is None or cached.wrapped != entry.wrapped:
            self._users.forget(user_id)
            self._users.put(user_id, self.unwrapped(user_ref, entry))
        if keys:
            version, wrapped = min(keys.items())
            return self._unwrap_session(user_id, session_ref, version, wrapped)
        if now is None:
            raise _missing("the session's key")
        return self._add_session(user_id, session_id, now, 1)

    def _add_session(
        self, user_id: str, session_id: str, now: int, version: int
    ) -> SessionKey:
        """Store a new session's key, wrapped with the present key of the user."""
        ref = self.session_ref(user_id, session_id)
        for _ in range(_TRIES):
            user = self.user(user_id, now=None)
            wrapped = self.store.add_session(
                user.ref,
                ref,
                _new_session_key(user, ref, version),
                now,
                under=user.wrapped,
                version=version,
            )
            if wrapped is not None:
                return self._unwrap_session(user_id, ref, version, wrapped)
            self.forget(user_id)
        raise _busy()

    def _versions(self, user_id: str, session_id: str) -> list[SessionKey]:
        """Return the session's keys in the key store, the oldest first."""
        ref = self.session_ref(user_id, session_id)
        user = self.user(user_id, now=None)
        keys = []
        for version, wrapped in sorted(self.store.session_keys(user.ref, ref).items()):
            keys.append(self._unwrap_session(user_id, ref, version, wrapped))
        return keys

    def _unwrap_session(
        self, user_id: str, ref: str, version: int, wrapped: bytes
    ) -> SessionKey:
        """Unwrap a session's key.

        If the user's key was rotated since it was cached, it is read again.
        """
        for _ in range(2):
            user = self.user(user_id, now=None)
            with suppress(InvalidTag):
                return _unwrapped_session(user, ref, version, wrapped)
            self._users.forget(user_id)
            rotated = self.user(user_id, now=None)
            keys = self.store.session_keys(rotated.ref, ref)
            wrapped = keys.get(version, wrapped)
        raise KeyUnavailable(
            "the session's key does not open with its user's key",
            remedy="restore the key store from its newest backup",
        )

    def encrypt_link(self, names: bytes) -> bytes:
        """Encrypt the names in a link with a key of this store for links alone."""
        cipher = AESGCM(_derive(self._pepper, "links"))
        return encrypt(cipher, names, LINK_CONTEXT)

    def decrypt_link(self, ciphertext: bytes) -> bytes | None:
        """Return the names in a link; None if it is not a link of this store."""
        cipher = AESGCM(_derive(self._pepper, "links"))
        try:
            return decrypt(cipher, ciphertext, LINK_CONTEXT)
        except InvalidTag:
            return None

    def user_ref(self, user_id: str) -> str:
        """Return the keyed hash of the user."""
        return self._ref(b"user", user_id)

    def session_ref(self, user_id: str, session_id: str) -> str:
        """Return the keyed hash of the session."""
        return self._ref(b"session", user_id, session_id)

    def _session_refs(self, user_id: str) -> Callable[[str], str]:
        """Return ``session_ref`` for many sessions of a user.

        The part of the message that all of them share is hashed once.
        """
        # This HMAC is copied faster than that of the standard library.
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.hmac import HMAC

        hash_of_shared = HMAC(self._pepper, SHA256())
        hash_of_shared.update(length_prefixed((b"session", user_id.encode())))

        def session_ref(session_id: str) -> str:
            name = session_id.encode()
            keyed_hash = hash_of_shared.copy()
            keyed_hash.update(pack_length(len(name)) + name)
            return keyed_hash.finalize().hex()

        return session_ref

    def _ref(self, kind: bytes, *names: str) -> str:
        message = length_prefixed((kind, *(name.encode() for name in names)))
        return hmac.digest(self._pepper, message, "sha256").hex()

    def close(self) -> None:
        """Close the key store, and drop the cached keys."""
        self._users = Recent()
        self._sessions = Recent()
        self.store.close()


def idempotent_id(user: UserKey, session_id: str, key: str, index: int) -> bytes:
    """Return the id of an event with an idempotency key, the same for each use."""
    parts = (session_id.encode(), key.encode(), str(index).encode())
    return uuid_of(user.mac("event id", *parts)[:16], version=8)


def receipt_address(user: UserKey, stream: StreamId, key: str) -> bytes:
    """Return the address of the receipt of an append with this idempotency key."""
    return user.mac("receipt", str(stream).encode(), key.encode())


def uuid7(now: int) -> bytes:
    """Return a UUID of version 7 (RFC 9562); ``now`` is in microseconds."""
    milliseconds = now // 1000 & 0xFFFFFFFFFFFF
    return uuid_of(milliseconds.to_bytes(6, "big") + os.urandom(10), version=7)


def uuid_of(value: bytes, *, version: int) -> bytes:
    """Return these 16 bytes as a UUID, with version and variant bits (RFC 9562)."""
    version_byte = value[6] & 0x0F | version << 4
    variant_byte = value[8] & 0x3F | 0x80
    return b"%b%c%c%c%b" % (
        value[:6],
        version_byte,
        value[7],
        variant_byte,
        value[9:],
    )


def encrypt(cipher: AESGCM, data: bytes, context: bytes) -> bytes:
    """Encrypt data with a new nonce, bound to a context; the nonce comes first."""
    nonce = os.urandom(_NONCE)
    return nonce + cipher.encrypt(nonce, data, context)


def decrypt(cipher: AESGCM, ciphertext: bytes, context: bytes, begin: int = 0) -> bytes:
    """Decrypt what ``encrypt`` returned, from the byte ``begin`` on.

    Raises InvalidTag for another key, another context, or changed bytes.
    """
    if len(ciphertext) < begin + _NONCE + _TAG:
        raise InvalidTag
    data_begin = begin + _NONCE
    return cipher.decrypt(
        ciphertext[begin:data_begin], ciphertext[data_begin:], context
    )


def user_context(user_ref: str, epoch: int) -> bytes:
    """Return the context that a user's wrapped key is bound to."""
    suffix = "" if epoch == 1 else f" {epoch}"
    return f"refold user key{user_ref}{suffix}".encode()


def session_context(user_ref: str, session_ref: str, version: int) -> bytes:
    """Return the context that a session's wrapped key is bound to."""
    suffix = "" if version == 1 else f" {version}"
    return f"refold session key {user_ref} {session_ref}{suffix}".encode()


def _new_session_key(user: UserKey, session_ref: str, version: int) -> bytes:
    """Return a new, wrapped key of a session."""
    context = session_context(user.ref, session_ref, version)
    return encrypt(user.wrapping, os.urandom(SIZE), context)


def _unwrapped_session(
    user: UserKey, session_ref: str, version: int, wrapped: bytes
) -> SessionKey:
    """Unwrap a session's key.  Raises InvalidTag if the user's key does not fit."""
    context = session_context(user.ref, session_ref, version)
    key = decrypt(user.wrapping, wrapped, context)
    check = hmac.digest(key, b"refold key check", "sha256")[:8]
    return SessionKey(AESGCM(key), check, user, DecryptedRows(), version)


def _decrypted(
    user: UserKey,
    session_ref: str,
    versions: Iterable[tuple[int, bytes]],
    ciphertext: bytes,
    context: bytes,
) -> bytes | None:
    """Decrypt data with a later version of a session's key; None if none fits.

    After an interrupted rewriting, a session has the keys of two versions.
    """
    for version, wrapped in versions:
        key_context = session_context(user.ref, session_ref, version)
        with suppress(InvalidTag, ValueError):
            key = decrypt(user.wrapping, wrapped, key_context)
            return decrypt(AESGCM(key), ciphertext, context)
    return None


def _derive(key: bytes, purpose: str) -> bytes:
    """Return the key for a purpose that is derived from another key."""
    return hmac.digest(key, b"refold " + purpose.encode(), "sha256")


def _missing(key: str) -> KeyUnavailable:
    """Return the error for a missing key."""
    return KeyUnavailable(
        f"{key} is not in the key store",
        remedy="point REFOLD_KEYS or REFOLD_HOME at the key store of this database",
    )


def _busy() -> KeyUnavailable:
    """Return the error for keys that change again and again."""
    return KeyUnavailable(
        "other processes keep replacing keys",
        remedy="try again when they are done",
    )
