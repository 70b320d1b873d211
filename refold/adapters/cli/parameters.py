"""A strategy and its parameters in the output of commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.adapters.cli.output import Part, Shown, shown
from refold.projections.context.strategies import spec

if TYPE_CHECKING:
    from refold.projections.context.strategy import Strategy


def strategy_parts(strategy: Strategy) -> list[Part]:
    """Return the name of a strategy, and the parameters that are not the defaults."""
    if strategy.name == spec.PIPELINE:
        steps: list[Part] = []
        definitions: Any = strategy.params["steps"]
        for step in definitions:
            if steps:
                steps.append(" + ")
            steps += strategy_parts(spec.parse(step))
        return steps
    name = (strategy.name, "bold")
    changed = changed_parameters(strategy)
    if not changed:
        return [name]
    return [name, "  ", parameters_text(changed)]


def changed_parameters(strategy: Strategy) -> dict[str, Any]:
    """Return the parameters of a strategy that are not the defaults."""
    fields = type(strategy).model_fields
    changed: dict[str, Any] = {}
    for name, value in strategy.params.items():
        field = fields.get(name)
        if field is not None:
            default = field.get_default(call_default_factory=True)
            if getattr(strategy, name) == default:
                continue
        changed[name] = value
    return changed


def parameters_text(params: Mapping[str, Any]) -> Shown:
    """Return parameters with their values, as ``full_turns=2, cached_turns=2``."""
    texts = [f"{name}={json.dumps(value)}" for name, value in params.items()]
    return shown(", ".join(texts))
