"""An event in its place: the envelope that the log stores, shows and exports."""

from __future__ import annotations

import re
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

# The status of a request that was recorded to switch strategies: no model was called.
ACTIVATED = "activated"
_TYPE: Final = "[A-Z][A-Z0-9_]{1,39}"
REDACTED: Final = rf"REDACTED:{_TYPE}(?:(?<=:UNSCANNED) [0-9]{{1,12}} bytes)?"
# The labels that come with Refold end like this, whatever the policy of a text was.
LABELLED: Final = "_已脱敏"
LABEL: Final = rf"[^\s\[\]#:]{{1,32}}{LABELLED}"
TAG: Final = "(?:#[a-z2-7]{8})?"
PLACEHOLDER: Final = re.compile(rf"\[(?:{REDACTED}|{LABEL}){TAG}\]")
# The number in it says which value of a session it stands for.
NUMBERED: Final = re.compile(rf"\[({_TYPE})_[1-9][0-9]{{0,5}}\]")
STANDS_FOR: Final = re.compile(rf"{PLACEHOLDER.pattern}|\[~?{NUMBERED.pattern[2:]}")


# The codes of warnings that more than one module gives.
REPAIRED: Final = "repaired"
ID_REPEATED: Final = "call_id_repeated"
# What these say is of the recording, not of the run: nothing failed in it.
OF_RECORDING: Final = frozenset({REPAIRED, ID_REPEATED})


class Warn(Model):
    """A degradation, by code: what could not be kept or done as it was asked."""

    code: str
    detail: str | None = None


class Meta(Model):
    """What is known of an event beside its payload; further keys are allowed.

    ``response_id`` is the provider's id of the response an event is part of.
    ``call_id`` is the provider's id of a call that is recorded under another, since two
    open calls had it.
    ``source`` says where an imported event came from.  ``native`` is the item of a
    framework that the event, with those behind it, is the typed view of: where these
    hold a text of it, it names their place.
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

    @classmethod
    def of(cls, given: Self | Mapping[str, object] | None) -> Self:
        """What a caller gave as meta.  Raises InvalidEvent."""
        if given is None:
            return NO_META  # type: ignore[return-value]  # Meta has no subclasses
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise InvalidEvent("meta must be a mapping of names to JSON values")
        try:
            clean, changes = repaired(dict(given))
            meta = cls.model_validate(clean)
        except ValidationError as error:
            reason = explain("meta", error, cls.model_fields)
            raise InvalidEvent(reason) from None
        except (ValueError, TypeError, RecursionError):
            raise InvalidEvent("meta must hold JSON values") from None
        return meta.warned(REPAIRED) if changes else meta

    def dump(self) -> JsonObject:
        """The keys that hold something, as JSON."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)

    def warned(self, *codes: str) -> Self:
        """The same with these warnings added."""
        added = tuple(Warn(code=code) for code in codes)
        return self.model_copy(update={"warnings": (*self.warnings, *added)})


# What is known beside most events.
NO_META: Final = Meta()


_NOTHING: Final[Mapping[str, Any]] = {}
Hold: TypeAlias = Callable[[Columns, bytes], dict[str, Any]]


class Envelope(Model):
    """One recorded event: immutable, sequenced, redacted, hash-chained.

    ``seq`` counts from 1 without gaps in its stream.  ``ts`` is the writer's clock
    in UTC and orders nothing.  ``redacted`` is true of everything stored: it says
    that the event passed redaction, with findings or without.

    One that was read decodes what it holds when that is asked for, its columns too but
    for ``seq``, ``type`` and ``token_estimate``.  It was authenticated before.
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

    @classmethod
    def imagined(
        cls, event: Event, seq: int, ts: datetime, like: StreamId, **beside: Any
    ) -> Self:
        """The event as the log would hold it at ``seq``, but for ids and hashes."""
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
            token_estimate=beside.pop("tokens", 0),
            prev_hash="",
            hash="",
            schema_version=event.version,
            **beside,
        )

    @classmethod
    def proved(
        cls,
        columns: Columns,
        prev_hash: bytes,
        hash_: bytes,
        plain: bytes,
        hold: Hold,
        known: Mapping[str, Any] = _NOTHING,
    ) -> Self:
        """The envelope of a row that is authentic.

        ``hold`` makes of its columns and of ``plain``, what was encrypted, the fields
        of ``_HELD``, and ``blobs``.  ``known`` are those of the fields that need not
        be made.
        """
        fields = {
            "seq": columns[1],
            "type": columns[2],
            "token_estimate": columns[5],
            **known,
        }
        late = {
            "columns": columns,
            "prev_hash": prev_hash,
            "hash": hash_,
            "plain": plain,
            "hold": hold,
        }
        return built(cls, fields, _EVERY, private=late)

    def decoded(self) -> Self:
        """The same, with what it holds decoded, if that was not done before."""
        late = self.__pydantic_private__
        if late and (plain := late["plain"]):
            held = late["hold"](late["columns"], plain)
            late["blobs"] = held.pop("blobs")
            held.update(self.__dict__)  # what a copy changed stays
            object.__setattr__(self, "__dict__", held)
            late["plain"] = b""
        return self

    def __getattr__(self, name: str) -> Any:
        late = self.__pydantic_private__
        if name in _HELD and late:
            self.decoded()
        elif name in _LATE and late:
            self.__dict__[name] = _LATE[name](late)
        elif name not in _EVERY:
            raise AttributeError(f"an envelope has no {name!r}")
        return self.__dict__[name]

    @property
    def at(self) -> int:
        """``ts`` in microseconds since 1970."""
        ts, private = self.__dict__.get("ts"), self.__pydantic_private__
        stored: int | None = private["columns"][3] if private and not ts else None
        return microseconds(self.ts) if stored is None else stored

    @property
    def blobs(self) -> tuple[str, ...]:
        """The digests of the blobs that the event was cut to, of one that was read."""
        late = self.__pydantic_private__
        if not late:
            return ()
        if late["plain"]:
            self.decoded()
        blobs: tuple[str, ...] = late["blobs"]
        return blobs

    def _whole(self) -> Self:
        """It with every field made, in the order in which they are shown."""
        if self.__pydantic_private__ and len(self.__dict__) < len(_EVERY):
            fields = {name: getattr(self, name) for name in type(self).model_fields}
            object.__setattr__(self, "__dict__", fields)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Envelope):
            return NotImplemented
        return vars(self._whole()) == vars(other._whole())

    __hash__ = None  # type: ignore[assignment]  # it holds JSON objects

    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]  # as pydantic's
        return super(Envelope, self._whole()).__iter__()

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's."""
        return super(Envelope, self._whole()).model_dump(**how)

    def model_dump_json(self, **how: Any) -> str:
        """As pydantic's."""
        return super(Envelope, self._whole()).model_dump_json(**how)

    @model_validator(mode="before")
    @classmethod
    def _type_the_payload(cls, data: Any) -> Any:
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
    def stream_id(self) -> StreamId:
        """The stream this event is in."""
        return StreamId(self.user_id, self.session_id, self.stream)

    def to_json(self) -> JsonObject:
        """The envelope as JSON, every name of the contract present."""
        return self.model_dump(mode="json")


