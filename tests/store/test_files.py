"""Only the owner can read a store's files; read-only copies can be read in place."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.adapters import config


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Set an umask that removes no rights from new files."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes_of_files(folder: Path) -> dict[str, int]:
    """Return the mode of each file below the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}


@pytest.mark.usefixtures("open_umask")
def test_every_file_of_a_store_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    audit = f"table,file:{tmp_path / 'audit.log'}"

    with refold.open(url, access_log=audit) as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="hello")
        )
        store.seal()
        store.export_user("ada", tmp_path / "export")
        modes_by_name = modes_of_files(tmp_path)

    assert {"refold.db", "refold.db-wal", "refold.db-shm", "audit.log"} <= set(
        modes_by_name
    )
    assert set(modes_by_name.values()) == {0o600}


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "refold.db"
    path.touch()
    path.chmod(0o640)

    with refold.open(f"sqlite:///{path}") as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="hello")
        )

    assert modes_of_files(tmp_path)["refold.db"] == 0o640


def test_a_store_is_opened_by_the_path_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "of a path 100%.db"

    with refold.open(path) as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="hello")
        )

    assert path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_keys_that_others_can_read_cause_one_warning(
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

    warnings = [record.getMessage() for record in caplog.records]
    assert sorted(warning.split("chmod 600 ")[1] for warning in warnings) == sorted(
        [str(master), str(keys)]
    )


@pytest.fixture
def backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a store with all its keys."""
    place = tmp_path / "backup"
    monkeypatch.setenv("REFOLD_HOME", str(place / "home"))
    monkeypatch.setenv("REFOLD_DB", f"sqlite:///{place / 'refold.db'}")
    place.mkdir()
    with refold.open() as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="hello")
        )
        store.seal()
    return place


_AS_ROOT = ("unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []))
_READONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'


def run_on_readonly_mount(
    place: Path, *command: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in which ``place`` is mounted read-only."""
    asked = [*_AS_ROOT, "sh", "-c", f'{_READONLY} && exec "$@"', str(place)]
    return subprocess.run(
        [*asked, *command], capture_output=True, text=True, check=False
    )


@pytest.fixture
def mountable(tmp_path: Path) -> None:
    """Skip unless tests may mount file systems privately on this machine."""
    if (
        not shutil.which("unshare")
        or run_on_readonly_mount(tmp_path, "true").returncode
    ):
        pytest.skip("`unshare --mount` is not allowed here")


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below the folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.usefixtures("mountable")
@pytest.mark.parametrize(
    "command",
    [
        "log --user ada --session one",
        "sessions",
        "verify",
        "context --user ada --session one",
        "why --user ada --session one",
        "stats",
        "keys status",
    ],
)
def test_a_read_only_backup_can_be_read_in_place(
    command: str, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(backup)
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")

    ran = run_on_readonly_mount(
        backup, sys.executable, "-m", "refold", *command.split()
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("is read-only") == 1
    assert len(ran.stderr.splitlines()) == 1
    assert contents(backup) == before


_APPEND = """
import refold
with refold.open() as store:
    session = store.session(user_id="ada", session_id="one")
    try:
        session.append(refold.UserInput(text="more"))
    except refold.StoreUnavailable as error:
        print(error)
    print(len(session.events()))
"""


@pytest.mark.usefixtures("mountable")
def test_an_append_to_a_read_only_store_is_reported(backup: Path) -> None:
    process = run_on_readonly_mount(backup, sys.executable, "-c", _APPEND)

    message, count = process.stdout.splitlines()
    assert "is read-only" in message
    assert "copy it to a folder that can be written" in message
    assert count == "1"


@pytest.mark.usefixtures("mountable")
def test_a_wal_file_next_to_a_backup_is_read_with_its_index_or_reported(
    backup: Path,
) -> None:
    copy = backup.with_name("copy")
    with refold.open() as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="in the log alone")
        )
        shutil.copytree(backup, copy)
    os.environ["REFOLD_DB"] = f"sqlite:///{copy / 'refold.db'}"
    log = (sys.executable, "-m", "refold", "log", "--user", "ada", "--session", "one")

    whole = run_on_readonly_mount(copy, *log)
    (copy / "refold.db-shm").unlink()
    parted = run_on_readonly_mount(copy, *log)

    assert "in the log alone" in whole.stdout
    assert parted.returncode == 1
    assert "refold.db-wal" in parted.stderr
