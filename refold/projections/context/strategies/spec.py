"""SPEC: how a strategy is written in a command, a setting or a file, and found."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from refold.domain.errors import UnknownStrategy
from refold.projections.context.strategies import composite
from refold.projections.context.strategies.history_summary import HistorySummary
from refold.projections.context.strategies.hybrid import Hybrid
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.last_turns import LastTurns
from refold.projections.context.strategies.message_window import MessageWindow
from refold.projections.context.strategies.native import Native
from refold.projections.context.strategies.recursive_summary import RecursiveSummary
from refold.projections.context.strategies.token_budget import TokenBudget
from refold.projections.context.strategies.token_ratio import TokenRatio
from refold.projections.context.strategies.tool_clearing import ToolClearing
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy, valid_names

STRATEGIES: Final[dict[str, type[Strategy]]] = {
    kind.name: kind
    for kind in (
        *(KeepAll, TurnWindow, MessageWindow, Hybrid, LastTurns, TokenBudget),
        *(RecursiveSummary, HistorySummary, TokenRatio, ToolClearing, Native),
    )
}
_HOW: Final = "write NAME or NAME:key=value,key=value with values in TOML syntax"
_NO_PARAMS: Final = frozenset({"name", "params", "version", "fingerprint"})

Kind = TypeVar("Kind", bound=type[Strategy])


def register(kind: Kind) -> Kind:
    """Make a strategy known under its name; usable as a decorator.

    Raises UnknownStrategy if another one has that name.
    """
    if STRATEGIES.setdefault(kind.name, kind) is not kind:
        raise UnknownStrategy(f"there is a strategy {kind.name!r} already")
    return kind


def parse(spec: str | Mapping[str, Any]) -> Strategy:
    """The strategy that ``spec`` names.

    A text is ``name`` or ``name:key=value,…`` with values in TOML syntax; dotted keys
    nest, and + joins the steps of a pipeline.  A mapping, such as the content of a TOML
    file or a recorded strategy, holds ``name`` and its parameters, beside it or under
    ``params``.  Files are the caller's to read.

    Raises UnknownStrategy, with what there is, for anything else.
    """
    if isinstance(spec, str):
        steps = split(spec)
        if len(steps) > 1:
            return composite.of_steps([parse(step) for step in steps])
    name, params = read(spec)
    if name == composite.Pipeline.name:
        listed = params.get("steps")
        if not isinstance(listed, list):
            raise UnknownStrategy("a pipeline needs its steps, as a list of strategies")
        return composite.of_steps([parse(step) for step in listed])
    if name == composite.ForAgent.name:
        agent, inner = params.pop("agent", ""), params.pop("strategy", KeepAll.name)
        if params or not isinstance(inner, str | Mapping):
            takes = 'agent="NAME" and strategy="SPEC", and nothing else'
            raise UnknownStrategy(f"for_agent takes {takes}")
        return composite.for_one(agent, parse(inner))
    return strategy(name, params)


def split(spec: str) -> list[str]:
    """The steps of a pipeline, which + joins outside of quotes and brackets."""
    steps, depth, quote = [""], 0, ""
    for character in spec:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "+" and not quote and depth == 0 and not _signs(steps[-1]):
            steps.append("")
        else:
            steps[-1] += character
    return steps


def _signs(before: str) -> bool:
    """Whether a + here is the sign of a number, or of its exponent."""
    last = before.rstrip()[-1:]
    return last == "=" or (last in ("e", "E") and before.rstrip()[-2:-1].isdigit())


def read(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the parameters that ``spec`` spells out, neither of them checked.

    Raises UnknownStrategy if it is not a spec.
    """
    if isinstance(spec, str):
        return _from_text(spec)
    name, params = spec.get("name"), spec.get("params")
    if not isinstance(name, str):
        raise UnknownStrategy('a strategy needs a name, as in name = "turn_window"')
    beside = {k: v for k, v in spec.items() if k not in _NO_PARAMS}
    if params is None:
        params = beside
    elif beside or not isinstance(params, Mapping):
        where = "under params or beside name, not both"
        raise UnknownStrategy(f"a strategy's parameters stand {where}")
    kind, version = STRATEGIES.get(name), spec.get("version")
    if kind and version not in (None, kind.version):
        why = f"strategy {name} is known in version {kind.version} only"
        raise UnknownStrategy(why)
    return name, dict(params)


def strategy(name: str, params: Mapping[str, Any]) -> Strategy:
    """The strategy of that name with these parameters; defaults for the others."""
    if (kind := STRATEGIES.get(name)) is None:
        there = valid_names(name, sorted(STRATEGIES))
        raise UnknownStrategy(f"there is no such strategy ({there})")
    return kind(**params)


def _from_text(spec: str) -> tuple[str, dict[str, Any]]:
    if spec.startswith("@"):
        raise UnknownStrategy("a strategy file must be read first: hand in its text")
    name, colon, rest = spec.strip().partition(":")
    if not colon:
        return name, {}
    # The key at the end proves that nothing in `rest` closed the table early.
    table = f"spec = {{{rest}, end-of-spec = 0}}"
    try:
        params = {} if "\n" in rest else tomllib.loads(table)["spec"]
    except tomllib.TOMLDecodeError as error:
        place = str(error).rpartition(" (")[2].rstrip(")")
        raise UnknownStrategy(f"it cannot be read ({place}): {_HOW}") from None
    if params.pop("end-of-spec", None) != 0:
        raise UnknownStrategy(f"it cannot be read: {_HOW}")
    return name, params
