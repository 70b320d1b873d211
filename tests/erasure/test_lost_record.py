"""An erasure whose record was deleted is detected, and can be completed or undone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from refold.domain.erasure import ErasureScope
from refold.domain.errors import Erased, NotErased, UserNotFound
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.engines import BOTH
from tests.support.nested import problems_of
from tests.support.operations import log_of

pytestmark = BOTH
GRACE = timedelta(days=30)


def delete_erasure_records(store: SessionStore) -> None:
    """Delete every record of an erasure with SQL."""
    database = log_of(store).recorder.database
    database.run("", sa.delete(database.tables.erasures))
    assert store.erasures.pending() == []


def interrupt_erasure_before(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Begin an erasure of ada that is interrupted before a step."""
    steps: Any = type(log_of(store).erasures)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(steps, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.erase("ada", "asked")


def test_a_lost_grace_can_be_restored(filled: SessionStore) -> None:
    before = filled.session(user_id="ada", session_id="one").events()
    filled.erase("ada", "asked", grace=GRACE)
    delete_erasure_records(filled)
    (stranded,) = filled.erasures.stranded()
    assert stranded == (ErasureScope("ada"), True)

    signed = filled.erasures.restore("ada", "a mistake")

    assert signed.statement["act"] == "restored"
    assert filled.session(user_id="ada", session_id="one").events() == before
    assert filled.erasures.stranded() == []
    assert filled.erasures.pending() == []
    assert problems_of(filled.verify()) == []


def test_a_lost_grace_of_one_session_can_be_restored(filled: SessionStore) -> None:
    filled.erase("ada", "asked", session_id="one", grace=GRACE)
    delete_erasure_records(filled)
    (stranded,) = filled.erasures.stranded("ada")
    assert stranded == (ErasureScope("ada", ("one", "one-fork")), True)

    filled.erasures.restore("ada", "a mistake")

    assert filled.session(user_id="ada", session_id="one").events()
    assert filled.erasures.stranded() == []


def test_a_lost_grace_is_named_and_destroyed_only_on_request(
    filled: SessionStore,
) -> None:
    filled.erase("ada", "asked", grace=GRACE)
    delete_erasure_records(filled)

    assert list(filled.erasures.complete()) == []
    problems = problems_of(filled.verify("ada"))
    assert any("`refold restore` undoes it" in p.detail for p in problems)

    done = filled.erase("ada", "asked again")

    assert done.certificate is not None
    assert set(done.left.values()) == {0}
    assert filled.erasures.stranded() == []
    assert log_of(filled).erasures.key_status()["held"] == 0
    with pytest.raises(NotErased):
        filled.erasures.restore("ada", "too late")


def test_an_erasure_without_keys_is_completed_without_its_record(
    filled: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_erasure_before(filled, monkeypatch, "remains")
    delete_erasure_records(filled)
    assert filled.erasures.stranded() == [(ErasureScope("ada"), False)]
    with pytest.raises(NotErased):
        filled.erasures.restore("ada", "a mistake")

    (done,) = filled.erasures.complete()

    assert done.certificate is not None
    assert set(done.left.values()) == {0}
    assert filled.erasures.stranded() == []
    with pytest.raises(Erased):
        filled.session(user_id="ada", session_id="one").append(user_inputs("x"))


def test_an_erasure_interrupted_before_its_keys_are_destroyed_can_be_undone(
    filled: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_erasure_before(filled, monkeypatch, "destroy_keys")
    delete_erasure_records(filled)
    assert filled.erasures.stranded() == [(ErasureScope("ada"), True)]

    filled.erasures.restore("ada", "a mistake")

    assert filled.session(user_id="ada", session_id="one").events()


def test_an_erasure_with_its_record_is_not_stranded(filled: SessionStore) -> None:
    filled.erase("ada", "asked", grace=GRACE)
    filled.erase("bob", "asked", session_id="bobs", grace=GRACE)

    assert filled.erasures.stranded() == []


def test_a_plan_for_an_unknown_user_is_refused(filled: SessionStore) -> None:
    with pytest.raises(UserNotFound):
        filled.erasures.plan("nobody")

    plan = filled.erasures.plan("nobody", absent_ok=True)

    assert plan.sessions == []
    assert not plan.already


def test_a_plan_says_that_the_user_was_erased_before(filled: SessionStore) -> None:
    filled.erase("ada", "asked")

    assert filled.erasures.plan("ada").already
    assert not filled.erasures.plan("bob").already
