"""Locks that are free in a forked child, even if a thread of the parent held them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_locks: Final = WeakSet[Any]()


def forkable_lock() -> Lock:
    """Return a lock that is free in every forked child.

    A child has none of the parent's other threads, so nothing would release a lock
    that one of them held.  The lock must protect only short steps in memory, none of
    which forks.
    """
    lock = Lock()
    _locks.add(lock)
    return lock


class computed_once(Generic[T]):  # noqa: N801  # used as a decorator
    """A property that stores its value in the object after it is first computed.

    ``functools.cached_property`` of Python 3.11 holds a lock while it computes, which
    would stay locked in a forked child.  Here, two threads may compute the value
    concurrently.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, _type: type | None = None) -> T:
        value = self._compute(owner)
        vars(owner)[self._name] = value
        return value


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # what Python does with its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
