"""A client of the Messages API whose calls are captured in a session, and its tools.

The context of each call comes from the session: what is new is recorded, what is due
is compacted, the request is recorded, and only then is anything sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Unpack

from anthropic import AnthropicError

from refold.adapters.claude import messages as chat
from refold.adapters.claude.messages import events_of, plain
from refold.adapters.claude.summarizer import failure, own_client
from refold.adapters.claude.tools import not_recorded
from refold.domain import errors
from refold.domain.canonical import canonical, repaired
from refold.domain.envelope import Meta
from refold.domain.events import Event, JsonObject
from refold.projections.context.budget import HandedIn
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.projections.models import window_of
from refold.store.session.session import Session

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream, MessageStream
    from anthropic.types import Message

log = logging.getLogger("refold")

Content: TypeAlias = str | Event | Sequence[Any] | None
_OURS: Final = frozenset(
    {"model", "max_tokens", "system", "messages", "tools", "stream"}
)
# Of the client, not of what the model is sent; headers and tokens are secrets.
_UNTOLD: Final = frozenset(
    {"extra_headers", "extra_query", "timeout", "fallback_credit_token"}
)
# What is not recorded of an MCP server.
_SERVER_SECRETS: Final = frozenset({"authorization_token"})
_BETAS: Final = {
    "clear_": "context-management-2025-06-27",
    "compact_": "compact-2026-01-12",
}


class Brought(HandedIn, total=False):
    """What a call may have besides its content: HandedIn, and these.

    request_id: by which the call is traced.
    options:    whatever else the API takes, such as ``tool_choice`` or ``thinking``.
    """

    request_id: str | None
    options: Mapping[str, Any] | None


class Asked(NamedTuple):
    """A request that is recorded and may be sent: what the SDK's ``create`` takes.

    ``api`` is the client's that takes it.  ``began_at`` is in microseconds.
    """

    body: dict[str, Any]
    api: Any
    began_at: int
    request_id: str | None


class _Captured:
    """What the two captures share: a session, how its model is asked, and recording.

    session:    whose context is sent, and where everything is recorded.
    strategy:   left out, the one that ``session.context`` would take.
    summarizer: who writes the summaries; left out, ``abridged``.
    agent:      whose events these are, if there are several in the session: only what
                it sees of the others is sent (store.contexts.for_agent).
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
            raise errors.InvalidConfiguration("the capture needs the name of a model")
        if max_tokens < 1:
            raise errors.InvalidConfiguration(
                f"max_tokens must be above 0, not {max_tokens}"
            )
        writer = session.writer  # whose vault has the values of numbered placeholders
        writer = replace(writer, redactor=writer.redactor.numbering)
        self.client, self.session = client, replace(session, writer=writer)
        self._model, self._max_tokens, self._agent = model, max_tokens, agent
        self._strategy, self._summarizer, self._handed = strategy, summarizer, handed

    def record(
        self,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        response: Message | Mapping[str, Any] | None = None,
        system: str | Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[JsonObject] = (),
        request_id: str | None = None,
    ) -> None:
        """Record a call that was made without the capture.

        ``response`` is the SDK's, its raw response (``with_raw_response``), or JSON.

        Of ``messages``, as they were sent, what is new is recorded, then the request,
        then ``response``.  The request says whether what was sent is what the session
        would have sent: with text that had to be redacted, it is not.  Without
        messages, the response alone is recorded.  A response that the session has
        already is not recorded again, nor are its messages.

        Where the messages do not hold what the session ends with, those behind their
        last answer are recorded, and ``meta.warnings`` has ``history_differs``.

        Raises InvalidEvent for a message that cannot be told, and what ``append``
        raises; RecordingFailed if that is for the response.
        """
        response = chat.parsed(response)
        if messages:
            found = chat.news(self.session, messages)
            if found.differs and self._has_recorded(response):
                return
            warnings = [{"code": "history_differs"}] if found.differs else []
            warned = {"warnings": warnings}
            if found.events:
                self._append(found.events, request_id, warned)
            handed: HandedIn = {**self._window(), "tools": tools}
            system = chat.system_text(system)
            if system is not None:
                handed["system"] = system
            view = self.session.context(self._chosen(), **handed)
            same = chat.normal(messages) == view.messages and system == view.system
            self._append(view.request(model=self._model, matches=same), request_id)
        if response is not None:
            self._answer(response, request_id)

    def _has_recorded(self, response: Any) -> bool:
        """Whether the session has this response, known by the provider's id."""
        name = (plain(response) or {}).get("id")
        if not name:
            return False
        responses = self.session.events(types=("agent_response",))
        return any(event.meta.response_id == name for event in responses)

    def _chosen(self, *, prepares: bool = False) -> str | Strategy | None:
        """The strategy, for this agent if it is one of several."""
        if self._agent is None:
            return self._strategy
        settings = self.session.settings
        return settings.for_agent(self._agent, self._strategy, prepares=prepares)

    def _window(self) -> HandedIn:
        """What the model's window leaves for a request; nothing if it is not known."""
        try:
            return {"window": max(1, window_of(self._model) - self._max_tokens)}
        except errors.UnknownModel:
            return {}

    def _append(
        self,
        events: Event | Sequence[Event],
        request_id: str | None,
        meta: Mapping[str, Any] | Meta | None = None,
        *,
        key: str | None = None,
    ) -> None:
        self.session.append(
            events,
            request_id=request_id,
            agent=self._agent,
            meta=meta,
            idempotency_key=key,
            # The conversation goes on: one text must not cost the rest of it.
            unscanned="stub",
        )

    def _ask(self, content: Content, brought: Brought) -> Asked:
        """Record what the user brings, and the request, before anything is sent."""
        handed: dict[str, Any] = {**brought}
        request_id = handed.pop("request_id", None)
        options = {**(handed.pop("options", None) or {})}
        told = _told(options)
        api = self._api(options)
        given: Any = {**self._window(), **self._handed, **handed}
        blocks = given.get("system")
        if not isinstance(blocks, str | None):
            given["system"] = chat.system_text(blocks)
            told["system_blocks"] = chat.layout(blocks)
        if events := chat.events_of_user(content):
            try:
                self._append(events, request_id)
            except errors.InvalidEvent:  # some results in it may be recorded already
                new = not_recorded(self.session, events)
                if len(new) == len(events):
                    raise
                if new:
                    self._append(new, request_id)
        view = self.session.prepare(
            self._chosen(prepares=True),
            summarizer=self._summarizer,
            model=self._model,
            **given,
        )
        view = self.session.vault.reveal_view(view)
        body = view.to_request(model=self._model, max_tokens=self._max_tokens)
        in_blocks = not isinstance(blocks, str | None)
        if in_blocks and chat.system_text(body.get("system")) == given["system"]:
            body["system"] = chat.plain([*blocks])
        body |= options
        betas = [*body.get("betas", ()), *_betas(body)]
        if betas:
            body["betas"] = list(dict.fromkeys(betas))
            api = self.client.beta.messages
        meta = {"max_tokens": self._max_tokens, **({"options": told} if told else {})}
        self._append(view.request(model=self._model, matches=True), request_id, meta)
        return Asked(body, api, self.session.writer.clock(), request_id)

    def _api(self, options: Mapping[str, Any]) -> Any:
        """What of the client takes these options: the beta, if nothing else does.

        Raises InvalidConfiguration for one that neither takes, before anything is
        recorded.
        """
        if not _unknown(self.client.messages, options):
            return self.client.messages
        unknown = _unknown(self.client.beta.messages, options)
        if unknown:
            raise errors.InvalidConfiguration(
                f"options: the SDK has no {unknown[0]!r}: check the spelling, or put "
                "it into the option extra_body"
            )
        return self.client.beta.messages

    def _answer(
        self, answer: Any, request_id: str | None, took: float | None = None
    ) -> None:
        """Record a whole answer; the same answer again is the same record.

        Raises RecordingFailed, which has it.
        """
        try:
            message = plain(answer)
            name, _ = repaired(message.get("id"))
            key = f"response:{name}" if name else None
            self._append(events_of(message), request_id, _meta(message, took), key=key)
        except Exception as error:
            raise errors.RecordingFailed(answer, error) from error

    def _answered(self, asked: Asked, message: Any) -> None:
        self._answer(message, asked.request_id, self._took(asked))

    def _reveal(self, message: Any) -> None:
        """Put values into the arguments of calls, as the store's vault allows."""
        for block in message.content:
            if block.type == "tool_use" and isinstance(block.input, dict):
                block.input = self.session.vault.reveal(block.input, tool=block.name)

    def _revealed(self, message: Any) -> Any:
        """The same in a copy: what is recorded is the stream's own."""
        copy = message.model_copy(deep=True)
        self._reveal(copy)
        return copy

    def _broke_off(
        self, asked: Asked, message: Any, error: BaseException | None
    ) -> None:
        """Record what came of an answer, and why no more did.

        Raises RecordingFailed if something came; else ``error`` is what is raised.
        """
        if message is not None and message.stop_reason is not None:
            self._answered(asked, message)
            return
        said = plain(message)
        try:
            meta = _meta(said or {}, self._took(asked))
            self._append(
                chat.broken_off(said, chat.error_of(error)), asked.request_id, meta
            )
        except errors.RefoldError as failure:
            if message is not None:
                raise errors.RecordingFailed(message, failure) from failure
            log.warning("a failed call of the model could not be recorded: %s", failure)

    def _took(self, asked: Asked) -> float:
        return max(0, self.session.writer.clock() - asked.began_at) / 1000


