"""``erase``, ``hold``, ``readmit`` and certificates; erasing asks for confirmation."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import refold as package
from tests.cli.conftest import Refold

LIN = ("--user", "lin")
ERASE = ("erase", *LIN, "--reason", "lin asked", "--yes")


@pytest.fixture(autouse=True)
def _lin_has_a_session(sample: Path) -> None:
    """Put lin's session into refold.db, in the working directory."""


def test_an_erasure_reports_deleted_rows_and_that_none_are_left(
    refold: Refold, tmp_path: Path
) -> None:
    ran = refold(*ERASE, "--out", tmp_path / "c.json", "--operator", "ops")

    assert ran.code == 0
    assert "erased: " in ran.out
    assert "0 rows left" in ran.out
    assert "salt" in ran.out
    assert (
        json.loads((tmp_path / "c.json").read_text())["certificate"]["scope"] == "user"
    )
    assert refold("sessions").out.strip() == "" or "lin" not in refold("sessions").out
    gone = refold("log", *LIN, "--session", "run")
    assert gone.code == 1
    assert "was erased" in gone.err


def test_counts_of_one_are_in_the_singular(refold: Refold, tmp_path: Path) -> None:
    with package.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        store.session(user_id="lin", session_id="run").context()

    plan = refold("erase", *LIN, "--dry-run")
    ran = refold(*ERASE)

    assert plan.out.startswith("would erase 1 session\n")
    assert re.search(
        r"erased: 1 record of last use, 57 events, 1 stream, 57 idempotency keys$",
        ran.out,
        re.MULTILINE,
    )
    assert "1 sessions" not in plan.out + ran.out


def test_an_erasure_names_data_in_words_and_fits_a_hundred_columns(
    refold: Refold, tmp_path: Path
) -> None:
    plan = refold("erase", *LIN, "--dry-run").out
    erased = refold(*ERASE).out

    assert "57" in plan
    for table in ("receipts", "heads", "blobs", "accesses"):
        assert table not in plan + erased
    assert " 0\n" not in plan
    assert max(map(len, (plan + erased).splitlines())) <= 100


def test_the_report_names_the_places_beyond_reach(refold: Refold) -> None:
    ran = refold(*ERASE, "--json")

    places = [entry["place"] for entry in json.loads(ran.out)["outside"]]
    assert "backups" in places
    assert "replicas and pg_wal of PostgreSQL" in places


def test_json_is_the_certificate_with_its_salt(refold: Refold) -> None:
    ran = refold(*ERASE, "--json")

    result = ran.json()
    assert result["certificate"]["act"] == "erased"
    assert result["certificate"]["counts"]["events"] > 50
    assert set(result["left"].values()) == {0}
    assert len(result["salt"]) == 64
    again = refold(*ERASE, "--json").json()
    assert again["already"]
    assert again["salt"] is None


def test_a_certificate_is_verified_and_a_forged_one_is_detected(
    refold: Refold, tmp_path: Path
) -> None:
    erased = refold(*ERASE, "--json")
    file = tmp_path / "c.json"
    key = tmp_path / "key.pem"
    file.write_text(erased.out)
    key.write_text(refold("prove", "--public-key").out)
    salt = erased.json()["salt"]

    assert refold("verify", "--certificate", file).code == 0
    assert refold("verify", "--certificate", file, "--public-key", key).code == 0
    check_subject = ("--certificate", file, "--salt", salt, "--user")
    assert refold("verify", *check_subject, "lin").code == 0
    assert "another user" in refold("verify", *check_subject, "bob").out

    for old, new in (("lin asked", "he asked"), ('"events":', '"event":')):
        file.write_text(
            erased.out.replace("[REDACTED:USER_ID] asked", "x").replace(old, new)
        )
        forged = refold("verify", "--certificate", file, "--json")
        assert forged.code == 1
        assert "forged" in forged.json()["problems"][0]
    file.write_text("{}")
    assert "not a certificate" in refold("verify", "--certificate", file).err

    file.write_text(erased.out)
    key.write_bytes(b"\x8c\xff")
    ran = refold("verify", "--certificate", file, "--public-key", key)
    assert (ran.code, "not an Ed25519 public key" in ran.err) == (2, True)


