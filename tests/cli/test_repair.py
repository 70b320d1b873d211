"""``repair`` reports damage, and repairs it only with ``--apply``."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Refold


def execute_sql(sample: Path, *statements: str) -> None:
    with closing(sqlite3.connect(sample)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_an_undamaged_store_needs_no_repair(refold: Refold, sample: Path) -> None:
    ran = refold("repair")

    assert ran.code == 0
    assert ran.out.strip() == "1 session checked; no damage"


def test_a_lost_head_is_reported_then_repaired(refold: Refold, sample: Path) -> None:
    execute_sql(sample, "DELETE FROM heads")

    report = refold("repair")
    mended = refold("repair", "--user", "lin", "--session", "run", "--apply", "--json")

    assert report.code == 1
    assert "! lin / run  head: the head is gone" in report.out
    assert "1 to repair: add --apply" in report.out
    assert mended.code == 0
    assert mended.json()["mended"] == 1
    assert refold("verify").code == 0
    assert refold("repair").code == 0


def test_lost_events_stay_lost(refold: Refold, sample: Path) -> None:
    execute_sql(
        sample,
        "DROP TRIGGER events_refuse_delete",
        "DELETE FROM events WHERE seq > 50",
    )

    ran = refold("repair", "--apply")

    assert ran.code == 1
    assert "seq 51 to 57 are gone; restore them from a backup" in ran.out
    assert refold("verify").code == 1


def test_repair_refuses_an_unknown_user(refold: Refold, sample: Path) -> None:
    assert refold("repair", "--user", "nobody").code == 1
    assert refold("repair", "--session", "run").code == 2
