"""Files that nobody would write, but somebody may send, are refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tests.fuzz.targets import FUZZED, SECRET

CHUNKS = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [
            b"{",
            b"}",
            b"[",
            b"]",
            b'"',
            b"\\",
            b"\x00",
            b"\xff",
            b"\n",
            b"null",
            b"1e999",
            b"-0",
            b"9" * 40,
            b"\\ud800",
            b"[" * 2000,
            "１3".encode(),
            SECRET.encode(),
        ]
    ),
)


@st.composite
def changed(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with parts cut out, put twice, or something else in their place."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        part = draw(st.one_of(CHUNKS, st.just(data[start:end] * 2)))
        data = data[:start] + part + data[end:]
    return data


@pytest.mark.parametrize("name", FUZZED)
def test_any_input_is_accepted_or_refused(name: str) -> None:
    fuzzed = FUZZED[name]

    @given(changed(fuzzed.seeds))
    @settings(max_examples=fuzzed.examples)
    def holds(data: bytes) -> None:
        fuzzed.target(data)

    holds()


@pytest.mark.parametrize("name", FUZZED)
@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 100, b"{" * 100_000])
def test_the_worst_is_refused(name: str, data: bytes) -> None:
    FUZZED[name].target(data)
