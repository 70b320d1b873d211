"""Strategies around another strategy: a pipeline, or the view of one agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, cast

from pydantic import Field, SerializeAsAny, model_validator

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject, StrategyRef
from refold.domain.locks import computed_once
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategies import tool_clearing
from refold.projections.context.strategy import (
    Manner,
    Shown,
    Strategy,
    under_rules,
)


class _Wrapper(Strategy):
    """Delegates to an inner strategy, with the judged outline."""

    @property
    def inner(self) -> Strategy:
        raise NotImplementedError

    def adapted(self, decision: Compaction | None) -> Compaction | None:
        """Return a decision of the inner strategy as this strategy makes it."""
        return decision

    @property
    def rules(self) -> int:  # type: ignore[override]  # the inner strategy decides
        return self.inner.rules

    @property
    def names_repetitions(self) -> bool:  # type: ignore[override]  # as rules
        return self.inner.names_repetitions

    @property
    def manner(self) -> Manner:
        return self.inner.manner

    @property
    def compacts(self) -> bool:
        return self.inner.compacts

    @property
    def protected_budget(self) -> int:
        return self.inner.protected_budget

    def begin(self) -> Outline:
        return self.inner.begin()

    def as_shown(self, outline: Outline) -> Outline:
        return self.inner.as_shown(outline)

    def show(self, outline: Outline) -> Shown:
        return self.inner.show(self.as_shown(outline))

    def waits_for(self, outline: Outline) -> str:
        return self.inner.waits_for(self.as_shown(outline))

    def over_window(self, tokens: int) -> int:
        return self.inner.over_window(tokens)

    def over_limits(self, tokens: int, raw_tokens: int) -> int:
        return self.inner.over_limits(tokens, raw_tokens)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        return self.adapted(self.inner.decide(self.as_shown(outline), now))

    def press(self, outline: Outline, over: int, most: int) -> Compaction | None:
        return self.adapted(self.inner.press(self.as_shown(outline), over, most))

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        return self.adapted(self.inner.follow_up(self.as_shown(outline), now))

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        return self.inner.due_at(self.as_shown(outline), now)


class Pipeline(_Wrapper):
    """Clear old results first, and summarize if that is not enough.

    first: the clearing.  Its ``trigger_input_tokens`` count the results that are shown.
    then:  another strategy, which gets the outline without the cleared results.
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
    def inner(self) -> Strategy:
        return self.then

    @property
    def params(self) -> JsonObject:
        """The steps, each with its name, version, and parameters."""
        return {"steps": [self.first.definition, self.then.definition]}

    @computed_once
    def clearing(self) -> tool_clearing.ResultClearing:
        """The clearing, triggered by the session alone and not by its summaries."""
        params: dict[str, Any] = dict(self.first.params)
        kind: type[Strategy] = tool_clearing.ResultClearing
        if self.first.rules != kind.rules:
            kind = under_rules(kind, self.first.version, self.first.rules)
        return cast("tool_clearing.ResultClearing", kind(**params))

    def begin(self) -> Outline:
        return self.then.outline("both" if self.then.needs == "turns" else "units")

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take an event as the clearing does."""
        self.clearing.take(builder, envelope)
        self.remember(builder, envelope)

    def as_shown(self, outline: Outline) -> Outline:
        """Return the outline with old results cleared if that is needed."""
        return self.clearing.as_shown(outline)

    def show(self, outline: Outline) -> Shown:
        """Show what the other strategy shows, with old results as stubs."""
        cleared = self.clearing.show(outline)
        shown = super().show(outline)
        return shown._replace(
            is_cleared=cleared.is_cleared, clears_inputs=cleared.clears_inputs
        )


def of_steps(steps: Sequence[Strategy]) -> Pipeline:
    """Return the pipeline of these steps: tool_clearing, then one other strategy.

    Raises UnknownStrategy for other steps.
    """
    if len(steps) != 2 or not isinstance(steps[0], tool_clearing.ToolClearing):
        names = "+".join(step.name for step in steps)
        raise UnknownStrategy(f"a pipeline is tool_clearing+ONE other, got {names}")
    return Pipeline(first=steps[0], then=steps[1])


class ForAgent(_Wrapper):
    """Show and compact what one agent sees; each agent has its own summaries.

    agent:    the name of the agent; ``units.seen_by`` says what an agent sees.
    strategy: the strategy for these events.
    """

    name: ClassVar[str] = "for_agent"

    agent: str = Field(min_length=1)
    strategy: SerializeAsAny[Strategy]

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def reader(self) -> str:
        return self.agent

    @property
    def params(self) -> JsonObject:
        """The agent, and its strategy with name, version, and parameters."""
        return {"agent": self.agent, "strategy": self.strategy.definition}

    @property
    def stable_prefix(self) -> bool:  # type: ignore[override]  # the inner one decides
        return self.strategy.stable_prefix

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take an event if the agent sees it."""
        visible = self.sees(envelope)
        if visible is not None:
            self.strategy.take(builder, visible)

    def adapted(self, decision: Compaction | None) -> Compaction | None:
        """Return the decision for this agent, or None if it never has summaries."""
        if decision is None or not self.compacts:
            return None
        return replace(decision, reader=self.agent)

    @property
    def compacts(self) -> bool:
        return self.strategy.compacts and not self._is_excluded

    def waits_for(self, outline: Outline) -> str:
        if self._is_excluded:
            return f"{self.strategy.name} never summarises for this agent"
        return super().waits_for(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        if self._is_excluded:
            return None
        return super().due_at(outline, now)

    @property
    def _is_excluded(self) -> bool:
        """Whether the strategy makes no summaries for this agent."""
        return self.agent in getattr(self.strategy, "exclude_agents", ())


def reader_of(recorded: StrategyRef) -> str | None:
    """Return the agent whose view a recorded strategy is, or None."""
    agent = recorded.params.get("agent")
    if recorded.name == ForAgent.name and isinstance(agent, str):
        return agent
    return None


def for_one(agent: str, strategy: Strategy) -> ForAgent:
    """Return the strategy for one agent.

    The agent of a strategy that already has one is replaced.

    Raises UnknownStrategy if the agent has no name.
    """
    if not isinstance(agent, str) or not agent:
        raise UnknownStrategy("for_agent needs the agent's name, as a text")
    if isinstance(strategy, ForAgent):
        strategy = strategy.strategy
    return ForAgent(agent=agent, strategy=strategy)
