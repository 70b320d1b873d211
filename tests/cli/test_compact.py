"""``compact`` runs pending compactions, and a context shows the summaries."""

import sys
from pathlib import Path

import pytest

import refold as refold_package
from tests.cli.conftest import Refold
from tests.support.messages_api import MessagesApi, message, refusal

SESSION = ("--user", "lin", "--session", "run")
STRATEGY = ("--strategy", "turn_window:full_turns=2,cached_turns=2")


def test_one_step_is_one_compaction(refold: Refold, sample: Path) -> None:
    records = refold("compact", *SESSION, *STRATEGY, "--json").json()

    (record,) = records
    assert (record["first_seq"], record["last_seq"], record["seq"]) == (1, 21, 1)
    assert record["strategy"]["name"] == "turn_window"
    assert record["summarizer"]["kind"] == "abridged"
    assert record["tokens_after"] < record["tokens_before"]


def test_compact_can_run_until_idle(refold: Refold, sample: Path) -> None:
    records = refold("compact", *SESSION, *STRATEGY, "--until-idle", "--json").json()
    again = refold("compact", *SESSION, *STRATEGY, "--json").json()

    assert [(r["first_seq"], r["last_seq"]) for r in records] == [(1, 21), (22, 39)]
    assert again == []


def test_a_context_shrinks_and_names_summaries(refold: Refold, sample: Path) -> None:
    before = refold("context", *SESSION, *STRATEGY, "--json").json()

    refold("compact", *SESSION, *STRATEGY, "--until-idle")

    after = refold("context", *SESSION, *STRATEGY, "--json").json()
    assert after["tokens"] < before["tokens"]
    assert [span["kind"] for span in after["spans"]] == ["summary", "summary", "raw"]


def test_people_see_the_compacted_events(refold: Refold, sample: Path) -> None:
    ran = refold("compact", *SESSION, *STRATEGY)

    assert ran.code == 0
    assert "compacted seq 1 to 21" in ran.out
    assert "→" in ran.out
    assert "turn_window  full_turns=2, cached_turns=2\n" in ran.out
    assert "decided at seq 57" in ran.out


def test_people_see_no_default_parameters(refold: Refold, sample: Path) -> None:
    plain = refold("compact", *SESSION, "--strategy", "turn_window").out
    steps = "tool_clearing:keep=2+turn_window:full_turns=3"
    pipeline = refold("compact", *SESSION, "--strategy", steps).out

    assert plain.splitlines()[0] == "turn_window"
    assert pipeline.splitlines()[0] == (
        "tool_clearing  keep=2 + turn_window  full_turns=3"
    )


def test_a_step_says_if_the_strategy_asks_for_more(
    refold: Refold, sample: Path
) -> None:
    first = refold("compact", *SESSION, *STRATEGY).out
    second = refold("compact", *SESSION, *STRATEGY).out

    assert "asks for more summaries: add --until-idle" in first
    assert "asks for more" not in second


def test_without_a_strategy_compact_uses_that_of_the_library(
    refold: Refold, sample: Path
) -> None:
    ran = refold("compact", *SESSION)

    assert ran.code == 0
    assert "history_summary compacts at 50,000" in ran.out


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("hybrid:trigger=idle", "trigger"),
        ("history_summary:summary_tokens=50, prompt=Short", "prompt"),
        ("tool_clearing:keep=2+token_ratio:model=claude-opus-4-5", "model"),
    ],
)
def test_a_text_without_quotes_in_a_strategy_is_named(
    refold: Refold, sample: Path, spec: str, key: str
) -> None:
    ran = refold("compact", *SESSION, "--strategy", spec)

    assert ran.code == 2
    assert f"the text after {key}= needs double quotes" in ran.err
    assert f'{key}="TEXT"\'' in ran.err


@pytest.mark.parametrize(
    "spec", ["hybrid:trigger=", "hybrid:every=true,=", "hybrid:every=[1", "no:x=word"]
)
def test_other_mistakes_in_a_strategy_name_the_form(
    refold: Refold, sample: Path, spec: str
) -> None:
    ran = refold("compact", *SESSION, "--strategy", spec)

    assert ran.code == 2
    assert "write NAME or NAME:key=value" in ran.err


def test_an_adopted_summary_says_which_parameters_do_not_apply(
    refold: Refold, sample: Path
) -> None:
    refold("compact", *SESSION, *STRATEGY, "--until-idle")

    ran = refold("compact", *SESSION, f"{'='.join(STRATEGY)},summary_tokens=50")

    assert ", adopted" in ran.out
    assert "parameters such as summary_tokens apply only to new summaries" in ran.out


