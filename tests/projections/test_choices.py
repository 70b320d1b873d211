"""A short answer of the user is shown with what it chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import refold
from refold.domain.events import AgentResponse, HumanReview, UserInput
from refold.projections.context.choices import choice
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


@pytest.mark.parametrize(
    ("answer", "offer", "chosen"),
    [
        ("C)", LETTERS, "(chosen: C) Add a `--force` flag)"),
        ("A. is fine, log it", LETTERS, "(chosen: A) Silently skip it)"),
        ("option b please", LETTERS, "(chosen: B) Prompt the user)"),
        ("2", NUMBERS, "(chosen: 2. Use a transaction)"),
        ("yes, the second", NUMBERS, "(chosen: 2. Use a transaction)"),
        ("the last one", NUMBERS, "(chosen: 3. Pass it on)"),
        ("1 and 3", NUMBERS, "(chosen: 1. Inline it; 3. Pass it on)"),
        ("第二个", NUMBERS, "(chosen: 2. Use a transaction)"),
        ("yes", LETTERS, "(asked: Thoughts?)"),
        ("ok", "I would push it.\n```\nWhy?\n```\n", ""),
        ("a good idea", LETTERS, ""),
        ("Can you fix all 5", NUMBERS, ""),
        ("Commit this.", NUMBERS, ""),
        ("2 " + "and so on " * 20, NUMBERS, ""),
    ],
)
def test_a_short_answer_has_what_it_chose(answer: str, offer: str, chosen: str) -> None:
    assert choice(answer, offer) == chosen


@pytest.fixture
def store() -> Iterator[SessionStore]:
    with refold.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize("spec_text", STRATEGIES)
@pytest.mark.parametrize("is_late", [True, False])
def test_every_compaction_keeps_what_a_short_answer_chose(
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

    assert "[2] 2 (chosen: 2. Use a transaction)" in text


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
