"""A process that appends, for tests that kill it or race it."""

from __future__ import annotations

import sys

import refold


def load(url: str, session_id: str, size: str) -> None:
    """Append batches forever; print the last seq of each once it is acknowledged."""
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id=session_id)
        while True:
            events = [refold.UserInput(text="x" * 300) for _ in range(int(size))]
            print(session.append(events).last_seq, flush=True)


def race(url: str, session_id: str, expected: str) -> None:
    """Wait for a line, append once with ``expected_seq``, and print the outcome."""
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id=session_id)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            receipt = session.append(
                refold.UserInput(text="me"), expected_seq=int(expected)
            )
        except refold.StaleSession as stale:
            print(f"stale {stale.expected} {stale.actual}", flush=True)
        else:
            print(f"won {receipt.last_seq}", flush=True)


def pour(url: str, session_id: str, count: str) -> None:
    """Append ``count`` events, one by one, wherever the head is."""
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id=session_id)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(count)):
            session.append(refold.UserInput(text=f"{number}"))
        print("done", flush=True)


if __name__ == "__main__":
    {"load": load, "race": race, "pour": pour}[sys.argv[1]](*sys.argv[2:])
