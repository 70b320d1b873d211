"""A tree head is signed as a whole, and survives JSON unchanged."""

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
def test_a_tree_head_survives_json(head: TreeHead) -> None:
    assert TreeHead.from_json(json.loads(json.dumps(head.to_json()))) == head


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_other_json_is_no_tree_head(value: Any) -> None:
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
def test_every_field_of_a_tree_head_is_signed(other: TreeHead) -> None:
    assert other.message() != HEAD.message()
