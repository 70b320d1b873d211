"""``why`` explains a context part by part, for people and for programs."""

import json
from collections import Counter
from pathlib import Path

import pytest

import refold as library
from refold import events
from refold.adapters.display.events import DIGEST
from refold.domain.envelope import Draft
from refold.domain.events import Summary
from refold.projections.context.strategies.spec import parse
from refold.store.appends import Order
from tests.cli.conftest import Refold

SESSION = ("--user", "lin", "--session", "run")
SPEC = "turn_window:full_turns=2,cached_turns=1,session_memory_tokens=400"
STRATEGY = ("--strategy", SPEC)
WIDTH = 100


@pytest.fixture
def with_summaries(refold: Refold, sample: Path) -> Path:
    refold("compact", *SESSION, *STRATEGY, "--until-idle")
    return sample


def test_people_see_parts_decisions_and_proofs(
    refold: Refold, with_summaries: Path
) -> None:
    ran = refold("why", *SESSION, *STRATEGY)

    assert ran.code == 0
    assert ran.out.startswith("turn_window 8  at seq 57  ")
    assert "tokens of summaries, at most 400  ✓ same decision when repeated" in ran.out
    assert "✓ same when recomputed" in ran.out
    assert "provenance  assumed: no request is recorded here" in ran.out
    assert "chain       run, main: ✓ proved  57 events" in ran.out
    assert "covered by a summary: summary" in ran.out


def test_people_see_changed_parameters_and_each_decision_once(
    refold: Refold, with_summaries: Path
) -> None:
    out = refold("why", *SESSION, *STRATEGY).out

    assert "parameters  full_turns=2, cached_turns=1, session_memory_tokens=400" in out
    assert "summary_tokens=" not in out
    assert out.count("decided at seq") == out.count("by abridged:") == 1
    for detail in ("digest", "hash", "fingerprint", "derived stream"):
        assert detail not in out


def test_verbose_adds_parameters_digests_and_hashes(
    refold: Refold, with_summaries: Path
) -> None:
    out = refold("why", *SESSION, *STRATEGY, "--verbose").out

    for detail in ("summary_tokens=600", "  digest  ", ", hash ", ", ends in "):
        assert detail in out
    assert "fingerprint" in out
    assert "derived stream" in out
    assert "message 3  user" in out


def test_messages_that_are_sent_as_recorded_are_one_group(
    refold: Refold, sample: Path
) -> None:
    out = refold("why", *SESSION).out
    messages = refold("context", *SESSION, "--json").json()["messages"]

    assert f"\nmessages 1 to {len(messages)}\n" in out
    assert out.count("sent word for word: no summary covers it") == 1
    assert len(out.splitlines()) < 20


def test_the_explanation_fits_a_hundred_columns(
    refold: Refold, with_summaries: Path
) -> None:
    out = refold("why", *SESSION, *STRATEGY).out
    out += refold("why", *SESSION, *STRATEGY, "--message", 1).out

    assert [line for line in out.splitlines() if len(line) > WIDTH] == []


def test_programs_get_every_event_once(refold: Refold, with_summaries: Path) -> None:
    explained = refold("why", *SESSION, *STRATEGY, "--json").json()

    shown = Counter(
        event["seq"] for part in explained["parts"] for event in part["events"]
    )
    left = [
        seq
        for run in explained["left_out"]
        for first, last in run["spans"]
        for seq in range(first, last + 1)
    ]
    shown.update(left)
    assert shown == Counter(range(1, 58))
    assert explained["request"] is None
    view = refold("context", *SESSION, *STRATEGY, "--json").json()
    assert explained["view"]["digest"] == view["digest"]


def test_one_message_is_explained_event_by_event(
    refold: Refold, with_summaries: Path
) -> None:
    view = refold("context", *SESSION, *STRATEGY, "--json").json()
    number = len(view["messages"])

    out = refold("why", *SESSION, *STRATEGY, "--message", number, "-v").out
    explained = refold("why", *SESSION, *STRATEGY, "--message", number, "--json").json()

    assert f"message {number}  assistant" in out
    assert "message 1 " not in out
    assert {part["message"] for part in explained["parts"]} == {number}
    (event,) = explained["parts"][-1]["events"]
    assert f"  {event['seq']}  " in out
    assert event["hash"][:12] in out


def test_a_summary_opens_down_to_events(refold: Refold, with_summaries: Path) -> None:
    explained = refold("why", *SESSION, *STRATEGY, "--json").json()
    fold = next(summary for summary in explained["summaries"] if summary["absorbs"])

    out = refold("why", *SESSION, *STRATEGY, "--open", fold["seq"]).out
    opened = refold("why", *SESSION, *STRATEGY, "--open", fold["seq"], "--json").json()

    assert out.startswith(f"summary {fold['seq']}  level {fold['level']}")
    for seq in fold["absorbs"]:
        assert f"\n  summary {seq}  level " in out
    events = [
        event["seq"] for summary in opened["summaries"] for event in summary["events"]
    ]
    assert sorted(events) == list(range(fold["first_seq"], fold["last_seq"] + 1))
    assert all(f"  {seq}  01:" in out for seq in events)


