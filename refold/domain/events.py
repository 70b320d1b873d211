"""Every kind of event a session can hold: a closed union of frozen models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final as TypingFinal,
    Literal,
    Self,
    TypeAlias,
    get_args,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
)

from refold.domain.canonical import json_text, repaired, text_digest
from refold.domain.errors import InvalidEvent
from refold.domain.model import Model, explain

__all__ = [
    "AgentError", "AgentResponse", "Aggregate", "Attachment", "CompactionNote",
    "Consent", "Event", "Final", "Forget", "Fork", "HumanReview", "Item", "Pin",
    "Planner", "ProviderEdit", "RedactionApplied", "Reflection", "Request",
    "StateUpdate", "StrategyRef", "SummarizerRef", "Summary", "SystemPrompt",
    "Thinking", "ToolCall", "ToolResult", "UserInput", "Verdict",
]  # fmt: skip

JsonObject: TypeAlias = dict[str, JsonValue]
_set = object.__setattr__


class Event(Model):
    """What happened, without its place: ``type`` and ``version`` name its shape.

    A value that JSON cannot hold is repaired, here or on append; ``meta.warnings`` of
    the recorded event then has ``repaired``.
    """

    __slots__ = ("_repaired", "_validated")
    version: ClassVar[int] = 1
    type: str

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            if not self._is_repaired(data):
                kind = type(self)
                reason = explain(kind.__name__, error, kind.model_fields)
                raise InvalidEvent(reason) from None
        _set(self, "_validated", True)

    def _is_repaired(self, data: dict[str, Any]) -> bool:
        """Make the event of ``data`` as JSON can hold it, if that differs."""
        try:
            clean, changes = repaired(data)
            if not changes:
                return False
            super().__init__(**clean)
        except (ValueError, TypeError, RecursionError):
            return False
        _set(self, "_repaired", True)
        return True

    @property
    def validated(self) -> bool:
        """Whether its fields are known to be right; not those of a changed copy."""
        return hasattr(self, "_validated")

    @property
    def repaired(self) -> bool:
        """Whether it was made of values that JSON cannot hold."""
        return hasattr(self, "_repaired")

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """As pydantic's; a copy of a repaired event is one, too."""
        copy = super().model_copy(update=update, deep=deep)
        if self.repaired:
            _set(copy, "_repaired", True)
        return copy

    def fields(self) -> dict[str, Any] | None:
        """What ``payload`` gives, with the event's own JSON in it; None if it cannot.

        It is for who encodes it at once.
        """
        if not hasattr(self, "_validated"):
            return None
        given = self.__dict__
        found: dict[str, Any] = {}
        for name, plain, told in _fields(type(self)):
            value = given[name]
            if value is None:
                if told:
                    found[name] = None
            elif plain or not value:
                found[name] = value
            else:
                return None
        return found

    def payload(self) -> JsonObject:
        """The fields as JSON, without ``type``."""
        dumped: JsonObject = self.model_dump(
            mode="json", exclude={"type"}, exclude_none=True, warnings=False
        )
        for name, field in type(self).model_fields.items():
            if getattr(self, name, None) is None and field.default is not None:
                dumped[name] = None
        return dumped


@cache
def _fields(kind: type[Event]) -> tuple[tuple[str, bool, bool], ...]:
    """Each field of a class: whether it is JSON as it stands, and its None is told."""
    return tuple(
        (name, not _holds_models(field.annotation), field.default is not None)
        for name, field in kind.model_fields.items()
        if name != "type"
    )


def _holds_models(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(_holds_models, get_args(annotation)))


class Attachment(Model):
    """What came with a user's text: an image or file, in base64, as text or by URL."""

    kind: Literal["image", "document", "file"] = "file"
    media_type: str | None = None
    name: str | None = None
    data: str | None = None
    text: str | None = None
    url: str | None = None
    sha256: str | None = None


class Thinking(Model):
    """One thinking block of a response, byte for byte as the provider gave it.

    ``signature`` and ``data`` are the provider's, and pass redaction untouched if they
    look like it; a block with one in which something is found is dropped whole.
    """

    type: Literal["thinking", "redacted_thinking"] = "thinking"
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Verdict(Model):
    """The judgement of one item in an aggregate."""

    item_id: str
    verdict: Literal["correct", "incorrect", "uncertain"]
    error_type: str | None = None
    subject: str | None = None
    topic: str | None = None
    score: float | None = None


