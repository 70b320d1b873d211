"""The schema, once for all engines: every key of user data starts with ``user_id``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a store, in one MetaData."""

    metadata: MetaData
    settings: Table
    heads: Table
    events: Table
    blobs: Table
    receipts: Table
    views: Table
    leases: Table


def _user() -> Column[str]:
    return Column("user_id", Text, nullable=False)


def _session() -> Column[str]:
    return Column("session_id", Text, nullable=False)


def _stream() -> Column[str]:
    return Column("stream", Text, nullable=False)


@cache
def build(schema: str | None, *, rowid: bool) -> Tables:
    """The tables in ``schema``; ``rowid``: ``position`` is SQLite's row number.

    Made once, for describing them takes longer than opening a file.
    """
    metadata = MetaData(schema=schema)
    return Tables(
        metadata,
        settings=Table(
            "settings",
            metadata,
            Column("name", Text, primary_key=True),
            Column("value", Text, nullable=False),
        ),
        heads=_heads(metadata),
        events=_events(metadata, rowid=rowid),
        blobs=_blobs(metadata),
        receipts=_receipts(metadata),
        views=_views(metadata),
        leases=_leases(metadata),
    )


def _heads(metadata: MetaData) -> Table:
    return Table(
        "heads",
        metadata,
        _user(),
        _session(),
        _stream(),
        Column("seq", BigInteger, nullable=False),
        Column("hash", LargeBinary, nullable=False),
        Column("status", Text, nullable=False),
        Column("state", LargeBinary, nullable=False),
        Column("key_check", LargeBinary, nullable=False),
        Column("tokens", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("user_id", "session_id", "stream"),
    )


def _events(metadata: MetaData, *, rowid: bool) -> Table:
    whole: TypeEngine[int] = Integer() if rowid else BigInteger()
    place = (
        Column("position", whole, primary_key=True, autoincrement=True)
        if rowid
        else Column("position", whole, nullable=False)
    )
    keys = ("user_id", "session_id", "stream", "seq")
    table = Table(
        "events",
        metadata,
        place,
        _user(),
        _session(),
        _stream(),
        Column("seq", BigInteger, nullable=False),
        Column("type", Text, nullable=False),
        Column("ts", BigInteger, nullable=False),
        Column("event_id", LargeBinary, nullable=False),
        Column("token_estimate", Integer, nullable=False),
        Column("schema_version", SmallInteger, nullable=False),
        Column("hash", LargeBinary, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("first_digest", LargeBinary),
        UniqueConstraint(*keys) if rowid else PrimaryKeyConstraint(*keys),
        sqlite_autoincrement=True,
    )
    if not rowid:
        Index("events_position", table.c.position)
    return table


def _blobs(metadata: MetaData) -> Table:
    return Table(
        "blobs",
        metadata,
        _user(),
        Column("address", LargeBinary, nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
        PrimaryKeyConstraint("user_id", "address"),
    )


def _receipts(metadata: MetaData) -> Table:
    return Table(
        "receipts",
        metadata,
        _user(),
        _session(),
        _stream(),
        Column("address", LargeBinary, nullable=False),
        Column("first_seq", BigInteger, nullable=False),
        Column("last_seq", BigInteger, nullable=False),
        PrimaryKeyConstraint("user_id", "session_id", "stream", "address"),
    )


def _views(metadata: MetaData) -> Table:
    return Table(
        "views",
        metadata,
        _user(),
        _session(),
        Column("name", Text, nullable=False),
        Column("through_seq", BigInteger, nullable=False),
        Column("derived_seq", BigInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("main_spans", Text, nullable=False, server_default="[]"),
        Column("derived_spans", Text, nullable=False, server_default="[]"),
        PrimaryKeyConstraint("user_id", "session_id", "name"),
    )


def _leases(metadata: MetaData) -> Table:
    return Table(
        "leases",
        metadata,
        _user(),
        _session(),
        _stream(),
        Column("owner", Text, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Column("pending", SmallInteger, nullable=False),
        PrimaryKeyConstraint("user_id", "session_id", "stream"),
    )
