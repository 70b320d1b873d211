"""SPEC: the notation of a strategy in commands, settings, and files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from refold.domain.errors import UnknownStrategy
from refold.projections.context.strategy import (
    Strategy,
    under_rules,
    valid_names,
)

if TYPE_CHECKING:
    from refold.domain.plugins import Installed, Plugin

_PACKAGE: Final = "refold.projections.context.strategies"
# The class of each built-in strategy, in the module that has the strategy's name.
_BUILT_IN: Final[Mapping[str, str]] = {
    "keep_all": "KeepAll",
    "turn_window": "TurnWindow",
    "message_window": "MessageWindow",
    "hybrid": "Hybrid",
    "last_turns": "LastTurns",
    "token_budget": "TokenBudget",
    "recursive_summary": "RecursiveSummary",
    "history_summary": "HistorySummary",
    "token_ratio": "TokenRatio",
    "tool_clearing": "ToolClearing",
    "native": "Native",
}
# The names of the strategies that contain others; ``composite`` builds them.
PIPELINE: Final = "pipeline"
FOR_AGENT: Final = "for_agent"
# The names that no package or program can give to a strategy.
_RESERVED: Final = (*_BUILT_IN, PIPELINE, FOR_AGENT)


class Registry(MutableMapping[str, type[Strategy]]):
    """Strategies by name: built-in ones, registered ones, and those of plugins.

    The module of a built-in strategy, and that of a plugin's, loads when the strategy
    is looked up.
    """

    def __init__(self) -> None:
        # Built-in and registered strategies, and those of plugins that were looked up.
        self._strategies: dict[str, type[Strategy] | None] = dict.fromkeys(_BUILT_IN)
        # The names for which plugins were searched.
        self._searched: set[str] = set()

    def __getitem__(self, name: str) -> type[Strategy]:
        """Return the strategy of this name.

        Raises InvalidConfiguration if a plugin that adds the name cannot be used.
        """
        if name not in _RESERVED and name not in self._searched:
            self._search_plugins(name)
        kind = self._strategies[name]
        if kind is None:
            module = import_module(f"{_PACKAGE}.{name}")
            kind = getattr(module, _BUILT_IN[name])
            self._strategies[name] = kind
        return kind

    def __setitem__(self, name: str, kind: type[Strategy]) -> None:
        self._strategies[name] = kind

    def __delitem__(self, name: str) -> None:
        del self._strategies[name]
        self._searched.discard(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._strategies
        for name in self.plugins().usable:
            if name not in self._strategies:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def plugins(self) -> Installed:
        """Return the strategies that installed packages add; loads none of them."""
        from refold.domain import plugins

        return plugins.installed(plugins.STRATEGIES, _RESERVED)

    def register(self, kind: type[Strategy]) -> None:
        """Add a strategy under its name; loads no plugin.

        Raises UnknownStrategy if another strategy has the name.
        """
        name = kind.name
        if name in _RESERVED:
            is_taken = self.get(name) is not kind
        else:
            is_taken = self._strategies.get(name, kind) is not kind
        if is_taken:
            raise UnknownStrategy(f"there is a strategy {name!r} already")
        self._strategies[name] = kind

    def _search_plugins(self, name: str) -> None:
        """Take the strategy of this name from the plugin that adds it, if any does.

        Raises InvalidConfiguration.
        """
        from refold.domain import plugins

        plugin = plugins.find(plugins.STRATEGIES, name, _RESERVED)
        if plugin is not None:
            kind = _loaded(plugin)  # the module may register it
            if self._strategies.setdefault(name, kind) is not kind:
                raise plugin.failed(
                    "is refused, because the program registers another strategy "
                    "of that name"
                )
        if name in self._strategies:
            self._searched.add(name)


def _loaded(plugin: Plugin) -> type[Strategy]:
    """Load the strategy of a plugin.

    Raises InvalidConfiguration, which names the package.
    """
    kind = plugin.load()
    if not isinstance(kind, type) or not issubclass(kind, Strategy):
        raise plugin.failed(f"is not a subclass of Strategy: {plugin.place}")
    if getattr(kind, "name", None) != plugin.name:
        raise plugin.failed(f"must have name = {plugin.name!r}: {plugin.place}")
    return kind


STRATEGIES: Final = Registry()
# Earlier versions of the built-in strategies differ only in their rules.
_EARLIER_RULES: Final[Mapping[int, int]] = {
    1: 1,
    2: 2,
    3: 4,
    4: 5,
    5: 6,
    6: 7,
    7: 8,
}
# Rules 6, 7, and 9 changed no view of a strategy without summaries.
_EARLIER_RULES_WITHOUT_SUMMARIES: Final[Mapping[int, int]] = {1: 1, 2: 2, 3: 4, 4: 7}
_EARLIER_RULES_OF: Final[Mapping[str, Mapping[int, int]]] = {
    "keep_all": _EARLIER_RULES_WITHOUT_SUMMARIES,
    "last_turns": _EARLIER_RULES_WITHOUT_SUMMARIES,
    "native": _EARLIER_RULES_WITHOUT_SUMMARIES,
    "token_budget": _EARLIER_RULES_WITHOUT_SUMMARIES,
    "tool_clearing": _EARLIER_RULES_WITHOUT_SUMMARIES,
    # It alone changed with rules 3.
    "history_summary": {number: number for number in range(1, 9)},
}
_UNREADABLE: Final = (
    "the strategy cannot be read: write NAME or NAME:key=value,key=value with values "
    "in TOML syntax"
)
# A parameter whose value is a word without quotes.
_BARE_WORD: Final = (
    r"(?:^|[,{])\s*(?P<key>[A-Za-z0-9_.-]+)\s*=\s*"
    r"(?!(?:true|false|inf|nan)\b)[A-Za-z_][^\s,\"'{}\[\]=]*\s*(?=$|[,}])"
)
# The keys of a mapping that are not parameters.
_NO_PARAMS: Final = frozenset({"name", "params", "version", "fingerprint"})

Kind = TypeVar("Kind", bound=type[Strategy])


def register(kind: Kind) -> Kind:
    """Register a strategy under its name; usable as a decorator.

    Raises UnknownStrategy if another strategy has the name.
    """
    STRATEGIES.register(kind)
    return kind


def parse(spec: str | Mapping[str, Any]) -> Strategy:
    """Return the strategy that ``spec`` describes.

    A text is ``name`` or ``name:key=value,…`` with values in TOML syntax; dotted keys
    nest, and + joins the steps of a pipeline.  A mapping, such as the content of a TOML
    file or a recorded strategy, has ``name`` and the parameters, either next to it or
    under ``params``.  The caller reads files.

    Raises UnknownStrategy, with the valid names, for anything else, and
    InvalidConfiguration for a strategy of a package that cannot be used.
    """
    if isinstance(spec, str):
        steps = split(spec)
        if len(steps) > 1:
            return _pipeline([*steps])
    name, params = read(spec)
    if name == PIPELINE:
        steps_of_mapping = params.get("steps")
        if not isinstance(steps_of_mapping, list):
            raise UnknownStrategy("a pipeline needs its steps, as a list of strategies")
        return _pipeline(steps_of_mapping)
    if name == FOR_AGENT:
        agent = params.pop("agent", "")
        inner = params.pop("strategy", "keep_all")
        if params or not isinstance(inner, str | Mapping):
            raise UnknownStrategy(
                'for_agent takes agent="NAME" and strategy="SPEC", and nothing else'
            )
        from refold.projections.context.strategies.composite import for_one

        return for_one(agent, parse(inner))
    version = None if isinstance(spec, str) else spec.get("version")
    return strategy(name, params, version=version)


def _pipeline(steps: Sequence[str | Mapping[str, Any]]) -> Strategy:
    from refold.projections.context.strategies.composite import of_steps

    return of_steps([parse(step) for step in steps])


def split(spec: str) -> list[str]:
    """Return the steps of a pipeline; a + outside of quotes and brackets joins them."""
    steps = [""]
    depth = 0
    quote = ""
    for character in spec:
        if quote:
            if character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        is_outside = not quote and depth == 0
        if character == "+" and is_outside and not _is_sign(steps[-1]):
            steps.append("")
        else:
            steps[-1] += character
    return steps


def _is_sign(before: str) -> bool:
    """Whether a + after this text is the sign of a number or of its exponent."""
    before = before.rstrip()
    if before.endswith("="):
        return True
    return before.endswith(("e", "E")) and before[-2:-1].isdigit()


def read(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters in ``spec``, both unchecked.

    Raises UnknownStrategy if it is no spec.
    """
    if isinstance(spec, str):
        return _from_text(spec)
    name = spec.get("name")
    if not isinstance(name, str):
        raise UnknownStrategy('a strategy needs a name, as in name = "turn_window"')
    params = spec.get("params")
    beside = {key: value for key, value in spec.items() if key not in _NO_PARAMS}
    if params is None:
        params = beside
    elif beside or not isinstance(params, Mapping):
        raise UnknownStrategy(
            "a strategy's parameters stand under params or next to name, not in both"
        )
    return name, dict(params)


