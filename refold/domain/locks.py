"""Locks that are free in a forked child, even if a thread of the parent held them."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Generic, Self, TypeVar, overload
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

    ``functools.cached_property`` of Python 3.11 holds a lock while it computes, one for
    all objects of the class.  A child that was forked then would wait for it forever.
    Here two threads may compute the value at once; both get the same object.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        # From now on, Python finds the value in the object and does not come here.
        value: T = vars(instance).setdefault(self._name, self._compute(instance))
        return value


def _free_all() -> None:
    """Free all locks; called in a forked child."""
    for lock in list(_locks):
        lock._at_fork_reinit()  # what Python does with its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