def test_a_recorded_request_is_explained_as_it_was_sent(
    refold: Refold, with_summaries: Path
) -> None:
    with library.open(f"sqlite:///{with_summaries}") as store:
        session = store.session(user_id="lin", session_id="run")
        view = session.context(SPEC, system="You help.")
        at = session.record_request(view, model="m-1", matches=True).last_seq

    ran = refold("why", *SESSION, "--at", at)
    explained = refold("why", *SESSION, "--at", at, "--json").json()

    assert (
        f"request     seq {at}, digest {view.digest[:12]} ✓ same when recomputed"
        in ran.out
    )
    assert "m-1, sent unchanged" in ran.out
    assert explained["request"]["is_this_view"]
    assert (
        explained["request"]["derived_again"]
        == explained["view"]["digest"]
        == view.digest
    )
    assert explained["parts"][0]["cause"] == "handed_in"


def test_a_request_that_sent_something_else_says_where_and_why(
    refold: Refold, sample: Path
) -> None:
    with library.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="own")
        session.append(library.UserInput(text="Two calls."))
        session.append(library.AgentResponse(text="Of whom?"))
        session.append(library.UserInput(text="Of ada@example.org."))
        warned = {"warnings": [{"code": "thinking_dropped"}]}
        session.append(library.AgentResponse(text="Yes."), meta=warned)
        for call_id in ("c1", "c2"):
            call = events.ToolCall(call_id=call_id, tool_name="Bash", arguments={})
            session.append(call)
        for call_id in ("c2", "c1"):
            session.append(events.ToolResult(call_id=call_id, content="done"))
        view = session.context(system="Write to bob@example.org.")
        at = session.record_request(view, model="m-1", matches=False).last_seq
        session.append(library.UserInput(text="Go on."))
        unknown = session.context()
        session.record_request(unknown, matches=False)
        other = store.session(user_id="lin", session_id="plain")
        other.append(library.UserInput(text="Hello"))
        other.record_request(other.context(), matches=False)

    user = ("--user", "lin")
    ran = refold("why", *user, "--session", "own", "--at", at)
    explained = refold("why", *user, "--session", "own", "--at", at, "--json").json()
    later = refold("why", *user, "--session", "own", "-v").out
    plain = refold("why", *user, "--session", "plain").out

    shown = " ".join(ran.out.split())
    assert "m-1, sent with other content" in shown
    assert "message 3 (seq 3): redaction replaced 1 value (EMAIL)" in shown
    assert "thinking with a redacted value was left out" in shown
    differences = explained["request"]["differences"]
    assert [(each["message"], each["seq"]) for each in differences] == [
        (3, 3),
        (4, 4),
        (5, 8),
        (None, at),
    ]
    assert "another order than the calls" in differences[2]["reason"]
    assert "replaced 1 value of the system prompt" in differences[3]["reason"]
    assert "and 1 more difference: -v lists all" in shown
    assert "message 3 (seq 3): redaction replaced 1 value (EMAIL)" in later
    assert "more difference" not in later
    assert "the log has no reason" in " ".join(plain.split())


def test_an_adopted_summary_names_its_origin(
    refold: Refold, with_summaries: Path
) -> None:
    other = ("--strategy", "turn_window:full_turns=3,cached_turns=1")
    printed = refold("compact", *SESSION, *other).out

    ran = refold("why", *SESSION, *other)

    explained = refold("why", *SESSION, *other, "--json").json()
    place = parse(SPEC).fingerprint
    assert ", adopted" in printed
    written = explained["summaries"][0]["adopted"]["seq"]
    where = f"summary {written} of strategy {place[:DIGEST]}"
    assert f"adopted: written as {where}" in ran.out
    assert "another decision" not in ran.out
    explained = refold("why", *SESSION, *other, "--json").json()
    assert explained["summaries"][0]["adopted"]["stream"] == place
    assert ran.code == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--at", 99), 1, "seq 99 is not in session 'run'"),
        (("--message", 99), 1, "message 99 is not in this context"),
        (("--open", 99), 1, "summary 99 is not in this context (there is: 1"),
        (("--open", 1, "--message", 1), 2, "one of --message and --open"),
        (("--at", 0), 2, "--at"),
    ],
)
def test_missing_things_are_refused_in_a_sentence(
    refold: Refold,
    with_summaries: Path,
    options: tuple[object, ...],
    code: int,
    message: str,
) -> None:
    ran = refold("why", *SESSION, *STRATEGY, *options)

    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_a_proof_that_does_not_hold_is_a_failure(
    refold: Refold, with_summaries: Path
) -> None:
    with library.open(f"sqlite:///{with_summaries}") as store:
        session = store.session(user_id="lin", session_id="run")
        (name,) = session.history.streams()[1:]
        newest = session.history.derived(name)[-1]
        record = newest.payload
        assert isinstance(record, Summary)
        forged = record.model_copy(
            update={"absorbs": (newest.seq,), "text": "all well"}
        )
        stream = session.stream._replace(stream=name)
        order = Order(stream, (Draft(forged),), expected_seq=newest.seq)
        session.writer.append(order)

    ran = refold("why", *SESSION, *STRATEGY)

    assert ran.code == 1
    assert "✗ differs when recomputed" in ran.out
    assert "rule: another decision when repeated: it now compacts " in ran.out
    explained = refold("why", *SESSION, *STRATEGY, "--json")
    assert json.loads(explained.out)["summaries"][0]["source"] == "broken"
    assert explained.code == 1
