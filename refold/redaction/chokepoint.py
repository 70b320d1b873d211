"""The only way from a draft to an event that a log accepts: redact, guard, estimate."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    cast,
    get_origin,
)

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
from refold.domain.events import (
    EVENT_CLASSES,
    JsonObject,
    Request,
    SessionEvent,
    event_of,
)
from refold.domain.tokens import estimate
from refold.redaction.guard import (
    FROM_BYTES,
    Limits,
    TooLarge,
    filled,
    guard,
    moved_to_blobs,
)
from refold.redaction.redactor import RedactionError
from refold.redaction.values import (
    NO_SKIP,
    JsonObject as PayloadJsonObject,
    JsonValue,
    Path,
    Skip,
    Tally,
)

if TYPE_CHECKING:
    from refold.redaction.checks.names import Patterns
    from refold.redaction.plan import Numbers, Tagger
    from refold.redaction.redactor import Redactor


@cache
def _patterns() -> Patterns:
    """The patterns of texts in events, which are read on the first use."""
    from refold.redaction.checks.names import patterns

    return patterns("events")


@cache
def _claims(kind: str) -> Mapping[str, str]:
    """The claims about events, or about items, by type."""
    from refold.redaction.checks.names import LEXICON

    claims: Mapping[str, str] = LEXICON["claims"][kind]
    return claims


def _is_opaque(text: str) -> bool:
    """Whether a text may be signed or encrypted: long base64 of something binary."""
    if not _patterns().OPAQUE.fullmatch(text):
        return False
    url_safe = "-" in text or "_" in text
    start = b64decode(text[:64], b"-_" if url_safe else None)
    return not start.isascii()


_is_digest: Final = re.compile(r"[0-9a-f]{64}").fullmatch
# A claim says how the texts at some paths look.  Its shape is a check of one text.
_Shape: TypeAlias = Callable[[str], object]
_SHAPE_BY_NAME: Final[Mapping[str, _Shape]] = {
    "digest": _is_digest,
    "opaque": _is_opaque,
    "name": bool,
}
# A call id with a finding is replaced by a name, the same in the call and its result.
_CALLS: Final = frozenset({"tool_call", "tool_result"})
_CALL_ID: Final[Skip] = frozenset({("call_id",)})
_ID: Final = "ID"
# By event type: the field with blocks that a provider may have signed.
_BLOCKS: Final = {"agent_response": "thinking", "provider_edit": "blocks"}
# A block with one of these is sent back to the provider unchanged, or not at all.
_SEALED: Final = ("signature", "data", "encrypted_content")
# By event type: the field whose texts are blobs, because many events share them.
_SHARED: Final[Mapping[str, str]] = {"request": "handed"}
# By event type: the field that may hold images and documents which a model is shown.
_MEDIA: Final[Mapping[str, str]] = {
    "user_input": "attachments",
    "tool_result": "content",
}


@dataclass(slots=True)
class _Claims:
    """A tree of claims: the shape of the text at this place, and the steps below it."""

    shape: _Shape | None = None
    steps: dict[str, _Claims] = field(default_factory=dict)


class _Claimed(NamedTuple):
    """A text that has the shape which a claim says, and its path."""

    path: Path
    shape: _Shape
    text: str


@cache
def _parsed_claims(claims: str) -> _Claims:
    """The tree of claims written as ``path:shape``; ``*`` stands for any step."""
    root = _Claims()
    for claim in claims.split():
        path, shape = claim.rsplit(":", 1)
        node = root
        for step in path.split("/"):
            node = node.steps.setdefault(step, _Claims())
        node.shape = _SHAPE_BY_NAME[shape]
    return root


def skipped(
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
) -> Skip:
    """The paths in a payload that redaction skips: their texts look as claimed."""
    event_claims = _claims("events")
    if type not in event_claims:
        return NO_SKIP
    claims = _parsed_claims(event_claims[type])
    for name in claims.steps:  # most events have none of these fields
        if payload.get(name):
            return frozenset(claimed.path for claimed in _claimed(payload, claims))
    return NO_SKIP


def _claimed(value: JsonValue, claims: _Claims, path: Path = ()) -> Iterator[_Claimed]:
    """The texts in ``value`` that have the shape which a claim says."""
    if isinstance(value, str):
        if claims.shape and claims.shape(value):
            yield _Claimed(path, claims.shape, value)
    elif isinstance(value, dict | list) and value:
        for step, below in claims.steps.items():
            for name, item in _items_at(value, step):
                if item and isinstance(item, str | dict | list):
                    yield from _claimed(item, below, (*path, name))


def _items_at(value: Any, step: str) -> Iterable[tuple[str, JsonValue]]:
    """The items of an object or array to which a step of a path leads."""
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value)}
    if step == "*":
        return cast("dict[str, JsonValue]", value).items()
    if step in value:
        return [(step, value[step])]
    return ()


def recorded_id(redactor: Redactor, original: str, tag: Tagger | None) -> str:
    """The form in which an id that a caller chose is recorded.

    An id without findings is recorded unchanged.  For any other, ``tag`` makes a name,
    which is the same for a call and its result.
    """
    original, _ = repaired(original)
    clean, _ = redactor.text(original)
    if clean == original or tag is None:
        return clean
    return f"redacted_{tag(_ID, original)}"


def redact_native(
    redactor: Redactor, native: PayloadJsonObject, tag: Tagger | None
) -> tuple[PayloadJsonObject, Tally]:
    """Redact a framework's item in the form in which ``Meta.native`` holds it.

    An id stays, or gets a name if something is found in it.  A signature or encrypted
    text is removed if something is found in the same object; a block of thinking is
    then removed whole.

    Raises RedactionError.
    """
    claimed = list(_claimed(native, _claims_of_format(str(native.get("format")))))
    # Ids that a framework did not generate are judged one by one.
    chosen_ids = {
        claim.path: claim.text
        for claim in claimed
        if claim.shape is bool and not _patterns().MADE.fullmatch(claim.text)
    }
    skip = frozenset(c.path for c in claimed if c.path not in chosen_ids)
    # The ids are judged with the rest first: most items are clean, and then no number
    # is used up.
    clean, tally = redactor.value(native, skip=skip, tag=None if chosen_ids else tag)
    if clean is native:
        return clean, tally
    if chosen_ids:
        clean, tally = redactor.value(native, skip=skip.union(chosen_ids), tag=tag)
    signed = [claim.path for claim in claimed if claim.shape is _is_opaque]
    broken = [
        path
        for path in signed
        if _part(clean, path[:-1]) is not _part(native, path[:-1])
    ]
    names: dict[Path, str] = {}
    for path, original in chosen_ids.items():
        name = recorded_id(redactor, original, tag)
        if name != original:
            names[path] = name
    if broken or names:
        clean = orjson.loads(orjson.dumps(clean))
    for path, name in names.items():
        _part(clean, path[:-1])[path[-1]] = name
        _, findings = redactor.text(chosen_ids[path])
        tally.update(findings)
    for path in sorted(broken, reverse=True):
        block = _part(clean, path[:-1])
        around = _part(clean, path[:-2])
        if isinstance(around, list) and "thinking" in str(block.get("type")):
            around.remove(block)
        else:
            del block[path[-1]]
    return clean, tally


class RedactedItem:
    """A framework's item that passed redaction, with the findings in it.

    record:   the redacted item.
    tally:    the counts of its findings, by type.
    size:     the bytes of its JSON before redaction.
    repaired: whether it had values that JSON in UTF-8 cannot hold, which were replaced.
    """

    __slots__ = ("_parts", "_texts", "record", "redactor", "repaired", "size", "tally")

    def __init__(
        self, redactor: Redactor, native: dict[str, Any], tag: Tagger | None
    ) -> None:
        """Raises InvalidEvent for what is not JSON, RedactionFailed."""
        (record, data), self.repaired = _as_json("item", native, unchecked=True)
        self.size = len(data)
        self.redactor = redactor
        try:
            self.record, self.tally = redact_native(redactor, record, tag)
        except RedactionError as error:
            raise RedactionFailed("item", reason=str(error)) from None
        # The texts, objects and arrays in the value are collected on first use.
        self._texts = {str(self.record["format"]), str(self.record["kind"])}
        self._parts: list[Any] = []

    def under(self, redactor: Redactor, native: Native) -> RedactedItem | None:
        """Return this item with another kind and id; None if it must be redacted again.

        A new text that may contain a finding must be redacted again.
        """
        kind = native.kind
        name = native.id or ""
        if redactor is not self.redactor:
            return None
        if name and not _patterns().MADE.fullmatch(name):
            return None
        if kind != self.record["kind"] and redactor.text(kind)[1]:
            return None
        renamed = copy(self)
        renamed.record = {**self.record, "kind": kind}
        if name:
            renamed.record["id"] = name
        renamed._texts = {*self._texts, kind}
        renamed._parts = [*self._parts]
        return renamed

    def add_text(self, text: str) -> None:
        """Treat ``text``, which was redacted with another item, as a text of this."""
        self._texts.add(text)

    def _collect(self, value: Any) -> None:
        if isinstance(value, str):
            self._texts.add(value)
        elif isinstance(value, dict | list):
            self._parts.append(value)
            for part in value.values() if isinstance(value, dict) else value:
                self._collect(part)

    def holds(self, type: str, payload: PayloadJsonObject) -> bool:  # noqa: A002 - the event's own word
        """Whether the item has every value of ``payload``, so that all are redacted."""
        if _shared_context(payload):
            return False
        fixed = _fields_of_fixed_words(type)
        others = (value for name, value in payload.items() if name not in fixed)
        return all(map(self._holds, others))

    def _holds(self, value: Any) -> bool:
        if isinstance(value, str) and value in self._texts:
            return True
        if value == self.record["value"]:
            return True
        if not self._parts:
            self._collect(self.record["value"])
        if isinstance(value, str):
            return not value or value in self._texts or self._has_part_of_json(value)
        if isinstance(value, dict | list):
            return not value or value in self._parts
        return not isinstance(value, int) or abs(value) < _TELLING

    def _has_part_of_json(self, text: str) -> bool:
        """Whether ``text`` is the JSON of an object or array in the item."""
        if text[0] not in "[{":
            return False
        try:
            return orjson.loads(text) in self._parts
        except orjson.JSONDecodeError:
            return False


@cache
def _fields_of_fixed_words(type: str) -> frozenset[str]:  # noqa: A002 - the event's own word
    """The fields of an event that hold one of a few fixed words, such as a status."""
    fields = EVENT_CLASSES[type].model_fields.items()
    return frozenset(
        name for name, info in fields if get_origin(info.annotation) is Literal
    )


@cache
def _claims_of_format(name: str) -> _Claims:
    """The claims about an item of the format with this name."""
    claims = ["id:name", "bytes/*:digest"]
    for claim in _claims("items").get(name, "").split():
        claims.append(f"value/{claim}")
    return _parsed_claims(" ".join(claims))


def _part(value: Any, path: Iterable[str]) -> Any:
    """The part of ``value`` at ``path``."""
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def redact_beside(
    redactor: Redactor,
    beside: PayloadJsonObject,
    tag: Tagger | None = None,
    data: bytes | None = None,
    *,
    native_is_redacted: bool = False,
) -> tuple[PayloadJsonObject, Tally]:
    """Redact ``request_id``, ``agent`` and ``meta``, which a draft has with its event.

    The id of a linked session stays: ids of sessions are never redacted.

    native_is_redacted: whether the framework's item in ``meta`` was redacted before.
    """
    meta: Any = beside.get("meta") or {}
    skip = _links_in(meta)
    if "native" not in meta:
        return redactor.value(beside, skip=skip, tag=tag, data=data)
    native = meta["native"]
    tally = Tally()
    if not native_is_redacted:
        native, tally = redact_native(redactor, native, tag)
    meta_without_native = dict(meta)
    del meta_without_native["native"]
    rest: Any = {**beside, "meta": meta_without_native}
    rest_has_findings = False
    if meta_without_native or beside["request_id"] or beside["agent"]:
        rest, rest_tally = redactor.value(rest, skip=skip, tag=tag)
        tally.update(rest_tally)
        rest_has_findings = bool(rest_tally)
    if native is meta["native"] and not rest_has_findings:
        return beside, tally
    return {**rest, "meta": {**rest["meta"], "native": native}}, tally


def _links_in(meta: Mapping[str, JsonValue]) -> Skip:
    """The paths of the ids of sessions in ``meta``: a link has an id and a seq."""
    skip = NO_SKIP
    for name in ("parent", "source"):
        link = meta.get(name)
        if not isinstance(link, dict) or not isinstance(link.get("seq"), int):
            continue
        if isinstance(link.get("session_id"), str):
            skip |= {("meta", name, "session_id")}
    return skip


def redact_payload(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
    *,
    tag: Tagger | None = None,
    data: bytes | None = None,
) -> tuple[PayloadJsonObject, Tally, list[str]]:
    """Redact the payload of an event of ``type``; a clean one is returned itself.

    A provider refuses a signed block that was edited, so a signed block with a finding
    is dropped whole.

    data: the payload's compact JSON, if the caller has it.

    Returns the payload, the tally, and codes of warnings: ``thinking_dropped``.
    Raises RedactionError.
    """
    skip = skipped(type, payload)
    context = _shared_context(payload)
    clean, tally = redactor.value(
        payload, skip=skip, tag=tag, data=data, context=context
    )
    if clean is payload:
        return clean, tally, []
    if type in _CALLS and clean.get("call_id") != payload.get("call_id"):
        # The id is judged by itself, so that the call and its result get the same.
        clean, tally = redactor.value(payload, skip=_CALL_ID, tag=tag, context=context)
        original = str(payload["call_id"])
        # Secrets that the session learned between the call and its result stay out.
        redactor = redactor.without_learned
        _, findings = redactor.text(original)
        tally.update(findings)
        call_id = recorded_id(redactor, original, tag)
        return {**clean, "call_id": call_id}, tally, []
    if type not in _BLOCKS:
        return clean, tally, []
    remaining, dropped = _without_signed_findings(redactor, type, payload)
    if remaining is payload:
        return clean, tally, []
    clean, tally = redactor.value(remaining, skip=skipped(type, remaining), tag=tag)
    tally.update(dropped)
    return clean, tally, ["thinking_dropped"]


# An integer of at least this size may be a phone or card number.
_TELLING: Final = 10**9
_OCR: Final = re.compile(r"(?i)(?<![a-z])ocr(?![a-z])")


def _shared_context(payload: PayloadJsonObject) -> str:
    """Context for every text in the payload: ``untrusted``, or nothing.

    Payloads that others wrote are untrusted, and so are texts read from pictures.
    """
    if payload.get("untrusted") is True:
        return "untrusted"
    if "tool_name" in payload and _OCR.search(str(payload["tool_name"])):
        return "untrusted"
    return ""


def _without_signed_findings(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: PayloadJsonObject,
) -> tuple[PayloadJsonObject, Tally]:
    """The payload without signed blocks that have findings, and these findings."""
    name = _BLOCKS[type]
    blocks = payload.get(name)
    dropped = Tally()
    if not isinstance(blocks, list):
        return payload, dropped
    remaining: list[JsonValue] = []
    for block in blocks:
        findings = Tally()
        if isinstance(block, dict) and any(map(block.get, _SEALED)):
            alone: PayloadJsonObject = {name: [block]}
            _, findings = redactor.value(alone, skip=skipped(type, alone))
        if findings:
            dropped.update(findings)
        else:
            remaining.append(block)
    if len(remaining) == len(blocks):
        return payload, dropped
    return {**payload, name: remaining}, dropped


@dataclass(frozen=True, slots=True)
class ItemDraft(Draft):
    """The draft of an event of a framework's item.  The first one carries the item.

    item:   the redacted item; None if it was not redacted.
    opaque: the bytes in it, as blobs.
    """

    item: RedactedItem | None = None
    opaque: tuple[Blob, ...] = ()


# Only this module has it, so no other can build a RedactedEvent.
_PASS: Final = object()


@dataclass(frozen=True, slots=True)
class RedactedEvent:
    """An event that passed redaction and the size guard.

    A log accepts nothing else, and only ``redact`` makes one, so no event bypasses
    redaction.

    event:   the event as readers will get it.
    data:    the canonical JSON that is recorded: payload, meta, receipt, blobs.
    counts:  the redacted values by type, as far as the policy reveals them.
    secrets: (type, value) of each value that the session may learn.
    """

    event: SessionEvent
    ts: int
    token_estimate: int
    data: bytes
    counts: Mapping[str, int]
    blobs: tuple[Blob, ...]
    passed: object
    secrets: tuple[tuple[str, str], ...] = ()

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
        """``data``, parsed."""
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
    """Turn ``draft`` into an event that may be written.

    The redactor gets every string and key of payload, request_id, agent and meta.
    Texts over the limit and long base64 move to blobs after redaction.  Redaction never
    edits a signed block: it drops the block, and ``meta.warnings`` says so.

    Values that JSON in UTF-8 cannot hold are repaired (domain.canonical.repaired), and
    ``meta.warnings`` has ``repaired``.

    now: the event's time in microseconds if the draft has no ``ts``.
    tag: makes the user's pseudonyms, if the redactor's plan wants any.

    Raises InvalidEvent for what is no JSON, RedactionFailed, EventTooLarge.
    """
    event = draft.event
    of_item = draft if isinstance(draft, ItemDraft) else None
    kind = event.type
    if EVENT_CLASSES.get(kind) is not type(event):
        raise InvalidEvent("only the event classes of refold can be recorded")
    fields = event.fields()
    original = event.payload() if fields is None else fields
    payload, payload_repaired = _as_json(kind, original)
    beside, beside_repaired = _beside(draft)
    try:
        _check_size(kind, payload, limits)
        item = of_item.item if of_item else None
        clean = _clean(kind, payload, beside, redactor, tag, item)
        guarded = _guarded(kind, clean, limits)
    except RedactionError as error:
        raise RedactionFailed(kind, reason=str(error)) from None
    except TooLarge as error:
        raise EventTooLarge(kind, size=error.size, limit=error.limit) from None
    except (Erased, KeyUnavailable):
        raise  # from the key that names ids
    except Exception as error:
        raise RedactionFailed(kind, reason=type(error).__name__) from None
    blobs = guarded.blobs
    if of_item:
        blobs = (*blobs, *of_item.opaque)
        if item and draft.meta.native:
            clean.tally.update(item.tally)
    if event.repaired or payload_repaired or beside_repaired:
        clean.warnings.append(REPAIRED)
    # An unchanged payload is neither validated nor encoded a second time.
    unchanged = guarded.payload is payload.value and not payload_repaired
    receipt: dict[str, Any] = redactor.receipt(clean.tally)
    content = _recorded_beside(guarded.beside, clean.warnings)
    if unchanged:
        content["payload"] = orjson.Fragment(payload.data)
    else:
        content["payload"] = guarded.payload
    content["redaction"] = receipt
    if blobs:
        content["blobs"] = [blob.sha256 for blob in blobs]
    if not (unchanged and (fields or event.validated)):
        event = event_of(kind, guarded.payload)
    sent = guarded.sent
    if kind in _MEDIA and _MEDIA[kind] in sent and sent[_MEDIA[kind]]:
        tokens = _estimated(sent, sent[_MEDIA[kind]], blobs)
    else:
        tokens = estimate(sent)
    return RedactedEvent(
        event=event,  # type: ignore[arg-type]  # of a known class
        ts=_microseconds(draft.ts) if draft.ts else now,
        token_estimate=tokens,
        data=orjson.dumps(content, option=orjson.OPT_SORT_KEYS),
        counts=receipt.get("types", {}),
        blobs=blobs,
        passed=_PASS,
        secrets=tuple(clean.tally.secrets),
    )


def answering(event: RedactedEvent, request: str, version: int) -> RedactedEvent:
    """The event with the digest of the request that it answers in ``meta.source``.

    version: of the strategy ``keep_all`` that made the request.

    Only imported events have a source; any other is returned unchanged.
    """
    content: Any = event.content
    source = content.get("meta", {}).get("source")
    if not isinstance(source, dict) or not _is_digest(request):
        return event
    source["request"] = request
    if version != 1:
        source["request_version"] = version
    return replace(event, data=orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


def repeating(
    before: RedactedEvent, draft: Draft, *, redactor: Redactor, tag: Tagger | None
) -> RedactedEvent | None:
    """Redact a request whose extras an earlier request had, without reading them again.

    before: the redacted event of the earlier request.
    draft:  its ``handed`` is ignored: the event gets the stored one of the earlier
            request.

    Returns None if anything else in it may hold a text that the earlier one lacks.
    Raises RedactionFailed, InvalidEvent.
    """
    request = draft.event
    earlier = before.event
    if not isinstance(request, Request) or not isinstance(earlier, Request):
        return None
    changed = {
        "through_seq": request.through_seq,
        "derived_seq": request.derived_seq,
        "digest": request.digest,
        "tokens": request.tokens,
        "matches": request.matches,
        "window_tokens": request.window_tokens,
    }
    event = earlier.model_copy(update=changed)
    same = request.model_copy(update={"handed": earlier.handed})
    if same != event or not _is_digest(request.digest) or redactor.numbered:
        return None
    beside, was_repaired = _beside(draft)
    warnings = [REPAIRED] if was_repaired else []
    try:
        clean, tally = redact_beside(redactor, beside.value, tag, beside.data)
    except RedactionError as error:
        raise RedactionFailed("request", reason=str(error)) from None
    content = _recorded_beside(clean, warnings)
    content["payload"] = event.payload()
    content["redaction"] = redactor.receipt(tally)
    if before.blobs:
        content["blobs"] = [blob.sha256 for blob in before.blobs]
    return RedactedEvent(
        event=event,
        ts=_microseconds(draft.ts) if draft.ts else before.ts,
        token_estimate=before.token_estimate,
        data=orjson.dumps(content, option=orjson.OPT_SORT_KEYS),
        counts=content["redaction"].get("types", {}),
        blobs=before.blobs,
        passed=_PASS,
        secrets=tuple(tally.secrets),
    )


@cache
def _uncut_paths(event_type: str) -> Skip:
    """The paths in a payload whose texts the size guard leaves whole."""
    claims = _claims("events").get(event_type, "").split()
    paths = (claim.rsplit(":")[0] for claim in claims)
    return frozenset(tuple(path.split("/")) for path in paths)


def _check_size(event_type: str, payload: _Json, limits: Limits) -> None:
    """Refuse a payload too large for an event before it is redacted."""
    if len(payload.data) > limits.event_bytes:
        shared = moved_to_blobs(payload.value, _SHARED.get(event_type, ""))
        guard(shared.payload, limits, skip=_uncut_paths(event_type))


# Events with content from outside: a numbered placeholder in them is just text.
_FROM_OUTSIDE: Final = frozenset(
    {"user_input", "tool_result", "hitl", "error", "system", "state"}
)


class _Json(NamedTuple):
    """A value that was read from JSON, and that JSON."""

    value: JsonObject
    data: bytes


class _Clean(NamedTuple):
    """A redacted payload, and the redacted values that go with it.

    size: the bytes of their JSON; None if redaction changed something.
    """

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
    item: RedactedItem | None,
) -> _Clean:
    clean = payload.value
    tally = Tally()
    warnings: list[str] = []
    if item is None or not item.holds(event_type, clean):
        clean, tally, warnings = redact_payload(
            redactor, event_type, payload.value, tag=tag, data=payload.data
        )
    clean_beside = beside.value
    if beside is not _NOTHING_BESIDE:
        clean_beside, beside_tally = redact_beside(
            redactor,
            beside.value,
            tag,
            beside.data,
            native_is_redacted=item is not None,
        )
        tally.update(beside_tally)
    if redactor.numbered and hasattr(tag, "with_numbers"):
        numbers = cast("Numbers", tag)
        ours = event_type not in _FROM_OUTSIDE
        call_id = clean.get("call_id")
        clean = cast(JsonObject, numbers.with_numbers(clean, ours=ours))
        if event_type in _CALLS and clean["call_id"] != call_id:
            # A call and its result keep one id.
            clean = {**clean, "call_id": call_id}
        clean_beside = cast(JsonObject, numbers.with_numbers(clean_beside, ours=False))
    size = None
    if clean is payload.value and clean_beside is beside.value:
        size = len(payload.data) + len(beside.data)
    return _Clean(clean, clean_beside, tally, warnings, size)


class _Guarded(NamedTuple):
    """A payload and the values that go with it, within the limits, and their blobs.

    sent: the payload as a model gets it, with the base64 that blobs hold.
    """

    payload: JsonObject
    beside: JsonObject
    blobs: tuple[Blob, ...]
    sent: JsonObject


def _guarded(event_type: str, clean: _Clean, limits: Limits) -> _Guarded:
    shared = _SHARED.get(event_type, "")
    size = clean.size
    uncut = size is not None and size < FROM_BYTES and size < limits.leaf_bytes
    if uncut and not shared:
        return _Guarded(clean.payload, clean.beside, (), clean.payload)
    moved = moved_to_blobs(clean.payload, shared)
    payload = guard(moved.payload, limits, skip=_uncut_paths(event_type))
    beside = guard(clean.beside, limits)
    sent = payload.payload
    if payload.blobs:
        data_by_digest = {blob.sha256: blob.data for blob in payload.blobs}
        sent = filled(sent, data_by_digest.get)
    blobs = (*moved.blobs, *payload.blobs, *beside.blobs)
    return _Guarded(payload.payload, beside.payload, blobs, sent)


def _estimated(sent: JsonObject, content: Any, blobs: Iterable[Blob]) -> int:
    """The tokens of a payload that may hold images and documents.

    content: the part of the payload in which they would be.
    """
    if isinstance(content, str):
        return estimate(sent)
    # Few events have images or documents.
    from refold.domain.parts import estimate_with_media

    data_by_digest = {blob.sha256: blob.data for blob in blobs}
    return estimate_with_media(sent, data_by_digest.get)


_NOTHING_BESIDE: Final = _Json({"meta": {}}, b"{}")


def _beside(draft: Draft) -> tuple[_Json, bool]:
    """The draft's values besides its event, and whether they were repaired."""
    if draft.meta is NO_META and draft.request_id is None and draft.agent is None:
        return _NOTHING_BESIDE, False
    values = {
        "request_id": draft.request_id,
        "agent": draft.agent,
        "meta": draft.meta.dump(),
    }
    return _as_json(draft.event.type, values)


