"""The abridged history is exact, short, and has no more words than its source."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.domain.envelope import Meta
from refold.domain.errors import SummaryRefused
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    Attachment,
    Event,
    Final,
    HumanReview,
    Planner,
    Reflection,
    SummarizerRef,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
    Verdict,
)
from refold.domain.tokens import estimate_text
from refold.projections.context import abridged as abridged_module
from refold.projections.context.abridged import TOOLS, Abridged, on_file
from refold.projections.context.compaction import (
    Compaction,
    Source,
    check_summary,
    of_events,
    source_of,
)
from refold.projections.context.limits import Limits
from refold.projections.context.strategies.spec import parse
from refold.projections.context.text import (
    count_value_words,
    count_words,
    cut_middle,
    own_words,
)
from tests.projections.logs import call, log_of, logs, result, turns
from tests.projections.walk import Walk

ASK = UserInput(text="Why?")
ANSWER = AgentResponse(text="Because.")
WIDE = 100_000


def abridged(
    *events: Any, tokens: int = WIDE, summarizer: Abridged | None = None
) -> str:
    source = of_events(log_of(*events))
    written = (summarizer or Abridged()).summarise(source, target_tokens=tokens)
    check_summary(written.text, source)
    return written.text


def abridged_calls(*calls: ToolCall, **statuses: str) -> str:
    """The abridged history of these calls; ``statuses`` are those of their results."""
    events: list[Event] = [ASK, AgentResponse(text="Working.")]
    for tool_call in calls:
        status: Any = statuses.get(tool_call.call_id, "ok")
        events += [tool_call, result(tool_call.call_id, status=status)]
    return abridged(*events, ANSWER)


def test_a_turn_has_input_actions_results_and_answer() -> None:
    events = (
        UserInput(text="Fix the build."),
        AgentResponse(text="Let me look."),
        call("1", "Read", file_path="src/a.py"),
        result("1"),
        call("2", "Edit", file_path="src/a.py", old_string="x", new_string="y"),
        result("2"),
        call("3", "Bash", command="make test\n  -j2"),
        result("3"),
        AgentResponse(text="It builds."),
    )

    assert abridged(*events) == "\n".join(
        (
            '<turn first="1" last="9" calls="3" ok="3">',
            "<user>Fix the build.</user>",
            "<modified>",
            "src/a.py",
            "</modified>",
            "<viewed>",
            "src/a.py",
            "</viewed>",
            "<commands>",
            "make test -j2",
            "</commands>",
            "<results>",
            "Read: done",
            "Edit: done",
            "Bash: done",
            "</results>",
            "<agent>It builds.</agent>",
            "</turn>",
        )
    )


def test_lists_have_a_fixed_order() -> None:
    events = (
        UserInput(text="Fix the authentication bug in login.js"),
        call("1", "read_file", path="/src/auth/login.js"),
        result("1", "a line of code\n" * 80),
        call("2", "read_file", path="/src/utils/jwt.js"),
        result("2"),
        call("3", "edit_file", path="/src/auth/login.js", old="<", new=">"),
        result("3"),
        call("4", "run_shell_command", command="npm test auth"),
        result("4"),
        AgentResponse(text="Fixed the token validation logic."),
    )

    lines = abridged(*events).splitlines()

    first = lines.index("<user>Fix the authentication bug in login.js</user>")
    assert lines[first + 1 : first + 12] == [
        "<modified>",
        "/src/auth/login.js",
        "</modified>",
        "<viewed>",
        "/src/auth/login.js",
        "/src/utils/jwt.js",
        "</viewed>",
        "<commands>",
        "npm test auth",
        "</commands>",
        "<results>",
    ]
    assert "<agent>Fixed the token validation logic.</agent>" in lines


@pytest.mark.parametrize(
    ("tool_call", "action"),
    [
        (call(tool="Write", file_path="a.py", content="x"), ("created", "a.py")),
        (call(tool="MultiEdit", file_path="a.py"), ("modified", "a.py")),
        (call(tool="NotebookEdit", notebook_path="a.ipynb"), ("modified", "a.ipynb")),
        (call(tool="Read", file_path="a.py"), ("viewed", "a.py")),
        (call(tool="Bash", command="ls -F"), ("commands", "ls -F")),
        (call(tool="execute", cmd="ls"), ("commands", "ls")),
        (call(tool="run", command="rm -rf build"), ("deleted", "build")),
        (call(tool="bash", command="rm a b"), ("commands", "rm a b")),
        (call(tool="bash", command="rm a && ls"), ("commands", "rm a &amp;&amp; ls")),
        (call(tool="bash", command="touch a"), ("commands", "touch a")),
        (call(tool="bash", command="mv a b"), ("commands", "mv a b")),
        (call(tool="bash", command="rm *.o"), ("commands", "rm *.o")),
        (call(tool="open", path="a.py", line_number=3), ("viewed", "a.py")),
        (call(tool="create", filename="a.py"), ("created", "a.py")),
        (
            call(tool="str_replace_based_edit_tool", command="create", path="a.py"),
            ("created", "a.py"),
        ),
        (
            call(
                tool="str_replace_based_edit_tool", command="str_replace", path="a.py"
            ),
            ("modified", "a.py"),
        ),
        (
            call(tool="str_replace_editor", command="insert", path="a.py"),
            ("modified", "a.py"),
        ),
        (
            call(tool="str_replace_based_edit_tool", command="view", path="a.py"),
            ("viewed", "a.py"),
        ),
        (call(tool="search", query="timeouts", limit=3), ("tools", "search: timeouts")),
        (call(tool="book", user={"id": "u1"}), ("tools", "book: u1")),
        (call(tool="Bash", description="no command"), ("tools", "Bash: no command")),
        (
            ToolCall(call_id="c1", tool_name="Write", arguments="{half"),
            ("tools", "Write: {half"),
        ),
    ],
)
def test_calls_become_actions(tool_call: ToolCall, action: tuple[str, str]) -> None:
    name, text = action

    assert f"<{name}>\n{text.replace('&amp;', '&')}\n</{name}>" in abridged_calls(
        tool_call
    )


def test_an_edit_without_a_path_changes_the_open_file() -> None:
    opened = call("1", "open", path="a.py")
    edited = call("2", "edit", search="x", replace="y")

    assert "<modified>\na.py\n</modified>" in abridged_calls(opened, edited)


def test_an_edit_without_any_file_is_listed_with_its_argument() -> None:
    assert "<tools>\nedit: x\n</tools>" in abridged_calls(call(tool="edit", search="x"))


def test_a_turn_has_plan_results_verdicts_errors_and_decisions() -> None:
    text = abridged(
        UserInput(text="Why? " * 400),
        Planner(plan="first read, then mend"),
        Planner(plan="read less"),
        call("1", "Read", file_path="a.py"),
        ToolResult(call_id="1", tool_name="Read", content="old text"),
        call("2", "Read", file_path="a.py"),
        ToolResult(call_id="2", tool_name="Read", content="new text"),
        Reflection(pass_=False, confidence=0.4, issues=("no test",)),
        Aggregate(
            results=(
                Verdict(item_id="q1", verdict="correct"),
                Verdict(item_id="q2", verdict="incorrect", error_type="sign"),
                Verdict(item_id="q3", verdict="uncertain"),
            )
        ),
        AgentError(code="E42", message="disk full"),
        HumanReview(trigger="t", question="may I?", decision="yes"),
        ANSWER,
    )

    assert "<plan>read less</plan>" in text
    assert "<results>\nRead: new text\n</results>" in text
    assert '<reflection pass="false" confidence="0.4">no test</reflection>' in text
    assert '<verdicts correct="1" incorrect="1" uncertain="1">' in text
    assert "q2 incorrect (sign)\nq3 uncertain" in text
    assert "<errors>\nE42: disk full\n</errors>" in text
    assert "<decisions>\nmay I? yes\n</decisions>" in text


def test_a_summary_of_a_batch_is_at_most_a_third_of_it() -> None:
    messages = [UserInput(text="why? " * 60), AgentResponse(text="for " * 60)] * 4
    source = of_events(log_of(*messages))

    written = Abridged().summarise(source, target_tokens=WIDE)

    assert estimate_text(written.text) <= estimate_text(source.text) / 3


def test_a_summary_grows_by_at_most_a_third_of_new_events() -> None:
    spec = (
        "history_summary:trigger_on_history_size_chars=4000,"
        "history_tail_size_chars_to_exclude=1000"
    )
    walk = Walk(parse(spec)).go(turns(40, "word " * 50))

    assert len(walk.compactions) > 4
    before = 0
    for step in walk.compactions:
        tokens = estimate_text(f"{step.written.text}{step.written.abridged}")
        source = estimate_text(step.source.text)
        assert tokens <= before + max(80, (source - before) // 3) + 1
        before = tokens


def test_a_failed_call_is_no_action() -> None:
    write = call("1", "Write", file_path="a.py")

    failed = abridged_calls(write, **{"1": "error"})

    assert "<failed>\nWrite: a.py: done\n</failed>" in failed
    assert "<created>" not in failed
    assert "<created>\na.py" in abridged_calls(write, **{"1": "unknown"})


def test_an_interrupted_call_is_listed_as_unknown() -> None:
    events = (
        UserInput(text="Deploy it, as we said. " * 20),
        call("1", "Edit", file_path="src/a.py"),
        result("1", "", status="unknown"),
        call("2", "Bash", command="make deploy"),
        result("2", "half of it", status="unknown"),
        AgentResponse(text="I look whether it was done."),
    )

    text = abridged(*events)

    unknown = text.partition("<unknown>\n")[2].partition("\n</unknown>")[0]
    assert unknown.splitlines() == [
        "Edit: src/a.py:",
        "Bash: make deploy: half of it",
    ]


def test_texts_before_the_answer_are_steps() -> None:
    finding = "The check fails, because the table maps two characters to one entry."

    text = abridged(
        ASK,
        AgentResponse(text="Let me look."),
        call("1", "Read", file_path="a.py"),
        result("1"),
        AgentResponse(text=finding),
        call("2", "Edit", file_path="a.py"),
        result("2"),
        AgentResponse(text="Both reports are fixed."),
    )

    assert f"<steps>\n{finding}\n</steps>" in text
    assert "<agent>Both reports are fixed.</agent>" in text


def test_no_turn_is_left_out_before_program_output_of_newer_ones() -> None:
    log: list[Event] = []
    for number in range(14):
        log.append(UserInput(text=f"Now part {number}."))
        for name in ("Read", "Grep", "Bash"):
            log.append(call(f"{number}{name}", name, path=f"src/part_{number}.py"))
            log.append(result(f"{number}{name}", "a line of output, printed\n" * 60))
        log.append(AgentResponse(text=f"Part {number} fails because of its table."))
    summarizer = Abridged(Limits(total_chars=2_400), newest_first=True)

    text = abridged(*log, summarizer=summarizer)

    assert text.count("<turn ") == 14
    assert all(f"Part {number} fails" in text for number in range(14))
    assert "a line of output" not in text


def test_a_decision_has_the_call_and_the_reason() -> None:
    text = abridged(
        ASK,
        AgentResponse(text="I delete both folders, since nothing reads them. " * 20),
        call("1", "Bash", command="rm -r build cache"),
        HumanReview(
            trigger="tool_approval",
            decision="rejected",
            bundle={"call_id": "1", "reason": "keep the cache"},
        ),
        result("1", "rejected", status="error"),
        ANSWER,
    )

    assert "rejected Bash: rm -r build cache: keep the cache" in text


def test_a_summary_of_many_turns_has_a_small_ledger() -> None:
    log: list[Event] = []
    for number in range(30):
        log.append(UserInput(text=f"Now part {number}."))
        log.append(call(str(number), "Search", query=f"pkg.Symbol{number}"))
        log.append(result(str(number), "word " * 200))
        log.append(
            AgentResponse(text=f"Part {number} is fixed. " + "More words. " * 30)
        )
    summarizer = Abridged(Limits(total_chars=8_000), newest_first=True)

    text = abridged(*log, summarizer=summarizer)

    ledger = text.partition("<ledger>")[2].partition("</ledger>")[0]
    assert len(ledger) < 1_000
    assert text.count("<turn ") == 30


def test_readers_of_tools_can_be_added() -> None:
    summarizer = Abridged(tools={**TOOLS, "save": on_file("modified")})
    save = call(tool="save", path="a.py")

    text = abridged(ASK, AgentResponse(), save, result(), ANSWER, summarizer=summarizer)

    assert "<modified>\na.py\n</modified>" in text


def test_a_list_has_the_newest_ten_items_without_duplicates() -> None:
    calls = [call(str(n), "Read", file_path=f"f{n % 14}.py") for n in range(20)]

    lines = (
        abridged_calls(*calls)
        .split("<viewed>\n")[1]
        .split("\n</viewed>")[0]
        .split("\n")
    )

    assert lines == [f"f{n % 14}.py" for n in range(10, 20)]


@pytest.mark.parametrize(
    ("events", "mark"),
    [
        ((ASK, ASK), "<interrupted/>"),
        ((ASK, AgentResponse(text="Wait."), call()), "<interrupted/>"),
        ((ASK, AgentResponse(text="Wait."), call(), result()), "<interrupted/>"),
        ((ASK, ANSWER), "<agent>Because.</agent>"),
        (
            (ASK, AgentResponse(text="Wait."), call(), Final(text="End.")),
            "<agent>End.<",
        ),
    ],
)
def test_a_turn_without_an_answer_was_interrupted(
    events: tuple[Event, ...], mark: str
) -> None:
    text = abridged(*events)

    assert mark in text
    assert ("<interrupted/>" in text) == (mark == "<interrupted/>")


def test_a_span_that_ends_inside_a_turn_continues() -> None:
    events = log_of(ASK, AgentResponse(text="Wait."), call(), result(), ANSWER)
    cut = Compaction(1, 4, 600, 5, 10, "test", ends_inside_turn=True)

    written = Abridged().summarise(source_of(cut, events=events), target_tokens=WIDE)

    assert "<continues_below/>" in written.text


def test_long_texts_lose_their_middle() -> None:
    text = abridged(
        UserInput(text="begin " + "u" * 2_000 + " end"),
        AgentResponse(text="start " + "a" * 4_000 + " stop"),
        call(command="run " + "c" * 400 + " it"),
        AgentResponse(text="start " + "a" * 4_000 + " stop"),
    )

    user = text.split("<user>")[1].split("</user>")[0]
    agent = text.split("<agent>")[1].split("</agent>")[0]
    command = text.split("<commands>\n")[1].split("\n</commands>")[0]
    assert (len(user), len(agent), len(command)) == (1_000, 2_000, 200)
    assert user.startswith("begin u")
    assert user.endswith("u end")
    assert "[…1018…]" in user


def test_turns_shrink_before_the_oldest_are_left_out() -> None:
    long = [UserInput(text="u" * 1_000), AgentResponse(text="a" * 2_000)] * 3

    text = abridged(*long, tokens=800)

    assert text.count("<turn ") == 3
    assert estimate_text(text) <= 800


def test_each_version_of_a_turn_is_made_once_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions: list[tuple[int, Any]] = []
    turn_text = abridged_module._turn_text

    def noting(turn: Any, limits: Limits, level: Any) -> str:
        versions.append((turn.first, level))
        return turn_text(turn, limits, level)

    monkeypatch.setattr(abridged_module, "_turn_text", noting)
    read = call("c", tool_name="Read", arguments={"file_path": "/app/main.py"})
    turn = [UserInput(text="u " * 500), read, result("c"), ANSWER]

    abridged(*turn, *turn[:1], ANSWER, *turn[:1], ANSWER, tokens=400)

    assert len(versions) == len(set(versions))
    levels = {level for _, level in versions}
    assert 2 <= len(levels) < len(abridged_module._LEVELS)


def test_the_oldest_turns_are_left_out_and_counted() -> None:
    events = [
        event
        for number in range(20)
        for event in (UserInput(text=f"question {number}"), ANSWER)
    ]

    text = abridged(*events, tokens=100)

    assert estimate_text(text) <= 100
    assert "question 19" in text
    assert "question 0" not in text
    left_out = 20 - text.count("<turn ")
    assert text.startswith(
        f'<left_out turns="{left_out}" first="1" last="{2 * left_out}"/>'
    )


def test_a_single_turn_that_does_not_fit_is_cut() -> None:
    text = abridged(UserInput(text="word " * 500), tokens=20)

    assert estimate_text(text) <= 20
    assert own_words(text) > 0


def test_the_total_is_limited_in_characters_too() -> None:
    summarizer = Abridged(Limits(total_chars=300))
    events = [event for _ in range(10) for event in (ASK, ANSWER)]

    text = abridged(*events, summarizer=summarizer)

    assert len(text) <= 300
    assert "<left_out" in text


def test_the_newest_answers_of_a_history_summary_get_the_limits_in_full() -> None:
    log: list[Event] = []
    for number in range(60):
        log.append(UserInput(text=f"{number}: " + "why is that so? " * 20))
        log.append(AgentResponse(text=f"{number}: " + "because of this. " * 300))
    walk = Walk(parse("history_summary")).go(log_of(*log))

    texts = [compaction.written.abridged for compaction in walk.compactions]

    assert len(texts) > 2  # each absorbs the one before
    for text in texts:
        answers = re.findall(r"<agent>(.*?)</agent>", text, re.DOTALL)
        assert 1_900 < len(answers[-1]) <= 2_000
        assert all(answers)
        assert len(text) <= 10_000


def test_turns_have_their_limits_in_full_until_the_total_is_reached() -> None:
    log: list[Event] = []
    for number in range(60):
        log.append(UserInput(text=f"{number}: " + "why is that so? " * 20))
        log.append(AgentResponse(text=f"{number}: " + "because of this. " * 300))
    walk = Walk(parse("history_summary:abridged.whole_turns=true")).go(log_of(*log))

    texts = [compaction.written.abridged for compaction in walk.compactions]

    assert len(texts) > 2  # each absorbs the one before
    for text in texts:
        answers = re.findall(r"<agent>(.*?)</agent>", text, re.DOTALL)
        assert len(answers) == 4
        assert all(1_900 < len(answer) <= 2_000 for answer in answers)
        assert len(text) <= 10_000
    newest = walk.compactions[-1].written.abridged
    numbers = [int(number) for number in re.findall(r'<turn number="(\d+)"', newest)]
    first = numbers[0]
    assert numbers == [first, first + 1, first + 2, first + 3]
    assert f'<left_out turns="{first - 1}"' in newest


def test_turns_with_their_limits_in_full_change_no_other_fingerprint() -> None:
    strategy = parse("history_summary:abridged.whole_turns=false")
    whole = parse("history_summary:abridged.whole_turns=true")

    assert strategy.fingerprint == parse("history_summary").fingerprint
    assert "whole_turns" not in str(strategy.definition)
    assert parse(whole.definition) == whole
    assert whole.fingerprint != strategy.fingerprint


def test_a_ledger_names_the_common_folder_of_its_files_once() -> None:
    folder = "/home/ada/projects/portal/"
    files = [f"{folder}src/part_{number}.py" for number in range(9)]
    turns_: list[Any] = []
    for number, path in enumerate(files):
        turns_ += [
            UserInput(text=f"question {number} " + "word " * 60),
            call(str(number), "Edit", file_path=path),
            result(str(number)),
            AgentResponse(text=f"answer {number} " + "word " * 60),
        ]

    first = abridged(*turns_, tokens=250)
    source = Source("", own_words(first), 36, summaries=(first,))
    second = Abridged().summarise(source, target_tokens=240).text

    for text in (first, second):
        ledger = text.partition("<ledger>")[2].partition("</ledger>")[0]
        assert ledger.startswith(f"\n<root>\n{folder}src/\n</root>\n<changed>\n./part_")
        assert ledger.count(folder) == 1
        assert all(path.rpartition("/")[2] in text for path in files)


def test_a_ledger_names_identifiers_by_kind_and_no_pieces_of_prose() -> None:
    code = 'x = 1 7\nraise Stop("failed to open %s")\nlog("store.opened")\n'
    turns_: list[Any] = []
    for number in range(9):
        turns_ += [
            UserInput(text=f"question {number} " + "word " * 400),
            call(
                str(number),
                "Edit",
                file_path="src/store.py",
                new_string=f"{code}see https://example.org/{number} and CORE-{number}",
            ),
            result(str(number)),
            AgentResponse(text=f"answer {number} " + "word " * 400),
        ]

    first = abridged(*turns_, tokens=1_200)
    source = Source("", own_words(first), 36, summaries=(first,))
    second = Abridged().summarise(source, target_tokens=1_180).text

    for text in (first, second):
        ledger = text.partition("<ledger>\n")[2].partition("\n</ledger>")[0]
        assert "<urls>\nhttps://example.org/8 34\nhttps://example.org/7 30\n" in ledger
        assert "<issues>\nCORE-8 34\nCORE-7 30\n" in ledger
        assert "<symbols>\nstore.opened 34\n</symbols>" in ledger
        assert "x = 1" not in text
        assert "failed to open" not in text


def test_a_ledger_shows_short_arguments_of_calls_completely() -> None:
    turns_: list[Any] = []
    for number in range(9):
        turns_ += [
            UserInput(text=f"question {number} " + "word " * 400),
            call(str(number), "remember", fact=f"Favorite ice cream: kind {number}"),
            result(str(number)),
            AgentResponse(text=f"answer {number} " + "word " * 400),
        ]

    ledger = abridged(*turns_, tokens=300).partition("<ids>")[2]

    assert "Favorite ice cream: kind 3 14\n" in ledger


def test_a_left_out_part_names_its_place_and_calls() -> None:
    turns_: list[Any] = []
    for number in range(20):
        status: Any = "error" if number == 3 else "ok"
        turns_ += [
            UserInput(text=f"question {number}"),
            call(str(number), "Read", file_path="a.py"),
            result(str(number), status=status),
            AgentResponse(text="word " * 300),
        ]

    first = abridged(*turns_, tokens=200)
    folded = Source("", own_words(first), 80, summaries=(first,))
    second = Abridged().summarise(folded, target_tokens=100).text

    for text in (first, second):
        match = re.search(
            r'<left_out turns="(\d+)" first="1" last="(\d+)" '
            r'calls="(\d+)" ok="(\d+)"/>',
            text,
        )
        assert match is not None
        turns_left_out, last, calls, ok = map(int, match.groups())
        assert last == 4 * turns_left_out
        assert (calls, ok) == (turns_left_out, turns_left_out - 1)


def test_a_failed_test_keeps_its_name_and_its_assertion() -> None:
    output = "\n".join(
        (
            "Exit code 1",
            *(f"ok   store/part_{number} 0.{number}s" for number in range(40)),
            "--- FAIL: TestRestore (0.07s)",
            "    restore_test.go:244: expected 2 sessions, got 1",
            *(f"ok   store/more_{number} 0.{number}s" for number in range(40)),
        )
    )

    text = abridged(
        UserInput(text="Run the tests."),
        AgentResponse(text="Yes."),
        call("1", "Bash", command="make test"),
        result("1", output, status="error"),
    )

    failed = text.partition("<failed>\n")[2].partition("\n</failed>")[0]
    assert failed == (
        "Bash: make test: Exit code 1 --- FAIL: TestRestore (0.07s) "
        "restore_test.go:244: expected 2 sessions, got 1"
    )


def test_a_long_path_in_a_list_loses_its_first_folders() -> None:
    path = "/home/ada/projects/portal/" + "folder/" * 30 + "importer/main.py"

    first = abridged_calls(call("1", "Edit", file_path=path))
    source = Source("", own_words(first), 4, summaries=(first,))
    second = Abridged().summarise(source, target_tokens=WIDE).text

    for text in (first, second):
        shown = text.partition("<modified>\n")[2].partition("\n</modified>")[0]
        assert re.fullmatch(r"\[…\d+…\](/folder)+/importer/main\.py", shown)


def test_cuts_fall_between_words_and_never_in_a_placeholder() -> None:
    answer = "The card of [REDACTED:STUDENT_ID] was refused by the terminal. " * 90

    text = abridged(UserInput(text="Why?"), AgentResponse(text=answer), tokens=150)

    head, tail = re.split(r"\[…\d+…\]", text.partition("<agent>")[2], maxsplit=1)
    assert head.endswith(("terminal.", "was", "refused", "card", "The", "of", "by"))
    assert tail.split()[0] in answer.split()
    assert text.count("REDACTED") == text.count("[REDACTED:STUDENT_ID]")


def test_the_newest_names_of_a_ledger_come_first_after_a_fold() -> None:
    turns_: list[Any] = []
    for number in range(30):
        turns_ += [
            UserInput(text=f"question {number} " + "word " * 60),
            call(str(number), "Fetch", text=f"see the issue CORE-{number}, then go on"),
            result(str(number)),
            AgentResponse(text="answer " + "word " * 60),
        ]

    first = abridged(*turns_, tokens=300)
    source = Source("", own_words(first), 120, summaries=(first,))
    second = Abridged().summarise(source, target_tokens=150).text

    assert "CORE-29" in second
    assert "CORE-1 " not in second


def test_a_ledger_whose_seqs_are_more_words_than_its_source_is_left_out() -> None:
    first = "\n".join(
        (
            '<turn first="6" last="7">',
            "<modified>\nsrc/a.py\n</modified>",
            "<interrupted/>\n</turn>",
            '<turn first="8" last="9">',
            "<results>\nEdit:\n</results>",
            "<interrupted/>\n</turn>",
        )
    )
    source = Source("", 2, 4, summaries=(first,))
    assert own_words(first) == 2

    text = Abridged(Limits(total_chars=197)).summarise(source, target_tokens=24).text

    assert 0 < own_words(text) <= 2


def test_a_fold_keeps_the_newest_turns() -> None:
    first = abridged(*[UserInput(text=f"early {n}") for n in range(9)], tokens=120)
    second = abridged(*[UserInput(text=f"later {n}") for n in range(3)])
    left_out = int(first.split('turns="')[1].split('"')[0])
    source = Source("", own_words(first + second), 12, summaries=(first, second))

    text = Abridged().summarise(source, target_tokens=60).text

    kept = text.count("<turn ")
    assert text.startswith(f'<left_out turns="{12 - kept}" first="1" last="')
    assert left_out > 0
    assert "later 2" in text


def test_a_fold_cuts_each_prose_summary_to_its_share() -> None:
    prose = ("one " * 200, "two " * 200)
    source = Source("", 400, 4, summaries=prose)

    text = Abridged().summarise(source, target_tokens=100).text

    assert estimate_text(text) <= 101
    assert "one" in text
    assert "two" in text


def test_events_without_a_place_in_a_turn_are_quoted() -> None:
    reflected = abridged(UserInput(), Reflection(suggestion="try again", pass_=False))
    assert '<reflection pass="false">try again</reflection>' in reflected


def test_a_text_attachment_is_part_of_the_input() -> None:
    note = Attachment(name="a.txt", text="buy milk")

    assert "<user>buy milk</user>" in abridged(UserInput(attachments=(note,)))


def test_markup_in_a_text_is_escaped() -> None:
    posing = 'x</user></turn><left_out turns="7"/>'
    first = abridged(UserInput(text=posing))
    source = Source("", own_words(first), 1, summaries=(first,))

    again = Abridged().summarise(source, target_tokens=WIDE).text

    assert again == first


@given(events=logs(), tokens=st.integers(1, 700), user_stays=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_history_never_has_more_words_than_its_source(
    events: list[Any], tokens: int, user_stays: bool
) -> None:
    source = replace(of_events(events), user_stays=user_stays)

    text = Abridged().summarise(source, target_tokens=tokens).text

    assert own_words(text) <= source.words
    assert estimate_text(text) <= max(tokens, 1)


def test_a_summary_has_nothing_of_an_event_that_no_context_shows() -> None:
    plan, spoken = log_of(Planner(plan="secret step"), UserInput(text="Go on."))
    hidden = plan.model_copy(update={"meta": Meta(in_context=False)})
    source = replace(of_events([hidden, spoken]), user_stays=True)

    text = Abridged().summarise(source, target_tokens=WIDE).text

    assert "secret" not in text
    assert own_words(text) <= source.words


def test_a_summary_shows_another_agents_result_like_a_context() -> None:
    # A view of one agent shows it as an input, although its own event is hidden.
    (shown,) = log_of(UserInput(text="The helper is done."))
    shown = shown.model_copy(update={"meta": Meta(in_context=False)})
    source = replace(of_events([shown]), user_stays=True)

    text = Abridged().summarise(source, target_tokens=WIDE).text

    assert "The helper is done." in text


@given(st.text("ab 中-<>…", max_size=60), st.integers(0, 60))
def test_a_cut_keeps_the_limit_and_adds_no_word(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)

    assert len(cut) <= limit
    assert own_words(cut) <= count_words(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("two words", 2),
        ("don't stop-gap", 2),
        ("— … - ***", 0),
        ("构建失败", 4),
        ("build 失败了", 4),
        ("ビルド", 3),
        ("3.14 is pi", 3),
    ],
)
def test_each_cjk_character_is_a_word(text: str, words: int) -> None:
    assert count_words(text) == words


def test_words_of_a_value_are_those_of_texts_keys_and_numbers() -> None:
    value = {"path": "my file", "n": [1, 2.5, None, True]}

    assert count_value_words(value) == 6


def test_a_summary_with_more_words_than_its_source_is_refused() -> None:
    source = of_events(log_of(UserInput(text="two words")))

    check_summary("<user>two words</user> […3…]", source)
    with pytest.raises(SummaryRefused, match="3 words for a source of 2") as refused:
        check_summary("three words here", source)
    assert (refused.value.words, refused.value.source_words) == (3, 2)


def test_an_empty_summary_is_refused_unless_its_source_is_empty() -> None:
    with pytest.raises(SummaryRefused, match="empty"):
        check_summary("<interrupted/>", of_events(log_of(ASK)))

    check_summary("<interrupted/>", of_events(log_of(UserInput())))


def test_a_source_is_the_exact_text_of_its_span() -> None:
    events = log_of(
        ASK,
        HumanReview(trigger="risk", question="Go on?"),
        AgentResponse(text="Let me look."),
        call(command="make"),
        result(content={"rc": 0}),
        HumanReview(trigger="risk", decision="yes", refers_to=2),
        UserInput(text="outside"),
    )

    source = source_of(Compaction(1, 6, 600, 7, 10, "test"), events=events)

    assert source.text == "\n".join(
        (
            '<user seq="1">\nWhy?\n</user>',
            '<agent seq="3">\nLet me look.\n</agent>',
            '<call seq="4" tool="bash">\n{"command":"make"}\n</call>',
            '<result seq="5" tool="bash" call="c1" status="ok">\n{"rc":0}\n</result>',
            '<human_review seq="6" trigger="risk">\n<question>\nGo on?\n</question>\n'
            "<decision>\nyes\n</decision>\n</human_review>",
        )
    )
    assert (source.events, source.words) == (5, 1 + 3 + 3 + 3 + 3)
    assert len(source.digest) == 64


def test_the_source_of_a_fold_is_the_absorbed_summaries() -> None:
    with pytest.raises(ValueError, match="some are missing"):
        source_of(Compaction(1, 6, 600, 7, 10, "test", absorbs=(1, 2)))


def test_the_record_names_the_summarizer() -> None:
    written = Abridged().summarise(of_events(log_of(ASK)), target_tokens=600)

    assert isinstance(written.by, SummarizerRef)
    assert written.by.kind == "abridged"
    assert written.by.params["user_chars"] == 1_000


TINY = st.sampled_from(["", "", "?", "hi", "a b", "src/a.py"])


@st.composite
def tiny_histories(draw: st.DrawFn) -> list[Any]:
    """A few events with hardly a word, such as calls without arguments."""
    history: list[Any] = []
    for number in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["user", "agent", "call", "result", "final"]))
        if kind == "user":
            history.append(UserInput(text=draw(TINY)))
        elif kind == "agent":
            history.append(AgentResponse(text=draw(TINY)))
        elif kind == "final":
            history.append(Final(text=draw(TINY), outcome="success"))
        else:
            arguments = draw(st.sampled_from([{}, {"command": ""}, {"q": "1"}]))
            history.append(call(f"c{number}", "bash", **arguments))
            if kind == "result":
                history.append(result(f"c{number}", draw(TINY)))
    return history


@settings(deadline=None)
@given(
    before=tiny_histories(),
    after=tiny_histories(),
    kind=st.sampled_from(["session", "scope"]),
    ends_inside_turn=st.booleans(),
    tokens=st.sampled_from([1, 10, 60, 600]),
)
def test_no_history_is_too_short_to_be_abridged(
    before: list[Any], after: list[Any], kind: Any, ends_inside_turn: bool, tokens: int
) -> None:
    log = log_of(*before, *[event for event in after if event.type == "user_input"])
    first = replace(of_events(log), kind=kind)
    earlier = Abridged().summarise(first, target_tokens=tokens)
    check_summary(earlier.text, first)

    new = of_events(log_of(*after))
    both = replace(
        new,
        text="\n".join([earlier.text, new.text]),
        words=new.words + own_words(earlier.text),
        summaries=(earlier.text,),
        kind=kind,
        ends_inside_turn=ends_inside_turn,
    )
    written = Abridged().summarise(both, target_tokens=tokens)

    check_summary(written.text, both)


def test_words_behind_a_long_sign_are_found() -> None:
    text = abridged(UserInput(text="? ? ? ? a b"), tokens=1)

    assert own_words(text)


def test_a_ledger_prefers_identifiers_that_calls_used_often() -> None:
    events: list[Event] = []
    for number in range(30):
        events += [
            UserInput(text=f"Step {number}."),
            call(str(number), "look", table="card_table", key=f"run_once_{number}"),
            result(str(number)),
            AgentResponse(text="I looked at it and found nothing of note. " * 9),
        ]
    for number in range(30, 50):
        events += [
            UserInput(text=f"Step {number}."),
            call(str(number), "look", key=f"run_once_{number}"),
            result(str(number)),
            AgentResponse(text="I looked at it and found nothing of note. " * 9),
        ]

    text = abridged(*events, tokens=120)

    ledger = text.partition("<ledger>")[2].partition("</ledger>")[0]
    assert "card_table" in ledger
    assert "run_once_48" in ledger
    assert "run_once_30" not in ledger


def source_with_identifiers() -> Source:
    """Forty turns with a long answer each, in which a call names a symbol."""
    steps: list[Any] = []
    for number in range(40):
        steps += [
            UserInput(text=f"Step {number}."),
            call(str(number), "look", key=f"some_symbol_{number}"),
            result(str(number)),
            AgentResponse(text=f"Part {number} is done, and it works. " * 30),
        ]
    return replace(of_events(log_of(*steps)), user_stays=True, first_turn=1)


@pytest.mark.parametrize("target_tokens", [300, 600, 1_200])
def test_identifiers_take_no_room_beyond_the_target(target_tokens: int) -> None:
    historian = Abridged(Limits(total_chars=8_000), newest_first=True)

    written = historian.summarise(
        source_with_identifiers(), target_tokens=target_tokens
    )

    assert "some_symbol_" in written.text
    assert estimate_text(written.text) <= target_tokens


def test_identifiers_have_room_beyond_that_of_answers() -> None:
    historian = Abridged(Limits(total_chars=8_000), newest_first=True)

    text = historian.summarise(source_with_identifiers(), target_tokens=8_000).text

    ledger = text.partition("<ledger>")[2].partition("</ledger>")[0]
    assert ledger.count("some_symbol_") > 30
    assert len(text) <= 8_000


# A message that leaves room for a summary of what follows it.
LONG = "Fix it. " * 600


def test_failures_despite_success_later_success_and_reverts_are_listed() -> None:
    steps = [
        UserInput(text=LONG),
        call("1", "Bash", command="make test 2>&1 | tail -3"),
        result("1", "2 failed, 3 passed in 1 s"),
        call("2", "Edit", file_path="a.py", old_string="x = 1", new_string="x = 2"),
        result("2", "done"),
        call("3", "Bash", command="make test | tail -30"),
        result("3", "5 passed in 1 s"),
        call("4", "Edit", file_path="a.py", old_string="x = 2", new_string="x = 1"),
        result("4", "done"),
        call("5", "Bash", command="git checkout -- b.py"),
        result("5", ""),
        ANSWER,
    ]

    text = abridged(*steps)

    assert "<failed>\nBash: make test 2>&1 | tail -3: 2 failed, 3 passed" in text
    assert "<succeeded_later>\nBash: make test\n</succeeded_later>" in text
    assert (
        "<reverted>\nEdit: an edit of a.py\ngit checkout -- b.py\n</reverted>" in text
    )


def test_reminders_of_a_client_are_neither_decisions_nor_results() -> None:
    note = "<system-reminder>The file a.py was read.</system-reminder>"
    text = abridged(
        UserInput(text=LONG),
        SystemPrompt(text=note, where="conversation"),
        SystemPrompt(text="Answer in French.", where="conversation"),
        call("1", "look"),
        result("1", f"three lines\n{note}"),
        ANSWER,
    )

    assert "<decisions>" not in text
    assert "<system_messages>\nAnswer in French.\n</system_messages>" in text
    assert "<results>\nlook: three lines\n</results>" in text
    client_notes = text.partition("<client_notes>")[2].partition("</client_notes>")[0]
    assert "The file a.py was read." in client_notes


def test_a_rejected_call_is_named_with_the_reason() -> None:
    command = "git commit -m '" + "and so on " * 60 + "'"
    text = abridged(
        UserInput(text=LONG),
        call("1", "Bash", command=command),
        result("1", "The person rejected it.", status="error"),
        HumanReview(
            trigger="tool_approval",
            decision="rejected",
            bundle={"call_id": "1", "reason": "I did not say commit."},
        ),
        ANSWER,
    )

    decisions = text.partition("<decisions>\n")[2].partition("\n</decisions>")[0]
    assert decisions.startswith("rejected Bash: git commit -m")
    assert decisions.endswith(": I did not say commit.")
    assert "<failed>" not in text


def test_the_newest_steps_of_an_unfinished_turn_are_listed() -> None:
    texts = [
        f"Step {number}: I look at part {number} of the parser." for number in range(30)
    ]
    steps: list[Any] = [UserInput(text="Fix it.")]
    for number, text in enumerate(texts):
        steps += [
            AgentResponse(text=f"{text} It is {'very ' * (30 - number)}long."),
            call(str(number), "look"),
            result(str(number)),
        ]
    source = replace(of_events(log_of(*steps)), ends_inside_turn=True)

    written = Abridged(newest_first=True).summarise(source, target_tokens=WIDE)

    listed = written.text.partition("<steps>\n")[2].partition("\n</steps>")[0]
    assert "Step 28:" in listed  # the newest text is the answer so far
    assert "Step 3:" not in listed
    assert listed.index("Step 20:") < listed.index("Step 28:")
    assert "<continues_below/>" in written.text


def test_a_result_is_cut_at_the_ends_of_its_lines() -> None:
    lines = [f"line {number} of the output" for number in range(60)]

    text = abridged(
        UserInput(text="Look."),
        call("1", "look"),
        result("1", "\n".join(lines)),
        ANSWER,
    )

    (shown,) = [line for line in text.split("\n") if line.startswith("look: line 0")]
    head, _, tail = shown.partition("[…")
    assert head.endswith(" of the output")
    assert tail.partition("…]")[2].startswith("line ")


def history_of(*steps: Any) -> str:
    source = replace(of_events(log_of(*steps)), user_stays=True, first_turn=1)
    historian = Abridged(newest_first=True)
    return historian.summarise(source, target_tokens=WIDE).text


def edit(number: int, path: str) -> list[Any]:
    name = f"e{number}"
    return [call(name, "Write", file_path=path), result(name, "written")]


def test_a_ledger_names_the_files_changed_since_the_last_commit() -> None:
    commit = [call("c", "Bash", command="git commit -am 'Fix it'"), result("c", "ok")]
    begun = [UserInput(text=LONG), *edit(1, "a.py")]

    before = history_of(*begun, ANSWER)
    clean = history_of(*begun, *commit, ANSWER)
    after = history_of(*begun, *commit, *edit(2, "b.py"), *edit(3, "c.py"), ANSWER)

    tag = "changed_since_last_commit"
    assert tag not in before
    assert f"<{tag}>\n(none)\n</{tag}>" in clean
    assert f"<{tag}>\nc.py 1\nb.py 1\n</{tag}>" in after


def test_the_next_summary_follows_the_files_changed_since_the_last_commit() -> None:
    commit = [call("c", "Bash", command="git commit -am 'Fix it'"), result("c", "ok")]
    first = history_of(UserInput(text=LONG), *commit, *edit(1, "b.py"), ANSWER)
    source = replace(
        of_events(log_of(UserInput(text=LONG), *edit(2, "c.py"), ANSWER)),
        summaries=(first,),
        user_stays=True,
        first_turn=2,
    )
    source = replace(source, words=source.words + own_words(first))

    text = Abridged(newest_first=True).summarise(source, target_tokens=WIDE).text

    tag = "changed_since_last_commit"
    assert f"<{tag}>\nc.py 2\nb.py 1\n</{tag}>" in text
    assert "<changed>" not in text  # each file is listed once
    assert {"b.py", "c.py"} <= abridged_module.files_of_ledgers(text)


def test_files_of_other_tools_are_in_the_list() -> None:
    commit = call("c", "Bash", command="git add -A && git commit -m 'Fix it'")
    begun = [UserInput(text=LONG), commit, result("c", "ok")]
    saved = [call("s", "save", path="dam.toml"), result("s", "done"), ANSWER]
    summarizer = Abridged(
        newest_first=True, tools={**TOOLS, "save": on_file("modified")}
    )

    source = replace(of_events(log_of(*begun, *saved)), user_stays=True)
    text = summarizer.summarise(source, target_tokens=WIDE).text

    assert "<changed_since_last_commit>\ndam.toml " in text


def test_a_commit_leaves_other_files_in_the_list() -> None:
    commit = call("c", "Bash", command="git add a.py && git commit -m 'Fix it'")
    begun = [UserInput(text=LONG), *edit(1, "a.py"), *edit(2, "b.py")]

    text = history_of(*begun, commit, result("c", "ok"), ANSWER)

    tag = "changed_since_last_commit"
    assert f"<{tag}>\nb.py 1\n</{tag}>" in text


def test_the_first_commit_leaves_other_files_of_earlier_summaries_in_the_list() -> None:
    begun = [UserInput(text=LONG), *edit(1, "a.py"), *edit(2, "b.py"), ANSWER]
    first = history_of(*begun)
    commit = call("c", "Bash", command="git add a.py && git commit -m 'Fix it'")
    source = replace(
        of_events(log_of(UserInput(text=LONG), commit, result("c", "ok"), ANSWER)),
        summaries=(first,),
        user_stays=True,
        first_turn=2,
    )
    source = replace(source, words=source.words + own_words(first))

    text = Abridged(newest_first=True).summarise(source, target_tokens=WIDE).text

    tag = "changed_since_last_commit"
    assert f"<{tag}>\nb.py 1\n</{tag}>" in text


def test_the_next_summary_knows_all_files_since_the_last_commit() -> None:
    commit = [call("c", "Bash", command="git commit -am 'Fix it'"), result("c", "ok")]
    changed = [event for number in range(30) for event in edit(number, f"p{number}.py")]
    first = history_of(UserInput(text=LONG), *commit, *changed, ANSWER)
    source = replace(
        of_events(log_of(UserInput(text=LONG), *edit(99, "z.py"), ANSWER)),
        summaries=(first,),
        user_stays=True,
        first_turn=2,
    )
    source = replace(source, words=source.words + own_words(first))

    text = Abridged(newest_first=True).summarise(source, target_tokens=WIDE).text

    tag = "changed_since_last_commit"
    listed = text.partition(f"<{tag}>\n")[2].partition(f"\n</{tag}>")[0].splitlines()
    names = {line.rpartition(" ")[0] for line in listed}
    assert names == {"z.py", *(f"p{number}.py" for number in range(30))}


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "The user doesn't want to proceed with this tool use. The tool use was "
            "rejected (eg. if it was a file edit, the new_string was NOT written to "
            "the file). To tell you how to proceed, the user said:\nuse trash instead",
            ": use trash instead",
        ),
        ("The build folder is shared.", ": The build folder is shared."),
        (
            "The user doesn't want to take this action right now. STOP what you are "
            "doing and wait for the user to tell you how to proceed.",
            "",
        ),
        ("exec command rejected by user", ""),
    ],
)
def test_the_reason_of_a_rejection_may_be_in_the_result_alone(
    output: str, reason: str
) -> None:
    rejected = HumanReview(
        trigger="tool_approval", decision="rejected", bundle={"call_id": "1"}
    )

    text = abridged(
        UserInput(text=LONG),
        call("1", "Bash", command="rm -rf build"),
        result("1", output, status="error"),
        rejected,
        ANSWER,
    )

    decisions = text.partition("<decisions>\n")[2].partition("\n</decisions>")[0]
    assert decisions == f"rejected Bash: rm -rf build{reason}"


def test_a_checkout_of_a_branch_is_no_revert() -> None:
    text = abridged(
        UserInput(text=LONG),
        call("1", "Read", file_path="/repo/v2.b"),
        result("1", "text"),
        call("2", "Bash", command="git checkout release-1.x"),
        result("2", ""),
        call("3", "Bash", command="git checkout v2.b"),
        result("3", ""),
        ANSWER,
    )

    assert "<reverted>\ngit checkout v2.b\n</reverted>" in text


@pytest.mark.parametrize(
    "review",
    [
        {"decision": "rejected", "decided_by": "hook"},
        {"decision": "approved", "decided_by": "user"},
    ],
    ids=["by a hook", "approved later"],
)
def test_a_call_stays_a_failure_unless_a_person_rejected_it(
    review: dict[str, str],
) -> None:
    rejected = HumanReview(
        trigger="tool_approval", decision="rejected", bundle={"call_id": "1"}
    )
    newest = HumanReview(trigger="tool_approval", bundle={"call_id": "1"}, **review)
    earlier = [rejected] if review["decision"] == "approved" else []

    text = abridged(
        UserInput(text=LONG),
        call("1", "Bash", command="rm -rf build"),
        *earlier,
        newest,
        result("1", "use trash instead of rm", status="error"),
        ANSWER,
    )

    failed = text.partition("<failed>")[2].partition("</failed>")[0]
    assert "use trash instead of rm" in failed


def test_a_ledger_with_an_odd_number_is_read() -> None:
    places = ["\u00b2", "9" * 5_000]
    lines = "\n".join(f"a.py {place}" for place in places)
    summary = f"<ledger>\n<changed>\n{lines}\nb.py 1\n</changed>\n</ledger>"

    ledger = abridged_module.Ledger.of([summary], [], [])

    assert ledger.files == {"b.py"}


def test_a_rejected_call_is_no_failure() -> None:
    failed = [call("1", "Bash", command="make"), result("1", "no", status="error")]
    rejection = HumanReview(
        trigger="tool_approval", decision="rejected", bundle={"call_id": "1"}
    )

    assert list(abridged_module.failures_in(log_of(ASK, *failed, ANSWER)))
    assert not list(abridged_module.failures_in(log_of(ASK, *failed, rejection)))
