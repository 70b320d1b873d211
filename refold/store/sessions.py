"""One session: append to it, read it, show what a model is sent, prove it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, wraps
from itertools import islice
from math import ceil
from traceback import walk_tb
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
)

from refold.domain import errors, ports
from refold.domain.canonical import repaired
from refold.domain.envelope import (
    ACTIVATED,
    LATER,
    NO_META,
    Draft,
    Envelope,
    Format,
    Meta,
    Native,
    from_microseconds,
)
from refold.domain.events import (
    AgentError,
    AgentResponse,
    CompactionNote,
    Event,
    Final as FinalEvent,
    Fork,
    JsonObject,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
    check_types,
    is_busy,
    is_unreached,
)
from refold.domain.ids import MAIN, StreamId, bounded, check_id, check_session_id
from refold.domain.model import quiet
from refold.domain.session import LABEL, SessionState, labelling, labels_in
from refold.domain.tokens import estimate
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import HandedIn
from refold.projections.context.compaction import Summarizer
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy, summarizer_for
from refold.projections.context.text import tagged
from refold.projections.context.units import spans_of
from refold.projections.context.view import View
from refold.projections.items import NativeItem, first_of, groups, has_bytes, whole
from refold.projections.review.incidents import Decision
from refold.projections.review.rules import ReviewRules
from refold.projections.tokens import tokens_of
from refold.redaction.chokepoint import RedactedEvent
from refold.redaction.guard import restored
from refold.redaction.plan import Tagger
from refold.store import appends, contexts, history, vault
from refold.store.compactions import Compactor, Upkeep
from refold.store.history import History, born, read_on
from refold.store.proofs import explanations
from refold.store.proofs.rerun import Model, Rerun, Rerunner, with_requests
from refold.store.proofs.verification import Verified, Verifier
from refold.store.recorded import head_seq, recorded, verified_size, view_size
from refold.store.reviews import Reviewed, ask, decide as decide_review

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from refold.projections.context.budget import Advice
    from refold.projections.memory.advice import ChoiceArgs

# What may go well the next time, if nobody says otherwise.
_PASSING: Final = (TimeoutError, ConnectionError, errors.StoreUnavailable)
# What an estimated token is at most, for any model's tokenizer: line breaks are dear.
_HEAVIEST: Final = 10
_LONGEST: Final = 2_000
_TRIES: Final = 8
_NAMED_CALLS: Final = 20

_ENDS: Final = ("final", "agent_response", "tool_call")
_BATCH: Final = 200
_LEAST_READ: Final = 64
Progress = Callable[[int], object]
_Prepared = tuple[Draft, RedactedEvent]


@quiet
@dataclass(slots=True)
class Attempt:
    """A step whose failure is recorded; use it with ``with`` or ``async with``.

    Raises what the step raised.  If that cannot be recorded, a note on the exception
    says so.
    """

    session: Session
    what: str
    request_id: str | None = None
    agent: str | None = None
    retryable: bool | None = None
    _after: int = field(default=0, init=False)
    _open: frozenset[str] = field(default=frozenset(), init=False)

    def __enter__(self) -> Self:
        state = self.session.writer.log.head(self.session.stream).state
        self._after, self._open = state.head_seq, frozenset(state.open_calls)
        return self

    def __exit__(self, *raised: Any) -> None:
        _, error, trace = raised
        if not isinstance(error, Exception):
            return  # it went well, or somebody ended it
        where = self.what
        for frame, line in deque(walk_tb(trace), maxlen=1):
            # By module: a path would name the machine.
            module = frame.f_globals.get("__name__", "?")
            where = f"{where} ({module}.{frame.f_code.co_qualname}, line {line})"
        try:
            try:
                message = str(repaired(str(error)[:_LONGEST])[0])
                self._record(error, where, message)
            except (errors.RedactionFailed, errors.InvalidEvent):
                # What was raised cannot be written down; that it was can.
                self._record(error, where, "")
        except (errors.RefoldError, OSError) as failed:
            error.add_note(f"refold could not record this failure: {failed}")

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *raised: Any) -> None:
        await asyncio.to_thread(self.__exit__, *raised)

    def _record(self, error: Exception, where: str, message: str) -> None:
        """Where in the session it was, and nothing that the step worked on."""
        code, retryable = type(error).__name__, self.retryable
        answer = getattr(error, "response", None)  # as httpx and the SDKs have it
        status = getattr(error, "status_code", getattr(answer, "status_code", None))
        if retryable is None:
            passing = isinstance(error, _PASSING) or is_unreached(code)
            retryable = is_busy(status) if isinstance(status, int) else passing
        text = f"{self.what} failed with {code} before there was a result"
        context: dict[str, Any] = {"after_seq": self._after}
        if isinstance(status, int):
            context["status"] = status
        if error.__cause__ is not None:
            context["cause"] = type(error.__cause__).__name__
        beside: Any = {"request_id": self.request_id, "agent": self.agent}
        told = {"code": code, "message": message, "where": where}
        for last in (*[False] * _TRIES, True):
            state = self.session.writer.log.head(self.session.stream).state
            left = [call for call in state.open_calls if call not in self._open]
            given = {"content": text, "status": "unknown"}
            closing = [ToolResult(call_id=call, **given) for call in left]
            context |= {"upto_seq": state.head_seq, "open_calls": left[:_NAMED_CALLS]}
            kept = {name: of for name, of in context.items() if of != []}
            failure = AgentError(**told, retryable=retryable, context=kept)
            order = [*closing, failure]
            try:
                self.session.append(order, **beside, expected_seq=state.head_seq)
                return
            except errors.StaleSession:
                if last:
                    raise


@dataclass(frozen=True, slots=True)
class SessionAt:
    """A session as it was when ``seq`` was its newest event."""

    session: Session
    seq: int

    def events(self) -> list[Envelope]:
        """The events up to there."""
        return list(self.session.pages(upto=self.seq))

    def state(self) -> JsonObject:
        """The working memory as it was."""
        return self.session.state(at=self.seq)

    def context(
        self, strategy: str | Strategy | None = None, *, as_: contexts.As = "sent"
    ) -> View:
        """What a model was sent then."""
        return self.session.context(strategy, at=self.seq, as_=as_)


S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The method for asyncio: it is done in a thread, and the loop is not blocked."""
    name = method.__name__

    @wraps(method, updated=())  # a recorded method stays the one that is recorded
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = partial(getattr(self, name), *args, **kwargs)
        return cast(T, await asyncio.to_thread(given))

    call.__name__, call.__qualname__ = f"a{name}", f"Session.a{name}"
    call.__doc__ = f"``{name}`` for asyncio: the loop is not blocked meanwhile."
    return call


