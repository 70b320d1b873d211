"""A printed profile shows what is known, how certain it is, and what is withheld."""

from __future__ import annotations

import json

import pytest

from refold.adapters.cli.commands.memory import profile_report
from refold.projections.memory.profile import Profile, Stated
from tests.projections.declared import DAY, START, WRONG, judged_session, profile_of

NOW = START + 10 * DAY


def profile() -> Profile:
    sessions = [
        judged_session(WRONG, day=day, error_type="sign error") for day in range(3)
    ]
    steered = judged_session(WRONG, day=4, topic="sets", taints=("untrusted_result",))
    once = judged_session(WRONG, day=5, topic="angles", subject="geometry")
    stated = {"language": Stated("zh", 2, START)}
    return profile_of(*sessions, steered, once, preferences=stated)


def test_memory_shows_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    profile_report(profile(), NOW).print(as_json=False)

    shown = capsys.readouterr().out
    assert "sign_error, 3× in 3 sessions" in shown
    assert "weak topic" in shown
    assert "language = zh" in shown
    assert "improve: practice_fractions" in shown
    assert "fractions (math): sign_error 3×" in shown
    assert "5 sessions with verdicts, 1 of them tainted" in shown


def test_memory_shows_why_an_item_is_withheld(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile_report(profile(), NOW).print(as_json=False)

    lines = capsys.readouterr().out.splitlines()
    (angles,) = [line for line in lines if "angles (geometry), " in line]
    assert angles.endswith("too few sessions show it")


def test_json_of_a_profile_has_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    profile_report(profile(), NOW).print(as_json=True)

    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(profile().to_json())
    )


def test_users_without_consent_have_no_profile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile_report(Profile("ada"), NOW).print(as_json=False)

    assert capsys.readouterr().out == "0 items of 0 sessions with verdicts\n"
