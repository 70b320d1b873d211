"""The mapper between events and stored rows: encode, compress, encrypt, chain.

It is the one way in.  A recorder takes the SealedEvents made here and nothing
else, and these are made of what passed redaction and nothing else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from threading import local
from typing import Any, Final

import orjson
import zstandard
from cryptography.exceptions import InvalidTag
from eventsourcing.persistence import JSONTranscoder, Mapper, StoredEvent

from refold.adapters.keys import KeyRing, SessionKey, seal
from refold.domain.canonical import canonical
from refold.domain.chain import Header, Resealing, link, link_digest
from refold.domain.envelope import Envelope, Meta, from_microseconds
from refold.domain.errors import CorruptEvent, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.upcast import upcast
from refold.redaction.chokepoint import RedactedEvent

_SEAL: Final = object()
_FORMAT: Final = b"\x01"
_RAW, _ZSTD = b"\x00", b"\x01"
_WORTH_COMPRESSING: Final = 200
_MAX_PLAIN: Final = 64 * 1024 * 1024


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


@dataclass(frozen=True)
class SealedEvent(StoredEvent):
    """A row of the log: ``state`` is the ciphertext, ``topic`` type and version.

    ``first_digest`` is the SHA-256 of the ciphertext that ``hash`` was made of, if
    ``state`` is another since.
    """

    header: Header
    prev_hash: bytes
    hash: bytes
    sealed_by: object
    first_digest: bytes | None = None

    def __post_init__(self) -> None:
        if self.sealed_by is not _SEAL:
            raise TypeError("only the sealing mapper makes a SealedEvent")

    @property
    def resealing(self) -> Resealing:
        """What binds the present ciphertext to the first."""
        digest = hashlib.sha256(self.state).digest()
        return Resealing(self.header.seq, self.first_digest or digest, digest)


def stored(
    header: Header,
    body: bytes,
    hash_: bytes,
    prev_hash: bytes,
    first_digest: bytes | None = None,
) -> SealedEvent:
    """A row as it was read; what it says is not proved yet."""
    return SealedEvent(
        originator_id=str(header.stream),
        originator_version=header.seq,
        topic=f"{header.type}/{header.schema_version}",
        state=body,
        header=header,
        prev_hash=prev_hash,
        hash=hash_,
        sealed_by=_SEAL,
        first_digest=first_digest,
    )


class SealingMapper(Mapper[str]):
    """Seals events with the keys of their sessions, and opens them again."""

    def __init__(self, keys: KeyRing) -> None:
        super().__init__(JSONTranscoder())
        self._keys = keys

    def to_stored_event(self, domain_event: Any) -> SealedEvent:
        """Seal one event.

        Raises TypeError for anything that did not pass redaction, KeyUnavailable.
        """
        if type(domain_event) is not PlacedEvent:
            raise TypeError("only an event that passed redaction can be sealed")
        _check(domain_event.redacted)
        user_id, session_id, _ = domain_event.header.stream
        key = self._keys.session(user_id, session_id, now=None)
        return self.seal(domain_event, key)

    def seal(self, placed: PlacedEvent, key: SessionKey) -> SealedEvent:
        """Seal one event under this key.

        Raises TypeError for anything that did not pass redaction.
        """
        _check(placed.redacted)
        encoded, prev = placed.header.encode(), placed.prev_hash
        plain = pack(canonical(placed.redacted.content))
        body = _FORMAT + seal(key.cipher, plain, encoded)
        return stored(placed.header, body, link(prev, encoded, body), prev)

    def reseal(
        self, row: SealedEvent, key: SessionKey, again: RedactedEvent | None
    ) -> SealedEvent:
        """The row under another key, with what it held or with ``again`` instead.

        Header and hash stay.  The receipt of ``again`` goes before that of the
        event it replaces.
        """
        plain = self._plain(row)
        if again is not None:
            _check(again)
            content = _superseding(row.header, again, orjson.loads(unpack(plain)))
            plain = pack(canonical(content))
        body = _FORMAT + seal(key.cipher, plain, row.header.encode())
        first = row.resealing.first_digest
        return stored(row.header, body, row.hash, row.prev_hash, first)

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        """Open one row into its envelope.

        Raises CorruptEvent if it is not what was sealed, KeyUnavailable.
        """
        if not isinstance(stored_event, SealedEvent):
            raise TypeError("only a row of the log can be opened")
        return envelope_of(stored_event, self.open(stored_event))

    def open(self, row: SealedEvent) -> JsonObject:
        """The content of a row: payload, meta, receipt and what else was sealed."""
        content: JsonObject = orjson.loads(unpack(self._plain(row)))
        return content

    def _plain(self, row: SealedEvent) -> bytes:
        user_id, session_id, name = row.header.stream
        where, seq = f"session {session_id!r} {name}", row.header.seq
        if row.state[:1] != _FORMAT:
            raise CorruptEvent(where, seq=seq, reason="the row has no known format")
        try:
            sealed, context = row.state[1:], row.header.encode()
            return self._keys.unseal(user_id, session_id, sealed, context)
        except InvalidTag:
            reason = "the row does not open with its session's key"
            raise CorruptEvent(where, seq=seq, reason=reason) from None

    def proves(self, row: SealedEvent) -> bool:
        """Whether the row's hash follows from the hash before it and its bytes.

        Where the ciphertext was replaced, from the digest of the first.
        """
        header, first = row.header.encode(), row.resealing.first_digest
        return link_digest(row.prev_hash, header, first) == row.hash


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


_NO_META: Final = Meta()


def envelope_of(row: SealedEvent, content: dict[str, Any]) -> Envelope:
    """The envelope of a row that holds ``content``.  Raises CorruptEvent."""
    header = row.header
    try:
        shape = content.get("shape", header.schema_version)
        payload = upcast(header.type, shape, content["payload"])
    except InvalidEvent as error:
        where = f"session {header.stream.session_id!r} {header.stream.stream}"
        raise CorruptEvent(where, seq=header.seq, reason=str(error)) from None
    user_id, session_id, stream = header.stream
    return Envelope.proved(
        event_id=header.event_id,
        seq=header.seq,
        ts=from_microseconds(header.ts),
        type=header.type,
        user_id=user_id,
        session_id=session_id,
        stream=stream,
        request_id=content.get("request_id"),
        agent=content.get("agent"),
        payload=payload,
        redacted=True,
        redaction=content["redaction"],
        token_estimate=header.token_estimate,
        prev_hash=row.prev_hash.hex(),
        hash=row.hash.hex(),
        schema_version=header.schema_version,
        meta=Meta(**meta) if (meta := content.get("meta")) else _NO_META,
    )


def cut_from(content: JsonObject) -> tuple[str, ...]:
    """The digests of the blobs that the event was cut to."""
    digests: Any = content.get("blobs", ())
    return tuple(digests)


_codecs = local()


def pack(data: bytes) -> bytes:
    """``data`` with a mark of its codec, compressed where that makes it smaller."""
    if len(data) >= _WORTH_COMPRESSING:
        if not hasattr(_codecs, "compress"):
            _codecs.compress = zstandard.ZstdCompressor(level=3)
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
