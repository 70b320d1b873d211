"""An erased user has no data, no keys, no way back; only a certificate is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import refold
from refold.adapters.keys.signatures import signed_by
from refold.domain.erasure import FORMAT, ErasureScope, LegalHold, Signed, subject
from refold.domain.ports import Problem
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.store import SessionStore
from refold.store.contexts import Viewer
from refold.store.erasure import Eraser, ErasureRequest
from refold.store.history import History
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.nested import problems_of
from tests.support.operations import log_of

FORK = "one-fork"
TURNS = TurnWindow()


def problems(store: SessionStore) -> list[Problem]:
    return problems_of(store.verify())


def blob_digest(store: SessionStore) -> str:
    """Return the SHA-256 of a blob of ada's."""
    shown = (
        store.session(user_id="ada", session_id="one").events()[16].payload.payload()
    )
    return str(shown["text"]).split('blob("')[1].split('"')[0]


def test_an_erasure_leaves_nothing_of_the_user_and_everything_of_others(
    filled: SessionStore,
) -> None:
    before = filled.session(user_id="bob", session_id="bobs").events()

    erased = filled.erase("ada", "she asked")

    assert set(erased.left.values()) == {0}
    assert {info.user_id for info in filled.sessions(internal=True)} == {"bob"}
    assert filled.session(user_id="bob", session_id="bobs").events() == before
    assert filled.session(user_id="bob", session_id="bobs-fork").context(WINDOW)
    assert problems(filled) == []
    assert filled.erasures.pending() == []


def test_an_erased_user_can_neither_be_read_nor_written(filled: SessionStore) -> None:
    session = filled.session(user_id="ada", session_id="one")
    sha256 = blob_digest(filled)
    assert session.history.blob(sha256)
    filled.erase("ada", "she asked")

    for use in (
        session.head,
        session.events,
        session.context,
        session.prepare,
        session.state,
        session.compact,
        session.strategies.catch_up,
        lambda: list(session.history.pages()),
        lambda: list(session.history.timeline()),
        lambda: list(session.proofs.replay()),
        lambda: session.fork(1, session_id="again"),
        lambda: session.append(user_inputs("x")),
        lambda: session.append(user_inputs("x"), expected_seq=18),
        lambda: session.append(user_inputs("x"), idempotency_key="once"),
        lambda: session.history.blob(sha256),
        lambda: filled.session(user_id="ada", session_id="new").append(
            user_inputs("x")
        ),
        lambda: filled.session(user_id="ada", session_id=FORK).context(),
        lambda: filled.session(user_id="ada", session_id=FORK).append(user_inputs("x")),
    ):
        with pytest.raises(refold.Erased):
            use()
    assert sum(filled.erasures.plan("ada").counts.values()) == 0


def test_a_certificate_names_its_user_only_with_the_salt(
    filled: SessionStore,
) -> None:
    counts = filled.erasures.plan("ada").counts

    erased = filled.erase("ada", "ada wrote from ada@lovelace.test", operator="ops-7")

    signed = erased.certificate
    assert signed is not None
    statement = signed.statement
    assert statement["counts"] == counts
    assert counts["events"] == statement["leaves"]["count"] == 20
    assert statement["reason"] == "[REDACTED:USER_ID] wrote from [REDACTED:EMAIL]"
    assert statement["operator"] == "ops-7"
    assert statement["subject"] == subject(bytes.fromhex(erased.salt), "ada")
    assert not re.search(rb"\bada\b", signed.message())
    assert (
        filled.erasures.certificates("ada")
        == filled.erasures.certificates()
        == [signed]
    )


def test_a_certificate_is_checked_with_the_public_key_alone(
    filled: SessionStore,
) -> None:
    signed = filled.erase("ada", "she asked").certificate
    assert signed is not None

    forged = Signed.read(
        str(signed.to_json())
        .replace("'", '"')
        .replace("she asked", "he asked")
        .replace("None", "null")
    )

    key = filled.erasures.public_key()
    assert signed_by(key, signed.signature, signed.message())
    assert not signed_by(key, forged.signature, forged.message())


