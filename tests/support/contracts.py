"""The contracts of key stores and of access log tables, on every engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from refold.adapters.keys.store import KeyPlace, UserEntry
from refold.adapters.sql.access_log import AccessTable
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.errors import Erased
from refold.testing import NOW
from refold.testing.ports import record

_PEPPER = b"wrapped pepper"
_USER = b"wrapped user key"
_OTHER = b"another one"


class KeyStoreContract:
    """The contract of a key store.  Inherit it and define a fixture ``keys``."""

    @pytest.fixture(autouse=True)
    def _create_pepper(self, keys: SqlKeyStore) -> None:
        assert keys.add_setting("pepper", _PEPPER) == _PEPPER

    def _create_user(self, keys: SqlKeyStore, ref: str = "u") -> None:
        entry = keys.add_user(ref, _USER, NOW, pepper=_PEPPER)
        assert entry == UserEntry(1, _USER)

    def _create_session_key(
        self, keys: SqlKeyStore, ref: str, version: int = 1
    ) -> bytes:
        wrapped = f"{ref} {version}".encode()
        stored = keys.add_session("u", ref, wrapped, NOW, under=_USER, version=version)
        assert stored == wrapped
        return wrapped

    def test_the_first_of_two_keys_is_kept(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        first = self._create_session_key(keys, "s")

        assert keys.add_user("u", _OTHER, NOW, pepper=_PEPPER) == UserEntry(1, _USER)
        assert keys.add_session("u", "s", b"late", NOW, under=_USER) == first
        assert keys.add_setting("pepper", b"late") == _PEPPER

    def test_a_first_session_is_added_together_with_its_users_key(
        self, keys: SqlKeyStore
    ) -> None:
        first = ("s", b"k")
        late = ("t", b"late")

        keys.add_user("u", _USER, NOW, pepper=_PEPPER, session=first)
        keys.add_user("u", _OTHER, NOW, pepper=_PEPPER, session=late)

        assert keys.user_and_session_keys("u", "s") == (UserEntry(1, _USER), {1: b"k"})
        assert keys.session_keys("u", "t") == {}

    def test_nothing_is_added_under_a_replaced_key(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)

        assert keys.add_user("v", _USER, NOW, pepper=b"older") is None
        assert keys.add_session("u", "s", b"k", NOW, under=_OTHER) is None
        assert keys.add_session("v", "s", b"k", NOW, under=_USER) is None
        assert keys.get_user("v") is None
        assert keys.session_keys("u", "s") == {}

    def test_an_erased_user_is_known_and_has_no_key(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        self._create_session_key(keys, "s")
        self._create_session_key(keys, "s", version=2)
        before = keys.generation()

        assert keys.destroy("u", None, NOW) == 3

        assert keys.get_user("u") == UserEntry(1, None)
        assert keys.keys_of("u") == {}
        assert keys.add_user("u", _OTHER, NOW, pepper=_PEPPER) == UserEntry(1, None)
        assert keys.add_session("u", "s", b"k", NOW, under=_USER) is None
        assert keys.generation() > before
        assert keys.destroy("u", None, NOW) == 0

    def test_a_user_without_a_key_can_be_erased(self, keys: SqlKeyStore) -> None:
        assert keys.destroy("u", None, NOW) == 0

        assert keys.get_user("u") == UserEntry(1, None)

    def test_an_erased_session_never_gets_a_key_again(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        self._create_session_key(keys, "s")
        other = self._create_session_key(keys, "t")

        assert keys.destroy("u", ["s"], NOW) == 1

        with pytest.raises(Erased):
            keys.session_keys("u", "s")
        with pytest.raises(Erased):
            keys.add_session("u", "s", b"k", NOW, under=_USER)
        assert keys.session_keys("u", "t") == {1: other}
        assert keys.get_user("u") == UserEntry(1, _USER)

    def test_escrowed_keys_are_found_once_released(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        keys_before = {
            KeyPlace("s", n): self._create_session_key(keys, "s", n) for n in (1, 2)
        }
        keys_before[KeyPlace("t", 1)] = self._create_session_key(keys, "t")
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
        assert keys.keys_of("u") == keys_before
        assert keys.counts()["held"] == 0

    def test_escrowed_keys_can_be_destroyed(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        self._create_session_key(keys, "s")
        keys.hold("u", None, NOW)

        assert keys.destroy("u", None, NOW) == 2

        assert keys.release("u", None) == 0
        assert keys.held_users() == []

    def test_a_readmitted_user_is_in_the_next_epoch(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        assert not keys.readmit("u", _OTHER, NOW, epoch=2)
        keys.destroy("u", None, NOW)

        assert not keys.readmit("u", _OTHER, NOW, epoch=3)
        assert keys.readmit("u", _OTHER, NOW, epoch=2)

        assert keys.get_user("u") == UserEntry(2, _OTHER)

    def test_a_users_key_is_replaced_completely_or_not_at_all(
        self, keys: SqlKeyStore
    ) -> None:
        self._create_user(keys)
        for version in (1, 2):
            self._create_session_key(keys, "s", version)
        again = {KeyPlace("s", n): b"again %d" % n for n in (1, 2)}

        assert not keys.swap_user("u", _OTHER, b"new", again)
        assert not keys.swap_user("u", _USER, b"new", {KeyPlace("s", 1): b"again"})
        assert keys.get_user("u") == UserEntry(1, _USER)
        assert keys.swap_user("u", _USER, b"new", again)

        assert keys.get_user("u") == UserEntry(1, b"new")
        assert keys.keys_of("u") == again

    def test_keys_replaced_by_others_are_not_replaced(self, keys: SqlKeyStore) -> None:
        self._create_user(keys)
        keys.hold("u", None, NOW)

        assert not keys.swap_setting("pepper", b"other", b"new")
        assert keys.swap_setting("pepper", _PEPPER, b"new")
        assert not keys.swap_held("u", _OTHER, b"new")
        assert keys.swap_held("u", _USER, b"new")

        assert keys.get_setting("pepper") == b"new"
        assert keys.held_users() == [("u", UserEntry(1, b"new"))]

    def test_users_are_listed_in_pages(self, keys: SqlKeyStore) -> None:
        for name in "dacb":
            self._create_user(keys, name)
        keys.destroy("c", None, NOW)

        first = keys.users(limit=3)

        assert [ref for ref, _ in first] == ["a", "b", "c"]
        assert [ref for ref, _ in keys.users("c")] == ["d"]
        assert keys.counts()["users"] == 3
        assert keys.counts()["erased_users"] == 1

    def test_the_generation_never_decreases(self, keys: SqlKeyStore) -> None:
        keys.reach(7)
        keys.reach(3)

        assert keys.generation() == 7

    def test_an_erasure_concurrent_with_new_keys_leaves_none(
        self, keys: SqlKeyStore
    ) -> None:
        self._create_user(keys)

        def act(number: int) -> None:
            if number == 5:
                keys.destroy("u", None, NOW)
            else:
                keys.add_session("u", f"s{number}", b"k", NOW, under=_USER)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(act, range(10)))

        assert keys.keys_of("u") == {}


class AccessTableContract:
    """The contract of an access log table; the fixture is ``rows``."""

    def test_a_repeated_record_is_stored_once(self, rows: AccessTable) -> None:
        rows.write([record(1), record(2)])

        rows.write([record(1), record(2), record(3)])

        assert rows.find(limit=9) == [record(1), record(2), record(3)]

    def test_concurrent_writers_lose_nothing(self, rows: AccessTable) -> None:
        batches = [[record(n * 100 + each) for each in range(100)] for n in range(8)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(rows.write, batches))

        assert rows.find(limit=1000) == [record(number) for number in range(800)]

    def test_records_are_filtered_by_user_and_session(self, rows: AccessTable) -> None:
        other = record(2, user="d" * 32)
        second = record(3, session="e" * 32)
        rows.write([record(1), other, second, record(4, user=None, session=None)])

        assert rows.find(user="a" * 32, limit=9) == [record(1), second]
        assert rows.find(user="a" * 32, session="e" * 32, limit=9) == [second]
        assert rows.find(user="0" * 32, limit=9) == []

    def test_records_are_filtered_by_time(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in range(5)])

        assert rows.find(since=record(3).ts, limit=9) == [record(3), record(4)]
        assert len(rows.find(since=-1, limit=9)) == 5
        assert rows.find(since=record(9).ts, limit=9) == []

    def test_pages_follow_each_other(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in reversed(range(5))])

        first = rows.find(limit=2)
        others = rows.find(limit=9, after=first[-1].record_id)

        assert [*first, *others] == [record(number) for number in range(5)]

    def test_purge_deletes_only_older_records(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in range(5000)])

        assert sum(rows.purge(record(4998).ts)) == 4998
        assert sum(rows.purge(record(4998).ts)) == 0
        assert rows.find(limit=9) == [record(4998), record(4999)]

    def test_forgotten_users_are_removed_from_records(self, rows: AccessTable) -> None:
        of_user = [record(number, request="c" * 32) for number in range(4500)]
        other = record(4500, user="d" * 32)
        rows.write([*of_user, other])

        assert rows.forget("a" * 32) == 4500
        assert rows.forget("a" * 32) == 0
        records = rows.find(limit=9999)
        assert records[-1] == other
        names = {(item.user, item.session, item.request) for item in records[:-1]}
        assert names == {(None, None, None)}
        assert {item.state_version for item in records[:-1]} == {None}
        assert [item.ts for item in records] == [item.ts for item in [*of_user, other]]

    def test_a_session_can_be_forgotten_alone(self, rows: AccessTable) -> None:
        other_session = record(2, session="e" * 32)
        namesake = record(3, user="d" * 32)
        rows.write([record(1), other_session, namesake])

        assert rows.forget("a" * 32, ["b" * 32]) == 1
        assert rows.find(limit=9)[1:] == [other_session, namesake]
        assert rows.find(limit=1)[0].user is None