class StrategyRef(Model):
    """Which strategy, with which parameters; ``fingerprint`` is their SHA-256."""

    name: str
    version: int
    params: JsonObject = Field(default_factory=dict)
    fingerprint: str


class SummarizerRef(Model):
    """Who wrote a summary."""

    kind: str
    model: str | None = None
    params: JsonObject = Field(default_factory=dict)


class Adopted(Model):
    """Where an adopted summary was written: the derived stream, and the seq in it."""

    stream: str
    seq: int = Field(ge=1)


Span: TypeAlias = tuple[int, int]


class UserInput(Event):
    """What the user said; it opens a turn."""

    type: Literal["user_input"] = "user_input"
    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class AgentResponse(Event):
    """One response of the model; the tool calls in it follow as events of their own."""

    type: Literal["agent_response"] = "agent_response"
    text: str = ""
    thinking: tuple[Thinking, ...] = ()
    stop_reason: str | None = None
    usage: JsonObject | None = None


class Planner(Event):
    """A plan, or the next version of one."""

    type: Literal["planner"] = "planner"
    plan: JsonValue
    iteration: int | None = None


LONGEST_ID: TypingFinal = 256


def shortened(call_id: Any) -> Any:
    """A provider's id of a call; of one that is too long the start and a digest."""
    if not isinstance(call_id, str) or len(call_id) <= LONGEST_ID:
        return call_id
    suffix = "-" + text_digest(repaired(call_id)[0])[:32]
    return call_id[: LONGEST_ID - len(suffix)] + suffix


CallId: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=LONGEST_ID), BeforeValidator(shortened)
]


class ToolCall(Event):
    """A call the model asked for; one ``ToolResult`` with its ``call_id`` ends it.

    ``arguments`` are a JSON object, or a text: what a model wrote that is no JSON, and
    the canonical JSON of what is no object, such as a list.
    """

    type: Literal["tool_call"] = "tool_call"
    call_id: CallId
    tool_name: str
    arguments: JsonObject | str = Field(default_factory=dict)

    @field_validator("arguments", mode="before")
    @classmethod
    def _text_of_no_object(cls, arguments: Any) -> Any:
        if arguments is None:
            return {}
        if isinstance(arguments, list | tuple | int | float):
            return json_text(arguments)
        return arguments


class ToolResult(Event):
    """What a call returned.  ``unknown``: it was cut off and may have had effect.

    ``untrusted`` marks content that others could have written.  ``duration_ms`` is
    the call's own time in milliseconds.
    """

    type: Literal["tool_result"] = "tool_result"
    call_id: CallId
    tool_name: str | None = None
    content: JsonValue = ""
    status: Literal["ok", "error", "unknown"] = "ok"
    duration_ms: float | None = Field(default=None, ge=0)
    untrusted: bool = False


def answering(result: ToolResult, tool_name: str) -> ToolResult:
    """The result, named after the tool that its call names."""
    named = result.model_copy(update={"tool_name": tool_name})
    if result.validated:
        _set(named, "_validated", True)
    return named


class Reflection(Event):
    """The agent's judgement of its own work; ``confidence`` is from 0 to 1."""

    type: Literal["reflection"] = "reflection"
    pass_: bool | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    issues: tuple[JsonValue, ...] = ()
    suggestion: str | None = None


class Aggregate(Event):
    """The judgements of several items, put together."""

    type: Literal["aggregate"] = "aggregate"
    results: tuple[Verdict, ...] = ()


class Final(Event):
    """How a run ended.  ``reward`` is the environment's score, if it gave one."""

    type: Literal["final"] = "final"
    text: str = ""
    outcome: Literal["success", "failure", "partial", "unknown"] = "unknown"
    reward: float | None = None
    result: JsonValue = None


SummaryKind: TypeAlias = Literal["session", "scope", "notes"]


class Summary(Event):
    """A compaction that took effect: what it stands for, how it was made, its words.

    ``first_seq`` to ``last_seq`` are places in the main stream (0 and below: in the
    session that was forked, counted back from the fork); ``absorbs`` are the seqs, in
    the derived stream, of the summaries that this one replaces.
    ``source_digest`` is the SHA-256 of the exact text that was summarised; if it was
    ``adopted``, that was done for the summary it names.
    """

    type: Literal["summary"] = "summary"
    kind: SummaryKind = "session"
    strategy: StrategyRef
    first_seq: int
    last_seq: int
    decided_at_seq: int = Field(ge=1)
    appended_at_seq: int = Field(ge=1)
    source_event_count: int = Field(ge=0)
    absorbs: tuple[int, ...] = ()
    level: int = Field(default=1, ge=1)
    omitted: tuple[Span, ...] = ()
    source_digest: str
    prompt_digest: str | None = None
    summarizer: SummarizerRef
    tokens_before: int = Field(ge=0)
    tokens_after: int = Field(ge=0)
    usage: JsonObject | None = None
    duration_ms: float | None = Field(default=None, ge=0)
    text: str = ""
    abridged: str = ""
    adopted: Adopted | None = None


