"""Small generated exports of chat programs, in their true form."""

from __future__ import annotations

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
