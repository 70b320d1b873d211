"""Envelopes: events with their place and proof, as the log stores and exports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias
from uuid import UUID

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    JsonValue,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    model_validator,
)

from refold.domain.canonical import repaired
from refold.domain.chain import Columns
from refold.domain.errors import InvalidEvent
from refold.domain.events import (
    Event,
    Item,
    JsonObject,
    SessionEvent,
    ToolCall,
    ToolResult,
)
from refold.domain.ids import StreamId
from refold.domain.model import Model, built, explain

# The key of ``meta`` under which a decision has the note of the person who decided.
NOTE: Final = "note"
# The status of a request that only switched strategies, without a call of a model.
ACTIVATED = "activated"

# The codes of warnings that several modules use.
REPAIRED: Final = "repaired"
ID_REPEATED: Final = "call_id_repeated"
# The codes about the recording alone: nothing failed in the run.
CODES_OF_RECORDING: Final = frozenset({REPAIRED, ID_REPEATED})


class Warn(Model):
    """A warning about an event that could not be recorded exactly as requested."""

    code: str
    detail: str | None = None


class Meta(Model):
    """Facts about an event besides its payload; further keys are allowed.

    response_id: the provider's id of the response that the event belongs to.
    call_id:     the provider's id of a call with an id of its own, because another open
                 call had the provider's.
    source:      the origin of an imported event.
    native:      the framework's item that this event and the following ones represent,
                 with references to their texts instead of copies.
    in_context:  False for a plan, a human's decision, or another entry that only
                 repeats a call and its result in a typed form.  No context shows it.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    model: str | None = None
    tool_name: str | None = None
    duration_ms: float | None = Field(default=None, ge=0)
    status: str | None = None
    usage: JsonObject | None = None
    warnings: tuple[Warn, ...] = ()
    scenario: str | None = None
    response_id: str | None = None
    call_id: str | None = None
    source: JsonObject | None = None
    native: JsonObject | None = None
    in_context: bool = True

    @classmethod
    def of(cls, value: Self | Mapping[str, object] | None) -> Self:
        """Return the meta that a caller passed, with invalid JSON repaired.

        Raises InvalidEvent for a value that cannot be repaired.
        """
        if value is None:
            return NO_META  # type: ignore[return-value]  # Meta has no subclasses
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidEvent("meta must be a mapping of names to JSON values")
        try:
            clean, changes = repaired(dict(value))
            meta = cls.model_validate(clean)
        except ValidationError as error:
            reason = explain("meta", error, cls.model_fields)
            raise InvalidEvent(reason) from None
        except (ValueError, TypeError, RecursionError):
            raise InvalidEvent("meta must hold JSON values") from None
        return meta.warned(REPAIRED) if changes else meta

    def dump(self) -> JsonObject:
        """Return the keys that are set, as JSON."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)

    def warned(self, *codes: str) -> Self:
        """Return the meta with further warnings."""
        added = tuple(Warn(code=code) for code in codes)
        return self.model_copy(update={"warnings": (*self.warnings, *added)})


# Most events have no meta.
NO_META: Final = Meta()


_NO_FIELDS: Final[Mapping[str, Any]] = {}
Decode: TypeAlias = Callable[[Columns, bytes], dict[str, Any]]
"""Returns the encrypted fields and ``blobs`` of a row from its decrypted bytes."""


class Envelope(Model):
    """A recorded event: immutable, numbered, redacted, and part of a hash chain.

    seq:      counts from 1 without gaps in its stream.
    ts:       the time of the writer's clock in UTC; it determines no order.
    redacted: always true: the event passed redaction, with or without findings.

    An envelope that was read from a store is authenticated at once.  It decodes its
    fields at their first use, except ``seq``, ``type``, and ``token_estimate``.
    """

    event_id: UUID
    seq: int = Field(ge=1)
    ts: AwareDatetime
    type: str
    user_id: str
    session_id: str
    stream: str
    request_id: str | None = None
    agent: str | None = None
    payload: SerializeAsAny[SessionEvent]
    redacted: Literal[True] = True
    redaction: JsonObject
    token_estimate: int = Field(ge=0)
    prev_hash: str
    hash: str
    schema_version: int = Field(ge=1)
    meta: Meta = NO_META

    @property
    def note(self) -> str:
        """The note of the person who decided; empty if there is none."""
        note = (self.meta.model_extra or {}).get(NOTE)
        return note.strip() if isinstance(note, str) else ""

    @classmethod
    def imagined(
        cls, event: Event, seq: int, ts: datetime, like: StreamId, **fields: Any
    ) -> Self:
        """Return the envelope that the log would have at ``seq``, without hashes.

        like:   the stream.
        fields: further fields; ``tokens`` is the estimate.
        """
        return cls(
            event_id=UUID(int=max(seq, 0)),
            seq=seq,
            ts=ts,
            type=event.type,
            user_id=like.user_id,
            session_id=like.session_id,
            stream=like.stream,
            payload=event,
            redaction={},
            token_estimate=fields.pop("tokens", 0),
            prev_hash="",
            hash="",
            schema_version=event.version,
            **fields,
        )

    @classmethod
    def proved(
        cls,
        columns: Columns,
        prev_hash: bytes,
        hash_: bytes,
        plain: bytes,
        decode: Decode,
        decoded: Mapping[str, Any] = _NO_FIELDS,
    ) -> Self:
        """Return the envelope of an authentic row.

        plain:   the decrypted bytes.
        decode:  makes the encrypted fields from them.
        decoded: fields that the caller has decoded already.
        """
        fields = {
            "seq": columns[1],
            "type": columns[2],
            "token_estimate": columns[5],
            **decoded,
        }
        row = {
            "columns": columns,
            "prev_hash": prev_hash,
            "hash": hash_,
            "plain": plain,
            "decode": decode,
        }
        return built(cls, fields, _ALL_FIELDS, private=row)

    def decoded(self) -> Self:
        """Decode the encrypted fields if that was not done before; return itself."""
        row = self.__pydantic_private__
        if row and row["plain"]:
            fields = row["decode"](row["columns"], row["plain"])
            row["blobs"] = fields.pop("blobs")
            fields.update(self.__dict__)  # the changes of a copy stay
            object.__setattr__(self, "__dict__", fields)
            row["plain"] = b""
        return self

    def __getattr__(self, name: str) -> Any:
        row = self.__pydantic_private__
        if name in _ENCRYPTED and row:
            self.decoded()
        elif name in _OF_ROW and row:
            self.__dict__[name] = _OF_ROW[name](row)
        elif name not in _ALL_FIELDS:
            raise AttributeError(f"an envelope has no {name!r}")
        return self.__dict__[name]

    @property
    def at(self) -> int:
        """``ts`` in microseconds since 1970."""
        row = self.__pydantic_private__
        if row and not self.__dict__.get("ts"):
            stored: int = row["columns"][3]
            return stored
        return microseconds(self.ts)

    @property
    def blobs(self) -> tuple[str, ...]:
        """The digests of the event's blobs, if the envelope was read from a store."""
        row = self.__pydantic_private__
        if not row:
            return ()
        if row["plain"]:
            self.decoded()
        blobs: tuple[str, ...] = row["blobs"]
        return blobs

    def _complete(self) -> Self:
        """Decode every field, and put them into their order; return the envelope."""
        if self.__pydantic_private__ and len(self.__dict__) < len(_ALL_FIELDS):
            fields = {name: getattr(self, name) for name in type(self).model_fields}
            object.__setattr__(self, "__dict__", fields)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Envelope):
            return NotImplemented
        return vars(self._complete()) == vars(other._complete())

    __hash__ = None  # type: ignore[assignment]  # it holds JSON objects

    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # as pydantic's
        return super(Envelope, self._complete()).__iter__()

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Dump the decoded envelope as pydantic does."""
        return super(Envelope, self._complete()).model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Dump the decoded envelope as pydantic does."""
        return super(Envelope, self._complete()).model_dump_json(**options)

    @model_validator(mode="before")
    @classmethod
    def _type_the_payload(cls, data: Any) -> Any:
        """Add the event's type to its payload, by which pydantic chooses the class."""
        payload = data.get("payload") if isinstance(data, dict) else None
        if isinstance(payload, dict):
            return {**data, "payload": {**payload, "type": data.get("type")}}
        return data

    @field_serializer("payload")
    def _dump_payload(self, payload: SessionEvent) -> JsonObject:
        return payload.payload()

    @field_serializer("meta")
    def _dump_meta(self, meta: Meta) -> JsonObject:
        return meta.dump()

    @property
    def activates_strategy(self) -> bool:
        """Whether this request activates a strategy, and was sent to no model."""
        return self.type == "request" and self.meta.status == ACTIVATED

    @property
    def stream_id(self) -> StreamId:
        """The stream of the event."""
        return StreamId(self.user_id, self.session_id, self.stream)

    def to_json(self) -> JsonObject:
        """Return the envelope as JSON, with every field."""
        return self.model_dump(mode="json")


