"""What a session accepts: ``decide`` says yes or no, ``evolve`` says what follows.

Both are pure.  The state is small whatever the session's length, so that it can
be stored with the stream's head and an append never reads the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from refold.domain.errors import InvalidEvent, SessionClosed
from refold.domain.events import (
    DERIVED_TYPES,
    EVENT_CLASSES,
    LONGEST_ID,
    AgentResponse,
    Event,
    Fork,
    HumanReview,
    JsonObject,
    Pin,
    RedactionApplied,
    Request,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    ToolResult,
    answering,
)
from refold.domain.ids import MAIN, RESERVED, USER_SESSION, StreamId
from refold.domain.preferences import check_update

_USER_WIDE = frozenset({"consent", "forget"})
# What may be in the session of Refold's own: a user's words and settings.
_IN_RESERVED = {USER_SESSION: _USER_WIDE | {"state", "item"}}


LABEL: Final = "label:"  # what keys of the working memory begin with that are labels
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST: Final = 1_000


def labelling(labels: Mapping[str, str | None]) -> StateUpdate:
    """The event that sets labels, or takes away what is None.  Raises InvalidEvent."""
    for name, value in labels.items():
        if not _NAME.fullmatch(name):
            raise InvalidEvent(
                "a label is named by up to 64 lower-case letters, digits and _"
            )
        if not isinstance(value, str | None) or len(value or "") > _LONGEST:
            raise InvalidEvent(f"a label is a text of at most {_LONGEST} characters")
    if not labels:
        raise InvalidEvent("name a label: label(project=…)")
    return StateUpdate(
        set={LABEL + n: value for n, value in labels.items() if value is not None},
        unset=tuple(LABEL + n for n, value in labels.items() if value is None),
    )


def labels_in(event: Event) -> dict[str, str | None]:
    """The labels that it sets, and those, as None, that it takes away."""
    if not isinstance(event, StateUpdate):
        return {}
    given = {**dict.fromkeys(event.unset), **event.set}
    return {
        name.removeprefix(LABEL): None if value is None else str(value)
        for name, value in given.items()
        if name.startswith(LABEL)
    }


class OpenCall(NamedTuple):
    """A call that waits for its result."""

    seq: int
    tool_name: str


# What may be in the main stream of every session but Refold's own.
_ANYWHERE: Final = EVENT_CLASSES.keys() - DERIVED_TYPES - _USER_WIDE
# What more follows from than one event more.
_MOVING: Final = frozenset({ToolCall, ToolResult, Request, SystemPrompt})
# Of the others there is no rule but where they belong.
_RULED: Final = frozenset({ToolCall, ToolResult, Fork, Pin, HumanReview, SystemPrompt})
_UNRULED: Final = (
    frozenset(EVENT_CLASSES[kind] for kind in _ANYWHERE) - _RULED - _MOVING
)
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class SessionState(NamedTuple):
    """A stream as far as what it accepts depends on it.

    ``answered`` counts the calls that have their result: a call that is neither
    open nor new was answered or never made, and takes no result.  ``last_request``
    is the seq of the newest recorded request, 0 if there is none.  ``numbers`` are
    those of placeholders, by type and keyed hash, and ``kept`` the values that a policy
    keeps, with the time of each; they follow from no event.
    """

    stream: StreamId
    head_seq: int = 0
    open_calls: Mapping[str, OpenCall] = _NONE
    answered: int = 0
    closed: bool = False
    forked_from: tuple[str, int] | None = None
    last_request: int = 0
    numbers: Mapping[str, int] = _NONE
    kept: Mapping[str, tuple[str, int]] = _NONE

    def __repr__(self) -> str:
        return f"SessionState({self.stream!r}, {self.head_seq}, closed={self.closed})"

    def dump(self) -> JsonObject:
        """What cannot be read off the head row, as JSON."""
        return {
            "open": {key: [*self.open_calls[key]] for key in self.open_calls},
            "answered": self.answered,
            "fork": list(self.forked_from) if self.forked_from else None,
            "request": self.last_request,
            **({"numbers": dict(self.numbers)} if self.numbers else {}),
            **({"kept": {**self.kept}} if self.kept else {}),  # type: ignore[dict-item]  # JSON has no tuples
        }

    @classmethod
    def load(
        cls, stream: StreamId, head_seq: int, *, closed: bool, dumped: JsonObject
    ) -> SessionState:
        """The state that ``dump`` wrote, at this head."""
        held: dict[str, Any] = dumped
        calls = {key: OpenCall(*call) for key, call in held["open"].items()}
        fork = tuple(held["fork"]) if held["fork"] else None
        values = held.get("numbers", _NONE), held.get("kept", _NONE)
        known = held["answered"], closed, fork, held["request"], *values
        return cls(stream, head_seq, calls, *known)


def decide(
    state: SessionState, events: Sequence[Event]
) -> tuple[list[Event], SessionState]:
    """The events as the session will record them, all or none, and what follows.

    A result that does not name its tool is given its call's name.

    Raises InvalidEvent if one breaks a rule, SessionClosed if nothing may follow.
    """
    accepted = []
    for event in events:
        event = accepted_next(state, event)
        state = evolve(state, event)
        accepted.append(event)
    return accepted, state


# Stands between the id that a provider gave to several open calls and a number.
_SAME_ID: Final = "~"


def told_apart(
    state: SessionState, events: Sequence[Event]
) -> tuple[list[Event], SessionState]:
    """As ``decide``, with ids of their own for calls that a provider gave one id.

    A call whose id an open call has is recorded under that id, ``~`` and its seq, if
    both are in these events, or if the response that made it is.  Alone it stays as it
    is, for ``decide`` to refuse: it may be the same call, appended twice.  A result
    belongs to the oldest open call of its id and, where it names one, of its tool.

    Raises as ``decide``.
    """
    begun = state.head_seq
    answered = False
    apart: list[Event] = []
    for event in events:
        if isinstance(event, AgentResponse):
            answered = True
        elif isinstance(event, ToolCall) and event.call_id in state.open_calls:
            if answered or state.open_calls[event.call_id].seq > begun:
                event = with_own_id(state, event)
        elif isinstance(event, ToolResult):
            event = answering_one(state, event)
        event = accepted_next(state, event)
        state = evolve(state, event)
        apart.append(event)
    return apart, state


def repeats_id(state: SessionState) -> bool:
    """Whether a call may be open whose id another call of the session has."""
    return any(_SAME_ID in name for name in state.open_calls)


def with_own_id(state: SessionState, call: ToolCall) -> ToolCall:
    """The call, which comes next, under an id that no call in the session has."""
    seq = state.head_seq + 1
    return call.model_copy(update={"call_id": _numbered(call.call_id, str(seq))})


def answering_one(state: SessionState, result: ToolResult) -> ToolResult:
    """The result, under the recorded id of the open call that it answers."""
    given = result.call_id
    names = [name for name in state.open_calls if _may_be(name, given)]
    names.sort(key=lambda name: state.open_calls[name].seq)
    tool = result.tool_name
    of_tool = [name for name in names if state.open_calls[name].tool_name == tool]
    chosen = next(iter(of_tool or names), given)
    if chosen == given:
        return result
    return result.model_copy(update={"call_id": chosen})


def _may_be(recorded: str, given: str) -> bool:
    """Whether a call of the ``given`` id is recorded under this one."""
    if recorded == given:
        return True
    _, mark, number = recorded.rpartition(_SAME_ID)
    return bool(mark) and number.isdecimal() and recorded == _numbered(given, number)


def _numbered(call_id: str, number: str) -> str:
    suffix = _SAME_ID + number
    return call_id[: LONGEST_ID - len(suffix)] + suffix


def accepted_next(state: SessionState, event: Event) -> Event:
    """The event as the session records it next.  Raises as ``decide``."""
    if state.closed and not isinstance(event, RedactionApplied):
        raise SessionClosed(state.stream.session_id, head_seq=state.head_seq)
    _check_stream(state.stream, event)
    if type(event) not in _RULED:
        return event
    match event:
        case ToolCall(call_id=call_id) if call_id in state.open_calls:
            raise InvalidEvent(
                f"a call of this call_id waits for its result since seq "
                f"{state.open_calls[call_id].seq}: one call, one call_id"
            )
        case ToolResult(call_id=call_id) if call_id not in state.open_calls:
            raise InvalidEvent(
                "no open call of this call_id: it was never made here, or has its "
                "result already"
            )
        case ToolResult(call_id=call_id, tool_name=None):
            return answering(event, state.open_calls[call_id].tool_name)
        case Fork(session_id=parent, at_seq=at):
            if state.head_seq or state.forked_from != (parent, at):
                raise InvalidEvent("a session is forked by session.fork(at, …) alone")
        case Pin(seqs=seqs) if max(seqs) > state.head_seq:
            raise InvalidEvent(
                f"seq {max(seqs)} cannot be pinned: the session ends at "
                f"{state.head_seq}"
            )
        case HumanReview(refers_to=int(seq)) if seq > state.head_seq:
            raise InvalidEvent(f"a review cannot refer to seq {seq}, which is to come")
        case SystemPrompt(text=None, closed=False):
            raise InvalidEvent("a system event needs a text")
    return event


def _check_stream(stream: StreamId, event: Event) -> None:
    kind, name = event.type, stream.session_id
    if kind in _ANYWHERE and stream.stream == MAIN and name not in RESERVED:
        return
    derived = kind in DERIVED_TYPES
    if derived != (stream.stream != MAIN):
        place = "a derived stream" if derived else "the main stream"
        raise InvalidEvent(f"a {kind} event belongs in {place}")
    if kind == "redaction_applied":
        return
    if kind in _USER_WIDE and name != USER_SESSION:
        raise InvalidEvent(f"a {kind} event belongs in {USER_SESSION!r}")
    if name in RESERVED and kind not in _IN_RESERVED[name]:
        raise InvalidEvent(f"a {kind} event is not for {name!r}")
    if name == USER_SESSION and isinstance(event, StateUpdate):
        check_update(event)


def unruled(state: SessionState) -> frozenset[type[Event]]:
    """The types that are accepted next whatever they say, and only count the seq up."""
    stream, closed = state.stream, state.closed
    ordinary = stream.stream == MAIN and stream.session_id not in RESERVED
    return _UNRULED if ordinary and not closed else frozenset()


def evolve(state: SessionState, event: Event) -> SessionState:
    """The state after ``event``, which is the next of its stream."""
    seq, calls = state.head_seq + 1, state.open_calls
    answered, closed, request = state.answered, state.closed, state.last_request
    kind = event if type(event) in _MOVING else None
    match kind:
        case ToolCall(call_id=call_id, tool_name=name):
            calls = {**calls, call_id: OpenCall(seq, name)}
        case ToolResult(call_id=call_id):
            calls = {k: v for k, v in calls.items() if k != call_id}
            answered += 1
        case Request():
            request = seq
        case SystemPrompt(closed=True):
            closed = True
    values = _NONE if closed else state.kept
    kept = state.forked_from, request, state.numbers, values
    return SessionState(state.stream, seq, calls, answered, closed, *kept)
