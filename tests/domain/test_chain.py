"""The chain binds every column and byte; digests do not depend on the order of keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.domain.canonical import canonical, digest, repaired
from refold.domain.chain import GENESIS, Header, encoded, event_hash, length_prefixed
from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.ids import StreamId
from refold.domain.tokens import estimate, estimate_text

HEADER = Header(StreamId("u", "s"), 1, "user_input", 5, bytes(16), 3, 1)
PINNED = "c014dcacb1478fa85e4176e5e9237997518ea4067102281d45a47f5afb649257"
CHANGES: dict[str, Any] = {
    "stream": StreamId("us", ""),
    "seq": 2,
    "type": "final",
    "ts": 6,
    "event_id": b"\1" * 16,
    "token_estimate": 4,
    "schema_version": 2,
}


@pytest.mark.parametrize("name", Header._fields)
def test_every_plain_column_is_in_the_header(name: str) -> None:
    changed = Header(**{**HEADER._asdict(), name: CHANGES[name]})

    assert encoded(changed) != encoded(HEADER)


@pytest.mark.parametrize("name", ["seq", "ts", "token_estimate", "schema_version"])
def test_a_fraction_has_no_header(name: str) -> None:
    fraction = getattr(HEADER, name) + 0.5

    with pytest.raises(TypeError):
        encoded(HEADER._replace(**{name: fraction}))


def test_a_hash_depends_on_every_part() -> None:
    base = event_hash(GENESIS, b"header", b"body")

    assert base != event_hash(b"\1" * 32, b"header", b"body")
    assert base != event_hash(GENESIS, b"headeR", b"body")
    assert base != event_hash(GENESIS, b"header", b"bodY")
    assert base.hex() == PINNED


@given(st.lists(st.binary(max_size=5), max_size=5), st.lists(st.binary(max_size=5)))
def test_different_parts_never_give_the_same_bytes(
    first: list[bytes], second: list[bytes]
) -> None:
    assert (length_prefixed(first) == length_prefixed(second)) == (first == second)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), json_values, max_size=5))
def test_the_order_of_keys_changes_no_digest(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))

    clean, _ = repaired(value)
    assert digest(clean) == digest(repaired(backwards)[0])


@given(json_values)
def test_repaired_values_can_be_encoded(value: object) -> None:
    clean, changes = repaired(value)

    assert canonical(clean)
    assert repaired(clean) == (clean, 0)
    assert (changes == 0) == (clean == value)


def test_values_outside_of_json_are_replaced_and_counted() -> None:
    value = {"a\ud800": [10**30, float("nan"), "fine 😀"], "b": -(2**63)}

    assert repaired(value) == (
        {"a\ufffd": [str(10**30), "nan", "fine 😀"], "b": -(2**63)},
        3,
    )


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_are_kept_to_the_microsecond(value: datetime) -> None:
    assert from_microseconds(microseconds(value)) == value


@given(st.text(), st.text())
def test_more_text_never_costs_fewer_tokens(first: str, second: str) -> None:
    assert estimate_text(first + second) >= estimate_text(first)
    assert estimate({"a": [first, second]}) >= estimate_text(first)


def test_chinese_costs_more_per_character_than_english() -> None:
    assert estimate_text("构建失败了请看一下") > estimate_text("the build")
