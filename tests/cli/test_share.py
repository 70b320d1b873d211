"""``share`` shares a run only if the strictest rules find nothing in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import refold as package
from refold.adapters.cli.commands import share
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


def served(refold: Refold, *more: object) -> str:
    """Create a link that lasts a week, and return its id."""
    ran = refold("share", *RUN, "--expires", "7d", "--yes", "--json", *more)
    assert ran.code == 0, ran.err
    return str(ran.json()["share"])


def test_a_link_is_printed_with_its_end(refold: Refold, tmp_path: Path) -> None:
    record(tmp_path)

    ran = refold(
        "share", *RUN, "--expires", "7d", "--url", "https://host/refold/", "--yes"
    )

    assert ran.code == 0, ran.err
    assert "contains 2 events" in ran.out
    assert re.search(r"^https://host/refold/shared/[\w-]{100,}$", ran.out, re.M)
    assert re.search(r"can read the run until \d{4}-\d\d-\d\d ", ran.out)
    assert "--url" not in ran.out


def test_a_link_without_an_address_begins_with_its_path(
    refold: Refold, tmp_path: Path
) -> None:
    record(tmp_path)

    ran = refold("share", *RUN, "--expires", "1m", "--yes")

    assert re.search(r"^/shared/[\w-]+$", ran.out, re.M)
    assert "put the address of `refold serve` before it" in ran.out


def test_links_are_listed_and_revoked(refold: Refold, tmp_path: Path) -> None:
    record(tmp_path)
    first = served(refold)
    second = served(refold)

    listed = refold("share", "--user", "ada", "--list")
    revoked = refold("share", "--user", "ada", "--revoke", first)
    left = refold("share", *RUN, "--list", "--json").json()
    again = refold("share", "--user", "ada", "--revoke", first)

    assert first in listed.out
    assert second in listed.out
    assert "session s, shared " in listed.out
    assert "/shared/" not in listed.out
    assert revoked.code == 0, revoked.err
    assert [share["share"] for share in left] == [second]
    assert again.code == 1
    assert "there is no share of that id" in again.err


def test_a_run_with_findings_of_any_pack_gets_no_link(
    refold: Refold, tmp_path: Path
) -> None:
    record(tmp_path, "secrets", text=f"Write to {MAIL}.")

    ran = refold("share", *RUN, "--expires", "7d", "--yes")

    assert ran.code == 1
    assert "the rules of all packs find" in ran.err
    assert refold("share", "--user", "ada", "--list", "--json").json() == []


def test_a_fork_of_a_run_with_findings_is_not_shared(
    refold: Refold, tmp_path: Path
) -> None:
    record(tmp_path, "secrets", text=f"Write to {MAIL}.")
    policy = package.Policy.of_packs(("secrets",))
    with package.open(f"sqlite:///{tmp_path / 'refold.db'}", policy=policy) as store:
        parent = store.session(user_id="ada", session_id="s")
        parent.fork(1, session_id="fork").append(package.UserInput(text="Go on."))

    ran = refold(
        "share", "--user", "ada", "--session", "fork", "--expires", "7d", "--yes"
    )

    assert ran.code == 1
    assert "--session s " in ran.err


def test_a_link_needs_a_confirmation(refold: Refold, tmp_path: Path) -> None:
    record(tmp_path)

    unasked = refold("share", *RUN, "--expires", "7d")
    refused = refold("share", *RUN, "--expires", "7d", stdin=b"n\n", asked=True)

    assert "add --yes" in unasked.err
    assert refused.code != 0
    assert refold("share", *RUN, "--list", "--json").json() == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "choose one of these: --out FILE writes the run"),
        (("--out", "run.html", "--expires", "7d"), "exclude each other"),
        (("--list", "--revoke", "x"), "exclude each other"),
        (("--expires", "59s"), "write 1m to 365d"),
        (("--expires", "366d"), "write 1m to 365d"),
        (("--expires", "999999d"), "write 1m to 365d"),
        (("--expires", "soon"), "write a time as a number"),
        (("--expires", "7d", "--url", "host"), "write the address of the server"),
        (("--expires", "7d", "--url", "ftp://host"), "write the address of the server"),
        (("--expires", "7d", "--url", "https://a:b@h"), "write the address"),
        (("--expires", "7d", "--url", "https://h:x"), "write the address"),
        (("--out", "run.html", "--url", "https://host"), "--url belongs to --expires"),
        (("--expires", "7d", "--lang", "zh"), "--lang belongs to --out"),
    ],
)
def test_arguments_are_checked_before_anything_happens(
    refold: Refold, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    record(tmp_path)

    ran = refold("share", *RUN, *arguments, "--yes")

    assert ran.code == 2
    assert reason in ran.err
    assert not (tmp_path / "run.html").exists()
    assert refold("share", *RUN, "--list", "--json").json() == []


def test_only_a_list_needs_no_session(refold: Refold, tmp_path: Path) -> None:
    record(tmp_path)

    ran = refold("share", "--user", "ada", "--expires", "7d", "--yes")

    assert ran.code == 2
    assert "name the session" in ran.err


def test_events_of_the_origin_of_a_fork_are_checked(
    refold: Refold, tmp_path: Path
) -> None:
    policy = package.Policy.of_packs(("secrets",))
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    with package.open(url, policy=policy) as store:
        origin = store.session(user_id="ada", session_id="origin")
        origin.append(package.UserInput(text=f"Write to {MAIL}."))
        origin.append(package.AgentResponse(text="I will."))
        fork = origin.fork(2, session_id="s")
        fork.append(package.UserInput(text="Go on."))

    ran = refold("share", *RUN, "--out", "run.html", "--yes")

    assert ran.code == 1
    assert "--session origin" in ran.err
    assert not (tmp_path / "run.html").exists()


def test_events_after_the_check_are_not_shared(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path)
    policy = package.Policy.of_packs(("secrets",))

    def append_and_confirm(*_: object, **__: object) -> None:
        with package.open(
            f"sqlite:///{tmp_path / 'refold.db'}", policy=policy
        ) as store:
            session = store.session(user_id="ada", session_id="s")
            session.append(package.UserInput(text=f"Write to {MAIL}."))

    monkeypatch.setattr(share, "_confirm", append_and_confirm)

    ran = refold("share", *RUN, "--out", "run.html", "--yes")

    assert ran.code == 1
    assert "it got new events" in ran.err
    assert not (tmp_path / "run.html").exists()


def test_a_finding_in_a_name_is_reported_with_its_place(
    refold: Refold, tmp_path: Path
) -> None:
    policy = package.Policy.of_packs(("secrets",))
    with package.open(f"sqlite:///{tmp_path / 'refold.db'}", policy=policy) as store:
        session = store.session(user_id="ada", session_id="s")
        call = package.ToolCall(call_id="1", tool_name=f"ask {MAIL}", arguments={})
        session.append(call)

    ran = refold("share", *RUN, "--out", "run.html", "--yes")

    assert "names in its state" in ran.err
    assert "None" not in ran.err
