"""A write or read during an erasure ends with Erased; no event is added afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import refold
from refold.adapters.erasure import StoredErasureSteps
from refold.domain.erasure import FORMAT, ErasureScope, LegalHold
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.engines import BOTH
from tests.support.nested import problems_of
from tests.support.stores import open_at, prepare, release, start
from tests.support.talking import talk
from tests.support.waiting import PATIENCE_SEC, until


def append(store: SessionStore, _: int) -> None:
    store.session(user_id="ada", session_id="one").append(user_inputs("x"))


def append_async(store: SessionStore, _: int) -> None:
    asyncio.run(
        store.session(user_id="ada", session_id="one").append_async(user_inputs("x"))
    )


def begin(store: SessionStore, number: int) -> None:
    store.session(user_id="ada", session_id=f"new-{number}").append(user_inputs("x"))


def append_a_blob(store: SessionStore, number: int) -> None:
    store.session(user_id="ada", session_id="one").append(
        user_inputs(f"{number} " * 40_000)
    )


def compact(store: SessionStore, _: int) -> None:
    session = talk(store.session(user_id="ada", session_id="one"), 1)
    session.compact(WINDOW)


def fork(store: SessionStore, _: int) -> None:
    store.session(user_id="ada", session_id="one").fork(2, session_id=f"fork-{uuid4()}")


def project(store: SessionStore, _: int) -> None:
    session = talk(store.session(user_id="ada", session_id="one"), 1)
    session.context(WINDOW)
    session.strategies.catch_up()


def export(store: SessionStore, _: int) -> None:
    session = store.session(user_id="ada", session_id="one")
    session.head()
    list(session.history.pages())


def rotate(store: SessionStore, _: int) -> None:
    store.keys.rotate_session("ada", session_id="one")


def use_a_key(store: SessionStore, number: int) -> None:
    session = store.session(user_id="ada", session_id="one")
    session.append(user_inputs("x"), idempotency_key=f"key {number // 2}")


USES: dict[str, Callable[[SessionStore, int], None]] = {
    use.__name__.replace("_", " "): use
    for use in (
        append,
        append_async,
        begin,
        append_a_blob,
        compact,
        fork,
        project,
        export,
        rotate,
        use_a_key,
    )
}


@pytest.fixture(params=["one process", "two processes"])
def user_and_eraser_stores(
    request: pytest.FixtureRequest, store_url: str, tmp_path: Path
) -> Iterator[tuple[SessionStore, SessionStore]]:
    """The store of a user and that of an eraser; two stores have their own caches."""
    with open_at(store_url, tmp_path) as user:
        fill(user, "ada", "one")
        if request.param == "one process":
            yield user, user
            return
        with open_at(store_url, tmp_path) as eraser:
            eraser.session(user_id="ada", session_id="one").events()
            yield user, eraser


def repeat_until_erased(
    use: Callable[[SessionStore, int], None], store: SessionStore, going: Event
) -> Exception:
    """Repeat an operation, and return the error that ended it."""
    for number in range(100_000):
        try:
            use(store, number)
        except refold.RefoldError as error:
            return error
        if number == 2:
            going.set()
    raise AssertionError("it was never erased")


@BOTH
@pytest.mark.parametrize("name", USES)
def test_operations_during_an_erasure_raise_erased(
    user_and_eraser_stores: tuple[SessionStore, SessionStore], name: str
) -> None:
    user, eraser = user_and_eraser_stores
    going = [Event(), Event()]
    with ThreadPoolExecutor(2) as pool:
        ends: list[Future[Exception]] = [
            pool.submit(repeat_until_erased, USES[name], user, store) for store in going
        ]
        for each in going:
            assert each.wait(PATIENCE_SEC)
        erased = eraser.erase("ada", "she asked")
        errors = [end.result(PATIENCE_SEC) for end in ends]

    assert [type(error) for error in errors] == [refold.Erased] * 2, errors
    assert set(erased.left.values()) == {0}
    assert set(eraser.erasures.plan("ada").counts.values()) == {0}
    assert user.sessions("ada", internal=True) == []


@BOTH
def test_processes_that_write_during_an_erasure_leave_nothing(
    store_url: str, tmp_path: Path
) -> None:
    url = prepare(store_url, tmp_path)
    with open_at(url, tmp_path) as store:
        store.session(user_id="ada", session_id="s").append(user_inputs("x"))
        writers = [start("pour", url, "s", "100000") for _ in range(3)]
        release(writers)
        session = store.session(user_id="ada", session_id="s")
        until(lambda: session.head().seq >= 20, "20 events")

        erased = store.erase("ada", "she asked")

        for writer in writers:
            _, complaint = writer.communicate()
            assert "Erased" in complaint.splitlines()[-1]
        assert set(erased.left.values()) == {0}
        assert set(store.erasures.plan("ada").counts.values()) == {0}


@BOTH
def test_a_new_session_is_refused_after_the_erasure(
    store_url: str, tmp_path: Path
) -> None:
    """The keys are cached and the head does not exist: the database itself refuses."""
    with open_at(store_url, tmp_path) as user, open_at(store_url, tmp_path) as eraser:
        fill(user, "ada", "one")
        recorder: Any = user.log.recorder  # type: ignore[attr-defined]  # a EncryptedLog
        write = recorder.write
        done: list[Any] = []

        def late(batch: Any) -> Any:
            if not done:
                done.append(eraser.erase("ada", "she asked"))
            return write(batch)

        recorder.write = late
        with pytest.raises(refold.Erased):
            user.session(user_id="ada", session_id="late").append(user_inputs("x"))

        assert done
        assert set(eraser.erasures.plan("ada").counts.values()) == {0}


READS: dict[str, Callable[[refold.Session], object]] = {
    "state": lambda session: session.state(),
    "context": lambda session: session.context(WINDOW, at=3),
    "replay": lambda session: list(session.proofs.replay()),
    "the same again": lambda session: session.append(
        user_inputs("x"), idempotency_key="k"
    ),
}


@BOTH
@pytest.mark.parametrize("read", READS)
def test_a_read_during_the_erasure_raises_erased(
    user_and_eraser_stores: tuple[SessionStore, SessionStore], read: str
) -> None:
    """Between the check of the head and the read of the rows: never a part of them."""
    user, eraser = user_and_eraser_stores
    session = user.session(user_id="ada", session_id="one")
    session.append(refold.StateUpdate(set={"b": 2}))
    session.append(user_inputs("x"), idempotency_key="k")
    session.context(WINDOW)
    recorder: Any = user.log.recorder  # type: ignore[attr-defined]  # a EncryptedLog
    rows = recorder.select_events
    done: list[Any] = []

    def late(*args: Any, **how: Any) -> Any:
        if not done:
            done.append(eraser.erase("ada", "she asked"))
        return rows(*args, **how)

    recorder.select_events = late
    with pytest.raises(refold.Erased):
        READS[read](session)

    assert done


@BOTH
def test_an_old_key_cannot_write_after_readmission(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as user, open_at(store_url, tmp_path) as eraser:
        user.session(user_id="ada", session_id="one").append(user_inputs("x"))
        eraser.erase("ada", "she asked")
        eraser.erasures.readmit("ada", "back again")

        user.session(user_id="ada", session_id="two").append(user_inputs("y"))
        user.session(user_id="ada", session_id="one").append(user_inputs("z"))

        for name in ("one", "two"):
            assert len(eraser.session(user_id="ada", session_id=name).events()) == 1
        assert problems_of(eraser.verify()) == []


@BOTH
def test_a_fork_made_while_the_erasure_of_its_origin_begins_is_erased_too(
    user_and_eraser_stores: tuple[SessionStore, SessionStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user, eraser = user_and_eraser_stores
    begin_ = StoredErasureSteps.begin

    def begun(erasures: Any, job: Any) -> Any:
        fork = user.session(user_id="ada", session_id="one").fork(2, session_id="late")
        fork.append(user_inputs("x"))
        fork.fork(2, session_id="later")
        return begin_(erasures, job)

    monkeypatch.setattr(StoredErasureSteps, "begin", begun)
    erased = eraser.erase("ada", "she asked", session_id="one")

    assert erased.certificate is not None
    assert erased.certificate.statement["sessions"] == 4
    assert user.sessions("ada", internal=True) == []
    assert set(eraser.erasures.plan("ada").counts.values()) == {0}
    with pytest.raises(refold.Erased):
        user.session(user_id="ada", session_id="late").append(user_inputs("x"))


@BOTH
def test_a_fork_of_an_erased_session_is_refused(
    user_and_eraser_stores: tuple[SessionStore, SessionStore],
) -> None:
    user, eraser = user_and_eraser_stores
    recorder: Any = user.log.recorder  # type: ignore[attr-defined]  # a EncryptedLog
    write = recorder.write
    done: list[Any] = []

    def late(batch: Any) -> Any:
        if not done:
            done.append(eraser.erase("ada", "she asked", session_id="one"))
        return write(batch)

    recorder.write = late
    with pytest.raises(refold.Erased):
        user.session(user_id="ada", session_id="one").fork(2, session_id="late")

    assert done
    assert user.sessions("ada", internal=True) == []


@BOTH
def test_reencrypting_an_erased_session_is_refused(
    user_and_eraser_stores: tuple[SessionStore, SessionStore],
) -> None:
    user, eraser = user_and_eraser_stores
    recorder: Any = user.log.recorder  # type: ignore[attr-defined]  # a EncryptedLog
    rewrite = recorder.rewrite

    def late(stream: Any, build: Any) -> Any:
        eraser.erase("ada", "she asked")
        return rewrite(stream, build)

    recorder.rewrite = late
    with pytest.raises(refold.Erased):
        user.keys.rotate_session("ada", session_id="one")


def test_reencrypting_succeeds_after_every_conflict(sqlite_url: str) -> None:
    """A rival rotates between each draft and its write: the work still finishes."""
    with refold.open(sqlite_url) as store, refold.open(sqlite_url) as rival:
        fill(store, "ada", "one")
        recorder: Any = store.log.recorder  # type: ignore[attr-defined]  # an EncryptedLog
        rewrite = recorder.rewrite

        def late(stream: Any, build: Any) -> Any:
            rival.keys.rotate_session("ada", session_id="one")
            return rewrite(stream, build)

        recorder.rewrite = late
        assert store.keys.rotate_session("ada", session_id="one").key_version > 3

        assert problems_of(store.verify()) == []


@BOTH
@pytest.mark.parametrize("name", ["append", "rotate", "append_a_blob"])
def test_a_timeout_during_an_erasure_raises_erased(
    user_and_eraser_stores: tuple[SessionStore, SessionStore],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The erasure keeps the database busy: a retry would be useless."""
    user, eraser = user_and_eraser_stores
    recorder: Any = user.log.recorder  # type: ignore[attr-defined]  # an EncryptedLog

    def busy(*_: object) -> None:
        monkeypatch.undo()
        eraser.erase("ada", "she asked")
        raise refold.StoreUnavailable("it is busy", remedy="try again")

    monkeypatch.setattr(recorder, "write", busy)
    monkeypatch.setattr(recorder, "rewrite", busy)
    with pytest.raises(refold.Erased):
        USES[name.replace("_", " ")](user, 0)


