"""The work that an append starts: a compaction, and the user's memory."""

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
# The port to the user's memory: returns the work that an append causes there, or None.
Learning: TypeAlias = "Callable[[Order], Callable[[], object] | None]"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Which work an append starts, and how it runs.

    automatic:  compaction after an event that may end a turn.  ``off``: none;
                ``background``: in a thread; ``wait``: before the append returns.
    remember:   the same choice for the user's memory, after an event that may change
                it.
    summarizer: writes the summaries of calls that name no other; None is
                ``abridged``.

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
        for name, choice in (("compact", self.automatic), ("remember", self.remember)):
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
        """Start the work that this append calls for; never raises.

        compact:  makes one pending step of compaction of the session.
        learning: finds the work in the user's memory; called only if ``remember`` is
                  on.
        """
        if self.automatic != "off" and _ends_turn(order.drafts[-1].event):
            self._run(self.automatic, order.stream, compact)
        if self.remember != "off":
            learn = learning(order)
            if learn is not None:
                self._run(self.remember, ("memory", order.stream.user_id), learn)

    def _run(self, how: Automatic, name: Hashable, work: Callable[[], Any]) -> None:
        if how == "wait":
            attempt(work)
        else:
            self.background.ask(name, work)


def _ends_turn(event: object) -> bool:
    """Whether the agent has answered: a rebuild decides at the same events."""
    if isinstance(event, AgentResponse):
        return event.stop_reason != "tool_use"
    return isinstance(event, FinalEvent)
