"""The access log: who used which session, how, and with what result; never its content.

An ``Access`` describes a use inside of the process.  An ``AccessRecord`` is stored; it
names users, sessions, and requests by keyed hashes, which nobody can compute once the
user's key is destroyed.
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
    """One use of a store, with ids in plain; it is never stored in this form.

    event:       the kind of use: ``session_append_event``, ``session_load``, and so on.
    seq:         the session's head, or the requested seq.
    event_types: the types of appended events, each once.
    error:       the name of the error's type, never its text.
    counts:      numbers by name, such as the number of events.
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
    """The stored form of an access.

    record_id: a UUID of version 7 with the time ``ts``.  Records sort by it, and it
               reveals a record that was written twice.
    ts:        the time of the access, in microseconds since 1970 in UTC.
    user, session, request: keyed hashes in hex, or None if the access names none.
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
        """INFO, WARN for a denied access, or ERROR for a failed one."""
        return _LEVELS[self.status]

    def to_json(self) -> JsonObject:
        """Return the record as a line of the access log."""
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
    """A destination of access records.  One thread at a time uses it."""

    def write(self, records: Sequence[AccessRecord]) -> None:
        """Write all of these records, in order.

        After an error, the next call passes the same records and newer ones.
        """

    def close(self) -> None:
        """Release all resources; nothing is written afterwards."""


class AccessTrail(Protocol):
    """Records each use of a store."""

    @property
    def on(self) -> bool:
        """Whether accesses are recorded."""

    def note(self, access: Access) -> None:
        """Record an access soon.  This never waits and never raises."""

    def find(
        self, user_id: str | None, session_id: str | None, *, since: int | None
    ) -> Iterator[AccessRecord]:
        """Yield the records in the table, of a user, of a session, or of all.

        Records of erased users and sessions are found only among all.

        since: the earliest time, in microseconds since 1970.
        """

    def purge(self, before: int) -> int:
        """Delete the records before a time, and return their number.

        before: in microseconds since 1970.
        """

    def flush(self) -> None:
        """Return when every noted access is written, or its writing has failed."""

    def close(self) -> None:
        """Flush, and record nothing more."""
