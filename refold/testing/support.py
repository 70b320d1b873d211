"""What a test of an event log is made of: a log in memory, and appends to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from refold.adapters.keys import KeyRing
from refold.adapters.log import SealedLog
from refold.adapters.master import LocalMasterKey
from refold.adapters.memory import MemoryKeyStore, MemoryRecorder
from refold.adapters.recorder import Recorder
from refold.domain.envelope import Envelope
from refold.domain.events import (
    Event,
    UserInput,
)
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Append,
    EventLog,
    Head,
    Outcome,
)
from refold.domain.record import Draft
from refold.domain.session import decide, evolve
from refold.redaction.chokepoint import redact
from refold.redaction.engine import Redactor
from refold.redaction.guard import Limits

NOW: Final = 1_700_000_000_000_000
ADA: Final = StreamId("ada", "s-1")
BOB: Final = StreamId("bob", "s-1")
_REDACTOR: Final = Redactor()


def memory_log(recorder: Recorder | None = None) -> SealedLog:
    """A log whose keys live in memory; its rows too, unless a recorder is given."""
    master = LocalMasterKey(os.urandom(32), origin="a test")
    return SealedLog(recorder or MemoryRecorder(), KeyRing(MemoryKeyStore(), master))


def append_to(
    head: Head, *events: Event, key: str | None = None, limits: Limits | None = None
) -> Append:
    """The append of ``events`` to ``head``, decided and redacted as the store does."""
    decided = decide(head.state, events)
    state = head.state
    for event in decided:
        state = evolve(state, event)
    redacted = tuple(
        redact(Draft(event), now=NOW, redactor=_REDACTOR, limits=limits or Limits())
        for event in decided
    )
    return Append(head, state, redacted, NOW, key)


def write(log: EventLog, stream: StreamId, *events: Event) -> Outcome:
    """Append ``events`` to the end of ``stream``, wherever it is."""
    return log.append(append_to(log.head(stream), *events))


def said(*texts: str) -> tuple[UserInput, ...]:
    """One user input for each text."""
    return tuple(UserInput(text=text) for text in texts)


def texts(events: Sequence[Envelope]) -> list[str]:
    """What the users said in ``events``."""
    inputs = (event.payload for event in events)
    return [said.text for said in inputs if isinstance(said, UserInput)]
