"""Rotation: another master key, another key of a user; what they wrap stays.

Everything is a compare-and-set of one wrapped key against the one that was read, so
that others read and write meanwhile, and a call that was cut off is done again.
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
    seal,
    session_context,
    unseal,
    user_context,
)
from refold.adapters.keys.signatures import CONTEXT, SETTING
from refold.adapters.keys.store import PEPPER, UserEntry
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import KeyUnavailable

_TRIES: Final = 5


def rotate_master(ring: KeyRing) -> int:
    """Wrap all that the newest master key did not wrap; returns how much.

    The pepper comes first: where it was read before that, no user is added any more.
    """
    store, done = ring.store, 0
    for name, wrapped, context in _settings(ring):
        done += store.swap_setting(name, wrapped, _again(ring, wrapped, context))
    found = True
    while found:
        found = False
        for users, swap in (
            (users_of(store), store.swap_user),
            (iter(store.held_users()), store.swap_held),
        ):
            for ref, wrapped, context in _stale(ring, users):
                if swap(ref, wrapped, _again(ring, wrapped, context)):
                    found, done = True, done + 1
    ring.reopen()
    return done


def stale(ring: KeyRing) -> int:
    """How much is wrapped by an older master key than the newest."""
    users = chain(users_of(ring.store), ring.store.held_users())
    return len([*_settings(ring), *_stale(ring, users)])


def _settings(ring: KeyRing) -> Iterator[tuple[str, bytes, bytes]]:
    """Name, wrapped value and context of those that are under an older key."""
    for name, context in ((PEPPER, PEPPER_CONTEXT), (SETTING, CONTEXT)):
        wrapped = ring.store.get_setting(name)
        if wrapped is not None and ring.master.stale(wrapped, context):
            yield name, wrapped, context


def _stale(
    ring: KeyRing, users: Iterable[tuple[str, UserEntry]]
) -> Iterator[tuple[str, bytes, bytes]]:
    """Hash, wrapped key and context of those that are under an older key."""
    for ref, entry in users:
        context = user_context(ref, entry.epoch)
        if entry.wrapped is not None and ring.master.stale(entry.wrapped, context):
            yield ref, entry.wrapped, context


def _again(ring: KeyRing, wrapped: bytes, context: bytes) -> bytes:
    return ring.master.wrap(ring.master.unwrap(wrapped, context), context)


def users_of(store: SqlKeyStore) -> Iterator[tuple[str, UserEntry]]:
    """All users of a key store, read in pages."""
    after = ""
    while page := store.users(after):
        yield from page
        after = page[-1][0]


def rotate_user(ring: KeyRing, user_id: str) -> int:
    """Give a user another key to wrap the keys of sessions with.

    What names are made of stays: receipts and blobs are found by them.
    """
    for _ in range(_TRIES):
        ring.forget(user_id)
        user, secret = ring.user(user_id, now=None), os.urandom(SIZE)
        entry = UserEntry(user.epoch, None)
        new = UserKey.of(user.ref, user.key + secret, entry)
        keys = {}
        try:
            for place, wrapped in ring.store.keys_of(user.ref).items():
                context = session_context(user.ref, place.session_ref, place.version)
                plain = unseal(user.wrapping, wrapped, context)
                keys[place] = seal(new.wrapping, plain, context)
        except InvalidTag:  # another rotation of the user's key was first
            continue
        context = user_context(user.ref, user.epoch)
        wrapped = ring.master.wrap(user.key + secret, context)
        if ring.store.swap_user(user.ref, user.wrapped, wrapped, keys):
            ring.forget(user_id)
            return len(keys)
    raise KeyUnavailable(
        "other processes keep giving that user new sessions or keys",
        remedy="try again when they are done",
    )


def status(ring: KeyRing) -> dict[str, Any]:
    """How many keys there are, of which kind, and how many should be replaced."""
    origin = ring.master.origin if isinstance(ring.master, LocalMasterKey) else "KMS"
    return {
        "master": origin,
        **ring.store.counts(),
        "stale": stale(ring),
        "retired": ring.surplus(),
        "generation": ring.store.generation(),
        "signing_key": ring.signer().key_id,
    }
