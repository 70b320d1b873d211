"""Validators are built when a class is first used, by any thread, and before a fork."""

import subprocess
import sys
from typing import Final

from tests.support.waiting import PATIENCE_SEC

NEW_PROCESS: Final = """
import os, sys, threading
from refold.domain import events
from refold.domain.model import Model

def kinds():
    found = [Model]
    for kind in found:
        found += kind.__subclasses__()
    return found

def unbuilt():
    return sum(not kind.__pydantic_complete__ for kind in kinds())
"""
THREADS: Final = """
barrier = threading.Barrier(8)
errors = []

def use():
    barrier.wait()
    try:
        text = events.UserInput(text="x")
        events.AgentResponse(text="y")
        events.ToolResult(call_id="c", content={"a": 1})
        assert text.model_dump()["text"] == "x"
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors)
"""
FORK: Final = """
before = unbuilt()
child = os.fork()
if child == 0:
    os._exit(unbuilt())
_, status = os.waitpid(child, 0)
print(before > 20, os.waitstatus_to_exitcode(status))
"""


def printed(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", NEW_PROCESS + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SEC,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_an_event_that_is_not_used_is_not_built() -> None:
    assert printed(
        'print(unbuilt() > 20); events.UserInput(text="x"); print(unbuilt() > 20)'
    ) == ("True\nTrue\n")


def test_threads_use_a_class_for_the_first_time_at_once() -> None:
    for _ in range(5):
        assert printed(THREADS) == "[]\n"


def test_nothing_is_left_to_build_in_a_forked_child() -> None:
    assert printed(FORK) == "True 0\n"
