"""The Claude Agent SDK keeps its transcripts in sessions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    Transport,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    rename_session_via_store,
    tag_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

import refold
from refold.adapters.frameworks.claude_sdk import RefoldSessionStore
from refold.domain.errors import OnHold
from tests.frameworks.contract import (
    CONVERSATION,
    MAIL,
    NUMBERED,
    RedactedContract,
    SampleMessage,
)
from tests.importers.samples import write_lines

SESSION = "5f0c1c2e-8c1b-4f7e-9a51-0d9f6c6f2a10"


def uuid(number: int) -> str:
    return f"{number:08d}-8c1b-4f7e-9a51-0d9f6c6f2a10"


def entry(sample: SampleMessage, number: int, session: str = SESSION) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if sample.who == "tool":
        content = [
            {"type": "tool_result", "tool_use_id": sample.call, "content": sample.text}
        ]
    elif sample.text:
        content = [{"type": "text", "text": sample.text}]
    if sample.who == "assistant" and sample.call:
        use = {"id": sample.call, "name": "send", "input": sample.arguments}
        content.append({"type": "tool_use", **use})
    role = "assistant" if sample.who == "assistant" else "user"
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": f"msg_{number}", "usage": {"output_tokens": 5}}
    return {
        "type": role,
        "uuid": uuid(number),
        "parentUuid": uuid(number - 1) if number else None,
        "sessionId": session,
        "timestamp": f"2026-05-01T10:00:{number:02d}.000Z",
        "cwd": "/srv/app",
        "message": message,
    }


class TestContract(RedactedContract):
    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldSessionStore(store, user_id="ada")

    def item(self, sample: SampleMessage, number: int) -> Any:
        return entry(sample, number)

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        await adapter.append({"project_key": "p", "session_id": thread}, new)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        return await adapter.load({"project_key": "p", "session_id": thread}) or []

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter.delete({"project_key": "p", "session_id": thread})

    def plain(self, item: Any) -> Any:
        return item

    def ids(self, item: Any) -> list[str]:
        blocks = item["message"]["content"]
        calls = [block.get("id") or block.get("tool_use_id") for block in blocks]
        return [item["uuid"], item["sessionId"], *filter(None, calls)]


def test_the_published_suite_passes(url: str) -> None:
    opened: list[refold.SessionStore] = []

    def make() -> RefoldSessionStore:
        opened.append(refold.open(url))
        return RefoldSessionStore(opened[-1], user_id=f"user-{len(opened)}")

    asyncio.run(run_session_store_conformance(make))
    assert len(opened) == 15  # a probe, and 14 contracts
    for store in opened:
        store.close()


def test_sessions_are_listed_renamed_tagged_forked_and_deleted(url: str) -> None:
    entries = [entry(sample, number) for number, sample in enumerate(CONVERSATION)]
    project = project_key_for_directory("/srv/app")
    key: Any = {"project_key": project, "session_id": SESSION}

    async def tour(mirror: Any) -> None:
        await mirror.append(key, entries)
        await rename_session_via_store(mirror, SESSION, "Of the key", "/srv/app")
        await tag_session_via_store(mirror, SESSION, "mail", "/srv/app")
        (listed,) = await list_sessions_from_store(mirror, "/srv/app")
        assert listed.custom_title == "Of the key"
        assert listed.tag == "mail"
        messages = await get_session_messages_from_store(mirror, SESSION, "/srv/app")
        assert len(messages) == len(entries)
        forked = await fork_session_via_store(mirror, SESSION, "/srv/app")
        assert len(await list_sessions_from_store(mirror, "/srv/app")) == 2
        await delete_session_via_store(mirror, SESSION, "/srv/app")
        (left,) = await list_sessions_from_store(mirror, "/srv/app")
        assert left.session_id == forked.session_id

    with refold.open(url) as store:
        asyncio.run(tour(RefoldSessionStore(store, user_id="ada")))


def test_a_mirrored_transcript_has_the_events_of_an_imported_one(
    url: str, tmp_path: Path
) -> None:
    entries = [entry(sample, number) for number, sample in enumerate(CONVERSATION)]
    title = {"type": "custom-title", "customTitle": "Of the key", "sessionId": SESSION}
    path = write_lines(tmp_path, [*entries, title])
    with refold.open(url) as store:
        mirror = RefoldSessionStore(store, user_id="ada")
        key = {"project_key": "p", "session_id": SESSION}
        asyncio.run(mirror.append(key, [*entries, title]))
        store.import_transcript(path, user_id="bob")

        events_of_sessions = [
            [
                (
                    event.payload.payload(),
                    event.ts,
                    event.meta.model,
                    event.meta.response_id,
                )
                for event in store.session(
                    user_id=info.user_id, session_id=info.session_id
                ).events()
                if event.type not in ("state", "item")
            ]
            for info in store.sessions()
        ]

    assert len(events_of_sessions[0]) == 10
    assert events_of_sessions[0] == events_of_sessions[1]


class Program(Transport):
    """Acts as the client: calls the hooks that the SDK registered with it."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def connect(self) -> None: ...

    async def write(self, data: str) -> None:
        frame = json.loads(data)
        if frame["type"] == "control_response":
            self._answers.put_nowait(frame["response"]["response"])
        elif frame["type"] == "control_request":
            self.hooks |= frame["request"].get("hooks") or {}
            knows = {"hook_on_failure_supported": True}
            response = {"subtype": "success", "response": knows}
            response |= {"request_id": frame["request_id"]}
            self._frames.put_nowait({"type": "control_response", "response": response})

    async def ask(self, hook: str, **fields: Any) -> Any:
        ((matcher, *_),) = [self.hooks[hook]]
        assert matcher["onFailure"] == "block"
        path = f"/home/ada/.claude/projects/p/{SESSION}.jsonl"
        about = {"session_id": SESSION, "transcript_path": path, "cwd": "/srv/app"}
        request = {
            "subtype": "hook_callback",
            "callback_id": matcher["hookCallbackIds"][0],
            "input": {**about, "hook_event_name": hook, **fields},
        }
        frame = {"type": "control_request", "request_id": "r", "request": request}
        self._frames.put_nowait(frame)
        return await asyncio.wait_for(self._answers.get(), 30)

    def read_messages(self) -> Any:
        async def read() -> Any:
            while (frame := await self._frames.get()) is not None:
                yield frame

        return read()

    async def close(self) -> None:
        self._frames.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None: ...


