"""The verification of a stream: its chain, replaced rows, blobs, head and seals."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import func, literal, select

from refold.adapters.erasure import StoredErasureSteps
from refold.adapters.rows import (
    FROZEN_STATUSES,
    ORDINARY_STATUSES,
    EncryptedEvent,
    HeadRow,
)
from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.queries import FLOOR, SETTINGS
from refold.adapters.sql.recorder import Recorder, Subjects
from refold.adapters.sql.tree import Mark, Tree
from refold.adapters.streams import Blobs, EncryptedStreams, check_not_erased
from refold.domain.chain import (
    Reencryption,
    event_hash_of_digest,
    reencryption_digest_hex,
)
from refold.domain.envelope import Envelope
from refold.domain.erasure import FREEZE
from refold.domain.errors import CorruptEvent, Expired, KeyUnavailable
from refold.domain.events import RedactionApplied, Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EXPIRED, Problem
from refold.domain.seals import TREE, Leaf, Seal, Use, positions_digest, receipts_digest

PAGE: Final = 200
_POSITION_DIGITS: Final = 15  # no store writes more rows
# An act and its certificate may be two transactions.  So a difference between them is
# checked again after a pause.
_RECHECKS: Final = 3
_PAUSE_SEC: Final = 0.1
# How each act changes the number of holds with a name.
_HOLD_CHANGES: Final = {
    "legal hold": 1,
    "legal hold released": -1,
    "frozen": 1,
    "unfrozen": -1,
}


class Auditor:
    """Verifies one stream of a log, row by row."""

    def __init__(self, log: EncryptedStreams, stream: StreamId) -> None:
        self._log = log
        self._stream = stream
        self._replaced_rows = ReplacedRows(log, stream)
        self._has_replaced_rows = bool(self._replaced_rows)
        self._last: EncryptedEvent | None = None
        self._head_row, self._upto = self._bounds()

    def run(self) -> Iterator[Envelope | Problem]:
        """Yield every event, and every problem of the chain, the blobs and the head."""
        seq = 0
        for page in self._pages():
            for row in page:
                if not self._is_unchanged(row, seq + 1):
                    yield from self._chain_problems(row, seq + 1)
                seq = row.seq
                envelope = self._envelope(row)
                yield envelope
                if type(envelope) is Envelope:
                    for digest in envelope.blobs:
                        yield from self._blob_problems(row.seq, digest)
        yield from self._head_problems()

    def chain(self, *, after: int = 0) -> Iterator[int | Problem]:
        """Yield the number of events on each page, and every problem of the chain.

        Only events with the digests of replaced rows are decrypted.
        """
        seq = after
        for page in self._pages(after):
            for row in page:
                if not self._is_unchanged(row, seq + 1):
                    yield from self._chain_problems(row, seq + 1)
                seq = row.seq
            yield len(page)
        yield from self._head_problems()

    def _is_unchanged(self, row: EncryptedEvent, expected: int) -> bool:
        """Whether a row has this seq and its hash, in a stream without replaced rows.

        Most rows pass this check.  ``_chain_problems`` examines all others.
        """
        if self._has_replaced_rows or row.first_digest is not None:
            return False
        if row.seq != expected:
            return False
        digest = sha256(row.state).digest()
        return event_hash_of_digest(row.prev_hash, row.context, digest) == row.hash

    def _bounds(self) -> tuple[HeadRow | None, int | None]:
        """Return the head row, and the last seq to verify; None verifies all events.

        The head is read before the events, so that concurrent appends are no problem.
        If there is an event after the head, the head is read again: an append has
        moved it, unless somebody inserted the event without the head.
        """
        recorder = self._log.recorder
        row = recorder.head_row(self._stream)
        try:
            newest = recorder.select_events(self._stream, limit=1, desc=True)
        except CorruptEvent:
            return row, None  # the check of all events reports it
        end = newest[0].seq if newest else 0
        head_seq = row.seq if row is not None else 0
        if end > head_seq:
            row = recorder.head_row(self._stream)
        if row is not None and row.seq >= end:
            return row, row.seq
        return row, None

    def _pages(self, after: int = 0) -> Iterator[Sequence[EncryptedEvent]]:
        """Yield the rows to verify in pages."""
        select_events = self._log.recorder.select_events
        while True:
            page = select_events(self._stream, gt=after, lte=self._upto, limit=PAGE)
            if page:
                self._last = page[-1]
                after = self._last.seq
                yield page
            if len(page) < PAGE:
                return

    def _chain_problems(self, row: EncryptedEvent, expected: int) -> list[Problem]:
        """Return the problems of a row's place in the chain, and of its replacement.

        The hash is made from the original ciphertext.  If that was replaced, the row
        has its digest.
        """
        digest = sha256(row.state).digest()
        first_digest = row.first_digest or digest
        problems = []
        if row.seq != expected:
            problems.append(self._problem(expected, "gap", "an event is missing"))
        elif event_hash_of_digest(row.prev_hash, row.context, first_digest) != row.hash:
            detail = "the hash does not follow"
            problems.append(self._problem(expected, "chain", detail))
        if row.first_digest is not None or self._has_replaced_rows:
            reencryption = Reencryption(row.seq, first_digest, digest)
            replaced_rows = self._replaced_rows
            for seq, detail in replaced_rows.problems(reencryption, row.first_digest):
                problems.append(self._problem(seq, "replaced", detail))
        return problems

    def _envelope(self, row: EncryptedEvent) -> Envelope | Problem:
        """Decrypt and decode an event; returns a problem if that is impossible."""
        try:
            return self._log.envelope(row)
        except CorruptEvent as error:
            return self._problem(row.seq, "corrupt", error.reason)
        except KeyUnavailable as error:
            return self._problem(row.seq, "key", str(error))

    def _blob_problems(self, seq: int, digest: str) -> Iterator[Problem]:
        """Yield the problems of a blob that an event names."""
        size: int | None = None
        try:
            data = self._log.blob(self._stream, digest)
            if data is not None and sha256(data).hexdigest() == digest:
                size = len(data)
        except CorruptEvent:
            pass
        except Expired as error:
            size = 0  # the row of an expired blob remains, without data
            yield self._problem(seq, EXPIRED, str(error))
        if size is None:
            detail = f"blob {digest} is missing, or is not what was written"
            yield self._problem(seq, "blob", detail)
            return
        blobs = Blobs(self._log.recorder, self._log.keys, self._stream)
        facts = self._log.recorder.blob_facts(self._stream, blobs.address(digest))
        if facts is None:
            return  # a retention run has deleted the row since
        if facts != (self._stream.session_id, size):
            detail = f"the row of blob {digest} names another session or size"
            yield self._problem(seq, "blob", detail)

    def _head_problems(self) -> Iterator[Problem]:
        """Yield the difference between the head and the last event."""
        last = self._last
        row = self._head_row
        if row is None:
            if last is not None:
                yield self._problem(None, "head", "the stream has no head row")
            return
        check_not_erased(self._stream, row)
        if last is not None and (row.seq, row.hash) == (last.seq, last.hash):
            return
        # An erasure that began since would explain the difference.
        current = self._log.recorder.head_row(self._stream)
        if current is not None:
            check_not_erased(self._stream, current)
        end = last.seq if last is not None else 0
        detail = f"the head says seq {row.seq}, the events end at {end}"
        yield self._problem(row.seq, "head", detail)

    def _problem(self, seq: int | None, code: str, detail: str) -> Problem:
        """Return a problem of the stream."""
        return Problem(*self._stream, seq=seq, code=code, detail=detail)


class ReplacedRows:
    """The digests of a stream's rows that its newest re-encryption has recorded.

    A re-encryption replaces all rows of a stream.  So only the newest one counts.
    """

    def __init__(self, log: EncryptedStreams, stream: StreamId) -> None:
        try:
            envelopes = log.read(stream.main, types=("redaction_applied",))
        except (CorruptEvent, KeyUnavailable):
            envelopes = []  # the audit of the main stream reports this
        events: list[RedactionApplied] = []
        for envelope in envelopes:
            event = envelope.payload
            if not isinstance(event, RedactionApplied):
                continue
            if event.stream == stream.stream and event.digest:
                events.append(event)
        newest = max((event.key_version for event in events), default=0)
        self._events = [event for event in events if event.key_version == newest]
        # The rows so far in the span of the current event:
        self._rows: list[Reencryption] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def problems(
        self, row: Reencryption, first_digest: bytes | None
    ) -> Iterator[tuple[int, str]]:
        """Yield the problems of the next row, each with its seq.

        At the last row of a span, this includes the problems of the whole span.
        """
        seq = row.seq
        event = self._event_of(seq)
        if event is None:
            if first_digest is not None:
                yield seq, "it was replaced, and no redaction_applied event says so"
            return
        if first_digest is None:
            yield seq, "a redaction_applied event replaced it, but it is unchanged"
        elif not _fits(event, row):
            yield seq, "its ciphertext differs from that in a redaction_applied event"
        self._rows.append(row)
        if seq == event.last_seq:
            if reencryption_digest_hex(self._rows) != event.digest:
                span = f"seq {event.first_seq} to {seq}"
                yield seq, f"{span} differ from the digest in a redaction_applied event"
            self._rows = []

    def _event_of(self, seq: int) -> RedactionApplied | None:
        """Return the event whose span contains this seq."""
        for event in self._events:
            if event.first_seq <= seq <= event.last_seq:
                return event
        return None


def _fits(event: RedactionApplied, row: Reencryption) -> bool:
    """Whether the ciphertext is the one that the event names for this row, if any."""
    if row.seq not in event.seqs:
        return True
    index = event.seqs.index(row.seq)
    is_same = event.hashes[index] == row.current_digest.hex()
    return is_same and event.first_hashes[index] == row.first_digest.hex()


_MARKS_PER_PAGE: Final = 10_000
_END: Final = 2**63 - 1  # after every seq
_SPAN_AFTER_ALL: Final = (2**64, 2**64)  # ends the loop of ``minus``


def seal_problems(tree: Tree, stream: StreamId) -> Iterator[Problem]:
    """Yield the differences between a stream and its seals, and missing receipts.

    It decrypts nothing.  It reads seals, then events, then receipts: in this order,
    concurrent appends are no problem.
    """
    seals = tree.seals(stream)
    marks = Marks(tree, stream)
    positions = [positions_digest(marks.upto(seal.seq)) for seal in seals]
    marks.read_rest()
    uses = tree.uses(stream, after=0, upto=marks.last)
    uses.sort(key=attrgetter("first_seq", "last_seq"))
    end = 0
    for seal, digest in zip(seals, positions, strict=True):
        begin = end
        end = bisect_right(uses, seal.seq, key=attrgetter("first_seq"))
        receipts = receipts_digest(uses[begin:end])
        yield from leaf_differences(
            stream, seal, digest == seal.positions, receipts == seal.receipts
        )
    for seq, detail in _unpaired(marks.idempotent_spans, uses):
        yield Problem(*stream, seq, "receipt", detail)


def leaf_differences(
    stream: StreamId,
    seal: Seal,
    positions_match: bool = True,
    receipts_match: bool = True,
) -> Iterator[Problem]:
    """Yield the differences between a stream and one of its seals.

    positions_match, receipts_match: whether they are those that were sealed; True if
    the caller does not check them.
    """
    for detail in _seal_differences(seal, positions_match, receipts_match):
        yield Problem(*stream, seal.seq, "seal", detail)


def _seal_differences(
    seal: Seal, positions_match: bool, receipts_match: bool
) -> Iterator[str]:
    """Describe the differences between a stream and one of its seals."""
    if not seal.now:
        yield "it was sealed up to here, but its events end earlier or have a gap"
        return
    leaf = Leaf(seal.now, seal.positions, seal.receipts)
    if not seal.kept:
        yield f"its leaf {seal.leaf} is not in the tree, or belongs to erased data"
    elif leaf.hashed() != seal.kept:
        yield f"leaf {seal.leaf} of the tree was made from another event"
    if not positions_match:
        yield "positions up to here are not those that were sealed"
    if not receipts_match:
        yield "receipts up to here are not those that were sealed"


class Marks:
    """The columns of a stream's events that no hash covers, read in order, in pages.

    last:             the last seq that was read.
    idempotent_spans: the spans of events with an idempotency key up to ``last``.
    """

    def __init__(self, tree: Tree, stream: StreamId) -> None:
        self._tree = tree
        self._stream = stream
        self._page: list[Mark] = []
        self._ended = False
        self.last = 0
        self.idempotent_spans: list[Span] = []

    def upto(self, seq: int) -> Iterator[int]:
        """Yield the positions of further events, up to this seq."""
        while self._has_next() and self._page[0].seq <= seq:
            end = bisect_right(self._page, seq, key=attrgetter("seq"))
            marks = self._page[:end]
            self._page = self._page[end:]
            self.last = marks[-1].seq
            for mark in marks:
                if mark.idempotent:
                    self._add_idempotent(mark.seq)
            yield from [mark.position for mark in marks]

    def read_rest(self) -> None:
        """Read the events that ``upto`` has not yielded yet."""
        for _ in self.upto(_END):
            pass

    def _add_idempotent(self, seq: int) -> None:
        """Add an event with an idempotency key to the spans."""
        if self.idempotent_spans:
            first, last = self.idempotent_spans[-1]
            if last + 1 == seq:
                self.idempotent_spans[-1] = (first, seq)
                return
        self.idempotent_spans.append((seq, seq))

    def _has_next(self) -> bool:
        """Whether there is another event; reads the next page if necessary."""
        if not self._page and not self._ended:
            self._page = self._tree.marks(
                self._stream, after=self.last, upto=_END, limit=_MARKS_PER_PAGE
            )
            self._ended = len(self._page) < _MARKS_PER_PAGE
        return bool(self._page)


def _unpaired(
    idempotent_spans: Sequence[Span], uses: Sequence[Use]
) -> Iterator[tuple[int, str]]:
    """Describe events with an idempotency key but no receipt, and the opposite."""
    covered: list[Span] = []
    for _, first, last in uses:
        if last < first or (covered and first <= covered[-1][1]):
            yield first, "the span of a receipt is reversed, or overlaps another"
        else:
            covered.append((first, last))
    for first, last in minus(idempotent_spans, covered):
        yield first, f"seq {first} to {last} have an idempotency key, but no receipt"
    for first, last in minus(covered, idempotent_spans):
        yield first, f"seq {first} to {last} have a receipt, but no idempotency key"


def minus(spans: Sequence[Span], removed: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of ``spans`` that no span in ``removed`` covers.

    Both are in order.
    """
    remaining = iter([*removed, _SPAN_AFTER_ALL])
    first_removed, last_removed = next(remaining)
    for first, last in spans:
        while last_removed < first:
            first_removed, last_removed = next(remaining)
        while first_removed <= last and first <= last:
            if first < first_removed:
                yield first, first_removed - 1
            first = last_removed + 1
            if last_removed <= last:
                first_removed, last_removed = next(remaining)
        if first <= last:
            yield first, last


