"""Small generated transcripts of each format, with helpers to write and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import refold
from refold.adapters import importers
from refold.adapters.importers import Transcript
from refold.domain.envelope import Draft
from refold.domain.errors import ImportFailed
from refold.domain.events import Event, ToolResult
from refold.domain.ids import StreamId
from refold.domain.session import SessionState, decide
from tests.importers import agent_samples
from tests.importers.export_samples import (
    AIDER,
    CHATGPT as CHATGPT,
    CLAUDE_AI as CLAUDE_AI,
    LANGFUSE as LANGFUSE,
    LANGSMITH as LANGSMITH,
    LLM,
    OPENAI_RESPONSES as OPENAI_RESPONSES,
    write_llm,
)
from tests.support.nested import blocks_of

Entry = dict[str, Any]

SESSION = "5c0f3f6e-7a0b-4a53-9a58-0d5f8d1f2a11"


def write_lines(folder: Path, entries: Sequence[Any], name: str = "file.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def write_document(folder: Path, document: Any, name: str = "file.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document, indent=1))
    return path


def read_one(path: Path, form: str = "auto") -> Transcript:
    (transcript,) = importers.read(path, format=form)
    return transcript


def context_texts(path: Path, session_id: str | None = None) -> list[str]:
    """Import a file, and return the texts in the context of its first session.

    Calls of tools count with the type of their block, and results with their content.
    """
    with refold.open("memory://") as store:
        imported = store.import_transcript(path, user_id="ada", session_id=session_id)
        session = store.session(user_id="ada", session_id=imported[0].session_id)
        view = session.context("keep_all")
    texts: list[str] = []
    for message in view.messages:
        for block in message["content"]:
            texts.append(str(block.get("text", block.get("content", block["type"]))))
    return texts


def texts_shown(store: refold.SessionStore) -> list[str]:
    """Return the texts that a model sees of the only session."""
    (info,) = store.sessions()
    session = store.session(user_id="ada", session_id=info.session_id)
    view = session.context("keep_all")
    return [block["text"] for block in blocks_of(view.messages)]


def refusal(path: Path, form: str = "auto", *, strict: bool = True) -> str:
    try:
        importers.read(path, format=form, strict=strict)
    except ImportFailed as error:
        return str(error)
    raise AssertionError("the file was read")


def events(transcript: Transcript) -> list[Event]:
    return [draft.event for draft in transcript.drafts]


def kinds(transcript: Transcript) -> list[str]:
    return [event.type for event in events(transcript)]


def reasons(transcript: Transcript) -> dict[str, str]:
    return {skipped.where: skipped.why for skipped in transcript.skipped}


def results(transcripts: Sequence[Transcript]) -> int:
    return sum(
        isinstance(event, ToolResult)
        for transcript in transcripts
        for event in events(transcript)
    )


def accepted(drafts: Sequence[Draft]) -> bool:
    """Returns whether an empty session accepts the drafts unchanged."""
    drafted = tuple(draft.event for draft in drafts)
    return decide(SessionState(StreamId("ada", "s-1")), drafted)[0] == [*drafted]


def user_entry(uuid: str, content: Any, **more: Any) -> Entry:
    return _entry("user", uuid, {"role": "user", "content": content}, **more)


def answered(uuid: str, message_id: str, *blocks: Entry, **more: Any) -> Entry:
    message = {
        "id": message_id,
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
        "usage": more.pop("usage", {"input_tokens": 7, "output_tokens": 1}),
    }
    return _entry("assistant", uuid, message, requestId=f"req-{message_id}", **more)


def _entry(kind: str, uuid: str, message: Entry, **more: Any) -> Entry:
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": None,
        "isSidechain": False,
        "sessionId": SESSION,
        "timestamp": "2026-02-03T04:05:06.789Z",
        "message": message,
        **more,
    }


def signed(thought: str) -> Entry:
    return {"type": "thinking", "thinking": thought, "signature": f"s-{thought}"}


def words(value: str) -> Entry:
    return {"type": "text", "text": value}


def use(call_id: str, name: str = "Bash", **arguments: Any) -> Entry:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def returned(call_id: str, content: Any = "done", **more: Any) -> Entry:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


CLAUDE_CODE: list[Entry] = [
    {"type": "queue-operation", "operation": "dequeue", "sessionId": SESSION},
    user_entry("u1", "Why does the build fail?"),
    answered("a1", "m1", words("Let me look."), parentUuid="u1"),
    answered("a2", "m1", use("c1", command="make"), parentUuid="a1"),
    user_entry(
        "u2", [returned("c1", "error: no rule", is_error=True)], parentUuid="a2"
    ),
    answered("a3", "m2", words("A rule is missing."), parentUuid="u2"),
]

OPENAI: list[Entry] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"},
    {"role": "assistant", "content": "Four degrees."},
]

ANTHROPIC: Entry = {
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": [words("I look."), use("c1", "weather", city="Oslo")],
        },
        {"role": "user", "content": [returned("c1", "4 degrees")]},
        {"role": "assistant", "content": "Four degrees."},
    ],
}

TAU_BENCH: list[Entry] = [
    {
        "task_id": task,
        "trial": 0,
        "reward": reward,
        "info": {"task": {"instruction": "You are Ida."}},
        "traj": OPENAI,
    }
    for task, reward in ((0, 1.0), (1, 0.0), (2, 0.5))
]

SWE_AGENT: Entry = {
    "environment": "main",
    "trajectory": [
        {"action": "ls", "execution_time": 0.25, "observation": "a.py"},
        {"action": "submit", "execution_time": 0.5, "observation": "diff"},
    ],
    "history": [
        {"role": "system", "content": "You fix bugs.", "message_type": "system_prompt"},
        {"role": "user", "content": "A demonstration.", "is_demo": True},
        {"role": "user", "content": "Fix it.", "message_type": "observation"},
        {
            "role": "assistant",
            "content": "I list the files.",
            "thought": "I list the files.",
            "action": "ls",
            "agent": "main",
            "message_type": "action",
            "tool_calls": [
                {"id": "c1", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
            ],
        },
        {
            "role": "tool",
            "content": "a.py",
            "message_type": "observation",
            "tool_call_ids": ["c1"],
        },
    ],
    "info": {"exit_status": "submitted", "submission": "diff --git", "edited": {}},
}

LETTA: Entry = {
    "agent_type": "memgpt_agent",
    "core_memory": [{"label": "human", "value": "Name: Ida"}],
    "in_context_message_indices": [3, 0, 1, 2, 4],
    "messages": [
        {"role": "system", "content": [words("You remember.")]},
        {
            "role": "user",
            "content": [words('{"type": "user_message", "message": "I am Ida"}')],
            "created_at": "2025-04-01T03:47:27.493017",
        },
        {
            "role": "assistant",
            "name": "sam",
            "model": "gpt-4",
            "content": [words("I write it down.")],
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "core_memory_append", "arguments": "{}"},
                }
            ],
        },
        {"role": "system", "content": [words("You remember: Ida.")]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [words('{"status": "Failed", "message": "full"}')],
            "tool_returns": [],
        },
    ],
}

INSPECT: Entry = {
    "version": 2,
    "status": "success",
    "eval": {"task": "browse", "model": "openai/gpt"},
    "samples": [
        {
            "id": 1,
            "epoch": 1,
            "uuid": "sample-a",
            "messages": [
                {"id": "m1", "role": "user", "content": "attachment://aa"},
                {
                    "id": "m2",
                    "role": "assistant",
                    "model": "gpt",
                    "content": "",
                    "tool_calls": [
                        {"id": "c1", "function": "go", "arguments": {"url": "x"}}
                    ],
                },
                {
                    "id": "m3",
                    "role": "tool",
                    "tool_call_id": "c1",
                    "function": "go",
                    "content": "",
                    "error": {"type": "timeout", "message": "It took too long."},
                },
                {"id": "m4", "role": "assistant", "model": "gpt", "content": "Sorry."},
            ],
            "attachments": {"aa": "Look at the page."},
            "events": [
                {"event": "sample_init", "timestamp": "2025-05-12T20:00:00-04:00"},
                {
                    "event": "model",
                    "timestamp": "2025-05-12T20:00:01-04:00",
                    "completed": "2025-05-12T20:00:02-04:00",
                    "output": {
                        "choices": [{"message": {"id": "m2", "role": "assistant"}}],
                        "usage": {"input_tokens": 9, "output_tokens": 3},
                    },
                },
                {
                    "event": "tool",
                    "id": "c1",
                    "timestamp": "2025-05-12T20:00:02-04:00",
                    "completed": "2025-05-12T20:00:05-04:00",
                    "working_time": 2.5,
                },
                {"event": "sandbox", "timestamp": "2025-05-12T20:00:06-04:00"},
            ],
            "scores": {"includes": {"value": "C", "answer": "Sorry."}},
            "model_usage": {"openai/gpt": {"total_tokens": 12}},
        }
    ],
}


REFOLD: list[Entry] = [
    {
        "event_id": f"01a207d4-ea23-72c5-bfe0-2014cec7648{seq}",
        "seq": seq,
        "ts": "2026-03-16T01:14:27.214000Z",
        "type": kind,
        "user_id": "lin",
        "session_id": "run",
        "stream": "main",
        "request_id": None,
        "agent": None,
        "payload": payload,
        "redacted": True,
        "redaction": {},
        "token_estimate": 3,
        "prev_hash": "0" * 64,
        "hash": "1" * 64,
        "schema_version": 1,
        "meta": {"scenario": "tea"},
    }
    for seq, (kind, payload) in enumerate(
        [
            ("user_input", {"text": "Go."}),
            ("agent_response", {"text": "I look."}),
            ("tool_call", {"call_id": "c1", "tool_name": "bash", "arguments": {}}),
            ("tool_result", {"call_id": "c1", "content": "fine", "status": "ok"}),
            ("pin", {"seqs": [1]}),
            ("final", {"text": "Done.", "outcome": "success"}),
        ],
        start=1,
    )
]


def write_sample(folder: Path, form: str) -> Path:
    lines = {
        "claude-code": CLAUDE_CODE,
        "codex": CODEX,
        "refold": REFOLD,
        **agent_samples.LINES,
    }
    if form in lines:
        return write_lines(folder, lines[form])
    if form == "cline":
        return agent_samples.write_cline(folder, agent_samples.CLINE)
    if form == "llm":
        return write_llm(folder / "logs.db", LLM)
    if form == "aider":
        path = folder / ".aider.chat.history.md"
        path.write_text(AIDER)
        return path
    documents: dict[str, Any] = {
        "opencode": agent_samples.OPENCODE,
        "openai": OPENAI,
        "anthropic": ANTHROPIC,
        "tau-bench": TAU_BENCH,
        "swe-agent": SWE_AGENT,
        "letta": LETTA,
        "inspect": INSPECT,
        "atif": ATIF,
        "otlp": OTLP,
        "chatgpt": CHATGPT,
        "claude-ai": CLAUDE_AI,
        "openai-responses": OPENAI_RESPONSES,
        "langfuse": LANGFUSE,
        "langsmith": LANGSMITH,
    }
    return write_document(folder, documents[form])


ATIF: Entry = {
    "schema_version": "ATIF-v1.7",
    "session_id": "run-1",
    "trajectory_id": "main",
    "agent": {"name": "terminus", "version": "2.0", "tool_definitions": [{"a": 1}]},
    "notes": "a run",
    "extra": {"task": "t1"},
    "steps": [
        {"source": "system", "message": "You are an agent."},
        {"source": "user", "message": "Fix it.", "extra": {"k": 1}},
        {
            "source": "user",
            "message": [
                {"type": "text", "text": "Look."},
                {
                    "type": "image",
                    "source": {"media_type": "image/png", "path": "img/a.png"},
                },
            ],
        },
        {
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "Hmm.",
            "reasoning_effort": "high",
            "model_name": "claude-x",
            "llm_call_count": 1,
            "tool_calls": [
                {
                    "tool_call_id": "c1",
                    "function_name": "bash",
                    "arguments": {"cmd": "ls"},
                    "extra": {"timeout": 3},
                },
                {"tool_call_id": "c2", "function_name": "agent", "arguments": {}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "c1", "content": "a.py"},
                    {
                        "source_call_id": "c2",
                        "content": [{"type": "text", "text": "done"}],
                        "subagent_trajectory_ref": [{"trajectory_id": "sub"}],
                        "extra": {"score": 1},
                    },
                ]
            },
            "metrics": {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "cached_tokens": 60,
                "cost_usd": 0.01,
                "logprobs": [-0.1],
            },
        },
        {
            "source": "agent",
            "message": "",
            "observation": {"results": [{"content": "output"}]},
            "llm_call_count": 0,
        },
        {
            "source": "system",
            "message": "",
            "extra": {
                "context_management": {"type": "compaction", "boundary": "replace"}
            },
        },
        {"source": "user", "message": "Files were listed."},
        {"source": "agent", "message": "Done.", "model_name": "claude-x"},
    ],
    "final_metrics": {"total_steps": 8, "extra": {"q": 2}},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "sub",
            "agent": {"name": "sub", "version": "1"},
            "steps": [
                {"step_id": 1, "source": "user", "message": "Do it."},
                {"step_id": 2, "source": "agent", "message": "Done."},
            ],
        }
    ],
}
for _number, _step in enumerate(ATIF["steps"], start=1):
    _step |= {"step_id": _number, "timestamp": f"2026-01-01T00:00:0{_number}Z"}


def _line(kind: str, **payload: Any) -> Entry:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def _spent() -> Entry:
    last = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7}
    info = {"total_token_usage": {"total_tokens": 107}, "last_token_usage": last}
    return _line("event_msg", type="token_count", info=info)


CODEX: list[Entry] = [
    _line("session_meta", id="019a-run", base_instructions={"text": "You are Codex."}),
    _line("turn_context", model="gpt-5-codex"),
    _line(
        "response_item",
        type="message",
        role="developer",
        content=[
            {"type": "input_text", "text": "<permissions>on request</permissions>"}
        ],
    ),
    _line(
        "response_item",
        type="message",
        role="user",
        content=[{"type": "input_text", "text": "Fix it."}],
    ),
    _line("event_msg", type="user_message", message="Fix it."),
    _line(
        "response_item",
        type="reasoning",
        summary=[{"type": "summary_text", "text": "I look first."}],
        encrypted_content="b3BhcXVl",
    ),
    _line(
        "response_item",
        type="function_call",
        call_id="c1",
        name="shell",
        arguments='{"command":["ls"]}',
    ),
    _line(
        "response_item",
        type="function_call_output",
        call_id="c1",
        output='{"output":"no","metadata":{"exit_code":1,"duration_seconds":0.5}}',
    ),
    _spent(),
    _spent(),
    _line(
        "response_item",
        type="custom_tool_call",
        call_id="c2",
        name="apply_patch",
        input="*** Begin Patch",
    ),
    _line(
        "response_item", type="custom_tool_call_output", call_id="c2", output="Done!"
    ),
    _line(
        "compacted",
        message="So far: fixed.",
        replacement_history=[
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "So far: fixed."}],
            }
        ],
    ),
    _line(
        "response_item",
        type="message",
        role="assistant",
        content=[{"type": "output_text", "text": "Fixed."}],
    ),
    _line("event_msg", type="agent_message", message="Fixed."),
    _line("event_msg", type="turn_aborted", reason="interrupted"),
]


def span(
    name: str, start: int, end: int, *, trace: str = "t" * 32, **about: Any
) -> Entry:
    """A span of OTLP in JSON; names of attributes have ``_`` for ``.``'s last one."""
    values = {
        "gen_ai.operation.name": name,
        **{key.replace("__", "."): value for key, value in about.items()},
    }
    return {
        "traceId": trace,
        "spanId": f"{start:016x}",
        "name": name,
        "startTimeUnixNano": str(1_780_000_000_000_000_000 + start * 10**9),
        "endTimeUnixNano": str(1_780_000_000_000_000_000 + end * 10**9),
        "attributes": [
            {"key": key, "value": _attribute(value)} for key, value in values.items()
        ],
    }


