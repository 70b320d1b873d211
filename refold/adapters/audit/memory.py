"""Audit records in memory: for tests and trials, and for stores that keep nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from refold.domain.audit import AuditRecord


class MemoryAudit:
    """The AuditRows of a store in memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._records: dict[bytes, AuditRecord] = {}

    def write(self, records: Sequence[AuditRecord]) -> None:
        with self._lock:
            for record in records:
                self._records.setdefault(record.record_id, record)

    def find(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        since: int | None = None,
        limit: int,
        after: bytes = b"",
    ) -> list[AuditRecord]:
        with self._lock:
            records = sorted(self._records.values())
        found = [
            record
            for record in records
            if record.record_id > after
            and user in (None, record.user)
            and session in (None, record.session)
            and (since is None or record.ts >= since)
        ]
        return found[:limit]

    def purge(self, before: int) -> Iterator[int]:
        with self._lock:
            old = [key for key, record in self._records.items() if record.ts < before]
            for key in old:
                del self._records[key]
        yield len(old)

    def forget(self, user: str, sessions: Sequence[str] | None = None) -> int:
        forgotten = 0
        with self._lock:
            for key, record in self._records.items():
                if record.user == user and (
                    sessions is None or record.session in sessions
                ):
                    self._records[key] = record._replace(
                        user=None, session=None, request=None, state_version=None
                    )
                    forgotten += 1
        return forgotten

    def close(self) -> None:
        pass
