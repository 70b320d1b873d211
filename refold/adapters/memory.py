"""A recorder in memory: for tests and trials, with the same promises but durability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, NamedTuple

import orjson

from refold.adapters.audit.memory import MemoryAudit
from refold.adapters.keeping_rows import FROZEN
from refold.adapters.memory_erasing import MemoryErasing
from refold.adapters.memory_keeping import MemoryKeeping
from refold.adapters.memory_keys import MemoryKeyStore as MemoryKeyStore
from refold.adapters.memory_sizes import counted, lag_of, sizes
from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Heads,
    Moved,
    Recorder,
    Rewrite,
    StandingRows,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sealing import SealedEvent
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.keeping import Accesses
from refold.domain.ports import Duplicate, SessionInfo
from refold.domain.sizes import BESIDE, Lagging, Place, Scope


class _Lease(NamedTuple):
    owner: str
    until: int
    pending: bool = False


class MemoryRecorder(Recorder):
    """Rows in dictionaries under one lock."""

    shared = False

    def __init__(self) -> None:
        self._lock = RLock()
        self._heads: dict[StreamId, HeadRow] = {}
        self._events: dict[StreamId, list[SealedEvent]] = {}
        self._order: list[SealedEvent] = []
        self._blobs: dict[tuple[str, bytes], tuple[bytes, int]] = {}
        self._blob_of: dict[tuple[str, bytes], str] = {}
        self._blob_at: dict[tuple[str, bytes], int] = {}
        self._receipts: dict[tuple[StreamId, bytes], Duplicate] = {}
        self._views: dict[tuple[StreamId, str], ViewRow] = {}
        self._leases: dict[StreamId, _Lease] = {}
        self._accesses: dict[StreamId, Accesses] = {}
        self._erasing = MemoryErasing(self)
        self._audit = MemoryAudit()

    def write(self, batch: Batch) -> WriteOutcome:
        with self._lock:
            stream = batch.stream
            if batch.receipt and (used := self.receipt(stream, batch.receipt)):
                return used
            head = self._heads.get(stream)
            known = (head.seq, head.hash) if head else (0, batch.expected_hash)
            if known != (batch.expected_seq, batch.expected_hash) or (
                head and (head.status != "open" or not _same_key(head, batch))
            ):
                return Moved(head)
            main = self._heads.get(stream.main)
            begins = head is None and stream == stream.main
            if begins and not (
                self._has_origin(batch) and self._erasing.may_begin(batch.refs)
            ):
                return Moved(None)
            if (
                head is None
                and stream != stream.main
                and not (main and main.status in FROZEN and _same_key(main, batch))
            ):
                return Moved(None)
            self._commit(batch)
            return Wrote(batch.head)

    def _has_origin(self, batch: Batch) -> bool:
        """Whether what the session is forked from, if it is, was not erased."""
        origin = batch.refs.origin
        head = self._heads.get(batch.stream._replace(session_id=origin))
        return not origin or (head is not None and head.status != "erased")

    def _commit(self, batch: Batch) -> None:
        stream = batch.stream
        self._heads[stream] = batch.head
        self._events.setdefault(stream, []).extend(batch.events)
        self._order.extend(batch.events)
        for blob in batch.blobs:
            self._blobs[stream.user_id, blob.address] = (blob.body, blob.size)
            self._blob_of[stream.user_id, blob.address] = stream.session_id
            self._blob_at[stream.user_id, blob.address] = batch.head.updated_at
        if batch.receipt:
            seqs = (batch.events[0].header.seq, batch.events[-1].header.seq)
            self._receipts[stream, batch.receipt] = Duplicate(*seqs)

    def write_soon(
        self, batch: Batch, done: Callable[[WriteOutcome | Exception], None]
    ) -> bool:
        done(self.write(batch))
        return True

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        with self._lock:
            return self.write(build(self._heads.get(stream)))

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        with self._lock:
            names = self.streams(stream.user_id, stream.session_id)
            places = {name: stream._replace(stream=name) for name in names}
            rewrite = build({name: self._heads[places[name]] for name in names})
            if rewrite is None:
                return False
            for row in rewrite.rows:
                self._replace(row)
            check = rewrite.batch.head.key_check
            for name, state in rewrite.states.items():
                head = self._heads[places[name]]
                changed = head._replace(state=state, key_check=check)
                self._heads[places[name]] = changed
            for address in rewrite.blobs:
                self._blobs.pop((stream.user_id, address), None)
            self.drop_views(stream.user_id, stream.session_id)
            self._commit(rewrite.batch)
            return True

    def _replace(self, row: SealedEvent) -> None:
        rows = self._events[row.header.stream]
        place = self._order.index(rows[row.header.seq - 1])
        rows[row.header.seq - 1] = self._order[place] = row

    def flush(self) -> None:
        pass

    def drop_views(self, user_id: str, session_id: str) -> None:
        with self._lock:
            gone = [key for key in self._views if key[0][:2] == (user_id, session_id)]
            for key in gone:
                del self._views[key]

    def head_row(self, stream: StreamId) -> HeadRow | None:
        return self._heads.get(stream)

    def knows(self, user_id: str) -> bool:
        return any(stream.user_id == user_id for stream in list(self._heads))

    def has_sessions(self) -> bool:
        return bool(self._heads)

    def receipt(self, stream: StreamId, key: bytes) -> Duplicate | None:
        return self._receipts.get((stream, key))

    def rows(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[SealedEvent]:
        with self._lock:
            every = [] if self._gone(stream) else self._events.get(stream, [])
            found = every[after:upto]
            if spans:
                return [row for a, b in spans for row in every[a - 1 : b]]
        wanted = [row for row in found if not types or row.header.type in types]
        if limit is None:
            return wanted
        return wanted[max(len(wanted) - limit, 0) :] if newest else wanted[:limit]

    def sessions(
        self, user_id: str | None, session_id: str | None
    ) -> list[SessionInfo]:
        with self._lock:
            heads = sorted(self._heads.items())
        return [
            SessionInfo(
                stream.user_id,
                stream.session_id,
                head.seq,
                head.status,
                head.tokens,
                head.created_at,
                head.updated_at,
            )
            for stream, head in heads
            if stream.stream == MAIN
            and user_id in (None, stream.user_id)
            and session_id in (None, stream.session_id)
        ]

    def streams(self, user_id: str, session_id: str) -> list[str]:
        with self._lock:
            names = [s.stream for s in self._heads if s[:2] == (user_id, session_id)]
        return sorted(names, key=lambda name: (name != MAIN, name))

    def orphans(self, scope: Scope) -> list[StreamId]:
        with self._lock:
            return sorted(filter(scope.holds, set(self._events) - set(self._heads)))

    def blob_row(self, stream: StreamId, address: bytes) -> bytes | None:
        found = None if self._gone(stream) else self._blobs.get((stream[0], address))
        return found[0] if found else None

    def view_row(self, stream: StreamId, name: str) -> ViewRow | None:
        return None if self._gone(stream) else self._views.get((stream, name))

    def _gone(self, stream: StreamId) -> bool:
        main = self._heads.get(stream.main)
        return main is not None and main.status == "erased"

    def standing(
        self, stream: StreamId, name: str, *, shown: bool, limit: int
    ) -> StandingRows:
        derived = stream._replace(stream=name)
        with self._lock:
            view = self._views.get((stream, name))
            known = view or ViewRow(0, 0, b"")
            named = known if shown else ViewRow(0, 0, b"")
            return StandingRows(
                self._heads.get(stream),
                view,
                self._named(stream, named.main_spans),
                self._named(derived, named.derived_spans),
                self.rows(stream, after=known.through_seq, limit=limit),
                self.rows(derived, after=known.derived_seq, limit=limit),
            )

    def _named(self, stream: StreamId, spans: str) -> list[SealedEvent]:
        every = self._events.get(stream, [])
        return [row for a, b in orjson.loads(spans) for row in every[a - 1 : b]]

    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        with self._lock:
            known, head = self._views.get((stream, name)), self._heads.get(stream)
            if (known.through_seq if known else 0) != replaces:
                return False
            if head is None or head.key_check != key_check or self._gone(stream):
                return False
            if head.status not in ("open", "closed"):
                return False
            self._views[stream, name] = row
            return True

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        with self._lock:
            return sorted(
                name for s, name in self._views if s[:2] == (user_id, session_id)
            )

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        with self._lock:
            main, held = self._heads.get(stream.main), self._leases.get(stream)
            if main is None or main.status == "erased":
                return False
            if held and held.owner != owner and held.until > now:
                self._leases[stream] = held._replace(pending=True)
                return False
            self._leases[stream] = _Lease(owner, until)
            return True

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        with self._lock:
            held = self._leases.get(stream)
            if held is None or held.owner != owner:
                return False
            self._leases[stream] = held._replace(until=until)
            return True

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        with self._lock:
            held = self._leases.get(stream)
            if held is None or held.owner != owner:
                return False
            return self._leases.pop(stream).pending

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None
    ) -> list[Lagging]:
        start = after or Place("", "", "")
        found = [view for view in self._behind(scope) if view.events >= by]
        return [view for view in found if view.place > start][:limit]

    def _behind(self, scope: Scope) -> list[Lagging]:
        """How far each view is behind, those that are not included."""
        with self._lock:
            return [
                Lagging(Place(*stream[:2], name), self._missing(stream, name, view))
                for (stream, name), view in sorted(self._views.items())
                if scope.holds(stream) and not self._gone(stream) and BESIDE not in name
            ]

    def _missing(self, stream: StreamId, name: str, view: ViewRow) -> int:
        derived = self._heads.get(stream._replace(stream=name))
        made = derived.seq if derived else 0
        return self._heads[stream].seq - view.through_seq + made - view.derived_seq

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        with self._lock:
            heads = {s: head for s, head in self._heads.items() if scope.holds(s)}
            rows = [row for row in self._order if scope.holds(row.header.stream)]
            found = {"engine": "memory", **sizes(heads, rows, now=now)}
            views = [row for at, row in self._views.items() if scope.holds(at[0])]
            found |= counted("view", [len(row.body) for row in views])
            if scope.session_id is None:
                whose, kept = scope.user_id, self._blobs.items()
                blobs = [size for at, (_, size) in kept if whose in (None, at[0])]
                found |= counted("blob", blobs)
            return {**found, "lag": lag_of(self._behind(scope))}

    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, SealedEvent]]:
        with self._lock:
            numbered = list(enumerate(self._order, start=1))
        live = [(n, row) for n, row in numbered if not self._gone(row.columns[0])]
        wanted = [(n, row) for n, row in live if n > after and (not upto or n <= upto)]
        return wanted[:limit]

    def max_notification_id(self) -> int | None:
        return len(self._order) or None

    @property
    def audit_rows(self) -> MemoryAudit:
        return self._audit

    def erasing(self) -> MemoryErasing:
        return self._erasing

    def keeping(self) -> MemoryKeeping:
        return MemoryKeeping(self, self._erasing)

    def close(self) -> None:
        pass


def _same_key(head: HeadRow, batch: Batch) -> bool:
    return head.key_check == batch.head.key_check
