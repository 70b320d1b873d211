"""A tree head is signed whole, and read again as what it was or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.domain.seals import TreeHead

HEAD = TreeHead("store", 3, b"r" * 32, 5, 7, "key", b"s" * 64)
heads = st.builds(
    TreeHead,
    st.text(),
    st.integers(),
    st.binary(),
    st.integers(),
    st.integers(),
    st.text(),
    st.binary(),
)


@given(heads)
def test_it_is_read_as_it_was_written(head: TreeHead) -> None:
    assert TreeHead.from_json(json.loads(json.dumps(head.to_json()))) == head


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_else_is_none(value: Any) -> None:
    with pytest.raises(ValueError, match="no tree head"):
        TreeHead.from_json(value)


@pytest.mark.parametrize("name", TreeHead._fields)
@pytest.mark.parametrize("wrong", [None, True, 1.5, [], "zz", {}])
def test_a_field_of_another_kind_is_refused(name: str, wrong: Any) -> None:
    if name in ("store_id", "key_id") and wrong == "zz":
        wrong = 1
    with pytest.raises(ValueError, match=r"no tree head|fromhex"):
        TreeHead.from_json({**HEAD.to_json(), name: wrong})


@pytest.mark.parametrize(
    "other",
    [
        HEAD._replace(store_id="other"),
        HEAD._replace(size=4),
        HEAD._replace(root=b"o" * 32),
        HEAD._replace(sealed_at=6),
        HEAD._replace(position=8),
    ],
)
def test_all_that_it_says_is_signed(other: TreeHead) -> None:
    assert other.message() != HEAD.message()
