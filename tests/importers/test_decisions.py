"""Decisions of people and plans in transcripts are events that no context shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters.importers import codex
from refold.adapters.importers.follower import Follower
from refold.domain.events import HumanReview, Planner
from refold.store import Session, SessionStore
from tests.importers.samples import (
    SESSION,
    Entry,
    answered,
    events,
    read_one,
    reasons,
    returned,
    use,
    user_entry,
    words,
    write_document,
    write_lines,
)
from tests.importers.test_codex import META, framed

USER = "ada"
REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected. "
    "To tell you how to proceed, the user said:\nuse the other folder"
)
TODOS = [{"content": "Mend it", "status": "pending", "activeForm": "Mending it"}]


class Case(NamedTuple):
    """A call of Claude Code with its result, and how many events it becomes."""

    name: str
    arguments: dict[str, Any]
    content: str
    is_error: bool = False
    details: Any = None
    decisions: int = 0
    plans: int = 0


QUESTIONS = [{"question": "Which folder?"}, {"question": "Which branch?"}]
ANSWERS = {"Which folder?": "src", "Which branch?": "main"}
CASES = [
    Case("Bash", {"command": "ls"}, "a.txt"),
    Case("Bash", {"command": "false"}, "Exit code 1", is_error=True),
    Case("Bash", {"command": "rm a"}, REFUSED, is_error=True, decisions=1),
    Case(
        "Bash",
        {"command": "curl x"},
        "Permission to use Bash with command curl x has been denied.",
        is_error=True,
        decisions=1,
    ),
    Case("Bash", {"command": "cat log"}, REFUSED),
    Case("TodoWrite", {"todos": TODOS}, "Todos have been modified", plans=1),
    Case("TaskCreate", {"subject": "Mend it"}, "Task #1 created", plans=1),
    Case("TaskUpdate", {"taskId": "1", "status": "completed"}, "Updated", plans=1),
    Case("EnterPlanMode", {}, "Entered plan mode.", plans=1),
    Case(
        "ExitPlanMode",
        {"plan": "1. Mend it"},
        "User has approved your plan.",
        details={"plan": "1. Mend it", "isAgent": False},
        decisions=1,
        plans=1,
    ),
    Case("ExitPlanMode", {}, REFUSED, is_error=True, decisions=1, plans=1),
    Case(
        "AskUserQuestion",
        {"questions": QUESTIONS},
        'User has answered your questions: "Which folder?"="src"',
        details={"questions": QUESTIONS, "answers": ANSWERS},
        decisions=1,
    ),
]


def entries_of(cases: list[Case]) -> Iterator[Entry]:
    yield user_entry("u", "Mend the build.")
    for number, case in enumerate(cases):
        call_id = f"c{number}"
        call = use(call_id, case.name, **case.arguments)
        yield answered(f"a{number}", f"m{number}", call)
        result = returned(call_id, case.content, is_error=case.is_error)
        yield user_entry(f"r{number}", [result], toolUseResult=case.details)
    yield answered("end", "m-end", words("Done."))


def kinds_of(session: Session) -> list[tuple[str, dict[str, Any]]]:
    return [
        (event.type, event.payload.payload())
        for event in session.events()
        if event.type in ("hitl", "planner")
    ]


@pytest.fixture
def store() -> Iterator[SessionStore]:
    with refold.open("memory://") as opened:
        yield opened


def test_a_refusal_is_a_decision_with_the_reason_that_the_user_gave(
    tmp_path: Path,
) -> None:
    transcript = read_one(write_lines(tmp_path, [*entries_of([CASES[2]])]))

    (decision,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert decision == HumanReview(
        trigger="tool_approval",
        decision="rejected",
        decided_by="user",
        bundle={"call_id": "c0", "reason": "use the other folder"},
    )


def test_answers_of_the_user_are_a_decision_on_the_questions(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, [*entries_of([CASES[-1]])]))

    (decision,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert decision.trigger == "question"
    assert decision.question == "Which folder?\nWhich branch?"
    assert decision.decision == "Which folder?: src\nWhich branch?: main"


def test_an_interruption_is_no_decision(tmp_path: Path) -> None:
    lines = [*entries_of([CASES[2]])]
    lines[2]["toolDenialKind"] = "interrupted"

    transcript = read_one(write_lines(tmp_path, lines))

    assert not [e for e in events(transcript) if isinstance(e, HumanReview)]


def test_a_refusal_of_another_kind_names_what_refused(tmp_path: Path) -> None:
    case = Case("Bash", {"command": "x"}, "Not safe.", is_error=True)
    lines = [*entries_of([case])]
    lines[2]["toolDenialKind"] = "classifier"

    transcript = read_one(write_lines(tmp_path, lines))

    (decision,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert (decision.decision, decision.decided_by) == ("rejected", "classifier")


def test_the_answer_of_a_hook_is_a_decision(tmp_path: Path) -> None:
    attachment = {
        "type": "hook_permission_decision",
        "decision": "allow",
        "toolUseID": "c0",
        "hookEvent": "PermissionRequest",
    }
    hook = {"type": "attachment", "uuid": "h", "sessionId": SESSION}
    lines = [*entries_of([CASES[0]]), {**hook, "attachment": attachment}]

    transcript = read_one(write_lines(tmp_path, lines))

    (decision,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert (decision.decision, decision.decided_by) == ("approved", "hook")


def test_an_input_in_plan_mode_is_a_plan(tmp_path: Path) -> None:
    lines = [
        user_entry("u1", "Think first.", permissionMode="plan"),
        user_entry("u2", "Now do it.", permissionMode="default"),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    assert [e for e in events(transcript) if isinstance(e, Planner)] == [
        Planner(plan={"mode": "plan"})
    ]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cases=st.lists(st.sampled_from(CASES), max_size=8))
def test_counts_are_those_of_the_file_and_contexts_show_none(
    tmp_path: Path, cases: list[Case]
) -> None:
    path = write_lines(tmp_path, [*entries_of(cases)], "s.jsonl")
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id=USER, session_id="s")
        session = store.session(user_id=USER, session_id="s")
        again = store.import_transcript(path, user_id=USER, session_id="s")
        counts = Counter(kind for kind, _ in kinds_of(session))
        shown = json.dumps(session.context("keep_all").messages)
        unshown = session.why("keep_all").unshown
        restated = [event.seq for event in unshown if event.why == "restated"]

    assert counts["hitl"] == sum(case.decisions for case in cases)
    assert counts["planner"] == sum(case.plans for case in cases)
    assert len(restated) == counts.total()
    assert [imported.events for imported in again] == [0]
    assert "<human_review" not in shown
    assert "<plan" not in shown


def test_a_capture_records_the_decisions_of_an_import(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "projects" / "-work"
    folder.mkdir(parents=True)
    path = write_lines(folder, [*entries_of(CASES)], "s.jsonl")
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    with follower.alone():
        follower.look()
    store.import_transcript(path, user_id="bob", session_id="s")

    ours = store.session(user_id=USER, session_id=SESSION)
    theirs = store.session(user_id="bob", session_id="s")

    assert kinds_of(ours) == kinds_of(theirs)
    assert kinds_of(ours)
    assert ours.context("keep_all").messages == theirs.context("keep_all").messages


def test_approvals_in_an_inspect_log_are_decisions(tmp_path: Path) -> None:
    tool_call = {"id": "c1", "function": "bash", "arguments": {"cmd": "rm a"}}
    messages = [
        {"role": "user", "content": "Clean up."},
        {"role": "assistant", "content": "I do.", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "refused"},
    ]
    approval = {
        "event": "approval",
        "call": tool_call,
        "approver": "human",
        "decision": "reject",
        "explanation": "Keep it.",
    }
    unknown = {**approval, "call": {"id": "c2"}}
    sample = {"id": 1, "epoch": 1, "messages": messages, "events": [approval, unknown]}
    log = {"version": 2, "status": "success", "eval": {"task": "t"}}

    transcript = read_one(write_document(tmp_path, {**log, "samples": [sample]}))

    (decision,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert decision == HumanReview(
        trigger="tool_approval",
        decision="rejected",
        decided_by="human",
        bundle={"call_id": "c1", "reason": "Keep it."},
    )
    assert "1 approval event whose call is in no message here" in (
        reasons(transcript).values()
    )


def call(name: str, arguments: Any, call_id: str = "c1") -> Entry:
    return framed(
        "response_item",
        type="function_call",
        call_id=call_id,
        name=name,
        arguments=json.dumps(arguments),
    )


def output(content: str, call_id: str = "c1") -> Entry:
    return framed(
        "response_item", type="function_call_output", call_id=call_id, output=content
    )


PLAN = {"explanation": "First", "plan": [{"step": "Mend it", "status": "pending"}]}


def test_plans_of_codex_are_plans(tmp_path: Path) -> None:
    lines = [
        META,
        framed("turn_context", collaboration_mode={"mode": "plan"}),
        call("update_plan", PLAN),
        output("Plan updated"),
        framed("event_msg", type="item_completed", item={"type": "Plan", "text": "1."}),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    plans = [e.plan for e in events(transcript) if isinstance(e, Planner)]
    assert plans == [{"mode": "plan"}, PLAN, "1."]


@pytest.mark.parametrize(
    ("content", "trigger", "decision"),
    [
        ("exec command rejected by user", "tool_approval", "rejected"),
        ("patch rejected by user", "tool_approval", "rejected"),
        ('{"output": "rejected by user"}', "tool_approval", "rejected"),
        ('{"answers": {"q": {"answers": ["src", "main"]}}}', "question", "src\nmain"),
        ('{"permissions": {}, "scope": "turn"}', "tool_approval", "rejected"),
        ('{"permissions": {"n": 1}, "scope": "turn"}', "tool_approval", "approved"),
    ],
)
def test_approvals_and_answers_of_codex_are_decisions(
    tmp_path: Path, content: str, trigger: str, decision: str
) -> None:
    lines = [META, call("shell", {"command": ["rm"]}), output(content)]

    transcript = read_one(write_lines(tmp_path, lines))

    (review,) = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert (review.trigger, review.decision) == (trigger, decision)
    assert review.bundle == {"call_id": "c1"}


@pytest.mark.parametrize(
    "content",
    [
        "grep: exec command rejected by user",
        '{"answers": []}',
        '{"answers": {"q": 1}}',
        '{"permissions": {}, "other": 1}',
        "[1]",
    ],
)
def test_other_results_of_codex_are_no_decisions(tmp_path: Path, content: str) -> None:
    lines = [META, call("shell", {"command": ["rm"]}), output(content)]

    transcript = read_one(write_lines(tmp_path, lines))

    assert not [e for e in events(transcript) if isinstance(e, HumanReview)]


def test_a_line_of_codex_alone_gives_the_decisions_of_the_file(tmp_path: Path) -> None:
    lines = [
        META,
        framed("turn_context", collaboration_mode={"mode": "plan"}),
        call("update_plan", PLAN),
        output("exec command rejected by user"),
    ]
    view = codex.format_of(None).view

    transcript = read_one(write_lines(tmp_path, lines))
    alone = [draft.event for line in lines for draft in view("", line, {})]  # type: ignore[union-attr]  # all are drafts

    types = (HumanReview, Planner)
    whole = [e for e in events(transcript) if isinstance(e, types)]
    assert [e for e in alone if isinstance(e, types)] == whole
    assert len(whole) == 3
