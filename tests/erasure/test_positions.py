"""A position in the log is used once, whatever is erased in between."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters.log import EncryptedLog
from refold.store import SessionStore
from tests.support.stores import open_at, prepare

USERS = ("ada", "bob")
acts = st.lists(
    st.tuples(st.sampled_from(("append", "erase")), st.sampled_from(USERS)),
    min_size=2,
    max_size=8,
)


def positions(store: SessionStore) -> list[int]:
    """Return the positions of all rows."""
    assert isinstance(store.log, EncryptedLog)
    notifications = store.log.recorder.select_notifications(None, 1000)
    return [int(notification.id) for notification in notifications]


def append_input(store: SessionStore, user: str, session: str) -> None:
    with suppress(refold.errors.Erased):
        store.session(user_id=user, session_id=session).append(
            [refold.UserInput(text="hello")] * 2
        )


@given(acts)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_position_is_used_again(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str]]
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('places')}/refold.db"
    highest = 0
    with refold.open(url) as store:
        for number, (act, user) in enumerate(done):
            name = f"{user}-{number}"
            if act == "append":
                before = {*positions(store)}
                append_input(store, name, "s")
                fresh = {*positions(store)} - before
                assert min(fresh, default=highest + 1) > highest
                highest = max({highest, *fresh})
            else:
                for erased_user in {
                    info.user_id for info in store.sessions(internal=True)
                }:
                    if erased_user.startswith(user):
                        store.erase(erased_user, "they asked")


def test_a_deletion_elsewhere_raises_the_floor(store_url: str, tmp_path: Path) -> None:
    url = prepare(store_url, tmp_path)
    with (
        closing(open_at(url, tmp_path)) as first_store,
        closing(open_at(url, tmp_path)) as second_store,
    ):
        append_input(first_store, "ada", "s")
        append_input(first_store, "bob", "s")
        highest = max(positions(first_store))

        second_store.erase("bob", "he asked")
        append_input(first_store, "ada", "s")

        assert len(positions(first_store)) == 4
        assert max(positions(first_store)) > highest
        assert sum(place > highest for place in positions(first_store)) == 2
