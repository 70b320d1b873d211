"""A short answer of the user is shown with the words that it is about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import refold
from refold.domain.events import AgentResponse, HumanReview, UserInput
from refold.projections.context.choices import subject_of
from refold.projections.context.limits import LONGEST_ANSWER
from refold.store import SessionStore
from tests.projections.logs import call, result
from tests.projections.test_protected import STRATEGIES, messages, sent_text

LETTERS = """\
**What should happen to a summary that exists already?**
- **A) Silently skip** it
- **B) Prompt the user**
- **C) Add a `--force` flag**

I would take **C)**. Thoughts?"""
NUMBERS = "1. Inline it\n2. Use a transaction\n3. Pass it on\n\nWhat do you think?"


REPORT = """\
Done:
1. Fixed the parser
2. Removed the cache
3. Updated the docs

Should I push?"""


@pytest.mark.parametrize(
    ("answer", "offer", "subject"),
    [
        ("C)", LETTERS, "C) Add a `--force` flag"),
        ("b", LETTERS, "B) Prompt the user"),
        ("A. is fine, log it", LETTERS, "A) Silently skip it"),
        ("B - but log it", LETTERS, "B) Prompt the user"),
        ("option b looks good", LETTERS, "B) Prompt the user"),
        ("2", NUMBERS, "2. Use a transaction"),
        ("let's go with 2", NUMBERS, "2. Use a transaction"),
        ("2 please", NUMBERS, "2. Use a transaction"),
        ("yes, the second", NUMBERS, "2. Use a transaction"),
        ("the last one", NUMBERS, "3. Pass it on"),
        ("do the first one", NUMBERS, "1. Inline it"),
        ("the last one", f"{REPORT}\n\n{NUMBERS}", "3. Pass it on"),
        ("the first one", f"{REPORT}\n\n{NUMBERS}", "1. Inline it"),
        ("1 and 3", NUMBERS, "1. Inline it; 3. Pass it on"),
        ("the la\u017ft one", NUMBERS, "3. Pass it on"),  # a long s
        ("第二个", NUMBERS, "2. Use a transaction"),
        (
            "2",
            f"{REPORT}\n\nHow many workers should run?",
            "How many workers should run?",
        ),
        ("方案2", NUMBERS, "2. Use a transaction"),
        ("yes", LETTERS, "Thoughts?"),
        ("yes, push it", REPORT, "Should I push?"),
        ("ok", "I would push it.\n```\nWhy?\n```\n", ""),
        ("ok", "Why did it fail? A race.\n\nIt is fixed.", ""),
        ("2", "Done:\n1. Fixed the parser\n2. Removed the cache", ""),
        ("2 " + "and so on " * 20, NUMBERS, ""),
    ],
)
def test_a_short_answer_has_what_it_is_about(
    answer: str, offer: str, subject: str
) -> None:
    assert subject_of(answer, offer) == subject
    if len(answer) <= LONGEST_ANSWER:
        assert subject_of(answer, offer, at_length=True) == subject


@pytest.mark.parametrize(
    ("answer", "offer"),
    [
        ("a good idea", LETTERS),
        ("c++ please", LETTERS.replace("C)", "**C)**")),
        ("e.g. this", LETTERS + "\nE) None?"),
        ("3 tests fail now", REPORT),
        ("3, 2 tests fail", REPORT),
        ("2 tests still fail", REPORT),
        ("2-3 hours", REPORT),
        ("Run the tests first", REPORT),
        ("fix the lint first", REPORT),
        ("the last commit broke it", REPORT),
        ("Go 1.21 please", REPORT),
        ("option 1.21", REPORT),
        ("1 more thing: rename it", REPORT),
        ("1. rename it 2. push", REPORT),
        ("wait a second", REPORT),
        ("do 3 more", REPORT),
        ("right now it fails", REPORT),
        ("please fix the lint", REPORT),
        ("Can you fix all 3", REPORT),
        ("Commit this.", REPORT),
    ],
)
def test_other_short_messages_are_about_nothing(answer: str, offer: str) -> None:
    assert subject_of(answer, offer) == ""
    assert subject_of(answer, offer, at_length=True) == ""


@pytest.fixture
def store() -> Iterator[SessionStore]:
    with refold.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize("spec_text", STRATEGIES)
@pytest.mark.parametrize("is_late", [True, False])
def test_every_compaction_keeps_what_a_short_answer_is_about(
    store: SessionStore, spec_text: str, is_late: bool
) -> None:
    session = store.session(user_id="ada", session_id="choice")
    session.append([UserInput(text="How?"), AgentResponse(text=NUMBERS)])
    session.append([UserInput(text="2"), AgentResponse(text="I begin.")])
    for _ in range(3):
        session.append(messages(6))
        if not is_late:
            session.prepare(spec_text)

    text = sent_text(session.prepare(spec_text))

    assert "[2, in answer to: 2. Use a transaction] 2\n" in text


def test_a_text_of_the_agent_explains_only_the_first_answer(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="choice")
    session.append([UserInput(text="How?"), AgentResponse(text=NUMBERS)])
    session.append([UserInput(text="2"), UserInput(text="ok")])
    session.append(messages(12))

    text = sent_text(session.prepare(STRATEGIES[0]))

    assert "[2, in answer to: 2. Use a transaction] 2\n" in text
    assert "[3] ok\n" in text


@pytest.mark.parametrize("spec_text", STRATEGIES)
def test_every_compaction_names_the_call_that_a_person_rejected(
    store: SessionStore, spec_text: str
) -> None:
    session = store.session(user_id="ada", session_id="rejected")
    rejected = HumanReview(
        trigger="tool_approval",
        decision="rejected",
        bundle={"call_id": "c-no", "reason": "I did not say commit."},
    )
    session.append(
        [
            UserInput(text="Fix it."),
            AgentResponse(text="I commit it.", stop_reason="tool_use"),
            call("c-no", "Bash", command="git commit -m 'Fix it'"),
            result("c-no", "The person rejected it.", status="error"),
            rejected,
            AgentResponse(text="Then not."),
            *messages(12),
        ]
    )

    text = sent_text(session.prepare(spec_text))

    line = "[1, decision] rejected Bash: git commit -m 'Fix it': I did not say commit."
    assert line in text
    assert "A decision is a person's answer" in text
