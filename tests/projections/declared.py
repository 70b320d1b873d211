"""Sessions with verdicts, for the tests of declarative memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import refold
from refold.domain.envelope import Envelope, from_microseconds
from refold.domain.events import Event, Verdict
from refold.projections.memory.profile import Profile, profile
from refold.projections.memory.verdicts import Judge, SessionVerdicts
from tests.projections.logs import envelope

DAY = 86_400_000_000
START = 20_000 * DAY
RIGHT = "correct"
WRONG = "incorrect"
UNSURE = "uncertain"


def verdicts(*results: str, first: int = 1, **fields: Any) -> refold.Aggregate:
    """Return an aggregate of these verdicts, each on its own item."""
    return refold.Aggregate(
        results=tuple(
            Verdict(item_id=f"q-{nr}", verdict=result, **_verdict_event(result, fields))
            for nr, result in enumerate(results, first)
        )
    )


def _verdict_event(result: str, fields: dict[str, Any]) -> dict[str, Any]:
    verdict_fields = {"subject": "math", "topic": "fractions", **fields}
    if result == RIGHT:
        verdict_fields.pop("error_type", None)
    return verdict_fields


def events_of(*events: Event, day: float = 0, name: str = "s") -> list[Envelope]:
    """The envelopes of a session of that day."""
    ts = from_microseconds(int(START + day * DAY))
    log = [envelope(seq, event, ts=ts) for seq, event in enumerate(events, 1)]
    return [event.model_copy(update={"session_id": name}) for event in log]


def judge(
    session_id: str, events: Iterable[Envelope], taints: Iterable[str] = ()
) -> SessionVerdicts:
    """Return what the verdicts in these events of a session show."""
    judging = Judge(session_id)
    for event in events:
        judging.take(event)
    return judging.verdicts(taints)


def judged_session(
    *results: str, day: float = 0, taints: tuple[str, ...] = (), **fields: Any
) -> SessionVerdicts:
    """Return what a session of that day with these verdicts shows.

    The session is named after the day.
    """
    name = fields.pop("name", f"s-{day:06.1f}")
    return judge(
        name, events_of(verdicts(*results, **fields), day=day, name=name), taints
    )


def profile_of(*sessions: SessionVerdicts, day: float = 10, **how: Any) -> Profile:
    """Return the profile that the sessions give on that day."""
    return profile("ada", sessions, now=int(START + day * DAY), **how)
