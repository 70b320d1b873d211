"""The operations under ``/v1``: each checks the caller and calls the store once."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin
from urllib.parse import unquote

import orjson
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, params
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from refold.adapters.display.files import blamed_json, entry_json, file_json
from refold.adapters.server.access_tokens import Caller
from refold.domain import errors
from refold.domain.canonical import repaired
from refold.domain.envelope import REPAIRED, Draft, Envelope, Meta
from refold.domain.erasure import span
from refold.domain.events import EVENT_CLASSES, HumanReview, event_of
from refold.domain.ids import StreamId, check_id, check_session_id
from refold.projections.models import packaged_models
from refold.store import SessionStore
from refold.store.exports import CopyRecords
from refold.store.files import file_histories, with_sub_agents
from refold.store.overviews import ASCENDING, OverviewFilter, Sort, State
from refold.store.proofs.provenance import provenance
from refold.store.recorded import recorded_as
from refold.store.search import PER_SESSION, SERVED_AT_MOST
from refold.store.session.session import Session
from refold.store.turn_settings import MOST_TURNS

log = logging.getLogger("refold.server")


async def _check_query(request: Request) -> None:
    """Raise RequestValidationError for an unknown or a repeated query parameter."""
    if not request.query_params:
        return
    repeatable = query_parameters(request.scope["endpoint"])
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if name not in repeatable:
            known = {"known": ", ".join(repeatable) or "none"}
            # The name may be a secret.  So the error omits it, unless pages have such
            # a parameter.
            loc = ("query", name) if name == USER_OF_PAGES else ("query",)
            unknown = {"type": "unknown", "loc": loc, "ctx": known}
            raise RequestValidationError([unknown])
        if count > 1 and not repeatable[name]:
            repeated = {"type": "repeated", "loc": ("query", name)}
            raise RequestValidationError([repeated])


@cache
def query_parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the query parameters of an operation, and whether each may be repeated.

    Parameters of its dependencies are included.
    """
    repeatable: dict[str, bool] = {}
    signature = inspect.signature(function, eval_str=True)
    for name, parameter in signature.parameters.items():
        # The parts of ``Annotated[type, declaration, …]``; other types have none.
        type_, *declarations = get_args(parameter.annotation) or (None,)
        for declaration in (*declarations, parameter.default):
            if isinstance(declaration, params.Query):
                repeatable[declaration.alias or name] = get_origin(type_) is tuple
            elif isinstance(declaration, params.Depends) and declaration.dependency:
                repeatable |= query_parameters(declaration.dependency)
    return repeatable


# The parameter of pages that names the user, as ``user_id`` does in /v1.
USER_OF_PAGES: Final = "user"

router = APIRouter(prefix="/v1", dependencies=[Depends(_check_query)])

MOST: Final = 1_000  # entries of one answer
SEQS: Final = 2**63 - 1
HEARTBEAT_SEC: Final = 15.0
_MOST_FRAMES: Final = 256  # frames that a feed keeps
_MOST_BYTES: Final = 1 << 20  # bytes that a feed keeps, or one page of a tail has
_JSON: Final = "application/json"
# Event types that only the store itself records.
_OWN: Final = frozenset(
    {
        "summary",
        "compaction",
        "fork",
        "redaction_applied",
        "consent",
        "forget",
        "item",
    }
)
APPENDABLE: Final = {
    name: kind for name, kind in EVENT_CLASSES.items() if name not in _OWN
}


def answer(value: Any, status: int = 200) -> Response:
    """Return a value as an answer in JSON."""
    return Response(orjson.dumps(value), status, media_type=_JSON)


class Access(NamedTuple):
    """An authorized request: the store, the caller, and the user whose data it uses."""

    store: SessionStore
    caller: Caller
    user_id: str

    def session(self, quoted: str) -> Session:
        """Return the session that a path names.

        Raises HTTPException 404 for an invalid name.
        """
        try:
            name = check_session_id(unquote(quoted, errors="strict"))
        except (errors.InvalidEvent, UnicodeDecodeError):
            raise HTTPException(404) from None
        return self.store.session(user_id=self.user_id, session_id=name)


def authorize(request: Request, scope: str, user_id: str | None = None) -> Access:
    """Authorize a request that needs this scope, about the caller or ``user_id``.

    Only a caller with the scope ``admin`` may name another user.  Every other caller
    gets 404, as for a user who does not exist.  The access log records both.

    Raises HTTPException.
    """
    store: SessionStore = request.app.state.store
    caller: Caller = request.state.caller
    if not caller.may(scope):
        store.access_log.note("scope_refused", caller.user_id, denied="Scope")
        raise HTTPException(403)
    subject = user_id or caller.user_id
    if subject != caller.user_id:
        if not caller.may("admin"):
            store.access_log.note("foreign_user", caller.user_id, denied="Foreign")
            raise HTTPException(404)
        try:
            check_id("user_id", subject)
        except errors.InvalidEvent:
            raise HTTPException(404) from None
        store.access_log.note("admin_named_user", caller.user_id)
        store.access_log.note("named_by_admin", subject)
    return Access(store, caller, subject)