def test_a_store_in_memory_erases_too() -> None:
    with refold.open("memory://") as store:
        for user_id in ("ada", "bob"):
            fill(store, user_id, "one")
        before = store.erasures.plan("ada").counts

        erased = store.erase("ada", "she asked")

        assert before["events"] == 20
        assert set(erased.left.values()) == {0}
        assert problems(store) == []
        assert store.session(user_id="bob", session_id="one").events()
        for name in ("one", "new"):
            with pytest.raises(refold.Erased):
                store.session(user_id="ada", session_id=name).append(user_inputs("x"))
        store.erasures.readmit("ada", "back")
        store.erase("bob", "a slip", session_id="one")
        store.session(user_id="bob", session_id="two").append(user_inputs("x"))
        store.erase("bob", "he asked", grace=timedelta(days=1))
        store.erasures.restore("bob", "a mistake")
        assert [info.session_id for info in store.sessions("bob")] == ["two"]


def test_a_repeated_erasure_does_nothing_and_says_so(filled: SessionStore) -> None:
    first = filled.erase("ada", "she asked")

    again = filled.erase("ada", "she asked again")

    assert again.already
    assert again.certificate == first.certificate
    assert again.salt == ""
    assert len(filled.erasures.certificates()) == 1


def test_an_unknown_user_can_be_erased_and_cannot_begin(
    store: SessionStore,
) -> None:
    with pytest.raises(refold.errors.UserNotFound) as refused:
        store.erase("nobody", "asked before they came")
    erased = store.erase("nobody", "asked before they came", absent_ok=True)

    assert refused.value.database
    assert refused.value.database in str(refused.value)
    assert "nobody" not in str(refused.value).replace(refused.value.database, "")
    assert erased.certificate is not None
    assert erased.certificate.statement["counts"]["events"] == 0
    with pytest.raises(refold.Erased):
        store.session(user_id="nobody", session_id="s").append(user_inputs("x"))


def test_an_erased_user_is_not_reported_as_absent(filled: SessionStore) -> None:
    filled.erase("ada", "asked")

    again = filled.erase("ada", "asked again")

    assert again.already


def test_a_user_whose_last_session_was_erased_is_not_absent(
    store: SessionStore,
) -> None:
    store.session(user_id="ada", session_id="only").append(user_inputs("x"))
    store.erase("ada", "asked", session_id="only")

    erased = store.erase("ada", "asked for all")

    assert erased.certificate is not None
    assert erased.certificate.statement["scope"] == "user"


def test_a_refused_name_may_still_begin(store: SessionStore) -> None:
    with pytest.raises(refold.errors.UserNotFound):
        store.erase("nobdy", "mistyped")

    store.session(user_id="nobdy", session_id="s").append(user_inputs("x"))
    assert store.erasures.certificates("nobdy") == []


def test_a_plan_counts_and_changes_nothing(filled: SessionStore) -> None:
    before = filled.stats("ada")

    plan = filled.erasures.plan("ada")

    assert plan.sessions == ["one", FORK]
    assert plan.counts["events"] == before["events"]
    assert plan.counts["blobs"] == 1
    assert filled.session(user_id="ada", session_id="one").events()


def test_erasing_a_session_erases_its_forks_and_no_other(
    filled: SessionStore,
) -> None:
    fill(filled, "ada", "two")
    plan = filled.erasures.plan("ada", session_id="one")

    erased = filled.erase("ada", "a slip", session_id="one")

    assert plan.sessions == ["one", FORK]
    assert plan.counts["blobs"] == 1
    assert set(erased.left.values()) == {0}
    assert [info.session_id for info in filled.sessions("ada")] == ["two", "two-fork"]
    assert problems(filled) == []
    for name in ("one", FORK):
        for use in (
            filled.session(user_id="ada", session_id=name).events,
            filled.session(user_id="ada", session_id=name).head,
        ):
            with pytest.raises(refold.Erased):
                use()
        with pytest.raises(refold.Erased):
            filled.session(user_id="ada", session_id=name).append(user_inputs("x"))
    assert filled.erase("ada", "a slip", session_id="one").already


