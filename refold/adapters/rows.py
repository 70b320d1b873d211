"""The encrypted rows of a store, and the mapper that encrypts and decrypts events.

The mapper encrypts only redacted events, and a recorder accepts only rows that are made
here.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
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
from refold.domain.chain import Columns, Header, Reencryption, encoded, event_hash
from refold.domain.envelope import NO_META, Envelope
from refold.domain.errors import CorruptEvent, IncompatibleStore, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once
from refold.domain.model import copied
from refold.domain.ports import Duplicate, Status
from refold.domain.seals import Use
from refold.domain.upcast import event_of_stored, is_current, meta_of_stored
from refold.redaction.chokepoint import RedactedEvent

# The first byte of a row's state: its format.
_FORMAT: Final = b"\x01"
# The first byte of packed data says how the rest is compressed.
_RAW: Final = b"\x00"
_ZSTD: Final = b"\x01"
_WITH_DICTIONARY: Final = b"\x02"
_DICTIONARY: Final = "events-1.zdict"
_DICTIONARY_SHA256: Final = (
    "459cfe4ce3e1be435759a7870ff79b10eec55f9c44bcbf79fa12fa217fadc839"
)
_WORTH_COMPRESSING: Final = 48  # bytes; shorter data does not get smaller
# From this number of bytes on, data has enough repetitions without the dictionary.
_LONG: Final = 16_384
_MOST_IDLE: Final = 16  # codecs that are kept for the next use
# Bytes.  It bounds the memory that damaged data can occupy.
_MAX_UNPACKED: Final = 64 * 1024 * 1024
# The fields of an envelope that are cached.
_CACHED: Final = ("payload", "meta", "request_id", "agent")
_CACHE_SIZE: Final = 1024 * 1024  # bytes; the limit of one session's cache
# The library's mapper needs one, although rows contain JSON already.
_TRANSCODER: Final = persistence.JSONTranscoder()
_NOT_REDACTED: Final = "only an event that passed redaction can be stored"


class PlacedEvent(NamedTuple):
    """A redacted event at its place in a stream, after the event of ``prev_hash``.

    key: encrypts it.  All events of an append have the key that the head will name.
    """

    redacted: RedactedEvent
    columns: Columns
    prev_hash: bytes
    key: SessionKey


class RowReplacement(NamedTuple):
    """A row to encrypt again with another key.  Its header and hash stay.

    row:         the stored row.
    new_content: the event after another redaction, whose receipt contains the previous
                 receipt; None keeps the content.
    """

    row: EncryptedEvent
    new_content: RedactedEvent | None
    key: SessionKey


@dataclass(frozen=True, init=False)
class EncryptedEvent(persistence.StoredEvent):
    """A row of the log.

    state:        the ciphertext.
    topic:        the type and its version.
    context:      the columns as bytes, which the ciphertext and the hash are bound to.
    first_digest: the SHA-256 of the first ciphertext, which ``hash`` was made of; None
                  if ``state`` is still the first one.

    Only the function ``encrypted_event`` makes one, for new rows and for read ones.
    """

    columns: Columns
    context: bytes
    prev_hash: bytes
    hash: bytes
    first_digest: bytes | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("use encrypted_event() to make an EncryptedEvent")

    @computed_once
    def header(self) -> Header:
        """The columns by name, which most readers do not need."""
        return Header(*self.columns)

    @property
    def seq(self) -> int:
        """Its place in its stream."""
        return self.columns[1]

    # The next three are fields in the library, and only read here.

    @property  # type: ignore[misc]  # a field that cannot be set
    def originator_id(self) -> str:
        return str(self.columns[0])

    @property  # type: ignore[misc]  # a field that cannot be set
    def originator_version(self) -> int:
        return self.columns[1]

    @property  # type: ignore[misc]  # a field that cannot be set
    def topic(self) -> str:
        return f"{self.header.type}/{self.header.schema_version}"

    @property
    def reencryption(self) -> Reencryption:
        """The digests of the first and of the current ciphertext."""
        digest = hashlib.sha256(self.state).digest()
        return Reencryption(self.seq, self.first_digest or digest, digest)


def encrypted_event(
    columns: Columns,
    context: bytes,
    ciphertext: bytes,
    hash_: bytes,
    prev_hash: bytes,
    first_digest: bytes | None = None,
) -> EncryptedEvent:
    """Return a row with these values.

    Nothing is checked: a row that was read may have been changed.

    context: the columns as bytes, by ``chain.encoded``.
    """
    row = object.__new__(EncryptedEvent)
    fields = {
        "state": ciphertext,
        "columns": columns,
        "context": context,
        "prev_hash": prev_hash,
        "hash": hash_,
        "first_digest": first_digest,
    }
    # All fields at once: setting each costs as much as decrypting the row.
    object.__setattr__(row, "__dict__", fields)
    return row


class DecryptedRow:
    """A decrypted row, and its decoded fields once they were used.

    size: about the number of bytes that it occupies.
    """

    __slots__ = ("_fields", "_mutable", "context", "plain", "size", "state")

    def __init__(self, row: EncryptedEvent, plain: bytes) -> None:
        self.state = row.state
        self.context = row.context
        self.plain = plain
        # The decoded fields are larger than the plain text.
        self.size = len(row.state) + 3 * len(plain)
        self._fields: dict[str, Any] | None = None
        self._mutable: tuple[str, ...] = ()  # names of fields that are copied

    def is_same(self, row: EncryptedEvent) -> bool:
        """Whether ``row`` has the ciphertext and columns of the decrypted one."""
        return self.state == row.state and self.context == row.context

    def fields(self, columns: Columns) -> dict[str, Any]:
        """Return the decoded fields; each caller gets its own copy of mutable ones."""
        fields = self._fields
        if fields is None:
            content = _content(columns, self.plain)
            fields = {name: content[name] for name in _CACHED}
            mutable = []
            for name, value in fields.items():
                # ``copied`` returns an immutable value itself.
                is_mutable = copied(value) is not value
                if is_mutable:
                    mutable.append(name)
            self._mutable = tuple(mutable)
            self._fields = fields
        if not self._mutable:
            return fields
        copies = {name: copied(fields[name]) for name in self._mutable}
        return {**fields, **copies}


class Reading:
    """Rows of a session that are read together.

    cached:    rows that earlier readings decrypted, by their hash.
    decrypted: the rows of this reading, by their hash, to cache for the next one.
    """

    def __init__(self, cached: Mapping[bytes, DecryptedRow], taken: int = 0) -> None:
        """Begin with the rows that are cached.

        taken: bytes of the session's cache that its ``ShownEvents`` already occupy.
        """
        self.cached = cached
        self.decrypted: dict[bytes, DecryptedRow] = {}
        self._room = _CACHE_SIZE - taken

    @property
    def has_all(self) -> bool:
        """Whether ``decrypted`` has every row of this reading."""
        return self._room >= 0

    def note(self, hash_: bytes, row: DecryptedRow) -> None:
        """Add a row to ``decrypted``, unless the cache is full."""
        self._room -= row.size
        if self._room >= 0:
            self.decrypted[hash_] = row


class ShownEvents:
    """The events that a stored view shows, for the next reader of the same view.

    Events without mutable fields are shared by their readers.  Of others, every reader
    gets a copy.

    view:       the row of the view.  Another view, also one with the same seqs, has
                another ciphertext.
    size:       about the number of bytes that the events occupy.
    remembered: values that readers derived from these events.
    """

    __slots__ = (
        "_decrypted",
        "_shown",
        "_summaries",
        "name",
        "remembered",
        "size",
        "view",
    )

    def __init__(
        self,
        name: str,
        view: ViewRow,
        shown: Iterable[tuple[EncryptedEvent, Envelope]],
        summaries: Iterable[tuple[EncryptedEvent, Envelope]],
        decrypted: Mapping[bytes, DecryptedRow],
    ) -> None:
        """Keep the events of these rows.

        decrypted: the decrypted rows by their hash, all of ``shown`` and ``summaries``.
        """
        self.name = name
        self.view = view
        self.size = 0
        self.remembered: dict[str, Any] = {}
        self._decrypted: dict[bytes, DecryptedRow] = {}
        self._shown = self._keep(shown, decrypted)
        self._summaries = self._keep(summaries, decrypted)

    def _keep(
        self,
        events: Iterable[tuple[EncryptedEvent, Envelope]],
        decrypted: Mapping[bytes, DecryptedRow],
    ) -> list[EncryptedEvent | Envelope]:
        """Keep these events, and count their size.

        Returns them, with rows in place of the events that have mutable fields.
        """
        events_or_rows: list[EncryptedEvent | Envelope] = []
        for row, envelope in events:
            self.size += decrypted[row.hash].size
            # A decoded envelope does not change any more, so threads can share it.
            fields = envelope.decoded().__dict__
            # ``copied`` returns an immutable value itself.
            has_mutable_fields = any(
                copied(fields[name]) is not fields[name] for name in _CACHED
            )
            if has_mutable_fields:
                self._decrypted[row.hash] = decrypted[row.hash]
                events_or_rows.append(row)
            else:
                events_or_rows.append(envelope)
        return events_or_rows

    def events(
        self, to_domain_event: Callable[[EncryptedEvent, Reading], Envelope]
    ) -> tuple[list[Envelope], list[Envelope]]:
        """Return the events and the summaries that the view shows."""
        reading = Reading(self._decrypted)

        def envelope_of(event: EncryptedEvent | Envelope) -> Envelope:
            if isinstance(event, Envelope):
                return event
            return to_domain_event(event, reading)

        shown = [envelope_of(event) for event in self._shown]
        summaries = [envelope_of(event) for event in self._summaries]
        return shown, summaries


class EncryptingMapper(persistence.Mapper[str]):
    """Encrypts events with the keys of their sessions, and decrypts them."""

    def __init__(self, keys: KeyRing) -> None:
        super().__init__(_TRANSCODER)
        self._keys = keys

    def to_stored_event(self, domain_event: Any) -> EncryptedEvent:
        """Compress, encrypt and chain one event: a PlacedEvent or a RowReplacement.

        Raises TypeError for anything that did not pass redaction; for a replaced row,
        CorruptEvent and KeyUnavailable.
        """
        if type(domain_event) is RowReplacement:
            return self._encrypt_again(*domain_event)
        if type(domain_event) is not PlacedEvent:
            raise TypeError(_NOT_REDACTED)
        redacted, columns, prev_hash, key = domain_event
        if type(redacted) is not RedactedEvent:
            raise TypeError(_NOT_REDACTED)
        context = encoded(columns)
        ciphertext = _FORMAT + encrypt(key.cipher, pack(redacted.data), context)
        hash_ = event_hash(prev_hash, context, ciphertext)
        return encrypted_event(columns, context, ciphertext, hash_, prev_hash)

    def _encrypt_again(
        self, row: EncryptedEvent, new_content: RedactedEvent | None, key: SessionKey
    ) -> EncryptedEvent:
        """Encrypt a row with another key, with new content or its own."""
        packed = self._decrypt(row)
        if new_content is not None:
            if type(new_content) is not RedactedEvent:
                raise TypeError(_NOT_REDACTED)
            old_content = orjson.loads(_unpack_row(row, packed))
            content = _with_both_receipts(row.header, new_content, old_content)
            packed = pack(canonical(content))
        return encrypted_event(
            columns=row.columns,
            context=row.context,
            ciphertext=_FORMAT + encrypt(key.cipher, packed, row.context),
            hash_=row.hash,
            prev_hash=row.prev_hash,
            first_digest=row.reencryption.first_digest,
        )

    def to_domain_event(
        self, stored_event: persistence.StoredEvent, reading: Reading | None = None
    ) -> Any:
        """Decrypt a row, and return its envelope.

        Content of the current version was validated before encryption, so it is decoded
        on first use.  Content of another version, or redacted again, may have fields
        that this Refold does not know; it is decoded here, to raise the error here.

        reading: the rows that are read together, some of which may be cached.

        Raises CorruptEvent if the row was changed, KeyUnavailable.
        """
        if not isinstance(stored_event, EncryptedEvent):
            raise TypeError("only a row of the log can be opened")
        row = stored_event
        columns = row.columns
        prev_hash = row.prev_hash
        hash_ = row.hash
        if reading is not None:
            cached = reading.cached.get(hash_)
            if cached is not None and cached.is_same(row):
                reading.note(hash_, cached)
                return Envelope.proved(
                    columns,
                    prev_hash,
                    hash_,
                    cached.plain,
                    _content,
                    cached.fields(columns),
                )
        plain = _unpack_row(row, self._decrypt(row))
        envelope = Envelope.proved(columns, prev_hash, hash_, plain, _content)
        if reading is not None:
            reading.note(hash_, DecryptedRow(row, plain))
        _stream, _seq, event_type, _ts, _event_id, _tokens, version = columns
        if row.first_digest is None and is_current(event_type, version):
            return envelope
        return envelope.decoded()

    def _decrypt(self, row: EncryptedEvent) -> bytes:
        """Return the packed content of a row.  Raises CorruptEvent, KeyUnavailable."""
        user_id, session_id, _ = row.columns[0]
        state = row.state
        if state[:1] == _FORMAT:
            # ``now=None``: a missing key is an error, and is not made.
            key = self._keys.session(user_id, session_id, now=None)
            try:
                return decrypt(key.cipher, state, row.context, len(_FORMAT))
            except InvalidTag:
                pass  # the session may have other keys: try all of them
            ciphertext = state[len(_FORMAT) :]
            try:
                return self._keys.decrypt(user_id, session_id, ciphertext, row.context)
            except InvalidTag:
                reason = "no key of the session decrypts the row"
        else:
            reason = "the row has no known format"
        raise _corrupt(row.columns, reason) from None


def _unpack_row(row: EncryptedEvent, packed: bytes) -> bytes:
    """Return the plain text of a decrypted row.  Raises CorruptEvent."""
    try:
        return unpack(packed)
    except ValueError as error:
        raise _corrupt(row.columns, str(error)) from None


def _corrupt(columns: Columns, reason: str) -> CorruptEvent:
    """Return the error for a damaged row."""
    stream = columns[0]
    where = f"session {stream.session_id!r} {stream.stream}"
    return CorruptEvent(where, seq=columns[1], reason=reason)


def _with_both_receipts(
    header: Header, new_content: RedactedEvent, old_content: JsonObject
) -> dict[str, Any]:
    """Return the new content, with the receipts of both redactions.

    A replaced row keeps its version column.  If the new content has another version,
    ``shape`` names it.
    """
    content = new_content.content  # parsed again, so it may be changed
    receipt: Any = content["redaction"]
    content["redaction"] = {**receipt, "before": old_content["redaction"]}
    if new_content.schema_version != header.schema_version:
        content["shape"] = new_content.schema_version
    return content


def _content(columns: Columns, plain: bytes) -> dict[str, Any]:
    """Decode the fields of an envelope from the plain text of its row.

    Raises CorruptEvent.
    """
    _stream, _seq, event_type, _ts, _event_id, _tokens, column_version = columns
    try:
        content = orjson.loads(plain)
        version = content.get("shape", column_version)  # see ``_with_both_receipts``
        payload = event_of_stored(event_type, version, content["payload"])
    except (InvalidEvent, orjson.JSONDecodeError) as error:
        raise _corrupt(columns, str(error)) from None
    meta = content.get("meta")
    blobs = content.get("blobs")
    return {
        "request_id": content.get("request_id"),
        "agent": content.get("agent"),
        "payload": payload,
        "redaction": content["redaction"],
        "meta": meta_of_stored(meta) if meta else NO_META,
        "blobs": tuple(blobs) if blobs else (),
    }


# The status of a head while its user is frozen, by its ordinary status.
WHEN_FROZEN: Final = {"open": "frozen", "closed": "frozen-closed"}
WHEN_UNFROZEN: Final = {frozen: status for status, frozen in WHEN_FROZEN.items()}
ORDINARY_STATUSES: Final = tuple(WHEN_FROZEN)
FROZEN_STATUSES: Final = tuple(WHEN_UNFROZEN)


class HeadRow(NamedTuple):
    """The row of a stream's head, with times in microseconds.

    state:     the encrypted state of the stream.
    key_check: tells which of the session's keys encrypted it.
    tokens:    the sum of the events' estimates.
    """

    seq: int
    hash: bytes
    status: Status
    state: bytes
    key_check: bytes
    tokens: int
    created_at: int
    updated_at: int


class BlobRow(NamedTuple):
    """An encrypted blob, at a keyed hash; ``size`` is that of its text, in bytes."""

    address: bytes
    body: bytes
    size: int


class ViewRow(NamedTuple):
    """An encrypted view.

    through_seq:   the last event of the main stream that it has folded.
    derived_seq:   the last event of the derived stream that it has folded.
    main_spans:    the events of the main stream that it shows, as pairs of first and
                   last seq in JSON.  So these rows can be read together with the view.
    derived_spans: the same for the derived stream.
    """

    through_seq: int
    derived_seq: int
    body: bytes
    main_spans: str = "[]"
    derived_spans: str = "[]"


class SnapshotRows(NamedTuple):
    """The rows that a context is made of, all read at one moment.

    shown, summaries:      the rows in the main and the derived stream that the view
                           shows.
    new_main, new_derived: rows after the view, at most the limit, in the main and the
                           derived stream.
    """

    head: HeadRow | None
    view: ViewRow | None
    shown: list[EncryptedEvent]
    summaries: list[EncryptedEvent]
    new_main: list[EncryptedEvent]
    new_derived: list[EncryptedEvent]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to write if the stream's head has this seq and hash.

    expected_seq: 0 means that the stream has no head.
    head:         the head after the batch.
    receipts:     the receipts to write for idempotency keys: that of the append, and
                  those of single events.
    append_receipt_address:
                  the address of the receipt for the append's key; None without a key.
    refs:         the keyed hashes of the user and the session, to write with the first
                  batch of a stream.
    """

    stream: StreamId
    expected_seq: int
    expected_hash: bytes
    head: HeadRow
    events: tuple[EncryptedEvent, ...]
    blobs: tuple[BlobRow, ...] = ()
    append_receipt_address: bytes | None = None
    receipts: tuple[Use, ...] = ()
    refs: Refs = NO_REFS

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError("a batch contains at least one event")
        for event in self.events:
            if type(event) is not EncryptedEvent or event.columns[0] != self.stream:
                raise TypeError("a recorder accepts only rows of the encrypting mapper")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The rows that replace those of a session, all encrypted with one new key.

    batch:  the events at the end of the main stream that record the rewriting.  Its
            blobs are all blobs of the session from now on.
    rows:   the rows of all streams, encrypted again.  Only ciphertexts are replaced.
    states: the encrypted state of the head of each derived stream, by its name.
    old_blob_addresses:
            the addresses of all blobs that the session had before.
    """

    batch: Batch
    rows: tuple[EncryptedEvent, ...]
    states: Mapping[str, bytes]
    old_blob_addresses: tuple[bytes, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if type(row) is not EncryptedEvent or row.first_digest is None:
                raise TypeError(
                    "a rewrite contains only rows that were encrypted again"
                )
            if row.header.stream.main != self.batch.stream:
                raise TypeError("a rewrite contains rows of one session only")


Heads: TypeAlias = Mapping[str, "HeadRow"]  # of a session, by the name of the stream


class Wrote(NamedTuple):
    """The outcome of a batch that was written durably."""

    head: HeadRow


class Moved(NamedTuple):
    """The outcome of a batch that was not written, because the head has moved."""

    head: HeadRow | None


WriteOutcome: TypeAlias = Wrote | Moved | Duplicate


class NotInserted(persistence.IntegrityError):
    """The batch was not written.  ``outcome`` says why.

    It derives from the error that the ``eventsourcing`` library has for conflicts.
    """

    def __init__(self, outcome: Moved | Duplicate) -> None:
        super().__init__("the stream's head has moved, or the receipt exists already")
        self.outcome = outcome


class QueueFull(persistence.OperationalError):
    """The queue of appends is full."""


# Without the magic number and the id of the dictionary, a compressed frame is shorter.
# The first byte of packed data says the same.
_PARAMETERS: Final = zstandard.ZstdCompressionParameters.from_level(
    2, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_dict_id=False
)


class _Codecs:
    """Compressors and decompressors, for one thread at a time.

    Those for short data use the dictionary, and those for long data do not.
    """

    def __init__(self) -> None:
        dictionary = _dictionary()
        self.short_compressor = zstandard.ZstdCompressor(
            dict_data=dictionary, compression_params=_PARAMETERS
        )
        self.short_decompressor = zstandard.ZstdDecompressor(
            dict_data=dictionary, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        self.long_compressor = zstandard.ZstdCompressor(level=1)
        self.long_decompressor = zstandard.ZstdDecompressor()


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    """Return the dictionary, which contains frequent parts of agents' events.

    ``tools/train_dictionary.py`` made it.

    Raises IncompatibleStore if the file is not the released one: with another
    dictionary, zstd returns wrong data without an error.
    """
    file = files("refold.adapters.sql").joinpath("data", _DICTIONARY)
    content = b""
    if file.is_file():
        content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != _DICTIONARY_SHA256:
        raise IncompatibleStore(
            f"{file} is missing or is not the dictionary that rows are compressed "
            "with: nothing was read or written; install Refold again"
        )
    dictionary = zstandard.ZstdCompressionDict(content)
    dictionary.precompute_compress(compression_params=_PARAMETERS)
    return dictionary


# Codecs are expensive to make, and threads are short-lived.
_idle_codecs: Final = deque[_Codecs](maxlen=_MOST_IDLE)


def pack(data: bytes) -> bytes:
    """Compress data, if that makes it smaller.  The first byte says how."""
    size = len(data)
    if size >= _WORTH_COMPRESSING:
        try:  # no function call, because this runs for each event
            codecs = _idle_codecs.pop()
        except IndexError:
            codecs = _Codecs()
        if size < _LONG:
            mark = _WITH_DICTIONARY
            compressed = codecs.short_compressor.compress(data)
        else:
            mark = _ZSTD
            compressed = codecs.long_compressor.compress(data)
        _idle_codecs.append(codecs)
        if len(compressed) < size:
            return mark + compressed
    return _RAW + data


def unpack(packed: bytes) -> bytes:
    """Return the data that was given to ``pack``.

    Raises ValueError if the packed data is damaged, or was packed by a newer Refold in
    a way that this one does not know; IncompatibleStore as ``_dictionary`` does.
    """
    mark = packed[:1]
    data = packed[1:]
    if mark == _RAW:
        return data
    if mark not in (_WITH_DICTIONARY, _ZSTD):
        raise ValueError(
            f"the packed data begins with {mark.hex() or 'nothing'}, which names no "
            "known compression"
        )
    try:
        codecs = _idle_codecs.pop()
    except IndexError:
        codecs = _Codecs()
    if mark == _WITH_DICTIONARY:
        decompressor = codecs.short_decompressor
    else:
        decompressor = codecs.long_decompressor
    try:
        plain = decompressor.decompress(data, max_output_size=_MAX_UNPACKED)
    except zstandard.ZstdError:
        raise ValueError("the packed data is damaged") from None
    _idle_codecs.append(codecs)
    return plain
