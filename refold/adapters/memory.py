"""A recorder in memory: for tests and trials, with the same promises but durability."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from refold.adapters.access_log import MemoryAudit
from refold.adapters.keys.ring import PEPPER
from refold.adapters.keys.store import KeyPlace, Refs, UserEntry
from refold.adapters.recorder import (
    FROZEN,
    THAWED,
    Batch,
    BlobPlace,
    CertificateRow,
    HeadRow,
    Heads,
    Moved,
    Recorder,
    Rewrite,
    StandingRows,
    Subject,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.rows import EncryptedEvent
from refold.domain.chain import leaf_hash, root_of
from refold.domain.erasure import (
    FREEZE,
    Accesses,
    Job,
    LegalHold,
    OldBlobs,
    Remains,
    Stage,
    Unused,
    Whose,
)
from refold.domain.errors import Erased, OnHold
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import (
    BESIDE,
    RATES,
    Duplicate,
    Lagging,
    Place,
    Scope,
    SessionInfo,
    Status,
)

if TYPE_CHECKING:
    from refold.adapters.recorder import BlobRow


class MemoryErasing:
    """ErasingRows in dictionaries, under the recorder's lock."""

    def __init__(self, recorder: MemoryRecorder) -> None:
        self._recorder = recorder
        self._subjects: dict[str, Subject] = {}
        self._jobs: dict[str, Job] = {}
        self._before: dict[StreamId, Status] = {}
        self._certificates: list[CertificateRow] = []
        self._holds: dict[str, list[LegalHold]] = {}
        self._generation = 0

    def may_begin(self, refs: Refs) -> bool:
        """Whether a session of these may begin; its user is known from then on."""
        fresh = Subject(refs.user, refs.user, "live", refs.epoch)
        known = self._subjects.setdefault(refs.user, fresh)
        return known == fresh and refs.session not in self._subjects

    def begin(self, job: Job, subjects: Sequence[Subject]) -> Job:
        with self._recorder._lock:
            for hold in self.holds(job.user_ref):
                raise OnHold(hold.name, hold.reason)
            self._subjects |= {subject.ref: subject for subject in subjects}
            for known in self.jobs(job.user_ref):
                if known.whose == job.whose:
                    return known
            self._jobs[job.job_id] = job
            return job

    def jobs(self, user_ref: str | None = None) -> list[Job]:
        found = [job for _, job in sorted(self._jobs.items())]
        return [job for job in found if user_ref in (None, job.user_ref)]

    def unowned_blobs(self, user_id: str) -> bool:  # noqa: ARG002  # they all say it
        return False

    def own_blobs(
        self, user_id: str, session_id: str, addresses: Sequence[bytes]
    ) -> None:
        pass

    def mark(self, whose: Whose) -> None:
        with self._recorder._lock:
            heads = self._recorder._heads
            for stream in _of(heads, whose):
                if heads[stream].status != "erased":
                    self._before[stream] = heads[stream].status
                    heads[stream] = heads[stream]._replace(status="erased")

    def unmark(self, whose: Whose, subjects: Sequence[Subject]) -> None:
        with self._recorder._lock:
            for stream in _of(self._before, whose):
                head = self._recorder._heads[stream]
                status = self._before.pop(stream)
                self._recorder._heads[stream] = head._replace(status=status)
            for subject in subjects:
                del self._subjects[subject.ref]
                if subject.ref == subject.user_ref:
                    self._subjects[subject.ref] = subject._replace(status="live")

    def adopt(self, whose: Whose) -> None:
        pass

    def advance(self, job: Job, before: Stage) -> Job | None:
        with self._recorder._lock:
            known = self._jobs.get(job.job_id)
            if known is not None and known.stage == before:
                known = self._jobs[job.job_id] = replace(job)
            return known

    def remains(self, whose: Whose) -> Remains:
        with self._recorder._lock:
            events = self._recorder._events
            rows = [
                row for stream in sorted(_of(events, whose)) for row in events[stream]
            ]
            root = root_of(leaf_hash(row.hash) for row in rows)
            return Remains(self.left(whose), len(rows), root)

    def left(self, whose: Whose) -> dict[str, int]:
        with self._recorder._lock:
            rows, counts = self._recorder, {}
            events = [rows._events[stream] for stream in _of(rows._events, whose)]
            counts["events"] = sum(len(found) for found in events)
            for name, table in self._tables().items():
                counts[name] = len(self._keys(table, whose))
            return counts

    def _tables(self) -> dict[str, dict[Any, Any]]:
        rows = self._recorder
        beside: dict[str, dict[Any, Any]] = {"views": rows._views}
        beside |= {
            "accesses": rows._accesses,
            "leases": rows._leases,
            "blobs": rows._blobs,
        }
        return {**beside, "receipts": rows._receipts, "heads": rows._heads}

    def _keys(self, table: dict[Any, Any], whose: Whose) -> list[Any]:
        """Their keys in a table, whatever it is keyed by."""
        rows = self._recorder

        def place(key: Any) -> tuple[str, str]:
            if table is rows._blobs:
                return key[0], rows._blob_of.get(key, "")
            stream: StreamId = key if isinstance(key, StreamId) else key[0]
            return stream.user_id, stream.session_id

        return [key for key in table if _is(place(key), whose)]

    def delete(self, whose: Whose, erasure: str) -> Iterator[tuple[str, int]]:  # noqa: ARG002  # there is no tree
        rows = self._recorder
        with rows._lock:
            for name, table in self._tables().items():
                if name != "heads":
                    yield from self._emptied(name, table, whose)
            gone = [
                row for s in _of(rows._events, whose) for row in rows._events.pop(s)
            ]
            known = {id(row) for row in gone}
            rows._order = [row for row in rows._order if id(row) not in known]
            yield "events", len(gone)
            yield from self._emptied("heads", rows._heads, whose)
            for stream in _of(self._before, whose):
                del self._before[stream]

    def _emptied(
        self, name: str, table: dict[Any, Any], whose: Whose
    ) -> Iterator[tuple[str, int]]:
        keys = self._keys(table, whose)
        for key in keys:
            del table[key]
        yield name, len(keys)

    def end(
        self,
        job_id: str | None,
        subjects: Sequence[Subject],
        certificate: CertificateRow,
    ) -> bool:
        with self._recorder._lock:
            if job_id is not None and self._jobs.pop(job_id, None) is None:
                return False
            self._subjects |= {subject.ref: subject for subject in subjects}
            # Who is erased as a whole is named by no other job either.
            gone = {one.ref for one in subjects if one.status == "erased"}
            jobs = self._jobs.items()
            self._jobs = {name: job for name, job in jobs if job.user_ref not in gone}
            self._certificates.append(certificate)
            return True

    def subject(self, ref: str) -> Subject | None:
        return self._subjects.get(ref)

    def subjects(self) -> list[Subject]:
        found = sorted(self._subjects.values())
        return [one for one in found if one.status != "live" or one.epoch > 1]

    def set_subject(self, subject: Subject) -> None:
        self._subjects[subject.ref] = subject

    def certificates(self, user_ref: str | None = None) -> list[CertificateRow]:
        return [row for row in self._certificates if user_ref in (None, row.user_ref)]

    def holds(self, user_ref: str) -> list[LegalHold]:
        return sorted(self._holds.get(user_ref, []))

    def hold(self, user_ref: str, hold: LegalHold) -> bool:
        with self._recorder._lock:
            known = self._holds.setdefault(user_ref, [])
            if any(one.name == hold.name for one in known):
                return False
            known.append(hold)
            return True

    def release(self, user_ref: str, name: str) -> bool:
        with self._recorder._lock:
            known = self._holds.get(user_ref, [])
            self._holds[user_ref] = [one for one in known if one.name != name]
            return len(self._holds[user_ref]) < len(known)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        return {"vacuum": vacuum}

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        return {"files": {}, "names": len(names), "too_short": 0}

    def facts(self) -> dict[str, Any]:
        return {"store_id": "memory", "engine": "memory", "schema": 0}

    def tree_head(self) -> dict[str, Any] | None:
        return None

    def key_generation(self) -> int:
        return self._generation

    def saw_generation(self, generation: int) -> None:
        self._generation = max(self._generation, generation)