class HumanReview(Event):
    """A question to a human, or their decision on that of seq ``refers_to``."""

    type: Literal["hitl"] = "hitl"
    trigger: str
    severity: Literal["low", "medium", "high", "critical"] = "medium"
    question: str = ""
    bundle: JsonObject | None = None
    decision: str | None = None
    decided_by: str | None = None
    refers_to: int | None = Field(default=None, ge=1)


# What providers and clients call it if a request was never answered: without the
# words "error" and "exception", case and joints.
_UNREACHED = re.compile(
    "(api|connect|read|write|pool|request|gateway)?timeout|timedout|deadlineexceeded|"
    "(api)?connection(reset|refused|aborted)?|connect|brokenpipe|remoteprotocol|network|"
    "ratelimit|toomanyrequests|resourceexhausted|overloaded|(internal)?server|api|"
    "serviceunavailable|badgateway"
)
_JOINTS = re.compile(r"error|exception|[\W_]")
_STATUS = re.compile(r"(?:http|status)?(?:code)?([1-5]\d\d)")
_BUSY = frozenset({408, 409, 425, 429})


def is_busy(status: object) -> bool:
    """Whether this HTTP status says that the same request may be answered later."""
    return isinstance(status, int) and (status in _BUSY or 500 <= status < 600)


def is_unreached(code: str) -> bool:
    """Whether this name of an error says that a provider was not reached, or busy."""
    return _UNREACHED.fullmatch(_JOINTS.sub("", code.lower())) is not None


class AgentError(Event):
    """Something failed: where, why, and whether trying again may help.

    ``context`` has the HTTP ``status`` if there was one, and of an answer that broke
    off that it is ``partial``.
    """

    type: Literal["error"] = "error"
    code: str
    message: str = ""
    where: str | None = None
    retryable: bool = False
    context: JsonObject | None = None

    @property
    def is_transport(self) -> bool:
        """Whether no model read the request: 429, 529, a time-out, a lost connection.

        The log keeps it, and no context tells of it: a model can do nothing about it.
        """
        known = self.context or {}
        if known.get("partial"):
            return False
        if "status" in known:
            return is_busy(known["status"])
        if status := _STATUS.fullmatch(_JOINTS.sub("", self.code.lower())):
            return is_busy(int(status[1]))
        return self.retryable and is_unreached(self.code)


class SystemPrompt(Event):
    """The system prompt from here on.  ``closed`` ends the session instead."""

    type: Literal["system"] = "system"
    text: str | None = None
    closed: bool = False


class StateUpdate(Event):
    """Keys of the session's working memory that are set, and that are unset."""

    type: Literal["state"] = "state"
    set: JsonObject = Field(default_factory=dict)
    unset: tuple[str, ...] = ()


class Request(Event):
    """What the model was sent: the view's digest and all that it depended on.

    ``through_seq`` and ``derived_seq`` say how far the main and the derived stream
    were read.  ``handed`` is what the caller handed in beside the session, by section,
    each as canonical JSON; ``tools_digest`` is of the tools in it.  ``matches`` is
    whether the bytes sent were those of the view (a caller may have sent text that the
    log holds redacted).  ``advised`` are the ids of the items of memory in it.
    ``revealed`` is how many values of which type were put where placeholders stand, and
    ``revealed_mac`` an HMAC of what was sent with them.
    """

    version: ClassVar[int] = 4
    type: Literal["request"] = "request"
    strategy: StrategyRef
    through_seq: int = Field(ge=0)
    derived_seq: int = Field(default=0, ge=0)
    digest: str
    tokens: int = Field(ge=0)
    system_digest: str | None = None
    tools_digest: str | None = None
    model: str | None = None
    matches: bool | None = None
    handed: dict[str, str] = Field(default_factory=dict)
    window_tokens: int = Field(default=200_000, ge=1)
    advised: tuple[str, ...] = ()
    revealed: dict[str, int] = Field(default_factory=dict)
    revealed_mac: str | None = None


