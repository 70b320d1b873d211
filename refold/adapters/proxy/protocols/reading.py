"""Reading of requests and answers, as far as all protocols share it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, Final
from urllib.parse import unquote

import orjson

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import NotRecordable, WireMessage
from refold.domain.canonical import canonical, repaired
from refold.domain.envelope import REPAIRED, Warn
from refold.domain.events import (
    Attachment,
    Event,
    Item,
    JsonObject,
    ToolCall,
    ToolResult,
    UserInput,
)

# The codes of warnings.
NOT_CONVERTED: Final = "not_converted"
FIELDS_LEFT_OUT: Final = "fields_left_out"
WITHOUT_CALL: Final = "result_without_call"
EMPTY_MESSAGE: Final = "empty_message"
UNREADABLE: Final = "unreadable_event"

# Fields of a body that may have credentials.  They are sent, and never recorded.
_SECRETS: Final = frozenset(
    {
        "access_token",
        "api_key",
        "authorization",
        "authorization_token",
        "fallback_credit_token",
        "headers",
    }
)
# The most bytes of messages whose events are remembered, and the most messages.
_MOST_BYTES: Final = 32 << 20
_MOST_MESSAGES: Final = 50_000
# A warning lists this many places; it counts the others.
_MOST_PLACES: Final = 10


class Notes:
    """Collects warnings: for each code, the places that it is about."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, None]] = {}

    def add(self, code: str, place: str) -> None:
        """Add a place to the warning with this code."""
        self._places.setdefault(code, {})[place] = None

    def add_all(self, notes: Notes) -> None:
        """Add the places of other notes."""
        for code, places in notes._places.items():
            self._places.setdefault(code, {}).update(places)

    def repaired(self, changes: int) -> None:
        """Note the number of values that JSON in UTF-8 cannot hold."""
        if changes:
            self.add(REPAIRED, base.replaced(changes))

    def __bool__(self) -> bool:
        return bool(self._places)

    def warnings(self) -> tuple[Warn, ...]:
        """Return one warning for each code."""
        warnings: list[Warn] = []
        for code, places in self._places.items():
            listed = list(places)[:_MOST_PLACES]
            if len(places) > _MOST_PLACES:
                listed.append(f"{len(places) - _MOST_PLACES} more")
            warnings.append(Warn(code=code, detail="; ".join(listed)))
        return tuple(warnings)


class Conversions:
    """Remembers the events of messages, because each request repeats all messages.

    Only messages without warnings are remembered, those that were used last.  Nothing
    is written to disk.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[bytes, WireMessage] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def message(
        self, message: Any, notes: Notes, convert: Callable[[], WireMessage]
    ) -> WireMessage:
        """Return a message as events; ``convert`` makes them the first time."""
        try:
            key = orjson.dumps(message)
        except TypeError:
            return convert()
        with self._lock:
            converted = self._messages.get(key)
            if converted is not None:
                self._messages.move_to_end(key)
                return converted
        warnings_before = notes.warnings()
        converted = convert()
        if notes.warnings() == warnings_before:
            self._remember(key, converted)
        return converted

    def _remember(self, key: bytes, converted: WireMessage) -> None:
        if len(key) > _MOST_BYTES:
            return  # it would displace all others
        with self._lock:
            if key in self._messages:
                return  # another thread converted it at the same time
            self._messages[key] = converted
            self._bytes += len(key)
            while self._bytes > _MOST_BYTES or len(self._messages) > _MOST_MESSAGES:
                oldest, _ = self._messages.popitem(last=False)
                self._bytes -= len(oldest)


def endpoint(path: str) -> str:
    """Return a path without its query and its last slash."""
    return unquote(path.partition("?")[0]).rstrip("/")


def json_of(data: bytes | str) -> tuple[Any, int]:
    """Return a JSON value, and the number of values in it that were replaced.

    Raises ValueError, also for invalid JSON that is nested too deeply to be judged.
    """
    changes = 0
    if isinstance(data, bytes):
        try:
            return base.loads(data)
        except UnicodeDecodeError:
            data = data.decode(errors="replace")
            changes = 1
        except RecursionError:
            raise ValueError("nested too deeply") from None
    try:
        value, more = base.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value, changes + more


def body_of(body: bytes, notes: Notes) -> dict[str, Any]:
    """Return the JSON object in the body of a request.  Raises NotRecordable."""
    try:
        value, changes = json_of(body)
    except ValueError:
        raise NotRecordable("its body is not JSON") from None
    if not isinstance(value, dict):
        raise NotRecordable("its body is not a JSON object")
    notes.repaired(changes)
    return value


def without_secrets(fields: Mapping[str, Any], *left_out: str) -> JsonObject:
    """Return the fields of a body that are recorded as options.

    left_out: names of fields that are recorded elsewhere.

    Objects and lists of objects in the body, such as MCP servers and tools, lose their
    credentials, too.
    """
    recorded: JsonObject = {}
    for name, value in fields.items():
        if name in left_out or name in _SECRETS:
            continue
        if isinstance(value, dict) and not _SECRETS.isdisjoint(value):
            value = without_secrets(value)
        elif isinstance(value, list):
            value = [
                without_secrets(item) if isinstance(item, dict) else item
                for item in value
            ]
        recorded[name] = value
    storable_fields: JsonObject = storable(recorded)
    return storable_fields


def storable(value: Any) -> Any:
    """Return JSON that can be encoded: what is nested too deeply becomes a text."""
    try:
        canonical(value)
    except (TypeError, ValueError, RecursionError):
        return repaired(value)[0]
    return value


class DerivedIds:
    """Gives ids to calls that have none, and finds the calls that results answer.

    An id consists of the tool's name and a number, which counts the calls of the tool
    in one answer: ``shell:0``.  So it is the same in the answer and in each later
    request.  Only calls that wait for their results at the same time have different
    ids.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._is_in_answer = False  # whether the last message is the model's
        # The id and the tool of each call without a result.
        self._waiting: list[tuple[str, str]] = []

    @property
    def continues_answer(self) -> bool:
        """Whether a next message of the model may need ids that follow derived ones.

        Some clients keep each chunk of a stream as a separate message.
        """
        return self._is_in_answer and bool(self._counts)

    def copy(self) -> DerivedIds:
        """Return ids that continue independently from here."""
        ids = DerivedIds()
        ids._counts.update(self._counts)
        ids._waiting += self._waiting
        ids._is_in_answer = self._is_in_answer
        return ids

    def continued(self) -> DerivedIds:
        """Return ids for the calls of a next message of the model."""
        ids = DerivedIds()
        if self._is_in_answer:
            ids._counts.update(self._counts)
        return ids

    def take(self, message: WireMessage) -> None:
        """Take a converted message, whose calls then wait for results without ids."""
        if message.role != "assistant":
            self._is_in_answer = False
        elif not self._is_in_answer:
            self._counts.clear()
            self._waiting.clear()
            self._is_in_answer = True
        for event in message.events:
            if isinstance(event, ToolCall):
                self._take_call(event.tool_name, event.call_id)
            elif isinstance(event, ToolResult):
                self.of_result(event.tool_name, event.call_id)

    def _take_call(self, tool: str, call_id: str) -> None:
        """Let a call with an id, which may be derived, wait for its result."""
        if call_id == f"{tool}:{self._counts[tool]}":
            self._counts[tool] += 1
        self._waiting.append((call_id, tool))

    def of_call(self, tool: str, call_id: str | None = None) -> str:
        """Return the id of the next call, which has one or gets one."""
        if not call_id:
            call_id = f"{tool}:{self._counts[tool]}"
            self._counts[tool] += 1
        self._waiting.append((call_id, tool))
        return call_id

    def of_result(self, tool: str | None, call_id: str | None) -> str | None:
        """Return the id of the call that a result answers; None if no call waits.

        tool:    the tool of the result; None if it names none.
        call_id: the id in the result.  Without one, it answers the oldest call of its
                 tool, or of any tool.
        """
        self._is_in_answer = False
        for index, (waiting_id, called_tool) in enumerate(self._waiting):
            if call_id is None:
                is_answered = tool is None or tool == called_tool
            else:
                is_answered = waiting_id == call_id
            if is_answered:
                del self._waiting[index]
                return waiting_id
        return call_id


