"""The program that a client's hooks run: it starts a capture if none runs, and ends.

    python -P -m refold.adapters.capture_hook CLIENT --user U --folder F …

``--db URL`` and ``--home PATH`` replace REFOLD_DB and REFOLD_HOME.

A client waits for its hooks, or kills them when it ends.  So this program loads little,
and starts a process in its own session of the operating system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from refold.adapters.capture_state import CaptureState, absolute

MODULE: Final = "refold.adapters.capture_hook"
# How long a process that a hook started waits for the next turn.
LINGER_SEC: Final = 300
_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Start a capture of new lines; returns the exit status.

    arguments: those of the hook.  Codex adds one at the end, which describes its work
               and is ignored.
    """
    client, *rest = arguments
    names = rest[::2]
    values = rest[1::2]
    options = dict(zip(names, values, strict=False))
    user = options["--user"]
    folder = options["--folder"]
    if "--home" in options:
        os.environ["REFOLD_HOME"] = options["--home"]
    path = Path(folder)
    # Keeps the complaint that no store is named, which `capture --status` shows.
    state_without_url = CaptureState.of(
        url="", user_id=user, client=client, folder=path
    )
    url = options.get("--db") or os.environ.get("REFOLD_DB")
    if not url:
        state_without_url.complain(
            "refold: nothing is captured: REFOLD_DB is not set in the environment of "
            "the hook"
        )
        return 1
    state_without_url.forget()  # an earlier complaint
    url = absolute(url)
    state = CaptureState.of(url=url, user_id=user, client=client, folder=path)
    _open_standard_streams()
    state.request()
    lock_fd = state.acquire()
    if lock_fd is None:  # the process with the lock takes the request
        return 0
    command = [sys.executable, "-P", "-m", "refold"]
    if "--db" in options:
        command += ["--db", url]
    command += ["capture", client, "--user", user, "--folder", folder]
    command += ["--linger", str(LINGER_SEC), "--lock", str(lock_fd)]
    _start(command, lock_fd, state.log)
    return 0


def _open_standard_streams() -> None:
    """Open the standard streams that the client closed.

    Otherwise another file would get the number of one of them.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > _STDERR:
            os.close(descriptor)
            return


def _start(command: list[str], lock_fd: int, log_file: Path) -> None:
    """Run a command in its own session, without the files of the client.

    log_file: gets the stderr of the command.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():  # the child exits, so the client is not an ancestor that waits
            os._exit(0)
        _execute(command, lock_fd, log_file)
    finally:
        os._exit(1)


def _execute(command: list[str], lock_fd: int, log_file: Path) -> NoReturn:
    """Replace this process by the command, which inherits only the lock."""
    null = os.open(os.devnull, os.O_RDWR)
    stderr = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(null, _STDIN)
    os.dup2(null, _STDOUT)
    os.dup2(stderr, _STDERR)
    os.closerange(_STDERR + 1, lock_fd)
    os.closerange(lock_fd + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(lock_fd, True)
    os.execv(command[0], command)  # noqa: S606  # no shell is needed


def run(arguments: Sequence[str]) -> int:
    """Run ``main``; an error of the operating system is one sentence on stderr."""
    try:
        return main(arguments)
    except OSError as error:
        file = ""
        if error.filename:
            file = f"{error.filename}: "
        sys.stderr.write(f"refold: nothing is captured: {file}{error.strerror}\n")
        return 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
