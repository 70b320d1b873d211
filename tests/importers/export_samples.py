"""Small generated exports of chat programs, in their true form."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def chatgpt_node(
    node_id: str,
    parent: str | None,
    role: str | None,
    content: Entry | str | None = None,
    *,
    at: float | None = None,
    name: str | None = None,
    to: str = "all",
    **metadata: Any,
) -> Entry:
    """A node of a conversation; without a role, the root of the tree."""
    if role is None:
        return {"id": node_id, "message": None, "parent": parent, "children": []}
    if isinstance(content, str):
        content = {"content_type": "text", "parts": [content]}
    message: Entry = {
        "id": node_id,
        "author": {"role": role, "name": name, "metadata": {}},
        "create_time": at,
        "update_time": None,
        "content": content,
        "status": "finished_successfully",
        "end_turn": None,
        "weight": 1.0,
        "metadata": metadata,
        "recipient": to,
        "channel": None,
    }
    return {"id": node_id, "message": message, "parent": parent, "children": []}


def chatgpt_conversation(*nodes: Entry, current: str, **more: Any) -> Entry:
    mapping = {node["id"]: node for node in nodes}
    for node in nodes:
        if node["parent"] in mapping:
            mapping[node["parent"]]["children"].append(node["id"])
    return {
        "title": "Weather in Oslo",
        "create_time": 1768425530.5,
        "update_time": 1768425590.5,
        "mapping": mapping,
        "moderation_results": [],
        "current_node": current,
        "plugin_ids": None,
        "conversation_id": "6968083a-13f4-832d-855b-d108c2f71adf",
        "conversation_template_id": None,
        "gizmo_id": None,
        "is_archived": False,
        "safe_urls": [],
        "default_model_slug": "gpt-5-2-thinking",
        "id": "6968083a-13f4-832d-855b-d108c2f71adf",
        **more,
    }


CHATGPT: list[Entry] = [
    chatgpt_conversation(
        chatgpt_node("root", None, None),
        chatgpt_node("n1", "root", "system", "", at=1.0),
        chatgpt_node(
            "n2",
            "n1",
            "user",
            {
                "content_type": "user_editable_context",
                "user_profile": "I live in Oslo.",
                "user_instructions": "Be brief.",
            },
        ),
        chatgpt_node("n3", "n2", "user", "How warm is it?", at=2.0),
        chatgpt_node(
            "n4",
            "n3",
            "assistant",
            {
                "content_type": "thoughts",
                "thoughts": [{"summary": "Weather", "content": "I look it up."}],
            },
            at=3.0,
            model_slug="gpt-5-2-thinking",
        ),
        chatgpt_node(
            "n5",
            "n4",
            "assistant",
            {"content_type": "code", "language": "json", "text": '{"q": "Oslo"}'},
            at=4.0,
            to="web.run",
            model_slug="gpt-5-2-thinking",
        ),
        chatgpt_node(
            "n6",
            "n5",
            "tool",
            {"content_type": "execution_output", "text": "4 degrees"},
            at=5.0,
            name="web.run",
        ),
        chatgpt_node(
            "n7",
            "n6",
            "assistant",
            {"content_type": "reasoning_recap", "content": "Thought for 3s"},
            at=6.0,
        ),
        chatgpt_node(
            "n8",
            "n7",
            "assistant",
            "Four degrees.",
            at=7.0,
            model_slug="gpt-5-2-thinking",
            finish_details={"type": "stop"},
        ),
        current="n8",
    )
]


def claude_ai_message(
    uuid: str, parent: str | None, sender: str, *blocks: Entry, at: int, **more: Any
) -> Entry:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    return {
        "uuid": uuid,
        "text": "\n".join(texts),
        "content": list(blocks),
        "sender": sender,
        "created_at": f"2026-02-03T04:05:{at:02}.000000Z",
        "updated_at": f"2026-02-03T04:05:{at:02}.000000Z",
        "attachments": [],
        "files": [],
        "parent_message_uuid": parent or "00000000-0000-4000-8000-000000000000",
        **more,
    }


def claude_ai_text(text: str) -> Entry:
    return {
        "start_timestamp": None,
        "stop_timestamp": None,
        "flags": None,
        "type": "text",
        "text": text,
        "citations": [],
    }


def claude_ai_conversation(*messages: Entry, **more: Any) -> Entry:
    return {
        "uuid": "37f8a88b-17fc-495a-87a0-ca6e0822e8f3",
        "name": "Weather in Oslo",
        "summary": "",
        "created_at": "2026-02-03T04:05:00.000000Z",
        "updated_at": "2026-02-03T04:05:09.000000Z",
        "account": {"uuid": "23b8c1e9-3924-46de-beb1-3b9046685257"},
        "chat_messages": list(messages),
        **more,
    }


CLAUDE_AI: list[Entry] = [
    claude_ai_conversation(
        claude_ai_message("m1", None, "human", claude_ai_text("How warm?"), at=1),
        claude_ai_message(
            "m2",
            "m1",
            "assistant",
            {
                "start_timestamp": "2026-02-03T04:05:02.000000Z",
                "stop_timestamp": "2026-02-03T04:05:03.000000Z",
                "type": "thinking",
                "thinking": "I look it up.",
                "summaries": [{"summary": "Looking it up."}],
                "cut_off": False,
            },
            {
                "start_timestamp": "2026-02-03T04:05:03.000000Z",
                "stop_timestamp": "2026-02-03T04:05:04.000000Z",
                "type": "tool_use",
                "id": "toolu_1",
                "name": "web_search",
                "input": {"query": "Oslo"},
                "message": "Searching the web",
            },
            {
                "start_timestamp": "2026-02-03T04:05:04.000000Z",
                "stop_timestamp": "2026-02-03T04:05:05.500000Z",
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "name": "web_search",
                "content": [{"type": "text", "text": "4 degrees", "uuid": "b-1"}],
                "is_error": False,
            },
            claude_ai_text("Four degrees."),
            at=6,
        ),
    )
]


AIDER = """
# aider chat started at 2025-12-03 14:43:45

