"""The contracts of keys are strict: implementations without effect fail them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold.adapters.keys.store import UserEntry
from refold.testing import MasterKeyContract
from tests.support.contracts import KeyStoreContract


class NoopMaster:
    """A master key that wraps nothing."""

    def wrap(self, key: bytes, context: bytes) -> bytes:
        return key

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        return wrapped

    def stale(self, wrapped: bytes, context: bytes) -> bool:
        return False


class NoopKeys:
    """A key store that reports success for everything and stores nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "get_user": None,
            "add_user": UserEntry(1, b""),
            "session_keys": {},
            "keys_of": {},
            "users": [],
            "held_users": [],
            "counts": {"users": 0, "erased_users": 0, "held": 0},
            "get_setting": None,
            "add_setting": b"wrapped pepper",
            "add_session": b"",
        }
        return lambda *_, **__: answers.get(name, 0)


def promises(contract: type) -> list[str]:
    return [name for name in dir(contract) if name.startswith("test_")]


@pytest.mark.parametrize("promise", promises(MasterKeyContract))
def test_a_master_key_that_wraps_nothing_fails(promise: str) -> None:
    contract = MasterKeyContract()
    master = NoopMaster()
    masters = (master, master)[: 2 if "newer" in promise else 1]

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(contract, promise)(*masters)


@pytest.mark.parametrize("promise", promises(KeyStoreContract))
def test_a_key_store_that_keeps_nothing_fails(promise: str) -> None:
    contract: Any = KeyStoreContract()

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(contract, promise)(NoopKeys())