@cache
def _access(scope: str) -> Any:
    """Return the dependency that authorizes a request, which needs this scope."""

    async def authorized(
        request: Request,
        user_id: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    ) -> Access:
        return authorize(request, scope, user_id)

    return Depends(authorized)


@cache
def _session(scope: str) -> Any:
    """Return the dependency for the session in a path, which needs this scope."""
    authorized = _access(scope)

    async def session(
        session_id: Annotated[str, Path(examples=["s-1"])], access: Access = authorized
    ) -> Session:
        return access.session(session_id)

    return Depends(session)


ReadAccess = Annotated[Access, _access("read")]
ReadSession = Annotated[Session, _session("read")]
AppendAccess = Annotated[Access, _access("append")]
AppendSession = Annotated[Session, _session("append")]
ReviewSession = Annotated[Session, _session("review")]
EraseAccess = Annotated[Access, _access("erase")]
After = Annotated[int, Query(ge=0, le=SEQS)]
Limit = Annotated[int, Query(ge=1, le=MOST)]
Texts = Annotated[tuple[str, ...], Query()]
OptionalText = Annotated[str | None, Query()]
Text = Annotated[str, Query()]
Flag = Annotated[bool, Query()]
Moment = Annotated[AwareDatetime | None, Query()]
At = Annotated[int | None, Query(ge=1, le=SEQS)]


def _spec(
    strategy: Annotated[str | None, Query(max_length=2_000)] = None,
    full_turns: Annotated[
        int | None, Query(alias="fullContextTurns", ge=1, le=MOST_TURNS)
    ] = None,
    cached_turns: Annotated[
        int | None, Query(alias="cachedContextTurns", ge=1, le=MOST_TURNS)
    ] = None,
) -> str | None:
    """Return the strategy of a query; numbers of turns choose ``turn_window``."""
    return _strategy_of(strategy, full_turns, cached_turns)


def _strategy_of(
    strategy: str | None, full_turns: int | None, cached_turns: int | None
) -> str | None:
    """Return the strategy's spec; numbers of turns override all settings.

    Raises UnknownStrategy for both a strategy and numbers, and for a file.
    """
    settings: list[str] = []
    if full_turns is not None:
        settings.append(f"full_turns={full_turns}")
    if cached_turns is not None:
        settings.append(f"cached_turns={cached_turns}")
    if not settings:
        return checked_spec(strategy)
    if strategy:
        raise errors.UnknownStrategy("give either turns or a strategy, not both")
    return f"turn_window:{','.join(settings)}"


def checked_spec(strategy: str | None) -> str | None:
    """Return the spec.  Raises UnknownStrategy if it names a file of the server."""
    if strategy and "@" in strategy:
        raise errors.UnknownStrategy("a strategy is named here, not read from a file")
    return strategy


Spec = Annotated[str | None, Depends(_spec)]


