"""``stats`` reports stored amounts, their growth, and views that are behind."""

from pathlib import Path

from refold import AgentResponse, UserInput, open as open_store
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain

WINDOW = ("--strategy", "turn_window:full_turns=2,cached_turns=2")
OF = ("--user", "lin", "--session", "run")


def test_programs_get_counts_and_sizes_as_json(refold: Refold, sample: Path) -> None:
    figures = refold("stats", "--json").json()

    assert figures["engine"] == "sqlite"
    assert (figures["users"], figures["sessions"], figures["events"]) == (1, 1, 57)
    assert 0 < figures["event_bytes"] < figures["database_bytes"]
    assert (figures["views"], figures["lag"], figures["retired_keys"]) == (0, [], 0)


def test_old_events_do_not_count_for_the_rate(refold: Refold, sample: Path) -> None:
    figures = refold("stats", "--json").json()

    assert figures["sessions_last_hour"] == 1  # imported now
    assert figures["events_last_day"] == figures["event_bytes_last_day"] == 0


def test_people_see_a_table_of_stats(refold: Refold, sample: Path) -> None:
    ran = refold("stats")

    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["events", "57"] in lines
    assert ["events", "dated", "in", "the", "last", "day", "0"] in lines
    assert ["sessions", "written", "to", "in", "the", "last", "hour", "1"] in lines
    assert ["retired", "keys", "0"] in lines
    assert any(line[:2] == ["database", "size"] for line in lines)
    assert "views of strategy" not in ran.out


def test_a_view_that_is_behind_is_listed(refold: Refold, sample: Path) -> None:
    refold("compact", *OF, *WINDOW)
    (view,) = refold("stats", *OF, "--json").json()["lag"]

    header, row = refold("stats").out.splitlines()[-2:]

    assert (view["views"], view["behind"], view["events"], view["most"]) == (1, 0, 0, 0)
    assert header.split() == [
        "views",
        "of",
        "strategy",
        "views",
        "behind",
        "by",
        "events",
        "at",
        "most",
    ]
    assert row.split() == [view["fingerprint"][:12], "1", "0", "0", "0"]


def test_stats_can_be_limited_to_a_user_or_session(
    refold: Refold, sample: Path
) -> None:
    user = refold("stats", "--user", "lin", "--json").json()
    session = refold("stats", *OF, "--json").json()

    assert user["events"] == session["events"] == 57
    assert "database_bytes" not in user
    assert "blobs" in user
    assert "blobs" not in session


def test_unknown_users_have_no_figures(refold: Refold, sample: Path) -> None:
    assert refold("stats", "--user", "ada").code == 1
    assert refold("stats", "--user", "lin", "--session", "other").code == 1
    assert refold("stats", "--session", "other").code == 1


def test_a_session_needs_its_user_only_if_several_have_it(
    refold: Refold, sample: Path
) -> None:
    alone = refold("stats", "--session", "run", "--json").json()
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="bob", session_id="run").append(AgentResponse(text="x"))
    of_both = refold("stats", "--session", "run", "--cost")

    assert alone["events"] == 57
    assert of_both.code == 1
    assert "2 users have such sessions: name one with --user" in of_both.err


def test_costs_of_answers_are_a_table(refold: Refold, sample: Path) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="lin", session_id="run").append(
            AgentResponse(
                text="x", usage={"input_tokens": 2_000, "output_tokens": 500}
            ),
            meta={"model": "claude-haiku-4-5"},
        )

    row = refold("stats", "--cost", "--user", "lin", "--json").json()[-1]
    by_day = refold("stats", "--cost", "--by", "day")

    assert (row["session_id"], "day" in row) == ("run", False)
    assert row["usage"]["input"] >= 2_000
    assert row["dollars"] > 0.002
    assert by_day.out.splitlines()[0].split() == [
        "day",
        "answers",
        "input",
        "written",
        "read",
        "output",
        "US$",
    ]
    assert refold("stats", "--cost", "--by", "week").code == 2