def strategy(
    name: str, params: Mapping[str, Any], *, version: object = None
) -> Strategy:
    """Return the strategy of this name, with defaults for missing parameters.

    version: None is the newest.

    Raises UnknownStrategy for an unknown name or version, or invalid parameters.
    """
    kind = STRATEGIES.get(name)
    if kind is None:
        valid = valid_names(name, sorted(STRATEGIES))
        remarks = STRATEGIES.plugins().remarks()
        raise UnknownStrategy(f"there is no such strategy ({valid}){remarks}")
    if version is not None:
        kind = _in_version(kind, version, params)
    return kind(**params)


def _in_version(
    kind: type[Strategy], version: object, params: Mapping[str, Any]
) -> type[Strategy]:
    """Return the class of a strategy in this version, with the rules of that time."""
    is_built_in = kind.__module__ == f"{_PACKAGE}.{kind.name}"
    by_version = {earlier.version: earlier for earlier in kind.earlier}
    if is_built_in:
        rules_of = _EARLIER_RULES_OF.get(kind.name, _EARLIER_RULES)
        for number, rules in rules_of.items():
            if number < kind.version:
                by_version[number] = under_rules(kind, number, rules)
    by_version[kind.version] = kind
    if not isinstance(version, int) or version not in by_version:
        versions = ", ".join(map(str, sorted(by_version)))
        raise UnknownStrategy(f"strategy {kind.name} has the versions {versions}")
    kind = by_version[version]
    if not is_built_in and "open_calls_after" not in params:
        # It was recorded before strategies had this parameter.
        return under_rules(kind, version, 1)
    return kind


def _unreadable(name: str, params: str) -> str:
    """Return why the parameters of a text cannot be read, and how to write them."""
    bare_word = re.search(_BARE_WORD, params)
    if bare_word is None or name not in STRATEGIES:
        return _UNREADABLE
    key = bare_word["key"]
    return (
        f"the strategy cannot be read: the text after {key}= needs double quotes, and "
        f"the shell needs single quotes around all of it: '{name}:{key}=\"TEXT\"'"
    )


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
    except tomllib.TOMLDecodeError:
        raise UnknownStrategy(_unreadable(name, rest)) from None
    if params.pop("end-of-spec", None) != 0:
        raise UnknownStrategy(_UNREADABLE)
    return name, params
