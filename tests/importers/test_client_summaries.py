"""Refold loses no word that the user said before a compaction of the client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.domain.events import AgentResponse, UserInput
from refold.projections.context.strategies.spec import parse
from refold.store import Session
from tests.importers.samples import (
    SESSION,
    answered,
    returned,
    use,
    user_entry,
    words,
    write_lines,
)
from tests.importers.test_branches import Entry, boundary, chained, summary

CHARS = "trigger_on_history_size_chars=2500,history_tail_size_chars_to_exclude=400"
SPECS = (
    f"history_summary:{CHARS}",
    "turn_window:full_turns=1,cached_turns=2",
    "message_window:context_size=16,compression_window_size=4,tail_keep_size=4",
    "recursive_summary:every=4,keep_last=2",
    "hybrid:threshold_low=200,threshold_high=600,last_n_events=4",
    "token_ratio:max_context_tokens=1500,trigger_threshold=0.4,keep_recent_turns=1,protected_tokens=900",
    f"tool_clearing+history_summary:{CHARS}",
)
RULE = "Never edit anything under vendored/, whatever a test asks for."
QUOTED = "Please make the third part of the page faster than the others."
SUMMARY = "\n".join(
    (
        "This session is being continued from a previous conversation.",
        "",
        "Summary:",
        "1. Primary Request and Intent:",
        "   - The fence must be green, and the gate stays locked.",
        "2. Files and Code Sections:",
        "   - fence.py has the colours.",
        "6. All user messages:",
        f'   - "{QUOTED}"',
        "9. Optional Next Step:",
        "   Paint the gate.",
    )
)


def request(number: int) -> str:
    return f"Please do part {number} of the work, and mind the number {number * 7919}."


def turn(number: int, text: str = "") -> list[Entry]:
    answer = f"Part {number} is done. " + "I looked at all of its lines. " * 8
    return [
        user_entry(f"u{number}", text or request(number)),
        answered(f"a{number}", f"m{number}", words(answer)),
    ]


def before_the_compaction() -> list[Entry]:
    return [
        *turn(1, RULE),
        *turn(2),
        *turn(3, QUOTED),
        user_entry("x1", "ABANDONED: paint it red instead of any other colour."),
        answered("x2", "mx", words("ABANDONED: red it is.")),
        {**turn(4)[0], "parentUuid": "a3"},
        turn(4)[1],
    ]


def compacted_by_client(number: int, parent: str, text: str = SUMMARY) -> list[Entry]:
    return [
        boundary(f"b{number}", parent),
        summary(f"s{number}", f"b{number}", text),
        answered(f"r{number}", f"n{number}", words("I continue with the work.")),
    ]


def entries(*, until: int) -> list[Entry]:
    """A session with a compaction of the client, and turns after it."""
    chain = [*before_the_compaction(), *compacted_by_client(1, "a4")]
    for number in range(5, until + 1):
        chain += turn(number)
    return chained(*chain)


def text_of(view: Any) -> str:
    texts: list[str] = []
    for message in view.messages:
        for block in message["content"]:
            texts.append(str(block.get("text") or block.get("content") or ""))
    return "\n".join(texts)


@contextmanager
def recorded(
    way: str, stages: Sequence[Sequence[Entry]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Iterator[Session]]:
    """Yield the session after each stage of its file.

    way: "imported" or "captured".
    """
    with TemporaryDirectory() as home, refold.open("memory://") as store:
        monkeypatch.setenv("REFOLD_HOME", home + "/home")
        folder = Path(home, "projects", "-work")
        folder.mkdir(parents=True)
        path = folder / f"{SESSION}.jsonl"
        path.touch()
        follower = Follower(store, "claude-code", user_id="ada", folder=folder.parent)

        def sessions() -> Iterator[Session]:
            written = 0
            for entries in stages:
                if way == "imported":
                    write_lines(folder, entries, path.name)
                    store.import_transcript(path, user_id="ada")
                else:
                    with path.open("a") as file:
                        for entry in entries[written:]:
                            file.write(json.dumps(entry) + "\n")
                    written = len(entries)
                    with follower.alone():
                        follower.look()
                yield store.session(user_id="ada", session_id=SESSION)

        yield sessions()


def user_words(until: int) -> list[str]:
    return [RULE, QUOTED, *map(request, (2, 4, *range(5, until + 1)))]


def missing(wished: Iterable[str], context: str) -> list[str]:
    return [text for text in wished if text not in context]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("way", ["imported", "captured"])
def test_words_from_before_a_clients_compaction_stay(
    spec: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = (12, 20, 28)
    stages = [entries(until=end) for end in ends]

    with recorded(way, stages, monkeypatch) as sessions:
        for end, session in zip(ends, sessions, strict=True):
            view = session.prepare(spec)
            context = text_of(view)

            assert view.spans[0].kind == "summary", "Refold compacted"
            assert missing(user_words(end), context) == []
            assert missing(SUMMARY.splitlines(), context) == []
            assert context.count(QUOTED) == 1
            assert "ABANDONED" not in context
        assert session.verify().problems == []


@pytest.mark.parametrize("spec", SPECS)
def test_words_stay_after_two_compactions_of_the_client(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = entries(until=12)
    later = compacted_by_client(2, "a12", "SECOND SUMMARY\nThe gate is painted.")
    for number in range(13, 25):
        later += turn(number)
    both = [*first, *chained(*later)]

    with recorded("imported", [first, both], monkeypatch) as sessions:
        for session in sessions:
            context = text_of(session.prepare(spec))

    assert missing(user_words(24), context) == []
    assert "The gate is painted." in context
    assert "the gate stays locked" not in context


def edited(number: int, path: str, parent_text: str = "") -> list[Entry]:
    """A turn in which the agent edits a file."""
    call_id = f"edit-{number}"
    arguments = {"file_path": path, "old_string": "a", "new_string": "b"}
    return [
        user_entry(f"u{number}", parent_text or request(number)),
        answered(f"c{number}", f"k{number}", use(call_id, "Edit", **arguments)),
        user_entry(f"e{number}", [returned(call_id)]),
        answered(f"a{number}", f"m{number}", words(f"Part {number} is done. " * 8)),
    ]


EARLY: Final = [f"/home/ada/fence/src/part_{number}.py" for number in range(1, 9)]


def with_files(*, until: int) -> list[Entry]:
    """A session whose client compacts after it edited files, and turns after it."""
    chain: list[Entry] = []
    for number, path in enumerate(EARLY, start=1):
        chain += edited(number, path)
    chain += compacted_by_client(1, f"a{len(EARLY)}")
    for number in range(len(EARLY) + 1, until + 1):
        chain += edited(number, "/home/ada/fence/src/late.py")
    return chained(*chain)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("way", ["imported", "captured"])
def test_files_from_before_a_clients_compaction_stay(
    spec: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = (16, 24, 32)
    stages = [with_files(until=end) for end in ends]

    with recorded(way, stages, monkeypatch) as sessions:
        for session in sessions:
            view = session.prepare(spec)
            context = text_of(view)

            assert view.spans[0].kind == "summary", "Refold compacted"
            names = [path.rpartition("/")[2] for path in (*EARLY, "late.py")]
            assert missing(names, context) == []
        assert session.verify().problems == []


@pytest.mark.parametrize("spec", SPECS)
def test_a_rebuild_names_files_from_before_a_clients_compaction(
    spec: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path, with_files(until=32), f"{SESSION}.jsonl")
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        rebuilt = list(store.rebuild(spec))
        session = store.session(user_id="ada", session_id=SESSION)
        context = text_of(session.context(spec))

    assert sum(result.compactions for result in rebuilt) > 0
    names = [path.rpartition("/")[2] for path in EARLY]
    assert missing(names, context) == []


def test_files_stay_after_two_compactions_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = with_files(until=16)
    later = compacted_by_client(2, "a16", "SECOND SUMMARY\nThe gate is painted.")
    for number in range(17, 30):
        later += edited(number, "/home/ada/fence/src/last.py")
    both = [*first, *chained(*later)]

    with recorded("imported", [first, both], monkeypatch) as sessions:
        for session in sessions:
            context = text_of(session.prepare(SPECS[0]))

    names = [path.rpartition("/")[2] for path in EARLY]
    assert missing([*names, "late.py", "last.py"], context) == []


def test_an_earlier_version_names_no_files_from_before_a_clients_compaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"full_turns": 1, "cached_turns": 2}
    before = parse({"name": "turn_window", "version": 7, "params": params})

    with recorded("imported", [with_files(until=16)], monkeypatch) as sessions:
        context = text_of(next(sessions).prepare(before))

    assert "late.py" in context
    assert "part_3.py" not in context


def test_a_branch_that_compacted_and_was_abandoned_protects_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = [
        *turn(1, RULE),
        *turn(2, "ABANDONED: paint it red instead of any other colour."),
        *compacted_by_client(1, "a2", "ABANDONED summary"),
        user_entry("k3", request(3), parentUuid="a1"),
        *turn(3)[1:],
    ]
    for number in range(4, 20):
        chain += turn(number)
    spec = "turn_window:full_turns=1,cached_turns=2"

    with recorded("imported", [chained(*chain)], monkeypatch) as sessions:
        context = text_of(next(sessions).prepare(spec))

    assert RULE in context
    assert "ABANDONED" not in context


def test_a_fork_keeps_the_words_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "turn_window:full_turns=1,cached_turns=2"

    with recorded("imported", [entries(until=8)], monkeypatch) as sessions:
        session = next(sessions)
        end = session.events()
        fork = session.fork(at=max(event.seq for event in end), session_id="fork")
        fork.append([UserInput(text="Go on."), AgentResponse(text="I go on.")])
        context = text_of(fork.prepare(spec))

    assert missing(user_words(8), context) == []
    assert "the gate stays locked" in context


def test_the_context_before_a_compaction_of_refold_is_that_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = [entries(until=5)]

    with recorded("imported", stages, monkeypatch) as sessions:
        context = text_of(next(sessions).prepare("turn_window"))

    assert context.startswith(SUMMARY)
    assert RULE not in context


def test_an_earlier_version_gives_its_own_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = {"full_turns": 1, "cached_turns": 2}
    before = parse({"name": "turn_window", "version": 5, "params": params})

    with recorded("imported", [entries(until=12)], monkeypatch) as sessions:
        context = text_of(next(sessions).prepare(before))

    assert RULE not in context
    assert "the gate stays locked" not in context


@pytest.mark.parametrize("version", [6, 7])
def test_the_heading_says_that_a_clients_summary_is_old(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"full_turns": 1, "cached_turns": 2}
    spec = {"name": "turn_window", "version": version, "params": params}

    with recorded("imported", [entries(until=12)], monkeypatch) as sessions:
        context = text_of(next(sessions).prepare(parse(spec)))

    assert "the client replaced the history by this summary" in context
    assert ("Work that it calls open may be done since:" in context) == (version > 6)
