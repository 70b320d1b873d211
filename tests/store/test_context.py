"""Contexts of now and of earlier events; derived events can be proved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.events import (
    CompactionNote,
    JsonObject,
    Request,
    SummarizerRef,
    Summary,
)
from refold.projections.context.compaction import Source, Written
from refold.projections.context.text import violations
from refold.store import Session, SessionStore
from tests.support.payloads import payload
from tests.support.stores import open_at

WINDOW = "turn_window:full_turns=2,cached_turns=2"


def append_exchanges(session: Session, first: int, last: int) -> None:
    for number in range(first, last + 1):
        session.append(
            [
                refold.UserInput(text=f"question {number}: " + "why " * 40),
                refold.AgentResponse(text=f"answer {number}: " + "because " * 40),
            ]
        )


def compact_all(session: Session, strategy: str = WINDOW) -> int:
    count = 0
    while session.compact(strategy) is not None:
        count += 1
    return count


def messages_text(session: Session, strategy: str | None = WINDOW, **at: Any) -> str:
    return str(session.context(strategy, **at).messages)


def test_everything_is_sent_by_default(session: Session) -> None:
    session.append(refold.SystemPrompt(text="You help."))
    append_exchanges(session, 1, 3)

    view = session.context()

    assert view.system == "You help."
    assert [message["role"] for message in view.messages] == ["user", "assistant"] * 3
    assert violations(view.messages) == []


def test_a_compaction_shortens_the_context_and_keeps_recent_events(
    session: Session,
) -> None:
    append_exchanges(session, 1, 4)
    before = session.context(WINDOW)

    summary = session.compact(WINDOW)

    after = session.context(WINDOW)
    assert summary is not None
    payload_of = payload(summary, Summary)
    assert (payload_of.first_seq, payload_of.last_seq) == (1, 4)
    assert after.tokens < before.tokens
    assert "question 4" in str(after.messages)
    assert "“I” in them is you, the agent. The task continues" in str(after.messages)
    assert [span.kind for span in after.spans] == ["summary", "raw"]
    assert violations(after.messages) == []
    assert session.compact(WINDOW) is None
    assert session.context("keep_all").tokens == before.tokens


def test_an_earlier_context_is_reproduced_byte_for_byte(session: Session) -> None:
    sent = {}
    for number in range(1, 9):
        append_exchanges(session, number, number)
        compact_all(session)
        sent[session.head().seq] = session.context(WINDOW)

    for seq, view in sent.items():
        assert session.context(WINDOW, at=seq) == view
        assert session.at(seq).context(WINDOW).digest == view.digest


def test_rebuilt_shows_summaries_by_the_seq_of_their_decision(session: Session) -> None:
    append_exchanges(session, 1, 4)
    late = session.head().seq
    append_exchanges(session, 5, 5)
    assert session.compact(WINDOW) is not None

    as_sent = session.context(WINDOW, at=late, as_="sent")
    as_rebuilt = session.context(WINDOW, at=late + 2, as_="rebuilt")

    assert [span.kind for span in as_sent.spans] == ["raw"]
    assert [span.kind for span in as_rebuilt.spans] == ["summary", "raw"]


def test_a_recorded_request_is_reproduced(session: Session) -> None:
    append_exchanges(session, 1, 4)
    view = session.context(WINDOW)
    receipt = session.record_request(view, model="m", matches=True)
    compact_all(session)

    ((envelope, again),) = session.proofs.replay()

    assert again.digest == view.digest == payload(envelope, Request).digest
    assert session.context(at=receipt.last_seq).digest == view.digest
    assert session.context().fingerprint == view.fingerprint
    assert session.verify().requests == 1
    assert session.verify().problems == []


def test_a_strategy_is_named_by_call_environment_settings_or_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def params(spec: str | None = "turn_window") -> JsonObject:
        """Return the parameters in a store opened with the current settings."""
        with open_at(f"sqlite:///{tmp_path / 'refold.db'}", tmp_path) as store:
            session = store.session(user_id="ada", session_id="s-1")
            if not store.sessions():
                append_exchanges(session, 1, 2)
            strategy = store.settings.strategy(spec)
            assert session.context(spec).fingerprint == strategy.fingerprint
            return strategy.params

    assert params(None) != params()
    file = tmp_path / "mine.toml"
    file.write_text(
        '[context]\nstrategy = "turn_window"\n[context.turn_window]\n'
        "full_turns = 6\ncached_turns = 5\n"
    )
    monkeypatch.setenv("REFOLD_CONFIG", str(file))
    assert params(None)["full_turns"] == 6
    monkeypatch.setenv("REFOLD_FULL_CONTEXT_TURNS", "7")
    assert params() == {**params(), "full_turns": 7, "cached_turns": 5}
    assert params("turn_window:full_turns=8")["full_turns"] == 8
    other = tmp_path / "other.toml"
    other.write_text('name = "turn_window"\nfull_turns = 9\n')
    assert params(f"@{other}")["full_turns"] == 9
    monkeypatch.setenv("REFOLD_FULL_CONTEXT_TURNS", "none")
    with pytest.raises(refold.UnknownStrategy, match="REFOLD_FULL_CONTEXT_TURNS"):
        params()


def test_settings_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[context]\nstrategy = "turn_window"\n')
    monkeypatch.setenv("REFOLD_CONFIG", str(file))
    with open_at(f"sqlite:///{tmp_path / 'refold.db'}", tmp_path) as store:
        session = store.session(user_id="ada", session_id="s-1")
        append_exchanges(session, 1, 2)
        file.unlink()

        fingerprint = session.context().fingerprint

        assert fingerprint == store.settings.strategy("turn_window").fingerprint


@pytest.mark.parametrize(
    "spec",
    ["dream", "turn_window:full_turns=0", "turn_window:x=1", "turn_window:", "a+b", ""],
)
def test_a_wrong_strategy_is_refused(empty_session: Session, spec: str) -> None:
    append_exchanges(empty_session, 1, 1)

    with pytest.raises(refold.UnknownStrategy):
        empty_session.context(spec)


def test_a_seq_outside_the_session_is_refused(session: Session) -> None:
    append_exchanges(session, 1, 1)

    for seq in (0, 3, -1):
        with pytest.raises(refold.InvalidEvent, match="not in session"):
            session.context(at=seq)


class Verbose:
    """A summarizer that writes more words than its source has."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        return Written(source.text + " word" * 999, SummarizerRef(kind="verbose"))


