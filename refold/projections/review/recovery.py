"""What comes next when something failed: with less, once more, then a human.

Each step is recorded where it is done: as a warning in the ``meta`` of the events that
are appended in doing it.  That is what warnings are for, it is redacted and kept with
these events, and no model is shown it; an ``error`` event of its own would be, as one
more failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import Warn
from refold.domain.events import JsonObject
from refold.projections.review.rules import Step

Happened: TypeAlias = Literal["failed", "degrade", "retry"]
Next: TypeAlias = Literal["degrade", "retry", "wait", "human"]
WARNINGS: Final[Mapping[Step, str]] = {"degrade": "degraded", "retry": "retried"}


def next_step(
    steps: Sequence[Step], happened: Sequence[Happened], *, over: bool = False
) -> Next:
    """What is to be done now.

    A step is used up when it was recorded, or when it failed once more without: what
    was done instead did not help either.  ``wait``: a step was recorded, and nothing
    is known of how it went.

    steps:    what the rule has the agent try, in turn.
    happened: in order: ``failed`` each time the rule fired, else a recorded step.
    over:     the turn is over, so that nothing of it can be tried again.
    """
    used, tried = _used_up(steps, happened)
    if over or (used >= len(steps) and not tried):
        return "human"
    return "wait" if tried else steps[used]


def number_of(steps: Sequence[Step], happened: Sequence[Happened]) -> int:
    """Which step it is that comes next, counted from 1."""
    return _used_up(steps, happened)[0] + 1


def _used_up(steps: Sequence[Step], happened: Sequence[Happened]) -> tuple[int, bool]:
    """How many steps are used up, and whether the last one is still being tried."""
    used, tried, begun = 0, False, False
    for what in happened:
        if what == "failed":
            used += begun and not tried
            tried, begun = False, True
        elif what in steps[used:]:
            used, tried = steps.index(what, used) + 1, True
    return used, tried


class Recovery(NamedTuple):
    """A step that an agent is to do now, and how it records it.

    rule, seq: which rule fired, and at which event first.
    figures:   what the rule counted, as of the newest time.
    number:    which step it is of those that the rule has, from 1.
    """

    step: Step
    rule: str
    seq: int
    figures: JsonObject
    number: int

    @property
    def idempotency_key(self) -> str:
        """The same for everybody who does this step: it is written once."""
        return f"refold.recovery/{self.rule}/{self.seq}/{self.number}"

    @property
    def warning(self) -> Warn:
        """What stands with the events of this step."""
        detail = f"step {self.number} of {self.rule} at seq {self.seq}"
        return Warn(code=WARNINGS[self.step], detail=detail)

    @property
    def meta(self) -> dict[str, Any]:
        """What says, beside the events of the step, that they are one."""
        return {"warnings": [self.warning.model_dump()]}

    def to_json(self) -> JsonObject:
        """All that there is to do it by."""
        more = {"idempotency_key": self.idempotency_key, "meta": self.meta}
        return {**self._asdict(), **more}
