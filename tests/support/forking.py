"""The server behind ``warm``: it has imported Refold, and forks for each request.

``python -m tests.support.forking SOCKET`` runs until its standard input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

_ROOM = 1 << 20  # bytes: an environment and its arguments


def warm_up() -> None:
    """Import the modules of the tests' processes, and compile their expressions."""
    import importlib
    import pkgutil

    import psycopg  # noqa: F401  # imported for its time alone
    import sqlalchemy.dialects.postgresql
    import sqlalchemy.dialects.sqlite  # noqa: F401  # the same

    import refold
    from refold.adapters.cli import commands

    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"REFOLD_HOME": place, "REFOLD_KEYS": f"sqlite:///{place}/k.db"}
        with refold.open(f"sqlite:///{place}/warm.db") as store:
            session = store.session(user_id="ada", session_id="s")
            session.append(refold.UserInput(text="call +86 138 0013 8000 or a@b.test"))
            session.context()
    alive = [thread.name for thread in threading.enumerate()]
    assert len(alive) == 1, f"no thread survives a fork: {alive}"
    gc.collect()
    gc.freeze()


def serve(path: str) -> None:
    """Fork for each request at the socket ``path``, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a supervisor
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if 0 in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _supervise(connection)
            connection.close()


def _supervise(connection: socket.socket) -> None:
    """Start the requested process, report its pid, wait for it, report its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, fds, _, _ = socket.recv_fds(connection, _ROOM, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(_ROOM)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(message), fds)
    for fd in (0, *fds):
        os.close(fd)
    connection.sendall(f"{pid}\n".encode())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(asked: dict[str, Any], fds: list[int]) -> None:
    """Become the requested process, as if Python had just started it."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 256)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    adopt_python_path()
    time.tzset()
    random.seed()
    sys.argv = asked["argv"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for its life
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # the same
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115  # the same
    code = _run(asked)
    threading._shutdown()  # type: ignore[attr-defined]  # what ends an interpreter
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def adopt_python_path() -> None:
    """Search for modules in the folders of PYTHONPATH too, like a new process."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]


def _run(asked: dict[str, Any]) -> int:
    try:
        if asked["code"] is None:
            runpy.run_module(asked["argv"][0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(asked["code"], "<page>", "exec"), {"__name__": "__main__"})  # noqa: S102  # of our own pages
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    warm_up()
    serve(sys.argv[1])
