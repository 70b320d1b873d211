"""The clients from npm are pinned by version and digest, and the pins name no host."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.install import PACKAGES, PINS
from tools.client_pins import slim

FOLDERS = sorted(PINS.iterdir())


def _lock(folder: Path) -> dict[str, Any]:
    lock: dict[str, Any] = json.loads((folder / "package-lock.json").read_text())
    return lock


def test_every_client_has_pins() -> None:
    assert [folder.name for folder in FOLDERS] == sorted(PACKAGES)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_package_has_a_version_and_a_digest(folder: Path) -> None:
    packages = _lock(folder)["packages"]

    for place, package in packages.items():
        if place:
            assert re.fullmatch(r"\d+\.\d+\.\d+[\w.-]*", package["version"]), place
            assert package["integrity"].startswith("sha512-"), place


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_client_itself_has_an_exact_version(folder: Path) -> None:
    manifest = json.loads((folder / "package.json").read_text())
    packages = _lock(folder)["packages"]

    for name, version in manifest["dependencies"].items():
        assert packages[f"node_modules/{name}"]["version"] == version


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_pin_names_a_host(folder: Path) -> None:
    for file in folder.iterdir():
        assert "://" not in file.read_text(), file


def test_addresses_and_missing_platforms_leave_the_lock_file() -> None:
    client = {
        "version": "1.0.0",
        "resolved": "https://host/client.tgz",
        "integrity": "sha512-a",
        "funding": {"url": "https://host/money"},
        "optionalDependencies": {"client-here": "1.0.0", "client-there": "1.0.0"},
    }
    here = {"version": "1.0.0", "integrity": "sha512-b", "optional": True}
    packages = {"": {}, "node_modules/client": client, "node_modules/client-here": here}

    lock = slim({"lockfileVersion": 3, "packages": packages}, {"client": "1.0.0"})

    assert lock["packages"][""] == {"dependencies": {"client": "1.0.0"}}
    assert lock["packages"]["node_modules/client-here"] == here
    assert lock["packages"]["node_modules/client"] == {
        "version": "1.0.0",
        "integrity": "sha512-a",
        "optionalDependencies": {"client-here": "1.0.0"},
    }
