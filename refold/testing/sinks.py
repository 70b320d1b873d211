"""The promises of audit sinks, and of tables of audit records, as tests to inherit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Final

from refold.adapters.sql.access_log import AccessTable, record_id
from refold.domain.access_log import AccessRecord, AccessSink
from refold.domain.events import JsonObject
from refold.domain.seals import Anchor, TreeHead
from refold.testing.event_log import NOW

_SECOND: Final = 1_000_000
Written = Callable[[], Sequence[JsonObject]]


def record(number: int, **fields: Any) -> AccessRecord:
    """A record of ``number`` seconds after the beginning of time."""
    at = NOW + number * _SECOND
    made = AccessRecord(
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
    return made._replace(**fields)


class AccessSinkContract:
    """The promises of the port ``AccessSink``.

    ``written`` gives what the sink was given, as ``to_json`` has it.
    """

    def test_records_keep_their_order(self, sink: AccessSink, written: Written) -> None:
        records = [record(number) for number in range(700)]

        sink.write(records[:600])
        sink.write(records[600:])

        assert list(written()) == [one.to_json() for one in records]

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

    def test_nothing_writes_nothing(self, sink: AccessSink, written: Written) -> None:
        sink.write([record(1)])
        sink.write([])

        assert len(written()) == 1


class AccessTableContract:
    """The promises of the port ``AccessTable``."""

    def test_a_record_that_comes_again_is_kept_once(self, rows: AccessTable) -> None:
        rows.write([record(1), record(2)])

        rows.write([record(1), record(2), record(3)])

        assert rows.find(limit=9) == [record(1), record(2), record(3)]

    def test_writers_at_once_lose_nothing(self, rows: AccessTable) -> None:
        batches = [[record(n * 100 + each) for each in range(100)] for n in range(8)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(rows.write, batches))

        assert rows.find(limit=1000) == [record(number) for number in range(800)]

    def test_records_are_found_by_user_and_session(self, rows: AccessTable) -> None:
        other = record(2, user="d" * 32)
        mine = record(3, session="e" * 32)
        rows.write([record(1), other, mine, record(4, user=None, session=None)])

        assert rows.find(user="a" * 32, limit=9) == [record(1), mine]
        assert rows.find(user="a" * 32, session="e" * 32, limit=9) == [mine]
        assert rows.find(user="0" * 32, limit=9) == []

    def test_records_are_found_from_a_moment_on(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in range(5)])

        assert rows.find(since=record(3).ts, limit=9) == [record(3), record(4)]
        assert len(rows.find(since=-1, limit=9)) == 5
        assert rows.find(since=record(9).ts, limit=9) == []

    def test_pages_follow_each_other(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in reversed(range(5))])

        first = rows.find(limit=2)
        rest = rows.find(limit=9, after=first[-1].record_id)

        assert [*first, *rest] == [record(number) for number in range(5)]

    def test_what_is_older_is_purged_and_no_more(self, rows: AccessTable) -> None:
        rows.write([record(number) for number in range(5000)])

        assert sum(rows.purge(record(4998).ts)) == 4998
        assert sum(rows.purge(record(4998).ts)) == 0
        assert rows.find(limit=9) == [record(4998), record(4999)]

    def test_who_is_forgotten_is_named_no_more(self, rows: AccessTable) -> None:
        mine = [record(number, request="c" * 32) for number in range(4500)]
        other = record(4500, user="d" * 32)
        rows.write([*mine, other])

        assert rows.forget("a" * 32) == 4500
        assert rows.forget("a" * 32) == 0
        found = rows.find(limit=9999)
        assert found[-1] == other
        names = {(one.user, one.session, one.request) for one in found[:-1]}
        assert names == {(None, None, None)}
        assert {one.state_version for one in found[:-1]} == {None}
        assert [one.ts for one in found] == [one.ts for one in [*mine, other]]

    def test_a_session_is_forgotten_alone(self, rows: AccessTable) -> None:
        kept = record(2, session="e" * 32)
        namesake = record(3, user="d" * 32)
        rows.write([record(1), kept, namesake])

        assert rows.forget("a" * 32, ["b" * 32]) == 1
        assert rows.find(limit=9)[1:] == [kept, namesake]
        assert rows.find(limit=1)[0].user is None


HEADS: Final = tuple(
    TreeHead("store", size, bytes([size]) * 32, size * 10, size, "key", b"s" * 64)
    for size in (1, 4, 9)
)


class AnchorContract:
    """The promises of the port ``Anchor``.

    The fixture ``opened`` gives a function that opens one and the same anchor anew,
    empty at first.
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

    def test_what_is_not_larger_is_left_out(self, opened: Callable[[], Anchor]) -> None:
        anchor = opened()
        other = HEADS[1]._replace(root=bytes(32))
        with anchor.held():
            anchor.add(HEADS[:2])
            anchor.add([other])
            anchor.add(HEADS)
            anchor.add([])

        assert list(anchor.read()) == list(HEADS)

    def test_one_holds_it_at_a_time(self, opened: Callable[[], Anchor]) -> None:
        count, inside, most = 4, [0], [0]
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
