"""The CPU cost of framework items and LangGraph steps, and of what they replace.

``make bench-frameworks``: pairs that take turns in one run, and the median of each. The
CPU is this process's, without that of a PostgreSQL server.  Targets: an item at most
1.5 times its events; a step of a graph at 200 turns at most 1.2 times one at 10, at
most twice SqliteSaver's or PostgresSaver's at 10, and below it at 200.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from statistics import median
from time import process_time
from typing import TYPE_CHECKING, Any

import refold
from refold.events import Format
from refold.redaction.engines import EngineName
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

TEXT = "The quick fox reads the budget of the third quarter and finds nothing in it. "
TURNS = 205
PAIRS = 7
# The engines with which ``auto`` begins and ends: nothing is compiled during a
# measurement.
ENGINES: tuple[EngineName, EngineName] = ("stdlib", "vectorscan")
POLICY = refold.Policy.parse("version = 1\n").with_engine(ENGINES[1])


def view(_: str, item: Any, __: Mapping[str, Any]) -> Iterator[refold.events.Event]:
    """The events of a message."""
    for block in item["content"]:
        match block:
            case {"text": text}:
                yield refold.AgentResponse(text=text)
            case {"name": name, "input": given, "id": call}:
                yield refold.ToolCall(call_id=call, tool_name=name, arguments=given)
            case {"tool_use_id": call, "content": content}:
                yield refold.ToolResult(call_id=call, content=content)


CHAT = Format("chat", view, lambda item: str(item["role"]), lambda item: item["id"])


def messages(number: int) -> list[dict[str, Any]]:
    """Return an answer with a call, and its result."""
    call = {"id": f"call_{number:08d}", "name": "ls", "input": {"path": TEXT}}
    content = [{"type": "text", "text": TEXT * 4}, call]
    result = {"tool_use_id": call["id"], "content": TEXT * 8}
    return [
        {"id": f"a{number}", "role": "assistant", "content": content},
        {"id": f"b{number}", "role": "user", "content": [result]},
    ]


def spent(work: Callable[[], object]) -> float:
    """Milliseconds of CPU that it took."""
    begun = process_time()
    work()
    return (process_time() - begun) * 1_000


def items(policy: refold.Policy) -> tuple[float, float]:
    """An append of an item, and of its events, in milliseconds."""
    times: tuple[list[float], list[float]] = ([], [])
    url = f"sqlite:///{tempfile.mkdtemp()}/items.db?synchronous=normal"
    with refold.open(url, policy=policy) as store:
        for pair in range(PAIRS):
            for kind in range(2):
                name = f"s-{pair}-{kind}"
                session = store.session(user_id="ada", session_id=name)
                session.append(refold.UserInput(text="begin"))

                def run(session: refold.Session = session, kind: int = kind) -> None:
                    for number in range(100):
                        for item in messages(number):
                            if kind:
                                session.append([*view("", item, {})])
                            else:
                                session.native.append(CHAT, [item])

                times[kind].append(spent(run) / 200)
    return median(times[0]), median(times[1])


def steps(
    store: refold.SessionStore, peer: BaseCheckpointSaver[str]
) -> dict[str, list[float]]:
    """The CPU of each turn of a graph, with Refold and with a peer."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    from refold.adapters.frameworks.langgraph import RefoldSaver

    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda _: {"messages": [AIMessage(content=TEXT * 4)]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    savers = {"refold": RefoldSaver(store, user_id="ada"), "peer": peer}
    graphs = {
        name: builder.compile(checkpointer=saver) for name, saver in savers.items()
    }
    took: dict[str, list[float]] = {name: [] for name in graphs}
    place: Any = {"configurable": {"thread_id": "t"}}
    for turn in range(TURNS):
        for name, graph in graphs.items():
            asked: Any = {"messages": [HumanMessage(content=f"{turn} {TEXT * 4}")]}
            took[name].append(spent(lambda g=graph, a=asked: g.invoke(a, place)))  # type: ignore[misc]  # mypy infers no type from a default
    return took


@contextmanager
def sqlite() -> Iterator[dict[str, list[float]]]:
    """Steps with files of SQLite."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    folder = tempfile.mkdtemp()
    url = f"sqlite:///{folder}/refold.db?synchronous=normal"
    with (
        refold.open(url, policy=POLICY) as store,
        closing(sqlite3.connect(f"{folder}/peer.db", check_same_thread=False)) as peer,
    ):
        yield steps(store, SqliteSaver(peer))


@contextmanager
def postgres() -> Iterator[dict[str, list[float]]]:
    """Steps with a server of PostgreSQL."""
    from langgraph.checkpoint.postgres import PostgresSaver

    with Postgres.from_environment() or Postgres.start() as server:
        os.environ["REFOLD_KEYS"] = f"sqlite:///{tempfile.mkdtemp()}/keys.db"
        names = [f"frameworks_{os.getpid()}_{name}" for name in ("ours", "theirs")]
        urls = [server.create_database(name) for name in names]
        try:
            with (
                refold.open(urls[0], policy=POLICY) as store,
                PostgresSaver.from_conn_string(urls[1]) as peer,
            ):
                peer.setup()
                yield steps(store, peer)
        finally:
            for name in names:
                server.drop_database(name)


def main() -> None:
    """Print the ratios."""
    logging.disable(logging.WARNING)
    for engine in ENGINES:
        item, events = items(POLICY.with_engine(engine))
        print(
            f"an item: {item / events:.2f} times its events ({events:.2f} ms, {engine})"
        )
    for name, measured in (("SqliteSaver", sqlite), ("PostgresSaver", postgres)):
        with measured() as took:
            at = {n: (median(ms[5:16]), median(ms[-11:])) for n, ms in took.items()}
        early, late = at["refold"]
        print(
            f"a step at 200 turns: {late / early:.2f} times one at 10 ({early:.1f} ms)"
        )
        print(f"compared with {name}: {early / at['peer'][0]:.2f} times at 10 turns")
        print(f"compared with {name}: {late / at['peer'][1]:.2f} times at 200 turns")


if __name__ == "__main__":
    main()
