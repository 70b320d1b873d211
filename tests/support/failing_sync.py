"""A process whose disk fails: the kernel answers every sync with an I/O error.

``python -m tests.support.failing_sync URL`` prints the outcome of an append.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

import refold

# The numbers of the system calls fsync and fdatasync.
_SYNCS = {"x86_64": (74, 75), "aarch64": (82, 83)}
_NO_NEW_PRIVILEGES = 38
_SET_SECCOMP = 22
_FILTER = 2
_LOAD_NUMBER = 0x20
_JUMP_IF_EQUAL = 0x15
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def fail_all_syncs() -> None:
    """Make the kernel refuse fsync and fdatasync of this process with EIO."""
    fsync, fdatasync = _SYNCS[platform.machine()]
    steps = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, fsync),
        (_JUMP_IF_EQUAL, 0, 1, fdatasync),
        (_RETURN, 0, 0, _FAIL | errno.EIO),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0


def main(url: str) -> None:
    """Append once successfully, and once on the failing disk."""
    store = refold.open(url)
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="first"))
    fail_all_syncs()
    try:
        session.append(refold.UserInput(text="second"), idempotency_key="key")
    except refold.RefoldError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
    else:
        sys.stdout.write("acknowledged\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
