"""A strategy has one notation everywhere; an invalid one is refused with advice."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import ClassVar

import pytest

from refold.adapters.config import read_toml
from refold.domain.canonical import digest
from refold.domain.errors import InvalidConfiguration, UnknownStrategy
from refold.projections.context.strategies.composite import Pipeline
from refold.projections.context.strategies.history_summary import HistorySummary
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.spec import (
    STRATEGIES,
    parse,
    read,
    register,
)
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.store.settings import Settings


@pytest.mark.parametrize(
    ("spec", "strategy"),
    [
        ("keep_all", KeepAll()),
        ("turn_window", TurnWindow()),
        (
            "turn_window:full_turns=6,cached_turns=2",
            TurnWindow(full_turns=6, cached_turns=2),
        ),
        (" turn_window:full_turns = 6 ", TurnWindow(full_turns=6)),
        ({"name": "turn_window"}, TurnWindow()),
        ({"name": "turn_window", "full_turns": 6}, TurnWindow(full_turns=6)),
        (
            {"name": "turn_window", "params": {"full_turns": 6}},
            TurnWindow(full_turns=6),
        ),
    ],
)
def test_a_spec_names_a_strategy_and_its_parameters(
    spec: str | dict[str, object], strategy: object
) -> None:
    assert parse(spec) == strategy


def test_a_file_names_a_strategy() -> None:
    text = 'name = "turn_window"\n\n[params]\nfull_turns = 6\n'

    assert parse(tomllib.loads(text)) == TurnWindow(full_turns=6)


def test_a_recorded_strategy_is_parsed_again() -> None:
    strategy = TurnWindow(full_turns=6)

    assert parse(strategy.ref.model_dump()) == strategy


def test_values_are_toml_and_dotted_keys_nest() -> None:
    assert read('x:a.b=1,a.c="1,2=3",d=[1, 2],e=true') == (
        "x",
        {"a": {"b": 1, "c": "1,2=3"}, "d": [1, 2], "e": True},
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "turn_windows",
            r"no such strategy \(there is: .*keep_all, .*turn_window; did you mean",
        ),
        (
            "turn_window:turns=1",
            r"no such parameter \(there is: full_turns, cached_turns",
        ),
        (
            "keep_all:n=1",
            r"no such parameter \(there is: open_calls_after, protected_tokens\)",
        ),
        ("turn_window:full_turns='6'", "full_turns: Input should be a valid integer"),
        ("turn_window:full_turns=true", "full_turns: Input should be a valid integer"),
        ("turn_window:full_turns=1.5", "full_turns: Input should be a valid integer"),
        ("turn_window:full_turns=0", "greater than or equal to 1$"),
        ("turn_window:full_turns", "write NAME or NAME:key=value"),
        ("turn_window:full_turns=1}\nx={", "write NAME or NAME:key=value"),
        ("turn_window:full_turns=1}#", "write NAME or NAME:key=value"),
        ("turn_window:full_turns=1,full_turns=2", "cannot be read"),
        ("turn_window:", "write NAME or NAME:key=value"),
        ("tool_clearing+last_turns", "last_turns forgets by itself"),
        ("turn_window:full_turns=1+keep_all", "a pipeline is tool_clearing"),
        ("tool_clearing+message_window+keep_all", "a pipeline is tool_clearing"),
        ({"name": "pipeline"}, "needs its steps"),
        ("@file.toml", "must be read first"),
        ({"full_turns": 1}, "needs a name"),
        ({"name": "turn_window", "version": 9}, "has the versions 1, 2, 3, 4"),
        ({"name": "turn_window", "params": {}, "full_turns": 1}, "not in both"),
    ],
)
def test_an_invalid_spec_is_refused_with_advice(
    spec: str | dict[str, object], message: str
) -> None:
    with pytest.raises(UnknownStrategy, match=message):
        parse(spec)


def test_a_file_without_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "strategy.toml"
    file.write_text("name: turn_window")

    with pytest.raises(InvalidConfiguration, match="is not TOML"):
        read_toml(file)


def test_a_json_file_without_a_name_has_feature_flags(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    settings = Settings(read_toml=read_toml)

    file.write_text("{}")
    assert settings.strategy(f"@{file}") == HistorySummary()
    file.write_text('{"cache_ttl_ms": 60000}')
    assert settings.strategy(f"@{file}") == HistorySummary(cache_ttl_ms=60_000)


def test_the_fingerprint_is_of_name_version_and_all_parameters() -> None:
    strategy = TurnWindow()

    assert strategy.fingerprint == digest(
        {
            "name": "turn_window",
            "version": 8,
            "params": {
                "open_calls_after": 3,
                "full_turns": 4,
                "cached_turns": 3,
                "summary_tokens": 600,
                "session_memory_tokens": 8000,
                "pin_tokens": 4000,
            },
        }
    )
    assert strategy.fingerprint != TurnWindow(full_turns=5).fingerprint


def test_an_own_strategy_keeps_its_earlier_classes_and_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(STRATEGIES, "mine", raising=False)

    class First(Strategy):
        name: ClassVar[str] = "mine"

    @register
    class Second(First):
        version: ClassVar[int] = 2
        earlier: ClassVar[tuple[type[Strategy], ...]] = (First,)

    recorded = parse({"name": "mine", "version": 1, "params": {}})

    assert isinstance(recorded, First)
    assert not isinstance(recorded, Second)
    assert recorded.definition == {"name": "mine", "version": 1, "params": {}}
    assert (recorded.rules, parse("mine").rules) == (1, 2)
    assert parse(Second().definition) == Second()
    assert parse(First().definition) == First()


def test_own_strategies_can_be_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(STRATEGIES, "mine", raising=False)

    class Mine(KeepAll):
        name: ClassVar[str] = "mine"

    class Other(KeepAll):
        name: ClassVar[str] = "mine"

    register(Mine)

    assert parse("mine") == Mine()
    with pytest.raises(UnknownStrategy, match="a strategy 'mine' already"):
        register(Other)
    del STRATEGIES["mine"]


@pytest.mark.parametrize(
    "spec",
    [
        "tool_clearing+turn_window",
        "tool_clearing:keep=1,exclude_tools=['a+b']+history_summary:prompt='1+1?'",
        "tool_clearing+token_ratio:max_context_tokens=+9,trigger_threshold=5e-1",
    ],
)
def test_a_plus_joins_the_steps_of_a_pipeline(spec: str) -> None:
    strategy = parse(spec)

    assert isinstance(strategy, Pipeline)
    assert strategy.first.name == "tool_clearing"
    assert parse(strategy.ref.model_dump()) == strategy
