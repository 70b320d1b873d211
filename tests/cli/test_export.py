"""``export`` writes every envelope, to a file all or nothing."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import SAMPLE, Refold


def test_envelopes_come_out_one_a_line(refold: Refold, sample: Path) -> None:
    ran = refold("export")

    envelopes = ran.lines()
    assert [envelope["seq"] for envelope in envelopes] == list(range(1, 58))
    assert ran.out == refold("log", "--user", "lin", "--session", "run", "--json").out


def test_all_sessions_come_out_unless_one_is_asked(
    refold: Refold, sample: Path
) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "other")

    everything = refold("export").lines()
    of_ada = refold("export", "--user", "ada").lines()

    assert len(everything) == 2 * len(of_ada)
    assert {envelope["user_id"] for envelope in of_ada} == {"ada"}


def test_a_file_is_the_owners_alone(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    ran = refold("export", "--out", "out.jsonl", "--json")

    output = tmp_path / "out.jsonl"
    assert ran.json() == {"out": "out.jsonl", "sessions": 1, "events": 57}
    assert output.stat().st_mode & 0o777 == 0o600
    assert len(list(map(json.loads, output.read_text().splitlines()))) == 57


def test_a_person_is_told_what_was_written(refold: Refold, sample: Path) -> None:
    ran = refold("export", "--out", "out.jsonl")

    assert ran.out == "wrote 57 events of 1 session to out.jsonl\n"


def test_a_failed_export_leaves_the_old_file(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("os.fsync", _full)

    ran = refold("export", "--out", output)

    assert ran.code == 1
    assert output.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("output", ["sub.jsonl", "no/such/directory/out.jsonl"])
def test_a_place_that_takes_no_file_is_an_error(
    refold: Refold, sample: Path, tmp_path: Path, output: str
) -> None:
    (tmp_path / "sub.jsonl").mkdir()

    ran = refold("export", "--out", output)

    assert ran.code == 1
    assert ran.err.count("\n") == 1
