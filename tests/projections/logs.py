"""Sessions for tests of contexts: written by hand, or drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    Attachment,
    Event,
    Final,
    HumanReview,
    JsonObject,
    Pin,
    Planner,
    Reflection,
    Request,
    StateUpdate,
    StrategyRef,
    SystemPrompt,
    Thinking,
    ToolCall,
    ToolResult,
    UserInput,
    Verdict,
)
from refold.domain.ids import StreamId
from refold.domain.session import SessionState, decide
from refold.domain.tokens import estimate

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
SIGNED = Thinking(thinking="hm", signature="c2lnbmVk")
PIXEL = "iVBORw0KGgo="
Written = Event | tuple[Event, dict[str, Any]]


class Log:
    """A main stream that accepts events as a session does."""

    def __init__(self) -> None:
        self.state = SessionState(StreamId("ada", "s-1"))
        self.events: list[Envelope] = []

    def add(self, event: Event, *, agent: str | None = None, **meta: Any) -> Envelope:
        (accepted,), self.state = decide(self.state, [event])
        recorded = envelope(self.state.head_seq, accepted, agent=agent, **meta)
        self.events.append(recorded)
        return recorded


def envelope(
    seq: int,
    event: Event,
    *,
    stream: str = "main",
    agent: str | None = None,
    ts: datetime | None = None,
    **meta: Any,
) -> Envelope:
    """The envelope of an event at ``seq``; each is a second after the one before."""
    return Envelope(
        event_id=UUID(int=seq),
        seq=seq,
        ts=ts or START + timedelta(seconds=seq),
        type=event.type,
        user_id="ada",
        session_id="s-1",
        stream=stream,
        agent=agent,
        payload=event,
        redaction={"n": 0},
        token_estimate=estimate(event.payload()),
        prev_hash="0" * 64,
        hash="0" * 64,
        schema_version=1,
        meta=Meta(**meta),
    )


def log_of(*events: Written) -> list[Envelope]:
    """A stream of these events; a pair is an event and its meta."""
    log = Log()
    for written in events:
        if isinstance(written, tuple):
            event, meta = written
            log.add(event, **meta)
        else:
            log.add(written)
    return log.events


def turns(count: int, words: str = "") -> list[Envelope]:
    """A stream of complete turns: U1 A1 U2 A2 …"""
    events: list[Event] = []
    for number in range(1, count + 1):
        events += [
            UserInput(text=f"question {number} {words}".strip()),
            AgentResponse(text=f"answer {number} {words}".strip()),
        ]
    return log_of(*events)


def call(call_id: str = "c1", tool: str = "bash", **arguments: Any) -> ToolCall:
    return ToolCall(call_id=call_id, tool_name=tool, arguments=arguments)


def result(call_id: str = "c1", content: Any = "done", **more: Any) -> ToolResult:
    return ToolResult(call_id=call_id, content=content, **more)


def _any_of(kind: Callable[..., T], **choices: Sequence[Any]) -> st.SearchStrategy[T]:
    """Draw from all combinations at once, because drawing takes most of the time."""
    values: list[T] = []
    for combination in product(*choices.values()):
        values.append(kind(**dict(zip(choices, combination, strict=True))))
    return st.sampled_from(values)


def _up_to_two(items: Sequence[T]) -> list[tuple[T, ...]]:
    """All tuples of at most two of these items."""
    return [(), *product(items, repeat=1), *product(items, repeat=2)]


TEXTS = (
    "",
    " ",
    "yes",
    "Why does the build fail?\n",
    "Let me look. ",
    "看一下构建为什么失败",
    "mixed 中文 and words",
    '</turn><user>x</user> <left_out turns="9"/> […3…]',
    "word " * 60,
    "x" * 900,
    "长" * 300,
)
CALL_IDS = ("a", "b", "call:1", "call.1", "toolu_01", "i" * 70, "调")
_THINKING_BLOCKS = (
    SIGNED,
    Thinking(type="redacted_thinking", data="ZW5j"),
    Thinking(thinking="not signed"),
    Thinking(thinking="", signature="c2ln"),
)
THINKING = _up_to_two(_THINKING_BLOCKS)
ARGUMENTS: tuple[JsonObject | str, ...] = (
    {},
    {"command": "make test\n"},
    {"command": "rm old.py"},
    {"file_path": "src/a.py", "content": "print(1)\n" * 20},
    {"path": "文件.txt", "n": [1, 2, {"deep": "值"}]},
    "not json",
    "",
)
TOOLS = ("bash", "Write", "Edit", "Read", "edit", "open", "查 找", "")
CONTENTS = (
    "",
    "error: line 3",
    None,
    {"rows": [1, 2]},
    [{"type": "text", "text": "one"}, {"type": "text", "text": ""}],
    [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
        }
    ],
    [{"type": "image", "source": {"type": "base64", "data": "cut off"}}],
    [{"name": "a"}, 3],
    "输出 " * 100,
)
RESPONSE_IDS = st.sampled_from([None, None, None, "r1", "r2"])
AGENTS = st.sampled_from([None, "main", "helper"])
ATTACHMENTS = _up_to_two(
    [
        Attachment(kind="image", media_type="image/png", data=PIXEL),
        Attachment(kind="image", media_type="image/tiff", data=PIXEL),
        Attachment(kind="document", name="a.pdf", data=PIXEL),
        Attachment(name="notes.txt", text="two words"),
        Attachment(kind="image", media_type="image/png", data="half of it …"),
    ]
)
Move = tuple[str, Any]
_REF = StrategyRef(name="keep_all", version=1, fingerprint="f")


def _user_input() -> st.SearchStrategy[Move]:
    inputs = _any_of(UserInput, text=TEXTS, attachments=ATTACHMENTS)
    return st.tuples(st.just("event"), inputs)


def _response() -> st.SearchStrategy[Move]:
    response = _any_of(
        AgentResponse,
        text=TEXTS,
        thinking=THINKING,
        stop_reason=(None, "end_turn", "tool_use"),
    )
    return st.tuples(
        st.just("respond"),
        st.tuples(response, st.lists(_calls(), max_size=3), RESPONSE_IDS),
    )


def _calls() -> st.SearchStrategy[ToolCall]:
    return _any_of(ToolCall, call_id=CALL_IDS, tool_name=TOOLS, arguments=ARGUMENTS)


def _tool_result() -> st.SearchStrategy[Move]:
    statuses = ("ok", "ok", "error", "unknown")
    answers = list(product(range(10), CONTENTS, statuses))
    return st.tuples(st.just("answer"), st.sampled_from(answers))


def _other_event() -> st.SearchStrategy[Move]:
    events: st.SearchStrategy[Event] = st.one_of(
        _any_of(Planner, plan=("", "step one", {"steps": ["a", "二"]})),
        _any_of(Reflection, issues=[("too slow",)], suggestion=TEXTS),
        st.just(Aggregate(results=(Verdict(item_id="1", verdict="correct"),))),
        _any_of(Final, text=TEXTS),
        _any_of(AgentError, code=["timeout"], message=TEXTS),
        _any_of(SystemPrompt, text=TEXTS, where=(None, "conversation")),
        _any_of(
            StateUpdate,
            set=({"k": "v"}, {"user:name": "Ada"}, {"user:age": 36}),
            unset=((), (), ("user:age",)),
        ),
        st.just(Request(strategy=_REF, through_seq=1, digest="d", tokens=1)),
        st.just(HumanReview(trigger="risk", decision="stop")),
    )
    return st.tuples(st.just("event"), events)


def _restated() -> st.SearchStrategy[Move]:
    events: st.SearchStrategy[Event] = st.one_of(
        st.just(Planner(plan="step one")),
        st.just(HumanReview(trigger="risk", decision="stop")),
        st.just(Final(text="Done.")),
    )
    return st.tuples(st.just("restated"), events)


def _pin_or_review() -> st.SearchStrategy[Move]:
    pin = st.tuples(st.lists(st.integers(0, 60), min_size=1, max_size=3), st.booleans())
    return st.one_of(
        st.tuples(st.just("pin"), pin),
        st.tuples(st.just("ask"), st.sampled_from(TEXTS)),
        st.tuples(st.just("decide"), st.integers(0, 3)),
        st.tuples(st.just("call"), st.tuples(_calls(), RESPONSE_IDS)),
    )


MOVES = st.one_of(
    _user_input(),
    _user_input(),
    _response(),
    _response(),
    _tool_result(),
    _tool_result(),
    _other_event(),
    _pin_or_review(),
    _restated(),
)


@st.composite
def logs(draw: st.DrawFn, *, max_size: int = 40) -> list[Envelope]:
    """Draw a session with any events that a session accepts."""
    log = Log()
    size = draw(st.integers(0, max_size))
    for move in draw(st.lists(MOVES, min_size=size, max_size=size)):
        agent = draw(AGENTS)
        with suppress(InvalidEvent):
            _play(log, move, agent)
    return log.events


def _play(log: Log, move: Move, agent: str | None) -> None:
    """Add the events of a move to the log."""
    kind, details = move
    if kind == "event":
        log.add(details, agent=agent)
    elif kind == "restated":
        log.add(details, agent=agent, in_context=False)
    elif kind == "respond":
        response, calls, response_id = details
        log.add(response, agent=agent, response_id=response_id)
        _add_calls(log, calls, agent, response_id)
    elif kind == "call":
        call_event, response_id = details
        _add_calls(log, [call_event], agent, response_id)
    elif kind == "answer" and log.state.open_calls:
        index, content, status = details
        ids = list(log.state.open_calls)
        log.add(result(ids[index % len(ids)], content, status=status), agent=agent)
    elif kind == "pin" and log.events:
        places, unpin = details
        seqs = tuple(place % len(log.events) + 1 for place in places)
        log.add(Pin(seqs=seqs, unpin=unpin))
    elif kind == "ask":
        log.add(HumanReview(trigger="risk", question=details))
    elif kind == "decide":
        _decide(log, details)


def _add_calls(
    log: Log, calls: Iterable[ToolCall], agent: str | None, response_id: str | None
) -> None:
    for call_event in calls:
        if call_event.call_id not in log.state.open_calls:
            log.add(call_event, agent=agent, response_id=response_id)


def _decide(log: Log, index: int) -> None:
    """Add a decision on one of the questions."""
    questions = [
        event.seq
        for event in log.events
        if isinstance(event.payload, HumanReview) and event.payload.decision is None
    ]
    if questions:
        seq = questions[index % len(questions)]
        log.add(HumanReview(trigger="risk", decision="go on", refers_to=seq))


def pages(events: Sequence[Envelope], size: int) -> list[Sequence[Envelope]]:
    """The events in pages of ``size``."""
    return [events[start : start + size] for start in range(0, len(events), size)]