> Aider v0.86.1  
> Model: openrouter/openai/gpt-4o-mini with diff edit format  

#### Add a function  
####   
#### that doubles a number  

Here it is:

#### A heading of the answer

> A quote in the answer

> Tokens: 2.4k sent, 104 received. Cost: $0.00042 message, $0.00042 session.  
> Applied edit to double.py  

#### /add other.py  

> Added other.py to the chat  
"""  # noqa: W291  # the client ends its lines with two spaces


# The tables of ``llm`` from version 0.26 on, with the columns that matter.
_LLM_TABLES = """
CREATE TABLE _llm_migrations (name TEXT PRIMARY KEY, applied_at TEXT);
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT,
    prompt_json TEXT, options_json TEXT, response TEXT, response_json TEXT,
    conversation_id TEXT, duration_ms INTEGER, datetime_utc TEXT,
    input_tokens INTEGER, output_tokens INTEGER, token_details TEXT, schema_id TEXT);
CREATE TABLE schemas (id TEXT PRIMARY KEY, content TEXT);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, hash TEXT, content TEXT, source TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE system_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, path TEXT, url TEXT,
    content BLOB);
CREATE TABLE prompt_attachments (response_id TEXT, attachment_id TEXT,
    "order" INTEGER);
CREATE TABLE tools (id INTEGER PRIMARY KEY, name TEXT, description TEXT);
CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER,
    name TEXT, arguments TEXT, tool_call_id TEXT);
CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, tool_id INTEGER,
    name TEXT, output TEXT, tool_call_id TEXT, exception TEXT);
CREATE TABLE tool_results_attachments (tool_result_id INTEGER, attachment_id TEXT,
    "order" INTEGER);