def test_an_idle_compaction_is_no_error(refold: Refold, sample: Path) -> None:
    ran = refold("compact", *SESSION, "--strategy", "keep_all")

    assert ran.code == 0
    assert ran.out == "nothing to compact: keep_all makes no summaries\n"


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("turn_window:full_turns=9", "7 complete turns; turn_window compacts at 12"),
        ("tool_clearing+turn_window", "4 complete turns; turn_window compacts at 7"),
        ("message_window", "1 message before the last 40; message_window compacts at"),
        ("hybrid", "5,104 tokens; hybrid compacts at 8,000"),
        ('hybrid:trigger="count"', "47 events; hybrid compacts at 100"),
        (
            'hybrid:trigger="idle",trigger_idle_sec=999999999',
            "hybrid compacts after 999,999,999 seconds without an event, or at 20",
        ),
        ('hybrid:trigger="event"', "hybrid compacts after an event of type final"),
        ("recursive_summary", "6 exchanges before the last 3; recursive_summary comp"),
        ("history_summary", "12,042 characters; history_summary compacts at 50,000"),
        (
            "token_ratio:max_context_tokens=200000",
            "5,104 tokens; token_ratio compacts at 160,000 of 200,000",
        ),
        ("token_budget", "token_budget makes no summaries"),
        ("native", "native makes no summaries"),
    ],
)
def test_an_idle_compaction_names_the_reason_and_the_next_time(
    refold: Refold, sample: Path, strategy: str, reason: str
) -> None:
    refold("compact", *SESSION, "--strategy", strategy, "--until-idle")

    ran = refold("compact", *SESSION, "--strategy", strategy)

    assert ran.code == 0
    assert ran.out.startswith(f"nothing to compact: {reason}")


def test_after_a_failure_compact_names_the_time_of_the_next_attempt(
    refold: Refold, sample: Path, claude: MessagesApi
) -> None:
    claude.reply(refusal())
    refold("compact", *SESSION, *STRATEGY, *CLAUDE)

    ran = refold("compact", *SESSION, *STRATEGY)

    assert (
        "nothing to compact: the last attempt failed; the next may be made at"
        in ran.out
    )


def test_the_log_shows_summaries_where_they_were_decided(
    refold: Refold, sample: Path
) -> None:
    refold("compact", *SESSION, *STRATEGY)

    last = refold("log", *SESSION, "--json").lines()[-1]
    assert last["type"] == "summary"
    assert last["stream"] != "main"
    shown = refold("log", *SESSION).out
    assert "·1" in shown
    assert f"stream {last['stream'][:12]}" in shown


@pytest.fixture
def claude(api: MessagesApi, monkeypatch: pytest.MonkeyPatch) -> MessagesApi:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-for-tests")
    return api


CLAUDE = ("--summarizer", "anthropic", "--model", "claude-x")


def test_claude_can_write_the_summaries(
    refold: Refold, sample: Path, claude: MessagesApi
) -> None:
    claude.reply(message("<summary>I looked into the build.</summary>"))

    (record,) = refold("compact", *SESSION, *STRATEGY, *CLAUDE, "--json").json()

    assert record["text"] == "I looked into the build."
    assert record["summarizer"]["model"] == "claude-x"
    assert record["usage"]["output_tokens"] > 0


def test_a_summary_that_claude_did_not_write_is_a_failure(
    refold: Refold, sample: Path, claude: MessagesApi
) -> None:
    claude.reply(message("<summary>I looked.</summary>"), refusal())

    ran = refold("compact", *SESSION, *STRATEGY, *CLAUDE, "--until-idle")

    assert ran.code == 1
    assert "compacted seq 1 to 21" in ran.out
    assert "the context stays as it was: the model refused" in ran.err
    assert "nothing to compact" not in ran.out


def test_a_failed_compaction_prints_nothing_else(
    refold: Refold, sample: Path, claude: MessagesApi
) -> None:
    claude.reply(refusal())

    ran = refold("compact", *SESSION, *STRATEGY, *CLAUDE)

    assert (ran.code, ran.out) == (1, "")
    assert "the model refused" in refold("log", *SESSION).out


def test_a_model_needs_a_summarizer_that_calls_models(
    refold: Refold, sample: Path
) -> None:
    ran = refold("compact", *SESSION, *STRATEGY, "--model", "claude-x")

    assert ran.code == 2
    assert "--summarizer anthropic" in ran.err


def test_a_missing_package_is_named(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if "adapters.claude." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "anthropic", None)

    ran = refold("compact", *SESSION, *STRATEGY, *CLAUDE)

    assert ran.code == 2
    assert "pip install anthropic" in ran.err


def test_a_summary_of_a_part_of_its_span_says_so(refold: Refold, sample: Path) -> None:
    events = refold_package.events
    with refold_package.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="rewound")
        for turn in range(6):
            session.append(
                [
                    events.UserInput(text=f"Question {turn}?"),
                    events.AgentResponse(text=f"Answer {turn}."),
                ]
            )
            if turn == 1:
                session.append(events.ProviderEdit(reason="rewind", left_out=((3, 4),)))

    ran = refold("compact", "--user", "lin", "--session", "rewound", *STRATEGY)

    assert "compacted seq 1 to 7  4 of 7 events" in ran.out
