"""``sessions`` lists the sessions of a store, and never creates a store."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from refold import UserInput, open as open_store
from refold.adapters.cli.commands.log import _COLUMNS
from refold.domain.ports import SessionInfo
from refold.projections.overview import Overview
from refold.store import SessionStore
from refold.store.overviews import OverviewPage, SessionOverview
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain


def test_programs_get_sessions_as_json(refold: Refold, sample: Path) -> None:
    ran = refold("sessions", "--json")

    (session,) = ran.json()
    assert list(session)[:6] == [
        "user_id",
        "session_id",
        "head_seq",
        "created_at",
        "updated_at",
        "tokens",
    ]
    assert (session["user_id"], session["session_id"]) == ("lin", "run")
    assert session["head_seq"] == 57
    assert session["tokens"] > 1000
    assert session["title"]
    assert session["calls"] > 0
    assert session["up_to_date"]


def test_times_are_rfc_3339_in_utc(refold: Refold, sample: Path) -> None:
    (session,) = refold("sessions", "--json").json()

    assert session["created_at"].endswith("Z")
    assert datetime.fromisoformat(session["updated_at"]).tzinfo is not None


def test_people_see_a_line_for_each_session(refold: Refold, sample: Path) -> None:
    ran = refold("sessions")

    assert ran.code == 0
    header, row = ran.out.splitlines()
    assert header.split()[1:] == ["calls", "failed", "US$", "session"]
    assert row.split()[-1] == "run"


def test_a_user_without_sessions_has_no_list(refold: Refold, sample: Path) -> None:
    assert refold("sessions", "--user", "ada", "--json").json() == []
    assert refold("sessions", "--user", "ada").out == "user 'ada' has no sessions\n"


def test_sessions_are_listed_by_label_and_page_by_page(
    refold: Refold, sample: Path
) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="lin", session_id="run").label(project="tea")
        for name in ("a", "b"):
            store.session(user_id="lin", session_id=name).append(UserInput(text="x"))

    def listed_ids(*options: str) -> list[str]:
        ran = refold("sessions", "--user", "lin", *options, "--json")
        return [session["session_id"] for session in ran.json()]

    assert listed_ids("--label", "project=tea") == ["run"]
    assert listed_ids("--label", "project=rain") == []
    assert listed_ids("--limit", "2") == ["b", "a"]
    assert listed_ids("--sort", "session", "--limit", "2") == ["a", "b"]
    assert listed_ids("--find", "no such words") == []
    assert listed_ids("--state", "live") == ["b", "a"]
    assert listed_ids("--after", "b", "--limit", "2") == ["run"]
    assert refold("sessions", "--user", "lin", "--label", "project").code == 2


def test_the_newest_event_comes_first(refold: Refold, sample: Path) -> None:
    with open_store("sqlite:///refold.db") as store:
        for name in ("a", "b", "c", "d"):
            store.session(user_id="lin", session_id=name).append(UserInput(text="x"))

    programs = refold("sessions", "--json").json()
    reversed_order = refold("sessions", "--reverse", "--json").json()

    names = [session["session_id"] for session in programs]
    assert names == ["d", "c", "b", "a", "run"]
    assert [session["session_id"] for session in reversed_order] == names[::-1]


def test_a_part_of_the_list_says_how_many_sessions_there_are(
    refold: Refold, sample: Path
) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="lin", session_id="a").append(UserInput(text="x"))

    part = plain(on_terminal("sessions", "--limit", "1"))
    whole = plain(on_terminal("sessions", "--limit", "2"))

    assert part.splitlines()[-1] == "1 of 2 sessions"
    assert "of 2 sessions" not in whole


def test_labels_are_set_and_removed(refold: Refold, sample: Path) -> None:
    session = ("--user", "lin", "--session", "run")

    ran = refold("label", *session, "project=tea", "owner=ada@example.org")
    assert (ran.code, ran.out) == (0, "owner=[REDACTED:EMAIL], project=tea\n")
    labelled = refold("sessions", "--user", "lin", "--label", "project=tea", "--json")
    assert [info["session_id"] for info in labelled.json()] == ["run"]
    assert refold("label", *session, "project=", "--json").json() == {
        "owner": "[REDACTED:EMAIL]"
    }
    assert refold("label", *session, "Project").code == 2
    assert refold("label", *session, "Big=x").code == 1
    missing = ("--user", "lin", "--session", "no")
    assert refold("label", *missing, "a=b").code == 1


def test_sessions_of_an_erased_user_are_reported_as_erased(
    refold: Refold, sample: Path
) -> None:
    refold("erase", "--user", "lin", "--reason", "asked", "--yes")

    ran = refold("sessions", "--user", "lin")

    assert (ran.code, ran.out) == (0, "user 'lin' was erased\n")
    assert refold("sessions", "--user", "lin", "--json").json() == []


def test_a_misspelt_path_is_an_error(refold: Refold, tmp_path: Path) -> None:
    ran = refold("--db", "sqlite:///misspelt.db", "sessions")

    assert ran.code == 1
    assert "there is no database misspelt.db" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_words_are_found_in_events(refold: Refold, sample: Path) -> None:
    ran = refold("search", "--user", "lin", "the", "--limit", "2", "--json")

    assert [list(hit) for hit in ran.json()] == [
        [
            "session_id",
            "seq",
            "type",
            "ts",
            "snippet",
            "score",
            "marks",
            "more_in_session",
        ]
    ] * 2
    assert ran.json()[0]["session_id"] == "run"
    assert refold("search", "the", "--user", "lin").out.count("run ") >= 5
    none = refold("search", "--user", "lin", "zzz yyy")
    assert none.out == "no event matches\n"
    hits = refold("search", "--user", "lin", "importer", "--limit", "1")
    total = len(refold("search", "--user", "lin", "importer", "--json").json())
    *lines, last = hits.out.splitlines()
    assert last == f"1 of {total} events; --limit 20 shows more"
    assert max(map(len, lines)) <= 80
    assert not any("toolu_" in line for line in lines)
    assert refold("search", "--user", "lin", "??").code == 1


def test_hits_of_a_session_stand_together_with_the_number_of_its_others(
    refold: Refold,
) -> None:
    with open_store("sqlite:///refold.db", make_key=True) as store:
        for name in ("old", "new"):
            session = store.session(user_id="ada", session_id=name)
            session.append([UserInput(text="brew tea")] * 9)

    ran = refold("search", "tea", "--limit", "6", "--per-session", "3")
    of_all = refold("search", "tea", "--limit", "6", "--per-session", "0")
    of_one = refold("search", "tea", "--limit", "6", "--session", "new")

    heads = [line.split()[0] for line in ran.out.splitlines() if line[0] != " "]
    assert heads == ["new"] * 3 + ["old"] * 3 + ["6"]
    assert "    6 more in this session (--session new)\n" in ran.out
    assert "    6 more in this session (--session old)\n" in ran.out
    assert "old" not in of_all.out
    assert "    3 more in this session (--session new)\n" in of_all.out
    assert "more in this session" not in of_one.out


def test_an_empty_store_names_the_commands_that_fill_it(refold: Refold) -> None:
    open_store("sqlite:///refold.db").close()

    ran = refold("sessions")

    assert ran.code == 0
    assert ran.out == "no sessions yet: `refold run` and `refold import` add them\n"


@pytest.mark.parametrize("sort", ["project", "agent", "model"])
def test_a_text_in_a_column_is_cut_by_columns(sort: str) -> None:
    info = SessionInfo("lin", "s", 0, "open", 0)
    for text in ("会" * 40, "m" * 40, "short"):
        overview = Overview(project=text, agent=text, model=text)
        session = SessionOverview(info, overview, is_current=True, is_live=False)
        shown = _COLUMNS[sort].value(session)

        assert cell_len(shown) <= _COLUMNS[sort].width
        is_cut = text != "short"
        # The end of a project's path says more than its beginning.
        assert shown.startswith("…") == (is_cut and sort == "project")
        assert shown.endswith("…") == (is_cut and sort != "project")


@pytest.mark.parametrize(
    ("total", "message"),
    [
        (1, "1 session cannot be read; its title and totals may be out of date (s0):"),
        (
            250,
            "250 sessions cannot be read; their title and totals may be out of date "
            "(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, …):",
        ),
    ],
)
def test_sessions_that_cannot_be_read_are_counted_and_some_are_named(
    refold: Refold,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    total: int,
    message: str,
) -> None:
    names = tuple(f"s{number}" for number in range(min(total, 100)))
    page = OverviewPage([], None, 0, 0, unreadable=names, unreadable_total=total)

    def overviews(*_: Any, **__: Any) -> OverviewPage:
        return page

    monkeypatch.setattr(SessionStore, "overviews", overviews)

    assert message in refold("sessions").err