def test_a_missing_session_cannot_be_erased(filled: SessionStore) -> None:
    with pytest.raises(refold.SessionNotFound):
        filled.erase("ada", "a slip", session_id="none")

    assert filled.erasures.pending() == []


def test_a_legal_hold_forbids_to_erase_until_it_is_released(
    filled: SessionStore,
) -> None:
    filled.erasures.hold("ada", "case-17", "a court asked; mail a@b.test")

    for session_id in (None, "one"):
        with pytest.raises(refold.errors.OnHold, match=r"case-17.*EMAIL.*release"):
            filled.erase("ada", "she asked", session_id=session_id)
    assert filled.session(user_id="ada", session_id="one").append(
        user_inputs("goes on")
    )
    assert filled.erasures.plan("ada").holds == ["case-17"]
    assert filled.erasures.hold("ada", "case-17", "again") is None

    filled.erasures.release("ada", "case-17", "it is over")
    assert set(filled.erase("ada", "she asked").left.values()) == {0}
    acts = [signed.statement["act"] for signed in filled.erasures.certificates("ada")]
    assert acts == ["legal hold", "legal hold released", "erased"]


def test_data_on_hold_is_unreadable_and_can_be_restored(
    filled: SessionStore,
) -> None:
    before = filled.session(user_id="ada", session_id="one").events()
    context = filled.session(user_id="ada", session_id=FORK).context(WINDOW)

    scheduled = filled.erase("ada", "she asked", grace=timedelta(days=30))

    assert scheduled.due_at is not None
    assert scheduled.certificate is None
    for use in (
        filled.session(user_id="ada", session_id="one").events,
        filled.session(user_id="ada", session_id="x").head,
    ):
        with pytest.raises(refold.Erased):
            use()
    assert problems(filled) == []
    assert list(filled.erasures.complete()) == []
    signed = filled.erasures.restore("ada", "she changed her mind", operator="ops")
    assert signed.statement["act"] == "restored"
    assert signed.texts == {"reason": "she changed her mind", "operator": "ops"}
    assert filled.session(user_id="ada", session_id="one").events() == before
    assert (
        filled.session(user_id="ada", session_id=FORK).context(WINDOW).digest
        == context.digest
    )
    assert filled.session(user_id="ada", session_id="new").append(user_inputs("x"))
    assert problems(filled) == []
    with pytest.raises(refold.errors.NotErased):
        filled.erasures.restore("ada", "again")


def test_data_on_hold_is_destroyed_at_its_date(filled: SessionStore) -> None:
    filled.erase("ada", "she asked", grace=timedelta(days=30))
    later = filled.clock() + 31 * 86_400 * 1_000_000
    writer = filled.session(user_id="ada", session_id="x").writer
    then = SessionStore(filled.log, writer.redactor, writer.limits, clock=lambda: later)

    (erased,) = then.erasures.complete()

    assert set(erased.left.values()) == {0}
    assert filled.erasures.pending() == []
    with pytest.raises(refold.errors.NotErased):
        filled.erasures.restore("ada", "too late")


def test_data_on_hold_can_be_erased_earlier(filled: SessionStore) -> None:
    filled.erase("ada", "she asked", grace=timedelta(days=30))

    erased = filled.erase("ada", "now")

    assert erased.certificate is not None
    assert erased.certificate.statement["keys"] > 0
    assert set(erased.left.values()) == {0}


def test_a_held_session_stays_held_when_its_user_is_restored(
    filled: SessionStore,
) -> None:
    fill(filled, "ada", "two")
    filled.erase("ada", "a slip", session_id="one")
    filled.erase("ada", "she asked", grace=timedelta(days=1))

    filled.erasures.restore("ada", "a mistake")

    assert filled.session(user_id="ada", session_id="two").events()
    with pytest.raises(refold.Erased):
        filled.session(user_id="ada", session_id="one").events()


