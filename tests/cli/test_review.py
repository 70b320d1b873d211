"""``review`` asks, lists, shows and takes decisions; ``replay`` needs no store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import refold as package
from tests.cli.conftest import Refold

RISKY = package.Reflection(pass_=False, issues=("data_loss",))


@pytest.fixture
def with_question(refold: Refold, sample: Path) -> Path:
    """The sample, and a session of ada's with a question at seq 4."""
    with package.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(package.UserInput(text="Clean up."))
        session.append(package.AgentResponse(text="I delete all.\x1b[31m"))
        session.append(RISKY)
        call = package.ToolCall(call_id="c", tool_name="book")
        failed = package.ToolResult(call_id="c", content="timed out", status="error")
        flaky = store.session(user_id="ada", session_id="s-2")
        flaky.append([call, failed, call, failed, call, failed])
        store.session(user_id="ada", session_id="s-3").append(RISKY)
        store.session(user_id="ada", session_id="s-3").end()
    return sample


def test_a_scan_asks_once_and_names_the_agents_next_step(
    refold: Refold, with_question: Path
) -> None:
    first = refold("review", "scan", "--user", "ada", "--json").json()
    again = refold("review", "scan")

    assert (first["skipped"], first["failed"]) == (1, 0)
    assert [session["asked"] for session in first["sessions"]] == [[4], []]
    (step,) = first["sessions"][1]["recoveries"]
    assert (step["step"], step["rule"]) == ("degrade", "tool_failing")
    assert step["idempotency_key"]
    assert "ada / s-2: tool_failing at seq 6: the agent should degrade" in again.out
    assert "0 questions asked, 1 closed or frozen session skipped" in again.out


def test_a_question_is_listed_shown_and_decided(
    refold: Refold, with_question: Path
) -> None:
    refold("review", "scan")

    (listed,) = refold("review", "list", "--json").json()
    shown = refold("review", "show", "s-1", "4", "--user", "ada")
    done = refold(
        "review",
        "decide",
        "s-1",
        "4",
        "--user",
        "ada",
        "--decision",
        "reject",
        "--by",
        "lin",
        "--note",
        "mail bob@build.test",
    )

    assert (listed["session_id"], listed["seq"], listed["open"]) == ("s-1", 4, True)
    assert "bundle" not in listed
    assert "high_risk" in refold("review", "list", "--all").out
    assert (shown.code, "I delete all." in shown.out) == (0, True)
    assert "\x1b" not in shown.out
    assert "the rule fires again" in shown.out
    assert (done.code, done.out) == (0, "recorded at seq 5: reject\n")
    assert refold("review", "list").out == "0 open questions\n"
    after = refold("review", "show", "s-1", "4", "--user", "ada").out
    assert "reject by lin" in after
    assert "mail [REDACTED:EMAIL]" in after
    log = refold("log", "--user", "ada", "--session", "s-1").out
    assert "mail [REDACTED:EMAIL]" in log


def test_a_second_decision_is_refused(refold: Refold, with_question: Path) -> None:
    refold("review", "scan")
    decide = ("review", "decide", "s-1", "4", "--user", "ada", "--decision")

    first = refold(*decide, "accept", "--json").json()
    second = refold(*decide, "accept")

    assert first == {"seq": 5, "decision": "accept"}
    assert (second.code, second.out) == (1, "")
    assert "was decided at seq 5" in second.err