class Pin(Event):
    """Events that every strategy sends raw from the next compaction on."""

    type: Literal["pin"] = "pin"
    seqs: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    reason: str = ""
    unpin: bool = False


class Fork(Event):
    """The first event of a session that goes on from another at ``at_seq``."""

    type: Literal["fork"] = "fork"
    session_id: str
    at_seq: int = Field(ge=1)


class CompactionNote(Event):
    """A compaction that started or failed, or a derived stream no longer wanted.

    ``rebuilt``: the stream begins anew here, and what came before counts no more.
    """

    version: ClassVar[int] = 2
    type: Literal["compaction"] = "compaction"
    phase: Literal["started", "failed", "retired", "rebuilt"]
    why: str = ""
    first_seq: int | None = None
    last_seq: int | None = None
    decided_at_seq: int | None = Field(default=None, ge=0)
    attempt: int = Field(default=1, ge=1)
    kind: SummaryKind = "session"


class ProviderEdit(Event):
    """What a hosted API did to the context: its edits and blocks, byte for byte."""

    type: Literal["provider_edit"] = "provider_edit"
    edits: tuple[JsonObject, ...] = ()
    blocks: tuple[JsonObject, ...] = ()


class RedactionApplied(Event):
    """Stored events were redacted again: their seqs and the hashes that now hold.

    All rows of ``stream`` from ``first_seq`` to ``last_seq`` were sealed under the
    session's key of ``key_version``; ``digest`` binds their first and their present
    ciphertexts.  Those of ``seqs`` hold less since: ``hashes`` are the SHA-256 of
    their present ciphertexts, ``first_hashes`` of those the chain was made of.
    ``types`` counts what was found, ``blobs`` the blobs that were replaced.
    """

    version: ClassVar[int] = 2
    type: Literal["redaction_applied"] = "redaction_applied"
    stream: str
    seqs: tuple[int, ...] = ()
    hashes: tuple[str, ...] = ()
    first_hashes: tuple[str, ...] = ()
    first_seq: int = Field(default=1, ge=1)
    last_seq: int = Field(default=0, ge=0)
    digest: str = ""
    rules: str = ""
    rules_before: tuple[str, ...] = ()
    types: dict[str, int] = Field(default_factory=dict)
    blobs: int = Field(default=0, ge=0)
    key_version: int = Field(default=1, ge=1)


class Consent(Event):
    """The user allowed or withdrew something, for all their sessions."""

    type: Literal["consent"] = "consent"
    scope: str
    granted: bool
    reason: str = ""


class Item(Event):
    """An entry of a framework's history that no event of another type says.

    ``value`` is the entry, in its ``format``; it is never in a context.
    """

    type: Literal["item"] = "item"
    format: str
    kind: str = ""
    value: JsonValue = None


class Forget(Event):
    """The user wants an item of memory gone, also after a rebuild."""

    type: Literal["forget"] = "forget"
    item_id: str
    reason: str = ""


SessionEvent: TypeAlias = Annotated[
    UserInput
    | AgentResponse
    | Planner
    | ToolCall
    | ToolResult
    | Reflection
    | Aggregate
    | Final
    | Summary
    | HumanReview
    | AgentError
    | SystemPrompt
    | StateUpdate
    | Request
    | Pin
    | Fork
    | CompactionNote
    | ProviderEdit
    | RedactionApplied
    | Consent
    | Forget
    | Item,
    Field(discriminator="type"),
]

EVENT_CLASSES: dict[str, type[Event]] = {
    cls.model_fields["type"].default: cls for cls in get_args(get_args(SessionEvent)[0])
}
DERIVED_TYPES = frozenset({"summary", "compaction"})


def check_types(types: Iterable[str]) -> tuple[str, ...]:
    """The names of types of events as a tuple.

    Raises InvalidEvent if there is no such type.
    """
    names = (types,) if isinstance(types, str) else tuple(types)
    if set(names) <= EVENT_CLASSES.keys():
        return names
    raise InvalidEvent(
        "there is no such type of event; the types are " + ", ".join(EVENT_CLASSES)
    )


def event_of(event_type: str, payload: JsonObject) -> SessionEvent:
    """Make the event of ``event_type`` from its payload in the present shape.

    Raises InvalidEvent for an unknown type and for a payload of another shape.
    """
    if event_type not in EVENT_CLASSES:
        raise InvalidEvent(f"there is no event type {event_type!r}")
    return EVENT_CLASSES[event_type](**payload)  # type: ignore[return-value]  # a member of the union
