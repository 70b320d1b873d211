"""The one way from a draft to something a log takes: redact, guard, estimate."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_origin

import orjson

from refold.domain.canonical import MOST_LEVELS, NESTED, repaired
from refold.domain.envelope import (
    NO_META,
    REPAIRED,
    Blob,
    Draft,
    Native,
    microseconds,
)
from refold.domain.errors import (
    Erased,
    EventTooLarge,
    InvalidEvent,
    KeyUnavailable,
    RedactionFailed,
)
from refold.domain.events import EVENT_CLASSES, JsonObject, SessionEvent, event_of
from refold.domain.tokens import estimate
from refold.redaction.checks.names import LEXICON, patterns
from refold.redaction.guard import FROM_BYTES, Limits, TooLarge, apart, filled, guard
from refold.redaction.plan import Numbers, Tagger
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.values import (
    NO_SKIP,
    JsonObject as PayloadJsonObject,
    JsonValue,
    Path,
    Skip,
    Tally,
)

_LIKE: Final = patterns("events")


def _is_opaque(text: str) -> bool:
    """Whether it may be what a provider signed or encrypted: no text in base64."""
    if not _LIKE.OPAQUE.fullmatch(text):
        return False
    url_safe = "-" in text or "_" in text
    return not b64decode(text[:64], b"-_" if url_safe else None).isascii()


_Shape: TypeAlias = Callable[[str], object]
_SHAPES: Final[Mapping[str, _Shape]] = {
    "digest": re.compile(r"[0-9a-f]{64}").fullmatch,
    "opaque": _is_opaque,
    "name": bool,
}
_CLAIMS: Final[Mapping[str, str]] = LEXICON["claims"]["events"]
_ITEMS: Final[Mapping[str, str]] = LEXICON["claims"]["items"]
# In these, what is found in the call's id is replaced by a name, always the same.
_CALLS: Final = frozenset({"tool_call", "tool_result"})
_CALL_ID: Final[Skip] = frozenset({("call_id",)})
_ID: Final = "ID"
# Where the blocks of a type stand that may be signed.
_BLOCKS: Final = {"agent_response": "thinking", "provider_edit": "blocks"}
# A block with one of these is the provider's: it is sent back as it came, or not.
_SEALED: Final = ("signature", "data", "encrypted_content")
# What of a type is kept apart from it, in blobs: many events hold the same.
_APART: Final[Mapping[str, str]] = {"request": "handed"}


@dataclass(slots=True)
class _Claims:
    """What is said of the texts below a place: by the next step of their paths."""

    shape: _Shape | None = None
    steps: dict[str, _Claims] = field(default_factory=dict)


@cache
def _read(claims: str) -> _Claims:
    """Those that are written as ``path:shape``, with ``*`` for any step."""
    root = _Claims()
    for claim in claims.split():
        path, shape = claim.rsplit(":", 1)
        at = root
        for step in path.split("/"):
            at = at.steps.setdefault(step, _Claims())
        at.shape = _SHAPES[shape]
    return root


def skipped(
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
) -> Skip:
    """The paths in a payload that are left alone: what is there looks as it claims."""
    if type not in _CLAIMS:
        return NO_SKIP
    claims = _read(_CLAIMS[type])
    for name in claims.steps:  # of most events none is there
        if payload.get(name):
            return frozenset(path for path, _, _ in _claimed(payload, claims))
    return NO_SKIP


def _claimed(
    value: JsonValue, claims: _Claims, at: Path = ()
) -> Iterator[tuple[Path, _Shape, str]]:
    """The places of texts that look as is claimed of them, and the texts."""
    if isinstance(value, str):
        if claims.shape and claims.shape(value):
            yield at, claims.shape, value
    elif isinstance(value, dict | list) and value:
        for step, below in claims.steps.items():
            for name, item in _items(value, step):
                if item and isinstance(item, str | dict | list):
                    yield from _claimed(item, below, (*at, name))


def _items(value: Any, step: str) -> Iterable[tuple[str, JsonValue]]:
    """What a step of a path leads to."""
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value)}
    if step == "*":
        return cast("dict[str, JsonValue]", value).items()
    return [(step, value[step])] if step in value else ()


def recorded_id(redactor: Redactor, given: str, tag: Tagger | None) -> str:
    """An id that a caller chose, as it is recorded: itself, if nothing is found in it.

    Else it is a name that ``tag`` makes of it: the same for a call and its result.
    """
    given, _ = repaired(given)
    clean, _ = redactor.text(given)
    return clean if clean == given or tag is None else f"redacted_{tag(_ID, given)}"


def redact_native(
    redactor: Redactor, native: PayloadJsonObject, tag: Tagger | None
) -> tuple[PayloadJsonObject, Tally]:
    """Redact an item of a framework as ``Meta.native`` holds it; ids stay or are named.

    What a provider signed or encrypted goes if something is found beside it: of a block
    that tells what a model thought, all of it.  Raises RedactionError.
    """
    found = [*_claimed(native, _item_claims(str(native.get("format"))))]
    given = {
        path: text
        for path, shape, text in found
        if shape is bool and not _LIKE.MADE.fullmatch(text)
    }
    skip = frozenset([path for path, _, _ in found if path not in given])
    # Judged together first: most are clean, and no number is used up.
    clean, tally = redactor.value(native, skip=skip, tag=None if given else tag)
    if clean is native:
        return clean, tally
    if given:
        clean, tally = redactor.value(native, skip=skip.union(given), tag=tag)
    signed = [path for path, shape, _ in found if shape is _is_opaque]
    broken = [p for p in signed if _part(clean, p[:-1]) is not _part(native, p[:-1])]
    names = {path: recorded_id(redactor, one, tag) for path, one in given.items()}
    named = {path: name for path, name in names.items() if name != given[path]}
    if broken or named:
        clean = orjson.loads(orjson.dumps(clean))
    for path, name in named.items():
        _part(clean, path[:-1])[path[-1]] = name
        tally.update(redactor.text(given[path])[1])
    for path in sorted(broken, reverse=True):
        block, around = _part(clean, path[:-1]), _part(clean, path[:-2])
        if isinstance(around, list) and "thinking" in str(block.get("type")):
            around.remove(block)
        else:
            del block[path[-1]]
    return clean, tally


class JudgedItem:
    """An item of a framework that passed redaction, and what was found in it.

    size:     the bytes of its JSON, before.
    repaired: whether it held what JSON in UTF-8 cannot, which was replaced.
    """

    __slots__ = ("_parts", "_texts", "found", "record", "redactor", "repaired", "size")

    def __init__(
        self, redactor: Redactor, native: dict[str, Any], tag: Tagger | None
    ) -> None:
        """Raises InvalidEvent for what is not JSON, RedactionFailed."""
        (record, data), self.repaired = _mended("item", native, unchecked=True)
        self.size, self.redactor = len(data), redactor
        try:
            self.record, self.found = redact_native(redactor, record, tag)
        except RedactionError as error:
            raise RedactionFailed("item", reason=str(error)) from None
        said = (str(self.record["format"]), str(self.record["kind"]))
        self._texts, self._parts = set(said), list[Any]()

    def under(self, redactor: Redactor, native: Native) -> JudgedItem | None:
        """The same, of this kind and id; None if it is to be judged once more."""
        kind, name = native.kind, native.id or ""
        made = redactor is self.redactor and (not name or _LIKE.MADE.fullmatch(name))
        if not made or (kind != self.record["kind"] and redactor.text(kind)[1]):
            return None
        again = copy(self)
        again.record = {**self.record, "kind": kind, **({"id": name} if name else {})}
        again._texts, again._parts = {*self._texts, kind}, [*self._parts]
        return again

    def hears(self, name: str) -> None:
        """Take a name that is not its own, of what was judged before."""
        self._texts.add(name)

    def _take(self, value: Any) -> None:
        if isinstance(value, str):
            self._texts.add(value)
        elif isinstance(value, dict | list):
            self._parts.append(value)
            for part in value.values() if isinstance(value, dict) else value:
                self._take(part)

    def holds(self, type: str, payload: PayloadJsonObject) -> bool:  # noqa: A002
        """Whether all in it stands in the item as it does here: it was judged there."""
        words = _of_few_words(type)
        others = (value for name, value in payload.items() if name not in words)
        return not _said(payload) and all(map(self._holds, others))

    def _holds(self, value: Any) -> bool:
        heard = isinstance(value, str) and value in self._texts
        if heard or value == self.record["value"]:
            return True
        if not self._parts:
            self._take(self.record["value"])
        if isinstance(value, str):
            if not value or value in self._texts:
                return True
            try:  # whether it is a part that is told as one text
                return value[0] in "[{" and orjson.loads(value) in self._parts
            except orjson.JSONDecodeError:
                return False
        if isinstance(value, dict | list):
            return not value or value in self._parts
        return not isinstance(value, int) or abs(value) < _TELLING


@cache
def _of_few_words(type: str) -> frozenset[str]:  # noqa: A002 - the event's own word
    """The fields of an event that say one of a few words, like a status."""
    fields = EVENT_CLASSES[type].model_fields.items()
    return frozenset(n for n, one in fields if get_origin(one.annotation) is Literal)


@cache
def _item_claims(name: str) -> _Claims:
    said = [f"value/{claim}" for claim in _ITEMS.get(name, "").split()]
    return _read(" ".join(["id:name", "bytes/*:digest", *said]))


def _part(value: Any, path: Iterable[str]) -> Any:
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def redact_beside(
    redactor: Redactor,
    beside: PayloadJsonObject,
    tag: Tagger | None = None,
    data: bytes | None = None,
    *,
    judged: bool = False,
) -> tuple[PayloadJsonObject, Tally]:
    """Redact what stands beside a payload; the item in it too, if it was not yet."""
    meta: Any = beside.get("meta") or {}
    if "native" not in meta:
        return redactor.value(beside, tag=tag, data=data)
    native, found = meta["native"], Tally()
    if not judged:
        native, found = redact_native(redactor, native, tag)
    others = {name: value for name, value in meta.items() if name != "native"}
    clean: Any = {**beside, "meta": others}, Tally()
    if others or beside["request_id"] or beside["agent"]:
        clean = redactor.value(clean[0], tag=tag)
    if native is meta["native"] and not clean[1]:
        return beside, found
    found.update(clean[1])
    return {**clean[0], "meta": {**clean[0]["meta"], "native": native}}, found


def redact_payload(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
    *,
    tag: Tagger | None = None,
    data: bytes | None = None,
) -> tuple[PayloadJsonObject, Tally, list[str]]:
    """Redact the payload of an event of ``type``; a clean one is returned itself.

    A provider refuses a signed block that was edited, so one in which something is
    found is dropped whole.

    Returns the payload, what was found, and codes of warnings:
    ``thinking_dropped``.  Raises RedactionError.
    """
    skip = skipped(type, payload)
    clean, tally = redactor.value(
        payload, skip=skip, tag=tag, data=data, said=_said(payload)
    )
    if clean is payload:
        return clean, tally, []
    if type in _CALLS and clean.get("call_id") != payload.get("call_id"):
        # The id is judged by itself, so that it comes out alike in both.
        how: Any = {"skip": _CALL_ID, "tag": tag, "said": _said(payload)}
        clean, tally = redactor.value(payload, **how)
        given = str(payload["call_id"])
        tally.update(redactor.text(given)[1])
        return {**clean, "call_id": recorded_id(redactor, given, tag)}, tally, []
    if type not in _BLOCKS:
        return clean, tally, []
    kept, dropped = _without_signed_findings(redactor, type, payload)
    if kept is payload:
        return clean, tally, []
    clean, tally = redactor.value(kept, skip=skipped(type, kept), tag=tag)
    tally.update(dropped)
    return clean, tally, ["thinking_dropped"]


_TELLING: Final = 10**9  # a number from there on may be one of a person or a card
_OCR: Final = re.compile(r"(?i)(?<![a-z])ocr(?![a-z])")


def _said(payload: PayloadJsonObject) -> str:
    """What holds for all of it: others wrote it, or it was read from a picture."""
    read = "tool_name" in payload and _OCR.search(str(payload["tool_name"]))
    return "untrusted" if read or payload.get("untrusted") is True else ""


def _without_signed_findings(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
) -> tuple[PayloadJsonObject, Tally]:
    tally, name = Tally(), _BLOCKS[type]
    blocks = payload.get(name)
    if not isinstance(blocks, list):
        return payload, tally
    kept: list[JsonValue] = []
    for block in blocks:
        alone: PayloadJsonObject = {name: [block]}
        sealed = isinstance(block, dict) and any(map(block.get, _SEALED))
        if sealed and (found := redactor.value(alone, skip=skipped(type, alone))[1]):
            tally.update(found)
        else:
            kept.append(block)
    return ({**payload, name: kept} if len(kept) < len(blocks) else payload), tally


@dataclass(frozen=True, slots=True)
class Seen(Draft):
    """The draft of an item's event: the first one has the item beside it.

    item:   the item as it was redacted; None if it was not.
    opaque: the bytes in it.
    """

    item: JudgedItem | None = None
    opaque: tuple[Blob, ...] = ()


_PASS: Final = object()


@dataclass(frozen=True, slots=True)
class RedactedEvent:
    """An event that passed redaction and the size guard.

    Only ``redact`` makes one: a log takes these and nothing else, so there is no
    way around redaction.  ``event`` is the event as it will read once recorded,
    ``data`` the canonical JSON of what is recorded of it and beside it; ``found``
    counts what was redacted, by type, as far as the policy lets it be told.
    """

    event: SessionEvent
    ts: int
    token_estimate: int
    data: bytes
    found: Mapping[str, int]
    blobs: tuple[Blob, ...]
    passed: object

    def __post_init__(self) -> None:
        if self.passed is not _PASS:
            raise TypeError("only redaction makes a RedactedEvent")

    @property
    def type(self) -> str:
        """The event's type."""
        return self.event.type

    @property
    def schema_version(self) -> int:
        """The version of that type's stored form."""
        return self.event.version

    @property
    def content(self) -> JsonObject:
        """What ``data`` holds."""
        content: JsonObject = orjson.loads(self.data)
        return content

    def __repr__(self) -> str:
        return f"RedactedEvent({self.type}, {self.token_estimate} tokens)"


