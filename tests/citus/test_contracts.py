"""A log on Citus keeps the promises of every log, of erasing, retention and seals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from refold.adapters.log import EncryptedLog
from refold.adapters.seals import FileAnchor, TreeSeals
from refold.adapters.sql.access_log import AccessTable
from refold.adapters.sql.citus import CitusDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.schema import migrate
from refold.domain.seals import Seals
from refold.testing import (
    ErasuresContract,
    EventLogContract,
    RepairsContract,
    RetentionContract,
    SealsContract,
    memory_log,
)
from tests.adapters.test_audit_contracts import _Table
from tests.support.stores import use_the_callers_clock_for_leases


@pytest.fixture
def log(citus_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EncryptedLog]:
    """An empty log, its keys in memory."""
    use_the_callers_clock_for_leases(monkeypatch)
    database = CitusDatabase(make_url(citus_url))
    migrate(database)
    log = memory_log(Recorder(database))
    yield log
    log.close()


@pytest.fixture
def seals(log: EncryptedLog, tmp_path: Path) -> Seals:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    return TreeSeals(log.tree, log.recorder, log.erasures, anchor, log.keys.signer)


class TestLog(EventLogContract):
    """Appends, reads, leases, views, rewriting."""


class TestErasures(ErasuresContract):
    """Steps of an erasure."""


class TestRetention(RetentionContract):
    """Freezes, and what is known of uses."""


class TestRepairs(RepairsContract):
    """Heads and blobs."""


class TestSeals(SealsContract):
    """The tree."""


class TestAccessTable(_Table):
    """Records of uses."""

    @pytest.fixture
    def rows(self, log: EncryptedLog) -> AccessTable:
        return AccessTable(log.recorder.database)