def test_a_dry_run_counts_and_changes_nothing(refold: Refold) -> None:
    ran = refold("erase", *LIN, "--dry-run", "--json")

    assert ran.json()["counts"]["events"] > 50
    assert ran.json()["sessions"] == ["run"]
    assert "would erase 1 session" in refold("erase", *LIN, "--dry-run").out
    assert refold("log", *LIN, "--session", "run").code == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--reason", "x"), "--user"),
        ((*LIN,), "--reason"),
        ((*LIN, "--reason", "x"), "--yes"),
        ((*LIN, "--reason", "x", "--yes", "--grace", "soon"), "30d"),
        ((*LIN, "--session", "_x", "--reason", "x", "--yes"), "reserved"),
    ],
)
def test_a_missing_argument_changes_nothing(
    refold: Refold, arguments: tuple[str, ...], why: str
) -> None:
    ran = refold("erase", *arguments)

    assert ran.code == 2
    assert why in ran.err
    assert refold("log", *LIN, "--session", "run").code == 0


def test_an_unknown_user_is_refused_and_nothing_is_signed(refold: Refold) -> None:
    ran = refold("erase", "--user", "nobdy", "--reason", "asked", "--yes")

    assert (ran.code, ran.out) == (1, "")
    assert "refold.db" in ran.err
    assert "--absent-ok" in ran.err
    assert refold("erase", "--list", "--json").json()["certificates"] == []
    done = refold("erase", "--user", "nobdy", "--reason", "x", "--yes", "--absent-ok")
    assert done.code == 0
    assert "nothing was stored" in done.out
    assert "refold.db" in done.out


@pytest.mark.parametrize(
    "command",
    [
        ("hold",),
        ("hold", "--name", "case", "--reason", "order"),
        ("hold", "--name", "case", "--reason", "order", "--release"),
        ("freeze",),
        ("freeze", "--reason", "order"),
        ("freeze", "--reason", "order", "--lift"),
        ("erase", "--list"),
        ("keys", "rotate"),
        ("search", "word"),
        ("restore", "--reason", "order"),
        ("readmit", "--reason", "order"),
    ],
    ids=" ".join,
)
def test_every_command_reports_a_mistyped_user(
    refold: Refold, command: tuple[str, ...]
) -> None:
    ran = refold(*command, "--user", "nobdy")

    assert (ran.code, ran.out) == (1, "")
    assert "user" in ran.err
    assert refold("erase", "--list", "--json").json()["certificates"] == []


@pytest.mark.parametrize(
    ("command", "has_option"),
    [
        (("keys", "rotate"), False),
        (("hold", "--name", "case", "--reason", "order"), True),
        (("freeze", "--reason", "order"), True),
        (("erase", "--reason", "asked", "--yes"), True),
    ],
)
def test_the_advice_names_only_options_of_the_command(
    refold: Refold, command: tuple[str, ...], has_option: bool
) -> None:
    ran = refold(*command, "--user", "nobdy")

    assert "check the name and the database" in ran.err
    assert ("--absent-ok" in ran.err) == has_option
    assert ("--absent-ok" in refold(command[0], "--help").out) == has_option


@pytest.mark.parametrize(
    "act", [("hold", "--name", "case"), ("freeze",)], ids=["hold", "freeze"]
)
def test_a_user_without_data_can_be_held_with_an_option(
    refold: Refold, act: tuple[str, ...]
) -> None:
    ran = refold(*act, "--user", "new", "--reason", "order", "--absent-ok")

    assert ran.code == 0
    assert refold(act[0], "--user", "new").code == 0
    assert refold("erase", "--list", "--user", "new").code == 0


def test_an_erasure_waits_for_its_grace(refold: Refold) -> None:
    scheduled = refold(*ERASE, "--grace", "30d")
    assert "refold restore" in scheduled.out
    assert refold("log", *LIN, "--session", "run").code == 1
    assert refold("erase", "--due", "--json").json() == []
    assert (
        refold("erase", "--list", "--json").json()["unfinished"][0]["stage"] == "held"
    )

    back = refold("restore", *LIN, "--reason", "a mistake", "--json")

    assert back.json()["certificate"]["act"] == "restored"
    assert refold("log", *LIN, "--session", "run").code == 0
    assert refold("verify").code == 0


def test_a_legal_hold_stops_an_erasure(refold: Refold) -> None:
    hold = ("hold", *LIN, "--name", "case-17", "--reason", "a court asked")
    assert "held: certificate" in refold(*hold).out
    assert "already" in refold(*hold).out

    stopped = refold(*ERASE)

    assert stopped.code == 1
    assert "case-17" in stopped.err
    assert "case-17" in refold("hold", *LIN).out
    assert "case-17" in refold("erase", *LIN, "--dry-run").out
    assert refold(*hold, "--release").code == 0
    assert refold(*ERASE).code == 0


