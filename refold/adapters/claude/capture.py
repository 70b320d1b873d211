"""A client of the Messages API whose calls are captured in a session, and its tools.

The context of each call comes from the session.  A call records the new content,
compacts the session if its strategy decides to, records the request, and then sends it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    TypeAlias,
    TypeVar,
    Unpack,
)

from anthropic import AnthropicError

from refold.adapters.claude import messages as chat, options, structured
from refold.adapters.claude.messages import events_of, plain
from refold.adapters.claude.runner import AsyncToolRunner, ToolRunner
from refold.adapters.claude.summarizer import failure, own_client
from refold.adapters.claude.tools import not_recorded
from refold.domain import errors
from refold.domain.canonical import repaired
from refold.domain.envelope import Meta
from refold.domain.events import AgentError, Event, JsonObject
from refold.projections.context.budget import ExtraArgs
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.projections.models import window_of
from refold.store.session.session import Session

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream, MessageStream
    from anthropic.types import Message, MessageTokensCount, ParsedMessage

T = TypeVar("T")
logger = logging.getLogger("refold")

Content: TypeAlias = str | Event | Sequence[Any] | None
_BETAS: Final = {
    "clear_": "context-management-2025-06-27",
    "compact_": "compact-2026-01-12",
}

_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FILES_BETA: Final = "files-api-2025-04-14"


class CallArgs(ExtraArgs, total=False):
    """The keyword arguments of a call: those of ExtraArgs, and these.

    request_id: the id by which the call is traced.
    options:    everything else that the API takes, such as ``tool_choice`` or
                ``thinking``.
    """

    request_id: str | None
    options: Mapping[str, Any] | None


class RecordedRequest(NamedTuple):
    """A request that is recorded, so that it may be sent.

    body:     the arguments of the SDK's method.
    api:      the resource of the client that has the method.
    began_at: the time of the request in microseconds since 1970.
    """

    body: dict[str, Any]
    api: Any
    began_at: int
    request_id: str | None


class BatchRequest(NamedTuple):
    """A recorded request for a batch.

    request: an element of ``requests`` for ``client.messages.batches.create``.
    betas:   the betas that it needs; with any, use ``client.beta.messages.batches``.
    """

    request: dict[str, Any]
    betas: list[str]


class _Call(NamedTuple):
    """The arguments of a call, which the SDK accepts.

    context_args:     those from which the context is made (ExtraArgs).
    options:          those that are sent with the context.
    recorded_options: the options that the recorded request names.
    api:              the resource of the client that takes them.
    system_blocks:    the system prompt, if it is in blocks.
    """

    context_args: Any
    options: dict[str, Any]
    recorded_options: JsonObject
    api: Any
    request_id: str | None
    system_blocks: Any


class _Captured:
    """The common part of both captures: a session, and how a call is recorded.

    session:    the session whose context is sent, and that records everything.
    strategy:   the strategy of the context; by default that of ``session.context``.
    summarizer: the writer of summaries; by default ``abridged``.
    agent:      the agent that the events belong to, if the session has several.  Of
                the other agents, a context shows what this one sees.
    defaults:   system, tools, examples and so on for every call (ExtraArgs); arguments
                of a call override them.
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
        **defaults: Unpack[ExtraArgs],
    ) -> None:
        if not model.strip():
            raise errors.InvalidConfiguration("the capture needs the name of a model")
        if max_tokens < 1:
            raise errors.InvalidConfiguration(
                f"max_tokens must be above 0, not {max_tokens}"
            )
        # The writer's vault has the values of numbered placeholders.
        writer = session.writer
        writer = replace(writer, redactor=writer.redactor.numbering)
        self.client = client
        self.session = replace(session, writer=writer)
        self._model = model
        self._max_tokens = max_tokens
        self._agent = agent
        self._strategy = strategy
        self._summarizer = summarizer
        self._defaults = defaults
        self._rehearsal = options.Rehearsal(getattr(client, "timeout", None))

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

        messages: as they were sent.  The new ones are recorded, then the request.
                  Without messages, only the response is recorded.
        response: the SDK's, its raw response (``with_raw_response``), or JSON.

        The request records whether exactly the session's context was sent.  It was not
        if a text had to be redacted.  A response that is recorded already is not
        recorded again, and neither are its messages.

        If the messages do not contain the end of the session, those after their last
        answer are recorded, and ``meta.warnings`` has ``history_differs``.

        Raises InvalidEvent for a message that cannot be recorded, and the errors of
        ``append``; RecordingFailed if the response cannot be recorded.
        """
        response = chat.parsed(response)
        if messages:
            new = chat.new_events(self.session, messages)
            if new.differs and self._has_recorded(response):
                return
            warnings: list[JsonObject] = []
            if new.differs:
                warnings.append({"code": "history_differs"})
            if new.events:
                self._append(new.events, request_id, {"warnings": warnings})
            context_args: ExtraArgs = {**self._window(), "tools": tools}
            system = chat.system_text(system)
            if system is not None:
                context_args["system"] = system
            view = self.session.context(self._current_strategy(), **context_args)
            has_same_messages = chat.normal(messages) == chat.normal(view.messages)
            matches = has_same_messages and system == view.system
            self._append(view.request(model=self._model, matches=matches), request_id)
        if response is not None:
            self._record_answer(response, request_id)

    def _has_recorded(self, response: Any) -> bool:
        """Whether the session has a response with the same id of the provider."""
        response_id = (plain(response) or {}).get("id")
        if not response_id:
            return False
        responses = self.session.events(types=("agent_response",))
        return any(event.meta.response_id == response_id for event in responses)

    def _current_strategy(self, *, prepares: bool = False) -> str | Strategy | None:
        """Return the strategy; if the session has several agents, that of this agent.

        prepares: whether the default is that of ``session.prepare``.
        """
        if self._agent is None:
            return self._strategy
        settings = self.session.settings
        return settings.for_agent(self._agent, self._strategy, prepares=prepares)

    def _window(self) -> ExtraArgs:
        """Return the tokens of the model's window that a request may take.

        Returns no argument for an unknown model.
        """
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
        """Append events of this agent.

        key: the idempotency key.
        """
        self.session.append(
            events,
            request_id=request_id,
            agent=self._agent,
            meta=meta,
            idempotency_key=key,
            # A text that takes too long to scan must not end the conversation.
            unscanned="stub",
        )

    def _record_request(
        self, content: Content, arguments: CallArgs, method: str = "create"
    ) -> RecordedRequest:
        """Record the content and the request, before anything is sent.

        method: the method of the SDK that will send it.

        Raises InvalidConfiguration, with nothing recorded, for a call that the SDK
        would refuse.
        """
        events = chat.events_of_user(content)
        call = self._checked(arguments, method)
        if events:
            try:
                self._append(events, call.request_id)
            except errors.InvalidEvent:
                # Some results in it may be recorded already.
                new = not_recorded(self.session, events)
                if len(new) == len(events):
                    raise
                if new:
                    self._append(new, call.request_id)
        view = self.session.prepare(
            self._current_strategy(prepares=True),
            summarizer=self._summarizer,
            model=self._model,
            **call.context_args,
        )
        view = self.session.vault.reveal_view(view)
        body = view.to_request(model=self._model, max_tokens=self._max_tokens)
        blocks = call.system_blocks
        if blocks is not None:
            system = call.context_args["system"]
            is_unchanged = chat.system_text(body.get("system")) == system
            if is_unchanged:
                body["system"] = chat.plain([*blocks])
        body |= call.options
        api = call.api
        betas = [*body.get("betas", ()), *_betas(body)]
        if betas:
            body["betas"] = list(dict.fromkeys(betas))
            api = self.client.beta.messages
        meta: dict[str, Any] = {"max_tokens": self._max_tokens}
        if call.recorded_options:
            meta["options"] = call.recorded_options
        request = view.request(model=self._model, matches=True)
        self._append(request, call.request_id, meta)
        began_at = self.session.writer.clock()
        return RecordedRequest(body, api, began_at, call.request_id)

    def _checked(self, arguments: CallArgs, method: str) -> _Call:
        """Check the arguments of a call without recording anything.

        Raises InvalidConfiguration.
        """
        others: dict[str, Any] = {**arguments}
        request_id = others.pop("request_id", None)
        call_options = dict(others.pop("options", None) or {})
        options.check_settable(call_options)
        recorded_options = options.recorded(call_options)
        api = options.api_for(self.client, method, call_options)
        context_args: Any = {**self._window(), **self._defaults, **others}
        blocks = context_args.get("system")
        if isinstance(blocks, str | None):
            blocks = None
        else:
            context_args["system"] = chat.system_text(blocks)
            recorded_options["system_blocks"] = chat.layout(blocks)
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": self._max_tokens,
            "messages": [{"role": "user", "content": "(The SDK checks this.)"}],
            **call_options,
        }
        if context_args.get("tools"):
            body["tools"] = context_args["tools"]
        is_beta = api is not self.client.messages
        self._rehearsal.check(method, body, beta=is_beta)
        return _Call(
            context_args=context_args,
            options=call_options,
            recorded_options=recorded_options,
            api=api,
            request_id=request_id,
            system_blocks=blocks,
        )

    def thread(self, *_: object, **__: object) -> NoReturn:
        """Refuse threads, whose messages the provider holds.

        Raises InvalidConfiguration.
        """
        raise errors.InvalidConfiguration(options.NO_THREADS)

    def _counting(
        self, content: Content, arguments: CallArgs
    ) -> tuple[Any, dict[str, Any]]:
        """Return the resource and the arguments that count the tokens of a call."""
        events = chat.events_of_user(content)
        call = self._checked(arguments, "create")
        context_args = call.context_args
        try:
            view = self.session.context(self._current_strategy(), **context_args)
        except errors.SessionNotFound:
            messages: list[dict[str, Any]] = []
            body: dict[str, Any] = {"model": self._model, "messages": messages}
            if context_args.get("system"):
                body["system"] = context_args["system"]
            if context_args.get("tools"):
                body["tools"] = [*context_args["tools"]]
        else:
            body = view.to_request(model=self._model, max_tokens=self._max_tokens)
        body["messages"] = chat.with_user_events(body["messages"], events)
        body |= call.options
        api = call.api
        betas = [*body.get("betas", ()), *_betas(body)]
        if betas:
            body["betas"] = list(dict.fromkeys(betas))
            api = self.client.beta.messages
        return api, options.accepted_by(api, "count_tokens", body)

    def _structured(self, arguments: CallArgs, output_format: Any) -> CallArgs:
        """Return the arguments of a call whose answer has a type's JSON schema."""
        call_options = dict(arguments.get("options") or {})
        output_config = dict(call_options.get("output_config") or {})
        if "format" in output_config:
            raise errors.InvalidConfiguration(
                "options: output_config has a format already, and parse sets it"
            )
        schema = options.schema_of(output_format)
        output_config["format"] = {"type": "json_schema", "schema": schema}
        call_options["output_config"] = output_config
        return {**arguments, "options": call_options}

    def _batched(
        self, content: Content, arguments: CallArgs, custom_id: str
    ) -> BatchRequest:
        """Record a request for a batch."""
        if not _CUSTOM_ID.fullmatch(custom_id):
            raise errors.InvalidConfiguration(
                "custom_id: 1 to 64 letters, digits, _ and -"
            )
        call_options = arguments.get("options") or {}
        refused = sorted(options.NOT_IN_BATCHES.intersection(call_options))
        if refused:
            raise errors.InvalidConfiguration(
                f"options: a request in a batch has no {refused[0]}; give it to "
                "batches.create"
            )
        request = self._record_request(content, arguments)
        betas = request.body.pop("betas", [])
        return BatchRequest({"custom_id": custom_id, "params": request.body}, betas)

    def record_batch(self, response: Any) -> None:
        """Record the answer to a request of ``batch_request``.

        response: an item of ``client.messages.batches.results``, or its JSON.

        An answer that is recorded already is not recorded again.

        Raises InvalidEvent for another value; RecordingFailed if the answer cannot be
        recorded.
        """
        result = chat.batch_result(response)
        if not isinstance(result, AgentError):
            self._record_answer(result, None)
            return
        request_seq = self.session.head().state.last_request
        self._append(result, None, key=f"batch:{request_seq}:{result.code}")

    def _record_answer(
        self, answer: Any, request_id: str | None, duration_ms: float | None = None
    ) -> None:
        """Record a whole answer, unless it is recorded already.

        Raises RecordingFailed, which has the answer.
        """
        try:
            message = plain(answer)
            name, _ = repaired(message.get("id"))
            key = f"response:{name}" if name else None
            meta = _meta(message, duration_ms)
            self._append(events_of(message), request_id, meta, key=key)
        except Exception as error:
            raise errors.RecordingFailed(answer, error) from error

    def _record_answer_to(self, request: RecordedRequest, message: Any) -> None:
        """Record the whole answer to a request, with the time that it took."""
        duration_ms = self._duration_ms(request)
        self._record_answer(message, request.request_id, duration_ms)

    def _reveal(self, message: Any) -> None:
        """Put real values into the arguments of calls, as the store's vault allows."""
        for block in message.content:
            if block.type == "tool_use" and isinstance(block.input, dict):
                block.input = self.session.vault.reveal(block.input, tool=block.name)

    def _revealed(self, message: Any) -> Any:
        """Return a copy with real values, because the stream's message is recorded."""
        copy = message.model_copy(deep=True)
        self._reveal(copy)
        return copy

    def _record_received(
        self, request: RecordedRequest, message: Any, error: BaseException | None
    ) -> None:
        """Record an answer that may be incomplete.

        Of an incomplete one, record the received part and the error.

        message: None if no part was received.

        Raises RecordingFailed if a part was received and cannot be recorded.
        """
        if message is not None and message.stop_reason is not None:
            self._record_answer_to(request, message)
            return
        partial_message = plain(message)
        try:
            meta = _meta(partial_message or {}, self._duration_ms(request))
            events = chat.broken_off(partial_message, chat.error_of(error))
            self._append(events, request.request_id, meta)
        except errors.RefoldError as failure:
            if message is not None:
                raise errors.RecordingFailed(message, failure) from failure
            logger.warning(
                "a failed call of the model could not be recorded: %s", failure
            )

    def _duration_ms(self, request: RecordedRequest) -> float:
        """Return the milliseconds since the request was sent."""
        return max(0, self.session.writer.clock() - request.began_at) / 1000


