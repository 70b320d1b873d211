"""A bundle is small, has everything that a human needs, and makes its rule fire."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

import refold
from refold.domain.canonical import canonical, text_digest
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event, HumanReview, Reflection
from refold.projections.review.bundle import (
    MOST_BYTES,
    Bundle,
    cut,
    fires_again,
    read_bundle,
)
from refold.projections.review.rules import MOST, ReviewRules
from tests.projections.reviewing import (
    ASK,
    EAGER,
    SHIPPED,
    call_and_result,
    fails,
    rules_of,
    sessions,
)

MAIL = "ada@example.com"
RISKY = Reflection(issues=("safety",))
WORDS = ["BDG-QX471100000000", "key=a1b2", "the", "订单", "日志。", "x" * 90]


def bundles(events: list[Event], rules: ReviewRules = SHIPPED) -> list[Bundle]:
    """Those of the questions that a session with these events needs."""
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        for event in events:
            session.append(event)
        session.reviews.ask(rules)
        reviews = [e.payload for e in session.events()]
    return [
        read_bundle(orjson.dumps(review.bundle))
        for review in reviews
        if isinstance(review, HumanReview) and review.bundle
    ]


@given(sessions())
def test_its_rule_fires_again_on_any_session(events: list[Event]) -> None:
    for bundle in bundles(events, EAGER):
        assert fires_again(bundle)
        assert len(canonical(bundle.to_json())) <= MOST_BYTES
        assert calls_and_results_are_whole(bundle)


def calls_and_results_are_whole(bundle: Bundle) -> bool:
    calls = {e.payload["call_id"] for e in bundle.events if e.type == "tool_call"}
    results = {e.payload["call_id"] for e in bundle.events if e.type == "tool_result"}
    return results <= calls


def test_a_bundle_names_the_events_the_session_and_the_request() -> None:
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.SystemPrompt(text="Be careful."))
        session.append(refold.UserInput(text=f"write to {MAIL}"))
        session.record_request(session.context("keep_all"), model="claude-x")
        session.append(refold.Reflection(issues=("privacy",)))
        session.reviews.ask()
        *events, asked = session.events()

    review: Any = asked.payload
    bundle = read_bundle(json.dumps(review.bundle))

    assert MAIL not in json.dumps(review.bundle)
    assert [entry.type for entry in bundle.events] == ["user_input", "reflection"]
    assert [entry.hash for entry in bundle.events] == [events[1].hash, events[3].hash]
    assert (bundle.where.user_id, bundle.where.session_id) == ("ada", "s-1")
    assert (bundle.where.first_seq, bundle.where.seqs) == (4, (4,))
    assert bundle.system_digest == text_digest("Be careful.")
    assert (bundle.model, bundle.strategy and bundle.strategy["name"]) == (
        "claude-x",
        "keep_all",
    )
    assert (bundle.refold, bundle.rules) == (refold.__version__, SHIPPED.digest())
    assert review.question == "A reflection names privacy. May this stand?"


def test_required_events_stay_when_room_is_short() -> None:
    long = "word " * 9_000
    rules = rules_of(f'[r]\nwhen = "tool_fails"\nfailures = {MOST}\nsteps = []')
    talk: list[Event] = [refold.AgentResponse(text=long) for _ in range(60)]
    fail = [event for n in range(MOST) for event in call_and_result(f"c{n}", note=long)]

    (bundle,) = bundles([ASK, *fail[:-2], *talk, *fail[-2:]], rules)

    seqs = [entry.seq for entry in bundle.events]
    assert set(bundle.where.seqs) <= set(seqs)
    assert seqs == sorted(seqs)
    assert bundle.left_out > 0
    assert len(seqs) + bundle.left_out == 1 + 60 + 2 * MOST
    assert len(canonical(bundle.to_json())) <= MOST_BYTES
    assert fires_again(bundle)


def test_optional_events_are_the_newest_without_a_gap() -> None:
    words = ["word " * 9_000, "short"]
    talk: list[Event] = [refold.AgentResponse(text=words[n % 2]) for n in range(120)]

    (bundle,) = bundles([ASK, *talk, Reflection(issues=("safety",))])

    seqs = [entry.seq for entry in bundle.events]
    assert seqs[0] == 1
    assert seqs[1:] == list(range(seqs[1], 123))
    assert 10 < len(seqs) < 122


def test_earlier_decisions_do_not_count_again() -> None:
    rules = rules_of('[r]\nwhen = "tool_fails"\nfailures = 2\nsteps = []')
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        for event in [ASK, *fails(2)]:
            session.append(event)
        (first,) = session.reviews.ask(rules).asked
        session.reviews.decide(first, "accept", by="lin")
        for event in fails(2):
            session.append(event)
        session.reviews.ask(rules)
        second = session.events()[-1].payload

    bundle = read_bundle(orjson.dumps(second.payload()["bundle"]))

    assert bundle.where.seqs == (8, 9, 10, 11)
    assert {2, 3, 4, 5} < {entry.seq for entry in bundle.events}
    assert fires_again(bundle)


def test_failures_of_earlier_turns_stand_with_their_calls() -> None:
    rules = rules_of('[r]\nwhen = "tool_fails"\nfailures = 2\nsteps = []')

    (bundle,) = bundles([ASK, *call_and_result("a"), ASK, *call_and_result("b")], rules)

    assert [entry.seq for entry in bundle.events] == [2, 3, 4, 5, 6]
    assert bundle.where.seqs == (2, 3, 5, 6)


def test_a_bundle_holds_no_provider_id_and_no_earlier_bundle() -> None:
    events = [*call_and_result("toolu_1"), Reflection(issues=("safety",))]
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append([ASK, *events])
        session.reviews.ask()
        session.append(Reflection(issues=("privacy",)))
        session.reviews.ask()
        review: Any = session.events()[-1].payload

    text = json.dumps(review.bundle)

    assert "toolu_1" not in text
    assert [e["type"] for e in review.bundle["events"]].count("hitl") == 1
    assert text.count("refold-review-bundle") == 1


@given(st.text(max_size=600), st.integers(2, 300))
def test_a_shortened_text_fits(text: str, most: int) -> None:
    short = cut(text, most)

    assert len(canonical(short)) <= most
    assert short == text or len(canonical(text)) > most


@given(st.lists(st.sampled_from(WORDS), max_size=200), st.integers(2, 900))
def test_a_cut_falls_between_words(words: list[str], most: int) -> None:
    short = cut(" ".join(words), most)

    before, *behind = short.split("[…")
    left = "".join(behind).partition("…]")[2]
    assert set(before.split()) <= {*words, "…"}
    assert set(left.split()) <= set(words)


def test_a_grouped_number_is_never_split() -> None:
    text = "pay £4£ £5£ £6£ now " * 40

    for most in range(60, 400):
        assert cut(text, most).count("£") % 6 == 0


def test_a_text_without_a_place_to_cut_becomes_a_notice() -> None:
    assert cut("x" * 9_000, 500) == "[… 9000 characters left out …]"


def test_shortened_json_stays_json_with_the_same_values() -> None:
    rows: Any = {"error": None, "rows": [{"id": f"BDG-{n:012d}"} for n in range(900)]}

    short = json.loads(cut(json.dumps(rows), 500))

    assert short["error"] is None
    assert len(short["rows"]) > 2
    assert all(row in rows["rows"] for row in short["rows"][:2])


def test_numbers_in_json_keep_their_digits() -> None:
    text = json.dumps({"n": 41111111111111111111111111, "text": "word " * 400})

    assert json.loads(cut(text, 300))["n"] == "41111111111111111111111111"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_is_replaced_by_a_notice() -> None:
    result = refold.ToolResult(call_id="c", content=nested(125))
    call = refold.ToolCall(call_id="c", tool_name="web", arguments={})

    first, second = bundles(
        [ASK, call, result, RISKY, ASK, Reflection(issues=("privacy",))]
    )

    assert "too deep to show" in json.dumps(first.to_json())
    assert fires_again(first)
    assert fires_again(second)


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "Error: boom " + "x y " * 1_500}],
        [{"text": "Error: boom"}, *["x y " * 500] * 30],
        {"error": {"why": ["x y " * 300] * 20}, "more": "x " * 2_000},
        " " * 200 + "Error: boom " + "x y " * 1_500,
        "Error:" + "x" * 9_000,
        [{"annotations": "x y " * 3_000, "text": "Error: boom"}],
        json.dumps({"error": "x y " * 3_000}),
    ],
)
def test_a_shortened_result_still_reads_as_a_failure(content: Any) -> None:
    rules = rules_of(f'[r]\nwhen = "tool_fails"\nfailures = {MOST}\nsteps = []')
    call = refold.ToolCall(
        call_id="c", tool_name="book", arguments={"note": "word " * 9_000}
    )
    failed = refold.ToolResult(call_id="c", content=content)

    (bundle,) = bundles([ASK, *[call, failed] * MOST], rules)

    assert fires_again(bundle)


def test_a_shortened_issue_keeps_its_name() -> None:
    issue = {"why": "word " * 900, "code": "data_loss", "more": ["x"] * 900}

    (bundle,) = bundles([ASK, Reflection(issues=(issue, " " * 900 + "privacy"))])

    assert fires_again(bundle)


def test_a_placeholder_is_never_split() -> None:
    text = "[REDACTED:EMAIL] and " * 40

    for most in range(60, 400):
        assert cut(text, most).count("[R") == cut(text, most).count("L]")


GOOD: dict[str, Any] = bundles([ASK, Reflection(issues=("safety",))])[0].to_json()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b"{}",
        b'{"format": "refold-review-bundle/2"}',
        json.dumps({**GOOD, "events": 7}).encode(),
        json.dumps({**GOOD, "more": 7}).encode(),
        json.dumps({**GOOD, "figures": {"code": [[]]}})
        .replace("[[]]", "[" * 260 + "]" * 260)
        .encode(),
        json.dumps({k: v for k, v in GOOD.items() if k != "where"}).encode(),
    ],
)
def test_reading_anything_but_a_bundle_fails(data: bytes) -> None:
    with pytest.raises(InvalidEvent):
        read_bundle(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": {"name": "x", "when": "moon"}},
        {"rule": {}},
        {"events": [{**GOOD["events"][0], "type": "dream"}]},
        {"events": [{**GOOD["events"][0], "payload": {"texts": "x"}}]},
    ],
)
def test_a_bundle_with_an_invalid_event_or_rule_is_refused(
    wrong: dict[str, Any],
) -> None:
    bundle = read_bundle(json.dumps({**GOOD, **wrong}))

    with pytest.raises(InvalidEvent):
        fires_again(bundle)


def test_a_changed_bundle_does_not_fire_again() -> None:
    bundle = read_bundle(json.dumps({**GOOD, "events": GOOD["events"][:1]}))

    assert not fires_again(bundle)


def test_a_bundle_is_read_alone_or_from_a_listed_question() -> None:
    listed = {"seq": 3, "bundle": GOOD}
    event = {"type": "hitl", "payload": {"trigger": "x", "bundle": GOOD}}

    assert (
        read_bundle(json.dumps(GOOD))
        == read_bundle(json.dumps(listed))
        == read_bundle(json.dumps(event))
    )
