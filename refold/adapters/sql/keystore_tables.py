"""The tables of the key store: wrapped keys, and keyed hashes of who was erased."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

SCHEMA = "refold_keys"


class KeyTables:
    """The tables, in a schema of their own where the engine has schemas.

    An erased user's row keeps its hash and epoch, and nothing else.  What replaces a
    session's first key is in ``rotated``; ``held`` are keys put aside, those of users
    with the session ``""`` and version 0.
    """

    def __init__(self, *, schema: bool) -> None:
        self.metadata = metadata = MetaData(schema=SCHEMA if schema else None)
        self.settings = Table(
            "settings",
            metadata,
            Column("name", Text, primary_key=True),
            Column("value", LargeBinary, nullable=False),
        )
        self.users = Table(
            "user_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("epoch", Integer, nullable=False),
            Column("wrapped", LargeBinary),
            Column("created_at", BigInteger, nullable=False),
        )
        self.sessions = Table(
            "session_keys",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("wrapped", LargeBinary, nullable=False),
            Column("created_at", BigInteger, nullable=False),
        )
        self.rotated = _versioned("rotated_session_keys", metadata)
        self.held = _versioned("held_keys", metadata)
        self.erased = Table(
            "erased_sessions",
            metadata,
            Column("user_ref", Text, primary_key=True),
            Column("session_ref", Text, primary_key=True),
            Column("erased_at", BigInteger, nullable=False),
        )


def _versioned(name: str, metadata: MetaData) -> Table:
    return Table(
        name,
        metadata,
        Column("user_ref", Text, primary_key=True),
        Column("session_ref", Text, primary_key=True),
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("wrapped", LargeBinary, nullable=False),
        Column("created_at", BigInteger, nullable=False),
    )
