"""Strategies that hold another: a pipeline before it, or one agent's share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject, StrategyRef
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategies import tool_clearing
from refold.projections.context.strategy import Manner, Shown, Strategy


class _Holding(Strategy):
    """Leaves to the strategy that it holds whatever it does not say itself."""

    @property
    def held(self) -> Strategy:
        raise NotImplementedError

    def made(self, due: Compaction | None) -> Compaction | None:
        return due

    @property
    def manner(self) -> Manner:
        return self.held.manner

    @property
    def compacts(self) -> bool:
        return self.held.compacts

    def begin(self) -> Outline:
        return self.held.begin()

    def judged(self, outline: Outline) -> Outline:
        return self.held.judged(outline)

    def show(self, outline: Outline) -> Shown:
        return self.held.show(self.judged(outline))

    def waits_for(self, outline: Outline) -> str:
        return self.held.waits_for(self.judged(outline))

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        return self.made(self.held.decide(self.judged(outline), now))

    def press(self, outline: Outline, over: int, most: int) -> Compaction | None:
        return self.made(self.held.press(self.judged(outline), over, most))

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        return self.made(self.held.follow_up(self.judged(outline), now))

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        return self.held.due_at(self.judged(outline), now)


class Pipeline(_Holding):
    """Clear old results first; summarise if that was not enough.

    first: the clearing; its ``trigger_input_tokens`` are those of the results shown.
    then:  another strategy, which sees what is left.
    """

    name: ClassVar[str] = "pipeline"
    needs: ClassVar[Detail] = "units"

    first: tool_clearing.ToolClearing
    then: SerializeAsAny[Strategy]

    @model_validator(mode="after")
    def _fit(self) -> Pipeline:
        if isinstance(self.then, tool_clearing.ToolClearing | Pipeline):
            raise ValueError("a pipeline clears once, and has no pipeline in it")
        if type(self.then).take is not Strategy.take:
            name = self.then.name
            raise ValueError(f"{name} forgets by itself: it needs no clearing")
        return self

    @property
    def held(self) -> Strategy:
        return self.then

    @property
    def params(self) -> JsonObject:
        """The steps, each with its name, version and parameters."""
        return {"steps": [self.first.definition, self.then.definition]}

    @cached_property
    def clearing(self) -> tool_clearing.ResultClearing:
        """The clearing, judged by what the session alone says."""
        params: dict[str, Any] = dict(self.first.params)
        return tool_clearing.ResultClearing(**params)

    def begin(self) -> Outline:
        return Outline(detail="both" if self.then.needs == "turns" else "units")

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """As clearing does."""
        self.clearing.take(builder, envelope)
        self.remember(builder, envelope)

    def judged(self, outline: Outline) -> Outline:
        """The outline with the results cleared that are due."""
        return self.clearing.judged(outline)

    def show(self, outline: Outline) -> Shown:
        """What the other strategy shows, with old results as stubs."""
        cleared, shown = self.clearing.show(outline), super().show(outline)
        return shown._replace(
            is_cleared=cleared.is_cleared, clears_inputs=cleared.clears_inputs
        )


def of_steps(steps: Sequence[Strategy]) -> Pipeline:
    """The pipeline of tool_clearing and one other.  Raises UnknownStrategy."""
    if len(steps) != 2 or not isinstance(steps[0], tool_clearing.ToolClearing):
        names = "+".join(step.name for step in steps)
        raise UnknownStrategy(f"a pipeline is tool_clearing+ONE other, got {names}")
    return Pipeline(first=steps[0], then=steps[1])


class ForAgent(_Holding):
    """Show what one agent sees, and compact that: each agent has summaries of its own.

    agent:    whose view it is; units.seen_by says what that agent sees.
    strategy: what is done with it.
    """

    name: ClassVar[str] = "for_agent"

    agent: str = Field(min_length=1)
    strategy: SerializeAsAny[Strategy]

    @property
    def held(self) -> Strategy:
        return self.strategy

    @property
    def reader(self) -> str:
        return self.agent

    @property
    def params(self) -> JsonObject:
        """The agent, and its strategy with name, version and parameters."""
        return {"agent": self.agent, "strategy": self.strategy.definition}

    @property
    def stable_prefix(self) -> bool:  # type: ignore[override]  # here it depends
        return self.strategy.stable_prefix

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take in the event, if the agent sees it."""
        seen = self.sees(envelope)
        if seen is not None:
            self.strategy.take(builder, seen)

    def made(self, due: Compaction | None) -> Compaction | None:
        """For this agent; None if the strategy never summarises for it."""
        return replace(due, reader=self.agent) if due and self.compacts else None

    @property
    def compacts(self) -> bool:
        return self.strategy.compacts and not self._left_alone

    def waits_for(self, outline: Outline) -> str:
        if self._left_alone:
            return f"{self.strategy.name} never summarises for this agent"
        return super().waits_for(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        return None if self._left_alone else super().due_at(outline, now)

    @property
    def _left_alone(self) -> bool:
        return self.agent in getattr(self.strategy, "exclude_agents", ())


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
