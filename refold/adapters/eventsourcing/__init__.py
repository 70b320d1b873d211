"""A persistence module for applications of the eventsourcing library.

An application needs ``PERSISTENCE_MODULE=refold.adapters.eventsourcing`` and
``REFOLD_DB``, or another setting that names the database.  Its events are encrypted,
but not redacted.

``SessionLog`` goes the other way: projections of the library follow the sessions of a
store.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from eventsourcing import persistence
from eventsourcing.application import Application
from eventsourcing.utils import (
    Environment,
    EnvType,
    TopicError,
    resolve_topic,
    strtobool,
)

# The module and not its ``LogFactory``: the library accepts one factory class here.
from refold.adapters import config, log as session_log
from refold.adapters.eventsourcing.database import EventsDatabase
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
            case ("uuid" | "text") as id_type:
                self._originators: Originators = id_type
            case id_type:
                raise persistence.InfrastructureFactoryError(
                    f"ORIGINATOR_ID_TYPE is {id_type!r}: set it to uuid or text"
                )
        creates_tables = self.env.get("CREATE_TABLE") or "yes"
        try:
            self._creates_tables = strtobool(creates_tables)
        except ValueError:
            raise persistence.InfrastructureFactoryError(
                f"CREATE_TABLE is {creates_tables!r}: set it to yes or no"
            ) from None
        try:
            url = self.env.get("REFOLD_DB") or config.database()
            self.database = EventsDatabase(url)
        except RefoldError as error:
            raise persistence.InfrastructureFactoryError(str(error)) from None

    def aggregate_recorder(self, purpose: str = "events") -> SqlAggregateRecorder:
        """Return a recorder that does not number its events across the application."""
        return self._recorder(SqlAggregateRecorder, purpose=purpose)

    def application_recorder(self) -> SqlApplicationRecorder:
        """Return the recorder of an application's events.

        ``APPLICATION_RECORDER_TOPIC`` may name another class.
        """
        topic = self.env.get(self.APPLICATION_RECORDER_TOPIC)
        return self._recorder(SqlApplicationRecorder, topic)

    def tracking_recorder(
        self, tracking_recorder_class: type[Any] | None = None
    ) -> Any:
        """Return a recorder of progress.

        tracking_recorder_class: the class of the recorder.  None means the class that
                                 ``TRACKING_RECORDER_TOPIC`` names.
        """
        topic = self.env.get(self.TRACKING_RECORDER_TOPIC)
        return self._recorder(SqlTrackingRecorder, tracking_recorder_class or topic)

    def process_recorder(self) -> SqlProcessRecorder:
        """Return the recorder of an application that follows others.

        ``PROCESS_RECORDER_TOPIC`` may name another class.
        """
        topic = self.env.get(self.PROCESS_RECORDER_TOPIC)
        return self._recorder(SqlProcessRecorder, topic)

    def _recorder(
        self, base: type[R], chosen: str | type[Any] | None = None, **options: Any
    ) -> R:
        """Make a recorder.

        base:   the class of the recorder, if no other is chosen.
        chosen: a subclass of ``base``, or a topic that names one.
        """
        recorder_class: Any = chosen or base
        if isinstance(recorder_class, str):
            topic = recorder_class
            try:
                recorder_class = resolve_topic(topic)
            except TopicError as error:
                raise persistence.InfrastructureFactoryError(
                    f"the topic {topic!r} names no class: {error}"
                ) from None
        if not isinstance(recorder_class, type) or not issubclass(recorder_class, base):
            class_name = getattr(recorder_class, "__qualname__", recorder_class)
            raise persistence.InfrastructureFactoryError(
                f"{class_name} is not a subclass of "
                f"refold.adapters.eventsourcing.{base.__name__}: derive it from that"
            )
        recorder: R = recorder_class(
            self.database, self.env.name, originators=self._originators, **options
        )
        if self._creates_tables:
            recorder.create_table()
        return recorder

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


class EnvelopeMapper(persistence.Mapper[str]):
    """Turns notifications of a follower into envelopes.

    A notification has only the place of an event, so the mapper reads its row again.
    """

    def __init__(self, log: session_log.EncryptedLog) -> None:
        super().__init__(persistence.JSONTranscoder())
        self._log = log

    def to_stored_event(self, domain_event: Any) -> NoReturn:  # noqa: ARG002  # the library's
        """Raise TypeError: nothing is written through a follower."""
        raise TypeError("a session is written with refold.open(…).session(…).append")

    def to_domain_event(self, stored_event: persistence.StoredEvent) -> Any:
        """Return the envelope at the place in the notification.

        Raises CorruptEvent, Erased, KeyUnavailable.
        """
        stream = StreamId.parse(str(stored_event.originator_id))
        seq = stored_event.originator_version
        envelopes: list[Envelope] = self._log.read(stream, after=seq - 1, upto=seq)
        if not envelopes:
            raise Erased(f"session {stream.session_id!r}")
        return envelopes[0]


class SessionLog(Application[str]):
    """The log of sessions at ``REFOLD_DB``, which runners of projections follow.

    Events arrive as redacted, decrypted envelopes in the order of their positions.
    Topics are a type and its schema version, such as ``user_input/1``.
    """

    name = "SessionLog"

    def construct_factory(self, env: Environment) -> session_log.LogFactory:
        """Return a factory that uses the recorder and keys of the store."""
        store = open_store(env.get("REFOLD_DB"), keys=env.get("REFOLD_KEYS"))
        log = cast("session_log.EncryptedLog", store.log)
        return session_log.LogFactory(log.recorder, log.keys)

    def construct_mapper(self) -> EnvelopeMapper:
        """Return the mapper of the log's envelopes."""
        return EnvelopeMapper(cast("session_log.LogFactory", self.factory).log)
