"""How sessions are compacted without being told to: never, beside, or at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from refold.domain.errors import InvalidConfiguration
from refold.domain.events import AgentResponse, Event, Final
from refold.domain.record import Draft
from refold.projections.context.summarizer import Summarizer
from refold.projections.memory.triggers import may_trigger
from refold.store.background import Background, attempt

Automatic: TypeAlias = Literal["off", "background", "wait"]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What happens after an append that may have ended a turn.

    automatic:  ``off``: nothing; ``background``: a thread compacts what is due;
                ``wait``: it is done before the append returns.
    remember:   the same of the user's memory, after what makes it worth while.
    summarizer: what writes summaries where a call names no other; None is
                ``abridged``.

    Raises InvalidConfiguration for another way.
    """

    automatic: Automatic = "off"
    remember: Automatic = "off"
    summarizer: Summarizer | None = None
    background: Background = field(default_factory=Background)

    def __post_init__(self) -> None:
        known = ", ".join(get_args(Automatic))
        for name, value in (("compact", self.automatic), ("remember", self.remember)):
            if value not in get_args(Automatic):
                raise InvalidConfiguration(
                    f"{name} takes one of {known}, not {value!r}"
                )

    def appended(
        self, events: Sequence[Event], name: Hashable, compact: Callable[[], Any]
    ) -> None:
        """Compact as configured if ``events`` may have ended a turn; never raises.

        The events are in the log by now: what fails here is logged.
        """
        if self.automatic != "off" and ends_turn(events):
            self._do(self.automatic, name, compact)

    def learned(
        self, drafts: Sequence[Draft], name: Hashable, learn: Callable[[], Any]
    ) -> None:
        """Make memory anew as configured if these may say more; never raises."""
        if self.remember != "off" and any(
            may_trigger(draft.event, draft.meta) for draft in drafts
        ):
            self._do(self.remember, ("memory", name), learn)

    def _do(self, how: Automatic, name: Hashable, work: Callable[[], Any]) -> None:
        if how == "wait":
            attempt(work)
        else:
            self.background.ask(name, work)


def ends_turn(events: Sequence[Event]) -> bool:
    """Whether a turn may be complete after these: the agent has had its say."""
    return bool(events) and isinstance(events[-1], AgentResponse | Final)
