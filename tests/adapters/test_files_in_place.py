"""No write is acknowledged that goes into a file which no later process will find."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import refold
from refold.adapters.sql import files
from refold.adapters.sql.keystore import SqlKeyStore
from refold.store import SessionStore
from tests.support import warm
from tests.support.forked import database_of


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


ACTS = [move, delete, replace, move_folder]
WRITES: dict[str, Callable[[SessionStore], object]] = {
    "append": lambda store: store.session(user_id="ada", session_id="s").append(
        refold.UserInput(text="x")
    ),
    "begin": lambda store: store.session(user_id="eve", session_id="t").append(
        refold.UserInput(text="x")
    ),
    "erase": lambda store: store.erase("ada", "asked"),
    "compact": lambda store: store.session(user_id="ada", session_id="s").compact(
        "turn_window:full_turns=1,cached_turns=1"
    ),
    "seal": lambda store: store.seal(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "refold.db"


def filled(path: Path) -> SessionStore:
    store = refold.open(path)
    session = store.session(user_id="ada", session_id="s")
    for number in range(6):
        session.append(refold.UserInput(text=f"question {number}"))
        session.append(refold.AgentResponse(text=f"answer {number}"))
    return store


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", WRITES)
def test_no_write_is_acknowledged_after_the_file_went_away(
    name: str, act: Callable[[Path], None], path: Path
) -> None:
    with filled(path) as store:
        act(path)
        there = path.exists() and path.stat().st_ino

        with pytest.raises(
            refold.StoreUnavailable, match="moved, deleted, or replaced"
        ):
            WRITES[name](store)

        assert (path.exists() and path.stat().st_ino) == there


def test_no_empty_store_appears_where_the_file_was(path: Path) -> None:
    with filled(path) as store:
        move(path)
        child = os.fork()  # closes the file, and opens it again when it is used
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

        with pytest.raises(
            refold.StoreUnavailable, match="moved, deleted, or replaced"
        ):
            store.session(user_id="ada", session_id="s").events()
        assert not path.exists()


def test_a_file_that_is_put_back_is_written_again(path: Path) -> None:
    with filled(path) as store:
        session = store.session(user_id="ada", session_id="s")
        move(path)
        with pytest.raises(refold.StoreUnavailable, match="put the file back"):
            session.append(refold.UserInput(text="lost?"))
        path.with_name("moved.db").rename(path)

        receipt = session.append(refold.UserInput(text="kept"))

    assert receipt.last_seq == 13
    with refold.open(path) as store:
        events = store.session(user_id="ada", session_id="s").events()
        assert len(list(events)) == 13


def test_a_file_that_goes_away_during_a_commit_is_not_acknowledged(path: Path) -> None:
    with filled(path) as store:
        database = database_of(store)

        def delete_before_the_commit() -> None:
            with database.writing("ada"):
                delete(path)

        with pytest.raises(refold.StoreUnavailable, match="the last change is in"):
            delete_before_the_commit()


@pytest.mark.parametrize("act", [move, delete, replace])
def test_a_log_that_went_away_stops_every_write(
    act: Callable[[Path], None], path: Path
) -> None:
    with filled(path) as store:
        act(path.with_name("refold.db-wal"))

        with pytest.raises(refold.StoreUnavailable, match=r"refold\.db-wal was moved"):
            WRITES["append"](store)


@pytest.mark.parametrize("act", [move, delete, replace])
def test_an_index_that_went_away_stops_every_write(
    act: Callable[[Path], None], path: Path
) -> None:
    with filled(path) as store:
        act(path.with_name("refold.db-shm"))

        with pytest.raises(refold.StoreUnavailable, match=r"refold\.db-shm was moved"):
            WRITES["append"](store)


def test_a_process_without_the_index_harms_nothing_that_others_write(
    path: Path,
) -> None:
    with filled(path):
        path.with_name("refold.db-shm").unlink()
        _append_elsewhere(path)
    with pytest.raises(refold.StoreUnavailable, match="end the process"):
        refold.open(path)

    assert _count_elsewhere(path) == "1"


def test_a_log_is_watched_behind_a_symbolic_link(path: Path) -> None:
    link = path.with_name("link.db")
    filled(path).close()
    link.symlink_to(path)
    with refold.open(link) as store:
        WRITES["append"](store)
        path.with_name("refold.db-wal").unlink()

        with pytest.raises(refold.StoreUnavailable, match=r"refold\.db-wal was moved"):
            WRITES["append"](store)


def test_a_log_is_searched_for_names_behind_a_symbolic_link(path: Path) -> None:
    link = path.with_name("link.db")
    filled(path).close()
    link.symlink_to(path)
    with refold.open(link) as store:
        session = store.session(user_id="ada lovelace", session_id="s")
        session.append(refold.UserInput(text="x"))

        files_with_names = database_of(store).found_in_files(["ada lovelace"])["files"]

        assert files_with_names["refold.db-wal"] == 1


def test_a_file_with_two_names_is_refused(path: Path) -> None:
    filled(path).close()
    path.with_name("second.db").hardlink_to(path)

    with pytest.raises(refold.StoreUnavailable, match="2 names"):
        refold.open(path)


def test_no_store_is_made_next_to_the_log_of_another(path: Path) -> None:
    with filled(path):
        move(path)

        with pytest.raises(refold.StoreUnavailable, match="is gone, but not"):
            refold.open(path)

        assert not path.exists()


_APPEND = """
import sys, refold
from pathlib import Path
with refold.open(Path(sys.argv[1])) as store:
    session = store.session(user_id="eve", session_id="other")
    session.append(refold.UserInput(text="x"))
