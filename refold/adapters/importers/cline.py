"""Tasks of Cline and Roo Code: messages for the API, whose texts hold the results."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from refold.adapters.importers import base, decisions, messages
from refold.adapters.importers.messages import CLINE_FILE
from refold.domain.events import JsonObject

NAME = "cline"
_UI_FILE: Final = "ui_messages.json"
_LARGEST_UI_FILE: Final = 64 << 20  # bytes
# The beginning of a text with the result of a call: the tool, and what it was used for.
_RESULT: Final = re.compile(
    r"\[([\w-]{1,64})(?: for '.{0,20000}?'|[^\n\]]{0,400})\] Result:", re.DOTALL
)
_NOT_EXECUTED: Final = re.compile(r"Tool \[([\w-]{1,64})\] was not executed")
_FAILED: Final = re.compile(r"\s*(?:The tool execution failed|<error>|Error )")
_DENIED: Final = "The user denied this operation"
_ANSWER: Final = re.compile(r"\s*<answer>\n?(.*?)\n?</answer>", re.DOTALL)
_ENVIRONMENT: Final = "<environment_details>"


def recognises(source: base.Source) -> bool:
    """Whether the file has the name of a task's messages, and messages."""
    return messages.is_of_cline(source)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield the transcript of a task."""
    if source.is_lines or not isinstance(source.document, list):
        raise source.failed("is no list of messages of a task")
    task = _Task(source)
    for message in messages.numbered(source.document):
        task.take(message)
    yield task.recording.transcript(_session_name(source.path))


def _session_name(path: Path) -> str:
    """Return the id of the task, which is the name of its folder."""
    if path.name != CLINE_FILE:
        return ""
    return base.session_name(path.absolute().parent.name)


class _Task:
    """Reads the messages of a task in their order."""

    def __init__(self, source: base.Source) -> None:
        self.recording = base.Recording(NAME, source.name)
        self._requests = _requests(source.path.parent / _UI_FILE)
        # The places of the requests with the same tokens, in their order.
        self._places: dict[tuple[float | None, float | None], deque[int]] = {}
        for index, request in enumerate(self._requests):
            counts = (
                base.number(request, "tokensIn"),
                base.number(request, "tokensOut"),
            )
            self._places.setdefault(counts, deque()).append(index)
        self._next_request = 0  # the first one that no answer has
        # The calls without a result, oldest first, each with its tool.
        self._waiting: list[tuple[str, str]] = []

    def take(self, message: messages.Message) -> None:
        """Record a message."""
        value = message.value
        content = value.get("content")
        ts = base.moment(value, "ts")
        if message.of_model:
            origin = base.Origin(
                message.place,
                ts=ts,
                model=base.text(value, "modelInfo", "modelId"),
                response_id=message.response_id,
                usage=self._usage(base.mapping(value, "metrics", "tokens")),
            )
            pieces = list(messages.agent(content))
            for piece in pieces:
                if isinstance(piece, base.Piece) and piece.type == "tool_call":
                    call = piece.fields
                    self._waiting.append((call["call_id"], call["tool_name"]))
            self.recording.take(pieces, origin)
            return
        if value.get("role") != "user":
            unknown = messages.unknown_role(value.get("role"))
            self.recording.take([unknown], base.Origin(message.place))
            return
        others: list[Any] = []
        results = list(self._results(messages.parts(content), others))
        self.recording.take(results, base.Origin(message.place, ts=ts))
        if others or not results:
            source: JsonObject = {}
            texts = [messages.text_of(part) or "" for part in others]
            if texts and all(text.startswith(_ENVIRONMENT) for text in texts):
                source["meta"] = True
            origin = base.Origin(message.place, ts=ts, source=source)
            self.recording.take(messages.user(others), origin)

    def _results(self, parts: list[Any], others: list[Any]) -> Iterator[base.Piece]:
        """Yield the results in texts of a user's message.

        Old versions write the content of a result in the text after its heading.

        others: gets all other parts.
        """
        heading: str | None = None  # the call whose content the next text is
        for part in parts:
            text = messages.text_of(part)
            if text is None or text.startswith(_ENVIRONMENT):
                others.append(part)
                continue
            match = _RESULT.match(text)
            if match is not None:
                call_id = self._answered(match[1])
                content = text[match.end() :].removeprefix("\n")
                if call_id is not None and content:
                    yield from _result(call_id, content)
                    heading = None
                    continue
                heading = call_id
                if call_id is None:
                    others.append(part)
                continue
            refused = _NOT_EXECUTED.match(text)
            call_id = self._answered(refused[1]) if refused else None
            if call_id is not None:
                yield messages.tool_result(call_id, text, failed=True)
            elif heading is not None:
                yield from _result(heading, text)
                heading = None
            else:
                others.append(part)
        if heading is not None:
            yield from _result(heading, "")

    def _answered(self, tool: str) -> str | None:
        """Return the oldest call of a tool that waits; None if there is none.

        The client names some tools otherwise than the model does.  Then the result is
        that of the only call that waits.
        """
        for index, (call_id, name) in enumerate(self._waiting):
            if name == tool:
                del self._waiting[index]
                return call_id
        if len(self._waiting) == 1:
            call_id, _ = self._waiting.pop()
            return call_id
        return None

    def _usage(self, tokens: dict[str, Any]) -> JsonObject | None:
        """Return the tokens of an answer.

        The messages count read and written tokens of the cache together; the list of
        requests next to them counts each.
        """
        prompt = int(base.number(tokens, "prompt") or 0)
        completion = int(base.number(tokens, "completion") or 0)
        cached = int(base.number(tokens, "cached") or 0)
        if not (prompt or completion or cached):
            return None
        read_tokens = cached
        written = 0
        request = self._request_of(prompt, completion)
        if request is not None:
            read_tokens = int(base.number(request, "cacheReads") or 0)
            written = int(base.number(request, "cacheWrites") or 0)
        return {
            "input_tokens": prompt,
            "output_tokens": completion,
            "cache_read_input_tokens": read_tokens,
            "cache_creation_input_tokens": written,
        }

    def _request_of(self, prompt: int, completion: int) -> dict[str, Any] | None:
        """Return the next request with these tokens; None if there is none.

        No later answer has an earlier request.
        """
        places = self._places.get((prompt, completion), deque())
        while places and places[0] < self._next_request:
            places.popleft()
        if not places:
            return None
        place = places.popleft()
        self._next_request = place + 1
        return self._requests[place]


def _result(call_id: str, content: str) -> Iterator[base.Piece]:
    """Yield the result of a call, and the decision or answer of a person in it."""
    denied = content.lstrip().startswith(_DENIED)
    failed = denied or _FAILED.match(content) is not None
    yield messages.tool_result(call_id, content, failed=failed)
    answer = _ANSWER.match(content)
    if denied:
        yield decisions.decision(decisions.TOOL, decisions.REJECTED, call_id=call_id)
    elif answer is not None:
        yield decisions.decision(decisions.QUESTION, answer[1], call_id=call_id)


def _requests(path: Path) -> list[dict[str, Any]]:
    """Return the requests in the messages for the user, next to those for the API."""
    try:
        if path.stat().st_size > _LARGEST_UI_FILE:
            return []
        value, _ = base.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    requests: list[dict[str, Any]] = []
    for message in map(base.mapping, base.sequence(value)):
        if message.get("say") == "api_req_started":
            request, _ = base.parsed(base.text(message, "text") or "")
            requests.append(base.mapping(request))
    return requests
