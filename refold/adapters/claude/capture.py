"""A client of the Messages API that records what it is asked and what it answers.

The context of each call comes from the session: what is new is recorded, what is due
is compacted, the request is recorded, and only then is anything sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Unpack

from refold.adapters.claude.messages import (
    broken_off,
    error_of,
    events_of,
    events_of_user,
    news,
    normal,
    plain,
)
from refold.adapters.claude.tools import not_recorded
from refold.domain.canonical import canonical
from refold.domain.envelope import Meta
from refold.domain.errors import (
    InvalidConfiguration,
    InvalidEvent,
    RecordingFailed,
    RefoldError,
    UnknownModel,
)
from refold.domain.events import Event, JsonObject
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import HandedIn
from refold.projections.models import window_of
from refold.store.sessions import Session

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream, MessageStream
    from anthropic.types import Message

log = logging.getLogger("refold")

Content: TypeAlias = str | Event | Sequence[Any] | None
_OURS: Final = frozenset(
    {"model", "max_tokens", "system", "messages", "tools", "stream"}
)
# Of the client, not of what the model is sent; headers may hold secrets.
_UNTOLD: Final = frozenset({"extra_headers", "extra_query", "timeout"})
_BETAS: Final = {
    "clear_": "context-management-2025-06-27",
    "compact_": "compact-2026-01-12",
}


class Asked(NamedTuple):
    """A request that is recorded and may be sent: what the SDK's ``create`` takes.

    ``began_at`` is in microseconds; ``beta`` is whether only the beta API takes it.
    """

    body: dict[str, Any]
    began_at: int
    request_id: str | None
    beta: bool


@dataclass(frozen=True, slots=True)
class Book:
    """One session, and how its model is asked."""

    session: Session
    model: str
    max_tokens: int
    strategy: str | Strategy | None = None
    summarizer: Summarizer | None = None
    agent: str | None = None
    handed: HandedIn = field(default_factory=HandedIn)

    @property
    def chosen(self) -> str | Strategy | None:
        """The strategy, for this agent if it is one of several."""
        if self.agent is None:
            return self.strategy
        return self.session.settings.for_agent(self.agent, self.strategy)

    @property
    def window(self) -> HandedIn:
        """What the model's window leaves for a request; nothing if it is not known."""
        try:
            return {"window": max(1, window_of(self.model) - self.max_tokens)}
        except UnknownModel:
            return {}

    def ask(
        self,
        content: Content,
        *,
        request_id: str | None,
        options: Mapping[str, Any] | None,
        handed: HandedIn,
    ) -> Asked:
        """Record what the user brings, and the request, before anything is sent."""
        told = _told(options or {})
        events = events_of_user(content)
        if events:
            self._brought(events, request_id)
        given: HandedIn = {**self.window, **self.handed, **handed}
        view = self.session.prepare(self.chosen, summarizer=self.summarizer, **given)
        body = view.to_request(model=self.model, max_tokens=self.max_tokens)
        body |= options or {}
        betas = [*body.get("betas", ()), *_betas(body)]
        if betas:
            body["betas"] = list(dict.fromkeys(betas))
        self.session.append(
            view.request(model=self.model, matches=True),
            request_id=request_id,
            agent=self.agent,
            meta={"max_tokens": self.max_tokens, **({"options": told} if told else {})},
        )
        return Asked(body, self.session.writer.clock(), request_id, bool(betas))

    def _brought(self, events: list[Event], request_id: str | None) -> None:
        """Record what the user brings, and no result that is recorded already."""
        try:
            self.session.append(events, request_id=request_id, agent=self.agent)
        except InvalidEvent:
            new = not_recorded(self.session, events)
            if len(new) == len(events):
                raise
            if new:
                self.session.append(new, request_id=request_id, agent=self.agent)

    def answered(self, asked: Asked, message: Any) -> None:
        """Record a whole answer.  Raises RecordingFailed, which has it."""
        try:
            self.record(
                plain(message), request_id=asked.request_id, took=self._took(asked)
            )
        except Exception as error:
            raise RecordingFailed(message, error) from error

    def broke_off(
        self, asked: Asked, message: Any, error: BaseException | None
    ) -> None:
        """Record what came of an answer, and why no more did.

        Raises RecordingFailed if something came; else ``error`` is what is raised.
        """
        if message is not None and message.stop_reason is not None:
            self.answered(asked, message)
            return
        said = plain(message)
        try:
            self.session.append(
                broken_off(said, error_of(error)),
                request_id=asked.request_id,
                agent=self.agent,
                meta=_meta(said or {}, self._took(asked)),
            )
        except RefoldError as failure:
            if message is not None:
                raise RecordingFailed(message, failure) from failure
            log.warning("a failed call of the model could not be recorded: %s", failure)

    def record(
        self,
        message: JsonObject,
        *,
        request_id: str | None = None,
        took: float | None = None,
    ) -> None:
        """Record an answer; the same answer again is the same record."""
        key = message.get("id")
        self.session.append(
            events_of(message),
            request_id=request_id,
            agent=self.agent,
            meta=_meta(message, took),
            idempotency_key=f"response:{key}" if key else None,
        )

    def _took(self, asked: Asked) -> float:
        return max(0, self.session.writer.clock() - asked.began_at) / 1000


