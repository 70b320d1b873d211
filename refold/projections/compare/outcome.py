"""What a strategy made of a log: each request, and the sums over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from refold.domain.envelope import Envelope
from refold.projections.compare.walk import (
    Done,
    Element,
    Elements,
    Moment,
    Step,
    Walk,
    moments,
    stands_in,
)
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import NO_EXTRAS, Extras
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.models import ModelInfo


class Sent(NamedTuple):
    """One request: its tokens, split as a prompt cache would, and what it refers to.

    seq:         the first event that answered it.
    cached:      tokens read from the cache; ``written`` are written to it, ``uncached``
                 neither.
    used, found: identifiers that the answer took from earlier in the log, and those of
                 them that the request showed.
    over_budget: tokens over the model's window.
    """

    seq: int
    at: datetime
    tokens: int
    cached: int
    written: int
    uncached: int
    used: int
    found: int
    over_budget: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A log under one strategy.  Sums are over its requests."""

    label: str
    name: str
    fingerprint: str
    model: ModelInfo
    sent: tuple[Sent, ...] = field(repr=False)
    done: tuple[Done, ...] = field(repr=False)

    @property
    def tokens_total(self) -> int:
        """Tokens sent."""
        return sum(request.tokens for request in self.sent)

    @property
    def tokens_peak(self) -> int:
        """Tokens of the largest request."""
        return max((request.tokens for request in self.sent), default=0)

    @property
    def cached(self) -> int:
        """Tokens read from the prompt cache."""
        return sum(request.cached for request in self.sent)

    @property
    def cache_writes(self) -> int:
        """Tokens written to the prompt cache."""
        return sum(request.written for request in self.sent)

    @property
    def uncached(self) -> int:
        """Tokens neither read from the cache nor written to it."""
        return sum(request.uncached for request in self.sent)

    @property
    def over_budget(self) -> int:
        """By how many tokens the largest request is over the window."""
        return max((request.over_budget for request in self.sent), default=0)

    @property
    def compactions(self) -> tuple[Done, ...]:
        """What took effect."""
        return tuple(done for done in self.done if not done.failed)

    @property
    def summarizer_tokens(self) -> int:
        """What the summarizer read and wrote, failed attempts included."""
        return sum(done.read + done.written for done in self.done)

    @property
    def references(self) -> int:
        """How often an answer used an identifier from earlier in the log."""
        return sum(request.used for request in self.sent)

    @property
    def reference_recall(self) -> float | None:
        """The share of them that the request showed; None if there were none."""
        found = sum(request.found for request in self.sent)
        return found / self.references if self.references else None

    @property
    def cost(self) -> float | None:
        """US dollars for all prompts; None if the model's prices are not known.

        Answers are left out: they are the same under every strategy.
        """
        prices = self.model.prices
        if prices is None:
            return None
        return sum(
            prices.cost(uncached=one.uncached, written=one.written, read=one.cached)
            for one in self.sent
        )

    @property
    def summarizer_cost(self) -> float | None:
        """US dollars if this model, and no cache, did the summarizer's work."""
        prices = self.model.prices
        if prices is None:
            return None
        return sum(
            prices.cost(uncached=one.read, output=one.written) for one in self.done
        )

    def to_json(self) -> dict[str, Any]:
        """The outcome as ``refold compare --json`` shows it."""
        return {
            "strategy": self.label,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "requests": len(self.sent),
            "tokens_total": self.tokens_total,
            "tokens_peak": self.tokens_peak,
            "over_budget": self.over_budget,
            "cached": self.cached,
            "cache_writes": self.cache_writes,
            "uncached": self.uncached,
            "compactions": len(self.compactions),
            "compacted_before": [done.request for done in self.compactions],
            "summarizer_calls": len(self.done),
            "summarizer_tokens": self.summarizer_tokens,
            "model": self.model.name,
            "cost": self.cost,
            "summarizer_cost": self.summarizer_cost,
            "references": self.references,
            "reference_recall": self.reference_recall,
            "per_request": [_request(one) for one in self.sent],
        }


def _request(one: Sent) -> dict[str, Any]:
    return {**one._asdict(), "at": one.at.isoformat()}


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


@dataclass(slots=True)
class Shown:
    """The elements that are shown now; only what changes is counted anew."""

    elements: list[Element] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def move(self, elements: list[Element]) -> int:
        """Show these elements now; returns how many of those before they begin with."""
        same = shared(self.elements, elements)
        for gone in self.elements[same:]:
            self.names.subtract(gone.names)
        for new in elements[same:]:
            self.names.update(new.names)
        self.elements = elements
        return same

    def holds(self, name: str) -> bool:
        """Whether ``name`` is in what is shown: as an identifier, or as plain words."""
        if self.names[name] > 0:
            return True
        texts = (text for element in self.elements for text in element.texts)
        return any(stands_in(text, name) for text in texts)


def shared(before: list[Element], after: list[Element]) -> int:
    """How many elements both begin with."""
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one is not other and one.key != other.key:
            return index
    return min(len(before), len(after))


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
