"""Every log keeps the same promises: in memory, on SQLite, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from refold.adapters.log import EncryptedLog
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.testing import EventLogContract, memory_log
from tests.support.stores import use_the_callers_clock_for_leases


class TestInMemory(EventLogContract):
    @pytest.fixture
    def log(self) -> EncryptedLog:
        return memory_log()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
class TestSqlite(EventLogContract):
    @pytest.fixture
    def log(self, store_url: str) -> Iterator[EncryptedLog]:
        dialect = SqliteDatabase(make_url(store_url))
        log = memory_log(Recorder(dialect))
        yield log
        log.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
class TestPostgres(EventLogContract):
    @pytest.fixture
    def log(
        self, store_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[EncryptedLog]:
        use_the_callers_clock_for_leases(monkeypatch)
        dialect = PostgresDatabase(make_url(store_url))
        log = memory_log(Recorder(dialect))
        yield log
        log.close()
