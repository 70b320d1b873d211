"""The union of events is closed, and every released version stays readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue, TypeAdapter

from refold import InvalidEvent, RefoldError
from refold.domain import events
from refold.domain.canonical import canonical
from refold.domain.events import EVENT_CLASSES, SessionEvent, ToolCall, UserInput
from refold.domain.upcast import upcast

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SECRET = "sk-ant-not-to-be-shown"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_released_version_is_readable(path: Path) -> None:
    event_type, version = _shape(path)
    payload = json.loads(path.read_text("utf-8"))

    event = upcast(event_type, version, payload)

    assert event.type == event_type
    if version == EVENT_CLASSES[event_type].version:
        assert event.payload() == payload


def _shape(path: Path) -> tuple[str, int]:
    event_type, version = path.stem.rsplit(".", 1)
    return event_type, int(version)


def test_every_type_has_a_golden_file_of_its_version() -> None:
    assert {path.stem for path in GOLDEN} >= {
        f"{name}.{cls.version}" for name, cls in EVENT_CLASSES.items()
    }


def test_the_types_are_those_of_the_contract() -> None:
    assert set(EVENT_CLASSES) == {
        "user_input",
        "agent_response",
        "planner",
        "tool_call",
        "tool_result",
        "reflection",
        "aggregate",
        "final",
        "summary",
        "hitl",
        "error",
        "system",
        "request",
        "state",
        "pin",
        "fork",
        "compaction",
        "provider_edit",
        "redaction_applied",
        "consent",
        "forget",
        "item",
    }


@pytest.mark.parametrize("cls", EVENT_CLASSES.values(), ids=lambda cls: cls.__name__)
def test_the_discriminator_picks_the_class(cls: type[events.Event]) -> None:
    golden = next(path for path in GOLDEN if path.stem == f"{_type(cls)}.{cls.version}")
    data = {"type": _type(cls), **json.loads(golden.read_text("utf-8"))}

    assert type(TypeAdapter(SessionEvent).validate_python(data)) is cls


def _type(cls: type[events.Event]) -> str:
    return str(cls.model_fields["type"].default)


def test_an_unknown_type_or_version_is_an_error() -> None:
    with pytest.raises(InvalidEvent, match="unknown event type 'dream'"):
        upcast("dream", 1, {})
    with pytest.raises(InvalidEvent, match="reads up to 1: upgrade"):
        upcast("user_input", 2, {"text": ""})
    with pytest.raises(InvalidEvent):
        upcast("user_input", 0, {"text": ""})


def test_an_old_version_is_converted_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(UserInput, "version", 3)
    steps = {
        ("user_input", 1): lambda old: {"words": old["said"]},
        ("user_input", 2): lambda old: {"text": old["words"]},
    }

    event = upcast("user_input", 1, {"said": "hi"}, upcasts=steps)

    assert event == UserInput(text="hi")


def test_events_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        UserInput(text="a").text = "b"  # type: ignore[misc]  # what is refused


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (UserInput, {"text": 3}),
        (UserInput, {SECRET: "x"}),
        (ToolCall, {"call_id": "", "tool_name": "bash"}),
        (events.Final, {"outcome": SECRET}),
        (events.Final, {"reward": float("nan")}),
        (events.Planner, {"plan": [object()]}),
        (events.Reflection, {"confidence": 1.5}),
        (events.Pin, {"seqs": []}),
        (events.Verdict, {"item_id": SECRET, "verdict": "maybe"}),
    ],
)
def test_an_invalid_field_is_named_without_its_value(
    cls: type, data: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        cls(**data)

    assert SECRET not in f"{caught.value} {caught.value!r}"
    if issubclass(cls, events.Event):
        assert isinstance(caught.value, RefoldError)
        assert caught.value.__suppress_context__


def test_a_repr_shows_no_content() -> None:
    event = UserInput(text=SECRET, attachments=(events.Attachment(data=SECRET),))

    assert SECRET not in f"{event} {event!r}"
    assert "<str of" in repr(event)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_fields_equal_the_payload(
    path: Path,
) -> None:
    event = upcast(*_shape(path), json.loads(path.read_text("utf-8")))
    again = EVENT_CLASSES[event.type](**event.payload())
    fields = again.fields()

    assert again.validated
    if fields is not None:
        assert canonical(fields) == canonical(event.payload())


def test_only_unchanged_validated_events_count_as_validated() -> None:
    event = UserInput(text="hello")
    anything: Any = 3

    assert event.validated
    assert UserInput.model_validate({"type": "user_input", "text": "a"}).validated
    assert not event.model_copy(update={"text": 3}).validated
    assert not UserInput.model_construct(text=anything).validated
    assert UserInput.model_construct(text=anything).fields() is None
    assert event == UserInput.model_construct(type="user_input", text="hello")


@given(json_values)
def test_plain_fields_are_encoded_as_the_payload_is(value: JsonValue) -> None:
    event = events.ToolResult(call_id="c", content=value)

    assert canonical(event.fields()) == canonical(event.payload())
