"""What every anchor must do, as a test suite to inherit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

from refold.domain.seals import Anchor, TreeHead

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

    def test_what_was_added_is_there_in_order(
        self, opened: Callable[[], Anchor]
    ) -> None:
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