def _is(place: tuple[str, str], whose: Whose) -> bool:
    user_id, session_id = place
    of_user = user_id == whose.user_id
    return of_user and (whose.sessions is None or session_id in whose.sessions)


def _of(table: dict[StreamId, Any], whose: Whose) -> list[StreamId]:
    return [stream for stream in table if _is((stream[0], stream[1]), whose)]


class MemoryKeeping:
    """KeepingRows in dictionaries, under the recorder's lock."""

    def __init__(self, recorder: MemoryRecorder, erasing: MemoryErasing) -> None:
        self._recorder, self._erasing = recorder, erasing

    def freeze(self, user_id: str, user_ref: str, freeze: LegalHold) -> bool:
        with self._recorder._lock:
            subject = self._subject(user_ref)
            if subject.status in ("erasing", "erased"):
                raise Erased("the user")
            if subject.status == "frozen":
                return False
            self._erasing.set_subject(subject._replace(status="frozen"))
            self._erasing.hold(user_ref, freeze)
            self._turn(user_id, FROZEN)
            return True

    def unfreeze(self, user_id: str, user_ref: str) -> bool:
        with self._recorder._lock:
            if not self.is_frozen(user_ref):
                return False
            live = self._subject(user_ref)._replace(status="live")
            self._erasing.set_subject(live)
            self._erasing.release(user_ref, FREEZE)
            self._turn(user_id, THAWED)
            return True

    def _subject(self, ref: str) -> Subject:
        return self._erasing.subject(ref) or Subject(ref, ref, "live", 1)

    def _turn(self, user_id: str, into: Mapping[str, str]) -> None:
        heads, before = self._recorder._heads, self._erasing._before
        for stream, head in heads.items():
            if stream.user_id == user_id and head.status in into:
                status: Any = into[head.status]
                heads[stream] = head._replace(status=status)
        for stream, was in before.items():
            if stream.user_id == user_id:
                status = into.get(was, was)
                before[stream] = status

    def is_frozen(self, user_ref: str) -> bool:
        return self._subject(user_ref).status == "frozen"

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        rows = self._recorder
        with rows._lock:
            for one in accesses:
                place = StreamId(user_id, one.session_id, MAIN)
                if place not in rows._heads or rows._gone(place):
                    continue
                known = rows._accesses.get(place, one._replace(reads=0))
                last = max(known.last_at, one.last_at)
                total = known.reads + one.reads
                rows._accesses[place] = one._replace(reads=total, last_at=last)

    def accesses(self, user_id: str | None) -> list[Accesses]:
        found = sorted(self._recorder._accesses.values())
        return [one for one in found if user_id in (None, one.user_id)]

    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        rows = self._recorder
        with rows._lock:
            return [
                BlobPlace(*key, rows._blob_of[key])
                for key, (_, size) in sorted(rows._blobs.items())
                if key > after and size and rows._blob_at[key] <= before
            ]

    def expire_blobs(
        self, blobs: OldBlobs, rows: Sequence[BlobRow], key_check: bytes
    ) -> int:
        recorder = self._recorder
        with recorder._lock:
            head = recorder._heads.get(StreamId(blobs.user_id, blobs.session_id))
            if not head or head.status not in FROZEN or head.key_check != key_check:
                return 0
            for row in rows:
                recorder._blobs[blobs.user_id, row.address] = (row.body, 0)
            return len(rows)

    def begin_unused(
        self, job: Job, subjects: Sequence[Subject], unused: Unused
    ) -> Job | None:
        with self._recorder._lock:
            if self._used(job.whose, unused):
                return None
            begun = self._erasing.begin(job, subjects)
            if begun is job:
                self._erasing.mark(job.whose)
            return begun

    def _used(self, whose: Whose, unused: Unused) -> bool:
        heads = self._recorder._heads.items()
        written = {
            stream.session_id: head.updated_at
            for stream, head in heads
            if stream.user_id == whose.user_id and stream.stream == MAIN
        }
        names = list(whose.sessions or written)
        if set(written) != set(unused.known):
            return True
        read = {one.session_id: one.last_at for one in self.accesses(whose.user_id)}
        return any(
            written.get(name, 0) > unused.since
            or (unused.reads and read.get(name, 0) > unused.since)
            for name in names
        )