def _microseconds(ts: datetime) -> int:
    try:
        return microseconds(ts.astimezone(UTC))
    except OverflowError:
        raise InvalidEvent("ts must be in the years 1 to 9999 in UTC") from None


def _as_json(
    event_type: str, value: dict[str, Any], *, unchecked: bool = False
) -> tuple[_Json, bool]:
    """``value`` as JSON returns it, and whether it was repaired for that.

    unchecked: the value may hold NaN, which the encoder would write as null.

    Raises InvalidEvent for what is no JSON.
    """
    encoded = _encoded(value)
    if encoded is not None:
        may_have_nan = unchecked and b"null" in encoded.data
        if not may_have_nan or encoded.value == value:
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
    """``value`` as JSON returns it, and that JSON; None if it must be repaired."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if data.count(b"[") + data.count(b"{") > NESTED:
            orjson.dumps(_surrounded(value))
        return _Json(orjson.loads(data), data)
    except (orjson.JSONEncodeError, orjson.JSONDecodeError):
        return None


def _surrounded(value: Any) -> Any:
    """``value`` in so many lists that the encoder accepts it only if redaction does."""
    for _ in range(MOST_LEVELS - NESTED):
        value = [value]
    return value


def _recorded_beside(beside: JsonObject, warnings: list[str]) -> dict[str, Any]:
    """The values that are recorded with a payload, with these warnings in their meta.

    Empty ones are left out.
    """
    if not warnings and beside is _NOTHING_BESIDE.value:
        return {}
    meta: dict[str, Any] = beside["meta"]  # type: ignore[assignment]  # an object
    if warnings:
        present = meta.get("warnings", [])
        new = [{"code": code} for code in warnings if {"code": code} not in present]
        meta = {**meta, "warnings": [*present, *new]}
    recorded = {**beside, "meta": meta}
    return {key: value for key, value in recorded.items() if value not in (None, {})}
