"""Packages with entry points, installed in a folder, as pip would install them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "examples" / "plugin"

# The type of ``write_package``, which fixtures return: ``install(name, entry_points,
# module)``.
Install = Callable[..., None]


def install_example(folder: Path, target: Path) -> None:
    """Install a copy of the example in ``target`` with pip, without a network."""
    copy = folder / "plugin"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--disable-pip-version-check",
            "--target",
            str(target),
            str(copy),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def write_package(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    module: str = "",
) -> None:
    """Write a package with one module of its name.

    entry_points: the object references, by group and name.
    """
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    lines: list[str] = []
    for group, places in entry_points.items():
        lines.append(f"[{group}]")
        lines.extend(f"{key} = {place}" for key, place in places.items())
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run_refold(
    target: Path, *args: object, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``refold`` in a process that finds the packages in ``target``."""
    return subprocess.run(
        [sys.executable, "-m", "refold", *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(target)} | environment,
        input=stdin,
        capture_output=True,
        text=True,
    )


def run_python(target: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process that finds the packages in ``target``."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
