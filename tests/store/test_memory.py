"""A user's memory is derived from the log, on both engines, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import refold
from refold.projections.memory.sessions import by_words
from refold.store import SessionStore
from refold.store.memory.sessions import FACTS_NAME
from tests.support.stores import open_at


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    with open_at(store_url, tmp_path) as opened:
        for number in range(3):
            add_run(opened, "ada", f"s-{number}", "success")
        add_run(opened, "bob", "s-0", "failure")
        yield opened


def add_run(store: SessionStore, user: str, name: str, outcome: Any) -> None:
    session = store.session(user_id=user, session_id=name)
    session.append(refold.UserInput(text="a flight to Oslo"))
    session.append(refold.ToolCall(call_id="c", tool_name="book"))
    session.append(refold.ToolResult(call_id="c", content="booked"))
    session.append(refold.Final(outcome=outcome))


def test_memory_names_what_worked_with_evidence(store: SessionStore) -> None:
    memory = store.memory.of("ada")

    (item,) = [candidate for candidate in memory.items if candidate.kind == "path"]
    assert (memory.sessions, memory.success) == (3, 1.0)
    assert item.content == {"path": [["book"]]}
    assert item.established
    for evidence in item.evidence:
        session = store.session(user_id="ada", session_id=evidence.session_id)
        types = [
            session.events(after=seq - 1, limit=1)[0].type for seq in evidence.seqs
        ]
        assert types == ["tool_call", "final"]


def test_stored_extracts_equal_fresh_ones(store: SessionStore) -> None:
    computed = store.memory.of("ada")
    stored = store.memory.of("ada")
    for info in store.sessions("ada"):
        assert FACTS_NAME in store.log.view_names("ada", info.session_id)
        store.log.drop_views("ada", info.session_id)

    assert store.memory.of("ada") == stored == computed


def test_a_session_that_grew_is_read_again(store: SessionStore) -> None:
    before = store.memory.of("ada")
    store.session(user_id="ada", session_id="s-0").append(
        refold.Final(outcome="failure")
    )

    after = store.memory.of("ada")

    assert before.success == 1.0
    assert after.success == pytest.approx(2 / 3)


def test_erasing_a_session_equals_never_having_had_it(store: SessionStore) -> None:
    before = store.memory.of("ada")
    add_run(store, "ada", "s-9", "failure")
    store.session(user_id="ada", session_id="s-9").append(
        refold.ToolCall(call_id="d", tool_name="pay")
    )
    assert store.memory.of("ada") != before

    store.erase("ada", "asked for", session_id="s-9")

    assert store.memory.of("ada") == before


def test_opting_out_removes_memory_and_its_extracts(
    store: SessionStore,
) -> None:
    before = store.memory.of("ada")

    store.user("ada").opt_out()
    out = store.memory.of("ada")
    names = [store.log.view_names("ada", s.session_id) for s in store.sessions("ada")]
    store.user("ada").opt_in()

    assert (out.items, out.sessions, out.effort) == ([], 0, {})
    assert not any(names)
    assert store.memory.of("ada") == before


def test_extracts_of_a_frozen_user_do_not_change(
    store: SessionStore,
) -> None:
    store.erasures.freeze("bob", "disputed")
    store.memory.of("ada")
    store.user("ada").opt_out()
    store.erasures.freeze("ada", "disputed")

    assert store.memory.of("bob").items
    assert store.memory.of("ada").items == []
    assert store.log.view_names("bob", "s-0") == []
    assert FACTS_NAME in store.log.view_names("ada", "s-0")


def test_users_share_no_memory(store: SessionStore) -> None:
    assert store.memory.of("bob").success == 0.0
    assert store.memory.of("nobody").items == []


def test_a_scenario_is_named_by_words_or_general(store: SessionStore) -> None:
    classify = by_words({"flight": ("flight",)})

    named = store.memory.of("ada", classify=classify)

    assert {item.scenario for item in store.memory.of("ada").items} == {"general"}
    assert {item.scenario for item in named.items} == {"flight", "general"}


WARNED: Final = {"warnings": [{"code": "slice_degraded"}]}


def test_a_warning_about_runs_appears_only_in_memory_of_its_user(
    store: SessionStore,
) -> None:
    for number in range(3):
        session = store.session(user_id="eve", session_id=f"w-{number}")
        session.append(refold.UserInput(text="read the page"), meta=WARNED)
    (item,) = [
        candidate
        for candidate in store.memory.of("eve").items
        if candidate.kind == "warning"
    ]
    advice = store.memory.advice("eve")

    store.erase("eve", "asked for it")

    assert item.content == {"warning": "slice_degraded"}
    assert [evidence.seqs for evidence in item.evidence] == [(1,), (1,), (1,)]
    assert item.memory_id in advice.items
    with pytest.raises(refold.Erased):
        store.memory.of("eve")
    with pytest.raises(refold.Erased):
        store.memory.advice("eve")
    assert list(store.log.view_names("eve", "w-0")) == []


def test_an_erased_session_removes_its_evidence_of_a_warning(
    store: SessionStore,
) -> None:
    for number in range(3):
        session = store.session(user_id="eve", session_id=f"w-{number}")
        session.append(refold.UserInput(text="read the page"), meta=WARNED)
    before = store.memory.advice("eve").text

    store.erase("eve", "asked for it", session_id="w-1")

    (item,) = [
        candidate
        for candidate in store.memory.of("eve").items
        if candidate.kind == "warning"
    ]
    assert "slice_degraded" in before
    assert {evidence.session_id for evidence in item.evidence} == {"w-0", "w-2"}
    assert not item.established
    assert "slice_degraded" not in store.memory.advice("eve", fresh=timedelta(0)).text
