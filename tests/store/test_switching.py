"""Switching strategies: which context readers get, and which views are retired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import refold
from refold.adapters.config import read_toml
from refold.domain.errors import InvalidConfiguration, UnknownStrategy
from refold.domain.events import CompactionNote
from refold.projections.context.strategies.keep_all import KeepAll
from refold.store import Session, SessionStore
from refold.store.settings import Settings
from tests.support.rebuilding import (
    FOLDING,
    OTHER,
    WINDOW,
    append_turns,
    derived_events,
    rebuild,
)


def test_readers_get_the_new_strategy_once_it_is_activated(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    session.record_request(session.prepare(OTHER))
    rebuild(store, WINDOW)

    assert session.context().fingerprint == OTHER.fingerprint
    assert session.strategies.activate(WINDOW)
    assert not session.strategies.activate(WINDOW)

    assert session.context().fingerprint == WINDOW.fingerprint
    assert session.context(at=16).fingerprint == KeepAll().fingerprint
    append_turns(session, 1, first=9)
    assert session.prepare().fingerprint == WINDOW.fingerprint
    assert session.verify().problems == []


def test_an_activation_calls_no_model(memory: SessionStore) -> None:
    session = memory.session(user_id="ada", session_id="s")
    other = memory.session(user_id="ada", session_id="t")
    for each in (session, other):
        append_turns(each, 8)
        each.append(refold.UserInput(text="and now?"))
    session.strategies.activate(WINDOW)
    for each in (session, other):
        each.append(refold.AgentResponse(text="now this"))

    rebuild(memory, FOLDING)

    spans = [
        [
            (record["first_seq"], record["last_seq"])
            for record in derived_events(each, FOLDING)
        ]
        for each in (session, other)
    ]
    assert spans[0] == spans[1]


def test_an_activation_is_no_request_of_the_run(memory: SessionStore) -> None:
    session = memory.session(user_id="ada", session_id="s")
    for number in range(12):
        session.append(refold.UserInput(text=f"question {number}"))
        session.record_request(session.prepare(OTHER, system="Be brief."))
        session.append(refold.AgentResponse(text=f"answer {number}"))
    sent = [envelope.seq for envelope, _ in session.proofs.replay()]
    before = session.proofs.rerun()

    assert session.strategies.activate(WINDOW)
    activated = session.head().seq

    assert (before.requests, before.same) == (12, 12)
    assert session.proofs.rerun() == before
    assert [envelope.seq for envelope, _ in session.proofs.replay()] == sent
    assert session.context(at=activated).system == "Be brief."
    assert session.verify().problems == []


def test_a_closed_session_is_not_switched(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    session.end()

    assert not session.strategies.activate(WINDOW)


def test_a_retired_strategy_loses_its_view_and_keeps_its_events(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    rebuild(store, OTHER)
    rebuild(store, WINDOW)
    before = session.context(OTHER)

    assert session.strategies.retire(OTHER.fingerprint, why="replaced")
    assert not session.strategies.retire(OTHER.fingerprint)

    assert store.log.view_names("ada", "s-1") == [WINDOW.fingerprint]
    newest = session.history.derived(OTHER.fingerprint)[-1].payload
    assert isinstance(newest, CompactionNote)
    assert (newest.phase, newest.why) == ("retired", "replaced")
    assert session.context(OTHER).messages == before.messages
    assert session.verify().problems == []


def test_a_rebuild_resumes_a_retired_stream(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 6)
    rebuild(store, OTHER)
    session.strategies.retire(OTHER.fingerprint)
    append_turns(session, 2, first=7)

    assert rebuild(store, OTHER) == 2
    assert session.strategies.retire(OTHER.fingerprint)


def test_a_missing_strategy_is_not_retired(session: Session) -> None:
    append_turns(session, 1)

    assert not session.strategies.retire(OTHER.fingerprint)
    assert not session.strategies.retire("main")
    assert session.history.streams() == ["main"]


def test_a_strategy_in_use_cannot_be_retired(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    rebuild(store, WINDOW)
    session.strategies.activate(WINDOW)

    with pytest.raises(refold.InvalidConfiguration, match="activate another"):
        session.strategies.retire(WINDOW.fingerprint)
    assert session.strategies.default_fingerprint() == WINDOW.fingerprint


def test_prepare_without_a_strategy_uses_one_that_compacts(
    session: Session,
) -> None:
    for _ in range(10):
        session.append(refold.UserInput(text="word " * 2_000))
        session.append(refold.AgentResponse(text="I see."))
    session.append(refold.UserInput(text="And now?"))

    prepared = session.prepare()

    assert prepared.strategy == "history_summary"
    assert prepared.tokens < session.context().tokens / 2
    assert session.context().strategy == "keep_all"
    session.record_request(prepared)
    assert session.context().digest == prepared.digest


def test_settings_and_earlier_requests_win_over_the_default(session: Session) -> None:
    append_turns(session, 2)
    settings = replace(session.settings, context={"strategy": "last_turns:n=1"})

    assert replace(session, settings=settings).prepare().strategy == "last_turns"
    session.record_request(session.context(WINDOW))
    assert replace(session, settings=settings).prepare().strategy == WINDOW.name


def test_a_strategy_can_be_read_from_a_json_file(tmp_path: Path) -> None:
    flags = tmp_path / "flags.json"
    flags.write_text(
        '{"history_summary_params": "{\\"trigger_on_history_size_chars\\": 900}",'
        ' "history_summary_min_version": "3"}'
    )
    settings = Settings(read_toml=read_toml)

    strategy = settings.strategy(f"@{flags}")
    assert strategy.name == "history_summary"
    assert strategy.params["trigger_on_history_size_chars"] == 900

    flags.write_text(
        '{"history_summary_params": {}, "history_summary_min_version": ""}'
    )
    with pytest.raises(UnknownStrategy, match="switches history_summary off"):
        settings.strategy(f"@{flags}")
    flags.write_text("[]")
    with pytest.raises(InvalidConfiguration, match="holds no object"):
        settings.strategy(f"@{flags}")
