"""A comparison computes the requests of each strategy, their cost, and their recall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from refold.domain.envelope import Envelope
from refold.domain.errors import SummarizerFailed
from refold.domain.events import (
    AgentResponse,
    Final,
    Planner,
    Request,
    StrategyRef,
    SystemPrompt,
    UserInput,
)
from refold.projections import compare
from refold.projections.compare import (
    Comparison,
    Elements,
    Outcome,
    RawRequests,
    Requests,
    WantedNames,
    moments,
)
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import Extras
from refold.projections.context.compaction import Source, Written
from refold.projections.context.identifiers import in_text, in_value, stands_in
from refold.projections.context.render import render
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.models import ModelInfo, Prices
from tests.projections.logs import (
    SIGNED,
    START,
    call,
    envelope,
    log_of,
    logs,
    result,
    turns,
)
from tests.projections.walk import Walk

PRICES = Prices(input=10, output=50, cache_write_5m=12, cache_read=1)
MODEL = ModelInfo(name="m", context_tokens=200_000, prices=PRICES)
SPECS = [
    "keep_all",
    "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=60",
    "message_window:context_size=8,tail_keep_size=3,compression_window_size=2",
    "hybrid:threshold_low=60,threshold_high=120,last_n_events=4,every=2",
    "last_turns:n=1",
    "token_budget:max_tokens=80",
    "recursive_summary:every=2,keep_last=1",
    "history_summary:trigger_on_history_size_chars=300,"
    "trigger_on_history_size_chars_when_cache_expiring=200,"
    "history_tail_size_chars_to_exclude=100",
    "token_ratio:max_context_tokens=150,keep_recent_turns=1",
    "tool_clearing:trigger_tool_uses=2,keep=1",
    "native",
]


def under(
    strategy: str | Strategy,
    events: Sequence[Envelope],
    model: ModelInfo = MODEL,
    **more: Any,
) -> Outcome:
    chosen = spec.parse(strategy) if isinstance(strategy, str) else strategy
    return Comparison(events, model, **more).under(chosen)


def delayed(events: Sequence[Envelope], *seconds: float) -> list[Envelope]:
    """The events at these times, in seconds since the start."""
    return [
        event.model_copy(update={"ts": START + timedelta(seconds=second)})
        for event, second in zip(events, seconds, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "identifiers"),
    [
        ("see src/app.py, then /etc/hosts.", {"src/app.py", "/etc/hosts"}),
        ("open config.toml and/or input/output", {"config.toml"}),
        ("at https://example.org/a?b=1.", {"https://example.org/a?b=1"}),
        ("flight HAT069 of mia_li_3668 on 2024-05-20", {
            "HAT069", "mia_li_3668", "2024-05-20",
        }),
        ("it took 12 of 4096 tokens, i.e. 99.75", {"4096", "99.75"}),
        ("run `make demo` or 'off'", {"make demo"}),
        ("共1234元，文件「报告 一」", {"1234", "报告 一"}),
        ("write to [REDACTED:EMAIL_ADDRESS]", set()),
        ("write to [EMAIL_2] or [~EMAIL_1], [邮箱_已脱敏]", set()),
        ("don't ask, it isn't so. That's all", set()),
        ("", set()),
    ],
)  # fmt: skip
def test_identifiers_in_a_text(text: str, identifiers: set[str]) -> None:
    assert in_text(text) == identifiers


def test_short_json_texts_are_names_but_keys_are_not() -> None:
    value = {"from_city": "New York", "cabin": "economy", "ids": [7447, True, None, 12]}

    assert in_value(value) == {"New York", "7447"}


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("order 123 is late", True),
        ("order 1234 is late", False),
        ("order A123", False),
        ("41234, 123", True),
    ],
)
def test_a_part_of_a_longer_word_is_not_the_name(text: str, there: bool) -> None:
    assert stands_in(text, "123") is there


BOOKING = log_of(
    UserInput(text="Find the booking of mia_li_3668."),
    AgentResponse(text="I look for it.", stop_reason="tool_use"),
    call("c1", "find", user="mia_li_3668"),
    result("c1", '{"reservation": "HAT069", "total": 512}'),
    AgentResponse(text="It is HAT069, for 512."),
    UserInput(text="And what of the one before?"),
    AgentResponse(text="", stop_reason="tool_use"),
    call("c2", "find", user="mia_li_3668", before="HAT069", limit=100),
    result("c2", "HAT041"),
    AgentResponse(text="It is HAT041."),
)


def test_references_are_names_from_earlier_events() -> None:
    references = moments(BOOKING)

    assert [
        (moment.events_before, moment.seq, {*moment.used}) for moment in references
    ] == [
        (1, 2, {"mia_li_3668"}),
        (4, 5, {"HAT069", "512"}),
        (6, 7, {"mia_li_3668", "HAT069"}),
        (9, 10, {"HAT041"}),
    ]


def test_a_recorded_request_marks_a_call_of_the_model() -> None:
    ref = StrategyRef(name="keep_all", version=1, fingerprint="f")
    asked = Request(strategy=ref, through_seq=1, digest="d", tokens=1)
    log = log_of(
        UserInput(text="one"), asked, UserInput(text="two"), AgentResponse(text="three")
    )

    (moment,) = moments(log)

    assert (moment.events_before, moment.seq) == (1, 4)


IN_PARTS = [
    envelope(1, UserInput(text="Where is mia_li_3668?")),
    envelope(2, AgentResponse(text="", thinking=(SIGNED,)), response_id="m1"),
    envelope(3, AgentResponse(text="I ask for mia_li_3668."), response_id="m1"),
    envelope(4, call("c1", "find"), response_id="m1"),
    envelope(5, result("c1", "In Rome.")),
    envelope(6, AgentResponse(text="", thinking=(SIGNED,)), response_id="m2"),
    envelope(7, AgentResponse(text="mia_li_3668 is in Rome."), response_id="m2"),
]


def test_parts_of_an_answer_are_one_call_of_the_model() -> None:
    references = [(moment.seq, {*moment.used}) for moment in moments(IN_PARTS)]

    assert references == [(2, {"mia_li_3668"}), (6, {"mia_li_3668"})]
    sent = under("keep_all", IN_PARTS).sent
    assert [request.seq for request in sent] == [2, 6]
    assert sent[0].tokens < sent[1].tokens


def test_an_id_that_returns_after_other_answers_begins_another_answer() -> None:
    again = [
        envelope(8, UserInput(text="And now?")),
        envelope(9, AgentResponse(text="Still there."), response_id="m1"),
    ]

    assert [moment.seq for moment in moments([*IN_PARTS, *again])] == [2, 6, 9]


def test_a_walk_also_decides_between_the_parts_of_an_answer_as_a_rebuild_does() -> None:
    assert [moment.parts for moment in moments(IN_PARTS)] == [(2,), (6,)]


def test_recall_is_the_share_of_references_that_was_shown() -> None:
    everything = under("keep_all", BOOKING)
    last = under("last_turns:n=1", BOOKING)

    assert [(request.used, request.used_shown) for request in everything.sent] == [
        (1, 1), (2, 2), (2, 2), (1, 1),
    ]  # fmt: skip
    assert everything.reference_recall == 1.0
    # The second turn has neither the user nor the reservation in it, when it begins.
    assert [(request.used, request.used_shown) for request in last.sent] == [
        (1, 1), (2, 2), (2, 0), (1, 1),
    ]  # fmt: skip
    assert last.references == 6
    assert last.reference_recall == 4 / 6


def test_a_name_counts_as_shown_without_its_quotes() -> None:
    log = log_of(
        UserInput(text='It is about "Blue Harbour".'),
        AgentResponse(text="Yes."),
        UserInput(text="Is Blue Harbour open?"),
        AgentResponse(text='"Blue Harbour" is.'),
    )

    assert under("last_turns:n=1", log).reference_recall == 1.0


def test_without_references_there_is_no_recall() -> None:
    outcome = under("keep_all", log_of(UserInput(text="hi"), AgentResponse(text="ho")))

    assert outcome.reference_recall is None
    assert outcome.to_json()["reference_recall"] is None


def test_a_growing_request_is_read_from_the_cache() -> None:
    outcome = under("keep_all", turns(4, "word " * 30))

    sizes = [request.tokens for request in outcome.sent]
    assert sizes == sorted(set(sizes))
    assert [request.cached for request in outcome.sent] == [0, *sizes[:-1]]
    assert [request.written for request in outcome.sent] == [
        size - before for before, size in zip([0, *sizes], sizes, strict=False)
    ]
    assert outcome.uncached == 0
    assert outcome.tokens_total == sum(sizes)
    assert outcome.tokens_peak == sizes[-1]


def test_a_request_with_a_changed_beginning_is_not_cached() -> None:
    outcome = under("last_turns:n=1", turns(4, "word " * 30))

    assert outcome.cached == 0
    assert outcome.cache_writes == outcome.tokens_total


def test_the_part_before_a_change_is_cached() -> None:
    prompt = SystemPrompt(text="You help. " * 50)
    log = log_of(prompt, *(event.payload for event in turns(2, "word " * 30)))
    first, second = under("last_turns:n=1", log).sent
    view = render(KeepAll(), KeepAll().read(KeepAll().begin(), log[:2]), log[:2])
    system, question = Elements().of(view)

    share = system.weight / (system.weight + question.weight)
    assert second.cached == int(first.tokens * share)
    assert second.cached + second.written == second.tokens


def test_a_prefix_below_the_minimum_is_not_cached() -> None:
    log = turns(4, "word " * 30)
    sizes = [request.tokens for request in under("keep_all", log).sent]
    strict = MODEL.model_copy(update={"cache_min_tokens": sizes[2]})

    outcome = under("keep_all", log, strict)

    assert [request.uncached for request in outcome.sent] == [sizes[0], sizes[1], 0, 0]
    assert [request.cached for request in outcome.sent] == [0, 0, 0, sizes[2]]


@pytest.mark.parametrize(("pause", "hit"), [(299, True), (301, False)])
def test_a_cache_expires(pause: float, hit: bool) -> None:
    log = delayed(turns(2, "word " * 30), 0, 1, pause, pause + 1)

    first, second = under("keep_all", log).sent

    assert second.cached == (first.tokens if hit else 0)


def test_the_cost_includes_prompts_and_summaries() -> None:
    outcome = under("turn_window:full_turns=1,cached_turns=1", turns(5, "word " * 30))

    expected = (
        outcome.uncached * 10 + outcome.cache_writes * 12 + outcome.cached * 1
    ) / 1_000_000
    assert outcome.cost == pytest.approx(expected)
    assert outcome.done
    assert outcome.summarizer_cost == pytest.approx(
        sum(
            compaction.input_tokens * 10 + compaction.output_tokens * 50
            for compaction in outcome.done
        )
        / 1_000_000
    )
    assert outcome.summarizer_tokens == sum(
        compaction.input_tokens + compaction.output_tokens
        for compaction in outcome.done
    )
    assert under("keep_all", turns(1), replace_prices(None)).cost is None


def replace_prices(prices: Prices | None) -> ModelInfo:
    return MODEL.model_copy(update={"prices": prices})


def test_a_compaction_belongs_to_the_request_after_it() -> None:
    outcome = under("turn_window:full_turns=1,cached_turns=1", turns(4, "word " * 40))

    # Two complete turns are raw at the end of the second, the third and the fourth;
    # after the last request nothing is looked at any more.
    assert outcome.to_json()["compacted_before"] == [2, 3]
    assert [
        (compaction.first_seq, compaction.last_seq) for compaction in outcome.done
    ] == [(1, 2), (3, 4)]


def test_tokens_over_the_window_are_reported() -> None:
    log = turns(4, "word " * 30)
    peak = under("keep_all", log).tokens_peak

    outcome = under("keep_all", log, extras=Extras(window_tokens=peak - 5))

    assert outcome.over_budget == 5


class Failing:
    """A summarizer that never succeeds."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        raise SummarizerFailed("busy")


