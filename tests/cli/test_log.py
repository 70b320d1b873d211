"""``log`` prints events: as envelopes for programs, as a timeline for people."""

from pathlib import Path
from typing import Literal

import pytest

import refold as package
from refold import events
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain
from tests.support.payloads import ENVELOPE_FIELDS
from tests.support.rewritten import tamper

SESSION = ("--user", "lin", "--session", "run")


def session_of(sample: Path) -> package.Session:
    return package.open(f"sqlite:///{sample}").session(user_id="lin", session_id="run")


def test_envelopes_have_the_documented_keys(refold: Refold, sample: Path) -> None:
    envelopes = refold("log", *SESSION, "--json").lines()

    assert [envelope["seq"] for envelope in envelopes] == list(range(1, 58))
    assert all(list(envelope) == ENVELOPE_FIELDS for envelope in envelopes)


def test_a_range_of_events_can_be_selected(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--json", "--after", 10, "--limit", 3)

    assert [envelope["seq"] for envelope in ran.lines()] == [11, 12, 13]


def test_a_range_keeps_the_numbers_of_the_whole_session(
    refold: Refold, sample: Path
) -> None:
    whole = refold("log", *SESSION).out
    part = refold("log", *SESSION, "--after", 52).out

    assert "tool_call #17" in part
    assert part.splitlines()[2:] == whole.splitlines()[-len(part.splitlines()) + 2 :]


def test_an_empty_page_after_the_end_is_reported(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--after", 57)

    assert (ran.code, ran.out) == (0, "")
    assert "no events after seq 57" in ran.err


def test_calls_are_joined_to_their_results(refold: Refold, sample: Path) -> None:
    lines = refold("log", *SESSION, "--verbosity", "compact").out.splitlines()

    rails = {line.split()[0]: line[14:17] for line in lines if "tool_" in line}
    assert (rails["3"], rails["4"], rails["5"], rails["6"]) == (
        "╭──",
        "│╭─",
        "╰┼─",
        " ╰─",
    )


def test_redacted_values_are_marked_in_the_timeline(
    refold: Refold, sample: Path
) -> None:
    lines = refold("log", *SESSION).out.splitlines()

    (head,) = (line for line in lines if line.startswith("  8 "))
    assert "tool_result #3" in head
    assert "redacted API_KEY×2, EMAIL, URL_CREDENTIAL" in head


def test_a_truncated_text_is_marked(refold: Refold, sample: Path) -> None:
    session_of(sample).append(events.UserInput(text="long " * 20_000))

    last = refold("log", *SESSION, "--after", 57).out.splitlines()

    assert "guarded" in last[2]


def test_everything_is_shown_by_default(refold: Refold, sample: Path) -> None:
    out = refold("log", *SESSION).out

    assert "description: Import three days again" in out
    assert "2026-03-15 INFO importer.nightly: report mailed" in out


def test_compact_prints_one_line_per_event_except_questions_and_answers(
    refold: Refold, sample: Path
) -> None:
    out = refold("log", *SESSION, "--verbosity", "compact").out

    heads = [line for line in out.splitlines() if line[:3].strip().isdigit()]
    assert len(heads) == 57
    assert "2026-03-15 INFO importer.nightly: report mailed" not in out
    assert "                  | Sociology | 11 |" in out


def test_quiet_prints_only_the_last_answer(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--verbosity", "quiet")

    assert ran.out == (
        "The temporary directory is gone and the working tree is clean. Ready for the "
        "rollout.\n"
    )


def test_quiet_reports_a_missing_answer(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--verbosity", "quiet", "--limit", 1)

    assert (ran.code, ran.out) == (0, "")
    assert "no answer" in ran.err


def test_terminal_sequences_in_a_log_have_no_effect(
    refold: Refold, sample: Path
) -> None:
    text = "a\x1b]0;title\x07b \x1b[31mred\x1b[0m \u202eover\u2069 \r done"
    session_of(sample).append(events.AgentResponse(text=text))

    out = refold("log", *SESSION, "--after", 57).out

    assert not set(out) & set("\x1b\x07\r\u202e\u2069")
    assert "␛[31mred" in out


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (events.Planner(plan={"goal": "ship"}, iteration=2), "version 2"),
        (events.Reflection(pass_=False, issues=["too slow"]), "- too slow"),
        (
            events.Aggregate(
                results=[events.Verdict(item_id="q1", verdict="incorrect")]
            ),
            "q1: incorrect",
        ),
        (events.Final(outcome="failure", reward=0.5), "failure · reward 0.5"),
        (events.HumanReview(trigger="cost", question="Go on?"), "cost · medium"),
        (
            events.HumanReview(
                trigger="cost", decision="no", decided_by="ada", refers_to=1
            ),
            "decided by ada, on seq 1",
        ),
        (
            events.AgentError(code="E7", message="gone", retryable=True),
            "E7 · retryable",
        ),
        (events.SystemPrompt(text="Be brief."), "system  prompt"),
        (events.StateUpdate(set={"n": 1}, unset=["m"]), "m: (unset)"),
        (events.Pin(seqs=[1, 3], reason="policy"), "pinned seq 1, 3"),
        (events.Pin(seqs=[1], unpin=True), "unpinned seq 1"),
        (events.ProviderEdit(edits=[{"type": "clear"}]), "1 edit, 0 blocks"),
        (
            events.UserInput(
                attachments=[events.Attachment(kind="image", media_type="image/png")]
            ),
            "[image: image/png]",
        ),
        (
            events.UserInput(
                attachments=[
                    events.Attachment(
                        kind="image",
                        name="tea.png",
                        media_type="image/png",
                        data="iVBORw0KGgo=" + "A" * 4096,
                    )
                ]
            ),
            "[image: tea.png, image/png, 3.0 KiB]",
        ),
        (
            events.AgentResponse(
                thinking=[events.Thinking(thinking="hm")], stop_reason="max_tokens"
            ),
            "(thinking) hm",
        ),
        (events.SystemPrompt(closed=True), "the session was closed"),
    ],
)
def test_each_type_of_event_shows_its_content(
    refold: Refold, sample: Path, event: events.Draft, words: str
) -> None:
    session_of(sample).append(event)

    assert words in refold("log", *SESSION, "--after", 57).out


@pytest.fixture
def with_failures(sample: Path) -> Path:
    """A session with calls of two tools, two of which failed, and another failure."""

    def call(number: int, tool: str, **arguments: str) -> events.ToolCall:
        return events.ToolCall(
            call_id=f"c{number}", tool_name=tool, arguments=dict(arguments)
        )

    def result(number: int, status: Literal["ok", "error"]) -> events.ToolResult:
        return events.ToolResult(call_id=f"c{number}", content="output", status=status)

    with package.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="failing")
        session.append(events.UserInput(text="Repair app.py and test it."))
        session.append([call(1, "Read", path="/app/src/app.py"), result(1, "ok")])
        session.append([call(2, "Bash", command="pytest app.py"), result(2, "error")])
        session.append([call(3, "Edit", path="/app/src/my-app.py"), result(3, "ok")])
        session.append([call(4, "Read", path="/app/app.pyc"), result(4, "error")])
        session.append(events.AgentError(code="timeout", where="model", message="slow"))
    return sample


FAILING = ("log", "--user", "lin", "--session", "failing")


@pytest.mark.parametrize(
    ("args", "seqs"),
    [
        (("--failed",), [4, 5, 8, 9, 10]),
        (("--tool", "read"), [2, 3, 8, 9]),
        (("--file", "app.py"), [2, 3, 4, 5]),
        (("--file", "src/app.py"), [2, 3]),
        (("--tool", "Bash", "--failed"), [4, 5]),
        (("--tool", "read", "--tool", "Bash"), [2, 3, 4, 5, 8, 9]),
        (("--file", "src/app.py", "--file", "my-app.py"), [2, 3, 6, 7]),
        (("--failed", "--file", "app.py"), [4, 5]),
        (("--failed", "--after", 5), [8, 9, 10]),
        (("--failed", "--limit", 1), [4]),
        (("--tool", "Edit", "--failed"), []),
    ],
)
def test_filters_select_events(
    refold: Refold, with_failures: Path, args: tuple[object, ...], seqs: list[int]
) -> None:
    envelopes = refold(*FAILING, *args, "--json").lines()

    assert [envelope["seq"] for envelope in envelopes] == seqs


def test_filtered_events_keep_their_numbers(
    refold: Refold, with_failures: Path
) -> None:
    out = refold(*FAILING, "--failed", "--verbosity", "compact").out

    assert "tool_call #2  Bash" in out
    assert "tool_result #4  Read" in out
    assert "user_input" not in out


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--tool", "Grep"), "no calls of this tool; its tools are: Read, Bash, Edit"),
        (("--tool", "Grep", "--tool", "Glob"), "no calls of these tools; its tools"),
        (("--file", "none.py"), "no calls that name this file in this session"),
        (("--file", "a", "--file", "b"), "no calls that name one of these files"),
        (("--failed", "--after", 10), "no failures after seq 10 in this session"),
        (("--tool", "Edit", "--failed"), "no event matches all filters"),
    ],
)
def test_a_filter_without_matches_says_what_there_is(
    refold: Refold, with_failures: Path, args: tuple[object, ...], reason: str
) -> None:
    ran = refold(*FAILING, *args)

    assert (ran.code, ran.out) == (0, "")
    assert reason in ran.err


