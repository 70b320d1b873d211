"""A refusal of the file system is an error of Refold that says what to do."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

import refold
from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.seals import FileAnchor
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import remedy_for

LONG = "x" * 300


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:secret@[::1/x",
        "postgresql://user:secret@host:port/x",
        "sqlite:///[::1/x]://",
        "http://[",
    ],
)
def test_an_invalid_url_is_an_invalid_setting(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_KEYS", f"sqlite:///{tmp_path / 'keys.db'}")

    with pytest.raises(refold.RefoldError) as raised:
        refold.open(url)

    assert "secret" not in str(raised.value)


def test_an_invalid_key_url_is_an_invalid_setting() -> None:
    with pytest.raises(refold.InvalidConfiguration, match="or postgresql://"):
        SqlKeyStore("postgresql://user:secret@[::1/x")


def test_a_master_key_that_cannot_be_written_has_advice(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "file" / "home"))

    with pytest.raises(refold.KeyUnavailable, match="name a folder that exists"):
        refold.open(sqlite_url)
    with pytest.raises(refold.KeyUnavailable, match="cannot be written"):
        MasterKeyFile().create()


@pytest.mark.parametrize("name", ["REFOLD_HOME", "REFOLD_KEYS", "REFOLD_DB"])
def test_a_name_that_is_too_long_is_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / LONG / "x"
    monkeypatch.setenv("REFOLD_DB", f"sqlite:///{tmp_path / 'refold.db'}")
    monkeypatch.setenv(
        name, str(place) if name == "REFOLD_HOME" else f"sqlite:///{place}"
    )

    with pytest.raises(refold.RefoldError, match="give it a shorter name"):
        refold.open()


def test_an_anchor_that_cannot_grow_is_reported(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    with refold.open(tmp_path / "refold.db", anchor=anchor) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="x"))
        store.seal()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))

    try:
        with pytest.raises(refold.StoreUnavailable, match="limit of the size of files"):
            FileAnchor(tmp_path / "other.jsonl").add(list(anchor.read()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_without_room_for_the_index_of_a_log_is_full(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))

    try:
        with pytest.raises(
            refold.StoreUnavailable, match="the disk is full: free space"
        ):
            refold.open(sqlite_url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with refold.open(sqlite_url) as store:
        assert len(store.session(user_id="ada", session_id="s").events()) == 1


def test_an_export_that_cannot_be_written_is_an_error_of_refold(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refold.open(tmp_path / "refold.db") as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="x"))

        with pytest.raises(refold.errors.ExportFailed, match="cannot be written"):
            store.export_user("ada", tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "check the rights"),
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "can be written"),
        (errno.EMFILE, "limit of open files"),
        (errno.EIO, "check the disk"),
    ],
)
def test_each_refusal_has_its_own_advice(number: int, advice: str) -> None:
    assert advice in remedy_for(OSError(number, os.strerror(number)))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_wrong_settings_file_leaves_no_database_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "refold.toml"
    file.write_text("context = 1")
    monkeypatch.setenv("REFOLD_CONFIG", str(file))
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))

    with pytest.raises(refold.InvalidConfiguration, match="must be a table"):
        refold.open(tmp_path / "one.db")

    open_files = [
        os.path.realpath(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
    ]
    assert [path for path in open_files if path.startswith(str(tmp_path))] == []
