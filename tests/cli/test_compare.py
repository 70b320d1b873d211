"""``compare`` shows strategies side by side: a table, JSON, or a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.projections.context.strategies import spec
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain

SESSION = ("--user", "lin", "--session", "run")
TWO = (
    "--strategy",
    "keep_all",
    "--strategy",
    "turn_window:full_turns=2,cached_turns=2",
)
KEYS = {
    "strategy", "name", "fingerprint", "requests", "tokens_total", "tokens_peak",
    "over_budget", "cached", "cache_writes", "uncached", "compactions",
    "compacted_before", "summarizer_calls", "summarizer_tokens", "model", "cost",
    "costs", "total_cost",
    "summarizer_cost", "references", "reference_recall", "ledger_recall", "per_request",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("packaged_models")


def test_each_strategy_is_an_entry(refold: Refold, sample: Path) -> None:
    keep, window = refold("compare", *SESSION, *TWO, "--json").json()

    assert set(keep) == KEYS
    assert [keep["strategy"], window["strategy"]] == [*TWO[1::2]]
    assert keep["requests"] == window["requests"] == len(keep["per_request"])
    assert keep["compactions"] == 0
    assert window["compactions"] == len(window["compacted_before"]) > 0
    assert window["tokens_total"] < keep["tokens_total"]
    for strategy in (keep, window):
        assert (
            strategy["cached"] + strategy["cache_writes"] + strategy["uncached"]
            == strategy["tokens_total"]
        )
        assert (
            max(each["tokens"] for each in strategy["per_request"])
            == strategy["tokens_peak"]
        )


def test_a_comparison_writes_nothing(refold: Refold, sample: Path) -> None:
    before = sample.read_bytes()

    ran = refold("compare", *SESSION)

    assert ran.code == 0, ran.err
    assert sample.read_bytes() == before


def test_all_strategies_are_compared_by_default(refold: Refold, sample: Path) -> None:
    ran = refold("compare", *SESSION, "--json")

    compared = [entry["strategy"] for entry in ran.json()]
    left = [line.split()[1] for line in ran.err.splitlines() if "left out" in line]
    assert sorted([*compared, *left]) == sorted(spec.STRATEGIES)


def test_the_table_fits_100_columns(refold: Refold, sample: Path) -> None:
    out = refold("compare", *SESSION).out

    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "reference" in lines[0]
    assert lines[3].split() == [
        "strategy", "tokens", "peak", "cached", "written", "rest",
        "compactions", "cost", "$", "recall", "files",
    ]  # fmt: skip
    assert any(line.startswith("keep_all ") for line in lines)
    assert "With a model they would add" in out


def test_the_table_fits_80_columns_of_a_terminal(refold: Refold, sample: Path) -> None:
    lines = plain(on_terminal("compare", *SESSION, columns=80)).splitlines()

    assert max(len(line.rstrip()) for line in lines) <= 80
    (head,) = [line for line in lines if line.startswith("strategy ")]
    assert head.split()[-3:] == ["$", "recall", "files"]
    assert sum(line.startswith("history_summary ") for line in lines) <= 1


def test_strategies_with_equal_figures_are_named_once(
    refold: Refold, sample: Path
) -> None:
    out = refold("compare", *SESSION).out

    assert [line for line in out.splitlines() if line.startswith("native ")] == []
    (same,) = [part for part in out.split("\n\n") if "the same as " in part]
    names = " ".join(same.partition("the same as keep_all: ")[2].split())
    assert "native" in names.split(", ")


def test_long_names_are_wrapped_on_a_terminal(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = plain(on_terminal("compare", *SESSION, *TWO, columns=100))

    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 100
    assert "turn_window" in shown


def test_a_picture_is_drawn(refold: Refold, sample: Path, tmp_path: Path) -> None:
    file = tmp_path / "compared.png"

    ran = refold("compare", *SESSION, *TWO, "--plot", file, "--json")

    image = file.read_bytes()
    assert ran.code == 0, ran.err
    assert image.startswith(b"\x89PNG")
    width, height = (int.from_bytes(image[at : at + 4]) for at in (16, 20))
    assert width > 1000 < height * 3
    assert len(ran.json()) == 2


def test_equal_lines_are_drawn_once() -> None:
    from refold.adapters.cli.commands.compare import _joined

    assert _joined(["keep_all"]) == "keep_all"
    assert _joined(["keep_all", "native"]) == "keep_all = native"
    assert _joined(["a" * 30, "b" * 30]) == f"{'a' * 30} =\n{'b' * 30}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--strategy", "no_such"), "no such strategy"),
        (("--model", "no-such"), "not known"),
        (("--prices", "none.toml"), "cannot be read"),
        (("--plot", "figure.pdf"), "does not end in .png"),
        (("--plot", "none/figure.png"), "no directory none"),
    ],
)
def test_failures_of_compare_draw_nothing(
    refold: Refold, sample: Path, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    ran = refold("compare", *SESSION, "--plot", "figure.png", *args)

    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""
    assert not list(tmp_path.glob("figure*"))


def test_a_missing_session_is_an_error(refold: Refold, sample: Path) -> None:
    ran = refold("compare", "--user", "lin", "--session", "none")

    assert ran.code == 1
    assert "no session 'none'" in ran.err


def test_prices_can_be_set_by_option(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[models.mine]\ncontext_tokens = 3000\nprices = { input = 2.0, output = 4.0 }\n"
    )

    (outcome,) = refold(
        "compare", *SESSION, *TWO[:2], "--prices", file, "--model", "mine", "--json"
    ).json()

    assert outcome["model"] == "mine"
    assert outcome["cost"] == pytest.approx(outcome["tokens_total"] * 2 / 1_000_000)
    assert outcome["over_budget"] == outcome["tokens_peak"] - 3000


def test_summaries_of_the_log_can_be_used(refold: Refold, sample: Path) -> None:
    window = TWO[2:]
    without = refold("compare", *SESSION, *window, "--recorded", "--json").json()
    refold("compact", *SESSION, *window, "--until-idle")

    (recorded,) = refold("compare", *SESSION, *window, "--recorded", "--json").json()

    assert without[0]["compactions"] == 0
    # The summaries are at the log's end, after its last request.
    assert recorded["tokens_total"] == without[0]["tokens_total"]
