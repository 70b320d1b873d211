"""Each sample of an Inspect log is a session, timed by the log's events."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Final,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.samples import (
    events,
    read_one,
    reasons,
    refusal,
    words,
    write_document,
)


def log(**sample: Any) -> dict[str, Any]:
    return {**samples.INSPECT, "samples": [{"id": "a", "epoch": 2, **sample}]}


def test_a_sample_is_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.INSPECT))

    assert (transcript.format, transcript.session_id) == ("inspect", "sample-a")
    assert events(transcript) == [
        UserInput(text="Look at the page."),
        ToolCall(call_id="c1", tool_name="go", arguments={"url": "x"}),
        ToolResult(
            call_id="c1",
            tool_name="go",
            content="It took too long.",
            status="error",
            duration_ms=2500,
        ),
        AgentResponse(text="Sorry."),
        Final(
            outcome="success",
            reward=1.0,
            result={
                "scores": {"includes": {"value": "C", "answer": "Sorry."}},
                "model_usage": {"openai/gpt": {"total_tokens": 12}},
            },
        ),
    ]
    assert {draft.meta.scenario for draft in transcript.drafts} == {"browse"}


def test_the_events_of_the_log_time_its_messages(tmp_path: Path) -> None:
    drafts = read_one(write_document(tmp_path, samples.INSPECT)).drafts

    assert [draft.ts.second if draft.ts else None for draft in drafts] == [
        0,
        2,
        5,
        None,
        6,
    ]
    assert drafts[1].meta.usage == {"input_tokens": 9, "output_tokens": 3}
    assert (drafts[1].meta.response_id, drafts[1].meta.model) == ("m2", "gpt")


def test_a_sample_without_a_uuid_is_named_after_its_task(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Go."}]
    path = write_document(tmp_path, log(messages=messages))

    assert read_one(path).session_id == "browse-a-2"


def test_events_that_are_no_messages_are_counted_by_kind(tmp_path: Path) -> None:
    elsewhere = {"event": "model", "output": {"choices": [{"message": {"id": "m"}}]}}
    other = [
        {"event": "secret-kind"},
        {"event": "info"},
        {"event": "info"},
        elsewhere,
        {"event": "tool", "id": "c7"},
    ]
    messages = [{"role": "user", "content": "Go."}]
    path = write_document(tmp_path, log(messages=messages, events=other))

    reasons = [skipped.why for skipped in read_one(path).skipped]

    assert reasons == [
        "2 info events: no message",
        "1 other event: no message",
        "1 model event without a message of that id",
        "1 tool event whose result is not a message here",
    ]


@pytest.mark.parametrize(
    ("values", "outcome", "reward"),
    [
        (["I"], "failure", 0.0),
        (["N"], "failure", 0.0),
        (["P"], "partial", 0.5),
        ([0.7], "partial", 0.7),
        ([True], "success", 1.0),
        ([7], "unknown", 7.0),
        (["excellent"], "unknown", None),
        ([{"a": 1}], "unknown", None),
        (["C", 1], "success", None),
        (["C", "I"], "partial", None),
    ],
)
def test_scores_tell_the_outcome(
    tmp_path: Path, values: list[Any], outcome: str, reward: float | None
) -> None:
    scores = {str(index): {"value": value} for index, value in enumerate(values)}

    (event,) = events(read_one(write_document(tmp_path, log(scores=scores))))

    assert isinstance(event, Final)
    assert (event.outcome, event.reward) == (outcome, reward)


def test_a_failed_sample_says_so(tmp_path: Path) -> None:
    path = write_document(tmp_path, log(error={"message": "no sandbox"}))

    assert events(read_one(path)) == [
        AgentError(code="sample_error", message="no sandbox"),
        Final(outcome="unknown", result={}),
    ]


def test_a_dangling_reference_stays_and_is_reported(tmp_path: Path) -> None:
    document = deepcopy(samples.INSPECT)
    del document["samples"][0]["attachments"]

    transcript = read_one(write_document(tmp_path, document))

    assert events(transcript)[0] == UserInput(text="attachment://aa")
    assert any("1 reference to" in skipped.why for skipped in transcript.skipped)


def test_parts_of_a_message_keep_their_order(tmp_path: Path) -> None:
    search = {"type": "tool_use", "tool_type": "web_search", "id": "s", "name": "w"}
    messages = [
        {
            "role": "user",
            "content": [
                words("See."),
                {"type": "image", "image": "data:image/png;base64,AAAA"},
                {"type": "hologram"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "reasoning": "Hm.", "signature": "s"},
                {"type": "reasoning", "reasoning": "xyz", "redacted": True},
                search,
                words("So."),
            ],
        },
    ]

    transcript = read_one(write_document(tmp_path, log(messages=messages)))

    assert events(transcript) == [
        UserInput(
            text="See.",
            attachments=({"kind": "image", "media_type": "image/png", "data": "AAAA"},),
        ),
        AgentResponse(
            thinking=(
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
            )
        ),
        ProviderEdit(blocks=(search,)),
        AgentResponse(text="So."),
    ]
    assert "file.json samples[0] messages[0] content[2]" in reasons(transcript)


def test_a_log_without_samples_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path, {**samples.INSPECT, "samples": None})

    assert "holds no samples" in refusal(path)


def test_an_error_next_to_content_keeps_both(tmp_path: Path) -> None:
    document = deepcopy(samples.INSPECT)
    document["samples"][0]["messages"][2]["content"] = "half of it"

    event = events(importers.read(write_document(tmp_path, document))[0])[2]

    assert isinstance(event, ToolResult)
    assert event.content == {"error": "It took too long.", "content": "half of it"}
