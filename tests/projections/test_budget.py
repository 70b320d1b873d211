"""The sections of a request are ordered, within budgets, cacheable, and cut openly."""

from __future__ import annotations

from typing import Any

import pytest

from refold.domain.errors import InvalidEvent
from refold.domain.events import SystemPrompt, UserInput
from refold.domain.tokens import estimate, estimate_text
from refold.projections.context.budget import Cut, Extras, cut_to
from refold.projections.context.render import render
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.last_turns import LastTurns
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import violations
from refold.projections.context.view import View
from tests.projections.logs import call, envelope, log_of, result, turns
from tests.projections.walk import Walk
from tests.support.nested import blocks_of

TOOLS: Any = (
    {"name": "bash", "input_schema": {"type": "object"}},
    {"name": "read", "input_schema": {"type": "object"}},
)
EXAMPLES: Any = (
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "6"},
)
MARK = {"type": "ephemeral"}


def view_of(
    events: Any = None,
    strategy: Strategy | None = None,
    budgets: Any = None,
    **extras: Any,
) -> View:
    strategy = strategy or KeepAll()
    events = events or turns(2)
    outline = strategy.read(strategy.begin(), events)
    return render(
        strategy, outline, events, extras=Extras(**extras), budgets=budgets or {}
    )


def marked(request: dict[str, Any]) -> list[str]:
    """Return the text of the marked blocks, in the API's order."""
    blocks = [*request.get("tools", ()), *request.get("system", ())]
    blocks += list(blocks_of(request["messages"]))
    marked_blocks = [block for block in blocks if block.get("cache_control") == MARK]
    return [
        block.get("text") or block.get("name") or block["type"]
        for block in marked_blocks
    ]


def test_a_request_has_all_sections_in_their_order() -> None:
    view = view_of(
        log_of(SystemPrompt(text="Be brief."), UserInput(text="And now?")),
        tools=TOOLS,
        examples=EXAMPLES,
        memory=("likes tea",),
        evidence=("a fact",),
        state={"step": 2},
    )

    request = view.to_request(model="m", max_tokens=9)

    assert list(request) == ["model", "max_tokens", "system", "tools", "messages"]
    assert [span.kind for span in view.spans] == [
        "system",
        "examples",
        "examples",
        "examples",
        "examples",
        "memory",
        "raw",
        "evidence",
        "state",
    ]
    last = [block["text"] for block in request["messages"][-1]["content"]]
    assert [text[:6] for text in last] == ["<memor", "<evide", "<state", "And no"]
    assert violations(request["messages"]) == []


def test_stable_sections_end_in_a_cache_mark() -> None:
    extras = Extras(
        system="Be brief.", tools=TOOLS, examples=EXAMPLES, evidence=("a fact",)
    )
    events = [*turns(5, "word " * 30), envelope(11, UserInput(text="And now?"))]

    window = TurnWindow(full_turns=1, cached_turns=1)
    view = Walk(window).go(events).view(extras=extras)

    texts = marked(view.to_request(model="m", max_tokens=9))
    assert texts[:2] == ["Be brief.", "6"]
    assert "Earlier words of the user" in texts[2]
    assert texts[3].startswith("answer 5")
    assert len(texts) == 4


def test_tools_get_the_cache_mark_without_a_system_prompt() -> None:
    assert marked(view_of(tools=TOOLS).to_request(model="m", max_tokens=9)) == [
        "read",
        "answer 2",
    ]


def test_an_unstable_view_has_no_cache_mark_at_its_end() -> None:
    view = view_of(strategy=LastTurns(n=1), system="Be brief.")

    assert marked(view.to_request(model="m", max_tokens=9)) == ["Be brief."]


def test_cache_marks_of_the_caller_count() -> None:
    own: Any = [{**tool, "cache_control": MARK} for tool in TOOLS * 2]

    request = view_of(system="Be brief.", tools=tuple(own)).to_request(
        model="m", max_tokens=9
    )

    assert len(marked(request)) == 4


def test_the_digest_ignores_cache_marks() -> None:
    view = view_of(evidence=("a fact",))

    sent = view.to_request(model="m", max_tokens=9)["messages"]

    for message in sent:
        for block in message["content"]:
            block.pop("cache_control", None)
    assert sent == view.messages


def test_a_section_over_its_budget_loses_its_last_items() -> None:
    facts = ("first fact", "second fact", "third fact")
    budget = sum(map(estimate_text, facts[:2]))

    view = view_of(evidence=facts, budgets={"evidence": budget})

    assert view.cuts == (
        Cut(
            "evidence",
            sum(map(estimate_text, facts)),
            budget,
            "the last 1 of 3 left out",
        ),
    )
    assert "second fact" in str(view.messages)
    assert "third fact" not in str(view.messages)