_ALL_FIELDS: Final = set(Envelope.model_fields)
_ENCRYPTED: Final = frozenset({"payload", "redaction", "meta", "request_id", "agent"})
# The other fields, from the row that ``proved`` keeps.
_OF_ROW: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "user_id": lambda row: row["columns"][0].user_id,
    "session_id": lambda row: row["columns"][0].session_id,
    "stream": lambda row: row["columns"][0].stream,
    "ts": lambda row: from_microseconds(row["columns"][3]),
    "event_id": lambda row: UUID(bytes=row["columns"][4]),
    "schema_version": lambda row: row["columns"][6],
    "redacted": lambda _: True,
    "prev_hash": lambda row: row["prev_hash"].hex(),
    "hash": lambda row: row["hash"].hex(),
}


def microseconds(ts: datetime) -> int:
    """Return a time in microseconds since 1970 in UTC, exactly."""
    delta = ts - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_microseconds(value: int) -> datetime:
    """Return the time for a number of microseconds since 1970 in UTC."""
    return EPOCH + timedelta(0, 0, value)


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# Makes events from the kind and the value of an item, and from the open calls by id.
TypedView: TypeAlias = (
    "Callable[[str, Any, Mapping[str, Any]], Iterable[Event | Draft]]"
)


class Format(NamedTuple):
    """The form in which a framework writes its history.

    view: a pure function that returns the events of a redacted item.  It returns none
          for an item that no type of event represents.
    kind: returns the framework's type of an item.
    id:   returns the framework's id of an item, or None.
    is_transcript: whether each item is recorded as it came.  Then a call with the id of
          an open call is another one, unless both are equal.
    """

    name: str
    view: TypedView = lambda kind, value, calls: ()  # noqa: ARG005  # as views are called
    kind: Callable[[Any], str] = lambda value: ""  # noqa: ARG005  # no value has a kind
    id: Callable[[Any], str | None] = lambda value: None  # noqa: ARG005  # no value has an id
    is_transcript: bool = False


