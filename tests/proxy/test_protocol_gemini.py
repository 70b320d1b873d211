"""Requests and answers of the Gemini API become the events of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.adapters.proxy import protocols
from refold.adapters.proxy.protocols import gemini
from refold.domain.events import AgentError, AgentResponse, ToolResult, UserInput
from refold.projections.models import Usage
from tests.proxy.wire import answered, asked, codes, conversation, shown, sse

PATH = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"


def chunk(*parts: Any, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a part of an answer, or a whole one."""
    content = {"role": "model", "parts": list(parts)}
    candidate = {"content": content, "finishReason": reason, "index": 0}
    return {"candidates": [candidate], "responseId": "r1", **fields}


def shell(command: str) -> dict[str, Any]:
    """Return a call without an id."""
    return {"functionCall": {"name": "shell", "args": {"command": command}}}


def returned(output: str) -> dict[str, Any]:
    """Return a result without an id."""
    return {"functionResponse": {"name": "shell", "response": {"output": output}}}


def test_both_methods_are_recorded_also_in_an_envelope() -> None:
    assert protocols.of("POST", PATH) is gemini
    assert protocols.of("POST", "/v1internal:generateContent") is gemini
    assert protocols.of("POST", "/v1beta/models/gemini-2.5-pro:countTokens") is None


def test_a_request_becomes_the_events_of_its_contents() -> None:
    request = asked(
        gemini,
        {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {
                    "role": "user",
                    "parts": [
                        {"text": "<context>"},
                        {"text": "Run it twice."},
                        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}},
                        {"file_data": {"mime_type": "text/csv", "file_uri": "gs://x"}},
                        {"hologram": {}},
                    ],
                },
                {
                    "role": "model",
                    "parts": [
                        {"text": "Twice, ", "thought": True},
                        {"text": "then.", "thought": True, "thoughtSignature": "c2ln"},
                        {"text": "Let me "},
                        {"text": "look."},
                        shell("one"),
                        shell("two"),
                    ],
                },
                {"role": "user", "parts": [returned("1"), returned("2")]},
                {"role": "critic", "parts": []},
            ],
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": "shell", "parametersJsonSchema": {"type": "object"}}
                    ]
                },
                {"googleSearch": {}},
            ],
            "generationConfig": {"temperature": 0},
        },
        PATH,
    )

    assert request.model == "gemini-2.5-pro"
    assert request.system == "Be brief."
    assert request.tools == (
        {"name": "shell", "input_schema": {"type": "object"}},
        {"googleSearch": {}},
    )
    assert request.options == {"generationConfig": {"temperature": 0}}
    assert request.stream
    assert conversation(request) == [
        ("user", "<context>"),
        ("user", "Run it twice.", "image", "file"),
        ("item", "hologram"),
        ("agent", "Let me look."),
        ("call", "shell:0", "shell", {"command": "one"}),
        ("call", "shell:1", "shell", {"command": "two"}),
        ("result", "shell:0", {"output": "1"}),
        ("result", "shell:1", {"output": "2"}),
        ("item", "content"),
    ]
    assert codes(request) == ["not_converted"]
    response = request.messages[1].events[0]
    assert isinstance(response, AgentResponse)
    (thinking,) = response.thinking
    assert (thinking.thinking, thinking.data) == ("Twice, then.", "c2ln")


def test_results_with_ids_that_a_client_sends_twice_count_once() -> None:
    call = {"functionCall": {"id": "c1", "name": "shell", "args": {}}}
    result = {
        "functionResponse": {"id": "c1", "name": "shell", "response": {"error": "x"}}
    }
    contents = [
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [result, result]},
    ]

    request = asked(gemini, {"contents": contents}, PATH)

    assert conversation(request) == [
        ("agent", ""),
        ("call", "c1", "shell", {}),
        ("result", "c1", {"error": "x"}),
        ("item", "tool_result"),
    ]
    first = request.messages[1].events[0]
    assert isinstance(first, ToolResult)
    assert first.status == "error"


def test_the_envelope_of_code_assist_names_model_and_session() -> None:
    body = {
        "model": "gemini-2.5-pro",
        "project": "p",
        "request": {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "session_id": "s1",
        },
    }

    request = asked(gemini, body, "/v1internal:streamGenerateContent?alt=sse")

    assert request.model == "gemini-2.5-pro"
    assert request.hint.session_id == "s1"
    assert request.options == {"project": "p", "session_id": "s1"}
    assert conversation(request) == [("user", "Hi")]
    answer = answered(gemini, sse({"response": chunk({"text": "Hi"}, reason="STOP")}))
    assert shown(answer.events) == [("agent", "Hi")]