class Model(BaseModel):
    """A body; fields that it does not declare are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Turns(Model):
    """Numbers of turns for ``turn_window``; null leaves a number to the settings."""

    full_turns: int | None = Field(
        default=None, alias="fullContextTurns", ge=1, le=MOST_TURNS
    )
    cached_turns: int | None = Field(
        default=None, alias="cachedContextTurns", ge=1, le=MOST_TURNS
    )


class NewEvent(Model):
    """An event to append; its fields have the names that they have in an envelope."""

    type: str
    payload: dict[str, Any] = Field(default_factory=dict)
    ts: AwareDatetime | None = None
    agent: str | None = None
    meta: dict[str, Any] | None = None


class Events(Model):
    """Events to append, all of them or none."""

    events: list[NewEvent] = Field(min_length=1, max_length=MOST)
    unscanned: Literal["refuse", "stub"] = "refuse"


_EVENTS: Final = TypeAdapter(Events)
_LIGHT: Final = 1 << 16  # bytes of a body; a larger one is parsed in a thread


@router.post("/sessions/{session_id}/events", operation_id="append", status_code=201)
async def append(
    request: Request,
    session: AppendSession,
    idempotency_key: Annotated[str | None, Header(max_length=1_000)] = None,
    expected_seq: Annotated[int | None, Header(ge=0, le=SEQS)] = None,
) -> Response:
    """Append events to a session, all of them or none.

    They are durable when the answer arrives.  A session begins with its first append.
    Each event is redacted before it is written.  With an Idempotency-Key a retry is
    safe: it gets the first receipt, with the status 200.  Expected-Seq is the seq that
    the writer last saw, 0 for a new session: if the session has newer events, the
    append fails with 409.
    """
    body = await request.body()
    parse = partial(_drafts, body, request.state.request_id, request.state.caller)
    if len(body) < _LIGHT:
        drafts, unscanned = parse()
    else:
        drafts, unscanned = await asyncio.to_thread(parse)
    receipt = await session.append_async(
        drafts,
        idempotency_key=idempotency_key,
        expected_seq=expected_seq,
        unscanned=unscanned,
    )
    return answer(receipt._asdict(), 200 if receipt.duplicate else 201)


def _drafts(
    body: bytes, request_id: str, caller: Caller
) -> tuple[list[Draft], Literal["refuse", "stub"]]:
    """Return the drafts in a body, and how to treat text that cannot be scanned.

    Raises InvalidEvent for any other body.
    """
    try:
        batch = _EVENTS.validate_json(body)
    except ValidationError as error:
        repaired_batch = _repaired(body)
        if repaired_batch is None:
            faults = {str(fault["type"]) for fault in error.errors(include_input=False)}
            raise errors.InvalidEvent(
                f"this is not a list of events ({', '.join(sorted(faults))})"
            ) from None
        batch = repaired_batch
    may_decide = caller.may("review")
    drafts = [_draft(event, request_id, may_decide) for event in batch.events]
    return drafts, batch.unscanned


def _repaired(body: bytes) -> Events | None:
    """Return the events in JSON that only a lenient parser accepts.

    Such JSON has half a surrogate pair, for example.  Each repaired event gets a
    warning in its ``meta``.  Returns None for anything else than events.
    """
    try:
        batch = json.loads(body.decode())
        for event in batch["events"]:
            clean, changes = repaired(event)
            event.clear()
            event.update(clean)
            if changes:
                meta = event.get("meta") or {}
                warnings = [*meta.get("warnings", ()), {"code": REPAIRED}]
                event["meta"] = {**meta, "warnings": warnings}
        return _EVENTS.validate_json(orjson.dumps(batch))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _draft(new: NewEvent, request_id: str, may_decide: bool) -> Draft:
    """Return the draft of an event.

    may_decide: whether the caller may decide questions to humans.

    Raises InvalidEvent for a type that clients may not append, and for a decision
    without the scope.
    """
    if new.type not in APPENDABLE:
        raise errors.InvalidEvent("there is no such type of event to append")
    event = event_of(new.type, new.payload)
    if isinstance(event, HumanReview) and event.decision and not may_decide:
        raise errors.InvalidEvent("a decision needs a token with the scope review")
    return Draft(event, new.ts, request_id, new.agent, Meta.of(new.meta))


def labels_of(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels in texts of the form NAME=VALUE.

    Raises InvalidEvent for another form.
    """
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise errors.InvalidEvent("write a label as NAME=VALUE")
        labels[name.strip()] = value.strip()
    return labels


@router.get("/sessions", operation_id="sessions")
def sessions(
    access: ReadAccess,
    label: Texts = (),
    after: OptionalText = None,
    limit: Limit = 100,
    sort: Annotated[Sort, Query()] = "session",
    reverse: Flag = False,
    find: Text = "",
    project: Text = "",
    agent: Text = "",
    model: Text = "",
    state: Annotated[State | None, Query()] = None,
    failed: Flag = False,
    since: Moment = None,
    until: Moment = None,
) -> Response:
    """List sessions with their titles and totals; for the next page, see `next`.

    Pass `next` as `after`. The order is that of names, unless `sort` names another
    column, such as `last` for the newest event. `unread` counts sessions with
    events that are not counted yet: call this again. `unreadable` names up to 100
    sessions that lack a key or have a damaged event; `unreadable_total` counts all
    of them. Their titles and totals may be out of date.
    """
    descending = None  # the usual direction of the column
    if reverse:
        descending = sort in ASCENDING
    page = access.store.overviews(
        access.user_id,
        label=labels_of(label),
        sort=sort,
        descending=descending,
        matching=OverviewFilter(
            text=find,
            project=project,
            agent=agent,
            model=model,
            state=state or "",
            failed=failed,
            since=since,
            until=until,
        ),
        after=after,
        limit=limit,
    )
    entries = [session.to_json() for session in page.sessions]
    return answer(
        {
            "sessions": entries,
            "next": page.next,
            "total": page.total,
            "unread": page.unread,
            "unreadable": list(page.unreadable),
            "unreadable_total": page.unreadable_total,
        }
    )


@router.get("/sessions/{session_id}", operation_id="session")
def session(session: ReadSession) -> Response:
    """Show the head of a session, its labels, and its streams."""
    head = session.head()
    return answer(
        {
            "head_seq": head.seq,
            "status": head.status,
            "labels": session.labels(),
            "user_id": session.user_id,
            "session_id": session.session_id,
            "streams": session.history.streams(),
        }
    )


@router.get("/sessions/{session_id}/events", operation_id="events")
def events(
    session: ReadSession,
    after: After = 0,
    limit: Limit = 100,
    type: Texts = (),  # noqa: A002  # as an event's field is named
) -> Response:
    """Read events in their order; for the next page, pass `next` as `after`."""
    envelopes = session.events(after, limit, types=type)
    last = envelopes[-1].seq if len(envelopes) == limit else None
    entries = [envelope.to_json() for envelope in envelopes]
    return answer({"events": entries, "next": last})


@router.get("/sessions/{session_id}/state", operation_id="state")
def state(session: ReadSession, at: At = None) -> Response:
    """Show the session's working memory as it is now, or was at a seq."""
    return answer(session.state(at))