class UserEvents:
    """Collects the events of a message of the user, in its order.

    Each text begins a ``user_input``, and files belong to the text before them.  So a
    context can show the same parts in the same order.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._text: str | None = None
        self._files: list[JsonObject] = []

    def text(self, text: str) -> None:
        """Add a text; white space alone is no input."""
        if text and not text.isspace():
            self._end()
            self._text = text

    def file(self, attachment: JsonObject) -> None:
        """Add a file, with the fields of an attachment."""
        self._files.append(attachment)

    def event(self, event: Event) -> None:
        """Add an event, such as a result."""
        self._end()
        self._events.append(event)

    def events(self) -> tuple[Event, ...]:
        """Return all events."""
        self._end()
        return tuple(self._events)

    def _end(self) -> None:
        """End the current input."""
        if self._text is not None or self._files:
            attachments = tuple(Attachment(**file) for file in self._files)
            event = UserInput(text=self._text or "", attachments=attachments)
            self._events.append(event)
        self._text = None
        self._files = []


def settled(
    messages: Iterable[WireMessage], protocol: str, notes: Notes
) -> tuple[WireMessage, ...]:
    """Return messages in which each result answers a call before it.

    A result without such a call becomes an ``item``, and so does a second result.
    Messages without events are left out.
    """
    waiting: dict[str, int] = {}
    settled_messages: list[WireMessage] = []
    for message in messages:
        message = settled_message(message, waiting, protocol, notes)
        if message.events:
            settled_messages.append(message)
    return tuple(settled_messages)


def settled_message(
    message: WireMessage, waiting: dict[str, int], protocol: str, notes: Notes
) -> WireMessage:
    """Return a message in which each result answers a call before it.

    waiting: by call id, the number of calls without a result before the message;
             afterwards, of those behind it.
    """
    has_orphan = False
    for event in message.events:
        if type(event) is ToolCall:
            waiting[event.call_id] = waiting.get(event.call_id, 0) + 1
        elif type(event) is ToolResult:
            open_calls = waiting.get(event.call_id, 0)
            waiting[event.call_id] = open_calls - 1
            if open_calls <= 0:
                has_orphan = True
    if has_orphan:
        message = _without_orphans(message, waiting, protocol, notes)
    return message


def _without_orphans(
    message: WireMessage, waiting: dict[str, int], protocol: str, notes: Notes
) -> WireMessage:
    """Return the message with the last results of a call id as items.

    waiting: by call id, the number of open calls behind the message.  A negative number
             is that of the results too many; it becomes 0.
    """
    events: list[Event] = []
    for event in reversed(message.events):
        if isinstance(event, ToolResult) and waiting[event.call_id] < 0:
            waiting[event.call_id] += 1
            notes.add(WITHOUT_CALL, event.tool_name or "result")
            value = event.payload()
            events.append(Item(format=protocol, kind="tool_result", value=value))
        else:
            events.append(event)
    return message._replace(events=tuple(reversed(events)))