async def asked(mirror: RefoldSessionStore, questions: list[Any]) -> list[Any]:
    program = Program()
    options = ClaudeAgentOptions(session_store=mirror, hooks=mirror.hooks)
    async with ClaudeSDKClient(options, transport=program):
        outputs = [await program.ask(hook, **fields) for hook, fields in questions]
    return [output.get("hookSpecificOutput", {}) | output for output in outputs]


def test_the_model_gets_the_stored_text_and_tools_get_the_values(url: str) -> None:
    key = {"project_key": "p", "session_id": SESSION}
    vault = refold.strategies.Vault(arguments={"send": ["EMAIL"]})
    call = {"tool_name": "send", "tool_input": {"to": "[EMAIL_1]", "n": 1}}
    response = {"stdout": f"sent to {MAIL}", "interrupted": False}
    with refold.open(url, policy=NUMBERED, vault=vault) as store:
        mirror = RefoldSessionStore(store, user_id="ada")
        before = asyncio.run(asked(mirror, [("PreToolUse", call)]))
        asyncio.run(mirror.append(key, [entry(CONVERSATION[0], 0)]))
        read = {**call, "tool_name": "read"}
        prompt = asyncio.run(mirror.redacted(f"Ask {MAIL}."))
        questions: list[Any] = [
            ("PreToolUse", call),
            ("PreToolUse", read),
            ("PreToolUse", {**call, "agent_id": "a"}),
            ("PostToolUse", {**call, "tool_response": response}),
            ("PostToolUse", {**call, "tool_response": [{"text": "fine"}]}),
            ("UserPromptSubmit", {"prompt": f"Ask {MAIL}."}),
            ("UserPromptSubmit", {"prompt": prompt}),
        ]

        outputs = asyncio.run(asked(mirror, questions))

    assert before == [{}]
    assert outputs[0]["updatedInput"] == {"to": MAIL, "n": 1}
    assert "permissionDecision" not in outputs[0]
    assert outputs[1:3] == [{}, {}]
    hidden = {"stdout": "sent to [REDACTED:EMAIL]", "interrupted": False}
    assert outputs[3]["updatedToolOutput"] == hidden
    assert outputs[4] == outputs[6] == {}
    assert outputs[5]["decision"] == "block"
    assert MAIL not in str(outputs[5])
    assert prompt == "Ask [REDACTED:EMAIL]."


def test_a_held_session_is_not_deleted(url: str) -> None:
    with refold.open(url) as store:
        mirror = RefoldSessionStore(store, user_id="ada")
        key = {"project_key": "p", "session_id": SESSION}
        asyncio.run(mirror.append(key, [entry(CONVERSATION[0], 0)]))
        store.erasures.hold("ada", "case-1", "an enquiry")

        with pytest.raises(OnHold):
            asyncio.run(mirror.delete(key))
        assert asyncio.run(mirror.load(key))
