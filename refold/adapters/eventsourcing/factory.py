"""The infrastructure factory that an application of the library is given."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from eventsourcing.persistence import (
    InfrastructureFactory,
    InfrastructureFactoryError,
)
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool

from refold import config
from refold.adapters.eventsourcing.database import Database, open_database
from refold.adapters.eventsourcing.recorders import (
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    SqlProcessRecorder,
    SqlRecorder,
    SqlTrackingRecorder,
)
from refold.adapters.eventsourcing.tables import Originators
from refold.domain.errors import RefoldError

R = TypeVar("R", bound=SqlRecorder)
_TYPES: Final[dict[str, Originators]] = {"uuid": "uuid", "text": "text"}


class Factory(InfrastructureFactory[SqlTrackingRecorder]):
    """Recorders for an application, in the database that ``REFOLD_DB`` names.

    Raises InfrastructureFactoryError for settings that cannot be used.
    """

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        self._originators = self._originator_id_type()
        self.database = self._open()

    def _open(self) -> Database:
        try:
            return open_database(self.env.get("REFOLD_DB") or config.database())
        except RefoldError as error:
            raise InfrastructureFactoryError(str(error)) from None

    def _originator_id_type(self) -> Originators:
        given = self.env.get("ORIGINATOR_ID_TYPE", "uuid").lower()
        if given not in _TYPES:
            raise InfrastructureFactoryError(
                f"ORIGINATOR_ID_TYPE is {given!r}: set it to uuid or text"
            )
        return _TYPES[given]

    def aggregate_recorder(self, purpose: str = "events") -> SqlAggregateRecorder:
        """A recorder of events or snapshots without an order of the application."""
        return self._recorder(SqlAggregateRecorder, purpose=purpose)

    def application_recorder(self) -> SqlApplicationRecorder:
        """The recorder of an application's events, or that of its topic."""
        topic = self.env.get(self.APPLICATION_RECORDER_TOPIC)
        return self._recorder(_resolved(topic, SqlApplicationRecorder))

    def tracking_recorder(
        self, tracking_recorder_class: type[Any] | None = None
    ) -> Any:
        """A recorder of progress: of this class, of that of its topic, or plain."""
        topic = self.env.get(self.TRACKING_RECORDER_TOPIC)
        given = tracking_recorder_class or topic
        return self._recorder(_resolved(given, SqlTrackingRecorder))

    def process_recorder(self) -> SqlProcessRecorder:
        """The recorder of an application that follows others, or that of its topic."""
        topic = self.env.get(self.PROCESS_RECORDER_TOPIC)
        return self._recorder(_resolved(topic, SqlProcessRecorder))

    def _recorder(self, kind: type[R], **options: Any) -> R:
        recorder = kind(
            self.database, self.env.name, originators=self._originators, **options
        )
        if strtobool(self.env.get("CREATE_TABLE") or "yes"):
            recorder.create_table()
        return recorder

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def _resolved(given: str | type[Any] | None, base: type[R]) -> type[R]:
    kind = resolve_topic(given) if isinstance(given, str) and given else given or base
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise InfrastructureFactoryError(
            f"{getattr(kind, '__qualname__', kind)} is no subclass of "
            f"refold.adapters.eventsourcing.{base.__name__}: derive it from that"
        )
    return kind
