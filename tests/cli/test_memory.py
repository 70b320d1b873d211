"""``memory`` lists what was learned from sessions, and the events behind each item."""

import sqlite3
from pathlib import Path

import pytest

import refold as package
from refold.store.memory.views import ADVICE_PREFIX
from tests.cli.conftest import Refold


def test_too_few_sessions_give_no_items(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin")

    assert ran.code == 0
    assert ran.out.startswith("0 items of 1 session")
    assert refold("memory", "--user", "lin", "--json").json() == []


def test_every_item_is_listed_with_the_option(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()

    assert {item["sample_count"] for item in items} == {1}
    assert {"path", "failure"} <= {item["kind"] for item in items}
    table = refold("memory", "--user", "lin", "--all").out
    assert items[0]["memory_id"] in table


def test_an_item_opens_to_its_events(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()
    failure = next(item for item in items if item["kind"] == "failure")

    opened = refold("memory", "--user", "lin", "--item", failure["memory_id"])
    as_json = refold(
        "memory", "--user", "lin", "--item", failure["memory_id"], "--json"
    )

    assert opened.code == 0
    assert "withheld from a model: not established: 1 of 3" in opened.out
    shown = failure["provenance"]["sessions"]
    seqs = [seq for evidence in shown for seq in evidence["seqs"]]
    assert [event["seq"] for event in as_json.json()["events"]] == seqs
    assert {event["type"] for event in as_json.json()["events"]} == {"tool_result"}


def test_an_unknown_user_has_no_memory(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "nobody").code == 1
    assert refold("memory", "--user", "lin", "--item", "nothing").code == 1


def test_an_item_can_be_forgotten(refold: Refold, sample: Path) -> None:
    items = refold("memory", "--user", "lin", "--all", "--json").json()
    name = items[0]["memory_id"]

    ran = refold("memory", "--user", "lin", "--forget", name)

    assert ran.out.startswith(f"{name} stays forgotten")
    left = refold("memory", "--user", "lin", "--all", "--json").json()
    assert name not in {item["memory_id"] for item in left}
    assert refold("memory", "--user", "lin", "--forget", "nothing").code == 1


def test_advice_without_items_is_empty(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "lin", "--advice").out == "0 items, 0 tokens\n"
    advice = refold("memory", "--user", "lin", "--advice", "--json").json()
    assert advice == {"text": "", "items": [], "tokens": 0, "left_out": []}


def test_a_profile_is_empty_without_consent(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin", "--profile", "--json")

    assert ran.code == 0
    assert ran.json()["items"] == []
    assert refold("memory", "--user", "lin", "--profile").code == 0


def test_an_item_that_was_never_shown_says_so(refold: Refold, sample: Path) -> None:
    assert refold("memory", "--user", "lin", "--effect", "--json").json() == []
    assert refold("memory", "--user", "lin", "--effect").code == 0


def test_an_opt_out_is_shown(refold: Refold, sample: Path) -> None:
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


def test_memory_commands_take_one_user_or_all(refold: Refold, sample: Path) -> None:
    ran = refold("memory", "--user", "lin", "--everyone")

    assert ran.code == 2
    assert "give --user or --everyone, not both" in ran.err


LIN = ("--user", "lin")
ONE = "m0123456789abcde"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((*LIN, "--forget", ONE, "--item", ONE, "--effect"), "do not go together"),
        ((*LIN, "--advice", "--profile"), "--advice and --profile do not go together"),
        ((*LIN, "--refresh", "--item", ONE), "--item and --refresh do not go together"),
        ((*LIN, "--tokens", "9"), "use --tokens with --advice"),
        ((*LIN, "--refresh", "--tokens", "0"), "use --tokens with --advice"),
        ((*LIN, "--item", ONE, "--scenario", "s"), "use --scenario with the list"),
        ((*LIN, "--profile", "--all"), "use --all with the list"),
        (("--everyone", "--all"), "use --all with the list"),
        (("--everyone", "--item", ONE), "--everyone only lists items"),
        (("--everyone", "--refresh"), "--refresh updates all users"),
        ((*LIN, "--everyone", "--refresh"), "--refresh updates all users"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    refold: Refold, sample: Path, options: tuple[str, ...], complaint: str
) -> None:
    before = refold("log", *LIN, "--session", "_user", "--json").out

    ran = refold("memory", *options)

    assert ran.code == 2
    assert complaint in ran.err
    assert refold("log", *LIN, "--session", "_user", "--json").out == before


def add_repeated_errors(db: Path) -> None:
    """Record four sessions of lin with the same error, and lin's consent."""
    with package.open(f"sqlite:///{db}") as store:
        wrong = {
            "verdict": "incorrect",
            "error_type": "sign error",
            "subject": "math",
            "topic": "algebra",
        }
        results = tuple({"item_id": f"q{n}", **wrong} for n in range(4))
        for number in range(4):
            store.session(user_id="lin", session_id=f"v-{number}").append(
                package.Aggregate(results=results)
            )
        store.user("lin").consent("declarative_memory")
        store.user("lin").prefer("language", "zh")


def test_an_item_of_the_profile_opens_to_its_events(
    refold: Refold, sample: Path
) -> None:
    add_repeated_errors(sample)
    items = refold("memory", *LIN, "--profile", "--json").json()["items"]

    seen = {}
    for item in items:
        shown = refold("memory", *LIN, "--item", item["memory_id"])
        item_json = refold("memory", *LIN, "--item", item["memory_id"], "--json").json()
        seen[item["kind"]] = shown.out
        places = item["provenance"]["sessions"]
        assert shown.code == 0
        assert [
            (event["session_id"], event["seq"]) for event in item_json.pop("events")
        ] == [(place["session_id"], seq) for place in places for seq in place["seqs"]]
        assert bool(item_json.pop("not_said")) == (
            "withheld from a model:" in shown.out
        )
        assert item_json == item

    assert "weak topic: algebra (math), 0% right" in seen["topic"]
    assert "a model may get this until" in seen["topic"]
    assert "_user seq" in seen["preference"]
    assert "the user's own word" in seen["preference"]
    assert "a model may get this until" in seen["progress"]


def test_memory_is_computed_for_all_users_with_sessions(
    refold: Refold, sample: Path
) -> None:
    with package.open(f"sqlite:///{sample}") as store:
        for user in ("out", "ice", "gone"):
            store.session(user_id=user, session_id="s").append(
                package.UserInput(text="Hi.")
            )
        for number in range(4):
            events = [
                package.ToolCall(call_id="c", tool_name="book"),
                package.ToolResult(call_id="c", content="done"),
                package.Final(outcome="success"),
            ]
            store.session(user_id="ada", session_id=f"s-{number}").append(events)
        store.user("out").opt_out()
        store.erasures.freeze("ice", "disputed", operator="me")
        store.erase("gone", "asked", operator="me")

    ran = refold("memory", "--refresh")
    as_json = refold("memory", "--refresh", "--json").json()

    assert ran.code == 0
    left = "skipped: 1 opted out, 1 frozen"
    assert ran.out == f"1 item of 5 sessions of 2 users; {left}\n"
    assert as_json == {
        "users": 2,
        "sessions": 5,
        "items": 1,
        "opted_out": 1,
        "frozen": 1,
        "failed": 0,
    }


def test_computed_memory_is_stored_for_the_next_call(
    refold: Refold, sample: Path
) -> None:
    add_repeated_errors(sample)

    only = refold("memory", *LIN, "--refresh", "--json").json()

    assert (only["users"], only["sessions"]) == (1, 5)
    with package.open(f"sqlite:///{sample}") as store:
        names = store.writer.log.view_names("lin", "_user")
        assert any(name.startswith(ADVICE_PREFIX) for name in names)
    assert refold("memory", "--user", "nobody", "--refresh").code == 1


def test_users_without_usable_memory_are_reported(refold: Refold, sample: Path) -> None:
    add_repeated_errors(sample)
    with package.open(f"sqlite:///{sample}") as store:
        store.session(user_id="zoe", session_id="s").append(
            package.UserInput(text="Hi.")
        )
    connection = sqlite3.connect(sample)
    with connection:
        connection.execute("DROP TRIGGER events_refuse_update")
        connection.execute("UPDATE events SET body = X'00' WHERE session_id = '_user'")
    connection.close()

    ran = refold("memory", "--refresh")

    assert ran.code == 1
    assert "user 'lin':" in ran.err
    assert ran.out.endswith("of 1 user; skipped: 1 not readable\n")
