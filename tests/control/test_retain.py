"""Unused sessions are erased in time; sessions in use, on hold or needed stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.erasure import Accesses, RetentionPolicy, Unused
from refold.domain.errors import InvalidConfiguration
from refold.store import SessionStore
from refold.store.erasure import Eraser, RetentionResult
from refold.testing.event_log import user_inputs
from tests.control.conftest import Later
from tests.support.engines import BOTH
from tests.support.operations import fill, log_of
from tests.support.stores import open_at
from tests.support.talking import talk

DAY = timedelta(days=1)
MONTH = RetentionPolicy(sessions=30 * DAY)


@pytest.fixture
def with_old_sessions(store: SessionStore) -> SessionStore:
    """Two users with a session each."""
    talk(store.session(user_id="ada", session_id="adas"), 2)
    talk(store.session(user_id="bob", session_id="bobs"), 2)
    return store


def session_ids(store: SessionStore) -> list[str]:
    return [info.session_id for info in store.sessions()]


def test_nothing_expires_by_default(
    with_old_sessions: SessionStore, later: Later
) -> None:
    done = later(with_old_sessions, 10_000 * DAY).erasures.retain(RetentionPolicy())

    assert done == RetentionResult(False, [], {}, 0, [])
    assert session_ids(with_old_sessions) == ["adas", "bobs"]


def test_unused_sessions_are_erased_with_a_certificate(
    with_old_sessions: SessionStore, later: Later
) -> None:
    then = later(with_old_sessions, 29 * DAY)
    talk(then.session(user_id="bob", session_id="bobs"), 1)

    done = later(with_old_sessions, 31 * DAY).erasures.retain(MONTH, operator="cron")

    assert done.sessions == [("ada", "adas")]
    assert session_ids(with_old_sessions) == ["bobs"]
    (erasure,) = done.erasures
    assert erasure.certificate is not None
    statement = erasure.certificate.statement
    assert (statement["reason"], statement["operator"]) == ("retention", "cron")
    assert statement["scope"] == "session"
    assert set(erasure.left.values()) == {0}
    assert with_old_sessions.erasures.pending() == []
    with pytest.raises(refold.Erased):
        with_old_sessions.session(user_id="ada", session_id="adas").append(
            user_inputs("x")
        )
    assert (
        with_old_sessions.session(user_id="ada", session_id="new")
        .append(user_inputs("x"))
        .first_seq
        == 1
    )


def test_a_dry_run_says_the_same_and_changes_nothing(
    with_old_sessions: SessionStore, later: Later
) -> None:
    then = later(with_old_sessions, 31 * DAY)

    planned = then.erasures.retain(MONTH, dry_run=True)

    assert planned.dry_run
    assert session_ids(with_old_sessions) == ["adas", "bobs"]
    assert with_old_sessions.erasures.certificates() == []
    assert then.erasures.retain(MONTH).sessions == planned.sessions
    assert session_ids(with_old_sessions) == []


def test_retention_erases_everything_of_a_session(
    store: SessionStore, later: Later
) -> None:
    fill(store, rounds=6)

    done = later(store, 31 * DAY).erasures.retain(MONTH)

    assert sorted(name for _, name in done.sessions) == ["fork", "s-1"]
    (erasure,) = done.erasures
    assert erasure.certificate is not None
    assert erasure.certificate.statement["counts"]["blobs"] == 1
    assert set(erasure.left.values()) == {0}


def test_reading_keeps_a_session_if_the_policy_says_so(
    with_old_sessions: SessionStore, later: Later
) -> None:
    read = log_of(with_old_sessions).retention
    in_use = later(with_old_sessions, 29 * DAY)
    counted = SessionStore(
        with_old_sessions.log,
        in_use.writer.redactor,
        in_use.writer.limits,
        clock=in_use.clock,
        count_uses=True,
    )
    counted.session(user_id="ada", session_id="adas").events()
    assert [access.reads for access in counted.access_log.accesses("ada")] == [1]
    then = later(with_old_sessions, 31 * DAY)

    by_use = RetentionPolicy(sessions=30 * DAY, since="access")
    assert then.erasures.retain(by_use).sessions == [("bob", "bobs")]
    assert then.erasures.retain(MONTH).sessions == [("ada", "adas")]
    assert read.accesses() == []


@pytest.mark.parametrize("kept_by", ["hold", "freeze"])
def test_held_and_frozen_users_are_left_alone(
    with_old_sessions: SessionStore, later: Later, kept_by: str
) -> None:
    if kept_by == "hold":
        with_old_sessions.erasures.hold("ada", "case 7", "a lawsuit")
    else:
        with_old_sessions.erasures.freeze("ada", "asked")

    done = later(with_old_sessions, 31 * DAY).erasures.retain(MONTH)

    assert done.sessions == [("bob", "bobs")]
    assert done.kept == {kept_by: 1}
    assert session_ids(with_old_sessions) == ["adas"]


def test_the_parent_of_a_used_fork_is_kept(
    with_old_sessions: SessionStore, later: Later
) -> None:
    with_old_sessions.session(user_id="ada", session_id="adas").fork(
        2, session_id="child"
    )
    with_old_sessions.session(user_id="ada", session_id="child").fork(
        1, session_id="grandchild"
    )
    talk(with_old_sessions.session(user_id="ada", session_id="apart"), 1)
    talk(
        later(with_old_sessions, 20 * DAY).session(
            user_id="ada", session_id="grandchild"
        ),
        1,
    )

    done = later(with_old_sessions, 31 * DAY).erasures.retain(MONTH)

    assert done.sessions == [("ada", "apart"), ("bob", "bobs")]
    assert done.kept == {"fork": 2}
    assert (
        with_old_sessions.session(user_id="ada", session_id="grandchild")
        .context("keep_all")
        .messages
    )
    assert len(later(with_old_sessions, 60 * DAY).erasures.retain(MONTH).sessions) == 3
    assert session_ids(with_old_sessions) == []


def test_a_user_whose_key_is_lost_does_not_stop_the_others(
    with_old_sessions: SessionStore, later: Later
) -> None:
    with_old_sessions.session(user_id="ada", session_id="adas").fork(
        2, session_id="child"
    )
    talk(
        later(with_old_sessions, 20 * DAY).session(user_id="ada", session_id="child"), 1
    )
    keys = log_of(with_old_sessions).keys
    ref = keys.user_ref("ada")
    keys.store.destroy_sessions(ref, keys.session_ref("ada", "child"), before=2)
    keys.forget("ada")

    done = later(with_old_sessions, 31 * DAY).erasures.retain(
        RetentionPolicy(30 * DAY, blobs=30 * DAY)
    )

    assert done.sessions == [("bob", "bobs")]
    assert done.kept == {"unreadable": 1}
    assert "adas" in session_ids(with_old_sessions)


def test_consents_never_expire(with_old_sessions: SessionStore, later: Later) -> None:
    with_old_sessions.user("ada").opt_out()

    later(with_old_sessions, 31 * DAY).erasures.retain(MONTH)

    (info,) = with_old_sessions.sessions("ada", internal=True)
    assert info.session_id == "_user"
    assert with_old_sessions.user("ada").status().memory_opt_out


@BOTH
@pytest.mark.parametrize("used", ["append", "read", "fork"])
def test_a_session_used_before_its_erasure_stays(
    with_old_sessions: SessionStore,
    later: Later,
    used: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check and the mark are one transaction, whatever was read before."""
    then = later(with_old_sessions, 31 * DAY)
    retention = type(log_of(with_old_sessions).retention)
    begin = retention.begin_unused

    def interrupted(self: Any, job: Any, unused: Unused) -> Any:
        if job.scope.user_id == "ada":
            session = then.session(user_id="ada", session_id="adas")
            if used == "append":
                session.append(user_inputs("still here"))
            elif used == "fork" and "child" not in session_ids(with_old_sessions):
                session.fork(2, session_id="child")
            elif used == "read":
                accesses = list(self.accesses("ada")) or [_access(then)]
                self.add_accesses("ada", accesses)
        return begin(self, job, unused)

    monkeypatch.setattr(retention, "begin_unused", interrupted)

    done = then.erasures.retain(RetentionPolicy(sessions=30 * DAY, since="access"))

    assert done.sessions == [("bob", "bobs")]
    assert "adas" in session_ids(with_old_sessions)
    assert then.session(user_id="ada", session_id="adas").events()
    assert [job.scope.user_id for job in with_old_sessions.erasures.pending()] == []