def test_a_failing_summarizer_changes_no_request() -> None:
    log = turns(5, "word " * 30)

    outcome = under(
        "turn_window:full_turns=1,cached_turns=1", log, summarizer=Failing()
    )

    assert [request.tokens for request in outcome.sent] == [
        request.tokens for request in under("keep_all", log).sent
    ]
    assert outcome.compactions == ()
    assert all("busy" in compaction.failed for compaction in outcome.done)
    # The next attempt comes no sooner than 30 s later, and the log is 10 s long.
    assert len(outcome.done) == 1


def test_elapsed_time_triggers_a_compaction() -> None:
    window = "message_window:context_size=9,tail_keep_size=2"
    log = turns(4, "word " * 30)

    quick = under(window, log)
    slow = under(window, delayed(log, 0, 1, 2, 3, 4, 5, 2_000, 2_001))

    assert quick.done == ()
    # Once the pause has been long enough, and again when the input ended it.
    assert [
        (compaction.request, compaction.decided_at_seq) for compaction in slow.done
    ] == [(3, 6), (3, 7)]


@pytest.mark.parametrize("text", SPECS)
@settings(max_examples=12)
@given(log=logs(max_size=30))
def test_a_grown_request_counts_as_if_rendered_completely(
    text: str, log: list[Envelope]
) -> None:
    quick = under(text, log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "_grown", lambda *_: None)
        whole = under(text, log)

    assert quick.sent == whole.sent
    assert quick.done == whole.done


