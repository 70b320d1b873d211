"""``import`` reads everything before it writes, redacts, and can be repeated safely."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from refold.adapters import importers
from refold.adapters.cli import output
from refold.adapters.cli.commands import import_
from refold.adapters.importers import Outline
from refold.domain.errors import StoreUnavailable
from refold.opener import open_store
from refold.store import Session
from tests.cli.conftest import SAMPLE, Refold
from tests.support.rebuilding import append_turns

PLANTED = (
    "AKIAFAKE4DEMO7KEY2QZ",
    "ghp_FakeDemoToken7Not4Real2Qw9Er5Ty8Ui31",
    "Tiger-Lamp-42",
    "lin.wei@campus-mail.test",
    "13867541209",
    "110101199803074512",
    "2021302111234",
    "4111 1111 1111 1111",
)


def chat(path: Path, *conversations: list[str]) -> Path:
    """Write conversations in which user and assistant take turns."""
    roles = ("user", "assistant")
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "messages": [
                        {"role": roles[index % 2], "content": text}
                        for index, text in enumerate(texts)
                    ]
                }
            )
            for texts in conversations
        )
        + "\n"
    )
    return path


def test_a_text_that_needs_too_much_work_is_counted_and_harms_no_other(
    refold: Refold, tmp_path: Path
) -> None:
    dear = "CLIENT_SECRET=a8f5f167f44f4964" * 400
    file = chat(tmp_path / "chat.jsonl", ["Hello.", dear, "Thanks."])

    ran = refold("import", file, "--user", "lin", "--json")
    again = refold("import", file, "--user", "lin", "--json")

    assert ran.json()["redactions"] == {"UNSCANNED": 1}
    assert ran.json()["events"] == 3
    assert again.json()["duplicates"] == 3


def test_json_reports_the_import(refold: Refold) -> None:
    ran = refold("import", SAMPLE, "--user", "lin", "--json")

    report = ran.json()
    assert ran.code == 0
    assert list(report) == [
        "sessions",
        "events",
        "duplicates",
        "redactions",
        "skipped",
        "damaged",
        "failed",
    ]
    assert report["sessions"] == ["5f0c2a7e-3b41-4d8e-9a56-1c7e8b9d0f24"]
    assert (report["events"], report["duplicates"]) == (57, 0)
    assert report["redactions"]["API_KEY"] == 5
    assert {"ID_CARD", "PHONE", "STUDENT_ID"} <= set(report["redactions"])
    assert report["skipped"] == [
        {
            "where": "agent_run.jsonl line 1",
            "why": "session title",
        }
    ]


def test_people_see_a_table(refold: Refold) -> None:
    ran = refold("import", SAMPLE, "--user", "lin", "--session", "run")

    assert ran.code == 0
    assert "claude-code" in ran.out
    assert "API_KEY×5" in ran.out
    assert "57 events written to 1 session, 0 already there" in ran.out
    assert "skipped 1 × " in ran.out


@pytest.mark.parametrize("secret", PLANTED)
def test_redacted_values_are_nowhere_in_the_store(
    refold: Refold, sample: Path, secret: str
) -> None:
    files = [path for path in sample.parent.rglob("*") if path.is_file()]
    log = refold("log", "--user", "lin", "--session", "run", "--json").out

    assert secret in SAMPLE.read_text()
    assert secret not in log
    assert not any(secret.encode() in path.read_bytes() for path in files)


def test_an_import_fails_only_if_an_entry_is_lost(
    refold: Refold, tmp_path: Path
) -> None:
    first, second, *rest = SAMPLE.read_bytes().splitlines(keepends=True)
    glued = tmp_path / "glued.jsonl"
    glued.write_bytes(b"".join([first, second.rstrip(b"\n"), *rest]))
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(b"".join([first, second, *rest[:-1], rest[-1][:50]]))

    read_whole = refold("import", glued, "--user", "lin", "--session", "a", "--json")
    lost = refold("import", torn, "--user", "lin", "--session", "b", "--json")
    strict = refold("import", glued, "--user", "lin", "--session", "c", "--strict")

    assert (read_whole.code, lost.code, strict.code) == (0, 1, 1)
    assert read_whole.json()["events"] == 57
    assert "without a newline between them: all read" in read_whole.err
    assert len(read_whole.json()["damaged"]) == len(lost.json()["damaged"]) == 1


def test_importing_again_adds_nothing(refold: Refold, sample: Path) -> None:
    ran = refold("import", SAMPLE, "--user", "lin", "--session", "run", "--json")

    report = ran.json()
    assert (report["events"], report["duplicates"]) == (0, 57)
    assert report["sessions"] == ["run"]


def test_a_transcript_that_has_grown_adds_its_new_events(
    refold: Refold, tmp_path: Path
) -> None:
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    grown = tmp_path / "grown.jsonl"
    grown.write_bytes(b"".join(lines[:30]))
    first = refold("import", grown, "--user", "lin", "--json").json()
    grown.write_bytes(b"".join(lines))

    second = refold("import", grown, "--user", "lin", "--json").json()

    assert first["events"] + second["events"] == 57
    assert second["duplicates"] == first["events"]


def test_sessions_without_a_name_are_named_after_the_file(
    refold: Refold, tmp_path: Path
) -> None:
    path = chat(tmp_path / "talk.jsonl", ["hello", "hi"], ["bye", "see you"])

    report = refold("import", path, "--user", "ada", "--json").json()

    assert report["sessions"] == ["talk-0001", "talk-0002"]


def test_one_session_takes_the_given_name(refold: Refold, tmp_path: Path) -> None:
    path = chat(tmp_path / "talk.jsonl", ["hello", "hi"])

    report = refold("import", path, "--user", "ada", "--session", "s", "--json").json()

    assert report["sessions"] == ["s"]


def test_several_sessions_get_the_name_with_numbers(
    refold: Refold, tmp_path: Path
) -> None:
    first = chat(tmp_path / "one.jsonl", ["hello", "hi"], ["bye", "see you"])
    second = chat(tmp_path / "two.jsonl", ["what now", "nothing"])

    ran = refold("import", first, second, "--user", "ada", "--session", "s", "--json")

    assert ran.json()["sessions"] == ["s-0001", "s-0002", "s-0003"]


def test_a_sub_agent_is_named_after_its_conversation(
    refold: Refold, tmp_path: Path
) -> None:
    entries = [json.loads(line) for line in SAMPLE.read_text().splitlines()[1:4]]
    side = {
        "type": "user",
        "sessionId": entries[0]["sessionId"],
        "isSidechain": True,
        "agentId": "a1",
        "uuid": "11112222-3333-4444-8555-666677778888",
        "message": {"role": "user", "content": "Look for tests."},
    }
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (*entries, side)))

    report = refold("import", path, "--user", "ada", "--session", "s", "--json").json()

    main, sub = report["sessions"]
    assert main == "s"
    assert sub.startswith("s~")


def test_a_file_that_is_named_twice_is_read_once(refold: Refold) -> None:
    report = refold("import", SAMPLE, SAMPLE, "--user", "lin", "--json").json()

    assert (report["events"], report["duplicates"]) == (57, 0)


def test_two_files_cannot_become_one_session(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = chat(tmp_path / "talk.jsonl", ["hello", "hi"])
    second = chat(tmp_path / "a" / "talk.jsonl", ["bye", "see you"])

    ran = refold("import", first, second, "--user", "ada")

    assert ran.code == 1
    assert "session 'talk-0001' is twice in it" in ran.err
    assert not (tmp_path / "refold.db").exists()


def test_nothing_is_written_if_one_file_cannot_be_read(
    refold: Refold, tmp_path: Path
) -> None:
    good = chat(tmp_path / "good.jsonl", ["hello", "hi"])
    broken = tmp_path / "broken.jsonl"
    broken.write_text(good.read_text() + '{"messages": [\n{}\n')

    ran = refold("import", good, broken, "--user", "ada")

    assert ran.code == 1
    assert "broken.jsonl line 2" in ran.err
    assert not (tmp_path / "refold.db").exists()


def test_a_failure_reports_the_events_written_before(
    refold: Refold, tmp_path: Path
) -> None:
    first = chat(tmp_path / "one.jsonl", ["hello", "hi"])
    second = chat(tmp_path / "two.jsonl", ["what now", "nothing"])
    refold("import", second, "--user", "ada")
    chat(second, ["what then", "nothing"])

    ran = refold("import", first, second, "--user", "ada")

    assert ran.code == 1
    assert "was rewritten" in ran.err
    assert "2 events written, 1 session complete: --keep-going imports" in ran.err


def test_a_rewritten_transcript_is_refused(refold: Refold, tmp_path: Path) -> None:
    path = chat(tmp_path / "talk.jsonl", ["hello", "hi"])
    refold("import", path, "--user", "ada")
    chat(path, ["good day", "hi"])

    ran = refold("import", path, "--user", "ada")

    assert ran.code == 1
    assert ran.err.endswith("; nothing was written\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "there is no such file"),
        ("empty.jsonl", b"", "is empty"),
        ("prose.txt", b"Dear all,\nnothing.\n", "JSON"),
        ("binary.jsonl", b"\x00\x01\x02", "binary"),
    ],
)
def test_a_file_that_is_no_transcript_is_an_error(
    refold: Refold, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    ran = refold("import", path, "--user", "ada", "--json")

    assert ran.code == 1
    assert message in ran.err
    assert ran.out == ""


def test_a_directory_is_refused_with_a_way_out(refold: Refold, tmp_path: Path) -> None:
    ran = refold("import", tmp_path, "--user", "ada")

    assert ran.code == 1
    assert "is a directory" in ran.err


def test_the_format_must_be_a_known_one(refold: Refold) -> None:
    ran = refold("import", SAMPLE, "--user", "ada", "--format", "word")

    assert ran.code == 2
    assert "claude-code" in ran.err


def test_a_format_that_is_not_the_files_is_refused(refold: Refold) -> None:
    ran = refold("import", SAMPLE, "--user", "ada", "--format", "letta")

    assert ran.code == 1
    assert "not a Letta agent file" in ran.err


@pytest.fixture
def good_and_bad_files(tmp_path: Path) -> list[Path]:
    """Files of which some are invalid in different ways, and two are valid."""
    folder = tmp_path / "many"
    folder.mkdir()
    good = chat(folder / "good.jsonl", ["hello", "hi"])
    (folder / "cut.jsonl").write_bytes(good.read_bytes()[:-20])
    (folder / "empty.jsonl").touch()
    (folder / "folder.jsonl").mkdir()
    (folder / "binary.jsonl").write_bytes(b"\x00\x01\x02")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    chat(folder / "zoo.jsonl", ["what now", "nothing"])
    return sorted(folder.iterdir())


def test_with_the_option_one_bad_file_does_not_stop_the_others(
    refold: Refold, good_and_bad_files: list[Path]
) -> None:
    ran = refold(
        "import", *good_and_bad_files, "--user", "ada", "--keep-going", "--json"
    )

    report = ran.json()
    assert ran.code == 1
    assert report["sessions"] == ["good-0001", "zoo-0001"]
    assert report["events"] == 4
    assert [
        Path(failure["where"].split(" line")[0]).stem for failure in report["failed"]
    ] == [
        "binary",
        "cut",
        "empty",
        "folder",
        "loop",
    ]
    for failure in report["failed"]:
        assert f"refold: {failure['where']}: {failure['why']}\n" in ran.err


def test_without_the_option_the_first_bad_file_stops_all(
    refold: Refold, good_and_bad_files: list[Path], tmp_path: Path
) -> None:
    ran = refold("import", *good_and_bad_files, "--user", "ada")

    assert ran.code == 1
    assert "nothing was written: --keep-going imports the other files" in ran.err
    assert not (tmp_path / "refold.db").exists()


def test_a_session_that_cannot_be_written_does_not_stop_the_others(
    refold: Refold, tmp_path: Path
) -> None:
    first, rewritten, third = (
        chat(tmp_path / f"{name}.jsonl", ["hello", name]) for name in ("a", "b", "c")
    )
    refold("import", rewritten, "--user", "ada")
    chat(rewritten, ["good day", "b"])

    ran = refold(
        "import", first, rewritten, third, "--user", "ada", "--keep-going", "--json"
    )

    assert ran.code == 1
    assert ran.json()["sessions"] == ["a-0001", "c-0001"]
    (failed,) = ran.json()["failed"]
    assert failed["where"] == str(rewritten)
    assert "was rewritten" in failed["why"]


def test_two_files_for_one_session_do_not_stop_the_others(
    refold: Refold, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    first = chat(tmp_path / "talk.jsonl", ["hello", "hi"])
    same_session = chat(tmp_path / "a" / "talk.jsonl", ["bye", "see you"])
    other = chat(tmp_path / "other.jsonl", ["what now", "nothing"])

    ran = refold(
        "import", first, same_session, other, "--user", "ada", "--keep-going", "--json"
    )

    assert ran.json()["sessions"] == ["talk-0001", "other-0001"]
    assert [failed["where"] for failed in ran.json()["failed"]] == [str(same_session)]


def test_no_store_is_created_if_every_file_is_bad(
    refold: Refold, tmp_path: Path
) -> None:
    ran = refold("import", tmp_path, "none.jsonl", "--user", "ada", "--keep-going")

    assert ran.code == 1
    assert "2 files not imported" in ran.out
    assert not (tmp_path / "refold.db").exists()


def test_one_name_for_all_sessions_requires_valid_files(
    refold: Refold, good_and_bad_files: list[Path]
) -> None:
    ran = refold(
        "import",
        *good_and_bad_files,
        "--user",
        "ada",
        "--keep-going",
        "--session",
        "support",
    )

    assert ran.code == 2
    assert "--keep-going may leave files out" in ran.err


def test_a_frozen_user_stops_all_files(refold: Refold, tmp_path: Path) -> None:
    first = chat(tmp_path / "one.jsonl", ["hello", "hi"])
    second = chat(tmp_path / "two.jsonl", ["bye", "see you"])
    refold("import", first, "--user", "ada")
    refold("freeze", "--user", "ada", "--reason", "court")

    ran = refold("import", second, first, "--user", "ada", "--keep-going")

    assert ran.code == 1
    assert ran.err.count("the user is frozen") == 1


def write_long_chat(path: Path, turns: int = 450) -> Path:
    """Write a conversation that is imported in three batches."""
    texts = [f"turn {number}" for number in range(turns)]
    return chat(path, texts)


@pytest.fixture
def interrupt_after(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[int, int], None]]:
    """Returns a function that makes this process signal itself after some batches."""
    # A shell starts background processes with Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def arm(signal_: int, after: int) -> None:
        original = output.Progress.reach
        left = [after]

        def counted_reach(self: output.Progress, *place: Any) -> None:
            original(self, *place)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal_)

        monkeypatch.setattr(output.Progress, "reach", counted_reach)

    yield arm
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (1, "interrupted; nothing was written\n"),
        (4, "interrupted; 2 events written, 1 session complete: import again to add"),
        (5, "interrupted; 202 events written, 1 session complete: import again to add"),
    ],
)
def test_ctrl_c_reports_the_events_written(
    refold: Refold,
    tmp_path: Path,
    interrupt_after: Callable[[int, int], None],
    after: int,
    message: str,
) -> None:
    first = chat(tmp_path / "one.jsonl", ["hello", "hi"])
    second = write_long_chat(tmp_path / "two.jsonl")
    interrupt_after(signal.SIGINT, after)

    ran = refold("import", first, second, "--user", "ada")

    assert ran.code == 130
    assert message in ran.err
    stored = sum(listed["head_seq"] for listed in refold("sessions", "--json").json())
    assert f"{stored} events" in message or not stored


def test_a_killed_import_is_completed_once(refold: Refold, tmp_path: Path) -> None:
    first = chat(tmp_path / "one.jsonl", ["hello", "hi"])
    second = write_long_chat(tmp_path / "two.jsonl")
    third_file = write_long_chat(tmp_path / "three.jsonl", 2)
    files = [str(file) for file in (first, second, third_file)]
    script = f"""
