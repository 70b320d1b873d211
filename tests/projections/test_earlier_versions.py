"""A strategy in an earlier version gives the bytes that its requests recorded."""

from __future__ import annotations

from typing import Any, Final

import pytest

from refold.domain.events import (
    AgentError,
    AgentResponse,
    HumanReview,
    Pin,
    Planner,
    UserInput,
)
from refold.projections.context.budget import Extras
from refold.projections.context.strategies.spec import STRATEGIES, parse
from tests.projections.logs import call, log_of, result
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
    HumanReview(trigger="risk", question="Delete?", decision="no", decided_by="bo"),
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
        "turn_window",
        1,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "35992a44a174652f7665950c8f4a4ba4f9a2104d7a5df2a28ef385910c8a9b37",
    ),
    (
        "turn_window",
        2,
        {"full_turns": 1, "cached_turns": 1, "pin_tokens": 40},
        "13132c5da7be6aaec3f88e36b065931cea374146e5f0f59b45a63fcc2a216e79",
    ),
    (
        "message_window",
        1,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "a70ffdfd9d4538e877871c425b1f03a19aa557cdcb4648985eab31842518d376",
    ),
    (
        "message_window",
        2,
        {"context_size": 6, "compression_window_size": 2, "tail_keep_size": 2},
        "dcf6a2a3dbe61c289b267df564dfebe6809e82f6d1b31e6f44591bfc93c2144d",
    ),
    (
        "recursive_summary",
        1,
        {},
        "900652475aa1c6d4c01117bc8aa58307764452d8f00acb7179445d9dd45636ff",
    ),
    (
        "recursive_summary",
        2,
        {},
        "32b298378e1c053a73ab33f362143857fcd256058bceef7749e687528f4a548d",
    ),
    (
        "hybrid",
        1,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "ae3e0e9c48d87968e6e33c56f0d54f5facd0d0b47bc6cc6510587f76744b7701",
    ),
    (
        "hybrid",
        2,
        {"threshold_low": 200, "threshold_high": 900, "last_n_events": 6},
        "fec3ee0ed10eb15a1126db68ebb00ef04ddc3df9a24bc5f5d5405f52f5963a2f",
    ),
    (
        "history_summary",
        1,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "845c4b736a720310a40931ffed8e8701b333c0084cc00edd843c68275064e50f",
    ),
    (
        "history_summary",
        2,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "ea6823b167b6c1fbd819e5eda1b3f050669bb565a0818d602e5f3b9246869995",
    ),
    (
        "history_summary",
        3,
        {
            "trigger_on_history_size_chars": 200,
            "history_tail_size_chars_to_exclude": 60,
        },
        "ea6823b167b6c1fbd819e5eda1b3f050669bb565a0818d602e5f3b9246869995",
    ),
    (
        "token_ratio",
        1,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "f4aff399018e784f760237308fabbf8df4ce44483a2b8b3d1c6a57c189cc8b00",
    ),
    (
        "token_ratio",
        2,
        {"max_context_tokens": 900, "keep_recent_turns": 1},
        "d3815c33c645411fdbb9cc1736b01613798a6864c3e3e45cecd248d3a17de6fb",
    ),
    (
        "native",
        1,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
    (
        "native",
        2,
        {},
        "933eaf03ca637cac38b0456054275dd37f58e39c7966362be551c065f04cd63b",
    ),
)


def digest_of(name: str, version: int, params: dict[str, Any]) -> str:
    strategy = parse({"name": name, "version": version, "params": params})
    walk = Walk(strategy).go(LOG)
    walk.check()
    return walk.view(extras=Extras(window_tokens=8_000)).digest


@pytest.mark.parametrize(("name", "version", "params", "digest"), RECORDED)
def test_an_earlier_version_gives_the_digest_that_it_gave(
    name: str, version: int, params: dict[str, Any], digest: str
) -> None:
    assert digest_of(name, version, params) == digest


@pytest.mark.parametrize(("name", "version", "params", "digest"), RECORDED)
def test_the_newest_version_differs(
    name: str, version: int, params: dict[str, Any], digest: str
) -> None:
    newest = STRATEGIES[name].version

    assert digest_of(name, newest, params) != digest