_EVERY: Final = set(Envelope.model_fields)
_HELD: Final = frozenset({"payload", "redaction", "meta", "request_id", "agent"})
_LATE: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "user_id": lambda late: late["columns"][0].user_id,
    "session_id": lambda late: late["columns"][0].session_id,
    "stream": lambda late: late["columns"][0].stream,
    "ts": lambda late: from_microseconds(late["columns"][3]),
    "event_id": lambda late: UUID(bytes=late["columns"][4]),
    "schema_version": lambda late: late["columns"][6],
    "redacted": lambda _: True,
    "prev_hash": lambda late: late["prev_hash"].hex(),
    "hash": lambda late: late["hash"].hex(),
}


def microseconds(ts: datetime) -> int:
    """``ts`` as microseconds since 1970 in UTC, exactly."""
    delta = ts - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_microseconds(value: int) -> datetime:
    """The time that ``microseconds`` made ``value`` of."""
    return EPOCH + timedelta(0, 0, value)


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


# Makes of an item's kind and value, and of the calls that are open, the events of it.
TypedView: TypeAlias = (
    "Callable[[str, Any, Mapping[str, Any]], Iterable[Event | Draft]]"
)


class Format(NamedTuple):
    """How a framework writes down its history.

    view: gives the events of an item; none, where it is of no type.  It is pure, and is
          given the item redacted.
    kind: what an item is to it; ``id``: its name there, if it has one.
    """

    name: str
    view: TypedView = lambda kind, value, calls: ()  # noqa: ARG005  # as views are called
    kind: Callable[[Any], str] = lambda value: ""  # noqa: ARG005
    id: Callable[[Any], str | None] = lambda value: None  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class Native:
    """An item of a framework's history, as it is: JSON, and bytes in it.

    ``judged`` is what redaction made of it for the session it goes to, if it did.
    """

    format: Format
    kind: str = ""
    id: str | None = field(default=None, repr=False)
    value: Any = field(default=None, repr=False)
    judged: Any = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str | None:
        """The key of its draft: an item is in a session once.  None if it has no id."""
        if self.id is None:
            return None
        key = "\0".join((self.format.name, self.kind, self.id))
        return str(repaired(key)[0])


LATER: Final = Item(format="")


@dataclass(frozen=True, slots=True)
class Draft:
    """An event and what its writer knows beside it; nothing of it is redacted yet.

    ``ts`` must carry a time zone; None is the writer's clock at append.
    ``request_id`` traces and may be shared by many events.  ``native`` becomes its
    format's events, instead of ``event``.  What was appended to a session under ``key``
    is not appended again.  A draft that ``continues`` is of the same entry as the one
    before it.
    """

    event: Event = LATER
    ts: datetime | None = None
    request_id: str | None = field(default=None, repr=False)
    agent: str | None = field(default=None, repr=False)
    meta: Meta = NO_META
    native: Native | None = None
    key: str | None = field(default=None, repr=False)
    continues: bool = False


def with_id(draft: Draft, apart: ToolCall | ToolResult) -> Draft:
    """The draft of a call or result under another id; its ``meta`` keeps its own."""
    given = draft.event
    if not isinstance(given, ToolCall | ToolResult) or apart.call_id == given.call_id:
        return draft
    meta = draft.meta.model_copy(update={"call_id": given.call_id})
    if isinstance(apart, ToolCall):
        meta = meta.warned(ID_REPEATED)
    return replace(draft, event=apart, meta=meta)


class Blob(NamedTuple):
    """A whole redacted text that was too long for its event; ``sha256`` in hex."""

    sha256: str
    data: bytes

    def __repr__(self) -> str:
        return f"Blob({self.sha256!r}, {len(self.data)} bytes)"


class Recordable(Protocol):
    """An event that passed redaction and the size guard, ready to be sealed.

    ``ts`` is in microseconds since 1970 in UTC.  Only redaction makes these; a log
    refuses anything else.
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
