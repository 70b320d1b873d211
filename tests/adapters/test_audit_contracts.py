"""Every sink accepts all records, and every table keeps the same promises."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from refold.adapters.sql.access_log import LOGGER, AccessTable, LinesSink
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.access_log import AccessRecord, AccessSink
from refold.testing import AccessSinkContract
from refold.testing.ports import record
from tests.support.auditing import Table
from tests.support.contracts import AccessTableContract

Written = Callable[[], list[Any]]
PROMISES = [
    (contract, name)
    for contract in (AccessSinkContract, AccessTableContract)
    for name in dir(contract)
    if name.startswith("test_")
]


class _Table(AccessSinkContract, AccessTableContract):
    @pytest.fixture
    def sink(self, rows: AccessTable) -> AccessSink:
        return rows

    @pytest.fixture
    def written(self, rows: AccessTable) -> Written:
        return lambda: [record.to_json() for record in rows.find(limit=9999)]


class TestInMemory(_Table):
    @pytest.fixture
    def rows(self) -> AccessTable:
        return Table()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
class TestSqlite(_Table):
    @pytest.fixture
    def rows(self, store_url: str) -> Iterator[AccessTable]:
        dialect = SqliteDatabase(make_url(store_url))
        yield AccessTable(dialect)
        dialect.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
class TestPostgres(_Table):
    @pytest.fixture
    def rows(self, store_url: str) -> Iterator[AccessTable]:
        dialect = PostgresDatabase(make_url(store_url))
        yield AccessTable(dialect)
        dialect.close()


class TestFile(AccessSinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Iterator[AccessSink]:
        sink = LinesSink.file(tmp_path / "audit.jsonl")
        yield sink
        sink.close()

    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        path = tmp_path / "audit.jsonl"
        return lambda: [json.loads(line) for line in path.read_text().splitlines()]


class TestLogger(AccessSinkContract):
    @pytest.fixture
    def sink(self) -> AccessSink:
        return LinesSink()

    @pytest.fixture
    def written(self, caplog: pytest.LogCaptureFixture) -> Written:
        caplog.set_level(logging.INFO, LOGGER)
        return lambda: [json.loads(record.message) for record in caplog.records]


class _NoSink:
    """A sink that accepts everything and stores nothing."""

    def write(self, records: Sequence[AccessRecord]) -> None:
        pass

    def find(self, **_: Any) -> list[AccessRecord]:
        return []

    def purge(self, before: int) -> Iterator[int]:
        return iter(())

    def forget(self, user: str, sessions: Sequence[str] | None = None) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("contract", "promise"), PROMISES)
def test_the_contract_detects_a_sink_without_effect(
    contract: type, promise: str
) -> None:
    nothing = _NoSink()
    ports = [nothing, list] if contract is AccessSinkContract else [nothing]

    with pytest.raises((AssertionError, LookupError)):
        getattr(contract(), promise)(*ports)


def test_a_file_of_lines_is_private_and_may_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    sink = LinesSink.file(path)
    sink.write([record(1)])
    path.rename(tmp_path / "old.jsonl")

    sink.write([record(2)])
    sink.close()

    for file in (path, tmp_path / "old.jsonl"):
        assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["state_version"] == 2


def test_the_level_of_a_logged_line_depends_on_its_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    statuses = ("ok", "denied", "error")

    LinesSink().write([record(n, status=status) for n, status in enumerate(statuses)])

    assert [line.levelname for line in caplog.records] == ["INFO", "WARNING", "ERROR"]
