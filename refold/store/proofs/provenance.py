"""Provenance: the evidence that a model was sent a context."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, Request
from refold.domain.ids import StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import EventLog
from refold.projections.context.view import View
from refold.projections.models import Usage
from refold.projections.tokens import input_tokens, tokens_of

Kind: TypeAlias = Literal["recorded", "reconstructed", "assumed"]
# The types of events with which an answer of a model can begin.
_ANSWER_TYPES: Final = ("agent_response", "tool_call", "reflection")
# The types of events that a context shows as messages.
_MESSAGE_TYPES: Final = (
    *_ANSWER_TYPES,
    "user_input",
    "tool_result",
    "error",
    "final",
)
# The strategy whose views are the contexts of a client that is only recorded.
_KEEP_ALL: Final = "keep_all"
# The types of events that a rule of an importer adds where a client left no record.
_TYPES_BY_RULE: Final = ("system", "provider_edit")
# The clients from whose transcripts contexts are derived by documented rules.
_CLIENTS: Final = frozenset({"claude-code", "codex"})


def kind_of(envelope: Envelope) -> Kind:
    """Return how well an event proves that a request was sent.

    ``recorded``: the digest was stored when the request was sent.  ``reconstructed``:
    an import derived the digest from a transcript, or a capture copied the answer from
    a transcript.  ``assumed``: the event has no digest of a request, or it only
    activates a strategy, which sends nothing.
    """
    if isinstance(envelope.payload, Request):
        if envelope.activates_strategy:
            return "assumed"
        return "recorded"
    if reconstructed_in(envelope) is None and not is_captured(envelope):
        return "assumed"
    return "reconstructed"


def is_captured(envelope: Envelope) -> bool:
    """Whether an event comes from a line of a client's transcript."""
    native = envelope.meta.native or {}
    return native.get("format") in _CLIENTS


def reconstructed_in(envelope: Envelope) -> str | None:
    """Return the digest of the request that an imported response answers, if any."""
    digest = (envelope.meta.source or {}).get("request")
    if isinstance(digest, str):
        return digest
    return None


def keep_all_version(envelope: Envelope) -> int:
    """Return the version of ``keep_all`` with which an import derived a request."""
    version = (envelope.meta.source or {}).get("request_version")
    return version if isinstance(version, int) else 1


