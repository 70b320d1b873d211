"""A history gives the same contexts under every strategy, however it was imported."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings, strategies as st

from refold.domain.events import AgentResponse
from refold.store import SessionStore
from tests.importers import test_branches as branches
from tests.importers.samples import (
    SESSION,
    answered,
    returned,
    signed,
    use,
    user_entry,
    words,
)

Entry = dict[str, Any]
Contexts = dict[str, list[Any]]

STRATEGIES: Final = (
    "keep_all",
    "last_turns:n=2",
    "token_budget:max_tokens=300",
    "tool_clearing:trigger_input_tokens=40,keep=1",
    "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=60",
    "message_window:context_size=6,compression_window_size=2,tail_keep_size=2",
    "recursive_summary",
    "hybrid:threshold_low=40,threshold_high=120,last_n_events=4",
    "history_summary:trigger_on_history_size_chars=200,"
    "history_tail_size_chars_to_exclude=60",
    "token_ratio:max_context_tokens=400,keep_recent_turns=1",
    "tool_clearing:trigger_input_tokens=40,keep=1+turn_window:full_turns=1,cached_turns=1",
)


def every_context(store: SessionStore) -> Contexts:
    """Return what each strategy shows before each response, and at the end."""
    session = store.session(user_id="ada", session_id=SESSION)
    if not list(store.sessions()):
        return {}
    moments: list[int | None] = [None]
    for event in session.events():
        if isinstance(event.payload, AgentResponse) and event.seq > 1:
            moments.append(event.seq - 1)
    shown: Contexts = {}
    for strategy in STRATEGIES:
        list(store.rebuild(strategy))
        shown[strategy] = []
        for at in moments:
            view = session.context(strategy, at=at)
            if view.messages:
                shown[strategy].append((view.system, view.messages, view.tokens))
    return shown


BOOKKEEPING: Final = (
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    {"type": "summary", "summary": "A title", "leafUuid": "nobody"},
    {"type": "mode", "mode": "normal", "sessionId": SESSION},
)


KINDS: Final = ("user", "answer", "call", "result", "thinking", "other")


@st.composite
def sessions(draw: st.DrawFn) -> list[Entry]:
    """Entries with late results, plans, answers in parts, and lines of no events."""
    entries: list[Entry] = []
    open_calls: list[str] = []
    last: str | None = None
    for number in range(draw(st.integers(4, 18))):
        uuid = f"e{number}"
        kind = draw(st.sampled_from(KINDS))
        entry: Entry
        if kind == "other":
            entries.append(dict(draw(st.sampled_from(BOOKKEEPING))))
            continue
        if kind == "thinking":
            # A capture stores a usage of each part, which counts as tokens.
            entry = answered(
                f"{uuid}-t", f"m{number}", signed(f"thought {number}"), usage=None
            )
            entries.append({**entry, "parentUuid": last})
            last = f"{uuid}-t"
            kind = draw(st.sampled_from(["answer", "call", "user"]))
        if kind == "call":
            name = draw(st.sampled_from(["Read", "Bash", "TodoWrite"]))
            block = use(f"c{number}", name, file_path=f"/src/part{number}.py")
            entry = answered(uuid, f"m{number}", block)
            open_calls.append(f"c{number}")
        elif kind == "answer":
            text = f"answer {number} about /src/file{number}.py. " * 3
            entry = answered(uuid, f"m{number}", words(text))
        elif kind == "result" and open_calls:
            place = draw(st.integers(0, len(open_calls) - 1))
            block = returned(open_calls.pop(place), f"line {number} of it\n" * 12)
            entry = user_entry(uuid, [block])
        else:
            entry = user_entry(uuid, f"question {number}: look at it, please. " * 2)
        entries.append({**entry, "parentUuid": last})
        last = uuid
    return entries


def test_thinking_in_a_separate_entry_is_shown_with_its_answer() -> None:
    thinking = signed("Where is it?")
    entries = [
        user_entry("u1", "Fix it."),
        answered("a1", "m1", thinking),
        answered("a2", "m1", words("I look.")),
        answered("a3", "m1", use("c1", "Read", file_path="/src/a.py")),
        user_entry("u2", [returned("c1", "alpha")]),
        answered("a4", "m2", signed("There.")),
        answered("a5", "m2", words("It is fixed.")),
        # The user interrupts an answer after its thinking.
        user_entry("u3", "And now?"),
        answered("a6", "m3", signed("Now?")),
        user_entry("u4", "Stop."),
    ]
    linked = [dict(entries[0])]
    for entry in entries[1:]:
        linked.append({**entry, "parentUuid": linked[-1]["uuid"]})

    contexts = branches.imported(linked, shown=every_context)

    _, messages, _ = contexts["keep_all"][-1]
    answers = [
        [block["type"] for block in message["content"]]
        for message in messages
        if message["role"] == "assistant"
    ]
    assert answers == [["thinking", "text", "tool_use"], ["thinking", "text"]]
    assert messages[1]["content"][0] == thinking


@given(sessions())
@settings(deadline=None, max_examples=12)
def test_every_strategy_shows_the_same_however_a_history_came_in(
    entries: list[Entry],
) -> None:
    whole = branches.imported(entries, shown=every_context)

    assert branches.imported(entries, steps=20, shown=every_context) == whole
    with pytest.MonkeyPatch.context() as patch:
        line_by_line = branches.captured(
            entries, monkeypatch=patch, shown=every_context
        )
    assert line_by_line == whole