def test_nothing_names_an_erased_user_with_a_held_session(
    filled: SessionStore,
) -> None:
    filled.erase("ada", "one first", session_id="one", grace=timedelta(days=30))

    filled.erase("ada", "then all")

    assert filled.erasures.pending() == []
    with pytest.raises(refold.errors.NotErased):
        filled.erasures.restore("ada", "there is nothing to restore")


@pytest.mark.parametrize("name", ["grace", "key_backups"])
@pytest.mark.parametrize("span", [timedelta.max, timedelta(seconds=-1)])
def test_an_impossible_time_is_refused_and_nothing_is_erased(
    filled: SessionStore, name: str, span: timedelta
) -> None:
    options: Any = {name: span}

    with pytest.raises(refold.RefoldError, match=name):
        filled.erase("ada", "she asked", **options)

    assert filled.session(user_id="ada", session_id="one").events()
    assert filled.erasures.pending() == []


def test_a_user_returns_only_by_readmission_and_without_data(
    filled: SessionStore,
) -> None:
    filled.erase("ada", "she asked")

    signed = filled.erasures.readmit("ada", "she came back")

    assert signed.statement["epoch"] == 2
    assert filled.sessions("ada", internal=True) == []
    session = filled.session(user_id="ada", session_id="one")
    session.append(user_inputs("again"), idempotency_key="once")
    assert len(session.events()) == 1
    assert problems(filled) == []
    with pytest.raises(refold.errors.NotErased):
        filled.erasures.readmit("ada", "twice")
    with pytest.raises(refold.errors.NotErased):
        filled.erasures.readmit("bob", "never gone")
    assert set(filled.erase("ada", "gone again").left.values()) == {0}
    assert filled.erasures.readmit("ada", "and again").statement["epoch"] == 3


@pytest.mark.parametrize("returns", [False, True])
def test_no_view_of_an_erased_session_is_stored(
    filled: SessionStore, returns: bool
) -> None:
    session = filled.session(user_id="ada", session_id="one")
    log = log_of(filled)
    viewer = Viewer(log, History.of(log, session.head().state))
    outline = viewer.current(TURNS)
    filled.erase("ada", "she asked")
    if returns:
        filled.erasures.readmit("ada", "she came back")

    with pytest.raises(refold.Erased):
        viewer._store(TURNS, outline, None, None)


def test_events_without_a_head_are_erased_too(filled: SessionStore) -> None:
    recorder = log_of(filled).recorder
    with recorder.database.engine().begin() as connection:
        heads = recorder.database.tables.heads
        connection.execute(heads.delete().where(heads.c.session_id == FORK))

    erased = filled.erase("ada", "she asked")

    assert set(erased.left.values()) == {0}
    assert erased.certificate is not None
    assert erased.certificate.statement["counts"]["events"] == 20


def test_the_users_own_stream_cannot_be_erased_alone(
    store: SessionStore,
) -> None:
    store.user("ada").consent("declarative_memory", reason="asked")

    with pytest.raises(refold.InvalidEvent, match="belongs to the whole user"):
        store.erase("ada", "asked", session_id="_user")


