"""Packages that a test installs for its own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from refold.projections.context.strategies.spec import STRATEGIES
from tests.support.packages import Install, write_package


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for packages; only ``install`` makes it."""
    return tmp_path / "packages"


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs packages that this process can load, until the end of a test."""
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    modules = set(sys.modules)
    strategies = set(STRATEGIES)

    def write(
        name: str, entry_points: Mapping[str, Mapping[str, str]], module: str = ""
    ) -> None:
        write_package(folder, name, entry_points, module)

    yield write
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    for name in set(STRATEGIES) - strategies:
        with suppress(KeyError):  # it was not loaded
            del STRATEGIES[name]
