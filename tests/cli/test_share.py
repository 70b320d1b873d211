"""``share`` writes a run as a file only if the strictest rules find nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold as package
from tests.cli.conftest import Refold
from tests.support.redacting import MAIL

RUN = ("--user", "ada", "--session", "s")


def record(tmp_path: Path, *packs: str, text: str = "Fix the build.") -> None:
    """Record a run of ada under a policy with these packs; no packs: the default."""
    policy = package.Policy.of_packs(packs) if packs else None
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    with package.open(url, policy=policy) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(package.UserInput(text=text))
        session.append(package.Final(text="Done.", outcome="success"))


def test_a_share_says_that_it_cannot_expire(refold: Refold, tmp_path: Path) -> None:
    record(tmp_path)

    ran = refold("share", *RUN, "--out", "run.html", "--yes")

    page = (tmp_path / "run.html").read_text()
    assert ran.code == 0, ran.err
    assert "contains 2 events" in ran.out
    assert "the file cannot expire" in ran.out
    assert "This file cannot expire" in page
    assert "Fix the build." in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_run_with_findings_of_any_pack_is_not_shared(
    refold: Refold, tmp_path: Path
) -> None:
    record(tmp_path, "secrets", text=f"Write to {MAIL}.")

    ran = refold("share", *RUN, "--out", "run.html", "--yes")

    assert ran.code == 1
    assert "the rules of all packs find" in ran.err
    assert "seq 1" in ran.err
    assert MAIL not in ran.err + ran.out
    assert not (tmp_path / "run.html").exists()


def test_nothing_is_written_without_a_confirmation(
    refold: Refold, tmp_path: Path
) -> None:
    record(tmp_path)

    unasked = refold("share", *RUN, "--out", "run.html")
    refused = refold("share", *RUN, "--out", "run.html", stdin=b"n\n", asked=True)

    assert unasked.code != 0
    assert refused.code != 0
    assert "contains 2 events" in refused.out
    assert not (tmp_path / "run.html").exists()


def test_an_erasure_names_the_shared_file(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")
    record(tmp_path)
    refold("share", *RUN, "--out", "run.html", "--yes")

    audited = refold("audit", "--user", "ada", "--json").out
    erased = refold("erase", "--user", "ada", "--reason", "asked", "--yes", "--json")

    assert '"export"' in audited
    assert str(tmp_path / "run.html") in erased.out
