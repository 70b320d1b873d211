"""A glance only ever saves work: what it passes, a whole walk finds nothing in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.redaction.documents import Around, Glance, Work, redacted
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.settler import Settler
from refold.redaction.values import NO_SKIP, JsonValue, Skip
from tests.redaction.samples import KEYED, KEYS, PLANTED

MAIL = "lin.wei@mail.example.org"
PLAN = Redactor().plan
SETTLER = Settler(PLAN, Redactor(PLAN).scanner)
GLANCE = Glance(SETTLER)
LOOSE = (
    "the password is in the safe",
    "enter 3 of 12345678 rooms",
    "call 42 people by 2026-01-31",
    "api key rotation",
    "an id and 1234567 rows",
    "[1, 2]",
    '{"text": "a"}',
    "[REDACTED:PHONE] 5",
    "",
    "-u",
)
texts = st.one_of(
    st.sampled_from(LOOSE),
    st.sampled_from([planted.text for planted in PLANTED]),
    st.text("abc 。\n", max_size=20),
)
keys = st.sampled_from(
    [
        *("text", "content", "note", "a", "value", "name", "password", "phone", MAIL),
        *sorted({key for kind in KEYS.values() for key in kind}),
    ]
)
bare = st.sampled_from([planted.value for planted in (*PLANTED, *KEYED)])
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(texts, bare, st.none(), st.booleans(), st.integers(), st.floats()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


def walked(value: JsonValue, skip: Skip = NO_SKIP) -> JsonValue:
    return redacted(value, Work(SETTLER), Around(skip))[0]


@given(st.dictionaries(keys, values, max_size=4))
def test_what_it_passes_stays_as_it_is(value: dict[str, Any]) -> None:
    if GLANCE.sees_nothing(value, NO_SKIP):
        assert walked(value) is value


@pytest.mark.parametrize("loose", LOOSE[:5])
def test_words_alone_are_passed(loose: str) -> None:
    value: JsonValue = {"text": loose, "content": [{"type": "text", "text": loose}]}

    assert GLANCE.sees_nothing(value, NO_SKIP)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"text": text},
        lambda text: {"content": [{"type": "text", "text": text}]},
        lambda text: {"arguments": {"command": text, "n": 1}},
    ],
)
def test_a_value_is_not_passed(wrap: Callable[[str], Any]) -> None:
    assert not GLANCE.sees_nothing(wrap(f"write to {MAIL}"), NO_SKIP)
    assert not GLANCE.sees_nothing(wrap(f'["{MAIL}"]'), NO_SKIP)


def test_what_is_left_alone_is_not_looked_at() -> None:
    value: JsonValue = {"call_id": MAIL, "text": "the password is long"}

    assert GLANCE.sees_nothing(value, frozenset({("call_id",)}))
    assert not GLANCE.sees_nothing(value, frozenset({("text",)}))
    assert not GLANCE.sees_nothing({"b": value}, frozenset({("call_id",)}))
    assert walked(value, frozenset({("call_id",)})) is value


@pytest.mark.parametrize(
    "plan",
    [
        Plan(skip=frozenset({("note",)})),
        Plan(skip_keys=frozenset({"note"})),
        Plan(budget_ms=1000),
        Plan(on_error="drop_leaf"),
    ],
)
def test_plans_with_more_to_ask_are_not_for_a_glance(plan: Plan) -> None:
    glance = Glance(Settler(plan, SETTLER.scanner))

    assert not glance.sees_nothing({"text": "hello there"}, NO_SKIP)
