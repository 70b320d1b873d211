"""Objects of OpenAI's Responses and Conversations APIs, and files of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from refold.adapters.importers import base, exports, messages, openai
from refold.domain.events import JsonObject

NAME = "openai-responses"
# The types of items that only these APIs have.
_ITEM_TYPES: Final = (
    "_call",
    "_call_output",
    "function_call",
    "item_reference",
    "mcp_list_tools",
    "reasoning",
)
_READ_OF_RESPONSE: Final = frozenset(
    {
        "completed_at",
        "conversation",
        "created_at",
        "error",
        "id",
        "incomplete_details",
        "input",
        "input_items",
        "instructions",
        "metadata",
        "model",
        "object",
        "output",
        "output_text",
        "previous_response_id",
        "status",
        "usage",
        "user",
    }
)
# The settings of a response that are stored with its first event.
_SETTINGS: Final = (
    "max_output_tokens",
    "metadata",
    "reasoning",
    "service_tier",
    "temperature",
    "top_p",
    "user",
)
_READ_OF_BATCH: Final = frozenset(
    {"body", "custom_id", "error", "id", "method", "response", "url"}
)


def recognises(source: base.Source) -> bool:
    """Whether these are objects of these APIs, or lines of a batch."""
    value = _first(source)
    return _is_known(value) or _is_batch(value) or _are_items(_document(source))


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation, chain of responses, or request."""
    if _are_items(_document(source)):
        yield _items_alone(source, _document(source), "")
        return
    chains: dict[str, _Chain] = {}
    owners: dict[str, str] = {}  # the chain of each response
    has_transcripts = False
    for place, value in source.values():
        if _is_batch(value):
            has_transcripts = True
            yield _of_batch(source, place, value)
        elif base.at(value, "object") in ("list", "conversation"):
            has_transcripts = True
            yield _items_alone(source, _list_of(value), place, base.mapping(value))
        elif _is_response(value) or _is_response(base.at(value, "response")):
            has_transcripts = True
            call = _Call.of(place, value)
            name = _chain_name(call, owners)
            chains.setdefault(name, _Chain(name)).calls.append(call)
        else:
            chain = chains.setdefault("", _Chain(""))
            chain.others.append(place)
    if not has_transcripts:
        raise source.failed("holds no response, conversation, or request of a batch")
    for chain in chains.values():
        yield chain.transcript(source)


def _document(source: base.Source) -> Any:
    """Return the value of a file that is no file of lines."""
    return None if source.is_lines else source.document


def _first(source: base.Source) -> Any:
    """Return the first value of a file."""
    for _, value in source.values():
        return value
    return None


def _is_known(value: Any) -> bool:
    """Whether a value is a response, a list of items, or a conversation."""
    if _is_response(value) or _is_response(base.at(value, "response")):
        return True
    kind = base.at(value, "object")
    if kind == "conversation":
        return bool(_list_of(value))
    return kind == "list" and _has_items(base.sequence(value, "data"))


def _is_response(value: Any) -> bool:
    """Whether a value is a response with its output."""
    is_response = base.at(value, "object") == "response"
    return is_response and isinstance(base.at(value, "output"), list)


def _is_batch(value: Any) -> bool:
    """Whether a value is a line of the input or of the output of a batch."""
    if base.text(value, "custom_id") is None:
        return False
    is_output = isinstance(base.at(value, "response", "body"), dict)
    is_failed = "response" in value and isinstance(value.get("error"), dict)
    is_input = base.text(value, "url") is not None and "body" in value
    return is_output or is_failed or is_input


def _are_items(value: Any) -> bool:
    """Whether a value is a list of items, one of which no other API has."""
    items = base.sequence(value)
    return _has_items(items) and any(
        str(base.at(item, "type")).endswith(_ITEM_TYPES) for item in items
    )


def _has_items(items: Sequence[Any]) -> bool:
    """Whether all of these are items: messages, calls, results, or the like."""
    if not items:
        return False
    for item in items:
        kind = str(base.at(item, "type"))
        if kind != "message" and not kind.endswith(_ITEM_TYPES):
            return False
    return True


