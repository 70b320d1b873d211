"""Pipelines: strategies one after another, as in ``tool_clearing+history_summary``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from pydantic import SerializeAsAny, model_validator

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject
from refold.projections.context.abridged import Limits
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.strategies.tool_clearing import (
    ResultClearing,
    ToolClearing,
)
from refold.projections.context.strategy import Layers, Shown, Strategy, SummaryForm


class Pipeline(Strategy):
    """Clear old results first; summarise if that was not enough.

    first: the clearing; its ``trigger_input_tokens`` are those of the results shown.
    then:  another strategy, which sees what is left.
    """

    name: ClassVar[str] = "pipeline"
    needs: ClassVar[Detail] = "units"

    first: ToolClearing
    then: SerializeAsAny[Strategy]

    @model_validator(mode="after")
    def _fit(self) -> Pipeline:
        if isinstance(self.then, ToolClearing | Pipeline):
            raise ValueError("a pipeline clears once, and has no pipeline in it")
        if type(self.then).take is not Strategy.take:
            raise ValueError(
                f"{self.then.name} forgets by itself: it needs no clearing"
            )
        return self

    @property
    def params(self) -> JsonObject:
        """The steps, each with its name, version and parameters."""
        return {"steps": [_step(self.first), _step(self.then)]}

    @cached_property
    def clearing(self) -> ResultClearing:
        """The clearing, judged by what the session alone says."""
        params: dict[str, Any] = dict(self.first.params)
        return ResultClearing(**params)

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return self.then.pins_budget

    @property
    def acknowledgement(self) -> str:
        """What the agent answers to its summaries, where they are acknowledged."""
        return self.then.acknowledgement

    @property
    def prompt_for_model(self) -> str | None:
        """What a model is asked for summaries; None: the summarizer's own prompt."""
        return self.then.prompt_for_model

    @property
    def model_for_summaries(self) -> str | None:
        """The model to ask; None: the summarizer's own."""
        return self.then.model_for_summaries

    @property
    def memory_layers(self) -> Layers | None:
        """What it shows before the summaries of the session, if anything."""
        return self.then.memory_layers

    @property
    def history_beside(self) -> Limits | None:
        """Limits of an abridged history that each summary has beside its text."""
        return self.then.history_beside

    @property
    def sends_back(self) -> frozenset[str]:
        """The types of the provider's own blocks that a request gives back to it."""
        return self.then.sends_back

    @property
    def api_parameters(self) -> JsonObject:
        """What a request carries beside its messages, for the API to act on."""
        return self.then.api_parameters

    @property
    def told_as(self) -> SummaryForm:
        """How its summaries are told."""
        return self.then.told_as

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        by_turn = self.then.needs == "turns"
        return Outline(detail="both" if by_turn else "units")

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """As clearing does."""
        self.clearing.take(builder, envelope)
        self.remember(builder, envelope)

    def judged(self, outline: Outline) -> Outline:
        """The outline with the results cleared that are due."""
        return self.clearing.judged(outline)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """What is due of what clearing leaves."""
        return self.then.decide(self.judged(outline), now)

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:
        """What else is due in the same check."""
        return self.then.follow_up(self.judged(outline), now)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        """When a compaction may become due because time passes."""
        return self.then.due_at(self.judged(outline), now)

    def show(self, outline: Outline) -> Shown:
        """What the other strategy shows, with old results as stubs."""
        cleared = self.clearing.show(outline)
        shown = self.then.show(self.judged(outline))
        return shown._replace(cleared=cleared.cleared, inputs=cleared.inputs)


def of_steps(steps: Sequence[Strategy]) -> Pipeline:
    """The pipeline of these steps.

    Raises UnknownStrategy if it is not ``tool_clearing`` and one other strategy.
    """
    if len(steps) != 2 or not isinstance(steps[0], ToolClearing):
        names = "+".join(step.name for step in steps)
        raise UnknownStrategy(f"a pipeline is tool_clearing+ONE other, got {names}")
    return Pipeline(first=steps[0], then=steps[1])


def _step(one: Strategy) -> JsonObject:
    return {"name": one.name, "version": one.version, "params": one.params}
