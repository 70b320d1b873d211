"""The promises of what keeps keys: master keys, and key stores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from refold.adapters.keys.master import MasterKey
from refold.adapters.keys.store import KeyPlace, UserEntry
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import Erased, KeyUnavailable
from refold.testing.event_log import NOW

_PEPPER = b"wrapped pepper"
_USER, _OTHER = b"wrapped user key", b"another one"


class MasterKeyContract:
    """The promises of the port.

    Inherit it and give fixtures ``master`` and ``successor``: the same master key with
    a newer one before it, as it is while it is replaced.
    """

    def test_what_was_wrapped_is_given_back(self, master: MasterKey) -> None:
        for size in (32, 64):
            key = os.urandom(size)

            wrapped = master.wrap(key, b"a context")

            assert key not in wrapped
            assert master.unwrap(wrapped, b"a context") == key
            assert not master.stale(wrapped, b"a context")

    def test_it_opens_with_its_context_alone(self, master: MasterKey) -> None:
        wrapped = master.wrap(bytes(32), b"a context")

        for broken, context in (
            (wrapped, b"another"),
            (wrapped[:-1] + bytes([wrapped[-1] ^ 1]), b"a context"),
            (wrapped[:8], b"a context"),
            (b"", b"a context"),
        ):
            with pytest.raises(KeyUnavailable):
                master.unwrap(broken, context)

    def test_a_newer_key_wraps_and_the_one_before_still_opens(
        self, master: MasterKey, successor: MasterKey
    ) -> None:
        old = master.wrap(bytes(32), b"a context")

        new = successor.wrap(bytes(32), b"a context")

        assert successor.unwrap(old, b"a context") == bytes(32)
        assert successor.stale(old, b"a context")
        assert not successor.stale(new, b"a context")


class KeyStoreContract:
    """The promises of the port.  Inherit it and give a fixture ``keys``."""

    @pytest.fixture(autouse=True)
    def _peppered(self, keys: SqlKeyStore) -> None:
        assert keys.add_setting("pepper", _PEPPER) == _PEPPER

    def _user(self, keys: SqlKeyStore, ref: str = "u") -> None:
        entry = keys.add_user(ref, _USER, NOW, pepper=_PEPPER)
        assert entry == UserEntry(1, _USER)

    def _session(self, keys: SqlKeyStore, ref: str, version: int = 1) -> bytes:
        wrapped = f"{ref} {version}".encode()
        kept = keys.add_session("u", ref, wrapped, NOW, under=_USER, version=version)
        assert kept == wrapped
        return wrapped

    def test_the_first_of_two_keys_is_kept(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        first = self._session(keys, "s")

        assert keys.add_user("u", _OTHER, NOW, pepper=_PEPPER) == UserEntry(1, _USER)
        assert keys.add_session("u", "s", b"late", NOW, under=_USER) == first
        assert keys.add_setting("pepper", b"late") == _PEPPER

    def test_nothing_is_added_under_a_replaced_key(self, keys: SqlKeyStore) -> None:
        self._user(keys)

        assert keys.add_user("v", _USER, NOW, pepper=b"older") is None
        assert keys.add_session("u", "s", b"k", NOW, under=_OTHER) is None
        assert keys.add_session("v", "s", b"k", NOW, under=_USER) is None
        assert keys.get_user("v") is None
        assert keys.session_keys("u", "s") == {}

    def test_an_erased_user_is_known_and_has_no_key(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        self._session(keys, "s")
        self._session(keys, "s", version=2)
        before = keys.generation()

        assert keys.destroy("u", None, NOW) == 3

        assert keys.get_user("u") == UserEntry(1, None)
        assert keys.keys_of("u") == {}
        assert keys.add_user("u", _OTHER, NOW, pepper=_PEPPER) == UserEntry(1, None)
        assert keys.add_session("u", "s", b"k", NOW, under=_USER) is None
        assert keys.generation() > before
        assert keys.destroy("u", None, NOW) == 0

    def test_who_never_had_a_key_is_known_as_erased(self, keys: SqlKeyStore) -> None:
        assert keys.destroy("u", None, NOW) == 0

        assert keys.get_user("u") == UserEntry(1, None)

    def test_an_erased_session_gets_no_key_again(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        self._session(keys, "s")
        other = self._session(keys, "t")

        assert keys.destroy("u", ["s"], NOW) == 1

        with pytest.raises(Erased):
            keys.session_keys("u", "s")
        with pytest.raises(Erased):
            keys.add_session("u", "s", b"k", NOW, under=_USER)
        assert keys.session_keys("u", "t") == {1: other}
        assert keys.get_user("u") == UserEntry(1, _USER)

    def test_keys_put_aside_are_found_once_released(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        kept = {KeyPlace("s", n): self._session(keys, "s", n) for n in (1, 2)}
        kept[KeyPlace("t", 1)] = self._session(keys, "t")
        assert keys.hold("u", ["t"], NOW) == 1
        assert keys.hold("u", None, NOW) == 3

        assert keys.get_user("u") == UserEntry(1, None)
        assert keys.keys_of("u") == {}
        assert keys.held_users() == [("u", UserEntry(1, _USER))]

        assert keys.release("u", None) == 3
        assert keys.get_user("u") == UserEntry(1, _USER)
        with pytest.raises(Erased):
            keys.session_keys("u", "t")
        assert keys.release("u", ["t"]) == 1
        assert keys.keys_of("u") == kept
        assert keys.counts()["held"] == 0

    def test_keys_put_aside_can_be_destroyed(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        self._session(keys, "s")
        keys.hold("u", None, NOW)

        assert keys.destroy("u", None, NOW) == 2

        assert keys.release("u", None) == 0
        assert keys.held_users() == []

    def test_who_is_readmitted_is_in_the_next_epoch(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        assert not keys.readmit("u", _OTHER, NOW, epoch=2)
        keys.destroy("u", None, NOW)

        assert not keys.readmit("u", _OTHER, NOW, epoch=3)
        assert keys.readmit("u", _OTHER, NOW, epoch=2)

        assert keys.get_user("u") == UserEntry(2, _OTHER)

    def test_a_users_key_is_replaced_whole_or_not(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        for version in (1, 2):
            self._session(keys, "s", version)
        again = {KeyPlace("s", n): b"again %d" % n for n in (1, 2)}

        assert not keys.swap_user("u", _OTHER, b"new", again)
        assert not keys.swap_user("u", _USER, b"new", {KeyPlace("s", 1): b"again"})
        assert keys.get_user("u") == UserEntry(1, _USER)
        assert keys.swap_user("u", _USER, b"new", again)

        assert keys.get_user("u") == UserEntry(1, b"new")
        assert keys.keys_of("u") == again

    def test_what_others_replaced_is_not_replaced(self, keys: SqlKeyStore) -> None:
        self._user(keys)
        keys.hold("u", None, NOW)

        assert not keys.swap_setting("pepper", b"other", b"new")
        assert keys.swap_setting("pepper", _PEPPER, b"new")
        assert not keys.swap_held("u", _OTHER, b"new")
        assert keys.swap_held("u", _USER, b"new")

        assert keys.get_setting("pepper") == b"new"
        assert keys.held_users() == [("u", UserEntry(1, b"new"))]

    def test_users_are_listed_in_pages(self, keys: SqlKeyStore) -> None:
        for name in "dacb":
            self._user(keys, name)
        keys.destroy("c", None, NOW)

        first = keys.users(limit=3)

        assert [ref for ref, _ in first] == ["a", "b", "c"]
        assert [ref for ref, _ in keys.users("c")] == ["d"]
        assert keys.counts()["users"] == 3
        assert keys.counts()["erased_users"] == 1

    def test_the_generation_never_falls(self, keys: SqlKeyStore) -> None:
        keys.reach(7)
        keys.reach(3)

        assert keys.generation() == 7

    def test_an_erasure_beside_new_keys_leaves_none(self, keys: SqlKeyStore) -> None:
        self._user(keys)

        def act(number: int) -> None:
            if number == 5:
                keys.destroy("u", None, NOW)
            else:
                keys.add_session("u", f"s{number}", b"k", NOW, under=_USER)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(act, range(10)))

        assert keys.keys_of("u") == {}
