"""``audit`` shows the recorded uses of a store, to people and to programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Refold

OF = ("--user", "lin", "--session", "run")


@pytest.fixture
def audited(refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch) -> Refold:
    """The sample after four recorded commands, the last of which failed."""
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")
    assert refold("log", *OF).code == 0
    assert refold("context", *OF).code == 0
    assert refold("export", *OF).code == 0
    assert refold("log", "--user", "lin", "--session", "none").code == 1
    return refold


def events(lines: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(line["event"], line["status"]) for line in lines]


def test_each_command_is_recorded(audited: Refold) -> None:
    lines = audited("audit", "--json").lines()

    recorded = events(lines)
    assert ("session_load", "ok") in recorded
    assert ("session_context", "ok") in recorded
    assert ("export", "ok") in recorded
    assert ("session_list", "ok") in recorded
    assert recorded[-1] == ("session_load", "denied")
    assert lines[-1]["error_code"] == "SessionNotFound"


def test_records_are_filtered_by_user_and_session(audited: Refold) -> None:
    of_lin = audited("audit", "--user", "lin", "--json").lines()
    of_run = audited("audit", *OF, "--json").lines()

    assert {line["user_id"] for line in of_lin} == {of_lin[0]["user_id"]}
    assert len({line["session_id"] for line in of_run}) == 1
    assert 0 < len(of_run) < len(of_lin)
    assert "lin" not in str(of_lin)


def test_people_see_lines(audited: Refold) -> None:
    ran = audited("audit")

    assert ran.code == 0
    (denied,) = [line for line in ran.out.splitlines() if "SessionNotFound" in line]
    assert "session_load" in denied
    assert " ms" in denied
    assert ran.err == ""


@pytest.mark.parametrize("since", ["2020-01-01", "2020-01-01T00:00Z", "7d"])
def test_since_takes_a_date_a_time_or_an_age(audited: Refold, since: str) -> None:
    assert audited("audit", "--since", since, "--json").lines()


def test_since_hides_earlier_records(audited: Refold) -> None:
    assert audited("audit", "--since", "2999-01-01", "--json").lines() == []


@pytest.mark.parametrize("wrong", [("--since", "yesterday"), ("--since", "2026-13-01")])
def test_a_wrong_argument_is_reported(
    refold: Refold, sample: Path, wrong: tuple[str, str]
) -> None:
    ran = refold("audit", *wrong)

    assert ran.code == 2
    assert "refold audit --help" in ran.err


def test_a_disabled_access_log_is_reported(refold: Refold, sample: Path) -> None:
    ran = refold("audit")

    assert (ran.code, ran.out) == (0, "")
    assert "REFOLD_ACCESS_LOG=table" in ran.err


def test_records_of_an_erased_user_cannot_be_requested(audited: Refold) -> None:
    assert audited("erase", "--user", "lin", "--reason", "asked", "--yes").code == 0

    ran = audited("audit", "--user", "lin")

    assert ran.code == 1
    assert "erased" in ran.err
    assert {line["user_id"] for line in audited("audit", "--json").lines()} == {None}


def test_json_lines_are_printed_without_warnings(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "log")

    ran = refold("log", "--user", "lin", "--session", "none")

    assert len(ran.err.splitlines()) == 1


def test_a_wrong_setting_is_reported(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "everywhere")

    ran = refold("sessions")

    assert ran.code == 2
    assert "table, log, file:PATH" in ran.err