def _meta(message: JsonObject, took: float | None) -> Meta:
    known = {"model": message.get("model"), "response_id": message.get("id")}
    return Meta.of({**known, "duration_ms": took})


def _told(options: Mapping[str, Any]) -> JsonObject:
    """Of the options what the request's record says: what the API acts on."""
    body = options.get("extra_body")
    inside = body.keys() if isinstance(body, Mapping) else set()
    taken = sorted(_OURS & (options.keys() | inside))
    if taken:
        raise InvalidConfiguration(
            f"options: {taken[0]} is what the recorder sets from the session and from "
            "its own arguments"
        )
    told = {key: value for key, value in options.items() if key not in _UNTOLD}
    try:
        canonical(told)
    except TypeError:
        raise InvalidConfiguration("options: must be JSON, to be recorded") from None
    return told


def _betas(body: Mapping[str, Any]) -> list[str]:
    """The betas that the context management of a request needs."""
    edits = body.get("context_management", {}).get("edits", ())
    kinds = [edit["type"] for edit in edits]
    return [
        beta
        for start, beta in _BETAS.items()
        if any(kind.startswith(start) for kind in kinds)
    ]


class _Base:
    """What the two recorders share: the book, and recording after the fact.

    session:    whose context is sent, and where everything is recorded.
    strategy:   left out, the one that ``session.context`` would take.
    summarizer: who writes the summaries; left out, ``abridged``.
    agent:      whose events these are, if there are several in the session: only what
                it sees of the others is sent (readers.seen_by).
    handed:     system, tools, examples and so on for every call (HandedIn); those of a
                call come before them.
    """

    def __init__(
        self,
        client: Any,
        session: Session,
        *,
        model: str,
        max_tokens: int,
        strategy: str | Strategy | None = None,
        summarizer: Summarizer | None = None,
        agent: str | None = None,
        **handed: Unpack[HandedIn],
    ) -> None:
        if not model.strip():
            raise InvalidConfiguration("the recorder needs the name of a model")
        if max_tokens < 1:
            raise InvalidConfiguration(f"max_tokens must be above 0, not {max_tokens}")
        self.client, self.session = client, session
        self._book = Book(
            session, model, max_tokens, strategy, summarizer, agent, handed
        )

    def record(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        response: Message | Mapping[str, Any] | None = None,
        system: str | None = None,
        tools: Sequence[JsonObject] = (),
        request_id: str | None = None,
    ) -> None:
        """Record a call that was made without the recorder.

        Of ``messages``, as they were sent, what is new is recorded, then the request,
        then ``response``.  The request says whether what was sent is what the session
        would have sent: with text that had to be redacted, it is not.  Without
        messages, the response alone is recorded; the same one again is no second one.

        Where the messages do not hold what the session ends with, those behind their
        last answer are recorded, and ``meta.warnings`` has ``history_differs``.

        Raises InvalidEvent for a message that cannot be told, and what ``append``
        raises; RecordingFailed if that is for the response.
        """
        book, session = self._book, self.session
        if messages:
            found = news(session, messages)
            warned = (
                {"warnings": [{"code": "history_differs"}]} if found.differs else {}
            )
            if found.events:
                session.append(
                    found.events, request_id=request_id, agent=book.agent, meta=warned
                )
            handed: HandedIn = {**book.window, "tools": tools}
            if system is not None:
                handed["system"] = system
            view = session.context(book.chosen, **handed)
            same = normal(messages) == view.messages and system == view.system
            session.append(
                view.request(model=book.model, matches=same),
                request_id=request_id,
                agent=book.agent,
            )
        if response is not None:
            try:
                book.record(plain(response), request_id=request_id)
            except Exception as error:
                raise RecordingFailed(response, error) from error


