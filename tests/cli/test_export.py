"""``export`` writes every envelope; a file is written completely or not at all."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import SAMPLE, Refold
from tests.importers.samples import ATIF

MAIL = "ada.lovelace@example.com"


def test_envelopes_are_printed_one_per_line(refold: Refold, sample: Path) -> None:
    ran = refold("export")

    envelopes = ran.lines()
    assert [envelope["seq"] for envelope in envelopes] == list(range(1, 58))
    assert ran.out == refold("log", "--user", "lin", "--session", "run", "--json").out


def test_all_sessions_are_exported_by_default(refold: Refold, sample: Path) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "other")

    everything = refold("export").lines()
    of_ada = refold("export", "--user", "ada").lines()

    assert len(everything) == 2 * len(of_ada)
    assert {envelope["user_id"] for envelope in of_ada} == {"ada"}


def test_only_the_owner_can_read_an_exported_file(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    ran = refold("export", "--out", "out.jsonl", "--json")

    output = tmp_path / "out.jsonl"
    assert ran.json() == {"out": "out.jsonl", "sessions": 1, "events": 57}
    assert output.stat().st_mode & 0o777 == 0o600
    assert len(list(map(json.loads, output.read_text().splitlines()))) == 57


def test_people_see_what_was_written(refold: Refold, sample: Path) -> None:
    ran = refold("export", "--out", "out.jsonl")

    assert ran.out == "wrote 57 events of 1 session to out.jsonl\n"


def test_a_failed_export_leaves_the_old_file(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("os.fsync", _raise_disk_full)

    ran = refold("export", "--out", output)

    assert ran.code == 1
    assert output.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


def _raise_disk_full(_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("output", ["sub.jsonl", "no/such/directory/out.jsonl"])
def test_an_output_path_that_cannot_be_written_is_an_error(
    refold: Refold, sample: Path, tmp_path: Path, output: str
) -> None:
    (tmp_path / "sub.jsonl").mkdir()

    ran = refold("export", "--out", output)

    assert ran.code == 1
    assert ran.err.count("\n") == 1


def test_a_trajectory_is_a_session_with_its_sub_agents(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(ATIF))
    refold("import", path, "--user", "ada")

    ran = refold("export", "--user", "ada", "--format", "atif")

    (trajectory,) = ran.lines()
    assert trajectory["notes"] == "a run"
    assert len(trajectory["steps"]) == 8
    assert [
        agent["trajectory_id"] for agent in trajectory["subagent_trajectories"]
    ] == ["sub"]


def test_exports_contain_no_secret_from_any_field_of_a_trajectory(
    refold: Refold, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(ATIF).replace('"k": 1', f'"k": "{MAIL}"'))
    document |= {"notes": f"ask {MAIL}", "extra": {"by": MAIL}}
    document["steps"][4]["observation"]["results"][0]["extra"] = {"by": MAIL}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    refold("import", path, "--user", "ada")

    ran = refold("export", "--format", "atif")

    assert MAIL not in ran.out
    assert ran.out.count("[REDACTED:EMAIL]") == 4


def test_a_dataset_contains_only_users_with_consent(
    refold: Refold, tmp_path: Path
) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "one")
    refold("import", SAMPLE, "--user", "bob", "--session", "two")
    refold("consent", "--user", "ada", "--grant", "training")

    ran = refold("export", "--format", "dataset", "--out", "rows.jsonl", "--json")

    report = ran.json()
    assert (report["rows"], report["users"], report["left_out"]) == (1, 1, 1)
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["messages"][0]["role"] in ("system", "user")
    plan = refold("erase", "--user", "ada", "--dry-run", "--json").json()
    rows = [row["lineage"]["user"]]
    assert plan["exports"] == [{"export": report["export"], "rows": rows}]
    printed = refold("erase", "--user", "ada", "--dry-run").out
    assert f"drop its rows from dataset {report['export']}" in printed


@pytest.mark.parametrize(
    "asked",
    [
        ["--format", "dataset"],
        ["--format", "dataset", "--out", "a.jsonl", "--session", "one"],
        ["--consent", "training"],
    ],
)
def test_incomplete_options_of_a_dataset_are_refused(
    asked: list[str], refold: Refold, sample: Path
) -> None:
    ran = refold("export", *asked)

    assert ran.code == 2
    assert "dataset" in ran.err


def test_an_export_of_tables_is_reported(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    command = ["export", "--format", "parquet", "--columns", "all", "--out"]

    report = refold(*command, "out", "--json").json()
    printed = refold(*command, "again", "--buckets", "1").out

    counts = {"events": 57, "users": 1, "left": 0}
    assert (report["out"], report["columns"], report["counts"]) == (
        "out",
        "all",
        counts,
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {
        name: manifest[name] for name in ("export", "digest")
    }.items() <= report.items()
    # The export itself is recorded as two events.
    assert printed == "wrote 59 events of 1 user to again\n"
    assert (tmp_path / "again" / "0000.parquet").exists()


def test_metadata_needs_no_key_store(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "home")

    ran = refold("export", "--format", "parquet", "--out", "out")

    assert (ran.code, ran.out) == (0, "wrote 57 events of 1 user to out\n")
    assert refold(
        "export", "--format", "parquet", "--columns", "all", "--out", "b"
    ).code
    assert not (tmp_path / "b").exists()
    assert refold("verify", "--export", "out").code == 0


def test_users_left_out_of_tables_are_counted(refold: Refold, sample: Path) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "one")
    refold("freeze", "--user", "ada", "--reason", "a lawsuit")

    ran = refold("export", "--format", "parquet", "--columns", "all", "--out", "out")

    assert ran.out == "wrote 57 events of 1 user to out, 1 left out\n"


def test_a_misspelt_database_is_an_error_and_no_empty_export(
    refold: Refold, tmp_path: Path
) -> None:
    ran = refold(
        "--db", "sqlite:///no.db", "export", "--format", "parquet", "--out", "x"
    )

    assert ran.code == 1
    assert "there is no database no.db" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "asked",
    [
        ["--format", "parquet"],
        ["--format", "parquet", "--out", "a", "--user", "lin"],
        ["--format", "parquet", "--out", "a", "--session", "run"],
        ["--columns", "all"],
        ["--buckets", "3"],
        ["--format", "parquet", "--out", "a", "--buckets", "0"],
    ],
)
def test_incomplete_options_of_tables_are_refused(
    asked: list[str], refold: Refold, sample: Path
) -> None:
    ran = refold("export", *asked)

    assert ran.code == 2
    assert "parquet" in ran.err or "buckets" in ran.err


def test_an_erasure_names_exports_and_their_places(
    refold: Refold, tmp_path: Path
) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "one")
    refold("export", "--user", "ada", "--out", "folder")
    refold("export", "--out", "events.jsonl")
    refold("export", "--user", "ada", "--session", "one", "--format", "atif")
    refold("export", "--out", tmp_path)  # fails without having copied anything
    places = ["folder: {}/folder ", "events: {}/events.jsonl ", "atif: stdout "]

    plan = refold("erase", "--user", "ada", "--dry-run").out
    ran = refold("erase", "--user", "ada", "--reason", "asked", "--yes")

    for output in (plan, ran.out):
        assert output.count("delete the export of") == 3
        assert "which Refold cannot" in output
        for place in places:
            assert place.format(tmp_path) in output