@router.get("/sessions/{session_id}/files", operation_id="files")
def files_of_session(
    session: ReadSession,
    path: Annotated[str | None, Query(min_length=1, max_length=4_000)] = None,
) -> Response:
    """List the files that a run and its sub-agents read and changed.

    With a path, show what happened to this file, with the diffs in order.  `agrees`
    says whether a read shows the lines that the edits before it yield; null if nothing
    can be compared.
    """
    histories = file_histories(with_sub_agents(session))
    if path is None:
        files = [file_json(history) for history in histories.files.values()]
        return answer({"files": files})
    if path not in histories.files:
        raise HTTPException(404)
    history = histories.files[path]
    entries = [entry_json(entry) for entry in history.entries]
    lines = [blamed_json(line) for line in history.blame()]
    return answer({**file_json(history), "entries": entries, "lines": lines})


Basis = Literal["sent", "rebuilt"]


@router.get("/sessions/{session_id}/context", operation_id="context")
def context(
    session: ReadSession,
    strategy: Spec,
    at: At = None,
    as_: Annotated[Basis, Query(alias="as")] = "sent",
) -> Response:
    """Show what the model is sent, or was sent earlier."""
    return _context(session, strategy, at, as_)


class ContextOf(Turns):
    """The context to show: its strategy, and its seq."""

    strategy: str | None = Field(default=None, max_length=2_000)
    at: int | None = Field(default=None, ge=1, le=SEQS)
    as_: Basis = Field(default="sent", alias="as")


@router.post("/sessions/{session_id}/context", operation_id="context_by_body")
def context_by_body(session: ReadSession, body: ContextOf) -> Response:
    """Show what the model is sent, with the parameters in a body; records nothing."""
    strategy = _strategy_of(body.strategy, body.full_turns, body.cached_turns)
    return _context(session, strategy, body.at, body.as_)


def _context(
    session: Session, strategy: str | None, at: int | None, as_: Basis
) -> Response:
    """Return the answer with a context and its origin."""
    view = session.context(strategy, at=at, as_=as_)
    origin = provenance(session.writer.log, session.stream, view)
    return answer(view.to_json() | origin.to_json())


@router.get("/sessions/{session_id}/why", operation_id="why")
def why(
    session: ReadSession, strategy: Spec, at: At = None, message: At = None
) -> Response:
    """Explain why a context is as it is, with proof."""
    return answer(session.why(strategy, at=at, message=message).to_json())


class Compaction(Turns):
    """The strategy to compact with, and whether to repeat until it asks for no more."""

    strategy: str | None = Field(default=None, max_length=2_000)
    until_idle: bool = False


@router.post("/sessions/{session_id}/compact", operation_id="compact")
def compact(session: AppendSession, body: Compaction) -> Response:
    """Compact a session if its strategy decides to; return the new summaries."""
    strategy = _strategy_of(body.strategy, body.full_turns, body.cached_turns)
    summaries: list[Envelope] = []
    summary = session.compact(strategy)
    while summary is not None:
        summaries.append(summary)
        if not body.until_idle:
            break
        summary = session.compact(strategy)
    session.head()  # raises SessionNotFound
    return answer({"summaries": [summary.to_json() for summary in summaries]})


@router.get("/sessions/{session_id}/compare", operation_id="compare")
def compare(
    session: ReadSession,
    strategy: Annotated[tuple[str, ...], Query(max_length=20)] = (),
    model: OptionalText = None,
) -> Response:
    """Compare what strategies would have sent, and at what cost."""
    session.head()  # raises SessionNotFound
    specs = [spec for spec in map(checked_spec, strategy) if spec]
    comparison = session.proofs.compare(specs or None, model=model)
    skipped = [entry._asdict() for entry in comparison.skipped]
    outcomes = [outcome.to_json() for outcome in comparison.outcomes]
    return answer({"outcomes": outcomes, "skipped": skipped})


@router.get("/sessions/{session_id}/verify", operation_id="verify")
def verify(
    session: ReadSession, chain_only: Annotated[bool, Query()] = False
) -> Response:
    """Check that a session's stored data is what was written."""
    session.head()  # raises SessionNotFound
    verification = session.verify(chain_only=chain_only)
    problems = [problem.to_json() for problem in verification.problems]
    return answer({"ok": not problems, **verification._asdict(), "problems": problems})


@router.get("/sessions/{session_id}/proof", operation_id="prove")
def prove(
    access: ReadAccess, session: ReadSession, seq: Annotated[int, Query(ge=1, le=SEQS)]
) -> Response:
    """Return a proof that an event is in the newest sealed tree."""
    session.head()  # raises SessionNotFound
    try:
        return answer(access.store.seals.prove(session.stream, seq, size=None))
    except LookupError as error:
        if isinstance(error, errors.RefoldError):
            raise
        raise HTTPException(404) from None


