"""The infrastructure factory of the eventsourcing library over a log of ours."""

from __future__ import annotations

from typing import Any, NoReturn

from eventsourcing.persistence import (
    AggregateRecorder,
    EventStore,
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
    ProcessRecorder,
    TrackingRecorder,
)

from refold.adapters.keys import KeyRing
from refold.adapters.log import SealedLog
from refold.adapters.recorder import Recorder
from refold.adapters.sealing import SealingMapper


class LogFactory(InfrastructureFactory[TrackingRecorder]):
    """Hands out the one recorder and the one mapper of a store.

    Projections of that library can follow the log (``eventsourcing.SessionLog``); what
    they track they keep in a view of their own.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__({})
        self._recorder, self._keys = recorder, keys

    def log(self) -> SealedLog:
        """The event log over this recorder and these keys."""
        return SealedLog(self._recorder, self._keys)

    def mapper(self, transcoder: Any = None, mapper_class: Any = None) -> Mapper[Any]:
        """The sealing mapper; another one would write what nobody may read."""
        if transcoder is not None or mapper_class is not None:
            raise InfrastructureFactoryError("a Refold log is sealed by its own mapper")
        return SealingMapper(self._keys)

    def application_recorder(self) -> Recorder:
        """The recorder of the log."""
        return self._recorder

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """The same recorder; there are no snapshots, a stored view is one."""
        if purpose != "events":
            raise InfrastructureFactoryError(f"a Refold log keeps no {purpose}")
        return self._recorder

    def event_store(self, mapper: Any = None, recorder: Any = None) -> EventStore[Any]:
        """An event store that reads envelopes by the name of their stream."""
        return EventStore(mapper or self.mapper(), recorder or self._recorder)

    def tracking_recorder(
        self,
        tracking_recorder_class: Any = None,  # noqa: ARG002  # the library's
    ) -> NoReturn:
        """There is none: a follower tracks its place in a database of its own."""
        raise InfrastructureFactoryError(
            "a Refold log tracks nobody's progress: keep it in a view, with "
            "PERSISTENCE_MODULE=refold.adapters.eventsourcing"
        )

    def process_recorder(self) -> ProcessRecorder:
        """There is none, for the same reason."""
        return self.tracking_recorder()

    def close(self) -> None:
        """Let go of the database and of the keys."""
        self.log().close()
