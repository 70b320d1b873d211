"""A strategy in an earlier version gives the bytes that its requests recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    HumanReview,
    Pin,
    Planner,
    SummarizerRef,
    UserInput,
)
from refold.projections.context.budget import Extras
from refold.projections.context.compaction import Written
from refold.projections.context.strategies.spec import STRATEGIES, parse
from tests.projections.logs import SIGNED, call, log_of, result
from tests.projections.walk import Walk

# Results that arrive late, repeated call ids, entries of all kinds, and a long message.
LOG: Final = log_of(
    UserInput(text="Look at /src/a.py, and never push to main."),
    AgentResponse(text="I look."),
    call("c1", file="/src/a.py"),
    result("c1", "alpha\n" * 40),
    AgentResponse(text="And the other."),
    call("c1", file="/src/b.py"),
    result("c1", "beta\n" * 40),
    Planner(plan={"steps": ["look", "fix"]}),
    AgentError(code="timeout", message="after 30 s", where="bash"),
    Pin(seqs=(3, 4)),
    AgentResponse(text="Both are there."),
    UserInput(text="Go on. " + "word " * 6_000),
    (
        HumanReview(trigger="risk", question="Delete?", decision="no", decided_by="bo"),
        {"note": "The audit needs them."},
    ),
    AgentResponse(text="I start the server."),
    call("c2", command="serve"),
    UserInput(text="What is it doing?"),
    AgentResponse(text="It runs."),
    UserInput(text="Is it up? Look at /src/a.py again, please, all of it."),
    AgentResponse(text="Not yet."),
    result("c2", "serving on 8080\n" * 20),
    UserInput(text="And now?"),
    AgentResponse(text="It serves /src/a.py on port 8080."),
)

RECORDED: Final[tuple[tuple[str, int, dict[str, Any], str], ...]] = (
    (
        "keep_all",
        1,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
    (
        "keep_all",
        2,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
    (
        "keep_all",
        3,
        {},
        "a92056e80a94dcbd9f2a64d4860dab715f65465ae72f99c8496f0c28a41fa30c",
    ),
    (
        "last_turns",
        1,
        {"n": 2},
        "cc7fc2118d9b649e4d69c91449b866bed43cf896c4d327c8f96f851c0eda8b7c",
    ),
    (
        "last_turns",
        2,
        {"n": 2},
        "cc7fc2118d9b649e4d69c91449b866bed43cf896c4d327c8f96f851c0eda8b7c",
    ),
    (
        "last_turns",
        3,
        {"n": 2},
        "6c26d5ee450ed27fcab4ab144ccff3df5e079d5fe2b700f262ff9c6a700143ba",
    ),
    (
        "token_budget",
        1,
        {"max_tokens": 900},
        "440d7aaf87f7ef08b6246cf8241593fc87444a72aed5f183a96ff13611c8258a",
    ),
    (
        "token_budget",
        2,
        {"max_tokens": 900},
        "440d7aaf87f7ef08b6246cf8241593fc87444a72aed5f183a96ff13611c8258a",
    ),
    (
        "token_budget",
        3,
        {"max_tokens": 900},
        "a41f7593b1130c5dab555314ececb4364b69ef391182bae53b2cc56d8dc1b40f",
    ),
    (
        "tool_clearing",
        1,
        {"trigger_input_tokens": 100, "keep": 1},
        "2a1a95dd1ab468f95b44f27777f66d37f9a06cd68313f9cadf1339bf9f2c8325",
    ),
    (
        "tool_clearing",
        2,
        {"trigger_input_tokens": 100, "keep": 1},
        "2a1a95dd1ab468f95b44f27777f66d37f9a06cd68313f9cadf1339bf9f2c8325",
    ),
    (
        "tool_clearing",
        3,
        {"trigger_input_tokens": 100, "keep": 1},
        "5bd03adb9f942c15f7069650a01a6ac73d115131576a15faa331f2520371a147",
    ),
    (
        "turn_window",
        1,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "87433dd02402ee732f3732552a9204c73350f42f4c89020a80352262dd0a2ef3",
    ),
    (
        "turn_window",
        2,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "012305e04263dee8289aace4b9923ad0008fd12283f2f70c395c5746b356e7fd",
    ),
    (
        "turn_window",
        3,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "1a752de1be1bcbd643351063607607dedcee0076306e22c18d963ad1359a2503",
    ),
    (
        "turn_window",
        4,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "6f51db8e7642f7d0870d27a0f7c8406174655f9d5d4feb5e463a4ed04148b5f9",
    ),
    (
        "turn_window",
        5,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "1f0174405084ebb398987466b16a296e71429b75123b683b0df0b578645db357",
    ),
    (
        "message_window",
        1,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "1345782704289edd1600856ec2a32172a8e3fb834b3fe12d5d63991d85c3c1a2",
    ),
    (
        "message_window",
        2,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "f1dd6d30b32afd98eeb782aca3624a9fc01e590176fda03a6ec631ae8aa94049",
    ),
    (
        "message_window",
        3,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "82bb29360c6f5238aa21e5fbc0ac6d01ee8cbcbe893b5241ed739497427f5e64",
    ),
    (
        "message_window",
        4,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "0050337931e8c12b55ecc0a93e594dc0d28fa7d918fedc3dee5a98924114b2a7",
    ),
    (
        "message_window",
        5,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "0935defab02d0861cd08409d893a14dbeef6e02eb2896a1452775f33399c53e7",
    ),
    (
        "recursive_summary",
        1,
        {},
        "c371a3c8dc91af111a7ef851bddccc846296a80a50cc77c6509cb837c70f9c84",
    ),
    (
        "recursive_summary",
        2,
        {},
        "c3099e5c7c67e00a2fe63192ff08fff3293a8f6a65e10b11396c9aee52b64162",
    ),
    (
        "recursive_summary",
        3,
        {},
        "c96c3f58516fc5a8d45730f6be50833717f42dde1ec575c644a3e26ab24b83b9",
    ),
    (
        "recursive_summary",
        4,
        {},
        "ed93d8f2f21a394eadb0ae8d080168b224a2fdfa30f564782f46c786412cb2c6",
    ),
    (
        "recursive_summary",
        5,
        {},
        "70b528187218a1d6ec6fa6ca88ed0990d28dd8831af00668dad5c5145120ba66",
    ),
    (
        "hybrid",
        1,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "6ba923a1efe98672938262d588ae5ee1e911882fa96751f30500818868eb6212",
    ),
    (
        "hybrid",
        2,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "4cab9ce3e1f0514ecc755780277f0dab200060127fa1084821ad0b1e296cc60b",
    ),
    (
        "hybrid",
        3,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "f3ed63e4b7529a75f5e01686f457712b41d84ebe9330649c4b5a00a23783bac8",
    ),
    (
        "hybrid",
        4,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "26671d793a0dc2823473c00b0bfda01aee8b35778fcef33f5034225c259c86ff",
    ),
    (
        "hybrid",
        5,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "92755a79e013b927f65b1eb2c2449d529652e4232d24ed1fce48b003f2e7fce4",
    ),
    (
        "history_summary",
        1,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "c6c77cc9c75c988f626d6f5eff8a61ea1f40de9abdd8c563b44b1122f9f14ae4",
    ),
    (
        "history_summary",
        2,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "ffbd7b3371ebe0f406b8437e1ee60a5f54f1e327c5d1b9c5eb62a59550959672",
    ),
    (
        "history_summary",
        3,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "ffbd7b3371ebe0f406b8437e1ee60a5f54f1e327c5d1b9c5eb62a59550959672",
    ),
    (
        "history_summary",
        4,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "cdd88fcade09b934aea23c7663ce9d6870170837e4a663231774af6329d9154e",
    ),
    (
        "history_summary",
        5,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "64d44277495635da0225648a6518aaae4f4f4122f0d7ff4e0606580def93e3c6",
    ),
    (
        "history_summary",
        6,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "0679042e0a58f7b53f1992d013a1239ca3d16dad9f8c74d8ec71fdcbba0cc919",
    ),
    (
        "token_ratio",
        1,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "8d51daa34fab99d9bf179c214c2c0d460fa1e060773bf9bac42418f5f4e0d5d8",
    ),
    (
        "token_ratio",
        2,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "bda4e3a6d4c1ff1593e623e008be4d1e40dd20745728111ef6adbc610f2529ac",
    ),
    (
        "token_ratio",
        3,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "bb662c0c34dfe5ffbea4b5c26e8bf0280e9b79b0ba7049de16297481a62be3bc",
    ),
    (
        "token_ratio",
        4,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "a290e9e7d38ff636c83f842daf91b1ab6c3d83e1b0592c406e10100ff539464a",
    ),
    (
        "token_ratio",
        5,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "52234954004f2296f4c1a8e2aac7f07f6a94eff49743b78c20d34bf448e94b46",
    ),
    (
        "native",
        1,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
    (
        "native",
        3,
        {},
        "a92056e80a94dcbd9f2a64d4860dab715f65465ae72f99c8496f0c28a41fa30c",
    ),
    (
        "native",
        2,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
)


# An answer of a client that records its thinking, its text and its call one by one.
IN_PARTS: Final = log_of(
    UserInput(text="Why does the server not start?"),
    (AgentResponse(thinking=(SIGNED,)), {"response_id": "r1"}),
    (AgentResponse(text="I look."), {"response_id": "r1"}),
    (call("c1", file="/src/a.py"), {"response_id": "r1"}),
    result("c1", "alpha\n" * 40),
    (AgentResponse(thinking=(SIGNED,)), {"response_id": "r2"}),
    (AgentResponse(text="The port is taken."), {"response_id": "r2"}),
)
# The digests under the versions before answers in parts were shown as one message.
RECORDED_IN_PARTS: Final = (
    ("keep_all", 4, "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d"),
    (
        "last_turns",
        4,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    (
        "token_budget",
        4,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    (
        "tool_clearing",
        4,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    (
        "turn_window",
        6,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    (
        "message_window",
        6,
        "253a5812a7d4746695fec337807930182e4c5e79e033d1bfeb29f361e01df2b4",
    ),
    (
        "recursive_summary",
        6,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    ("hybrid", 6, "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d"),
    (
        "history_summary",
        7,
        "aa9f8ef41b4caf54b684025cf24c6dec020e258038c551ebf6da7bee17f3f6c7",
    ),
    (
        "token_ratio",
        6,
        "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d",
    ),
    ("native", 4, "34a08e47eda3638d05f7f70994391299989c61e52b05a07dcb89e111dea2557d"),
)
PARAMS: Final = {name: params for name, _, params, _ in RECORDED}


def recorded_summary(*_: object, **__: object) -> Written:
    """A summary as the log has it: a later summarizer would write another one."""
    return Written("I looked at both files.", SummarizerRef(kind="abridged"))


def digest_of(
    name: str, version: int, params: dict[str, Any], log: Sequence[Envelope] = LOG
) -> str:
    strategy = parse({"name": name, "version": version, "params": params})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.projections.walk.write_summary", recorded_summary)
        walk = Walk(strategy).go(log)
        walk.check()
    return walk.view(extras=Extras(window_tokens=8_000)).digest


@pytest.mark.parametrize(("name", "version", "params", "digest"), RECORDED)
def test_an_earlier_version_gives_its_original_digest(
    name: str, version: int, params: dict[str, Any], digest: str
) -> None:
    assert digest_of(name, version, params) == digest


# Views of these strategies show no decision here, so version 4 changes none of them.
_WITHOUT_DECISION: Final = (("last_turns", 3), ("token_budget", 3))


@pytest.mark.parametrize(
    ("name", "version", "params", "digest"),
    [recorded for recorded in RECORDED if recorded[:2] not in _WITHOUT_DECISION],
)
def test_the_newest_version_differs(
    name: str, version: int, params: dict[str, Any], digest: str
) -> None:
    newest = STRATEGIES[name].version

    assert digest_of(name, newest, params) != digest


@pytest.mark.parametrize(("name", "version", "digest"), RECORDED_IN_PARTS)
def test_earlier_versions_show_no_thinking_that_stands_alone(
    name: str, version: int, digest: str
) -> None:
    newest = STRATEGIES[name].version

    assert digest_of(name, version, PARAMS[name], IN_PARTS) == digest
    assert digest_of(name, newest, PARAMS[name], IN_PARTS) != digest


def test_the_reference_has_a_row_for_each_earlier_version() -> None:
    page = Path(__file__).parents[2] / "docs/reference/strategies.md"
    rows = re.findall(
        r"^\| (\d+)(?:[^|`]*?(\d+) of `history_summary`[^|]*)? \|",
        page.read_text(),
        re.M,
    )
    of_most = {int(version) for version, _ in rows}
    of_history_summary = {int(version) for _, version in rows if version}

    assert of_most == set(range(1, parse("turn_window").ref.version))
    newest = parse("history_summary").ref.version
    assert of_history_summary == set(range(3, newest))
