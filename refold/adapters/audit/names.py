"""Whose an audit record is: keyed hashes, made with a key that goes with its user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from refold.adapters.keys import KeyRing, UserKey
from refold.domain.audit import Access, AuditRows
from refold.domain.erasure import Whose
from refold.domain.errors import Erased, KeyUnavailable
from refold.domain.events import JsonObject

_PURPOSE: Final = "audit"
_SIZE: Final = 16  # bytes: two of a billion users have one hash with a chance of 1e-21


class Names(NamedTuple):
    """The hashes of a user, of a session and of a request; None: nobody is named."""

    user: str | None = None
    session: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class AuditNames:
    """Makes the hashes.

    Only with the user's own key, never with one that outlives it: who is unknown, was
    erased, or has no key yet is not named at all.
    """

    keys: KeyRing

    def remembering(self) -> Callable[[Access], Names]:
        """What names the accesses of one batch, each user and session hashed once."""
        known: dict[tuple[str, str | None], Names] = {}

        def named(access: Access) -> Names:
            user_id, session_id = access.user_id, access.session_id
            # A key that is still in memory here must not name who was erased.
            if user_id is None or access.error == "Erased":
                return Names()
            names = known.get((user_id, session_id))
            if names is None:
                names = self._of(user_id, session_id)
                known[user_id, session_id] = names
            if access.request_id is None or names.user is None:
                return names
            key = self.keys.user(user_id, now=None)
            request = _hash(key, b"request", access.request_id)
            return names._replace(request=request)

        return named

    def _of(self, user_id: str, session_id: str | None) -> Names:
        try:
            key = self.keys.user(user_id, now=None)
        except Exception:  # a record that names nobody is better than none
            return Names()
        named = None if session_id is None else session_hash(key, session_id)
        return Names(user_hash(key), named)

    def asked(self, user_id: str, session_id: str | None) -> Names:
        """What to look for; nothing if there is no such user.

        Raises Erased, KeyUnavailable if the user's key does not open.
        """
        self.keys.forget(user_id)
        entry = self.keys.store.get_user(self.keys.user_ref(user_id))
        if entry is None:
            return Names()
        if entry.wrapped is None:
            raise Erased("the user")
        key = self.keys.user(user_id, now=None)
        named = None if session_id is None else session_hash(key, session_id)
        return Names(user_hash(key), named)


def to_forget(keys: KeyRing, whose: Whose) -> JsonObject:
    """What names an erased user in records; kept until they are forgotten.

    It has to be made before the key is destroyed.
    """
    try:
        key = keys.user(whose.user_id, now=None)
    except (Erased, KeyUnavailable):
        return {}
    sessions = whose.sessions
    if sessions is None:
        return {"user": user_hash(key), "sessions": None}
    named: Any = [session_hash(key, name) for name in sessions]
    return {"user": user_hash(key), "sessions": named}


def forget(rows: AuditRows, named: Any) -> None:
    """Take out of the records what ``to_forget`` named."""
    if named:
        rows.forget(named["user"], named["sessions"])


def user_hash(key: UserKey) -> str:
    """What a user is known by."""
    return _hash(key, b"user", "")


def session_hash(key: UserKey, session_id: str) -> str:
    """What a session is known by; another user's of that name has another."""
    return _hash(key, b"session", session_id)


def _hash(key: UserKey, kind: bytes, name: str) -> str:
    return key.mac(_PURPOSE, kind, name.encode("utf-8", "surrogatepass"))[:_SIZE].hex()
