"""Building the package, and looking into what was built."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.warm import ROOT


class Built(NamedTuple):
    """The two files of a release."""

    wheel: Path
    sdist: Path


def project() -> dict[str, Any]:
    """The table `project` of `pyproject.toml`."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return dict(table["project"])


def extras() -> list[str]:
    """The names of the extras, except `all`."""
    return sorted(set(project()["optional-dependencies"]) - {"all"})


def source_copy(folder: Path) -> Path:
    """Return a copy of the source files in ``folder``, without those that Git ignores.

    The copy is the unpacked source distribution, so that it needs no Git, and tests
    also run in an unpacked source distribution.
    """
    packed = folder.with_name(f"{folder.name}-packed")
    _run_hatchling(ROOT, packed, "--target", "sdist")
    (sdist,) = packed.glob("*.tar.gz")
    return unpacked(sdist, folder)


def build(source: Path, target: Path) -> Built:
    """Build the sdist and the wheel of a source tree into a folder."""
    # Hatchling runs in the source tree, where a relative path leads elsewhere.
    target = target.resolve()
    _run_hatchling(source, target)
    (wheel,) = target.glob("*.whl")
    (sdist,) = target.glob("*.tar.gz")
    return Built(wheel, sdist)


def _run_hatchling(source: Path, target: Path, *options: str) -> None:
    """Build the distributions of a source tree into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(
        command, cwd=source, env=environment, check=True, capture_output=True
    )


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution; returns its top folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


def metadata(wheel: Path) -> Message:
    """The metadata of a wheel; its payload is the README."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return Parser().parsestr(archive.read(name).decode())
