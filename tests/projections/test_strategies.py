"""Each strategy compacts and shows exactly what its parameters say."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from refold.domain.envelope import ACTIVATED, Envelope, Meta
from refold.domain.errors import InvalidConfiguration, UnknownModel, UnknownStrategy
from refold.domain.events import (
    AgentResponse,
    Event,
    Final,
    Planner,
    Reflection,
    Request,
    SummarizerRef,
    ToolCall,
    ToolResult,
    UserInput as User,
)
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Compaction, Notes, Source, Written
from refold.projections.context.outline import Outline
from refold.projections.context.render import render
from refold.projections.context.strategies.history_summary import (
    HistorySummary,
    from_params,
)
from refold.projections.context.strategies.hybrid import Hybrid
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategies.token_ratio import TokenRatio
from refold.projections.context.strategy import Strategy, Weighed
from refold.projections.context.summaries import summarizer_for
from refold.projections.context.view import View
from tests.projections.logs import START, Log
from tests.projections.walk import Walk, texts, view_of
from tests.support.nested import blocks_of


def timed(events: list[Event], seconds: float = 1) -> list[Envelope]:
    """Return a stream of these events, ``seconds`` apart."""
    log = Log()
    envelopes: list[Envelope] = []
    for index, event in enumerate(events):
        ts = START + timedelta(seconds=seconds * index)
        envelopes.append(log.add(event).model_copy(update={"ts": ts}))
    return envelopes


def talk(turns: int, text: str = "word") -> list[Event]:
    return [
        event
        for number in range(turns)
        for event in (User(text=f"{text} {number}"), AgentResponse(text="fine"))
    ]


def view_under(spec: str, events: list[Event]) -> View:
    return view_of(parse(spec), timed(events))


def exchanges_of_sizes(sizes: list[int]) -> list[Event]:
    """Exchanges of a question and an answer, with these numbers of characters."""
    return [
        event
        for size in sizes
        for event in (User(text="u" * (size - 4)), AgentResponse(text="fine"))
    ]


def first_messages(messages: int) -> list[Event]:
    return talk((messages + 1) // 2)[:messages]


def decisions_during(strategy: Strategy, events: list[Envelope]) -> list[Compaction]:
    """The decisions on compactions, with a check after each event at its time."""
    walk = Walk(strategy)
    decisions: list[Compaction] = []
    for event in events:
        walk.events.append(event)
        walk.outline = strategy.fold(walk.outline, event)
        decision = strategy.decide(walk.outline, event.ts)
        while decision:
            decisions.append(decision)
            walk.compact(decision)
            decision = strategy.follow_up(walk.outline, event.ts)
    return decisions


def heads_of_batches(strategy: Strategy, events: list[Envelope]) -> list[int]:
    """The heads at which batches were compacted, without folds of summaries."""
    return [
        decision.decided_at_seq
        for decision in decisions_during(strategy, events)
        if decision.level == 1
    ]


MEMORIES = {
    "compression_prompt": "Shorten.",
    "compression_target": 50,
    "num_recent_memories_to_keep": 10,
    "recent_memories_subprompt": "",
}


class TestMessageWindow:
    def test_batches_of_twelve_behind_a_tail_of_forty(self) -> None:
        events = timed(talk(40))

        compactions = decisions_during(parse("message_window"), events)
        assert [compaction.decided_at_seq for compaction in compactions] == [52, 64, 76]
        spans = [
            (compaction.first_seq, compaction.last_seq) for compaction in compactions
        ]
        assert spans == [(1, 12), (13, 24), (25, 36)]

    def test_a_hard_limit_below_the_batch_forces_it(self) -> None:
        spec = "message_window:compression_window_size=50"

        assert heads_of_batches(parse(spec), timed(talk(40))) == [70]

    def test_after_the_cooldown_any_number_is_a_batch(self) -> None:
        strategy = parse("message_window")
        ends = START + timedelta(seconds=900)
        tail = outline_of(strategy, talk(20))
        outline = outline_of(strategy, first_messages(45))

        assert strategy.decide(outline, ends - timedelta(seconds=1)) is None
        compaction = strategy.decide(outline, ends)
        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (1, 5)
        assert strategy.due_at(outline, START) == ends
        assert strategy.decide(tail, ends) is None

    def test_the_cooldown_fires_first_when_messages_are_slow(self) -> None:
        events = timed(talk(40), seconds=30)

        assert heads_of_batches(parse("message_window"), events) == [41, 53, 65, 77]

    def test_a_failure_does_not_hold_back_the_hard_limit(self) -> None:
        strategy = parse("message_window")
        outline = outline_of(strategy, talk(35))
        later = START + timedelta(seconds=71)
        failed = outline._replace(failures=1, failed_at=microseconds_of(later))

        assert outline.messages - 40 == 30
        assert strategy.decide(failed, later) is not None
        assert strategy.decide(failed._replace(failures=2), later) is None
        fewer = outline_of(strategy, talk(34))._replace(
            failures=9, failed_at=microseconds_of(later)
        )
        assert strategy.decide(fewer, later) is None

    def test_messages_over_the_context_size_are_left_out_and_counted(self) -> None:
        spec = "message_window:context_size=6,tail_keep_size=4"
        walk = Walk(parse(spec))
        for event in timed(talk(5)):
            walk.events.append(event)
            walk.outline = walk.strategy.fold(walk.outline, event)

        shown = texts(walk.view())

        assert 'messages="4"' in shown
        assert "word 1" not in shown
        assert "word 2" in shown

    def test_a_tail_that_fills_the_context_is_refused(self) -> None:
        with pytest.raises(UnknownStrategy, match="tail_keep_size must be less"):
            parse("message_window:tail_keep_size=75")


class TestHybrid:
    SPEC = "hybrid:threshold_low=50,threshold_high=200"

    def test_below_the_lower_threshold_everything_is_sent(self) -> None:
        events = timed([*talk(1), Planner(plan="p"), *talk(1)])

        assert "<plan" in texts(view_of(parse(self.SPEC), events))

    def test_between_the_thresholds_key_events_and_the_last_plans_are_sent(
        self,
    ) -> None:
        plans: list[Event] = [Planner(plan=f"plan {n} {'x' * 40}") for n in range(5)]
        strategy = parse(self.SPEC)
        walk = Walk(strategy).go(timed([*talk(2), *plans, *talk(1)]))

        shown = texts(walk.view())

        assert not walk.compactions
        assert "plan 1" not in shown
        assert all(f"plan {n}" in shown for n in (2, 3, 4))
        assert "word 0" in shown

    def test_a_shown_result_brings_its_call_and_response(self) -> None:
        spec = f"{self.SPEC},last_n_events=1"
        old = call("a")
        new = call("b")
        plan = Planner(plan="x" * 200)
        view = view_of(parse(spec), timed([*talk(1), *old, plan, *new]))

        uses = [b for b in blocks_of(view.messages) if b["type"] == "tool_use"]

        assert [use["id"] for use in uses] == ["b"]

    def test_from_the_upper_threshold_on_older_exchanges_are_summarised(self) -> None:
        events = timed(talk(30, "word " * 6))

        compactions = decisions_during(
            parse(self.SPEC + ",every=4,last_n_events=6"), events
        )

        assert compactions
        assert all(
            compaction.last_seq <= compaction.decided_at_seq - 3
            for compaction in compactions
        )
        assert max(compaction.level for compaction in compactions) > 1

    def test_above_the_upper_threshold_the_newest_key_events_stay_raw(self) -> None:
        spec = "hybrid:threshold_low=600,threshold_high=800,last_n_events=6"
        events = timed(
            [event for n in range(40) for event in [*talk(1), *call(f"c{n}")]]
        )
        walk = Walk(parse(spec)).go(events)

        assert walk.compactions
        uses = {
            block["id"]
            for block in blocks_of(walk.view().messages)
            if block["type"] == "tool_use"
        }
        assert {"c39", "c38", "c37"} <= uses
        assert len(uses) < 40

    def test_above_the_upper_threshold_other_events_do_not_end_the_tail(self) -> None:
        log: list[Event] = []
        for number in range(60):
            log.append(User(text=f"question {number} " + "why " * 60))
            log += call(f"c{number}")
            log.append(Reflection(suggestion="check it " * 20))
            log.append(Final(text=f"final {number} " + "done " * 60))
        at_once = Walk(parse("hybrid"))
        at_once.outline = outline_of(at_once.strategy, log)
        at_once.events = timed(log)
        at_once.check()
        step_by_step = Walk(parse("hybrid")).go(timed(log))

        for walk in (at_once, step_by_step):
            assert walk.compactions
            types = [unit.type for unit in walk.outline.units]
            raw = types.count("user_input") + types.count("final")
            raw += sum(unit.results for unit in walk.outline.units)
            assert 40 <= raw < 40 + 3 * 10

    def test_twenty_plans_become_one_summary_and_the_last_plans(self) -> None:
        plans: list[Event] = [
            Planner(plan=f"plan {number} " + "this, then that " * 180)
            for number in range(20)
        ]
        for spec in ("hybrid", "recursive_summary"):
            walk = Walk(parse(spec))
            walk.outline = outline_of(walk.strategy, plans)
            walk.events = timed(plans)
            while walk.strategy.decide(walk.outline, START):
                walk.check()

            assert walk.events[-1].seq * walk.events[0].token_estimate > 14_000
            assert len(walk.outline.units) == 3
            assert walk.outline.raw_span == (18, 20)
            assert len(walk.outline.summaries) == 1
            assert walk.view().tokens < 3_000

    def test_large_key_events_stay_raw_within_the_lower_threshold(self) -> None:
        walk = Walk(parse("hybrid")).go(timed(talk(30, "word " * 900)))

        assert walk.compactions
        assert walk.outline.raw_tokens < 8_000

    def test_a_long_absence_leads_to_few_summaries(self) -> None:
        strategy = parse("hybrid:last_n_events=10")
        outline = outline_of(strategy, talk(60, "word " * 200))

        compaction = strategy.decide(outline, START)

        assert compaction is not None
        assert compaction.last_seq >= 80  # exchanges of 120

    def test_triggers_by_count_idle_time_and_event(self) -> None:
        events = timed(talk(10))
        count = parse("hybrid:trigger='count',trigger_count=15")
        idle = parse("hybrid:trigger='idle',trigger_idle_sec=60")
        outline = outline_of(idle, talk(10))

        assert heads_of_batches(count, events)[0] == 15
        assert idle.decide(outline, START + timedelta(seconds=78)) is None
        assert idle.due_at(outline, START) == START + timedelta(seconds=79)
        assert idle.decide(outline, START + timedelta(seconds=79)) is not None

    def test_an_event_that_stays_raw_triggers_one_compaction(self) -> None:
        spec = "hybrid:trigger='event',keep_last=3,every=2"
        log = [*talk(8), Final(text="The first part is done."), *talk(12)]

        heads = {
            compaction.decided_at_seq
            for compaction in decisions_during(parse(spec), timed(log))
        }

        assert len(heads) == 1

    def test_thresholds_close_together_leave_room_for_new_exchanges(self) -> None:
        spec = "hybrid:threshold_low=3900,threshold_high=4000"
        log = [event for n in range(60) for event in [*talk(1, "word " * 60)]]

        heads = {
            compaction.decided_at_seq
            for compaction in decisions_during(parse(spec), timed(log))
        }

        assert heads
        assert len(heads) <= 4


class TestHistorySummary:
    TEN = (
        "history_summary:trigger_on_history_size_chars=10000,"
        "history_tail_size_chars_to_exclude=3000"
    )

    def test_ten_exchanges_are_compacted_as_in_the_example(self) -> None:
        sizes = [1200] * 4 + [1000] * 2 + [800] * 4

        (compaction,) = decisions_during(
            parse(self.TEN), timed(exchanges_of_sizes(sizes))
        )

        assert (
            compaction.first_seq,
            compaction.last_seq,
            compaction.decided_at_seq,
        ) == (1, 14, 20)

    def test_a_head_recorded_in_one_moment_is_split_by_the_same_tail(self) -> None:
        sizes = [1300] * 4 + [1200] * 2 + [800] * 4
        strategy = parse(self.TEN)
        outline = outline_of(parse(self.TEN), exchanges_of_sizes(sizes))

        compaction = strategy.decide(outline, START)

        assert sum(sizes) == 10_800
        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (1, 14)

    def test_the_tail_has_at_least_one_exchange(self) -> None:
        outline = outline_of(parse(self.TEN), exchanges_of_sizes([800] * 9 + [5000]))

        compaction = parse(self.TEN).decide(outline, START)

        assert compaction is not None
        assert compaction.last_seq == 18

    def test_each_summary_absorbs_the_one_before(self) -> None:
        events = timed(talk(60, "u" * 500))

        compactions = decisions_during(parse(self.TEN), events)

        assert len(compactions) > 1
        assert compactions[1].absorbs == (1,)
        assert compactions[1].first_seq == 1

    def test_a_summary_is_acknowledged_and_has_the_abridged_history(self) -> None:
        view = view_of(parse(self.TEN), timed(talk(60, "u" * 500)))

        assert "I have read the summary" in view.messages[1]["content"][0]["text"]
        assert '<turn number="' in view.messages[0]["content"][0]["text"]

    def test_the_lower_threshold_counts_while_the_cache_expires(self) -> None:
        spec = (
            "history_summary:trigger_on_history_size_chars_when_cache_expiring=1000,"
            "history_tail_size_chars_to_exclude=100"
        )
        strategy = parse(spec)
        outline = outline_of(strategy, talk(5, "u" * 300))
        called = START + timedelta(seconds=9)

        assert strategy.due_at(outline, called) == called + timedelta(seconds=270)
        for age, due in ((269.9, False), (270, True), (299.9, True), (300, False)):
            now = called + timedelta(seconds=age)
            assert (strategy.decide(outline, now) is not None) == due

    def test_a_threshold_of_zero_switches_its_trigger_off(self) -> None:
        spec = (
            "history_summary:trigger_on_history_size_chars=0,"
            "trigger_on_history_size_chars_when_cache_expiring=0"
        )

        assert not decisions_during(parse(spec), timed(talk(60, "u" * 2000)))

    def test_a_head_over_the_second_guard_is_folded_part_by_part(self) -> None:
        spec = self.TEN + ",second_guard_chars=4000"

        compactions = decisions_during(parse(spec), timed(talk(20, "u" * 600)))

        assert len(compactions) > 1
        assert compactions[0].decided_at_seq == compactions[1].decided_at_seq
        assert not any(compaction.omitted for compaction in compactions)

    def test_a_head_over_the_second_guard_can_be_truncated(self) -> None:
        spec = self.TEN + ",second_guard_chars=3000,second_guard='truncate'"

        (compaction, *_) = decisions_during(parse(spec), timed(talk(20, "u" * 600)))

        assert compaction.omitted[0][0] == 1
        assert compaction.omitted[-1][1] < compaction.last_seq

    def test_of_five_segments_the_last_three_are_kept(self) -> None:
        """Four of 266,000 characters and one of 200,000: a third is 266,666."""
        sizes = [133_000] * 8 + [200_000, 9_000]
        strategy = parse("history_summary:second_guard='truncate'")

        compaction = strategy.decide(
            outline_of(strategy, exchanges_of_sizes(sizes)), START
        )

        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (1, 18)
        assert compaction.omitted == ((1, 8),)

    def test_three_segments_are_kept_completely(self) -> None:
        sizes = [133_000] * 7 + [9_000]
        strategy = parse("history_summary:second_guard='truncate'")

        compaction = strategy.decide(
            outline_of(strategy, exchanges_of_sizes(sizes[1:])), START
        )

        assert compaction is not None
        assert compaction.omitted == ()

    def test_no_segment_begins_within_an_exchange(self) -> None:
        spec = self.TEN + ",second_guard_chars=3000,second_guard='truncate'"
        turn = [User(text="u" * 500), AgentResponse(text="a" * 700)]

        compaction = parse(spec).decide(outline_of(parse(spec), turn * 10), START)

        assert compaction is not None
        assert compaction.omitted == ((1, 10),)

    def test_a_summary_of_another_version_does_not_count(self) -> None:
        """The events that it covered are raw again, until the next compaction."""
        events = timed(exchanges_of_sizes([1000] * 12))
        was = Walk(parse(self.TEN + ",summary_version=2")).go(events)
        now = parse(self.TEN)
        outline = now.read(now.begin(), events)

        view = render(now, outline, events, summaries=was.derived)

        assert was.compactions
        assert [span.kind for span in view.spans] == ["raw"]
        assert now.decide(outline, START) is not None

    def test_a_template_sets_the_text_of_the_summary(self) -> None:
        spec = self.TEN + ",node_template='Before: {summary} | {abridged_history}'"
        events = timed(talk(12, "word " * 200))

        walk = Walk(parse(spec)).go(events)

        first = texts(walk.view())
        assert walk.compactions
        assert "Before: " in first
        assert " | <turn" in first
        assert "{summary}" not in first

    def test_parameters_may_be_json_in_a_text(self) -> None:
        flags = {
            "history_summary_min_version": "3",
            "history_summary_params": json.dumps(
                {
                    "trigger_on_history_size_chars": 50000,
                    "trigger_on_history_size_chars_when_cache_expiring": 30000,
                    "history_tail_size_chars_to_exclude": 5000,
                    "prompt": "Summarise in <summary> tags.",
                    "cache_ttl_ms": 300000,
                    "buffer_time_before_cache_expiration_ms": 30000,
                    "abridged_history_params": {
                        "total_chars_limit": 10000,
                        "user_message_chars_limit": 1000,
                        "agent_response_chars_limit": 2000,
                        "action_chars_limit": 200,
                    },
                }
            ),
        }

        assert from_params(flags) == HistorySummary(
            prompt="Summarise in <summary> tags."
        )

    def test_the_configuration_of_the_other_agent_is_read(self) -> None:
        params = {
            "trigger_on_history_size_chars": 50000,
            "history_tail_size_chars_to_exclude": 5000,
            "prompt": "",
            "abridged_history_params": {
                "total_chars_limit": 9000,
                "num_files_viewed_limit": 3,
                "num_terminal_commands_limit": 0,
            },
            "summary_node_request_message_template": "{summary}{abridged_history}",
            "summary_node_response_message": "Ok.",
        }
        flags = {"history_summary_params": params, "history_summary_min_version": "2"}

        strategy = from_params(flags)

        assert strategy is not None
        assert strategy.summary_version == 2
        assert strategy.abridged.total_chars == 9000
        limits = [
            strategy.abridged.of(kind) for kind in ("viewed", "commands", "created")
        ]
        assert limits == [3, 0, 10]
        assert strategy.acknowledgement_text == "Ok."
        assert parse("history_summary").fingerprint == HistorySummary().fingerprint
        assert "viewed" not in str(HistorySummary().params)
        with pytest.raises(UnknownStrategy, match="must contain"):
            from_params({"summary_node_request_message_template": "no place"})
        assert from_params({**flags, "history_summary_min_version": ""}) is None
        noting = from_params({**flags, "memories_params": MEMORIES})
        assert noting is not None
        assert noting.memories == Notes(compression_prompt="Shorten.")
        with pytest.raises(UnknownStrategy, match="there is no such parameter"):
            from_params({**flags, "memories_params": {"bogus": 1}})
        with pytest.raises(UnknownStrategy, match="there is no such parameter"):
            from_params({"colour": 1})

    @pytest.mark.parametrize(
        "flags",
        [
            {},
            {"history_summary_params": {}},
            {"history_summary_params": "{}"},
            {"history_summary_params": ""},
            {"history_summary_params": None, "memories_params": ""},
            {"history_summary_params": {"abridged_history_params": ""}},
        ],
    )
    def test_empty_parameters_of_the_other_agent_mean_the_defaults(
        self, flags: dict[str, Any]
    ) -> None:
        assert from_params(flags) == HistorySummary()

    def test_nothing_is_compacted_while_an_excluded_agent_runs(self) -> None:
        strategy = parse(self.TEN + ",exclude_agents=['critic']")
        log = timed(exchanges_of_sizes([1300] * 12))
        by_critic = [*log[:-1], log[-1].model_copy(update={"agent": "critic"})]

        excluded = strategy.read(strategy.begin(), by_critic)

        assert strategy.decide(strategy.read_whole(log), START) is not None
        assert strategy.decide(excluded, START) is None
        assert strategy.press(excluded, 100, 10_000) is None
        assert strategy.due_at(excluded, START) is None
        assert "no summaries for the agent" in strategy.waits_for(excluded)


class TestTokenRatio:
    def test_a_compaction_begins_at_the_share_of_the_window(self) -> None:
        strategy = parse("token_ratio:max_context_tokens=128000")
        outline = outline_of(strategy, talk(8))

        assert strategy.decide(outline._replace(raw_tokens=102_399), START) is None
        compaction = strategy.decide(outline._replace(raw_tokens=102_400), START)
        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (
            1,
            6,
        )  # five turns of eight stay

    def test_tokens_of_the_model_count(self) -> None:
        strategy = parse("token_ratio:model='claude-opus-4-7'")
        assert isinstance(strategy, TokenRatio)
        limit = int(strategy.window * 0.8 / strategy.weight)
        outline = outline_of(strategy, talk(8))

        assert strategy.weight > 1.3
        assert strategy.params["weight"] == strategy.weight
        assert strategy.decide(outline._replace(raw_tokens=limit - 9), START) is None
        assert strategy.decide(outline._replace(raw_tokens=limit + 9), START)
        spec = f"token_ratio:model='claude-opus-4-7',weight={strategy.weight}"
        assert parse(spec) == strategy

    @pytest.mark.parametrize(
        ("name", "limit"),
        [("hybrid", "threshold_high"), ("tool_clearing", "trigger_input_tokens")],
    )
    def test_other_strategies_count_tokens_of_a_model(
        self, name: str, limit: str
    ) -> None:
        plain = parse(name)
        exact = parse(f"{name}:model='claude-opus-4-7'")
        most = getattr(plain, limit)
        outline = outline_of(plain, talk(8))._replace(raw_tokens=round(most / 1.2))

        assert isinstance(exact, Weighed)
        assert exact.weight > 1.2
        assert exact.weighed(outline.tokens) >= most
        assert exact.fingerprint != plain.fingerprint
        assert "weight" not in plain.params
        if isinstance(exact, Hybrid):
            few = {"last_n_events": 1}
            assert plain.model_copy(update=few).decide(outline, START) is None
            assert exact.model_copy(update=few).decide(outline, START) is not None
        with pytest.raises(UnknownModel):
            parse(f"{name}:model='nobody'")

    def test_a_budget_is_in_tokens_of_the_model(self) -> None:
        specs = ("token_budget:max_tokens=80", "token_budget:max_tokens=80,weight=2")
        plain, exact = (view_under(spec, talk(30)) for spec in specs)

        assert 0 < exact.tokens <= 40 < plain.tokens <= 80

    def test_a_message_is_cut_to_a_quarter_of_its_own_window(self) -> None:
        long: list[Event] = [User(text="word " * 20_000)]

        cut = view_under("token_ratio:max_context_tokens=8000", long)

        assert 1_500 < cut.tokens <= 2_010
        assert view_under("keep_all", long).tokens > 20_000

    @pytest.mark.parametrize(
        ("window", "target"),
        [(1000, 500), (8000, 800), (20_000, 2000), (40_000, 4000), (128_000, 4000)],
    )
    def test_the_summary_is_a_tenth_of_the_window(
        self, window: int, target: int
    ) -> None:
        strategy = parse(f"token_ratio:max_context_tokens={window}")
        outline = outline_of(strategy, talk(8))._replace(raw_tokens=window)

        compaction = strategy.decide(outline, START)

        assert compaction is not None
        assert compaction.target_tokens == target

    def test_the_newest_turns_stay_raw(self) -> None:
        strategy = parse("token_ratio:max_context_tokens=1000,keep_recent_turns=3")
        events = [*talk(6), User(text="now")]
        outline = outline_of(strategy, events)._replace(raw_tokens=1000)

        compaction = strategy.decide(outline, START)

        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (1, 8)

    def test_the_current_turn_stays_raw(self) -> None:
        """Its newest message is a result, and its input is older than the turns."""
        strategy = parse("token_ratio:max_context_tokens=1000,keep_recent_turns=1")
        weather = [User(text="How is the weather?"), *call("a"), *call("b")]
        outline = outline_of(strategy, [*talk(2), *weather])._replace(raw_tokens=1000)

        compaction = strategy.decide(outline, START)

        assert compaction is not None
        assert (compaction.first_seq, compaction.last_seq) == (1, 4)

    @pytest.mark.parametrize("more", ["enabled=false", "keep_recent_turns=9"])
    def test_no_compaction_when_disabled_or_with_few_turns(self, more: str) -> None:
        strategy = parse(f"token_ratio:max_context_tokens=1000,{more}")
        outline = outline_of(strategy, talk(8))._replace(raw_tokens=9_000)

        assert strategy.decide(outline, START) is None

    @pytest.mark.parametrize(
        ("share", "turns", "first_kept"),
        [(0.85, 5, 19), (0.7, 3, 23), (0.8, 8, 13), (0.8, 3, 23)],
    )
    def test_each_preset_compacts_at_its_share_of_the_window(
        self, share: float, turns: int, first_kept: int
    ) -> None:
        strategy = parse(
            f"token_ratio:max_context_tokens=32000,trigger_threshold={share},"
            f"keep_recent_turns={turns}"
        )
        outline = outline_of(strategy, talk(14))
        limit = round(32_000 * share)

        assert strategy.decide(outline._replace(raw_tokens=limit - 1), START) is None
        compaction = strategy.decide(outline._replace(raw_tokens=limit), START)
        assert compaction is not None
        assert compaction.last_seq == first_kept - 1

    def test_the_summary_is_the_result_of_a_tool(self) -> None:
        spec = "token_ratio:max_context_tokens=100,keep_recent_turns=1"
        view = view_of(parse(spec), timed(talk(9, "some words here")))

        opening, use, result, *following = view.messages

        assert opening["role"] == "user"
        assert use["content"][0]["name"] == "memory_compress"
        assert use["content"][0]["input"] == {}
        assert result["content"][0]["type"] == "tool_result"
        first, *_, last = result["content"][0]["content"].splitlines()
        assert all(line.startswith("===== ") for line in (first, last))
        assert following[0]["role"] == "assistant"

    def test_an_unknown_model_is_refused(self) -> None:
        with pytest.raises(Exception, match="register"):
            parse("token_ratio:model='no-such-model'")


class TestToolClearing:
    def test_all_but_the_newest_results_become_stubs(self) -> None:
        events = [*talk(1), *(e for n in range(5) for e in call(f"c{n}", "r" * 400))]
        strategy = parse("tool_clearing:trigger_tool_uses=4,keep=2")
        view = view_of(strategy, timed([*events, AgentResponse(text="done")]))

        results = [
            block["content"]
            for block in blocks_of(view.messages)
            if block["type"] == "tool_result"
        ]

        cleared = ["was cleared here" in str(result) for result in results]
        assert cleared == [True, True, False, False, False]

    def test_a_cleared_result_remains_an_error(self) -> None:
        failed = call("a", "r" * 400)
        failed[-1] = failed[-1].model_copy(update={"status": "error"})
        events = [*talk(1), *failed, *call("b", "r" * 400)]
        spec = "tool_clearing:trigger_tool_uses=1,keep=0"

        view = view_under(spec, [*events, AgentResponse(text="done")])

        results = [
            (block.get("is_error"), "was cleared" in str(block["content"]))
            for block in blocks_of(view.messages)
            if block["type"] == "tool_result"
        ]
        assert results == [(True, True), (None, True)]

    def test_excluded_tools_and_arguments_stay_by_default(self) -> None:
        events = [*talk(1), *call("a", "r" * 400), *call("b", "r" * 400, tool="keep")]
        spec = "tool_clearing:trigger_tool_uses=1,keep=0,exclude_tools=['keep']"
        for more, empty in ((spec, False), (f"{spec},clear_tool_inputs=true", True)):
            view = view_of(parse(more), timed([*events, AgentResponse(text="done")]))
            blocks = list(blocks_of(view.messages))
            stubs = ["was cleared" in str(b.get("content")) for b in blocks]
            first = next(b for b in blocks if b["type"] == "tool_use")

            assert sum(stubs) == 1
            assert (first["input"] == {}) == empty

    def test_the_second_step_gets_the_outline_after_the_clearing(self) -> None:
        events = [*talk(1), *(e for n in range(9) for e in call(f"c{n}", "r" * 400))]
        alone = "token_ratio:max_context_tokens=1000,keep_recent_turns=1"
        both = f"tool_clearing:trigger_tool_uses=2,keep=1+{alone}"
        log = timed([*events, *talk(2)])

        assert decisions_during(parse(alone), log)
        assert not decisions_during(parse(both), log)

    def test_a_pipeline_can_count_turns(self) -> None:
        spec = "tool_clearing+turn_window:full_turns=1,cached_turns=1"

        compactions = decisions_during(parse(spec), timed(talk(5)))

        alone = decisions_during(parse(spec.partition("+")[2]), timed(talk(5)))
        assert [
            (compaction.first_seq, compaction.last_seq) for compaction in compactions
        ] == [(compaction.first_seq, compaction.last_seq) for compaction in alone]
        assert compactions


class TestBaselines:
    def test_last_turns_shows_only_the_newest_turns(self) -> None:
        shown = texts(view_of(parse("last_turns:n=2"), timed(talk(5))))

        assert "word 2" not in shown
        assert "word 3" in shown

    def test_token_budget_drops_the_oldest_exchanges(self) -> None:
        strategy = parse("token_budget:max_tokens=40")
        view = view_of(strategy, timed(talk(9)))

        assert view.tokens <= 40
        assert "word 8" in texts(view)
        assert "word 0" not in texts(view)

    def test_recursive_summary_builds_a_tree(self) -> None:
        strategy = parse("recursive_summary:every=2,keep_last=2")
        compactions = decisions_during(strategy, timed(talk(16)))

        assert [compaction.level for compaction in compactions][:3] == [1, 1, 2]
        assert max(compaction.level for compaction in compactions) >= 3


def call(call_id: str, content: str = "r", tool: str = "read") -> list[Event]:
    return [
        AgentResponse(text="", stop_reason="tool_use"),
        ToolCall(call_id=call_id, tool_name=tool, arguments={"path": "a.txt"}),
        ToolResult(call_id=call_id, content=content),
    ]


def outline_of(strategy: Strategy, events: list[Event]) -> Outline:
    return strategy.read(strategy.begin(), timed(events))


def microseconds_of(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def test_units_are_stored_in_few_bytes() -> None:
    strategy = parse("message_window")
    outline = outline_of(strategy, [*talk(20), *call("a"), *talk(18)])

    assert Outline.load(outline.dump()) == outline
    assert len(outline.units) == 77


class Asking:
    """A summarizer with options, which writes the options that it got."""

    def __init__(self, prompt: str | None = None, model: str | None = None) -> None:
        self.prompt = prompt
        self.model = model

    def for_strategy(self, *, prompt: str | None, model: str | None) -> Asking:
        return Asking(prompt, model)

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        asked = f"asked {self.model!r} with {self.prompt!r}"
        return Written(asked, SummarizerRef(kind="asking", model=self.model))


def test_a_summarizer_gets_the_strategys_prompt_and_model() -> None:
    history = summarizer_for(parse("history_summary:prompt='In short?'"), Asking())
    hybrid = summarizer_for(parse("hybrid:summary_model='m'"), Asking())

    assert isinstance(history, Asking)
    assert history.prompt == "In short?"
    assert isinstance(hybrid, Asking)
    assert (hybrid.prompt, hybrid.model) == (None, "m")


def test_an_empty_prompt_is_refused_for_a_model() -> None:
    strategy = parse("history_summary")

    with pytest.raises(InvalidConfiguration, match="empty prompt"):
        summarizer_for(strategy, Asking())
    assert summarizer_for(strategy, Abridged()) == Abridged()


def test_activating_a_strategy_is_no_call_of_a_model() -> None:
    strategy = parse("history_summary")
    request = keep_all_request()
    (event,) = timed([request])
    switched = event.model_copy(update={"meta": Meta(status=ACTIVATED)})

    assert strategy.fold(strategy.begin(), event).called_at is not None
    assert strategy.fold(strategy.begin(), switched).called_at is None


def keep_all_request() -> Request:
    return Request(strategy=parse("keep_all").ref, through_seq=1, digest="d", tokens=1)
