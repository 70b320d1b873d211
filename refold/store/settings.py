"""The settings that choose the strategy of a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.domain import errors

if TYPE_CHECKING:
    from refold.domain.events import Request, StrategyRef
    from refold.projections.context.strategies.turn_window import TurnNumber
    from refold.projections.context.strategy import Strategy


def default_of_prepare() -> Strategy:
    """Return the strategy that ``prepare`` uses by default; see decision 0034."""
    from refold.projections.context.strategies import spec

    return spec.parse("history_summary")


def _strategy_of_request(ref: StrategyRef) -> Strategy:
    """Return the strategy of a recorded request.  Raises UnknownStrategy."""
    from refold.projections.context.strategies import spec

    try:
        return spec.parse(ref.model_dump())
    except errors.UnknownStrategy as error:
        raise errors.UnknownStrategy(
            f"this session uses the strategy {ref.name}: {error}; install the package "
            "that adds it, or name another strategy"
        ) from None


def _refuse_file(path: Path) -> dict[str, Any]:
    """Raise InvalidConfiguration: these settings cannot read files."""
    raise errors.InvalidConfiguration(f"{path}: this store cannot read strategy files")


def _nothing_saved() -> dict[str, int]:
    """Return no numbers of turns, because these settings belong to no user."""
    return {}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings for contexts, read when the store was opened.

    context:   the table ``[context]`` of the settings file.
    environ:   the environment variables.
    read_toml: reads the file of a strategy that is named as ``@file.toml``.
    saved:     returns the numbers of turns that the session's user saved.  It is called
               only for a ``turn_window`` that is named without numbers.
    """

    context: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    read_toml: Callable[[Path], dict[str, Any]] = _refuse_file
    saved: Callable[[], Mapping[str, int]] = field(
        default=_nothing_saved, compare=False, repr=False
    )

    def of_user(self, saved: Callable[[], Mapping[str, int]]) -> Settings:
        """Return these settings with the numbers of turns that a user saved."""
        return replace(self, saved=saved)

    def turns(self, saved: Mapping[str, int]) -> dict[str, TurnNumber]:
        """Return the numbers of ``turn_window`` that apply if a call names none.

        saved: the numbers that the user saved, by parameter of the strategy.

        Raises UnknownStrategy, InvalidConfiguration.
        """
        from refold.projections.context.strategies.turn_window import numbers

        return numbers(self.environ, self._table("turn_window"), saved)

    def strategy(
        self,
        named: str | Strategy | None,
        last: Request | None = None,
        *,
        prepares: bool = False,
    ) -> Strategy:
        """Return the strategy that ``named`` names.

        None means the strategy of the last recorded request, else the strategy in the
        settings, else ``keep_all``.  ``@file.toml`` and ``@file.json`` name a file.

        last:     the last recorded request.
        prepares: return the default of ``prepare`` instead of ``keep_all``.

        Raises UnknownStrategy, InvalidConfiguration.
        """
        from refold.projections.context.strategies import spec
        from refold.projections.context.strategy import Strategy

        if isinstance(named, Strategy):
            return named
        if named is None and last is not None:
            return _strategy_of_request(last.strategy)
        text = self.context.get("strategy") if named is None else named
        if text is None:
            return default_of_prepare() if prepares else spec.parse("keep_all")
        if not isinstance(text, str):
            raise errors.InvalidConfiguration("[context] strategy must be a text")
        return self._configured(text)

    def for_agent(
        self,
        agent: str,
        strategy: str | Strategy | None = None,
        *,
        prepares: bool = False,
    ) -> Strategy:
        """Return the strategy for the events of one agent; None means the settings'."""
        from refold.projections.context.strategies.composite import for_one

        return for_one(agent, self.strategy(strategy, prepares=prepares))

    def _configured(self, text: str) -> Strategy:
        """Return the strategy of a SPEC, with parameters from the settings.

        text: the SPEC, or ``@`` and the path of a file.
        """
        from refold.projections.context.strategies import spec

        if text.startswith("@"):
            return self._from_file(Path(text[1:]))
        steps = spec.split(text)
        if len(steps) > 1:
            from refold.projections.context.strategies.composite import of_steps

            return of_steps([self._configured(step) for step in steps])
        name, params = spec.read(text)
        if name == spec.FOR_AGENT:
            agent = params.pop("agent", "")
            return self.for_agent(agent, params.pop("strategy", None))
        table = self._table(name)
        if name == "turn_window":
            from refold.projections.context.strategies.turn_window import from_settings

            return from_settings(params, self.environ, table, self.saved)
        return spec.strategy(name, {**table, **params})

    def _table(self, name: str) -> dict[str, Any]:
        """Return the parameters of a strategy in the settings file."""
        table = self.context.get(name, {})
        if not isinstance(table, dict):
            raise errors.InvalidConfiguration(f"[context] {name} must be a table")
        return table

    def _from_file(self, path: Path) -> Strategy:
        """Return the strategy that a file describes."""
        from refold.projections.context.strategies import spec

        table = self.read_toml(path)
        # The feature flags of another agent configure ``history_summary``.
        is_feature_flags = path.suffix.lower() == ".json" and "name" not in table
        if not is_feature_flags and "history_summary_params" not in table:
            return spec.parse(table)
        from refold.projections.context.strategies.history_summary import from_params

        strategy = from_params(table)
        if strategy is None:
            raise errors.UnknownStrategy("its file switches history_summary off")
        return strategy
