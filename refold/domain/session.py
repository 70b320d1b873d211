"""The rules of a session: ``decide`` checks events, and ``evolve`` updates the state.

Both are pure.  The state is small for sessions of any length.  It is stored with the
stream's head, so an append never reads the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    Item,
    JsonObject,
    Pin,
    ProviderEdit,
    RedactionApplied,
    Request,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    ToolResult,
    answering,
)
from refold.domain.ids import MAIN, RESERVED, USER_SESSION, StreamId

_USER_WIDE = frozenset({"consent", "forget"})
# By internal session, the types of events that it accepts.
_IN_RESERVED = {USER_SESSION: _USER_WIDE | {"state", "item"}}
# Labels are keys of the working memory with this prefix.
LABEL: Final = "label:"
# The label of a session that the proxy records.  Captures and imports leave it alone.
RECORDED_BY: Final = "recorded_by"
PROXY: Final = "proxy"
_LABEL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST_LABEL: Final = 1_000


def labelling(labels: Mapping[str, str | None]) -> StateUpdate:
    """Return the event that sets labels, and removes those whose value is None.

    Raises InvalidEvent for an invalid name or value, or without labels.
    """
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise InvalidEvent(
                "the name of a label has up to 64 lower-case letters, digits and _"
            )
        if not isinstance(value, str | None) or len(value or "") > _LONGEST_LABEL:
            raise InvalidEvent(
                f"a label is a text of at most {_LONGEST_LABEL} characters"
            )
    if not labels:
        raise InvalidEvent("name a label: label(project=…)")
    return StateUpdate(
        set={
            LABEL + name: value for name, value in labels.items() if value is not None
        },
        unset=tuple(LABEL + name for name, value in labels.items() if value is None),
    )


def labels_in(event: Event) -> dict[str, str | None]:
    """Return the labels that an event sets; the value of a removed label is None."""
    if not isinstance(event, StateUpdate):
        return {}
    labels: dict[str, str | None] = {}
    for name, value in {**dict.fromkeys(event.unset), **event.set}.items():
        if name.startswith(LABEL):
            label = name.removeprefix(LABEL)
            labels[label] = None if value is None else str(value)
    return labels


class OpenCall(NamedTuple):
    """A call without a result."""

    seq: int
    tool_name: str


# The types that the main stream of every conversation accepts.
_ANYWHERE: Final = EVENT_CLASSES.keys() - DERIVED_TYPES - _USER_WIDE
# The events that change more of the state than the head seq.
_STATE_CHANGING: Final = frozenset({ToolCall, ToolResult, Request, SystemPrompt})
# The events with rules besides the stream that they belong in.
_RESTRICTED: Final = frozenset(
    {ToolCall, ToolResult, Fork, Pin, HumanReview, ProviderEdit, SystemPrompt}
)
_UNRESTRICTED: Final = (
    frozenset(EVENT_CLASSES[kind] for kind in _ANYWHERE) - _RESTRICTED - _STATE_CHANGING
)
_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class SessionState(NamedTuple):
    """The state of a stream that decides which events it accepts next.

    open_calls:   the calls without a result, by call id.
    answered:     the number of calls with a result.
    forked_from:  the parent session, and the seq at which it was forked.
    last_request: the seq of the newest request, or 0.
    numbers:      the numbers of placeholders, by type and keyed hash.
    kept:         the values that a policy exempts from redaction, with the time of
                  each.
    learned:      keyed digests of the secrets in its events, with the seq of the event
                  that showed each.

    ``numbers``, ``kept`` and ``learned`` do not follow from events.
    """

    stream: StreamId
    head_seq: int = 0
    open_calls: Mapping[str, OpenCall] = _EMPTY
    answered: int = 0
    closed: bool = False
    forked_from: tuple[str, int] | None = None
    last_request: int = 0
    numbers: Mapping[str, int] = _EMPTY
    kept: Mapping[str, tuple[str, int]] = _EMPTY
    learned: Mapping[str, int] = _EMPTY

    def __repr__(self) -> str:
        return f"SessionState({self.stream!r}, {self.head_seq}, closed={self.closed})"

    def dump(self) -> JsonObject:
        """Return the part of the state without columns in the head row, as JSON."""
        dumped: JsonObject = {
            "open": {call_id: [*call] for call_id, call in self.open_calls.items()},
            "answered": self.answered,
            "fork": list(self.forked_from) if self.forked_from else None,
            "request": self.last_request,
        }
        if self.numbers:
            dumped["numbers"] = dict(self.numbers)
        if self.kept:
            dumped["kept"] = dict(self.kept)  # type: ignore[arg-type]  # JSON has no tuples
        if self.learned:
            dumped["learned"] = dict(self.learned)
        return dumped

    @classmethod
    def load(
        cls, stream: StreamId, head_seq: int, *, closed: bool, dumped: JsonObject
    ) -> SessionState:
        """Return the state that ``dump`` wrote, for this head."""
        stored: dict[str, Any] = dumped
        open_calls = {key: OpenCall(*call) for key, call in stored["open"].items()}
        return cls(
            stream=stream,
            head_seq=head_seq,
            open_calls=open_calls,
            answered=stored["answered"],
            closed=closed,
            forked_from=tuple(stored["fork"]) if stored["fork"] else None,
            last_request=stored["request"],
            numbers=stored.get("numbers", _EMPTY),
            kept=stored.get("kept", _EMPTY),
            learned=stored.get("learned", _EMPTY),
        )


def decide(
    state: SessionState, events: Sequence[Event]
) -> tuple[list[Event], SessionState]:
    """Return the events as the session records them, and the state after them.

    A result without a tool name gets the name in its call.

    Raises InvalidEvent if an event breaks a rule, and SessionClosed after the end of
    the session.
    """
    accepted: list[Event] = []
    for event in events:
        event = accepted_next(state, event)
        state = evolve(state, event)
        accepted.append(event)
    return accepted, state


# Separates the id that a provider gave to several open calls from a seq.
_SAME_ID: Final = "~"


def decide_with_own_ids(
    state: SessionState,
    events: Sequence[Event],
    answers: AnswersOfCalls | None = None,
) -> tuple[list[Event], SessionState]:
    """Decide on events in which a provider may have given several calls one id.

    A call with the id of an open call gets its own id: that id, ``~``, and its seq.
    This requires that these events contain the open call or the response with the new
    one.  Otherwise the call may be the same one, appended twice, and is refused.

    A result belongs to the open call that ``with_recorded_id`` finds.

    answers: those of the open calls; without them, all open calls count as one answer.

    Raises the same errors as ``decide``.
    """
    head_before = state.head_seq
    has_response = False
    answers = answers or AnswersOfCalls()
    accepted: list[Event] = []
    for event in events:
        if isinstance(event, AgentResponse):
            has_response = True
        elif isinstance(event, ToolCall) and event.call_id in state.open_calls:
            is_new = state.open_calls[event.call_id].seq > head_before
            if has_response or is_new:
                event = with_own_id(state, event)
        elif isinstance(event, ToolResult):
            event = with_recorded_id(state, event, answers)
        event = accepted_next(state, event)
        state = evolve(state, event)
        answers.add(state.head_seq, event)
        accepted.append(event)
    return accepted, state


def repeats_id(state: SessionState) -> bool:
    """Whether ``with_own_id`` may have changed the id of an open call."""
    return any(_SAME_ID in name for name in state.open_calls)


def with_own_id(state: SessionState, call: ToolCall) -> ToolCall:
    """Return the next call with an id that no other call of the session has."""
    seq = state.head_seq + 1
    return call.model_copy(update={"call_id": _numbered(call.call_id, str(seq))})


# Returns events with their seqs, in order.
ReadEvents = Callable[[], Iterable[tuple[int, Event]]]
# Events that may stand between the calls of one answer.
_WITHIN_ANSWER: Final = (AgentResponse, Item, ProviderEdit, StateUpdate)


class AnswersOfCalls:
    """Groups calls by the answer of the model that contains them.

    Nothing but texts of the model stands between the calls of one answer.

    read_earlier: returns the events before the first one that is added, with their
                  seqs.  It is called only if two calls compete for a result.
    """

    def __init__(self, read_earlier: ReadEvents | None = None) -> None:
        # By the seq of a call, that of the first call of its answer.
        self._first_seqs: dict[int, int] = {}
        self._first_seq = 0  # of the answer that may continue; 0 without one
        self._read_earlier = read_earlier
        # The events that wait for the earlier ones.
        self._waiting: list[tuple[int, Event]] = []

    def copy(self) -> AnswersOfCalls:
        """Return answers that continue independently from here."""
        answers = AnswersOfCalls(self._read_earlier)
        answers._first_seqs.update(self._first_seqs)
        answers._first_seq = self._first_seq
        answers._waiting += self._waiting
        return answers

    def add(self, seq: int, event: Event) -> None:
        """Add the next event."""
        if self._read_earlier is None:
            self._group(seq, event)
        else:
            self._waiting.append((seq, event))

    def _group(self, seq: int, event: Event) -> None:
        if isinstance(event, ToolCall):
            self._first_seq = self._first_seq or seq
            self._first_seqs[seq] = self._first_seq
        elif not isinstance(event, _WITHIN_ANSWER):
            self._first_seq = 0

    def in_newest(self, seqs: Iterable[int]) -> list[int]:
        """Return the seqs of the calls in the newest answer that has one of them.

        Calls that were not added count as one answer, which is older.
        """
        if self._read_earlier is not None:
            earlier = self._read_earlier()
            self._read_earlier = None
            for seq, event in (*earlier, *self._waiting):
                self._group(seq, event)
            self._waiting.clear()
        by_answer: dict[int, list[int]] = {}
        for seq in seqs:
            by_answer.setdefault(self._first_seqs.get(seq, 0), []).append(seq)
        return by_answer[max(by_answer)] if by_answer else []


def with_recorded_id(
    state: SessionState, result: ToolResult, answers: AnswersOfCalls
) -> ToolResult:
    """Return the result with the recorded id of the open call that it answers.

    That is the oldest open call with its id in the newest answer.  If the result names
    a tool, the call is one of this tool, if there is any.
    """
    provider_id = result.call_id
    ids: dict[int, str] = {}  # by the seq of the call
    ids_of_tool: dict[int, str] = {}
    for call_id, call in state.open_calls.items():
        if not _is_of(call_id, provider_id):
            continue
        ids[call.seq] = call_id
        if call.tool_name == result.tool_name:
            ids_of_tool[call.seq] = call_id
    candidates = ids_of_tool or ids
    if not candidates:
        return result
    seqs = [*candidates]
    if len(seqs) > 1:
        seqs = answers.in_newest(seqs)
    call_id = candidates[min(seqs)]
    if call_id == provider_id:
        return result
    return result.model_copy(update={"call_id": call_id})


def _is_of(recorded: str, provider_id: str) -> bool:
    """Whether a call with the provider's id may be recorded under this one."""
    if recorded == provider_id:
        return True
    _, mark, number = recorded.rpartition(_SAME_ID)
    if not mark or not number.isdecimal():
        return False
    return recorded == _numbered(provider_id, number)


