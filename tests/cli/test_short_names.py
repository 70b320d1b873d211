"""A list in a terminal prints a short name for each session, which commands accept."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, strategies as st

from refold import UserInput, open as open_store
from refold.adapters.cli.session_names import Beginning, short_names
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain

PARENT = "3de15637-1b5c-4c6e-9a43-0f4a7d1b2c3d"
AGENTS = (f"{PARENT}~agent-a0fe41c9", f"{PARENT}~agent-a0fe77b2")


def meant(text: str, names: set[str]) -> list[str]:
    """Return the names that a text means among others."""
    if text in names:
        return [text]
    beginning = Beginning(text)
    return beginning.chosen(name for name in names if beginning.fits(name))


def test_two_sub_agents_of_a_session_have_different_short_names() -> None:
    short = short_names({PARENT, *AGENTS})

    assert short == {
        PARENT: "3de15637…",
        AGENTS[0]: "3de15637~agent-a0fe4…",
        AGENTS[1]: "3de15637~agent-a0fe7…",
    }


def test_sessions_that_begin_alike_have_longer_short_names() -> None:
    short = short_names({"019b2c4d-1111-7000", "019b2c4d-1122-7000", "run", "run-2"})

    assert short == {
        "019b2c4d-1111-7000": "019b2c4d-111…",
        "019b2c4d-1122-7000": "019b2c4d-112…",
        "run": "run",
        "run-2": "run-2",
    }


@given(st.sets(st.text("ab~", min_size=1, max_size=40), max_size=12))
def test_a_short_name_means_its_session_alone(names: set[str]) -> None:
    for name, short in short_names(names).items():
        assert meant(short, names) == [name]
        assert len(short) <= len(name)


def test_a_session_is_meant_rather_than_sub_agents_of_an_erased_one() -> None:
    names = {PARENT, f"{AGENTS[0]}~t"}

    assert meant(short_names(names)[PARENT], names) == [PARENT]
    assert meant("3de15637", names) == [PARENT]


def test_commands_accept_the_short_names_of_lists(refold: Refold, sample: Path) -> None:
    names = (PARENT, *AGENTS)
    with open_store("sqlite:///refold.db") as store:
        for name in names:
            session = store.session(user_id="lin", session_id=name)
            session.append(UserInput(text=f"find the tea {name[-4:]}"))

    listed = plain(on_terminal("sessions", columns=80))
    hits = plain(on_terminal("search", "tea", columns=80))
    whole = plain(on_terminal("sessions", "--ids", columns=120))

    for name, short in short_names([*names, "run"]).items():
        assert f" {short}" in listed
        if name != "run":
            assert f"{short} 1" in hits
        assert name in whole
        events = refold("log", "--session", short, "--json").lines()
        assert events[0]["session_id"] == name
    assert max(map(len, listed.splitlines())) <= 80
