"""A2A: a task is delivered once, survives its processes, and reports its state."""

from __future__ import annotations

import copy
import os
import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.frameworks.a2a import deliver, receive, task, tool_definition
from refold.domain.errors import IdempotencyConflict, InvalidEvent, SessionNotFound
from refold.events import HumanReview
from refold.store import Session, SessionStore
from tests.importers.test_robustness import all_places
from tests.support import warm
from tests.support.stores import ROOT, open_at

Json = dict[str, Any]
EXAMPLE = ROOT / "examples" / "two_agents.py"


def a2a_message(name: str, *parts: Json, **more: Any) -> Json:
    fields = {"messageId": name, "role": "ROLE_USER", "parts": [*parts]}
    return {"message": {**fields, **more}}


def text_part(words: str) -> Json:
    return {"text": words}


def session_of(store: SessionStore, answer: Json) -> Session:
    return store.session(user_id="team", session_id=answer["id"])


def state_of(answer: Json) -> str:
    return str(answer["status"]["state"]).removeprefix("TASK_STATE_")


def test_a_task_goes_through_its_states(store: SessionStore) -> None:
    received = receive(store, a2a_message("m-1", text_part("Look.")), user_id="team")
    session = session_of(store, received)
    seen = [state_of(received)]

    session.append(refold.ToolCall(call_id="c", tool_name="ls"))
    seen.append(state_of(task(session)))
    session.append(refold.ToolResult(call_id="c", content="a"))
    session.append(HumanReview(trigger="unsure", question="Which of them?"))
    asking = task(session)
    seen.append(state_of(asking))
    answer = a2a_message("m-2", text_part("The first."), taskId=received["id"])
    seen.append(state_of(receive(store, answer, user_id="team")))
    final = refold.Final(text="It is a.", outcome="success", result={"found": ["a"]})
    session.append(final)
    seen.append(state_of(task(session)))

    assert seen == ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert asking["status"]["message"]["parts"] == [text_part("Which of them?")]
    (artifact,) = task(session)["artifacts"]
    assert artifact["parts"] == [text_part("It is a."), {"data": {"found": ["a"]}}]
    assert [entry["messageId"] for entry in task(session)["history"]][::2] == [
        "m-1",
        "m-2",
    ]


def test_a_failed_task_reports_its_failure(store: SessionStore) -> None:
    received = receive(store, a2a_message("m-1", text_part("Look.")), user_id="team")
    session_of(store, received).append(refold.Final(text="No.", outcome="failure"))

    assert state_of(task(session_of(store, received))) == "FAILED"


def test_a_message_is_accepted_once(store: SessionStore) -> None:
    asked = a2a_message("m-1", text_part("Look."), {"data": {"a": 1}}, contextId="ctx")
    first = receive(store, asked, user_id="team")
    again = receive(store, asked, user_id="team")
    more = a2a_message("m-2", text_part("More."), taskId=first["id"])
    receive(store, more, user_id="team")
    third = receive(store, more, user_id="team")

    assert first == again
    assert first["contextId"] == third["contextId"] == "ctx"
    events = session_of(store, first).events()
    assert [event.payload.payload()["text"] for event in events] == [
        'Look.\n\n{"data":{"a":1}}',
        "More.",
    ]
    assert len(store.sessions("team")) == 1
    with pytest.raises(IdempotencyConflict):
        receive(store, a2a_message("m-1", text_part("Something else.")), user_id="team")


@pytest.mark.parametrize(
    "request_", [{}, {"message": None}, a2a_message(""), {"message": {"parts": []}}]
)
def test_an_invalid_message_is_refused(store: SessionStore, request_: Json) -> None:
    with pytest.raises(InvalidEvent, match="messageId"):
        receive(store, request_, user_id="team")
    assert store.sessions() == []


def test_only_tasks_of_the_user_are_reached(store: SessionStore) -> None:
    own = store.session(user_id="team", session_id="private")
    own.append(refold.UserInput(text="mine"))
    received = receive(store, a2a_message("m-1", text_part("Look.")), user_id="team")

    for user, name in (("team", "private"), ("eve", received["id"]), ("team", "none")):
        with pytest.raises(SessionNotFound):
            receive(
                store, a2a_message("m-2", text_part("x"), taskId=name), user_id=user
            )
    assert len(own.events()) == 1

    session_of(store, received).append(refold.Final(text="Done."))
    with pytest.raises(InvalidEvent, match="has ended"):
        receive(
            store,
            a2a_message("m-3", text_part("x"), taskId=received["id"]),
            user_id="team",
        )
    assert state_of(
        receive(store, a2a_message("m-1", text_part("Look.")), user_id="team")
    )


