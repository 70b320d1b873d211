"""Only complete base64 goes to a blob early, and it is restored unchanged."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.guard import (
    FROM_BYTES,
    Limits,
    filled,
    guard,
    restored,
    start_of_payload,
)
from refold.redaction.redactor import Redactor

LIMITS = Limits()
HEAD = "data:image/png;base64,"
redactor = Redactor()


def binary(size: int, seed: int = 7) -> bytes:
    return Random(seed).randbytes(size)


def encoded(size: int = 3900, seed: int = 7) -> str:
    return b64encode(binary(size, seed)).decode()


def in_lines(text: str, width: int, end: str = "\n") -> str:
    return end.join(text[at : at + width] for at in range(0, len(text), width))


payloads = st.builds(
    lambda size, seed, urlsafe, head, width, end: (
        head + in_lines(_written(binary(size, seed), urlsafe=urlsafe), width) + end
    ),
    st.integers(3072, 9000),
    st.integers(),
    st.booleans(),
    st.sampled_from(
        ("", HEAD, "data:;base64,", "data:text/plain;charset=utf-8;base64,")
    ),
    st.sampled_from((64, 76, 100_000)),
    st.sampled_from(("", "\n")),
)


def _written(data: bytes, *, urlsafe: bool) -> str:
    if urlsafe:
        return urlsafe_b64encode(data).decode().rstrip("=")
    return b64encode(data).decode()


@given(payloads, st.text(max_size=20))
@settings(deadline=None, max_examples=60)
def test_a_payload_is_moved_once_and_restored_completely(
    text: str, beside: str
) -> None:
    payload: Any = {"text": text, "deep": [{"data": text}, beside]}

    guarded = guard(payload, LIMITS)

    (blob,) = guarded.blobs
    stub = str(guarded.payload["text"])
    again = guard(guarded.payload, LIMITS)
    assert blob.data == text.encode()
    assert len(stub) < 400
    assert restored(guarded.payload, {blob.sha256: blob.data}.get) == payload
    assert filled(guarded.payload, {blob.sha256: blob.data}.get) == payload
    assert again.payload is guarded.payload
    assert not again.blobs
    assert redactor.value(guarded.payload)[0] is guarded.payload


def test_of_a_data_uri_its_head_stays_and_of_bare_base64_nothing() -> None:
    text = encoded()

    guarded = guard({"uri": HEAD + text, "bare": text}, LIMITS).payload

    missing = f"\n[refold: {len(text)} of {len(text)} bytes left out here; "
    in_uri = f"{HEAD}\n[refold: {len(text)} of {len(HEAD + text)} bytes left out here; "
    assert str(guarded["bare"]).startswith(missing)
    assert str(guarded["uri"]).startswith(in_uri)
    assert str(guarded["uri"]).endswith('")]\n')


def test_a_payload_below_the_bound_stays() -> None:
    at = encoded(FROM_BYTES // 4 * 3)

    assert guard({"a": at}, LIMITS).blobs
    assert not guard({"a": at[4:]}, LIMITS).blobs


@pytest.mark.parametrize(
    "text",
    [
        "a" * 8000,
        "A" * 8000,
        "Aa1" * 2000 + "A",
        "0123456789abcdef" * 500,
        "0123456789ABCDEF" * 500,
        "thequickbrownfoxjumpsoverthelazydog1" * 200,
        "TheQuickBrownFoxJumpsOverTheLazyDog1" * 200,
        "MAX_RETRIES_2" * 400,
        encoded() + " ",
        "see " + encoded(),
        encoded()[:-4] + "=" + encoded()[:3],
        encoded(3901).rstrip("=") + "+/a",
        encoded()[:2000] + "[REDACTED:API_KEY]" + encoded()[2000:],
        in_lines(encoded(), 16),
        encoded()[:100] + "\n" + encoded()[100:],
        "data:image/png," + encoded(),
        "data:image/png;base64," + "not base64 at all. " * 300,
        HEAD + encoded()[:-1],
        "https://example.org/?data:image/png;base64," + encoded(),
        "密码" * 3000,
    ],
)
def test_text_that_only_looks_encoded_stays(text: str) -> None:
    payload: Any = {"text": text}

    assert guard(payload, LIMITS).payload is payload


def test_a_uri_with_a_base64_marker_is_recognized_by_it() -> None:
    assert start_of_payload(HEAD + "A" * 8000) == len(HEAD)
    assert start_of_payload("A" * 8000) is None


@pytest.mark.parametrize(
    "plain", ["An event is immutable, version 2.\n", "密码不写入 1"]
)
def test_text_in_base64_counts_too(plain: str) -> None:
    assert start_of_payload(b64encode((plain * 300).encode()).decode()) == 0


def test_the_ends_of_a_payload_over_the_limit_are_kept() -> None:
    text = encoded(60_000)

    guarded = guard({"a": text}, LIMITS)

    (blob,) = guarded.blobs
    assert str(guarded.payload["a"]).startswith(text[:20_000])
    assert restored(guarded.payload, {blob.sha256: blob.data}.get) == {"a": text}
    assert filled(guarded.payload, {blob.sha256: blob.data}.get) == guarded.payload


def test_skipped_texts_are_not_moved() -> None:
    payload: Any = {"thinking": [{"signature": encoded(), "data": encoded(5000)}]}
    skip = frozenset({("thinking", "*", "signature"), ("thinking", "*", "data")})

    assert guard(payload, LIMITS, skip=skip).payload is payload


def test_a_stub_is_filled_only_with_its_own_text() -> None:
    guarded = guard({"a": encoded()}, LIMITS)
    prose = b"not encoded " * 400
    other = encoded(4200).encode()

    assert filled(guarded.payload, lambda _: prose) == guarded.payload
    assert filled(guarded.payload, lambda _: other) == guarded.payload
    assert filled(guarded.payload, lambda _: None) == guarded.payload
