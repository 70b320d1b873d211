"""The mapper between events and stored rows: encode, compress, encrypt, chain.

It is the one way in.  A recorder takes the EncryptedEvents made here and nothing
else, and these are made of what passed redaction and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import local
from typing import Any, Final
from uuid import UUID

import orjson
import zstandard
from cryptography.exceptions import InvalidTag
from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent

from refold.adapters.keys.ring import KeyRing, SessionKey, seal, unseal
from refold.domain.canonical import canonical
from refold.domain.chain import Columns, Header, Resealing, encoded, link
from refold.domain.envelope import NO_META, Envelope, Late
from refold.domain.errors import CorruptEvent, InvalidEvent
from refold.domain.events import JsonObject, SessionEvent
from refold.domain.ids import StreamId
from refold.domain.upcast import meta_trusted, recorded
from refold.redaction.chokepoint import RedactedEvent

_FORMAT: Final = b"\x01"
_RAW, _ZSTD = b"\x00", b"\x01"
_WORTH_COMPRESSING: Final = 200
_MAX_PLAIN: Final = 64 * 1024 * 1024
# The library's mapper asks for one; what is sealed is JSON already.
_TRANSCODER: Final = JSONTranscoder()


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """A redacted event at its place in a stream, after the event of ``prev_hash``.

    It satisfies the event protocol of the eventsourcing library.
    """

    redacted: RedactedEvent
    header: Header
    prev_hash: bytes

    @property
    def originator_id(self) -> str:
        return str(self.header.stream)

    @property
    def originator_version(self) -> int:
        return self.header.seq


@dataclass(frozen=True, init=False)
class EncryptedEvent(StoredEvent):
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

    @cached_property
    def header(self) -> Header:
        """The columns by name; few who read rows ask for them."""
        stream, seq, type_, ts, event_id, tokens, version = self.columns
        return Header(stream, seq, type_, ts, UUID(bytes=event_id), tokens, version)

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


class EncryptingMapper(Mapper[str]):
    """Seals events with the keys of their sessions, and opens them again."""

    def __init__(self, keys: KeyRing) -> None:
        super().__init__(_TRANSCODER)
        self._keys = keys

    def to_stored_event(self, domain_event: Any) -> EncryptedEvent:
        """Seal one event.

        Raises TypeError for anything that did not pass redaction, KeyUnavailable.
        """
        if type(domain_event) is not PlacedEvent:
            raise TypeError("only an event that passed redaction can be sealed")
        _check(domain_event.redacted)
        user_id, session_id, _ = domain_event.header.stream
        key = self._keys.session(user_id, session_id, now=None)
        return self.seal(domain_event, key)

    def seal(self, placed: PlacedEvent, key: SessionKey) -> EncryptedEvent:
        """Seal one event under this key.

        Raises TypeError for anything that did not pass redaction.
        """
        _check(placed.redacted)
        columns, prev = placed.header.columns, placed.prev_hash
        context = encoded(columns)
        plain = pack(canonical(placed.redacted.content))
        body = _FORMAT + seal(key.cipher, plain, context)
        row = stored(columns, context, body, link(prev, context, body), prev)
        vars(row)["header"] = placed.header
        return row

    def reseal(
        self, row: EncryptedEvent, key: SessionKey, again: RedactedEvent | None
    ) -> EncryptedEvent:
        """The row under another key, with what it held or with ``again`` instead.

        Header and hash stay.  The receipt of ``again`` goes before that of the
        event it replaces.
        """
        plain = self._plain(row)
        if again is not None:
            _check(again)
            content = _superseding(row.header, again, orjson.loads(unpack(plain)))
            plain = pack(canonical(content))
        context, first = row.context, row.resealing.first_digest
        body = _FORMAT + seal(key.cipher, plain, context)
        return stored(row.columns, context, body, row.hash, row.prev_hash, first)

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """Open one row into its envelope.

        Raises CorruptEvent if it is not what was sealed, KeyUnavailable.
        """
        if not isinstance(stored_event, EncryptedEvent):
            raise TypeError("only a row of the log can be opened")
        return envelope_of(stored_event, self.open(stored_event))

    def open(self, row: EncryptedEvent) -> JsonObject:
        """The content of a row: payload, meta, receipt and what else was sealed."""
        content: JsonObject = orjson.loads(unpack(self._plain(row)))
        return content

    def open_all(self, rows: Sequence[EncryptedEvent]) -> list[Envelope]:
        """The envelopes of rows of one session.  Raises as ``to_domain_event``."""
        if not rows:
            return []
        content = self.opener(rows[0].columns[0]).content
        return [envelope_of(row, content(row)) for row in rows]

    def opener(self, stream: StreamId) -> Opener:
        """What opens rows of this session, one after another."""
        return Opener(self, self._keys, stream)

    def _plain(self, row: EncryptedEvent) -> bytes:
        user_id, session_id, name = row.columns[0]
        where, seq = f"session {session_id!r} {name}", row.seq
        if row.state[:1] != _FORMAT:
            raise CorruptEvent(where, seq=seq, reason="the row has no known format")
        try:
            return self._keys.unseal(user_id, session_id, row.state[1:], row.context)
        except InvalidTag:
            reason = "the row does not open with its session's key"
            raise CorruptEvent(where, seq=seq, reason=reason) from None


class Opener:
    """Opens rows of one session; its key is asked for once, not for each row."""

    def __init__(
        self, mapper: EncryptingMapper, keys: KeyRing, stream: StreamId
    ) -> None:
        self._mapper, self._keys, self._stream = mapper, keys, stream
        self._key: SessionKey | None = None

    def content(self, row: EncryptedEvent) -> JsonObject:
        """What was sealed in the row.

        Raises CorruptEvent if it is not what was sealed, KeyUnavailable.
        """
        if self._key is None:
            user_id, session_id, _ = self._stream
            self._key = self._keys.session(user_id, session_id, now=None)
        try:
            return _opened(row, self._key)
        except InvalidTag:
            self._key = None  # it is under another of the session's, or under none
            return self._mapper.open(row)


def _check(redacted: object) -> None:
    if type(redacted) is not RedactedEvent:
        raise TypeError("only an event that passed redaction can be sealed")


def _superseding(
    header: Header, again: RedactedEvent, before: JsonObject
) -> dict[str, Any]:
    content = dict(again.content)
    receipt: Any = content["redaction"]
    content["redaction"] = {**receipt, "before": before["redaction"]}
    if again.schema_version != header.schema_version:
        content["shape"] = again.schema_version
    return content


def _opened(row: EncryptedEvent, key: SessionKey) -> JsonObject:
    """The content of a row that was sealed under this key; raises InvalidTag."""
    if row.state[:1] != _FORMAT:
        raise InvalidTag
    packed = unseal(key.cipher, row.state[1:], row.context)
    content: JsonObject = orjson.loads(unpack(packed))
    return content


def payload_of(row: EncryptedEvent, content: JsonObject) -> SessionEvent:
    """The event of a row that was opened to ``content``.  Raises CorruptEvent."""
    stream, seq, type_, *_, version = row.columns
    try:
        shape: Any = content.get("shape", version)
        payload: Any = content["payload"]
        return recorded(type_, shape, payload)
    except InvalidEvent as error:
        where = f"session {stream.session_id!r} {stream.stream}"
        raise CorruptEvent(where, seq=seq, reason=str(error)) from None


def envelope_of(row: EncryptedEvent, content: dict[str, Any]) -> Envelope:
    """The envelope of a row that was opened to ``content``.  Raises CorruptEvent."""
    (user_id, session_id, stream), seq, type_, ts, event_id, tokens, version = (
        row.columns
    )
    meta = content.get("meta")
    fields = {
        "seq": seq,
        "type": type_,
        "user_id": user_id,
        "session_id": session_id,
        "stream": stream,
        "request_id": content.get("request_id"),
        "agent": content.get("agent"),
        "payload": payload_of(row, content),
        "redacted": True,
        "redaction": content["redaction"],
        "token_estimate": tokens,
        "schema_version": version,
        "meta": meta_trusted(meta) if meta else NO_META,
    }
    return Envelope.proved(fields, Late(ts, event_id, row.prev_hash, row.hash))


def cut_from(content: JsonObject) -> tuple[str, ...]:
    """The digests of the blobs that the event was cut to."""
    digests: Any = content.get("blobs", ())
    return tuple(digests)


_codecs = local()


def pack(data: bytes) -> bytes:
    """``data`` with a mark of its codec, compressed where that makes it smaller."""
    if len(data) >= _WORTH_COMPRESSING:
        if not hasattr(_codecs, "compress"):
            _codecs.compress = zstandard.ZstdCompressor(level=1)
        smaller: bytes = _codecs.compress.compress(data)
        if len(smaller) < len(data):
            return _ZSTD + smaller
    return _RAW + data


def unpack(packed: bytes) -> bytes:
    """Give back what ``pack`` packed."""
    if packed[:1] == _RAW:
        return packed[1:]
    if not hasattr(_codecs, "decompress"):
        _codecs.decompress = zstandard.ZstdDecompressor()
    plain: bytes = _codecs.decompress.decompress(packed[1:], max_output_size=_MAX_PLAIN)
    return plain


def new_header(
    stream: StreamId, seq: int, event: RedactedEvent, event_id: Any
) -> Header:
    """The plain columns of ``event`` at ``seq``."""
    return Header(
        stream,
        seq,
        event.type,
        event.ts,
        event_id,
        event.token_estimate,
        event.schema_version,
    )
