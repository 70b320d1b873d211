"""``rebuild`` applies a strategy to the past, shows costs, switches readers."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from refold.adapters.cli.commands import compact as command
from tests.cli.conftest import ROOT, Refold
from tests.support import warm
from tests.support.waiting import until

SESSION = ("--user", "lin", "--session", "run")
SPEC = "turn_window:full_turns=2,cached_turns=2"
OLD = "turn_window:full_turns=1,cached_turns=1"
STRATEGY = ("--strategy", SPEC)


def test_a_rebuild_gives_the_summaries_of_having_always_run(
    refold: Refold, sample: Path
) -> None:
    done = refold("rebuild", *STRATEGY, "--json").json()

    assert done.pop("seconds") >= 0
    assert done.pop("tokens_in") > done.pop("tokens_out") > 0
    assert done == {
        "sessions": 1, "events": 57, "compactions": 2, "there_before": 0,
        "failures": 0, "problems": [], "activated": 0, "retired": 0,
    }  # fmt: skip
    shown = refold("context", *SESSION, *STRATEGY, "--json").json()
    assert [span["kind"] for span in shown["spans"]] == ["summary", "summary", "raw"]
    assert refold("verify", "--json").json()["ok"]


def test_a_repeated_rebuild_has_nothing_to_do(refold: Refold, sample: Path) -> None:
    refold("rebuild", *STRATEGY)

    again = refold("rebuild", *STRATEGY, "--json").json()

    assert (again["compactions"], again["there_before"]) == (0, 2)


def test_people_see_what_a_rebuild_did(refold: Refold, sample: Path) -> None:
    ran = refold("rebuild", *STRATEGY)

    assert ran.code == 0
    assert "✓ lin / run  2 summaries made" in ran.out
    assert "2 summaries made from 57 events of 1 session" in ran.out
    assert refold("log", *SESSION).out.count("rebuilt at 20") == 2


def test_a_check_compares_summaries_and_writes_nothing(
    refold: Refold, sample: Path
) -> None:
    refold("rebuild", *STRATEGY)
    refold("compact", *SESSION, "--strategy", OLD)  # once, at the end
    before = refold("log", *SESSION, "--json").out

    same = refold("rebuild", *STRATEGY, "--check", "--json")
    other = refold("rebuild", "--strategy", OLD, "--check", "--json")

    assert (same.code, same.json()["problems"]) == (0, [])
    assert same.json()["there_before"] == 2
    assert other.code == 1
    (problem,) = other.json()["problems"]
    assert problem["detail"].startswith("the session has a summary of 1 to ")
    assert refold("log", *SESSION, "--json").out == before


def test_a_dry_run_writes_nothing(refold: Refold, sample: Path) -> None:
    before = refold("log", *SESSION, "--json").out

    ran = refold("rebuild", *STRATEGY, "--dry-run")
    report = refold("rebuild", *STRATEGY, "--dry-run", "--json").json()

    assert "2 summaries to make" in ran.out
    assert (report["dry_run"], report["compactions"], report["cost"]) == (True, 2, None)
    assert refold("log", *SESSION, "--json").out == before


def test_a_dry_run_estimates_the_cost_of_a_model(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-a-key")
    paid_model = (
        "--summarizer",
        "anthropic",
        "--model",
        "claude-sonnet-5-5",
        "--dry-run",
    )

    report = refold("rebuild", *STRATEGY, *paid_model, "--json").json()
    ran = refold("rebuild", *STRATEGY, *paid_model)

    assert report["model"] == "claude-sonnet-5-5"
    assert 0 < report["cost"] < 1
    assert report["tokens_out"] == 1200
    assert "claude-sonnet-5-5 would read about" in ran.out
    assert "about $" in ran.out


def test_a_model_without_a_price_is_estimated_in_tokens(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-a-key")
    paid_model = (
        "--summarizer",
        "anthropic",
        "--model",
        "nobody-knows-it",
        "--dry-run",
    )

    assert "price unknown" in refold("rebuild", *STRATEGY, *paid_model).out
    assert refold("rebuild", *STRATEGY, *paid_model, "--json").json()["cost"] is None


def test_without_a_terminal_a_paid_model_needs_yes(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-a-key")

    ran = refold("rebuild", *STRATEGY, "--summarizer", "anthropic")

    assert ran.code == 2
    assert "add --yes to go on" in ran.err
    assert "summary" not in refold("log", *SESSION, "--json").out.split('"stream"')[0]
    assert (
        refold("rebuild", *STRATEGY, "--dry-run", "--json").json()["there_before"] == 0
    )


def test_a_rebuild_switches_readers_and_retires_the_old_summaries(
    refold: Refold, sample: Path
) -> None:
    refold("rebuild", "--strategy", OLD, "--activate")

    done = refold("rebuild", *STRATEGY, "--activate", "--retire", OLD, "--json").json()

    assert (done["activated"], done["retired"]) == (1, 1)
    assert refold("context", *SESSION, "--json").json()["strategy"] == "turn_window"
    shown = refold("context", *SESSION, "--json").json()
    assert shown == refold("context", *SESSION, *STRATEGY, "--json").json()
    events = refold("log", *SESSION, "--json").lines()
    phases = [event["payload"].get("phase") for event in events]
    assert phases.count("retired") == 1
    assert refold("verify", "--json").json()["ok"]


def test_a_strategy_in_use_is_not_retired(refold: Refold, sample: Path) -> None:
    refold("rebuild", "--strategy", OLD, "--activate")

    ran = refold("rebuild", *STRATEGY, "--retire", OLD)
    same = refold("rebuild", *STRATEGY, "--retire", SPEC)

    assert (ran.code, ran.out) == (2, "")
    assert "add --activate" in ran.err
    assert (same.code, same.out) == (2, "")
    report = refold("rebuild", *STRATEGY, "--dry-run", "--json").json()
    assert report["there_before"] == 0


def test_a_fingerprint_can_be_retired(refold: Refold, sample: Path) -> None:
    refold("rebuild", "--strategy", OLD)
    old = refold("context", *SESSION, "--strategy", OLD, "--json").json()["fingerprint"]

    done = refold("rebuild", *STRATEGY, "--retire", old, "--json").json()

    assert done["retired"] == 1


def test_a_rebuild_covers_many_sessions(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.jsonl"
    shutil.copy(ROOT / "examples" / "sample" / "agent_run.jsonl", run)
    for name in "abc":
        refold("import", run, "--user", "bob", "--session", name)

    done = refold("rebuild", *STRATEGY, "--jobs", "3", "--json").json()
    bobs = refold("rebuild", *STRATEGY, "--user", "bob", "--json").json()

    assert (done["sessions"], done["compactions"]) == (4, 8)
    assert (bobs["sessions"], bobs["there_before"]) == (3, 6)


def test_a_failure_is_reported_with_exit_status_1(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_summarizer", lambda *_: _FailingSummarizer())

    ran = refold("rebuild", *STRATEGY)
    strict = refold("rebuild", "--strategy", OLD, "--strict")

    assert ran.code == 1
    assert "failed" in ran.out
    assert strict.code == 1
    assert strict.err.startswith("refold: no summary was written")
    assert "session 'run' at seq" in strict.err


def test_strategies_know_the_models_of_the_settings(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "mine.toml"
    settings.write_text('[models."acme/house"]\ncontext_tokens = 9000\n')
    command = ["rebuild", "--strategy", "token_ratio:model='acme/house'", "--dry-run"]

    unknown = refold(*command)
    monkeypatch.setenv("REFOLD_CONFIG", str(settings))
    configured = refold(*command)

    assert (unknown.code, unknown.out) == (2, "")
    assert "acme/house" in unknown.err
    assert configured.code == 0, configured.err


class _FailingSummarizer:
    costs = False

    def summarise(self, *_: object, **__: object) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["--strategy", "nothing"], 2, "there is no such strategy"),
        (["--strategy", SPEC, "--jobs", "0"], 2, "--jobs"),
        (["--strategy", SPEC, "--model", "m"], 2, "--model"),
        (["--strategy", SPEC, "--user", "nobody"], 1, "has no sessions"),
        (["--strategy", SPEC, "--retire", "nothing"], 2, "no such strategy"),
        ([], 2, "--strategy"),
    ],
)
def test_failures_of_rebuild_are_one_sentence(
    refold: Refold, sample: Path, args: list[str], code: int, reason: str
) -> None:
    ran = refold("rebuild", *args)

    assert (ran.code, ran.out) == (code, "")
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_killed_rebuild_can_be_repeated(refold: Refold, sample: Path) -> None:
    args = ("--db", f"sqlite:///{sample}", "rebuild", "--strategy", OLD, "--json")
    process = warm.module("refold", *args)
    until(lambda: _summaries(refold), "the first summary")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    again = refold("rebuild", "--strategy", OLD, "--json").json()

    whole = again["compactions"] + again["there_before"]
    assert whole == _summaries(refold) > 2
    assert refold("verify", "--json").json()["ok"]


def _summaries(refold: Refold) -> int:
    lines = refold("log", *SESSION, "--json").lines()
    return sum(line["type"] == "summary" for line in lines)
