"""An envelope that was read is the one that was made, whatever is asked of it first."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from refold.domain.envelope import NO_META, Envelope, Late
from refold.domain.events import UserInput

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


def read() -> Envelope:
    late = Late(AT, UUID(int=5).bytes, b"\x01" * 32, b"\x02" * 32)
    return Envelope.proved(dict(FIELDS), late)


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
def test_it_shows_the_same(shown: Callable[[Envelope], object]) -> None:
    assert shown(read()) == shown(MADE)


def test_its_fields_stand_in_the_same_order() -> None:
    asked = read()
    assert asked.hash == MADE.hash

    assert list(asked.to_json()) == list(MADE.to_json())
    assert list(dict(read())) == list(dict(MADE))


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        Envelope.model_copy,
        lambda envelope: pickle.loads(pickle.dumps(envelope)),  # noqa: S301  # our own
    ],
)
def test_a_copy_is_the_same(copied: Callable[[Envelope], Envelope]) -> None:
    assert copied(read()) == MADE
    assert copied(read()).to_json() == MADE.to_json()


def test_a_copy_with_another_time_has_that_time() -> None:
    later = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)

    changed = read().model_copy(update={"ts": later})

    assert (changed.ts, changed.at) == (later, 1_767_323_046_000_000)


def test_another_hash_or_time_is_another_envelope() -> None:
    for other in (
        Late(AT + 1, UUID(int=5).bytes, b"\x01" * 32, b"\x02" * 32),
        Late(AT, UUID(int=5).bytes, b"\x01" * 32, b"\x03" * 32),
    ):
        assert Envelope.proved(dict(FIELDS), other) != MADE


def test_what_it_does_not_have_it_does_not_make() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        read().nothing  # noqa: B018  # the access is what is tested
