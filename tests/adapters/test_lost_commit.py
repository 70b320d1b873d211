"""A change whose COMMIT got no answer takes effect once, and its caller learns that.

A proxy to a real server cuts the connection at a COMMIT: before the server gets it, or
after the server has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from refold.adapters.log import EncryptedLog
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.tree import Tree
from refold.domain.erasure import Accesses
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import StreamId
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.redacting import aware
from tests.support.statements import Statement, Wire
from tests.support.stores import open_at

BEFORE: Final = "the server does not get the COMMIT"
AFTER: Final = "the server has answered the COMMIT"
EACH_CUT = pytest.mark.parametrize("cut", [BEFORE, AFTER])


class CutWire(Wire):
    """A server whose connection is cut at one COMMIT."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cuts = 0
        self._part = ""
        self._cut = ""
        self._is_marked = False
        self._is_answer_lost = False

    def cut_after(self, part: str, cut: str) -> None:
        """Cut at the next COMMIT after a statement with this part."""
        self._part = part
        self._cut = cut

    def statement(self, statement: Statement) -> None:
        super().statement(statement)
        if self._part and self._part in statement.text:
            self._part = ""
            self._is_marked = True
        elif self._is_marked and statement.text == "COMMIT":
            self._is_marked = False
            self.cuts += 1
            if self._cut == BEFORE:
                raise ConnectionResetError
            self._is_answer_lost = True

    def answered(self) -> None:
        super().answered()
        if self._is_answer_lost:
            self._is_answer_lost = False
            raise ConnectionResetError


class Cut(NamedTuple):
    """A store of two users behind a wire that can be cut."""

    store: SessionStore
    wire: CutWire

    @property
    def log(self) -> EncryptedLog:
        assert isinstance(self.store.log, EncryptedLog)
        return self.store.log


@pytest.fixture
def behind(postgres_url: str, tmp_path: Path) -> Iterator[Cut]:
    wire = CutWire(postgres_url)
    with open_at(wire.url, tmp_path, redactor=aware("PHONE")) as store:
        for user_id in ("ada", "bob"):
            session = store.session(user_id=user_id, session_id="s")
            session.append(user_inputs("a", "mail b@evil.test"))
    with open_at(wire.url, tmp_path, redactor=aware()) as store:
        yield Cut(store, wire)
    wire.close()


@EACH_CUT
def test_reads_of_a_session_are_counted_once(behind: Cut, cut: str) -> None:
    retention = behind.log.retention
    retention.add_accesses("ada", [Accesses("ada", "s", 2, 9)])
    behind.wire.cut_after("refold.accesses", cut)

    retention.add_accesses("ada", [Accesses("ada", "s", 3, 10)])

    assert behind.wire.cuts == 1
    assert retention.accesses("ada") == [Accesses("ada", "s", 5, 10)]


ACTS: dict[str, tuple[str, Callable[[SessionStore], Any]]] = {
    "hold": ("refold.holds", lambda store: store.erasures.hold("ada", "case", "why")),
    "release": (
        "DELETE FROM refold.holds",
        lambda store: store.erasures.release("ada", "case", "why"),
    ),
    "freeze": (
        "INSERT INTO refold.holds",
        lambda store: store.erasures.freeze("ada", "why"),
    ),
    "unfreeze": (
        "DELETE FROM refold.holds",
        lambda store: store.erasures.unfreeze("ada", "why"),
    ),
    "erase": (
        "INSERT INTO refold.certificates",
        lambda store: store.erase("ada", "why").certificate,
    ),
}
PREPARED: dict[str, str] = {"release": "hold", "unfreeze": "freeze"}


@EACH_CUT
@pytest.mark.parametrize("act", ACTS)
def test_an_act_returns_the_certificate_that_is_stored(
    behind: Cut, act: str, cut: str
) -> None:
    part, perform = ACTS[act]
    if act in PREPARED:
        ACTS[PREPARED[act]][1](behind.store)
    before = behind.store.erasures.certificates("ada")
    behind.wire.cut_after(part, cut)

    signed = perform(behind.store)

    assert behind.wire.cuts == 1
    assert signed is not None
    after = behind.store.erasures.certificates("ada")
    added = [certificate.statement for certificate in after[len(before) :]]
    assert added == [signed.statement]
    for _, verification in behind.store.verify():
        assert not verification.problems


@EACH_CUT
def test_the_record_of_an_erasure_is_stored_again_once(behind: Cut, cut: str) -> None:
    store, wire = behind
    store.erase("ada", "asked", grace=timedelta(days=1))
    database = behind.log.recorder.database
    with database.writing("") as connection:
        connection.exec_driver_sql("DELETE FROM refold.erasures")
    wire.cut_after("INSERT INTO refold.erasures", cut)

    signed = store.erasures.restore("ada", "a mistake")

    assert wire.cuts == 1
    assert signed.statement["act"] == "restored"
    assert store.session(user_id="ada", session_id="s").events()


@EACH_CUT
def test_a_sealer_learns_that_its_leaves_were_stored(
    behind: Cut, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = _results(Tree, "add", monkeypatch)
    behind.wire.cut_after("INSERT INTO refold.tree_heads", cut)

    head = behind.store.seal()

    assert behind.wire.cuts == 1
    assert results == [True]
    assert head is not None
    assert head.size == 2


@EACH_CUT
def test_a_worker_learns_that_its_work_was_marked_as_done(
    behind: Cut, cut: str
) -> None:
    leases = behind.log.recorder
    stream = StreamId("ada", "s", "main")
    assert leases.take_lease(stream, "worker", clock=lambda: 1, period=10**9)
    behind.wire.cut_after("UPDATE refold.leases", cut)

    marked = leases.mark_done(stream, "worker", clock=lambda: 1, period=10**9)

    assert behind.wire.cuts == 1
    assert marked
    assert leases.holding(stream, clock=lambda: 1).done


@EACH_CUT
def test_a_session_is_redacted_again_once(
    behind: Cut, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = _results(PostgresDatabase, "rewrite", monkeypatch)
    behind.wire.cut_after("UPDATE refold.events", cut)

    (done,) = behind.store.reredact(user_id="ada")

    assert behind.wire.cuts == 1
    assert results == [True]
    assert done.applied is not None
    assert done.applied.key_version == 2


def test_an_outcome_that_the_server_has_forgotten_is_reported_as_unknown(
    behind: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresDatabase, "_status", lambda *_: None)
    behind.wire.cut_after("refold.accesses", AFTER)

    with pytest.raises(StoreUnavailable, match="took effect is unknown"):
        behind.log.retention.add_accesses("ada", [Accesses("ada", "s", 3, 10)])

    assert behind.log.retention.accesses("ada") == [Accesses("ada", "s", 3, 10)]


def test_the_server_reports_every_outcome_of_a_transaction(
    behind: Cut, postgres_url: str
) -> None:
    database = behind.log.recorder.database
    assert isinstance(database, PostgresDatabase)
    with psycopg.connect(postgres_url) as other:
        query = "SELECT pg_current_xact_id()::text"
        statuses = []
        for end in (other.commit, other.rollback):
            row = other.execute(query).fetchone()
            assert row is not None
            statuses.append(database._status(row[0]))
            end()
            statuses.append(database._status(row[0]))

    assert statuses == ["in progress", "committed", "in progress", "aborted"]


def _results(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which every call of a method adds its result."""
    method = getattr(owner, name)
    results: list[Any] = []

    def recorded(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        results.append(result)
        return result

    monkeypatch.setattr(owner, name, recorded)
    return results