_USER = KeyPlace("", 0)


class MemoryKeyStore:
    """Wrapped keys in dictionaries."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._kept: dict[tuple[str, ...], bytes] = {}
        self._sessions: dict[tuple[str, str], dict[int, bytes]] = {}
        self._epochs: dict[str, int] = {}
        self._erased: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, KeyPlace], bytes] = {}
        self._generation = 0

    def get_setting(self, name: str) -> bytes | None:
        return self._kept.get(("setting", name))

    def add_setting(self, name: str, value: bytes) -> bytes:
        return self._kept.setdefault(("setting", name), value)

    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            if self._kept.get(("setting", name)) != old:
                return False
            self._kept["setting", name] = new
            self._generation += 1
            return True

    def generation(self) -> int:
        return self._generation

    def reach(self, generation: int) -> None:
        self._generation = max(self._generation, generation)

    def get_user(self, user_ref: str) -> UserEntry | None:
        wrapped = self._kept.get(("user", user_ref))
        if wrapped is None and user_ref not in self._epochs:
            return None
        return UserEntry(self._epochs.get(user_ref, 1), wrapped)

    def add_user(
        self,
        user_ref: str,
        wrapped: bytes,
        now: int,  # noqa: ARG002  # the port's
        *,
        pepper: bytes,
    ) -> UserEntry | None:
        with self._lock:
            if self.get_setting(PEPPER) != pepper:
                return None
            if user_ref not in self._epochs:
                self._kept.setdefault(("user", user_ref), wrapped)
            return self.get_user(user_ref)

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        if (user_ref, session_ref) in self._erased:
            raise Erased("the session")
        return dict(self._sessions.get((user_ref, session_ref), {}))

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,  # noqa: ARG002  # the port's
        *,
        under: bytes,
        version: int = 1,
    ) -> bytes | None:
        with self._lock:
            if self._kept.get(("user", user_ref)) != under:
                return None
            if (user_ref, session_ref) in self._erased:
                raise Erased("the session")
            keys = self._sessions.setdefault((user_ref, session_ref), {})
            return keys.setdefault(version, wrapped)

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        return sum(
            len(keys) - 1
            for (user, session), keys in self._sessions.items()
            if keys and user_ref in (None, user) and session_ref in (None, session)
        )

    def destroy_sessions(self, user_ref: str, session_ref: str, *, before: int) -> int:
        keys = self._sessions.get((user_ref, session_ref), {})
        old = [version for version in keys if version < before]
        for version in old:
            del keys[version]
        return len(old)

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:  # noqa: ARG002  # the port's
        with self._lock:
            taken = self._taken(user_ref, sessions)
            self._held |= {(user_ref, place): key for place, key in taken.items()}
            return self._counted(len(taken))

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        with self._lock:
            places = self._put_aside(user_ref, sessions)
            for place in places:
                key = self._held.pop((user_ref, place))
                if place == _USER:
                    self._kept["user", user_ref] = key
                else:
                    whose = self._sessions.setdefault((user_ref, place.session_ref), {})
                    whose[place.version] = key
            self._erased -= {(user_ref, ref) for ref in sessions or ()}
            return self._counted(len(places))

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:  # noqa: ARG002  # the port's
        with self._lock:
            held = [
                place
                for user, place in self._held
                if user == user_ref
                and (sessions is None or place.session_ref in sessions)
            ]
            for place in held:
                del self._held[user_ref, place]
            taken = self._taken(user_ref, sessions)
            return self._counted(len(held) + len(taken))

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:  # noqa: ARG002  # the port's
        with self._lock:
            entry = self.get_user(user_ref)
            if entry is None or entry.wrapped is not None or entry.epoch != epoch - 1:
                return False
            self._kept["user", user_ref] = wrapped
            self._epochs[user_ref] = epoch
            return self._counted(1) == 1

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        refs = {ref for kind, ref in self._kept if kind == "user"} | set(self._epochs)
        found = [(ref, self.get_user(ref)) for ref in sorted(refs) if ref > after]
        return [(ref, entry) for ref, entry in found if entry is not None][:limit]

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        return {
            KeyPlace(session_ref, version): key
            for (user, session_ref), keys in list(self._sessions.items())
            for version, key in keys.items()
            if user == user_ref
        }

    def held_users(self) -> list[tuple[str, UserEntry]]:
        held = [(ref, key) for (ref, at), key in self._held.items() if at == _USER]
        return [(ref, UserEntry(self._epochs.get(ref, 1), key)) for ref, key in held]

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            if self._held.get((user_ref, _USER)) != old:
                return False
            self._held[user_ref, _USER] = new
            return self._counted(1) == 1

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        with self._lock:
            if self._kept.get(("user", user_ref)) != old:
                return False
            if keys is not None and set(self.keys_of(user_ref)) != set(keys):
                return False
            self._kept["user", user_ref] = new
            for place, key in (keys or {}).items():
                self._sessions[user_ref, place.session_ref][place.version] = key
            return self._counted(1) == 1

    def counts(self) -> dict[str, int]:
        entries = [entry for _, entry in self.users(limit=1 << 60)]
        live = sum(entry.wrapped is not None for entry in entries)
        versions = [v for keys in self._sessions.values() for v in keys]
        return {
            "users": live,
            "erased_users": len(entries) - live,
            "sessions": sum(version == 1 for version in versions),
            "rotated": sum(version > 1 for version in versions),
            "erased_sessions": len(self._erased),
            "held": len(self._held),
        }

    def close(self) -> None:
        pass

    def _taken(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> dict[KeyPlace, bytes]:
        """Take the keys out, and leave the hash of whose they were."""
        taken = {
            place: key
            for place, key in self.keys_of(user_ref).items()
            if sessions is None or place.session_ref in sessions
        }
        for place in taken:
            self._sessions.pop((user_ref, place.session_ref), None)
        if sessions is not None:
            self._erased |= {(user_ref, ref) for ref in sessions}
            return taken
        self._epochs.setdefault(user_ref, 1)
        if key := self._kept.pop(("user", user_ref), None):
            taken[_USER] = key
        return taken

    def _put_aside(
        self, user_ref: str, sessions: Sequence[str] | None
    ) -> list[KeyPlace]:
        return [
            place
            for user, place in self._held
            if user == user_ref
            and (
                (user, place.session_ref) not in self._erased
                if sessions is None
                else place.session_ref in sessions
            )
        ]

    def _counted(self, changed: int) -> int:
        self._generation += bool(changed)
        return changed


def sizes(
    heads: Mapping[StreamId, HeadRow],
    rows: Sequence[EncryptedEvent],
    *,
    now: int,
) -> dict[str, Any]:
    """The figures of these heads and rows; rates up to ``now``."""
    main = [head for stream, head in heads.items() if stream.stream == MAIN]
    found: dict[str, Any] = {
        "users": len({stream.user_id for stream in heads}),
        "sessions": len(main),
        "derived_streams": len(heads) - len(main),
        "tokens": sum(head.tokens for head in main),
        **_sized(rows),
    }
    for name, span in RATES.items():
        active = sum(head.updated_at > now - span for head in main)
        recent = [row for row in rows if row.header.ts > now - span]
        found |= {f"sessions_{name}": active, **_sized(recent, f"_{name}")}
    return found


def _sized(rows: Sequence[EncryptedEvent], suffix: str = "") -> dict[str, int]:
    size = sum(len(row.state) for row in rows)
    return {f"events{suffix}": len(rows), f"event_bytes{suffix}": size}


def counted(what: str, bytes_: Sequence[int]) -> dict[str, int]:
    """How many there are of these sizes, and what they take together."""
    return {f"{what}s": len(bytes_), f"{what}_bytes": sum(bytes_)}


def lag_of(views: Iterable[Lagging]) -> list[dict[str, Any]]:
    """How far the views of each strategy are behind."""
    named = attrgetter("place.name")
    lag = []
    for name, group in groupby(sorted(views, key=named), key=named):
        behind = [view.events for view in group]
        lag.append(
            {
                "fingerprint": name,
                "views": len(behind),
                "behind": sum(events > 0 for events in behind),
                "events": sum(behind),
                "most": max(behind),
            }
        )
    return lag


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
        self._events: dict[StreamId, list[EncryptedEvent]] = {}
        self._order: list[EncryptedEvent] = []
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

    def _replace(self, row: EncryptedEvent) -> None:
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
    ) -> list[EncryptedEvent]:
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

    def _named(self, stream: StreamId, spans: str) -> list[EncryptedEvent]:
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
    ) -> list[tuple[int, EncryptedEvent]]:
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
