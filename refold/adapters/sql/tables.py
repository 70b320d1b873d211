"""The schema, once for all engines: every key of user data starts with ``user_id``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

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

SCHEMA: Final = "refold"  # where the tables are on PostgreSQL
STREAM: Final = "user_id=? AND session_id=? AND stream=?"


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
    subjects: Table
    erasures: Table
    certificates: Table
    holds: Table
    leaves: Table
    seals: Table
    tree_heads: Table
    audit: Table
    accesses: Table


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
        subjects=_subjects(metadata),
        erasures=_erasures(metadata),
        certificates=_certificates(metadata),
        holds=_holds(metadata),
        leaves=_leaves(metadata),
        seals=_seals(metadata),
        tree_heads=_tree_heads(metadata),
        audit=_audit(metadata),
        accesses=_accesses(metadata),
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
        Column("before", Text),
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
        Column("session_id", Text),
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


def _subjects(metadata: MetaData) -> Table:
    """Users, and sessions that were erased: keyed hashes, which outlive the names."""
    return Table(
        "subjects",
        metadata,
        Column("ref", Text, primary_key=True),
        Column("user_ref", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("epoch", Integer, nullable=False),
    )


def _erasures(metadata: MetaData) -> Table:
    """What is being erased: the only place besides its rows where a user's id is."""
    return Table(
        "erasures",
        metadata,
        Column("job_id", Text, primary_key=True),
        Column("user_ref", Text, nullable=False),
        Column("stage", Text, nullable=False),
        Column("due_at", BigInteger),
        Column("body", Text, nullable=False),
    )


def _certificates(metadata: MetaData) -> Table:
    return Table(
        "certificates",
        metadata,
        Column("certificate_id", Text, primary_key=True),
        Column("user_ref", Text, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("body", Text, nullable=False),
    )


def _holds(metadata: MetaData) -> Table:
    return Table(
        "holds",
        metadata,
        Column("user_ref", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("reason", Text, nullable=False),
        Column("created_at", BigInteger, nullable=False),
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


def _accesses(metadata: MetaData) -> Table:
    """How often sessions were read by name; written in batches, late."""
    return Table(
        "accesses",
        metadata,
        _user(),
        _session(),
        Column("reads", BigInteger, nullable=False),
        Column("last_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("user_id", "session_id"),
    )


def _leaves(metadata: MetaData) -> Table:
    """The leaves of the tree; they hold no name, and outlive who they were of."""
    table = Table(
        "leaves",
        metadata,
        Column("leaf", BigInteger, primary_key=True, autoincrement=False),
        Column("hash", LargeBinary, nullable=False),
        Column("erasure", Text),
    )
    Index("leaves_erasure", table.c.erasure)
    return table


def _seals(metadata: MetaData) -> Table:
    """Which leaf is of which stream, as long as the stream is there."""
    return Table(
        "seals",
        metadata,
        _user(),
        _session(),
        _stream(),
        Column("seq", BigInteger, nullable=False),
        Column("leaf", BigInteger, nullable=False),
        Column("positions", LargeBinary, nullable=False),
        Column("receipts", LargeBinary, nullable=False),
        PrimaryKeyConstraint("user_id", "session_id", "stream", "seq"),
    )


def _tree_heads(metadata: MetaData) -> Table:
    return Table(
        "tree_heads",
        metadata,
        Column("size", BigInteger, primary_key=True, autoincrement=False),
        Column("root", LargeBinary, nullable=False),
        Column("sealed_at", BigInteger, nullable=False),
        Column("key_id", Text, nullable=False),
        Column("signature", LargeBinary, nullable=False),
        Column("peaks", LargeBinary, nullable=False),
        Column("position", BigInteger, nullable=False),
    )


def _audit(metadata: MetaData) -> Table:
    """What was done with the store; users are keyed hashes, that die with their key."""
    table = Table(
        "audit",
        metadata,
        Column("record_id", LargeBinary, primary_key=True),
        Column("ts", BigInteger, nullable=False),
        Column("event", Text, nullable=False),
        Column("user_hash", Text),
        Column("session_hash", Text),
        Column("request_hash", Text),
        Column("state_version", BigInteger),
        Column("event_type", Text),
        Column("duration_us", BigInteger, nullable=False),
        Column("status", Text, nullable=False),
        Column("error_code", Text),
        Column("meta", Text, nullable=False),
    )
    Index("audit_user", table.c.user_hash, table.c.record_id)
    return table
