"""Advice from the user's memory for one session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from refold.projections.context.budget import Advice
from refold.projections.context.strategy import Strategy
from refold.projections.memory.advice import ChoiceArgs, choice_from
from refold.store.memory.advice import Adviser
from refold.store.recorded import recorded
from refold.store.session.core import chosen_strategy, viewer_of
from refold.store.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class SessionMemory(SessionPart):
    """Choose from the user's memory what a model should read in this session."""

    @recorded("memory_load")
    def advice(
        self, strategy: str | Strategy | None = None, **choice_args: Unpack[ChoiceArgs]
    ) -> Advice:
        """Return advice to hand in: ``session.context(advice=…)``.

        Advice is chosen for the first request, and again after each compaction.
        Between them it repeats the advice of the last recorded request of this
        strategy, so that the prompt begins with the same bytes and stays cached.  Items
        that expired or may no longer be shown are left out from the next call on.

        Raises SessionNotFound, InvalidConfiguration, Erased.
        """
        choice = choice_from(choice_args)
        viewer = viewer_of(self.session)
        chosen = chosen_strategy(self.session, viewer, strategy)
        adviser = Adviser(self.writer, self.user_id)
        return adviser.for_session(self.stream, chosen, choice)
