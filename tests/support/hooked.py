"""A process whose hook before each fork waits for a lock that a thread holds.

The hook is registered before Refold is imported, so it runs after Refold's own.
"""

from __future__ import annotations

import os
import threading

_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)

import sys  # noqa: E402  # after the hook

import refold  # noqa: E402  # the same
from refold.adapters.sql import forks  # noqa: E402  # the same


def main(url: str) -> None:
    """Append in a thread, under the lock, to a store that a fork closes."""
    forks.PATIENCE = 0.5
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="x"))
        locked = threading.Event()

        def append() -> None:
            with _lock:
                locked.set()
                while not forks._process.forking:
                    pass
                session.append(refold.UserInput(text="x"))

        thread = threading.Thread(target=append)
        thread.start()
        locked.wait()
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        thread.join()
        sys.stdout.write(f"appended {session.head().seq}\n")


if __name__ == "__main__":
    main(sys.argv[1])
