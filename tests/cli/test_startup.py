"""The command line starts quickly: a command loads what it needs, when it needs it."""

import os
import resource
import subprocess
import sys

import pytest

HEAVY = (
    "anthropic",
    "cryptography",
    "eventsourcing",
    "orjson",
    "psycopg",
    "pydantic",
    "hyperscan",
    "rich",
    "sqlalchemy",
    "zstandard",
)
LIMIT = 0.8


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True)


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    ran = python("-X", "importtime", "-m", "refold", *args)

    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert ran.returncode == 0
    assert "refold.adapters.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_is_quick() -> None:
    best = min(seconds("-m", "refold", "--help") for _ in range(5))

    assert best < LIMIT, f"refold --help took {best:.2f} s"


def seconds(*args: str) -> float:
    """The time on a processor: other work on the machine does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(*args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_installed_program_is_the_module() -> None:
    program = os.path.join(os.path.dirname(sys.executable), "refold")

    installed = subprocess.run([program, "--version"], capture_output=True, text=True)

    assert installed.stdout == python("-m", "refold", "--version").stdout
    assert installed.stdout.startswith("refold 0.")