def test_the_costs_of_long_session_names_fit_80_columns(
    refold: Refold, sample: Path
) -> None:
    names = [f"5f0c2a7e-3b41-4d8e-9a56-1c7e8b9d0f2{number}" for number in range(3)]
    usage = {"input_tokens": 2_000_000, "cache_read_input_tokens": 6_000_000}
    with open_store("sqlite:///refold.db") as store:
        for name in names:
            store.session(user_id="bob", session_id=name).append(
                AgentResponse(text="x", usage={**usage, "output_tokens": 99_500}),
                meta={"model": "claude-haiku-4-5"},
            )

    shown = on_terminal("stats", "--cost", "--user", "bob", columns=80)

    lines = plain(shown).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert lines[0].split() == ["user", "bob"]
    rows = [line.split() for line in lines[3:7]]
    assert [row[0] for row in rows] == [*names, "total"]
    assert rows[0][1:5] == ["1", "8.0M", "75%", "99.5K"]
    assert rows[3][1:3] == ["3", "24.0M"]


def test_costs_that_are_too_low_are_marked(refold: Refold, sample: Path) -> None:
    with open_store("sqlite:///refold.db") as store:
        for name, model, tokens in (
            ("chunk", "claude-haiku-4-5", 2),
            ("unknown", "our-own-model", 50_000),
            ("whole", "claude-haiku-4-5", 50_000),
        ):
            store.session(user_id="bob", session_id=name).append(
                AgentResponse(
                    text="word " * 20,
                    usage={"input_tokens": 1_000_000, "output_tokens": tokens},
                ),
                meta={"model": model},
            )

    costs = on_terminal("stats", "--cost", "--user", "bob", columns=80)
    listed = on_terminal("sessions", "--user", "bob", columns=80)
    sessions = refold("sessions", "--user", "bob", "--json").json()

    lines = plain(costs).splitlines()
    figures = {line.split()[0]: line.split()[-2:] for line in lines[3:7]}
    assert figures["chunk"] == ["≥2", "≥1.00"]
    assert figures["unknown"] == ["50.0K", "≥0.00"]
    assert figures["whole"] == ["50.0K", "1.25"]
    assert figures["total"] == ["≥100K", "≥2.25"]
    assert "1 answer of models without a known price" in plain(costs)
    assert "1 answer whose recorded output tokens are too few" in plain(costs)
    shown = {line.split()[-1]: line.split()[-2] for line in plain(listed).splitlines()}
    assert (shown["chunk"], shown["whole"]) == ("≥1.00", "1.25")
    counts = {session["session_id"]: session["undercounted"] for session in sessions}
    assert counts == {"chunk": 1, "unknown": 0, "whole": 0}


def test_the_most_expensive_session_comes_first_with_its_title(
    refold: Refold, sample: Path
) -> None:
    with open_store("sqlite:///refold.db") as store:
        for name, tokens in (("a", 1_000_000), ("b", 3_000_000), ("c", 2_000_000)):
            session = store.session(user_id="bob", session_id=name)
            session.append(UserInput(text=f"Explain {name}."))
            session.append(
                AgentResponse(text="x", usage={"input_tokens": tokens}),
                meta={"model": "claude-haiku-4-5"},
            )

    ran = refold("stats", "--cost", "--user", "bob")
    values = refold("stats", "--cost", "--user", "bob", "--json").json()

    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[3:9:2]] == ["b", "c", "a"]
    assert lines[4].strip() == "Explain b."
    assert [value["session_id"] for value in values] == ["a", "b", "c"]


def test_stats_report_that_no_answer_has_usage(refold: Refold, sample: Path) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="bob", session_id="s").append(AgentResponse(text="x"))

    ran = refold("stats", "--cost", "--user", "bob")

    assert ran.code == 0, ran.err
    assert "no answer has a recorded token usage" in ran.out
