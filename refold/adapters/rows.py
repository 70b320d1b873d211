"""Rows of events, and the mapper that makes and opens them: the one way in and out.

A recorder takes the rows made here and nothing else, and these are made of what passed
redaction and nothing else.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import zstandard
from cryptography.exceptions import InvalidTag
from eventsourcing import persistence

from refold.adapters.keys.ring import KeyRing, SessionKey, decrypt, encrypt
from refold.adapters.keys.store import NO_REFS, Refs
from refold.domain.canonical import canonical
from refold.domain.chain import Columns, Header, Resealing, encoded, link
from refold.domain.envelope import NO_META, Envelope
from refold.domain.errors import CorruptEvent, IncompatibleStore, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once
from refold.domain.model import copied
from refold.domain.ports import Duplicate, Status
from refold.domain.seals import Use
from refold.domain.upcast import is_current, meta_trusted, recorded
from refold.redaction.chokepoint import RedactedEvent

_FORMAT: Final = b"\x01"
# What follows is plain, compressed, or compressed with the dictionary of that number.
_RAW, _ZSTD, _WITH_DICTIONARY = b"\x00", b"\x01", b"\x02"
_DICTIONARY: Final = "events-1.zdict"
_DIGEST: Final = "459cfe4ce3e1be435759a7870ff79b10eec55f9c44bcbf79fa12fa217fadc839"
# Of less, nothing is won; in more, the dictionary is a small part of what is alike.
_WORTH_COMPRESSING: Final = 48
_LONG: Final = 16_384
_IDLE: Final = 16  # codecs that wait to be used again
_MAX_PLAIN: Final = 64 * 1024 * 1024
_KEPT: Final = ("payload", "meta", "request_id", "agent")
_MOST_KEPT: Final = 1024 * 1024  # bytes of what is kept of a session
# The library's mapper asks for one; what is sealed is JSON already.
_TRANSCODER: Final = persistence.JSONTranscoder()
_REFUSED: Final = "only an event that passed redaction can be stored"


class PlacedEvent(NamedTuple):
    """A redacted event at its place in a stream, behind the event of ``prev_hash``.

    ``key`` is given with it, for all of one append is under the key that the head will
    name.
    """

    redacted: RedactedEvent
    columns: Columns
    prev_hash: bytes
    key: SessionKey


class ReplacedEvent(NamedTuple):
    """A row to be encrypted under another key: what it held, or ``again`` instead.

    Header and hash stay.  The receipt of ``again`` goes before that of the event it
    replaces.
    """

    row: EncryptedEvent
    again: RedactedEvent | None
    key: SessionKey


@dataclass(frozen=True, init=False)
class EncryptedEvent(persistence.StoredEvent):
    """A row of the log: ``state`` is the ciphertext, ``topic`` type and version.

    ``first_digest`` is the SHA-256 of the ciphertext that ``hash`` was made of, if
    ``state`` is another since.  ``context`` are the columns in the bytes that the
    ciphertext and the hash are bound to.  Only ``stored`` makes one.
    """

    columns: Columns
    context: bytes
    prev_hash: bytes
    hash: bytes
    first_digest: bytes | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("only the encrypting mapper makes an EncryptedEvent")

    @computed_once
    def header(self) -> Header:
        """The columns by name; few who read rows ask for them."""
        return Header(*self.columns)

    @property
    def seq(self) -> int:
        """Its place in its stream."""
        return self.columns[1]

    @property  # type: ignore[misc]  # it cannot be set
    def originator_id(self) -> str:
        return str(self.columns[0])

    @property  # type: ignore[misc]  # it cannot be set
    def originator_version(self) -> int:
        return self.columns[1]

    @property  # type: ignore[misc]  # it cannot be set
    def topic(self) -> str:
        return f"{self.header.type}/{self.header.schema_version}"

    @property
    def resealing(self) -> Resealing:
        """What binds the present ciphertext to the first."""
        digest = hashlib.sha256(self.state).digest()
        return Resealing(self.seq, self.first_digest or digest, digest)


def stored(
    columns: Columns,
    context: bytes,
    body: bytes,
    hash_: bytes,
    prev_hash: bytes,
    first_digest: bytes | None = None,
) -> EncryptedEvent:
    """A row as it was read; what it says is not proved yet.

    ``context`` is what ``encoded`` makes of the columns.
    """
    row = object.__new__(EncryptedEvent)
    fields = {
        "state": body,
        "columns": columns,
        "context": context,
        "prev_hash": prev_hash,
        "hash": hash_,
        "first_digest": first_digest,
    }
    # At once: field by field costs as much as decrypting the row.
    object.__setattr__(row, "__dict__", fields)
    return row


class OpenedRow:
    """A row that was opened, and what it holds once that was decoded.

    It is what another row opens to if that has the same ciphertext and columns.
    """

    __slots__ = ("_copied", "_held", "context", "plain", "size", "state")

    def __init__(self, row: EncryptedEvent, plain: bytes) -> None:
        self.state, self.context, self.plain = row.state, row.context, plain
        # Decoded it takes up more than once its size.
        self.size = len(row.state) + 3 * len(plain)
        self._held: dict[str, Any] | None = None
        self._copied: tuple[str, ...] = ()

    def same(self, row: EncryptedEvent) -> bool:
        """Whether this row opens to the same."""
        return self.state == row.state and self.context == row.context

    def fields(self, columns: Columns) -> dict[str, Any]:
        """What most readers ask for; nobody else is given what can be changed of it."""
        held = self._held
        if held is None:
            content = _content(columns, self.plain)
            held = {name: content[name] for name in _KEPT}
            copies = {name: copied(value) for name, value in held.items()}
            self._copied = tuple(n for n, copy in copies.items() if copy is not held[n])
            self._held = held
        if not self._copied:
            return held
        return {**held, **{name: copied(held[name]) for name in self._copied}}


class Reading:
    """Rows that are read together; those of ``before`` need not be opened again.

    ``opened`` are those of them that may be kept for the next such reading.
    """

    def __init__(self, before: Mapping[bytes, OpenedRow]) -> None:
        self.before, self._room = before, _MOST_KEPT
        self.opened: dict[bytes, OpenedRow] = {}

    def note(self, hash_: bytes, row: OpenedRow) -> None:
        """It was opened; it is kept if there is room."""
        self._room -= row.size
        if self._room >= 0:
            self.opened[hash_] = row


class EncryptingMapper(persistence.Mapper[str]):
    """Encrypts events with the keys of their sessions, and opens them again."""

    def __init__(self, keys: KeyRing) -> None:
        super().__init__(_TRANSCODER)
        self._keys = keys

    def to_stored_event(self, domain_event: Any) -> EncryptedEvent:
        """Compress, encrypt and chain one event: a PlacedEvent or a ReplacedEvent.

        Raises TypeError for anything that did not pass redaction; of a row that is
        replaced, CorruptEvent and KeyUnavailable.
        """
        if type(domain_event) is ReplacedEvent:
            return self._replaced(*domain_event)
        if type(domain_event) is not PlacedEvent:
            raise TypeError(_REFUSED)
        redacted, columns, prev, key = domain_event
        if type(redacted) is not RedactedEvent:
            raise TypeError(_REFUSED)
        context = encoded(columns)
        body = _FORMAT + encrypt(key.cipher, pack(redacted.data), context)
        return stored(columns, context, body, link(prev, context, body), prev)

    def _replaced(
        self, row: EncryptedEvent, again: RedactedEvent | None, key: SessionKey
    ) -> EncryptedEvent:
        plain = self._plain(row)
        if again is not None:
            if type(again) is not RedactedEvent:
                raise TypeError(_REFUSED)
            before = orjson.loads(_unpacked(row, plain))
            plain = pack(canonical(_superseding(row.header, again, before)))
        context, first = row.context, row.resealing.first_digest
        body = _FORMAT + encrypt(key.cipher, plain, context)
        return stored(row.columns, context, body, row.hash, row.prev_hash, first)

    def to_domain_event(
        self, stored_event: persistence.StoredEvent, reading: Reading | None = None
    ) -> Any:
        """Open one row into its envelope, which decodes what it holds when it is asked.

        What may not be of a shape that is known here is decoded at once: of an older
        or newer version, or redacted again.  What is authentic and of today's version
        was validated before it was encrypted.

        Raises CorruptEvent if it is not what was encrypted, KeyUnavailable.
        """
        if not isinstance(stored_event, EncryptedEvent):
            raise TypeError("only a row of the log can be opened")
        row = stored_event
        columns, prev, hash_ = row.columns, row.prev_hash, row.hash
        if reading is not None:
            known = reading.before.get(hash_)
            if known is not None and known.same(row):
                reading.note(hash_, known)
                plain, fields = known.plain, known.fields(columns)
                return Envelope.proved(columns, prev, hash_, plain, _content, fields)
        plain = _unpacked(row, self._plain(row))
        envelope = Envelope.proved(columns, prev, hash_, plain, _content)
        if reading is not None:
            reading.note(hash_, OpenedRow(row, plain))
        if row.first_digest is None and is_current(columns[2], columns[6]):
            return envelope
        return envelope.decoded()

    def _plain(self, row: EncryptedEvent) -> bytes:
        user_id, session_id, _ = row.columns[0]
        state = row.state
        if state[:1] == _FORMAT:
            key = self._keys.session(user_id, session_id, now=None)
            try:
                return decrypt(key.cipher, state, row.context, len(_FORMAT))
            except InvalidTag:
                pass  # it may be under another of the session's keys
            try:
                return self._keys.decrypt(user_id, session_id, state[1:], row.context)
            except InvalidTag:
                reason = "the row does not open with its session's key"
        else:
            reason = "the row has no known format"
        raise _corrupt(row.columns, reason) from None


def _unpacked(row: EncryptedEvent, packed: bytes) -> bytes:
    """The plain text of a row that was decrypted.  Raises CorruptEvent."""
    try:
        return unpack(packed)
    except ValueError as error:
        raise _corrupt(row.columns, str(error)) from None


def _corrupt(columns: Columns, reason: str) -> CorruptEvent:
    stream, seq = columns[:2]
    where = f"session {stream.session_id!r} {stream.stream}"
    return CorruptEvent(where, seq=seq, reason=reason)


def _superseding(
    header: Header, again: RedactedEvent, before: JsonObject
) -> dict[str, Any]:
    content = again.content
    receipt: Any = content["redaction"]
    content["redaction"] = {**receipt, "before": before["redaction"]}
    if again.schema_version != header.schema_version:
        content["shape"] = again.schema_version
    return content


def _content(columns: Columns, plain: bytes) -> dict[str, Any]:
    """What an envelope holds of the ``plain`` text of its row.  Raises CorruptEvent."""
    _, _, type_, _, _, _, version = columns
    try:
        content = orjson.loads(plain)
        payload = recorded(type_, content.get("shape", version), content["payload"])
    except (InvalidEvent, orjson.JSONDecodeError) as error:
        raise _corrupt(columns, str(error)) from None
    meta = content.get("meta")
    blobs = content.get("blobs")
    return {
        "request_id": content.get("request_id"),
        "agent": content.get("agent"),
        "payload": payload,
        "redaction": content["redaction"],
        "meta": meta_trusted(meta) if meta else NO_META,
        "blobs": tuple(blobs) if blobs else (),
    }


# What a head's status is while its user is frozen; nothing is appended to either.
FROZEN: Final = {"open": "frozen", "closed": "frozen-closed"}
THAWED: Final = {frozen: status for status, frozen in FROZEN.items()}


class HeadRow(NamedTuple):
    """The row of a stream's head; ``state`` is sealed, times are microseconds."""

    seq: int
    hash: bytes
    status: Status
    state: bytes
    key_check: bytes
    tokens: int
    created_at: int
    updated_at: int


