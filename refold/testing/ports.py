"""Contracts of access sinks, anchors and master keys, as tests to inherit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Final

import pytest

from refold.adapters.keys.master import MasterKey
from refold.adapters.sql.access_log import record_id
from refold.domain.access_log import AccessRecord, AccessSink
from refold.domain.errors import KeyUnavailable
from refold.domain.events import JsonObject
from refold.domain.seals import Anchor, TreeHead
from refold.testing.event_log import NOW

_SECOND: Final = 1_000_000
Written = Callable[[], Sequence[JsonObject]]


def record(number: int, **fields: Any) -> AccessRecord:
    """Return a record with the time ``NOW``, plus this number of seconds."""
    at = NOW + number * _SECOND
    default = AccessRecord(
        record_id=record_id(at),
        ts=at,
        event="session_load",
        user="a" * 32,
        session="b" * 32,
        request=None,
        state_version=number,
        event_type=None,
        duration_us=1500,
        status="ok",
        error_code=None,
        meta={"events": number},
    )
    return default._replace(**fields)


class AccessSinkContract:
    """The contract of the port ``AccessSink``.

    It needs fixtures ``sink`` and ``written``, a function that returns the written
    records as JSON.  The sink is empty at first.
    """

    def test_records_keep_their_order(self, sink: AccessSink, written: Written) -> None:
        # More than a sink writes at once, in two batches of unequal size.
        records = [record(number) for number in range(700)]

        sink.write(records[:600])
        sink.write(records[600:])

        assert list(written()) == [item.to_json() for item in records]

    def test_a_record_is_kept_whole(self, sink: AccessSink, written: Written) -> None:
        bare = record(
            1, user=None, session=None, state_version=None, meta={}, duration_us=0
        )
        full = record(
            2,
            request="c" * 32,
            event_type="user_input,tool_call",
            status="denied",
            error_code="Erased",
            meta={"events": 1 << 40, "tokens": 0},
        )

        sink.write([bare, full])

        assert list(written()) == [bare.to_json(), full.to_json()]

    def test_writing_no_records_adds_none(
        self, sink: AccessSink, written: Written
    ) -> None:
        sink.write([record(1)])
        sink.write([])

        assert len(written()) == 1


HEADS: Final = tuple(
    TreeHead(
        store_id="store",
        size=size,
        root=bytes([size]) * 32,
        sealed_at=size * 10,
        position=size,
        key_id="key",
        signature=b"s" * 64,
    )
    for size in (1, 4, 9)
)


class AnchorContract:
    """The contract of the port ``Anchor``.

    It needs a fixture ``opened``, a function that opens the same anchor again.  The
    anchor is empty at first.
    """

    def test_an_empty_anchor_has_no_heads(self, opened: Callable[[], Anchor]) -> None:
        anchor = opened()

        assert anchor.newest() is None
        assert list(anchor.read()) == []

    def test_heads_are_kept_in_their_order(self, opened: Callable[[], Anchor]) -> None:
        anchor = opened()
        with anchor.held():
            anchor.add(HEADS[:1])
            anchor.add(HEADS[1:])

        assert list(opened().read()) == list(HEADS)
        assert opened().newest() == HEADS[-1]

    def test_heads_not_larger_than_the_newest_are_skipped(
        self, opened: Callable[[], Anchor]
    ) -> None:
        anchor = opened()
        same_size = HEADS[1]._replace(root=bytes(32))
        with anchor.held():
            anchor.add(HEADS[:2])
            anchor.add([same_size])
            anchor.add(HEADS)
            anchor.add([])

        assert list(anchor.read()) == list(HEADS)

    def test_only_one_thread_holds_the_anchor(
        self, opened: Callable[[], Anchor]
    ) -> None:
        count = 4
        inside = [0]
        most = [0]
        start = Barrier(count)

        def work(_: int) -> None:
            anchor = opened()
            start.wait(30)
            for _ in range(20):
                with anchor.held():
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    anchor.newest()
                    inside[0] -= 1

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, range(count)))

        assert most == [1]


class MasterKeyContract:
    """The contract of the port ``MasterKey``.

    It needs fixtures ``master``, any key, and ``successor``, which wraps with a newer
    key and still unwraps what ``master`` wrapped, as during a rotation.
    """

    def test_unwrap_returns_the_wrapped_key(self, master: MasterKey) -> None:
        for size in (32, 64):
            key = os.urandom(size)

            wrapped = master.wrap(key, b"a context")

            assert key not in wrapped
            assert master.unwrap(wrapped, b"a context") == key
            assert not master.stale(wrapped, b"a context")

    def test_a_key_unwraps_only_with_its_context(self, master: MasterKey) -> None:
        wrapped = master.wrap(bytes(32), b"a context")

        with pytest.raises(KeyUnavailable):
            master.unwrap(wrapped, b"another")

    def test_a_damaged_key_is_refused(self, master: MasterKey) -> None:
        wrapped = master.wrap(bytes(32), b"a context")
        changed = wrapped[:-1] + bytes([wrapped[-1] ^ 1])

        for damaged in (changed, wrapped[:8], b""):
            with pytest.raises(KeyUnavailable):
                master.unwrap(damaged, b"a context")

    def test_a_newer_key_unwraps_keys_of_the_older_one(
        self, master: MasterKey, successor: MasterKey
    ) -> None:
        old = master.wrap(bytes(32), b"a context")

        new = successor.wrap(bytes(32), b"a context")

        assert successor.unwrap(old, b"a context") == bytes(32)
        assert successor.stale(old, b"a context")
        assert not successor.stale(new, b"a context")
