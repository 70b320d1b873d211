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
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]
THREAD: Any = {"configurable": {"thread_id": "parcels"}}


def parcel(owner: str) -> str:
    """Say where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(state: MessagesState) -> Any:
    """Return the next answer from the file, by the number of answers so far."""
    said = sum(isinstance(message, AIMessage) for message in state["messages"])
    made = ANSWERS[said]
    name = f"call_{said:08d}"
    if "call" in made:
        call = {"name": made["call"], "args": made["arguments"], "id": name}
        return {"messages": [AIMessage(content="", tool_calls=[call])]}
    return {"messages": [AIMessage(content=made["text"])]}


def use_tools(state: MessagesState) -> Any:
    """Make the calls of the last message."""
    calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]  # an answer
    results = [
        ToolMessage(content=parcel(**call["args"]), tool_call_id=call["id"])
        for call in calls
    ]
    return {"messages": results}


def goes_on(state: MessagesState) -> str:
    """To the tools, if the last message calls some."""
    return "tools" if getattr(state["messages"][-1], "tool_calls", ()) else END


def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    made = StateGraph(MessagesState)
    made.add_node("model", answer)
    made.add_node("tools", use_tools)
    made.add_edge(START, "model")
    made.add_conditional_edges("model", goes_on, ["tools", END])
    made.add_edge("tools", "model")
    with refold.open(url) as store:
        graph = made.compile(checkpointer=RefoldSaver(store, user_id="ada"))
        before = graph.get_state(THREAD).values.get("messages", [])
        text = ASKED[sum(isinstance(message, HumanMessage) for message in before)]
        result = graph.invoke({"messages": [HumanMessage(content=text)]}, THREAD)
        print(result["messages"][-1].content)
        print(graph.get_state(THREAD).values["messages"][-4:])


main(sys.argv[1])
