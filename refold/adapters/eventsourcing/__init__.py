"""A persistence module for applications of the eventsourcing library.

``PERSISTENCE_MODULE=refold.adapters.eventsourcing`` and ``REFOLD_DB`` are all that an
application needs.  What it stores is encrypted; it is not redacted.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from eventsourcing import persistence
from eventsourcing.application import Application
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool

# As a module: the library looks here for factories, and takes one alone.
from refold.adapters import config, log as sessions
from refold.adapters.eventsourcing.engines import EventsDatabase
from refold.adapters.eventsourcing.recorders import (
    Originators,
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    SqlProcessRecorder,
    SqlRecorder,
    SqlTrackingRecorder,
)
from refold.domain.envelope import Envelope
from refold.domain.errors import Erased, RefoldError
from refold.domain.ids import StreamId
from refold.opener import open_store

__all__ = [
    "Factory",
    "SessionLog",
    "SqlAggregateRecorder",
    "SqlApplicationRecorder",
    "SqlProcessRecorder",
    "SqlTrackingRecorder",
]

R = TypeVar("R", bound=SqlRecorder)


class Factory(persistence.InfrastructureFactory[SqlTrackingRecorder]):
    """Recorders for an application, in the database that ``REFOLD_DB`` names.

    Raises InfrastructureFactoryError for settings that cannot be used.
    """

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        match self.env.get("ORIGINATOR_ID_TYPE", "uuid").lower():
            case ("uuid" | "text") as kind:
                self._originators: Originators = kind
            case kind:
                raise persistence.InfrastructureFactoryError(
                    f"ORIGINATOR_ID_TYPE is {kind!r}: set it to uuid or text"
                )
        try:
            url = self.env.get("REFOLD_DB") or config.database()
            self.database = EventsDatabase(url)
        except RefoldError as error:
            raise persistence.InfrastructureFactoryError(str(error)) from None

    def aggregate_recorder(self, purpose: str = "events") -> SqlAggregateRecorder:
        """A recorder of events or snapshots without an order of the application."""
        return self._recorder(SqlAggregateRecorder, purpose=purpose)

    def application_recorder(self) -> SqlApplicationRecorder:
        """The recorder of an application's events, or that of its topic."""
        topic = self.env.get(self.APPLICATION_RECORDER_TOPIC)
        return self._recorder(SqlApplicationRecorder, topic)

    def tracking_recorder(
        self, tracking_recorder_class: type[Any] | None = None
    ) -> Any:
        """A recorder of progress: of this class, of that of its topic, or plain."""
        topic = self.env.get(self.TRACKING_RECORDER_TOPIC)
        return self._recorder(SqlTrackingRecorder, tracking_recorder_class or topic)

    def process_recorder(self) -> SqlProcessRecorder:
        """The recorder of an application that follows others, or that of its topic."""
        topic = self.env.get(self.PROCESS_RECORDER_TOPIC)
        return self._recorder(SqlProcessRecorder, topic)

    def _recorder(
        self, base: type[R], given: str | type[Any] | None = None, **options: Any
    ) -> R:
        kind = resolve_topic(given) if isinstance(given, str) and given else given
        kind = kind or base
        if not isinstance(kind, type) or not issubclass(kind, base):
            raise persistence.InfrastructureFactoryError(
                f"{getattr(kind, '__qualname__', kind)} is no subclass of "
                f"refold.adapters.eventsourcing.{base.__name__}: derive it from that"
            )
        name, originators = self.env.name, self._originators
        recorder = kind(self.database, name, originators=originators, **options)
        if strtobool(self.env.get("CREATE_TABLE") or "yes"):
            recorder.create_table()
        return recorder

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


class EnvelopeMapper(persistence.Mapper[str]):
    """Opens what a follower is notified of into envelopes; it seals nothing.

    A notification has a place and no more: the row is read again, as it is now.
    """

    def __init__(self, log: sessions.EncryptedLog) -> None:
        super().__init__(persistence.JSONTranscoder())
        self._log = log

    def to_stored_event(self, domain_event: Any) -> NoReturn:  # noqa: ARG002  # the library's
        """Refuse it.  Raises TypeError."""
        raise TypeError("a session is written with refold.open(…).session(…).append")

    def to_domain_event(self, stored_event: persistence.StoredEvent) -> Any:
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

    def construct_factory(self, env: Environment) -> sessions.LogFactory:
        """The store's own recorder and keys."""
        store = open_store(env.get("REFOLD_DB"), keys=env.get("REFOLD_KEYS"))
        log = cast("sessions.EncryptedLog", store.log)
        return sessions.LogFactory(log.recorder, log.keys)

    def construct_mapper(self) -> EnvelopeMapper:
        """What opens envelopes."""
        return EnvelopeMapper(cast("sessions.LogFactory", self.factory).log)