# The row of a certificate, and its statement; None without a valid signature.
StatedCertificate: TypeAlias = tuple[Any, Any]


def _highest_deleted(remembered: Mapping[str, bytes]) -> int:
    """Return the highest position of a deleted row that the key store remembers."""
    positions = [0]
    for name, value in remembered.items():
        if name.partition(" ")[0] == FLOOR:
            positions.append(int(value))
    return max(positions)


class StoreDataVerification:
    """Verifies data other than events: guards, settings, holds and subjects."""

    def __init__(self, recorder: Recorder, erasures: StoredErasureSteps) -> None:
        self._database = recorder.database
        self._t = recorder.database.tables
        self._erasures = erasures
        self._subjects = Subjects(recorder.database)

    def run(self, read: Callable[[], Sequence[StatedCertificate]]) -> Iterator[Problem]:
        """Yield the problems; ``read`` returns the present certificates."""
        remembered = self._erasures.remembered()
        certificates = read()
        yield from self._guard_problems()
        if self._erasures.has_floor:
            yield from self._floor_problems(remembered)
        generation = int(remembered.get("generation", b"0"))
        stored_generation = self._subjects.key_generation()
        if stored_generation < generation:
            detail = (
                f"the key generation in the database was {generation}, and is "
                f"{stored_generation} now"
            )
            yield Problem(*TREE, None, "key", detail)
        rows = [row for row, _ in certificates]
        yield from self._certificate_problems(remembered, rows)
        problems = self._certified_state_problems(certificates)
        for _ in range(_RECHECKS):
            if not problems:
                return
            time.sleep(_PAUSE_SEC)
            problems &= self._certified_state_problems(read())
        yield from sorted(problems, key=repr)

    def _guard_problems(self) -> Iterator[Problem]:
        """Yield triggers and settings that Refold has not made."""
        for name in self._database.unguarded():
            detail = f"the trigger {name} is not the one that Refold made"
            yield Problem(*TREE, None, "guard", detail)
        query = select(self._t.settings.c.name, self._t.settings.c.value)
        settings = {row.name: row.value for row in self._database.read(NOBODY, query)}
        for name in sorted(map(str, settings.keys() - SETTINGS)):
            detail = f"the setting {name!r} is not one that Refold leaves there"
            yield Problem(*TREE, None, "guard", detail)

    def _floor_problems(self, remembered: Mapping[str, bytes]) -> Iterator[Problem]:
        """Check that ``floor`` is the highest position of a deleted row.

        The key store remembers that position before the row is deleted.  From then on,
        either the row exists, or the floor is at least as high.
        """
        settings = self._t.settings.c
        events = self._t.events.c
        newest = select(func.max(events.position)).scalar_subquery()
        setting = select(settings.value).where(settings.name == FLOOR).scalar_subquery()
        ((highest, value),) = self._database.read(NOBODY, select(newest, setting))
        floor = str(value or 0)
        if not floor.isdecimal() or len(floor) > _POSITION_DIGITS:
            detail = "the setting 'floor' is not the position of a deleted row"
            yield Problem(*TREE, None, "guard", detail)
            return
        deleted = _highest_deleted(remembered)
        if max(int(floor), highest or 0) < deleted:
            detail = (
                f"the setting 'floor' is {floor}, although the row at position "
                f"{deleted} was deleted: positions can be given out again"
            )
            yield Problem(*TREE, None, "guard", detail)
        # A deletion since the first look may have raised the floor.
        deleted_now = _highest_deleted(self._erasures.remembered())
        if int(floor) > deleted_now:
            detail = (
                f"the setting 'floor' is {floor}, although no row after position "
                f"{deleted_now} was deleted: positions are left out"
            )
            yield Problem(*TREE, None, "guard", detail)

    def _certificate_problems(
        self, remembered: Mapping[str, bytes], rows: Sequence[Any]
    ) -> Iterator[Problem]:
        """Yield certificates that the key store remembers and the database has lost."""
        stored = {row.certificate_id: row.user_ref for row in rows}
        for name, ref in sorted(remembered.items()):
            kind, _, certificate_id = name.partition(" ")
            if kind == "certificate" and stored.get(certificate_id) != ref.decode():
                detail = (
                    f"this store signed {certificate_id}, but it is missing or "
                    "belongs to another user"
                )
                yield Problem(*TREE, None, "certificate", detail)

    def _certified_state_problems(
        self, certificates: Sequence[StatedCertificate]
    ) -> set[Problem]:
        """Return the holds, subjects and heads that differ from the certificates."""
        signed = _SignedState.of(certificates)
        return {
            *self._hold_problems(signed),
            *self._subject_problems(signed),
            *self._status_problems(signed),
        }

    def _hold_problems(self, signed: _SignedState) -> Iterator[Problem]:
        """Yield holds that differ from the certificates."""
        holds = self._t.holds.c
        query = select(holds.user_ref, holds.name, holds.reason)
        stored: dict[tuple[str, str], str] = {}
        for user_ref, name, reason in self._database.read(None, query):
            stored[user_ref, name] = reason
        for hold in stored.keys() | signed.holds.keys():
            user_ref, name = hold
            if hold not in stored and user_ref in signed.erased:
                continue  # the erasure of a user deletes their holds
            if stored.get(hold) != signed.holds.get(hold):
                kind = "freeze" if name == FREEZE else "legal hold"
                detail = (
                    f"a {kind} of {user_ref[:12]}… is not what its certificate says"
                )
                yield Problem(*TREE, None, "hold", detail)

    def _subject_problems(self, signed: _SignedState) -> Iterator[Problem]:
        """Yield users whose status or epoch differs from the certificates."""
        in_progress = {job.user_ref for job in self._erasures.jobs()}
        stored: dict[str, tuple[str, int]] = {}
        for subject in self._subjects.changed():
            # Users have no certificates of their sessions' statuses.
            if subject.ref == subject.user_ref:
                stored[subject.ref] = (subject.status, subject.epoch)
        for ref in sorted((stored.keys() | signed.refs) - in_progress):
            if stored.get(ref, ("live", 1)) != signed.subject(ref):
                detail = f"subject {ref[:12]}… is not what its certificates say"
                yield Problem(*TREE, None, "subject", detail)

    def _status_problems(self, signed: _SignedState) -> Iterator[Problem]:
        """Yield heads with an impossible status, or one that contradicts a freeze.

        The column ``before`` is set only while a head is marked as erased.
        """
        heads = self._t.heads.c
        impossible = heads.before.is_not(None) & (heads.status != "erased")
        impossible |= heads.status.not_in(
            [*ORDINARY_STATUSES, *FROZEN_STATUSES, "erased"]
        )
        query = select(heads.user_id, heads.session_id, heads.stream)
        query = query.where(impossible).limit(PAGE)
        for row in self._database.read(None, query):
            yield Problem(
                *StreamId(*row), None, "head", "this status is impossible here"
            )
        frozen = {ref for ref, name in signed.holds if name == FREEZE}
        # Heads with the status of a freeze, although their user is not frozen:
        for stream in self._one_of_each_user(FROZEN_STATUSES):
            if self._erasures.ref_of(stream.user_id) not in frozen:
                yield _freeze_problem(stream)
        if not frozen:
            return
        # Heads with an ordinary status, although their user is frozen:
        for stream in self._one_of_each_user(ORDINARY_STATUSES):
            if self._erasures.ref_of(stream.user_id) in frozen:
                yield _freeze_problem(stream)

    def _one_of_each_user(self, statuses: Sequence[str]) -> Iterator[StreamId]:
        """Yield one session of each user who has heads with these statuses."""
        heads = self._t.heads.c
        query = select(heads.user_id, func.min(heads.session_id), literal(MAIN))
        query = query.group_by(heads.user_id)
        query = query.where(heads.status.in_(statuses))
        for row in self._database.read(None, query):
            yield StreamId(*row)