def test_a_grown_request_shows_a_new_plan_instead_of_an_earlier_one() -> None:
    steps = [UserInput(text="Go."), Planner(plan="First, read the parser. " * 9)]
    for number in range(6):
        steps += [AgentResponse(text=f"Answer {number}. " * 12), UserInput(text="On.")]
    steps += [call("1"), Planner(plan="Write."), AgentResponse(text="!")]
    text = (
        "history_summary:trigger_on_history_size_chars=300,"
        "trigger_on_history_size_chars_when_cache_expiring=200,"
        "history_tail_size_chars_to_exclude=100"
    )

    quick = under(text, log_of(*steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "_grown", lambda *_: None)
        whole = under(text, log_of(*steps))

    assert quick.compactions
    assert quick.sent == whole.sent


@pytest.mark.parametrize("text", SPECS)
def test_a_walk_without_requests_decides_as_one_with_them(text: str) -> None:
    log = turns(30)
    strategy = spec.parse(text)
    walks = [compare.Walk(strategy, log, moments(log), Abridged()) for _ in range(2)]

    for _ in walks[0].steps():
        pass
    walks[1].go_to_end()

    assert walks[1].done == walks[0].done
    assert walks[1].view(Extras()).digest == walks[0].view(Extras()).digest


@settings(max_examples=30)
@given(log=logs(max_size=30))
def test_each_request_equals_the_context_of_the_loop(
    log: list[Envelope],
) -> None:
    assume(not any(isinstance(event.payload, Request) for event in log))
    walked = Walk(KeepAll(), sends=True).go(log)

    sent = under("keep_all", log).sent

    # The loop calls a model before each response, also before parts of one answer.
    responses = [answer.seq for answer, _ in RawRequests(log).digests()]
    views = [view for _, view in walked.sent]
    tokens_before = {
        seq: view.tokens for seq, view in zip(responses, views, strict=True)
    }
    assert [request.tokens for request in sent] == [
        tokens_before[request.seq] for request in sent
    ]
    assert all(
        request.cached + request.written + request.uncached == request.tokens
        for request in sent
    )


def test_finals_and_plans_count() -> None:
    log = log_of(
        UserInput(text="Plan src/a.py"),
        Planner(plan=["read src/a.py", "mend 4711"]),
        AgentResponse(text="Done with src/a.py"),
        Final(text="4711 is mended"),
        UserInput(text="Really?"),
        AgentResponse(text="4711 is."),
    )

    outcome = under("keep_all", log)

    assert outcome.reference_recall == 1.0
    assert [request.used for request in outcome.sent] == [1, 1]


# Names and texts of few characters, so that names often occur inside longer words.
_CHARACTERS = "a1_/. -é码"
_NAMES = st.lists(st.text(_CHARACTERS, min_size=1, max_size=4), max_size=8)
_TEXTS = st.lists(st.text(_CHARACTERS, max_size=20), max_size=4)


@given(names=_NAMES, texts=_TEXTS)
@settings(max_examples=300)
def test_wanted_names_are_those_that_stand_in_a_text(
    names: list[str], texts: list[str]
) -> None:
    expected = {name for name in names if any(stands_in(text, name) for text in texts)}

    assert WantedNames(names).within(texts) == expected


def test_names_in_one_folder_are_not_all_searched_in_each_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"/home/ada/project/part{number}/x.py" for number in range(100)]
    texts = [f"I read {name} in the project" for name in names]
    searched: list[str] = []

    def counted(text: str, name: str) -> bool:
        searched.append(name)
        return stands_in(text, name)

    monkeypatch.setattr("refold.projections.compare.stands_in", counted)

    assert WantedNames(names).within(texts) == frozenset(names)
    assert len(searched) == len(names)


