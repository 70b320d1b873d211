"""The benchmark of the store measures what it says, and counts right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from benchmarks.report import Check
from benchmarks.store import parts, payloads, peers, racing, report, run
from benchmarks.store.contestants import (
    FULL,
    NORMAL,
    OURS,
    POSTGRES,
    RAW,
    Contestant,
    Engine,
)
from benchmarks.store.parts import STAGES
from benchmarks.store.racing import Figure, Figures, Scale, Stages, Subject, Way, race
from benchmarks.store.run import PARTS
from refold.adapters.cli import main


class Clock:
    """A clock that stands still except during work."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter

    def work(self, *lasts: float) -> Callable[[int], None]:
        def do(number: int) -> None:
            self.now += lasts[number % len(lasts)]

        return do


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(racing, "time", clock)
    return clock


def test_the_result_is_the_median_ratio_of_neighbouring_runs(clock: Clock) -> None:
    # A busy machine slows both of a pair: the medians alone would say 3 to 10.
    ours = clock.work(3, 60, 30)
    other = clock.work(2, 40, 10)

    own, raced = asyncio.run(
        race(Subject("s", NORMAL, events=6), Way(OURS, ours), [Way("x", other)], 3)
    )

    assert (own.seconds, own.ratio, own.rate) == (30, None, 0.2)
    assert (raced.who, raced.seconds, raced.ratio) == ("x", 10, 1.5)


def test_work_that_is_a_coroutine_is_timed_to_its_end(clock: Clock) -> None:
    async def slow(number: int) -> None:
        await asyncio.sleep(0)
        clock.work(5)(number)

    _, raced = asyncio.run(
        race(Subject("s", NORMAL), Way(OURS, clock.work(1)), [Way("x", slow)], 4)
    )

    assert raced.seconds == 5


def test_a_peer_that_is_not_installed_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Missing(Contestant):
        name = "somebody"

        async def open(self) -> None:
            raise ModuleNotFoundError("No module named 'some'", name="some")

    class There(Contestant):
        name = "there"

    monkeypatch.setattr(peers, "PEERS", (Missing, There))
    figures = Figures()

    measured_peers = asyncio.run(peers.peers(Engine(NORMAL, tmp_path), figures.note))

    assert [peer.name for peer in measured_peers] == ["there"]
    assert len(figures.notes) == 1
    assert figures.notes[0].startswith("somebody: not measured, it is not installed")


def test_payloads_have_two_kilobytes_and_are_the_same_each_time() -> None:
    texts = [payloads.text(number) for number in range(300)]

    assert texts == [payloads.text(number) for number in range(300)]
    assert len(set(texts)) == 300
    assert all(1_900 < len(text) < 2_100 for text in texts)
    assert len(payloads.turn(7)) == payloads.TURN
    assert [len(turn) for turn in payloads.conversation(1_000)] == [20] * 42 + [4] * 40


def test_a_target_is_compared_with_its_measurement() -> None:
    figures = Figures(
        figures=[
            Figure("one append", POSTGRES, OURS, 0.001),
            Figure("one append", POSTGRES, RAW, 0.0005, ratio=2.1, cpu=5.0),
            Figure("one append", POSTGRES, "openai-agents", 0.01, ratio=0.1),
        ]
    )

    checks = {check.what: check for check in report.checks(figures)}

    raw = checks[f"{POSTGRES}: one append, to the driver's"]
    computed = checks[f"{POSTGRES}: one append, to the driver's, CPU"]
    peer = checks[f"{POSTGRES}: one append, faster than openai-agents"]
    assert (raw.measured, raw.holds, raw.gate) == (2.1, False, False)
    assert (computed.measured, computed.holds, computed.gate) == (5.0, True, True)
    assert (peer.measured, peer.holds) == (10.0, True)
    assert checks[f"{POSTGRES}: import, to COPY or executemany"].holds is None
    assert {check.unit for check in checks.values()} <= {"×", "s", "MB"}


def test_only_a_gate_fails_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = Check("slow", 9.0, most=1)
    heavy = Check("heavy", 9.0, most=1, gate=True)

    async def measured(*_: object) -> Figures:
        return Figures()

    monkeypatch.setattr(run, "measured", measured)
    for checks, code in (([slow], 0), ([slow, heavy], 1)):
        monkeypatch.setattr(report, "checks", lambda _, results=checks: results)
        assert run.run(run.Options(json=tmp_path / "figures.json")) == code


