"""Windows and prices are found by any name of a model, and never guessed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import config
from refold.projections import models, tokens as calibration
from refold.projections.models import (
    Prices,
    Usage,
    model_info,
    price_of,
    window_of,
)
from tools import model_reference

pytestmark = pytest.mark.usefixtures("packaged_models")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "refold.toml"
    monkeypatch.setenv("REFOLD_CONFIG", str(path))
    return path


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("Claude-Opus-5", "claude-opus-5"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("claude-3-5-sonnet-v2@20241022", "claude-3-5-sonnet"),
        ("openrouter/anthropic/claude-opus-4.6:thinking", "claude-opus-4-6"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gemini-of-next-year", "gemini-*"),
    ],
)
def test_a_model_is_found_by_its_names(name: str, model: str) -> None:
    assert model_info(name).name == model


def test_a_suffix_asks_for_the_wide_window() -> None:
    assert window_of("claude-sonnet-4-5") == 200_000
    assert window_of("claude-sonnet-4-5[1m]") == 1_000_000


@pytest.mark.parametrize("name", ["claude-opus-9", "claude-opus-5-5-nano", "x", ""])
def test_an_unknown_model_is_not_guessed_and_can_be_registered(name: str) -> None:
    with pytest.raises(refold.errors.UnknownModel) as error:
        window_of(name)

    assert error.value.model == name
    assert f"register_model({name!r}, context_tokens=…" in str(error.value)
    assert f'refold.toml under [models."{name}"]' in str(error.value)


def test_a_model_without_prices_is_reported() -> None:
    refold.strategies.register_model("house-model", context_tokens=32_000)

    assert window_of("house-model") == 32_000
    with pytest.raises(
        refold.errors.UnknownModel, match="the prices of model 'house-model'"
    ):
        price_of("house-model")


def test_registered_models_override_packaged_ones() -> None:
    refold.strategies.register_model(
        "claude-opus-4", context_tokens=500, prices={"input": 1, "output": 2}
    )

    assert window_of("claude-opus-4-20250514") == 500
    assert window_of("claude-opus-4-0") == 500, "an alias is of the same model"
    assert price_of("claude-opus-4") == Prices(input=1, output=2)


def test_a_family_covers_unlisted_models() -> None:
    refold.strategies.register_model("claude-*", context_tokens=7)

    assert window_of("claude-opus-9") == 7
    assert window_of("claude-opus-5") == 1_000_000


def test_the_settings_file_changes_only_the_keys_it_has(settings: Path) -> None:
    settings.write_text(
        "[models.claude-opus-5]\ncontext_tokens = 300_000\n"
        '[models."acme/house"]\ncontext_tokens = 8_000\naliases = ["house"]\n'
        "prices = { input = 0.5, output = 1 }\n"
    )
    before = price_of("claude-opus-5")

    config.register_models()

    assert window_of("claude-opus-5") == 300_000
    assert price_of("claude-opus-5") == before
    assert price_of("house").output == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = 3", r"\[models\] must be a table"),
        ("[models]\nx = 3", r"\[models.'x'\] must be a table"),
        ("[models.x]\nprices = {}", "context_tokens: Field required"),
        ("[models.x]\ncontext_tokens = 0", "context_tokens: .* greater than 0"),
        ("[models.x]\ncontext_tokens = 1\nwindow = 2", "window: Extra inputs"),
        ("[models.x]\ncontext_tokens = 1\nprices = {input = 1}", "prices.output"),
    ],
)
def test_a_wrong_entry_is_named_and_nothing_registered(
    settings: Path, text: str, says: str
) -> None:
    settings.write_text(f"{text}\n")

    with pytest.raises(refold.InvalidConfiguration, match=says) as error:
        config.register_models()

    assert str(settings) in str(error.value)
    with pytest.raises(refold.errors.UnknownModel):
        window_of("x")


def test_without_a_settings_file_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REFOLD_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)

    config.register_models()

    assert window_of("claude-opus-5") == 1_000_000


def test_a_request_costs_its_parts() -> None:
    prices = price_of("claude-opus-5-5")

    cost = prices.cost(uncached=1_000_000, written=1_000_000, read=1_000_000)

    assert cost == pytest.approx(4 + 5 + 0.2)
    assert prices.cost(written=1_000_000, ttl="1h") == pytest.approx(8)
    assert prices.cost(output=1_000_000) == pytest.approx(20)


def test_a_long_prompt_costs_more_as_a_whole() -> None:
    prices = price_of("claude-haiku-5-5")

    short = prices.cost(uncached=40_000, read=60_000, output=1_000)
    long = prices.cost(uncached=40_001, read=60_000, output=1_000)

    assert short == pytest.approx(0.004 + 0.0006 + 0.0005)
    assert long == pytest.approx(short * 5, rel=1e-4)


def test_without_prices_for_a_cache_it_costs_as_any_input() -> None:
    prices = Prices(input=3, output=15)

    assert prices.cost(read=10, written=10, uncached=10) == pytest.approx(90e-6)


def test_a_price_for_long_prompts_needs_its_bound() -> None:
    with pytest.raises(refold.InvalidConfiguration, match="belong together"):
        refold.strategies.register_model(
            "x", context_tokens=1, prices={"input": 1, "output": 1, "above": 5}
        )


def test_every_packaged_model_is_complete() -> None:
    for info in models.packaged_models():
        assert info.tokenizer in calibration.measured(), info.name
        assert info.max_output_tokens is None or (
            info.max_output_tokens <= info.context_tokens
        )
        if info.prices and info.name.startswith("claude"):
            prices = info.prices
            assert prices.cache_read < prices.input < prices.cache_write_5m
            assert prices.cache_write_5m < prices.cache_write_1h < prices.output
            assert info.cache_min_tokens


def test_the_reference_equals_the_tables() -> None:
    page = model_reference.PAGE.read_text("utf-8")

    assert page == model_reference.page(page), "`make fix` writes it"
    assert all(f"`{info.name}`" in page for info in models.packaged_models())


def test_the_tables_are_part_of_the_package() -> None:
    data = files("refold.projections") / "data"

    assert (data / "tokenizers.toml").is_file()
    assert (data / "models" / "claude.toml").is_file()


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({"input_tokens": 9, "output_tokens": 3}, Usage(9, output=3)),
        (
            {
                "input_tokens": 9,
                "cache_creation_input_tokens": 50,
                "cache_read_input_tokens": 700,
                "cache_creation": {
                    "ephemeral_5m_input_tokens": 30,
                    "ephemeral_1h_input_tokens": 20,
                },
                "output_tokens": 3,
            },
            Usage(9, written=50, written_1h=20, read=700, output=3),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 80},
            },
            Usage(20, read=80, output=7),
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 7,
                "input_tokens_details": {"cached_tokens": 80},
            },
            Usage(20, read=80, output=7),
        ),
        (
            {
                "input_tokens": 5,
                "output_tokens": 7,
                "input_tokens_cache_read": 80,
                "input_tokens_cache_write": 8,
            },
            Usage(5, written=8, read=80, output=7),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 1,
                "iterations": [
                    {"input_tokens": 5, "output_tokens": 7},
                    {"input_tokens": 1, "output_tokens": 1},
                ],
            },
            Usage(6, output=8),
        ),
        ({"input_tokens": -5, "output_tokens": True}, Usage()),
        ({"input_tokens": "many", "output_tokens": 1 << 70}, Usage()),
    ],
)
def test_the_names_of_tokens_of_each_provider_are_known(
    fields: dict[str, Any], usage: Usage
) -> None:
    assert Usage.of(fields) == usage


@pytest.mark.parametrize("fields", [None, {}, {"total": 5}])
def test_without_tokens_there_is_no_usage(fields: dict[str, Any] | None) -> None:
    assert Usage.of(fields) is None


def test_cached_input_has_its_own_prices() -> None:
    prices = price_of("claude-sonnet-5-5")
    usage = Usage(1_000, written=3_000, written_1h=1_000, read=5_000, output=100)

    dollars = usage.cost("claude-sonnet-5-5")

    assert dollars == pytest.approx(
        (
            1_000 * prices.input
            + 2_000 * prices.cache_write_5m
            + 1_000 * prices.cache_write_1h
            + 5_000 * prices.cache_read
            + 100 * prices.output
        )
        / 1_000_000
    )
    assert usage.cost("a model of nobody") is usage.cost(None) is None
