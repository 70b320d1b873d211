"""ChatGPT's export becomes sessions: the current branch in force, the others kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentResponse,
    ProviderEdit,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.export_samples import (
    Entry,
    chatgpt_conversation as conversation,
    chatgpt_node as node,
)
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    reasons,
    texts_shown,
    write_document,
)

ROOT = node("root", None, None)


def test_a_conversation_becomes_events_with_times_and_models(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.CHATGPT))

    assert transcript.format == "chatgpt"
    assert transcript.session_id == "6968083a-13f4-832d-855b-d108c2f71adf"
    assert transcript.title == "Weather in Oslo"
    assert events(transcript) == [
        SystemPrompt(text="I live in Oslo.\n\nBe brief."),
        UserInput(text="How warm is it?"),
        AgentResponse(
            thinking=({"type": "thinking", "thinking": "Weather\n\nI look it up."},)
        ),
        ToolCall(call_id="n5", tool_name="web.run", arguments={"q": "Oslo"}),
        ToolResult(call_id="n5", tool_name="web.run", content="4 degrees"),
        AgentResponse(text="Four degrees.", stop_reason="stop"),
    ]
    drafts = transcript.drafts
    assert str(drafts[1].ts) == "1970-01-01 00:00:02+00:00"
    assert [draft.meta.model for draft in drafts[1:4]] == [
        None,
        "gpt-5-2-thinking",
        "gpt-5-2-thinking",
    ]
    assert [draft.meta.response_id for draft in drafts] == [
        None,
        None,
        "n4",
        "n4",
        None,
        "n7",
    ]
    assert accepted(drafts)


def test_fields_of_the_conversation_are_on_its_first_event(tmp_path: Path) -> None:
    document = [{**samples.CHATGPT[0], "gizmo_id": "g-1", "is_archived": True}]

    transcript = read_one(write_document(tmp_path, document))

    sources = [draft.meta.source or {} for draft in transcript.drafts]
    assert sources[0]["conversation"] == {
        "default_model_slug": "gpt-5-2-thinking",
        "gizmo_id": "g-1",
    }
    assert not any("conversation" in source for source in sources[1:])
    assert "fields of the conversation: is_archived" in transcript.skipped[-1].why


def test_empty_messages_and_recaps_are_reported_once_for_each_reason(
    tmp_path: Path,
) -> None:
    transcript = read_one(write_document(tmp_path, samples.CHATGPT))

    assert reasons(transcript) == {
        "file.json [0] mapping.n1": "empty system message",
        "file.json [0] mapping.n7": "time that the model thought",
    }
    assert all(skipped.note for skipped in transcript.skipped)


def branched(*more: Entry, current: str) -> list[Entry]:
    """Two answers to a question, and the nodes of ``more``."""
    return [
        conversation(
            node("root", None, None),
            node("q", "root", "user", "Question", at=1.0),
            node("a1", "q", "assistant", "First answer", at=2.0),
            node("a2", "q", "assistant", "Second answer", at=3.0),
            *more,
            current=current,
        )
    ]


@pytest.mark.parametrize(
    ("current", "text"), [("a1", "First answer"), ("a2", "Second answer")]
)
def test_the_current_branch_is_in_force(
    tmp_path: Path, current: str, text: str
) -> None:
    path = write_document(tmp_path, branched(current=current))

    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")

        assert texts_shown(store) == ["Question", text]


def test_the_log_has_all_branches_in_the_order_of_writing(tmp_path: Path) -> None:
    more = node("q2", "a1", "user", "Back to the first", at=4.0)

    transcript = read_one(write_document(tmp_path, branched(more, current="q2")))

    assert kinds(transcript) == [
        "user_input",
        "agent_response",
        "provider_edit",
        "agent_response",
        "provider_edit",
        "user_input",
        "provider_edit",
    ]
    edits = [event for event in events(transcript) if isinstance(event, ProviderEdit)]
    assert [edit.reason for edit in edits] == ["rewind", "fork", "fork"]


def test_a_grown_export_adds_only_what_is_new(tmp_path: Path) -> None:
    more = node("q2", "a1", "user", "Back to the first", at=4.0)
    path = write_document(tmp_path, branched(current="a2"))
    with refold.open("memory://") as store:
        (first,) = store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")
        write_document(tmp_path, branched(more, current="q2"))
        (grown,) = store.import_transcript(path, user_id="ada")

        assert (first.events, again.events) == (6, 0)
        assert grown.events == 3  # the edit, the question, and the branch in force
        assert texts_shown(store) == ["Question", "First answer", "Back to the first"]


def test_going_on_from_a_branch_that_was_not_in_force_shows_that_branch(
    tmp_path: Path,
) -> None:
    """The first export left the newest branch; the second one goes on from it."""
    more = node("q2", "a2", "user", "On with the second", at=4.0)
    path = write_document(tmp_path, branched(current="a1"))
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        write_document(tmp_path, branched(more, current="q2"))
        store.import_transcript(path, user_id="ada")

        assert texts_shown(store) == ["Question", "Second answer", "On with the second"]


def test_two_answers_that_were_written_at_once_are_not_mixed(tmp_path: Path) -> None:
    document = [
        conversation(
            node("root", None, None),
            node("q", "root", "user", "Question", at=1.0),
            node("a1", "q", "assistant", "One", at=2.0),
            node("b1", "q", "assistant", "Two", at=2.1),
            node("a2", "a1", "assistant", "More of one", at=2.2),
            node("b2", "b1", "assistant", "More of two", at=2.3),
            current="b2",
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    texts = [event.text for event in events(transcript) if hasattr(event, "text")]
    assert texts == ["Question", "One", "More of one", "Two", "More of two"]


def code(text: str, **more: Any) -> Entry:
    return {"content_type": "code", "language": "python", "text": text, **more}


def test_a_program_is_the_text_of_a_call_and_its_failure_an_error(
    tmp_path: Path,
) -> None:
    outcome = {
        "status": "failed_with_in_kernel_exception",
        "start_time": 10.0,
        "end_time": 10.25,
    }
    document = [
        conversation(
            node("root", None, None),
            node("n1", "root", "assistant", code("1 / 0"), to="python", at=1.0),
            node(
                "n2",
                "n1",
                "tool",
                {"content_type": "execution_output", "text": "ZeroDivisionError"},
                name="python",
                at=2.0,
                aggregate_result=outcome,
            ),
            current="n2",
        )
    ]

    call, result = events(read_one(write_document(tmp_path, document)))

    assert call == ToolCall(call_id="n1", tool_name="python", arguments="1 / 0")
    assert result == ToolResult(
        call_id="n1",
        tool_name="python",
        content="ZeroDivisionError",
        status="error",
        duration_ms=250.0,
    )


def test_further_results_of_a_call_get_a_call_that_is_marked(tmp_path: Path) -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://f-1"}
    document = [
        conversation(
            node("root", None, None),
            node("n1", "root", "assistant", "{}", to="dalle.text2im", at=1.0),
            node("n2", "n1", "tool", "One image.", name="dalle.text2im", at=2.0),
            node(
                "n3",
                "n2",
                "tool",
                {"content_type": "multimodal_text", "parts": [image]},
                name="dalle.text2im",
                at=3.0,
            ),
            current="n3",
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["tool_call", "tool_result"] * 2
    sources = [draft.meta.source or {} for draft in transcript.drafts]
    assert [source.get("reconstructed") for source in sources] == [
        None,
        None,
        "call",
        None,
    ]
    result = events(transcript)[3]
    assert isinstance(result, ToolResult)
    assert result.content == {"content_type": "multimodal_text", "parts": [image]}
    assert accepted(transcript.drafts)


def test_a_canvas_is_in_the_source_of_its_result(tmp_path: Path) -> None:
    canvas = {"textdoc_id": "t-1", "version": 2, "title": "Plan"}
    document = [
        conversation(
            node("root", None, None),
            node("n1", "root", "assistant", "{}", to="canmore.create_textdoc"),
            node("n2", "n1", "tool", "Done.", name="canmore", canvas=canvas),
            current="n2",
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    assert (transcript.drafts[1].meta.source or {})["canvas"] == canvas


PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


def pictured(*, pointer: str = "file-service://file-A1b2") -> list[Entry]:
    part = {"content_type": "image_asset_pointer", "asset_pointer": pointer}
    return [
        conversation(
            node("root", None, None),
            node(
                "n1",
                "root",
                "user",
                {"content_type": "multimodal_text", "parts": [part, "What is it?"]},
                attachments=[
                    {"id": "file-A1b2", "name": "cat.png", "mime_type": "image/png"},
                    {"id": "file-C3d4", "name": "a.pdf", "mimeType": "application/pdf"},
                ],
            ),
            current="n1",
        )
    ]


def test_an_image_next_to_the_conversations_is_imported(tmp_path: Path) -> None:
    (tmp_path / "file-A1b2-cat.png").write_bytes(PNG)

    (event,) = events(read_one(write_document(tmp_path, pictured())))

    assert isinstance(event, UserInput)
    assert event.text == "What is it?"
    image, document = event.attachments
    assert (image.kind, image.media_type, image.name) == (
        "image",
        "image/png",
        "cat.png",
    )
    assert image.data is not None
    assert (document.kind, document.name, document.url) == (
        "file",
        "a.pdf",
        "file:file-C3d4",
    )


def test_a_file_that_the_export_lacks_is_named_and_reported(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, pictured()))

    (event,) = events(transcript)
    assert isinstance(event, UserInput)
    assert [file.url for file in event.attachments] == [
        "file:file-A1b2",
        "file:file-C3d4",
    ]
    assert transcript.skipped[0].where == "file.json [0] and 1 more"
    assert transcript.skipped[0].why == "content of a file; its name was imported"


def test_one_conversation_alone_is_read(tmp_path: Path) -> None:
    path = write_document(tmp_path, samples.CHATGPT[0])

    assert events(read_one(path)) == events(
        read_one(write_document(tmp_path, samples.CHATGPT, "list.json"))
    )


def test_an_item_that_is_no_conversation_is_reported(tmp_path: Path) -> None:
    path = write_document(tmp_path, [*samples.CHATGPT, {"title": "secret"}])

    transcript = read_one(path)

    assert transcript.skipped[-1].where == "file.json [1]"
    assert "secret" not in str(transcript.skipped)


def test_a_message_without_its_parent_is_read_and_reported(tmp_path: Path) -> None:
    document = [
        conversation(
            node("n1", "gone", "user", "Hello", at=1.0),
            node("n2", "n1", "assistant", "Hi.", at=2.0),
            current="n2",
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["user_input", "agent_response"]
    assert "whose parent is not in the file" in transcript.skipped[0].why


def test_parents_in_a_circle_are_read_and_reported(tmp_path: Path) -> None:
    document = [
        conversation(
            node("n1", "n2", "user", "Hello", at=1.0),
            node("n2", "n1", "assistant", "Hi.", at=2.0),
            current="n2",
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    assert sorted(kinds(transcript)) == ["agent_response", "user_input"]
    assert "whose parent is not in the file" in transcript.skipped[0].why


def test_conversations_become_sessions_by_their_ids(tmp_path: Path) -> None:
    second = {**samples.CHATGPT[0], "conversation_id": "c-2", "id": "c-2"}
    path = write_document(tmp_path, [*samples.CHATGPT, second])

    names = [transcript.session_id for transcript in importers.read(path)]

    assert names == ["6968083a-13f4-832d-855b-d108c2f71adf", "c-2"]