def redact(
    draft: Draft,
    *,
    now: int,
    redactor: Redactor,
    limits: Limits,
    tag: Tagger | None = None,
) -> RedactedEvent:
    """Make of ``draft`` what may be written; ``now`` stands in for a missing ``ts``.

    Payload, request_id, agent and meta pass the redactor, each string and key of
    them; leaves over the limit and long base64 go to blobs, redacted.  Redaction never
    edits a signed block: it drops it, and ``meta.warnings`` says so.  ``tag`` makes
    pseudonyms of the user's, if the redactor's plan wants any.

    Values that JSON in UTF-8 cannot hold are repaired (domain.canonical.repaired), and
    ``meta.warnings`` has ``repaired``.

    Raises InvalidEvent for what is no JSON, RedactionFailed, EventTooLarge.
    """
    event, seen = draft.event, draft if isinstance(draft, Seen) else None
    kind = event.type
    if EVENT_CLASSES.get(kind) is not type(event):
        raise InvalidEvent("only the event classes of refold can be recorded")
    fields = event.fields()
    given = event.payload() if fields is None else fields
    payload, payload_repaired = _mended(kind, given)
    beside, beside_repaired = _beside(draft)
    try:
        _check_size(kind, payload, limits)
        item = seen.item if seen else None
        clean = _clean(kind, payload, beside, redactor, tag, item)
        guarded, clean_beside, blobs, sent = _guarded(kind, clean, limits)
    except RedactionError as error:
        raise RedactionFailed(kind, reason=str(error)) from None
    except TooLarge as error:
        raise EventTooLarge(kind, size=error.size, limit=error.limit) from None
    except (Erased, KeyUnavailable):
        raise  # of the key that names ids
    except Exception as error:
        raise RedactionFailed(kind, reason=type(error).__name__) from None
    if seen:
        blobs = (*blobs, *seen.opaque)
        if item and draft.meta.native:
            clean.tally.update(item.found)
    if event.repaired or payload_repaired or beside_repaired:
        clean.warnings.append(REPAIRED)
    # What was valid and did not change is not validated, nor encoded, once more.
    same = guarded is payload[0] and not payload_repaired
    receipt: dict[str, Any] = redactor.receipt(clean.tally)
    content: dict[str, Any] = {
        **_told(clean_beside, clean.warnings),
        "payload": orjson.Fragment(payload[1]) if same else guarded,
        "redaction": receipt,
    }
    if blobs:
        content["blobs"] = [blob.sha256 for blob in blobs]
    return RedactedEvent(
        event if same and (fields or event.validated) else event_of(kind, guarded),  # type: ignore[arg-type]  # of a known class
        _microseconds(draft.ts) if draft.ts else now,
        estimate(sent),
        orjson.dumps(content, option=orjson.OPT_SORT_KEYS),
        receipt.get("types", {}),
        blobs,
        _PASS,
    )