import os, signal
from refold.adapters.cli import main, output
original, left = output.Progress.reach, [5]
def counted(self, *place):
    original(self, *place)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
output.Progress.reach = counted
main(["import", *{files!r}, "--user", "ada"])
"""

    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    before = refold("sessions", "--sort", "session", "--json").json()
    again = refold("import", *files, "--user", "ada", "--json").json()
    third = refold("import", *files, "--user", "ada", "--json").json()

    assert killed.returncode == -signal.SIGKILL
    assert [listed["head_seq"] for listed in before] == [2, 200]
    assert (again["duplicates"], again["events"]) == (202, 252)
    assert (third["duplicates"], third["events"]) == (454, 0)
    assert refold("verify").code == 0


def test_progress_can_be_printed_without_a_terminal(
    refold: Refold, tmp_path: Path
) -> None:
    path = write_long_chat(tmp_path / "talk.jsonl")

    shown = refold("import", path, "--user", "ada", "--progress")
    quiet = refold("import", path, "--user", "bob")
    as_json = refold("import", path, "--user", "eve", "--progress", "--json")

    assert "refold: 1 of 1 file: read\n" in shown.err
    assert "refold: 450 of 450 events: talk-0001\n" in shown.err
    assert " of " not in quiet.err + as_json.err
    assert shown.out == quiet.out


def test_a_file_that_changes_during_the_import_is_reported(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chat(tmp_path / "talk.jsonl", ["hello", "hi"], ["bye", "see you"])
    times: list[Path] = []
    read = importers.transcripts

    def shrinking(path: Path, *, format: str, strict: bool) -> Iterator[Any]:  # noqa: A002  # its name
        times.append(path)
        return islice(read(path, format=format, strict=strict), 3 - len(times))

    for module in (import_, importers):
        monkeypatch.setattr(module, "transcripts", shrinking)

    ran = refold("import", path, "--user", "ada", "--keep-going", "--json")

    assert ran.code == 1
    assert ran.json()["sessions"] == ["talk-0001"]
    (failed,) = ran.json()["failed"]
    assert failed["why"] == "changed while it was imported: import it again"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_two_files_of_one_session_are_counted_as_one_session(
    refold: Refold, tmp_path: Path, jobs: str
) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(SAMPLE).read_bytes())

    ran = refold("import", SAMPLE, copy, "--user", "lin", "--jobs", jobs)
    again = refold("import", SAMPLE, copy, "--user", "lin", "--json")

    assert "57 events written to 1 session, 57 already there" in ran.out
    assert len(again.json()["sessions"]) == 1


def test_stdin_is_refused_with_a_way_out(refold: Refold) -> None:
    ran = refold("import", "-", "--user", "lin")

    assert ran.code == 1
    assert "stdin cannot be imported" in ran.err
    assert "save it first" in ran.err


def test_an_export_of_traces_without_content_is_refused(
    refold: Refold, sample: Path, tmp_path: Path
) -> None:
    traces = tmp_path / "traces.jsonl"
    refold("export", "--user", "lin", "--format", "otlp", "--out", traces)

    ran = refold("import", traces, "--user", "bob")

    assert ran.code == 1
    assert "call of a model without its messages" in ran.err


def outlines_of(folder: Path, *events: int, session: str = "") -> list[Outline]:
    return [
        Outline(
            path=folder / f"{number}.jsonl",
            place=0,
            session_id=f"{number}",
            parent_session_id=None,
            format="openai",
            events=count,
            session=session or f"s-{number}",
        )
        for number, count in enumerate(events)
    ]


def test_a_folder_with_many_events_is_shared_by_a_process_for_each_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_, "_cores", lambda: 4)
    many = outlines_of(tmp_path, 1_000, 500, 500)

    def jobs(outlines: list[Outline], path: Path = tmp_path) -> int:
        groups = import_._dependent_files(import_._by_file(outlines))
        return import_._default_jobs([path], groups)

    assert jobs(many) == 3
    assert jobs(outlines_of(tmp_path, *[1_000] * 9)) == 4
    # These are few events, one file, no folder, and parts of one session.
    assert jobs(outlines_of(tmp_path, 900, 900)) == 1
    assert jobs(outlines_of(tmp_path, 9_000)) == 1
    assert jobs(many, tmp_path / "0.jsonl") == 1
    assert jobs(outlines_of(tmp_path, 1_000, 1_000, session="one")) == 1


def test_several_processes_import_what_one_does(refold: Refold, tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    for number in range(4):
        texts = [f"words {number} {turn}" for turn in range(600 + number)]
        chat(folder / f"{number}.jsonl", texts)

    shared = refold("import", folder, "--user", "ada", "--json").json()
    alone = refold("import", folder, "--user", "bob", "--jobs", "1", "--json").json()

    assert shared["events"] == 600 + 601 + 602 + 603
    assert shared == alone


@pytest.fixture
def forks(tmp_path: Path, refold: Refold) -> Path:
    """A folder with exports of a session, its fork, and two forks of that.

    One fork adds no events to its session.  By name and by size, the forks come before
    the sessions that they continue.
    """
    url = f"sqlite:///{tmp_path}/exported.db"
    with open_store(url) as store:
        append_turns(store.session(user_id="ada", session_id="z"), 10)
        for fork, parent, turns in (("m", "z", 30), ("a", "m", 60), ("b", "m", 0)):
            parent_session = store.session(user_id="ada", session_id=parent)
            session = parent_session.fork(20, session_id=fork)
            append_turns(session, turns)
    folder = tmp_path / "exports"
    folder.mkdir()
    for name in "zmab":
        out = folder / f"{name}.jsonl"
        exported = refold("--db", url, "export", "--session", name, "--out", out)
        assert exported.code == 0, exported.err
    chat(folder / "other.jsonl", [f"words {turn}" for turn in range(40)])
    return folder


@pytest.mark.parametrize(
    ("earlier", "ordered"),
    [
        ({number: {number + 1} for number in range(2_000)} | {2_000: set()}, -1),
        ({number: set() for number in range(2_000)}, 1),
    ],
    ids=["a chain of forks", "no forks"],
)
def test_many_files_of_a_group_are_ordered_soon(
    earlier: dict[int, set[int]], ordered: int
) -> None:
    began = process_time()

    order = import_._in_order(set(earlier), earlier)

    assert order == sorted(earlier)[::ordered]
    assert process_time() - began < 1


def test_files_that_are_forks_of_each_other_come_last() -> None:
    assert import_._in_order({0, 1, 2}, {0: {1}, 1: {0}, 2: set()}) == [2, 0, 1]


@pytest.mark.parametrize("jobs", [(), ("--jobs", "1"), ("--jobs", "2")])
def test_a_fork_is_imported_after_its_session(
    refold: Refold, forks: Path, monkeypatch: pytest.MonkeyPatch, jobs: tuple[str, ...]
) -> None:
    monkeypatch.setattr(import_, "_FEWEST_FOR_JOBS", 10)
    monkeypatch.setattr(import_, "_cores", lambda: 2)

    ran = refold("import", forks, "--user", "bob", *jobs, "--json")

    assert ran.code == 0, ran.err
    sessions = refold("sessions", "--user", "bob", "--json").json()
    heads = {listed["session_id"]: listed["head_seq"] for listed in sessions}
    assert heads == {"z": 20, "m": 61, "a": 121, "b": 1, "other-0001": 40}


def events_in_store(refold: Refold) -> int:
    return sum(listed["head_seq"] for listed in refold("sessions", "--json").json())


def test_a_failure_counts_what_other_processes_wrote(
    refold: Refold, tmp_path: Path
) -> None:
    long = write_long_chat(tmp_path / "long.jsonl")
    short = chat(tmp_path / "short.jsonl", ["hello", "hi"])
    refold("import", short, "--user", "ada")
    chat(short, ["something else", "hi"])

    ran = refold("import", long, short, "--user", "ada", "--jobs", "2")

    assert ran.code == 1
    assert "the transcript was rewritten" in ran.err
    assert events_in_store(refold) == 2 + 450
    assert "; 450 events written, 1 session complete: " in ran.err


def test_ctrl_c_counts_what_other_processes_wrote(
    refold: Refold, tmp_path: Path, interrupt_after: Callable[[int, int], None]
) -> None:
    long = write_long_chat(tmp_path / "long.jsonl", 900)
    short = chat(tmp_path / "short.jsonl", ["hello", "hi"])
    interrupt_after(signal.SIGINT, 1)

    ran = refold("import", long, short, "--user", "ada", "--jobs", "2")

    assert ran.code == 130
    stored = events_in_store(refold)
    assert stored >= 2
    assert f"interrupted; {stored} events written, " in ran.err


def test_a_second_ctrl_c_leaves_events_uncounted() -> None:
    work = import_._Import("ada", "auto", keep_going=False, strict=False, shows=False)

    def interrupted() -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        work._count_rest(interrupted())

    assert work.reason("interrupted") == (
        "interrupted; at least 0 events written, 0 sessions complete: "
        "import again to add the rest"
    )


def test_an_unavailable_store_leaves_events_uncounted(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = write_long_chat(tmp_path / "long.jsonl")

    def unavailable(*_: object, **__: object) -> Any:
        raise StoreUnavailable("no answer", remedy="try again")

    def fail(session: Session, *_: object, **__: object) -> Any:
        monkeypatch.setattr(type(session), "head", unavailable)
        return unavailable()

    monkeypatch.setattr(import_, "append_transcript", fail)

    ran = refold("import", long, "--user", "ada")

    assert ran.code == 1
    assert "at least 0 events written" in ran.err


def tree_of_projects(tmp_path: Path) -> Path:
    """A folder with folders of transcripts, and with other files."""
    tree = tmp_path / "projects"
    (tree / "tea" / "old").mkdir(parents=True)
    (tree / "soup").mkdir()
    (tree / ".hidden").mkdir()
    chat(tree / "tea" / "one.jsonl", ["Make tea.", "Done."])
    chat(tree / "tea" / "old" / "two.jsonl", ["Make more tea.", "Done."])
    chat(tree / "soup" / "one.jsonl", ["Make soup.", "Done."])
    chat(tree / ".hidden" / "three.jsonl", ["Make a cake.", "Done."])
    (tree / "soup" / "notes.txt").write_text("no transcript")
    (tree / "tea" / "loop").symlink_to(tree, target_is_directory=True)
    return tree


def test_a_tree_of_folders_is_imported(refold: Refold, tmp_path: Path) -> None:
    tree = tree_of_projects(tmp_path)

    ran = refold("import", tree, "--user", "ada", "--session", "team")

    rows = [line.split() for line in ran.out.splitlines()[1:4]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("team-0001", "soup/one.jsonl"),
        ("team-0002", "tea/one.jsonl"),
        ("team-0003", "tea/old/two.jsonl"),
    ]


def test_sessions_with_the_names_of_their_files_have_no_further_column(
    refold: Refold, tmp_path: Path
) -> None:
    tree = tree_of_projects(tmp_path)
    printed = refold("import", tree / "tea" / "one.jsonl", "--user", "ada")

    assert printed.out.splitlines()[0].split() == [
        "session",
        "new",
        "already",
        "there",
        "redacted",
    ]


def test_a_tree_keeps_sub_agents_with_their_session(tmp_path: Path) -> None:
    from refold.adapters.importers import with_sub_agents

    project = tmp_path / "tree" / "project"
    agents = project / "s-1" / "subagents"
    agents.mkdir(parents=True)
    (project / "s-1.jsonl").touch()
    (agents / "agent-a.jsonl").touch()
    (project / "s-1" / "tool-results").mkdir()
    (project / "s-1" / "tool-results" / "output.jsonl").touch()

    files = with_sub_agents([tmp_path / "tree"])

    assert files == [project / "s-1.jsonl", agents / "agent-a.jsonl"]