def test_contents_may_be_a_single_one_or_a_text() -> None:
    for contents in ({"parts": [{"text": "Hi"}]}, "Hi", ["Hi"]):
        request = asked(gemini, {"contents": contents}, PATH)

        assert conversation(request) == [("user", "Hi")]


def test_a_stream_without_events_is_a_json_array() -> None:
    chunks = [
        chunk({"text": "Let me "}),
        chunk({"text": "look."}, reason="STOP"),
    ]
    body = json.dumps(chunks).encode()

    whole = gemini.answer(200, {}, body, complete=True)
    cut = gemini.answer(200, {}, body[:-60], complete=False)

    assert whole == answered(gemini, sse(*chunks))
    assert whole.complete
    assert shown(cut.events) == [("agent", "Let me "), ("error",)]


def test_signatures_stay_with_the_parts_that_they_belong_to() -> None:
    parts: list[Any] = [
        {"text": "Let me look.", "thoughtSignature": "dGV4dA=="},
        {**shell("one"), "thoughtSignature": "Y2FsbA=="},
    ]
    streamed = sse(
        chunk({"text": "Let me "}),
        chunk({"text": "look."}),
        chunk({"text": "", "thoughtSignature": "dGV4dA=="}),
        chunk(parts[1], reason="STOP"),
    )

    answer = answered(gemini, chunk(*parts, reason="STOP"))

    assert answered(gemini, streamed) == answer
    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert [part.data for part in response.thinking] == ["dGV4dA==", "Y2FsbA=="]
    assert response.stop_reason == "tool_use"
    repeated = asked(gemini, {"contents": [{"role": "model", "parts": parts}]}, PATH)
    assert repeated.messages[0].events[1:] == answer.events[1:]


def test_cached_tokens_and_thoughts_are_counted_once() -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 7,
        "totalTokenCount": 112,
    }

    answer = answered(gemini, chunk({"text": "x"}, reason="STOP", usageMetadata=usage))

    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert Usage.of(response.usage) == Usage(input=40, read=60, output=12)
    assert response.usage is not None
    assert response.usage["thoughtsTokenCount"] == 7


def test_a_refused_prompt_is_a_stop_reason() -> None:
    body = {"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r1"}

    answer = answered(gemini, sse(body))

    assert shown(answer.events) == [("agent", ""), ("item", "response")]
    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert response.stop_reason == "SAFETY"
    assert answer.complete


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: [error]])
def test_an_error_may_stand_in_a_list(wrap: Any) -> None:
    error = {"code": 429, "message": "Slow down", "status": "RESOURCE_EXHAUSTED"}

    answer = answered(gemini, wrap({"error": error}), status=429)

    (event,) = answer.events
    assert isinstance(event, AgentError)
    assert (event.code, event.message) == ("RESOURCE_EXHAUSTED", "Slow down")
    assert event.is_transport


def test_other_parts_of_the_model_are_kept_in_their_order() -> None:
    parts = [
        {"text": "I compute."},
        {"executableCode": {"language": "PYTHON", "code": "1+1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"text": "It is 2."},
    ]

    answer = answered(gemini, chunk(*parts, reason="STOP", groundingMetadata={"x": 1}))

    assert shown(answer.events) == [
        ("agent", "I compute.It is 2."),
        ("provider_edit",),
        ("item", "response"),
    ]
    edit = answer.events[1].payload()
    assert [block["type"] for block in edit["blocks"]] == [  # type: ignore[union-attr,call-overload,index]  # JSON
        "executableCode",
        "codeExecutionResult",
    ]


def test_files_in_a_result_are_blocks_of_the_result() -> None:
    call = {"functionCall": {"id": "c1", "name": "shot", "args": {}}}
    file = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}}
    result = {"id": "c1", "name": "shot", "response": {"output": "ok"}, "parts": [file]}
    contents = [
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [{"functionResponse": result}]},
    ]

    request = asked(gemini, {"contents": contents}, PATH)

    event = request.messages[1].events[0]
    assert isinstance(event, ToolResult)
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}
    assert event.content == [
        {"type": "text", "text": "ok"},
        {"type": "image", "source": source},
    ]


