"""The tables of a store, the same for all engines.

Every key of user data starts with ``user_id``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from refold.domain.ports import Scope


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


@cache
def build(schema: str | None, *, rowid: bool) -> Tables:
    """Describe the tables in ``schema``.

    rowid: whether the ``position`` of an event is SQLite's row number.

    The result is cached, because describing the tables takes longer than opening a
    file.
    """
    metadata = sa.MetaData(schema=schema)
    return Tables(
        metadata=metadata,
        settings=_settings(metadata),
        heads=_heads(metadata),
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
        exports=_exports(metadata),
        labels=_labels(metadata),
        # Last: a move locks the tables in this order.
        events=_events(metadata, rowid=rowid),
    )


def _settings(metadata: sa.MetaData) -> sa.Table:
    """Facts about the store itself, such as its id and its schema version."""
    return sa.Table(
        "settings",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _heads(metadata: sa.MetaData) -> sa.Table:
    """The last event, the status and the folded state of each stream."""
    return sa.Table(
        "heads",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.Column("key_check", sa.LargeBinary, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("before", sa.Text),
    )


def _events(metadata: sa.MetaData, *, rowid: bool) -> sa.Table:
    """All events, in the order of their ``position`` in the whole log."""
    columns: list[sa.Column[Any]] = [
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("stream", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("ts", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.LargeBinary, nullable=False),
        sa.Column("token_estimate", sa.Integer, nullable=False),
        sa.Column("schema_version", sa.SmallInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("first_digest", sa.LargeBinary),
    ]
    if rowid:
        return sa.Table(
            "events",
            metadata,
            sa.Column("position", sa.Integer, primary_key=True),
            *columns,
            sa.UniqueConstraint("user_id", "session_id", "stream", "seq"),
        )
    return sa.Table(
        "events",
        metadata,
        sa.Column("position", sa.BigInteger, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("user_id", "session_id", "stream", "seq"),
        sa.Index("events_position", "position"),
    )


def _blobs(metadata: sa.MetaData) -> sa.Table:
    """Texts that are too long for their event, encrypted."""
    return sa.Table(
        "blobs",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("address", sa.LargeBinary, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("session_id", sa.Text),
    )


def _receipts(metadata: sa.MetaData) -> sa.Table:
    """Idempotency keys of appends: a repeated append writes nothing."""
    return sa.Table(
        "receipts",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("address", sa.LargeBinary, primary_key=True),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
    )


def _views(metadata: sa.MetaData) -> sa.Table:
    """States of projections, which can be folded again at any time."""
    return sa.Table(
        "views",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("through_seq", sa.BigInteger, nullable=False),
        sa.Column("derived_seq", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("main_spans", sa.Text, nullable=False, server_default="[]"),
        sa.Column("derived_spans", sa.Text, nullable=False, server_default="[]"),
    )


def _leases(metadata: sa.MetaData) -> sa.Table:
    """The owner of each piece of work, now or last.

    Leases that were taken before the column ``period`` existed have 0: they are free.
    """
    return sa.Table(
        "leases",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("pending", sa.SmallInteger, nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False, server_default="0"),
    )


def _subjects(metadata: sa.MetaData) -> sa.Table:
    """Users, and erased sessions, by keyed hashes that outlive the names."""
    return sa.Table(
        "subjects",
        metadata,
        sa.Column("ref", sa.Text, primary_key=True),
        sa.Column("user_ref", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
    )


def _erasures(metadata: sa.MetaData) -> sa.Table:
    """Erasures in progress: the only place besides a user's rows with the user's id."""
    return sa.Table(
        "erasures",
        metadata,
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("user_ref", sa.Text, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("due_at", sa.BigInteger),
        sa.Column("body", sa.Text, nullable=False),
    )


def _certificates(metadata: sa.MetaData) -> sa.Table:
    """The certificate of each finished erasure."""
    return sa.Table(
        "certificates",
        metadata,
        sa.Column("certificate_id", sa.Text, primary_key=True),
        sa.Column("user_ref", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )


def _holds(metadata: sa.MetaData) -> sa.Table:
    """Legal holds: reasons that forbid the erasure of a user."""
    return sa.Table(
        "holds",
        metadata,
        sa.Column("user_ref", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )


def _leaves(metadata: sa.MetaData) -> sa.Table:
    """The leaves of the hash tree.  They hold no name and outlive their streams."""
    return sa.Table(
        "leaves",
        metadata,
        sa.Column("leaf", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("erasure", sa.Text),
        sa.Index("leaves_erasure", "erasure"),
    )


def _seals(metadata: sa.MetaData) -> sa.Table:
    """The stream and the seq that a leaf seals, while the stream exists."""
    return sa.Table(
        "seals",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
        sa.Column("leaf", sa.BigInteger, nullable=False),
        sa.Column("positions", sa.LargeBinary, nullable=False),
        sa.Column("receipts", sa.LargeBinary, nullable=False),
    )


def _tree_heads(metadata: sa.MetaData) -> sa.Table:
    """Signed heads of the hash tree."""
    return sa.Table(
        "tree_heads",
        metadata,
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("sealed_at", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
        sa.Column("peaks", sa.LargeBinary, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
    )


def _audit(metadata: sa.MetaData) -> sa.Table:
    """Uses of the store, if the access log is a table."""
    return sa.Table(
        "audit",
        metadata,
        sa.Column("record_id", sa.LargeBinary, primary_key=True),
        sa.Column("ts", sa.BigInteger, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("user_hash", sa.Text),
        sa.Column("session_hash", sa.Text),
        sa.Column("request_hash", sa.Text),
        sa.Column("state_version", sa.BigInteger),
        sa.Column("event_type", sa.Text),
        sa.Column("duration_us", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Index("audit_user", "user_hash", "record_id"),
    )


def _accesses(metadata: sa.MetaData) -> sa.Table:
    """How often each session was read, and when last."""
    return sa.Table(
        "accesses",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("reads", sa.BigInteger, nullable=False),
        sa.Column("last_at", sa.BigInteger, nullable=False),
    )


def _exports(metadata: sa.MetaData) -> sa.Table:
    """Exports that contain a copy of a user's data."""
    return sa.Table(
        "exports",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("export_id", sa.Text, primary_key=True),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )


def _labels(metadata: sa.MetaData) -> sa.Table:
    """Which sessions have a label, by keyed hashes of its name and value."""
    return sa.Table(
        "labels",
        metadata,
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("name", sa.LargeBinary, primary_key=True),
        sa.Column("address", sa.LargeBinary, nullable=False),
        sa.Index("labels_address", "user_id", "address"),
    )


def stream_of(table: Any) -> tuple[Any, ...]:
    """Return the columns that name the stream of a row."""
    return (table.c.user_id, table.c.session_id, table.c.stream)


def of_stream(table: Any, stream: Iterable[Any]) -> Any:
    """Return the condition that a row belongs to a stream.

    stream: its three names, or the columns of another table that have them.
    """
    pairs = zip(stream_of(table), stream, strict=True)
    return sa.and_(*(column == name for column, name in pairs))


def within(table: Any, scope: Scope) -> list[Any]:
    """Return the conditions that restrict a query to the scope."""
    conditions: list[Any] = []
    for name, value in scope._asdict().items():
        if value is not None:
            conditions.append(table.c[name] == value)
    return conditions