@repr_without_texts
class Provenance(NamedTuple):
    """The evidence that a context was sent.

    seq:    the seq of the event with the digest of the request, or of the answer that a
            capture recorded; None if there is neither.
    digest: the digest of the request.
    same:   whether the context has that digest.  The digest differs if events in the
            context were redacted after the request was sent.
    rules:  the importer's rules by which a reconstructed context contains events that
            the client did not record.
    """

    kind: Kind
    seq: int | None = None
    digest: str | None = None
    same: bool = False
    rules: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the keys that ``refold context --json`` adds to those of the view."""
        request = None
        if self.seq is not None:
            request = {"seq": self.seq, "digest": self.digest, "same": self.same}
        return {
            "provenance": self.kind,
            "request": request,
            "rules": [*self.rules],
        }


ASSUMED: Final = Provenance("assumed")


@repr_without_texts
class Bill(NamedTuple):
    """The input tokens that the client reported for an answer, and Refold's own count.

    seq:     the seq of the answer to the context.
    input:   the tokens that were neither read from a cache nor written to one.
    counted: Refold's count of the context.  It lacks texts that the log does not have,
             such as the client's own system prompt and definitions of tools.
    offset:  the tokens by which the bill of the session's first answer exceeds Refold's
             count, as an estimate for those texts.  None without such a bill.
    """

    seq: int
    model: str | None
    input: int
    cache_read: int
    cache_write: int
    counted: int
    offset: int | None = None

    @property
    def expected(self) -> int:
        """The billed tokens that Refold expects: its count and the offset."""
        return self.counted + (self.offset or 0)

    @property
    def billed(self) -> int:
        """All input tokens that were billed."""
        return self.input + self.cache_read + self.cache_write

    def to_json(self) -> dict[str, Any]:
        """Return the figures as ``refold why --json`` prints them."""
        return {**self._asdict(), "billed": self.billed, "expected": self.expected}


def bill_of(
    log: EventLog, stream: StreamId, view: View, origin: Provenance
) -> Bill | None:
    """Return the bill of the answer to a context, or None if no event reports it.

    A context whose provenance is only assumed has a bill if it shows all events, and if
    the answer is the next message.

    origin: the evidence that the view was sent.
    """
    if origin.kind == "assumed" and view.strategy != _KEEP_ALL:
        return None
    after = max(view.at, 0)
    next_messages = log.read(stream, after=after, types=_MESSAGE_TYPES, limit=1)
    if not next_messages or next_messages[0].type not in _ANSWER_TYPES:
        return None
    answer = next_messages[0]
    usage = answer.meta.usage
    response = answer.payload
    if isinstance(response, AgentResponse) and response.usage:
        usage = response.usage
    tokens = Usage.of(usage)
    if tokens is None or not input_tokens(usage):
        return None
    model = answer.meta.model
    counted = tokens_of(view, model=model or "")
    return Bill(
        seq=answer.seq,
        model=model,
        input=tokens.input,
        cache_read=tokens.read,
        cache_write=tokens.written,
        counted=counted,
    )


def provenance(log: EventLog, stream: StreamId, view: View) -> Provenance:
    """Return the evidence that a view of the session of this stream was sent.

    Only the requests nearest to the end of the view count: the newest request up to it,
    the first request after it, and the first imported or captured answer after it.
    """
    for envelope in _requests_around(log, stream, view.at):
        request = envelope.payload
        if not isinstance(request, Request):
            continue
        same = request.digest == view.digest
        if same or _was_redacted_since(log, stream, view, envelope):
            return Provenance("recorded", envelope.seq, request.digest, same)
    for answer in log.read(stream, after=max(view.at, 0), types=_ANSWER_TYPES, limit=1):
        is_imported = reconstructed_in(answer) == view.digest
        if is_imported or _is_captured_request(log, stream, view, answer):
            return Provenance(
                "reconstructed",
                answer.seq,
                view.digest,
                same=True,
                rules=_rules(log, stream, view.at),
            )
    return ASSUMED


def _is_captured_request(
    log: EventLog, stream: StreamId, view: View, answer: Envelope
) -> bool:
    """Whether a capture recorded the answer to this view of all events before it.

    An import stores the digest of the request with the answer.  A capture stores no
    digest: it appends line by line, so the log itself gives the context of each answer.
    """
    shows_all_events = view.strategy == _KEEP_ALL and not view.extras.dump()
    if not shows_all_events or not is_captured(answer):
        return False
    between = log.read(stream, after=max(view.at, 0), upto=answer.seq - 1)
    if any(envelope.type != "item" for envelope in between):
        return False
    response_id = answer.meta.response_id
    if not response_id:
        return True
    previous = log.read(
        stream, upto=answer.seq - 1, types=_ANSWER_TYPES, limit=1, newest=True
    )
    if not previous:
        return True
    # Another part of the previous answer is no answer to a new request.
    return previous[0].meta.response_id != response_id


def _rules(log: EventLog, stream: StreamId, upto: int) -> tuple[str, ...]:
    """Return the names of the importer's rules that added events up to this seq."""
    names: set[str] = set()
    for envelope in log.read(stream, upto=upto, types=_TYPES_BY_RULE):
        rule = (envelope.meta.source or {}).get("rule")
        if isinstance(rule, str):
            names.add(rule)
    return tuple(sorted(names))


def _requests_around(log: EventLog, stream: StreamId, at: int) -> list[Envelope]:
    """Return the sent requests nearest to this seq.

    These are the newest request up to the seq, and then the first one after it.
    """
    around: list[Envelope] = []
    upto = at
    while upto > 0:
        requests = log.read(stream, upto=upto, types=("request",), limit=1, newest=True)
        if not requests:
            break
        if kind_of(requests[0]) == "recorded":
            around.append(requests[0])
            break
        upto = requests[0].seq - 1
    after = max(at, 0)
    while requests := log.read(stream, after=after, types=("request",), limit=1):
        if kind_of(requests[0]) == "recorded":
            around.append(requests[0])
            break
        after = requests[0].seq
    return around


def _was_redacted_since(
    log: EventLog, stream: StreamId, view: View, envelope: Envelope
) -> bool:
    """Whether the view is that of this request, and events were redacted after it."""
    request = envelope.payload
    if not isinstance(request, Request):
        return False
    is_of_request = (
        view.at in (envelope.seq, request.through_seq)
        and view.fingerprint == request.strategy.fingerprint
        and view.derived_seq == request.derived_seq
        and view.extras.dump() == request.handed
    )
    if not is_of_request:
        return False
    redactions = log.read(
        stream, after=envelope.seq, types=("redaction_applied",), limit=1
    )
    return bool(redactions)