def test_an_example_is_kept_with_its_answer_or_not_at_all() -> None:
    view = view_of(examples=EXAMPLES, budgets={"examples": 20})

    assert "2+2" in str(view.messages)
    assert "3+3" not in str(view.messages)
    assert view.cuts[0].reason == "the last 1 of 2 left out"
    assert violations(view.messages) == []


def test_a_section_that_cannot_be_cut_is_sent_and_reported() -> None:
    view = view_of(system="Be brief. " * 9, budgets={"system": 5, "tools": 5})

    assert view.system == "Be brief. " * 9
    assert view.cuts == (Cut("system", 23, 5, "sent whole: it cannot be cut"),)


def test_evidence_is_cut_first_when_the_view_exceeds_the_window() -> None:
    whole = view_of(evidence=("fact " * 50, "more " * 50), memory=("tea",))
    window = whole.tokens - 10

    view = view_of(
        evidence=("fact " * 50, "more " * 50), memory=("tea",), window_tokens=window
    )

    assert view.over_budget == 0
    assert [(cut.section, cut.reason[-24:]) for cut in view.cuts] == [
        ("evidence", "the last 1 of 2 left out")
    ]
    assert "fact" in str(view.messages)
    assert "tea" in str(view.messages)


def test_budgets_never_cut_events_of_the_session() -> None:
    view = view_of(evidence=("fact",), memory=("tea",), window_tokens=9)

    assert view.extras == Extras(window_tokens=9)
    assert [cut.section for cut in view.cuts] == ["evidence", "memory", "whole"]
    assert view.over_budget == view.tokens - 9
    assert "answer 2" in str(view.messages)


def test_rendering_with_the_fitting_extras_gives_the_same_view() -> None:
    events = turns(3)
    sections = {
        "evidence": ("fact " * 30, "more " * 30),
        "memory": ("tea " * 20,),
        "examples": EXAMPLES,
    }
    for window in range(20, 200, 7):
        view = view_of(events, window_tokens=window, **sections)

        dumped = Extras.load(view.extras.dump(), window)
        again = view_of(
            events,
            window_tokens=window,
            evidence=dumped.evidence,
            memory=dumped.memory,
            examples=dumped.examples,
        )

        assert again.digest == view.digest


def test_evidence_comes_after_the_placeholder_of_an_open_call() -> None:
    events = log_of(UserInput(text="Go"), call(), result())

    view = view_of(events, evidence=("a fact",))
    texts = marked(view.to_request(model="m", max_tokens=9))

    assert texts == ["tool_result"]
    assert violations(view.to_request(model="m", max_tokens=9)["messages"]) == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"memory": "a text"}, "memory: must be a list"),
        ({"evidence": [3]}, "evidence: must be a list of texts"),
        ({"tools": ["bash"]}, "tools: must be a list of objects"),
        ({"system": 3}, "system: must be a text"),
        ({"state": [1]}, "state: must be an object"),
        ({"window": 0}, "window: must be at least 1 token"),
        ({"examples": [EXAMPLES[1]]}, "examples: messages.0"),
        ({"examples": EXAMPLES[:1]}, "examples: the last message"),
        ({"evidenz": []}, "has no section or limit 'evidenz'"),
    ],
)
def test_invalid_extras_are_refused(sections: Any, message: str) -> None:
    with pytest.raises(InvalidEvent, match=message):
        Extras.of(sections)


@pytest.mark.parametrize("budgets", [{"raw": 3}, {"memory": -1}])
def test_a_budget_of_an_unknown_section_is_refused(budgets: Any) -> None:
    with pytest.raises(InvalidEvent, match="budgets: "):
        view_of(budgets=budgets)


def test_tools_cost_the_tokens_of_their_json() -> None:
    assert view_of(tools=TOOLS).tokens == view_of().tokens + estimate(TOOLS)


@pytest.mark.parametrize("size", range(900, 960))
def test_a_long_message_is_never_cut_inside_a_placeholder(size: int) -> None:
    placeholder = "[REDACTED:STUDENT_ID]"
    text = "x" * size + f" {placeholder}" * 300

    short = cut_to(text, 400, 7)

    assert "REDACTED" not in short.replace(placeholder, "")
    assert "STUDENT" not in short.replace(placeholder, "")


def test_earlier_versions_cut_long_messages_as_they_did() -> None:
    placeholder = "[REDACTED:STUDENT_ID]"
    strategies = {
        "old": spec.parse({"name": "keep_all", "version": 2, "params": {}}),
        "new": spec.parse("keep_all"),
    }
    broken = {"old": 0, "new": 0}

    for size in range(len(placeholder)):
        long = UserInput(text="x" * size + f" {placeholder}" * 3_000)
        events = log_of(long, UserInput(text="Go on."))
        for name, strategy in strategies.items():
            text = str(view_of(events, strategy, window_tokens=8_000).messages)
            broken[name] += "STUDENT" in text.replace(placeholder, "")

    assert broken["old"] > 0
    assert broken["new"] == 0
