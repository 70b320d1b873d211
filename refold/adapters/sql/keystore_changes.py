"""What takes keys away or replaces them, each inside one transaction.

Every one counts the key store's generation up, by which an older key store, put in
the place of this one, is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    delete,
    insert,
    literal,
    select,
    update,
)

from refold.adapters.keystore import KeyPlace
from refold.adapters.sql.keystore_tables import KeyTables

GENERATION: Final = "generation"
_USER: Final = ("", 0)


class Changes:
    """Changes of the key store over a connection that is in a transaction."""

    def __init__(self, tables: KeyTables, connection: Connection) -> None:
        self._t, self._connection = tables, connection

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        """Replace the setting if it is ``old``."""
        settings = self._t.settings
        of_name = settings.c.name == name
        changed = self._connection.execute(
            update(settings).where(of_name, settings.c.value == old).values(value=new)
        )
        return self._counted(changed.rowcount) == 1

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Put keys aside."""
        held = [
            {"user_ref": user_ref, "session_ref": place[0], "version": place[1]}
            | {"wrapped": wrapped, "created_at": now}
            for place, wrapped in self._found(user_ref, sessions)
        ]
        if held:
            self._connection.execute(insert(self._t.held), held)
        self._taken(user_ref, sessions, now)
        return self._counted(len(held))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """Put back what was put aside."""
        t, held = self._t, self._t.held
        mine = self._of(held, user_ref, sessions)
        if sessions is None:  # but for sessions that were put aside alone
            alone = select(t.erased.c.session_ref).where(
                t.erased.c.user_ref == user_ref
            )
            mine.append(held.c.session_ref.not_in(alone))
        rows = self._connection.execute(select(held).where(*mine)).mappings().all()
        for row in rows:
            key = {name: row[name] for name in ("user_ref", "session_ref", "wrapped")}
            key["created_at"] = row["created_at"]
            if (row["session_ref"], row["version"]) == _USER:
                of_user = t.users.c.user_ref == user_ref
                self._do(update(t.users).where(of_user).values(wrapped=row["wrapped"]))
            elif row["version"] == 1:
                self._do(insert(t.sessions).values(key))
            else:
                self._do(insert(t.rotated).values(key | {"version": row["version"]}))
        if sessions is not None:
            self._do(delete(t.erased).where(*self._of(t.erased, user_ref, sessions)))
        self._do(delete(held).where(*mine))
        return self._counted(len(rows))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Destroy keys, also those put aside."""
        held = self._t.held
        gone = len(list(self._found(user_ref, sessions)))
        gone += self._do(delete(held).where(*self._of(held, user_ref, sessions)))
        self._taken(user_ref, sessions, now)
        return self._counted(gone)

    def readmit(self, user_ref: str, wrapped: bytes, now: int, epoch: int) -> bool:
        """Give an erased user a new key."""
        users = self._t.users
        changed = self._do(
            update(users)
            .where(
                users.c.user_ref == user_ref,
                users.c.epoch == epoch - 1,
                users.c.wrapped.is_(None),
            )
            .values(wrapped=wrapped, epoch=epoch, created_at=now)
        )
        return self._counted(changed) == 1

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        """Replace a user's key that is put aside."""
        held = self._t.held
        mine = held.c.user_ref == user_ref, held.c.session_ref == ""
        changed = update(held).where(*mine, held.c.wrapped == old).values(wrapped=new)
        return self._counted(self._do(changed)) == 1

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None,
    ) -> bool:
        """Replace a user's key and, if given, all of its sessions' keys, or nothing."""
        users = self._t.users
        of_user = users.c.user_ref == user_ref
        query = select(users.c.wrapped).where(of_user).with_for_update()
        known = self._connection.execute(query).scalar()
        if known is None or bytes(known) != old:
            return False
        if keys is not None and set(self.keys_of(user_ref)) != set(keys):
            return False
        self._do(update(users).where(of_user).values(wrapped=new))
        self._rewrap(user_ref, keys or {})
        self._counted(1)
        return True

    def _rewrap(self, user_ref: str, keys: Mapping[KeyPlace, bytes]) -> None:
        for table, of_version in ((self._t.sessions, False), (self._t.rotated, True)):
            rows = [
                {"ref": place.session_ref, "number": place.version, "key": key}
                for place, key in keys.items()
                if (place.version > 1) == of_version
            ]
            if rows:
                self._connection.execute(_rewrapped(table, user_ref, of_version), rows)

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """The wrapped keys of all sessions of the user."""
        first, rotated = self._t.sessions, self._t.rotated
        found: dict[KeyPlace, bytes] = {}
        for table, version in ((first, literal(1)), (rotated, rotated.c.version)):
            query = select(table.c.session_ref, version, table.c.wrapped)
            rows = self._connection.execute(query.where(table.c.user_ref == user_ref))
            found |= {KeyPlace(row[0], row[1]): bytes(row[2]) for row in rows}
        return found

    def _found(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        users = self._t.users
        if sessions is None:
            query = select(users.c.wrapped).where(users.c.user_ref == user_ref)
            wrapped = self._connection.execute(query.with_for_update()).scalar()
            if wrapped is not None:
                yield _USER, bytes(wrapped)
        wanted = None if sessions is None else set(sessions)
        for place, key in self.keys_of(user_ref).items():
            if wanted is None or place.session_ref in wanted:
                yield place, key

    def _taken(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> None:
        """Take the keys out, and leave the hash of whose they were."""
        t = self._t
        for table in (t.sessions, t.rotated):
            self._do(delete(table).where(*self._of(table, user_ref, sessions)))
        if sessions is not None:
            query = select(t.erased.c.session_ref).where(
                t.erased.c.user_ref == user_ref
            )
            known = set(self._connection.execute(query).scalars())
            for ref in sorted(set(sessions) - known):
                row = {"user_ref": user_ref, "session_ref": ref, "erased_at": now}
                self._do(insert(t.erased).values(row))
            return
        of_user = t.users.c.user_ref == user_ref
        row = {"user_ref": user_ref, "epoch": 1, "wrapped": None, "created_at": now}
        if not self._do(update(t.users).where(of_user).values(wrapped=None)):
            self._do(insert(t.users).values(row))

    def _of(
        self, table: Table, user_ref: str, sessions: Sequence[str] | None
    ) -> list[Any]:
        mine: list[Any] = [table.c.user_ref == user_ref]
        if sessions is not None:
            mine.append(table.c.session_ref.in_(list(sessions)))
        return mine

    def reach(self, generation: int) -> None:
        """Raise the generation to this, if it is lower."""
        self._raise(lambda known: max(known, generation))

    def _counted(self, changed: int) -> int:
        """Count the generation up if anything was changed; gives ``changed``."""
        if changed:
            self._raise(lambda known: known + 1)
        return changed

    def _raise(self, raised: Callable[[int], int]) -> None:
        settings = self._t.settings
        of_name = settings.c.name == GENERATION
        query = select(settings.c.value).where(of_name).with_for_update()
        known = self._connection.execute(query).scalar()
        value = b"%d" % raised(int(known or b"0"))
        if known is None:
            self._do(insert(settings).values(name=GENERATION, value=value))
        else:
            self._do(update(settings).where(of_name).values(value=value))

    def _do(self, statement: Any) -> int:
        return int(self._connection.execute(statement).rowcount)


def _rewrapped(table: Table, user_ref: str, of_version: bool) -> Any:
    statement = update(table).where(
        table.c.user_ref == user_ref, table.c.session_ref == bindparam("ref")
    )
    if of_version:
        statement = statement.where(table.c.version == bindparam("number"))
    return statement.values(wrapped=bindparam("key"))
