"""Proving a stream: its chain, what replaced its rows, its blobs, head and seals."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import func, literal, select

from refold.adapters.erasure import StoredErasureSteps
from refold.adapters.rows import FROZEN, THAWED, EncryptedEvent, HeadRow
from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.recorder import Recorder, Subjects
from refold.adapters.sql.tables import FLOOR, SETTINGS
from refold.adapters.sql.tree import Mark, Tree
from refold.adapters.streams import Blobs, EncryptedStreams, check_not_erased
from refold.domain.chain import Resealing, link_digest, resealed
from refold.domain.envelope import Envelope
from refold.domain.erasure import FREEZE
from refold.domain.errors import CorruptEvent, Expired, KeyUnavailable
from refold.domain.events import RedactionApplied, Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EXPIRED, Problem
from refold.domain.seals import TREE, Leaf, Seal, Use, positions_digest, receipts_digest

PAGE: Final = 200
_POSITION_DIGITS: Final = 15  # no store writes as many rows
_LOOKS: Final = 3  # what is done and what is signed of it are two transactions
_PAUSE_SEC: Final = 0.1
_SIGNED: Final = {
    "legal hold": 1,
    "legal hold released": -1,
    "frozen": 1,
    "unfrozen": -1,
}


class Auditor:
    """Proves one stream of a log, row by row."""

    def __init__(self, log: EncryptedStreams, stream: StreamId) -> None:
        self._log, self._stream = log, stream
        self._bindings = Bindings(log, stream)
        self._bound = bool(self._bindings)
        self._last: EncryptedEvent | None = None
        self._row, self._upto = self._bounds()

    def run(self) -> Iterator[Envelope | Problem]:
        """Every event with its chain proved, then the head; or what is wrong."""
        seq = 0
        for page in self._pages():
            for row in page:
                if not self._follows(row, seq + 1):
                    yield from self._chained(row, seq + 1)
                seq, opened = row.columns[1], self._opened(row)
                yield opened
                if type(opened) is Envelope:
                    for digest in opened.blobs:
                        yield from self._proved(row.seq, digest)
        yield from self._head()

    def chain(self, *, after: int = 0) -> Iterator[int | Problem]:
        """How many events each page has, its chain proved; or what is wrong.

        Nothing is opened but the events that bind replaced rows.
        """
        seq = after
        for page in self._pages(after):
            for row in page:
                if not self._follows(row, seq + 1):
                    yield from self._chained(row, seq + 1)
                seq = row.columns[1]
            yield len(page)
        yield from self._head()

    def _follows(self, row: EncryptedEvent, expected: int) -> bool:
        """Whether it is in its place, was never replaced, and its hash is right."""
        if self._bound or row.first_digest is not None or row.columns[1] != expected:
            return False
        digest = sha256(row.state).digest()
        return link_digest(row.prev_hash, row.context, digest) == row.hash

    def _bounds(self) -> tuple[HeadRow | None, int | None]:
        """The head row, and up to where events are proved: None to prove all there are.

        The head is read before the events, so that what is appended meanwhile is no
        fault.  An event behind it has moved it, or was put there: then a head that is
        read again stands before it still.
        """
        recorder = self._log.recorder
        row = recorder.head_row(self._stream)
        try:
            newest = recorder.select_events(self._stream, limit=1, desc=True)
        except CorruptEvent:
            return row, None
        end = newest[0].seq if newest else 0
        if end > (row.seq if row else 0):
            row = recorder.head_row(self._stream)
        return row, row.seq if row and row.seq >= end else None

    def _pages(self, after: int = 0) -> Iterator[Sequence[EncryptedEvent]]:
        rows = self._log.recorder.select_events
        while page := rows(self._stream, gt=after, lte=self._upto, limit=PAGE):
            self._last = page[-1]
            after = self._last.seq
            yield page

    def _chained(self, row: EncryptedEvent, expected: int) -> list[Problem]:
        """What is wrong with a row's place in the chain, or with what it holds since.

        Where the ciphertext was replaced, the hash follows from the digest of the
        first.
        """
        digest, first, seq = sha256(row.state).digest(), row.first_digest, row.seq
        wrong = []
        if seq != expected:
            wrong.append(self._problem(expected, "gap", "an event is missing"))
        elif link_digest(row.prev_hash, row.context, first or digest) != row.hash:
            wrong.append(self._problem(expected, "chain", "the hash does not follow"))
        if first is not None or self._bound:
            now = Resealing(seq, first or digest, digest)
            for at, detail in self._bindings.wrong(now, first):
                wrong.append(self._problem(at, "replaced", detail))
        return wrong

    def _opened(self, row: EncryptedEvent) -> Envelope | Problem:
        """The event, with what it holds decoded; or why it is not what was written."""
        try:
            return self._log.envelope(row)
        except CorruptEvent as error:
            return self._problem(row.seq, "corrupt", error.reason)
        except KeyUnavailable as error:
            return self._problem(row.seq, "key", str(error))

    def _proved(self, seq: int, digest: str) -> Iterator[Problem]:
        size: int | None = None
        try:
            data = self._log.blob(self._stream, digest)
            if data is not None and sha256(data).hexdigest() == digest:
                size = len(data)
        except CorruptEvent:
            pass
        except Expired as error:
            size = 0
            yield self._problem(seq, EXPIRED, str(error))
        if size is None:
            detail = f"blob {digest} is missing, or is not what was written"
            yield self._problem(seq, "blob", detail)
            return
        address = Blobs(self._log.recorder, self._log.keys, self._stream)
        facts = self._log.recorder.blob_facts(self._stream, address.address(digest))
        if facts not in (None, (self._stream.session_id, size)):
            detail = f"the row of blob {digest} names another session or size"
            yield self._problem(seq, "blob", detail)

    def _head(self) -> Iterator[Problem]:
        last, row = self._last, self._row
        if row is None:
            if last is not None:
                yield self._problem(None, "head", "the stream has no head row")
            return
        check_not_erased(self._stream, row)
        if last is None or (row.seq, row.hash) != (last.seq, last.hash):
            if now := self._log.recorder.head_row(self._stream):
                check_not_erased(self._stream, now)
            seq = last.seq if last else 0
            detail = f"the head says seq {row.seq}, the events end at {seq}"
            yield self._problem(row.seq, "head", detail)

    def _problem(self, seq: int | None, code: str, detail: str) -> Problem:
        return Problem(*self._stream, seq=seq, code=code, detail=detail)


class Bindings:
    """What the newest rewriting of a stream says that its rows hold since.

    A rewriting takes every row there is, so the newest one alone counts.
    """

    def __init__(self, log: EncryptedStreams, stream: StreamId) -> None:
        try:
            found = log.read(stream.main, types=("redaction_applied",))
        except (CorruptEvent, KeyUnavailable):
            found = []  # the audit of the main stream says what is wrong with it
        events = [
            event
            for envelope in found
            if isinstance(event := envelope.payload, RedactionApplied)
            and event.stream == stream.stream
            and event.digest
        ]
        newest = max((event.key_version for event in events), default=0)
        self._events = [event for event in events if event.key_version == newest]
        self._rows: list[Resealing] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def wrong(
        self, row: Resealing, first_digest: bytes | None
    ) -> Iterator[tuple[int, str]]:
        """What is wrong of this row, the next, or of those that it is the last of."""
        seq, events = row.seq, self._events
        event = next((e for e in events if e.first_seq <= seq <= e.last_seq), None)
        if event is None:
            if first_digest is not None:
                yield seq, "it was replaced, and no redaction_applied event binds that"
            return
        if first_digest is None:
            yield seq, "it is not what a redaction_applied event put there"
        elif not _names(event, row):
            yield seq, "it is not the ciphertext that a redaction_applied event names"
        self._rows.append(row)
        if seq == event.last_seq:
            if resealed(self._rows) != event.digest:
                span = f"seq {event.first_seq} to {seq}"
                yield seq, f"{span} are not what a redaction_applied event binds"
            self._rows = []


def _names(event: RedactionApplied, row: Resealing) -> bool:
    """Whether the event names this very ciphertext, if it names one of this row."""
    if row.seq not in event.seqs:
        return True
    place = event.seqs.index(row.seq)
    named = event.hashes[place], event.first_hashes[place]
    return named == (row.digest.hex(), row.first_digest.hex())


_MARKS: Final = 10_000
_END: Final = 2**63 - 1
_NOWHERE: Final = (2**64, 2**64)


def sealed_problems(tree: Tree, stream: StreamId) -> Iterator[Problem]:
    """What of the stream is not as it was sealed, or has no receipt.

    Nothing is decrypted.  Read in this order, an append raises no alarm: seals, then
    events, then the receipts of these.
    """
    seals, marks = tree.seals(stream), Marks(tree, stream)
    positions = [positions_digest(marks.upto(seal.seq)) for seal in seals]
    deque(marks.upto(_END), maxlen=0)
    uses = sorted(tree.uses(stream, after=0, upto=marks.last), key=lambda u: u[1:])
    begun = 0
    for seal, digest in zip(seals, positions, strict=True):
        before, begun = begun, bisect_right(uses, seal.seq, key=attrgetter("first_seq"))
        receipts = receipts_digest(uses[before:begun])
        yield from unlike_leaf(
            stream, seal, digest == seal.positions, receipts == seal.receipts
        )
    for seq, detail in _unpaired(marks.named, uses):
        yield Problem(*stream, seq, "receipt", detail)


def unlike_leaf(
    stream: StreamId, seal: Seal, positions: bool = True, receipts: bool = True
) -> Iterator[Problem]:
    """In which ways a stream is not what was sealed of it.

    ``positions`` and ``receipts``: whether they are; True where nobody looked.
    """
    for detail in _differs(seal, positions, receipts):
        yield Problem(*stream, seal.seq, "seal", detail)


def _differs(seal: Seal, positions: bool, receipts: bool) -> Iterator[str]:
    if not seal.now:
        yield "it was sealed up to here, and its events end before, or have a gap"
        return
    leaf = Leaf(seal.now, seal.positions, seal.receipts)
    if not seal.kept:
        yield f"its leaf {seal.leaf} is not in the tree, or is of something erased"
    elif leaf.hashed() != seal.kept:
        yield f"leaf {seal.leaf} of the tree was made of another event"
    if not positions:
        yield "positions up to here are not those that were sealed"
    if not receipts:
        yield "receipts up to here are not those that were sealed"


class Marks:
    """The marks of a stream's events, read once and in order, a page at a time.

    ``last`` is how far it was read, ``named`` are the spans of the events with an
    idempotency key up to there.
    """

    def __init__(self, tree: Tree, stream: StreamId) -> None:
        self._tree, self._stream = tree, stream
        self._page: list[Mark] = []
        self._ended = False
        self.last = 0
        self.named: list[Span] = []

    def upto(self, seq: int) -> Iterator[int]:
        """The positions of the events up to ``seq``, from where it was read before."""
        while self._filled() and self._page[0].seq <= seq:
            end = bisect_right(self._page, seq, key=attrgetter("seq"))
            taken, self._page = self._page[:end], self._page[end:]
            self.last = taken[-1].seq
            for at in (mark.seq for mark in taken if mark.idempotent):
                if self.named and self.named[-1][1] + 1 == at:
                    self.named[-1] = (self.named[-1][0], at)
                else:
                    self.named.append((at, at))
            yield from [mark.position for mark in taken]

    def _filled(self) -> bool:
        """Whether there is another event; the next page is read where one is needed."""
        if not self._page and not self._ended:
            self._page = self._tree.marks(
                self._stream, after=self.last, upto=_END, limit=_MARKS
            )
            self._ended = len(self._page) < _MARKS
        return bool(self._page)


def _unpaired(named: Sequence[Span], uses: Sequence[Use]) -> Iterator[tuple[int, str]]:
    """Events with an idempotency key and no receipt, and receipts of no such events."""
    covered: list[Span] = []
    for _, first, last in uses:
        if last < first or (covered and first <= covered[-1][1]):
            yield first, "a receipt says seqs that are not its own"
        else:
            covered.append((first, last))
    for first, last in minus(named, covered):
        yield first, f"seq {first} to {last} have an idempotency key and no receipt"
    for first, last in minus(covered, named):
        yield first, f"a receipt is of seq {first} to {last}, which have no such key"


def minus(these: Sequence[Span], those: Sequence[Span]) -> Iterator[Span]:
    """What of ``these`` spans is in none of ``those``; both in order."""
    others = iter([*those, _NOWHERE])
    first_other, last_other = next(others)
    for first, last in these:
        while last_other < first:
            first_other, last_other = next(others)
        while first_other <= last and first <= last:
            if first < first_other:
                yield first, first_other - 1
            first = last_other + 1
            if last_other <= last:
                first_other, last_other = next(others)
        if first <= last:
            yield first, last


# The row of a certificate, and what it states; None if that was not signed here.
Stated: TypeAlias = tuple[Any, Any]


def _highest_deleted(remembered: Mapping[str, bytes]) -> int:
    """The highest position of a deleted row that the key store remembers."""
    positions = [0]
    for name, value in remembered.items():
        if name.partition(" ")[0] == FLOOR:
            positions.append(int(value))
    return max(positions)


class Standing:
    """Proves what stands beside the events: guards, settings, holds and subjects."""

    def __init__(self, recorder: Recorder, erasures: StoredErasureSteps) -> None:
        self._database, self._t = recorder.database, recorder.database.tables
        self._erasures, self._subjects = erasures, Subjects(recorder.database)

    def run(self, read: Callable[[], Sequence[Stated]]) -> Iterator[Problem]:
        """What is wrong; ``read`` gives the certificates as they are now."""
        remembered = self._erasures.remembered()
        stated = read()
        yield from self._guards()
        if self._erasures.has_floor:
            yield from self._floor(remembered)
        known = int(remembered.get("generation", b"0"))
        if self._subjects.key_generation() < known:
            detail = f"the database wrote down generation {known} before, and has less"
            yield Problem(*TREE, None, "key", detail)
        yield from self._certificates(remembered, [row for row, _ in stated])
        wrong = self._unlike(stated)
        for _ in range(_LOOKS):
            if not wrong:
                return
            time.sleep(_PAUSE_SEC)
            wrong &= self._unlike(read())
        yield from sorted(wrong, key=repr)

    def _guards(self) -> Iterator[Problem]:
        for name in self._database.unguarded():
            detail = f"the trigger {name} is not the one that Refold made"
            yield Problem(*TREE, None, "guard", detail)
        query = select(self._t.settings.c.name, self._t.settings.c.value)
        there = {row.name: row.value for row in self._database.read(NOBODY, query)}
        for name in sorted(map(str, there.keys() - SETTINGS)):
            detail = f"the setting {name!r} is not one that Refold leaves there"
            yield Problem(*TREE, None, "guard", detail)

    def _floor(self, remembered: Mapping[str, bytes]) -> Iterator[Problem]:
        """Whether ``floor`` is the highest position of a row that was deleted.

        The key store remembers that position before the row is deleted: from then on
        the row is there, or the floor is at least as high.
        """
        settings, events = self._t.settings.c, self._t.events.c
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
        most = _highest_deleted(self._erasures.remembered())
        if int(floor) > most:
            detail = (
                f"the setting 'floor' is {floor}, although no row behind position "
                f"{most} was deleted: positions are left out"
            )
            yield Problem(*TREE, None, "guard", detail)

    def _certificates(
        self, remembered: Mapping[str, bytes], rows: Sequence[Any]
    ) -> Iterator[Problem]:
        """What the key store remembers that was signed must be there."""
        there = {row.certificate_id: row.user_ref for row in rows}
        for name, ref in sorted(remembered.items()):
            kind, _, certificate = name.partition(" ")
            if kind == "certificate" and there.get(certificate) != ref.decode():
                detail = f"{certificate} was signed here, and is gone or another user's"
                yield Problem(*TREE, None, "certificate", detail)

    def _unlike(self, stated: Sequence[Stated]) -> set[Problem]:
        """Where holds, subjects and heads are not what the certificates say."""
        signed = _Signed.of(stated)
        return {
            *self._unlike_holds(signed),
            *self._unlike_subjects(signed),
            *self._unlike_heads(signed),
        }

    def _unlike_holds(self, signed: _Signed) -> Iterator[Problem]:
        holds = self._t.holds.c
        query = select(holds.user_ref, holds.name, holds.reason)
        there = {(row[0], row[1]): row[2] for row in self._database.read(None, query)}
        for place in there.keys() | signed.holds.keys():
            if place not in there and place[0] in signed.erased:
                continue
            if there.get(place) != signed.holds.get(place):
                ref, name = place
                kind = "freeze" if name == FREEZE else "legal hold"
                detail = f"a {kind} of {ref[:12]}… is not what its certificate says"
                yield Problem(*TREE, None, "hold", detail)

    def _unlike_subjects(self, signed: _Signed) -> Iterator[Problem]:
        busy = {job.user_ref for job in self._erasures.jobs()}
        changed = self._subjects.changed()
        known = {one.ref: one for one in changed if one.ref == one.user_ref}
        for ref in sorted((known.keys() | signed.refs) - busy):
            here = known.get(ref)
            now = (here.status, here.epoch) if here else ("live", 1)
            if now != signed.subject(ref):
                detail = f"subject {ref[:12]}… is not what its certificates say"
                yield Problem(*TREE, None, "subject", detail)

    def _unlike_heads(self, signed: _Signed) -> Iterator[Problem]:
        """A head is frozen if its user is, and goes back only if it is being erased."""
        heads = self._t.heads.c
        place = heads.user_id, heads.session_id, heads.stream
        odd = heads.before.is_not(None) & (heads.status != "erased")
        odd |= heads.status.not_in([*FROZEN, *THAWED, "erased"])
        for row in self._database.read(None, select(*place).where(odd).limit(PAGE)):
            yield Problem(
                *StreamId(*row), None, "head", "its status is not one that it can have"
            )
        frozen = {ref for ref, name in signed.holds if name == FREEZE}
        of_users = select(heads.user_id, func.min(heads.session_id), literal(MAIN))
        of_users = of_users.group_by(heads.user_id)
        for wrong, said in ((THAWED, False), (FROZEN, True)):
            query = of_users.where(heads.status.in_(list(wrong)))
            for row in self._database.read(None, query) if frozen or not said else ():
                if (self._erasures.ref_of(row[0]) in frozen) is said:
                    detail = "its status does not fit what was signed of a freeze"
                    yield Problem(*StreamId(*row), None, "head", detail)


@dataclass(slots=True)
class _Signed:
    """What follows from certificates: holds with their reasons, and subjects.

    Holds of one name are put and released in turn, so that counting them needs no
    order; a user is erased if that was signed last.
    """

    holds: dict[tuple[str, str], str] = field(default_factory=dict)
    erased: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    refs: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, stated: Sequence[Stated]) -> _Signed:
        """What these say, the oldest first."""
        signed, there = cls(), Counter[tuple[str, str]]()
        for row, said in stated:
            if said is None:
                continue
            act, ref = said.get("act"), row.user_ref
            if act in _SIGNED and "reason" not in said:
                continue  # its words went with the user
            if act in _SIGNED:
                place = ref, said.get("hold", FREEZE)
                there[place] += _SIGNED[act]
                if _SIGNED[act] > 0:
                    signed.holds[place] = said.get("reason", "")
            elif act == "erased" and said.get("scope") == "user":
                signed.erased.add(ref)
            elif act == "readmitted":
                signed.erased.discard(ref)
                signed.epochs[ref] = said.get("epoch", 1)
            signed.refs.add(ref)
        signed.holds = {p: why for p, why in signed.holds.items() if there[p] > 0}
        return signed

    def subject(self, ref: str) -> tuple[str, int]:
        """The status and the epoch that the user has."""
        epoch = self.epochs.get(ref, 1)
        if (ref, FREEZE) in self.holds:
            return "frozen", epoch
        return "erased" if ref in self.erased else "live", epoch
