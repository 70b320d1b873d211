"""A record names a user while the user's key exists, and nobody afterwards."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import refold
from refold.domain.errors import Frozen, OnHold
from refold.store import SessionStore
from tests.support.auditing import APPENDED, WINDOW, records, session_of, talk
from tests.support.stores import prepare


def test_missing_and_erased_names_are_recorded_as_denied(audited: SessionStore) -> None:
    talk(session_of(audited), 1)
    talk(audited.session(user_id="bob", session_id="b-1"), 1)
    earlier = len(records(audited))

    for call in (
        lambda: audited.session(user_id="bob", session_id="s-1").events(),
        lambda: audited.session(user_id="bob", session_id="s-1").context(WINDOW),
        lambda: list(
            audited.session(user_id="bob", session_id="s-1").history.timeline()
        ),
        lambda: audited.session(user_id="mallory", session_id="s-1").head(),
    ):
        with pytest.raises(refold.SessionNotFound):
            call()

    denied = records(audited)[earlier:]
    assert {(record.status, record.level, record.error_code) for record in denied} == {
        ("denied", "WARN", "SessionNotFound")
    }
    bob = records(audited, "bob")[0].user
    assert [record.user for record in denied] == [bob, bob, bob, None]


def test_a_hold_denies_an_erasure(audited: SessionStore) -> None:
    talk(session_of(audited), 1)
    audited.erasures.hold("ada", "case 7", "asked by a court")

    with pytest.raises(OnHold):
        audited.erase("ada", "asked")

    record = records(audited)[-1]
    assert (record.event, record.status) == ("erasure", "denied")
    assert record.error_code == OnHold.__name__


def test_an_append_for_a_frozen_user_is_denied(audited: SessionStore) -> None:
    talk(session_of(audited), 1)
    audited.erasures.freeze("ada", "asked by a court")

    with pytest.raises(Frozen):
        talk(session_of(audited), 1)

    record = records(audited)[-1]
    assert (record.event, record.status) == (APPENDED, "denied")
    assert record.error_code == "Frozen"


def test_no_record_names_an_erased_user(audited: SessionStore) -> None:
    talk(session_of(audited), 3)
    audited.session(user_id="ada", session_id="s-2").append(
        refold.UserInput(text="x"), request_id="r"
    )
    talk(audited.session(user_id="bob", session_id="s-1"), 1)
    hashes = {record.user for record in records(audited, "ada")}
    bobs = records(audited, "bob")

    audited.erase("ada", "asked")
    with pytest.raises(refold.Erased):
        session_of(audited).events()

    all_records = records(audited)
    assert hashes.isdisjoint(record.user for record in all_records)
    named = [record for record in all_records if record.user is not None]
    assert named == bobs
    for record in all_records:
        if record.user is None:
            assert (record.session, record.request, record.state_version) == (
                None,
                None,
                None,
            )
    with pytest.raises(refold.Erased):
        audited.access_log.records("ada")


def test_a_readmitted_user_gets_a_new_hash(audited: SessionStore) -> None:
    talk(session_of(audited), 1)
    before = records(audited, "ada")[0]
    audited.erase("ada", "asked")

    audited.erasures.readmit("ada", "asked again")
    talk(session_of(audited), 1)

    (after,) = records(audited, "ada")
    assert after.user != before.user
    assert after.session != before.session


def test_an_erased_session_is_no_longer_named(audited: SessionStore) -> None:
    talk(session_of(audited), 2)
    talk(audited.session(user_id="ada", session_id="s-2"), 1)
    others = records(audited, "ada", "s-2")

    audited.erase("ada", "asked", session_id="s-1")

    assert records(audited, "ada", "s-1") == []
    assert [record for record in records(audited) if record.user is not None] == others


def test_an_erasure_without_access_log_removes_records_of_others(
    store_url: str, tmp_path: Path
) -> None:
    url = prepare(store_url, tmp_path)
    with refold.open(url, access_log="table") as store:
        talk(session_of(store), 2)

    with refold.open(url) as quiet:
        quiet.erase("ada", "asked")
        assert [record.user for record in quiet.access_log.records()] == [None, None]


def test_a_rotated_key_still_names_its_user(audited: SessionStore) -> None:
    talk(session_of(audited), 1)

    audited.keys.rotate_user("ada")
    talk(session_of(audited), 1)

    events = [record.event for record in records(audited, "ada")]
    assert events == [APPENDED, "key_rotation", APPENDED]


def test_an_unknown_user_has_no_records(audited: SessionStore) -> None:
    talk(session_of(audited), 1)

    assert records(audited, "nobody") == []


@pytest.mark.parametrize("grace", [None, timedelta(days=1)])
def test_a_process_with_the_old_key_does_not_name_an_erased_user(
    audited: SessionStore, store_url: str, tmp_path: Path, grace: timedelta | None
) -> None:
    talk(session_of(audited), 1)
    with refold.open(prepare(store_url, tmp_path)) as other:
        other.erase("ada", "asked", grace=grace)

    for _ in range(2):
        with pytest.raises(refold.Erased):
            session_of(audited).append(refold.UserInput(text="x"))

    refused = [record for record in records(audited) if record.error_code == "Erased"]
    assert [record.status for record in refused] == ["denied", "denied"]
    assert {record.user for record in refused} == {None}


def test_a_completed_scheduled_erasure_leaves_no_name(
    audited: SessionStore,
) -> None:
    talk(session_of(audited), 2)
    (hashed_user,) = {record.user for record in records(audited)}
    audited.erase("ada", "asked", grace=timedelta(days=1))
    assert hashed_user in {record.user for record in records(audited)}

    audited.erase("ada", "asked for at once")

    assert {record.user for record in records(audited)} == {None}


def test_a_cancelled_erasure_keeps_the_records(audited: SessionStore) -> None:
    talk(session_of(audited), 2)
    before = records(audited, "ada")
    audited.erase("ada", "asked", grace=timedelta(days=1))

    audited.erasures.restore("ada", "a mistake")

    assert records(audited, "ada") == before
