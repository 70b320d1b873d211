"""``refold compact --watch``: compact whatever becomes due, until told to stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.domain.events import Summary
    from refold.projections.context.strategy import Strategy
    from refold.store import Session
    from refold.store.working import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Show = Callable[["Session", list[tuple[int, "Summary"]]], None]


def watch(worker: Callable[..., Worker], show: Show) -> None:
    """Run the worker that ``worker(done=…)`` makes until SIGTERM or SIGINT comes.

    The compaction that it is at then ends first; a second signal does not wait.
    """

    def done(session: Session, strategy: Strategy, known: int) -> None:
        show(session, _made(session, strategy, known))
        sys.stdout.flush()

    working = worker(done=done)
    with stopped_by_signals(working.stop):
        working.run()


def as_lines(session: Session, made: list[tuple[int, Summary]]) -> None:
    """Print each record on a line, with whose it is."""
    whose = {"user_id": session.user_id, "session_id": session.session_id}
    for seq, record in made:
        print_json({**whose, **record.payload(), "seq": seq})


def _made(
    session: Session, strategy: Strategy, known: int
) -> list[tuple[int, Summary]]:
    from refold.domain.events import Summary

    derived = session.derived(strategy.fingerprint)
    return [
        (envelope.seq, envelope.payload)
        for envelope in derived
        if envelope.seq > known and isinstance(envelope.payload, Summary)
    ]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}

    def handle(_signal: int, _frame: object) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in _SIGNALS:
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[number])
