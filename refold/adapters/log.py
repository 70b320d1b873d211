"""The event log: streams, their proofs, rewriting, erasure, labels and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

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
    """An EventLog over a recorder and a key ring."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__(recorder, keys)
        # These need no key, so they are the methods of the recorder.
        self.shared = recorder.shared
        self.streams = recorder.streams
        self.view_names = recorder.view_names
        self.derived_seqs = recorder.derived_seqs
        self.names_in_lists = recorder.names_in_lists
        self.drop_views = recorder.drop_views
        self.share_places = recorder.share_places
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
        newest_first: bool = False,
    ) -> list[ports.SessionInfo]:
        hashes: Sequence[bytes] | None = ()
        if labels:
            hashes = None if user_id is None else self._addresses(user_id, labels)
        if hashes is None:
            return []
        return self.recorder.sessions(
            user_id,
            session_id,
            labels=hashes,
            after=after,
            limit=limit,
            newest_first=newest_first,
        )

    def sessions_in_lists(
        self,
        user_id: str,
        *,
        order: ports.ListOrder,
        descending: bool,
        labels: Mapping[str, str] = ports.NO_LABELS,
        after: tuple[int, str] | None = None,
        limit: int,
    ) -> list[ports.ListedSession]:
        addresses = self._addresses(user_id, labels)
        if addresses is None:
            return []
        return self.recorder.sessions_in_lists(
            user_id,
            order=order,
            descending=descending,
            labels=addresses,
            after=after,
            limit=limit,
        )

    def heads_in_lists(
        self, user_id: str | None, *, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> list[ports.HeadColumns]:
        addresses: Sequence[bytes] | None = ()
        if labels:
            addresses = None if user_id is None else self._addresses(user_id, labels)
        if addresses is None:
            return []
        return self.recorder.heads_in_lists(user_id, addresses)

    def count_in_lists(
        self, user_id: str, *, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> int:
        addresses = self._addresses(user_id, labels)
        return (
            0 if addresses is None else self.recorder.count_in_lists(user_id, addresses)
        )

    def _addresses(
        self, user_id: str, labels: Mapping[str, str]
    ) -> Sequence[bytes] | None:
        """Return the keyed hashes of labels; None if the user has no session."""
        if not labels:
            return ()
        if not self.recorder.knows(user_id):
            return None
        addresses: list[bytes] = []
        for label in _hashed_labels(self.keys, user_id, labels):
            if label.hash:
                addresses.append(label.hash)
        return addresses

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        hashes = dict(_hashed_labels(self.keys, stream.user_id, labels))
        self.recorder.label(stream, hashes)

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        self.recorder.label(stream, self.recorder.labels_of(other))

    def labelled(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
        stored = self.recorder.labels_of(stream)
        if len(stored) != len(labels):
            return False
        if not labels:
            return True
        hashed = _hashed_labels(self.keys, stream.user_id, labels)
        for label, (name, value) in zip(hashed, labels.items(), strict=True):
            # The stored hashes are those of the text before redaction.  So a name or a
            # value with a placeholder cannot be compared.
            if "[" in name:
                continue
            if label.name_hash not in stored:
                return False
            if "[" not in value and stored[label.name_hash] != label.hash:
                return False
        return True

    def orphans(self, scope: ports.Scope = ports.EVERYTHING) -> list[ports.Problem]:
        problems = []
        for stream in self.recorder.orphans(scope):
            detail = "the stream has no head row"
            problems.append(ports.Problem(*stream, None, "head", detail))
        return problems

    def drop_view(self, stream: StreamId, name: str) -> None:
        self.recorder.drop_views(stream.user_id, stream.session_id, name=name)

    def stats(self, scope: ports.Scope, *, now: int) -> dict[str, Any]:
        """Return sizes, rates, the lag of views, and the number of surplus keys."""
        statistics = self.recorder.stats(scope, now=now)
        return {**statistics, "retired_keys": self.keys.surplus(*scope)}

    def rewrite(
        self, stream: StreamId, rewriting: ports.Rewriting, *, now: int
    ) -> ports.Rewritten:
        from refold.adapters.rewriting import Rewriter

        try:
            rewritten = Rewriter(self, stream.main, rewriting, now).run()
            self.retire_keys(stream)
        except StoreUnavailable:
            self.refuse_erased(stream)
            raise
        return rewritten

    def retire_keys(self, stream: StreamId) -> int:
        if not self.retired_keys(stream):
            return 0
        self.recorder.flush()
        return self.keys.retire(
            stream.user_id, stream.session_id, before=self.key(stream)
        )

    def retired_keys(self, stream: StreamId) -> int:
        return self.keys.older(stream.user_id, stream.session_id, than=self.key(stream))

    def close(self) -> None:
        """Close the database and the key store."""
        self.recorder.close()
        self.keys.close()


class _HashedLabel(NamedTuple):
    """The keyed hashes of a label: of its name, and of its name and value."""

    name_hash: bytes
    hash: bytes | None


def _hashed_labels(
    keys: KeyRing, user_id: str, labels: Mapping[str, str | None]
) -> Iterator[_HashedLabel]:
    """Yield the keyed hashes of labels, in their order.

    Labels are repaired first, like the events that record them.
    """
    user = keys.user(user_id, now=None)
    recorded, _ = repaired(dict(labels))
    for name, value in recorded.items():
        encoded = name.encode()
        hash_ = None
        if value is not None:
            hash_ = user.mac("label", encoded, value.encode())
        yield _HashedLabel(user.mac("label name", encoded), hash_)


class LogFactory(InfrastructureFactory[TrackingRecorder]):
    """Returns the one recorder and the one mapper of a store.

    Projections of the eventsourcing library can follow the log with
    ``eventsourcing.SessionLog``.  They track their progress in a view of their own.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__({})
        self._recorder = recorder
        self.log: Final = EncryptedLog(recorder, keys)

    def mapper(self, transcoder: Any = None, mapper_class: Any = None) -> Mapper[Any]:
        """Return the encrypting mapper; others would write unreadable rows."""
        if transcoder is not None or mapper_class is not None:
            raise InfrastructureFactoryError("a Refold log has a mapper of its own")
        return self.log.mapper

    def application_recorder(self) -> Recorder:
        """Return the recorder of the log."""
        return self._recorder

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Return the same recorder.  The log has stored views instead of snapshots."""
        if purpose != "events":
            raise InfrastructureFactoryError(f"a Refold log keeps no {purpose}")
        return self._recorder

    def tracking_recorder(
        self,
        tracking_recorder_class: Any = None,  # noqa: ARG002  # the library's
    ) -> NoReturn:
        """Raise an error: a follower tracks its progress in a database of its own."""
        raise InfrastructureFactoryError(
            "a Refold log tracks nobody's progress: keep it in a view, with "
            "PERSISTENCE_MODULE=refold.adapters.eventsourcing"
        )

    def process_recorder(self) -> ProcessRecorder:
        """Raise an error, for the same reason."""
        return self.tracking_recorder()

    def close(self) -> None:
        """Close the database and the key store."""
        self.log.close()