class Recorder(_Base):
    """Asks Claude through ``anthropic.Anthropic``, and records it."""

    client: Anthropic

    def create(
        self,
        content: Content = None,
        *,
        request_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        **handed: Unpack[HandedIn],
    ) -> Message:
        """Send the session's context, ``content`` being what the user adds to it.

        content: a text; blocks of a user's message, such as results of tools; events;
                 or None, if all is recorded already.
        options: whatever else the API takes, such as ``tool_choice`` or ``thinking``.
        handed:  what is handed in for this call (HandedIn).

        Raises what the SDK raises, recorded as an ``error``; what ``session.append``
        and ``session.prepare`` raise, before anything is sent; RecordingFailed, with
        the answer, if it cannot be recorded.
        """
        asked = self._book.ask(
            content, request_id=request_id, options=options, handed=handed
        )
        try:
            message: Message = _api(self.client, asked).create(**asked.body)
        except BaseException as error:
            self._book.broke_off(asked, None, error)
            raise
        self._book.answered(asked, message)
        return message

    @contextmanager
    def stream(
        self,
        content: Content = None,
        *,
        request_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        **handed: Unpack[HandedIn],
    ) -> Iterator[MessageStream]:
        """The same as the SDK's stream; the answer is recorded when the block ends.

        What breaks off, or is left early, is recorded as far as it came, with the
        ``stop_reason`` ``interrupted``, and an ``error``.  Its calls are no calls.
        """
        asked = self._book.ask(
            content, request_id=request_id, options=options, handed=handed
        )
        stream = None
        try:
            with _api(self.client, asked).stream(**asked.body) as stream:
                yield stream
        except BaseException as error:
            self._book.broke_off(asked, _came(stream), error)
            raise
        self._book.broke_off(asked, _came(stream), None)


class AsyncRecorder(_Base):
    """The same through ``anthropic.AsyncAnthropic``; the loop is never blocked.

    ``record`` is the one exception: call it in a thread.
    """

    client: AsyncAnthropic

    async def create(
        self,
        content: Content = None,
        *,
        request_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        **handed: Unpack[HandedIn],
    ) -> Message:
        """``Recorder.create`` for asyncio."""
        book = self._book
        asked = await asyncio.to_thread(
            book.ask, content, request_id=request_id, options=options, handed=handed
        )
        try:
            message: Message = await _api(self.client, asked).create(**asked.body)
        except BaseException as error:
            await _in_thread(book.broke_off, asked, None, error)
            raise
        await _in_thread(book.answered, asked, message)
        return message

    @asynccontextmanager
    async def stream(
        self,
        content: Content = None,
        *,
        request_id: str | None = None,
        options: Mapping[str, Any] | None = None,
        **handed: Unpack[HandedIn],
    ) -> AsyncIterator[AsyncMessageStream]:
        """``Recorder.stream`` for asyncio."""
        book = self._book
        asked = await asyncio.to_thread(
            book.ask, content, request_id=request_id, options=options, handed=handed
        )
        stream = None
        try:
            async with _api(self.client, asked).stream(**asked.body) as stream:
                yield stream
        except BaseException as error:
            await _in_thread(book.broke_off, asked, _came(stream), error)
            raise
        await _in_thread(book.broke_off, asked, _came(stream), None)


async def _in_thread(record: Any, *arguments: Any) -> None:
    """Record to the end, even if the task is cancelled meanwhile."""
    await asyncio.shield(asyncio.to_thread(record, *arguments))


def _api(client: Any, asked: Asked) -> Any:
    return client.beta.messages if asked.beta else client.messages


def _came(stream: Any) -> Any:
    """The message as far as it came, or None."""
    try:
        return stream.current_message_snapshot
    except (AssertionError, AttributeError):
        return None
