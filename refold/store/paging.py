"""Reading a stream to its end, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.domain.envelope import Envelope
from refold.domain.ids import StreamId
from refold.domain.ports import PAGE, EventLog


def read_on(
    log: EventLog,
    stream: StreamId,
    *,
    after: int = 0,
    upto: int | None = None,
    types: Sequence[str] = (),
) -> Iterator[Envelope]:
    """The events with ``after < seq <= upto``, in order; ``types`` keeps only those.

    A page that is not full is the last: nothing is asked for behind it.
    """
    full = True
    while full:
        page = log.read(stream, after=after, upto=upto, limit=PAGE, types=types)
        yield from page
        full, after = len(page) == PAGE, page[-1].seq if page else after
