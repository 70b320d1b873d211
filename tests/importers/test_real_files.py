"""Real runs lose nothing: every result in a file is a result in a transcript."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from tests.importers.samples import accepted, results

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def _claude_code(text: str) -> int:
    entries = [json.loads(line) for line in text.splitlines()]
    contents = [entry.get("message", {}).get("content") for entry in entries]
    blocks = [block for item in contents if isinstance(item, list) for block in item]
    return sum(block["type"] == "tool_result" for block in blocks)


def _of_role(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "tool" for message in messages)


COUNTED: dict[str, tuple[str, Callable[[str], int]]] = {
    "claude_code_python_to_rust.jsonl": ("claude-code", _claude_code),
    "tau_bench_airline.json": (
        "tau-bench",
        lambda text: sum(_of_role(run["traj"]) for run in json.loads(text)),
    ),
    "swe_agent_fc_replace.traj": (
        "swe-agent",
        lambda text: _of_role(json.loads(text)["history"]),
    ),
    "letta_convo.af": ("letta", lambda text: _of_role(json.loads(text)["messages"])),
    "inspect_browser.json": (
        "inspect",
        lambda text: sum(_of_role(s["messages"]) for s in json.loads(text)["samples"]),
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_every_result_of_a_real_run_is_kept(name: str) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the collected real runs are not beside the repository: no {name}")
    form, count = COUNTED[name]

    transcripts = importers.read(path)

    skipped = [entry for transcript in transcripts for entry in transcript.skipped]
    assert {transcript.format for transcript in transcripts} == {form}
    assert results(transcripts) == count(path.read_text()) > 0
    assert not [entry for entry in skipped if "result of no" in entry.why]
    assert all(accepted(transcript.drafts) for transcript in transcripts)