class BlobRow(NamedTuple):
    """A sealed blob; ``address`` is a keyed hash, ``size`` the bytes of its text."""

    address: bytes
    body: bytes
    size: int


class ViewRow(NamedTuple):
    """A sealed view, how far it has folded, and the seqs of what it shows.

    Those are pairs of first and last seq as JSON, of the main and of the derived
    stream, so that the rows can be read together with the view.
    """

    through_seq: int
    derived_seq: int
    body: bytes
    main_spans: str = "[]"
    derived_spans: str = "[]"


class StandingRows(NamedTuple):
    """The rows of one moment that a context is made of.

    ``shown`` and ``summaries`` are those that the view names, ``new`` and ``derived``
    the first of those behind it, of the main and of the derived stream.
    """

    head: HeadRow | None
    view: ViewRow | None
    shown: list[EncryptedEvent]
    summaries: list[EncryptedEvent]
    new: list[EncryptedEvent]
    derived: list[EncryptedEvent]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to write if the stream's head is at this seq and hash (0: there is none).

    ``receipt`` is where that of the append's key is, ``uses`` are all of its receipts.
    ``refs`` say whose session begins with it, if one does.
    """

    stream: StreamId
    expected_seq: int
    expected_hash: bytes
    head: HeadRow
    events: tuple[EncryptedEvent, ...]
    blobs: tuple[BlobRow, ...] = ()
    receipt: bytes | None = None
    uses: tuple[Use, ...] = ()
    refs: Refs = NO_REFS

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("a batch holds at least one event")
        for event in self.events:
            if type(event) is not EncryptedEvent or event.columns[0] != self.stream:
                raise TypeError("a recorder takes only what the encrypting mapper made")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What takes the place of a session's rows, all under one new key.

    batch:  the events at the end of the main stream that say so; its blobs are all
            that the session has from now on.
    rows:   of any stream, sealed anew; they replace the ciphertext, no other column.
    states: the sealed state of each other stream's head, by the stream's name.
    blobs:  the addresses of the blobs there were.
    """

    batch: Batch
    rows: tuple[EncryptedEvent, ...]
    states: Mapping[str, bytes]
    blobs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if type(row) is not EncryptedEvent or row.first_digest is None:
                raise TypeError("a row is replaced only by what was sealed anew")
            if row.header.stream.main != self.batch.stream:
                raise TypeError("a rewrite is of one session")


