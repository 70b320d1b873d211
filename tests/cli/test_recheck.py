"""``redact --recheck`` scans stored events with new rules and redacts them."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold as package
from tests.cli.conftest import CommandResult, Refold
from tests.support.redacting import MAIL


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that was written while only secrets were redacted."""
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    url = f"sqlite:///{tmp_path / 'a.db'}"
    secrets_alone = package.Policy.of_packs(["secrets"]).with_engine("stdlib")
    with package.open(url, policy=secrets_alone) as store:
        store.session(user_id="ada", session_id="s").append(
            [package.UserInput(text="line\n" * 14_000 + MAIL), package.Final(text="x")]
        )
        store.session(user_id="bob", session_id="s").append(
            package.UserInput(text="fine")
        )
    return url


@pytest.fixture
def recheck(refold: Refold, url: str) -> Refold:
    """Run ``refold redact --recheck`` on that store."""

    def run(*arguments: object) -> CommandResult:
        return refold(
            "--db", url, "redact", "--recheck", "--engine", "stdlib", *arguments
        )

    return run


def test_a_recheck_prints_places_and_types_and_no_value(recheck: Refold) -> None:
    code, out, _ = recheck()

    assert code == 0
    assert "! ada / s  1 finding" in out
    assert "seq 1  EMAIL, also in 1 blob" in out
    assert "✓ bob / s  nothing found" in out
    assert "1 finding in 3 events of 2 sessions: add --apply" in out
    assert MAIL not in out


def test_json_has_the_same_findings(recheck: Refold) -> None:
    report = recheck("--json").json()

    assert report["exposures"] == [
        {
            "user_id": "ada",
            "session_id": "s",
            "stream": "main",
            "seq": 1,
            "where": "event",
            "types": {"EMAIL": 1},
            "blobs": 1,
        }
    ]
    assert (report["applied"], report["sessions"], report["events"]) == (False, 2, 3)
    assert (report["superseded"], report["unfinished"], report["problems"]) == (
        0,
        [],
        [],
    )


def test_findings_are_replaced_once(url: str, recheck: Refold) -> None:
    first = recheck("--apply", "--json").json()
    again = recheck("--apply", "--json").json()

    assert (first["applied"], first["superseded"], first["blobs"]) == (True, 1, 1)
    assert (again["superseded"], again["exposures"]) == (0, [])
    with package.open(url) as store:
        assert [verified.superseded for _, verified in store.verify()] == [1, 0]


def test_people_see_what_was_replaced(recheck: Refold) -> None:
    code, out, _ = recheck("--apply", "--user", "ada")

    assert code == 0
    assert "✓ ada / s  1 event replaced, under a new key" in out
    assert "bob" not in out


def test_verify_counts_superseded_events(
    url: str, refold: Refold, recheck: Refold
) -> None:
    recheck("--apply")

    assert "1 superseded event" in refold("--db", url, "verify").out
    report = refold("--db", url, "verify", "--json").json()
    assert (report["ok"], report["superseded"], report["superseded_digests"]) == (
        True,
        1,
        0,
    )


def test_replaced_values_are_in_no_export(
    url: str, refold: Refold, recheck: Refold
) -> None:
    before = refold("--db", url, "export").out

    recheck("--apply")

    after = refold("--db", url, "export").out
    assert MAIL in before
    assert MAIL not in after
    assert "[REDACTED:EMAIL]" in after


def test_a_recheck_uses_the_rules_of_the_policy(
    recheck: Refold, tmp_path: Path
) -> None:
    (tmp_path / "china.toml").write_text('version = 1\npacks = ["pii-cn"]')

    assert recheck("--policy", "china.toml", "--json").json()["types"] == {}
    assert recheck("--packs", "pii-common", "--json").json()["types"] == {"EMAIL": 1}


def test_only_the_named_sessions_are_scanned(recheck: Refold) -> None:
    assert recheck("--user", "bob", "--session", "s", "--json").json()["sessions"] == 1
    assert recheck("--user", "eve").code == 1


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--recheck", "notes.txt"], "use FILE without --recheck"),
        (["--recheck", "-"], "use FILE without --recheck"),
        (["--recheck", "--format", "json"], "use --format without --recheck"),
        (["--apply"], "use --apply with --recheck"),
        (["--user", "ada"], "use --user with --recheck"),
        (["--session", "s"], "use --session with --recheck"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    url: str, refold: Refold, args: list[str], reason: str
) -> None:
    ran = refold("--db", url, "redact", *args, stdin=MAIL.encode())

    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_recheck_creates_no_store(refold: Refold, tmp_path: Path) -> None:
    assert refold("redact", "--recheck").code == 1
    assert not (tmp_path / "refold.db").exists()
