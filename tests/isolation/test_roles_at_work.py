"""Each role can do its work; anything else is refused with a way out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import make_url

import refold
from refold.adapters.importers.dataset import Tables
from refold.adapters.log import EncryptedLog
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.recorder import Recorder
from refold.opener import open_recorder
from refold.store import SessionStore
from refold.store.work.workers import Worker
from refold.testing import EventLogContract, memory_log
from refold.testing.event_log import RewritingContract
from tests.support.operations import LONG, log_of
from tests.support.postgres import Postgres
from tests.support.retainer import in_a_year
from tests.support.roles import Walled, as_user
from tests.support.stores import open_at, use_the_callers_clock_for_leases
from tests.support.talking import talk

WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"


def log_at(url: str) -> EncryptedLog:
    return memory_log(Recorder(PostgresDatabase(make_url(url))))


# These need data of all users, a freeze, or encrypted rows: rights of an eraser.
_WIDE: Final = (
    "test_a_session_is_listed_with_its_head",
    "test_a_frozen_user_gets_no_stored_view",
    "test_sizes_are_counted",
    "test_users_do_not_see_each_other",
    "test_an_audit_yields_every_event_and_no_problem",
    *(name for name in vars(RewritingContract) if name.startswith("test_")),
)
AppContract: Any = type("AppContract", (EventLogContract,), dict.fromkeys(_WIDE))


class TestAsApp(AppContract):  # type: ignore[misc]  # made at run time
    """One user at a time, and every promise of a log except those for all users."""

    @pytest.fixture
    def log(
        self, walled: Walled, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[EncryptedLog]:
        use_the_callers_clock_for_leases(monkeypatch)
        log = log_at(walled.app)
        yield log
        log.close()


class TestAsEraser(RewritingContract):
    """An eraser encrypts rows again."""

    @pytest.fixture
    def log(self, walled: Walled) -> Iterator[EncryptedLog]:
        log = log_at(walled.eraser)
        yield log
        log.close()


def filled(url: str, folder: Path) -> None:
    with open_at(url, folder) as store:
        for user in ("ada", "bob"):
            session = talk(store.session(user_id=user, session_id="s-1"), 8)
            session.append(refold.UserInput(text=LONG), idempotency_key="long")
            while session.compact(WINDOW) is not None:
                pass
            session.record_request(session.prepare(WINDOW))
            talk(session.fork(4, session_id=f"{user}-fork"), 2)


def test_an_agent_works_as_the_app_role_alone(walled: Walled, tmp_path: Path) -> None:
    filled(walled.app, tmp_path)

    with open_at(walled.app, tmp_path) as store:
        for user in ("ada", "bob"):
            assert len(store.sessions(user)) == 2
            assert [v.problems for _, v in store.verify(user)] == [[], []]
            assert store.stats(user)["sessions"] == 2
            assert store.catch_up(user) >= 0
            fork = store.session(user_id=user, session_id=f"{user}-fork")
            assert fork.context(WINDOW).messages


def test_reads_of_an_agent_are_counted(walled: Walled, tmp_path: Path) -> None:
    filled(walled.app, tmp_path)

    with open_at(walled.app, tmp_path) as store:
        before = {
            user: store.access_log.accesses(user)[0].reads for user in ("ada", "bob")
        }
        store.session(user_id="ada", session_id="s-1").events()
        after = {
            user: store.access_log.accesses(user)[0].reads for user in ("ada", "bob")
        }

    assert after == {"ada": before["ada"] + 1, "bob": before["bob"]}


def test_groups_of_several_users_share_commits(walled: Walled, tmp_path: Path) -> None:
    with open_at(walled.app, tmp_path) as store:

        async def all_at_once() -> None:
            await asyncio.gather(
                *(
                    store.session(
                        user_id=f"user-{n % 7}", session_id=f"s-{n}"
                    ).append_async(refold.UserInput(text=f"{n}"))
                    for n in range(70)
                )
            )

        asyncio.run(all_at_once())  # the threads begin
        asyncio.run(all_at_once())  # and continue

        infos = [info for n in range(7) for info in store.sessions(f"user-{n}")]
        assert [info.head_seq for info in infos] == [2] * 70


def test_connections_serve_one_user_after_another(
    walled: Walled, tmp_path: Path
) -> None:
    filled(walled.app, tmp_path)
    wrong: list[str] = []
    with open_at(walled.app, tmp_path) as store:

        def read(user: str) -> None:
            session = store.session(user_id=user, session_id="s-1")
            for _ in range(20):
                if {event.user_id for event in session.events()} != {user}:
                    wrong.append(user)
                if not session.context(WINDOW).messages:
                    wrong.append(user)
                if {info.user_id for info in store.sessions(user, internal=True)} != {
                    user
                }:
                    wrong.append(user)

        threads = [
            threading.Thread(target=read, args=(user,)) for user in ("ada", "bob") * 3
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert wrong == []


REFUSED: Final[dict[str, Callable[[SessionStore], Any]]] = {
    "sessions of all": lambda store: store.sessions(),
    "verify all": lambda store: list(store.verify()),
    "stats of all": lambda store: store.stats(),
    "views of all": lambda store: store.catch_up(),
    "recheck all": lambda store: list(store.recheck()),
    "seal": lambda store: store.seal(),
    "verify seals": lambda store: store.verify_seals(),
    "erase": lambda store: store.erase("ada", "asked for"),
    "certificates": lambda store: store.erasures.certificates(),
    "hold": lambda store: store.erasures.hold("ada", "case", "asked for"),
}


@pytest.mark.parametrize("act", REFUSED)
def test_the_app_role_is_refused_wider_rights(
    walled: Walled, tmp_path: Path, act: str
) -> None:
    filled(walled.app, tmp_path)
    with open_at(walled.app, tmp_path) as store:
        with pytest.raises(refold.StoreUnavailable, match=r"refold_auditor|privilege"):
            REFUSED[act](store)

        assert len(store.session(user_id="ada", session_id="s-1").events()) > 16
        assert [v.problems for _, v in store.verify("ada")] == [[], []]


def test_an_auditor_exports_metadata_without_a_key(
    walled: Walled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(walled.app, tmp_path)
    monkeypatch.delenv("REFOLD_KEYS")
    recorder, _ = open_recorder(walled.auditor)

    manifest: Any = Tables(recorder).write(tmp_path / "out").manifest

    recorder.close()
    assert manifest["counts"]["events"] > 16
    assert "ada" in manifest["users"]


def test_the_app_role_cannot_export_tables(walled: Walled, tmp_path: Path) -> None:
    filled(walled.app, tmp_path)
    wrong = pytest.raises(refold.StoreUnavailable, match=r"refold_auditor|privilege")
    with open_at(walled.app, tmp_path) as store, wrong:
        Tables(log_of(store).recorder, store).write(tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_workers_share_the_duties_that_their_roles_allow(
    walled: Walled, tmp_path: Path
) -> None:
    filled(walled.app, tmp_path)
    done: list[str] = []

    for role, duty in (("sealer", "seal"), ("eraser", "verify"), ("eraser", "erase")):
        with open_at(getattr(walled, role), tmp_path) as store:
            worker = Worker(
                store,
                duties={duty: 3600.0},
                done=lambda unit, _: done.append(unit.duty),
            )
            worker.round()
            assert not worker.failing
            assert not any(came == "failed" for _, came in worker.counts)

    assert done == ["seal", *["verify"] * 5]


def test_each_of_the_other_roles_does_its_work(walled: Walled, tmp_path: Path) -> None:
    filled(walled.app, tmp_path)

    with open_at(walled.sealer, tmp_path) as store:
        sealed = store.seal()
    with open_at(walled.auditor, tmp_path) as store:
        verified = [proof.problems for _, proof in store.verify()]
        seals = store.verify_seals()
        listed = store.sessions()
    with open_at(walled.eraser, tmp_path) as store:
        store.erase("ada", "asked for")
    with open_at(walled.auditor, tmp_path) as store:
        left = {info.user_id for info in store.sessions(internal=True)}

    assert sealed is not None
    assert verified == [[]] * 4
    assert seals is not None
    assert seals.problems == []
    assert len(listed) == 4
    assert left == {"bob"}


ERASES: Final[dict[str, Callable[[SessionStore], Any]]] = {
    "erase a session": lambda store: store.erase("ada", "x", session_id="s-1"),
    "erase, then readmit": lambda store: [
        store.erase("ada", "x"),
        store.erasures.readmit("ada", "x"),
    ],
    "erase, then restore": lambda store: [
        store.erase("ada", "x", grace=timedelta(days=1)),
        store.erasures.restore("ada", "x"),
    ],
    "hold": lambda store: [
        store.erasures.hold("ada", "case", "x"),
        store.erasures.release("ada", "case", "x"),
    ],
    "freeze": lambda store: [
        store.erasures.freeze("ada", "x"),
        store.erasures.unfreeze("ada", "x"),
    ],
    "retain": lambda store: [
        store.erasures.hold("bob", "case", "x"),
        in_a_year(store).erasures.retain(
            refold.RetentionPolicy(blobs=timedelta(days=30), since="access")
        ),
        in_a_year(store).erasures.retain(
            refold.RetentionPolicy(
                sessions=timedelta(days=30), memory=timedelta(days=900)
            )
        ),
        in_a_year(store).erasures.retain(
            refold.RetentionPolicy(
                sessions=timedelta(days=30), memory=timedelta(days=60)
            )
        ),
    ],
    "repair": lambda store: list(store.repair(apply=True)),
    "redact again": lambda store: list(store.reredact()),
    "rotate keys": lambda store: [
        store.keys.rotate_user("ada"),
        store.keys.rotate_session("ada", session_id="s-1"),
    ],
    "purge what was audited": lambda store: store.access_log.purge(timedelta(0)),
    "what is due": lambda store: list(store.erasures.complete()),
    "everything": lambda store: [
        store.sessions(internal=True),
        store.stats(),
        store.erasures.pending(),
        store.access_log.accesses(),
        list(store.verify()),
    ],
}


@pytest.mark.parametrize("act", ERASES)
def test_an_eraser_does_what_its_page_says(
    walled: Walled, tmp_path: Path, act: str
) -> None:
    filled(walled.app, tmp_path)
    with open_at(walled.eraser, tmp_path) as store:
        ERASES[act](store)

    with open_at(walled.app, tmp_path) as store:
        assert len(store.session(user_id="bob", session_id="s-1").events()) > 16
        assert store.session(user_id="ada", session_id="s-2").append(
            refold.UserInput(text="still here")
        )


def test_an_eraser_does_not_report_rewritten_tables(
    walled: Walled, tmp_path: Path
) -> None:
    filled(walled.app, tmp_path)

    with open_at(walled.eraser, tmp_path) as store:
        cleaned = store.erase("ada", "x", vacuum=True).cleaned
    with open_at(walled.owner, tmp_path) as store:
        by_owner = store.erase("bob", "x", vacuum=True).cleaned

    assert cleaned["vacuum"] is False
    assert "VACUUM FULL refold.events" in cleaned["advice"]
    assert by_owner["vacuum"] is True


@pytest.mark.parametrize("role", ["auditor", "sealer"])
def test_the_reader_role_cannot_append(
    walled: Walled, tmp_path: Path, role: str
) -> None:
    filled(walled.app, tmp_path)
    with (
        open_at(getattr(walled, role), tmp_path) as store,
        pytest.raises(refold.StoreUnavailable, match="privilege"),
    ):
        store.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text="x")
        )


def test_the_app_role_notices_an_exchanged_key_store(
    walled: Walled, tmp_path: Path
) -> None:
    filled(walled.app, tmp_path)
    other = tmp_path / "other"
    other.mkdir()

    with pytest.raises(refold.KeyUnavailable, match="empty"):
        open_at(walled.app, other)


def test_the_owner_works_as_before(walled: Walled, tmp_path: Path) -> None:
    filled(walled.owner, tmp_path)

    with open_at(walled.owner, tmp_path) as store:
        assert len(store.sessions()) == 4


def test_the_error_without_a_role_names_the_roles(
    walled: Walled, tmp_path: Path, postgres: Postgres
) -> None:
    import psycopg

    filled(walled.owner, tmp_path)
    with psycopg.connect(walled.owner, autocommit=True) as owner:
        owner.execute("CREATE ROLE stranger LOGIN PASSWORD 'x'")
        try:
            with pytest.raises(refold.StoreUnavailable, match="refold schema --roles"):
                open_at(as_user(walled.owner, "stranger"), tmp_path)
        finally:
            owner.execute("DROP ROLE stranger")