"""
_LENGTH = """
import sys, refold
from pathlib import Path
with refold.open(Path(sys.argv[1])) as store:
    print(store.session(user_id="eve", session_id="other").head().seq)
"""


def _append_elsewhere(path: Path) -> None:
    """Append an event in another process."""
    subprocess.run([sys.executable, "-c", _APPEND, path], check=True)


def _count_elsewhere(path: Path) -> str:
    """Return the number of events that another process reads."""
    command = [sys.executable, "-c", _LENGTH, str(path)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    return process.stdout.strip()


@pytest.mark.parametrize("act", [move, delete, replace])
def test_no_key_is_kept_in_a_key_store_that_went_away(
    act: Callable[[Path], None], path: Path
) -> None:
    keys = SqlKeyStore(f"sqlite:///{path}")
    act(path)

    with pytest.raises(refold.StoreUnavailable, match="moved, deleted, or replaced"):
        keys.add_setting("pepper", b"x" * 32)
    keys.close()


def test_a_failed_sync_says_that_the_outcome_is_unknown(path: Path) -> None:
    process = warm.module("tests.support.failing_sync", f"sqlite:///{path}")
    printed, errors = process.communicate()

    assert process.returncode == 0, errors
    assert printed.startswith("StoreUnavailable"), printed
    assert "whether the change was written is unknown" in printed
    assert "only with the idempotency key" in printed


def test_the_same_key_makes_a_retry_after_a_failed_sync_safe(path: Path) -> None:
    warm.module("tests.support.failing_sync", f"sqlite:///{path}").communicate()

    with refold.open(path) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="second"), idempotency_key="key")

        texts = [event.payload.payload().get("text") for event in session.events()]
        assert texts == ["first", "second"]


def test_a_key_store_that_another_process_keeps_locked_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUSY_MS", 10)
    keys = SqlKeyStore(f"sqlite:///{path}")

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(refold.KeyUnavailable, match="busy with another writer"):
            keys.add_setting("pepper", b"x" * 32)
    keys.close()


def test_a_closed_connection_does_not_report_later_files(tmp_path: Path) -> None:
    """Its log is removed when it closes, and the next open creates another one."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    connections: list[object] = []
    with refold.open(url) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="a"))
        database = database_of(store)
        with database.engine().connect() as connection:
            connections.append(connection.connection.driver_connection)
    with refold.open(url) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="b"))
        connections.clear()
        gc.collect()
        with refold.open(url) as other:
            assert other.session(user_id="ada", session_id="s").head().seq == 2
