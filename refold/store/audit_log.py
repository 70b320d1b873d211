"""Reading the audit log, and letting it go by age: its part of the API of a store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from refold.domain.audit import Audit, AuditRecord
from refold.domain.envelope import microseconds
from refold.domain.errors import InvalidConfiguration
from refold.domain.ids import check_id, check_session_id
from refold.store.writing import Writer


class KeepsAudit:
    """The part of a store that shows its audit log."""

    _writer: Writer
    _trail: Audit | None

    def audit_records(
        self,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        since: datetime | None = None,
    ) -> Iterator[AuditRecord]:
        """What was done with the store, the oldest first: by a user, or by all.

        Whose a record is can be found by name only, and only while the user has a key.
        Without a user, records are given with the keyed hashes that they hold.

        Raises Erased, InvalidConfiguration for a session without its user, and for
        ``since`` without a time zone.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
            if user_id is None:
                raise InvalidConfiguration("a session is asked for with its user")
        if since is not None and since.tzinfo is None:
            raise InvalidConfiguration("since needs a time zone")
        at = None if since is None else microseconds(since)
        return self._kept.find(user_id, session_id, since=at)

    def purge_audit(self, older_than: timedelta) -> int:
        """Delete audit records that are older, for good; returns how many.

        Raises InvalidConfiguration for an age below zero.
        """
        if older_than < timedelta(0):
            raise InvalidConfiguration("records cannot be older than a time to come")
        age = older_than // timedelta(microseconds=1)
        return self._kept.purge(self._writer.clock() - age)

    @property
    def audit_is_on(self) -> bool:
        """Whether uses of the store are recorded anywhere."""
        return self._trail is not None and self._trail.on

    def flush_audit(self) -> None:
        """Return when what was done up to now is in the audit log, if it can be."""
        if self._trail is not None:
            self._trail.flush()

    @property
    def _kept(self) -> Audit:
        if self._trail is None:
            raise InvalidConfiguration("this store keeps no audit log")
        return self._trail
