"""A killed erasure or rotation is detected, and completed by the next run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import refold
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import fill
from tests.support import warm
from tests.support.engines import BOTH
from tests.support.eraser import (
    ACTS,
    AFTER_CERTIFICATE,
    BEFORE_CERTIFICATE,
    ERASING,
    HOLDING,
    NEW_KEY_STORED,
    OF_A_USER,
    RESTORING,
    ROTATING,
)
from tests.support.nested import problems_of
from tests.support.stores import open_at, prepare


def run_until_killed(url: str, work: str, step: str) -> None:
    process = warm.module("tests.support.eraser", url, work, step)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def problems(store: SessionStore) -> list[str]:
    return [problem.code for problem in problems_of(store.verify())]


@pytest.fixture
def filled_url(store_url: str, tmp_path: Path) -> str:
    """The URL of a closed store with two users."""
    with open_at(prepare(store_url, tmp_path), tmp_path) as store:
        fill(store, "ada", "one")
        fill(store, "bob", "bobs")
    return store_url


@BOTH
@pytest.mark.parametrize("step", ERASING)
def test_a_killed_erasure_is_detected_and_completed(
    filled_url: str, tmp_path: Path, step: str
) -> None:
    run_until_killed(filled_url, "erase", step)

    with open_at(filled_url, tmp_path) as store:
        begun = step not in ("nothing is done", "it is certified")
        assert problems(store) == (["erasure"] if begun else [])
        if begun:
            (erased,) = store.erasures.complete()
            assert erased.certificate is not None
            assert erased.certificate.statement["counts"]["events"] == 20
        else:
            erased = store.erase("ada", "she asked")
            assert erased.already == (step == "it is certified")
        assert set(erased.left.values()) == {0}
        assert len(store.erasures.certificates()) == 1
        assert problems(store) == []
        assert store.session(user_id="bob", session_id="bobs").events()
        with pytest.raises(refold.Erased):
            store.session(user_id="ada", session_id="one").events()


@BOTH
@pytest.mark.parametrize("step", ["heads are marked", "keys are destroyed"])
def test_marked_sessions_stay_unusable_after_a_kill(
    filled_url: str, tmp_path: Path, step: str
) -> None:
    run_until_killed(filled_url, "erase", step)

    with open_at(filled_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="one")
        for use in (
            session.events,
            session.context,
            lambda: session.append(user_inputs("x")),
        ):
            with pytest.raises(refold.Erased):
                use()


@BOTH
@pytest.mark.parametrize("step", HOLDING)
def test_a_killed_hold_is_completed(filled_url: str, tmp_path: Path, step: str) -> None:
    run_until_killed(filled_url, "erase-with-grace", step)

    with open_at(filled_url, tmp_path) as store:
        assert problems(store) == ["erasure"]
        assert [state.due_at is None for state in store.erasures.complete()] == [False]
        assert problems(store) == []
        store.erasures.restore("ada", "a mistake")
        assert store.session(user_id="ada", session_id="one").events()


@BOTH
@pytest.mark.parametrize("step", RESTORING)
def test_a_killed_restoration_is_completed(
    filled_url: str, tmp_path: Path, step: str
) -> None:
    with open_at(filled_url, tmp_path) as store:
        store.erase("ada", "she asked", grace=timedelta(days=1))
    run_until_killed(filled_url, "restore", step)

    with open_at(filled_url, tmp_path) as store:
        assert problems(store) == ["erasure"]
        assert list(store.erasures.complete()) == []
        assert store.session(user_id="ada", session_id="one").events()
        assert problems(store) == []
        assert store.erasures.pending() == []


@BOTH
@pytest.mark.parametrize("step", ROTATING)
def test_a_killed_rotation_of_the_master_key_is_completed(
    filled_url: str, tmp_path: Path, step: str
) -> None:
    run_until_killed(filled_url, "rotate-master", step)

    with open_at(filled_url, tmp_path) as store:
        assert store.session(user_id="ada", session_id="one").events()
        store.session(user_id="eve", session_id="new").append(user_inputs("x"))
        assert store.keys.rotate_master() > 0
        assert store.keys.status()["stale"] == 0
        assert problems(store) == []


@BOTH
@pytest.mark.parametrize("step", OF_A_USER)
def test_a_killed_rotation_of_a_users_key_leaves_one_key(
    filled_url: str, tmp_path: Path, step: str
) -> None:
    run_until_killed(filled_url, "rotate-user", step)

    with open_at(filled_url, tmp_path) as store:
        assert store.session(user_id="ada", session_id="one").events()
        assert store.keys.rotate_user("ada") == 2
        assert store.session(user_id="ada", session_id="one").events()
        assert problems(store) == []


# The operations before the act, and the result of the act.
BEFORE: dict[str, Callable[[SessionStore], object]] = {
    "hold": lambda store: store.erasures.holds("ada"),
    "release": ACTS["hold"],
    "freeze": lambda store: store.erasures.holds("ada"),
    "unfreeze": ACTS["freeze"],
    "readmit": lambda store: store.erase("ada", "asked"),
}


def _acts(store: SessionStore) -> list[str]:
    return [
        certificate.statement["act"]
        for certificate in store.erasures.certificates("ada")
    ]


def _state(store: SessionStore) -> tuple[list[str], str]:
    """Return the holds on ada, and whether she can be written about."""
    holds = [hold.name for hold in store.erasures.holds("ada")]
    try:
        store.session(user_id="ada", session_id="new").append(user_inputs("x"))
    except refold.RefoldError as error:
        return holds, type(error).__name__
    return holds, "written"


@BOTH
@pytest.mark.parametrize("act", ACTS)
def test_a_killed_process_leaves_an_act_with_its_certificate_or_neither(
    filled_url: str, tmp_path: Path, act: str
) -> None:
    with open_at(filled_url, tmp_path) as store:
        BEFORE[act](store)
        acts = _acts(store)
        state = _state(store)

    run_until_killed(filled_url, act, BEFORE_CERTIFICATE)

    with open_at(filled_url, tmp_path) as store:
        assert (_acts(store), _state(store)) == (acts, state)
        assert problems(store) == []

    run_until_killed(filled_url, act, AFTER_CERTIFICATE)

    with open_at(filled_url, tmp_path) as store:
        assert len(_acts(store)) == len(acts) + 1
        assert _state(store) != state
        assert problems(store) == []


@BOTH
def test_a_readmission_killed_between_the_stores_is_completed(
    filled_url: str, tmp_path: Path
) -> None:
    with open_at(filled_url, tmp_path) as store:
        store.erase("ada", "asked")
    run_until_killed(filled_url, "readmit", NEW_KEY_STORED)

    with open_at(filled_url, tmp_path) as store:
        assert (_acts(store), _state(store)) == (["erased"], ([], "Erased"))
        assert problems(store) == []
        signed = store.erasures.readmit("ada", "asked")
        assert signed.statement["epoch"] == 2
        assert store.erasures.certificates("ada")[-1] == signed
        assert _state(store) == ([], "written")
        assert problems(store) == []
