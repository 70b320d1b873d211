"""Every head is sealed once, also after deaths of sealers, and appends do not wait."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

import refold
from refold.adapters.keys.signatures import signed_by
from refold.adapters.seals import TreeSeals
from refold.adapters.sql import tree as sql_tree
from refold.adapters.verification import seal_problems
from refold.domain.errors import SealBroken
from refold.domain.ports import Append, Head
from refold.domain.seals import SealsVerified, TreeHead
from refold.store import SessionStore
from refold.store.work.workers import Worker
from refold.testing.event_log import append_to, user_inputs
from tests.support import warm
from tests.support.engines import BOTH, one_engine
from tests.support.operations import log_of
from tests.support.seal_writer import STEPS
from tests.support.sealing import (
    anchor_file,
    append_to_each,
    paused_sealer,
    sealed_heads,
    verified_seals,
)
from tests.support.stores import open_at, release
from tests.support.waiting import PATIENCE_SEC


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


def test_only_streams_that_moved_have_a_new_leaf(store: SessionStore) -> None:
    append_to_each(store, "a", "b", "c")
    store.seal()
    append_to_each(store, "b", "b")

    head = store.seal()

    assert head is not None
    assert head.size == 4
    assert sealed_heads(store)[3:] == [("b", 3)]
    assert verified_seals(store) == SealsVerified(2, 4, 0, 2, 0, [])


def test_a_derived_stream_has_its_own_leaves(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    for number in range(4):
        session.append(refold.UserInput(text=f"question {number} " + "word " * 30))
        session.append(refold.AgentResponse(text=f"answer {number} " + "word " * 30))
    session.compact("turn_window:full_turns=1,cached_turns=1")

    head = store.seal()

    assert head is not None
    assert head.size == 2


def test_sealing_again_changes_nothing(store: SessionStore) -> None:
    append_to_each(store, "a")
    first = store.seal()
    before = anchor_file().read_bytes()

    assert store.seal() == store.seal(sweep=True) == first
    assert anchor_file().read_bytes() == before


def test_an_empty_store_gets_no_seal(store: SessionStore) -> None:
    assert store.seal() is None
    assert store.verify_seals() == SealsVerified(0, 0, 0, 0, 0, [])


def test_unsealed_leaves_are_counted(store: SessionStore) -> None:
    append_to_each(store, "a", "b")
    store.seal()
    append_to_each(store, "b", "c")

    assert verified_seals(store).unsealed == 2


def test_the_head_is_signed_and_contains_no_name(store: SessionStore) -> None:
    append_to_each(store, "some-session")

    head = store.seal()

    assert head is not None
    assert signed_by(store.seals.public_key(), head.signature, head.message())
    anchored = anchor_file().read_text()
    assert TreeHead.from_json(json.loads(anchored)) == head
    assert '"ada"' not in anchored  # in hex, it may occur by chance
    assert "some-session" not in anchored


def test_many_streams_are_sealed_some_at_a_time(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_tree, "STREAMS", 3)
    monkeypatch.setattr(sql_tree, "_PAGE", 5)
    append_to_each(store, *(f"s-{number}" for number in range(10)))

    store.seal()

    assert [head.size for head in store.seals.heads()] == [3, 6, 9, 10]
    assert verified_seals(store) == SealsVerified(4, 10, 0, 4, 0, [])


def test_a_sweep_finds_what_the_positions_hide(store: SessionStore) -> None:
    append_to_each(store, "a", "b")
    store.seal()
    tree: Any = store.seals
    append_to_each(store, "b")
    tree._position = tree.tree.ends().newest

    assert [head.size for head in (store.seal(), store.seal(sweep=True)) if head] == [
        2,
        3,
    ]


def test_an_interrupted_sweep_resumes(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_tree, "STREAMS", 2)
    append_to_each(store, "a", "b", "c")
    tree: Any = store.seals
    seal = type(tree)._seal
    done = list[int]()

    def interrupt(*args: Any) -> None:
        if done:
            raise KeyboardInterrupt
        done.append(len(args[1]))
        seal(*args)

    with monkeypatch.context() as patch:
        patch.setattr(type(tree), "_seal", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.seal(sweep=True)

    store.seal()

    assert verified_seals(store) == SealsVerified(2, 3, 0, 2, 0, [])


@BOTH
@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_leaves_an_intact_tree_that_can_grow(
    store_url: str, tmp_path: Path, step: str
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a", "b")
        store.seal()
        append_to_each(store, "b", "c")
    ended = warm.module("tests.support.seal_writer", "killed", store_url, step)
    printed = ended.communicate()
    assert ended.returncode == -signal.SIGKILL, printed
    committed = list(STEPS).index(step) >= list(STEPS).index("all is committed")

    with open_at(store_url, tmp_path) as store:
        left = store.verify_seals()
        assert left is not None
        assert left.leaves == (4 if committed else 2)
        codes = {problem.code for problem in left.problems}
        assert codes == (
            {"anchor"} if committed and step != "all is anchored" else set()
        )
        store.seal()

        assert verified_seals(store) == SealsVerified(2, 4, 0, 2, 0, [])
        assert sealed_heads(store) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    assert anchor_file().read_bytes().count(b"\n") == 2


@BOTH
def test_kill_9_after_any_statement_leaves_each_head_sealed_once(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a", "b")
        store.seal()
    killed = 0
    while True:
        with open_at(store_url, tmp_path) as store:
            append_to_each(store, "a", "c")
        dying = ("killed_after", store_url, str(killed + 1))
        ended = warm.module("tests.support.seal_writer", *dying)
        printed = ended.communicate()
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, printed
        killed += 1
        with open_at(store_url, tmp_path) as store:
            left = store.verify_seals()
            assert left is not None
            assert {problem.code for problem in left.problems} <= {"anchor"}

    assert killed > 5
    with open_at(store_url, tmp_path) as store:
        heads = sealed_heads(store)
        assert len(heads) == len(set(heads))
        verified = verified_seals(store)
        assert (verified.problems, verified.unsealed) == ([], 0)
        assert verified.anchored == verified.tree_heads


@BOTH
def test_each_head_is_sealed_by_one_of_several_sealers(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        rivals = [
            warm.module("tests.support.seal_writer", "race", store_url, "20")
            for _ in range(3)
        ]
        release(rivals)
        for number in range(40):
            append_to_each(store, f"s-{number % 7}")
        printed = [rival.communicate() for rival in rivals]
        assert [rival.returncode for rival in rivals] == [0, 0, 0], printed
        store.seal()

        heads = sealed_heads(store)
        assert len(heads) == len(set(heads))
        assert {name: max(s for n, s in heads if n == name) for name, _ in heads} == {
            info.session_id: info.head_seq for info in store.sessions(internal=True)
        }
        verified = verified_seals(store)
        assert (verified.problems, verified.unsealed) == ([], 0)
        assert verified.anchored == verified.tree_heads


@pytest.fixture
def paused(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Event, Event]]:
    """A sealer that stops in the middle, and the event that lets it continue."""
    with paused_sealer(store, monkeypatch) as events:
        yield events


@BOTH
def test_appends_continue_while_a_sealer_works(
    store: SessionStore, paused: tuple[Event, Event]
) -> None:
    reached, go_on = paused
    append_to_each(store, "a", "b")
    with ThreadPoolExecutor(1) as pool:
        sealing = pool.submit(store.seal)
        assert reached.wait(PATIENCE_SEC)

        append_to_each(store, "a", "b", "c")

        go_on.set()
        assert sealing.result() is not None
    store.seal()
    assert verified_seals(store).unsealed == 0
    assert sealed_heads(store)[0] == ("a", 1)


def test_an_append_that_commits_after_later_ones_is_sealed_too(
    postgres_url: str, tmp_path: Path
) -> None:
    reached = Event()
    go_on = Event()

    def build(head: Head) -> Append:
        reached.set()  # with its place in the log taken
        assert go_on.wait(PATIENCE_SEC)
        return append_to(head, *user_inputs("late"))

    with open_at(postgres_url, tmp_path) as store, ThreadPoolExecutor(1) as pool:
        append_to_each(store, "a", "b")
        store.seal()
        stream = store.session(user_id="ada", session_id="a").stream
        late = pool.submit(store.log.append_exclusive, stream, build)
        assert reached.wait(PATIENCE_SEC)
        append_to_each(store, "b")
        store.seal()
        assert sealed_heads(store)[2:] == [("b", 2)]

        go_on.set()
        late.result(PATIENCE_SEC)
        store.seal()

        assert sealed_heads(store)[3:] == [("a", 2)]


@BOTH
def test_verify_raises_no_alarm_while_others_append_and_seal(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "s-0")
        store.seal()
        others = [
            warm.module("tests.support.seal_writer", "race", store_url, "10"),
            warm.module("tests.support.seal_writer", "busy", store_url, "60"),
        ]
        release(others)
        tree = log_of(store).tree
        for _ in range(20):
            for name in ("s-0", "s-1", "s-2", "s-3"):
                stream = store.session(user_id="ada", session_id=name).stream
                assert list(seal_problems(tree, stream)) == []
            verified = store.verify_seals()
            assert verified is not None
            assert verified.problems == []
        printed = [other.communicate() for other in others]

    assert [other.returncode for other in others] == [0, 0], printed


def test_the_sealer_continues_after_an_error_and_reports_new_heads(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: SimpleQueue[int] = SimpleQueue()
    failures = iter([SealBroken("made up")])
    seal = TreeSeals.seal

    def failing(seals: TreeSeals, **named: Any) -> Any:
        for failure in failures:
            raise failure
        return seal(seals, **named)

    monkeypatch.setattr(TreeSeals, "seal", failing)
    append_to_each(store, "a")
    sealer = Worker(
        store, duties={"seal": 0.01}, done=lambda _, head: sizes.put(head.size)
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sealer.run)
        try:
            assert sizes.get(timeout=PATIENCE_SEC) == 1
            append_to_each(store, "b")
            assert sizes.get(timeout=PATIENCE_SEC) == 2
        finally:
            sealer.stop()
        running.result(PATIENCE_SEC)


@pytest.mark.parametrize("every", [0, -1, 1e9])
def test_a_sealer_seals_at_intervals(store: SessionStore, every: float) -> None:
    with pytest.raises(refold.InvalidConfiguration, match="intervals"):
        Worker(store, duties={"seal": every})


def test_a_store_in_memory_is_not_sealed() -> None:
    with refold.open("memory://") as store:
        with pytest.raises(refold.InvalidConfiguration, match="nothing"):
            store.seal()
        assert store.verify_seals() is None