def test_a_page_keeps_everything_except_its_results() -> None:
    page = "a\n<!-- results: begin (x) -->\nyesterday\n<!-- results: end -->\nz\n"
    figures = Figures(
        conditions={"cores": "2"},
        checks=[Check("speed", 2.0, least=1)],
        figures=[Figure("one append", POSTGRES, RAW, 0.0005, ratio=2.0)],
        stages=[Stages(POSTGRES, "hot", dict.fromkeys(STAGES, 2.0))],
        notes=["somebody: not measured"],
    )

    once = report.filled(page, figures)

    assert once.startswith("a\n<!-- results: begin (x) -->\n\nMeasured on cores 2.\n")
    assert once.endswith("<!-- results: end -->\nz\n")
    assert "PostgreSQL, one append: Refold takes 2.00 × raw driver." in once
    assert "| ✓ | speed | 2.000 | ≥ 1 |  |  |" in once
    assert "| one append |  |  | raw driver 2.00 |" in once
    assert "| PostgreSQL, hot | 2 | 2 | 2 | 2 | 2 | 10 |" in once
    assert "somebody: not measured" in once
    assert report.filled(once, figures) == once


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The output of the command after a short run of everything on SQLite."""
    file = tmp_path_factory.mktemp("bench") / "figures.json"
    command = ["bench", "store", "--quick", "--events", "40", "--json", str(file)]

    least = Scale(40, 8, 2, 2, 2, 1, 2, 2, ("idle",), first=4, starts=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scale, "quick", lambda _: least)
        code = main([*command, "--engine", "sqlite-normal"])

    assert code in (0, 1)  # so few rounds say nothing
    return json.loads(file.read_text())


def test_the_command_measures_every_part(measured: Any) -> None:
    measured_pairs = {(each["subject"], each["who"]) for each in measured["figures"]}

    assert set(PARTS) == {"append", "load", "import", "read", "fold"}
    for subject in (
        "one append",
        "one append, the first 300",
        "batch of 100",
        "16 sessions, threads",
        "full read",
        "one append of a JSON result",
        "one append with an e-mail",
        "16 sessions, asyncio",
        "context",
    ):
        assert {(subject, OURS), (subject, RAW)} <= measured_pairs
    assert ("import", "COPY or executemany") in measured_pairs
    for subject in ("rebuild", "verify"):
        assert {(subject, RAW), (subject, f"{subject}, 2 jobs")} <= measured_pairs
        assert measured["spread"][NORMAL][subject] > 0
    assert ("verify, chain only", RAW) in measured_pairs
    assert all(each["seconds"] > 0 for each in measured["figures"])
    assert all(each["ratio"] > 0 for each in measured["figures"] if each["who"] != OURS)
    assert measured["sizes"][NORMAL][OURS] > 0
    assert measured["memory"][NORMAL]["idle"] > 1
    conditions = {"commit", "date", "cores", "processor", "SQLite"}
    assert conditions <= measured["conditions"].keys()
    assert {check["what"] for check in measured["checks"]} >= {
        f"{NORMAL}: one append, to the driver's, CPU",
        f"{NORMAL}: verify, to raw driver",
        f"{NORMAL}: rebuild, 1 job to the busiest of 2, CPU",
        "refold sessions, CPU above a bare Python",
        "prepare, 10,000 events behind, CPU",
    }


def test_applications_are_saved_by_both_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    engine = Engine(FULL, tmp_path)

    for ours in (True, False):
        with peers.saving_application(engine, ours=ours) as save:
            ids = [event.notification.id for event in save(3)]  # type: ignore[attr-defined]  # recordings

        assert ids == [1, 2, 3]


def test_every_stage_of_an_append_is_found_at_its_seam(measured: Any) -> None:
    stages = measured["stages"]

    assert [each["when"] for each in stages] == ["after a commit", "hot"]
    for each in stages:
        assert list(each["micros"]) == list(STAGES)
        assert all(each["micros"][stage] > 0 for stage in STAGES if stage != "server")


def test_the_figures_can_be_drawn(tmp_path: Path) -> None:
    figures = Figures(
        figures=[
            Figure("one append", NORMAL, OURS, 0.001),
            Figure("one append", NORMAL, RAW, 0.0005, ratio=2.0),
            Figure("context", NORMAL, OURS, 0.001, size=20),
            Figure("context", NORMAL, OURS, 0.002, size=200),
        ],
        stages=[Stages(NORMAL, "hot", dict.fromkeys(STAGES, 2.0))],
    )

    report.draw(figures, tmp_path / "figures.png")

    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("work", ["idle", "rebuild", "verify"])
def test_a_footprint_is_reported_in_megabytes(work: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    keys = f"sqlite:///{tmp_path / 'k.db'}"
    with refold.open(url, keys=keys) as store:
        store.session(user_id="ada", session_id="s").append(payloads.turn(0))

    megabytes = parts.peak(url, keys, work)

    assert 10 < megabytes < 10_000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["store", "--laws", "3"], "--laws"),
        (["store", "--misses"], "--misses"),
        (["redaction", "--events", "3"], "--events"),
        (["redaction", "--engine", "sqlite-full"], "--engine"),
    ],
)
def test_an_option_of_the_other_benchmark_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bench", *arguments])

    errors = capsys.readouterr().err
    assert code == 2
    assert named in errors
    assert "leave it out" in errors


@pytest.mark.parametrize("option", ["--json", "--plot", "--markdown", "--data"])
def test_an_unusable_target_is_refused_before_measuring(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_measuring(*_: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr(run, "measured", no_measuring)

    code = main(["bench", "store", option, str(tmp_path / "nowhere" / "x")])

    assert code == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_page_without_marks_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing to fill\n")

    code = main(["bench", "store", "--markdown", str(page)])

    assert code == 2
    assert "results: begin" in capsys.readouterr().err
    assert page.read_text() == "nothing to fill\n"
