"""What every strategy is: a frozen value that decides and asks the world nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refold.domain.canonical import canonical, digest
from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject, StrategyRef
from refold.projections.context.abridged import Limits
from refold.projections.context.building import OutlineBuilder
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.readers import seen_by
from refold.projections.context.retries import LONGEST_RETRY_SEC, too_soon
from refold.projections.context.shown import Shown, SummaryForm, everything

if TYPE_CHECKING:
    from refold.projections.context.layers import Layers


class Strategy(BaseModel):
    """A rule for contexts: its name, its version, and its parameters as fields.

    ``needs`` says how much its outlines know; ``summaries_as`` how its summaries are
    told.  ``stable_prefix`` is whether its views only grow at their end
    between two compactions.  Whatever changes a byte of a view is another version.

    Raises UnknownStrategy for a parameter it does not have or that is out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[Detail] = "turns"
    summaries_as: ClassVar[SummaryForm] = "text"
    stable_prefix: ClassVar[bool] = True
    # Parameters that came later: where they are at their default they are left out of
    # the fingerprint, so that it stays what it was before there were any.
    came_later: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **params: Any) -> None:
        try:
            super().__init__(**params)
        except ValidationError as error:
            raise UnknownStrategy(_explain(type(self), error)) from None
        try:
            canonical(self.params)
        except TypeError:
            raise UnknownStrategy(
                f"strategy {self.name}: a number has more than 64 bits"
            ) from None

    @property
    def params(self) -> JsonObject:
        """The parameters as JSON, defaults included (but for those that came later)."""
        fields = type(self).model_fields
        off = {
            name
            for name in self.came_later
            if getattr(self, name) == fields[name].default
        }
        return self.model_dump(mode="json", exclude=off)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical JSON of name, version and parameters."""
        return digest(
            {"name": self.name, "version": self.version, "params": self.params}
        )

    @property
    def ref(self) -> StrategyRef:
        """The strategy as summaries and requests record it."""
        return StrategyRef(
            name=self.name,
            version=self.version,
            params=self.params,
            fingerprint=self.fingerprint,
        )

    @property
    def told_as(self) -> SummaryForm:
        """How its summaries are told."""
        return self.summaries_as

    @property
    def acknowledgement(self) -> str:
        """What the agent answers to its summaries, where they are acknowledged."""
        return "I have read what happened before and go on from there."

    @property
    def prompt_for_model(self) -> str | None:
        """What a model is asked for summaries; None: the summarizer's own prompt."""
        return None

    @property
    def model_for_summaries(self) -> str | None:
        """The model to ask; None: the summarizer's own."""
        return None

    @property
    def history_beside(self) -> Limits | None:
        """Limits of an abridged history that each summary has beside its text."""
        return None

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return 4_000

    @property
    def memory_layers(self) -> Layers | None:
        """What it shows before the summaries of the session, if anything."""
        return None

    @property
    def sends_back(self) -> frozenset[str]:
        """The types of the provider's own blocks that a request gives back to it."""
        return frozenset()

    @property
    def reader(self) -> str | None:
        """Whose view it is, if it is one agent's of several."""
        return None

    @property
    def api_parameters(self) -> JsonObject:
        """What a request carries beside its messages, for the API to act on."""
        return {}

    def sees(self, envelope: Envelope) -> Envelope | None:
        """The event as its views show it, or None if they do not."""
        return seen_by(self.reader, envelope)

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        return Outline(detail=self.needs)

    @abstractmethod
    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next compaction that is due, or None.

        Asked again after each compaction, it ends with None once nothing is due.
        """

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take the next event of the main stream into an outline under way.

        A strategy that remembers more, or need not remember all, does it here.
        """
        builder.take(envelope)
        self.remember(builder, envelope)

    def remember(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Keep what its layers keep of an event that was taken in."""
        layers = self.memory_layers
        if layers is not None:
            builder.memory = layers.kept(builder.memory, envelope)

    @final
    def fold(self, outline: Outline, envelope: Envelope) -> Outline:
        """The outline after this event of the main stream."""
        return self.read(outline, (envelope,))

    @final
    def read(self, outline: Outline, envelopes: Iterable[Envelope]) -> Outline:
        """The outline after these events of the main stream, oldest first."""
        builder = OutlineBuilder(outline)
        for envelope in envelopes:
            self.take(builder, envelope)
        return builder.outline()

    def judged(self, outline: Outline) -> Outline:
        """The outline as a view that is made of it now shows it.

        A strategy that takes something out of views, and records nothing of it, judges
        here what is due.
        """
        return outline

    def show(self, outline: Outline) -> Shown:
        """What is sent raw: all that no summary stands for, if it says no other."""
        return everything(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # most have none
        """When a compaction may become due because time passes, or None."""
        return None

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # most have none
        """What else is due in the same check, after a compaction took effect."""
        return None


class Pinning(Strategy):
    """A strategy that says how much pinned exchanges may take.

    pin_tokens: so many tokens, behind the summaries.
    """

    pin_tokens: int = Field(default=4_000, ge=0)

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return self.pin_tokens


def held_back(
    outline: Outline, now: datetime, *, at_most: float = LONGEST_RETRY_SEC
) -> bool:
    """Whether it is too soon after a failed attempt to try again.

    After n failures in a row the next attempt comes 30 s × 2ⁿ⁻¹ after the last, at
    most ``at_most`` seconds after it.
    """
    return too_soon(outline.failures, outline.failed_at, now, at_most=at_most)


def _explain(kind: type[Strategy], error: ValidationError) -> str:
    problems = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            own = sorted(kind.model_fields, key=lambda n: n not in kind.__annotations__)
            known = ", ".join(own) or "none"
            problems.append(f"there is no parameter {where!r} (there is: {known})")
        elif detail["type"] == "value_error":
            problems.append(str(detail["ctx"]["error"]))
        else:
            problems.append(f"{where}: {detail['msg']}, got {detail['input']!r}")
    return f"strategy {kind.name}: " + "; ".join(problems)
