"""``make test`` runs Claude Code and Codex; ``make test-clients`` runs all clients."""

import os
from pathlib import Path

import pytest

from tests.clients.programs import VARIABLE

_ALWAYS = (
    "test_claude_code.py",
    "test_codex.py",
    "test_contract.py",
    "test_pins.py",
    "test_reading.py",
    "test_resume.py",
)
_LATER = sorted(
    file.name
    for file in Path(__file__).parent.glob("test_*.py")
    if file.name not in _ALWAYS and VARIABLE not in os.environ
)
collect_ignore = list(_LATER)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the clients that did not run."""
    if _LATER:
        names = ", ".join(name.removesuffix(".py") for name in _LATER)
        terminalreporter.section("not run")
        terminalreporter.write_line(f"tests/clients ({names}): run make test-clients")
