"""Installed packages add commands by entry points of the group ``refold.commands``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_MODULE: Final = '''
from typing import Annotated

import typer

from refold.adapters.cli.options import Call, UserOption
from refold.adapters.cli.output import Result


def count(
    call: Call,
    user: UserOption,
    twice: Annotated[bool, typer.Option("--twice", help="Count double.")] = False,
) -> Result:
    """Count the sessions of a user."""
    sessions = len(call.store().sessions(user))
    if twice:
        sessions *= 2
    return Result({"sessions": sessions}, f"{sessions} in all")


def log(call: Call) -> Result:
    """Show something else."""
    return Result(None, "not the log of Refold")
'''
_ENTRY_POINTS: Final = """
[refold.commands]
count = counting:count
gone = counting:gone
log = counting:log
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with an installed package that adds three commands."""
    folder = tmp_path / "packages"
    metadata = folder / "counting-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "counting.py").write_text(_MODULE)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    return folder


def run(packages: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "refold", *args],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )


def test_the_list_names_the_package_of_a_command(packages: Path) -> None:
    listed = run(packages, "--help").stdout

    assert "\nOther:\n  count  Added by counting.\n" in listed
    assert run(packages.parent, "--help").stdout == listed[: listed.index("\nOther:")]


def test_an_added_command_accepts_the_options_of_every_command(
    packages: Path, sample: Path
) -> None:
    ran = run(
        packages,
        "count",
        "--user=lin",
        "--twice",
        "--json",
        "--db",
        f"sqlite:///{sample}",
    )

    assert ran.stderr == ""
    assert ran.stdout == '{"sessions":2}\n'


def test_an_added_command_shows_its_docstring_as_help(packages: Path) -> None:
    shown = run(packages, "count", "--help").stdout

    assert "Count the sessions of a user." in shown
    assert "--twice" in shown
    assert "--json" in shown


def test_an_added_command_does_not_replace_one_of_refold(packages: Path) -> None:
    shown = run(packages, "log", "--help").stdout

    assert "Show the timeline of a session." in shown


def test_a_command_that_cannot_be_loaded_fails_with_a_way_out(packages: Path) -> None:
    ran = run(packages, "gone")

    assert ran.returncode == 2
    assert ran.stderr == (
        "refold: the command gone of the package counting cannot be loaded from "
        "counting:gone (AttributeError): update or remove the package\n"
    )
