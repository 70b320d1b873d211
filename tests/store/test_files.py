"""The files of a store are their owner's alone, and where they lie only to be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.adapters import config


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process that takes no rights from the files it makes."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights on each file below."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}


@pytest.mark.usefixtures("open_umask")
def test_every_file_of_a_store_is_its_owners_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    audit = f"table,file:{tmp_path / 'audit.log'}"

    with refold.open(url, audit=audit) as store:
        store.session("ada", "one").append(refold.UserInput(text="hello"))
        store.seal()
        store.export_user("ada", tmp_path / "export")
        found = modes(tmp_path)

    assert {"refold.db", "refold.db-wal", "refold.db-shm", "audit.log"} <= set(found)
    assert set(found.values()) == {0o600}


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "refold.db"
    path.touch()
    path.chmod(0o640)

    with refold.open(f"sqlite:///{path}") as store:
        store.session("ada", "one").append(refold.UserInput(text="hello"))

    assert modes(tmp_path)["refold.db"] == 0o640


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_keys_that_others_can_read_are_remarked_on_once(
    mode: int, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    refold.open(sqlite_url).close()
    (keys,) = (config.home() / "keys").glob("*.db")
    master = config.home() / "master.key"
    for path in (master, keys):
        path.chmod(mode)
    caplog.clear()

    for _ in range(2):
        refold.open(sqlite_url).close()

    said = [record.getMessage() for record in caplog.records]
    assert sorted(one.split("chmod 600 ")[1] for one in said) == sorted(
        [str(master), str(keys)]
    )