@router.get("/search", operation_id="search")
def search(
    access: ReadAccess,
    words: Annotated[str, Query(max_length=1_000)],
    session_id: OptionalText = None,
    limit: Limit = 20,
    per_session: Annotated[int, Query(ge=0, le=SEQS)] = PER_SESSION,
) -> Response:
    """Find events by words, "phrases" and filters such as type:, the best first.

    A session has more than per_session events only if other sessions have too few, and
    more_in_session counts the others; 0 means that sessions do not matter.
    """
    result = access.store.search_with_total(
        access.user_id,
        words,
        session_id=session_id,
        limit=limit,
        per_session=per_session,
        index_at_most=SERVED_AT_MOST,
    )
    return answer(
        {
            "found": [hit.to_json() for hit in result.hits],
            "total": result.total,
            "total_is_exact": result.total_is_exact,
            "not_searched": result.not_searched,
            "unreadable": list(result.unreadable),
        }
    )


@router.post("/traces", operation_id="traces")
async def traces(request: Request, access: AppendAccess) -> Response:
    """Record the model calls in spans, as an OTLP exporter sends them.

    The body is an ExportTraceServiceRequest, in JSON (application/json) or in protobuf
    (application/x-protobuf), also compressed by gzip; the answer has the same form.
    Each span of a model call that carries its messages is recorded as a request and its
    answer, in the session that gen_ai.conversation.id names, else in one of its trace.
    Model calls without messages are rejected, as partialSuccess says.  If a span comes
    again, it is recorded once.
    """
    body = await request.body()
    encoding = _trace_encoding(request.headers.get("content-type", ""))
    is_gzip = request.headers.get("content-encoding", "").lower() == "gzip"
    most_bytes = request.app.state.limits.body_bytes
    receiver = request.app.state.trace_receiver

    def take() -> bytes:
        from refold.adapters.otlp.encoding import request_of, response, unzipped

        data = unzipped(body, most=most_bytes) if is_gzip else body
        taken = receiver().take(access.user_id, request_of(data, encoding))
        return response(encoding, rejected=taken.rejected, reason=taken.reason)

    data = await asyncio.to_thread(take)
    return Response(data, media_type=request.headers["content-type"])


def _trace_encoding(content_type: str) -> Literal["protobuf", "json"]:
    """Return the encoding of an OTLP request.  Raises HTTPException 415."""
    match content_type.partition(";")[0].strip().lower():
        case "application/json":
            return "json"
        case "application/x-protobuf":
            return "protobuf"
    raise HTTPException(415)


@router.put("/sessions/{session_id}/labels", operation_id="label")
def label(
    session: AppendSession,
    body: dict[str, Annotated[str, Field(max_length=1_000)] | None],
) -> Response:
    """Set labels of a session; null removes a label."""
    session.head()  # raises SessionNotFound
    session.label(**body)
    return answer(session.labels())


@router.get("/export", operation_id="export")
def export(access: ReadAccess) -> Response:
    """Export all sessions of a user as JSON lines, each an envelope."""
    infos = access.store.sessions(access.user_id, internal=True)
    if infos:
        CopyRecords(access.store.writer, "events", "HTTP").record(access.user_id)

    def lines() -> Iterator[bytes]:
        for info in infos:
            session = access.store.session(
                user_id=access.user_id, session_id=info.session_id
            )
            with recorded_as("export"):
                envelopes = session.history.timeline()
            for envelope in envelopes:
                yield orjson.dumps(envelope.to_json()) + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/costs", operation_id="costs")
def costs(
    access: ReadAccess,
    session_id: OptionalText = None,
    by: Annotated[Literal["session", "user", "day"], Query()] = "session",
) -> Response:
    """Show the token usage of answers, and their cost in US dollars."""
    spendings = access.store.costs(access.user_id, session_id=session_id, by=by)
    return answer({"costs": [spending.to_json() for spending in spendings]})


@router.get("/models", operation_id="models")
def models(access: ReadAccess) -> Response:
    """List the known models, and the default parameters of `history_summary`."""
    strategy: Any = access.store.settings.strategy("history_summary")
    parameters = strategy.model_dump(mode="json")
    memories = parameters.pop("memories") or {}
    version = parameters.pop("summary_version")
    return answer(
        {
            "models": [model.model_dump(mode="json") for model in packaged_models()],
            "history_summary_min_version": str(version),
            "history_summary_params": orjson.dumps(parameters).decode(),
            "memories_params": memories,
        }
    )


def _turns_of(access: Access) -> Response:
    """Return the answer with a user's numbers of turns."""
    saved = access.store.user(access.user_id).saved_turns()
    effective = access.store.settings.turns(saved.params())
    full = effective["full_turns"]
    cached = effective["cached_turns"]
    return answer(
        {
            "fullContextTurns": full.value,
            "cachedContextTurns": cached.value,
            "saved": {
                "fullContextTurns": saved.full_turns,
                "cachedContextTurns": saved.cached_turns,
            },
            "decided_by": {
                "fullContextTurns": full.decided_by,
                "cachedContextTurns": cached.decided_by,
            },
        }
    )


@router.get("/settings/turns", operation_id="turns")
def turns(access: ReadAccess) -> Response:
    """Show a user's numbers of turns for `turn_window`, and what decides each.

    A saved number overrides the settings file, the environment overrides a saved
    number, and a number in a request overrides them all.
    """
    return _turns_of(access)


