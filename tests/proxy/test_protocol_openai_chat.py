"""Chat completions become the events of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from refold.adapters.proxy import protocols
from refold.adapters.proxy.protocols import openai_chat
from refold.domain.events import AgentError, AgentResponse, Item, UserInput
from refold.projections.models import Usage
from tests.proxy.wire import answered, asked, codes, conversation, shown, sse

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "shell", "arguments": '{"command": "ls"}'},
}


def completion(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a completion with one choice."""
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c1", "model": "gpt-5", "choices": [choice], **fields}


def chunks(*deltas: dict[str, Any], done: bool = True) -> bytes:
    """Return a stream with these deltas."""
    events: list[Any] = []
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        events.append({"id": "c1", "model": "gpt-5", "choices": [choice]})
    return sse(*events, done=done)


def test_deployments_of_azure_are_recorded() -> None:
    path = "/openai/deployments/my-gpt/chat/completions?api-version=2025-01-01"

    assert protocols.of("POST", path) is openai_chat
    assert asked(openai_chat, {"messages": []}, path).model == "my-gpt"


def test_a_request_becomes_the_events_of_its_messages() -> None:
    request = asked(
        openai_chat,
        {
            "model": "gpt-5",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": [{"type": "text", "text": "Now."}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64,iVBORw0="},
                        },
                        {
                            "type": "input_audio",
                            "input_audio": {"data": "UklGRg==", "format": "wav"},
                        },
                        {"type": "text", "text": "And this?"},
                        {"type": "hologram"},
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "A list.",
                    "tool_calls": [CALL],
                },
                {
                    "role": "tool",
                    "tool_call_id": "call_1",
                    "content": "a.py",
                    "__copilotMessageSource": {"kind": "tool"},
                },
                {"role": "assistant", "content": None, "refusal": "I cannot."},
                {"role": "critic", "content": "Bad."},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "shell",
                        "description": "Run it",
                        "parameters": {"type": "object"},
                        "strict": True,
                    },
                },
                {"type": "web_search"},
            ],
            "temperature": 0,
        },
    )

    assert request.system == "Be brief."
    assert request.tools == (
        {
            "name": "shell",
            "description": "Run it",
            "input_schema": {"type": "object"},
            "strict": True,
        },
        {"type": "web_search"},
    )
    assert request.options == {"temperature": 0}
    assert conversation(request) == [
        ("system", "Now."),
        ("user", "What is this?", "image", "file"),
        ("user", "And this?"),
        ("item", "hologram"),
        ("agent", ""),
        ("call", "call_1", "shell", {"command": "ls"}),
        ("result", "call_1", "a.py"),
        ("agent", "I cannot."),
        ("item", "message"),
    ]
    response = request.messages[2].events[0]
    assert isinstance(response, AgentResponse)
    assert [part.thinking for part in response.thinking] == ["A list."]
    assert codes(request) == ["not_converted"]


def test_images_keep_their_type_and_their_data() -> None:
    url = "data:image/png;base64,iVBORw0="
    part = {"type": "image_url", "image_url": {"url": url, "detail": "high"}}
    request = asked(openai_chat, {"messages": [{"role": "user", "content": [part]}]})

    (event,) = request.messages[0].events
    assert isinstance(event, UserInput)
    (image,) = event.attachments
    assert (image.kind, image.media_type, image.data) == (
        "image",
        "image/png",
        "iVBORw0=",
    )


def test_calls_of_the_older_kind_get_ids_that_their_results_find() -> None:
    call = {"name": "shell", "arguments": "{}"}
    request = asked(
        openai_chat,
        {
            "functions": [{"name": "shell", "parameters": {"type": "object"}}],
            "messages": [
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "shell", "content": "one"},
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "shell", "content": "two"},
                {"role": "function", "name": "shell", "content": "three"},
            ],
        },
    )

    assert conversation(request) == [
        ("agent", ""),
        ("call", "shell:0", "shell", {}),
        ("result", "shell:0", "one"),
        ("agent", ""),
        ("call", "shell:0", "shell", {}),
        ("result", "shell:0", "two"),
        ("item", "tool_result"),
    ]
    assert request.tools == ({"name": "shell", "input_schema": {"type": "object"}},)
    stream = chunks(
        {"function_call": {"name": "shell", "arguments": "{"}},
        {"function_call": {"arguments": "}"}},
    )
    assert shown(answered(openai_chat, stream).events) == [
        ("agent", ""),
        ("call", "shell:0", "shell", {}),
    ]


