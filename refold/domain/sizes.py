"""What the figures of a store are asked by: a scope, a place, how far behind."""

from __future__ import annotations

from typing import Final, NamedTuple

from refold.domain.ids import StreamId, check_id

# In the names of stored views that are of no strategy: nobody brings them up.
BESIDE: Final = "-"
RATES: Final = {"last_hour": 3_600_000_000, "last_day": 86_400_000_000}


class Scope(NamedTuple):
    """All of a store, what is a user's in it, or one session."""

    user_id: str | None = None
    session_id: str | None = None

    def holds(self, stream: StreamId) -> bool:
        """Whether the stream is of it."""
        return self.user_id in (None, stream.user_id) and (
            self.session_id in (None, stream.session_id)
        )


EVERYTHING: Final = Scope()


def scope(user_id: str | None = None, session_id: str | None = None) -> Scope:
    """The scope of those names.  Raises InvalidEvent for what can name nobody."""
    for kind, value in (("user_id", user_id), ("session_id", session_id)):
        if value is not None:
            check_id(kind, value)
    return Scope(user_id, session_id)


class Place(NamedTuple):
    """Where a stored view is: places have an order, of users, sessions and names."""

    user_id: str
    session_id: str
    name: str


class Lagging(NamedTuple):
    """A stored view that is so many events behind the heads of what it folds."""

    place: Place
    events: int
