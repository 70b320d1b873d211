"""Jobs: an executor works on many items, in processes that open the same store.

A process gets a function that opens the store, the work, and an item.  Each process
opens a store once.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
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

_MOST_SUBMITTED: Final = 1_000  # items that wait or run in an executor at one time
_MOST_DEATHS: Final = 3  # an item is submitted again at most this often
# Modules that every process of a pool needs to open a store and to work on it.  The
# server that forks the processes imports them once.
_PRELOADED: Final = [
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
# The open stores of this process, by the pickled function that opens each.
_open_stores: Final[dict[bytes, Any]] = {}
_stores_lock: Final = forkable_lock()


def _ignore_progress(_item: Any, _done: int = 0) -> None:
    """Show no progress."""


def work_on_item(open_again: bytes, work: Any, item: Any) -> Any:
    """Do ``work`` with an item; a process of an executor calls this.

    open_again: the pickled function that opens the store.
    """
    with _stores_lock:
        store = _open_stores.get(open_again)
        if store is None:
            store = pickle.loads(open_again)()  # noqa: S301  # from the calling process
            _open_stores[open_again] = store
    try:
        return work(store, item, _ignore_progress)
    finally:
        # The executor ends such a process without closing its store.
        store.access_log.flush()


def spread(
    store: Any,
    work: Callable[[Any, Any, Callable[[int], object]], Any],
    items: Iterable[Any],
    executor: futures.Executor | None,
    progress: Callable[[Any, int], object] | None = None,
    *,
    after_stop: Callable[[Iterator[futures.Future[Any]]], object] = list,
) -> Generator[Any, None, None]:
    """Do ``work`` with each item; yields the results in the order in which they end.

    work:       a function of a module, or a ``partial`` of one.  Its arguments are the
                store, an item, and a function that reports progress.
    executor:   anything with ``submit``.  None does one item after the other in this
                thread, and so does a store that no other process can open.
    progress:   called with an item and its progress; with an executor, at its end.
    after_stop: called after an early end with the futures of items in progress, each
                when it has ended.  It must read all of them.

    If an item raises, or the caller stops, no other item is started, and the items in
    progress end first.  If a process dies, its items are submitted again, provided that
    the executor has other processes.

    Raises StoreUnavailable if it has none, or if processes die repeatedly.
    """
    progress = progress or _ignore_progress
    if executor is None or store.open_again is None:
        for item in items:
            yield work(store, item, partial(progress, item))
        return
    open_again = pickle.dumps(store.open_again)
    waiting = iter(items)
    finished: SimpleQueue[futures.Future[Any]] = SimpleQueue()
    # Items in progress, and how often their process has died.
    running: dict[futures.Future[Any], tuple[Any, int]] = {}
    # An executor of threads uses the store of this process.
    is_shared_by_this = _open_stores.setdefault(open_again, store) is store

    def submit(item: Any, deaths: int = 0) -> None:
        future = executor.submit(work_on_item, open_again, work, item)
        running[future] = (item, deaths)
        future.add_done_callback(finished.put)

    try:
        while True:
            batch = islice(waiting, _MOST_SUBMITTED - len(running))
            # The longest sessions first: one that begins last would keep one process
            # busy while the others have nothing left to do.
            for item in sorted(batch, key=_size, reverse=True):
                submit(item)
            if not running:
                return
            future = finished.get()
            item, deaths = running[future]
            try:
                result = future.result()
            except futures.BrokenExecutor:  # every item of the executor fails
                if deaths == _MOST_DEATHS:
                    raise
                submit(item, deaths + 1)
                # Only now, because what the item wrote is unknown.
                del running[future]
                continue
            progress(item, getattr(item, "head_seq", 1))
            # Only now, so that an interrupt does not lose its result.
            del running[future]
            yield result
    except futures.BrokenExecutor:
        remedy = "run it again to do the rest"
        raise StoreUnavailable("a process died", remedy=remedy) from None
    finally:
        in_progress = {future for future in running if not future.cancel()}
        try:
            if in_progress:
                after_stop(_as_they_end(in_progress, finished))
        finally:
            if is_shared_by_this:
                _open_stores.pop(open_again, None)  # another thread may have removed it


def _as_they_end(
    in_progress: set[futures.Future[Any]], finished: SimpleQueue[futures.Future[Any]]
) -> Iterator[futures.Future[Any]]:
    """Yield each future when it has finished; ``finished`` may have others, too."""
    waiting = set(in_progress)
    for future in in_progress:
        if future.done():
            waiting.remove(future)
            yield future
    while waiting:
        future = finished.get()
        if future in waiting:
            waiting.remove(future)
            yield future


def _size(item: Any) -> int:
    """Return the number of events of an item that is a session; 0 for others."""
    return int(getattr(item, "head_seq", 0))


class _Processes(futures.Executor):
    """A pool of processes, which is replaced when one of them is killed."""

    def __init__(self, jobs: int) -> None:
        self._new_pool = partial(
            futures.ProcessPoolExecutor,
            jobs,
            _start_method(),
            _start_process,
            (dict(os.environ),),
        )
        self._pool = self._new_pool()

    def submit(self, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        try:
            return self._pool.submit(*args, **kwargs)
        except futures.BrokenExecutor:  # earlier submissions to this pool have failed
            self._pool = self._new_pool()
            return self._pool.submit(*args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        self._pool.shutdown(*args, **kwargs)


def process_pool(jobs: int) -> futures.Executor:
    """Return an executor with this number of processes.

    Each process imports ``__main__``, and ends at the latest with this process.
    """
    return _Processes(jobs)


def _start_method() -> BaseContext:
    """Return the way in which a pool starts its processes.

    On Linux, a server that has imported Refold forks them.  It opens no store and runs
    no thread, so its forks are as safe as new processes, and need not import it again.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    forkserver.set_forkserver_preload(_PRELOADED)
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # this process was forked from the one that started it
        return get_context("spawn")
    return get_context("forkserver")


def _start_process(environment: Mapping[str, str]) -> None:
    """Prepare a process of a pool."""
    # The server that forked this process has the environment of its own start.
    os.environ.clear()
    os.environ.update(environment)
    if hasattr(time, "tzset"):
        time.tzset()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent ends."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
