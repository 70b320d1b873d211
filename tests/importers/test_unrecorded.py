"""Contexts follow changes that Claude Code made to its context without a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.domain.events import SystemPrompt
from tests.importers.samples import (
    SESSION,
    answered,
    read_one,
    returned,
    use,
    user_entry,
    words,
    write_lines,
)
from tests.importers.test_branches import (
    Entry,
    boundary,
    captured,
    chained,
    imported,
    summary,
)

LONG = "alpha beta gamma delta\n" * 2_000


def read(number: int, path: str, text: str, **file: Any) -> list[Entry]:
    """A call that reads a file, and its result."""
    lines = len(text.split("\n"))
    about = {"filePath": path, "content": text, "numLines": lines, "startLine": 1}
    outcome = {"type": "text", "file": {**about, "totalLines": lines, **file}}
    return called(number, "Read", path, outcome)


def edited(number: int, path: str, before: str, old: str, new: str) -> list[Entry]:
    """A call that edits a file, and its result."""
    strings = {"oldString": old, "newString": new, "replaceAll": False}
    outcome = {"filePath": path, "originalFile": before, **strings}
    return called(number, "Edit", path, outcome)


def wrote(number: int, path: str, text: str) -> list[Entry]:
    """A call that writes a file, and its result."""
    outcome = {"type": "create", "filePath": path, "content": text}
    return called(number, "Write", path, outcome)


def called(number: int, tool: str, path: str, outcome: dict[str, Any]) -> list[Entry]:
    call_id = f"c{number}"
    call = use(call_id, tool, file_path=path)
    return [
        answered(f"call{number}", f"m{number}", call),
        user_entry(
            f"result{number}", [returned(call_id, "done")], toolUseResult=outcome
        ),
    ]


def session(*entries: Entry, version: str = "2.1.7", **more: Any) -> list[Entry]:
    """A session with these entries, a compaction, and an answer after it."""
    parts = chained(
        user_entry("u1", "Look at the files."),
        *entries,
        boundary("cb", "u1"),
        summary("cs", "cb"),
        answered("a9", "m9", words("On it.")),
    )
    return [{**entry, "version": version, **more} for entry in parts]


def sent_again(entries: list[Entry]) -> list[str]:
    """The texts of the context before the last answer, without the summary."""
    before: list[str] = imported(entries)[-2]
    assert before[0] == "SUMMARY"
    return before[1:]


def test_the_five_files_used_last_follow_the_summary_the_newest_first() -> None:
    reads: list[Entry] = []
    for number in range(1, 8):
        reads += read(number, f"/src/{number}.py", f"value = {number}")

    texts = sent_again(session(*reads))

    assert [text.split('file_path":"')[1][:9] for text in texts] == [
        "/src/7.py",
        "/src/6.py",
        "/src/5.py",
        "/src/4.py",
        "/src/3.py",
    ]
    assert "1→value = 7" in texts[0]


def test_a_file_is_sent_again_with_its_latest_change() -> None:
    entries = [
        *read(1, "/src/a.py", "a = 1\nb = 1"),
        *wrote(2, "/src/b.py", "b = 2"),
        *edited(3, "/src/a.py", "a = 1\nb = 1", "a = 1", "a = 3"),
    ]

    newest, older = sent_again(session(*entries))

    assert "1→a = 3\n     2→b = 1" in newest
    assert "b = 2" in older


def test_a_long_file_is_only_named() -> None:
    (text,) = sent_again(session(*read(1, "/src/long.py", LONG)))

    assert "/src/long.py was read before" in text
    assert "alpha" not in text


def test_a_file_of_which_only_a_part_was_read_is_left_out() -> None:
    part = read(1, "/src/part.py", "b = 2", startLine=2, totalLines=9)

    assert sent_again(session(*part)) == []


def test_a_partly_read_file_is_sent_completely() -> None:
    entries = [
        *read(1, "/src/a.py", "a = 1\nb = 2"),
        *read(2, "/src/a.py", "b = 2", startLine=2, totalLines=2),
    ]

    (text,) = sent_again(session(*entries))

    assert "a = 1" in text


def test_the_plan_of_the_session_follows_the_files_whatever_its_length() -> None:
    entries = [
        *wrote(1, "/home/.claude/plans/calm-sea.md", LONG),
        *read(2, "/src/a.py", "a = 1"),
    ]

    file, plan = sent_again(session(*entries, slug="calm-sea"))

    assert "a = 1" in file
    assert "A plan file exists" in plan
    assert LONG.strip() in plan


def test_the_next_compaction_counts_from_these_files() -> None:
    entries = [
        *read(1, "/src/old.py", "old"),
        *read(2, "/src/long.py", LONG),
        *read(3, "/src/a.py", "a"),
    ]
    second = [
        *read(4, "/src/b.py", "b"),
        boundary("cb2", "a9"),
        summary("cs2", "cb2", "SUMMARY"),
        answered("a10", "m10", words("Still on it.")),
    ]
    before = session(*entries)
    after = [{**entry, "version": "2.1.7"} for entry in second]

    texts = sent_again(chained(*before, *after))

    paths = [text.split('file_path":"')[1].split('"')[0] for text in texts]
    assert paths == ["/src/b.py", "/src/a.py", "/src/old.py"]


def test_files_that_the_client_wrote_down_are_shown_once() -> None:
    reads = read(1, "/src/a.py", "a = 1")
    attached = {
        "type": "attachment",
        "uuid": "at",
        "sessionId": SESSION,
        "attachment": {
            "type": "file",
            "filename": "/src/a.py",
            "content": {"type": "text", "file": {"content": "a = 1"}},
        },
    }
    *before, answer = session(*reads)

    texts = sent_again(chained(*before, attached, {**answer, "parentUuid": "at"}))

    assert len(texts) == 1


def test_the_plan_that_a_session_began_with_is_sent_again() -> None:
    begun = user_entry("u2", "Implement the plan.", planContent="1. Paint the fence.")
    plan = "/home/ada/.claude/plans/calm-fox.md"

    (unchanged,) = sent_again(session(begun, slug="calm-fox"))
    (changed,) = sent_again(
        session(begun, *wrote(1, plan, "2. Paint it green."), slug="calm-fox")
    )

    assert "1. Paint the fence." in unchanged
    assert "2. Paint it green." in changed
    assert "1. Paint the fence." not in changed


def skill(number: int, name: str) -> Entry:
    """The entry by which the client puts an invoked skill into the conversation."""
    text = (
        f"Base directory for this skill: /skills/{name}\n\nRules of {name}, {number}."
    )
    return user_entry(f"skill{number}", text, isMeta=True)


def test_invoked_skills_follow_the_files_the_newest_first() -> None:
    entries = [
        skill(1, "review"),
        *read(2, "/src/a.py", "a = 1"),
        skill(3, "plan"),
        skill(4, "review"),
    ]

    file, skills = sent_again(session(*entries))

    assert "a = 1" in file
    assert skills.index("Rules of review, 4.") < skills.index("Rules of plan, 3.")
    assert "Rules of review, 1." not in skills
    assert "### Skill: review\nPath: /skills/review" in skills


def test_a_resumed_client_has_forgotten_the_skills() -> None:
    hook = {"hookName": "SessionStart:resume"}
    resumed = {"type": "progress", "uuid": "h", "sessionId": SESSION, "data": hook}
    entries = [skill(1, "review"), resumed, skill(2, "plan")]

    (skills,) = sent_again(session(*entries))

    assert "Rules of plan, 2." in skills
    assert "Rules of review" not in skills


def test_what_a_user_says_of_a_skill_is_none() -> None:
    text = "Base directory for this skill: /skills/x\n\nWhat does this line mean?"

    assert sent_again(session(user_entry("u2", text))) == []


@pytest.mark.parametrize("version", ["1.0.9", "2.0.75", "", "new"])
def test_other_versions_do_not_send_files_again(version: str) -> None:
    entries = session(*read(1, "/src/a.py", "a = 1"), version=version)

    assert sent_again(entries) == []


def test_a_rewind_leaves_the_files_out_with_the_summary() -> None:
    entries = session(*read(1, "/src/a.py", "a = 1"))
    back = user_entry("u2", "Go on.", parentUuid="u1")

    assert imported([*entries, back])[-1] == ["Look at the files.", "Go on."]


def test_the_event_says_by_which_rule_it_is_there(tmp_path: Path) -> None:
    entries = session(*read(1, "/src/a.py", "a = 1"))

    transcript = read_one(write_lines(tmp_path, entries))

    (source,) = [
        draft.meta.source
        for draft in transcript.drafts
        if isinstance(draft.event, SystemPrompt)
    ]
    assert source is not None
    assert source["rule"] == "files sent again after a compaction"
    assert source["attachment"] == "file"


def test_files_come_the_same_by_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = session(
        *read(1, "/src/a.py", "a = 1"),
        skill(4, "review"),
        *wrote(2, "/src/b.py", "b = 2"),
        *read(3, "/src/long.py", LONG),
    )
    assert "b = 2" in json.dumps(imported(entries)[-2])
    assert "Rules of review" in imported(entries)[-2][-1]

    assert imported(entries, steps=20) == imported(entries)
    assert captured(entries, monkeypatch=monkeypatch) == imported(entries)
    restarted = captured(entries, restarts=True, monkeypatch=monkeypatch)
    assert restarted == imported(entries)


CLEARED = "[Old tool result content cleared]"


def reading(
    *lengths: int, bills: tuple[int, ...], tool: str = "Bash", version: str = "2.1.5"
) -> list[Entry]:
    """A session whose results have these lengths.

    bills: the tokens that were billed for each answer, the last one without a call.
    """
    entries = [user_entry("u1", "Go on.")]
    for number, length in enumerate(lengths):
        call = answered(
            f"call{number}",
            f"m{number}",
            use(f"c{number}", tool),
            usage={"input_tokens": bills[number]},
        )
        result = user_entry(f"result{number}", [returned(f"c{number}", "x" * length)])
        entries += [call, result]
    last = {"input_tokens": bills[-1]}
    entries.append(answered("a9", "m9", words("Done."), usage=last))
    return [{**entry, "version": version} for entry in chained(*entries)]


def results_before_last_answer(entries: list[Entry]) -> list[int | str]:
    """The results in the context of the last answer: their lengths, or the mark."""
    texts = imported(entries)[-2]
    return [
        CLEARED if text == CLEARED else len(text)
        for text in texts
        if text == CLEARED or set(text) == {"x"}
    ]


def test_a_fallen_bill_shows_that_old_results_were_cleared() -> None:
    entries = reading(
        50_000,
        50_000,
        60_000,
        60_000,
        39_000,
        bills=(1, 2, 90_000, 9, 140_000, 110_000),
    )

    assert results_before_last_answer(entries) == [
        CLEARED,
        CLEARED,
        60_000,
        60_000,
        39_000,
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"bills": (1, 2, 90_000, 9, 140_000, 150_000)},
        {"bills": (1, 2, 90_000, 9, 140_000, 126_000)},
        {"version": "2.1.12"},
        {"version": "1.0.9"},
        {"tool": "Task"},
    ],
    ids=["no fall", "small fall", "a version with a record", "old", "another tool"],
)
def test_results_stay_without_that_evidence(change: dict[str, Any]) -> None:
    about = {"bills": (1, 2, 90_000, 9, 140_000, 110_000), **change}

    entries = reading(50_000, 50_000, 60_000, 60_000, 39_000, **about)

    assert CLEARED not in results_before_last_answer(entries)


def test_results_stay_if_the_rule_clears_too_few() -> None:
    lengths = (50_000, 60_000, 60_000, 39_000)

    entries = reading(*lengths, bills=(1, 2, 90_000, 140_000, 110_000))

    assert results_before_last_answer(entries) == [*lengths]


def test_results_are_cleared_the_same_by_every_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = reading(
        50_000,
        50_000,
        60_000,
        60_000,
        39_000,
        bills=(1, 2, 90_000, 9, 140_000, 110_000),
    )
    whole = imported(entries)

    assert imported(entries, steps=20) == whole
    assert captured(entries, monkeypatch=monkeypatch) == whole
    assert captured(entries, restarts=True, monkeypatch=monkeypatch) == whole


def resumption(uuid: str, version: str) -> Entry:
    return {
        "type": "progress",
        "uuid": uuid,
        "parentUuid": None,
        "sessionId": SESSION,
        "version": version,
        "data": {"type": "hook_progress", "hookName": "SessionStart:resume"},
    }


def test_a_resumed_session_has_no_files_that_were_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        *session(*read(1, "/src/a.py", "a = 1"), version="2.1.29"),
        resumption("p", "2.1.29"),
        {**user_entry("u2", "Go on.", parentUuid="a9"), "version": "2.1.29"},
    ]

    whole = imported(entries)

    assert whole[-1] == ["SUMMARY", "On it.", "Go on."]
    assert "a = 1" in str(whole[-2])
    assert imported(entries, steps=20) == whole
    assert captured(entries, monkeypatch=monkeypatch) == whole
    assert captured(entries, restarts=True, monkeypatch=monkeypatch) == whole


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("2.1.17", ["Look.", "Grep", "two", "Both.", "Go on."]),
        ("2.1.22", ["Look.", "Read", "Grep", "one", "two", "Both.", "Go on."]),
    ],
)
def test_a_resumed_session_of_an_old_version_lost_parallel_results(
    version: str, shown: list[str]
) -> None:
    entries = chained(
        user_entry("u1", "Look."),
        answered("a1", "m1", use("c1", "Read")),
        answered("a2", "m1", use("c2", "Grep")),
        user_entry("r1", [returned("c1", "one")], parentUuid="a1"),
        user_entry("r2", [returned("c2", "two")], parentUuid="a2"),
        answered("a3", "m2", words("Both.")),
    )
    entries = [{**entry, "version": version} for entry in entries]
    back = {**user_entry("u2", "Go on.", parentUuid="a3"), "version": version}

    assert imported([*entries, resumption("p", version), back])[-1] == shown


@pytest.mark.parametrize(("bill", "is_gone"), [(30_000, True), (39_000, False)])
def test_a_fallen_bill_after_a_user_shows_that_a_session_was_resumed(
    bill: int, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = chained(
        user_entry("u1", "Look."),
        answered("a1", "m1", use("c1", "Read")),
        answered("a2", "m1", use("c2", "Grep")),
        user_entry("r1", [returned("c1", "one")], parentUuid="a1"),
        user_entry("r2", [returned("c2", "two")], parentUuid="a2"),
        answered("a3", "m2", words("Both."), usage={"input_tokens": 40_000}),
        user_entry("u2", "Go on."),
        answered("a4", "m3", words("Done."), usage={"input_tokens": bill}),
    )
    entries = [{**entry, "version": "2.1.7"} for entry in entries]

    whole = imported(entries)

    assert ("one" not in whole[-1]) is is_gone
    assert imported(entries, steps=20) == whole
    assert captured(entries, restarts=True, monkeypatch=monkeypatch) == whole


def test_a_fallen_bill_after_a_rewind_shows_no_resumption() -> None:
    entries = chained(
        user_entry("u1", "Look."),
        answered("a1", "m1", use("c1", "Read")),
        answered("a2", "m1", use("c2", "Grep")),
        user_entry("r1", [returned("c1", "one")], parentUuid="a1"),
        user_entry("r2", [returned("c2", "two")], parentUuid="a2"),
        answered("a3", "m2", words("Both."), usage={"input_tokens": 40_000}),
        user_entry("u2", "Paint."),
        answered("a4", "m3", words("Red."), usage={"input_tokens": 60_000}),
        user_entry("u3", "Dance.", parentUuid="a3"),
        answered("a5", "m4", words("So."), usage={"input_tokens": 41_000}),
    )
    entries = [{**entry, "version": "2.1.7"} for entry in entries]

    assert "one" in imported(entries)[-1]


def test_a_resumed_session_sends_the_files_of_a_compaction_after_it() -> None:
    entries = [
        *read(1, "/src/a.py", "a = 1"),
        {**resumption("p", "2.1.7"), "parentUuid": "result1"},
    ]

    (text,) = sent_again(session(*entries))

    assert "a = 1" in text


@pytest.mark.parametrize(
    "folder", ["/home/ada/.claude/plans/", "C:\\Users\\ada\\.claude\\plans\\"]
)
def test_a_plan_is_found_on_any_system(folder: str) -> None:
    entries = [*wrote(1, f"{folder}calm-sea.md", LONG), *read(2, "/src/a.py", "a = 1")]

    file, plan = sent_again(session(*entries, slug="calm-sea"))

    assert "a = 1" in file
    assert "A plan file exists" in plan


def test_a_file_of_which_no_lines_are_counted_is_left_out() -> None:
    part = read(1, "/src/a.py", "a = 1", numLines=None, totalLines=None)

    assert sent_again(session(*part)) == []
