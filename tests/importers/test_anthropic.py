"""Messages of blocks become events: a response, then its calls, under one id."""

from pathlib import Path
from typing import Any

import pytest

from refold.domain.events import (
    AgentResponse,
    ProviderEdit,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.samples import (
    events,
    kinds,
    read_one,
    reasons,
    returned,
    use,
    words,
    write_document,
    write_lines,
)


def response_entry(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), **more}


def test_a_conversation_with_its_system_prompt_is_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.ANTHROPIC))

    assert transcript.format == "anthropic"
    assert events(transcript) == [
        SystemPrompt(text="Be brief."),
        UserInput(text="Weather in Oslo?"),
        AgentResponse(text="I look."),
        ToolCall(call_id="c1", tool_name="weather", arguments={"city": "Oslo"}),
        ToolResult(call_id="c1", tool_name="weather", content="4 degrees"),
        AgentResponse(text="Four degrees."),
    ]
    assert [draft.meta.response_id for draft in transcript.drafts] == [
        None,
        None,
        "msg:1",
        "msg:1",
        None,
        "msg:3",
    ]


def test_a_bare_list_of_messages_with_blocks_is_told_apart(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.ANTHROPIC["messages"]))

    assert transcript.format == "anthropic"
    assert len(transcript.drafts) == 5


def test_a_system_prompt_may_be_in_blocks(tmp_path: Path) -> None:
    document = {"system": [words("One."), words("Two.")], "messages": []}

    transcript = read_one(write_document(tmp_path, document), "anthropic")

    assert events(transcript) == [SystemPrompt(text="One.\n\nTwo.")]


def test_a_complete_response_keeps_the_fields_of_the_api(tmp_path: Path) -> None:
    message = response_entry(
        words("Done."),
        id="msg_1",
        model="claude-x",
        stop_reason="end_turn",
        usage={"output_tokens": 2},
    )

    (draft,) = read_one(write_document(tmp_path, [message]), "anthropic").drafts

    assert draft.event == AgentResponse(
        text="Done.", stop_reason="end_turn", usage={"output_tokens": 2}
    )
    assert (draft.meta.response_id, draft.meta.model) == ("msg_1", "claude-x")


def test_thinking_is_kept_byte_for_byte(tmp_path: Path) -> None:
    thinking = [
        {"type": "thinking", "thinking": " Hm…\n", "signature": "EqQB=="},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]

    drafts = read_one(
        write_document(tmp_path, [response_entry(*thinking, use("c1"))]), "anthropic"
    ).drafts

    assert drafts[0].event.payload()["thinking"] == thinking
    assert drafts[1].event == ToolCall(call_id="c1", tool_name="Bash", arguments={})


def test_blocks_only_the_provider_can_read_stay_in_their_place(tmp_path: Path) -> None:
    compaction = {"type": "compaction", "content": "…", "encrypted_content": "xyz"}
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    message = response_entry(
        compaction, words("I search."), search, result, words("So.")
    )

    transcript = read_one(write_document(tmp_path, [message]))

    assert events(transcript) == [
        ProviderEdit(blocks=(compaction,)),
        AgentResponse(text="I search."),
        ProviderEdit(blocks=(search, result)),
        AgentResponse(text="So."),
    ]
    assert {draft.meta.response_id for draft in transcript.drafts} == {"msg:0"}


def test_results_and_what_the_user_added_keep_their_order(tmp_path: Path) -> None:
    messages = [
        response_entry(use("c1"), use("c2")),
        {
            "role": "user",
            "content": [
                returned("c2", [words("two")], is_error=True),
                returned("c1", None),
                words("And now?"),
            ],
        },
    ]

    transcript = read_one(write_document(tmp_path, messages))

    assert events(transcript)[2:] == [
        ToolResult(
            call_id="c2", tool_name="Bash", content=[words("two")], status="error"
        ),
        ToolResult(call_id="c1", tool_name="Bash", content=""),
        UserInput(text="And now?"),
    ]


@pytest.mark.parametrize(
    ("source", "attached"),
    [
        (
            {"type": "base64", "media_type": "application/pdf", "data": "AA"},
            {"media_type": "application/pdf", "data": "AA"},
        ),
        (
            {"type": "text", "media_type": "text/plain", "data": "words"},
            {"media_type": "text/plain", "text": "words"},
        ),
        ({"type": "url", "url": "https://a.org"}, {"url": "https://a.org"}),
        ({"type": "file", "file_id": "f-1"}, {"url": "file:f-1"}),
        ({"type": "content", "content": [words("in blocks")]}, {"text": "in blocks"}),
    ],
)
def test_a_document_is_attached_however_it_was_given(
    tmp_path: Path, source: Any, attached: Any
) -> None:
    block = {"type": "document", "title": "T", "source": source}
    path = write_document(tmp_path, [{"role": "user", "content": [block]}])

    (event,) = events(read_one(path))

    assert event == UserInput(
        attachments=({"kind": "document", "name": "T", **attached},)
    )


def test_unreadable_content_is_skipped_with_its_place(tmp_path: Path) -> None:
    cited = {**words("So."), "citations": [{"cited_text": "secret"}]}
    messages: list[Any] = [
        response_entry(use("c1"), use(""), {"type": "tool_use", "id": "c3"}, 7, cited),
        response_entry({"type": "text"}),
        {"role": "user", "content": [{"type": "search_result", "title": "secret"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]},
        {"role": "assistant", "content": {"secret": 1}},
        {"role": "assistant", "content": []},
        {"role": "user", "content": []},
        response_entry(words("")),
        {"role": "assistant"},
        {"role": "secret", "content": "secret"},
        None,
    ]

    transcript = read_one(write_document(tmp_path, {"messages": messages}), "anthropic")

    assert kinds(transcript) == ["tool_call", "agent_response"]
    assert list(reasons(transcript)) == [
        "file.json messages[0] content[1]",
        "file.json messages[0] content[2]",
        "file.json messages[0] content[3]",
        "file.json messages[0] content[4]",
        "file.json messages[1] content[0]",
        "file.json messages[2] content[0]",
        "file.json messages[3] content[0]",
        *(f"file.json messages[{index}]" for index in range(4, 11)),
    ]
    assert "secret" not in str(transcript.skipped)


def test_lines_of_messages_are_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, samples.ANTHROPIC["messages"]))

    assert transcript.format == "anthropic"
    assert len(transcript.drafts) == 5