def _attribute(value: Any) -> Entry:
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, dict):
        pairs = [{"key": key, "value": _attribute(item)} for key, item in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def spans(*entries: Entry) -> Entry:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [*entries]}]}]}


def _chat(
    start: int, end: int, inputs: list[Entry], output: Entry, **more: Any
) -> Entry:
    return span(
        "chat",
        start,
        end,
        gen_ai__conversation__id="conv-1",
        gen_ai__request__model="gpt-5",
        gen_ai__input__messages=inputs,
        gen_ai__output__messages=[{**output, "finish_reason": "stop"}],
        **more,
    )


_ASKED: Entry = {"role": "user", "parts": [{"type": "text", "content": "Go."}]}
_CALLED: Entry = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "I look."},
        {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "/"}},
    ],
}
_GIVEN: Entry = {
    "role": "tool",
    "parts": [{"type": "tool_call_response", "id": "c1", "response": {"files": [1]}}],
}
_DONE: Entry = {"role": "assistant", "parts": [{"type": "text", "content": "Done."}]}
OTLP: Entry = spans(
    span("invoke_agent", 0, 9, gen_ai__conversation__id="conv-1"),
    _chat(
        1,
        2,
        [_ASKED],
        _CALLED,
        gen_ai__system_instructions=[{"type": "text", "content": "You help."}],
        **{
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.cache_read.input_tokens": 60,
            "gen_ai.usage.output_tokens": 7,
        },
    ),
    span(
        "execute_tool",
        2,
        4,
        gen_ai__conversation__id="conv-1",
        gen_ai__tool__name="ls",
        **{"gen_ai.tool.call.id": "c1", "gen_ai.tool.call.result": "files: 1"},
    ),
    _chat(5, 6, [_ASKED, _CALLED, _GIVEN], _DONE),
)

DOCUMENTS: Final[dict[str, Any]] = {
    "claude-code": CLAUDE_CODE,
    "codex": CODEX,
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "tau-bench": TAU_BENCH,
    "swe-agent": SWE_AGENT,
    "letta": LETTA,
    "inspect": INSPECT,
    "atif": ATIF,
    "otlp": OTLP,
}
"""Samples of single files, by the names of their formats."""
