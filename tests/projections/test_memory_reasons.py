"""Memory warns only of failures that a model can avoid, and of warnings that recur."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import refold
from refold.domain.events import Event, ToolResult
from refold.projections.memory.items import Item, items
from refold.projections.memory.sessions import (
    SessionFacts,
    facts_of,
    reason_of,
)
from refold.store.memory.procedural import memory_from
from tests.projections.logs import Log

NOW = 1_700_000_000_000_000


def call_and_result(
    tool: str, content: str = "fine", *, status: Any = "ok", meta: Any = None
) -> list[tuple[Event, Any]]:
    call_id = f"c{random.random()}"  # an id, nothing more
    result = ToolResult(call_id=call_id, content=content, status=status)
    call: Event = refold.ToolCall(call_id=call_id, tool_name=tool)
    return [(call, None), (result, meta)]


def facts(name: str, events: Sequence[tuple[Event, Any]]) -> SessionFacts:
    log = Log()
    for event, meta in events:
        log.add(event, **(meta or {}))
    shown = facts_of(name, log.events)
    return replace(shown, began_at=NOW, ended_at=NOW)


def advised(shown: Sequence[SessionFacts]) -> str:
    return memory_from("ada", shown).advice(now=NOW + 1).text


def items_of(shown: Sequence[SessionFacts], kind: str) -> list[Item]:
    return [item for item in items(shown) if item.kind == kind]


UNREAD = "<tool_use_error>File has not been read yet. Read it first.</tool_use_error>"
MANY = "<tool_use_error>Found 3 matches of the string to replace</tool_use_error>"
MODIFIED = "<tool_use_error>File has been modified since read</tool_use_error>"
REFUSED = "The user doesn't want to proceed with this tool use. It already ran once."
SIBLING = "<tool_use_error>Sibling tool call errored</tool_use_error>"
TESTS_FAILED = "Exit code 1\n[test] go test ./...\n--- FAIL: the key already exists"
NO_FOLDER = "Exit code 1\n(eval):cd:1: no such file or directory: web\nalready there"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (UNREAD, "not_read"),
        (MANY, "ambiguous"),
        (MODIFIED, "conflict"),
        (REFUSED, "rejected"),
        ("[Request interrupted by user for tool use]", "rejected"),
        (SIBLING, "cancelled"),
        (TESTS_FAILED, "exit_status"),
        (NO_FOLDER, "not_found"),
        ("Exit code 2", "exit_status"),
        ("it broke", "other"),
    ],
)
def test_a_failure_has_the_reason_that_its_first_words_say(
    content: str, reason: str
) -> None:
    assert reason_of(ToolResult(call_id="c", content=content, status="error")) == reason


@pytest.mark.parametrize("content", [REFUSED, SIBLING, TESTS_FAILED, "it broke"])
def test_an_unavoidable_failure_is_no_advice(content: str) -> None:
    shown = [
        facts(f"s{n}", call_and_result("Bash", content, status="error"))
        for n in range(9)
    ]

    assert items_of(shown, "failure")
    assert advised(shown) == ""


def test_without_outcomes_advice_names_the_usual_next_step() -> None:
    events = [
        *call_and_result("Edit", UNREAD, status="error"),
        *call_and_result("Read"),
    ]
    shown = [facts(f"s{n}", events) for n in range(4)]

    text = advised([*shown, facts("other", call_and_result("Read"))])

    line = "- Read before Edit: otherwise Edit fails with not_read (in 4 sessions; "
    assert line in text
    assert "s0 #2-4" in text


def test_advice_about_other_reasons_names_the_next_step_after_the_failure() -> None:
    missing = "File does not exist."
    events = [
        *call_and_result("Read", missing, status="error"),
        *call_and_result("Glob"),
    ]
    shown = [facts(f"s{n}", events) for n in range(4)]

    text = advised([*shown, facts("other", call_and_result("Glob"))])

    assert "- If Read fails with not_found: Glob (in 4 sessions; " in text


def test_another_call_of_the_same_tool_is_no_advice_without_an_outcome() -> None:
    events = [*call_and_result("Edit", MANY, status="error"), *call_and_result("Edit")]
    shown = [facts(f"s{n}", events) for n in range(9)]

    assert "If Edit" not in advised(shown)


def test_an_occasional_next_step_is_no_advice() -> None:
    read = [*call_and_result("Edit", UNREAD, status="error"), *call_and_result("Read")]
    searched = [
        *call_and_result("Edit", UNREAD, status="error"),
        *call_and_result("Grep"),
    ]
    shown = [facts(f"r{n}", read) for n in range(5)]
    shown += [facts(f"g{n}", searched) for n in range(5)]

    (item, *_) = items_of(shown, "recovery")
    assert item.sessions == 5
    assert "If Edit" not in advised(shown)


def test_a_session_with_several_ways_counts_for_each_by_its_share() -> None:
    read = [*call_and_result("Edit", UNREAD, status="error"), *call_and_result("Read")]
    searched = [
        *call_and_result("Edit", UNREAD, status="error"),
        *call_and_result("Grep"),
    ]
    shown = [facts(f"s{n}", [*read, *searched]) for n in range(9)]

    first, second = items_of(shown, "recovery")
    assert first.confidence == second.confidence < 0.5


def test_a_run_without_reflections_gives_no_item_of_effort() -> None:
    final: Event = refold.Final(outcome="success")
    shown = [
        facts(f"s{n}", [*call_and_result("Read"), (final, None)]) for n in range(9)
    ]

    assert items_of(shown, "effort") == []
    assert "0 reflections" not in advised(shown)


DEGRADED = {"warnings": [{"code": "slice_degraded", "detail": "half of the page"}]}


def test_a_warning_that_runs_repeat_becomes_an_item_with_its_events() -> None:
    answer: Event = refold.AgentResponse(text="done")
    shown = [
        facts(f"s{n}", [*call_and_result("ocr"), (answer, DEGRADED)]) for n in range(5)
    ]

    (item,) = items_of(shown, "warning")
    text = advised(shown)

    assert item.content == {"warning": "slice_degraded"}
    assert item.established
    assert {evidence.seqs for evidence in item.evidence} == {(3,)}
    assert "- Expect: runs often warn of slice_degraded (in 5 sessions; " in text
    assert "half of the page" not in text


def test_a_warning_of_few_runs_is_no_advice() -> None:
    answer: Event = refold.AgentResponse(text="done")
    warned = [facts(f"w{n}", [(answer, DEGRADED)]) for n in range(4)]
    others = [facts(f"o{n}", [(answer, None)]) for n in range(20)]

    (item,) = items_of([*warned, *others], "warning")

    assert item.confidence < 0.2
    assert advised([*warned, *others]) == ""


def test_the_warnings_in_the_state_of_a_run_count_too() -> None:
    state: Event = refold.StateUpdate(
        set={"warnings": ["low_resolution", "a sentence"]}
    )
    shown = [facts(f"s{n}", [(state, None)]) for n in range(3)]

    (item,) = items_of(shown, "warning")
    assert item.content == {"warning": "low_resolution"}


def test_a_code_that_is_the_reason_of_a_failure_is_not_counted_twice() -> None:
    events = call_and_result("ocr", "it broke", status="error", meta=DEGRADED)
    shown = [facts(f"s{n}", events) for n in range(3)]

    assert items_of(shown, "warning") == []
    (failure,) = items_of(shown, "failure")
    assert failure.content == {"tool": "ocr", "reason": "slice_degraded"}


def test_a_warning_about_the_recording_is_none_of_the_run() -> None:
    answer: Event = refold.AgentResponse(text="done")
    repaired = {"warnings": [{"code": "repaired"}]}
    shown = [facts(f"s{n}", [(answer, repaired)]) for n in range(9)]

    assert items_of(shown, "warning") == []