def test_a_policy_file_can_add_rules(
    refold: Refold, with_question: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[once]\nwhen = "tool_fails"\nfailures = 1\nsteps = []\n')

    ran = refold("review", "scan", "--user", "ada", "--rules", rules, "--json").json()

    assert [
        (session["session_id"], session["asked"]) for session in ran["sessions"]
    ] == [("s-2", [7])]
    rules.write_text('[once]\nwhen = "moon"\n')
    wrong = refold("review", "scan", "--rules", rules)
    assert (wrong.code, "'once': when is one of" in wrong.err) == (2, True)
    assert refold("review", "scan", "--rules", tmp_path / "none.toml").code == 1


@pytest.mark.parametrize(
    "args",
    [
        ("show",),
        ("decide", "s-1", "4", "--decision", "accept"),
        ("show", "s-1", "--user", "ada"),
        ("list", "s-1", "4", "--user", "ada"),
        ("decide", "s-1", "4", "--user", "ada"),
        ("decide", "s-1", "4", "--user", "ada", "--decision", "maybe"),
        ("show", "s-1", "4", "--user", "ada", "--decision", "accept"),
        ("list", "--decision", "accept"),
        ("burn",),
        (),
    ],
)
def test_conflicting_options_are_refused(
    refold: Refold, with_question: Path, args: tuple[str, ...]
) -> None:
    ran = refold("review", *args)

    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize(
    "args",
    [
        ("show", "s-1", "1", "--user", "ada"),
        ("show", "none", "1", "--user", "ada"),
        ("decide", "s-1", "1", "--user", "ada", "--decision", "accept"),
        ("list", "--user", "nobody"),
        ("scan", "--user", "nobody"),
        ("scan", "--user", "ada", "--session", "none"),
    ],
)
def test_missing_questions_are_reported(
    refold: Refold, with_question: Path, args: tuple[str, ...]
) -> None:
    ran = refold("review", *args)

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


def test_a_question_without_a_bundle_is_shown(
    refold: Refold, with_question: Path
) -> None:
    with package.open(f"sqlite:///{with_question}") as store:
        session = store.session(user_id="ada", session_id="own")
        session.append(package.HumanReview(trigger="cost", question="Go on?"))
        session.append(package.HumanReview(trigger="cost", bundle={"cost": "much"}))

    plain = refold("review", "show", "own", "1", "--user", "ada")
    other = refold("review", "show", "own", "2", "--user", "ada")

    assert (plain.code, "Go on?" in plain.out) == (0, True)
    assert (other.code, "cost: much" in other.out) == (0, True)


def test_a_session_that_cannot_be_read_does_not_stop_a_scan(
    refold: Refold, with_question: Path
) -> None:
    connection = sqlite3.connect(with_question)
    with connection:
        connection.execute("DROP TRIGGER events_refuse_update")
        connection.execute("UPDATE events SET body = X'00' WHERE seq = 10")
    connection.close()

    ran = refold("review", "scan", "--json")

    assert ran.code == 1
    assert (ran.json()["failed"], len(ran.json()["sessions"])) == (1, 2)
    assert "session 'run'" in ran.err


def test_an_unreadable_session_is_reported(refold: Refold, with_question: Path) -> None:
    refold("review", "scan")
    with package.open(f"sqlite:///{with_question}") as store:
        other = store.session(user_id="ada", session_id="own")
        other.append(package.HumanReview(trigger="cost", question="Go on?"))
    connection = sqlite3.connect(with_question)
    with connection:
        connection.execute("DROP TRIGGER events_refuse_update")
        connection.execute(
            "UPDATE events SET body = X'00' WHERE session_id = 's-1' AND seq = 4"
        )
    connection.close()

    listed = refold("review", "list")
    as_json = refold("review", "list", "--json")
    shown = refold("review", "show", "s-1", "4", "--user", "ada")

    assert (listed.code, "Go on?" in listed.out) == (1, True)
    assert "session 's-1'" in listed.err
    assert (as_json.code, [question["trigger"] for question in as_json.json()]) == (
        1,
        ["cost"],
    )
    assert (shown.code, shown.out) == (1, "")
    assert "no question" not in shown.err


def test_terminal_sequences_in_a_bundle_have_no_effect(
    refold: Refold, with_question: Path
) -> None:
    refold("review", "scan")
    shown = refold("review", "show", "s-1", "4", "--user", "ada", "--json").json()
    bundle = shown["bundle"]
    bundle["model"] = "gpt\nthe rule fires again on these events (*)"
    bundle["where"]["session_id"] = "x\nwhere     evil"
    bundle["refold"] = "1\x1b[31m\nasked by  you"
    bundle["events"][0]["agent"] = "a\u2028b\rc"
    bundle["events"].pop()

    ran = refold("replay", "-", stdin=json.dumps(bundle).encode())

    lines = ran.out.splitlines()
    assert [line for line in lines if line.startswith("the rule")] == [
        "the rule does not fire again on these events (*)"
    ]
    assert sum(line.startswith("where") for line in lines) == 1
    assert sum(line.startswith("asked by") for line in lines) == 1
    assert not {"\x1b", "\r"} & set(ran.out)


def test_terminal_sequences_in_a_question_have_no_effect(
    refold: Refold, with_question: Path
) -> None:
    with package.open(f"sqlite:///{with_question}") as store:
        forged = package.HumanReview(
            trigger="cost", question="Go on?\n0 open questions"
        )
        store.session(user_id="ada", session_id="own").append(forged)

    out = refold("review", "list").out

    assert out.splitlines()[-1] == "1 open question"
    assert "0 open questions" not in out.splitlines()


def test_a_bundle_without_events_explains_why(
    refold: Refold, with_question: Path
) -> None:
    refold("review", "scan")
    shown = refold("review", "show", "s-1", "4", "--user", "ada", "--json").json()
    shown["bundle"] |= {"events": [], "refused": "too large"}

    ran = refold("replay", "-", stdin=json.dumps(shown).encode())

    assert (ran.code, "no events: too large" in ran.out) == (1, True)


def test_a_bundle_is_replayed_without_a_store(
    refold: Refold, with_question: Path, tmp_path: Path
) -> None:
    refold("review", "scan")
    shown = refold("review", "show", "s-1", "4", "--user", "ada", "--json")
    file = tmp_path / "bundle.json"
    file.write_text(json.dumps(shown.json()["bundle"]))
    with_question.unlink()

    from_file = refold("replay", file)
    from_stdin = refold("replay", "-", stdin=shown.out.encode())
    as_json = refold("replay", file, "--json").json()

    assert from_file.code == 0
    assert from_file.out == from_stdin.out
    assert "where     ada / s-1, seq 3" in from_file.out
    assert "I delete all." in from_file.out
    assert (as_json["fires_again"], as_json["says"]) == (
        True,
        "A reflection names data_loss.",
    )


def test_a_bundle_whose_rule_does_not_fire_is_reported(
    refold: Refold, with_question: Path
) -> None:
    refold("review", "scan")
    shown = refold("review", "show", "s-1", "4", "--user", "ada", "--json").json()
    shown["bundle"]["events"].pop()

    ran = refold("replay", "-", stdin=json.dumps(shown).encode())

    assert ran.code == 1
    assert "the rule does not fire again" in ran.out


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"format": "other"}', b"[" * 260 + b"]" * 260]
)
def test_a_file_that_is_no_bundle_is_refused(refold: Refold, data: bytes) -> None:
    ran = refold("replay", "-", stdin=data)

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)


def test_a_missing_or_too_large_file_is_reported(
    refold: Refold, tmp_path: Path
) -> None:
    vast = tmp_path / "vast.json"
    vast.write_bytes(b" " * (5 << 20))

    assert refold("replay", tmp_path / "none.json").code == 1
    assert "this is not a review bundle" in refold("replay", vast).err