def _numbered(call_id: str, number: str) -> str:
    """Return an id with a number at its end, cut to the longest length of an id."""
    suffix = _SAME_ID + number
    return call_id[: LONGEST_ID - len(suffix)] + suffix


def accepted_next(state: SessionState, event: Event) -> Event:
    """Return the next event as the session records it.

    Raises the same errors as ``decide``.
    """
    if state.closed and not isinstance(event, RedactionApplied):
        raise SessionClosed(state.stream.session_id, head_seq=state.head_seq)
    _check_stream(state.stream, event)
    if type(event) not in _RESTRICTED:
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
        case ProviderEdit() as edit:
            _check_edit(edit, state.head_seq)
        case HumanReview(refers_to=int(seq)) if seq > state.head_seq:
            raise InvalidEvent(
                f"a review cannot refer to seq {seq}, which does not exist yet"
            )
        case SystemPrompt(text=None, closed=False):
            raise InvalidEvent("a system event needs a text")
    return event


def _check_edit(edit: ProviderEdit, head_seq: int) -> None:
    """Check that an edit changes only earlier events.  Raises InvalidEvent."""
    newest = max((last for _, last in edit.spans), default=head_seq)
    if newest > head_seq:
        raise InvalidEvent(
            f"seq {newest} cannot be left out or changed: the session ends at "
            f"{head_seq}"
        )