Heads: TypeAlias = Mapping[str, "HeadRow"]


class Wrote(NamedTuple):
    """The batch is durable."""

    head: HeadRow


class Moved(NamedTuple):
    """The head is elsewhere; nothing was written."""

    head: HeadRow | None


WriteOutcome: TypeAlias = Wrote | Moved | Duplicate


class NotInserted(persistence.IntegrityError):
    """The library's name for a conflict; ``outcome`` says what was in the way."""

    def __init__(self, outcome: Moved | Duplicate) -> None:
        super().__init__("the stream's head has moved, or the receipt is there")
        self.outcome = outcome


class QueueFull(persistence.OperationalError):
    """More appends wait than can be waited for."""


# Our own mark says which dictionary; the frame need not, nor that it is a frame.
_PARAMETERS: Final = zstandard.ZstdCompressionParameters.from_level(
    2, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_dict_id=False
)


class _Codecs:
    """What compresses and opens, in one thread at a time.

    ``short`` and ``informed`` are with the dictionary.
    """

    def __init__(self) -> None:
        known, frame = _dictionary(), zstandard.FORMAT_ZSTD1_MAGICLESS
        self.long = zstandard.ZstdCompressor(level=1)
        self.short = zstandard.ZstdCompressor(
            dict_data=known, compression_params=_PARAMETERS
        )
        self.plain = zstandard.ZstdDecompressor()
        self.informed = zstandard.ZstdDecompressor(dict_data=known, format=frame)


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    """The shapes and phrases of agents' events: ``tools/train_dictionary.py``.

    Raises IncompatibleStore for any but the released one: with another, zstd reads
    rows as something else, without an error.
    """
    place = files("refold.adapters.sql").joinpath("data", _DICTIONARY)
    made = place.read_bytes() if place.is_file() else b""
    if hashlib.sha256(made).hexdigest() != _DIGEST:
        raise IncompatibleStore(
            f"{place} is missing or is not the dictionary that rows are compressed "
            "with: nothing was read or written; install Refold again"
        )
    dictionary = zstandard.ZstdCompressionDict(made)
    dictionary.precompute_compress(compression_params=_PARAMETERS)
    return dictionary


