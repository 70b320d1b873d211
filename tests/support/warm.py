"""Separate processes that start at once: forked from one that imported Refold.

Tests that kill processes, or let them race, need real ones.  They do not test the
import of Refold, and importing it would take a second each time.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]

# Runs ``refold`` for a shell: passes its three streams on, and waits.
_SHIM: Final = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    asked = dict(
        argv=["refold", *sys.argv[1:]], code=None, cwd=os.getcwd(), env=dict(os.environ)
    )
    message = json.dumps(asked).encode() + b"\\n"
    sent = socket.send_fds(server, [message], [0, 1, 2])
    server.sendall(message[sent:])
    _, status = server.makefile().read().split()
sys.exit(int(status) if int(status) >= 0 else 128 - int(status))
"""


class Process:
    """A process like ``subprocess.Popen``, with text for its three streams."""

    def __init__(
        self,
        argv: list[str],
        *,
        code: str | None = None,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.stdin: IO[str] = open(ours_in, "w", encoding="utf-8")  # noqa: SIM115  # closed in communicate
        self.stdout: IO[str] = open(ours_out, encoding="utf-8")  # noqa: SIM115  # the same
        self.stderr: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # the same
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(_server())
        env = dict(os.environ if environment is None else environment)
        asked = {"argv": argv, "code": code, "cwd": str(cwd), "env": env}
        message = json.dumps(asked).encode() + b"\n"
        fds = [theirs_in, theirs_out, self.stderr.fileno()]
        sent = socket.send_fds(self._server, [message], fds)
        self._server.sendall(message[sent:])
        os.close(theirs_in)
        os.close(theirs_out)
        self._status = self._server.makefile()
        self.pid = int(self._status.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it ended, and nobody waited for it yet
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = int(self._status.readline())
            self._status.close()
            self._server.close()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; return the remaining output, and all of stderr."""
        self.stdin.close()
        with self.stdout, self.stderr:
            printed = self.stdout.read()
            self.wait()
            self.stderr.seek(0)
            return printed, self.stderr.read()


def module(name: str, *arguments: object) -> Process:
    """Start a module with these arguments, as ``python -m`` does."""
    return Process([name, *map(str, arguments)])


def code(text: str, *, cwd: Path, environment: Mapping[str, str]) -> Process:
    """Start a program that is given as text, as ``python -c`` does."""
    return Process(["-c"], code=text, cwd=cwd, environment=environment)


def shim(folder: Path) -> Path:
    """Create a directory with a ``refold`` for the PATH of a shell."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "refold"
    program.write_text(_SHIM.format(python=sys.executable, path=_server()))
    program.chmod(0o755)
    return folder


@cache
def _server() -> str:
    """Return the socket of this process's server, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="refold-warm-")
    path = f"{folder.name}/socket"
    command = [sys.executable, "-m", "tests.support.forking", path]
    server = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    server.stdout.close()

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return path
