"""A body whose beginning is known gives the same content as one that is read whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.adapters.proxy.conversation import NotRecordable, WireRequest
from refold.adapters.proxy.protocols import anthropic, beginnings, named
from refold.adapters.proxy.protocols.beginnings import Beginnings
from refold.adapters.proxy.protocols.reading import Notes, body_of, json_of

TEXTS = st.text(max_size=12) | st.sampled_from(
    ['"', "\\", "]}", '],"messages":[', "\ud800", "é", "0" * 30, "\u2028"]
)
NUMBERS = st.sampled_from([0, -0.0, 1.5, 1e300, 2**63, 2**70, float("nan")])
BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.sampled_from("abc"),
            "name": st.just("bash"),
            "input": st.dictionaries(TEXTS, NUMBERS | TEXTS, max_size=2),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_result"),
            "tool_use_id": st.sampled_from("abc"),
            "content": TEXTS,
        }
    ),
    st.fixed_dictionaries({"type": TEXTS, "value": NUMBERS}),
    NUMBERS,
)
MESSAGES: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "other"]),
            "content": TEXTS | st.lists(BLOCKS, max_size=3),
        },
        optional={"effort": TEXTS},
    ),
    st.sampled_from([None, 1, "text", [], {}]),
)
NAMES = st.sampled_from(["run", "look"])
RESULTS = TEXTS | st.fixed_dictionaries({"output": TEXTS})
CHAT_CALLS = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": NAMES, "arguments": TEXTS})},
        optional={"id": st.sampled_from("abc")},
    ),
    min_size=1,
    max_size=2,
)
CHAT_MESSAGES: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "developer"]), "content": TEXTS}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXTS},
        optional={"tool_calls": CHAT_CALLS},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": TEXTS},
        optional={"tool_call_id": st.sampled_from("abc"), "tool_name": NAMES},
    ),
    MESSAGES,
)
PARTS = st.one_of(
    st.fixed_dictionaries({"text": TEXTS}),
    st.fixed_dictionaries(
        {
            "functionCall": st.fixed_dictionaries(
                {"name": NAMES}, optional={"id": st.sampled_from("abc")}
            )
        },
        optional={"thoughtSignature": st.just("c2ln")},
    ),
    st.fixed_dictionaries(
        {
            "functionResponse": st.fixed_dictionaries(
                {"name": NAMES, "response": RESULTS},
                optional={"id": st.sampled_from("abc")},
            )
        }
    ),
    NUMBERS,
)
CONTENTS: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "model", "model", "other"]),
            "parts": st.lists(PARTS, max_size=3),
        }
    ),
    MESSAGES,
)
ITEMS: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["user", "assistant", "developer"]),
            "content": TEXTS,
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("function_call"),
            "call_id": st.sampled_from("abc"),
            "name": NAMES,
            "arguments": TEXTS,
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("function_call_output"),
            "call_id": st.sampled_from("abc"),
            "output": TEXTS,
        }
    ),
    st.fixed_dictionaries({"type": st.just("reasoning"), "encrypted_content": TEXTS}),
    st.fixed_dictionaries({"type": TEXTS}),
    MESSAGES,
)
OTHERS: dict[str, tuple[str, str, st.SearchStrategy[Any]]] = {
    "gemini": ("contents", "/v1beta/models/g:generateContent", CONTENTS),
    "ollama": ("messages", "/api/chat", CHAT_MESSAGES),
    "openai-chat": ("messages", "/v1/chat/completions", CHAT_MESSAGES),
    "openai-responses": ("input", "/v1/responses", ITEMS),
}
FRAMES = st.fixed_dictionaries(
    {"model": st.sampled_from(["one", "other"])},
    optional={
        "system": TEXTS | st.lists(BLOCKS, max_size=2),
        "tools": st.lists(st.fixed_dictionaries({"name": TEXTS}), max_size=2),
        "stream": st.booleans(),
        "metadata": st.fixed_dictionaries({"session_id": TEXTS}),
        "messages ": st.lists(MESSAGES, max_size=1),
        "instructions": TEXTS,
        "previous_response_id": st.just("resp_1"),
        "request": st.fixed_dictionaries({"contents": st.lists(MESSAGES, max_size=1)}),
    },
)


@st.composite
def conversations(
    draw: st.DrawFn, field: str = "messages", items: st.SearchStrategy[Any] = MESSAGES
) -> list[bytes]:
    """Bodies of one client: most continue the one before, and some change it.

    field: the name of their list of messages.
    items: those of the list.
    """
    bodies: list[bytes] = []
    frame = draw(FRAMES)
    messages: list[Any] = []
    compact = draw(st.booleans())
    for _ in range(draw(st.integers(2, 6))):
        messages = messages + draw(st.lists(items, min_size=1, max_size=3))
        step = draw(st.sampled_from(["same"] * 4 + ["frame", "cut", "change", "twice"]))
        if step == "frame":
            frame = draw(FRAMES)
        elif step == "cut":
            messages = messages[: draw(st.integers(0, len(messages)))]
        elif step == "change":
            index = draw(st.integers(0, len(messages) - 1))
            messages = [*messages[:index], draw(items), *messages[index + 1 :]]
        fields = list(frame.items())
        fields.insert(draw(st.integers(0, 1)), (field, messages))
        if step == "twice":
            fields.append((field, draw(st.lists(items, max_size=2))))
        bodies.append(_json_of(fields, compact=compact))
    return bodies


def _json_of(fields: list[tuple[str, Any]], *, compact: bool) -> bytes:
    """Return JSON with these fields, which may have one name twice."""
    separators = (",", ":") if compact else (" ,\n", ": ")
    texts: list[str] = []
    for name, value in fields:
        text = json.dumps(value, separators=separators, ensure_ascii=not compact)
        texts.append(f"{json.dumps(name)}{separators[1]}{text}")
    content = "{" + separators[0].join(texts) + "}"
    return content.encode("utf-8", "surrogatepass")


def _reader(protocol: str = anthropic.NAME) -> Beginnings:
    """Return a reader that knows no body."""
    beginnings = _module(protocol)._BEGINNINGS
    return Beginnings(
        protocol,
        field=beginnings._field,
        frame=beginnings._frame,
        settings=beginnings._settings,
    )


def _module(protocol: str) -> Any:
    """Return the module of a protocol."""
    return named(protocol)


def _read(
    reader: Beginnings, body: bytes, protocol: str = anthropic.NAME
) -> WireRequest | str:
    """Return a request as the reader reads it, or the reason why it cannot."""
    path = OTHERS[protocol][1] if protocol in OTHERS else "/v1/messages"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_module(protocol), "_BEGINNINGS", reader)
        try:
            return named(protocol).request(body, {}, path)
        except NotRecordable as error:
            return error.reason


def _check(bodies: list[bytes], protocol: str = anthropic.NAME) -> None:
    """Check that a reader that knows the earlier bodies reads each as it is."""
    reader = _reader(protocol)
    for body in bodies:
        whole = _read(_reader(protocol), body, protocol)
        assert repr(_read(reader, body, protocol)) == repr(whole)
        assert repr(_read(reader, body, protocol)) == repr(whole)


@pytest.mark.parametrize("protocol", OTHERS)
@settings(max_examples=60)
@given(st.data())
def test_known_beginning_changes_no_content_of_any_protocol(
    protocol: str, data: st.DataObject
) -> None:
    field, _, items = OTHERS[protocol]
    bodies = data.draw(conversations(field, items))
    reader = _reader(protocol)
    for body in bodies:
        assert repr(_read(reader, body, protocol)) == repr(
            _read(_reader(protocol), body, protocol)
        )


@settings(max_examples=150)
@given(conversations())
def test_known_beginning_changes_no_content(bodies: list[bytes]) -> None:
    _check(bodies)


@settings(max_examples=80)
@given(conversations(), st.data())
def test_broken_bodies_are_read_like_whole_ones(
    bodies: list[bytes], data: st.DataObject
) -> None:
    broken: list[bytes] = []
    for body in bodies:
        at = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(at, min(len(body), at + 3)))
        insert = data.draw(
            st.sampled_from(
                [b"", b"]", b"}", b",", b'"', b"\xff", b"0", b'],"messages":[', b"],["]
            )
        )
        broken += [body, body[:at] + insert + body[end:]]
    _check(broken)


@pytest.mark.parametrize(
    "inserted",
    [b'],"extra":[', b'],"messages":[', b"],[", b"],", b",", b"]", b",,", b" ", b"\\"],
)
@pytest.mark.parametrize("then", [b"", b"{}", b',{"role":"user","content":"b"}'])
def test_end_of_list_in_new_bytes_is_noticed(inserted: bytes, then: bytes) -> None:
    start = b'{"model":"m","messages":[{"role":"user","content":"a"}'
    _check([start + b'],"stream":true}', start + inserted + then + b'],"stream":true}'])


@pytest.mark.parametrize("protocol", [anthropic.NAME, *OTHERS])
def test_only_new_bytes_are_parsed(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    field = OTHERS[protocol][0] if protocol in OTHERS else "messages"
    lengths: list[int] = []

    def counted(data: bytes | str) -> tuple[Any, int]:
        lengths.append(len(data))
        return json_of(data)

    def counted_whole(body: bytes, notes: Notes) -> dict[str, Any]:
        lengths.append(len(body))
        return body_of(body, notes)

    monkeypatch.setattr(beginnings, "json_of", counted)
    monkeypatch.setattr(beginnings, "body_of", counted_whole)
    reader = _reader(protocol)
    messages: list[Any] = []
    tools = [{"name": "bash", "description": "x" * 20_000}]
    for number in range(50):
        role = "assistant" if number % 2 else "user"
        if protocol == "gemini":
            parts = [{"text": "y" * 2_000}]
            messages.append(
                {"role": role.replace("assistant", "model"), "parts": parts}
            )
        else:
            messages.append({"role": role, "content": "y" * 2_000})
        frame = {"model": "m", field: messages, "tools": tools}
        read = _read(reader, json.dumps(frame).encode(), protocol)
        assert isinstance(read, WireRequest)
        assert len(read.messages) == number + 1
    assert lengths[0] > 20_000
    assert max(lengths[1:]) < 2_200
    assert len(lengths) == 50


def test_long_first_body_is_known_after_some_requests() -> None:
    reader = _reader()
    content = "y" * 100_000
    messages = [{"role": "user", "content": content} for _ in range(10)]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    for _ in range(6):
        read = _read(reader, body)
        assert isinstance(read, WireRequest)
        assert len(read.messages) == 10
    ((_, beginning),) = reader._known
    assert len(beginning.pieces) == 10
    assert beginning.closing == b"]}"


def test_known_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "_MOST_BYTES", 10_000)
    reader = _reader()
    for number in range(20):
        message = {"role": "user", "content": f"{number}" + "y" * 3_000}
        _read(reader, json.dumps({"messages": [message]}).encode())
    assert (
        sum(beginning.length for _, beginning in reader._known)
        == reader._bytes
        <= 10_000
    )
    assert len(reader._known) == 3