@pytest.mark.parametrize("strategy", ["last_turns:n=1", "keep_all", "hybrid"])
def test_twice_the_events_take_twice_the_searches_for_names(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = 0

    def counting(text: str, name: str) -> bool:
        nonlocal searches
        searches += 1
        return stands_in(text, name)

    monkeypatch.setattr(compare, "stands_in", counting)
    counts = []
    for turn_count in (20, 40):
        turns_of_files: list[Any] = []
        for number in range(turn_count):
            path = f"src/module_{number}.py"
            turns_of_files += [
                UserInput(text=f"Read {path}."),
                call(f"c{number}", "Read", file_path=path),
                result(f"c{number}", f"the content of {path}"),
            ]
        searches = 0
        under(strategy, log_of(*turns_of_files))
        counts.append(searches)

    assert 0 < counts[1] <= 2.5 * counts[0]


def test_files_missing_from_a_request_are_counted() -> None:
    def does(number: int, tool: str, path: str, status: str = "ok") -> list[Any]:
        name = f"c{number}"
        return [
            UserInput(text=f"step {number}"),
            call(name, tool, file_path=path),
            result(name, "done", status=status),
        ]

    events = log_of(
        *does(1, "Write", "src/made.py"),
        *does(2, "Read", "src/seen.py"),
        *does(3, "Read", "src/failed.py", status="error"),
        UserInput(text="and now?"),
        AgentResponse(text="Nothing."),
    )

    keep, last = (
        Comparison(events, MODEL).under(spec.parse(strategy))
        for strategy in ("keep_all", "last_turns:n=1")
    )

    assert [(request.files, request.files_named) for request in keep.sent] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (2, 2),
    ]
    assert [(request.files, request.files_named) for request in last.sent] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 0),
    ]
    assert (keep.ledger_recall["files"], last.ledger_recall["files"]) == (1.0, 0.0)
    report = keep.to_json()
    assert report["cost"] == pytest.approx(sum(report["costs"].values()))
    assert report["total_cost"] == report["cost"] + report["summarizer_cost"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("keep_all", 12),
        ("tool_clearing:trigger_tool_uses=2,keep=1", 12),
        ("turn_window:full_turns=1,cached_turns=3", 12),
        ("turn_window:full_turns=1,cached_turns=1", 12),
        ("last_turns:n=2", 1),
    ],
)
def test_failed_calls_count_if_their_failure_is_stated(text: str, shown: int) -> None:
    steps: list[Any] = []
    for number in range(12):
        steps += [
            UserInput(text=f"go on, {number}"),
            call(f"c{number}", "Bash", command=f"cd /src && make target-{number}"),
            result(f"c{number}", f"{'line ' * 90}Error {number}: no", status="error"),
        ]

    outcome = under(text, log_of(*steps, UserInput(text="?"), AgentResponse()))

    assert (outcome.sent[-1].failed, outcome.sent[-1].failed_shown) == (12, shown)
    assert outcome.ledger_recall["failures"] == pytest.approx(
        sum(request.failed_shown for request in outcome.sent) / sum(range(13))
    )


@pytest.mark.parametrize(
    "text",
    [
        "history_summary:trigger_on_history_size_chars=600,"
        "trigger_on_history_size_chars_when_cache_expiring=600,"
        "history_tail_size_chars_to_exclude=100",
        "turn_window:full_turns=1,cached_turns=1",
    ],
)
def test_no_compaction_loses_the_name_of_a_file(text: str) -> None:
    steps: list[Any] = []
    for number in range(12):
        path = f"src/module_{number}.py"
        steps += [
            UserInput(text="go on " * 20),
            call(f"c{number}", "Write", file_path=path, content="x = 1 " * 30),
            result(f"c{number}", "done " * 30),
            AgentResponse(text=f"step {number} is done"),
        ]

    outcome = Comparison(log_of(*steps), MODEL).under(spec.parse(text))

    assert outcome.compactions
    assert outcome.ledger_recall["files"] == 1.0