class Capture(_Captured):
    """Asks Claude through ``anthropic.Anthropic``, and records it."""

    client: Anthropic

    def create(self, content: Content = None, **more: Unpack[Brought]) -> Message:
        """Send the session's context, ``content`` being what the user adds to it.

        content: a text; blocks of a user's message, such as results of tools; events;
                 or None, if all is recorded already.
        more:    what else the call has (Brought).

        Raises what the SDK raises, recorded as an ``error``; what ``session.append``
        and ``session.prepare`` raise, before anything is sent; RecordingFailed, with
        the answer, if it cannot be recorded.
        """
        asked = self._ask(content, more)
        try:
            message: Message = asked.api.create(**asked.body)
            chat.check_message(message)
        except BaseException as error:
            self._broke_off(asked, None, error)
            raise
        self._answered(asked, message)
        self._reveal(message)
        return message

    @contextmanager
    def stream(
        self, content: Content = None, **more: Unpack[Brought]
    ) -> Iterator[MessageStream]:
        """The same as the SDK's stream; the answer is recorded when the block ends.

        What breaks off, or is left early, is recorded as far as it came, with the
        ``stop_reason`` ``interrupted``, and an ``error``.  Its calls are no calls.
        """
        asked = self._ask(content, more)
        stream = None
        try:
            with asked.api.stream(**asked.body) as stream:
                whole = stream.get_final_message

                def revealed() -> Any:
                    return self._revealed(whole())

                stream.get_final_message = revealed
                yield stream
        except BaseException as error:
            self._broke_off(asked, _came(stream), error)
            raise
        self._broke_off(asked, _came(stream), None)


