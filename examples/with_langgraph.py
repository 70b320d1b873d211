"""A graph of LangGraph that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import json
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import refold
from refold.adapters.frameworks.langgraph import RefoldSaver

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]
THREAD: Any = {"configurable": {"thread_id": "parcels"}}


def parcel(owner: str) -> str:
    """Say where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(state: MessagesState) -> Any:
    """Return the next answer from the file, by the number of answers so far."""
    number = sum(isinstance(message, AIMessage) for message in state["messages"])
    chosen = ANSWERS[number]
    if "call" not in chosen:
        return {"messages": [AIMessage(content=chosen["text"])]}
    call = {
        "name": chosen["call"],
        "args": chosen["arguments"],
        "id": f"call_{number:08d}",
    }
    return {"messages": [AIMessage(content="", tool_calls=[call])]}


def use_tools(state: MessagesState) -> Any:
    """Make the calls of the last message."""
    calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]  # an answer
    results = [
        ToolMessage(content=parcel(**call["args"]), tool_call_id=call["id"])
        for call in calls
    ]
    return {"messages": results}


def next_node(state: MessagesState) -> str:
    """Return the node of the tools if the last message calls some, or the end."""
    return "tools" if getattr(state["messages"][-1], "tool_calls", ()) else END


def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", answer)
    builder.add_node("tools", use_tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", next_node, ["tools", END])
    builder.add_edge("tools", "model")
    with refold.open(url) as store:
        graph = builder.compile(checkpointer=RefoldSaver(store, user_id="ada"))
        before = graph.get_state(THREAD).values.get("messages", [])
        asked = sum(isinstance(message, HumanMessage) for message in before)
        question = HumanMessage(content=QUESTIONS[asked])
        result = graph.invoke({"messages": [question]}, THREAD)
        print(result["messages"][-1].content)
        print(graph.get_state(THREAD).values["messages"][-4:])


main(sys.argv[1])
