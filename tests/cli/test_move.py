"""``refold move`` moves a store, and explains what to do with its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SAMPLE, Refold


@pytest.fixture
def sqlite_store_with_run(refold: Refold, tmp_path: Path) -> str:
    """Import a run into a SQLite store and return its path."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    assert refold("--db", url, "import", SAMPLE, "--user", "ada").code == 0
    return url


def test_a_store_moves_with_its_keys(
    refold: Refold,
    sqlite_store_with_run: str,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = f"sqlite:///{tmp_path / 'keys.db'}"

    ran = refold(
        "--db", sqlite_store_with_run, "move", "--to", postgres_url, "--keys-to", keys
    )

    assert ran.code == 0, ran.err
    assert "all heads are equal, the old store is closed" in ran.out
    assert "destroy the old one" in ran.out
    monkeypatch.setenv("REFOLD_KEYS", keys)
    assert refold("--db", postgres_url, "verify", "--json").json()["ok"]
    again = refold("--db", sqlite_store_with_run, "move", "--to", postgres_url)
    assert (again.code, again.out) == (0, "the store was moved there before\n")


def test_programs_get_the_number_of_rows(
    refold: Refold, sqlite_store_with_run: str, postgres_url: str
) -> None:
    ran = refold("--db", sqlite_store_with_run, "move", "--to", postgres_url, "--json")

    rows = ran.json()["rows"]
    assert rows["heads"] == 1
    assert rows["events"] > 1


def test_a_moved_store_names_the_new_one(
    refold: Refold, sqlite_store_with_run: str, postgres_url: str
) -> None:
    refold("--db", sqlite_store_with_run, "move", "--to", postgres_url)

    ran = refold("--db", sqlite_store_with_run, "sessions")

    assert ran.code == 1
    assert ran.err.startswith("refold: this store was moved to postgresql://")
    assert ":***@" in ran.err  # its password is not stored
    assert ran.err.endswith(": open it there\n")


def test_a_misspelt_source_store_is_not_created(
    refold: Refold, postgres_url: str, tmp_path: Path
) -> None:
    ran = refold("--db", f"sqlite:///{tmp_path / 'x.db'}", "move", "--to", postgres_url)

    assert ran.code == 1
    assert "there is no database" in ran.err
    assert not (tmp_path / "x.db").exists()


def test_a_target_that_is_not_postgresql_is_refused(
    refold: Refold, sqlite_store_with_run: str
) -> None:
    ran = refold("--db", sqlite_store_with_run, "move", "--to", "sqlite:///other.db")

    assert ran.code == 2
    assert "the target of a move must be a postgresql:// URL" in ran.err
