"""Following the log of sessions with a projection of the library."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from eventsourcing.application import Application
from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent
from eventsourcing.utils import Environment

from refold.adapters.factory import LogFactory
from refold.adapters.log import SealedLog
from refold.bootstrap import open_store
from refold.domain.envelope import Envelope
from refold.domain.errors import Erased
from refold.domain.ids import StreamId


class EnvelopeMapper(Mapper[str]):
    """Opens what a follower is notified of into envelopes; it seals nothing.

    A notification has a place and no more: the row is read again, as it is now.
    """

    def __init__(self, log: SealedLog) -> None:
        super().__init__(JSONTranscoder())
        self._log = log

    def to_stored_event(
        self,
        domain_event: Any,  # noqa: ARG002  # the library's
    ) -> NoReturn:
        """Refuse it.  Raises TypeError."""
        raise TypeError("a session is written with refold.open(…).session(…).append")

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """The envelope at that place.  Raises CorruptEvent, Erased, KeyUnavailable."""
        stream = StreamId.parse(str(stored_event.originator_id))
        seq = stored_event.originator_version
        found: list[Envelope] = self._log.read(stream, after=seq - 1, upto=seq)
        if not found:
            raise Erased(f"session {stream.session_id!r}")
        return found[0]


class SessionLog(Application[str]):
    """The log of sessions at ``REFOLD_DB``, for a runner of projections to follow.

    Events come as envelopes, redacted and opened, in the order of their positions;
    topics are a type and its schema version, such as ``user_input/1``.
    """

    name = "SessionLog"

    def construct_factory(self, env: Environment) -> LogFactory:
        """The store's own recorder and keys."""
        store = open_store(env.get("REFOLD_DB"), keys=env.get("REFOLD_KEYS"))
        log = cast("SealedLog", store.log)
        return LogFactory(log.recorder, log.keys)

    def construct_mapper(self) -> EnvelopeMapper:
        """What opens envelopes."""
        return EnvelopeMapper(cast("LogFactory", self.factory).log())
