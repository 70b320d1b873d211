"""History that a client removed stays in the log and leaves later contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import refold
from refold.domain.envelope import Draft, Mark
from refold.domain.errors import InvalidEvent
from refold.domain.events import (
    AgentResponse,
    Event,
    Pin,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.strategies.spec import STRATEGIES
from refold.store.session.session import Session
from refold.store.store import SessionStore

MODEL = "claude-sonnet-4-5"
SPECS = [
    f"token_ratio:model='{MODEL}'" if name == "token_ratio" else name
    for name in STRATEGIES
    if name not in ("for_agent", "pipeline")
] + ["tool_clearing+history_summary"]


@pytest.fixture
def session() -> Iterator[Session]:
    with refold.open("memory://") as store:
        yield store.session(user_id="ada", session_id="s")


def texts(view: Any) -> list[str]:
    """Return the texts of a view, in order, without those that Refold adds."""
    shown: list[str] = []
    for message in view.messages:
        for block in message["content"]:
            if block["type"] == "text":
                shown.append(block["text"])
            elif block["type"] == "tool_result":
                shown.append(str(block["content"]))
    return [text for text in shown if not text.startswith("(")]


def say(session: Session, *events: Event) -> int:
    return session.append(list(events)).last_seq


def turn(number: int) -> list[Event]:
    return [UserInput(text=f"q{number}"), AgentResponse(text=f"a{number}")]


@pytest.mark.parametrize("spec", SPECS)
def test_an_abandoned_branch_is_in_no_later_context(
    session: Session, spec: str
) -> None:
    say(session, *turn(1), UserInput(text="left"), AgentResponse(text="gone"))
    before = session.context(spec)
    say(session, Pin(seqs=(3,)), ProviderEdit(reason="rewind", left_out=((3, 4),)))
    say(session, UserInput(text="q2"))

    assert texts(session.context(spec)) == ["q1", "a1", "q2"]
    assert texts(before)[-2:] == ["left", "gone"]
    assert texts(session.context(spec, at=4)) == texts(before)
    assert [event.type for event in session.events()][2:4] == [
        "user_input",
        "agent_response",
    ]


@pytest.mark.parametrize("spec", SPECS)
def test_a_resumed_branch_returns_to_the_context(session: Session, spec: str) -> None:
    say(session, *turn(1), UserInput(text="left"), AgentResponse(text="gone"))
    say(session, ProviderEdit(reason="rewind", left_out=((3, 4),)))
    say(session, UserInput(text="other"))
    edit = ProviderEdit(reason="fork", left_out=((6, 6),), restored=((3, 4),))
    say(session, edit, UserInput(text="q2"))

    assert texts(session.context(spec)) == ["q1", "a1", "left", "gone", "q2"]


def test_the_clients_summary_comes_before_the_events_that_it_preserved(
    session: Session,
) -> None:
    say(session, *turn(1), *turn(2), UserInput(text="the summary"))
    edit = ProviderEdit(reason="compaction", left_out=((1, 2),), in_place=((5, 5),))
    say(session, edit, UserInput(text="q3"))

    assert texts(session.context("keep_all")) == ["the summary", "q2", "a2", "q3"]


@pytest.mark.parametrize("spec", ["keep_all", "hybrid", "turn_window"])
def test_a_call_is_shown_with_the_arguments_of_the_client(
    session: Session, spec: str
) -> None:
    say(session, UserInput(text="q"), AgentResponse(text="I change it."))
    say(session, ToolCall(call_id="c", tool_name="Edit", arguments={"a": 1, "b": 2}))
    changed = ProviderEdit(cleared=((3, 3),), arguments={"a": 2})
    removed = ProviderEdit(cleared=((3, 3),), without_arguments=("b",))
    say(session, changed, removed, ToolResult(call_id="c", content="done"))

    def arguments(at: int | None) -> list[Any]:
        shown = []
        for message in session.context(spec, at=at).messages:
            for block in message["content"]:
                if block["type"] == "tool_use":
                    shown.append(block["input"])
        return shown

    assert arguments(3) == [{"a": 1, "b": 2}]
    assert arguments(None) == [{"a": 2}]
    fork = session.fork(at=6, session_id="fork")
    (view,) = [fork.context(spec)]
    assert '"a":2' in str(view.messages).replace(" ", "").replace("'", '"')


@pytest.mark.parametrize("spec", ["keep_all", "hybrid", "turn_window"])
def test_a_cleared_result_is_shown_with_the_text_of_the_client(
    session: Session, spec: str
) -> None:
    say(session, UserInput(text="q"), AgentResponse(text="Let me look."))
    say(session, ToolCall(call_id="c", tool_name="Read"))
    say(session, ToolResult(call_id="c", content="word " * 1000))
    tokens = session.context(spec).tokens
    edit = ProviderEdit(reason="clearing", cleared=((4, 4),), cleared_text="[cleared]")
    say(session, edit)

    view = session.context(spec)

    assert texts(view) == ["q", "Let me look.", "[cleared]"]
    assert view.tokens < tokens / 10
    assert "word word" in texts(session.context(spec, at=4))[-1]


def test_a_summary_of_removed_events_is_not_shown(session: Session) -> None:
    for number in range(8):
        say(session, *turn(number))
    assert session.compact("turn_window") is not None
    assert session.context("turn_window").spans[0].kind == "summary"
    say(session, ProviderEdit(reason="rewind", left_out=((3, 4),)))

    view = session.context("turn_window")

    assert "summary" not in [span.kind for span in view.spans]
    shown = texts(view)
    assert "q0" in shown
    assert "q1" not in shown
    again = session.compact("turn_window")
    assert again is not None
    assert "q1" not in str(session.context("turn_window").messages)
    assert session.proofs.why(strategy="turn_window").records[0].source == "holds"


def test_views_stored_before_an_edit_follow_it(session: Session) -> None:
    for number in range(50):
        say(session, *turn(number))
    for spec in SPECS:
        session.context(spec)  # stores its outline
    say(session, ProviderEdit(reason="rewind", left_out=((51, 100),)))

    for spec in SPECS:
        assert "q30" not in str(session.context(spec).messages), spec
    assert session.verify().problems == []


def test_a_fork_follows_the_edits_of_its_parent(session: Session) -> None:
    say(session, *turn(1), UserInput(text="left"), AgentResponse(text="gone"))
    say(session, ProviderEdit(reason="rewind", left_out=((3, 4),)), *turn(2))
    fork = session.fork(at=7, session_id="fork")
    say(fork, UserInput(text="q3"))

    assert texts(fork.context("keep_all")) == ["q1", "a1", "q2", "a2", "q3"]
    earlier = session.fork(at=4, session_id="earlier")
    assert texts(earlier.context("keep_all"))[-1] == "gone"


def test_why_names_the_edit_that_removed_an_event(session: Session) -> None:
    say(session, *turn(1), UserInput(text="left"), AgentResponse(text="gone"))
    say(session, ProviderEdit(reason="rewind", left_out=((3, 4),)), *turn(2))

    explained = session.proofs.why()

    left_out = [event for event in explained.unshown if event.why == "left_out"]
    assert [(event.seq, event.edit) for event in left_out] == [(3, 5), (4, 5)]
    runs = [run for run in explained.to_json()["left_out"] if run["edit"]]
    assert [(run["edit"], run["spans"]) for run in runs] == [(5, [[3, 4]])]


def test_a_mark_names_entries_by_their_keys(session: Session) -> None:
    session.append([Draft(UserInput(text="q1"), key="one")])
    session.append([Draft(UserInput(text="left"), key="two")])
    mark = Mark(left_out=("two", "nobody has it"))
    session.append([Draft(ProviderEdit(reason="rewind"), key="m", mark=mark)])

    (edit,) = [event.payload for event in session.events(types=["provider_edit"])]

    assert isinstance(edit, ProviderEdit)
    assert edit.left_out == ((2, 2),)
    assert session.append([Draft(ProviderEdit(), key="m", mark=mark)]).duplicate


def test_an_edit_of_future_events_is_refused(session: Session) -> None:
    say(session, *turn(1))
    with pytest.raises(InvalidEvent, match="the session ends at 2"):
        say(session, ProviderEdit(left_out=((1, 3),)))
    with pytest.raises(InvalidEvent, match="lower seq"):
        ProviderEdit(left_out=((3, 1),))


def test_a_rebuild_and_a_comparison_follow_edits() -> None:
    with refold.open("memory://") as store:
        _rebuild_and_compare(store, store.session(user_id="ada", session_id="s"))


def _rebuild_and_compare(store: SessionStore, session: Session) -> None:
    for number in range(9):
        say(session, *turn(number))
    say(session, ProviderEdit(reason="rewind", left_out=((1, 6),)), *turn(9), *turn(10))

    list(store.rebuild("turn_window"))

    view = session.context("turn_window")
    assert "q1" not in str(view.messages).replace("q10", "")
    outcomes = session.compare(["turn_window", "keep_all"]).outcomes
    assert len(outcomes[1].sent) == 11
    assert session.verify().problems == []
