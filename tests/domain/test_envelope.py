"""A stored envelope equals the original, whichever field is used first."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from refold.domain.envelope import NO_META, Envelope
from refold.domain.events import UserInput
from refold.domain.ids import StreamId

FIELDS: dict[str, Any] = {
    "seq": 7,
    "type": "user_input",
    "user_id": "ada",
    "session_id": "s-1",
    "stream": "main",
    "request_id": None,
    "agent": None,
    "payload": UserInput(text="hello"),
    "redacted": True,
    "redaction": {},
    "token_estimate": 3,
    "schema_version": 1,
    "meta": NO_META,
}
TS = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
AT = 1_767_323_045_678_901
LATE: dict[str, Any] = {
    "ts": TS,
    "event_id": UUID(int=5),
    "prev_hash": "01" * 32,
    "hash": "02" * 32,
}
MADE = Envelope(**FIELDS, **LATE)


HELD = ("payload", "redaction", "meta", "request_id", "agent")


def stored_envelope(ts: int = AT, hash_: bytes = b"\x02" * 32) -> Envelope:
    id_ = UUID(int=5).bytes
    place = StreamId("ada", "s-1")
    columns = (place, 7, "user_input", ts, id_, 3, 1)
    return Envelope.proved(columns, b"\x01" * 32, hash_, b"{}", decoded_fields)


def decoded_fields(*_: object) -> dict[str, Any]:
    return {**{name: FIELDS[name] for name in HELD}, "blobs": ("ab",)}


@pytest.mark.parametrize(
    "shown",
    [
        Envelope.to_json,
        Envelope.model_dump,
        Envelope.model_dump_json,
        repr,
        dict,
        lambda envelope: envelope.at,
        lambda envelope: [getattr(envelope, name) for name in LATE],
    ],
)
def test_a_stored_envelope_shows_the_same(shown: Callable[[Envelope], object]) -> None:
    assert shown(stored_envelope()) == shown(MADE)


def test_fields_of_a_stored_envelope_have_the_same_order() -> None:
    asked = stored_envelope()
    assert asked.hash == MADE.hash

    assert list(asked.to_json()) == list(MADE.to_json())
    assert list(dict(stored_envelope())) == list(dict(MADE))


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        Envelope.model_copy,
        lambda envelope: pickle.loads(pickle.dumps(envelope)),  # noqa: S301  # our own
    ],
)
def test_a_copy_equals_the_original(copied: Callable[[Envelope], Envelope]) -> None:
    assert copied(stored_envelope()) == MADE
    assert copied(stored_envelope()).to_json() == MADE.to_json()


def test_a_copy_with_another_time_has_that_time() -> None:
    later = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)

    changed = stored_envelope().model_copy(update={"ts": later})

    assert (changed.ts, changed.at) == (later, 1_767_323_046_000_000)


def test_another_hash_or_time_is_another_envelope() -> None:
    assert stored_envelope(ts=AT + 1) != MADE
    assert stored_envelope(hash_=b"\x03" * 32) != MADE


@pytest.mark.parametrize("asked", [*HELD, "blobs"])
def test_encrypted_fields_are_decoded_once_at_first_use(asked: str) -> None:
    decoded: list[object] = []

    def noted(*arguments: object) -> dict[str, Any]:
        decoded.append(arguments)
        return decoded_fields()

    columns = (StreamId("ada", "s-1"), 7, "user_input", AT, UUID(int=5).bytes, 3, 1)
    envelope = Envelope.proved(columns, b"", b"", b"what it holds", noted)
    assert (envelope.seq, envelope.user_id, envelope.at) == (7, "ada", AT)
    before = list(decoded)

    for name in (asked, *HELD, "blobs"):
        getattr(envelope, name)

    assert before == []
    assert decoded == [(columns, b"what it holds")]


def test_a_copy_keeps_its_changes() -> None:
    user_input = UserInput(text="another")

    changed = stored_envelope().model_copy(update={"payload": user_input, "seq": -1})

    assert (changed.agent, changed.payload, changed.seq) == (None, user_input, -1)
    assert changed.blobs == ("ab",)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        stored_envelope().nothing  # noqa: B018  # the access is what is tested