class OtherAgent:
    """The other agent's store, and the number of requests to it."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.asked = list[Json]()

    def send(self, request: Json) -> Mapping[str, Any]:
        self.asked.append(request)
        return {"task": receive(self.store, request, user_id="team")}

    @property
    def session(self) -> Session:
        (info,) = self.store.sessions("team")
        return self.store.session(user_id="team", session_id=info.session_id)


@pytest.fixture
def other_agent() -> OtherAgent:
    return OtherAgent(refold.open("memory://"))


@pytest.fixture
def session_here() -> Session:
    session = refold.open("memory://").session(user_id="ada", session_id="s-1")
    call = refold.ToolCall(
        call_id="c1", tool_name="research", arguments={"task": "What is tea?"}
    )
    session.append([refold.UserInput(text="Tell me."), call], agent="lead")
    return session


def test_a_call_has_its_result_when_the_task_is_done(
    session_here: Session, other_agent: OtherAgent
) -> None:
    assert state_of(deliver(session_here, "c1", other_agent.send)) == "SUBMITTED"
    assert len(session_here.history.open_calls()) == 1
    other_agent.session.append(HumanReview(trigger="unsure", question="Which?"))
    assert state_of(deliver(session_here, "c1", other_agent.send)) == "INPUT_REQUIRED"
    for _ in range(2):
        assert (
            state_of(deliver(session_here, "c1", other_agent.send, answer="Green."))
            == "WORKING"
        )
    other_agent.session.append(
        refold.Final(text="A drink. " * 20_000, outcome="success")
    )
    for _ in range(2):
        assert state_of(deliver(session_here, "c1", other_agent.send)) == "COMPLETED"

    assert session_here.history.open_calls() == []
    (result,) = [e for e in session_here.events() if e.type == "tool_result"]
    assert (result.agent, result.payload.payload()["status"]) == ("lead", "ok")
    assert result.payload.payload()["untrusted"]
    assert len(other_agent.asked[-1]["message"]["parts"][0]["text"]) == len(
        "What is tea?"
    )
    inputs = [e.payload for e in other_agent.session.events() if e.type == "user_input"]
    assert inputs == [
        refold.UserInput(text="What is tea?"),
        refold.UserInput(text="Green."),
    ]
    (blob,) = result.blobs
    whole = session_here.history.blob(blob)
    assert whole == "A drink. " * 20_000


def test_a_failed_task_is_an_error_of_its_call(
    session_here: Session, other_agent: OtherAgent
) -> None:
    deliver(session_here, "c1", other_agent.send)
    other_agent.session.append(refold.Final(text="", outcome="failure"))

    deliver(session_here, "c1", other_agent.send)

    (result,) = [e for e in session_here.events() if e.type == "tool_result"]
    assert result.payload.payload()["status"] == "error"
    assert result.payload.payload()["content"] == "failed"


def test_an_unknown_call_is_refused(
    session_here: Session, other_agent: OtherAgent
) -> None:
    with pytest.raises(InvalidEvent, match="no call 'c2'"):
        deliver(session_here, "c2", other_agent.send)
    assert other_agent.asked == []


DONE: Json = {
    "id": "t",
    "contextId": "c",
    "status": {"state": "TASK_STATE_COMPLETED"},
    "artifacts": [{"artifactId": "a", "parts": [text_part("x"), {"data": {"a": 1}}]}],
}


@pytest.mark.parametrize("place", range(len(all_places(DONE)) + 1))
def test_any_answer_of_the_other_agent_is_stored_or_refused(
    session_here: Session, place: int
) -> None:
    for odd in (None, 1, "", "x", [], {}, [1], {"a": 1}):
        answer: Any = copy.deepcopy(DONE)
        if place:
            holder, key = all_places(answer)[place - 1]
            holder[key] = odd
        else:
            answer = odd
        with suppress(refold.RefoldError):
            deliver(session_here, "c1", lambda _, answer=answer: answer)  # type: ignore[misc]  # mypy infers no type from a default

    assert session_here.verify().problems == []


def test_an_agent_is_a_tool() -> None:
    skills = [{"name": "tea", "description": "all of it"}]
    card = {"name": "The Researcher (β)", "description": "Finds out.", "skills": skills}

    tool = tool_definition(card)

    assert tool["name"] == "The_Researcher_"
    assert tool["description"] == "Finds out.\ntea: all of it"
    assert tool["input_schema"]["required"] == ["task"]


def start(role: str, folder: Path) -> warm.Process:
    script = f"""
import runpy, sys
sys.argv = [{str(EXAMPLE)!r}, {role!r}, {str(folder)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    return warm.code(script, cwd=ROOT, environment=os.environ)


def test_a_task_outlives_both_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    chance = random.Random(3)
    kills = 0
    running = {role: start(role, tmp_path) for role in ("research", "lead")}
    database = tmp_path / "lead.db"
    while kills < 12:
        time.sleep(chance.random() * 0.1)  # a random moment, not a wait
        role = chance.choice(["research", "lead"])
        running[role].send_signal(signal.SIGKILL)
        running[role].communicate()
        running[role] = start(role, tmp_path)
        kills += 1
    printed, errors = running["lead"].communicate()
    running["research"].send_signal(signal.SIGKILL)
    running["research"].communicate()

    assert (running["lead"].returncode, printed) == (0, ""), errors
    assert database.exists()
    for user, name, kinds in (
        ("ada", "lead", ["user_input", "tool_call", "tool_result", "agent_response"]),
        ("team", "researcher", ["user_input", "agent_response", "final"]),
    ):
        with open_at(f"sqlite:///{tmp_path}/{name}.db", tmp_path) as store:
            (info,) = store.sessions(user)
            session = store.session(user_id=user, session_id=info.session_id)
            assert [event.type for event in session.events()] == kinds
            assert session.verify().problems == []


def test_the_example_shows_what_each_agent_knows(tmp_path: Path) -> None:
    environment = {**os.environ, "REFOLD_HOME": str(tmp_path)}
    script = f"import runpy, sys; sys.argv = [{str(EXAMPLE)!r}]; "
    script += "runpy.run_path(sys.argv[0], run_name='__main__')"
    ran = warm.code(script, cwd=ROOT, environment=environment)

    printed, errors = ran.communicate()

    assert ran.returncode == 0, errors
    assert "lead: ['user_input', 'tool_call', 'tool_result'" in printed
    assert "researcher: ['user_input', 'agent_response', 'final']" in printed