class Capture(_Captured):
    """Asks Claude through ``anthropic.Anthropic``, and records the calls."""

    client: Anthropic

    def create(self, content: Content = None, **more: Unpack[CallArgs]) -> Message:
        """Add the user's message to the session, and send the session's context.

        content: a text; blocks of a user's message, such as results of tools; events;
                 or None if everything is recorded already.
        more:    the other arguments of the call (CallArgs).

        Raises InvalidConfiguration, with nothing recorded, for a call that the SDK
        refuses; the errors of ``session.append`` and ``session.prepare``, before
        anything is sent; the errors of the SDK, recorded as an ``error``;
        RecordingFailed, which has the answer, if it cannot be recorded.
        """
        request = self._record_request(content, more)
        try:
            message: Message = request.api.create(**request.body)
            chat.check_message(message)
        except BaseException as error:
            self._record_received(request, None, error)
            raise
        self._record_answer_to(request, message)
        self._reveal(message)
        return message

    @contextmanager
    def stream(
        self, content: Content = None, **more: Unpack[CallArgs]
    ) -> Iterator[MessageStream]:
        """Return the SDK's stream; the answer is recorded when the block ends.

        If the stream breaks off, or the block is left early, the received part is
        recorded with the ``stop_reason`` ``interrupted``, and an ``error`` that has
        its calls.
        """
        request = self._record_request(content, more, "stream")
        stream = None
        try:
            with request.api.stream(**request.body) as stream:
                get_final_message = stream.get_final_message

                def revealed() -> Any:
                    return self._revealed(get_final_message())

                stream.get_final_message = revealed
                yield stream
        except BaseException as error:
            self._record_received(request, _received(stream), error)
            raise
        self._record_received(request, _received(stream), None)

    def parse(
        self, content: Content, output_format: type[T], **more: Unpack[CallArgs]
    ) -> ParsedMessage[T]:
        """Call ``create`` for an answer in JSON; ``parsed_output`` is it as a value.

        output_format: a type that pydantic can make a JSON schema of.

        The answer is recorded before it is parsed.

        Raises pydantic.ValidationError, as the SDK does, for an answer that is not of
        the type, and the errors of ``create``.
        """
        message = self.create(content, **self._structured(more, output_format))
        return structured.parsed(message, output_format)

    def count_tokens(
        self, content: Content = None, **more: Unpack[CallArgs]
    ) -> MessageTokensCount:
        """Let the API count the tokens of a call, which is not made.

        It records nothing and compacts nothing: ``create`` may send less.
        """
        api, body = self._counting(content, more)
        count: MessageTokensCount = api.count_tokens(**body)
        return count

    def batch_request(
        self, content: Content = None, *, custom_id: str, **more: Unpack[CallArgs]
    ) -> BatchRequest:
        """Record a request that is sent in a batch, and return it.

        Give it to ``client.messages.batches.create``, and its result to
        ``record_batch``.

        Raises InvalidConfiguration, with nothing recorded, for an option that a batch
        cannot have, and the errors that ``create`` raises before it sends.
        """
        return self._batched(content, more, custom_id)

    def tool_runner(
        self,
        content: Content = None,
        *,
        tools: Sequence[Any],
        max_iterations: int | None = None,
        **more: Any,
    ) -> ToolRunner:
        """Ask until the model calls no more tools; iterate over its messages.

        tools:          functions of the SDK's ``beta_tool``, tools with ``to_dict`` and
                        ``call`` such as the SDK's memory tool, and definitions.
        max_iterations: the most messages.
        more:           the other arguments of ``create``.

        Every result is recorded with the next request to the model.  Nothing is sent
        before the iteration begins.

        Raises InvalidConfiguration for a tool that it cannot run.
        """
        return ToolRunner(self.create, content, tools, max_iterations, more)


