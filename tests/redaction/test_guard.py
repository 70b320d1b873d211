"""The size guard: a truncated text says so, and the complete text is available."""

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from refold.redaction.guard import Limits, TooLarge, guard
from refold.redaction.redactor import Redactor
from tests.redaction.samples import keys, texts

SMALL = Limits(leaf_bytes=1024, event_bytes=200_000)
STUB = re.compile(
    r"\n\[refold: (\d+) of (\d+) bytes left out here; "
    r'whole text: session\.blob\("([0-9a-f]{64})"\)\]\n'
)
redactor = Redactor()
long_texts = st.builds(
    lambda parts, times: "".join(parts * times),
    st.lists(texts, min_size=1, max_size=8),
    st.integers(1, 12),
)
payloads = st.dictionaries(
    keys.filter(lambda key: len(key) < 200),
    long_texts | st.lists(long_texts, max_size=2),
    max_size=3,
)


def guarded_text(text: str, limits: Limits = SMALL) -> str:
    return str(guard({"text": text}, limits).payload["text"])


@given(long_texts, st.sampled_from(("x", "and ", "a line\n", "密码")))
@settings(deadline=None)
def test_a_stub_tells_the_truth(start: str, rest: str) -> None:
    text = start + rest * 1025
    guarded = guard({"text": text}, SMALL)
    cut = str(guarded.payload["text"])
    (blob,) = guarded.blobs
    stubs = [m for m in STUB.finditer(cut) if m[3] == blob.sha256]
    head = cut[: stubs[-1].start()]
    tail = cut[stubs[-1].end() :]

    assert text.startswith(head)
    assert text.endswith(tail)
    assert blob.data == text.encode()
    assert blob.sha256 == hashlib.sha256(blob.data).hexdigest()
    assert int(stubs[-1][2]) == len(blob.data)
    assert int(stubs[-1][1]) == len(blob.data) - len((head + tail).encode())
    assert len(cut.encode()) <= 1024


@given(payloads)
@settings(deadline=None)
def test_guarding_twice_changes_nothing(payload: Any) -> None:
    guarded = guard(payload, SMALL).payload

    again = guard(guarded, SMALL)

    assert again.payload is guarded
    assert not again.blobs


@given(payloads)
@settings(deadline=None, max_examples=50)
def test_redacting_a_guarded_value_again_changes_nothing(payload: Any) -> None:
    # A value refused because of a command before it may be found without that.
    assume("ssh " not in str(payload))
    guarded = guard(redactor.value(payload)[0], SMALL).payload

    assert redactor.value(guarded)[0] is guarded


def test_a_payload_within_the_limits_is_returned_itself() -> None:
    payload: Any = {"text": "x" * 1024, "n": [1, None, {"a": 2.5}]}

    assert guard(payload, SMALL).payload is payload


def test_three_eighths_are_head_and_one_eighth_is_tail() -> None:
    head, tail = STUB.split(guarded_text("x" * 5000))[::4]

    assert (len(head), len(tail)) == (384, 128)


def test_a_text_is_cut_between_lines_where_it_has_any() -> None:
    head, tail = STUB.split(guarded_text("one line\n" * 500))[::4]

    assert head == "one line\n" * 42
    assert tail == "one line\n" * 14


@pytest.mark.parametrize("character", ["é", "中", "😀"])
def test_no_character_is_cut_in_two(character: str) -> None:
    head, tail = STUB.split(guarded_text("x" + character * 2000))[::4]

    assert set(head) == {"x", character}
    assert set(tail) == {character}


@pytest.mark.parametrize("shift", range(24))
def test_no_placeholder_is_cut_in_two(shift: int) -> None:
    text = "x" * shift + "[REDACTED:STUDENT_ID]" * 100

    head, tail = STUB.split(guarded_text(text))[::4]

    assert re.fullmatch(r"x*(\[REDACTED:STUDENT_ID\])+", head)
    assert re.fullmatch(r"(\[REDACTED:STUDENT_ID\])+", tail)


def test_equal_texts_share_a_blob() -> None:
    text = "x" * 2000

    assert len(guard({"a": text, "b": [text]}, SMALL).blobs) == 1


def test_the_original_payload_is_not_changed() -> None:
    payload: Any = {"a": ["x" * 2000], "b": {"c": 1}}

    guarded = guard(payload, SMALL).payload

    assert payload["a"] == ["x" * 2000]
    assert guarded["b"] is payload["b"]


def test_skipped_texts_are_not_cut() -> None:
    payload: Any = {"thinking": [{"signature": "x" * 2000}]}

    skip = frozenset({("thinking", "*", "signature")})

    assert guard(payload, SMALL, skip=skip).payload is payload


def test_a_payload_that_stays_too_large_is_refused() -> None:
    payload: Any = {"rows": list(range(1000))}

    with pytest.raises(TooLarge) as raised:
        guard(payload, Limits(1024, 1024))

    size = len(json.dumps(payload, separators=(",", ":")))
    assert (raised.value.size, raised.value.limit) == (size, 1024)


def test_a_key_over_the_limit_is_refused_and_not_shown() -> None:
    with pytest.raises(TooLarge) as raised:
        guard({"a": [{"k" * 1025: 1}]}, SMALL)

    assert (raised.value.size, raised.value.limit) == (1025, 1024)
    assert "kkk" not in str(raised.value)


def test_integers_over_64_bits_are_measured_too() -> None:
    assert guard({"n": 2**70}, SMALL).payload == {"n": 2**70}


def test_no_repr_shows_a_text() -> None:
    guarded = guard({"text": "hunter2 " * 500}, SMALL)

    assert "hunter2" not in repr(guarded)
    assert "hunter2" not in repr(guarded.blobs)


@pytest.mark.parametrize(("leaf", "event"), [(1023, 2048), (4096, 2048), (0, 0)])
def test_limits_that_make_no_sense_are_refused(leaf: int, event: int) -> None:
    with pytest.raises(ValueError, match="limits must be"):
        Limits(leaf_bytes=leaf, event_bytes=event)
