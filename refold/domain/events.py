"""The types of events that a session can contain: a closed union of frozen models."""

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
    """Something that happened, without its place in a stream.

    Values that JSON cannot represent are repaired, here or on append; ``meta.warnings``
    of the recorded event then contains ``repaired``.

    type:    the name of its type.
    version: the version of the payload's fields.
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
        """Repair ``data`` and set the fields from it; False if that does not help."""
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
        """Whether its fields were validated; those of a changed copy were not."""
        return hasattr(self, "_validated")

    @property
    def repaired(self) -> bool:
        """Whether it was made of values that JSON cannot represent."""
        return hasattr(self, "_repaired")

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Copy as pydantic does; a copy of a repaired event counts as repaired."""
        copy = super().model_copy(update=update, deep=deep)
        if self.repaired:
            _set(copy, "_repaired", True)
        return copy

    def fields(self) -> dict[str, Any] | None:
        """Return the same as ``payload`` without copies of the event's JSON values.

        The result is meant to be encoded at once.  Returns None if the event has fields
        with models, or was not validated.
        """
        if not hasattr(self, "_validated"):
            return None
        values = self.__dict__
        payload: dict[str, Any] = {}
        for name, is_plain, keeps_none in _fields(type(self)):
            value = values[name]
            if value is None:
                if keeps_none:
                    payload[name] = None
            elif is_plain or not value:
                payload[name] = value
            else:
                return None
        return payload

    def payload(self) -> JsonObject:
        """Return the fields as JSON, without ``type``.

        None is left out, unless it differs from the field's default.
        """
        dumped: JsonObject = self.model_dump(
            mode="json", exclude={"type"}, exclude_none=True, warnings=False
        )
        for name, field in type(self).model_fields.items():
            if getattr(self, name, None) is None and field.default is not None:
                dumped[name] = None
        return dumped


@cache
def _fields(kind: type[Event]) -> tuple[tuple[str, bool, bool], ...]:
    """The fields of a class: name, whether it has no models, whether it keeps None."""
    return tuple(
        (name, not _holds_models(field.annotation), field.default is not None)
        for name, field in kind.model_fields.items()
        if name != "type"
    )


def _holds_models(annotation: Any) -> bool:
    """Whether values with this annotation may contain models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(_holds_models, get_args(annotation)))


class Attachment(Model):
    """An image or file with a user's text: in base64, as text, or as a URL."""

    kind: Literal["image", "document", "file"] = "file"
    media_type: str | None = None
    name: str | None = None
    data: str | None = None
    text: str | None = None
    url: str | None = None
    sha256: str | None = None


class Thinking(Model):
    """A thinking block of a response, byte for byte as the provider returned it.

    signature, data: of the provider.  Redaction does not change values that look like
                     this.  If it finds something in one, it drops the whole block.
    """

    type: Literal["thinking", "redacted_thinking"] = "thinking"
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Verdict(Model):
    """The judgment of one item in an aggregate."""

    item_id: str
    verdict: Literal["correct", "incorrect", "uncertain"]
    error_type: str | None = None
    subject: str | None = None
    topic: str | None = None
    score: float | None = None


class StrategyRef(Model):
    """A strategy with its parameters; ``fingerprint`` is the SHA-256 of all."""

    name: str
    version: int
    params: JsonObject = Field(default_factory=dict)
    fingerprint: str


class SummarizerRef(Model):
    """The author of a summary."""

    kind: str
    model: str | None = None
    params: JsonObject = Field(default_factory=dict)


class Adopted(Model):
    """The origin of an adopted summary: a derived stream and a seq in it."""

    stream: str
    seq: int = Field(ge=1)


Span: TypeAlias = tuple[int, int]