class AsyncCapture(_Captured):
    """Asks Claude through ``anthropic.AsyncAnthropic``, and records the calls.

    It records in threads, so the loop is not blocked.  ``record`` and ``record_batch``
    are the exceptions: call them in a thread.
    """

    client: AsyncAnthropic

    async def create(
        self, content: Content = None, **more: Unpack[CallArgs]
    ) -> Message:
        """``Capture.create`` for asyncio."""
        request = await asyncio.to_thread(self._record_request, content, more)
        try:
            message: Message = await request.api.create(**request.body)
            chat.check_message(message)
        except BaseException as error:
            await _in_thread(self._record_received, request, None, error)
            raise
        await _in_thread(self._record_answer_to, request, message)
        await asyncio.to_thread(self._reveal, message)
        return message

    @asynccontextmanager
    async def stream(
        self, content: Content = None, **more: Unpack[CallArgs]
    ) -> AsyncIterator[AsyncMessageStream]:
        """``Capture.stream`` for asyncio."""
        request = await asyncio.to_thread(self._record_request, content, more, "stream")
        stream = None
        try:
            async with request.api.stream(**request.body) as stream:
                get_final_message = stream.get_final_message

                async def revealed() -> Any:
                    message = await get_final_message()
                    return await asyncio.to_thread(self._revealed, message)

                stream.get_final_message = revealed
                yield stream
        except BaseException as error:
            received = _received(stream)
            await _in_thread(self._record_received, request, received, error)
            raise
        await _in_thread(self._record_received, request, _received(stream), None)

    async def parse(
        self, content: Content, output_format: type[T], **more: Unpack[CallArgs]
    ) -> ParsedMessage[T]:
        """``Capture.parse`` for asyncio."""
        message = await self.create(content, **self._structured(more, output_format))
        return structured.parsed(message, output_format)

    async def count_tokens(
        self, content: Content = None, **more: Unpack[CallArgs]
    ) -> MessageTokensCount:
        """``Capture.count_tokens`` for asyncio."""
        api, body = await asyncio.to_thread(self._counting, content, more)
        count: MessageTokensCount = await api.count_tokens(**body)
        return count

    async def batch_request(
        self, content: Content = None, *, custom_id: str, **more: Unpack[CallArgs]
    ) -> BatchRequest:
        """``Capture.batch_request`` for asyncio."""
        return await asyncio.to_thread(self._batched, content, more, custom_id)

    def tool_runner(
        self,
        content: Content = None,
        *,
        tools: Sequence[Any],
        max_iterations: int | None = None,
        **more: Any,
    ) -> AsyncToolRunner:
        """``Capture.tool_runner`` for asyncio: iterate with ``async for``.

        Tools may be coroutines; others run in a thread.
        """
        return AsyncToolRunner(self.create, content, tools, max_iterations, more)


