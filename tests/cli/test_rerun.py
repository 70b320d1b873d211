"""``rerun`` says whether a recorded run would be sent again, and else where not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold as library
from tests.cli.conftest import Refold
from tests.support.messages_api import MessagesApi, message, tool_use

SESSION = ("--user", "lin", "--session", "run")


def test_an_imported_run_is_made_again(refold: Refold, sample: Path) -> None:
    before = sample.read_bytes()

    ran = refold("rerun", *SESSION)
    told = refold("rerun", *SESSION, "--json").json()

    assert ran.code == 0, ran.err
    assert told["requests"] == told["same"] > 10
    assert told["first_difference"] is None
    assert f"{told['requests']} requests made again" in ran.out
    assert (told["recorded_requests"], told["same_recorded"]) == (0, 0)
    assert f"no request was recorded: {told['requests']} reconstructed" in ran.out
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
    told = refold("rerun", *SESSION, "--prompt", prompt, "--json")
    found = told.json()["first_difference"]
    assert told.code == 1
    assert list(found) == ["request", "seq", "where", "then", "now", "call"]
    assert (found["request"], found["where"], found["call"]) == (1, "system", None)
    assert found["now"]["text"] == "Answer in verse."


def test_another_strategy_is_held_against_the_run(refold: Refold, sample: Path) -> None:
    window = "turn_window:full_turns=2,cached_turns=2"

    told = refold("rerun", *SESSION, "--strategy", window, "--json")

    found = told.json()["first_difference"]
    assert told.code == 1
    assert found["request"] == told.json()["same"] + 1 > 1
    assert found["then"]["tokens"] != found["now"]["tokens"]


def test_another_policy_is_held_against_the_run(
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

    told = refold("rerun", "--user", "lin", "--session", "later", "--json")

    found = told.json()["first_difference"]
    assert (told.code, found["request"], found["seq"]) == (1, 2, 4), told.err
    assert "BDG-QX4711" in found["then"]["text"]
    assert "[REDACTED:BADGE]" in found["now"]["text"]


def test_a_model_goes_on_live(
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

    told = ran.json()
    assert ran.code == 1
    assert told["live"]["ended"] == "unrecorded_call"
    assert told["live"]["call"] == {"name": "nowhere", "arguments": {"path": "/x"}}
    assert told["first_difference"]["call"]["now"] == [told["live"]["call"]]
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


def test_a_prompt_that_cannot_be_read_is_named(refold: Refold, sample: Path) -> None:
    ran = refold("rerun", *SESSION, "--prompt", "nowhere.txt")

    assert (ran.code, ran.out) == (2, "")
    assert "nowhere.txt" in ran.err


def test_a_session_without_requests_is_told_so(refold: Refold, sample: Path) -> None:
    with library.open(f"sqlite:///{sample}") as store:
        one = store.session(user_id="lin", session_id="bare")
        one.append([library.UserInput(text="x"), library.AgentResponse(text="y")])

    ran = refold("rerun", "--user", "lin", "--session", "bare")

    assert ran.code == 0, ran.err
    assert "no request was recorded" in ran.out
    assert "1 request made again" in ran.out