class UserInput(Event):
    """An input of the user, which begins a turn."""

    type: Literal["user_input"] = "user_input"
    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class AgentResponse(Event):
    """A response of the model; its tool calls follow as separate events."""

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
    """Return a provider's call id; a long one becomes its beginning and a digest."""
    if not isinstance(call_id, str) or len(call_id) <= LONGEST_ID:
        return call_id
    suffix = "-" + text_digest(repaired(call_id)[0])[:32]
    return call_id[: LONGEST_ID - len(suffix)] + suffix


CallId: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=LONGEST_ID), BeforeValidator(shortened)
]


class ToolCall(Event):
    """A call that the model requested; one ``ToolResult`` with its ``call_id`` ends it.

    arguments: a JSON object, or a text.  Invalid JSON of a model is stored as a text,
               and so is the canonical JSON of other values, such as a list.
    """

    type: Literal["tool_call"] = "tool_call"
    call_id: CallId
    tool_name: str
    arguments: JsonObject | str = Field(default_factory=dict)

    @field_validator("arguments", mode="before")
    @classmethod
    def _object_or_text(cls, arguments: Any) -> Any:
        if arguments is None:
            return {}
        if isinstance(arguments, list | tuple | int | float):
            return json_text(arguments)
        return arguments


class ToolResult(Event):
    """The result of a call.

    status:      ``unknown`` if the call was interrupted and may have had an effect.
    duration_ms: the time of the call in milliseconds.
    untrusted:   whether third parties may have written the content.
    """

    type: Literal["tool_result"] = "tool_result"
    call_id: CallId
    tool_name: str | None = None
    content: JsonValue = ""
    status: Literal["ok", "error", "unknown"] = "ok"
    duration_ms: float | None = Field(default=None, ge=0)
    untrusted: bool = False


def answering(result: ToolResult, tool_name: str) -> ToolResult:
    """Return the result with the tool name of its call."""
    with_name = result.model_copy(update={"tool_name": tool_name})
    if result.validated:
        _set(with_name, "_validated", True)
    return with_name


class Reflection(Event):
    """The agent's judgment of its own work; ``confidence`` is from 0 to 1."""

    type: Literal["reflection"] = "reflection"
    pass_: bool | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    issues: tuple[JsonValue, ...] = ()
    suggestion: str | None = None


class Aggregate(Event):
    """The judgments of several items."""

    type: Literal["aggregate"] = "aggregate"
    results: tuple[Verdict, ...] = ()


class Final(Event):
    """The end of a run; ``reward`` is the score of the environment, if it has one."""

    type: Literal["final"] = "final"
    text: str = ""
    outcome: Literal["success", "failure", "partial", "unknown"] = "unknown"
    reward: float | None = None
    result: JsonValue = None


SummaryKind: TypeAlias = Literal["session", "scope", "notes"]


