"""The schema, once for all engines: every key of user data starts with ``user_id``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from refold.domain.canonical import shipped
from refold.domain.ports import Scope

SCHEMA: Final = "refold"  # where the tables are on PostgreSQL
# What is left in ``settings``; ``rewriting`` is there within a transaction alone.
FLOOR: Final = "floor"  # of SQLite: the highest position of a deleted row
CLOCK: Final = "clock"  # of SQLite: the time as it was known at one tick
SETTINGS: Final = frozenset(
    {"schema_version", "store_id", "key_generation", FLOOR, CLOCK}
)
FIRST: Final = ("", "", "")  # comes before all streams, and all stored views
LAST: Final = 2**63 - 1  # no seq or number of a leaf is higher
_HOLE: Final = re.compile(r"\{(\w+)\}")


@cache
def statements(file: str) -> dict[str, str]:
    """The statements of ``file.sql``, by what ``-- name:`` calls each.

    ``{name}`` in one is another before it, else a hole that is filled where it is used.
    """
    text = (
        files("refold.adapters.sql").joinpath("data", f"{file}.sql").read_text("utf-8")
    )
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        name, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        whole = "\n".join(lines).strip()
        found[name] = filled(whole, **found)
    return found


def filled(query: str, **holes: str) -> str:
    """The query with what is given in its holes; others stay."""
    return _HOLE.sub(lambda hole: holes.get(hole[1], hole[0]), query)


def guards(file: str) -> tuple[str, ...]:
    """The statements of ``file.sql`` that keep events as they are, in order."""
    found = statements(file).items()
    return tuple(said for name, said in found if name.startswith("guard_"))


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a store, in one MetaData."""

    metadata: sa.MetaData
    settings: sa.Table
    heads: sa.Table
    events: sa.Table
    blobs: sa.Table
    receipts: sa.Table
    views: sa.Table
    leases: sa.Table
    subjects: sa.Table
    erasures: sa.Table
    certificates: sa.Table
    holds: sa.Table
    leaves: sa.Table
    seals: sa.Table
    tree_heads: sa.Table
    audit: sa.Table
    accesses: sa.Table
    exports: sa.Table
    labels: sa.Table


_STREAM: Final = "user_id session_id stream"
_EVENTS: Final = (
    "seq:big type:text ts:big event_id:bytes token_estimate:int schema_version:small "
    "hash:bytes body:bytes first_digest:bytes?"
)
_TYPES: Final[dict[str, type[TypeEngine[Any]]]] = {
    "": sa.Text,
    "text": sa.Text,
    "int": sa.Integer,
    "small": sa.SmallInteger,
    "big": sa.BigInteger,
    "bytes": sa.LargeBinary,
    "uuid": sa.Uuid,
}


@cache
def build(schema: str | None, *, rowid: bool) -> Tables:
    """The tables in ``schema``; ``rowid``: ``position`` is SQLite's row number.

    Made once, for describing them takes longer than opening a file.
    """
    metadata = sa.MetaData(schema=schema)
    made = {
        name: described(metadata, name, of["key"], of["rest"])
        for name, of in shipped("refold.adapters.sql", "data", "tables.toml").items()
    }
    sa.Index("leaves_erasure", made["leaves"].c.erasure)
    sa.Index("labels_address", made["labels"].c.user_id, made["labels"].c.address)
    sa.Index("audit_user", made["audit"].c.user_hash, made["audit"].c.record_id)
    return Tables(metadata, events=_events(metadata, rowid=rowid), **made)


def stream_of(table: Any) -> tuple[Any, ...]:
    """The columns that name the stream of a row."""
    return tuple(table.c[name] for name in _STREAM.split())


def of_stream(table: Any, stream: Iterable[Any]) -> Any:
    """The condition: the row is of this stream, or of that in another's columns."""
    pairs = zip(stream_of(table), stream, strict=True)
    return sa.and_(*(column == name for column, name in pairs))


def within(table: Any, scope: Scope) -> list[Any]:
    """The conditions that keep a query to the scope."""
    named = scope._asdict().items()
    return [table.c[name] == value for name, value in named if value is not None]


def described(
    metadata: sa.MetaData, name: str, key: str, rest: str, **options: Any
) -> sa.Table:
    """The table of these columns, described as those above."""
    ids = sa.PrimaryKeyConstraint(*(one.partition(":")[0] for one in key.split()))
    columns = (*_columns(key), *_columns(rest))
    return sa.Table(name, metadata, *columns, ids, **options)


def _columns(said: str) -> Iterator[sa.Column[Any]]:
    for one in said.split():
        column, _, default = one.partition("=")
        name, _, kind = column.partition(":")
        yield sa.Column(
            name,
            _TYPES[kind.rstrip("?")],
            nullable=kind.endswith("?"),
            autoincrement=False,
            server_default=default or None,
        )


def _events(metadata: sa.MetaData, *, rowid: bool) -> sa.Table:
    place: sa.Column[int] = (
        sa.Column("position", sa.Integer, primary_key=True)
        if rowid
        else sa.Column("position", sa.BigInteger, nullable=False)
    )
    keys = (*_STREAM.split(), "seq")
    table = sa.Table(
        "events",
        metadata,
        place,
        *_columns(f"{_STREAM} {_EVENTS}"),
        sa.UniqueConstraint(*keys) if rowid else sa.PrimaryKeyConstraint(*keys),
    )
    if not rowid:
        sa.Index("events_position", table.c.position)
    return table


@cache
def refusals(engine: str) -> dict[str, tuple[str, str]]:
    """The reason and the remedy for each refusal of an engine, by its sign."""
    reasons: dict[str, tuple[str, str]]
    reasons = shipped("refold.adapters.sql", "data", "refusals.toml")[engine]
    return reasons
