"""The events of a session as they happened, what was derived where it was decided."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

from refold.domain.envelope import Envelope


def merged(
    main: Iterable[Envelope], derived: Iterable[Envelope], after: int
) -> Iterator[Envelope]:
    """Both in one order: a derived entry comes behind its ``decided_at_seq``.

    Those that were decided at ``after`` or before are left out.
    """
    waiting = [entry for entry in derived if _decided_at(entry) > after]
    waiting.sort(key=lambda entry: (_decided_at(entry), entry.stream, entry.seq))
    queue = deque(waiting)
    for envelope in main:
        while queue and _decided_at(queue[0]) < envelope.seq:
            yield queue.popleft()
        yield envelope
    yield from queue


def _decided_at(entry: Envelope) -> float:
    decided = getattr(entry.payload, "decided_at_seq", None)
    return inf if decided is None else decided