def _list_of(value: Any) -> list[Any]:
    """Return the items of a list or a conversation in the order of writing.

    The API lists the newest first unless asked otherwise, and a file does not say how
    it was asked.
    """
    items = base.sequence(value, "data") or base.sequence(value, "items")
    items = items or base.sequence(value, "items", "data")
    return list(reversed(items)) if _is_newest_first(items) else items


def _is_newest_first(items: Sequence[Any]) -> bool:
    """Whether results come before their calls, or an answer before its question."""
    results: set[str] = set()
    for item in items:
        call_id = base.text(item, "call_id")
        if call_id is None:
            continue
        if not str(base.at(item, "type")).endswith("_output"):
            return call_id in results
        results.add(call_id)
    if len(items) < 2:
        return False
    roles = [base.text(item, "role") for item in items]
    return roles[0] == "assistant" and roles[-1] in ("user", "system", "developer")


@dataclass(frozen=True, slots=True)
class _Call:
    """A request and its response; ``given`` are the items of the request, if known."""

    place: str
    response: dict[str, Any]
    given: list[Any]

    @classmethod
    def of(cls, place: str, value: Any) -> _Call:
        """Return the call in a value: a response, or an object with both parts."""
        response = value if _is_response(value) else base.mapping(value, "response")
        given: list[Any] = []
        for owner in (response, base.mapping(value), base.mapping(value, "request")):
            given = _input_of(owner)
            if given:
                break
        return cls(place, response, given)


def _input_of(value: dict[str, Any]) -> list[Any]:
    """Return the items of a request."""
    text = base.text(value, "input")
    if text is not None:
        return [{"role": "user", "content": text}]
    items = base.sequence(value, "input") or base.sequence(value, "input_items")
    return items or _list_of(base.mapping(value, "input_items"))


def _chain_name(call: _Call, owners: dict[str, str]) -> str:
    """Return the chain of a response: its conversation, or the first response."""
    response = call.response
    name = base.text(response, "id") or call.place
    conversation = base.text(response, "conversation", "id")
    previous = base.text(response, "previous_response_id")
    chain = conversation or owners.get(previous or "") or name
    owners[name] = chain
    return chain


@dataclass(slots=True)
class _Chain:
    """Responses that follow each other.

    others: the places of values that are none.
    """

    name: str
    calls: list[_Call] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def transcript(self, source: base.Source) -> base.Transcript:
        """Return the transcript of the chain, its responses by their times."""
        reading = _Items(source)
        for call in sorted(self.calls, key=_time_of):
            reading.take_call(call)
        for place in self.others:
            reading.reports.add("is no response", place)
        return reading.transcript(self.name)


def _time_of(call: _Call) -> float:
    return base.number(call.response, "created_at") or 0.0


def _items_alone(
    source: base.Source,
    items: Sequence[Any],
    place: str,
    header: dict[str, Any] | None = None,
) -> base.Transcript:
    """Return the transcript of a list of items."""
    reading = _Items(source)
    prefix = f"{place} ".lstrip()
    for index, item in enumerate(items):
        reading.take(base.mapping(item), base.Origin(f"{prefix}items[{index}]"))
    name = ""
    if header is not None and header.get("object") == "conversation":
        name = base.text(header, "id") or ""
    if header is not None and header.get("has_more") is True:
        reading.reports.add("further items, which are on the next page", place)
    return reading.transcript(name)


def _of_batch(source: base.Source, place: str, line: dict[str, Any]) -> base.Transcript:
    """Return the transcript of a line of a batch: a request, or its answer."""
    reading = _Items(source)
    custom_id = base.text(line, "custom_id") or ""
    origin = base.Origin(place, source={"custom_id": custom_id})
    reading.take_name(custom_id, origin)
    if "url" in line:
        reading.take_request(base.mapping(line, "body"), origin, custom_id)
    else:
        body = base.mapping(line, "response", "body")
        if _is_response(body):
            reading.take_call(_Call(place, body, _input_of(body)))
        elif body.get("object") == "chat.completion":
            reading.take_completion(body, origin, custom_id)
        else:
            reading.take_error(line, origin)
    reading.reports.add_fields("line", line, _READ_OF_BATCH, place)
    return reading.transcript(custom_id)


