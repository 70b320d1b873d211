"""A memory of what was used last, at most as much as fits; safe between threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

_MOST = 10_000
K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value, made if it is not there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        return self.put(key, make())

    def put(self, key: K, value: V) -> V:
        """Keep the value, and let the oldest go where there is no room."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return value

    def forget(self, key: K) -> None:
        """Keep it no longer."""
        with self._lock:
            self._kept.pop(key, None)

    def forget_all(self, unwanted: Callable[[K], bool]) -> None:
        """Keep none that is ``unwanted``."""
        with self._lock:
            for key in [key for key in self._kept if unwanted(key)]:
                del self._kept[key]
