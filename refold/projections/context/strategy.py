"""What every strategy is: a frozen value that decides and asks the world nothing."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from refold.domain.canonical import canonical, digest
from refold.domain.envelope import microseconds
from refold.domain.errors import UnknownStrategy
from refold.domain.events import JsonObject, StrategyRef
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline

FIRST_RETRY_SEC: Final = 30
LONGEST_RETRY_SEC: Final = 900


class Strategy(BaseModel):
    """A rule for contexts: its name, its version, and its parameters as fields.

    ``needs_turns`` is False for a strategy that decides without knowing turns, open
    exchanges and pins.  ``stable_prefix`` is whether its views only grow at their end
    between two compactions.  Whatever changes a byte of a view is another version.

    Raises UnknownStrategy for a parameter it does not have or that is out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs_turns: ClassVar[bool] = True
    stable_prefix: ClassVar[bool] = True

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
        """The parameters as JSON, defaults included."""
        return self.model_dump(mode="json")

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
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return 4_000

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        return Outline(detailed=self.needs_turns)

    @abstractmethod
    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next compaction that is due, or None.

        Asked again after each compaction, it ends with None once nothing is due.
        """

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # most have none
        """What else is due in the same check, after a compaction took effect."""
        return None


def held_back(
    outline: Outline, now: datetime, *, at_most: float = LONGEST_RETRY_SEC
) -> bool:
    """Whether it is too soon after a failed attempt to try again.

    After n failures in a row the next attempt comes 30 s × 2ⁿ⁻¹ after the last, at
    most ``at_most`` seconds after it.
    """
    if not outline.failures or outline.failed_at is None:
        return False
    wait = min(at_most, FIRST_RETRY_SEC * 2.0 ** min(outline.failures - 1, 60))
    return 0 <= microseconds(now) - outline.failed_at < wait * 1_000_000


def _explain(kind: type[Strategy], error: ValidationError) -> str:
    problems = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields) or "none"
            problems.append(f"there is no parameter {where!r} (there is: {known})")
        else:
            problems.append(f"{where}: {detail['msg']}, got {detail['input']!r}")
    return f"strategy {kind.name}: " + "; ".join(problems)
