"""``memory`` lists what sessions show, and opens to the events that show it."""

from pathlib import Path

from tests.cli.conftest import Refold


def test_too_few_sessions_show_nothing_yet(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin")

    assert ran.code == 0
    assert ran.out.startswith("0 items of 1 session")
    assert refold("memory", "--user", "lin", "--json").json() == []


def test_all_of_it_is_listed_if_asked_for(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()

    assert {item["sessions"] for item in items} == {1}
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
    assert "not established: too few sessions show it" in one.out
    seqs = [seq for evidence in failure["evidence"] for seq in evidence["seqs"]]
    assert [event["seq"] for event in as_json.json()["events"]] == seqs
    assert {event["type"] for event in as_json.json()["events"]} == {"tool_result"}


def test_who_is_not_there_has_no_memory(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "nobody").code == 1
    assert refold("memory", "--user", "lin", "--item", "nothing").code == 1
