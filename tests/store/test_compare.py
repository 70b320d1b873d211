"""A comparison predicts a rebuild and a live loop, and writes nothing."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.errors import (
    InvalidConfiguration,
    SessionNotFound,
    UnknownModel,
    UnknownStrategy,
)
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.store import Session, SessionStore

WINDOW = "turn_window:full_turns=1,cached_turns=1"
RECURSIVE = "recursive_summary:every=2,keep_last=1"
pytestmark = pytest.mark.usefixtures("packaged_models")


def work(session: Session, turns: int) -> None:
    for number in range(1, turns + 1):
        session.append(
            refold.UserInput(text=f"Look at file-{number}.txt " + "so " * 40)
        )
        session.append(
            [
                refold.AgentResponse(text="I look.", stop_reason="tool_use"),
                refold.ToolCall(
                    call_id=f"c{number}",
                    tool_name="read",
                    arguments={"path": f"file-{number}.txt", "near": "file-1.txt"},
                ),
            ]
        )
        content = f"{number * 1111} lines " + "of text " * 40
        session.append(refold.ToolResult(call_id=f"c{number}", content=content))
        session.append(refold.AgentResponse(text=f"It has {number * 1111} lines."))


def stored_contents(store: SessionStore) -> list[Any]:
    """Return everything that a store holds of its sessions, and its size."""
    contents: list[Any] = [store.sessions(), store.stats()]
    for info in store.sessions():
        session = store.session(user_id=info.user_id, session_id=info.session_id)
        derived = chain.from_iterable(
            map(session.history.derived, session.history.streams()[1:])
        )
        contents += [
            session.head(),
            session.history.streams(),
            list(session.history.pages()),
            [*derived],
        ]
        contents.append(store.log.view_names(info.user_id, info.session_id))
    return contents


def test_a_comparison_writes_nothing(store: SessionStore, session: Session) -> None:
    work(session, 5)
    session.compact(WINDOW)
    before = stored_contents(store)

    compared = session.proofs.compare()

    assert stored_contents(store) == before
    assert sum(len(outcome.compactions) for outcome in compared.outcomes) > 0


@pytest.mark.parametrize("text", ["keep_all", WINDOW, RECURSIVE, "last_turns:n=2"])
def test_a_comparison_counts_what_a_rebuild_writes(
    store: SessionStore, session: Session, text: str
) -> None:
    work(session, 6)
    (imagined,) = session.proofs.compare([text]).outcomes

    assert all(not rebuilt.problem for rebuilt in store.rebuild(text))

    (recorded,) = session.proofs.compare([text], recorded=True).outcomes
    stream = spec.parse(text).fingerprint
    spans = [
        (event.payload.first_seq, event.payload.last_seq)  # type: ignore[union-attr]  # summaries
        for event in session.history.derived(stream)
    ]
    assert recorded.sent == imagined.sent
    assert [done[:4] for done in recorded.done] == [done[:4] for done in imagined.done]
    # After the last request a rebuild still does what the end of its turn requires.
    assert [done[1:3] for done in imagined.done] == spans[: len(imagined.done)]
    assert len(spans) <= len(imagined.done) + 1
    assert [request.tokens for request in imagined.sent] == [
        session.context(text, at=request.seq - 1, as_="rebuilt").tokens
        for request in imagined.sent
    ]


def test_missing_summaries_are_not_invented(session: Session) -> None:
    work(session, 5)

    simulated, recorded = (
        session.proofs.compare([WINDOW], recorded=recorded).outcomes[0]
        for recorded in (False, True)
    )

    assert len(simulated.compactions) > 0
    assert recorded.compactions == ()
    assert recorded.tokens_total > simulated.tokens_total


def test_recall_falls_where_a_file_is_no_longer_named(session: Session) -> None:
    work(session, 6)

    everything_, last = session.proofs.compare(["keep_all", "last_turns:n=1"]).outcomes

    assert everything_.reference_recall == 1.0
    # Each of six calls in later turns refers to file-1.txt, which only the first turn
    # shows.
    assert last.references - sum(request.used_shown for request in last.sent) == 5


def test_all_strategies_run_by_default(session: Session) -> None:
    work(session, 2)

    compared = session.proofs.compare()

    labels = [outcome.label for outcome in compared.outcomes]
    assert [*labels, *(strategy.strategy for strategy in compared.skipped)] == [
        *spec.STRATEGIES
    ]
    assert {"keep_all", "turn_window", "token_ratio"} <= set(labels)
    assert all(strategy.why for strategy in compared.skipped)


def test_strategies_with_required_parameters_are_skipped_with_the_reason(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeedsParameter(KeepAll):
        name = "demanding"
        wanted: int

    monkeypatch.setitem(spec.STRATEGIES, "demanding", NeedsParameter)
    work(session, 1)

    compared = session.proofs.compare()

    (skipped,) = [
        strategy for strategy in compared.skipped if strategy.strategy == "demanding"
    ]
    assert "wanted" in skipped.why
    assert len(compared.outcomes) == len(spec.STRATEGIES) - len(compared.skipped)


def test_a_strategy_is_named_as_the_caller_named_it(session: Session) -> None:
    work(session, 1)

    compared = session.proofs.compare([WINDOW, TurnWindow(full_turns=2), KeepAll()])

    labels = [outcome.label for outcome in compared.outcomes]
    assert labels == [WINDOW, "turn_window:full_turns=2", "keep_all"]


def test_costs_use_the_model_of_the_last_answer(session: Session) -> None:
    session.append(refold.UserInput(text="hi"))
    session.append(refold.AgentResponse(text="ho"), meta={"model": "claude-haiku-4-5"})

    assert session.proofs.compare(["keep_all"]).model.name == "claude-haiku-4-5"
    other = session.proofs.compare(["keep_all"], model="claude-opus-4-5")
    assert other.model.name == "claude-opus-4-5"


def test_prices_of_a_file_win_over_built_in_ones(
    session: Session, tmp_path: Path
) -> None:
    work(session, 1)
    file = tmp_path / "prices.toml"
    file.write_text(
        "[models.house]\ncontext_tokens = 1000\nprices = { input = 7.0, output = 1 }\n"
    )

    (outcome,) = session.proofs.compare(
        ["keep_all"], prices=file, model="house"
    ).outcomes

    assert outcome.cost == pytest.approx(outcome.tokens_total * 7 / 1_000_000)
    with pytest.raises(UnknownModel):
        session.proofs.compare(["keep_all"], model="another")


def test_invalid_arguments_are_refused_before_any_work(
    session: Session, tmp_path: Path
) -> None:
    with pytest.raises(SessionNotFound):
        session.proofs.compare(["keep_all"])
    work(session, 1)
    file = tmp_path / "prices.toml"
    file.write_text("[prices]\n")
    with pytest.raises(UnknownStrategy):
        session.proofs.compare(["keep_all", "no_such"])
    with pytest.raises(InvalidConfiguration, match="no table"):
        session.proofs.compare(["keep_all"], prices=file)


def test_a_comparison_of_a_fork_uses_the_forks_own_events(session: Session) -> None:
    work(session, 3)
    fork = session.fork(at=session.head().seq, session_id="s-2")
    work(fork, 2)

    (outcome,) = fork.proofs.compare([WINDOW]).outcomes

    assert len(outcome.sent) == 4
    assert all(request.seq > 0 for request in outcome.sent)
    assert outcome.compactions


def test_a_pipeline_is_compared_by_its_spec(session: Session) -> None:
    work(session, 5)
    both = "tool_clearing:trigger_tool_uses=2,keep=1+history_summary"

    piped, raw = session.proofs.compare([both, "history_summary"]).outcomes

    assert piped.label == both
    assert piped.tokens_total < raw.tokens_total


@pytest.mark.parametrize(
    "strategy", ["keep_all", "token_budget:max_tokens=30", "last_turns:n=1"]
)
def test_a_comparison_exceeds_a_budget_by_as_much_as_the_contexts(
    session: Session, strategy: str
) -> None:
    work(session, 3)
    comparison = session.compare([strategy])
    (outcome,) = comparison.outcomes

    over: list[int] = []
    for request in outcome.sent:
        view = session.context(strategy, at=request.seq - 1)
        over.append(view.over_budget)

    assert [request.over_budget for request in outcome.sent] == over
    assert outcome.over_budget == max(over)
    assert (outcome.over_budget > 0) is strategy.startswith("token_budget")
