"""``consent``, ``freeze``, ``retain``, ``export --out``: a user's rights."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from refold.store import store as clocks
from tests.cli.conftest import Refold


@pytest.fixture
def one_month_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of every new store one month forward."""
    now = clocks.now
    month = timedelta(days=31) // timedelta(microseconds=1)
    init = clocks.SessionStore.__init__
    later = {**(init.__kwdefaults__ or {}), "clock": lambda: now() + month}
    monkeypatch.setattr(init, "__kwdefaults__", later)


def test_consent_is_shown_and_changed(refold: Refold, sample: Path) -> None:
    assert refold("consent", "--user", "lin", "--json").json() == {
        "memory_opt_out": False,
        "declarative_memory": False,
        "consent": {},
    }

    granted = refold("consent", "--user", "lin", "--grant", "declarative_memory")
    out = refold("consent", "--user", "lin", "--opt-out", "--json").json()
    back = refold("consent", "--user", "lin", "--opt-in", "--json").json()
    gone = refold("consent", "--user", "lin", "--withdraw", "declarative_memory")

    assert "declarative memory  allowed" in granted.out
    assert (out["memory_opt_out"], out["declarative_memory"]) == (True, False)
    assert (back["memory_opt_out"], back["declarative_memory"]) == (False, True)
    assert "declarative memory  not allowed" in gone.out


@pytest.mark.parametrize(
    "args",
    [
        ("consent", "--user", "lin", "--reason", "asked"),
        ("hold", "--user", "lin", "--reason", "a lawsuit"),
        ("hold", "--user", "lin", "--release"),
        ("keys", "status", "--user", "lin"),
        ("keys", "status", "--drop-older"),
        ("keys", "reconcile", "--master"),
        ("keys", "rotate", "--user", "lin", "--drop-older"),
        ("keys", "rotate", "--master", "--session", "run"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    ran = refold(*args)

    assert (ran.code, ran.out) == (2, "")


def test_a_previous_master_key_in_the_environment_is_not_reported_as_dropped(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (tmp_path / "home" / "master.key").read_text().strip()
    monkeypatch.setenv("REFOLD_MASTER_KEY", key)

    ran = refold("keys", "rotate", "--master", "--drop-older")

    assert (ran.code, ran.out) == (2, "")
    assert "REFOLD_MASTER_KEY: remove the previous one from there" in ran.err


@pytest.mark.parametrize(
    "args", [("--grant", "a", "--withdraw", "b"), ("--opt-in", "--opt-out")]
)
def test_two_changes_of_consent_in_one_command_are_refused(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    ran = refold("consent", "--user", "lin", *args)

    assert (ran.code, ran.out) == (2, "")


def test_a_freeze_is_set_shown_and_lifted(refold: Refold, sample: Path) -> None:
    set_ = refold("freeze", "--user", "lin", "--reason", "disputed", "--json").json()
    shown = refold("freeze", "--user", "lin")
    refused = refold("consent", "--user", "lin", "--opt-out")
    lifted = refold("freeze", "--user", "lin", "--lift", "--reason", "over", "--json")

    assert set_["frozen"] is True
    assert set_["certificate"]["certificate"]["act"] == "frozen"
    assert shown.out == "frozen\n"
    assert refused.code == 1
    assert "frozen" in refused.err
    assert lifted.json()["frozen"] is False
    assert refold("consent", "--user", "lin", "--opt-out").code == 0


def test_lifting_a_freeze_needs_a_reason(refold: Refold, sample: Path) -> None:
    assert refold("freeze", "--user", "lin", "--lift").code == 2


def test_retain_erases_the_sessions_that_a_dry_run_names(
    refold: Refold, sample: Path, one_month_later: None
) -> None:
    planned = refold("retain", "--preset", "seed", "--dry-run")
    assert "lin / run" in planned.out
    assert "1 session would be erased" in planned.out

    done = refold("retain", "--preset", "seed", "--json").json()

    assert done["sessions"] == [{"user_id": "lin", "session_id": "run"}]
    assert len(done["certificates"]) == 1
    assert done["audit"] is not None
    assert refold("sessions", "--json").json() == []


def test_a_policy_file_names_what_expires(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('sessions = "1d"\n')

    done = refold("retain", "--policy", policy, "--json").json()

    assert (done["sessions"], done["kept"], done["blobs"]) == ([], {}, None)


@pytest.mark.parametrize(
    "args",
    [(), ("--preset", "none"), ("--preset", "seed", "--policy", "p.toml")],
)
def test_retention_needs_one_policy(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    assert refold("retain", *args).code == 2


def test_an_export_of_a_user_is_written_and_checked(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    ran = refold("export", "--user", "lin", "--out", "lin-out")
    assert ran.out.startswith("wrote 1 session, 57 events")

    checked = refold("verify", "--export", "lin-out", "--json").json()
    assert (checked["ok"], checked["user_id"]) == (True, "lin")
    events = next((tmp_path / "lin-out").rglob("events.jsonl"))
    log = refold("log", "--user", "lin", "--session", "run", "--json").lines()
    assert [json.loads(line) for line in events.read_text().splitlines()] == log

    events.write_text("")
    check = refold("verify", "--export", "lin-out")
    assert check.code == 1
    assert "not what was written" in check.out


@pytest.mark.parametrize(
    "args",
    [
        ("--out", "o"),
        ("--out", "o", "--user", "lin", "--session", "run"),
        ("--out", "all.json"),
    ],
)
def test_an_export_of_a_user_rejects_options_for_one_session(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    ran = refold("export", *args)

    assert ran.code == 2
    assert "the name of a file ends in .jsonl" in ran.err


def test_an_export_overwrites_nothing(refold: Refold, sample: Path) -> None:
    first = refold("export", "--user", "lin", "--out", "o", "--json").json()
    again = refold("export", "--user", "lin", "--out", "o")

    assert first["counts"]["events"] == 57
    assert (again.code, again.err.count("\n")) == (1, 1)


def test_a_directory_that_is_no_export_is_a_wrong_argument(
    refold: Refold, tmp_path: Path
) -> None:
    assert refold("verify", "--export", tmp_path).code == 2


def test_a_freeze_and_its_end_print_their_certificates(
    refold: Refold, sample: Path
) -> None:
    freeze = ("freeze", "--user", "lin", "--reason", "asked")

    printed = [
        refold(*freeze).out,
        refold(*freeze).out,
        refold(*freeze, "--lift").out,
        refold(*freeze, "--lift").out,
    ]

    first, last = refold("erase", "--list", "--json").json()["certificates"]
    assert printed == [
        f"frozen: certificate {first['certificate']['certificate_id']}\n",
        "frozen\n",
        f"not frozen: certificate {last['certificate']['certificate_id']}\n",
        "not frozen\n",
    ]
