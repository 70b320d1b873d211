"""Rotation: it replaces the master key or the key of a user, and wraps keys again.

Each step replaces one wrapped key if it is still the one that was read.  So other
processes can read and write concurrently, and an interrupted call can be repeated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from refold.adapters.keys.master import SIZE, LocalMasterKey
from refold.adapters.keys.ring import (
    PEPPER_CONTEXT,
    KeyRing,
    UserKey,
    decrypt,
    encrypt,
    session_context,
    user_context,
)
from refold.adapters.keys.signatures import SIGNING_KEY, SIGNING_KEY_CONTEXT
from refold.adapters.keys.store import PEPPER, UserEntry
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import KeyUnavailable

_TRIES: Final = 5


def rotate_master(ring: KeyRing) -> int:
    """Wrap all keys that the newest master key did not wrap; returns their number.

    The pepper comes first.  A process that has read the pepper before cannot add a user
    with an older master key after that.
    """
    store = ring.store
    count = 0
    for name, wrapped, context in _stale_settings(ring):
        if store.swap_setting(name, wrapped, _wrapped_again(ring, wrapped, context)):
            count += 1
    # Other processes may add keys during a pass, so the last pass finds none.
    while True:
        swapped = 0
        for ref, wrapped, context in _stale_users(ring, users_of(store)):
            if store.swap_user(ref, wrapped, _wrapped_again(ring, wrapped, context)):
                swapped += 1
        for ref, wrapped, context in _stale_users(ring, store.held_users()):
            if store.swap_held(ref, wrapped, _wrapped_again(ring, wrapped, context)):
                swapped += 1
        if not swapped:
            break
        count += swapped
    ring.reopen()
    return count


def stale(ring: KeyRing) -> int:
    """Return the number of keys that an older master key wrapped."""
    users = chain(users_of(ring.store), ring.store.held_users())
    return len([*_stale_settings(ring), *_stale_users(ring, users)])


def _stale_settings(ring: KeyRing) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the settings that an older master key wrapped.

    Each comes as its name, its wrapped value, and its context.
    """
    settings = ((PEPPER, PEPPER_CONTEXT), (SIGNING_KEY, SIGNING_KEY_CONTEXT))
    for name, context in settings:
        wrapped = ring.store.get_setting(name)
        if wrapped is not None and ring.master.stale(wrapped, context):
            yield name, wrapped, context


def _stale_users(
    ring: KeyRing, users: Iterable[tuple[str, UserEntry]]
) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the users' keys that an older master key wrapped.

    Each comes as the keyed hash of the user, the wrapped key, and its context.
    """
    for ref, entry in users:
        context = user_context(ref, entry.epoch)
        if entry.wrapped is not None and ring.master.stale(entry.wrapped, context):
            yield ref, entry.wrapped, context


def _wrapped_again(ring: KeyRing, wrapped: bytes, context: bytes) -> bytes:
    """Wrap a key with the newest master key."""
    return ring.master.wrap(ring.master.unwrap(wrapped, context), context)


def users_of(store: SqlKeyStore) -> Iterator[tuple[str, UserEntry]]:
    """Yield all users of a key store, read in pages."""
    after = ""
    while page := store.users(after):
        yield from page
        after, _ = page[-1]


def rotate_user(ring: KeyRing, user_id: str) -> int:
    """Wrap a user's session keys with a new key; returns their number.

    The user's key for hashes stays, because receipts and blobs are found by hashes.
    """
    for _ in range(_TRIES):
        ring.forget(user_id)
        user = ring.user(user_id, now=None)
        plain = user.key + os.urandom(SIZE)  # the key for hashes, and a new secret
        new = UserKey.of(user.ref, plain, UserEntry(user.epoch, None))
        session_keys = {}
        try:
            for place, wrapped in ring.store.keys_of(user.ref).items():
                context = session_context(user.ref, place.session_ref, place.version)
                session_key = decrypt(user.wrapping, wrapped, context)
                session_keys[place] = encrypt(new.wrapping, session_key, context)
        except InvalidTag:  # another process has rotated the user's key
            continue
        wrapped = ring.master.wrap(plain, user_context(user.ref, user.epoch))
        if ring.store.swap_user(user.ref, user.wrapped, wrapped, session_keys):
            ring.forget(user_id)
            return len(session_keys)
    raise KeyUnavailable(
        "other processes keep giving that user new sessions or keys",
        remedy="try again when they are done",
    )


def status(ring: KeyRing) -> dict[str, Any]:
    """Return the number of keys by kind, and of those that should be replaced."""
    origin = "KMS"
    if isinstance(ring.master, LocalMasterKey):
        origin = ring.master.origin
    return {
        "master": origin,
        **ring.store.counts(),
        "stale": stale(ring),
        "retired": ring.surplus(),
        "generation": ring.store.generation(),
        "signing_key": ring.signer().key_id,
    }
