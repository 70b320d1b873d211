"""The example package adds an importer, a strategy, a pack and a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.packages import EXAMPLE, install_example, run_refold


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip installed the example."""
    folder = tmp_path_factory.mktemp("example")
    install_example(folder, folder / "installed")
    return folder / "installed"


@pytest.fixture
def database(target: Path, tmp_path: Path) -> str:
    """A store into which the tickets of the example were imported."""
    url = f"sqlite:///{tmp_path}/tickets.db"
    imported = run_refold(
        target, "import", EXAMPLE / "tickets.json", "--user", "ada", "--db", url
    )
    assert imported.returncode == 0, imported.stderr
    return url


def test_a_file_of_the_format_is_recognised_and_imported_once(
    target: Path, database: str
) -> None:
    again = run_refold(
        target,
        "import",
        EXAMPLE / "tickets.json",
        "--user=ada",
        "--format=helpdesk",
        "--db",
        database,
        "--json",
    )

    assert again.stderr == ""
    assert json.loads(again.stdout) == {
        "sessions": ["T-17", "T-18"],
        "events": 0,
        "duplicates": 7,
        "redactions": {},
        "skipped": [],
        "damaged": [],
        "failed": [],
    }


def test_the_strategy_compacts_and_makes_contexts(target: Path, database: str) -> None:
    session = ("--user=ada", "--session=T-17", "--strategy=customer_posts:keep=1")

    compacted = run_refold(target, "compact", *session, "--db", database)
    context = run_refold(target, "context", *session, "--db", database)

    assert [compacted.stderr, context.stderr] == ["", ""]
    assert "compacted seq 1 to 4" in compacted.stdout
    assert "  summary  seq 1 to 4\n  raw      seq 5 to 6\n" in context.stdout


def test_the_pack_redacts_when_a_policy_names_it(target: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\npacks = ["secrets", "contracts"]\n')

    redacted = run_refold(
        target, "redact", "--policy", policy, stdin="CTR-204817 and CTR-20"
    )

    assert redacted.stderr == ""
    assert redacted.stdout == "[REDACTED:CONTRACT] and CTR-20"


def test_the_pack_redacts_what_is_appended(target: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\npacks = ["contracts"]\n')
    url = f"sqlite:///{tmp_path}/redacted.db"

    imported = run_refold(
        target,
        "import",
        EXAMPLE / "tickets.json",
        "--user=ada",
        "--db",
        url,
        "--json",
        REFOLD_POLICY=str(policy),
    )

    assert json.loads(imported.stdout)["redactions"] == {"CONTRACT": 1}


def test_the_command_is_listed_and_runs(target: Path, database: str) -> None:
    listed = run_refold(target, "--help")
    ran = run_refold(target, "tickets", "--user=ada", "--db", database)

    assert "\nOther:\n  tickets  Added by refold-helpdesk.\n" in listed.stdout
    assert ran.stderr == ""
    assert ran.stdout == "T-17: the customer\nT-18: the agent\n"


def test_without_the_package_its_names_are_unknown(
    database: str, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"

    command = run_refold(nothing, "tickets", "--user=ada", "--db", database)
    pack = run_refold(nothing, "redact", "--packs=contracts", stdin="CTR-204817")
    importer = run_refold(nothing, "import", "a.json", "--user=a", "--format=helpdesk")
    strategy = run_refold(
        nothing,
        "context",
        "--user=ada",
        "--session=T-17",
        "--strategy=customer_posts",
        "--db",
        database,
    )

    assert "No such command" in command.stderr
    assert "there is no pack of that name" in pack.stderr
    assert "there is no such format" in importer.stderr
    assert "there is no such strategy" in strategy.stderr
    for failed in (command, pack, importer, strategy):
        assert failed.returncode == 2