def test_a_limit_of_zero_shows_nothing(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--limit", 0)

    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_the_last_answer_has_no_filter(refold: Refold, sample: Path) -> None:
    ran = refold("log", *SESSION, "--verbosity", "quiet", "--failed")

    assert ran.code == 2
    assert "leave out the filters" in ran.err


def test_a_search_names_the_sessions_that_cannot_be_read(
    refold: Refold, sample: Path
) -> None:
    with package.open(f"sqlite:///{sample}") as store:
        damaged = store.session(user_id="lin", session_id="damaged")
        damaged.append(events.UserInput(text="importer"))
    tamper(
        f"sqlite:///{sample}", "UPDATE @events SET ts=ts+1 WHERE session_id='damaged'"
    )

    ran = refold("search", "--user", "lin", "importer")

    assert ran.code == 0
    assert "importer" in ran.out
    assert "1 session cannot be read" in ran.err
    assert "(damaged)" in ran.err


@pytest.mark.parametrize(
    "column",
    [
        "started", "duration", "project", "agent", "model", "turns", "tokens",
        "redactions", "files",
    ],
)  # fmt: skip
def test_a_list_shows_the_column_that_it_is_sorted_by(
    refold: Refold, sample: Path, column: str
) -> None:
    lines = refold("sessions", "--sort", column).out.splitlines()

    assert column in lines[0]
    assert column not in refold("sessions").out.splitlines()[0]


def test_a_list_by_project_shows_the_end_of_a_long_folder(
    refold: Refold, sample: Path
) -> None:
    refold("label", *SESSION, "project=/home/ada/a-rather-long-folder/work/cli")

    listed = refold("sessions", "--sort", "project").out

    assert "…ong-folder/work/cli " in listed


def test_a_list_of_no_session_says_how_many_there_are(
    refold: Refold, sample: Path
) -> None:
    count = len(refold("sessions", "--json").json())

    assert f"0 of {count} session" in refold("sessions", "--limit", "0").out


def test_a_terminal_shows_the_lines_that_say_why_a_call_failed(
    refold: Refold, sample: Path
) -> None:
    output = [f"ok  package/{number}" for number in range(40)]
    output.insert(30, "--- FAIL: TestTotal (0.00s)")
    with package.open("sqlite:///refold.db") as store:
        session = store.session(user_id="bob", session_id="s")
        session.append(events.ToolCall(call_id="c", tool_name="Bash", arguments={}))
        session.append(
            events.ToolResult(call_id="c", content="\n".join(output), status="error")
        )

    shown = plain(on_terminal("log", "--failed", "--user", "bob", "--session", "s"))
    full = refold("log", "--failed", "--user", "bob", "--session", "s").out

    assert "--- FAIL: TestTotal" in shown
    assert "package/12" not in shown
    assert "more characters (--full)" in shown
    assert "package/12" in full


def test_failed_selects_exactly_what_lists_count_as_failures(
    refold: Refold, sample: Path
) -> None:
    statuses: tuple[Literal["ok", "unknown", "error"], ...]
    statuses = ("ok", "unknown", "error")
    with package.open("sqlite:///refold.db") as store:
        session = store.session(user_id="lin", session_id="own")
        session.append(events.UserInput(text="Try."))
        for status in statuses:
            call = events.ToolCall(call_id=status, tool_name="Bash", arguments={})
            session.append(call)
            result = events.ToolResult(call_id=status, content="x", status=status)
            session.append(result)
        session.append(events.Reflection(pass_=False))

    failed = refold("log", "--session", "own", "--failed", "--json").lines()
    listed = refold("sessions", "--json").json()

    assert [event["seq"] for event in failed] == [6, 7]
    failures = {session["session_id"]: session["failures"] for session in listed}
    assert failures["own"] == 1
