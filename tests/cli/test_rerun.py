"""``rerun`` reports whether a run is reproduced, or its first difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold as library
from tests.cli.conftest import Refold
from tests.support.messages_api import MessagesApi, message, tool_use

SESSION = ("--user", "lin", "--session", "run")


def test_an_imported_run_is_reproduced(refold: Refold, sample: Path) -> None:
    before = sample.read_bytes()

    ran = refold("rerun", *SESSION)
    report = refold("rerun", *SESSION, "--json").json()

    assert ran.code == 0, ran.err
    assert report["requests"] == report["same"] > 10
    assert report["first_difference"] is None
    assert f"{report['requests']} requests made again" in ran.out
    assert (report["recorded_requests"], report["same_recorded"]) == (0, 0)
    assert f"no request was recorded: {report['requests']} reconstructed" in ran.out
    assert "as sent" not in ran.out
    assert sample.read_bytes() == before


def test_the_first_request_that_differs_is_shown(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer in verse.\n")

    ran = refold("rerun", *SESSION, "--prompt", prompt)

    assert ran.code == 1
    assert "request 1 of" in ran.out
    assert "Answer in verse." in ran.out
    rerun = refold("rerun", *SESSION, "--prompt", prompt, "--json")
    difference = rerun.json()["first_difference"]
    assert rerun.code == 1
    assert list(difference) == ["request", "seq", "where", "then", "now", "call"]
    assert (difference["request"], difference["where"], difference["call"]) == (
        1,
        "system",
        None,
    )
    assert difference["now"]["text"] == "Answer in verse."


def test_another_strategy_is_compared_with_the_run(
    refold: Refold, sample: Path
) -> None:
    window = "turn_window:full_turns=2,cached_turns=2"

    rerun = refold("rerun", *SESSION, "--strategy", window, "--json")

    difference = rerun.json()["first_difference"]
    assert rerun.code == 1
    assert difference["request"] == rerun.json()["same"] + 1 > 1
    assert difference["then"]["tokens"] != difference["now"]["tokens"]


def test_another_policy_is_compared_with_the_run(
    refold: Refold, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with library.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="later")
        for text in ("hello", "the badge BDG-QX4711"):
            session.append(library.UserInput(text=text))
            session.record_request(session.context())
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'version = 1\n[[rules]]\nid = "badge"\ntype = "BADGE"\n'
        'pattern = "BDG-[A-Z]{2}[0-9]{4}"\nexamples = ["badge BDG-QX4711"]\n'
    )
    monkeypatch.setenv("REFOLD_POLICY", str(policy))

    rerun = refold("rerun", "--user", "lin", "--session", "later", "--json")

    difference = rerun.json()["first_difference"]
    assert (rerun.code, difference["request"], difference["seq"]) == (1, 2, 4), (
        rerun.err
    )
    assert "BDG-QX4711" in difference["then"]["text"]
    assert "[REDACTED:BADGE]" in difference["now"]["text"]


def test_a_rerun_continues_live_with_a_model(
    refold: Refold,
    sample: Path,
    tmp_path: Path,
    api: MessagesApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer in verse.")
    api.reply(message("I look.", tool_use("nowhere", {"path": "/x"})))

    ran = refold("rerun", *SESSION, "--prompt", prompt, "--model", "claude-x", "--json")

    report = ran.json()
    assert ran.code == 1
    assert report["live"]["ended"] == "unrecorded_call"
    assert report["live"]["call"] == {"name": "nowhere", "arguments": {"path": "/x"}}
    assert report["first_difference"]["call"]["now"] == [report["live"]["call"]]
    (request,) = api.requests
    assert request.body["model"] == "claude-x"
    assert "Answer in verse." in json.dumps(request.body["system"])
    assert request.body["tools"]


def test_a_model_that_gives_no_answer_is_an_error(
    refold: Refold,
    sample: Path,
    api: MessagesApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")

    ran = refold("rerun", *SESSION, "--model", "claude-x")

    assert ran.code != 0
    assert "the model did not answer, nothing was written: HTTP 400" in ran.err


def test_a_prompt_file_that_cannot_be_read_is_reported(
    refold: Refold, sample: Path
) -> None:
    ran = refold("rerun", *SESSION, "--prompt", "nowhere.txt")

    assert (ran.code, ran.out) == (2, "")
    assert "nowhere.txt" in ran.err


def test_a_session_without_requests_is_reported(refold: Refold, sample: Path) -> None:
    with library.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="bare")
        session.append([library.UserInput(text="x"), library.AgentResponse(text="y")])

    ran = refold("rerun", "--user", "lin", "--session", "bare")

    assert ran.code == 0, ran.err
    assert "no request was recorded" in ran.out
    assert "1 request made again" in ran.out