def test_a_repeated_answer_has_the_events_of_the_answer() -> None:
    message = {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Hm.",
        "tool_calls": [CALL],
    }

    answer = answered(openai_chat, completion(message))
    repeated = asked(openai_chat, {"messages": [message]}).messages[0]

    response, *rest = answer.events
    assert isinstance(response, AgentResponse)
    assert response.stop_reason == "tool_use"
    in_request, *rest_in_request = repeated.events
    assert in_request == response.model_copy(update={"stop_reason": None})
    assert rest_in_request == rest


@pytest.mark.parametrize(
    "deltas",
    [
        # An index for each call, as the API documents it.
        [
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}},
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"x":'}},
            {"index": 1, "function": {"arguments": "{}"}},
            {"index": 0, "function": {"arguments": "1}"}},
        ],
        # No index, and the id again in each part.
        [
            {"id": "a", "function": {"name": "f", "arguments": '{"x":'}},
            {"id": "a", "function": {"name": "f", "arguments": "1}"}},
            {"id": "b", "function": {"name": "g", "arguments": "{}"}},
        ],
        # The same index for all calls.
        [
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}},
        ],
        # Arguments as an object.
        [
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": {}}},
        ],
    ],
)
def test_parallel_calls_are_put_together(deltas: list[Any]) -> None:
    stream = chunks(*({"tool_calls": [delta]} for delta in deltas))

    assert shown(answered(openai_chat, stream).events) == [
        ("agent", ""),
        ("call", "a", "f", {"x": 1}),
        ("call", "b", "g", {}),
    ]


def test_arguments_that_are_no_json_object_stay_a_text() -> None:
    call = {**CALL, "function": {"name": "shell", "arguments": '{"command": "l'}}

    answer = answered(openai_chat, completion({"tool_calls": [call]}))

    assert shown(answer.events)[1] == ("call", "call_1", "shell", '{"command": "l')


def test_an_answer_ends_with_its_finish_reason_or_with_done() -> None:
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    ended = sse({"id": "c1", "choices": [choice]})

    assert answered(openai_chat, ended, complete=False).complete
    assert answered(openai_chat, chunks({"content": "Hi"})).complete
    assert not answered(openai_chat, chunks({"content": "Hi"}, done=False)).complete


def test_other_content_of_an_answer_is_kept_as_items() -> None:
    message = {
        "role": "assistant",
        "content": "Yes.",
        "annotations": [{"type": "url_citation"}],
        "audio": {"id": "a", "data": "UklGRg==", "transcript": "Yes."},
    }
    body = completion(message, prompt_filter_results=[{"prompt_index": 0}])
    body["choices"].append({"index": 1, "message": {"content": "No."}})
    body["choices"][0]["logprobs"] = {"content": [{"token": "Yes"}]}

    answer = answered(openai_chat, body)

    assert shown(answer.events) == [
        ("agent", "Yes."),
        ("item", "annotations"),
        ("item", "audio"),
        ("item", "response"),
    ]
    rest = answer.events[-1]
    assert isinstance(rest, Item)
    assert isinstance(rest.value, dict)
    assert set(rest.value) == {"choices", "logprobs", "prompt_filter_results"}


def test_a_content_filter_is_a_stop_reason() -> None:
    body = completion({"role": "assistant", "content": ""})
    body["choices"][0]["finish_reason"] = "content_filter"

    (response,) = answered(openai_chat, body).events

    assert isinstance(response, AgentResponse)
    assert response.stop_reason == "content_filter"


def test_an_error_in_a_successful_answer_is_an_error() -> None:
    error = {"error": {"message": "Provider down", "code": 502}}

    for body in (error, sse(error)):
        answer = answered(openai_chat, body)

        (event,) = answer.events
        assert isinstance(event, AgentError)
        assert (event.code, event.message) == ("http_502", "Provider down")
        assert event.retryable


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 80},
            },
            Usage(input=20, read=80, output=5),
        ),
        # Hits of the cache in a field of their own.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 80,
                "prompt_cache_miss_tokens": 20,
            },
            Usage(input=20, read=80, output=5),
        ),
        # Writes to the cache, which the prompt's tokens contain.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_tokens_details": {
                    "cached_tokens": 60,
                    "cache_write_tokens": 30,
                },
            },
            Usage(input=10, written=30, read=60, output=5),
        ),
        # Reasoning that the answer's tokens do not contain.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "total_tokens": 155,
                "completion_tokens_details": {"reasoning_tokens": 50},
            },
            Usage(input=100, output=55),
        ),
        # Reasoning that they contain.
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 55,
                "total_tokens": 155,
                "completion_tokens_details": {"reasoning_tokens": 50},
            },
            Usage(input=100, output=55),
        ),
    ],
)
def test_each_token_is_counted_once(usage: dict[str, Any], counted: Usage) -> None:
    answer = answered(openai_chat, completion({"content": "Hi"}, usage=usage))

    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert Usage.of(response.usage) == counted