def test_an_erased_user_can_be_readmitted(refold: Refold) -> None:
    refold(*ERASE)

    back = refold("readmit", *LIN, "--reason", "came back")

    assert "epoch 2" in back.out
    listed = refold("erase", "--list", *LIN)
    assert "readmitted" in listed.out
    assert "erased" in listed.out
    assert refold("readmit", *LIN, "--reason", "twice").code == 1


def test_keys_are_shown_and_replaced(refold: Refold) -> None:
    master = Path(refold("keys", "status", "--json").json()["master"])
    before = master.read_text()

    assert refold("keys", "rotate", "--master", "--json").json()["stale"] == 0
    assert master.read_text().split()[1] == before.strip()
    assert refold("keys", "rotate", "--master", "--drop-older").code == 0
    assert refold("keys", "rotate", *LIN, "--json").json() == {"sessions": 1}
    rotated = refold("keys", "rotate", *LIN, "--session", "run", "--json")

    assert rotated.json() == {"key_version": 2}
    assert len(master.read_text().split()) == 1
    assert master.read_text() != before
    assert refold("verify").code == 0
    assert refold("keys", "reconcile", "--json").json() == {"destroyed": 0}
    assert refold("keys", "rotate").code == 2
    assert refold("keys", "dance").code == 2


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"", 1), (b"y\n", 0)])
def test_erase_asks_for_confirmation_on_a_terminal(
    refold: Refold, sample: Path, answer: bytes, code: int
) -> None:
    ask = ("erase", "--user", "lin", "--reason", "asked for")

    ran = refold(*ask, stdin=answer, asked=True)

    assert ran.code == code
    assert "Erase 57 events of 1 session for good?" in ran.err
    assert ("nothing was done" in ran.err) is bool(code)
    assert (refold("sessions", "--user", "lin", "--json").json() != []) is bool(code)


def test_a_dry_run_for_an_unknown_user_is_an_error(refold: Refold) -> None:
    ran = refold("erase", "--user", "nobody", "--dry-run")

    assert (ran.code, ran.out) == (1, "")
    assert "there is nothing of that user" in ran.err
    session = refold("erase", *LIN, "--session", "none", "--dry-run")
    assert (session.code, session.out) == (1, "")
    assert "none" in session.err
    allowed = ("erase", "--user", "nobody", "--dry-run", "--absent-ok")
    assert refold(*allowed).code == 0


def test_a_repeated_erasure_is_reported_as_such(refold: Refold) -> None:
    first = refold(*ERASE)
    (certificate,) = re.findall(r"certificate  (\S+)", first.out)

    again = refold(*ERASE)

    assert again.code == 0
    assert "erased before, at 20" in again.out
    assert "nothing was left to erase" in again.out
    assert f"certificate  {certificate}  (signed then)" in again.out
    assert "key destroyed" not in again.out
    assert "events" not in again.out
    assert "erased before" in refold("erase", *LIN, "--dry-run").out


def test_an_erasure_without_its_record_is_reported(
    refold: Refold, sample: Path
) -> None:
    refold(*ERASE, "--grace", "30d")
    with closing(sqlite3.connect(sample)) as connection:
        connection.execute("DELETE FROM erasures")
        connection.commit()

    due = refold("erase", "--due")
    listed = refold("erase", "--list")

    assert due.code == 1
    assert "`refold restore` undoes it" in due.out
    assert "`refold restore` undoes it" in listed.out
    assert refold("erase", "--list", "--json").json()["stranded"] == [
        {"user_id": "lin", "sessions": None, "restorable": True}
    ]
    assert refold("restore", *LIN, "--reason", "a mistake").code == 0
    assert refold("log", *LIN, "--session", "run").code == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--due", "--user", "lin"), "--due completes the erasures of all users"),
        (("--due", "--reason", "asked"), "--due completes the erasures of all users"),
        (("--due", "--dry-run"), "give only one of --due and --dry-run"),
        (("--list", "--due"), "give only one of --list and --due"),
    ],
)
def test_options_of_an_erasure_that_would_be_ignored_are_refused(
    refold: Refold, sample: Path, options: tuple[str, ...], why: str
) -> None:
    ran = refold("erase", *options, "--yes")

    assert ran.code == 2
    assert why in ran.err
    assert refold("log", "--user", "lin", "--session", "run").code == 0
