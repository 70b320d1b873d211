"""Keys are created once, stored apart, and never replaced silently."""

from __future__ import annotations

import base64
import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import refold
from refold.adapters import config
from refold.adapters.keys.master import LocalMasterKey, create_private
from refold.adapters.keys.ring import KeyRing
from refold.adapters.sql.keystore import SqlKeyStore
from tests.support.engines import one_engine
from tests.support.stores import open_at


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


def fill(url: str, folder: Path) -> None:
    with open_at(url, folder) as store:
        store.session(user_id="ada", session_id="session-one").append(
            refold.UserInput(text="hello")
        )


def test_the_master_key_is_created_once_private_and_reported(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(sqlite_url, tmp_path)
    path = config.home() / "master.key"
    master_key = path.read_bytes()

    fill(sqlite_url, tmp_path)

    assert path.read_bytes() == master_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert str(path) in messages[0]


def test_the_key_file_is_private_and_names_no_user(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        session = store.session(user_id="someone-by-name", session_id="session-one")
        session.append(refold.UserInput(text="hello"))
    (file,) = (config.home() / "keys").glob("*.db")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"someone" not in file.read_bytes()
    assert b"session-one" not in file.read_bytes()


def test_another_master_key_is_recognized(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store_url, tmp_path)
    monkeypatch.setenv("REFOLD_MASTER_KEY", base64.b64encode(os.urandom(32)).decode())

    with pytest.raises(refold.KeyUnavailable, match="does not open this key store"):
        open_at(store_url, tmp_path)


@pytest.mark.parametrize("value", ["short", "zz" * 32, ""])
def test_a_master_key_of_another_size_is_refused(
    value: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_MASTER_KEY", value)

    if not value:
        fill(sqlite_url, tmp_path)
        return
    with pytest.raises(refold.InvalidConfiguration, match="must be 32 bytes"):
        open_at(sqlite_url, tmp_path)


def test_a_lost_master_key_is_not_created_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    fill(sqlite_url, tmp_path)
    (config.home() / "master.key").unlink()

    with pytest.raises(refold.KeyUnavailable, match="cannot be read"):
        open_at(sqlite_url, tmp_path)
    assert not (config.home() / "master.key").exists()


def test_a_lost_key_store_is_not_created_again(store_url: str, tmp_path: Path) -> None:
    fill(store_url, tmp_path)
    for file in [*tmp_path.glob("keys.db"), *(config.home() / "keys").glob("*.db")]:
        file.unlink()

    why = "is empty, but the database has events|is not there"
    with pytest.raises(refold.KeyUnavailable, match=why):
        open_at(store_url, tmp_path)
    assert not list((config.home() / "keys").glob("*.db"))


def test_keys_of_another_database_open_nothing(tmp_path: Path) -> None:
    own_url, other_url = (
        f"sqlite:///{tmp_path / name}.db" for name in ("one", "other")
    )
    fill(own_url, tmp_path)
    with refold.open(other_url, keys=f"sqlite:///{tmp_path / 'k2.db'}") as store:
        store.session(user_id="ada", session_id="session-one").append(
            refold.UserInput(text="x")
        )

    with pytest.raises(refold.KeyUnavailable, match="belongs to another database"):
        refold.open(own_url, keys=f"sqlite:///{tmp_path / 'k2.db'}")


def test_an_old_backup_of_the_keys_creates_no_new_ones(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    keys = tmp_path / "k.db"
    with refold.open(url, keys=f"sqlite:///{keys}") as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="x")
        )
    backup = keys.read_bytes()
    with refold.open(url, keys=f"sqlite:///{keys}") as store:
        store.session(user_id="ada", session_id="two").append(
            refold.UserInput(text="x")
        )
    keys.write_bytes(backup)

    with refold.open(url, keys=f"sqlite:///{keys}") as store:
        assert store.session(user_id="ada", session_id="one").events()
        with pytest.raises(refold.KeyUnavailable, match="not in the key store"):
            store.session(user_id="ada", session_id="two").append(
                refold.UserInput(text="y")
            )


def test_two_processes_that_create_a_key_concurrently_use_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    master = LocalMasterKey(os.urandom(32), origin="a test")

    def check(_: int) -> bytes:
        store = SqlKeyStore(url)
        try:
            return KeyRing(store, master).session("ada", "s", now=1).check
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        checks = set(pool.map(check, range(8)))

    assert len(checks) == 1


def test_a_private_file_appears_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "key"

    with ThreadPoolExecutor(8) as pool:
        results = list(
            pool.map(lambda n: create_private(path, b"%d" % n * 40), range(8))
        )

    assert results.count(True) == 1
    assert len(path.read_bytes()) == 40
    assert [file.name for file in path.parent.iterdir()] == ["key"]


def test_a_destroyed_key_is_an_erasure_not_a_new_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    keys = f"sqlite:///{tmp_path / 'k.db'}"
    with refold.open(url, keys=keys) as store:
        store.session(user_id="ada", session_id="one").append(
            refold.UserInput(text="x")
        )
    with sqlite3.connect(tmp_path / "k.db") as raw:
        raw.execute("UPDATE user_keys SET wrapped=NULL")
    raw.close()

    with refold.open(url, keys=keys) as store:
        for name in ("one", "two"):
            with pytest.raises(refold.Erased):
                store.session(user_id="ada", session_id=name).append(
                    refold.UserInput(text="y")
                )


@pytest.mark.parametrize(
    "wrong", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "x"]
)
def test_a_key_store_that_stores_nothing_is_refused(
    wrong: str, sqlite_url: str
) -> None:
    with pytest.raises(refold.InvalidConfiguration):
        refold.open(sqlite_url, keys=wrong)


def test_postgresql_needs_a_shared_key_store(postgres_url: str) -> None:
    with pytest.raises(refold.InvalidConfiguration, match="set REFOLD_KEYS"):
        refold.open(postgres_url)


def test_postgresql_gets_no_master_key_by_default(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "another home"))
    keys = f"sqlite:///{tmp_path / 'keys.db'}"

    with pytest.raises(refold.InvalidConfiguration, match="needs REFOLD_MASTER_KEY"):
        refold.open(postgres_url, keys=keys)

    assert not (config.home() / "master.key").exists()
    refold.open(postgres_url, keys=keys, make_key=True).close()
    assert (config.home() / "master.key").exists()
    refold.open(postgres_url, keys=keys).close()


def test_keys_can_live_in_postgresql(postgres_url: str, tmp_path: Path) -> None:
    for _ in range(2):
        with refold.open(f"sqlite:///{tmp_path / 'a.db'}", keys=postgres_url) as store:
            store.session(user_id="ada", session_id="s").append(
                refold.UserInput(text="x")
            )
            assert len(store.session(user_id="ada", session_id="s").events()) >= 1


def test_keys_next_to_the_data_cause_a_warning(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with refold.open(postgres_url, keys=postgres_url) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="x"))

    assert any("makes erased data readable" in r.getMessage() for r in caplog.records)
