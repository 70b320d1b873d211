"""Runs another program in the foreground: its signals, terminal, and exit status.

The program stays in the process group of this process, so that a shell's job control
works as without it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from refold.domain.errors import RefoldError

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
_BY_SIGNAL: Final = 128  # a shell's status of a program that a signal ended
_PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WATCHED: Final = (*_PASSED_ON, signal.SIGCHLD)
_FROM_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
# Python ignores these, and the program inherits that.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
# The origin of a signal from the kernel, such as of Ctrl-C.
_SI_KERNEL: Final = 0x80


class NotStarted(RefoldError):
    """A program cannot be started.

    code: the exit status that a shell returns.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def check_command(name: str) -> None:
    """Raise NotStarted if there is no program of this name or at this path."""
    if shutil.which(name) is not None:
        return
    if os.sep in name and os.path.isfile(name):
        raise NotStarted(f"{name} is not executable", NOT_EXECUTABLE)
    raise NotStarted(f"there is no command {name}: check its name and PATH", NOT_FOUND)


@contextmanager
def signals_held() -> Iterator[set[signal.Signals]]:
    """Block the signals that ``run`` waits for, also in threads that start later.

    Yields the mask of signals for the program: the one from before.
    """
    # If a parent left this signal ignored, the end of a program would not be reported.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        yield {signal.Signals(number) for number in previous}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: set[signal.Signals],
) -> int:
    """Run a program until its end, and return its exit status, as a shell does.

    It inherits stdin, stdout, and stderr.  Signals that this process gets are passed
    on, except those that the terminal has sent to both.

    Raises NotStarted.
    """
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(environment),
            setsigmask=mask,
            setsigdef=_IGNORED_BY_PYTHON,
        )
    except FileNotFoundError:
        raise NotStarted(f"there is no command {command[0]}", NOT_FOUND) from None
    except OSError as error:
        reason = str(error.strerror).lower()
        raise NotStarted(
            f"{command[0]} cannot be started: {reason}", NOT_EXECUTABLE
        ) from None
    while True:
        number, is_from_terminal = _next_signal()
        if number != signal.SIGCHLD:
            if not is_from_terminal:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            continue
        code = _exit_status(pid)
        if code is not None:
            return code


def _next_signal() -> tuple[int, bool]:
    """Wait for a signal.  Returns it, and whether the terminal sent it."""
    if sys.platform == "linux":
        info = signal.sigwaitinfo(_WATCHED)
        return info.si_signo, info.si_code == _SI_KERNEL
    number = signal.sigwait(_WATCHED)
    return number, number in _FROM_TERMINAL and _is_in_foreground()


def _exit_status(pid: int) -> int | None:
    """Return the exit status of a program that has ended; None for others.

    If the program has stopped, this process stops, too, so that the shell gets the
    terminal.  Then the shell continues both.
    """
    changed_pid, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if changed_pid == 0:  # the program is running
        return None
    if os.WIFSTOPPED(status):
        if _is_in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)
            # A shell has continued this process.
            os.kill(pid, signal.SIGCONT)
        return None
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # the negative number of the signal that ended the program
        return _BY_SIGNAL + abs(code)
    return code


def _is_in_foreground() -> bool:
    """Whether this process is in the foreground of a terminal."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False
