"""Every log keeps the same promises: in memory, on SQLite, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from refold.adapters.log import SealedLog
from refold.adapters.sql.migrations import migrate
from refold.adapters.sql.postgres import PostgresDialect
from refold.adapters.sql.recorder import SqlRecorder
from refold.adapters.sql.sqlite import SqliteDialect
from refold.testing import EventLogContract, memory_log


class TestInMemory(EventLogContract):
    @pytest.fixture
    def log(self) -> SealedLog:
        return memory_log()


class TestSqlite(EventLogContract):
    @pytest.fixture
    def log(self, sqlite_url: str) -> Iterator[SealedLog]:
        dialect = SqliteDialect(make_url(sqlite_url))
        migrate(dialect)
        log = memory_log(SqlRecorder(dialect))
        yield log
        log.close()


class TestPostgres(EventLogContract):
    @pytest.fixture
    def log(self, postgres_url: str) -> Iterator[SealedLog]:
        dialect = PostgresDialect(make_url(postgres_url))
        migrate(dialect)
        log = memory_log(SqlRecorder(dialect))
        yield log
        log.close()
