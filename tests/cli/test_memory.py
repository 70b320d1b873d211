"""``memory`` lists what sessions show, and opens to the events that show it."""

from pathlib import Path

import pytest

from tests.cli.conftest import Refold


def test_too_few_sessions_show_nothing_yet(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin")

    assert ran.code == 0
    assert ran.out.startswith("0 items of 1 session")
    assert refold("memory", "--user", "lin", "--json").json() == []


def test_all_of_it_is_listed_if_asked_for(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()

    assert {item["sample_count"] for item in items} == {1}
    assert {"path", "failure"} <= {item["kind"] for item in items}
    table = refold("memory", "--user", "lin", "--all").out
    assert items[0]["memory_id"] in table


def test_an_item_opens_to_its_events(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()
    failure = next(item for item in items if item["kind"] == "failure")

    one = refold("memory", "--user", "lin", "--item", failure["memory_id"])
    as_json = refold(
        "memory", "--user", "lin", "--item", failure["memory_id"], "--json"
    )

    assert one.code == 0
    assert "not said to a model: not established: 1 of 3" in one.out
    shown = failure["provenance"]["sessions"]
    seqs = [seq for evidence in shown for seq in evidence["seqs"]]
    assert [event["seq"] for event in as_json.json()["events"]] == seqs
    assert {event["type"] for event in as_json.json()["events"]} == {"tool_result"}


def test_who_is_not_there_has_no_memory(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "nobody").code == 1
    assert refold("memory", "--user", "lin", "--item", "nothing").code == 1


def test_an_item_can_be_forgotten(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()
    name = items[0]["memory_id"]

    ran = refold("memory", "--user", "lin", "--forget", name)

    assert ran.out.startswith(f"{name} is forgotten")
    left = refold("memory", "--user", "lin", "--all", "--json").json()
    assert name not in {item["memory_id"] for item in left}
    assert refold("memory", "--user", "lin", "--forget", "nothing").code == 1


def test_what_would_be_said_to_a_model_is_shown(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "lin", "--advice").out == "0 items, 0 tokens\n"
    said = refold("memory", "--user", "lin", "--advice", "--json").json()
    assert said == {"text": "", "items": [], "tokens": 0, "left_out": []}


def test_a_profile_is_empty_without_consent(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin", "--profile", "--json")

    assert ran.code == 0
    assert ran.json()["items"] == []
    assert refold("memory", "--user", "lin", "--profile").code == 0


def test_no_item_was_shown_yet(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "lin", "--effect", "--json").json() == []
    assert refold("memory", "--user", "lin", "--effect").code == 0


def test_who_opted_out_is_told_so(refold: Refold, sample: Path) -> None:
    refold("consent", "--user", "lin", "--opt-out")

    assert "opted out" in refold("memory", "--user", "lin").out


def test_memory_of_everyone_is_off(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = refold("memory", "--everyone")
    monkeypatch.setenv("REFOLD_SHARED_MEMORY", "on")
    on = refold("memory", "--everyone", "--json")
    monkeypatch.setenv("REFOLD_SHARED_MEMORY", "maybe")

    assert "REFOLD_SHARED_MEMORY=on" in off.err
    assert on.json() == []
    assert "on or off, not 'maybe'" in refold("memory", "--everyone").err


@pytest.mark.parametrize("wrong", [[], ["--user", "lin", "--everyone"]])
def test_it_is_of_one_user_or_of_all(
    refold: Refold, sample: Path, wrong: list[str]
) -> None:
    assert "give --user or --everyone" in refold("memory", *wrong).err