@router.put("/settings/turns", operation_id="save_turns")
def save_turns(access: AppendAccess, body: Turns) -> Response:
    """Save both numbers of turns for `turn_window`; null removes a saved number."""
    user = access.store.user(access.user_id)
    user.save_turns(full_turns=body.full_turns, cached_turns=body.cached_turns)
    return _turns_of(access)


@router.get("/memory", operation_id="memory")
def memory(access: ReadAccess) -> Response:
    """Show what was learned from a user's sessions, with its evidence."""
    memories = access.store.memory.of(access.user_id)
    consents = access.store.user(access.user_id).status().to_json()
    items = [item.to_json() for item in memories.items]
    return answer({"items": items, **consents})


class Consent(Model):
    """The grant of a scope by a user, or its withdrawal."""

    scope: str = Field(max_length=200)
    granted: bool
    reason: str = Field(default="", max_length=2_000)


@router.put("/memory/consent", operation_id="consent")
def consent(access: AppendAccess, body: Consent) -> Response:
    """Record that a user grants a scope, or withdraws the grant."""
    user = access.store.user(access.user_id)
    user.consent(body.scope, granted=body.granted, reason=body.reason)
    return answer(user.status().to_json())


class OptOut(Model):
    """A user's opt-out of memory, or its end."""

    memory_opt_out: bool
    reason: str = Field(default="", max_length=2_000)


@router.put("/memory/opt-out", operation_id="memory_opt_out")
def memory_opt_out(access: AppendAccess, body: OptOut) -> Response:
    """Opt a user out of memory, or in again.  Sessions are not affected."""
    user = access.store.user(access.user_id)
    change = user.opt_out if body.memory_opt_out else user.opt_in
    change(reason=body.reason)
    return answer(user.status().to_json())


@router.get("/reviews", operation_id="reviews")
def reviews(
    access: ReadAccess,
    session_id: OptionalText = None,
    with_decided: Annotated[bool, Query(alias="all")] = False,
) -> Response:
    """List questions to humans, the most severe first."""
    questions = access.store.reviews.list(
        access.user_id, session_id=session_id, open_only=not with_decided
    )
    entries = [question.to_json() for question in questions]
    for entry in entries:
        entry.pop("bundle", None)  # the operation `review` shows it
    return answer({"reviews": entries, "unreadable": len(questions.unreadable)})


@router.get("/sessions/{session_id}/reviews/{seq}", operation_id="review")
def review(access: ReadAccess, session: ReadSession, seq: int) -> Response:
    """Show a question to a human, with the events that it is about."""
    session.head()  # raises SessionNotFound
    questions = access.store.reviews.list(
        access.user_id, session_id=session.session_id, open_only=False
    )
    for question in questions:
        if question.seq == seq:
            return answer(question.to_json())
    raise HTTPException(404)


class Decision(Model):
    """The decision of a human on a question."""

    decision: Literal["accept", "reject", "corrected", "dismissed"]
    note: str = Field(default="", max_length=10_000)


@router.post(
    "/sessions/{session_id}/reviews/{seq}", operation_id="decide", status_code=201
)
def decide(
    request: Request,
    session: ReviewSession,
    seq: Annotated[int, Path(ge=1, le=SEQS)],
    body: Decision,
) -> Response:
    """Record the decision of the token's user on a question, which is decided once."""
    by = request.state.caller.user_id
    receipt = session.reviews.decide(seq, body.decision, by=by, note=body.note)
    return answer(receipt._asdict(), 201)


class Erasure(Model):
    """The data to erase, and the reason."""

    reason: str = Field(min_length=1, max_length=2_000)
    session_id: str | None = Field(default=None, max_length=200)
    grace: str | None = Field(default=None, max_length=20)
    dry_run: bool = False
    salt: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


@router.post("/erasures", operation_id="delete_user_data")
def delete_user_data(access: EraseAccess, body: Erasure) -> Response:
    """Erase a user or one session for good, and sign a certificate.

    `dry_run` shows what would be deleted.  With a `grace` period, such as 30d, the data
    is unreadable at once and destroyed at the end of the period.  `salt` is 32 random
    bytes of your own in hex.  Store it before you send it: then the certificate stays
    provable even if this answer is lost.
    """
    if body.dry_run:
        plan = access.store.erasures.plan(access.user_id, session_id=body.session_id)
        return answer(plan._asdict())
    result = access.store.erase(
        access.user_id,
        body.reason,
        session_id=body.session_id,
        operator=access.caller.user_id,
        grace=None if body.grace is None else span("grace", body.grace),
        salt=None if body.salt is None else bytes.fromhex(body.salt),
    )
    signed = result.certificate.to_json() if result.certificate else {}
    report = {
        "salt": result.salt or None,
        "already": result.already,
        "due_at": result.due_at,
        "left": dict(result.left),
        "copies": None if result.copies is None else list(result.copies),
        "outside": [place.to_json() for place in result.outside],
    }
    return answer({**signed, **report})


_BODIES: Final[tuple[type[BaseModel], ...]] = (
    Events,
    ContextOf,
    Compaction,
    Turns,
    Consent,
    OptOut,
    Decision,
    Erasure,
)


