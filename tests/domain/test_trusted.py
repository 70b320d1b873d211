"""An event built without validation equals the validated one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold import InvalidEvent
from refold.domain.envelope import Meta
from refold.domain.events import EVENT_CLASSES, JsonObject, event_of
from refold.domain.model import Model
from refold.domain.upcast import event_of_stored, event_trusted, meta_of_stored

GOLDEN = Path(__file__).parent / "golden"
MORE: list[tuple[str, JsonObject]] = [
    ("user_input", {"text": "x", "attachments": []}),
    ("user_input", {"text": "x", "attachments": [{"kind": "file", "name": "a"}]}),
    ("agent_response", {"text": "", "thinking": []}),
    ("agent_response", {"text": "", "thinking": [{"type": "thinking"}]}),
    ("agent_response", {"thinking": [{"thinking": "a", "signature": "b"}]}),
    ("tool_result", {"call_id": "c", "content": "", "duration_ms": 3}),
    ("tool_result", {"call_id": "c", "content": [1, {"a": None}], "untrusted": True}),
    ("reflection", {"issues": ["a", {"b": [1]}], "confidence": 1}),
    ("final", {"reward": 0.5, "result": [1, 2]}),
    ("planner", {"plan": None}),
    ("state", {"unset": ["a"]}),
    ("pin", {"seqs": [1, 2]}),
    ("provider_edit", {"edits": [{"a": 1}], "blocks": []}),
]


def payloads() -> Iterator[Any]:
    for path in sorted(GOLDEN.glob("*.json")):
        name, version = path.stem.rsplit(".", 1)
        if int(version) != EVENT_CLASSES[name].version:
            continue
        whole: JsonObject = json.loads(path.read_text("utf-8"))
        yield pytest.param(name, whole, id=name)
        fields = EVENT_CLASSES[name].model_fields
        least = {key: whole[key] for key in whole if fields[key].is_required()}
        yield pytest.param(name, least, id=f"{name}-least")
    for number, (name, payload) in enumerate(MORE):
        yield pytest.param(name, payload, id=f"{name}-{number}")


def kinds(value: object) -> Any:
    """Return the types of a value and of everything in it."""
    if isinstance(value, Model):
        fields = {name: kinds(item) for name, item in value}
        return type(value), fields, value.model_fields_set
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    return type(value)


@pytest.mark.parametrize(("name", "payload"), list(payloads()))
def test_a_trusted_event_equals_a_validated_one(name: str, payload: JsonObject) -> None:
    validated = event_of(name, payload)

    trusted = event_trusted(name, payload)

    assert trusted == validated
    assert kinds(trusted) == kinds(validated)
    assert list(dict(trusted)) == list(dict(validated))
    assert trusted.payload() == validated.payload()


def test_defaults_are_not_shared() -> None:
    first, second = (event_trusted("state", {}) for _ in range(2))

    assert dict(first)["set"] is not dict(second)["set"]


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("user_input", {"text": "x", "more": 1}),
        ("tool_call", {"tool_name": "bash"}),
        ("tool_result", {"call_id": "c", "duration_ms": "soon"}),
        ("user_input", {"attachments": "none"}),
        ("request", {"digest": 1}),
        ("agent_response", {"thinking": [{"type": "thinking", "more": 1}]}),
        ("agent_response", {"thinking": ["text"]}),
    ],
)
def test_an_invalid_payload_is_still_refused(name: str, payload: Any) -> None:
    with pytest.raises(InvalidEvent):
        event_trusted(name, payload)


def test_other_versions_and_types_are_validated() -> None:
    old = json.loads((GOLDEN / "compaction.1.json").read_text("utf-8"))
    assert event_of_stored("compaction", 1, old).version == 2

    with pytest.raises(InvalidEvent, match="unknown event type"):
        event_of_stored("dream", 1, {})
    with pytest.raises(InvalidEvent, match="upgrade Refold"):
        event_of_stored("user_input", 99, {"text": "x"})


@pytest.mark.parametrize(
    "dumped",
    [
        {},
        {"model": "m", "duration_ms": 1.5, "usage": {"input_tokens": 1}},
        {"model": "m", "duration_ms": 2},
        {"warnings": [{"code": "cut"}], "status": "ok"},
        {"source": {"path": "a"}, "own": [1], "rebuilt_at": "now"},
    ],
)
def test_trusted_meta_equals_validated_meta(dumped: dict[str, Any]) -> None:
    validated = Meta(**dumped)
    trusted = meta_of_stored(dumped)

    assert trusted == validated
    assert kinds(trusted) == kinds(validated)
    assert trusted.model_extra == validated.model_extra
    assert trusted.dump() == validated.dump()
