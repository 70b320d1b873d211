"""A provider sees placeholders, and the client gets the values back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import NotRecordable
from refold.adapters.proxy.placeholders import Placeholders, RevealedStream
from tests.fuzz import wire
from tests.support.provider_shapes import Answer, Call, Protocol, Shape, shape

VALUES = {
    "[EMAIL_1]": "ada@example.org",
    "[EMAIL_12]": 'o"brien\\x@example.org',
    "[PHONE_1.2]": "+1 415 555 0132",
    "[PERSON_1]": "Ada\nLovelace",
}
PLACEHOLDERS = Placeholders(VALUES)
# Texts with placeholders, whole ones and such that only begin like one.
WORDS = st.sampled_from(
    [*VALUES, "[", "[EM", "[EMAIL_1", "[EMAIL_7]", " ", "ok", "[[1]"]
)
TEXTS = st.lists(WORDS, max_size=8).map("".join)


def revealed(text: str) -> str:
    """Return a text with the values, by another way than the code's."""
    for name, value in VALUES.items():
        text = text.replace(name, value)
    return text


@st.composite
def replies(draw: st.DrawFn) -> Answer:
    """Answers whose text and arguments have placeholders."""
    calls: list[Call] = []
    for number in range(draw(st.integers(0, 2))):
        arguments = {"to": draw(TEXTS), "list": [draw(TEXTS)]}
        calls.append(Call("send", arguments, f"call_{number}"))
    return Answer(draw(TEXTS), "", tuple(calls))


def with_values(reply: Answer) -> Answer:
    """Return an answer with values in place of its placeholders."""
    calls: list[Call] = []
    for call in reply.calls:
        assert not isinstance(call.arguments, str)
        arguments = {
            "to": revealed(call.arguments["to"]),
            "list": [revealed(call.arguments["list"][0])],
        }
        calls.append(replace(call, arguments=arguments))
    return replace(reply, text=revealed(reply.text), calls=tuple(calls))


def shaped(name: Protocol, reply: Answer) -> Shape:
    """Return an answer in the form of a protocol."""
    request = {"model": "m", "stream_options": {"include_usage": True}}
    return shape(name, reply, request, wire.PATHS[name])


def events_of(name: Protocol, body: bytes) -> list[Any]:
    """Return the events in an answer."""
    answer = protocols.named(name).answer(200, {}, body, complete=True)
    assert answer.complete
    assert answer.warnings == ()
    return [event.payload() for event in answer.events]


def cut(body: bytes, sizes: list[int]) -> list[bytes]:
    """Return a body in pieces of these sizes, again and again."""
    pieces: list[bytes] = []
    while body:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(body[:size])
        body = body[size:]
    return pieces


@pytest.mark.parametrize("name", wire.PATHS)
@given(reply=replies(), sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5))
def test_a_stream_gives_the_values_back_wherever_it_is_cut(
    name: Protocol, reply: Answer, sizes: list[int]
) -> None:
    sent = shaped(name, reply)
    body = b"".join(sent.frames())
    stream = RevealedStream(
        PLACEHOLDERS, name, is_events=sent.framing in ("sse", "named-sse")
    )

    output = b"".join(stream.feed(piece) for piece in cut(body, sizes)) + stream.end()

    expected = json.dumps(shaped(name, with_values(reply)).body).encode()
    assert events_of(name, output) == events_of(name, expected)


@pytest.mark.parametrize("name", wire.PATHS)
@given(reply=replies())
def test_a_whole_answer_gives_the_values_back(name: Protocol, reply: Answer) -> None:
    stream = RevealedStream(PLACEHOLDERS, name, is_events=False)

    output = stream.feed(json.dumps(shaped(name, reply).body).encode()) + stream.end()

    expected = json.dumps(shaped(name, with_values(reply)).body).encode()
    assert events_of(name, output) == events_of(name, expected)


@pytest.mark.parametrize("name", wire.PATHS)
@given(reply=replies().map(with_values))
def test_a_stream_without_placeholders_is_passed_on_byte_for_byte(
    name: Protocol, reply: Answer
) -> None:
    text = reply.text.replace("[", "(")
    sent = shaped(name, Answer(text))
    body = b"".join(sent.frames())
    stream = RevealedStream(
        PLACEHOLDERS, name, is_events=sent.framing in ("sse", "named-sse")
    )

    assert stream.feed(body) + stream.end() == body


TEXTS_WITH_VALUES = st.lists(
    st.sampled_from([*VALUES.values(), " ", "x", '"', "\\", "é", "\n"]), max_size=6
).map("".join)
BODIES = st.recursive(
    TEXTS_WITH_VALUES | st.integers(-(10**30), 10**30) | st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "id", "data", "ada@example.org"]),
            inner,
            max_size=3,
        )
    ),
)


@given(body=BODIES, ascii_only=st.booleans())
def test_a_request_has_no_value_and_only_placeholders_in_their_place(
    body: Any, ascii_only: bool
) -> None:
    sent = json.dumps(body, ensure_ascii=ascii_only).encode()

    hidden = PLACEHOLDERS.hidden(sent)

    for value in VALUES.values():
        assert json.dumps(value)[1:-1].encode() not in hidden
    assert PLACEHOLDERS.revealed_value(json.loads(hidden)) == body


def test_texts_that_a_provider_signed_are_not_changed() -> None:
    block = {
        "type": "thinking",
        "thinking": "ada@example.org",
        "signature": "ada@example.org",
    }
    body = json.dumps({"content": [block], "text": "ada@example.org"}).encode()

    hidden = json.loads(PLACEHOLDERS.hidden(body))

    assert hidden == {"content": [block], "text": "[EMAIL_1]"}
    assert PLACEHOLDERS.revealed_value({**block, "thinking": "[EMAIL_1]"}) == {
        **block,
        "thinking": "[EMAIL_1]",
    }


@pytest.mark.parametrize("kind", [["string"], {"const": "thinking"}, None, 1])
def test_an_answer_may_have_any_json_as_a_type(kind: Any) -> None:
    value = {"type": kind, "text": "[EMAIL_1]"}

    assert PLACEHOLDERS.revealed_value(value) == {**value, "text": "ada@example.org"}


def test_short_values_in_files_are_there_by_chance() -> None:
    placeholders = Placeholders({"[PERSON_1]": "Ada", "[KEY_1]": "k" * 40})
    picture = "Ada" * 100
    body = json.dumps({"data": picture, "text": "k" * 40 + picture}).encode()

    hidden = json.loads(placeholders.hidden(body))

    assert hidden == {"data": picture, "text": "[KEY_1]" + picture}


def test_numbers_and_spaces_of_a_request_stay_as_they_are() -> None:
    body = b'{ "n": 123456789012345678901234567890, "t" : "ada@example.org" }'

    hidden = PLACEHOLDERS.hidden(body)

    assert hidden == b'{ "n": 123456789012345678901234567890, "t" : "[EMAIL_1]" }'


def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(NotRecordable):
        PLACEHOLDERS.hidden(b"to=ada@example.org")


def test_a_longer_value_wins_over_a_shorter_one_in_it() -> None:
    placeholders = Placeholders({"[PERSON_1]": "Ada", "[EMAIL_1]": "Ada@example.org"})

    hidden = placeholders.hidden(b'{"text":"Ada@example.org, Ada"}')

    assert hidden == b'{"text":"[EMAIL_1], [PERSON_1]"}'
