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
    """An EventLog over a recorder and a key ring.

    Methods without a docstring are described in ``ports.EventLog``.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__(recorder, keys)
        # These need no key, so they are the methods of the recorder.
        self.shared = recorder.shared
        self.streams = recorder.streams
        self.view_names = recorder.view_names
        self.derived_seqs = recorder.derived_seqs
        self.listed_names = recorder.listed_names
        self.drop_views = recorder.drop_views
        self.share_places = recorder.share_places
        self.lagging = recorder.lagging
        self.leases: ports.Leases = recorder

    @computed_once
    def tree(self) -> Tree:
        """The Merkle tree whose leaves are the ends of streams."""
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
        from refold.adapters.verification import Auditor, seal_problems

        yield from Auditor(self, stream).run()
        yield from seal_problems(self.tree, stream)

    def audit_chain(
        self, stream: StreamId, *, since_seal: bool = False
    ) -> Iterator[int | ports.Problem]:
        from refold.adapters.verification import (
            Auditor,
            leaf_differences,
            seal_problems,
        )

        if since_seal:
            seals = self.tree.seals(stream)
            seal = seals[-1] if seals else None
            after = seal.seq if seal else 0
            yield from Auditor(self, stream).chain(after=after)
            if seal:
                yield from leaf_differences(stream, seal)
            return
        yield from Auditor(self, stream).chain()
        yield from seal_problems(self.tree, stream)

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
        hashes = self._label_hashes(user_id, labels)
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

    def listed_sessions(
        self,
        user_id: str,
        *,
        order: ports.ListOrder,
        descending: bool,
        labels: Mapping[str, str] = ports.NO_LABELS,
        after: tuple[int, str] | None = None,
        limit: int,
    ) -> list[ports.ListedSession]:
        hashes = self._label_hashes(user_id, labels)
        if hashes is None:
            return []
        return self.recorder.listed_sessions(
            user_id,
            order=order,
            descending=descending,
            labels=hashes,
            after=after,
            limit=limit,
        )

    def listed_heads(
        self, user_id: str | None, *, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> list[ports.HeadColumns]:
        hashes = self._label_hashes(user_id, labels)
        if hashes is None:
            return []
        return self.recorder.listed_heads(user_id, hashes)

    def count_listed(
        self, user_id: str, *, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> int:
        hashes = self._label_hashes(user_id, labels)
        if hashes is None:
            return 0
        return self.recorder.count_listed(user_id, hashes)

    def _label_hashes(
        self, user_id: str | None, labels: Mapping[str, str]
    ) -> Sequence[bytes] | None:
        """Return the keyed hashes of labels; None if no session can have them."""
        if not labels:
            return ()
        # Labels are hashed with the user's key: without a user there is nothing to look
        # up.
        if user_id is None or not self.recorder.knows(user_id):
            return None
        hashes: list[bytes] = []
        for label in _hashed_labels(self.keys, user_id, labels):
            if label.hash:
                hashes.append(label.hash)
        return hashes

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        hashes = dict(_hashed_labels(self.keys, stream.user_id, labels))
        self.recorder.label(stream, hashes)

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        self.recorder.label(stream, self.recorder.labels_of(other))

    def has_exactly_labels(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
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
            problem = ports.Problem(
                user_id=stream.user_id,
                session_id=stream.session_id,
                stream=stream.stream,
                seq=None,
                code="head",
                detail="the stream has no head row",
            )
            problems.append(problem)
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
            self.destroy_old_keys(stream)
        except StoreUnavailable:
            # An erasure can make the database busy: then raise Erased, so that nobody
            # retries.
            self.refuse_erased(stream)
            raise
        return rewritten

    def destroy_old_keys(self, stream: StreamId) -> int:
        if not self.count_old_keys(stream):
            return 0
        self.recorder.flush()
        return self.keys.destroy_older(
            stream.user_id, stream.session_id, before=self.key(stream)
        )

    def count_old_keys(self, stream: StreamId) -> int:
        return self.keys.count_older(
            stream.user_id, stream.session_id, than=self.key(stream)
        )

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
    user = keys.user(user_id, now=None)  # raises if the user has no key
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
    ``eventsourcing.SessionLog``.  They record their progress in a separate view.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__({})
        self._recorder = recorder
        self.log: Final = EncryptedLog(recorder, keys)

    def mapper(self, transcoder: Any = None, mapper_class: Any = None) -> Mapper[Any]:
        """Return the encrypting mapper; others would write unreadable rows."""
        if transcoder is not None or mapper_class is not None:
            raise InfrastructureFactoryError(
                "a Refold log always uses the encrypting mapper"
            )
        return self.log.mapper

    def application_recorder(self) -> Recorder:
        """Return the recorder of the log."""
        return self._recorder

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """Return the same recorder.  The log has stored views instead of snapshots."""
        if purpose != "events":
            raise InfrastructureFactoryError(f"a Refold log does not store {purpose}")
        return self._recorder

    def tracking_recorder(
        self,
        tracking_recorder_class: Any = None,  # noqa: ARG002  # the library's
    ) -> NoReturn:
        """Raise an error: a follower records its progress in another database."""
        raise InfrastructureFactoryError(
            "a Refold log does not record followers' progress: keep it in a view, with "
            "PERSISTENCE_MODULE=refold.adapters.eventsourcing"
        )

    def process_recorder(self) -> ProcessRecorder:
        """Raise an error, for the same reason."""
        return self.tracking_recorder()

    def close(self) -> None:
        """Close the database and the key store."""
        self.log.close()