class _Items:
    """Reads items, each of them once."""

    def __init__(self, source: base.Source) -> None:
        self._recording = base.Recording(NAME, source.name)
        self.reports = exports.Reports(self._recording)
        self._seen: set[str] = set()
        self._instructions: str | None = None

    def transcript(self, name: str) -> base.Transcript:
        """Return the transcript of everything so far."""
        self.reports.finish()
        return self._recording.transcript(base.session_name(name))

    def take_call(self, call: _Call) -> None:
        """Record the items of a request and of its response."""
        response = call.response
        name = base.text(response, "id") or call.place
        prefix = f"{call.place} ".lstrip()
        asked = base.Origin(
            call.place, ts=base.moment(response, "created_at"), source={"id": name}
        )
        self._take_instructions(response, replace(asked, key=f"{NAME}\0{name}\0system"))
        for index, item in enumerate(call.given):
            place = f"{prefix}input[{index}]"
            key = f"{NAME}\0{name}\0input\0{index}"
            self.take(base.mapping(item), replace(asked, place=place, key=key))
        settings: JsonObject = {
            field_name: response[field_name]
            for field_name in _SETTINGS
            if response.get(field_name)
        }
        reason = base.text(response, "incomplete_details", "reason")
        answered = replace(
            asked,
            ts=base.moment(response, "completed_at") or asked.ts,
            model=base.text(response, "model"),
            response_id=name,
            usage=base.mapping(response, "usage") or None,
            source={"id": name, **settings},
        )
        for index, item in enumerate(base.each(response, "output")):
            place = f"{prefix}output[{index}]"
            key = f"{NAME}\0{name}\0output\0{index}"
            origin = replace(answered, place=place, key=key)
            if self.take(item, origin, reason=reason):
                answered = replace(answered, usage=None, source={"id": name})
        error = base.mapping(response, "error")
        if error:
            key = f"{NAME}\0{name}\0error"
            self.reports.record([_error(error)], replace(answered, key=key))
        unread = _READ_OF_RESPONSE | frozenset(_SETTINGS)
        self.reports.add_fields("response", response, unread, call.place)

    def take_name(self, name: str, origin: base.Origin) -> None:
        """Record the name of a request of a batch.

        Both files of the batch begin with it, so that they are one session.
        """
        fields = {"format": NAME, "kind": "batch", "value": {"custom_id": name}}
        key = f"{NAME}\0{name}\0batch"
        self.reports.record([base.Piece("item", fields)], replace(origin, key=key))

    def take_request(
        self, body: dict[str, Any], origin: base.Origin, name: str
    ) -> None:
        """Record a request of a batch, of either API of OpenAI."""
        key = f"{NAME}\0{name}\0request"
        self._take_instructions(body, replace(origin, key=f"{key}\0system"))
        chat = messages.numbered(base.sequence(body, "messages"), f"{origin.place} ")
        calls = openai.UnnamedCalls()
        for message in chat:
            place = f"{key}\0{message.index}"
            of_message = replace(openai.origin_of(message, origin), key=place)
            self.reports.record(openai.pieces_of(message, calls), of_message)
        for index, item in enumerate(_input_of(body)):
            place = f"{origin.place} input[{index}]"
            of_item = replace(origin, place=place, key=f"{key}\0{index}")
            self.take(base.mapping(item), of_item)
        unread = frozenset({"input", "instructions", "messages", "model"})
        self.reports.add_fields("request", body, unread, origin.place)

    def take_completion(
        self, body: dict[str, Any], origin: base.Origin, name: str
    ) -> None:
        """Record the answer of the chat API to a request of a batch."""
        choices = [*base.each(body, "choices")]
        if len(choices) > 1:
            self.reports.add("further choices of an answer", origin.place)
        for choice in choices[:1]:
            value = {
                "finish_reason": choice.get("finish_reason"),
                **base.mapping(choice, "message"),
            }
            message = messages.Message(origin.place, 0, value)
            answered = replace(
                origin,
                ts=base.moment(body, "created"),
                model=base.text(body, "model"),
                response_id=base.text(body, "id"),
                usage=base.mapping(body, "usage") or None,
                key=f"{NAME}\0{name}\0answer",
            )
            self.reports.record(
                openai.pieces_of(message, openai.UnnamedCalls()), answered
            )

    def take_error(self, line: dict[str, Any], origin: base.Origin) -> None:
        """Record the failure of a request of a batch."""
        error = base.mapping(line, "error")
        error = error or base.mapping(line, "response", "body", "error")
        key = f"{NAME}\0{base.text(line, 'custom_id')}\0error"
        self.reports.record([_error(error)], replace(origin, key=key))

    def take(
        self, item: dict[str, Any], origin: base.Origin, *, reason: str | None = None
    ) -> bool:
        """Record an item; returns whether it has an event.

        reason: why the response of the item is incomplete, if it is.
        """
        item_id = base.text(item, "id")
        if item_id is not None:
            if item_id in self._seen:
                return False
            self._seen.add(item_id)
            source = {**origin.source, "item": item_id}
            origin = replace(origin, key=f"{NAME}\0{item_id}", source=source)
        if item.get("type") == "item_reference":
            self.reports.add("reference to an item", origin.place)
            return False
        of_model = item.get("role") == "assistant" or str(item.get("type")).endswith(
            ("_call", "reasoning", "mcp_list_tools")
        )
        if not of_model:
            origin = replace(origin, model=None, response_id=None, usage=None)
        elif origin.response_id is None:
            origin = replace(origin, response_id=item_id or origin.place)
        before = self._recording.event_count
        self.reports.record(_pieces(item, reason), origin)
        return self._recording.event_count > before

    def _take_instructions(self, fields: dict[str, Any], origin: base.Origin) -> None:
        """Record the instructions of a request, unless they are those before."""
        text = base.text(fields, "instructions")
        if text is not None and text != self._instructions:
            self._instructions = text
            self.reports.record([messages.system_message(text)], origin)
        for index, item in enumerate(base.each(fields, "instructions")):
            place = f"{origin.place} instructions[{index}]"
            self.take(item, replace(origin, place=place, key=f"{origin.key}\0{index}"))


