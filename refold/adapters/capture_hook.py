"""The program that hooks of a client run: it starts a capture, if none runs, and ends.

    python -P -m refold.adapters.capture_hook CLIENT --user U --folder F …

``--db URL`` and ``--home PATH`` stand for REFOLD_DB and REFOLD_HOME.

A client waits for its hooks, or kills them when it ends.  So this program loads little,
and the process that it starts belongs to a session of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from refold.adapters.capture_state import CaptureState, absolute

MODULE: Final = "refold.adapters.capture_hook"
# For so long a process that a hook started waits for the next turn.
LINGER_SEC: Final = 300
_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Have what is new captured; ``arguments`` are those that the hook was given.

    Codex adds one behind them, which says what it did.
    """
    client, *rest = arguments
    options = dict(zip(rest[::2], rest[1::2], strict=False))
    user = options["--user"]
    folder = options["--folder"]
    if "--home" in options:
        os.environ["REFOLD_HOME"] = options["--home"]
    path = Path(folder)
    nowhere = CaptureState.of(url="", user_id=user, client=client, folder=path)
    url = options.get("--db") or os.environ.get("REFOLD_DB")
    if not url:
        nowhere.complain(
            "refold: nothing is captured: REFOLD_DB is not set where the program runs"
        )
        return 1
    nowhere.forget()
    url = absolute(url)
    state = CaptureState.of(url=url, user_id=user, client=client, folder=path)
    _open_streams()
    state.request()
    lock = state.acquire()
    if lock is None:  # the process that holds it takes the request
        return 0
    command = [sys.executable, "-P", "-m", "refold"]
    if "--db" in options:
        command += ["--db", url]
    command += ["capture", client, "--user", user, "--folder", folder]
    command += ["--linger", str(LINGER_SEC), "--lock", str(lock)]
    _start(command, lock, state.log)
    return 0


def _open_streams() -> None:
    """Fill the places of streams that the client closed: no other file takes them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _start(command: list[str], lock: int, log: Path) -> None:
    """Run a command in a session of its own, without the client's files."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():  # what remains is no child of a process of the client
            os._exit(0)
        _become(command, lock, log)
    finally:
        os._exit(1)


def _become(command: list[str], lock: int, log: Path) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDWR)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, _STDIN)
    os.dup2(nothing, _STDOUT)
    os.dup2(written, _STDERR)
    os.closerange(_STDERR + 1, lock)
    os.closerange(lock + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(lock, True)
    os.execv(command[0], command)  # noqa: S606  # a shell would be one program more


def run(arguments: Sequence[str]) -> int:
    """``main``, with one sentence on stderr if the machine lets it do nothing."""
    try:
        return main(arguments)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"refold: nothing is captured: {place}{error.strerror}\n")
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
