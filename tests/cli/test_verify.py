"""``verify`` proves what it can and reports what does not hold."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Refold


def flip_bit_of_event(path: Path, seq: int) -> None:
    """Flip one bit of a stored event."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DROP TRIGGER events_refuse_update")
        (body,) = connection.execute(
            "SELECT body FROM events WHERE seq = ?", (seq,)
        ).fetchone()
        turned = body[:-1] + bytes([body[-1] ^ 1])
        connection.execute("UPDATE events SET body = ? WHERE seq = ?", (turned, seq))
    connection.close()


def test_an_undamaged_store_verifies(refold: Refold, sample: Path) -> None:
    ran = refold("verify", "--json")

    assert ran.code == 0
    assert ran.json() == {
        "ok": True,
        "sessions": 1,
        "events": 57,
        "compactions": 0,
        "requests": 0,
        "superseded": 0,
        "superseded_digests": 0,
        "seals": {
            "tree_heads": 0,
            "leaves": 0,
            "erased": 0,
            "anchored": 0,
            "unsealed": 1,
        },
        "problems": [],
    }


def test_people_see_a_total(refold: Refold, sample: Path) -> None:
    ran = refold("verify")

    assert ran.code == 0
    sealed, total = ran.out.splitlines()
    assert sealed.startswith("no seals yet")
    assert total == "✓ unchanged since it was written: 1 session, 57 events"


def test_verbose_adds_a_line_for_each_session(refold: Refold, sample: Path) -> None:
    refold("compact", "--user", "lin", "--session", "run", "--strategy", "turn_window")

    ran = refold("verify", "-v")

    first, *_ = ran.out.splitlines()
    assert first == "✓ lin / run  58 events, including 1 compaction"


@pytest.mark.parametrize("mode", ["--chain-only", "--since-seal"])
def test_verify_without_keys_names_its_limits(
    refold: Refold, sample: Path, mode: str
) -> None:
    ran = refold("verify", mode)

    assert ran.code == 0
    assert "since it was written" not in ran.out
    assert "chains link up" in ran.out
    assert "no keys were used" in ran.out


def test_since_seal_says_that_holds_are_skipped(refold: Refold, sample: Path) -> None:
    hold = refold("hold", "--user", "lin", "--name", "case", "--reason", "a lawsuit")
    assert hold.code == 0
    with closing(sqlite3.connect(sample)) as database, database:
        database.execute("DELETE FROM holds")

    since_seal = refold("verify", "--since-seal")
    chain_only = refold("verify", "--chain-only")

    assert since_seal.code == 0
    assert "not checked: events before the newest seals" in since_seal.out
    assert "holds" in since_seal.out
    assert "not checked" not in chain_only.out
    assert chain_only.code == 1


@pytest.mark.parametrize("floor", [2**63 - 1, -5, "many"])
def test_a_changed_floor_is_found_and_stops_no_append(
    refold: Refold, sample: Path, floor: object
) -> None:
    database = sqlite3.connect(sample)
    with database:
        database.execute("DELETE FROM settings WHERE name = 'floor'")
        database.execute("INSERT INTO settings VALUES ('floor', ?)", (floor,))
    database.close()

    ran = refold("verify")
    consent = refold("consent", "--user", "lin", "--grant", "training")
    again = refold("consent", "--user", "lin", "--withdraw", "training")

    assert ran.code == 1
    assert "'floor'" in ran.out
    assert (consent.code, again.code) == (0, 0), (consent.err, again.err)


def test_compactions_are_counted(refold: Refold, sample: Path) -> None:
    strategy = "turn_window:full_turns=2,cached_turns=2"
    refold(
        "compact",
        "--user",
        "lin",
        "--session",
        "run",
        "--strategy",
        strategy,
        "--until-idle",
    )

    report = refold("verify", "--user", "lin", "--session", "run", "--json").json()

    assert (report["ok"], report["events"], report["compactions"]) == (True, 59, 2)


def test_damage_is_found_and_located(refold: Refold, sample: Path) -> None:
    flip_bit_of_event(sample, 7)

    ran = refold("verify", "--json")

    report = ran.json()
    assert ran.code == 1
    assert report["ok"] is False
    problem = report["problems"][0]
    assert (problem["user_id"], problem["session_id"], problem["seq"]) == (
        "lin",
        "run",
        7,
    )


def test_people_see_what_is_wrong(refold: Refold, sample: Path) -> None:
    flip_bit_of_event(sample, 7)

    ran = refold("verify")

    assert ran.code == 1
    assert "✗ lin / run" in ran.out
    assert "seq 7" in ran.out
    assert "in 1 session" in ran.out


def test_since_seal_checks_only_newer_events(refold: Refold, sample: Path) -> None:
    assert refold("seal").code == 0
    session = ("--user", "lin", "--session", "run")
    refold("label", *session, "project=tea")

    report = refold("verify", "--since-seal", "--json").json()

    assert (report["ok"], report["sessions"], report["events"]) == (True, 1, 1)
    assert report["seals"]["tree_heads"] == 1
    assert refold("verify", "--since-seal", "--user", "lin").code == 2
