"""A rerun rebuilds every request of a recorded run from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.importers import read
from refold.domain.envelope import Draft, Meta
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import Event
from refold.projections.context.view import View
from refold.redaction.plan import Plan
from refold.redaction.policy import Policy
from refold.redaction.redactor import Redactor
from refold.redaction.registered import Registered
from refold.store import Session, SessionStore
from refold.store.proofs.rerun import Rerun
from refold.store.session.imports import extend
from tests.store.test_real_transcripts import DATA, NAMES
from tests.support.redacting import GONE, MAIL, unaware
from tests.support.stores import prepare

WINDOW = "turn_window:full_turns=1,cached_turns=1"
CLEARING = "tool_clearing:trigger_tool_uses=2,keep=1"
ANSWER = Meta(source={"format": "test"})


def ask(session: Session, strategy: str | None = None, **handed: Any) -> None:
    session.record_request(session.prepare(strategy, **handed), model="claude-x")


def work(session: Session, turns: int, strategy: str, **handed: Any) -> Session:
    """Run a loop that reads a file each turn and records its requests."""
    for turn in range(turns):
        session.append(refold.UserInput(text=f"Read file {turn}, " + "please " * 20))
        ask(session, strategy, **handed)
        path = {"path": f"/srv/{turn}.txt"}
        session.append(
            [
                refold.AgentResponse(text="I read.", stop_reason="tool_use"),
                refold.ToolCall(call_id=f"c{turn}", tool_name="read", arguments=path),
            ]
        )
        content = f"line {turn} of text " * 20
        session.append(refold.ToolResult(call_id=f"c{turn}", content=content))
        ask(session, strategy, **handed)
        session.append(refold.AgentResponse(text=f"File {turn} is read."))
    return session


def transcript(turns: int, word: str = "") -> list[Draft]:
    events: list[Event] = [refold.SystemPrompt(text="Be brief.")]
    for turn in range(turns):
        events += [
            refold.UserInput(text=f"question {turn} {word}"),
            refold.AgentResponse(text="I look.", stop_reason="tool_use"),
            refold.ToolCall(call_id=f"c{turn}", tool_name="read", arguments={}),
            refold.ToolResult(call_id=f"c{turn}", content=f"the text {turn} {word}"),
            refold.AgentResponse(text=f"answer {turn}"),
        ]
    return [Draft(event, meta=ANSWER) for event in events]


def with_redactor(session: Session, redactor: Redactor) -> Session:
    return replace(session, writer=replace(session.writer, redactor=redactor))


def with_registered_secret(session: Session, secret: str) -> Session:
    """Return the session in a store that treats this as a secret."""
    registered = Registered()
    registered.register(secret)
    plan = Plan(name="registered alone", rules=())
    return with_redactor(session, Redactor(plan, registered=registered))


def is_reproduced(ran: Rerun) -> bool:
    return (ran.same, ran.first_difference, ran.live) == (ran.requests, None, None)


@pytest.mark.parametrize("strategy", ["keep_all", WINDOW, CLEARING, "last_turns:n=1"])
def test_an_unchanged_run_makes_the_same_requests(
    session: Session, strategy: str
) -> None:
    handed = {"state": {"step": 1}, "evidence": ["a document"], "system": "Be brief."}
    work(session, 6, strategy, **handed)
    before = session.head()

    ran = session.proofs.rerun()

    assert ran.requests == 12
    assert is_reproduced(ran)
    assert session.proofs.rerun(strategy) == ran
    assert session.head() == before


def test_an_import_is_compared_with_the_requests_derived_from_it(
    session: Session,
) -> None:
    extend(session, transcript(4), where="a.jsonl")
    digests = {
        event.seq: source["request"]
        for event in session.history.pages()
        if (source := event.meta.source) and "request" in source
    }

    ran = session.proofs.rerun()

    assert len(digests) == ran.requests == 8
    assert is_reproduced(ran)
    for seq, digest in digests.items():
        assert session.context("keep_all", at=seq - 1).digest == digest


@pytest.mark.parametrize("imported", [True, False])
def test_parts_of_an_answer_are_one_request(session: Session, imported: bool) -> None:
    parts: list[Draft] = []
    for number in (1, 2):
        parts.append(Draft(refold.UserInput(text=f"question {number}")))
        meta = ANSWER.model_copy(update={"response_id": f"m{number}"})
        parts.append(Draft(refold.AgentResponse(text="I think."), meta=meta))
        parts.append(Draft(refold.AgentResponse(text="I am sure."), meta=meta))
    if imported:
        extend(session, parts, where="a.jsonl")
    else:
        session.append(parts)

    ran = session.proofs.rerun()

    assert ran.requests == 2
    assert is_reproduced(ran)


def test_entries_of_a_grown_transcript_are_derived_after_the_rest(
    session: Session, store: SessionStore
) -> None:
    at_once = store.session(user_id="ada", session_id="at-once")
    extend(at_once, transcript(5), where="a.jsonl")
    for turns in (2, 2, 5):
        extend(session, transcript(turns), where="a.jsonl")

    assert [event.meta.source for event in session.history.pages()] == [
        event.meta.source for event in at_once.history.pages()
    ]
    assert is_reproduced(session.proofs.rerun())


def test_a_call_after_an_import_is_compared_with_its_own_request(
    session: Session,
) -> None:
    extend(session, transcript(2), where="a.jsonl")
    work(session, 1, WINDOW)

    ran = session.proofs.rerun()

    assert ran.requests == 6
    assert is_reproduced(ran)


def test_each_of_a_hundred_changes_is_located(memory: SessionStore) -> None:
    """Each change redacts one word in one event of an imported run."""
    session = memory.session(user_id="a", session_id="s")
    extend(session, transcript(50), where="a.jsonl")
    asked = [
        e.seq for e in session.history.pages() if "request" in (e.meta.source or {})
    ]
    changes = [
        (f"{word} {turn}", answer)
        for turn in range(50)
        for word, answer in (("question", 2 * turn), ("the text", 2 * turn + 1))
    ]

    for text, place in changes:
        difference = (
            with_registered_secret(session, text).proofs.rerun().first_difference
        )
        assert difference is not None
        assert (difference.request, difference.seq, difference.call) == (
            place + 1,
            asked[place],
            None,
        )
        assert text in str(difference.then.text)
        assert "[REDACTED:" in str(difference.now.text)


PLANTED: dict[str, dict[str, Any]] = {
    "user_input": {"text": "something else"},
    "agent_response": {"text": "something else"},
    "tool_call": {"arguments": {"path": "/elsewhere"}},
    "tool_result": {"content": "something else"},
}


def copied(
    session: Session, into: Session, *, at: int, change: dict[str, Any] | None
) -> Session:
    """Copy the run with another event at ``at``, or none; keep its requests."""
    for event in session.history.pages():
        payload = event.payload
        if isinstance(payload, refold.Request):
            seen = {"through_seq": into.head().seq}
            into.append(payload.model_copy(update=seen))
        elif event.seq != at:
            into.append(payload)
        elif change is not None:
            into.append(payload.model_copy(update=change))
    return into


@pytest.mark.parametrize("strategy", ["keep_all", CLEARING, "last_turns:n=2"])
def test_a_changed_event_is_reported_at_the_next_request(
    memory: SessionStore, strategy: str
) -> None:
    session = work(memory.session(user_id="a", session_id="s"), 4, strategy)
    events = list(session.history.pages())
    asked = [event.seq for event in events if event.type == "request"]
    planted = [
        (event.seq, PLANTED[event.type])
        for event in events
        if event.type in PLANTED and event.seq < asked[-1]
    ]
    dropped = [event.seq for event in events[1:] if event.type == "user_input"]
    changes = [*planted, *((seq, None) for seq in dropped)]

    for seq, change in changes:
        to = f"{seq}-{change is None}"
        into = memory.session(user_id="a", session_id=to)
        difference = (
            copied(session, into, at=seq, change=change).proofs.rerun().first_difference
        )
        assert difference is not None
        behind = next(n for n, place in enumerate(asked, 1) if place > seq)
        assert (difference.request, difference.where) == (behind, "digest")
    assert len(changes) == 22


@pytest.mark.parametrize("place", [0, 7, 19])
def test_the_first_recorded_request_after_a_change_is_named(
    session: Session, place: int
) -> None:
    for number in range(20):
        session.append(refold.UserInput(text=f"question {number} of many"))
        ask(session, "keep_all")

    difference = (
        with_registered_secret(session, f"question {place} of")
        .proofs.rerun()
        .first_difference
    )

    assert difference is not None
    assert (difference.request, difference.seq) == (place + 1, 2 * place + 2)


def test_another_strategy_differs_from_its_first_compaction_on(
    session: Session,
) -> None:
    work(session, 6, "keep_all")

    ran = session.proofs.rerun(WINDOW)

    difference = ran.first_difference
    assert difference is not None
    assert difference.request == ran.same + 1 > 2
    assert difference.where.startswith("message 1")
    assert "Read file 0" in str(difference.then.text)
    assert str(difference.now.text).startswith("Earlier parts of this session")
    assert session.history.streams() == ["main"]


def test_an_import_under_another_strategy_differs_from_its_first_compaction_on(
    session: Session,
) -> None:
    extend(session, transcript(9, "word " * 60), where="a.jsonl")

    difference = session.proofs.rerun(WINDOW).first_difference

    assert difference is not None
    assert difference.request > 4
    assert session.proofs.rerun("keep_all").first_difference is None


@pytest.mark.parametrize("text", ["Be brief.", "Be brief.\n", "Be brief.\r\n"])
def test_the_recorded_prompt_is_no_difference(session: Session, text: str) -> None:
    extend(session, transcript(3), where="a.jsonl")

    assert is_reproduced(session.proofs.rerun(prompt=text))


def test_another_prompt_differs_in_every_request(session: Session) -> None:
    extend(session, transcript(3), where="a.jsonl")

    difference = session.proofs.rerun(prompt="Be thorough.").first_difference

    assert difference is not None
    assert (difference.request, difference.where) == (1, "system")
    assert (difference.then.text, difference.now.text) == ("Be brief.", "Be thorough.")


def test_a_prompt_replaces_the_callers_prompt(session: Session) -> None:
    work(session, 2, "keep_all", system="Be brief.")

    assert is_reproduced(session.proofs.rerun(prompt="Be brief."))
    difference = session.proofs.rerun(prompt=f"Write to {MAIL}.").first_difference
    assert difference is not None
    assert difference.now.text == f"Write to {GONE}."


def test_a_prompt_is_added_to_a_run_without_one(session: Session) -> None:
    work(session, 1, "keep_all")

    difference = session.proofs.rerun(prompt="Be brief.").first_difference

    assert difference is not None
    assert (difference.request, difference.then.text, difference.now.text) == (
        1,
        "",
        "Be brief.",
    )


def test_a_prompt_changed_during_the_run_differs_from_there_on(
    session: Session,
) -> None:
    extend(session, transcript(2), where="a.jsonl")
    session.append(refold.SystemPrompt(text="Be kind."))
    work(session, 1, "keep_all")

    difference = session.proofs.rerun(prompt="Be brief.").first_difference

    assert difference is not None
    assert (difference.request, difference.where, difference.then.text) == (
        5,
        "system",
        "Be kind.",
    )


def test_a_note_in_the_conversation_is_no_prompt_to_replace(session: Session) -> None:
    session.append(refold.SystemPrompt(text="Be brief."))
    note = refold.SystemPrompt(text="The user is in Rome.", where="conversation")
    session.append(note)
    work(session, 1, "keep_all")

    assert is_reproduced(session.proofs.rerun(prompt="Be brief."))


def test_recorded_summaries_are_used(session: Session) -> None:
    work(session, 6, WINDOW)

    difference = with_redactor(
        session, Redactor(Plan(name="other", rules=()))
    ).proofs.rerun()

    assert is_reproduced(difference)


def test_a_digest_that_the_log_does_not_give_is_reported(session: Session) -> None:
    work(session, 3, "keep_all")
    view = session.context("keep_all")
    session.append(view.request().model_copy(update={"digest": "0" * 64}))

    difference = session.proofs.rerun().first_difference

    assert difference is not None
    assert (difference.request, difference.where) == (7, "digest")
    assert (difference.then.digest, difference.now.digest) == ("0" * 64, view.digest)


def test_later_redactions_are_no_difference(
    memory: SessionStore,
) -> None:
    session = with_redactor(memory.session(user_id="a", session_id="s"), unaware())
    work(session, 1, "keep_all")
    session.append(refold.UserInput(text=MAIL))
    ask(session, "keep_all")
    list(memory.reredact())

    ran = memory.session(user_id="a", session_id="s").proofs.rerun()

    assert (ran.requests, ran.same, ran.superseded) == (3, 2, 1)
    assert ran.first_difference is None


def test_a_fork_is_compared_with_its_own_requests(session: Session) -> None:
    work(session, 3, WINDOW)
    fork = session.fork(session.head().seq, session_id="fork")
    work(fork, 2, WINDOW)

    ran = fork.proofs.rerun()

    assert ran.requests == 4
    assert is_reproduced(ran)


def test_without_recorded_requests_those_derived_from_the_log_count(
    session: Session,
) -> None:
    session.append(transcript(9, "word " * 60))

    ran = session.proofs.rerun()
    other = session.proofs.rerun(WINDOW)

    assert (ran.recorded, ran.requests) == (False, 18)
    assert is_reproduced(ran)
    assert other.first_difference is not None
    assert other.first_difference.request == 5
    assert "question 0" in str(other.first_difference.then.text)
    difference = (
        with_registered_secret(session, "question 4").proofs.rerun().first_difference
    )
    assert difference is not None
    assert difference.request == 9


def test_a_session_without_model_calls_has_no_requests(session: Session) -> None:
    session.append(refold.UserInput(text="x"))

    assert session.proofs.rerun(WINDOW) == Rerun(0, 0, recorded=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_transcript_makes_the_same_requests(
    memory: SessionStore, name: str
) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout: nothing to import")
    for number, conversation in enumerate(read(path)[:6]):
        session = memory.session(user_id="ada", session_id=f"t-{number}")
        extend(session, conversation.drafts, where=name)

        assert is_reproduced(session.proofs.rerun())


class Script:
    """A model that returns one of these answers for each request."""

    name = "claude-x"

    def __init__(self, *answers: Sequence[Event]) -> None:
        self._answers = [*answers]
        self.asked = list[View]()

    def answer(self, view: View) -> Sequence[Event]:
        self.asked.append(view)
        return self._answers.pop(0)


def reads(number: int, call_id: str = "new") -> list[Event]:
    path = {"path": f"/srv/{number}.txt"}
    call = refold.ToolCall(call_id=call_id, tool_name="read", arguments=path)
    return [refold.AgentResponse(text="Let me see."), call]


def test_a_model_continues_until_a_call_has_no_recorded_result(
    session: Session,
) -> None:
    work(session, 3, "keep_all")
    done = [refold.AgentResponse(text="Done.")]
    model = Script(reads(0), done, reads(1), reads(7))

    ran = session.proofs.rerun(prompt="Be kind.", model=model)

    difference = ran.first_difference
    live = ran.live
    assert difference is not None
    assert live is not None
    assert (live.request, live.answers, live.results) == (1, 4, 2)
    assert live.ended == "unrecorded_call"
    assert live.call == {"name": "read", "arguments": {"path": "/srv/7.txt"}}
    assert difference.call is not None
    assert (difference.call.then, difference.call.now) == ((), (live.call,))
    assert ran.differs
    assert [view.system for view in model.asked] == ["Be kind."] * 4
    assert "line 0 of text" in str(model.asked[1].messages)
    assert "Let me see." in str(model.asked[1].messages)
    assert [tool["name"] for tool in model.asked[0].tools] == ["read"]


def test_a_model_with_the_same_answers_ends_where_the_run_did(session: Session) -> None:
    work(session, 2, WINDOW)
    replies = [refold.AgentResponse(text="In other words.")]
    model = Script(reads(0), replies, reads(1), replies)

    ran = session.proofs.rerun(prompt="Be kind.", model=model)

    assert ran.live is not None
    assert (ran.live.results, ran.live.ended) == (2, "run_ended")
    assert ran.first_difference is not None
    assert ran.first_difference.call is None


def test_another_model_answers_unchanged_requests(session: Session) -> None:
    work(session, 1, "keep_all")
    replies = [refold.AgentResponse(text="In other words.")]
    model = Script(reads(0), replies)
    model.name = "claude-y"

    ran = session.proofs.rerun(model=model)

    assert ran.live is not None
    assert (ran.live.request, ran.live.ended, ran.differs) == (1, "run_ended", False)


def test_a_model_is_not_called_for_recorded_answers(session: Session) -> None:
    work(session, 2, "keep_all")
    model = Script()

    assert is_reproduced(session.proofs.rerun(model=model))
    assert model.asked == []


def test_the_name_of_a_model_does_not_answer_requests(session: Session) -> None:
    work(session, 1, "keep_all")
    name: Any = "claude-x"

    with pytest.raises(InvalidConfiguration, match=r"LiveModel\(name\)"):
        session.proofs.rerun(model=name)


def test_numbered_placeholders_stay_the_same(store_url: str, tmp_path: Path) -> None:
    url = prepare(store_url, tmp_path)
    text = "version = 1\nnumbered = true\n"
    with refold.open(url, policy=Policy.parse(text)) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.SystemPrompt(text=f"Serve {MAIL}."))
        for words in (f"I am {MAIL}, not [EMAIL_1].", "Our code is word-4711."):
            session.append(refold.UserInput(text=words))
            ask(session, "keep_all")

        assert is_reproduced(session.proofs.rerun())
        assert is_reproduced(session.proofs.rerun(prompt=f"Serve {MAIL}."))
        other = session.proofs.rerun(
            prompt="Serve eve@analytical.org."
        ).first_difference
        assert other is not None
        assert other.now.text == "Serve [EMAIL_2]."

    rule = (
        '[[rules]]\nid = "code"\ntype = "CODE"\npattern = "word-[0-9]{4}"\n'
        'examples = ["word-4711"]\n'
    )
    with refold.open(url, policy=Policy.parse(text + rule)) as store:
        difference = (
            store.session(user_id="ada", session_id="s").proofs.rerun().first_difference
        )

    assert difference is not None
    assert (difference.request, difference.seq) == (2, 5)
    assert "word-4711" in str(difference.then.text)
