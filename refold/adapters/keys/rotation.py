"""Rotation: another master key, another key of a user; what they wrap stays.

Everything is a compare-and-set of one wrapped key against the one that was read, so
that others read and write meanwhile, and a call that was cut off is done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from refold.adapters.keys.master import SIZE, LocalMasterKey
from refold.adapters.keys.ring import (
    PEPPER,
    PEPPER_CONTEXT,
    KeyRing,
    UserKey,
    seal,
    session_context,
    unseal,
    user_context,
)
from refold.adapters.keys.signatures import CONTEXT, SETTING, key_id
from refold.adapters.keys.store import KeyStore, UserEntry
from refold.domain.errors import KeyUnavailable

_TRIES: Final = 5


def rotate_master(ring: KeyRing) -> int:
    """Wrap all that the newest master key did not wrap; returns how much.

    The pepper comes first: where it was read before that, no user is added any more.
    """
    done = _settings(ring)
    while found := sum(_rewrapped(ring)):
        done += found
    ring.reopen()
    return done


def stale(ring: KeyRing) -> int:
    """How much is wrapped by an older master key than the newest."""
    found = 0
    for name, context in ((PEPPER, PEPPER_CONTEXT), (SETTING, CONTEXT)):
        wrapped = ring.store.get_setting(name)
        found += wrapped is not None and ring.master.stale(wrapped, context)
    users = [*users_of(ring.store), *ring.store.held_users()]
    return found + sum(_is_stale(ring, ref, entry) for ref, entry in users)


def _settings(ring: KeyRing) -> int:
    done = 0
    for name, context in ((PEPPER, PEPPER_CONTEXT), (SETTING, CONTEXT)):
        wrapped = ring.store.get_setting(name)
        if wrapped is not None and ring.master.stale(wrapped, context):
            again = ring.master.wrap(ring.master.unwrap(wrapped, context), context)
            done += ring.store.swap_setting(name, wrapped, again)
    return done


def _rewrapped(ring: KeyRing) -> Iterator[bool]:
    yield from _each(ring, users_of(ring.store), ring.store.swap_user)
    yield from _each(ring, iter(ring.store.held_users()), ring.store.swap_held)


def _each(
    ring: KeyRing,
    users: Iterator[tuple[str, UserEntry]],
    swap: Callable[[str, bytes, bytes], bool],
) -> Iterator[bool]:
    for ref, entry in users:
        if entry.wrapped is not None and _is_stale(ring, ref, entry):
            context = user_context(ref, entry.epoch)
            plain = ring.master.unwrap(entry.wrapped, context)
            yield swap(ref, entry.wrapped, ring.master.wrap(plain, context))


def _is_stale(ring: KeyRing, ref: str, entry: UserEntry) -> bool:
    context = user_context(ref, entry.epoch)
    return entry.wrapped is not None and ring.master.stale(entry.wrapped, context)


def users_of(store: KeyStore) -> Iterator[tuple[str, UserEntry]]:
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
        "others give that user new sessions or keys all the time",
        remedy="try again when they are done",
    )


def status(ring: KeyRing) -> dict[str, Any]:
    """How many keys there are, of which kind, and how many should be replaced."""
    counts = ring.store.counts()
    origin = ring.master.origin if isinstance(ring.master, LocalMasterKey) else "KMS"
    signer = ring.signer()
    return {
        "master": origin,
        **counts,
        "stale": stale(ring),
        "retired": ring.surplus(),
        "generation": ring.store.generation(),
        "signing_key": key_id(signer.public_key),
    }
