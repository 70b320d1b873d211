"""Processes that fork while a store is open; each prints what was acknowledged.

A line ``wrote SESSION COUNT`` says how many events of the session were acknowledged;
``refused SESSION ERROR`` says that an append was refused.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import refold
from refold.adapters.sql import forks
from refold.store import SessionStore

if TYPE_CHECKING:
    from refold.adapters.log import EncryptedLog
    from refold.adapters.sql.database import Database
    from refold.adapters.sql.postgres import PostgresDatabase

_LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
connection.close()
"""
_APPENDS = 4


def open_elsewhere(url: str) -> None:
    """Let another process open and close the file, which removes an unlocked log."""
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        command = [sys.executable, "-ISc", _LOOK, path]
        subprocess.run(command, check=True)


def write(store: SessionStore, url: str, session_id: str) -> None:
    """Append a few events, opening the file elsewhere after each; print the outcome."""
    session = store.session(user_id=f"user {session_id}", session_id=session_id)
    acknowledged = 0
    try:
        for number in range(_APPENDS):
            session.append(refold.UserInput(text=f"{session_id} {number}"))
            acknowledged += 1
            open_elsewhere(url)
    except refold.RefoldError as error:
        print_line(f"refused {session_id} {type(error).__name__}: {error}")
    print_line(f"wrote {session_id} {acknowledged}")


def database_of(store: SessionStore) -> Database:
    """Return the database that a store writes to."""
    return cast("EncryptedLog", store.log).recorder.database


def print_line(line: str) -> None:
    """Print a line in one write, so that concurrent lines stay intact."""
    os.write(1, f"{line}\n".encode())


def in_child(work: Callable[[], None]) -> int:
    """Fork, do ``work`` in the child, and return its process id."""
    child = os.fork()
    if not child:
        _do_and_exit(work)
    return child


def _do_and_exit(work: Callable[[], None]) -> None:
    """Do ``work``, and end the process without the parent's exit handlers."""
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for(*children: int) -> None:
    """Wait for the children, and print a line for each that failed."""
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            print_line(f"failed {child} {status}")


def daemon(url: str) -> None:
    """Fork twice and let both parents end before the daemon writes."""
    store = refold.open(url)
    write(store, url, "before")
    parents_gone, open_in_parents = os.pipe()

    def become_daemon() -> None:
        if not os.fork():
            os.close(open_in_parents)
            assert os.read(parents_gone, 1) == b""
            _do_and_exit(lambda: write(store, url, "daemon"))

    wait_for(in_child(become_daemon))


def close_in_parent(url: str) -> None:
    """Close the store in the parent while the child continues."""
    with refold.open(url) as store:
        write(store, url, "before")
        child = in_child(lambda: write(store, url, "child"))
    open_elsewhere(url)
    wait_for(child)


def workers(url: str) -> None:
    """Open the store before the workers are forked, and replace workers that end."""
    with refold.open(url) as store:
        write(store, url, "before")
        for generation in range(3):
            names = [f"worker {generation} {number}" for number in range(2)]
            children = [in_child(partial(write, store, url, name)) for name in names]
            write(store, url, f"parent {generation}")
            wait_for(*children)


def _work(store: SessionStore, url: str, name: str) -> None:
    write(store, url, name)


def _open_and_work(url: str, name: str) -> None:
    with refold.open(url) as store:
        write(store, url, name)


def processes(url: str, method: str) -> None:
    """Start processes of ``multiprocessing`` inside ``with refold.open()``."""
    context: Any = multiprocessing.get_context(method)
    with refold.open(url) as store:
        write(store, url, "before")
        started = []
        for number in range(2):
            name = f"process {number}"
            if method == "fork":
                process = context.Process(target=_work, args=(store, url, name))
            else:
                process = context.Process(target=_open_and_work, args=(url, name))
            process.start()
            started.append(process)
    open_elsewhere(url)
    for process in started:
        process.join()
        if process.exitcode:
            print_line(f"failed {process.pid} {process.exitcode}")


def busy(url: str) -> None:
    """Fork several times while other threads write without a pause."""
    with refold.open(url) as store:
        stop = threading.Event()
        counts = {"thread 0": 0, "thread 1": 0}

        def append_until_stopped(name: str) -> None:
            session = store.session(user_id=f"user {name}", session_id=name)
            while not stop.is_set():
                session.append(refold.UserInput(text="x"))
                counts[name] += 1

        threads = [
            threading.Thread(target=append_until_stopped, args=(name,))
            for name in counts
        ]
        for thread in threads:
            thread.start()
        while not all(counts.values()):
            time.sleep(0.01)
        children = [
            in_child(partial(write, store, url, f"child {number}"))
            for number in range(5)
        ]
        wait_for(*children)
        stop.set()
        for thread in threads:
            thread.join()
        for name, count in counts.items():
            print_line(f"wrote {name} {count}")


def loops(url: str) -> None:
    """Fork while an asyncio loop appends through the writer's thread."""
    with refold.open(url) as store:
        count = 0
        stop = threading.Event()

        async def append_until_stopped() -> None:
            nonlocal count
            session = store.session(user_id="user loop", session_id="loop")
            while not stop.is_set():
                await session.append_async(refold.UserInput(text="x"))
                count += 1

        async def once(name: str) -> None:
            session = store.session(user_id=f"user {name}", session_id=name)
            await session.append_async(refold.UserInput(text="x"))
            print_line(f"wrote {name} 1")

        def run_once(name: str) -> None:
            asyncio.run(once(name))

        thread = threading.Thread(target=lambda: asyncio.run(append_until_stopped()))
        thread.start()
        while not count:
            time.sleep(0.01)
        children = [
            in_child(partial(run_once, f"child {number}")) for number in range(4)
        ]
        wait_for(*children)
        stop.set()
        thread.join()
        print_line(f"wrote loop {count}")