class Summary(Event):
    """A compaction that took effect, in the derived stream.

    kind:               the subject: the session, or a memory layer.
    first_seq, last_seq: the span in the main stream.  Seqs of 0 and below are in the
                        session that this one was forked from, counted back from the
                        fork.
    decided_at_seq:     the head of the main stream at the decision.
    appended_at_seq:    the head of the main stream when the summary was appended.
    source_event_count: the number of events that it stands for.
    absorbs:            the summaries that it replaces, as seqs of the derived stream.
    omitted:            the parts of the span that the summarizer did not see.
    source_digest:      the SHA-256 of the exact text that was summarized.
    prompt_digest:      the SHA-256 of the model's prompt.
    tokens_before:      the cost of the span before the compaction.
    tokens_after:       the cost of the summary.
    abridged:           an abridged history, or a ledger, that accompanies the text.
    adopted:            the summary whose text it reuses; its source was summarized.
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
    """A question to a human, or the decision on the question at ``refers_to``."""

    type: Literal["hitl"] = "hitl"
    trigger: str
    severity: Literal["low", "medium", "high", "critical"] = "medium"
    question: str = ""
    bundle: JsonObject | None = None
    decision: str | None = None
    decided_by: str | None = None
    refers_to: int | None = Field(default=None, ge=1)


# Names of errors for requests without an answer, in lower case and without "error",
# "exception", and separators.
_UNREACHED = re.compile(
    "(api|connect|read|write|pool|request|gateway)?timeout|timedout|deadlineexceeded|"
    "(api)?connection(reset|refused|aborted)?|connect|brokenpipe|remoteprotocol|network|"
    "ratelimit|toomanyrequests|resourceexhausted|overloaded|(internal)?server|api|"
    "serviceunavailable|badgateway"
)
_FILLERS = re.compile(r"error|exception|[\W_]")
_STATUS = re.compile(r"(?:http|status)?(?:code)?([1-5]\d\d)")
_BUSY = frozenset({408, 409, 425, 429})


def is_busy(status: object) -> bool:
    """Whether the same request may succeed later, according to its HTTP status."""
    return isinstance(status, int) and (status in _BUSY or 500 <= status < 600)


def is_unreached(code: str) -> bool:
    """Whether an error of this name means that a provider was unreachable or busy."""
    return _UNREACHED.fullmatch(_FILLERS.sub("", code.lower())) is not None


class AgentError(Event):
    """A failure: its place, its reason, and whether a retry may help.

    context: contains the HTTP ``status`` if there was one, and ``partial`` if an answer
             was interrupted.
    """

    type: Literal["error"] = "error"
    code: str
    message: str = ""
    where: str | None = None
    retryable: bool = False
    context: JsonObject | None = None

    @property
    def is_transport(self) -> bool:
        """Whether no model read the request: 429, 529, a timeout, a lost connection.

        No context shows such an error, because a model can do nothing about it.
        """
        context = self.context or {}
        if context.get("partial"):
            return False
        if "status" in context:
            return is_busy(context["status"])
        status = _STATUS.fullmatch(_FILLERS.sub("", self.code.lower()))
        if status is not None:
            return is_busy(int(status[1]))
        return self.retryable and is_unreached(self.code)


class SystemPrompt(Event):
    """A new system prompt; with ``closed``, the end of the session instead.

    where: ``conversation`` if the text was sent within the conversation, as a further
           system or developer message is.  Contexts show it where it stands, and the
           system prompt stays.
    """

    version: ClassVar[int] = 2
    type: Literal["system"] = "system"
    text: str | None = None
    closed: bool = False
    where: Literal["conversation"] | None = None

    @property
    def is_prompt(self) -> bool:
        """Whether its text is the system prompt from here on."""
        return self.text is not None and self.where is None


class StateUpdate(Event):
    """Keys of the session's working memory that are set, and keys that are removed."""

    type: Literal["state"] = "state"
    set: JsonObject = Field(default_factory=dict)
    unset: tuple[str, ...] = ()


class Request(Event):
    """A request to a model: the digest of the view, and everything that it depends on.

    through_seq:   the last seq that was read of the main stream.
    derived_seq:   the last seq that was read of the derived stream.
    digest:        of the view.
    tools_digest:  of the tools in ``handed``.
    matches:       whether exactly the bytes of the view were sent.  They were not if
                   the caller sent text that the log contains redacted.
    handed:        the extras of the caller by section, each as canonical JSON.
    window_tokens: the window that the view was made for.
    advised:       the ids of the items of memory in the view.
    revealed:      by type, the number of real values in place of placeholders.
    revealed_mac:  an HMAC of the view with these values.
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
    """Events that every strategy shows raw from the next compaction on."""

    type: Literal["pin"] = "pin"
    seqs: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    reason: str = ""
    unpin: bool = False


class Fork(Event):
    """The first event of a session that continues another one from ``at_seq``."""

    type: Literal["fork"] = "fork"
    session_id: str
    at_seq: int = Field(ge=1)


class CompactionNote(Event):
    """A step of a compaction without a summary, in the derived stream.

    phase: ``started`` and ``failed`` describe an attempt.  ``retired`` gives up the
           summaries of the stream.  After ``rebuilt``, only later events count.
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


