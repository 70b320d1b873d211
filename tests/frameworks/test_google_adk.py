"""Google's ADK keeps its sessions, and their state, in sessions."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents import Agent
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

import refold
from refold.adapters.frameworks.google_adk import RefoldSessionService
from refold.domain.errors import OnHold
from refold.projections.context.render import OPENING
from tests.frameworks.contract import (
    ANSWER,
    HELP,
    MAIL,
    SECRET,
    FilterContract,
    RedactedContract,
    SampleMessage,
    all_stored_text,
    seqs,
)
from tests.support.nested import blocks_of

ADA: Any = {"app_name": "desk", "user_id": "ada"}
SIGNATURE = b64decode(
    "ErUBCkYIBRgCIkDDbw4j0k2g6Ff3l8hVtQz0m7qXpN9aYc5RkTzWvUe1sLdHxGiJbKo="
)


def event_of(sample: SampleMessage, number: int) -> Event:
    parts = [types.Part(text=sample.text)]
    if sample.who == "tool":
        back = {"id": sample.call, "name": "send", "response": {"result": sample.text}}
        parts = [types.Part(function_response=types.FunctionResponse(**back))]
    elif sample.call:
        call = types.FunctionCall(id=sample.call, name="send", args=sample.arguments)
        # A signature is invalid once something in its part is replaced.
        signature = None if MAIL in str(sample.arguments) else SIGNATURE
        parts.append(types.Part(function_call=call, thought_signature=signature))
    return Event(
        id=f"{number:08d}-8c1b-4f7e-9a51-0d9f6c6f2a10",
        author="user" if sample.who == "user" else "clerk",
        invocation_id="e-0d9f6c6f-8c1b-4f7e-9a51-0d9f6c6f2a10",
        timestamp=1_790_000_000.25 + number,
        content=types.Content(role="user", parts=parts),
    )


class TestContract(RedactedContract):
    at_once = 1
    stale = StaleSessionError

    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldSessionService(store)

    def item(self, sample: SampleMessage, number: int) -> Any:
        return event_of(sample, number)

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        session = await adapter.get_session(**ADA, session_id=thread)
        if session is None:
            try:
                session = await adapter.create_session(**ADA, session_id=thread)
            except AlreadyExistsError:
                session = await adapter.get_session(**ADA, session_id=thread)
        for event in new:
            await adapter.append_event(session, event)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        session = await adapter.get_session(**ADA, session_id=thread)
        return session.events if session else []

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter.delete_session(**ADA, session_id=thread)

    def plain(self, item: Any) -> Any:
        return item.model_dump(mode="json", exclude_none=True)

    def ids(self, item: Any) -> list[str]:
        values = [item.id, item.invocation_id]
        for part in item.content.parts:
            call = part.function_call or part.function_response
            values += [call.id] if call else []
            values += [part.thought_signature.hex()] if part.thought_signature else []
        return values


def changed(**state: Any) -> Event:
    delta = {name.replace("__", ":"): value for name, value in state.items()}
    actions = EventActions(state_delta=delta)
    return Event(author="clerk", invocation_id="e-1", actions=actions)


def test_each_scope_of_a_state_has_its_own_readers(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        state = {
            "app:tone": "kind",
            "user:name": "Ada",
            "step": 1,
            "secret:key": SECRET,
        }
        session = await service.create_session(**ADA, session_id=" a ", state=state)
        assert session.id == "a"
        event = changed(
            user__seen=[1], step=2, gone=None, temp__t=1, secret__two=SECRET
        )
        await service.append_event(session, event)
        assert session.state["temp:t"] == 1

        again = await service.get_session(**ADA, session_id=" a")
        left = {"app:tone": "kind", "user:name": "Ada", "user:seen": [1], "step": 2}
        secrets = {"secret:key": SECRET, "secret:two": SECRET}
        assert again.state == {**left, "gone": None, **secrets}
        assert "secret:two" not in again.events[0].actions.state_delta
        assert "temp:t" not in again.events[0].actions.state_delta

        second = await service.create_session(**ADA, session_id="b")
        assert second.state == {k: v for k, v in left.items() if ":" in k}
        bob = await service.create_session(app_name="desk", user_id="bob")
        assert bob.state == {"app:tone": "kind"}
        of_user = await service.get_user_state(**ADA)
        assert of_user == {"name": "Ada", "seen": [1]}

        other = RefoldSessionService(store)
        restarted = await other.get_session(**ADA, session_id="a")
        assert restarted.state == {**left, "gone": None}
        listed = await other.list_sessions(app_name="desk")
        assert {(listing.user_id, listing.id) for listing in listed.sessions} == {
            ("ada", "a"),
            ("ada", "b"),
            ("bob", bob.id),
        }
        assert SECRET not in all_stored_text(store)

    with refold.open(url) as store:
        asyncio.run(tour(store))


def texts(store: refold.SessionStore) -> list[str]:
    """The texts of the context of the session ``s``."""
    (info,) = store.sessions("ada", label={"adk_session": "s"})
    session = store.session(user_id="ada", session_id=info.session_id)
    messages = session.context("keep_all").messages
    return [block["text"] for block in blocks_of(messages)]


def turn(number: int, text: str, **actions: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(
        author="user",
        invocation_id=f"e-{number}",
        timestamp=1_790_000_000.0 + number,
        content=content if text else None,
        actions=EventActions(**actions),
    )


def test_contexts_leave_out_rewound_events(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        session = await service.create_session(**ADA, session_id="s")
        for number, text in enumerate(["one", "two", "three"], start=1):
            await service.append_event(session, turn(number, text))
        back = turn(4, "", rewind_before_invocation_id="e-2")
        await service.append_event(session, back)
        await service.append_event(session, turn(5, "four"))
        assert texts(store) == ["one", "four"]

    with refold.open(url) as store:
        asyncio.run(tour(store))


def test_a_compaction_of_the_adk_replaces_its_events(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        session = await service.create_session(**ADA, session_id="s")
        for number, text in enumerate(["one", "two", "three"], start=1):
            await service.append_event(session, turn(number, text))
        summary = types.Content(role="model", parts=[types.Part(text="so far")])
        compaction = EventCompaction(
            start_timestamp=1_790_000_001.0,
            end_timestamp=1_790_000_002.0,
            compacted_content=summary,
        )
        compacted = turn(4, "", compaction=compaction)
        compacted.author = "clerk"
        await service.append_event(session, compacted)
        assert texts(store) == [OPENING, "so far", "three"]

    with refold.open(url) as store:
        asyncio.run(tour(store))


def test_stale_taken_and_missing_sessions_raise_their_errors(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        session = await service.create_session(**ADA, session_id="a")
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**ADA, session_id="a")
        stale = await service.get_session(**ADA, session_id="a")
        first = changed(step=1)
        await service.append_event(session, first)
        await service.append_event(session, first)
        assert [event.id for event in session.events] == [first.id]
        with pytest.raises(StaleSessionError, match="modified in storage"):
            await service.append_event(stale, changed(step=2))
        store.erasures.hold("ada", "case-1", "an enquiry")
        with pytest.raises(OnHold):
            await service.delete_session(**ADA, session_id="a")
        store.erasures.release("ada", "case-1", "over")
        await service.delete_session(**ADA, session_id="a")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, changed(step=3))

    with refold.open(url) as store:
        asyncio.run(tour(store))


def test_a_config_limits_the_loaded_events(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        session = await service.create_session(**ADA, session_id="a")
        for number in range(6):
            await service.append_event(
                session, event_of(SampleMessage("user", "go on"), number)
            )

        async def numbers(**options: Any) -> list[int]:
            config = GetSessionConfig(**options)
            loaded = await service.get_session(**ADA, session_id="a", config=config)
            return [int(event.id[:8]) for event in loaded.events]

        assert await numbers(num_recent_events=2) == [4, 5]
        assert await numbers(num_recent_events=0) == []
        assert await numbers(after_timestamp=1_790_000_003.0) == [3, 4, 5]

    with refold.open(url) as store:
        asyncio.run(tour(store))


def test_a_signed_thought_is_kept_completely_or_removed(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        session = await service.create_session(**ADA, session_id="a")
        for number, text in enumerate(("It is so.", f"Ask {MAIL}.")):
            event = event_of(SampleMessage("assistant", text), number)
            event.content.parts[0].thought_signature = SIGNATURE
            await service.append_event(session, event)
        again = await service.get_session(**ADA, session_id="a")
        parts = [event.content.parts[0] for event in again.events]
        assert [part.thought_signature for part in parts] == [SIGNATURE, None]

    with refold.open(url) as store:
        asyncio.run(tour(store))


KILLED = """
import asyncio, os, signal, sys
import refold
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from refold.adapters.frameworks.google_adk import RefoldSessionService

