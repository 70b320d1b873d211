"""Helpers for tests of seals: sealing, verifying, and stopping in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import refold
from refold.adapters import config
from refold.adapters.sql.tree import Tree
from refold.domain.seals import SealsVerified
from refold.store import SessionStore
from tests.support.nested import problems_of
from tests.support.waiting import PATIENCE_SEC


def append_to_each(store: SessionStore, *names: str, text: str = "x") -> None:
    """Append an event to each of these sessions."""
    for name in names:
        store.session(user_id="ada", session_id=name).append(
            refold.UserInput(text=text)
        )


def verified_seals(store: SessionStore) -> SealsVerified:
    """Return the verified seals, and assert that no session has a problem."""
    assert problems_of(store.verify()) == []
    verified = store.verify_seals()
    assert verified is not None
    return verified


def anchor_file() -> Path:
    (anchor,) = (config.home() / "anchors").glob("*.jsonl")
    return anchor


def sealed_heads(store: SessionStore) -> list[tuple[str, int]]:
    """Return the session and seq of each leaf, in order."""
    tree: Any = store.seals
    leaves = [
        (seal.leaf, name, seal.seq)
        for name in (info.session_id for info in store.sessions(internal=True))
        for seal in tree.tree.seals(
            store.session(user_id="ada", session_id=name).stream
        )
    ]
    return [(name, seq) for _, name, seq in sorted(leaves)]


@contextmanager
def paused_sealer(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Event, Event]]:
    """A sealer that stops after most of its writes and before its commit.

    SQLite allows one writer, so there it stops before its first write.
    """
    reached = Event()
    go_on = Event()
    sqlite = store.stats()["engine"] == "sqlite"
    name = "add" if sqlite else "_insert"
    method: Callable[..., Any] = getattr(Tree, name)

    def pausing(*arguments: Any) -> Any:
        done = None if sqlite else method(*arguments)
        reached.set()
        assert go_on.wait(PATIENCE_SEC)
        return method(*arguments) if sqlite else done

    monkeypatch.setattr(Tree, name, pausing)
    try:
        yield reached, go_on
    finally:
        go_on.set()
