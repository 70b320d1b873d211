"""How many functions an operation calls: what it costs, without a clock.

A budget is what was counted.  An operation that needs more became slower:
raise its budget with the reason in the commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest

import refold
from refold.adapters.proxy.exchange import Answer, Exchange
from refold.adapters.proxy.protocols import anthropic
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy.sessions import Threads
from refold.domain import canonical
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore

PROSE = "The build fails where the linker asks for a symbol that nobody defines. " * 28
WINDOW = "turn_window:full_turns=2,cached_turns=1"


def calls(work: Callable[[], object], kinds: Sequence[str] = ("call",)) -> int:
    """How many functions ``work`` calls in this thread: of Python, or built in too."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in kinds

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


ROOT = str(Path(refold.__file__).parent)
FILES = 24
OURS = 118
PROXIED = 2_000
JSON_ROW = 18


def ours(work: Callable[[], object]) -> list[tuple[str, str]]:
    """The functions of Refold that ``work`` calls in this thread, each in its file."""
    path: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            path.append((code.co_filename[len(ROOT) + 1 :], code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return path


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    redactor = Redactor(Plan(engine="vectorscan"))
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    with refold.open(url, redactor=redactor) as store:
        yield filled_session(store)


def filled_session(store: SessionStore) -> Session:
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(20):
        session.append(turn(number))
    session.prepare(WINDOW)
    session.context(WINDOW)
    return session


def turn(number: int) -> list[Any]:
    call = f"c{number}"
    return [
        refold.UserInput(text=f"{number} {PROSE}"),
        refold.ToolCall(call_id=call, tool_name="bash", arguments={"n": number}),
        refold.ToolResult(call_id=call, content=PROSE),
        refold.AgentResponse(text="done"),
    ]


def test_an_append(session: Session) -> None:
    event = refold.UserInput(text=PROSE)
    session.append(event)

    # One of them reads the clock between the parts of a long value.
    assert calls(lambda: session.append(event)) <= 143


def test_a_redaction_of_clean_prose() -> None:
    redactor = Redactor(Plan(engine="vectorscan"))
    value: dict[str, Any] = {"content": PROSE, "role": "user"}
    redactor.value(value)

    count = calls(lambda: redactor.value(value), kinds=("call", "c_call"))

    assert count <= 80


def test_an_append_with_all_that_is_built_in(session: Session) -> None:
    event = refold.UserInput(text=PROSE)
    session.append(event)

    assert calls(lambda: session.append(event), kinds=("call", "c_call")) <= 290


def test_an_append_of_a_json_result(session: Session) -> None:
    """A call for each of its parts would make it slower than prose of its size."""
    few, many = (
        [{"id": f"FL{n}", "stops": 1, "note": "a seat"} for n in range(rows)]
        for rows in (10, 110)
    )
    counted: list[int] = []
    for number, rows in enumerate([few, few, many]):
        call = f"json-{number}"
        session.append(refold.ToolCall(call_id=call, tool_name="search"))
        event = refold.ToolResult(call_id=call, content={"rows": rows})
        counted.append(calls(partial(session.append, event)))

    assert (counted[2] - counted[1]) / 100 <= JSON_ROW


def test_a_plain_append_passes_few_files_and_functions_of_ours(
    session: Session,
) -> None:
    event = refold.UserInput(text=PROSE)
    session.append(event)

    path = ours(lambda: session.append(event))

    shown = "\n".join(f"{file} {name}" for file, name in path)
    assert len({file for file, _ in path}) <= FILES, shown
    assert len(path) <= OURS, shown


def test_an_event_of_a_batch(session: Session) -> None:
    few = [refold.UserInput(text=f"{n} {PROSE}") for n in range(10)]
    many = [refold.UserInput(text=f"{n} {PROSE}") for n in range(110)]
    session.append(few)

    each = (
        calls(lambda: session.append(many)) - calls(lambda: session.append(few))
    ) / 100

    assert each <= 119


def test_an_event_that_is_read(session: Session) -> None:
    session.events()

    each = (
        calls(lambda: session.events(limit=60))
        - calls(lambda: session.events(limit=20))
    ) / 40

    assert each <= 13


def test_an_event_that_is_proved(session: Session) -> None:
    session.verify()  # modules that load on first use are not counted

    summaries = sum(
        len(session.history.derived(name))
        for name in session.history.streams()
        if name != "main"
    )
    # A summary is derived again, which costs more than an event.
    assert calls(session.verify) / (80 + summaries) <= 207


def test_a_preparation_with_nothing_due_reads_and_folds_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often it asks the database is counted beside, in test_round_trips."""
    session.append(turn(20)[0])
    strategy = session.settings.strategy(WINDOW)
    while session.compact(strategy):
        pass
    folds: list[int] = []
    read = type(strategy).read

    def counted(self: Any, outline: Any, events: Any) -> Any:
        folds.append(1)
        return read(self, outline, events)

    monkeypatch.setattr(type(strategy), "read", counted)

    assert session.prepare(strategy).at == session.head().seq
    assert folds == [1]


def test_a_fingerprint_is_computed_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[object] = []
    digest = canonical.digest

    def counted(value: Any) -> str:
        digests.append(value)
        return digest(value)

    monkeypatch.setattr("refold.projections.context.strategy.digest", counted)
    strategy = session.settings.strategy(WINDOW)

    session.record_request(session.prepare(strategy))
    session.prepare(strategy)

    assert digests.count(strategy.definition) == 1


def test_a_context(session: Session) -> None:
    assert calls(lambda: session.context(WINDOW)) <= 4900


class Client:
    """An agent behind the proxy whose every request repeats all messages."""

    def __init__(self, recorder: StoreRecorder, session: str | None = "s-1") -> None:
        self._recorder = recorder
        self._fields: dict[str, Any] = {}
        self._headers = {"x-claude-code-session-id": session} if session else {}
        self._messages: list[dict[str, Any]] = []
        self._number = 0
        self._input("begin")

    def forget(self) -> None:
        """Begin a new history in the same session."""
        self._fields = {"tools": [{"name": "bash", "input_schema": {}}]}
        self._messages.clear()
        self._input(f"begin {self._number}")

    def turn(self) -> None:
        """Send a request, and get an answer."""
        self._number += 1
        blocks = [{"type": "text", "text": f"Step {self._number}. {PROSE}"}]
        message = {"role": "assistant", "content": blocks}
        fields = {"model": "claude-opus-4-5", "messages": self._messages}
        fields |= self._fields
        now = datetime(2026, 1, 1, tzinfo=UTC)
        exchange = Exchange(
            exchange_id=f"{self._number:032x}",
            upstream="anthropic",
            protocol=anthropic,
            method="POST",
            path="/v1/messages",
            headers=self._headers,
            body=json.dumps(fields).encode(),
            truncated=False,
            began_at=now,
        )
        answer = Answer(
            ending="complete",
            status=200,
            headers={"content-type": "application/json"},
            body=json.dumps({"id": f"msg_{self._number}", **message}).encode(),
            truncated=False,
            error="",
            first_byte_at=now,
            ended_at=now,
        )
        self._recorder.begin(exchange)
        self._recorder.finish(exchange, answer)
        self._messages.append(message)
        self._input(f"{self._number} {PROSE}")

    def _input(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})


def test_a_proxied_request_calls_no_function_for_an_old_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are settled every five requests, so 25 requests hold five such rounds.

    Random keys and digests start a few rules of redaction by accident.  The smallest
    value and the middle one are almost free of that.
    """
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    redactor = Redactor(Plan(engine="vectorscan"))
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}", redactor=redactor) as store:
        client = Client(StoreRecorder(store, user_id="ada"))
        costs = [calls(client.turn) for _ in range(110)]

    early = costs[10:35]
    late = costs[85:110]
    # A late request repeats 150 messages more than an early one.
    assert min(late) <= min(early) + 60
    assert median(late) <= PROXIED


def test_a_request_of_another_history_calls_no_function_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    redactor = Redactor(Plan(engine="vectorscan"))
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}", redactor=redactor) as store:
        client = Client(StoreRecorder(store, user_id="ada"))

        def begin_again() -> None:
            client.forget()
            client.turn()

        costs = [calls(begin_again) for _ in range(60)]

    # A late request leaves out the same as an early one: the last exchange.
    assert min(costs[40:]) <= min(costs[5:25]) + 60


def test_a_new_conversation_reads_few_of_those_that_began_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        for _ in range(30):
            Client(StoreRecorder(store, user_id="ada"), session=None).turn()
        reads: list[str] = []
        read = Threads.read

        def counted(threads: Threads, session: Any, group: str, *, main: bool) -> Any:
            reads.append(session.session_id)
            return read(threads, session, group, main=main)

        monkeypatch.setattr(Threads, "read", counted)
        Client(StoreRecorder(store, user_id="ada"), session=None).turn()

        assert len(store.sessions("ada")) == 31

    assert len(reads) <= 8