@BOTH
def test_two_concurrent_erasures_of_one_user_sign_one_certificate(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as first, open_at(store_url, tmp_path) as second:
        fill(first, "ada", "one")
        with ThreadPoolExecutor(2) as pool:
            done = list(
                pool.map(lambda store: store.erase("ada", "she asked"), (first, second))
            )

        assert [
            erased.certificate is not None and bool(erased.salt) for erased in done
        ].count(True) == 1
        assert len(first.erasures.certificates()) == 1
        assert set(first.erasures.plan("ada").counts.values()) == {0}


@BOTH
def test_a_new_session_during_an_erasure_raises_erased(
    user_and_eraser_stores: tuple[SessionStore, SessionStore],
) -> None:
    user, eraser = user_and_eraser_stores
    erasures: Any = eraser.log.erasures

    erasures.begin(erasures.new_job(ErasureScope("ada"), due_at=None, facts={}))

    for session_id in ("new", "new"):
        with pytest.raises(refold.Erased):
            user.session(user_id="ada", session_id=session_id).append(user_inputs("x"))


def test_a_hold_that_waits_for_an_erasure_does_not_undo_it(
    _postgres_store: str,  # noqa: PT019  # its value is used
    tmp_path: Path,
) -> None:
    """For an unknown user no row exists that both could lock."""
    with open_at(_postgres_store, tmp_path) as store:
        erasures: Any = store.log.erasures
        job = erasures.new_job(ErasureScope("ada"), due_at=None, facts={})
        hold = LegalHold("case 7", "a court asked", 1)
        statement = {"format": FORMAT, "act": "held", "certificate_id": "c-1"}
        certificate = erasures.sign("ada", statement, now=1)
        rival = Thread(target=erasures.hold, args=("ada", hold, certificate))

        with erasures._database.writing("ada") as slow:
            erasures.begin_in(slow, job, erasures.subjects(job, "erasing"))
            rival.start()
            with psycopg.connect(_postgres_store, autocommit=True) as looker:
                query = "SELECT 1 FROM pg_locks WHERE NOT granted"
                while looker.execute(query).fetchone() is None:
                    assert rival.is_alive(), "the hold did not wait"
        rival.join()

        assert erasures._subjects.of(job.user_ref).status == "erasing"