class Parent(NamedTuple):
    """The session that another was delegated from, and its head then."""

    session_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Session:
    """One session of one user.  It holds no state: make as many as you like."""

    stream: StreamId
    writer: appends.Writer = field(repr=False)
    upkeep: Upkeep = field(default_factory=Upkeep, compare=False, repr=False)
    settings: contexts.Settings = field(
        default_factory=contexts.Settings, compare=False, repr=False
    )
    begins: Mapping[str, str] = field(
        default_factory=lambda: ports.NO_LABELS, compare=False, repr=False
    )

    @property
    def user_id(self) -> str:
        """Whose session it is."""
        return self.stream.user_id

    @property
    def session_id(self) -> str:
        """Its name."""
        return self.stream.session_id

    def append(
        self,
        events: appends.Appendable | Sequence[appends.Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """Record ``events``, all of them or none; durable when it returns.

        Each is validated, redacted and size-guarded before anything is written.

        events:          one or several; a Draft carries its own ts, meta and so on.
        request_id:      traces; many appends may share one.
        idempotency_key: makes a retry safe: the same key with the same content gives
                         the first receipt again, and writes nothing.
        ts:              when it happened, with a time zone; the clock if left out.
        expected_seq:    the seq the writer last saw; 0 = a new session, None =
                         whatever it is.
        unscanned:       what is done with a text that takes more work to redact than
                         the policy allows: the append is refused, or a stub is stored
                         for this text, ``[REDACTED:UNSCANNED n bytes]``.

        Raises InvalidEvent, EventTooLarge, RedactionFailed, StaleSession,
        IdempotencyConflict, SessionClosed, Erased, KeyUnavailable, StoreUnavailable.
        """
        beside = (ts, request_id, agent, Meta.of(meta) if meta else NO_META)
        drafts = appends.drafts_of(events, beside)
        order = appends.Order(
            self.stream, drafts, idempotency_key, expected_seq, unscanned=unscanned
        )
        receipt = self.writer.append(order)
        if self.upkeep.is_due:
            self._keep_up(order)
        return receipt

    def append_items(
        self,
        format: Format,  # noqa: A002  # as the field of Native is named
        items: Iterable[Any],
        *,
        expected_seq: int | None = None,
        request_id: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        opaque: Literal["refuse", "keep"] = "refuse",
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """Record items of a framework, each as the events that its format sees in it.

        What has an id is recorded once: of a batch that is known in part, the rest is
        appended.

        items:  as the framework gives them, or ``Native`` with kind and id; a ``Draft``
                between them is appended as it is.
        opaque: what is done with bytes in them, which no rule can read: the append is
                refused, or they are kept, and counted as unscanned.

        Raises what ``append`` raises.
        """
        beside = (ts, request_id, agent, Meta.of(meta) if meta else NO_META)
        new = Draft(LATER, *beside)
        drafts: list[Draft] = []
        for item in items:
            if isinstance(item, Draft):
                drafts.append(item)
                continue
            native = item
            if not isinstance(item, Native):
                native = Native(format, format.kind(item), format.id(item), item)
            if opaque == "refuse" and has_bytes(native.value):
                why = "bytes cannot be redacted: opaque='keep' keeps them as they are"
                raise errors.InvalidEvent(why)
            drafts.append(replace(new, native=native, key=native.key))
        unseen = self.begins and self.writer.heads.get(self.stream) is None
        begins = unseen and self.writer.log.head(self.stream).seq == 0
        if begins:
            drafts.insert(0, Draft(labelling(self.begins), key="labels"))
        order = appends.Order(
            self.stream, tuple(drafts), None, expected_seq, unscanned=unscanned
        )
        receipt = self.writer.append(order)
        if begins:
            self.writer.log.label(self.stream, self.begins)
        if self.upkeep.is_due:
            self._keep_up(order)
        return receipt

    @recorded("session_load", "items")
    def would_store(
        self,
        format: Format,  # noqa: A002  # as the field of Native is named
        items: Iterable[Any],
    ) -> list[Any]:
        """What would be read of these items if they were appended now, with stubs."""
        natives = (Native(format, value=one) for one in items)
        return [told for _, told in self.writer.judged(self.stream, natives)]

    def put_bytes(
        self, data: bytes, *, opaque: Literal["refuse", "keep"] = "refuse"
    ) -> appends.Receipt:
        """Record bytes, which no rule can read: ``keep`` says that they may be kept."""
        return self.append_items(Format("bytes"), [data], opaque=opaque)

    @recorded("session_load")
    def items(
        self,
        *,
        kind: str | None = None,
        after: int = 0,
        newest: int | None = None,
        spans: Sequence[tuple[int, int]] = (),
        others: bool = False,
    ) -> Iterator[NativeItem]:
        """The items behind this seq, whole, with their events; others are passed over.

        newest: only the last so many, in their order.
        spans:  only those of these first and last seqs, which are in order.
        others: events that are of no item too, as items of no format.
        """
        self.writer.used(self.stream)
        after = bounded("after", after)

        def read(page: Iterable[Envelope]) -> Iterator[NativeItem]:
            found = self._natives(page)
            return (one for one in found if one.format and kind in (None, one.kind))

        if spans:
            return read(self.writer.log.read(self.stream, spans=spans))
        if newest is None:
            every = self.pages(after)
            return self._natives(every) if others else read(every)
        last: list[NativeItem] = []
        newest = bounded("newest", newest)
        if not newest:
            return iter(())
        upto, size = self.head().seq, max(4 * newest, _LEAST_READ)
        while upto > after and len(last) < newest:
            first, size = max(after, upto - size), 2 * size
            page = self.writer.log.read(self.stream, after=first, upto=upto)
            # An item that begins before the page is read with the next one, whole.
            begin = first_of(page) if first > after else 0
            if begin < len(page):
                last, upto = [*read(page[begin:]), *last], page[begin].seq - 1
        return iter(last[-newest:])

    def _natives(self, envelopes: Iterable[Envelope]) -> Iterator[NativeItem]:
        """The items in these events, and the events that are of none."""

        def read(sha256: str) -> bytes | None:
            try:
                return self.writer.log.blob(self.stream, sha256)
            except errors.Expired:
                return None

        for native, events in groups(envelopes):
            if native is None:
                yield NativeItem(events[0].seq, "", events[0].type, None, None, events)
                continue
            record: Any = restored(dict(native), read)
            payloads = [restored(one.payload.payload(), read) for one in events]
            name, value = record.get("id"), whole(record, payloads, read)
            said = str(record.get("format")), str(record.get("kind"))
            yield NativeItem(events[0].seq, *said, name, value, events)

    @recorded("session_load")
    def fold(
        self,
        name: str,
        *,
        step: Callable[[Any, NativeItem], Any],
        start: Any = None,
        version: int = 1,
    ) -> Any:
        """What ``step`` makes, from ``start``, of each item and event in turn.

        It is kept beside the session, so that only what is new is folded. It is JSON.

        version: count it up when ``step`` changes.
        """
        key, log = f"fold{ports.BESIDE}{name}{ports.BESIDE}{version}", self.writer.log
        stored = log.load_view(self.stream, check_id("name", key))
        state, done = start, 0
        if stored is not None and "state" in stored.body:
            state, done = stored.body["state"], stored.through_seq
        last = done
        for item in self._natives(self.pages(done)):
            state, last = step(state, item), item.events[-1].seq
        if last - done >= contexts.WORTH_STORING:
            view = ports.StoredView(last, 0, {"state": state})
            replaces = stored.through_seq if stored else 0
            log.save_view(self.stream, key, view, replaces=replaces)
        return state

    @recorded("session_load")
    def follow(self, *, after: int = 0, every: float = 1.0) -> Iterator[Envelope]:
        """The events behind this seq, and those that come, until the session is closed.

        Those of this process come at once; of others, after ``every`` seconds at most.

        Raises SessionNotFound, and Erased once it is.
        """
        self.head()
        new = threading.Event()
        with self.writer.heads.heard(self.stream, new.set):
            while True:
                new.clear()
                closed = self.writer.log.head(self.stream).state.closed
                for envelope in self.pages(after):
                    yield envelope
                    after = envelope.seq
                if closed:
                    return
                new.wait(every)

    async def follow_async(
        self, *, after: int = 0, every: float = 1.0
    ) -> AsyncIterator[Envelope]:
        """``follow`` for asyncio."""
        await asyncio.to_thread(self.head)
        new, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(new.set)

        def read(place: int) -> tuple[list[Envelope], bool]:
            closed = self.writer.log.head(self.stream).state.closed
            return [*islice(self.pages(place), ports.PAGE)], closed

        with self.writer.heads.heard(self.stream, tell):
            while True:
                new.clear()
                page, closed = await asyncio.to_thread(read, after)
                for envelope in page:
                    yield envelope
                    after = envelope.seq
                if closed and len(page) < ports.PAGE:
                    return
                if len(page) < ports.PAGE:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(new.wait(), every)

    async def append_async(
        self,
        events: appends.Appendable | Sequence[appends.Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """``append`` for asyncio: the loop is not blocked meanwhile."""
        beside = (ts, request_id, agent, Meta.of(meta) if meta else NO_META)
        drafts = appends.drafts_of(events, beside)
        order = appends.Order(
            self.stream, drafts, idempotency_key, expected_seq, unscanned=unscanned
        )
        receipt = await self.writer.append_async(order)
        if "wait" in (self.upkeep.automatic, self.upkeep.remember):
            await asyncio.to_thread(self._keep_up, order)
        else:
            self._keep_up(order)
        return receipt

    def _keep_up(self, order: appends.Order) -> None:
        """Compact, and make the user's memory anew of the scenarios named here."""
        self.upkeep.appended(order.drafts[-1].event, self.stream, self.compact)
        if self.upkeep.remember != "off":
            from refold.store.memory import Adviser

            tags = {draft.meta.scenario for draft in order.drafts}
            learn = Adviser(self.writer, self.user_id).learn
            work = partial(learn, *(tag for tag in tags if tag))
            self.upkeep.learned(order.drafts, self.user_id, work)

    def attempt(
        self,
        what: str,
        *,
        request_id: str | None = None,
        agent: str | None = None,
        retryable: bool | None = None,
    ) -> Attempt:
        """``with session.attempt("parse the plan"):`` records it if that fails.

        An exception becomes an ``error`` event with its place in the code and in the
        session, and is raised again. Calls of the step without a result are closed with
        ``status="unknown"``. ``async with`` works too.

        retryable: whether trying again may help; left out, it may after a time-out, or
                   where a connection or the database failed.
        """
        return Attempt(self, what, request_id, agent, retryable)

    def end(self) -> appends.Receipt:
        """End the session for good: from here on it takes nothing but summaries.

        What the vault knows of it is gone.
        """
        receipt = self.append(SystemPrompt(closed=True))
        self.writer.vault.forget(self.user_id, self.session_id)
        return receipt

    def close(self) -> None:
        """Let go of what this object holds, which the session outlives.

        The session goes on: it can be opened again and appended to, here and elsewhere.
        May be called twice; ``with`` does it.  To end the session, use ``end``.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def fork(self, at: int, *, session_id: str) -> Session:
        """Begin another session that continues this one from ``at``, with its labels.

        Nothing is copied: its context reads this session's events first.  Calls that
        were open at ``at`` can be answered in both.

        Raises SessionNotFound, InvalidEvent if ``at`` is not a seq of this session,
        StaleSession if the new session exists already.
        """
        return self._pass_labels(self._forked(at, session_id=session_id))

    def _forked(self, at: int, *, session_id: str) -> Session:
        """``fork`` without the labels, for who appends all of its events."""
        check_session_id(session_id)
        head = self.head()
        if not 1 <= at <= head.seq:
            why = f"cannot fork at seq {at}: it is not in the session"
            raise errors.InvalidEvent(why)
        child = replace(self, stream=self.stream._replace(session_id=session_id))
        event = Fork(session_id=self.session_id, at_seq=at)
        order = appends.Order(child.stream, (Draft(event),), expected_seq=0)
        # What it inherits keeps its numbers, and they stand for nothing there.
        numbers = vault.inherited(head.state.numbers)
        state = born(self.writer.log, child.stream, event)
        born_at = ports.Head(state._replace(numbers=numbers))
        self.writer.append(order, born=born_at)
        return child

    def _pass_labels(self, child: Session) -> Session:
        """Give a session that goes on from this one its labels."""
        if labels := self._labels():
            child.append(labelling(labels))
            self.writer.log.label_like(child.stream, self.stream)
        return child

    def delegate(
        self, task: str, *, session_id: str, agent: str | None = None
    ) -> Session:
        """Begin a session of the same user for a sub-agent, with ``task`` as its input.

        It has the labels of this one, and shares no history: the task says what the
        sub-agent must know.  Its first event names the session it came from, and the
        seq, in ``meta.parent``.

        Raises SessionNotFound, StaleSession if the new session exists already.
        """
        meta = {"parent": {"session_id": self.session_id, "seq": self.head().seq}}
        check_session_id(session_id)
        child = replace(self, stream=self.stream._replace(session_id=session_id))
        child.append(UserInput(text=task), agent=agent, meta=meta, expected_seq=0)
        return self._pass_labels(child)

    def parent(self) -> Parent | None:
        """Where the session was delegated from; None if it was not."""
        first = self.events(limit=1)[0]
        link = (first.meta.model_extra or {}).get("parent")
        if not isinstance(link, dict):
            return None
        return Parent(str(link["session_id"]), int(link["seq"]))

    def hand_over(
        self, *, to: Session, call_id: str | None = None, agent: str | None = None
    ) -> appends.Receipt:
        """Give the sub-agent's result to the session it came from, once.

        The result is its ``final``, else its last answer. It becomes the result of the
        call ``call_id``, or an input. ``meta.source`` names its session and event. A
        second call adds nothing.

        Raises InvalidEvent if it was not delegated, has no result yet, or no such call
        is open; SessionNotFound for a session of another user.
        """
        if to.user_id != self.user_id:
            raise errors.SessionNotFound(self.user_id, to.session_id)
        if self.parent() is None:
            raise errors.InvalidEvent(f"session {self.session_id!r} was not delegated")
        seq, result = self._result(call_id)
        return to.append(
            result,
            agent=agent,
            meta={"source": {"session_id": self.session_id, "seq": seq}},
            idempotency_key=f"handed-over:{self.session_id}:{seq}",
        )

    def _result(self, call_id: str | None) -> tuple[int, Event]:
        """The seq of the session's result, and the event that gives it to another."""
        found = self.writer.log.read(self.stream, types=_ENDS, limit=1, newest=True)
        match found[0].payload if found else None:
            case FinalEvent(text=text, outcome=outcome):
                pass
            case AgentResponse(text=text) if text.strip():
                outcome = "unknown"
            case _:
                why = f"session {self.session_id!r} has no result yet"
                raise errors.InvalidEvent(why)
        about = {"session": self.session_id, "outcome": outcome}
        if call_id is None:
            return found[0].seq, UserInput(text=tagged("agent_result", text, **about))
        status: Literal["ok", "error"] = "error" if outcome == "failure" else "ok"
        return found[0].seq, ToolResult(call_id=call_id, content=text, status=status)

    @recorded("session_load", measure=head_seq)
    def head(self) -> ports.Head:
        """The session's end.  Raises SessionNotFound if it has not begun."""
        head = self.writer.log.head(self.stream)
        if head.seq == 0:
            raise errors.SessionNotFound(self.user_id, self.session_id)
        return head

    @recorded("session_load")
    def events(
        self, after: int = 0, limit: int | None = None, *, types: Sequence[str] = ()
    ) -> list[Envelope]:
        """The events of the main stream with ``seq > after``, at most ``limit``.

        types: only those of these types.

        Raises InvalidEvent if there is no such type.
        """
        self.writer.used(self.stream)
        self.head()
        types = check_types(types)
        after = bounded("after", after)
        limit = None if limit is None else bounded("limit", limit)
        log = self.writer.log
        return log.read(self.stream, after=after, limit=limit, types=types)

    @recorded("erasure", named=False)
    def delete(self, reason: str = "deleted", *, operator: str = "") -> None:
        """Erase the session: unreadable when this returns, its rows gone soon after.

        They are deleted in the background; what that is cut off from, ``refold erase
        --due`` does. Who asks ``store.named`` for the name has a new session.

        Raises OnHold under a legal hold, SessionNotFound.
        """
        from refold.store.erasure import Ask, Eraser, Erasure, whose_of

        eraser = Eraser(self.writer)
        whose = whose_of(self.user_id, self.session_id)
        job = eraser.begun(Ask(whose, reason, operator))
        if not isinstance(job, Erasure):
            job = eraser.shredded(job)
            name = ("delete", self.stream)
            self.upkeep.background.ask(name, partial(eraser.run, job))

    @recorded("session_load")
    def pages(self, after: int = 0, upto: int | None = None) -> Iterator[Envelope]:
        """The same as an iterator that reads a page at a time."""
        upto = None if upto is None else bounded("upto", upto)
        after = bounded("after", after)
        return read_on(self.writer.log, self.stream, after=after, upto=upto)

    @recorded("session_load")
    def derived(self, name: str) -> list[Envelope]:
        """The events of a derived stream, in its order."""
        check_id("stream", name)
        return self.writer.log.read(self.stream._replace(stream=name))

    @recorded("session_load", "streams")
    def streams(self) -> list[str]:
        """The names of the session's streams, the main one first."""
        return self.writer.log.streams(self.user_id, self.session_id)

    @recorded("session_blob")
    def blob(self, sha256: str) -> str:
        """The whole (redacted) text that a stub in an event stands for.

        Raises InvalidEvent if ``sha256`` is not 64 hex digits, CorruptEvent if the
        text is not this session's, or not there.
        """
        self.writer.used(self.stream)
        try:
            bytes.fromhex(sha256)
        except ValueError:
            why = "a blob is named by the 64 hex digits of its SHA-256"
            raise errors.InvalidEvent(why) from None
        stream: StreamId | None = self.stream
        while stream is not None:
            data = self.writer.log.blob(stream, sha256)
            if data is not None:
                return data.decode()
            # What a session was forked from is read with it, its blobs too.
            origin = self.writer.log.head(stream).state.forked_from
            stream = stream._replace(session_id=origin[0]) if origin else None
        reason = "there is no such blob"
        raise errors.CorruptEvent(f"blob {sha256}", seq=0, reason=reason)

    @recorded("session_load", "calls")
    def open_calls(self) -> list[ToolCall]:
        """The calls that wait for their results, whole, in the order they were made.

        What a program looks for when it starts again: each is carried out, or answered
        with ``ToolResult(status="unknown")``.  A fork has those of its origin, too.
        """
        log, state = self.writer.log, self.head().state
        waiting, found = dict(state.open_calls), list[ToolCall]()
        place: History | None = History.of(log, state)
        while waiting and place is not None:
            seqs = spans_of(sorted(call.seq for call in waiting.values()))
            page = log.read(place.stream, spans=seqs)
            made = [one for one in page if one.type == "tool_call"]
            calls = [history.uncut(log, one, ToolCall) for one in made]
            here = [one for one in calls if waiting.pop(one.call_id, None)]
            found, place = here + found, place.parent
        return found

    @recorded("session_load")
    def timeline(self, after: int = 0, limit: int | None = None) -> Iterator[Envelope]:
        """The events as they happened, summaries and their like where decided.

        A derived entry comes after its ``decided_at_seq``, marked by its stream.
        """
        self.writer.used(self.stream)
        self.head()
        limit = None if limit is None else bounded("limit", limit)
        names = [name for name in self.streams() if name != MAIN]
        derived = [entry for name in names for entry in self.derived(name)]
        return islice(history.merged(self.pages(after=after), derived, after), limit)

    @recorded("session_load", "keys")
    def state(self, at: int | None = None) -> JsonObject:
        """The session's working memory: what ``state`` events set and left set."""
        self.writer.used(self.stream)
        self.head()
        found = self._folded(at).items()
        return {name: value for name, value in found if not name.startswith(LABEL)}

    def _folded(self, at: int | None = None) -> JsonObject:
        state: JsonObject = {}
        log, at = self.writer.log, None if at is None else bounded("at", at)
        for envelope in log.read(self.stream, upto=at, types=("state",)):
            whole = history.with_blobs(log, envelope)
            state = history.fold_state(state, whole)
        return state

    def label(self, /, **labels: str | None) -> appends.Receipt:
        """Give the session labels by which ``store.sessions`` finds it; None takes one.

        They are recorded in it, redacted, and found by a keyed hash of what is given
        here.  That of the name ``project`` is the scope of memory layers.

        Raises InvalidEvent, and what an append raises.
        """
        receipt = self.append(labelling(labels))
        self.writer.log.label(self.stream, labels)
        return receipt

    @recorded("session_load", "labels")
    def labels(self) -> dict[str, str]:
        """The session's labels, as they are recorded, by name."""
        self.writer.used(self.stream)
        self.head()
        return self._labels()

    def _labels(self) -> dict[str, str]:
        found = sorted(self._folded().items())
        named = ((name, str(value)) for name, value in found if name.startswith(LABEL))
        return {name.removeprefix(LABEL): value for name, value in named}

    def at(self, seq: int) -> SessionAt:
        """The session as it was when ``seq`` was its newest event, to read.

        Raises InvalidEvent if it has no such event.
        """
        if not 1 <= seq <= self.head().seq:
            why = f"seq {seq} is not in session {self.session_id!r}"
            raise errors.InvalidEvent(why)
        return SessionAt(self, seq)

    @recorded("session_context", measure=view_size)
    def context(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        as_: contexts.As = "sent",
        reveal: bool = False,
        **handed: Unpack[HandedIn],
    ) -> View:
        """What the next model call is sent, or was sent when ``at`` was the end.

        It never compacts. Without ``strategy``: that of the last recorded request, else
        the settings', else everything raw.  ``as_`` matters only with
        ``at``: ``sent`` counts the summaries that were there then, ``rebuilt`` those
        decided up to there, whenever they were made.  HandedIn says what may be handed
        in; with ``at`` and nothing handed in, it is what the last request then had.
        ``reveal`` puts what the vault knows where numbered placeholders of this session
        stand; digest and tokens stay those of the redacted form.

        Raises SessionNotFound, UnknownStrategy, RedactionFailed, InvalidEvent for an
        ``at`` outside and for what cannot be handed in.
        """
        self.writer.used(self.stream)
        taken = contexts.take(self.writer, self.user_id, handed)
        if at is None:
            viewer, chosen, standing = self._opened(strategy)
            view = viewer.show(chosen, taken, standing=standing)
        else:
            viewer = self._viewer()
            self.at(at)
            chosen = self._chosen(viewer, strategy, at)
            taken = taken if handed else viewer.handed_at(at)
            view = viewer.render(chosen, viewer.at(chosen, at, as_), taken)
        return self.revealed(view) if reveal else view

    @recorded("session_context", measure=view_size)
    def revealed(self, view: View) -> View:
        """The view of this session with values where its placeholders stand.

        Only what the vault knows; what was handed in, or a fork inherited, stays.
        """
        put = self._revealing()
        messages, types = vault.in_own_blocks(view, put)
        if not types:
            return view
        key = self.writer.log.session_proof_key(self.stream)
        mac = vault.mac_of(key, [self.session_id, view.system, messages])
        return replace(view, messages=messages, revealed=types, revealed_mac=mac)

    @recorded("session_load", "arguments")
    def reveal(self, arguments: JsonObject, *, tool: str) -> JsonObject:
        """The arguments of a tool's call, to run it with: values for placeholders.

        Only of types that the store's vault allows for this tool.
        """
        types = self.writer.vault.allowed(tool)
        told: JsonObject = self._revealing()(arguments, types=types).value
        return told

    def _revealing(self) -> Callable[..., vault.Revealed]:
        """Puts what the vault has, or what is kept of the session, for placeholders."""
        state, now = self.head().state, self.writer.time.now()
        kept = vault.unexpired(state.kept, self.writer.redactor.plan, now)
        return partial(self.writer.vault.reveal, self.stream, state.numbers, kept=kept)

    acontext = _awaited(context)

    @recorded("memory_load")
    def advice(
        self, strategy: str | Strategy | None = None, **how: Unpack[ChoiceArgs]
    ) -> Advice:
        """What memory says to the model in this session: ``context(advice=…)``.

        It is chosen from the user's memory for the first request, and again after each
        compaction. In between it repeats what the last recorded request of this
        strategy had, so that a prompt begins as before. Items that expired or may no
        longer be shown disappear at the next call.

        Raises SessionNotFound, InvalidConfiguration, Erased.
        """
        # Who asks for no memory need not wait for what makes it.
        from refold.projections.memory.advice import choice_from
        from refold.store.memory import Adviser

        choosing = choice_from(how)
        chosen = self._chosen(self._viewer(), strategy, None)
        adviser = Adviser(self.writer, self.user_id)
        return adviser.for_session(self.stream, chosen, choosing)

    @recorded("compaction", only_failures=True)
    def compact(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Envelope | None:
        """Do one step of compaction if one is due: its summary, or None.

        Folds of older summaries that follow from it are done in the same step.
        """
        return self.compactor(strategy, summarizer=summarizer).step()

    @recorded("session_context", measure=view_size)
    def prepare(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
        wait: bool = True,
        model: str | None = None,
        reveal: bool = False,
        **handed: Unpack[HandedIn],
    ) -> View:
        """What an agent loop calls before the model: compact if due, then context.

        What it gives fits into the window: where that is not reached by what is due,
        the oldest is summarised until it is.

        wait:   False has a thread of the store compact, and gives the context as it is.
        model:  the model to ask: by the weights of its tokenizer it is judged what
                fits; left out, by the estimates that are stored.
        reveal: as of ``context``.

        Raises ContextTooLarge if no compaction helps, or is not waited for.
        """
        self.writer.used(self.stream)
        taken = contexts.take(self.writer, self.user_id, handed)
        viewer, chosen, standing = self._opened(strategy, prepares=True)
        compactor = self._compactor(viewer, chosen, summarizer)
        if not wait:
            name = (self.stream, chosen.fingerprint)
            self.upkeep.background.ask(name, compactor.step)
        outline = viewer.current(chosen, standing)
        if wait and compactor.is_due(outline):
            outline = compactor.catch_up(outline)
            view = viewer.show(chosen, taken, outline=outline)
        else:
            view = viewer.show(chosen, taken, standing=standing, outline=outline)
        window = taken.extras.window_tokens
        window = min(window, chosen.manner.window or window)
        pressed: Outline | None = None
        while (over := _over(view, window, model)) and not view.api:
            # Else the API makes it shorter.
            pressed = compactor.press(over, window, pressed) if wait else None
            if pressed:
                view = viewer.show(chosen, taken)
            if not pressed and _over(view, window, model) >= over:
                raise _too_large(over, window, chosen, view, taken, wait=wait)
        return self.revealed(view) if reveal else view

    aprepare = _awaited(prepare)

    @recorded("compaction", only_failures=True)
    def compactor(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Compactor:
        """What ``compact`` does its step with: it also says when one may be due."""
        viewer = self._viewer()
        chosen = self._chosen(viewer, strategy, None, prepares=True)
        return self._compactor(viewer, chosen, summarizer)

    def _compactor(
        self, viewer: contexts.Viewer, strategy: Strategy, summarizer: Summarizer | None
    ) -> Compactor:
        writes = summarizer or self.upkeep.summarizer or Abridged()
        return Compactor(
            self.writer, viewer, strategy, summarizer_for(strategy, writes)
        )

    @recorded("session_compare")
    def compare(
        self,
        strategies: Iterable[str | Strategy] | None = None,
        **how: Unpack[explanations.How],
    ) -> explanations.Compared:
        """What several strategies, or all, would have sent and cost; writes nothing."""
        return explanations.compare(self._viewer(), strategies, how, self.settings)

    def record_request(
        self,
        view: View,
        *,
        model: str | None = None,
        matches: bool | None = None,
        request_id: str | None = None,
    ) -> appends.Receipt:
        """Record that ``view`` was sent to a model, so that it can be shown again.

        matches: whether the bytes sent were those of the view.
        """
        request = view.request(model=model, matches=matches)
        return self.append(request, request_id=request_id)

    def activate(self, strategy: str | Strategy) -> bool:
        """Make this the strategy of readers that name none.

        They get that of the last recorded request, so one is recorded: what the next
        call is sent under the new strategy, with the status ``activated``.

        Returns False, with nothing changed, if they get it already, or if the session
        has ended: nothing is sent from it any more.  Raises SessionNotFound.
        """
        taken, ended = self.settings.strategy(strategy), self.head().status == "closed"
        if ended or self.default_fingerprint() == taken.fingerprint:
            return False
        self.append(self.context(taken).request(), meta={"status": ACTIVATED})
        return True

    def retire(self, fingerprint: str, *, why: str = "") -> bool:
        """Give up a strategy's derived stream: its stored view goes, its events stay.

        Returns False if there is none, or it was given up before.  A summary that is
        made in it later takes it up again.

        Raises InvalidConfiguration if readers that name no strategy get this one.
        """
        log = self.writer.log
        stream = self.stream._replace(stream=check_id("stream", fingerprint))
        if self.default_fingerprint() == fingerprint:
            raise errors.InvalidConfiguration(
                f"session {self.session_id!r} shows its context under the strategy "
                "that is to be retired: activate another one first"
            )
        if fingerprint == MAIN:  # what happened is no strategy's to give up
            return False
        newest = log.read(stream, limit=1, newest=True)
        retires = bool(newest) and getattr(newest[0].payload, "phase", "") != "retired"
        if retires:
            note = CompactionNote(phase="retired", why=why)
            self.writer.append(appends.Order(stream, (Draft(note),)))
        log.drop_view(self.stream, fingerprint)
        return retires

    def default_fingerprint(self) -> str:
        """The fingerprint of the strategy that readers get if they name none."""
        viewer = self._viewer()
        if viewer.history.newest_request and (sent := viewer.sent()) is not None:
            return sent[1].strategy.fingerprint
        return self.settings.strategy(None).fingerprint

    @recorded("session_rerun")
    def rerun(
        self,
        strategy: str | Strategy | None = None,
        *,
        prompt: str | None = None,
        model: Model | None = None,
    ) -> Rerun:
        """Make the recorded requests anew, and hold each against what was sent.

        Recorded responses and results answer; nothing is written.  Rules that the store
        did not redact with before find what they find.

        strategy: of all requests; left out, each keeps its own.
        prompt:   instead of the recorded system prompts.
        model:    answers from the first request that differs on, or that was another
                  model's; left out, no model is asked.

        Raises SessionNotFound, UnknownStrategy, RedactionFailed, and what the model
        raises.
        """
        self.writer.used(self.stream)
        chosen = None if strategy is None else self.settings.strategy(strategy)
        run = Rerunner(self.writer, self._viewer(), strategy=chosen, prompt=prompt)
        return run.run(model)

    @recorded("session_replay", "requests")
    def replay(self) -> Iterator[tuple[Envelope, View]]:
        """Each recorded request with the view it was made of, derived again."""
        self.writer.used(self.stream)
        views = contexts.RequestedViews(self._viewer())
        for envelope in self.writer.log.read(self.stream, types=("request",)):
            if isinstance(envelope.payload, Request):
                yield envelope, views.view(envelope.payload)

    @recorded("session_why")
    def why(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        message: int | None = None,
        chains: bool = True,
    ) -> explanations.Explanation:
        """Why the context at ``at`` is as it is, proved; raises as ``context`` does.

        chains: prove the hash chains too, for which the whole log is read.
        """
        self.writer.used(self.stream)
        if at is not None:
            self.at(at)
        viewer = self._viewer()
        chosen = self._chosen(viewer, strategy, at)
        explainer = explanations.Explainer(viewer, chosen)
        return explainer.explain(at, message=message, chains=chains)

    @recorded("session_review")
    def review(self, rules: ReviewRules | None = None) -> Reviewed:
        """Ask a human, by ``hitl`` events, what the rules say is to be asked.

        Each question is asked once, whoever asks, and even if the rule's figures
        change.

        rules: left out, those that are shipped.

        Raises SessionNotFound, and what an append raises: SessionClosed, Frozen …
        """
        return ask(self.writer, self.head(), rules)

    def decide(
        self, seq: int, decision: Decision, *, by: str, note: str = ""
    ) -> appends.Receipt:
        """Record what a human decided on the question at ``seq``.

        decision: ``accept``: the agent's work was right; ``reject``: it was wrong;
                  ``corrected``: a human mended it; ``dismissed``: it need not be said.
        by:       who decided; redacted, like all that is stored, and so is the note.

        Raises SessionNotFound, InvalidEvent for another decision and where no question
        is, AlreadyDecided where there is a decision, and what an append raises.
        """
        return decide_review(self.writer, self.stream, seq, decision, by=by, note=note)

    @recorded("session_verify", measure=verified_size)
    def verify(self, *, chain_only: bool = False) -> Verified:
        """Prove chains, heads, calls and results, and everything derived.

        chain_only: that the chains link up and end at the heads, and no more: nothing
                    is decrypted.
        """
        return Verifier(self.writer.log, self.stream, chain_only=chain_only).run()

    @recorded("session_catch_up", "views")
    def catch_up(self) -> int:
        """Bring the stored views to the head; returns how many moved."""
        self.head()
        log, scope = self.writer.log, ports.Scope(self.user_id, self.session_id)
        return contexts.bring_all_up(log, scope)

    @recorded("session_stats", "figures")
    def stats(self) -> dict[str, Any]:
        """What ``SessionStore.stats`` gives, of this session."""
        self.head()
        scope = ports.Scope(self.user_id, self.session_id)
        return self.writer.log.stats(scope, now=self.writer.clock())

    def _viewer(self) -> contexts.Viewer:
        log = self.writer.log
        return contexts.Viewer(log, History.of(log, self.head().state))

    def _opened(
        self, strategy: str | Strategy | None, *, prepares: bool = False
    ) -> tuple[contexts.Viewer, Strategy, ports.Standing]:
        """Of one read; if no strategy is named, it is looked up before."""
        log = self.writer.log
        viewer = self._viewer() if strategy is None else None
        chosen = self._chosen(viewer, strategy, None, prepares=prepares)
        standing = log.standing(self.stream, chosen.fingerprint, shown=True)
        if standing.head.seq == 0:
            raise errors.SessionNotFound(self.user_id, self.session_id)
        viewer = contexts.Viewer(log, History.of(log, standing.head.state))
        return viewer, chosen, standing

    def _chosen(
        self,
        viewer: contexts.Viewer | None,
        strategy: str | Strategy | None,
        at: int | None,
        *,
        prepares: bool = False,
    ) -> Strategy:
        if strategy is not None or viewer is None:
            return self.settings.strategy(strategy)
        newest = viewer.history.newest_request
        upto = newest if at is None else min(at, newest)
        sent = viewer.sent(upto=upto) if upto else None
        last = sent[1] if sent else None
        return self.settings.strategy(None, last, prepares=prepares)


class Extended(NamedTuple):
    """What an import did: events written, those that were there, findings by type."""

    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def take_in(
    session: Session,
    transcript: ports.Transcript,
    *,
    where: str,
    progress: Progress = bool,
    names: Mapping[str, str] = ports.NO_LABELS,
) -> Extended:
    """Append a transcript as ``extend`` does, with what Refold itself exported of it.

    A fork is forked again; ``names`` are those that sessions of the file have here.
    Summaries and requests are kept if the session becomes the one that it was, byte
    for byte.

    Raises ImportFailed.
    """
    if transcript.forked_from and session.writer.log.head(session.stream).seq == 0:
        _fork_again(session, transcript.forked_from, where, names)
    left: tuple[ports.Skipped, ...] = ()
    tag = session.writer.numbering(session.stream, {})
    # Where redaction finds more in it than was found when it was written:
    if transcript.has_records and any(
        _fitting(session, draft, tag)[1].found for draft in transcript.drafts
    ):
        whole, transcript = transcript, transcript.without_records()
        left = transcript.skipped[len(whole.skipped) :]
    ours = transcript.session_id in ("", session.session_id)
    done = extend(
        session, transcript.drafts, where=where, progress=progress, merges=ours
    )
    for name, drafts in transcript.derived:
        stream = session.stream._replace(stream=name)
        known = session.writer.log.head(stream).seq
        if new := drafts[known:]:
            try:
                session.writer.append(appends.Order(stream, new, expected_seq=known))
            except (errors.InvalidEvent, errors.StaleSession) as error:
                raise errors.ImportFailed(where, str(error)) from None
    return done._replace(skipped=(*left, *done.skipped))


def _fork_again(
    session: Session, origin: tuple[str, int], where: str, names: Mapping[str, str]
) -> None:
    name, at = origin
    stream = session.stream._replace(session_id=names.get(name, name))
    seqs = [
        one.seq
        for one in read_on(session.writer.log, stream)
        if isinstance(was := (one.meta.source or {}).get("seq"), int) and was <= at
    ]
    if not seqs:
        why = f"goes on from session {name!r}: import that first, from the same export"
        raise errors.ImportFailed(where, why)
    replace(session, stream=stream)._forked(max(seqs), session_id=session.session_id)


def _over(view: View, window: int, model: str | None) -> int:
    """How many tokens, as estimated, a view has too many for the window."""
    if model is None or view.tokens * _HEAVIEST < window:
        return view.over_budget
    real = tokens_of(view, model=model)
    return max(view.over_budget, ceil((real - window) * view.tokens / max(real, 1)))


def _too_large(
    over: int,
    window: int,
    strategy: Strategy,
    view: View,
    handed: contexts.Handed,
    *,
    wait: bool,
) -> errors.ContextTooLarge:
    """What would help a context that is over its window."""
    if not strategy.compacts:
        helps = f"{strategy.name} makes no summaries, turn_window does"
    elif not wait:
        helps = "a summary is written in the background: wait=True waits for it"
    else:
        prompt, given = estimate(view.system or ""), estimate(handed.extras.dump())
        helps = (
            f"its system prompt has about {prompt:,}, what is handed in {given:,}, "
            "and of the rest nothing more may be summarised"
        )
    return errors.ContextTooLarge(window + over, window, helps=helps)


def extend(
    session: Session,
    drafts: Sequence[Draft],
    *,
    where: str,
    progress: Progress = bool,
    merges: bool = False,
) -> Extended:
    """Append what ``drafts`` hold beyond what this session has of them.

    The drafts are a whole transcript, from its beginning; ``meta.source`` marks each
    as imported.  Drafts with keys belong to entries, which are there or not, whoever
    appended them.  Drafts without keys are compared with the imported events, in their
    order.

    Everything is judged before anything is written; then batches are written one after
    the other, so that an import that is cut off goes on where it stopped.  ``progress``
    is told how many drafts are done.

    merges: the transcript is of this session, also if the session has none of it yet.

    Raises ImportFailed, naming ``where``, if the transcript was rewritten since, or
    holds an event that the session does not accept.
    """
    for _ in range(_TRIES):
        head = session.writer.log.head(session.stream)
        tag = session.writer.numbering(session.stream, head.state.numbers)
        missing = _missing(session, head.state, drafts, where, tag, merges=merges)
        numbers = tag.known if isinstance(tag, vault.Numbering) else None
        with suppress(errors.StaleSession):
            known = len(drafts) - len(missing.prepared) - len(missing.refused)
            order = appends.Order(session.stream, (), None, head.seq, numbers=numbers)
            done = _append(session, order, missing.prepared, known, progress)
            return done._replace(skipped=missing.refused)
    why = "other writers keep changing this session: try again"
    raise errors.ImportFailed(where, why)


class _Missing(NamedTuple):
    """What a session lacks of a transcript, as it will be written, and what it refuses.

    An entry that is appended late may not fit any more: a result whose call was closed.
    """

    prepared: list[_Prepared]
    refused: tuple[ports.Skipped, ...] = ()


def _missing(
    session: Session,
    state: SessionState,
    drafts: Sequence[Draft],
    where: str,
    tag: Tagger,
    *,
    merges: bool,
) -> _Missing:
    new = _without_known(session, state, drafts, where, tag, merges=merges)
    refused: tuple[ports.Skipped, ...] = ()
    try:
        if len(new) < len(drafts):
            new, refused = _accepted(session, state, new)
        given = [draft.event for draft in new]
        events, _ = session.writer.decided(state, given, user_id=session.user_id)
        pairs = zip(new, events, strict=True)
        same = [one if one.event is e else replace(one, event=e) for one, e in pairs]
        fitting = [_fitting(session, draft, tag) for draft in same]
    except (errors.InvalidEvent, errors.SessionClosed, errors.EventTooLarge) as error:
        raise errors.ImportFailed(where, str(error)) from None
    log = session.writer.log
    now = from_microseconds(session.writer.clock())
    viewer = contexts.Viewer(log, History.of(log, state))
    redacted = with_requests(viewer, state, [event for _, event in fitting], now)
    prepared = [
        (draft, event) for (draft, _), event in zip(fitting, redacted, strict=True)
    ]
    return _Missing(prepared, refused)


def _without_known(
    session: Session,
    state: SessionState,
    drafts: Sequence[Draft],
    where: str,
    tag: Tagger,
    *,
    merges: bool,
) -> list[Draft]:
    """The drafts that the session has neither by their keys nor by their place."""
    imported = {
        envelope.seq: envelope
        for envelope in session.pages(upto=state.head_seq)
        if "format" in (envelope.meta.source or {})
    }
    keys = [draft.key for draft in drafts if draft.key]
    known = session.writer.log.known(session.stream, keys) if keys else {}
    if not known and not merges:
        # Another transcript under this name, or one that an earlier version imported.
        return _behind_equal(session, drafts, [*imported.values()], where, tag)
    rest: list[Draft] = []
    present = False  # whether the session has the entry of the draft
    for draft in drafts:
        if draft.key is None:
            present = False
        elif not draft.continues:
            present = draft.key in known
        if not present:
            rest.append(draft)
            continue
        place = known.get(draft.key or "")
        envelope = imported.get(place.first_seq) if place else None
        if envelope is not None and not _same(session, draft, envelope, tag):
            raise _rewritten(session, envelope, where)
    for first, last in known.values():
        for seq in range(first, last + 1):
            imported.pop(seq, None)
    if not known:
        return _behind_equal(session, rest, [*imported.values()], where, tag)
    # Earlier versions gave entries no keys: there an entry is known by its place.
    places = {_place_of(one.meta): one for one in imported.values()}
    return [
        draft
        for draft in rest
        if (stored := places.get(_place_of(draft.meta))) is None
        or not _same(session, draft, stored, tag)
    ]


def _place_of(meta: Meta) -> tuple[object, object]:
    """The id of an imported entry, and its place in the file."""
    source = meta.source or {}
    return source.get("id"), source.get("place")


def _behind_equal(
    session: Session,
    drafts: Sequence[Draft],
    imported: Sequence[Envelope],
    where: str,
    tag: Tagger,
) -> list[Draft]:
    """The drafts behind those that were imported, one for one."""
    for draft, envelope in zip(drafts, imported, strict=False):
        if not _same(session, draft, envelope, tag):
            raise _rewritten(session, envelope, where)
    return [*drafts[len(imported) :]]


def _rewritten(session: Session, envelope: Envelope, where: str) -> errors.ImportFailed:
    why = (
        f"the transcript was rewritten: seq {envelope.seq} of session "
        f"{session.session_id!r} holds something else; import it into another session"
    )
    return errors.ImportFailed(where, why, seq=envelope.seq)


def _accepted(
    session: Session, state: SessionState, drafts: Sequence[Draft]
) -> tuple[list[Draft], tuple[ports.Skipped, ...]]:
    """The drafts that the session accepts as it stands, and the others as skipped."""
    accepted: list[Draft] = []
    refused: list[ports.Skipped] = []
    for draft in drafts:
        try:
            _, state = session.writer.decided(
                state, [draft.event], user_id=session.user_id
            )
        except errors.InvalidEvent as error:
            place = str((draft.meta.source or {}).get("place", ""))
            refused.append(ports.Skipped(place, f"comes too late: {error}"))
        else:
            accepted.append(draft)
    return accepted, tuple(refused)


def _same(session: Session, draft: Draft, envelope: Envelope, tag: Tagger) -> bool:
    """Whether the draft is what was recorded, also if the rules changed since."""
    event, stored = draft.event, envelope.payload
    if event.type != envelope.type:
        return False
    # A client may write the tokens of an answer behind it, after an import.
    without_usage = isinstance(stored, AgentResponse) and stored.usage is None
    if isinstance(event, AgentResponse) and without_usage:
        draft = replace(draft, event=event.model_copy(update={"usage": None}))
    incoming = _fitting(session, draft, tag)[1].event
    if appends.same_event(envelope.payload, incoming):
        return True
    again = _redact(session, replace(draft, event=envelope.payload), tag)
    known = appends.superseded(envelope, incoming)
    return known or appends.same_event(again.event, incoming)


def _fitting(session: Session, draft: Draft, tag: Tagger) -> _Prepared:
    """Redact; what is too large in many small pieces is kept as one text and a blob."""
    try:
        return draft, _redact(session, draft, tag)
    except errors.EventTooLarge:
        if (event := appends.as_text(draft.event)) is None:
            raise
    whole = replace(draft, event=event, meta=draft.meta.warned("kept_as_text"))
    return whole, _redact(session, whole, tag)


def _redact(session: Session, draft: Draft, tag: Tagger) -> RedactedEvent:
    writer, user_id = session.writer, session.user_id
    now = writer.clock()
    return writer.redacted(draft, user_id=user_id, now=now, unscanned="stub", tag=tag)


def _append(
    session: Session,
    order: appends.Order,
    new: Sequence[_Prepared],
    known: int,
    progress: Progress,
) -> Extended:
    found = Counter[str]()
    present = known
    progress(known)
    for batch in _batches(new):
        drafts, redacted = zip(*batch, strict=True)
        receipt = session.writer.append(
            order._replace(drafts=drafts, prepared=redacted)
        )
        order = order._replace(expected_seq=receipt.last_seq)
        for event in redacted:
            found.update(event.found)
        known += len(batch)
        progress(known)
    labels: dict[str, str | None] = {}
    for draft, _ in new:
        labels |= labels_in(draft.event)
    if labels:
        session.writer.log.label(session.stream, labels)
    return Extended(len(new), present, found)


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    """The drafts in batches; those of one entry are written together."""
    batch: list[_Prepared] = []
    for draft, event in prepared:
        if len(batch) >= _BATCH and not draft.continues:
            yield batch
            batch = []
        batch.append((draft, event))
    if batch:
        yield batch
