"""The working memory is what state events set and unset, in order."""

from __future__ import annotations

from functools import reduce

from refold.domain.events import Event, JsonObject, StateUpdate, UserInput
from refold.store.history import fold_state
from tests.projections.logs import log_of


def state_of(*events: Event) -> JsonObject:
    return reduce(fold_state, log_of(*events), {})


def test_keys_are_set_replaced_and_unset() -> None:
    assert state_of(
        StateUpdate(set={"step": 1, "plan": ["a"]}),
        UserInput(text="hi"),
        StateUpdate(set={"step": 2}),
        StateUpdate(unset=("plan", "unknown")),
    ) == {"step": 2}


def test_a_key_that_one_event_unsets_and_sets_is_set() -> None:
    assert state_of(
        StateUpdate(set={"a": 1}), StateUpdate(set={"a": 2}, unset=("a",))
    ) == {"a": 2}


def test_the_state_before_an_event_stays_unchanged() -> None:
    before: JsonObject = {"a": 1}
    (event,) = log_of(StateUpdate(set={"b": 2}))

    after = fold_state(before, event)

    assert (before, after) == ({"a": 1}, {"a": 1, "b": 2})