def _body_fields() -> frozenset[str]:
    """Return the names of all fields that bodies have."""
    names: set[str] = set()
    for body in _BODIES:
        for name, field_info in body.model_fields.items():
            names.add(field_info.alias or name)
    return frozenset(names)


# A refusal may repeat these names, since they are not the client's.
BODY_FIELDS: Final = _body_fields()


@router.get("/erasures", operation_id="certificates")
def certificates(access: EraseAccess) -> Response:
    """List the certificates of a user's erasures."""
    certificates = access.store.erasures.certificates(access.user_id)
    entries = [certificate.to_json() for certificate in certificates]
    return answer({"certificates": entries})


@dataclass
class Feed:
    """The new events of a session, read once for all its listeners.

    It keeps the newest frames only; slow listeners read older events from the log.

    start_seq:  the seq after which it reads.
    last_frame: the last frame for listeners; empty while the feed runs.
    frames:     the newest events as frames, each with its seq.
    task:       runs ``run``.
    """

    session: Session
    start_seq: int
    listeners: int = 0
    last_frame: bytes = b""
    frames: deque[tuple[int, bytes]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    _bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Read new events until the session ends or the last listener leaves."""
        try:
            async for envelope in self.session.history.follow_async(
                after=self.start_seq, every=0.25
            ):
                self._keep(envelope.seq, frame(envelope))
            last = b"event: end\ndata: {}\n\n"
        except Exception as error:
            last = error_frame(error)
        self.last_frame = self.last_frame or last
        self._wake_listeners()

    def _keep(self, seq: int, text: bytes) -> None:
        """Add a frame, drop the oldest ones if need be, and wake the listeners."""
        self.frames.append((seq, text))
        self._bytes += len(text)
        while self._is_full():
            _, oldest = self.frames.popleft()
            self._bytes -= len(oldest)
        self._wake_listeners()

    def _is_full(self) -> bool:
        """Whether the oldest frame has to go; the newest stays at any size."""
        if self._bytes > _MOST_BYTES:
            return len(self.frames) > 1
        return len(self.frames) > _MOST_FRAMES

    def end(self, last: bytes) -> None:
        """Stop reading, and send ``last`` to the listeners."""
        self.last_frame = self.last_frame or last
        if self.task is not None:
            self.task.cancel()
        self._wake_listeners()

    def _wake_listeners(self) -> None:
        """Let all calls of ``after`` that wait continue."""
        changed = self._changed
        self._changed = asyncio.Event()
        changed.set()

    async def after(self, seq: int, wait: float) -> tuple[int, bytes]:
        """Return the frames after this seq, and before them the seq of the last one.

        Without a new frame within ``wait`` seconds, returns ``seq`` and no bytes.
        """
        newest = self.frames[-1][0] if self.frames else self.start_seq
        if seq >= newest and not self.last_frame:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)
        first = self.frames[0][0] if self.frames else self.start_seq + 1
        if seq + 1 < first:  # the feed does not keep the next frame
            return await asyncio.to_thread(self._page, seq, first - 1)
        texts: list[bytes] = []
        last = seq
        for frame_seq, text in self.frames:
            if frame_seq > seq:
                texts.append(text)
                last = frame_seq
        return last, b"".join(texts)

    def _page(self, seq: int, upto: int) -> tuple[int, bytes]:
        """Read frames after this seq from the log, about ``_MOST_BYTES`` at most.

        Returns them as ``after`` does.
        """
        frames = bytearray()
        last = seq
        for envelope in self.session.history.pages(seq, upto):
            frames += frame(envelope)
            last = envelope.seq
            if len(frames) > _MOST_BYTES:
                break
        return last, bytes(frames)


def frame(envelope: Envelope) -> bytes:
    """Return an event of the log as a server-sent event."""
    data = orjson.dumps(envelope.to_json())
    return b"id: %d\nevent: event\ndata: %b\n\n" % (envelope.seq, data)


def error_frame(error: Exception) -> bytes:
    """Return the last frame of a tail that failed."""
    code = type(error).__name__
    if not isinstance(error, errors.RefoldError):
        log.error("unexpected %s in a tail", code)
        code = "Unexpected"
    return b'event: error\ndata: {"code":"%b"}\n\n' % code.encode()


# The last frame of a tail whose server stops: a comment, so the client reconnects.
CLOSING: Final = b": closing\n\n"


class Feeds:
    """The feeds of the sessions that have listeners."""

    def __init__(self) -> None:
        self._by_stream: dict[StreamId, Feed] = {}
        self.closing = False

    def close(self) -> None:
        """End all tails, and those that begin later, because the server stops.

        Clients that reconnect continue at another server.
        """
        self.closing = True
        for feed in self._by_stream.values():
            feed.end(CLOSING)

    # Not an asynchronous generator: when the server stops, the loop closes those in no
    # particular order, and the tails that use this are such generators.
    @contextmanager
    def joined(self, session: Session, head: int) -> Iterator[Feed]:
        """Listen to the session's feed while the block runs.

        The first listener starts the feed at ``head``; the last one ends it.
        """
        feed = self._by_stream.get(session.stream)
        if feed is None or feed.last_frame:
            feed = Feed(session, start_seq=head)
            self._by_stream[session.stream] = feed
            feed.task = asyncio.create_task(feed.run())
        feed.listeners += 1
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                feed.end(b"")
                if self._by_stream.get(session.stream) is feed:
                    del self._by_stream[session.stream]


@router.get("/sessions/{session_id}/events/tail", operation_id="tail")
async def tail(
    request: Request,
    session: ReadSession,
    after: After = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=SEQS)] = None,
) -> Response:
    """Follow a session after a seq, by server-sent events.

    A client that reconnects with Last-Event-ID misses nothing and gets nothing twice.
    The stream ends with the session, or when the token expires.
    """
    head = await asyncio.to_thread(session.head)
    start = after if last_event_id is None else last_event_id
    until = request.state.caller.until

    feeds: Feeds = request.app.state.feeds

    async def frames() -> AsyncIterator[bytes]:
        seq = start  # of the last event that was sent
        yield b"retry: 1000\n\n"
        # The server may have begun to stop while the head was read.
        if feeds.closing:
            yield CLOSING
            return
        with feeds.joined(session, head.seq) as feed:
            while True:
                left = until - time.time()
                if left <= 0:
                    return
                if feeds.closing:  # the client may have much to read yet
                    yield CLOSING
                    return
                try:
                    seq, text = await feed.after(seq, min(HEARTBEAT_SEC, left))
                except Exception as error:  # the session was erased, for example
                    yield error_frame(error)
                    return
                yield text or b": \n\n"
                if not text and feed.last_frame:
                    yield feed.last_frame
                    return

    return StreamingResponse(
        frames(),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # nginx would hold frames back
    )


def describe(app: FastAPI) -> None:
    """Serve the description of the operations at ``/v1/openapi.json``."""

    @cache
    def described() -> bytes:
        return orjson.dumps(_described(app.openapi()))

    @app.get("/v1/openapi.json", include_in_schema=False)
    async def openapi(access: ReadAccess) -> Response:  # noqa: ARG001  # it authorizes
        return Response(described(), media_type=_JSON)


def _described(description: dict[str, Any]) -> dict[str, Any]:
    """Add examples, types of events, and refusals, which FastAPI does not know."""
    file = files("refold.adapters.server").joinpath("examples.json")
    examples = orjson.loads(file.read_bytes())
    components = description["components"]
    components["responses"] = {"Problem": examples.pop("problem")}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    description["security"] = [{"token": []}]
    for path in description["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                _describe_parameter(parameter, examples["parameters"])
            _describe_operation(operation, examples[operation["operationId"]])
    append_path = description["paths"]["/v1/sessions/{session_id}/events"]
    append_path["post"]["responses"]["200"] = {
        "description": "It was appended before, under the same key."
    }
    components["schemas"] |= _event_shapes()
    return description


def _describe_parameter(parameter: Any, descriptions: Any) -> None:
    """Add the description of a parameter, and remove null from its types.

    A query has no null: an optional parameter is left out.
    """
    alternatives = parameter["schema"].pop("anyOf", ({},))
    parameter["schema"] |= alternatives[0]
    parameter["description"] = descriptions[parameter["name"]]


def _describe_operation(operation: Any, example: Any) -> None:
    """Add the examples of an operation, and its refusals."""
    answers = operation["responses"]
    answers.pop("422", None)
    (success,) = answers.values()
    kind = example.get("type", _JSON)
    schema = {"type": example.get("shape", "object")}
    success["content"] = {kind: {"schema": schema, "example": example["gives"]}}
    answers["default"] = {"$ref": "#/components/responses/Problem"}
    if "takes" in example:
        body = operation.get("requestBody") or {"required": True}
        schema = example.get("takes_schema", _EVENT_LIST)
        content = body.get("content", {}).get(_JSON, {"schema": schema})
        body["content"] = {_JSON: content | {"example": example["takes"]}}
        operation["requestBody"] = body


_REF: Final = "#/components/schemas/{model}"
_EVENT_LIST: Final = {"$ref": "#/components/schemas/Events"}


def _event_shapes() -> dict[str, Any]:
    """Return the schemas of events that can be appended: each type with its payload."""
    events_schema = Events.model_json_schema(ref_template=_REF)
    event_schema = events_schema.pop("$defs")["NewEvent"]
    schemas: dict[str, Any] = {"Events": events_schema}
    alternatives: list[Any] = []
    for name, kind in APPENDABLE.items():
        payload = kind.model_json_schema(ref_template=_REF)
        schemas |= payload.pop("$defs", {})
        schemas[kind.__name__] = payload
        payload["properties"].pop("type")
        properties = event_schema["properties"] | {
            "type": {"const": name},
            "payload": {"$ref": _REF.format(model=kind.__name__)},
        }
        required = ["type", "payload"] if payload.get("required") else ["type"]
        alternatives.append(
            event_schema | {"properties": properties, "required": required}
        )
    events_schema["properties"]["events"]["items"] = {"oneOf": alternatives}
    return schemas
