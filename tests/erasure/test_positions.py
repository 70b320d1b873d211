"""A place in the log is given out once, whatever is erased in between."""

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


def places(store: SessionStore) -> list[int]:
    """The positions of all rows there are."""
    assert isinstance(store.log, EncryptedLog)
    notifications = store.log.recorder.select_notifications(None, 1000)
    return [int(notification.id) for notification in notifications]


def say(store: SessionStore, user: str, session: str) -> None:
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
def test_no_position_comes_again(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str]]
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('places')}/refold.db"
    highest = 0
    with refold.open(url) as store:
        for number, (act, user) in enumerate(done):
            name = f"{user}-{number}"
            if act == "append":
                before = {*places(store)}
                say(store, name, "s")
                fresh = {*places(store)} - before
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
        say(first_store, "ada", "s")
        say(first_store, "bob", "s")
        highest = max(places(first_store))

        second_store.erase("bob", "he asked")
        say(first_store, "ada", "s")

        assert len(places(first_store)) == 4
        assert max(places(first_store)) > highest
        assert sum(place > highest for place in places(first_store)) == 2
