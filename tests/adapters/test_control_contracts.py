"""Erasures, retention, repairs and seals keep their promises on every engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from refold.adapters.log import EncryptedLog
from refold.adapters.seals import FileAnchor, TreeSeals
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.schema import migrate
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.erasure import ErasureJob, ErasureScope, Remains, Signed
from refold.domain.ports import Scanned
from refold.domain.seals import Seals, SealsVerified, TreeHead
from refold.testing import memory_log
from refold.testing.erasure import (
    ErasuresContract,
    RepairsContract,
    RetentionContract,
    SealsContract,
)

CONTRACTS = (ErasuresContract, RetentionContract, RepairsContract, SealsContract)


@pytest.fixture
def log(store_url: str) -> Iterator[EncryptedLog]:
    """An empty log with its keys in memory."""
    url = make_url(store_url)
    sqlite = url.get_backend_name() == "sqlite"
    database = SqliteDatabase(url) if sqlite else PostgresDatabase(url)
    migrate(database)
    log = memory_log(Recorder(database))
    yield log
    log.close()


@pytest.fixture
def seals(log: EncryptedLog, tmp_path: Path) -> Seals:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    return TreeSeals(log.tree, log.recorder, log.erasures, anchor, log.keys.signer)


class TestErasures(ErasuresContract):
    """Erasures on SQLite and on PostgreSQL."""


class TestRetention(RetentionContract):
    """Retention on both."""


class TestRepairs(RepairsContract):
    """Repairs on both."""


class TestSeals(SealsContract):
    """Seals on both."""


class Noop:
    """A port that reports success for everything and stores nothing.

    results: by method; other methods return their first argument.
    """

    def __init__(self, **results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        def method(*arguments: Any, **_: Any) -> Any:
            if name in self._results:
                return self._results[name]
            return arguments[0] if arguments else None

        return method


JOB = ErasureJob("job", "ref", ErasureScope("ada"), "begun", None, {})
HEAD = TreeHead("store", 0, b"", 0, 0, "key")
ERASURES = Noop(
    new_job=JOB,
    jobs=[],
    destroy_keys=0,
    hold_keys=0,
    remains=Remains({"events": 0, "blobs": 0}, 0, b""),
    delete=(),
    certify=Signed({"act": ""}, "key", b"", b""),
    certificates=[],
    holds=[],
    left={"events": 0},
    key_status={"users": 0, "erased_users": 0},
    rotate_user=0,
    readmit=2,
    public_key=b"",
    tree_head=None,
    tree_leaves={"count": 0},
)
RETENTION = Noop(freeze=True, accesses=[], old_blobs=(), expire_blobs=0)
REPAIRS = Noop(put_head=True, unnamed_blobs=Scanned({}, ()), drop_blobs=True)
SEALS = Noop(
    seal=HEAD,
    heads=[],
    prove={},
    verify=SealsVerified(0, 0, 0, 0, 0, []),
    public_key=b"",
)


class NoControls:
    """A log that writes and reads, and neither erases, retains nor repairs."""

    erasures = ERASURES
    retention = RETENTION
    repairs = REPAIRS

    def __init__(self, log: EncryptedLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def promises() -> list[tuple[Any, str]]:
    """Return each contract with the name of each of its tests."""
    pairs: list[tuple[Any, str]] = []
    for contract in CONTRACTS:
        for name in dir(contract):
            if name.startswith("test_"):
                pairs.append((contract, name))
    return pairs


@pytest.mark.parametrize(("contract", "promise"), promises())
def test_each_contract_test_fails_without_an_effect(
    contract: Any, promise: str
) -> None:
    arguments: list[Any] = [NoControls(memory_log())]
    if contract is SealsContract:
        arguments.append(SEALS)
    test = getattr(contract(), promise)
    if "conditions" in test.__annotations__:
        arguments.append({})

    with pytest.raises(
        (AssertionError, LookupError, ValueError, pytest.fail.Exception)
    ):
        test(*arguments)