def _access(store: SessionStore) -> Any:
    return Accesses("ada", "adas", 1, store.clock())


def test_many_sessions_of_a_user_are_one_erasure(
    store: SessionStore, later: Later
) -> None:
    for number in range(7):
        store.session(user_id="ada", session_id=f"s{number}").append(user_inputs("x"))

    done = later(store, 31 * DAY).erasures.retain(MONTH)

    assert len(done.sessions) == 7
    assert [erasure.certificate is not None for erasure in done.erasures] == [True]


def test_the_next_run_completes_an_interrupted_one(
    with_old_sessions: SessionStore, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Eraser, "_count", cut)
        with pytest.raises(KeyboardInterrupt):
            later(with_old_sessions, 31 * DAY).erasures.retain(MONTH)
    assert len(with_old_sessions.erasures.pending()) == 1

    done = later(with_old_sessions, 31 * DAY).erasures.retain(MONTH)

    assert done.completed == 1
    assert (session_ids(with_old_sessions), with_old_sessions.erasures.pending()) == (
        [],
        [],
    )
    assert len(with_old_sessions.erasures.certificates()) == 2


@BOTH
def test_two_concurrent_retentions_erase_each_session_once(
    store_url: str, tmp_path: Path, later: Later
) -> None:
    with open_at(store_url, tmp_path) as first, open_at(store_url, tmp_path) as second:
        for user in "abcd":
            talk(first.session(user_id=user, session_id="s"), 1)

        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(later(store, 31 * DAY).erasures.retain, MONTH)
                for store in (first, second)
            ]
            for done in both:
                done.result()

        assert session_ids(first) == []
        assert first.erasures.pending() == []
        assert len(first.erasures.certificates()) == 4


def test_a_policy_is_read_from_toml() -> None:
    policy = RetentionPolicy.read('sessions = "12h"\nsince = "access"\naudit = "7d"\n')

    assert policy == RetentionPolicy(timedelta(hours=12), "access", audit=7 * DAY)


@pytest.mark.parametrize(
    "text",
    [
        'session = "30d"',
        "sessions = 30",
        'sessions = "30 days"',
        'sessions = "0d"',
        'since = "reading"',
        "sessions = ",
        'memory = "90d"',
        'memory = "90d"\nsessions = "91d"',
    ],
)
def test_a_policy_with_unknown_contents_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        RetentionPolicy.read(text)


def test_the_preset_keeps_the_audit_log_shortest() -> None:
    seed = RetentionPolicy.preset("seed")

    assert (seed.sessions, seed.memory) == (30 * DAY, 90 * DAY)
    assert seed.audit is not None
    assert seed.sessions is not None
    assert seed.audit < seed.sessions
    with pytest.raises(InvalidConfiguration, match="seed"):
        RetentionPolicy.preset("none")
