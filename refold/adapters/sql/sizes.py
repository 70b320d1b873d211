"""Figures of a store, of a user in it, or of one session: sizes, rates and lag."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select, tuple_

from refold.adapters.sql.tables import Tables, of_stream, within
from refold.domain.events import JsonObject
from refold.domain.ids import MAIN
from refold.domain.ports import BESIDE, RATES, Place, Scope

_LAG: Final = ("fingerprint", "views", "behind", "events", "most")


class Sizes:
    """Figures of a store, of a user in it, or of one session."""

    def __init__(self, tables: Tables, scope: Scope) -> None:
        self._t, self._scope = tables, scope

    def read(self, connection: Connection, *, now: int) -> dict[str, Any]:
        """The figures; ``now`` in microseconds since 1970 is where the rates end."""
        lag = [
            dict(zip(_LAG, map(_plain, row), strict=True))
            for row in connection.execute(self._lag())
        ]
        views, blobs = self._t.views, self._t.blobs
        beside = self._counted(connection, "view", views, func.length(views.c.body))
        # Whose session a blob is of only its key can tell.
        if self._scope.session_id is None:
            beside |= self._counted(connection, "blob", blobs, blobs.c.size)
        return {
            **_one(connection, self._sessions(now)),
            **_one(connection, self._events(now)),
            **beside,
            "lag": lag,
        }

    def lagging(self, *, by: int, limit: int, after: Place | None) -> Select[Any]:
        """Stored views that are behind their heads by so many events, in order."""
        views = self._t.views.c
        place = (views.user_id, views.session_id, views.name)
        query, behind = self._behind(*place)
        query = query.add_columns(behind).where(behind >= by)
        if after is not None:
            query = query.where(tuple_(*place) > tuple_(*after))
        return query.order_by(*place).limit(limit)

    def _sessions(self, now: int) -> Select[Any]:
        heads = self._t.heads.c
        main = heads.stream == MAIN
        columns = [
            func.count(heads.user_id.distinct()).label("users"),
            func.count().filter(main).label("sessions"),
            func.count().filter(~main).label("derived_streams"),
            func.coalesce(func.sum(heads.tokens).filter(main), 0).label("tokens"),
        ]
        for name, span in RATES.items():
            recent = func.count().filter(main, heads.updated_at > now - span)
            columns.append(recent.label(f"sessions_{name}"))
        return select(*columns).where(*within(self._t.heads, self._scope))

    def _events(self, now: int) -> Select[Any]:
        events = self._t.events.c
        size = func.sum(func.length(events.body))
        columns = [
            func.count().label("events"),
            func.coalesce(size, 0).label("event_bytes"),
        ]
        for name, span in RATES.items():
            recent = events.ts > now - span
            columns.append(func.count().filter(recent).label(f"events_{name}"))
            recent_size = func.coalesce(size.filter(recent), 0)
            columns.append(recent_size.label(f"event_bytes_{name}"))
        return select(*columns).where(*within(self._t.events, self._scope))

    def _counted(
        self, connection: Connection, what: str, table: Table, size: Any
    ) -> dict[str, Any]:
        total = func.coalesce(func.sum(size), 0).label(f"{what}_bytes")
        query = select(func.count().label(f"{what}s"), total).select_from(table)
        return _one(connection, query.where(*within(table, self._scope)))

    def _lag(self) -> Select[Any]:
        name = self._t.views.c.name
        query, behind = self._behind(name)
        figures = (
            func.count(),
            func.count().filter(behind > 0),
            func.sum(behind),
            func.max(behind),
        )
        return query.add_columns(*figures).group_by(name).order_by(name)

    def _behind(self, *columns: Any) -> tuple[Select[Any], ColumnElement[int]]:
        views, main = self._t.views, self._t.heads.alias("m")
        derived = self._t.heads.alias("d")
        named = views.c.user_id, views.c.session_id
        behind = main.c.seq - views.c.through_seq
        behind += func.coalesce(derived.c.seq, 0) - views.c.derived_seq
        joined = views.join(main, of_stream(main, (*named, MAIN))).outerjoin(
            derived, of_stream(derived, (*named, views.c.name))
        )
        query = select(*columns).select_from(joined)
        query = query.where(*within(views, self._scope), main.c.status != "erased")
        return query.where(~views.c.name.contains(BESIDE)), behind


def _one(connection: Connection, query: Any) -> JsonObject:
    row = connection.execute(query).mappings().one()
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)  # a sum may be a Decimal
