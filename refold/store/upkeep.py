"""Upkeep: the compaction and the update of memory that an append starts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from refold.domain.errors import InvalidConfiguration
from refold.domain.events import AgentResponse, Final as FinalEvent
from refold.store.work.background import Background, attempt

if TYPE_CHECKING:
    from refold.projections.context.compaction import Summarizer
    from refold.store.appends import Order

Automatic: TypeAlias = Literal["off", "background", "wait"]
# The port to the user's memory: a function that returns the work that an append causes
# there, or None.
Learning: TypeAlias = "Callable[[Order], Callable[[], object] | None]"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The work that an append starts, and how it runs.

    automatic:  whether a compaction follows an event that may end a turn.  ``off``: no;
                ``background``: in another thread; ``wait``: before the append returns.
    remember:   the same choice for an update of the user's memory, after an event that
                may change it.
    summarizer: writes the summaries of calls that name no summarizer; None means
                ``abridged``.
    background: runs the work in other threads.

    Raises InvalidConfiguration for any other choice.
    """

    automatic: Automatic = "off"
    remember: Automatic = "off"
    summarizer: Summarizer | None = None
    background: Background = field(default_factory=Background)
    # Whether an append starts any work.
    is_on: bool = field(init=False, default=False)
    # Whether an append waits for the work.
    waits: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        choices = get_args(Automatic)
        chosen_by_name = {"compact": self.automatic, "remember": self.remember}
        for name, choice in chosen_by_name.items():
            if choice not in choices:
                allowed = ", ".join(choices)
                raise InvalidConfiguration(
                    f"{name} takes one of {allowed}, not {choice!r}"
                )
        chosen = {self.automatic, self.remember}
        object.__setattr__(self, "is_on", chosen != {"off"})
        object.__setattr__(self, "waits", "wait" in chosen)

    def after_append(
        self, order: Order, *, compact: Callable[[], object], learning: Learning
    ) -> None:
        """Start the work that follows this append; never raises.

        compact:  makes one pending compaction of the session.
        learning: returns the update of the user's memory; called only if ``remember``
                  is on.
        """
        if self.automatic != "off" and _ends_turn(order.drafts[-1].event):
            self._run(self.automatic, order.stream, compact)
        if self.remember != "off":
            learn = learning(order)
            if learn is not None:
                self._run(self.remember, ("memory", order.stream.user_id), learn)

    def _run(self, choice: Automatic, name: Hashable, work: Callable[[], Any]) -> None:
        """Run the work here or in the background, as the choice says."""
        if choice == "wait":
            attempt(work)
        else:
            self.background.ask(name, work)


def _ends_turn(event: object) -> bool:
    """Whether the event may end a turn.  A rebuild decides at the same events."""
    if isinstance(event, AgentResponse):
        return event.stop_reason != "tool_use"
    return isinstance(event, FinalEvent)
