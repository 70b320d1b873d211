"""The command line starts quickly: a command loads only the modules that it needs."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from refold.adapters.cli import main
from refold.adapters.cli.commands import COMMANDS

HEAVY: Final = {
    "anthropic",
    "cryptography",
    "eventsourcing",
    "hyperscan",
    "matplotlib",
    "orjson",
    "psycopg",
    "pydantic",
    "rich",
    "sqlalchemy",
    "zstandard",
}
# Modules that a command has no use for if it only reads a store on SQLite.
UNUSED: Final = {
    "anthropic",
    "hyperscan",
    "matplotlib",
    "psycopg",
    "rich.console",
    "rich.table",
    "rich.text",
    "sqlalchemy",
}
PRINTING_MODULES: Final = """
import sys
from refold.adapters.cli import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
raise SystemExit(code)
"""


def loaded_modules(*args: str) -> set[str]:
    """Return the modules of a process that has run this command and nothing else."""
    ran = subprocess.run(
        [sys.executable, "-c", PRINTING_MODULES, *args], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.split())


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_loads_no_heavy_module(args: list[str]) -> None:
    assert loaded_modules(*args).isdisjoint(HEAVY)


def test_a_reading_command_loads_only_modules_that_read(sample: Path) -> None:
    modules = loaded_modules("--db", f"sqlite:///{sample}", "sessions")

    commands = {name for name in modules if name.startswith("refold.adapters.cli.com")}
    assert modules & UNUSED == set()
    assert commands == {
        "refold.adapters.cli.commands",
        "refold.adapters.cli.commands.log",
    }
    assert len(modules) < 450


def test_no_command_loads_plots_or_prompts_before_it_runs() -> None:
    load = (
        "import sys; from refold.adapters.cli.run import command; "
        f"[command(name) for name in {sorted(COMMANDS)}]; print(*sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)

    modules = set(ran.stdout.split())
    assert ran.returncode == 0, ran.stderr
    assert modules & {"anthropic", "hyperscan", "matplotlib", "psycopg"} == set()


def test_the_installed_program_is_the_module() -> None:
    program = os.path.join(os.path.dirname(sys.executable), "refold")
    module = [sys.executable, "-m", "refold"]

    installed, run = (
        subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
        for command in ([program], module)
    )

    assert installed == run
    assert installed.startswith("refold 0.")


def test_only_the_refold_program_collects_garbage_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_to: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        gc, "set_threshold", lambda *thresholds: set_to.append(thresholds)
    )
    monkeypatch.setattr("refold.adapters.cli.prepare_streams", lambda: None)
    monkeypatch.setattr(sys, "argv", ["refold", "--version"])

    main(["--version"])
    before = list(set_to)
    main()

    assert (before, set_to) == ([], [(50_000, 20, 100)])