def test_a_file_keeps_its_name_and_type() -> None:
    data = {"mimeType": "application/pdf", "data": "JVBERi0=", "displayName": "a.pdf"}
    contents = [{"role": "user", "parts": [{"inlineData": data}]}]

    request = asked(gemini, {"contents": contents}, PATH)

    (event,) = request.messages[0].events
    assert isinstance(event, UserInput)
    (file,) = event.attachments
    assert (file.kind, file.name, file.data) == ("document", "a.pdf", "JVBERi0=")


def partial_call(*arguments: Any, name: str = "", more: bool = True) -> dict[str, Any]:
    """Return a part with some of the arguments of a call."""
    call: dict[str, Any] = {}
    if name:
        call |= {"name": name, "id": "c1"}
    if arguments:
        call["partialArgs"] = list(arguments)
    if more:
        call["willContinue"] = True
    return {"functionCall": call}


def test_arguments_that_are_streamed_in_parts_are_joined() -> None:
    parts = [
        {"text": "Let me look."},
        {**partial_call(name="light"), "thoughtSignature": "c2ln"},
        partial_call(
            {"jsonPath": "$.color", "stringValue": "war", "willContinue": True}
        ),
        partial_call({"jsonPath": "$.color", "stringValue": "m"}),
        partial_call(
            {"jsonPath": "$.lamps[1].name", "stringValue": "desk"},
            {"jsonPath": "$.lamps[1]['it\\'s on']", "boolValue": True},
            {"jsonPath": "$.level", "numberValue": 0.5},
            {"jsonPath": "$.until", "nullValue": "NULL_VALUE"},
        ),
        partial_call(more=False),
        shell("one"),
    ]
    arguments = {
        "color": "warm",
        "lamps": [None, {"name": "desk", "it's on": True}],
        "level": 0.5,
        "until": None,
    }
    whole = [
        parts[0],
        {
            "functionCall": {"name": "light", "id": "c1", "args": arguments},
            "thoughtSignature": "c2ln",
        },
        parts[-1],
    ]
    chunks = [chunk(part) for part in parts[:-1]]

    streamed = answered(gemini, sse(*chunks, chunk(parts[-1], reason="STOP")))

    assert streamed == answered(gemini, chunk(*whole, reason="STOP"))
    assert ("call", "c1", "light", arguments) in shown(streamed.events)
    chunked = [{"role": "model", "parts": [part]} for part in parts]
    joined = {"role": "model", "parts": whole}
    assert (
        asked(gemini, {"contents": chunked}, PATH).messages
        == asked(gemini, {"contents": [joined]}, PATH).messages
    )


def test_a_later_part_of_a_call_keeps_its_signature() -> None:
    begun = partial_call(
        {"jsonPath": "$.color", "stringValue": "w", "willContinue": True}, name="light"
    )
    rest = partial_call({"jsonPath": "$.color", "stringValue": "arm"}, more=False)
    parts = [begun, {"text": ""}, {**rest, "thoughtSignature": "c2ln"}]
    whole = {
        "functionCall": {"name": "light", "id": "c1", "args": {"color": "warm"}},
        "thoughtSignature": "c2ln",
    }

    streamed = [chunk(part) for part in parts[:-1]]
    answer = answered(gemini, sse(*streamed, chunk(parts[-1], reason="STOP")))

    assert answer == answered(gemini, chunk(whole, reason="STOP"))


def test_a_string_that_has_ended_is_replaced() -> None:
    first = {"jsonPath": "$.color", "stringValue": "warm"}
    second = {"jsonPath": "$.color", "stringValue": "cold"}
    part = partial_call(first, second, name="light", more=False)

    answer = answered(gemini, chunk(part, reason="STOP"))

    assert ("call", "c1", "light", {"color": "cold"}) in shown(answer.events)


def test_a_path_that_cannot_be_read_is_reported() -> None:
    for path in ("color", "$..color", "$[0]", "$.a[99999]", "$" + ".a" * 5_000):
        value = {"jsonPath": path, "stringValue": "warm"}
        part = partial_call(value, name="light", more=False)

        answer = answered(gemini, chunk(part, reason="STOP"))

        assert [warning.code for warning in answer.warnings] == ["not_converted"]
        assert answer.events[1].type == "tool_call"
