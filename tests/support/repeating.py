"""A pytest plugin that runs each test many times, under a load on every core.

``make test-repeat COUNT=50 ARGS=tests/cli/test_view.py`` uses it.  A test that waits
for one thing and asserts another passes on a quiet machine and fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

_runs = Counter[str]()
_failures = Counter[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=50, help="runs of each test")
    parser.addoption(
        "--load",
        type=int,
        default=os.cpu_count() or 1,
        help="busy processes next to the tests",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count = metafunc.config.getoption("repeat")
    metafunc.parametrize("repetition", range(count), indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test once before any of them runs again."""
    items.sort(key=_repetition)


def _repetition(item: pytest.Item) -> int:
    assert isinstance(item, pytest.Function)
    number = item.callspec.params["repetition"]
    assert isinstance(number, int)
    return number


@pytest.fixture(autouse=True)
def repetition(request: pytest.FixtureRequest) -> None:
    """Gives each repetition of a test its own name."""


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Keep every core busy while the tests run."""
    if hasattr(session.config, "workerinput"):
        return (yield)
    busy = [sys.executable, "-c", "while True: pass"]
    count = session.config.getoption("load")
    loads = [subprocess.Popen(busy) for _ in range(count)]
    try:
        return (yield)
    finally:
        for load in loads:
            load.kill()
            load.wait()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = report.nodeid.partition("::")[0]
    if report.when == "call" or report.failed:
        _runs[file] += 1
    if report.failed:
        _failures[file] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how often the tests of each file ran, and how often one failed."""
    terminalreporter.section("repeated")
    for file, runs in sorted(_runs.items()):
        terminalreporter.write_line(
            f"{file}: {runs:,} runs, {_failures[file]:,} failures"
        )
