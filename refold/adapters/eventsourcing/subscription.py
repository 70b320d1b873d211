"""Following an application: what was recorded, then what is, when the bell rings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final

from eventsourcing.persistence import ApplicationRecorder, Notification, Subscription

from refold.adapters.eventsourcing.engine import Bell

_PAGE: Final = 500
_SHORTEST: Final = 0.01


class EventsSubscription(Subscription[ApplicationRecorder]):
    """Yields notifications in order, and waits at the end of the log for more.

    It has no thread of its own.  ``stop`` may be called from any.
    """

    def __init__(
        self,
        recorder: ApplicationRecorder,
        gt: int | None,
        topics: Sequence[str],
        bell: Bell,
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._after, self._bell = gt or 0, bell
        self._waiting: deque[Notification] = deque()
        self._in_use = Lock()

    def __next__(self) -> Notification:
        try:
            with self._in_use:
                self._fetch()
                if not self._has_been_stopped:
                    return self._waiting.popleft()
        finally:
            self._close_if_stopped()
        raise StopIteration

    def _fetch(self) -> None:
        pause = _SHORTEST
        while not self._waiting and not self._has_been_stopped:
            self._look()
            if not self._waiting:
                self._bell.wait(pause)
                pause = min(pause * 2, self._bell.longest)

    def _look(self) -> None:
        """Take a page, and pass for good what other topics are in it."""
        last = self._recorder.max_notification_id() or 0
        if last <= self._after:
            return
        found = self._recorder.select_notifications(
            self._after, _PAGE, last, self._topics, inclusive_of_start=False
        )
        self._waiting.extend(found)
        self._after = found[-1].id if len(found) == _PAGE else last

    def stop(self) -> None:
        """End the iteration, also while it waits."""
        super().stop()
        self._bell.ring()
        self._close_if_stopped()

    def _close_if_stopped(self) -> None:
        """Let go of the bell, unless another thread is at it: then that one does."""
        if self._has_been_stopped and self._in_use.acquire(blocking=False):
            try:
                self._bell.close()
            finally:
                self._in_use.release()

    def __del__(self) -> None:
        if hasattr(self, "_in_use"):
            self.stop()
