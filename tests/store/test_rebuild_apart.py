"""Several sessions are rebuilt in processes of their own; none holds up another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import refold
from refold.domain.ports import SessionInfo
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.store import SessionStore, rebuilds as rebuilding_all
from refold.store.rebuilds import can_fork
from tests.support.rebuilding import WINDOW, derived, rebuild, said
from tests.support.stores import open_at

pytestmark = pytest.mark.each_engine

NAMES = "abcd"


@pytest.fixture
def store(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SessionStore]:
    monkeypatch.setattr(rebuilding_all, "can_fork", lambda: True)
    with open_at(store_url, tmp_path) as store:
        for name in NAMES:
            said(store.session(user_id="ada", session_id=name), 6)
        yield store
    assert not multiprocessing.active_children()


class Tells:
    """Writes the process it runs in into its summaries."""

    costs = False

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        written = Abridged().summarise(source, target_tokens=target_tokens)
        return replace(written, text=f"process {os.getpid()}")


class Dies(Abridged):
    """Kills its process at the session that begins with question 100."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        if "question 100" in source.text:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().summarise(source, target_tokens=target_tokens)


class Refuses(Abridged):
    """Never writes a summary."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        raise refold.errors.SummarizerFailed("no")


def wrote(store: SessionStore, name: str) -> set[str]:
    made = derived(store.session(user_id="ada", session_id=name), WINDOW)
    return {str(record.get("text")) for record in made}


def test_the_same_is_made_as_by_one(store: SessionStore) -> None:
    walked: dict[str, int] = {}

    def told(info: SessionInfo, events: int) -> None:
        walked[info.session_id] = events

    done = list(store.rebuild(WINDOW, jobs=2, progress=told))

    made = [
        derived(store.session(user_id="ada", session_id=name), WINDOW) for name in NAMES
    ]
    assert sorted(one.session_id for one in done) == list(NAMES)
    assert walked == dict.fromkeys(NAMES, 12)
    said(store.session(user_id="ada", session_id="one"), 6)
    rebuild(store, WINDOW, session_id="one")
    assert made == [
        derived(store.session(user_id="ada", session_id="one"), WINDOW)
    ] * len(NAMES)
    assert [p for _, proved in store.verify() for p in proved.problems] == []


def test_other_processes_than_this_write(store: SessionStore) -> None:
    list(store.rebuild(WINDOW, summarizer=Tells(), jobs=2))

    by = set.union(*(wrote(store, name) for name in NAMES))
    assert len(by) == 2
    assert f"process {os.getpid()}" not in by


def test_a_killed_process_loses_no_other_session(store: SessionStore) -> None:
    said(store.session(user_id="ada", session_id="bad"), 6, first=100)

    done = list(store.rebuild(WINDOW, summarizer=Dies(), jobs=2))
    again = list(store.rebuild(WINDOW, jobs=2))

    problems = {one.session_id: one.problem for one in done}
    assert "was killed" in problems.pop("bad")
    assert problems == dict.fromkeys(NAMES, "")
    made = {one.session_id: (one.compactions, one.problem) for one in again}
    assert made == {**dict.fromkeys(NAMES, (0, "")), "bad": (2, "")}


def test_sessions_that_no_process_is_left_for_are_told(store: SessionStore) -> None:
    for name in ("bad", "worse"):
        said(store.session(user_id="a", session_id=name), 6, first=100)

    done = list(store.rebuild(WINDOW, summarizer=Dies(), jobs=2))

    assert len(done) == 2 + len(NAMES)
    assert all("was killed" in one.problem for one in done)


def test_what_ends_one_is_raised_and_ends_all(store: SessionStore) -> None:
    with pytest.raises(refold.errors.SummarizerFailed) as raised:
        list(store.rebuild(WINDOW, summarizer=Refuses(), strict=True, jobs=3))

    assert "no" in raised.value.reason
    assert all(not wrote(store, name) for name in NAMES)


def test_who_has_enough_leaves_no_process(store: SessionStore) -> None:
    rebuilt = store.rebuild(WINDOW, jobs=2)
    next(rebuilt)
    assert multiprocessing.active_children()

    rebuilt.close()  # type: ignore[attr-defined]  # it is a generator

    assert not multiprocessing.active_children()


def test_nothing_is_forked_beside_a_thread() -> None:
    release = threading.Event()
    beside = threading.Thread(target=release.wait)
    beside.start()
    try:
        assert not can_fork()
    finally:
        release.set()
        beside.join()


def test_a_store_in_memory_stays_in_its_process() -> None:
    with refold.open("memory://") as store:
        for name in NAMES:
            said(store.session(user_id="ada", session_id=name), 6)

        list(store.rebuild(WINDOW, summarizer=Tells(), jobs=2))

        by = set.union(*(wrote(store, name) for name in NAMES))
        assert by == {f"process {os.getpid()}"}
