"""One log under several strategies: what each would have sent, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from refold.domain.envelope import Envelope
from refold.projections.compare.elements import Element, Elements, Shown
from refold.projections.compare.moments import Moment, moments
from refold.projections.compare.outcome import Outcome, Sent
from refold.projections.compare.walk import Step, Walk
from refold.projections.context.abridged import Abridged
from refold.projections.context.extras import NO_EXTRAS, Extras
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer
from refold.projections.models import ModelInfo


@dataclass(slots=True)
class Comparison:
    """Walks one log under strategy after strategy.

    model: whose prices and cache rules count.
    """

    events: Sequence[Envelope]
    model: ModelInfo
    summarizer: Summarizer = field(default_factory=Abridged)
    extras: Extras = NO_EXTRAS
    _elements: Elements = field(default_factory=Elements)
    _moments: list[Moment] = field(init=False)

    def __post_init__(self) -> None:
        self._moments = moments(self.events)

    def under(
        self,
        strategy: Strategy,
        *,
        label: str | None = None,
        recorded: Sequence[Envelope] | None = None,
    ) -> Outcome:
        """The log under ``strategy``; nothing is written, and no model is asked.

        recorded: summaries that are in the log, to be used instead of new ones.
        """
        walk = Walk(
            strategy,
            self.events,
            self._moments,
            self.summarizer,
            recorded,
            self.extras,
            self._elements,
        )
        window = self.extras.window_tokens
        sent = tuple(_sent(walk.steps(), self.model, window))
        return Outcome(
            label or strategy.name,
            strategy.name,
            strategy.fingerprint,
            self.model,
            sent,
            tuple(walk.done),
        )


def _sent(steps: Iterator[Step], model: ModelInfo, window: int) -> Iterator[Sent]:
    shown, before = Shown(), None
    for step in steps:
        earlier = shown.elements
        same = shown.move(step.request.elements)
        cached = 0
        if before is not None:
            gap = (step.at - before.at).total_seconds()
            cached = _cached(before.request.tokens, earlier, same, gap, model)
        yield _counted(step, cached, shown, model, window)
        before = step


def _cached(
    tokens: int, earlier: Sequence[Element], same: int, gap: float, model: ModelInfo
) -> int:
    """How much of a request of so many tokens the next one finds in the cache.

    Tokens are known of whole requests: of what was kept, its share of the weight.
    """
    if tokens < model.cache_min_tokens or gap > model.cache_ttl_sec:
        return 0
    weight = sum(element.weight for element in earlier)
    kept = sum(element.weight for element in earlier[:same])
    cached = tokens * kept // weight if weight else 0
    return cached if cached >= model.cache_min_tokens else 0


def _counted(
    step: Step, cached: int, shown: Shown, model: ModelInfo, window: int
) -> Sent:
    tokens, used = step.request.tokens, step.moment.used
    cached = min(cached, tokens)
    rest = tokens - cached
    written = rest if tokens >= model.cache_min_tokens else 0
    return Sent(
        seq=step.moment.seq,
        at=step.at,
        tokens=tokens,
        cached=cached,
        written=written,
        uncached=rest - written,
        used=len(used),
        found=sum(map(shown.holds, used)),
        over_budget=max(0, tokens - window),
    )
