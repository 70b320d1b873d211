"""``worker`` does pending work until a signal ends it, and reports its state."""

import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from refold.adapters.cli import health
from refold.store.work.workers import Unit, Worker
from tests.cli.conftest import Refold
from tests.support import warm
from tests.support.stores import ROOT

WINDOW = "turn_window:full_turns=2,cached_turns=2"


@pytest.fixture
def working(sample: Path) -> Iterator[warm.Process]:
    duties = ("--do", "compact,seal=3600s,erase,verify", "--strategy", WINDOW)
    command = ("worker", *duties, "--health", "0", "--json")
    process = warm.module("refold", "--db", f"sqlite:///{sample}", *command)
    yield process
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def get(port: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:  # local
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_a_worker_works_reports_and_ends_in_order(
    working: warm.Process, refold: Refold
) -> None:
    done = [json.loads(working.stdout.readline()) for _ in range(3)]
    working.stderr.seek(0)
    port = (
        working.stderr.read().rpartition("health: http://127.0.0.1:")[2].split("/")[0]
    )
    status, metrics = get(port, "/metrics")

    assert {get(port, f"/health{more}")[0] for more in ("", "/ready")} == {200}
    assert status == 200
    assert 'refold_worker_units_total{came="done",duty="compact"} 1.0\n' in metrics
    assert "# TYPE refold_worker_units_total counter\n" in metrics
    assert "refold_worker_failing 0.0\n" in metrics
    working.send_signal(signal.SIGTERM)
    out, _ = working.communicate()

    assert (working.returncode, out) == (0, "")
    assert sorted(unit["duty"] for unit in done) == ["compact", "compact", "seal"]
    assert refold("verify", "--json").json()["compactions"] == 2


def test_a_stuck_worker_is_not_healthy(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[tuple[int, ...]] = []

    def once(worker: Worker) -> None:
        worker.failing.add("list")
        with health.served(worker, 0) as port:
            paths = ("/health", "/health/ready", "/metrics")
            statuses.append(tuple(get(str(port), path)[0] for path in paths))
            worker.progressed_at -= 601_000_000
            statuses.append(tuple(get(str(port), path)[0] for path in paths))

    monkeypatch.setattr(Worker, "run", once)

    ran = refold("worker")

    assert ran.code == 0
    assert statuses == [(200, 503, 200), (503, 503, 200)]


def test_an_overdue_duty_makes_the_worker_not_ready(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[int, str]] = []

    def once(worker: Worker) -> None:
        stopped_at = worker._now()
        monkeypatch.setattr(worker, "_now", lambda: stopped_at)
        for unit in worker._due_since:
            worker._due_since[unit] = stopped_at
        with health.served(worker, 0) as port:
            answers.append(get(str(port), "/health/ready"))
            for unit in worker._due_since:
                worker._due_since[unit] -= 599_000_000
            answers.append(get(str(port), "/health/ready"))
            worker._due_since[Unit("seal")] -= 2_000_000
            paths = ("/health", "/health/ready", "/metrics")
            answers.extend(get(str(port), path) for path in paths)

    monkeypatch.setattr(Worker, "run", once)

    refold("worker", "--do", "seal,erase")

    assert [status for status, _ in answers] == [200, 200, 200, 503, 200]
    assert answers[3][1].startswith("# seal: overdue for 601 seconds\n")
    metrics = answers[4][1]
    assert re.search(r'refold_worker_overdue_seconds{duty="seal"} 601\.0', metrics)
    assert 'refold_worker_overdue_seconds{duty="erase"} 0.0\n' in metrics


def test_a_port_in_use_is_reported(refold: Refold, sample: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        ran = refold("worker", "--health", str(port))

    assert ran.code == 2
    assert f"port {port} cannot be used (address already in use)" in ran.err


def test_metrics_declare_their_format(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_types: list[str | None] = []

    def once(worker: Worker) -> None:
        with (
            health.served(worker, 0) as port,
            urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
        ):
            content_types.append(answer.headers["Content-Type"])

    monkeypatch.setattr(Worker, "run", once)

    refold("worker")

    assert content_types == ["text/plain; version=0.0.4"]


def test_a_worker_rebuilds_and_retains_if_configured(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('sessions = "3650d"\n')
    monkeypatch.setattr(Worker, "run", lambda worker: worker.round())

    ran = refold("worker", "--do", "verify=1d", "--rebuild", WINDOW, "--retain", policy)

    lines = {line["duty"]: line for line in map(json.loads, ran.out.splitlines())}
    assert set(lines) == {"rebuild", "retain"}
    assert lines["rebuild"]["compactions"] == 2
    assert lines["retain"]["sessions"] == []


def test_people_see_what_a_worker_sealed(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "run", lambda worker: worker.round())

    ran = refold("worker", "--do", "seal")

    assert re.fullmatch(r"1 leaf  sealed .* root \w+…\n", ran.out)


@pytest.mark.parametrize(
    "args",
    [
        ("--do", "dance"),
        ("--do", "retain"),
        ("--do", "compact=0s"),
        ("--do", "compact=soon"),
        ("--lease", "0"),
        ("--rebuild", "no_such"),
        ("--strategy", "no_such"),
        ("--most-per-second", "0"),
        ("--health", "70000"),
        ("--health", "-1"),
    ],
)
def test_invalid_options_of_worker_are_refused(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    ran = refold("worker", *args)

    assert ran.code == 2


def test_several_processes_import_check_and_export_files(
    refold: Refold, tmp_path: Path
) -> None:
    source = ROOT / "examples" / "sample" / "agent_run.jsonl"
    paths = [shutil.copy(source, tmp_path / f"{name}.jsonl") for name in "ab"]

    imported = refold(
        "import", *paths, "--user", "bob", "--session", "s", "--jobs", "2", "--json"
    ).json()
    verified = refold("verify", "--jobs", "2", "--json").json()
    recheck = refold("redact", "--recheck", "--jobs", "2", "--json").json()
    exported = refold(
        "export", "--user", "bob", "--out", "out", "--jobs", "2", "--json"
    ).json()

    assert sorted(imported["sessions"]) == ["s-0001", "s-0002"]
    assert (imported["events"], verified["events"]) == (114, 114)
    assert verified["problems"] == []
    assert (recheck["sessions"], recheck["exposures"]) == (2, [])
    assert exported["counts"]["events"] == 114
    assert refold("verify", "--export", "out").code == 0
