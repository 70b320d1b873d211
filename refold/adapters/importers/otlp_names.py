"""Names of OpenTelemetry's GenAI conventions, by version, as the current names.

The conventions are in development, and programs that follow older versions stay in use.
``current`` returns the attributes of a span under the names of GenAI conventions 0.1.0
(https://github.com/open-telemetry/semantic-conventions-genai), with its messages in
``gen_ai.input.messages`` and ``gen_ai.output.messages``, wherever the program put them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from refold.adapters.importers import base

Json: TypeAlias = dict[str, Any]
Attributes: TypeAlias = Mapping[str, Any]

OPERATION: Final = "gen_ai.operation.name"
CONVERSATION: Final = "gen_ai.conversation.id"
SYSTEM: Final = "gen_ai.system_instructions"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
TOOLS: Final = "gen_ai.tool.definitions"


class Renamed(NamedTuple):
    """An attribute that had another name.

    until: the version of the conventions that renamed it; a name that no version had
           is of a widespread program, which ``until`` names.
    """

    former: str
    current: str
    until: str


# The newest former name comes first.
RENAMED: Final = (
    Renamed("gen_ai.workflow.name", "gen_ai.agent.name", "GenAI 0.1.0"),
    Renamed("gen_ai.system", "gen_ai.provider.name", "1.37.0"),
    Renamed("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", "1.27.0"),
    Renamed("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens", "1.27.0"),
    Renamed("llm.request.type", OPERATION, "OpenLLMetry"),
    Renamed("session.id", CONVERSATION, "OpenInference"),
    Renamed(
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "OpenLLMetry",
    ),
    Renamed(
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "OpenLLMetry",
    ),
    Renamed(
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "the Python instrumentations of GenAI",
    ),
)

# Since 1.37.0, an event of the span may have the attributes with the messages.
_DETAILS: Final = "gen_ai.client.inference.operation.details"
# Until 1.36.0, each message was an event.
_ROLES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE: Final = "gen_ai.choice"
# The key of calls in the fields of a numbered message.  No attribute has a space.
_CALLS: Final = "numbered calls"
# OpenLLMetry numbers the messages in the names of attributes.
_NUMBERED: Final = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,5})\.(\w+)")


def current(attributes: Attributes, events: Iterable[tuple[str, Attributes]]) -> Json:
    """Return the attributes of a span under their current names.

    A current name wins over former ones.  Attributes without a current name stay.

    events: the names and the attributes of the span's events.
    """
    renamed: Json = dict(attributes)
    for former, name, _ in RENAMED:
        if former in renamed:
            renamed.setdefault(name, renamed[former])
    sent: list[Json] = []
    answers: list[Json] = []
    for event_name, event_attributes in events:
        if event_name == _DETAILS:
            for name in (SYSTEM, INPUT, OUTPUT, TOOLS):
                if name in event_attributes:
                    renamed.setdefault(name, event_attributes[name])
        elif event_name in _ROLES:
            sent.append(_message(_ROLES[event_name], event_attributes))
        elif event_name == _CHOICE:
            answers.append(_choice(event_attributes))
    numbered = _numbered(attributes)
    sent = sent or [_message("user", fields) for fields in numbered["prompt"]]
    answers = answers or [
        _message("assistant", fields) for fields in numbered["completion"]
    ]
    if sent:
        renamed.setdefault(INPUT, sent)
    if answers:
        renamed.setdefault(OUTPUT, answers)
    return renamed


def _numbered(attributes: Attributes) -> dict[str, list[Json]]:
    """Return the fields of each numbered message, by ``prompt`` and ``completion``."""
    by_number: dict[tuple[str, int], Json] = {}
    for name, value in attributes.items():
        match = _NUMBERED.match(name)
        if match is not None:
            kind, number, field = match.groups()
            fields = by_number.setdefault((kind, int(number)), {})
            fields[field] = value
            _add_call(fields, name[match.end() :], value)
    messages: dict[str, list[Json]] = {"prompt": [], "completion": []}
    for (kind, _), fields in sorted(by_number.items()):
        messages[kind].append(fields)
    return messages


def _add_call(fields: Json, path: str, value: Any) -> None:
    """Add a field of a numbered call, such as ``.0.name`` behind ``tool_calls``."""
    number, _, field = path.removeprefix(".").partition(".")
    if not number.isdigit() or not field:
        return
    calls = fields.setdefault(_CALLS, {})
    calls.setdefault(int(number), {})[field] = value


def _message(role: str, fields: Attributes) -> Json:
    """Return a message in the current form, from the fields of an earlier one.

    role: unless ``fields`` has one.
    """
    role = base.text(fields, "role") or role
    content = fields.get("content")
    call_id = base.text(fields, "id") or base.text(fields, "tool_call_id")
    if role == "tool":
        part = {"type": "tool_call_response", "id": call_id, "response": content}
        return {"role": role, "parts": [part]}
    parts: list[Json] = [
        {"type": "text", "content": text} for text in _texts(content) if text
    ]
    calls = fields.get(_CALLS)
    if isinstance(calls, dict):
        parts += [_call(call) for _, call in sorted(calls.items())]
    else:
        listed = fields.get("tool_calls")
        if isinstance(listed, str):
            listed, _ = base.parsed(listed)
        parts += [_call(call) for call in base.each(listed)]
    return {"role": role, "parts": parts}


def _choice(fields: Attributes) -> Json:
    """Return an answer in the current form, from an event ``gen_ai.choice``."""
    message = fields.get("message")
    if isinstance(message, str):
        parsed, _ = base.parsed(message)
        message = parsed if isinstance(parsed, dict) else {"content": message}
    answer = _message("assistant", {**fields, **base.mapping(message)})
    reason = base.text(fields, "finish_reason")
    return {**answer, "finish_reason": reason} if reason else answer


def _texts(content: Any) -> list[str]:
    """Return the texts of a content, which may be blocks, also as JSON in a text."""
    if isinstance(content, str):
        blocks, _ = base.parsed(content) if content.startswith("[{") else (None, 0)
        if not isinstance(blocks, list):
            return [content]
        content = blocks
    return [base.text(block, "text") or "" for block in base.each(content)]


def _call(call: Attributes) -> Json:
    """Return a call in the current form, from OpenAI's form or from flat fields."""
    function = base.mapping(call, "function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        parsed, _ = base.parsed(arguments)
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {
        "type": "tool_call",
        "id": call.get("id"),
        "name": function.get("name"),
        "arguments": arguments,
    }