"""

# The tables that later versions add.
_LLM_THREADS = """
CREATE TABLE threads (id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT,
    forked_from TEXT, datetime_utc TEXT);
CREATE TABLE turns (id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT,
    tip_message_hash TEXT, model TEXT, resolved_model TEXT, options_json TEXT,
    schema_id TEXT, input_tokens INTEGER, output_tokens INTEGER, token_details TEXT,
    duration_ms INTEGER, datetime_utc TEXT, response_json TEXT);
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT,
    provider_metadata TEXT);
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER,
    type TEXT, tool_name TEXT, text TEXT, payload TEXT);
CREATE TABLE part_attachments (part_id INTEGER, attachment_id TEXT, "order" INTEGER);
"""

Rows = dict[str, list[Entry]]


def write_llm(path: Path, rows: Rows, *, threads: bool = True) -> Path:
    """Write a database of ``llm``; ``threads`` adds the tables of newer versions."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_LLM_TABLES)
        if threads:
            database.executescript(_LLM_THREADS)
        for table, entries in rows.items():
            for entry in entries:
                names = ", ".join(f'"{name}"' for name in entry)
                marks = ", ".join("?" for _ in entry)
                statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"
                database.execute(statement, list(entry.values()))
        database.commit()
    return path


def llm_thread(*messages: tuple[str, Sequence[Entry]], **more: Any) -> Rows:
    """The rows of a thread; each message of the assistant ends a turn."""
    rows: Rows = {"messages": [], "parts": [], "turns": []}
    before: str | None = None
    for number, (role, parts) in enumerate(messages, start=1):
        name = f"b2:{number:04}"
        rows["messages"].append({"hash": name, "parent_hash": before, "role": role})
        for position, part in enumerate(parts):
            payload = {key: part[key] for key in part if key not in ("type", "text")}
            rows["parts"].append(
                {
                    "message_hash": name,
                    "position": position,
                    "type": part["type"],
                    "text": part.get("text"),
                    "payload": json.dumps(payload) if payload else None,
                }
            )
        if role == "assistant":
            rows["turns"].append(
                {
                    "id": f"turn-{number}",
                    "thread_id": "thread-1",
                    "parent_message_hash": before,
                    "tip_message_hash": name,
                    "model": "gpt-5",
                    "input_tokens": 11,
                    "output_tokens": 7,
                    "duration_ms": 500,
                    "datetime_utc": f"2026-11-27T01:56:{number:02}+00:00",
                }
            )
        before = name
    rows["threads"] = [
        {"id": "thread-1", "name": "Doubling", "tip_message_hash": before, **more}
    ]
    return rows


_TEXT: Entry = {"type": "text"}
LLM: Rows = llm_thread(
    ("system", [{**_TEXT, "text": "Be brief."}]),
    ("user", [{**_TEXT, "text": "Double 4."}]),
    (
        "assistant",
        [
            {"type": "reasoning", "text": "A tool can."},
            {
                "type": "tool_call",
                "name": "double",
                "arguments": {"n": 4},
                "tool_call_id": "tc1",
            },
        ],
    ),
    (
        "tool",
        [
            {
                "type": "tool_result",
                "name": "double",
                "output": "8",
                "tool_call_id": "tc1",
            }
        ],
    ),
    ("assistant", [{**_TEXT, "text": "Eight."}]),
)


def responses_item(text: str, role: str, item_id: str) -> Entry:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text, "annotations": []}]
    if role != "assistant":
        del content[0]["annotations"]
    return {"type": "message", "id": item_id, "role": role, "content": content}


def openai_response(response_id: str, *output: Entry, **more: Any) -> Entry:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1741476542,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "model": "gpt-4.1-2025-04-14",
        "output": list(output),
        "previous_response_id": None,
        "temperature": 1.0,
        "usage": {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123},
        **more,
    }