def _check_stream(stream: StreamId, event: Event) -> None:
    """Check that the event belongs in this stream.  Raises InvalidEvent."""
    kind = event.type
    session_id = stream.session_id
    # Most events need only this check.
    if kind in _ANYWHERE and stream.stream == MAIN and session_id not in RESERVED:
        return
    needs_derived = kind in DERIVED_TYPES
    is_derived = stream.stream != MAIN
    if needs_derived != is_derived:
        place = "a derived stream" if needs_derived else "the main stream"
        raise InvalidEvent(f"a {kind} event belongs in {place}")
    if kind == "redaction_applied":
        return
    if kind in _USER_WIDE and session_id != USER_SESSION:
        raise InvalidEvent(f"a {kind} event belongs in {USER_SESSION!r}")
    if session_id in RESERVED and kind not in _IN_RESERVED[session_id]:
        raise InvalidEvent(f"a {kind} event is not for {session_id!r}")
    if session_id == USER_SESSION and isinstance(event, StateUpdate):
        from refold.domain.preferences import check_update

        check_update(event)


def unrestricted_types(state: SessionState) -> frozenset[type[Event]]:
    """Return the types of which every event is accepted next.

    Such an event changes nothing in the state but the head seq.
    """
    stream = state.stream
    is_conversation = stream.stream == MAIN and stream.session_id not in RESERVED
    if state.closed or not is_conversation:
        return frozenset()
    return _UNRESTRICTED


def evolve(state: SessionState, event: Event) -> SessionState:
    """Return the state after an accepted event."""
    seq = state.head_seq + 1
    open_calls = state.open_calls
    answered = state.answered
    closed = state.closed
    last_request = state.last_request
    if type(event) in _STATE_CHANGING:
        match event:
            case ToolCall(call_id=call_id, tool_name=tool_name):
                open_calls = {**open_calls, call_id: OpenCall(seq, tool_name)}
            case ToolResult(call_id=answered_id):
                open_calls = {
                    call_id: call
                    for call_id, call in open_calls.items()
                    if call_id != answered_id
                }
                answered += 1
            case Request():
                last_request = seq
            case SystemPrompt(closed=True):
                closed = True
    return SessionState(
        stream=state.stream,
        head_seq=seq,
        open_calls=open_calls,
        answered=answered,
        closed=closed,
        forked_from=state.forked_from,
        last_request=last_request,
        numbers=state.numbers,
        kept=_EMPTY if closed else state.kept,
        learned=state.learned,
    )
