"""``compact --watch`` runs pending compactions until a signal ends it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Refold
from tests.support import warm

STRATEGY = ("--strategy", "turn_window:full_turns=2,cached_turns=2")


@pytest.fixture
def watching(sample: Path) -> Iterator[warm.Process]:
    command = ("compact", "--watch", *STRATEGY, "--every", "3600", "--json")
    process = warm.module("refold", "--db", f"sqlite:///{sample}", *command)
    yield process
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_watch_cleanly(
    watching: warm.Process,
    refold: Refold,
    sample: Path,
    number: signal.Signals,
) -> None:
    records = [json.loads(watching.stdout.readline()) for _ in range(2)]

    watching.send_signal(number)
    out, err = watching.communicate()

    assert (watching.returncode, out, err) == (0, "", "")
    spans = [(record["first_seq"], record["last_seq"]) for record in records]
    assert spans == [(1, 21), (22, 39)]
    assert {(r["user_id"], r["session_id"]) for r in records} == {("lin", "run")}
    assert refold("verify", "--json").json()["compactions"] == 2


def test_people_see_whose_session_was_compacted(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.store.work.workers import Worker

    def once(worker: Worker) -> None:
        worker.round()

    monkeypatch.setattr(Worker, "run", once)

    ran = refold("compact", "--watch", "--user", "lin", *STRATEGY)

    assert ran.code == 0
    assert "lin run" in ran.out
    assert "compacted seq 1 to 21" in ran.out
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--watch", "--until-idle"), "leave --until-idle out"),
        (("--watch", "--every", "0"), "intervals and the lease are above 0"),
        (("--watch", "--strategy", "no_such"), "no such strategy"),
        (("--user", "lin"), "give --user and --session, or --watch"),
        (("--every", "5", "--user", "u", "--session", "s", *STRATEGY), "--watch"),
    ],
)
def test_conflicting_options_are_refused(
    refold: Refold, sample: Path, args: tuple[str, ...], message: str
) -> None:
    ran = refold("compact", *args)

    assert ran.code == 2
    assert message in ran.err


def test_watch_does_not_create_a_store(refold: Refold) -> None:
    ran = refold("compact", "--watch")

    assert ran.code == 1
    assert "there is no database" in ran.err
