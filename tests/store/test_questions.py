"""DuckDB's answers about exported events equal the store's own figures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from statistics import median
from typing import Any, NamedTuple

import duckdb
import pytest

import refold
from refold.adapters.importers.dataset import Tables
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, SummarizerRef
from refold.projections.context.compaction import Source, Written
from refold.store import SessionStore
from tests.importers.samples import write_sample
from tests.support.operations import log_of
from tests.support.pages import ROOT, blocks

SAMPLE = ROOT / "examples" / "sample" / "agent_run.jsonl"
FORMATS = ("claude-code", "codex", "openai", "anthropic", "letta", "atif", "otlp")
WINDOW = "turn_window:full_turns=1,cached_turns=1"
_QUERY = re.compile(r'^\w+ = """(.*?)"""$', re.DOTALL | re.MULTILINE)
COST, SLOWEST, FAILURES, SAVINGS, MEMORY = (
    match[1]
    for block in blocks("docs/how-to/ask-questions.md")
    for match in _QUERY.finditer(block.text)
)


class Corpus(NamedTuple):
    """A store, its events in all streams, and DuckDB with its exported tables."""

    store: SessionStore
    events: list[Envelope]
    duck: duckdb.DuckDBPyConnection

    def answer(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of the answer."""
        return self.duck.sql(query).fetchall()


class Paid:
    """A summarizer that reports its usage."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        usage: JsonObject = {"input_tokens": 1_000, "output_tokens": 50}
        model = SummarizerRef(kind="paid", model="claude-haiku-4-5")
        return Written(f"summary {source.digest[:12]}", model, usage=usage)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    """Runs of all formats, compacted, with memory that was shown to a model."""
    folder = tmp_path_factory.mktemp("asked")
    with refold.open("memory://") as store, duckdb.connect() as duck:
        store.import_transcript(SAMPLE, user_id="lin", session_id="run")
        for form in FORMATS:
            file = write_sample(folder, form)
            store.import_transcript(file, user_id=f"of-{form}", format=form)
        for number in range(4):
            _add_run(store, f"good-{number}", ["search", "book"])
        store.memory.advice("ada", fresh=timedelta(0))
        for number in range(2):
            _send_with_advice(store.session(user_id="ada", session_id=f"now-{number}"))
        session = store.session(user_id="lin", session_id="run")
        session.compact(WINDOW, summarizer=Paid())
        events = [*_all_events(store)]
        Tables(log_of(store).recorder, store).write(folder / "events")
        duck.sql(f"CREATE VIEW events AS FROM '{folder}/events/*.parquet'")
        yield Corpus(store, events, duck)


def _all_events(store: SessionStore) -> Iterator[Envelope]:
    for info in store.sessions():
        name = {"user_id": info.user_id, "session_id": info.session_id}
        yield from store.session(**name).history.timeline()


def _add_run(store: SessionStore, name: str, tools: list[str]) -> None:
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.UserInput(text="a flight to Oslo"))
    for number, tool in enumerate(tools):
        call = f"c{number}"
        session.append(refold.ToolCall(call_id=call, tool_name=tool))
        done = refold.ToolResult(call_id=call, content="done", duration_ms=70.0)
        session.append(done)
    session.append(refold.Final(outcome="success"))


def _send_with_advice(session: refold.Session) -> None:
    """Send two requests with advice from memory, and record the answers."""
    session.append(refold.UserInput(text="a flight"))
    for _ in range(2):
        view = session.context(
            "turn_window", advice=session.memory.advice("turn_window")
        )
        session.record_request(view, model="claude-sonnet-4-5")
        usage = {"input_tokens": 900, "output_tokens": 30}
        session.append(refold.AgentResponse(text="one moment", usage=usage))
        session.append(refold.UserInput(text="and then?"))


def _stream_key(event: Envelope, call: str) -> tuple[str, str, str]:
    return event.user_id, event.session_id, call


def test_the_cost_of_a_day_equals_that_of_the_store(corpus: Corpus) -> None:
    rows = corpus.answer(COST)

    costs = [
        (cost.day, cost.answers, pytest.approx(cost.dollars, abs=1e-4), cost.unpriced)
        for cost in corpus.store.costs(by="day")
    ]
    assert [(str(day), *rest) for day, *rest in rows] == costs
    assert len(rows) > 2
    assert sum(row[2] for row in rows) > 0


def test_the_slowest_tools_are_found(corpus: Corpus) -> None:
    rows = corpus.answer(SLOWEST)

    calls: dict[Any, Any] = {}
    took: defaultdict[str, list[float]] = defaultdict(list)
    for envelope in corpus.events:
        event = envelope.payload
        if isinstance(event, refold.ToolCall):
            calls[_stream_key(envelope, event.call_id)] = envelope.ts, event.tool_name
        elif isinstance(event, refold.ToolResult):
            begun, name = calls[_stream_key(envelope, event.call_id)]
            spent = event.duration_ms
            if spent is None:
                spent = int((envelope.ts - begun) / timedelta(milliseconds=1))
            took[name].append(spent / 1000)
    assert {row[0]: row[1] for row in rows} == {k: len(v) for k, v in took.items()}
    for name, _, middle, longest in rows:
        assert middle == pytest.approx(median(took[name]), abs=0.051)
        assert longest == pytest.approx(max(took[name]), abs=0.051)
    assert [row[2] for row in rows] == sorted((row[2] for row in rows), reverse=True)
    assert rows[0][2] > 0


def test_failures_are_counted_by_tool(corpus: Corpus) -> None:
    rows = corpus.answer(FAILURES)

    results = [event.payload for event in corpus.events if event.type == "tool_result"]
    every = Counter(result.tool_name for result in results)  # type: ignore[union-attr]  # results
    failed = Counter(
        result.tool_name  # type: ignore[union-attr]  # the same
        for result in results
        if result.status == "error"  # type: ignore[union-attr]  # the same
    )
    assert {row[0]: row[1:3] for row in rows} == {
        name: (count, failed[name]) for name, count in every.items()
    }
    assert rows[0][2] > 0


def test_savings_equal_those_of_the_summaries(corpus: Corpus) -> None:
    ((strategy, count, before, after, paid),) = corpus.answer(SAVINGS)

    summaries = [
        e.payload for e in corpus.events if isinstance(e.payload, refold.Summary)
    ]
    assert (strategy, count) == ("turn_window", len(summaries))
    assert before == sum(summary.tokens_before for summary in summaries)
    assert after == sum(summary.tokens_after for summary in summaries) < before
    assert paid == pytest.approx(len(summaries) * 0.00125, abs=1e-4)


def test_memory_shown_to_a_model_is_counted(corpus: Corpus) -> None:
    rows = corpus.answer(MEMORY)

    shown = Counter[str]()
    where = defaultdict[str, set[Any]](set)
    last = dict[str, Any]()
    for event in corpus.events:
        if isinstance(event.payload, refold.Request):
            for item in event.payload.advised:
                shown[item] += 1
                where[item].add((event.user_id, event.session_id))
                last[item] = max(event.ts, last.get(item, event.ts))
    assert shown
    assert {row[0]: row[1:] for row in rows} == {
        item: (count, len(where[item]), last[item].replace(tzinfo=None))
        for item, count in shown.items()
    }