def _freeze_problem(stream: StreamId) -> Problem:
    """Return the problem of a head that contradicts the certificates of freezes."""
    detail = "its status contradicts the certificates of freezes"
    return Problem(*stream, None, "head", detail)


@dataclass(slots=True)
class _SignedState:
    """The holds and subjects that follow from the certificates.

    holds:  the reasons of holds, by keyed hash of the user and name.
    erased: the users who were erased, and not readmitted since.
    epochs: the epochs of readmitted users.
    refs:   all users with certificates.

    Placements and releases of a hold alternate.  So their difference shows whether it
    is in force, in any order of the certificates.
    """

    holds: dict[tuple[str, str], str] = field(default_factory=dict)
    erased: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    refs: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, certificates: Sequence[StatedCertificate]) -> _SignedState:
        """Read certificates, the oldest first."""
        signed = cls()
        counts: Counter[tuple[str, str]] = Counter()
        reasons: dict[tuple[str, str], str] = {}
        for row, statement in certificates:
            if statement is None:
                continue
            act = statement.get("act")
            ref = row.user_ref
            if act in _HOLD_CHANGES:
                if "reason" not in statement:
                    continue  # it is unreadable: the user's key was destroyed
                hold = (ref, statement.get("hold", FREEZE))
                counts[hold] += _HOLD_CHANGES[act]
                if _HOLD_CHANGES[act] > 0:
                    reasons[hold] = statement.get("reason", "")
            elif act == "erased" and statement.get("scope") == "user":
                signed.erased.add(ref)
            elif act == "readmitted":
                signed.erased.discard(ref)
                signed.epochs[ref] = statement.get("epoch", 1)
            signed.refs.add(ref)
        for hold, reason in reasons.items():
            if counts[hold] > 0:
                signed.holds[hold] = reason
        return signed

    def subject(self, ref: str) -> tuple[str, int]:
        """Return the status and the epoch of a user."""
        epoch = self.epochs.get(ref, 1)
        if (ref, FREEZE) in self.holds:
            return "frozen", epoch
        if ref in self.erased:
            return "erased", epoch
        return "live", epoch
