"""A process with a wrong clock deletes nothing early, and blocks nothing forever."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.clocks import DAY
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import Erased
from refold.store import SessionStore
from tests.support import warm
from tests.support.stores import open_at, prepare
from tests.support.talking import talk

TEN_YEARS = 315_360_000
WRONG = pytest.mark.parametrize(
    "seconds", [TEN_YEARS, -TEN_YEARS], ids=["fast", "slow"]
)
EVENTS = 5
MONTH = timedelta(days=30)
LONG = "a whole text behind a cut one " * 10_000
VAULT = """
version = 1
numbered = true
[vault]
types = ["EMAIL"]
days = 30
"""


@pytest.fixture
def url(store_url: str, tmp_path: Path) -> str:
    """A store with a recent session, created by a process with the right clock."""
    url = prepare(store_url, tmp_path)
    with refold.open(url, access_log="table") as store:
        session = store.session(user_id="ada", session_id="s")
        talk(session, 2)
        session.append(refold.UserInput(text=LONG))
    return url


def run_refold_at(seconds: int, *command: object) -> Any:
    """Return the JSON that ``refold`` prints with a clock that many seconds ahead."""
    process = warm.module("tests.support.shifted", seconds, *command, "--json")
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(printed)


def run_python_at(seconds: int, program: str) -> str:
    process = warm.module("tests.support.shifted", seconds, "python", program)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    return printed


def count_events(store: SessionStore) -> int:
    """Return the number of events in the session of these tests."""
    return len(store.session(user_id="ada", session_id="s").events())


@pytest.mark.each_engine
@WRONG
def test_no_clock_of_a_shifted_process_is_right(url: str, seconds: int) -> None:
    program = (
        "import time\n"
        "from datetime import datetime, UTC\n"
        "from refold.adapters.cli.options import datetime as theirs\n"
        "print(int(time.time()), int(datetime.now(UTC).timestamp()),"
        " int(theirs.now(UTC).timestamp()), time.time_ns() // 10**9)"
    )
    there = [int(each) for each in run_python_at(seconds, program).split()]
    here = datetime.now(UTC).timestamp() + seconds

    assert all(abs(each - here) < 60 for each in there)


@pytest.mark.each_engine
@WRONG
def test_retention_with_a_wrong_clock_erases_nothing_in_use(
    url: str, seconds: int, tmp_path: Path
) -> None:
    policy = tmp_path / "retention.toml"
    policy.write_text('sessions = "30d"\nblobs = "30d"\naudit = "30d"\n')

    done = run_refold_at(seconds, "--db", url, "retain", "--policy", str(policy))

    assert (done["sessions"], done["blobs"]) == ([], 0)
    with refold.open(url, access_log="table") as store:
        assert count_events(store) == EVENTS
        assert [*store.access_log.records()]


@pytest.mark.each_engine
@WRONG
def test_a_grace_does_not_end_early_with_a_wrong_clock(url: str, seconds: int) -> None:
    with refold.open(url) as store:
        store.erase("ada", "asked", grace=MONTH)

    assert run_refold_at(seconds, "--db", url, "erase", "--due", "--yes") == []

    with refold.open(url) as store:
        assert [job.stage for job in store.erasures.pending()] == ["held"]
        store.erasures.restore("ada", "a mistake")
        assert count_events(store) == EVENTS


@pytest.mark.each_engine
@WRONG
def test_a_grace_that_a_wrong_clock_began_lasts_as_long_as_requested(
    url: str, seconds: int
) -> None:
    how = "--user", "ada", "--reason", "asked", "--grace", "30d", "--yes"
    run_refold_at(seconds, "--db", url, "erase", *how)

    with refold.open(url) as store:
        assert [*store.erasures.complete()] == []
        (job,) = store.erasures.pending()
        assert job.due_at is not None
        left = job.due_at - store.clock()
        assert 30 * DAY - DAY < left <= 30 * DAY


@pytest.mark.each_engine
@WRONG
def test_a_short_grace_that_a_wrong_clock_began_ends(url: str, seconds: int) -> None:
    how = "--user", "ada", "--reason", "asked", "--grace", "1s", "--yes"
    run_refold_at(seconds, "--db", url, "erase", *how)
    time.sleep(1.1)  # the grace itself

    with refold.open(url) as store:
        (done,) = store.erasures.complete()
        assert done.certificate is not None
        with pytest.raises(Erased):
            count_events(store)


@pytest.mark.each_engine
@WRONG
def test_a_session_written_with_a_wrong_clock_counts_as_recent(
    url: str, seconds: int, tmp_path: Path
) -> None:
    append = (
        "import refold\n"
        f"with refold.open({url!r}) as store:\n"
        "    session = store.session(user_id='eve', session_id='t')\n"
        f"    session.append(refold.UserInput(text={LONG[:80_000]!r}))\n"
    )
    run_python_at(seconds, append)

    with refold.open(url) as store:
        policy = RetentionPolicy(sessions=MONTH, blobs=MONTH)
        done = store.erasures.retain(policy)

        assert (done.sessions, done.blobs) == ([], 0)


@pytest.mark.each_engine
@WRONG
def test_kept_values_of_a_session_survive_a_wrong_clock(
    store_url: str, tmp_path: Path, seconds: int
) -> None:
    url = prepare(store_url, tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(VAULT)
    with refold.open(url, policy=policy) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="write to ada@example.org"))
    append = (
        "import refold\n"
        f"with refold.open({url!r}, policy={str(policy)!r}) as store:\n"
        "    session = store.session(user_id='ada', session_id='s')\n"
        "    session.append(refold.UserInput(text='and to bob@example.org'))\n"
    )
    run_python_at(seconds, append)

    with refold.open(url, policy=policy) as store:
        stored = store.session(user_id="ada", session_id="s").head().state.kept
        values = sorted(value for value, _ in stored.values())
        ages = [store.clock() - at for _, at in stored.values()]

    assert values == ["ada@example.org", "bob@example.org"]
    assert all(0 <= age < DAY for age in ages)


@pytest.mark.each_engine
def test_times_from_a_clock_that_was_ahead_begin_to_age(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
        ahead = store.clock() + 3_650 * DAY
        store.log.retention.correct_uses(later_than=0, now=ahead)
        assert store.sessions("ada")[0].updated_at.year > 2030

        store.erasures.retain(RetentionPolicy(sessions=MONTH))

        assert store.sessions("ada")[0].updated_at <= datetime.now(UTC)


@pytest.mark.each_engine
def test_a_grace_that_ends_too_late_begins_again(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
        store.erase("ada", "asked", grace=MONTH)
        (job,) = store.erasures.pending()
        assert job.due_at is not None
        late = job.at("held")
        object.__setattr__(late, "due_at", job.due_at + 3_650 * DAY)
        store.log.erasures.advance(late, "held")

        assert [*store.erasures.complete()] == []

        (job,) = store.erasures.pending()
        assert job.due_at is not None
        assert job.due_at <= store.clock() + 30 * DAY


def test_a_disputed_clock_is_reported_and_can_be_trusted(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sqlite_url
    with refold.open(url) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
    command = (TEN_YEARS, "--db", url, "retain", "--preset", "seed", "--json")

    process = warm.module("tests.support.shifted", *command)
    printed, errors = process.communicate()
    assert json.loads(printed)["sessions"] == []
    # The clock of this machine may step back a little in between.
    assert re.search("differs by (3649|3650) days", errors)
    monkeypatch.setenv("REFOLD_TRUST_CLOCK", "1")
    process = warm.module("tests.support.shifted", *command)
    printed, errors = process.communicate()

    assert json.loads(printed)["sessions"] != []
    assert "differs" not in errors