def unseen(url: str) -> None:
    """Fork in C, where no Python hook runs; the child ends normally."""
    store = refold.open(url)
    write(store, url, "before")
    child = ctypes.PyDLL(None).fork()
    if not child:
        write(store, url, "child")
        try:
            refold.open(url).close()
        except refold.StoreUnavailable as error:
            print_line(f"refused open {type(error).__name__}: {error}")
        store.close()
        del store
        gc.collect()
        sys.exit(0)
    wait_for(child)
    write(store, url, "after")
    store.close()


def hosted(url: str) -> None:
    """Fork like servers written in C, which run only the hooks of the child."""
    python = ctypes.PyDLL(None)
    with refold.open(url) as store:
        write(store, url, "before")
        child = python.fork()
        if not child:
            python.PyOS_AfterFork_Child()
            _do_and_exit(lambda: write(store, url, "child"))
        wait_for(child)
        write(store, url, "after")


def held(url: str) -> None:
    """Fork while another thread is in a transaction that does not end."""
    forks.PATIENCE = 0.2
    with refold.open(url) as store:
        write(store, url, "before")
        inside = threading.Event()
        fork_done = threading.Event()

        def hold() -> None:
            with database_of(store).writing("ada"):
                inside.set()
                fork_done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        child = in_child(lambda: write(store, url, "child"))
        wait_for(child)
        fork_done.set()
        thread.join()
        write(store, url, "after")


def within(url: str) -> None:
    """Fork inside a transaction, in the thread that holds it."""
    with refold.open(url) as store:
        write(store, url, "before")
        child = 0
        try:
            with database_of(store).writing("ada"):
                child = os.fork()
        except refold.StoreUnavailable as error:
            print_line(f"refused transaction {type(error).__name__}: {error}")
            write(store, url, "child")
            os._exit(0)
        if not child:
            write(store, url, "child")
            os._exit(0)
        wait_for(child)
        write(store, url, "after")


def forkers(url: str) -> None:
    """Fork from several threads concurrently while another one writes."""
    with refold.open(url) as store:
        stop = threading.Event()
        children: list[int] = []
        count = 0

        def fork_twice(name: str) -> None:
            for number in range(2):
                work = partial(write, store, url, f"child {name} {number}")
                children.append(in_child(work))

        def append_until_stopped() -> None:
            nonlocal count
            session = store.session(user_id="user pouring", session_id="pouring")
            while not stop.is_set():
                session.append(refold.UserInput(text="x"))
                count += 1

        threads = [threading.Thread(target=fork_twice, args=(name,)) for name in "abcd"]
        pouring = threading.Thread(target=append_until_stopped)
        pouring.start()
        while not count:
            time.sleep(0.01)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(*children)
        stop.set()
        pouring.join()
        print_line(f"wrote pouring {count}")


def signals(url: str) -> None:
    """Handle a signal by an append while a fork waits for another thread."""
    forks.PATIENCE = 1.0
    with refold.open(url) as store:
        inside = threading.Event()
        fork_done = threading.Event()
        session = store.session(user_id="user handler", session_id="handler")
        session.append(refold.UserInput(text="x"))
        count = 1

        def handle(*_: object) -> None:
            nonlocal count
            session.append(refold.UserInput(text="x"))
            count += 1

        def hold() -> None:
            # A transaction that only reads, so that the handler can write.
            with database_of(store).reading() as connection:
                connection.exec_driver_sql("SELECT count(*) FROM events").all()
                inside.set()
                fork_done.wait()

        signal.signal(signal.SIGALRM, handle)
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        child = in_child(lambda: None)
        fork_done.set()
        thread.join()
        wait_for(child)
        print_line(f"wrote handler {count}")


def abandoned(url: str) -> None:
    """Fork in C; the child closes the store at once, and the parent notices nothing."""
    with refold.open(url) as store:
        write(store, url, "before")
        child = ctypes.PyDLL(None).fork()
        if not child:
            store.close()
            os._exit(0)
        wait_for(child)
        connection = cast("PostgresDatabase", database_of(store))._writer._connection
        assert connection is not None
        connection.driver.execute("SELECT 1")
        write(store, url, "after")


def looking(url: str) -> None:
    """Fork with a connection of ``sqlite3`` open; the child opens its first store."""
    with refold.open(url) as store:
        write(store, url, "before")
    other = sqlite3.connect(url.removeprefix("sqlite:///"))
    other.execute("SELECT count(*) FROM events").fetchall()

    def open_in_child() -> None:
        try:
            refold.open(url).close()
        except refold.StoreUnavailable as error:
            print_line(f"refused open {type(error).__name__}: {error}")

    wait_for(in_child(open_in_child))
    other.close()


def counting(url: str) -> None:
    """Count reads of a session in the parent, and write the counts in both."""
    with refold.open(url) as store:
        write(store, url, "before")
        session = store.session(user_id="user before", session_id="before")
        for _ in range(3):
            session.events()
        wait_for(in_child(store.access_log.flush))
        store.access_log.flush()
        (accesses,) = store.access_log.accesses("user before")
        print_line(f"read {accesses.reads}")


HISTORIES = {
    "abandoned": abandoned,
    "busy": busy,
    "closing": close_in_parent,
    "counting": counting,
    "daemon": daemon,
    "forkers": forkers,
    "held": held,
    "hosted": hosted,
    "looking": looking,
    "loops": loops,
    "signals": signals,
    "unseen": unseen,
    "within": within,
    "workers": workers,
}

if __name__ == "__main__":
    name, url_, *more = sys.argv[1:]
    if name == "processes":
        processes(url_, *more)
    else:
        HISTORIES[name](url_)