class AsyncCapture(_Captured):
    """The same through ``anthropic.AsyncAnthropic``; the loop is never blocked.

    ``record`` is the one exception: call it in a thread.
    """

    client: AsyncAnthropic

    async def create(self, content: Content = None, **more: Unpack[Brought]) -> Message:
        """``Capture.create`` for asyncio."""
        asked = await asyncio.to_thread(self._ask, content, more)
        try:
            message: Message = await asked.api.create(**asked.body)
            chat.check_message(message)
        except BaseException as error:
            await _in_thread(self._broke_off, asked, None, error)
            raise
        await _in_thread(self._answered, asked, message)
        await asyncio.to_thread(self._reveal, message)
        return message

    @asynccontextmanager
    async def stream(
        self, content: Content = None, **more: Unpack[Brought]
    ) -> AsyncIterator[AsyncMessageStream]:
        """``Capture.stream`` for asyncio."""
        asked = await asyncio.to_thread(self._ask, content, more)
        stream = None
        try:
            async with asked.api.stream(**asked.body) as stream:
                whole = stream.get_final_message

                async def revealed() -> Any:
                    return await asyncio.to_thread(self._revealed, await whole())

                stream.get_final_message = revealed
                yield stream
        except BaseException as error:
            await _in_thread(self._broke_off, asked, _came(stream), error)
            raise
        await _in_thread(self._broke_off, asked, _came(stream), None)


