"""Each rule of the Messages API is checked, and violations are found."""

from __future__ import annotations

from typing import Any

import pytest

from refold.projections.context.text import RULES, violations
from tests.projections.logs import PIXEL

ASK = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "Because."}]}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def agent(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: Any = "Yes.") -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id_: Any = "c1", name: Any = "bash", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {}, **more}


def answer(id_: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, **more}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", **source}}


GOOD = [
    user(text(), image(media_type="image/png", data=PIXEL)),
    agent(
        SIGNED, {"type": "redacted_thinking", "data": "ZW5j"}, text(), use(), use("c2")
    ),
    user(answer("c2", content=[text()], is_error=True), answer(content="ok"), text()),
    agent(text("Look:"), SIGNED, text("Done."), use("c3")),
    user(answer("c3")),
    agent(text("Done.")),
]


def test_a_valid_conversation_passes_every_rule() -> None:
    assert violations(GOOD, "Be brief.") == []
    assert violations([ASK, ANSWER, ASK]) == []


BAD: list[tuple[str, list[dict[str, Any]]]] = [
    ("at least one message", []),
    ("role must be", [ASK, {"role": "tool", "content": "x"}]),
    ("more than role and content", [{**ASK, "name": "ada"}]),
    ("first message must be", [ANSWER]),
    ("two messages of one role", [ASK, ASK]),
    ("content must not be empty", [ASK, agent()]),
    ("content must not be empty", [{"role": "user"}]),
    ("a text or a list of blocks", [user("Why?")]),
    ("a tool_use block cannot be", [user(use())]),
    ("a tool_result block cannot be", [ASK, agent(answer())]),
    ("a video block cannot be", [user({"type": "video"})]),
    ("fields that a text block", [user({**text(), "seq": 1})]),
    ("more than white space", [{"role": "user", "content": " \n"}]),
    ("more than white space", [user(text(""))]),
    ("more than white space", [user(text(None))]),
    ("id must match", [ASK, agent(use("call.1")), user(answer("call.1"))]),
    ("id must match", [ASK, agent(use("x" * 65)), user(answer("x" * 65))]),
    ("name must match", [ASK, agent(use(name="my tool")), user(answer())]),
    ("input must be an object", [ASK, agent(use(input="x")), user(answer())]),
    (
        "ids must be unique",
        [ASK, agent(use()), user(answer()), agent(use()), user(answer())],
    ),
    ("calls without a result", [ASK, agent(use())]),
    ("calls without a result", [ASK, agent(use()), user(text())]),
    ("calls without a result", [ASK, agent(use(), use("c2")), user(answer())]),
    ("results without a call", [user(answer(), text())]),
    ("results without a call", [ASK, agent(use()), user(answer(), answer())]),
    (
        "results without a call",
        [ASK, agent(use()), user(text()), ANSWER, user(answer())],
    ),
    ("results must stand before", [ASK, agent(use()), user(text(), answer())]),
    ("is_error must be", [ASK, agent(use()), user(answer(is_error="yes"))]),
    ("content must be a text", [ASK, agent(use()), user(answer(content={"a": 1}))]),
    ("leave it out", [ASK, agent(use()), user(answer(content=[]))]),
    ("an error needs a content", [ASK, agent(use()), user(answer(is_error=True))]),
    ("more than white space", [ASK, agent(use()), user(answer(content=" "))]),
    ("more than white space", [ASK, agent(use()), user(answer(content=[text(" ")]))]),
    ("a result holds", [ASK, agent(use()), user(answer(content=[use()]))]),
    (
        "media_type must be",
        [ASK, agent(use()), user(answer(content=[image(data=PIXEL)]))],
    ),
    (
        "thinking must stand before",
        [ASK, agent(use(), SIGNED, text()), user(answer())],
    ),
    ("final block cannot be thinking", [ASK, agent(SIGNED)]),
    ("needs the provider's", [ASK, agent({**SIGNED, "signature": ""}, text())]),
    ("thinking must be a text", [ASK, agent({**SIGNED, "thinking": None}, text())]),
    ("needs its data", [ASK, agent({"type": "redacted_thinking"}, text())]),
    ("media_type must be", [user(image(media_type="image/tiff", data=PIXEL))]),
    ("data must be base64", [user(image(media_type="image/png", data="half …"))]),
    ("base64, url or file source", [user({"type": "image"})]),
    ("needs its address", [user({"type": "image", "source": {"type": "url"}})]),
    ("must not end in white space", [ASK, agent(text("Yes. "))]),
]


@pytest.mark.parametrize(("problem", "messages"), BAD)
def test_a_broken_rule_is_reported(
    problem: str, messages: list[dict[str, Any]]
) -> None:
    assert any(problem in violation for violation in violations(messages))


def test_every_rule_has_an_example_that_breaks_it() -> None:
    for rule in RULES:
        assert any(list(rule(messages)) for _, messages in BAD), rule.__name__


def test_an_empty_system_prompt_is_refused() -> None:
    assert violations([ASK], " ") == ["system: must not be empty; leave it out"]
