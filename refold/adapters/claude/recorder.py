"""A client of the Messages API that records what it is asked and what it answers.

The context of each call comes from the session: what is new is recorded, what is due
is compacted, the request is recorded, and only then is anything sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from refold.adapters.claude.answers import plain
from refold.adapters.claude.book import Asked, Book, Content
from refold.adapters.claude.turns import news, normal
from refold.domain.errors import InvalidConfiguration, RecordingFailed
from refold.domain.events import JsonObject
from refold.projections.context.extras import HandedIn

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream, MessageStream
    from anthropic.types import Message

    from refold.projections.context.strategy import Strategy
    from refold.projections.context.summarizer import Summarizer
    from refold.store.sessions import Session


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
