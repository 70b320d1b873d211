"""Operations on all users' sessions read them page by page and miss none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from refold import SessionStore, UserInput
from refold.adapters.sql.recorder import Recorder
from refold.domain.erasure import RetentionPolicy
from refold.domain.ports import SessionInfo

NAMES = [("ada", "s-1"), ("ada", "s-2"), ("bob", "s-1"), ("eve", "s-1"), ("eve", "s-2")]
OLD = RetentionPolicy(sessions=timedelta(microseconds=1))


def of(info: SessionInfo) -> tuple[str, str]:
    return info.user_id, info.session_id


LOOKS: dict[str, Callable[[SessionStore], list[Any]]] = {
    "verify": lambda store: [of(info) for info, _ in store.verify()],
    "recheck": lambda store: [of(check.session) for check in store.recheck()],
    "reredact": lambda store: [of(result.session) for result in store.reredact()],
    "repair": lambda store: [stream[:2] for stream, _ in store.repair()],
    "retain": lambda store: store.erasures.retain(OLD, dry_run=True).sessions,
    "costs": lambda store: NAMES if store.costs() == [] else [],
    "reviews": lambda store: NAMES if store.reviews.list() == [] else [],
}


@contextmanager
def recorded_limits(patch: pytest.MonkeyPatch) -> Iterator[list[int | None]]:
    """Record the page size of every request for the sessions of all users."""
    limits: list[int | None] = []
    sessions = Recorder.sessions

    def recording_sessions(
        recorder: Recorder, user_id: Any, *of: Any, **how: Any
    ) -> Any:
        limits.extend([how.get("limit")] if user_id is None else [])
        return sessions(recorder, user_id, *of, **how)

    with patch.context() as patched:
        patched.setattr(Recorder, "sessions", recording_sessions)
        patched.setattr("refold.domain.ports.PAGE", 2)
        yield limits


@pytest.mark.parametrize("look", LOOKS)
def test_all_sessions_are_seen_in_small_pages(
    store: SessionStore, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user, name in NAMES:
        store.session(user_id=user, session_id=name).append(UserInput(text="hello"))

    with recorded_limits(monkeypatch) as limits:
        listed = LOOKS[look](store)

    assert listed == NAMES
    assert limits == [2, 2, 2]
