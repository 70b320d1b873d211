"""What if: a session's log under several strategies, in memory; nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

from refold import config
from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidConfiguration, RefoldError, UnknownModel
from refold.domain.events import AgentResponse
from refold.projections import models
from refold.projections.compare.comparing import Comparison
from refold.projections.compare.outcome import Outcome
from refold.projections.context import spec
from refold.projections.context.abridged import Abridged
from refold.projections.context.extras import NO_EXTRAS, Extras
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer
from refold.projections.models import ModelInfo
from refold.store.choosing import chosen
from refold.store.filling import with_blobs
from refold.store.viewing import Viewer

DEFAULT_MODEL: Final = "claude-sonnet-5-5"


class Skipped(NamedTuple):
    """A strategy that could not be run with its defaults, and why."""

    strategy: str
    why: str


class Compared(NamedTuple):
    """A log under strategies, in their order, and those left out.

    model:  whose prices and cache rules counted.
    events: how many the log has.
    """

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Skipped, ...]
    model: ModelInfo
    events: int


class How(TypedDict, total=False):
    """How a log is compared.

    model:      whose prices, cache rules and window count; left out, the prices and
                cache rules of the model that answered last, or of ``DEFAULT_MODEL``,
                and the window that contexts have without a model.
    prices:     a TOML file with a table [models] that stands before all others.
    recorded:   whether the summaries that are in the log are used, from where they were
                decided, and no others made.
    summarizer: what writes those that are made, in memory; left out, ``abridged``.
    """

    model: str | None
    prices: str | os.PathLike[str] | None
    recorded: bool
    summarizer: Summarizer | None


def compare(
    viewer: Viewer, strategies: Iterable[str | Strategy] | None, how: How
) -> Compared:
    """The session's log under ``strategies``, or under all there are.

    Raises UnknownStrategy, UnknownModel, InvalidConfiguration.
    """
    _know_models(how.get("prices"))
    named = None if strategies is None else list(_labelled(strategies))
    model, recorded = how.get("model"), how.get("recorded", False)
    known = models.model_info(model) if model else None
    events = [with_blobs(viewer.log, event) for event in viewer.history.events()]
    comparison = Comparison(
        events,
        known or _model_of(events),
        how.get("summarizer") or Abridged(),
        Extras(window_tokens=known.context_tokens) if known else NO_EXTRAS,
    )
    if named is None:
        return _all(comparison, viewer, recorded=recorded)
    outcomes = (
        _under(comparison, viewer, one, label, recorded=recorded)
        for label, one in named
    )
    return Compared(tuple(outcomes), (), comparison.model, len(events))


def _know_models(prices: str | os.PathLike[str] | None) -> None:
    """Make the models of the file ``prices`` known."""
    if prices is None:
        return
    table = config.read_toml(Path(prices)).get("models")
    if not isinstance(table, dict):
        raise InvalidConfiguration(f"{prices} has no table [models]")
    models.register_models(table, where=os.fspath(prices))


def _all(comparison: Comparison, viewer: Viewer, *, recorded: bool) -> Compared:
    """Every registered strategy with its defaults; what cannot run is left out."""
    outcomes, skipped = [], []
    for name in spec.STRATEGIES:
        try:
            one = _default(name, comparison.model)
            outcomes.append(_under(comparison, viewer, one, name, recorded=recorded))
        except RefoldError as error:
            skipped.append(Skipped(name, str(error)))
    return Compared(
        tuple(outcomes), tuple(skipped), comparison.model, len(comparison.events)
    )


def _under(
    comparison: Comparison,
    viewer: Viewer,
    strategy: Strategy,
    label: str,
    *,
    recorded: bool,
) -> Outcome:
    if not recorded:
        return comparison.under(strategy, label=label)
    stream = viewer.stream._replace(stream=strategy.fingerprint)
    found = viewer.log.read(stream)
    return comparison.under(strategy, label=label, recorded=found)


def _default(name: str, model: ModelInfo) -> Strategy:
    """The strategy as configured; for the compared model if it has to know one."""
    try:
        return chosen(name, None)
    except RefoldError:
        if "model" not in spec.STRATEGIES[name].model_fields:
            raise
        return spec.strategy(name, {"model": model.name})


def _labelled(
    strategies: Iterable[str | Strategy],
) -> Iterator[tuple[str, Strategy]]:
    for given in strategies:
        strategy = chosen(given, None)
        yield given if isinstance(given, str) else _label(strategy), strategy


def _label(strategy: Strategy) -> str:
    """A short name for a strategy: its own, and the parameters it was given."""
    given = (
        f"{name}={getattr(strategy, name)}"
        for name in type(strategy).model_fields
        if name in strategy.model_fields_set
    )
    params = ",".join(given)
    return f"{strategy.name}:{params}" if params else strategy.name


def _model_of(events: Sequence[Envelope]) -> ModelInfo:
    """The model that answered last, if its prices are known; else the default."""
    answers = (e for e in reversed(events) if isinstance(e.payload, AgentResponse))
    named = next((e.meta.model for e in answers if e.meta.model), None)
    try:
        info = models.model_info(named or DEFAULT_MODEL)
    except UnknownModel:
        info = models.model_info(DEFAULT_MODEL)
    return info if info.prices else models.model_info(DEFAULT_MODEL)
