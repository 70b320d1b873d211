"""A grown file gives the same transcript as before, word for word, then more."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.adapters import importers
from refold.adapters.importers import Transcript
from refold.domain.envelope import Draft
from refold.domain.events import AgentResponse
from tests.importers.samples import (
    ATIF,
    CODEX,
    accepted,
    answered,
    results,
    returned,
    use,
    user_entry,
    words,
    write_document,
    write_lines,
    write_sample,
)

CALLS = st.sampled_from(["c1", "c2", "c3"])
TEXTS = st.text(max_size=12)
Messages = list[dict[str, Any]]

user_blocks = st.lists(
    st.builds(words, TEXTS)
    | st.builds(returned, CALLS, TEXTS, is_error=st.booleans())
    | st.just({"type": "unheard-of"}),
    max_size=3,
)
agent_blocks = st.lists(
    st.builds(words, TEXTS)
    | st.builds(use, CALLS)
    | st.just({"type": "thinking", "thinking": "Hm", "signature": "s"})
    | st.just({"type": "server_tool_use", "id": "s", "name": "web_search"}),
    max_size=3,
)
anthropic_messages = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS | user_blocks})
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXTS | agent_blocks}
    ),
    max_size=12,
)
openai_calls = st.lists(
    st.fixed_dictionaries(
        {"function": st.just({"name": "f", "arguments": "{}"})}, optional={"id": CALLS}
    ),
    max_size=2,
)
openai_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system"]), "content": TEXTS}
    )
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | TEXTS},
        optional={"tool_calls": openai_calls, "refusal": TEXTS},
    )
    | st.fixed_dictionaries(
        {"role": st.just("tool"), "content": TEXTS, "name": st.just("f")},
        optional={"tool_call_id": CALLS},
    ),
    max_size=12,
)


@st.composite
def claude_code_entries(draw: st.DrawFn) -> Messages:
    entries: Messages = []
    for index in range(draw(st.integers(0, 14))):
        uuid = draw(st.sampled_from([f"u{index}", f"u{max(index - 1, 0)}"]))
        more = {
            "isSidechain": draw(st.booleans()),
            "parentUuid": draw(
                st.none() | st.sampled_from([f"u{n}" for n in range(14)])
            ),
        }
        kind = draw(st.sampled_from(["user", "assistant", "summary", "new"]))
        if kind == "user":
            entries.append(user_entry(uuid, draw(TEXTS | user_blocks), **more))
        elif kind == "assistant":
            message_id = draw(st.sampled_from(["m1", "m2"]))
            usage = {"output_tokens": draw(st.integers(0, 2))}
            entry = answered(uuid, message_id, *draw(agent_blocks), usage=usage, **more)
            entries.append(entry)
        else:
            entries.append({"type": kind, "uuid": uuid, **more})
    return entries


def read(
    write: Callable[[Path, Sequence[Any]], Path], content: Sequence[Any], form: str
) -> list[Transcript]:
    with tempfile.TemporaryDirectory() as folder:
        return importers.read(write(Path(folder), content), format=form)


def check_growth(young: list[Transcript], grown: list[Transcript]) -> None:
    by_name = {transcript.session_id: transcript for transcript in grown}
    order = [transcript.session_id for transcript in grown if transcript.drafts]
    before = [transcript.session_id for transcript in young if transcript.drafts]
    assert order[: len(before)] == before
    for transcript in young:
        if transcript.drafts:
            now = by_name[transcript.session_id].drafts
            assert now[: len(transcript.drafts)] == transcript.drafts


def without_usage(transcript: Transcript) -> Transcript:
    drafts: list[Draft] = []
    for draft in transcript.drafts:
        event = draft.event
        if isinstance(event, AgentResponse):
            event = event.model_copy(update={"usage": None})
        meta = draft.meta.model_copy(update={"usage": None})
        drafts.append(replace(draft, event=event, meta=meta))
    return replace(transcript, drafts=tuple(drafts))


def check_kept(transcripts: list[Transcript], expected: int) -> None:
    """Every result is an event, or was skipped; and a session accepts them all."""
    skipped = sum(
        entry.why.startswith("tool result")
        for transcript in transcripts
        for entry in transcript.skipped
    )
    assert results(transcripts) + skipped == expected
    assert all(accepted(transcript.drafts) for transcript in transcripts)


def blocks_of(messages: Messages) -> list[Any]:
    contents = [message.get("content") for message in messages]
    return [block for item in contents if isinstance(item, list) for block in item]


def count_results(blocks: list[Any]) -> int:
    return sum(block.get("type") == "tool_result" for block in blocks)


@settings(deadline=None)
@given(claude_code_entries(), st.data())
def test_claude_code_grows_at_its_end(entries: Messages, data: st.DataObject) -> None:
    anchor = user_entry("first", "Go.")
    entries = [anchor, *entries]
    cut = data.draw(st.integers(1, len(entries)))

    grown = read(write_lines, entries, "claude-code")
    young = read(write_lines, entries[:cut], "claude-code")

    check_growth(young, grown)
    once = {entry["uuid"]: entry for entry in reversed(entries)}
    check_kept(
        grown,
        count_results(blocks_of([entry.get("message", {}) for entry in once.values()])),
    )


@settings(deadline=None)
@pytest.mark.parametrize("write", [write_document, write_lines])
@given(messages=openai_messages, data=st.data())
def test_openai_grows_at_its_end(
    write: Any, messages: Messages, data: st.DataObject
) -> None:
    messages = [{"role": "user", "content": "Go."}, *messages]
    cut = data.draw(st.integers(1, len(messages)))

    grown = read(write, messages, "openai")

    check_growth(read(write, messages[:cut], "openai"), grown)
    check_kept(grown, sum(message["role"] == "tool" for message in messages))


@settings(deadline=None)
@pytest.mark.parametrize("write", [write_document, write_lines])
@given(messages=anthropic_messages, data=st.data())
def test_anthropic_grows_at_its_end(
    write: Any, messages: Messages, data: st.DataObject
) -> None:
    messages = [{"role": "user", "content": "Go."}, *messages]
    cut = data.draw(st.integers(1, len(messages)))

    grown = read(write, messages, "anthropic")

    check_growth(read(write, messages[:cut], "anthropic"), grown)
    check_kept(grown, count_results(blocks_of(messages)))


@given(st.integers(1, len(CODEX)))
def test_codex_grows_at_its_end(cut: int) -> None:
    grown = read(write_lines, CODEX, "codex")
    young = read(write_lines, CODEX[:cut], "codex")

    # The tokens of an answer follow it in the file: then the event has them as well.
    check_growth([*map(without_usage, young)], [*map(without_usage, grown)])


@given(st.integers(1, len(ATIF["steps"])))
def test_a_trajectory_grows_at_its_end(cut: int) -> None:
    young, grown = (
        read(write_document, {**ATIF, "steps": ATIF["steps"][:n]}, "atif")  # type: ignore[arg-type]  # a document
        for n in (cut, None)
    )

    check_growth(young, grown)


@pytest.mark.parametrize(
    "name",
    ["claude-code", "codex", "openai", "anthropic", "tau-bench", "swe-agent", "atif"],
)
def test_reading_again_gives_the_same(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)

    assert importers.read(path) == importers.read(path)
