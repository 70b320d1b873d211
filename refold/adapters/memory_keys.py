"""A key store in memory, for tests: the same promises but durability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock

from refold.adapters.keys import PEPPER
from refold.adapters.keystore import KeyPlace, UserEntry
from refold.domain.errors import Erased

_USER = KeyPlace("", 0)


class MemoryKeyStore:
    """Wrapped keys in dictionaries."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._kept: dict[tuple[str, ...], bytes] = {}
        self._sessions: dict[tuple[str, str], dict[int, bytes]] = {}
        self._epochs: dict[str, int] = {}
        self._erased: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, KeyPlace], bytes] = {}
        self._generation = 0

    def get_setting(self, name: str) -> bytes | None:
        return self._kept.get(("setting", name))

    def add_setting(self, name: str, value: bytes) -> bytes:
        return self._kept.setdefault(("setting", name), value)

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            if self._kept.get(("setting", name)) != old:
                return False
            self._kept["setting", name] = new
            self._generation += 1
            return True

    def generation(self) -> int:
        return self._generation

    def reach(self, generation: int) -> None:
        self._generation = max(self._generation, generation)

    def get_user(self, user_ref: str) -> UserEntry | None:
        wrapped = self._kept.get(("user", user_ref))
        if wrapped is None and user_ref not in self._epochs:
            return None
        return UserEntry(self._epochs.get(user_ref, 1), wrapped)

    def add_user(
        self,
        user_ref: str,
        wrapped: bytes,
        now: int,  # noqa: ARG002  # the port's
        *,
        pepper: bytes,
    ) -> UserEntry | None:
        with self._lock:
            if self.get_setting(PEPPER) != pepper:
                return None
            if user_ref not in self._epochs:
                self._kept.setdefault(("user", user_ref), wrapped)
            return self.get_user(user_ref)

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        if (user_ref, session_ref) in self._erased:
            raise Erased("the session")
        return dict(self._sessions.get((user_ref, session_ref), {}))

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,  # noqa: ARG002  # the port's
        *,
        under: bytes,
        version: int = 1,
    ) -> bytes | None:
        with self._lock:
            if self._kept.get(("user", user_ref)) != under:
                return None
            if (user_ref, session_ref) in self._erased:
                raise Erased("the session")
            keys = self._sessions.setdefault((user_ref, session_ref), {})
            return keys.setdefault(version, wrapped)

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        return sum(
            len(keys) - 1
            for (user, session), keys in self._sessions.items()
            if keys and user_ref in (None, user) and session_ref in (None, session)
        )

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        keys = self._sessions.get((user_ref, session_ref), {})
        old = [version for version in keys if version < before]
        for version in old:
            del keys[version]
        return len(old)

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:  # noqa: ARG002  # the port's
        with self._lock:
            taken = self._taken(user_ref, sessions)
            self._held |= {(user_ref, place): key for place, key in taken.items()}
            return self._counted(len(taken))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        with self._lock:
            places = self._put_aside(user_ref, sessions)
            for place in places:
                key = self._held.pop((user_ref, place))
                if place == _USER:
                    self._kept["user", user_ref] = key
                else:
                    whose = self._sessions.setdefault((user_ref, place.session_ref), {})
                    whose[place.version] = key
            self._erased -= {(user_ref, ref) for ref in sessions or ()}
            return self._counted(len(places))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:  # noqa: ARG002  # the port's
        with self._lock:
            held = [
                place
                for user, place in self._held
                if user == user_ref
                and (sessions is None or place.session_ref in sessions)
            ]
            for place in held:
                del self._held[user_ref, place]
            taken = self._taken(user_ref, sessions)
            return self._counted(len(held) + len(taken))

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:  # noqa: ARG002  # the port's
        with self._lock:
            entry = self.get_user(user_ref)
            if entry is None or entry.wrapped is not None or entry.epoch != epoch - 1:
                return False
            self._kept["user", user_ref] = wrapped
            self._epochs[user_ref] = epoch
            return self._counted(1) == 1

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        refs = {ref for kind, ref in self._kept if kind == "user"} | set(self._epochs)
        found = [(ref, self.get_user(ref)) for ref in sorted(refs) if ref > after]
        return [(ref, entry) for ref, entry in found if entry is not None][:limit]

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        return {
            KeyPlace(session_ref, version): key
            for (user, session_ref), keys in list(self._sessions.items())
            for version, key in keys.items()
            if user == user_ref
        }

    def held_users(self) -> list[tuple[str, UserEntry]]:
        held = [(ref, key) for (ref, at), key in self._held.items() if at == _USER]
        return [(ref, UserEntry(self._epochs.get(ref, 1), key)) for ref, key in held]

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            if self._held.get((user_ref, _USER)) != old:
                return False
            self._held[user_ref, _USER] = new
            return self._counted(1) == 1

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        with self._lock:
            if self._kept.get(("user", user_ref)) != old:
                return False
            if keys is not None and set(self.keys_of(user_ref)) != set(keys):
                return False
            self._kept["user", user_ref] = new
            for place, key in (keys or {}).items():
                self._sessions[user_ref, place.session_ref][place.version] = key
            return self._counted(1) == 1

    def counts(self) -> dict[str, int]:
        entries = [entry for _, entry in self.users(limit=1 << 60)]
        live = sum(entry.wrapped is not None for entry in entries)
        versions = [v for keys in self._sessions.values() for v in keys]
        return {
            "users": live,
            "erased_users": len(entries) - live,
            "sessions": sum(version == 1 for version in versions),
            "rotated": sum(version > 1 for version in versions),
            "erased_sessions": len(self._erased),
            "held": len(self._held),
        }

    def close(self) -> None:
        pass

    def _taken(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> dict[KeyPlace, bytes]:
        """Take the keys out, and leave the hash of whose they were."""
        taken = {
            place: key
            for place, key in self.keys_of(user_ref).items()
            if sessions is None or place.session_ref in sessions
        }
        for place in taken:
            self._sessions.pop((user_ref, place.session_ref), None)
        if sessions is not None:
            self._erased |= {(user_ref, ref) for ref in sessions}
            return taken
        self._epochs.setdefault(user_ref, 1)
        if key := self._kept.pop(("user", user_ref), None):
            taken[_USER] = key
        return taken

    def _put_aside(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> list[KeyPlace]:
        return [
            place
            for user, place in self._held
            if user == user_ref
            and (
                (user, place.session_ref) not in self._erased
                if sessions is None
                else place.session_ref in sessions
            )
        ]

    def _counted(self, changed: int) -> int:
        self._generation += bool(changed)
        return changed
