"""Jobs: work on many items by an executor, whose processes open the same store.

They are told how the store is opened, what to do, and with which item; what comes back
are counts.  Each process opens a store once.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from functools import partial
from itertools import islice
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from refold.domain.errors import StoreUnavailable
from refold.domain.locks import forkable_lock

_AHEAD: Final = 1_000  # items that an executor is given before they are begun
_DEATHS: Final = 3  # so often is an item begun again that a process died over
# What every process of a pool needs to open a store and to work on it.
_IMPORTED_ONCE: Final = [
    "refold.opener",
    "refold.store",
    "refold.adapters.log",
    "refold.adapters.seals",
    "refold.adapters.sql.access_log",
    "refold.adapters.sql.postgres",
    "refold.adapters.sql.recorder",
    "refold.adapters.sql.schema",
    "refold.adapters.sql.sqlite",
    "sqlalchemy.dialects.sqlite",
]
_stores: Final[dict[bytes, Any]] = {}  # of this process, by what opens them
_opening: Final = forkable_lock()


def _quiet(_item: Any, _done: int = 0) -> None:
    """Nobody asks how far it is."""


def do(opens: bytes, work: Any, item: Any) -> Any:
    """Do a piece of work: this is what an executor is given."""
    with _opening:
        store = _stores.get(opens) or pickle.loads(opens)()  # noqa: S301  # of who asks
        _stores[opens] = store
    try:
        return work(store, item, _quiet)
    finally:
        store.access_log.flush()  # such a process is ended, its store is not closed


def spread(
    store: Any,
    work: Callable[[Any, Any, Callable[[int], object]], Any],
    items: Iterable[Any],
    executor: futures.Executor | None,
    told: Callable[[Any, int], object] | None = None,
) -> Iterator[Any]:
    """Do ``work`` with each item; yields what comes of them, in the order they end.

    work:     a function of a module, or a ``partial`` of one, which is given the store,
              an item, and what to tell how far it is; its result is counts.
    executor: anything with ``submit``; None does one after the other, here, and so does
              a store that no other process can open.
    told:     how far an item is; with an executor, that it is done.

    If an item raises, or the caller has enough, no other is begun.  What a process
    that died was at is begun again, if the executor has others.

    Raises StoreUnavailable if it has none, or they die over and over.
    """
    told = told or _quiet
    if executor is None or store.opens is None:
        for item in items:
            yield work(store, item, partial(told, item))
        return
    opens, waiting, ended = pickle.dumps(store.opens), iter(items), SimpleQueue[Any]()
    mine, running = _stores.setdefault(opens, store) is store, dict[Any, Any]()

    def begin(item: Any, deaths: int = 0) -> None:
        running[future := executor.submit(do, opens, work, item)] = item, deaths
        future.add_done_callback(ended.put)

    try:
        while True:
            for item in islice(waiting, _AHEAD - len(running)):
                begin(item)
            if not running:
                return
            item, deaths = running.pop(future := ended.get())
            try:
                came = future.result()
            except futures.BrokenExecutor:  # all that it was given fails with it
                if deaths == _DEATHS:
                    raise
                begin(item, deaths + 1)
                continue
            told(item, getattr(item, "head_seq", 1))
            yield came
    except futures.BrokenExecutor:
        remedy = "run it again to do the rest"
        raise StoreUnavailable("a process died", remedy=remedy) from None
    finally:
        for future in running:
            future.cancel()
        if mine:
            _stores.pop(opens, None)  # two threads may share the work of one store


class _Processes(futures.Executor):
    """A pool of processes, which is made anew once one of them was killed."""

    def __init__(self, jobs: int) -> None:
        self._make = partial(
            futures.ProcessPoolExecutor,
            jobs,
            _start_method(),
            _begin,
            (dict(os.environ),),
        )
        self._pool = self._make()

    def submit(self, *work: Any, **how: Any) -> futures.Future[Any]:
        try:
            return self._pool.submit(*work, **how)
        except futures.BrokenExecutor:  # what was given to that one has failed
            self._pool = self._make()
            return self._pool.submit(*work, **how)

    def shutdown(self, *how: Any, **more: Any) -> None:
        self._pool.shutdown(*how, **more)


def beside(jobs: int) -> futures.Executor:
    """So many processes: each reads ``__main__``, and none outlives this one."""
    return _Processes(jobs)


def _start_method() -> BaseContext:
    """How a pool starts its processes.

    On Linux, a server that has imported Refold forks them.  It opens no store and runs
    no thread, so its forks are as safe as new processes, and need not import it again.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    forkserver.set_forkserver_preload(_IMPORTED_ONCE)
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # this process was forked from the one that started it
        return get_context("spawn")
    return get_context("forkserver")


def _begin(environment: Mapping[str, str]) -> None:
    # The server that forked this process has the environment of its own start.
    os.environ.clear()
    os.environ.update(environment)
    if hasattr(time, "tzset"):
        time.tzset()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)
