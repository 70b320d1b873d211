"""for_agent: a strategy as one of several agents in a session is shown it."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field, SerializeAsAny

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject, StrategyRef
from refold.projections.context.abridged import Limits
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline, OutlineBuilder
from refold.projections.context.strategy import Layers, Shown, Strategy, SummaryForm


class ForAgent(Strategy):
    """Show what one agent sees, and compact that: each agent has summaries of its own.

    agent:    whose view it is; readers.seen_by says what that agent sees.
    strategy: what is done with it.
    """

    name: ClassVar[str] = "for_agent"

    agent: str = Field(min_length=1)
    strategy: SerializeAsAny[Strategy]

    @property
    def reader(self) -> str:
        """Whose view it is."""
        return self.agent

    @property
    def params(self) -> JsonObject:
        """The agent, and its strategy with name, version and parameters."""
        inner = self.strategy
        told: JsonObject = {
            "name": inner.name,
            "version": inner.version,
            "params": inner.params,
        }
        return {"agent": self.agent, "strategy": told}

    @property
    def stable_prefix(self) -> bool:  # type: ignore[override]  # here it depends
        """Whether its views only grow at their end between two compactions."""
        return self.strategy.stable_prefix

    @property
    def told_as(self) -> SummaryForm:
        """How its summaries are told."""
        return self.strategy.told_as

    @property
    def acknowledgement(self) -> str:
        """What the agent answers to its summaries, where they are acknowledged."""
        return self.strategy.acknowledgement

    @property
    def memory_layers(self) -> Layers | None:
        """What it shows before the summaries of the session, if anything."""
        return self.strategy.memory_layers

    @property
    def prompt_for_model(self) -> str | None:
        """What a model is asked for summaries; None: the summarizer's own prompt."""
        return self.strategy.prompt_for_model

    @property
    def model_for_summaries(self) -> str | None:
        """The model to ask; None: the summarizer's own."""
        return self.strategy.model_for_summaries

    @property
    def history_beside(self) -> Limits | None:
        """Limits of an abridged history that each summary has beside its text."""
        return self.strategy.history_beside

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return self.strategy.pins_budget

    @property
    def api_parameters(self) -> JsonObject:
        """What a request carries beside its messages, for the API to act on."""
        return self.strategy.api_parameters

    @property
    def sends_back(self) -> frozenset[str]:
        """The types of the provider's own blocks that a request gives back to it."""
        return self.strategy.sends_back

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        return self.strategy.begin()

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take in the event, if the agent sees it."""
        seen = self.sees(envelope)
        if seen is not None:
            self.strategy.take(builder, seen)

    def judged(self, outline: Outline) -> Outline:
        """The outline as a view that is made of it now shows it."""
        return self.strategy.judged(outline)

    def show(self, outline: Outline) -> Shown:
        """What is sent raw."""
        return self.strategy.show(outline)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next compaction that is due of what the agent sees."""
        return self._read(self.strategy.decide(outline, now))

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """What else is due in the same check."""
        return self._read(self.strategy.follow_up(outline, now))

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        """When a compaction may become due because time passes."""
        return self.strategy.due_at(outline, now)

    def _read(self, due: Compaction | None) -> Compaction | None:
        return None if due is None else due.read_by(self.agent)


def reader_of(recorded: StrategyRef) -> str | None:
    """Whose view a recorded strategy is of, if it is one agent's."""
    agent = recorded.params.get("agent")
    named = recorded.name == ForAgent.name and isinstance(agent, str)
    return str(agent) if named else None


def for_one(agent: str, strategy: Strategy) -> ForAgent:
    """The strategy for that agent; one that is for an agent already is taken anew.

    Raises UnknownStrategy if the agent has no name.
    """
    if not isinstance(agent, str) or not agent:
        raise UnknownStrategy("for_agent needs the agent's name, as a text")
    if isinstance(strategy, ForAgent):
        strategy = strategy.strategy
    return ForAgent(agent=agent, strategy=strategy)
