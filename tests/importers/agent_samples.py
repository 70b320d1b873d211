"""Small sessions of coding agents, in the form in which their clients write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

Entry = dict[str, Any]

GEMINI_SESSION: Final = "6e898ead-2fe8-4bde-b4cf-aacf3bfd7700"
_TOKENS: Final = {"input": 100, "output": 7, "cached": 60, "thoughts": 3, "total": 110}
_MINUTE: Final = "2026-02-03T04:05"


def gemini_header(**fields: Any) -> Entry:
    return {
        "sessionId": GEMINI_SESSION,
        "projectHash": "53bb",
        "startTime": f"{_MINUTE}:00.000Z",
        "lastUpdated": f"{_MINUTE}:00.000Z",
        "kind": "main",
        **fields,
    }


def gemini_user(name: str, *parts: Entry | str, second: int = 1) -> Entry:
    content = [{"text": part} if isinstance(part, str) else part for part in parts]
    return {
        "id": name,
        "timestamp": f"{_MINUTE}:{second:02}.000Z",
        "type": "user",
        "content": content,
    }


def gemini_answer(name: str, text: Any, *, second: int = 2, **fields: Any) -> Entry:
    return {
        "id": name,
        "timestamp": f"{_MINUTE}:{second:02}.000Z",
        "type": "gemini",
        "content": text,
        "thoughts": [],
        "tokens": _TOKENS,
        "model": "gemini-2.5-flash",
        **fields,
    }


def gemini_response(call_id: str, output: str) -> Entry:
    response = {"id": call_id, "name": "shell", "response": {"output": output}}
    return {"functionResponse": response}


def gemini_call(call_id: str, output: str, status: str = "success") -> Entry:
    return {
        "id": call_id,
        "name": "shell",
        "args": {"command": f"echo {call_id}"},
        "result": [gemini_response(call_id, output)],
        "status": status,
        "timestamp": f"{_MINUTE}:03.000Z",
        "displayName": "Shell",
    }


GEMINI_CONTEXT: Final = gemini_user(
    "g0", "<session_context>\nLinux\n</session_context>"
)
GEMINI: list[Entry] = [
    gemini_header(),
    {"$set": {"messages": [GEMINI_CONTEXT], "lastUpdated": f"{_MINUTE}:00.100Z"}},
    gemini_user("g1", "Run both."),
    {"$set": {"lastUpdated": f"{_MINUTE}:01.000Z"}},
    gemini_answer("g2", "I run them."),
    gemini_answer(
        "g2",
        "I run them.",
        toolCalls=[
            gemini_call("c1", "Output: one"),
            gemini_call("c2", "Output: (empty)\nExit Code: 3"),
        ],
    ),
    gemini_user(
        "g3",
        gemini_response("c1", "Output: one"),
        gemini_response("c2", "Output: (empty)\nExit Code: 3"),
        second=4,
    ),
    gemini_answer("g4", "The second one failed.", second=5),
    {"$set": {"summary": "Run two commands"}},
]

QWEN_SESSION: Final = "3c049c56-0ac8-4901-b2d7-f183140f443d"


def qwen_entry(
    uuid: str, parent: str | None, kind: str, *parts: Entry | str, **fields: Any
) -> Entry:
    entry: Entry = {
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": QWEN_SESSION,
        "timestamp": f"{_MINUTE}:01.000Z",
        "type": kind,
        "cwd": "/work/shop",
        "version": "0.24.4",
    }
    if parts:
        role = "model" if kind == "assistant" else "user"
        listed = [{"text": part} if isinstance(part, str) else part for part in parts]
        entry["message"] = {"role": role, "parts": listed}
    if kind == "assistant":
        entry["model"] = "qwen3-coder"
        entry["usageMetadata"] = {
            "promptTokenCount": 100,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 60,
            "totalTokenCount": 110,
        }
    return {**entry, **fields}


def qwen_call(call_id: str) -> Entry:
    arguments = {"command": f"echo {call_id}"}
    return {"functionCall": {"id": call_id, "name": "shell", "args": arguments}}


def qwen_result(call_id: str, **response: Any) -> Entry:
    return {"functionResponse": {"id": call_id, "name": "shell", "response": response}}


def qwen_note(uuid: str, parent: str, subtype: str, **payload: Any) -> Entry:
    fields = {"subtype": subtype, "systemPayload": payload}
    return qwen_entry(uuid, parent, "system", **fields)


QWEN: list[Entry] = [
    qwen_entry("q1", None, "user", "Run both."),
    qwen_entry(
        "q2", "q1", "assistant", "I run them.", qwen_call("c1"), qwen_call("c2")
    ),
    qwen_note(
        "q3",
        "q2",
        "ui_telemetry",
        uiEvent={"call_id": "c1", "duration_ms": 879, "event.name": "tool_call"},
    ),
    qwen_entry(
        "q4",
        "q3",
        "tool_result",
        qwen_result("c1", output="one"),
        toolCallResult={"callId": "c1", "status": "success"},
    ),
    qwen_entry(
        "q5",
        "q4",
        "tool_result",
        qwen_result("c2", error="Exit Code: 3"),
        toolCallResult={"callId": "c2", "status": "error"},
    ),
    qwen_entry("q6", "q5", "assistant", "The second one failed."),
]

COPILOT_SESSION: Final = "9e7b2210-0f0f-4a92-bf87-626eed672ee1"
COPILOT_AGENT: Final = "923a1505-5fe5-4bc0-8a9d-57e15198c496"


def copilot_event(
    name: str, kind: str, *, agent: str = "", second: int = 1, **data: Any
) -> Entry:
    event: Entry = {"type": kind, "data": data}
    if agent:
        event["agentId"] = agent
    return {
        **event,
        "id": name,
        "timestamp": f"{_MINUTE}:{second:02}.000Z",
        "parentId": None,
    }


def copilot_start(**fields: Any) -> Entry:
    return copilot_event(
        "p0",
        "session.start",
        sessionId=COPILOT_SESSION,
        version=1,
        producer="copilot-agent",
        copilotVersion="1.0.102",
        context={"cwd": "/work/shop"},
        **fields,
    )


def copilot_usage(name: str, request: str, **fields: Any) -> Entry:
    usage = {
        "model": "gpt-5",
        "inputTokens": 100,
        "outputTokens": 10,
        "cacheReadTokens": 60,
        "cacheWriteTokens": 0,
        "apiCallId": request,
    }
    return copilot_event(name, "session.usage_record", usage=usage, **fields)


def copilot_request(call_id: str, tool: str = "bash", **arguments: Any) -> Entry:
    return {
        "toolCallId": call_id,
        "name": tool,
        "arguments": arguments,
        "type": "function",
    }


def copilot_answer(
    name: str, text: str, *requests: Entry, agent: str = "", **fields: Any
) -> Entry:
    return copilot_event(
        name,
        "assistant.message",
        agent=agent,
        messageId=f"m-{name}",
        model="gpt-5",
        content=text,
        toolRequests=list(requests),
        **fields,
    )


def copilot_result(
    name: str, call_id: str, content: str, *, second: int = 3, **fields: Any
) -> Entry:
    return copilot_event(
        name,
        "tool.execution_complete",
        second=second,
        toolCallId=call_id,
        result={"content": content},
        **{"success": True, **fields},
    )


COPILOT: list[Entry] = [
    copilot_start(),
    copilot_event(
        "p1",
        "user.message",
        content="Run both.",
        transformedContent="<current_datetime>now</current_datetime>\n\nRun both.",
    ),
    copilot_event("p2", "system.message", role="system", content="You are Copilot."),
    copilot_event("p3", "assistant.turn_start", turnId="0"),
    copilot_usage("p4", "r1"),
    copilot_answer(
        "p5",
        "I run them.",
        copilot_request("c1", command="echo one"),
        copilot_request("c2", command="exit 3"),
        apiCallId="r1",
    ),
    copilot_event("p6", "tool.execution_start", second=2, toolCallId="c1"),
    copilot_event("p7", "tool.execution_start", second=2, toolCallId="c2"),
    copilot_result("p8", "c2", "", shellExecution={"exitCode": 3}),
    copilot_result("p9", "c1", "one", shellExecution={"exitCode": 0}),
    copilot_answer(
        "p10", "Now I delegate.", copilot_request("c3", "task", prompt="Hi")
    ),
    copilot_event("p11", "subagent.started", agent=COPILOT_AGENT, toolCallId="c3"),
    copilot_event("p12", "user.message", agent=COPILOT_AGENT, content="Hi"),
    copilot_answer("p13", "Hi from below.", agent=COPILOT_AGENT),
    copilot_result("p14", "c3", "Hi from below."),
    copilot_answer("p15", "All done."),
    copilot_event("p16", "session.title_changed", title="Run two commands"),
]

# The lines of a session, by the name of the format.
LINES: Final[dict[str, list[Entry]]] = {
    "gemini-cli": GEMINI,
    "qwen-code": QWEN,
    "copilot-cli": COPILOT,
}


def openhands_event(
    name: str, kind: str, source: str = "agent", **fields: Any
) -> Entry:
    return {
        "id": name,
        "timestamp": f"{_MINUTE}:01.000000",
        "source": source,
        "kind": kind,
        **fields,
    }


def openhands_message(name: str, source: str, text: str) -> Entry:
    role = "user" if source == "user" else "assistant"
    content = [{"type": "text", "text": text}]
    message = {"role": role, "content": content}
    return openhands_event(name, "MessageEvent", source, llm_message=message)


def openhands_action(name: str, call_id: str, command: str, thought: str = "") -> Entry:
    arguments = f'{{"command": "{command}"}}'
    return openhands_event(
        name,
        "ActionEvent",
        thought=[{"type": "text", "text": thought}] if thought else [],
        action={"command": command, "kind": "TerminalAction"},
        tool_name="terminal",
        tool_call_id=call_id,
        tool_call={"id": call_id, "name": "terminal", "arguments": arguments},
        llm_response_id="r1",
    )


def openhands_result(name: str, call_id: str, text: str, exit_code: int) -> Entry:
    observation = {
        "content": [{"type": "text", "text": text}],
        "exit_code": exit_code,
        "kind": "TerminalObservation",
    }
    return openhands_event(
        name,
        "ObservationEvent",
        "environment",
        tool_name="terminal",
        tool_call_id=call_id,
        observation=observation,
    )


OPENHANDS: Final[list[Entry]] = [
    openhands_event(
        "h0", "SystemPromptEvent", system_prompt={"type": "text", "text": "Be brief."}
    ),
    openhands_message("h1", "user", "Run both."),
    openhands_action("h2", "c1", "echo one", "I run them."),
    openhands_action("h3", "c2", "exit 3"),
    openhands_result("h4", "c1", "one", 0),
    openhands_result("h5", "c2", "", 3),
    openhands_message("h6", "agent", "The second one failed."),
    openhands_event("h7", "ConversationStateUpdateEvent", "environment"),
]
LINES["openhands"] = OPENHANDS

OPENCODE_SESSION: Final = "ses_1"


def opencode_message(name: str, role: str, *parts: Entry, **fields: Any) -> Entry:
    created = 1_795_743_076_000 + int(name.removeprefix("msg_"))
    info: Entry = {"id": name, "role": role, "time": {"created": created}}
    if role == "assistant":
        info["time"]["completed"] = created + 500
        info |= {
            "modelID": "claude-x",
            "agent": "build",
            "finish": "stop",
            "tokens": {
                "total": 113,
                "input": 40,
                "output": 10,
                "reasoning": 3,
                "cache": {"read": 60, "write": 0},
            },
        }
    listed = [{"id": f"prt_{name}_{index}", **part} for index, part in enumerate(parts)]
    return {"info": {**info, **fields}, "parts": listed}


def opencode_tool(call_id: str, output: str, exit_code: int = 0, **time: int) -> Entry:
    return {
        "type": "tool",
        "tool": "bash",
        "callID": call_id,
        "state": {
            "status": "completed",
            "input": {"command": f"echo {call_id}"},
            "output": output,
            "metadata": {"exit": exit_code},
            "time": {"start": 1_795_743_076_100, "end": 1_795_743_076_350, **time},
        },
    }


def opencode_text(text: str) -> Entry:
    return {"type": "text", "text": text}


OPENCODE: Final[Entry] = {
    "info": {
        "id": OPENCODE_SESSION,
        "projectID": "global",
        "directory": "/work/shop",
        "title": "Run two commands",
    },
    "messages": [
        opencode_message("msg_1", "user", opencode_text("Run both.")),
        opencode_message(
            "msg_2",
            "assistant",
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm."},
            opencode_text("I run them."),
            opencode_tool("c1", "one"),
            opencode_tool("c2", "", exit_code=3),
            {"type": "step-finish", "reason": "tool-calls"},
        ),
        opencode_message("msg_3", "assistant", opencode_text("The second one failed.")),
    ],
}


def write_cline(folder: Path, entries: list[Entry]) -> Path:
    """Write the messages of a task into a folder of its name."""
    task = folder / "1769053680585"
    task.mkdir(exist_ok=True)
    path = task / "api_conversation_history.json"
    path.write_text(json.dumps(entries))
    return path


def _cline_read(call_id: str, path: str) -> Entry:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": "read_file",
        "input": {"path": path},
    }


CLINE: Final[list[Entry]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<task>\nRead both.\n</task>"},
            {"type": "text", "text": "<environment_details>\nLinux"},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "text", "text": "I read them."},
            _cline_read("c1", "a.cs"),
            _cline_read("c2", "b.cs"),
        ],
        "modelInfo": {"modelId": "claude-opus-4-5", "providerId": "anthropic"},
        "metrics": {"tokens": {"prompt": 10, "completion": 814, "cached": 8972}},
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "[read_file for 'a.cs'] Result:\nusing System;"},
            {
                "type": "text",
                "text": "Tool [read_file] was not executed: a tool has been used.",
            },
            {"type": "text", "text": "<environment_details>\nLinux"},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]
