"""Which strategy a call means: argument, environment, settings, default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from refold import config
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import Request
from refold.projections.context import spec, turn_window
from refold.projections.context.for_agent import ForAgent, for_one
from refold.projections.context.keep_all import KeepAll
from refold.projections.context.pipeline import of_steps
from refold.projections.context.strategy import Strategy


def chosen(given: str | Strategy | None, last: Request | None) -> Strategy:
    """The strategy that ``given`` names.

    None is that of the last recorded request, else the settings file's, else
    everything raw.  ``@file.toml`` names a file.

    Raises UnknownStrategy, InvalidConfiguration.
    """
    if isinstance(given, Strategy):
        return given
    if given is None and last is not None:
        return spec.parse(last.strategy.model_dump())
    settings = config.settings()
    if given is None:
        given = settings.get("strategy")
        if given is None:
            return KeepAll()
        if not isinstance(given, str):
            raise InvalidConfiguration("[context] strategy must be a text")
    return _configured(given, settings)


def for_agent(agent: str, strategy: str | Strategy | None = None) -> Strategy:
    """``strategy`` as one of several agents in a session is shown it.

    Left out, it is the settings file's, else everything raw.
    """
    return for_one(agent, chosen(strategy, None))


def _configured(given: str, settings: dict[str, Any]) -> Strategy:
    if given.startswith("@"):
        return spec.parse(config.read_toml(Path(given[1:])))
    steps = spec.split(given)
    if len(steps) > 1:
        return of_steps([_configured(step, settings) for step in steps])
    name, params = spec.read(given)
    if name == ForAgent.name:
        return for_agent(params.pop("agent", ""), params.pop("strategy", None))
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfiguration(f"[context] {name} must be a table")
    if name == turn_window.TurnWindow.name:
        return turn_window.from_settings(params, os.environ, table)
    return spec.strategy(name, {**table, **params})