def test_reasons_of_holds_are_redacted_and_erased_with_the_user(
    filled: SessionStore,
) -> None:
    name = "case of bob@evil.test"
    why = "because of a call to 13812345678, says Zebulon"
    certificate = filled.erasures.hold("ada", name, why, operator="Zebulon")
    again = filled.erasures.hold("ada", name, why)
    (hold,) = filled.erasures.holds("ada")
    filled.erasures.release("ada", name, why)
    filled.erasures.freeze("ada", why)
    filled.erasures.unfreeze("ada", why)
    before = filled.erasures.certificates("ada")

    filled.erase("ada", "asked")

    redacted_reason = "because of a call to [REDACTED:PHONE], says Zebulon"
    assert (certificate is not None, again) == (True, None)
    assert (hold.name[:9], hold.reason) == ("redacted_", redacted_reason)
    assert [act.texts and act.texts["reason"] for act in before] == [
        redacted_reason
    ] * 4
    assert before[0].texts == {
        "reason": redacted_reason,
        "operator": "Zebulon",
        "hold": hold.name,
    }
    *acts, erased = filled.erasures.certificates("ada")
    assert [act.statement for act in acts] == [act.statement for act in before]
    assert [act.texts for act in acts] == [None] * 4
    assert erased.statement["reason"] == "asked"
    assert "Zebulon" not in str([act.to_json() for act in acts])
    assert "redacted_" not in str([act.to_json() for act in acts])
    assert not filled.erasures.holds("ada")


def test_two_holds_with_redacted_names_stay_two(filled: SessionStore) -> None:
    for name in ("a@evil.test", "b@evil.test"):
        assert filled.erasures.hold("ada", name, "order") is not None

    assert len({hold.name for hold in filled.erasures.holds("ada")}) == 2


def test_an_erased_user_cannot_be_held(filled: SessionStore) -> None:
    filled.erase("ada", "asked")

    with pytest.raises(refold.errors.Erased):
        filled.erasures.hold("ada", "case", "late order")


def test_a_hold_that_came_too_late_goes_with_the_user(filled: SessionStore) -> None:
    erasures = log_of(filled).erasures
    statement: Any = {"format": FORMAT, "act": "legal hold", "certificate_id": "c-1"}
    certificate = erasures.sign("ada", statement, now=1)
    filled.erase("ada", "asked", grace=timedelta(days=1))
    erasures.hold("ada", LegalHold("case", "late order", 1), certificate)

    filled.erase("ada", "asked")

    assert not filled.erasures.holds("ada")


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.erasures.hold("nobody", "case", "order"),
        lambda store: store.erasures.freeze("nobody", "order"),
        lambda store: store.keys.rotate_user("nobody"),
    ],
    ids=["hold", "freeze", "rotate"],
)
def test_an_act_on_a_missing_user_is_refused(
    filled: SessionStore, act: Callable[[SessionStore], Any]
) -> None:
    with pytest.raises(refold.errors.UserNotFound) as refused:
        act(filled)

    assert refused.value.user_id == "nobody"
    assert filled.erasures.certificates("nobody") == []
    assert not filled.erasures.holds("nobody")
    with pytest.raises(refold.errors.UserNotFound):
        filled.erase("nobody", "asked")


def test_a_future_user_can_be_frozen(filled: SessionStore) -> None:
    signed = filled.erasures.freeze("carol", "order", absent_ok=True)

    assert signed is not None
    assert filled.erasures.is_frozen("carol")
    with pytest.raises(refold.errors.Frozen):
        filled.session(user_id="carol", session_id="s").append(
            refold.UserInput(text="x")
        )
    assert filled.erasures.unfreeze("carol", "settled") is not None


def test_a_future_user_can_be_held(filled: SessionStore) -> None:
    signed = filled.erasures.hold(
        "carol", "case", "order", operator="op", absent_ok=True
    )

    assert signed is not None
    assert filled.erasures.certificates("carol") == [signed]
    with pytest.raises(refold.errors.OnHold):
        filled.erase("carol", "asked", absent_ok=True)


def test_an_interrupted_erasure_keeps_the_salt_of_the_caller(
    filled: SessionStore,
) -> None:
    salt = b"s" * 32
    request = ErasureRequest(ErasureScope("ada"), "asked", "", salt=salt)
    filled.log.erasures.begin(Eraser(filled.writer).new_job(request))

    (erased,) = filled.erasures.complete()

    assert erased.certificate is not None
    assert erased.certificate.statement["subject"] == subject(salt, "ada")
    assert erased.salt == salt.hex()