class LiveModel:
    """Asks Claude in a rerun, after the recorded answers; nothing is recorded.

    client: a client of the SDK, which by default is made from the SDK's variables.

    Raises InvalidConfiguration for an empty name, or if there is no key.
    """

    def __init__(
        self, model: str, *, client: Anthropic | None = None, max_tokens: int = 8_192
    ) -> None:
        if not model.strip():
            raise errors.InvalidConfiguration("a rerun needs the name of a model")
        self.name = model
        self._max_tokens = max_tokens
        self._client = client or own_client()

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def answer(self, view: View) -> list[Event]:
        """Return the events of the whole answer.  Raises AnswerFailed."""
        body = view.to_request(model=self.name, max_tokens=self._max_tokens)
        betas = _betas(body)
        if betas:
            body["betas"] = betas
        try:
            message = _api(self._client, body).create(**body)
        except AnthropicError as error:
            # The error of the SDK contains the request, so it is not chained.
            timeout = self._client.timeout
            seconds = timeout if isinstance(timeout, int | float) else 600
            raise errors.AnswerFailed(failure(error, timeout=seconds).reason) from None
        return events_of(plain(message))


async def _in_thread(record: Any, *arguments: Any) -> None:
    """Call ``record`` in a thread; it runs to its end even if the task is cancelled."""
    await asyncio.shield(asyncio.to_thread(record, *arguments))