EditReason: TypeAlias = Literal[
    "compaction", "rewind", "fork", "rollback", "clearing", "removal", "rewriting", ""
]


class ProviderEdit(Event):
    """A client or a hosted API changed the context that it sends to the model.

    Contexts from this event on follow the change under every strategy; contexts before
    it do not.  The log keeps all events.

    edits, blocks: the edits and blocks of a hosted API, byte for byte.
    content:       the response of a hosted API in its order, if the other events do not
                   tell it.  Texts are there as they came, with citations.  Each other
                   block is represented by its number among those of its kind:
                   ``{"block": 0}`` in ``blocks``, ``{"thinking": 0}`` in the response,
                   ``{"call": 0}`` among its calls, with the fields that a call lacks.
    container:     the container of the API's code execution, with its id.
    reason:        the cause of a change that a client made in its own history.
    left_out:      the events that contexts leave out.
    restored:      events that were left out and that contexts show again.
    cleared:       tool results that contexts show with ``cleared_text`` as content,
                   responses that contexts show without their thinking, and calls that
                   contexts show with other arguments.
    in_place:      the events that stand in the place of those left out, such as the
                   client's own summary.  Contexts show them before all other events.
    arguments:     of the calls in ``cleared``: these arguments take the place of those
                   with the same names.  A text takes the place of all arguments.
    without_arguments: the names of the arguments that these calls lose.
    """

    version: ClassVar[int] = 2
    type: Literal["provider_edit"] = "provider_edit"
    edits: tuple[JsonObject, ...] = ()
    blocks: tuple[JsonObject, ...] = ()
    content: tuple[JsonObject, ...] | None = None
    container: JsonObject | None = None
    reason: EditReason = ""
    left_out: tuple[Span, ...] = ()
    restored: tuple[Span, ...] = ()
    cleared: tuple[Span, ...] = ()
    cleared_text: str = ""
    in_place: tuple[Span, ...] = ()
    arguments: JsonObject | str | None = None
    without_arguments: tuple[str, ...] | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans that it names."""
        return (*self.left_out, *self.restored, *self.cleared, *self.in_place)

    @field_validator("left_out", "restored", "cleared", "in_place")
    @classmethod
    def _in_order(cls, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        for first, last in spans:
            if first > last:
                raise ValueError("a span begins with its lower seq")
        return spans


class RedactionApplied(Event):
    """Stored events were redacted again, and their rows encrypted under a new key.

    first_seq, last_seq: the rows of ``stream`` that were encrypted again.
    key_version:  of the session's new key.
    digest:       binds the first ciphertexts of these rows to the current ones.
    seqs:         the events whose content changed.
    hashes:       the SHA-256 of their current ciphertexts.
    first_hashes: the SHA-256 of the ciphertexts in the chain.
    rules:        the name of the rule set; ``rules_before`` are those of earlier times.
    types:        by type, the number of values that were found.
    blobs:        the number of blobs that were replaced.
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
    """The user granted or withdrew a consent for all of their sessions."""

    type: Literal["consent"] = "consent"
    scope: str
    granted: bool
    reason: str = ""


class Item(Event):
    """An entry of a framework's history that no other type of event represents.

    No context shows it.

    value: the entry, in the framework's ``format``.
    """

    type: Literal["item"] = "item"
    format: str
    kind: str = ""
    value: JsonValue = None


class Forget(Event):
    """The user removed an item of memory; a rebuild does not bring it back."""

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
        "`type` names no type of events; the types are " + ", ".join(EVENT_CLASSES)
    )


def event_of(event_type: str, payload: JsonObject) -> SessionEvent:
    """Return the event of a payload in the current version.

    Raises InvalidEvent for an unknown type or an invalid payload.
    """
    if event_type not in EVENT_CLASSES:
        raise InvalidEvent(f"there is no event type {event_type!r}")
    return EVENT_CLASSES[event_type](**payload)  # type: ignore[return-value]  # a member of the union
