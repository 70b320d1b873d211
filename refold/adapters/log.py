"""The event log: streams, and what proves, rewrites, erases, and counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from eventsourcing.persistence import (
    AggregateRecorder,
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
    ProcessRecorder,
    TrackingRecorder,
)

from refold.adapters.keys.ring import KeyRing
from refold.adapters.sql.recorder import Recorder
from refold.adapters.streams import EncryptedStreams
from refold.domain import ports
from refold.domain.canonical import repaired
from refold.domain.envelope import Envelope
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once

if TYPE_CHECKING:
    from refold.adapters.erasure import (
        StoredErasureSteps,
        StoredRepairs,
        StoredRetention,
    )
    from refold.adapters.sql.tree import Tree


class EncryptedLog(EncryptedStreams):
    """An EventLog: its streams, and all that is done with them as a whole."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__(recorder, keys)
        # The recorder's own, which need no key.
        self.shared, self.streams = recorder.shared, recorder.streams
        self.view_names, self.drop_views = recorder.view_names, recorder.drop_views
        self.lagging = recorder.lagging
        self.leases: ports.Leases = recorder

    @computed_once
    def tree(self) -> Tree:
        """The tree over the ends of all streams."""
        from refold.adapters.sql.tree import Tree

        return Tree(self.recorder.database)

    @computed_once
    def erasures(self) -> StoredErasureSteps:
        """The steps of erasures, holds, and freezes."""
        from refold.adapters.erasure import StoredErasureSteps

        return StoredErasureSteps(self.recorder, self.keys)

    @computed_once
    def retention(self) -> StoredRetention:
        """The ages and uses of sessions and blobs."""
        from refold.adapters.erasure import StoredRetention

        return StoredRetention(self.recorder, self.keys, self.erasures)

    @computed_once
    def repairs(self) -> StoredRepairs:
        """The repair of rows that can be derived from events."""
        from refold.adapters.erasure import StoredRepairs

        return StoredRepairs(self)

    def audit(self, stream: StreamId) -> Iterator[Envelope | ports.Problem]:
        from refold.adapters.verification import Auditor, sealed_problems

        yield from Auditor(self, stream).run()
        yield from sealed_problems(self.tree, stream)

    def audit_chain(
        self, stream: StreamId, *, since_seal: bool = False
    ) -> Iterator[int | ports.Problem]:
        from refold.adapters.verification import Auditor, sealed_problems, unlike_leaf

        if since_seal:
            seals = self.tree.seals(stream)[-1:]
            after = max((seal.seq for seal in seals), default=0)
            yield from Auditor(self, stream).chain(after=after)
            for seal in seals:
                yield from unlike_leaf(stream, seal)
            return
        yield from Auditor(self, stream).chain()
        yield from sealed_problems(self.tree, stream)

    def sessions(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] = ports.NO_LABELS,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[ports.SessionInfo]:
        found: Sequence[bytes] = ()
        if labels:
            if user_id is None or not self.recorder.knows(user_id):
                return []
            found = [at for _, at in _places(self.keys, user_id, labels) if at]
        return self.recorder.sessions(
            user_id, session_id, labels=found, after=after, limit=limit
        )

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        self.recorder.label(stream, dict(_places(self.keys, stream.user_id, labels)))

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        self.recorder.label(stream, self.recorder.labels_of(other))

    def labelled(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
        found = self.recorder.labels_of(stream)
        if not labels:
            return not found
        places = _places(self.keys, stream.user_id, labels)
        return len(found) == len(labels) and all(
            # Hashes are of what was given, and a placeholder may stand for any of it.
            "[" in name or (key in found and ("[" in value or found[key] == at))
            for (key, at), (name, value) in zip(places, labels.items(), strict=True)
        )

    def orphans(self, scope: ports.Scope = ports.EVERYTHING) -> list[ports.Problem]:
        return [
            ports.Problem(*stream, None, "head", "the stream has no head row")
            for stream in self.recorder.orphans(scope)
        ]

    def drop_view(self, stream: StreamId, name: str) -> None:
        self.recorder.drop_views(*stream[:2], name=name)

    def stats(self, scope: ports.Scope, *, now: int) -> dict[str, Any]:
        """Sizes, rates, how far views are behind, and keys that should be gone."""
        found = self.recorder.stats(scope, now=now)
        return {**found, "retired_keys": self.keys.surplus(*scope)}

    def rewrite(
        self, stream: StreamId, rewriting: ports.Rewriting, *, now: int
    ) -> ports.Rewritten:
        from refold.adapters.rewriting import Rewriter

        try:
            done = Rewriter(self, stream.main, rewriting, now).run()
            self.retire_keys(stream)
        except StoreUnavailable:
            self.refuse_erased(stream)
            raise
        return done

    def retire_keys(self, stream: StreamId) -> int:
        if not self.retired_keys(stream):
            return 0
        self.recorder.flush()
        return self.keys.retire(*stream[:2], before=self.key(stream))

    def retired_keys(self, stream: StreamId) -> int:
        return self.keys.older(*stream[:2], than=self.key(stream))

    def close(self) -> None:
        """Let go of the database and of the keys."""
        self.recorder.close()
        self.keys.close()


def _places(
    keys: KeyRing, user_id: str, labels: Mapping[str, str | None]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the keyed hashes of each label's name, and of its name and value.

    Labels are repaired as the events that record them are.
    """
    user = keys.user(user_id, now=None)
    recorded, _ = repaired(dict(labels))
    for name, value in recorded.items():
        encoded = name.encode()
        at = None if value is None else user.mac("label", encoded, value.encode())
        yield user.mac("label name", encoded), at


class LogFactory(InfrastructureFactory[TrackingRecorder]):
    """Hands out the one recorder and the one mapper of a store.

    Projections of that library can follow the log (``eventsourcing.SessionLog``); what
    they track they keep in a view of their own.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__({})
        self._recorder = recorder
        self.log: Final = EncryptedLog(recorder, keys)

    def mapper(self, transcoder: Any = None, mapper_class: Any = None) -> Mapper[Any]:
        """The encrypting mapper; another one would write what nobody can open."""
        if transcoder is not None or mapper_class is not None:
            raise InfrastructureFactoryError("a Refold log has a mapper of its own")
        return self.log.mapper

    def application_recorder(self) -> Recorder:
        """The recorder of the log."""
        return self._recorder

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """The same recorder; there are no snapshots, a stored view is one."""
        if purpose != "events":
            raise InfrastructureFactoryError(f"a Refold log keeps no {purpose}")
        return self._recorder

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
        self.log.close()
