"""Processes that are killed or race each other leave an intact log."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import refold
from refold.domain.ports import Problem
from refold.store import SessionStore
from tests.support.nested import problems_of
from tests.support.postgres import Postgres
from tests.support.stores import lines, open_at, prepare, release, start


def seqs(store: SessionStore, session_id: str) -> list[int]:
    return [
        event.seq
        for event in store.session(user_id="ada", session_id=session_id).history.pages()
    ]


def problems(store: SessionStore) -> list[Problem]:
    return problems_of(store.verify())


@pytest.mark.parametrize("size", [1, 7])
def test_kill_9_loses_no_acknowledged_event_and_writes_no_partial_batch(
    store_url: str, tmp_path: Path, size: int
) -> None:
    with open_at(store_url, tmp_path):
        pass
    for round_ in range(3):
        writer = start("load", store_url, f"s-{round_}", str(size))
        acknowledged = int(lines(writer, 12)[-1])
        time.sleep(0.003 * round_)
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate()
        acknowledged = max([acknowledged, *(int(line) for line in rest.split())])

        with open_at(store_url, tmp_path) as store:
            stored = seqs(store, f"s-{round_}")
            assert stored == list(range(1, len(stored) + 1))
            assert len(stored) >= acknowledged
            assert len(stored) % size == 0
            assert problems(store) == []
            store.session(user_id="ada", session_id=f"s-{round_}").append(
                refold.UserInput(text="on")
            )


def test_one_of_eight_processes_with_the_same_expected_seq_wins(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        store.session(user_id="ada", session_id="s").append(
            [refold.UserInput(text="a")] * 3
        )
    rivals = [start("race", store_url, "s", "3") for _ in range(8)]
    release(rivals)

    outcomes = sorted(rival.communicate()[0].strip() for rival in rivals)

    assert outcomes == ["stale 3 4"] * 7 + ["won 4"]


def test_unchecked_appends_of_eight_processes_leave_no_gap(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path):
        pass
    writers = [start("pour", store_url, "s", "25") for _ in range(8)]
    release(writers)

    printed = [writer.communicate() for writer in writers]

    assert [out.strip() for out, _ in printed] == ["done"] * 8, printed
    with open_at(store_url, tmp_path) as store:
        assert seqs(store, "s") == list(range(1, 201))
        assert problems(store) == []


def test_a_server_restart_during_an_append_loses_nothing(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url = prepare(own_postgres.create_database("restart"), tmp_path)
    with open_at(url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        for number in range(60):
            if number in (20, 40):
                own_postgres.restart(immediate=True)
            session.append(refold.UserInput(text=f"{number}"))

        texts = [event.payload.payload()["text"] for event in session.events()]

        assert texts == [f"{number}" for number in range(60)]
        assert problems(store) == []


def test_an_unreachable_server_is_reported_in_one_sentence(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    url = prepare(own_postgres.create_database("away"), tmp_path)
    with open_at(url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="a"))
        own_postgres.stop()

        with pytest.raises(refold.StoreUnavailable, match="took effect is unknown"):
            session.append(refold.UserInput(text="b"))
