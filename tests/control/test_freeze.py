"""Frozen data can be read, and no writer in any way can change it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.errors import Frozen, InvalidEvent, OnHold
from refold.opener import reconcile_keys
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.engines import BOTH
from tests.support.nested import problems_of
from tests.support.operations import WINDOW
from tests.support.stores import open_at
from tests.support.talking import talk


@pytest.fixture
def frozen(store: SessionStore) -> SessionStore:
    """Freeze ada, who has a session with a pending compaction, and a closed one."""
    talk(store.session(user_id="ada", session_id="open"), 8)
    talk(store.session(user_id="ada", session_id="closed"), 8)
    store.session(user_id="ada", session_id="closed").end()
    talk(store.session(user_id="bob", session_id="open"), 2)
    assert store.erasures.freeze("ada", "she asked for it", operator="op") is not None
    return store


WAYS: dict[str, Callable[[SessionStore], Any]] = {
    "append": lambda s: s.session(user_id="ada", session_id="open").append(
        user_inputs("x")
    ),
    "append from asyncio": lambda s: asyncio.run(
        s.session(user_id="ada", session_id="open").append_async(user_inputs("x"))
    ),
    "append with a key": lambda s: s.session(user_id="ada", session_id="open").append(
        user_inputs("x"), idempotency_key="k"
    ),
    "new session": lambda s: s.session(user_id="ada", session_id="new").append(
        user_inputs("x")
    ),
    "new session from asyncio": lambda s: asyncio.run(
        s.session(user_id="ada", session_id="new").append_async(user_inputs("x"))
    ),
    "fork": lambda s: s.session(user_id="ada", session_id="open").fork(
        2, session_id="child"
    ),
    "compaction": lambda s: s.session(user_id="ada", session_id="open").compact(WINDOW),
    "compaction of a closed one": lambda s: s.session(
        user_id="ada", session_id="closed"
    ).compact(WINDOW),
    "prepare": lambda s: s.session(user_id="ada", session_id="open").prepare(WINDOW),
    "end": lambda s: s.session(user_id="ada", session_id="open").end(),
    "consent": lambda s: s.user("ada").opt_out(),
    "state": lambda s: s.session(user_id="ada", session_id="open").append(
        refold.StateUpdate(set={"a": 1})
    ),
    "key rotation": lambda s: s.keys.rotate_session("ada", session_id="open"),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_written_to_a_frozen_user(frozen: SessionStore, way: str) -> None:
    before = _stored_state(frozen)

    with pytest.raises(Frozen, match="not changed until"):
        WAYS[way](frozen)

    assert _stored_state(frozen) == before


@BOTH
@pytest.mark.parametrize(
    "way", ["append", "append from asyncio", "new session", "fork", "compaction"]
)
def test_another_process_cannot_write_to_a_frozen_user_either(
    store_url: str, tmp_path: Path, way: str
) -> None:
    with open_at(store_url, tmp_path) as writer, open_at(store_url, tmp_path) as other:
        talk(writer.session(user_id="ada", session_id="open"), 8)
        talk(writer.session(user_id="ada", session_id="closed"), 8)
        writer.session(user_id="ada", session_id="closed").end()
        other.erasures.freeze("ada", "asked")

        with pytest.raises(Frozen):
            WAYS[way](writer)


def _stored_state(store: SessionStore) -> Any:
    return [
        (
            info,
            list(
                store.session(
                    user_id="ada", session_id=info.session_id
                ).history.timeline()
            ),
        )
        for info in store.sessions("ada")
    ]


def test_a_frozen_users_data_can_be_read_and_verified(frozen: SessionStore) -> None:
    session = frozen.session(user_id="ada", session_id="open")

    view = session.context(WINDOW)

    assert view.messages
    assert session.events()
    assert not problems_of(frozen.verify())
    assert {info.status for info in frozen.sessions("ada")} == {
        "frozen",
        "frozen-closed",
    }
    assert session.head().frozen


def test_work_on_the_whole_store_leaves_frozen_users_out(
    frozen: SessionStore,
) -> None:
    rebuilt = list(frozen.rebuild(WINDOW))
    redacted = list(frozen.reredact())

    assert [result.session.user_id for result in redacted] == ["bob"]
    assert len(rebuilt) == 1
    assert not [damage for _, damages in _repaired(frozen) for damage in damages]
    with pytest.raises(Frozen):
        list(frozen.rebuild(WINDOW, user_id="ada"))


def _repaired(store: SessionStore) -> list[Any]:
    if store.stats()["engine"] == "memory":
        return []
    return list(store.repair(apply=True))


def test_other_users_can_write(frozen: SessionStore) -> None:
    assert (
        frozen.session(user_id="bob", session_id="open")
        .append(user_inputs("x"))
        .first_seq
    )


def test_a_lifted_freeze_leaves_everything_as_it_was(frozen: SessionStore) -> None:
    signed = frozen.erasures.unfreeze("ada", "settled")

    assert signed is not None
    assert signed.statement["act"] == "unfrozen"
    assert (
        frozen.session(user_id="ada", session_id="open")
        .append(user_inputs("x"))
        .first_seq
    )
    assert (
        frozen.session(user_id="ada", session_id="new")
        .append(user_inputs("x"))
        .first_seq
        == 1
    )
    with pytest.raises(refold.SessionClosed):
        frozen.session(user_id="ada", session_id="closed").append(user_inputs("x"))
    assert not problems_of(frozen.verify())
    assert frozen.erasures.unfreeze("ada", "again") is None
    assert not frozen.erasures.is_frozen("ada")


def test_a_freeze_is_recorded_once(frozen: SessionStore) -> None:
    assert frozen.erasures.freeze("ada", "again") is None

    acts = [
        certificate.statement["act"]
        for certificate in frozen.erasures.certificates("ada")
    ]
    assert acts == ["frozen"]
    assert [hold.name for hold in frozen.erasures.holds("ada")] == ["freeze"]


def test_a_frozen_user_is_not_erased(frozen: SessionStore) -> None:
    with pytest.raises(OnHold):
        frozen.erase("ada", "by mistake")

    assert frozen.session(user_id="ada", session_id="open").events()


def test_a_freeze_cannot_be_released_like_a_hold(frozen: SessionStore) -> None:
    with pytest.raises(InvalidEvent):
        frozen.erasures.release("ada", "freeze", "by the back door")
    with pytest.raises(InvalidEvent):
        frozen.erasures.hold("bob", "freeze", "by the back door")


def test_an_erased_user_cannot_be_frozen(store: SessionStore) -> None:
    talk(store.session(user_id="ada", session_id="s"), 1)
    store.erase("ada", "asked")

    with pytest.raises(refold.Erased):
        store.erasures.freeze("ada", "too late")


def test_a_session_whose_erasure_is_undone_is_frozen_like_the_others(
    store: SessionStore,
) -> None:
    talk(store.session(user_id="ada", session_id="one"), 1)
    talk(store.session(user_id="ada", session_id="two"), 1)
    store.erase("ada", "asked", session_id="one", grace=timedelta(days=1))
    store.erasures.freeze("ada", "meanwhile")

    store.erasures.restore("ada", "a mistake")

    with pytest.raises(Frozen):
        store.session(user_id="ada", session_id="one").append(user_inputs("x"))
    store.erasures.unfreeze("ada", "settled")
    assert (
        store.session(user_id="ada", session_id="one")
        .append(user_inputs("x"))
        .first_seq
    )


def test_a_retry_finds_an_event_from_before_the_freeze(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    first = session.append(user_inputs("x"), idempotency_key="k")
    store.erasures.freeze("ada", "asked")

    again = session.append(user_inputs("x"), idempotency_key="k")

    assert (again.duplicate, again.hash) == (True, first.hash)


@BOTH
def test_concurrent_writes_come_before_the_freeze(
    store_url: str, tmp_path: Path
) -> None:
    """Writers share commits while another thread freezes: no event comes afterwards."""
    with open_at(store_url, tmp_path) as writer, open_at(store_url, tmp_path) as other:
        for number in range(4):
            talk(writer.session(user_id="ada", session_id=f"s{number}"), 1)

        def write(number: int) -> int:
            session = writer.session(user_id="ada", session_id=f"s{number}")
            written = 0
            for turn in itertools.count():
                try:
                    written = session.append(user_inputs("x")).last_seq
                    writer.session(
                        user_id="ada", session_id=f"new-{number}-{turn}"
                    ).append(user_inputs("x"))
                except Frozen:
                    return written
            raise AssertionError

        with ThreadPoolExecutor(4) as pool:
            writing = [pool.submit(write, number) for number in range(4)]
            other.erasures.freeze("ada", "now")
            after = other.sessions("ada")
            written = [done.result() for done in writing]

        ends = {info.session_id: info.head_seq for info in after}
        assert [max(seq, 2) for seq in written] == [ends[f"s{n}"] for n in range(4)]
        assert other.sessions("ada") == after
        assert {info.status for info in after} == {"frozen"}


def test_a_frozen_user_survives_a_reconciled_key_store(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 1)
        store.erasures.freeze("ada", "asked")

    assert reconcile_keys(store_url) == 0

    with open_at(store_url, tmp_path) as store:
        assert store.session(user_id="ada", session_id="s").events()
        assert store.erasures.unfreeze("ada", "settled")
