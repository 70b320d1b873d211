"""A truncated text can be restored from its blob, and nothing else can."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import given, strategies as st

from refold.redaction.guard import Limits, guard, restored

SMALL = Limits(leaf_bytes=1024, event_bytes=1_048_576)
texts = st.builds(
    lambda words, times: " ".join(words) * times,
    st.lists(st.text(max_size=8), max_size=6),
    st.integers(0, 80),
)
payloads = st.dictionaries(
    st.text(max_size=6), st.recursive(texts, lambda inner: st.lists(inner, max_size=3))
)


def cut(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    guarded = guard(payload, SMALL)
    return guarded.payload, {blob.sha256: blob.data for blob in guarded.blobs}


@given(payloads)
def test_cut_payloads_are_restored(payload: dict[str, Any]) -> None:
    short, blobs = cut(payload)

    assert restored(short, blobs.get) == payload


def test_without_its_blob_a_text_stays_cut() -> None:
    short, blobs = cut({"a": "word " * 1000})

    assert len(blobs) == 1
    assert restored(short, lambda _: None) == short


def test_a_text_that_only_looks_cut_stays_as_it_is() -> None:
    data = b"something else"
    digest = hashlib.sha256(data).hexdigest()
    text = (
        "head\n[refold: 5 of 9 bytes left out here; "
        f'whole text: session.blob("{digest}")]\ntail'
    )

    assert restored({"a": text}, {digest: data}.get) == {"a": text}