class Failing:
    """A summarizer that fails like a broken model call."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        raise TimeoutError


def test_a_summary_longer_than_its_source_is_not_used(session: Session) -> None:
    append_exchanges(session, 1, 4)
    before = session.context(WINDOW)

    assert session.compact(WINDOW, summarizer=Verbose()) is None

    assert session.context(WINDOW).digest == before.digest
    name = next(name for name in session.history.streams() if name != "main")
    started, note = session.history.derived(name)
    assert payload(started, CompactionNote).phase == "started"
    failed = payload(note, CompactionNote)
    assert (failed.phase, failed.first_seq) == ("failed", 1)
    assert session.compact(WINDOW) is None
    assert session.verify().problems == []


def test_a_failed_compaction_changes_nothing(session: Session) -> None:
    append_exchanges(session, 1, 4)
    before = session.context(WINDOW)

    assert session.compact(WINDOW, summarizer=Failing()) is None
    assert session.prepare(WINDOW, summarizer=Failing()).digest == before.digest

    name = next(name for name in session.history.streams() if name != "main")
    started, note = session.history.derived(name)
    assert payload(started, CompactionNote).phase == "started"
    assert payload(note, CompactionNote).why == "the summarizer raised TimeoutError"


def test_concurrent_compactors_take_effect_once(store: SessionStore) -> None:
    append_exchanges(store.session(user_id="ada", session_id="s-1"), 1, 7)

    def work(_: int) -> None:
        store.session(user_id="ada", session_id="s-1").compact(WINDOW)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))

    session = store.session(user_id="ada", session_id="s-1")
    compact_all(session)
    (name,) = (name for name in session.history.streams() if name != "main")
    summaries = [payload(entry, Summary) for entry in session.history.derived(name)]
    assert [
        (made_summary.first_seq, made_summary.last_seq) for made_summary in summaries
    ] == [(1, 4), (5, 8)]
    assert session.verify().problems == []


def test_a_stored_view_is_small_and_equal_to_a_fresh_fold(
    store: SessionStore, session: Session
) -> None:
    append_exchanges(session, 1, 60)
    compact_all(session)
    (name,) = store.log.view_names("ada", "s-1")
    append_exchanges(session, 61, 62)

    assert session.strategies.catch_up() == 1
    assert session.strategies.catch_up() == 0

    stored = store.log.load_view(session.stream, name)
    assert stored is not None
    assert stored.through_seq == session.head().seq
    assert len(str(stored.body)) < 4096
    assert session.context(WINDOW) == session.context(WINDOW, at=session.head().seq)


def test_the_outline_of_a_fork_begins_with_its_parent(session: Session) -> None:
    append_exchanges(session, 1, 3)
    fork = session.fork(4, session_id="s-2")
    append_exchanges(session, 4, 4)
    grand = fork.fork(1, session_id="s-3")
    append_exchanges(fork, 5, 6)
    append_exchanges(grand, 9, 9)

    assert "question 2" in messages_text(fork)
    assert "question 3" not in messages_text(fork)
    assert "question 6" in messages_text(fork)
    assert "question 2" in messages_text(grand)
    assert "question 9" in messages_text(grand)
    assert "question 5" not in messages_text(grand)
    assert compact_all(fork) == 1
    assert violations(fork.context(WINDOW).messages) == []
    assert fork.verify().problems == []
    assert grand.verify().problems == []


def test_the_timeline_shows_summaries_where_they_were_decided(session: Session) -> None:
    append_exchanges(session, 1, 4)
    compact_all(session)
    append_exchanges(session, 5, 5)

    types = [entry.type for entry in session.history.timeline()]

    assert types.index("summary") == 8
    assert len(types) == 11
    assert [e.type for e in session.history.timeline(after=8)][:1] == ["user_input"]
    assert len(list(session.history.timeline(limit=3))) == 3


def test_a_session_that_was_never_begun_is_not_found(store: SessionStore) -> None:
    nobody = store.session(user_id="ada", session_id="none")

    for read in (nobody.events, nobody.context, nobody.state, nobody.compact):
        with pytest.raises(refold.SessionNotFound):
            read()
    assert store.sessions("ada") == []


def test_a_pin_of_the_parent_applies_in_the_fork(session: Session) -> None:
    append_exchanges(session, 1, 2)
    session.append(refold.Pin(seqs=(1, 2), reason="the requirement"))
    fork = session.fork(5, session_id="s-2")
    append_exchanges(fork, 3, 6)

    assert compact_all(fork) > 0

    pinned = [span for span in fork.context(WINDOW).spans if span.kind == "pinned"]
    assert (pinned[0].first, pinned[-1].last) == (-4, -3)
    assert "question 1" in messages_text(fork)
