"""Replacing keys: of the store, of a user, of a session; its part of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.domain.envelope import Envelope
from refold.domain.events import RedactionApplied
from refold.domain.ids import MAIN, StreamId, check_id, check_session_id
from refold.domain.ports import Recordable, Rewritten
from refold.domain.record import Draft
from refold.domain.session import SessionState
from refold.redaction.guard import Limits
from refold.store.writing import Writer


class KeepsKeys:
    """The part of a store that replaces keys."""

    _writer: Writer

    def rotate_master_key(self) -> int:
        """Wrap everything under the newest master key; returns how much was not.

        There must be two: the new one first, the one before behind it.  Others may read
        and write meanwhile.  Cut off, it goes on when it is called again.
        """
        return self._writer.log.erasures.rotate_master()

    def rotate_user_key(self, user_id: str) -> int:
        """Give a user another key; returns how many sessions' keys are under it.

        Sessions keep theirs, and idempotency keys and blobs are found as before.

        Raises KeyUnavailable, Erased.
        """
        return self._writer.log.erasures.rotate_user(check_id("user_id", user_id))

    def rotate_session_key(self, user_id: str, session_id: str) -> Rewritten:
        """Seal a session anew under another key, and destroy the one before.

        Nothing in it changes; an event at its end binds the new rows to the chain.

        Raises SessionNotFound, KeyUnavailable, Erased.
        """
        check_id("user_id", user_id)
        stream = StreamId(user_id, check_session_id(session_id), MAIN)
        log, now = self._writer.log, self._writer.clock()
        return log.rewrite(stream, _Unchanged(self._writer, user_id), now=now)

    def key_status(self) -> dict[str, Any]:
        """How many keys there are, of which kind, and how many should be replaced.

        stale: under an older master key; ``rotate_master_key`` wraps them anew.
        retired: of before a rewriting that was cut off; ``reredact`` destroys them.
        """
        return self._writer.log.erasures.key_status()


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """A Rewriting that replaces nothing but the key."""

    writer: Writer
    user_id: str

    def again(self, envelope: Envelope) -> Recordable | None:  # noqa: ARG002  # the port's
        return None

    def state(self, state: SessionState) -> SessionState:
        return state

    def record(self, event: RedactionApplied) -> Recordable:
        rules = self.writer.redactor.rule_set
        event = event.model_copy(update={"rules": rules})
        limits = self.writer.limits
        wider = Limits(limits.leaf_bytes, limits.event_bytes * 2)
        now = self.writer.clock()
        return self.writer.redacted(
            Draft(event), user_id=self.user_id, now=now, limits=wider
        )