ADA = {"app_name": "desk", "user_id": "ada", "session_id": "a"}

async def die(service):
    one = await service.create_session(**ADA, state={"user:n": 0, "app:n": 0})
    service._share = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    delta = {"user:n": 1, "user:m": 1, "app:n": 1, "step": 1}
    actions = EventActions(state_delta=delta)
    await service.append_event(one, Event(author="clerk", actions=actions))

asyncio.run(die(RefoldSessionService(refold.open(sys.argv[1]))))
"""


def test_state_of_a_killed_process_is_shared_once_by_the_next_read(url: str) -> None:
    """It does not replace what another session has shared since."""

    async def tour(store: refold.SessionStore) -> None:
        service = RefoldSessionService(store)
        second = await service.create_session(**ADA, session_id="b")
        assert second.state == {"user:n": 0, "app:n": 0}
        await service.append_event(second, changed(user__m=2))

        first = await service.get_session(**ADA, session_id="a")
        shared = {"user:n": 1, "user:m": 2, "app:n": 1}
        assert first.state == {**shared, "step": 1}
        assert len(first.events) == 1
        before = seqs(store)
        again = await RefoldSessionService(store).get_session(**ADA, session_id="a")
        assert again == first
        assert seqs(store) == before
        assert (await service.get_session(**ADA, session_id="b")).state == shared

    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False)
    assert killed.returncode == -signal.SIGKILL
    with refold.open(url) as store:
        asyncio.run(tour(store))


async def story(service: Any) -> list[Any]:
    """Return what a service answers in a series of calls."""
    observed: list[Any] = []

    async def tell(name: str, user: str = "ada", **options: Any) -> None:
        place = {"app_name": "desk", "user_id": user, "session_id": name}
        loaded = await service.get_session(**place, config=GetSessionConfig(**options))
        observed.append(loaded and loaded.model_dump(exclude={"last_update_time"}))

    async def append(session: Any, at: int, **fields: Any) -> None:
        event = Event(id=f"e-{at}", author="user", timestamp=at, **fields)
        await service.append_event(session=session, event=event)
        observed.append((session.state, [event.id for event in session.events]))
        observed.append((event.actions.state_delta, session.last_update_time))

    await tell("none")
    state = {"app:a": 1, "user:u": [1], "s": {"deep": None}}
    first = await service.create_session(**ADA, session_id="one", state=state)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ADA, session_id="one")
    delta = {"app:b": 2, "user:v": "w", "temp:t": 3, "s": 4}
    at = 4_000_000_000
    await append(first, at, actions=EventActions(state_delta=delta))
    await append(first, at + 1, partial=True)
    image = types.Part.from_bytes(data=b"not \x89 text", mime_type="image/png")
    blob = types.SearchEntryPoint(sdk_blob=b"blob")
    await append(
        first,
        at + 2,
        content=types.Content(role="user", parts=[image]),
        grounding_metadata=types.GroundingMetadata(search_entry_point=blob),
    )
    await append(
        first,
        at + 3,
        invocation_id="inv",
        content=types.Content(role="model", parts=[types.Part(text="Yes.")]),
        turn_complete=True,
        partial=False,
        actions=EventActions(
            artifact_delta={"file": 0}, transfer_to_agent="agent", escalate=True
        ),
        long_running_tool_ids={"tool1"},
        error_code="error_code",
        error_message="error_message",
        interrupted=True,
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=2),
        citation_metadata=types.CitationMetadata(),
        custom_metadata={"key": "value"},
        input_transcription=types.Transcription(text="in", finished=True),
    )
    await tell("one")
    await tell(" one ", num_recent_events=2)
    await tell("one", num_recent_events=0)
    await tell("one", after_timestamp=at + 2)
    await tell("one", after_timestamp=at + 2, num_recent_events=1)
    await tell("one", after_timestamp=at + 9)
    await tell("one", user="bob")
    bob = {"app_name": "desk", "user_id": "bob", "session_id": "one"}
    await service.create_session(**bob)
    await tell("one", user="bob")
    await service.create_session(**ADA, session_id="two", state={"s": 9})
    other = await service.create_session(app_name="other", user_id="ada")
    observed.append(other.state)
    for user in ("ada", "bob", "eve", None):
        listed = await service.list_sessions(app_name="desk", user_id=user)
        states = {(x.user_id, x.id): (x.state, x.events) for x in listed.sessions}
        observed.append(states)
        if user == "ada":  # the clock is behind the events' times
            observed.append([x.id for x in listed.sessions])
    await service.delete_session(**ADA, session_id=" one")
    await service.delete_session(**ADA, session_id="none")
    await tell("one")
    await service.create_session(**ADA, session_id="one")
    await tell("one")
    return observed


def test_the_service_answers_like_the_one_in_memory(url: str) -> None:
    with refold.open(url) as store:
        observed = asyncio.run(story(RefoldSessionService(store)))
    expected = asyncio.run(story(InMemorySessionService()))
    for index, (ours, theirs) in enumerate(zip(observed, expected, strict=True)):
        assert ours == theirs, index


class Scripted(BaseLlm):
    """Returns prepared answers, and keeps the requests."""

    model: str = "scripted"
    steps: list[Any]
    sent: list[str]

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> Any:
        self.sent.append(llm_request.model_dump_json(exclude={"tools_dict"}))
        yield LlmResponse(
            content=types.Content(role="model", parts=[self.steps.pop(0)])
        )


class TestFilter(FilterContract):
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        model = Scripted(steps=[types.Part(text=ANSWER) for _ in texts], sent=[])
        service = RefoldSessionService(store)
        agent = Agent(
            name="clerk",
            model=model,
            instruction=HELP,
            before_model_callback=service.before_model_callback,
        )
        runner = Runner(app_name="desk", agent=agent, session_service=service)

        async def run() -> None:
            await service.create_session(**ADA, session_id="a")
            for text in texts:
                question = types.Content(role="user", parts=[types.Part(text=text)])
                async for _ in runner.run_async(
                    user_id="ada", session_id="a", new_message=question
                ):
                    pass

        asyncio.run(run())
        return model.sent


def test_the_runner_keeps_a_run_and_sends_the_model_what_is_stored(url: str) -> None:
    def look_up(who: str) -> dict[str, str]:
        """Look somebody up."""
        return {"found": f"{who}: {SECRET}"}

    call = types.FunctionCall(name="look_up", args={"who": MAIL})
    steps = [types.Part(function_call=call), types.Part(text="Done.")]
    steps.append(types.Part(text="You are welcome."))
    model = Scripted(steps=steps, sent=[])

    async def run(store: refold.SessionStore, text: str) -> None:
        service = RefoldSessionService(store)
        agent = Agent(
            name="clerk",
            model=model,
            instruction=f"Help {MAIL}.",
            tools=[look_up],
            before_model_callback=service.before_model_callback,
        )
        runner = Runner(app_name="desk", agent=agent, session_service=service)
        if await service.get_session(**ADA, session_id="a") is None:
            await service.create_session(**ADA, session_id="a")
        question = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(
            user_id="ada", session_id="a", new_message=question
        ):
            pass

    with refold.open(url) as store:
        asyncio.run(run(store, f"Look {MAIL} up."))
        asyncio.run(run(store, "Thanks."))

        assert len(model.sent) == 3
        assert SECRET not in str(model.sent)
        assert MAIL not in str(model.sent)
        assert "[REDACTED:EMAIL" in model.sent[0]
        (info,) = store.sessions()
        session = store.session(user_id="ada", session_id=info.session_id)
        kinds = [event.type for event in session.events()]
        assert kinds[-6:-3] == ["user_input", "tool_call", "tool_result"]
        assert session.history.open_calls() == []
