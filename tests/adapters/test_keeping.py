"""Every key store and master key keeps the promises of its port."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.adapters.keys.master import (
    LocalMasterKey,
    MasterKey,
    MasterKeyFile,
    from_environment,
)
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import InvalidConfiguration, KeyUnavailable
from refold.testing import MasterKeyContract
from tests.support.contracts import KeyStoreContract

_KEYS = [bytes([n]) * 32 for n in (1, 2, 3)]


class TestAFile(MasterKeyContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> MasterKeyFile:
        file = MasterKeyFile(tmp_path / "master.key")
        file.create()
        return file

    @pytest.fixture
    def master(self, file: MasterKeyFile) -> MasterKey:
        return file.open()

    @pytest.fixture
    def successor(self, file: MasterKeyFile, master: MasterKey) -> MasterKey:
        assert file.add()
        return file.open()

    def test_a_process_with_the_old_key_finds_the_new_one(
        self, file: MasterKeyFile, master: MasterKey, successor: MasterKey
    ) -> None:
        wrapped = successor.wrap(bytes(32), b"a context")

        assert master.unwrap(wrapped, b"a context") == bytes(32)
        assert not file.add()
        file.drop_older()
        assert len(file.read()) == 1
        assert file.path.stat().st_mode & 0o777 == 0o600


class TestTheEnvironment(MasterKeyContract):
    @pytest.fixture
    def master(self) -> MasterKey:
        return from_environment(base64.b64encode(_KEYS[0]).decode())

    @pytest.fixture
    def successor(self) -> MasterKey:
        return from_environment(f"{_KEYS[1].hex()},{_KEYS[0].hex()}")

    @pytest.mark.parametrize("wrong", ["short", "zz" * 32, f"{_KEYS[0].hex()},x"])
    def test_an_invalid_key_is_refused(self, wrong: str) -> None:
        with pytest.raises(InvalidConfiguration, match="must be 32 bytes"):
            from_environment(wrong)


class TestKeysAtHand(MasterKeyContract):
    @pytest.fixture
    def master(self) -> MasterKey:
        return LocalMasterKey(_KEYS[0], origin="a test")

    @pytest.fixture
    def successor(self) -> MasterKey:
        return LocalMasterKey(_KEYS[1], _KEYS[0], origin="a test")

    def test_a_key_of_another_size_is_refused(self) -> None:
        with pytest.raises(KeyUnavailable, match="31 bytes"):
            LocalMasterKey(bytes(31), origin="a test")


class TestKeysInMemory(KeyStoreContract):
    @pytest.fixture
    def keys(self) -> SqlKeyStore:
        return SqlKeyStore("memory://")


class TestKeysInAFile(KeyStoreContract):
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Iterator[SqlKeyStore]:
        store = SqlKeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
        yield store
        store.close()


class TestKeysInPostgres(KeyStoreContract):
    @pytest.fixture
    def keys(self, postgres_url: str) -> Iterator[SqlKeyStore]:
        store = SqlKeyStore(postgres_url)
        yield store
        store.close()
