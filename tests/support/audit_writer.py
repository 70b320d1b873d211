"""A process that is audited, for tests that kill it, fork in it or let it end."""

from __future__ import annotations

import os
import sys

import refold


def load(url: str) -> None:
    """Append forever; print the number of acknowledged appends after each."""
    with refold.open(url, access_log="table") as store:
        session = store.session(user_id="ada", session_id="s")
        for number in range(1_000_000):
            session.append(refold.UserInput(text="x"))
            print(number + 1, flush=True)


def end(url: str) -> None:
    """Append, and end without closing the store."""
    store = refold.open(url, access_log="table")
    for number in range(3):
        store.session(user_id="ada", session_id="s").append(
            refold.UserInput(text=f"{number}")
        )


def fork(url: str) -> None:
    """Append in a parent and in its forked child while the parent's thread runs."""
    with refold.open(url, access_log="table") as store:
        store.session(user_id="ada", session_id="parent").append(
            refold.UserInput(text="before")
        )
        child = os.fork()
        session = store.session(
            user_id="ada", session_id="parent" if child else "child"
        )
        session.append(refold.UserInput(text="after"))
        if child:
            os.waitpid(child, 0)
    if not child:
        os._exit(0)


if __name__ == "__main__":
    {"load": load, "end": end, "fork": fork}[sys.argv[1]](*sys.argv[2:])