def answering(event: RedactedEvent, request: str) -> RedactedEvent:
    """The same, saying in ``meta.source`` the digest of the request that it answers.

    It is for imported events, which have a source; others are returned as they are.
    """
    content: Any = event.content
    source = content.get("meta", {}).get("source")
    if not isinstance(source, dict) or not _SHAPES["digest"](request):
        return event
    source["request"] = request
    return replace(event, data=orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


@cache
def _whole(event_type: str) -> Skip:
    """The paths in a payload at which nothing is cut."""
    claims = _CLAIMS.get(event_type, "").split()
    return frozenset(tuple(claim.rsplit(":")[0].split("/")) for claim in claims)


def _check_size(event_type: str, payload: _Json, limits: Limits) -> None:
    """Refuse what would be too large for an event before it is redacted."""
    value, data = payload
    if len(data) > limits.event_bytes:
        moved = apart(value, _APART.get(event_type, ""))
        guard(moved.payload, limits, skip=_whole(event_type))


# What these say comes from outside: there a numbered placeholder is none.
_OTHERS: Final = frozenset(
    {"user_input", "tool_result", "hitl", "error", "system", "state"}
)
# A value, and the JSON it was read from.
_Json: TypeAlias = tuple[JsonObject, bytes]


class _Clean(NamedTuple):
    """What passed the redactor; ``size`` is its JSON's, None if it was changed."""

    payload: JsonObject
    beside: JsonObject
    tally: Tally
    warnings: list[str]
    size: int | None


def _clean(
    event_type: str,
    payload: _Json,
    beside: _Json,
    redactor: Redactor,
    tag: Tagger | None,
    item: JudgedItem | None,
) -> _Clean:
    (value, data), (told, told_data) = payload, beside
    kept, tally, warnings = value, Tally(), list[str]()
    if item is None or not item.holds(event_type, value):
        kept, tally, warnings = redact_payload(
            redactor, event_type, value, tag=tag, data=data
        )
    kept_beside = told
    if beside is not _NOTHING_BESIDE:
        how = (redactor, told, tag, told_data)
        kept_beside, more = redact_beside(*how, judged=item is not None)
        tally.update(more)
    if redactor.numbered and hasattr(tag, "told"):
        tag, ours = cast(Numbers, tag), event_type not in _OTHERS
        call_id = kept.get("call_id")
        kept = cast(JsonObject, tag.told(kept, ours=ours))
        if event_type in _CALLS and kept["call_id"] != call_id:
            kept = {**kept, "call_id": call_id}  # a call and its result have one
        kept_beside = cast(JsonObject, tag.told(kept_beside, ours=False))
    same = kept is value and kept_beside is told
    size = len(data) + len(told_data) if same else None
    return _Clean(kept, kept_beside, tally, warnings, size)


def _guarded(
    event_type: str, clean: _Clean, limits: Limits
) -> tuple[JsonObject, JsonObject, tuple[Blob, ...], JsonObject]:
    """The payload and what stands beside it within the limits, and all their blobs.

    Last comes the payload as a model will be sent it, with the base64 that blobs hold.
    """
    size, whole = clean.size, _APART.get(event_type, "")
    little = size is not None and size < FROM_BYTES and size < limits.leaf_bytes
    if little and not whole:
        # Nothing is cut from so little.
        return clean.payload, clean.beside, (), clean.payload
    moved = apart(clean.payload, whole)
    guarded = guard(moved.payload, limits, skip=_whole(event_type))
    guarded_beside = guard(clean.beside, limits)
    blobs = (*moved.blobs, *guarded.blobs, *guarded_beside.blobs)
    sent = guarded.payload
    if guarded.blobs:
        sent = filled(sent, {blob.sha256: blob.data for blob in guarded.blobs}.get)
    return guarded.payload, guarded_beside.payload, blobs, sent


_NOTHING_BESIDE: Final[_Json] = ({"meta": {}}, b"{}")


def _beside(draft: Draft) -> tuple[_Json, bool]:
    """What the writer knows beside the event, and whether it was repaired."""
    if draft.meta is NO_META and draft.request_id is None and draft.agent is None:
        return _NOTHING_BESIDE, False
    named = {"request_id": draft.request_id, "agent": draft.agent}
    return _mended(draft.event.type, {**named, "meta": draft.meta.dump()})


def _microseconds(ts: datetime) -> int:
    try:
        return microseconds(ts.astimezone(UTC))
    except OverflowError:
        raise InvalidEvent("ts must be in the years 1 to 9999 in UTC") from None


def _mended(
    event_type: str, value: dict[str, Any], *, unchecked: bool = False
) -> tuple[_Json, bool]:
    """``value`` as JSON gives it back, and whether it had to be repaired for that.

    unchecked: it may hold NaN, which the encoder would write as null.

    Raises InvalidEvent for what is no JSON.
    """
    encoded = _encoded(value)
    if encoded is not None:
        lossless = not unchecked or b"null" not in encoded[1] or encoded[0] == value
        if lossless:
            return encoded, False
    try:
        clean, changes = repaired(value)
        encoded = _encoded(clean)
    except (ValueError, TypeError, RecursionError):
        encoded = None
    if encoded is None:
        raise InvalidEvent(
            f"the {event_type} event cannot be stored: it holds an object that is no "
            "JSON value, or is nested too deeply"
        )
    return encoded, changes > 0


def _encoded(value: dict[str, Any]) -> _Json | None:
    """``value`` as JSON gives it back, and its JSON; None if it must be repaired."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if data.count(b"[") + data.count(b"{") > NESTED:
            orjson.dumps(_surrounded(value))
        return orjson.loads(data), data
    except (orjson.JSONEncodeError, orjson.JSONDecodeError):
        return None


def _surrounded(value: Any) -> Any:
    """``value`` in so many lists that the encoder takes it if redaction does."""
    for _ in range(MOST_LEVELS - NESTED):
        value = [value]
    return value


def _told(beside: JsonObject, warnings: list[str]) -> dict[str, Any]:
    """What there is beside an event, with these warnings."""
    if not warnings and beside is _NOTHING_BESIDE[0]:
        return {}
    meta: dict[str, Any] = beside["meta"]  # type: ignore[assignment]  # an object
    if warnings:
        known = meta.get("warnings", [])
        new = [{"code": code} for code in warnings if {"code": code} not in known]
        meta = {**meta, "warnings": [*known, *new]}
    told = {**beside, "meta": meta}
    return {key: value for key, value in told.items() if value not in (None, {})}
