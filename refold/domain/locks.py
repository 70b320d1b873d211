"""Locks that are free in a forked child, whichever thread of the parent held them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_locks: Final = WeakSet[Any]()


def forkable_lock() -> Lock:
    """A lock for a few steps in memory, none of which forks.

    A child has no other thread, so that nobody would ever release what one held.
    """
    lock = Lock()
    _locks.add(lock)
    return lock


class computed_once(Generic[T]):  # noqa: N801  # used as a decorator
    """A property whose value is kept in the object once it was computed.

    ``functools.cached_property`` of Python 3.11 holds a lock meanwhile, which a forked
    child would find held.  Here two threads may compute the value at once.
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
