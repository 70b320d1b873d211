"""The URL of a SQLite file names the same file for every reader and in every form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

import refold
from refold.adapters.capture_state import absolute
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.urls import SqliteUrl, engine_of, url_of_file

NAMES = [
    "agent.db",
    "a b.db",
    "a%20b.db",
    "100%.db",
    "a+b.db",
    "a#b.db",
    "a?b.db",
    "a&b=c.db",
    "会话 数据.db",
    "é%3F.db",
    os.fsdecode(b"latin-\xe9.db"),
]


def file_of(url: str) -> str:
    match engine_of(url):
        case "sqlite", parts:
            return parts.database or ""
    raise AssertionError(url)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_survives_its_url(name: str) -> None:
    for path in (name, f"/data/{name}", Path("data", name)):
        assert file_of(url_of_file(path)) == os.fspath(path)


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///a%20b.db", "a b.db"),
        ("sqlite:///100%25.db", "100%.db"),
        ("sqlite:///100%.db", "100%.db"),
        ("sqlite:///a%3Fb.db", "a?b.db"),
        ("sqlite:///a%23b.db", "a#b.db"),
        ("sqlite:///a#b.db", "a#b.db"),
        ("sqlite:///a+b.db", "a+b.db"),
        ("sqlite:///%E4%BC%9A.db", "会.db"),
        ("sqlite:////data/会.db?synchronous=normal", "/data/会.db"),
        ("sqlite+pysqlite:///a%20b.db", "a b.db"),
    ],
)
def test_percent_signs_are_decoded(url: str, file: str) -> None:
    assert file_of(url) == file


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///agent.db",
        "sqlite:///a%20b%25.db?synchronous=normal",
        "sqlite:///agent.db?a=1&b=x%20y&a=2&a=3&empty=",
        "sqlite:///",
    ],
)
def test_a_url_is_read_as_sqlalchemy_reads_it(url: str) -> None:
    parsed = make_url(url)

    expected = SqliteUrl(parsed.database or "", dict(parsed.query))
    assert engine_of(url) == ("sqlite", expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_store_opens_the_file_of_a_path(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    url = url_of_file(path)

    with refold.open(path) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))

    with refold.open(url) as store:
        assert [entry.session_id for entry in store.sessions("ada")] == ["s"]
    assert path.is_file()


def test_a_home_with_percent_signs_has_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home%20of?ada"
    monkeypatch.setenv("REFOLD_HOME", str(home))

    with refold.open(tmp_path / "agent.db"):
        pass

    (keys,) = (home / "keys").glob("*.db")
    with_keys = SqlKeyStore(url_of_file(keys))
    assert with_keys.get_setting("pepper") is not None
    with_keys.close()


def test_a_command_rotates_keys_in_a_home_with_percent_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home%20of ada"
    monkeypatch.setenv("REFOLD_HOME", str(home))
    url = url_of_file(tmp_path / "agent.db")
    with refold.open(url) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))

    command = [sys.executable, "-m", "refold", "--db", url]

    rotated = subprocess.run(
        [*command, "keys", "rotate", "--master", "--drop-older"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert rotated.returncode == 0, rotated.stderr
    assert not (tmp_path / "home of ada").exists()
    assert len(list((home / "keys").glob("*.db"))) == 1


def test_a_relative_url_is_made_absolute_in_a_folder_with_percent_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "100%25 full?"
    folder.mkdir()
    monkeypatch.chdir(folder)

    url = absolute("sqlite:///a%20b.db?synchronous=normal")

    assert file_of(url) == str(folder / "a b.db")
    assert url.endswith("?synchronous=normal")
    assert absolute(url) == url