class LiveModel:
    """Has Claude answer in a rerun, where recorded answers end; nothing is recorded.

    client: one of the SDK's; left out, the SDK makes one from its variables.

    Raises InvalidConfiguration for a name that is empty, and for want of a key.
    """

    def __init__(
        self, model: str, *, client: Anthropic | None = None, max_tokens: int = 8_192
    ) -> None:
        if not model.strip():
            raise errors.InvalidConfiguration("a rerun needs the name of a model")
        self.name, self._max_tokens = model, max_tokens
        self._client = client or own_client()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def answer(self, view: View) -> list[Event]:
        """The events of its whole answer.  Raises AnswerFailed."""
        body = view.to_request(model=self.name, max_tokens=self._max_tokens)
        if betas := _betas(body):
            body["betas"] = betas
        try:
            message = _api(self._client, body).create(**body)
        except AnthropicError as error:
            # What the SDK raises carries the request: it is not passed on.
            timeout = self._client.timeout
            seconds = timeout if isinstance(timeout, int | float) else 600
            raise errors.AnswerFailed(failure(error, timeout=seconds).reason) from None
        return events_of(plain(message))


async def _in_thread(record: Any, *arguments: Any) -> None:
    """Record to the end, even if the task is cancelled meanwhile."""
    await asyncio.shield(asyncio.to_thread(record, *arguments))


def _api(client: Any, body: Mapping[str, Any]) -> Any:
    return client.beta.messages if body.get("betas") else client.messages


def _unknown(api: Any, options: Mapping[str, Any]) -> list[str]:
    """The options that neither ``create`` nor ``stream`` of this API has."""
    names = set[str]()
    for method in (api.create, api.stream):
        parameters = signature(method).parameters
        if any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
            return []
        names |= parameters.keys()
    return sorted(options.keys() - names)


def _came(stream: Any) -> Any:
    """The message as far as it came, or None."""
    try:
        return stream.current_message_snapshot
    except (AssertionError, AttributeError):
        return None


def _meta(message: JsonObject, took: float | None) -> Meta:
    known = {"model": message.get("model"), "response_id": message.get("id")}
    return Meta.of({**known, "duration_ms": took})


def _told(options: Mapping[str, Any]) -> JsonObject:
    """Of the options what the request's record says: what the API acts on."""
    body = options.get("extra_body")
    inside = body.keys() if isinstance(body, Mapping) else set()
    taken = sorted(_OURS & (options.keys() | inside))
    if taken:
        raise errors.InvalidConfiguration(
            f"options: {taken[0]} is set by the capture from the session and from "
            "its own arguments"
        )
    told = {key: value for key, value in options.items() if key not in _UNTOLD}
    try:
        clean, _ = repaired(chat.plain(told))
        if "mcp_servers" in clean:
            clean["mcp_servers"] = [*map(_without_token, clean["mcp_servers"])]
        canonical(clean)
    except (TypeError, ValueError, RecursionError):
        raise errors.InvalidConfiguration(
            "options: must be JSON, to be recorded"
        ) from None
    recorded: JsonObject = clean
    return recorded


def _without_token(server: Any) -> Any:
    if not isinstance(server, Mapping):
        return server
    return {
        name: value for name, value in server.items() if name not in _SERVER_SECRETS
    }


def _betas(body: Mapping[str, Any]) -> list[str]:
    """The betas that the context management of a request needs."""
    edits = (body.get("context_management") or {}).get("edits") or ()
    kinds = [edit["type"] for edit in edits]
    known = _BETAS.items()
    return [beta for start, beta in known if any(k.startswith(start) for k in kinds)]