# Threads come and go, and these are dear to make.
_idle: Final = deque[_Codecs](maxlen=_IDLE)


def pack(data: bytes) -> bytes:
    """``data`` with a mark of its codec, compressed where that makes it smaller."""
    size = len(data)
    if size >= _WORTH_COMPRESSING:
        try:  # in place: it is done for each event
            codecs = _idle.pop()
        except IndexError:
            codecs = _Codecs()
        if size < _LONG:
            mark, smaller = _WITH_DICTIONARY, codecs.short.compress(data)
        else:
            mark, smaller = _ZSTD, codecs.long.compress(data)
        _idle.append(codecs)
        if len(smaller) < size:
            return mark + smaller
    return _RAW + data


def unpack(packed: bytes) -> bytes:
    """Give back what ``pack`` packed.

    Raises ValueError for what it did not pack: a newer Refold may have;
    IncompatibleStore.
    """
    mark, data = packed[:1], packed[1:]
    if mark == _RAW:
        return data
    if mark not in (_WITH_DICTIONARY, _ZSTD):
        raise ValueError(
            f"it was packed in way {mark.hex() or '?'}, which is not known"
        )
    try:
        codecs = _idle.pop()
    except IndexError:
        codecs = _Codecs()
    known = codecs.informed if mark == _WITH_DICTIONARY else codecs.plain
    try:
        plain = known.decompress(data, max_output_size=_MAX_PLAIN)
    except zstandard.ZstdError:
        raise ValueError("what was packed is damaged") from None
    _idle.append(codecs)
    return plain
