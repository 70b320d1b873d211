"""Writes a small store with every kind of row, to be read by later versions.

``python golden_writer.py URL HOME`` ran with the code of version 0.1.0 and printed what
a reader must find; see ``tests/adapters/golden/README.md``.  It uses only names that
every version has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import refold

TURNS = 8


def main(url: str, home: Path) -> None:
    """Write the store, and print what it contains."""
    home.mkdir(parents=True, exist_ok=True)
    os.environ["REFOLD_HOME"] = str(home)
    if url.startswith("postgresql"):
        os.environ["REFOLD_KEYS"] = f"sqlite:///{home / 'keys.db'}"
    with refold.open(url, make_key=True) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.label(project="cards")
        session.append(refold.SystemPrompt(text="You repair builds."))
        for turn in range(1, TURNS):
            _turn(session, turn)
        session.append(refold.UserInput(text="A long log: " + "word " * 20_000))
        session.append(refold.AgentResponse(text="It is stored as a blob."))
        session.prepare("turn_window")
        session.append(refold.Pin(seqs=(2,)))
        fork = session.fork(9, session_id="s-2")
        fork.append(refold.UserInput(text="Another way."))
        other = store.session(user_id="bob", session_id="s-1")
        other.append(refold.UserInput(text="Hello."))
        other.append(refold.HumanReview(trigger="cost", question="Go on?"))
        erased = store.session(user_id="eve", session_id="s-9")
        erased.append(refold.UserInput(text="Forget me."))
        store.seal()
        store.erase("eve", "asked")
        store.seal()
        print(json.dumps(_content(store), indent=1))


def _turn(session: refold.Session, turn: int) -> None:
    session.append(refold.UserInput(text=f"Turn {turn}: write to ada@build.test."))
    call = f"c{turn}"
    session.append(
        refold.ToolCall(call_id=call, tool_name="read", arguments={"path": "a.c"})
    )
    session.append(refold.ToolResult(call_id=call, content=f"line {turn}\n" * 40))
    session.append(refold.AgentResponse(text=f"Answer {turn}."))


def _content(store: refold.SessionStore) -> dict[str, Any]:
    sessions: dict[str, Any] = {}
    for info in store.sessions():
        session = store.session(user_id=info.user_id, session_id=info.session_id)
        sessions[f"{info.user_id}/{info.session_id}"] = {
            "types": [recorded.type for recorded in session.events()],
            "hashes": [recorded.hash for recorded in session.events()],
            "keep_all": session.context("keep_all").digest,
            "turn_window": session.context("turn_window").digest,
        }
    return sessions


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
