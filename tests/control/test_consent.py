"""A user's permissions are recorded as events, and the latest one counts."""

from __future__ import annotations

import pytest

import refold
from refold.domain.errors import InvalidEvent
from refold.store import SessionStore
from refold.store.memory.consent import DECLARATIVE_MEMORY
from tests.support.nested import problems_of
from tests.support.talking import talk


def test_consent_is_denied_until_it_is_given(store: SessionStore) -> None:
    status = store.user("ada").status()

    assert not status.declarative_memory
    assert not status.memory_opt_out
    assert not status.allows("newsletter")
    assert store.sessions("ada") == []


def test_the_latest_permission_counts(store: SessionStore) -> None:
    ada = store.user("ada")
    ada.consent(DECLARATIVE_MEMORY, reason="asked at the start")
    assert ada.status().declarative_memory

    ada.withdraw(DECLARATIVE_MEMORY)

    assert not ada.status().declarative_memory
    assert not ada.status().scopes[DECLARATIVE_MEMORY].granted
    assert not store.user("bob").status().scopes


def test_an_opt_out_outweighs_every_grant(store: SessionStore) -> None:
    ada = store.user("ada")
    ada.consent(DECLARATIVE_MEMORY)

    ada.opt_out(reason="no more")
    out = ada.status()
    ada.opt_in()

    assert (out.memory_opt_out, out.declarative_memory) == (True, False)
    assert ada.status().declarative_memory


def test_every_change_is_an_event_that_stays(store: SessionStore) -> None:
    ada = store.user("ada")
    ada.opt_out(reason="mail me at ada@mail.test")
    ada.opt_in()

    events = store.session(user_id="ada", session_id="_user").events()

    payloads = [event.payload for event in events]
    assert [
        (payload.scope, payload.granted)
        for payload in payloads
        if isinstance(payload, refold.events.Consent)
    ]
    assert "ada@mail.test" not in str(events)
    assert not problems_of(store.verify("ada"))


def test_many_permissions_are_read_page_by_page(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.store.history.PAGE", 2)
    ada = store.user("ada")
    for number in range(5):
        ada.consent("news", granted=number % 2 == 0)

    assert ada.status().allows("news")


@pytest.mark.parametrize("scope", ["", "Memory", "a b", "x" * 65, "a..b", "ada@b.test"])
def test_an_invalid_scope_is_refused(store: SessionStore, scope: str) -> None:
    with pytest.raises(InvalidEvent):
        store.user("ada").consent(scope)


def test_an_erasure_removes_consents(store: SessionStore) -> None:
    talk(store.session(user_id="ada", session_id="s"), 1)
    store.user("ada").opt_out()

    store.erase("ada", "asked")

    with pytest.raises(refold.Erased):
        store.user("ada").status()