def _pieces(item: dict[str, Any], reason: str | None) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of an item; those of the provider's tools byte for byte."""
    pieces = list(openai.response_item(item))
    kind = base.text(item, "type") or "message"
    encrypted = base.text(item, "encrypted_content")
    if kind == "reasoning" and encrypted:
        block: JsonObject = {"type": "redacted_thinking", "data": encrypted}
        thinking = [block]
        if pieces and isinstance(pieces[0], base.Piece):
            thinking = [*pieces[0].fields["thinking"], block]
        pieces = list(messages.response([], thinking))
    elif not pieces and kind == "reasoning":
        pieces = [base.Skipped("", "reasoning without a text", note=True)]
    elif not pieces:
        pieces = list(messages.provider_blocks([(0, item)]))
    for piece in pieces:
        if isinstance(piece, base.Piece) and piece.type == "agent_response" and reason:
            piece.fields.setdefault("stop_reason", reason)
        yield piece
    for index, part in enumerate(base.each(item, "content")):
        if base.sequence(part, "annotations"):
            yield base.Skipped(f"content[{index}]", messages.CITATIONS)


def _error(error: dict[str, Any]) -> base.Piece:
    """Return the error of a response as an event."""
    code = base.text(error, "code") or base.text(error, "type") or "error"
    message = base.text(error, "message") or ""
    return base.Piece("error", {"code": code, "message": message})
