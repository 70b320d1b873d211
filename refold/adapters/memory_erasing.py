"""Erasing from the recorder in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refold.adapters.erasing_rows import CertificateRow, Subject
from refold.adapters.keystore import Refs
from refold.domain.erasure import Job, LegalHold, Remains, Stage, Whose
from refold.domain.errors import OnHold
from refold.domain.ids import StreamId
from refold.domain.merkle import leaf_hash, root_of
from refold.domain.ports import Status

if TYPE_CHECKING:
    from refold.adapters.memory import MemoryRecorder


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
