"""``seal`` signs and anchors; ``prove`` writes what ``verify --proof`` checks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from refold import auditor
from refold.adapters.keys.signatures import read_public_key
from tests.cli.conftest import ROOT, Refold
from tests.support import warm

EVENT = ("--user", "lin", "--session", "run", "--seq", "7")


def test_a_seal_is_reported_and_anchored(refold: Refold, sample: Path) -> None:
    head = refold("seal", "--json").json()

    assert (head["size"], len(head["root"])) == (1, 64)
    (anchor,) = (sample.parent / "home" / "anchors").glob("*.jsonl")
    assert json.loads(anchor.read_text()) == head
    assert refold("seal", "--list", "--json").json() == [head]
    assert refold("verify", "--json").json()["seals"] == {
        "tree_heads": 1,
        "leaves": 1,
        "erased": 0,
        "anchored": 1,
        "unsealed": 0,
    }


def test_people_see_what_was_sealed(refold: Refold, sample: Path) -> None:
    before = refold("verify")
    sealed = refold("seal")
    after = refold("verify")

    assert "no seals yet" in before.out
    assert sealed.out.startswith("1 leaf  sealed 20")
    assert refold("seal", "--list").out == sealed.out
    assert "✓ seals  1 tree head, 1 anchored, 1 leaf" in after.out
    assert (before.code, sealed.code, after.code) == (0, 0, 0)


def test_verify_for_one_user_does_not_mention_the_tree(
    refold: Refold, sample: Path
) -> None:
    refold("seal")

    assert refold("verify", "--user", "lin", "--json").json()["seals"] is None


def test_an_anchor_can_be_named(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ANCHOR", "elsewhere/anchor.jsonl")

    refold("seal")

    assert (sample.parent / "elsewhere" / "anchor.jsonl").exists()


def test_an_old_backup_of_the_database_is_detected(
    refold: Refold, sample: Path
) -> None:
    refold("seal")
    with sqlite3.connect(sample) as connection:
        connection.execute("DELETE FROM tree_heads")
    connection.close()

    ran = refold("verify")
    again = refold("seal")

    assert ran.code == again.code == 1
    assert "anchor" in ran.out
    assert "✗ seals" in ran.out
    assert "not in the database" in again.err


def test_a_written_proof_verifies(refold: Refold, sample: Path) -> None:
    refold("seal")
    refold("prove", "--public-key", "--out", "key.pem")
    refold("prove", *EVENT, "--out", "proof.json")

    ran = refold("verify", "--proof", "proof.json", "--public-key", "key.pem")
    own = refold("verify", "--proof", "proof.json", "--json")

    assert ran.code == own.code == 0
    assert "holds: event 7" in ran.out
    assert own.json()["ok"] is True
    key = read_public_key(Path("key.pem").read_text())
    assert key == auditor.read_key(Path("key.pem").read_text())
    assert auditor.main(["proof.json", "--public-key", "key.pem"]) == 0


def test_a_changed_proof_does_not_verify(refold: Refold, sample: Path) -> None:
    refold("seal")
    proof = json.loads(refold("prove", *EVENT).out)
    proof["event"]["user_id"] = "somebody"
    Path("proof.json").write_text(json.dumps(proof))

    ran = refold("verify", "--proof", "proof.json")

    assert ran.code == 1
    assert "does not hold" in ran.out


def test_a_tree_is_proved_to_extend_the_earlier_one(
    refold: Refold, sample: Path
) -> None:
    refold("seal")
    source = ROOT / "examples" / "sample" / "agent_run.jsonl"
    refold("import", source, "--user", "lin", "--session", "other")
    refold("seal")
    refold("prove", "--from", 1, "--to", 2, "--out", "growth.json")

    ran = refold("verify", "--proof", "growth.json")

    assert (ran.code, ran.err) == (0, "")
    beginning = "is the unchanged beginning of the log that the tree head of size 2"
    assert beginning in ran.out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("prove",), 2, "--session and --seq"),
        (("prove", "--user", "lin", "--session", "run"), 2, "--seq"),
        (("prove", *EVENT, "--from", "1"), 2, "--from and --to"),
        (("prove", "--from", "1"), 2, "--from and --to"),
        (("prove", *EVENT), 1, "no tree head yet"),
        (("prove", "--from", "1", "--to", "2"), 1, "no tree head of size 1"),
        (("prove", "--user", "lin", "--session", "none", "--seq", "1"), 1, "session"),
        (("seal", "--every", "5"), 2, "use --every with --watch"),
        (("seal", "--list", "--sweep"), 2, "leave --list out to seal"),
        (("seal", "--watch", "--every", "0"), 2, "intervals and the lease"),
        (("verify", "--proof", "none.json"), 1, "no such file"),
        (("verify", "--proof", "refold.db"), 2, "is not a proof"),
    ],
)
def test_errors_of_seal_and_prove_are_one_sentence(
    refold: Refold, sample: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    ran = refold(*args)

    assert ran.code == code
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_invalid_key_is_reported(refold: Refold, sample: Path) -> None:
    refold("seal")
    refold("prove", *EVENT, "--out", "proof.json")
    Path("key.pem").write_bytes(b"\xff not a key")

    ran = refold("verify", "--proof", "proof.json", "--public-key", "key.pem")

    assert ran.code == 2
    assert "not an Ed25519 public key" in ran.err


def test_watch_seals_until_it_is_stopped(sample: Path) -> None:
    environment = {**os.environ, "REFOLD_DB": f"sqlite:///{sample}"}
    watching = warm.code(
        "from refold.adapters.cli import main\n"
        "raise SystemExit(main(['seal', '--watch', '--every', '0.05', '--json']))",
        cwd=ROOT,
        environment=environment,
    )
    first = json.loads(watching.stdout.readline())
    watching.send_signal(signal.SIGTERM)
    rest, errors = watching.communicate()

    assert (first["size"], rest, errors, watching.returncode) == (1, "", "", 0)
