"""Whatever a transcript contains, it is read, skipped or refused in words."""

import copy
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.adapters import importers
from refold.adapters.importers import FORMATS, Transcript
from refold.domain.errors import ImportFailed
from tests.importers import samples
from tests.importers.samples import accepted, write_lines, write_sample

SECRET = "hunter 2"
ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        SECRET,
        "\ud800",
        [],
        [SECRET],
        {},
        {SECRET: 1},
    ]
) | st.recursive(
    st.none() | st.integers() | st.just(SECRET),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", SECRET]), inner, max_size=2
        )
    ),
    max_leaves=4,
)
DOCUMENTS: dict[str, Any] = {
    **samples.DOCUMENTS,
    "chatgpt": samples.CHATGPT,
    "claude-ai": samples.CLAUDE_AI,
    "openai-responses": samples.OPENAI_RESPONSES,
    "langfuse": samples.LANGFUSE,
    "langsmith": samples.LANGSMITH,
    "refold": samples.REFOLD,
}


def all_places(value: Any) -> list[tuple[Any, Any]]:
    """Return every key and index in ``value``, with its container."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [
        place for key in keys for place in all_places(value[key])
    ]


def put(document: Any, data: st.DataObject) -> Any:
    changed = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        holders = all_places(changed)
        if holders:
            holder, key = data.draw(st.sampled_from(holders))
            holder[key] = copy.deepcopy(data.draw(ODD))
    return changed


def attempt(path: Path, form: str) -> tuple[list[Transcript], str]:
    try:
        return importers.read(path, format=form), ""
    except ImportFailed as error:
        return [], str(error)


@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
def test_odd_values_in_a_file_do_no_harm(name: str, data: st.DataObject) -> None:
    changed = put(DOCUMENTS[name], data)
    form = data.draw(st.sampled_from([name, "auto", *FORMATS]))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        path.write_text(json.dumps(changed))
        if name in ("claude-code", "refold"):
            path = write_lines(Path(folder), changed)
        transcripts, message = attempt(path, form)

    assert SECRET not in message
    for transcript in transcripts:
        assert accepted(transcript.drafts)
        assert SECRET not in str(transcript.skipped)
        assert json.dumps(
            [[skipped.where, skipped.why] for skipped in transcript.skipped]
        )


ONE_ODD: tuple[Any, ...] = (None, -1, "x", [], {}, 10**25)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_one_odd_value_is_read_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd.json"
    for number in range(len(all_places(DOCUMENTS[name]))):
        for odd in ONE_ODD:
            changed = copy.deepcopy(DOCUMENTS[name])
            holder, key = all_places(changed)[number]
            holder[key] = odd
            lines = changed if name in ("claude-code", "codex", "refold") else [changed]
            path.write_text("\n".join(map(json.dumps, lines)))
            with suppress(ImportFailed):
                importers.read(path)


AGENTS = ("cline", "copilot-cli", "gemini-cli", "openhands", "opencode", "qwen-code")
TRACES = ("chatgpt", "claude-ai", "langfuse", "langsmith", "openai-responses")


@pytest.mark.parametrize("name", [*AGENTS, *TRACES])
@pytest.mark.parametrize("odd", [[], {}, None])
def test_an_odd_value_in_a_sample_of_an_agent_is_read_or_refused(
    tmp_path: Path, name: str, odd: Any
) -> None:
    path = write_sample(tmp_path, name)
    text = path.read_text("utf-8")
    try:
        entries = [json.loads(text)]
    except ValueError:
        entries = [json.loads(line) for line in text.splitlines()]
    for number in range(len(all_places(entries))):
        changed = copy.deepcopy(entries)
        holder, key = all_places(changed)[number]
        holder[key] = odd
        path.write_text("\n".join(map(json.dumps, changed)), "utf-8")
        with suppress(ImportFailed):
            importers.read(path, format=name)