def _api(client: Any, body: Mapping[str, Any]) -> Any:
    """Return the resource of the client that takes this request."""
    return client.beta.messages if body.get("betas") else client.messages


def _received(stream: Any) -> Any:
    """Return the received part of a stream's message; None if there is none."""
    try:
        return stream.current_message_snapshot
    except (AssertionError, AttributeError):
        return None


def _meta(message: JsonObject, duration_ms: float | None) -> Meta:
    """Return the meta of an answer's events."""
    return Meta.of(
        {
            "model": message.get("model"),
            "response_id": message.get("id"),
            "duration_ms": duration_ms,
        }
    )


def _betas(body: Mapping[str, Any]) -> list[str]:
    """Return the betas that the context management and files of a request need."""
    context_management = body.get("context_management") or {}
    edits = context_management.get("edits") or ()
    kinds = [edit["type"] for edit in edits]
    betas: list[str] = []
    for start, beta in _BETAS.items():
        if any(kind.startswith(start) for kind in kinds):
            betas.append(beta)
    if any(_names_file(message["content"]) for message in body["messages"]):
        betas.append(_FILES_BETA)
    return betas


def _names_file(content: Any) -> bool:
    """Whether a block in a content names a file that the provider stores."""
    if not isinstance(content, list):
        return False
    for block in content:
        source = block.get("source")
        if block["type"] == "container_upload":
            return True
        if isinstance(source, dict) and source.get("type") == "file":
            return True
        if block["type"] == "tool_result" and _names_file(block.get("content")):
            return True
    return False