OPENAI_RESPONSES: list[Entry] = [
    openai_response(
        "resp_1",
        {"type": "reasoning", "id": "rs_1", "summary": [{"text": "I look it up."}]},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city": "Oslo"}',
        },
        input=[responses_item("Weather in Oslo?", "user", "msg_1")],
    ),
    openai_response(
        "resp_2",
        responses_item("Four degrees.", "assistant", "msg_2"),
        input=[
            {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"}
        ],
        previous_response_id="resp_1",
        created_at=1741476550,
    ),
]

_ASKED: list[Entry] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Oslo?"},
]
_CALLED: Entry = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
        }
    ],
}
_RETURNED: Entry = {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}


def observation(number: int, kind: str, asked: Any, answer: Any, **more: Any) -> Entry:
    return {
        "id": f"o-{number}",
        "traceId": "t-1",
        "type": kind,
        "name": "chat",
        "startTime": f"2026-02-03T04:05:{2 * number:02}.000Z",
        "endTime": f"2026-02-03T04:05:{2 * number + 1:02}.000Z",
        "parentObservationId": None,
        "level": "DEFAULT",
        "statusMessage": None,
        "model": "gpt-4o",
        "input": asked,
        "output": answer,
        "usageDetails": {"input": 11, "output": 7, "total": 18},
        "costDetails": {"total": 0.002},
        **more,
    }


LANGFUSE: Entry = {
    "trace": {
        "id": "t-1",
        "name": "Weather",
        "timestamp": "2026-02-03T04:05:00.000Z",
        "sessionId": None,
        "scores": [],
    },
    "observations": [
        observation(1, "GENERATION", _ASKED, _CALLED),
        observation(2, "TOOL", {"city": "Oslo"}, "4 degrees"),
        observation(
            3,
            "GENERATION",
            [*_ASKED, _CALLED, _RETURNED],
            {"role": "assistant", "content": "Four degrees."},
        ),
    ],
}


def serialized(kind: str, content: Any, **more: Any) -> Entry:
    """A message as LangChain serializes it."""
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", kind],
        "kwargs": {"content": content, **more},
    }


def run(number: int, kind: str, inputs: Any, outputs: Any, **more: Any) -> Entry:
    return {
        "id": f"r-{number}",
        "name": kind,
        "run_type": kind,
        "start_time": f"2026-02-03T04:05:{2 * number:02}.000000Z",
        "end_time": f"2026-02-03T04:05:{2 * number + 1:02}.000000Z",
        "extra": {"metadata": {"thread_id": "t-77", "ls_model_name": "gpt-4o"}},
        "error": None,
        "inputs": inputs,
        "outputs": outputs,
        "parent_run_id": "r-0" if number else None,
        "trace_id": "r-0",
        "dotted_order": f"{number:02}",
        **more,
    }


def generated(message: Entry) -> Entry:
    return {"generations": [[{"text": "", "message": message}]], "llm_output": None}


_HUMAN = serialized("HumanMessage", "Weather in Oslo?", type="human")
_AI = serialized(
    "AIMessage",
    "",
    type="ai",
    tool_calls=[
        {"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}
    ],
    usage_metadata={"input_tokens": 11, "output_tokens": 7, "total_tokens": 18},
)
_TOOL = serialized("ToolMessage", "4 degrees", type="tool", tool_call_id="c1")
LANGSMITH: list[Entry] = [
    run(0, "chain", {"input": "Weather in Oslo?"}, {"output": "Four degrees."}),
    run(1, "llm", {"messages": [[_HUMAN]]}, generated(_AI)),
    run(2, "tool", {"input": "{'city': 'Oslo'}"}, {"output": _TOOL}),
    run(
        3,
        "llm",
        {"messages": [[_HUMAN, _AI, _TOOL]]},
        generated(serialized("AIMessage", "Four degrees.", type="ai")),
    ),
]