@dataclass(frozen=True, slots=True)
class Native:
    """An unchanged item of a framework's history.

    value:    JSON, which may contain bytes.
    redacted: the result of its redaction for its session, if that was done already.
    """

    format: Format
    kind: str = ""
    id: str | None = field(default=None, repr=False)
    value: Any = field(default=None, repr=False)
    redacted: Any = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str | None:
        """The key of its draft, so that it is recorded once; None without an id."""
        if self.id is None:
            return None
        key = "\0".join((self.format.name, self.kind, self.id))
        return str(repaired(key)[0])


class Mark(NamedTuple):
    """The entries that an edit of a client changes, by the keys of their drafts.

    A key stands for all events of its entry.  The fields are those of
    ``ProviderEdit``.
    """

    left_out: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it names."""
        return (*self.left_out, *self.restored, *self.cleared, *self.in_place)


# Replaces the event in the draft of a framework's item until its events are known.
LATER: Final = Item(format="")


@dataclass(frozen=True, slots=True)
class Draft:
    """An event before redaction, with facts that its writer adds.

    ts:         with a time zone; None means the time of the append.
    request_id: an id for tracing, which several events may have.
    native:     an item whose format makes the events, instead of ``event``.
    key:        a draft is not appended to a session that has its key already.
    continues:  whether it belongs to the same entry as the draft before it.
    mark:       the entries that the event, a ``ProviderEdit``, changes.  Their seqs are
                not known before the append.
    """

    event: Event = LATER
    ts: datetime | None = None
    request_id: str | None = field(default=None, repr=False)
    agent: str | None = field(default=None, repr=False)
    meta: Meta = NO_META
    native: Native | None = None
    key: str | None = field(default=None, repr=False)
    continues: bool = False
    mark: Mark | None = field(default=None, repr=False)


def with_id(draft: Draft, event: ToolCall | ToolResult) -> Draft:
    """Return the draft with its call or result under another id.

    The meta of the draft records the former id.

    event: the draft's event with the new id.
    """
    former = draft.event
    if not isinstance(former, ToolCall | ToolResult) or event.call_id == former.call_id:
        return draft
    meta = draft.meta.model_copy(update={"call_id": former.call_id})
    if isinstance(event, ToolCall):
        meta = meta.warned(ID_REPEATED)
    return replace(draft, event=event, meta=meta)


class Blob(NamedTuple):
    """A redacted text that was too long for its event; ``sha256`` is in hex."""

    sha256: str
    data: bytes

    def __repr__(self) -> str:
        return f"Blob({self.sha256!r}, {len(self.data)} bytes)"


class Recordable(Protocol):
    """An event that passed redaction and the size guard, ready to be encrypted.

    Only redaction makes such events, and a log refuses others.

    ts: microseconds since 1970 in UTC.
    """

    @property
    def type(self) -> str: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def ts(self) -> int: ...
    @property
    def token_estimate(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def blobs(self) -> tuple[Blob, ...]: ...
