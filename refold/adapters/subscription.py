"""Following the log: a subscription that polls, faster while there is something new."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Event

from eventsourcing.persistence import ApplicationRecorder, Notification, Subscription

_PAGE = 500
_SHORTEST, _LONGEST = 0.01, 0.5


class PollingSubscription(Subscription[ApplicationRecorder]):
    """Yields notifications in order, and waits at the end of the log for more."""

    def __init__(
        self, recorder: ApplicationRecorder, gt: int | None, topics: Sequence[str]
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._after = gt or 0
        self._wanted = topics
        self._waiting: deque[Notification] = deque()
        self._stopped = Event()

    def stop(self) -> None:
        """End the iteration, also while it waits."""
        super().stop()
        self._stopped.set()

    def __next__(self) -> Notification:
        pause = _SHORTEST
        while not self._waiting:
            if self._stopped.is_set():
                raise StopIteration
            self._waiting.extend(
                self._recorder.select_notifications(
                    self._after, _PAGE, None, self._wanted, inclusive_of_start=False
                )
            )
            if not self._waiting:
                self._stopped.wait(pause)
                pause = min(pause * 2, _LONGEST)
        notification = self._waiting.popleft()
        self._after = notification.id
        return notification
