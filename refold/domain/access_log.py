"""The audit log: who did what with which session, and how it went; never what it held.

An access is what this process knows.  A record is what is kept of it: users, sessions
and requests as keyed hashes that nobody can make again once the user's key is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.events import JsonObject

Status: TypeAlias = Literal["ok", "denied", "error"]
Counts: TypeAlias = Mapping[str, int]
NOTHING: Final[Counts] = {}
_LEVELS: Final = {"ok": "INFO", "denied": "WARN", "error": "ERROR"}


class Access(NamedTuple):
    """One use of a store, as the process that did it knows it; never kept as it is.

    event:       what was done: ``session_append_event``, ``session_load`` …
    seq:         the session's head, or the seq that was asked for.
    event_types: of what was appended, each once.
    error:       the name of the error's type, never its text.
    counts:      how much of what; numbers alone.
    """

    event: str
    user_id: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    seq: int | None = None
    event_types: tuple[str, ...] = ()
    duration_us: int = 0
    status: Status = "ok"
    error: str | None = None
    counts: Counts = NOTHING


class AccessRecord(NamedTuple):
    """What is kept of an access.

    record_id: UUID of version 7, of ``ts``: records sort by it, and a record that is
               written twice is known by it.
    ts:        when it was done, in microseconds since 1970 in UTC.
    user, session, request: keyed hashes in hex; None where nobody is named.
    """

    record_id: bytes
    ts: int
    event: str
    user: str | None
    session: str | None
    request: str | None
    state_version: int | None
    event_type: str | None
    duration_us: int
    status: Status
    error_code: str | None
    meta: Counts

    @property
    def level(self) -> str:
        """INFO, WARN for what was denied, ERROR for what failed."""
        return _LEVELS[self.status]

    def to_json(self) -> JsonObject:
        """The record as a line of the audit log."""
        ts = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.ts)
        return {
            "ts": ts.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": self.level,
            "event": self.event,
            "user_id": self.user,
            "session_id": self.session,
            "request_id": self.request,
            "state_version": self.state_version,
            "event_type": self.event_type,
            "duration_ms": self.duration_us / 1000,
            "status": self.status,
            "error_code": self.error_code,
            "meta": dict(self.meta),
        }


class AccessSink(Protocol):
    """Where audit records go.  Used from one thread at a time."""

    def write(self, records: Sequence[AccessRecord]) -> None:
        """Take all of them, in their order.

        After an error the same records come again, and others behind them.
        """

    def close(self) -> None:
        """Let go of what it holds; nothing is written afterwards."""


class AccessTrail(Protocol):
    """What the store tells of each use of it."""

    @property
    def on(self) -> bool:
        """Whether accesses are kept anywhere."""

    def note(self, access: Access) -> None:
        """Have it recorded soon.  Never waits, never raises."""

    def find(
        self, user_id: str | None, session_id: str | None, *, since: int | None
    ) -> Iterator[AccessRecord]:
        """What is in the table: of a user or session that is not erased, or all."""

    def purge(self, before: int) -> int:
        """Delete what is older, in microseconds since 1970; returns how many."""

    def flush(self) -> None:
        """Return when all that was noted was written, or could not be."""

    def close(self) -> None:
        """Flush, and note nothing more."""
