"""A store with data of every kind, sealed twice, that tests tamper with and restore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.sql import postgres, tables
from refold.domain.ids import StreamId
from refold.store import SessionStore
from refold.testing.event_log import user_inputs

WINDOW: Final = "turn_window:full_turns=1,cached_turns=1"
MAIN: Final = StreamId("ada", "s-1")
OLD_SEQ: Final = 6  # the head of s-1 when the old backup was made
SEALED_SEQ: Final = 10  # the head of s-1 at the last seal
_TABLES: Final = tables.build(None, rowid=True).metadata.sorted_tables


class Tampered:
    """One store, with helpers to change it behind Refold's back.

    ``old`` is the row of s-1's head at ``OLD_SEQ``, ``sealed`` that at ``SEALED_SEQ``.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.sqlite = url.startswith("sqlite")
        self.home = folder / "home"
        self.copies = folder / "kept"
        self.old: dict[str, Any] = {}
        self.sealed: dict[str, Any] = {}

    @contextmanager
    def store(self) -> Iterator[SessionStore]:
        """The store, opened with its own keys."""
        os.environ["REFOLD_HOME"] = str(self.home)
        os.environ["REFOLD_KEYS"] = f"sqlite:///{self.home / 'keys.db'}"
        with refold.open(self.url, make_key=True) as store:
            yield store

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A database connection that bypasses Refold."""
        driver = self.url.replace("postgresql://", "postgresql+psycopg://")
        with create_engine(driver, poolclass=NullPool).begin() as connection:
            yield connection

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """A connection without triggers, which may change everything."""
        with self.connected() as connection:
            guards: list[str] = []
            if self.sqlite:
                query = "SELECT name, sql FROM sqlite_master WHERE type='trigger'"
                for name, guard in connection.execute(text(query)).all():
                    connection.execute(text(f"DROP TRIGGER {name}"))
                    guards.append(guard)
            else:
                connection.execute(text("SET session_replication_role = replica"))
                connection.execute(text("SET search_path = refold"))
            yield connection
            for guard in guards:
                connection.exec_driver_sql(guard)

    def do(self, *statements: str, **values: Any) -> None:
        """Execute statements with these values."""
        with self.changing() as connection:
            for statement in statements:
                connection.execute(text(statement), values)

    def row(self, query: str) -> dict[str, Any]:
        """Return the first row of a query, by column name."""
        with self.changing() as connection:
            row = connection.execute(text(query)).mappings().first()
        assert row is not None, query
        return dict(row)

    def keys(self, statement: str, **values: Any) -> None:
        """Execute a statement in the key store."""
        engine = create_engine(f"sqlite:///{self.home / 'keys.db'}", poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text(statement), values)

    @property
    def anchor(self) -> Path:
        """The file with the tree heads."""
        (anchor_file,) = (self.home / "anchors").glob("*.jsonl")
        return anchor_file

    def keep(self, name: str) -> None:
        """Save the current state under this name."""
        shutil.copytree(self.home, self.copies / name / "home")
        if self.sqlite:
            shutil.copy(self.folder / "refold.db", self.copies / name / "refold.db")
            return
        with self.changing() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
            for table in _TABLES:
                copy = f"CREATE TABLE {name}.{table.name} AS TABLE refold.{table.name}"
                connection.execute(text(copy))

    def put_back(self, name: str, *, home: bool = True) -> None:
        """Restore the database saved under that name; the keys too, if ``home``."""
        if home:
            shutil.rmtree(self.home)
            shutil.copytree(self.copies / name / "home", self.home)
        if self.sqlite:
            for leftover in self.folder.glob("refold.db-*"):
                leftover.unlink()
            shutil.copy(self.copies / name / "refold.db", self.folder / "refold.db")
            return
        with self.changing() as connection:
            drop = "DROP TRIGGER IF EXISTS events_more ON events"
            connection.execute(text(drop))
            for guard in postgres.GUARDS:
                connection.exec_driver_sql(guard.replace("%", "%%"))
            connection.execute(text("ALTER TABLE events ENABLE TRIGGER ALL"))
            names = ", ".join(f"refold.{table.name}" for table in _TABLES)
            connection.execute(text(f"TRUNCATE {names}"))
            for table in _TABLES:
                there = (
                    f"INSERT INTO refold.{table.name} SELECT * FROM {name}.{table.name}"
                )
                connection.execute(text(there))


def fill(case: Tampered) -> None:
    """Fill the store: events, summaries, blobs, receipts, views, an erased user."""
    with case.store() as store:
        session = store.session(user_id="ada", session_id="s-1")
        _talk(session, 2)
        session.append(user_inputs("long " * 20_000))
        session.append(user_inputs("once"), idempotency_key="k-1")
        for name in ("s-2", "s-3"):
            _talk(store.session(user_id="ada", session_id=name), 1)
        store.session(user_id="ada", session_id="s-3").label(project="tea")
        _talk(store.session(user_id="eve", session_id="gone"), 1)
        store.erasures.hold("ada", "a hold", "made up")
        _talk(store.session(user_id="fay", session_id="cold"), 1)
        store.erasures.freeze("fay", "made up")
        store.seal()
    case.old = case.row("SELECT * FROM heads WHERE session_id='s-1' AND stream='main'")
    assert case.old["seq"] == OLD_SEQ
    case.keep("old")
    with case.store() as store:
        session = store.session(user_id="ada", session_id="s-1")
        _talk(session, 1)
        session.append(user_inputs("twice"), idempotency_key="k-2")
        while session.compact(WINDOW):
            pass
        session.record_request(session.context(WINDOW))
        assert session.strategies.catch_up()
        log = log_of(store)
        derived = session.stream._replace(stream="d" * 64)
        assert log.leases.take_lease(derived, "me", clock=lambda: 1, period=1)
        store.erase("eve", "made up")
        store.seal()
    case.sealed = case.row(
        "SELECT * FROM heads WHERE session_id='s-1' AND stream='main'"
    )
    assert case.sealed["seq"] == SEALED_SEQ
    with case.store() as store:
        store.session(user_id="ada", session_id="s-1").append(user_inputs("not sealed"))
    case.keep("whole")


def log_of(store: SessionStore) -> EncryptedLog:
    """Return the log of the store, which has keys."""
    assert isinstance(store.log, EncryptedLog)
    return store.log


def _talk(session: Any, turns: int) -> None:
    for number in range(turns):
        session.append(refold.UserInput(text=f"question {number} " + "word " * 30))
        session.append(refold.AgentResponse(text=f"answer {number} " + "word " * 30))
