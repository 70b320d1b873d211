"""The operations of an agent's loop: open calls, views, listings, labels and costs."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest

import refold
from refold.domain.envelope import Draft
from refold.domain.events import SummarizerRef
from refold.projections.context.compaction import Source, Written
from refold.projections.context.view import View
from refold.store import Session, SessionStore
from tests.support.nested import problems_of
from tests.support.stores import open_at

WINDOW = "turn_window:full_turns=2,cached_turns=1"
LONG = "word " * 20_000


def call(name: str, **arguments: Any) -> refold.ToolCall:
    return refold.ToolCall(call_id=name, tool_name="bash", arguments=arguments)


def result(name: str) -> refold.ToolResult:
    return refold.ToolResult(call_id=name, content="done")


def ask(session: Session, *calls: refold.ToolCall) -> None:
    session.append([refold.UserInput(text="go"), refold.AgentResponse(), *calls])


def test_open_calls_are_known_after_a_restart(empty_session: Session) -> None:
    ask(empty_session, call("c1", command="make"), call("c2", command=LONG), call("c3"))
    empty_session.append(result("c1"))

    again = Session(empty_session.stream, empty_session.writer)

    assert again.history.open_calls() == [call("c2", command=LONG), call("c3")]
    for open_call in again.history.open_calls():
        again.append(result(open_call.call_id))
    assert again.history.open_calls() == []


def test_a_fork_has_the_open_calls_of_its_origin(empty_session: Session) -> None:
    ask(empty_session, call("c1"), call("c2"))
    first = empty_session.fork(4, session_id="one")
    first.append([result("c1"), refold.AgentResponse(), call("c3")])
    second = first.fork(4, session_id="two")
    empty_session.append(
        [result("c1"), result("c2"), refold.AgentResponse(), call("c2")]
    )

    open_calls = {
        each.session_id: [call.call_id for call in each.history.open_calls()]
        for each in (empty_session, first, second)
    }

    assert open_calls == {"s-1": ["c2"], "one": ["c2", "c3"], "two": ["c2", "c3"]}


def test_a_session_without_events_has_no_open_calls(
    store: SessionStore,
) -> None:
    with pytest.raises(refold.SessionNotFound):
        store.session(user_id="ada", session_id="none").history.open_calls()


@pytest.mark.parametrize("name", ["context", "prepare"])
def test_views_are_written_outside_the_event_loop(
    session: Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(session)
    threads: list[int] = []
    plain = getattr(Session, name)

    def count_writes(self: Session, *args: Any, **kwargs: Any) -> View:
        threads.append(get_ident())
        view: View = plain(self, *args, **kwargs)
        return view

    monkeypatch.setattr(Session, name, count_writes)
    view = asyncio.run(getattr(session, f"a{name}")(WINDOW, evidence=["it rains"]))

    assert threads != [get_ident()]
    assert view == plain(session, WINDOW, evidence=["it rains"])
    twin = getattr(Session, f"a{name}")
    assert inspect.signature(twin) == inspect.signature(plain)
    assert twin.__name__ == f"a{name}"


def test_a_session_was_created_at_the_time_of_its_first_event(
    store: SessionStore,
) -> None:
    long_ago = datetime(2021, 5, 4, 10, tzinfo=UTC)
    session = store.session(user_id="ada", session_id="old")
    before = datetime.now(UTC) - timedelta(minutes=1)

    session.append(Draft(refold.UserInput(text="a"), ts=long_ago))
    session.append(refold.UserInput(text="b"))

    (info,) = store.sessions("ada")
    assert info.created_at == session.events()[0].ts == long_ago
    assert info.updated_at > before


def test_reprs_show_numbers_and_no_text(store: SessionStore) -> None:
    word = "zebra"
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(8):
        session.append(
            [
                refold.UserInput(text=f"{word} {number} " + f"{word} " * 60),
                refold.AgentResponse(text=word),
                refold.ToolCall(
                    call_id=f"c{number}", tool_name=word, arguments={word: 7_654_321}
                ),
                refold.ToolResult(call_id=f"c{number}", content=7_654_321),
                refold.Final(text=word, outcome="success"),
            ],
            meta={"scenario": word, "student": 7_654_321},
        )
    session.append(refold.HumanReview(trigger=word, question=word))
    store.user("ada").consent("declarative_memory", reason=word)
    view = session.prepare(WINDOW)
    memory = store.memory.of("ada")
    rerun = session.proofs.rerun(prompt=word)
    whole = [*session.events(), *session.history.derived(view.fingerprint)]
    shown = [
        session,
        session.head(),
        view,
        session.why(),
        session.strategies.compactor(WINDOW),
        session.attempt(word),
        session.memory.advice(scenario=word),
        store.user("ada"),
        memory,
        *memory.items,
        store.memory.profile("ada"),
        store.reviews.list(),
        store.erasures.hold("ada", word, word),
        store.erasures.holds("ada"),
        store.erasures.plan("ada"),
        store.erasures.certificates(),
        session.proofs.rerun("last_turns:n=1"),
        session.proofs.compare(["keep_all"]),
        rerun,
        Draft(whole[0].payload, agent=word, meta=whole[0].meta),
        store.sessions(),
        *whole,
        *(part for event in whole for part in (event.payload, event.meta)),
    ]

    leaks = [
        repr(each) for each in shown if word in repr(each) or "7654321" in repr(each)
    ]

    assert leaks == []
    assert len(memory.items) > 0
    assert repr(whole[3]).startswith("Envelope(event_id=UUID(")
    assert "seq=4" in repr(whole[3])
    assert "type='tool_result'" in repr(whole[3])
    assert "token_estimate=" in repr(whole[3])


def test_a_notebook_shows_figures_of_a_view(session: Session) -> None:
    session.append(refold.UserInput(text="<script>alert(1)</script>"))
    ask(session, call("c1"), call("c2"))

    html = session.context()._repr_html_()

    assert "script" not in html
    assert html.count("<tr>") == 1 + len(session.context().messages)
    assert "tool_use, tool_use" in html
    assert "<td>raw 1-2</td>" in html
    assert f"{session.context().tokens} tokens" in html


def test_a_notebook_shows_figures_of_explanations_and_comparisons(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="<script>alert(1)</script>"))
    ask(session, call("c1"))

    why = session.why()._repr_html_()
    compared = session.proofs.compare(["keep_all", "last_turns:n=1"])._repr_html_()

    assert "script" not in why + compared
    assert "keep_all at seq 4: 0 events not shown" in why
    assert why.count("<tr>") == 1 + len(session.why().parts)
    assert compared.count("<tr>") == 3
    assert "<td>last_turns:n=1</td>" in compared
    assert "4 events" in compared


def ids_by_labels(
    store: SessionStore, user_id: str = "ada", **labels: str
) -> list[str]:
    return [info.session_id for info in store.sessions(user_id, label=labels)]


@pytest.mark.each_engine
def test_a_session_is_found_by_its_labels(store: SessionStore) -> None:
    for name in ("a", "b", "c"):
        ask(store.session(user_id="ada", session_id=name))
    first = store.session(user_id="ada", session_id="a")

    first.label(project="refold", customer="lin.wei@mail.example.org")
    store.session(user_id="ada", session_id="c").label(project="refold")
    first.append(refold.StateUpdate(set={"step": 2}))

    assert ids_by_labels(store, project="refold") == ["a", "c"]
    assert ids_by_labels(store, customer="lin.wei@mail.example.org") == ["a"]
    assert ids_by_labels(store, customer="another@mail.example.org") == []
    assert ids_by_labels(store, "bob", project="refold") == []
    assert first.labels() == {"project": "refold", "customer": "[REDACTED:EMAIL]"}
    assert first.state() == {"step": 2}
    first.label(project=None)
    assert ids_by_labels(store, project="refold") == ["c"]
    assert not problems_of(store.verify())


def test_a_fork_has_the_labels_of_its_parent(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="hello"))
    session.label(project="refold", owner="bob@example.org")

    fork = session.fork(1, session_id="fork")
    helper = session.delegation.begin("do it", session_id="helper")

    sessions = store.sessions("ada", label={"owner": "bob@example.org"})
    assert {info.session_id for info in sessions} == {"s-1", "fork", "helper"}
    assert fork.labels() == helper.labels() == session.labels()
    assert fork.labels()["owner"] == "[REDACTED:EMAIL]"
    assert not fork.verify().problems


@pytest.mark.each_engine
def test_labels_survive_a_new_key_and_are_erased_with_the_session(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="a")
    ask(session)
    session.label(project="refold")

    store.keys.rotate_session("ada", session_id="a")
    assert ids_by_labels(store, project="refold") == ["a"]
    plan = store.erasures.plan("ada", session_id="a")
    done = store.erase("ada", "asked", session_id="a")

    assert plan.counts["labels"] == 1
    assert set(done.left.values()) == {0}
    assert ids_by_labels(store, project="refold") == []


def test_no_byte_of_the_database_contains_a_label(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_at(sqlite_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="a")
        ask(session)
        session.label(project="marzipan", marchpane="zebra")

    stored = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )

    assert b"marzipan" not in stored
    assert b"marchpane" not in stored


@pytest.mark.parametrize(
    "labels", [{}, {"Project": "x"}, {"a-b": "x"}, {"a": "x" * 1_001}, {"a": 3}]
)
def test_invalid_labels_are_refused(session: Session, labels: Any) -> None:
    ask(session)

    with pytest.raises(refold.InvalidEvent, match="label"):
        session.label(**labels)

    assert len(session.events()) == 2


@pytest.mark.parametrize("label", ["refold", {"project": 3}, ["project"]])
def test_sessions_are_filtered_by_names_and_texts_only(
    store: SessionStore, label: Any
) -> None:
    with pytest.raises(refold.errors.InvalidConfiguration, match="label: texts"):
        store.sessions("ada", label=label)


def test_sessions_are_listed_page_by_page(store: SessionStore) -> None:
    names = [f"s-{number}" for number in range(5)]
    for name in names:
        ask(store.session(user_id="ada", session_id=name))
    store.erase("ada", "asked", session_id="s-1", grace=timedelta(days=1))

    first = store.sessions("ada", limit=2)
    second = store.sessions("ada", after=first[-1], limit=2)
    third = store.sessions("ada", after="s-3", limit=2)

    pages = [[info.session_id for info in page] for page in (first, second, third)]
    assert pages == [["s-0", "s-2"], ["s-3", "s-4"], ["s-4"]]
    for wrong in ({"label": {"a": "b"}}, {"after": "s-1"}):
        with pytest.raises(refold.InvalidConfiguration, match="name the user"):
            store.sessions(**wrong)


def test_costs_are_summed_by_session_user_and_day(store: SessionStore) -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    cached = {"input_tokens": 0, "cache_read_input_tokens": 2_000_000}
    prices = refold.strategies.price_of("claude-haiku-4-5")
    long_ago = datetime(2026, 1, 5, 23, 30, tzinfo=timezone(-timedelta(hours=2)))
    first_session = store.session(user_id="ada", session_id="one")
    ask(first_session)
    first_session.record_request(first_session.context(), model="claude-haiku-4-5")
    first_session.append(refold.AgentResponse(text="a", usage=usage))
    first_session.append(
        Draft(refold.AgentResponse(text="b", usage=cached), ts=long_ago)
    )
    first_session.append(
        refold.ToolCall(call_id="c", tool_name="bash"),
        meta={"model": "nobody's", "usage": {"prompt_tokens": 7}},
    )
    for user in ("ada", "bob"):
        second_session = store.session(user_id=user, session_id="two")
        second_session.append(
            refold.AgentResponse(text="a", usage=usage),
            meta={"model": "claude-haiku-4-5"},
        )

    by_session = store.costs("ada")
    by_user = store.costs(by="user")
    by_day = store.costs(by="day")

    first, second = by_session
    assert (first.session_id, first.answers, first.unpriced) == ("one", 3, 1)
    assert first.usage == (1_000_007, 0, 0, 2_000_000, 0)
    assert first.dollars == pytest.approx(prices.input + 2 * prices.cache_read)
    assert second.session_id == "two"
    assert second.dollars == pytest.approx(prices.input)
    assert [(row.user_id, row.answers) for row in by_user] == [("ada", 4), ("bob", 1)]
    assert (by_day[0].day, by_day[0].answers) == ("2026-01-06", 1)
    assert sum(row.dollars for row in by_day) == pytest.approx(
        sum(row.dollars for row in by_user)
    )
    assert store.costs("ada", session_id="two") == [second]
    with pytest.raises(refold.InvalidConfiguration, match="session, user or day"):
        store.costs(by="week")  # type: ignore[arg-type]  # wrong on purpose


def test_summaries_have_costs_too(store: SessionStore) -> None:
    class Paid:
        """A summarizer whose model costs money."""

        costs = True

        def summarise(
            self, source: Source, *, target_tokens: int
        ) -> Written:  # the port's name
            by = SummarizerRef(kind="paid", model="claude-haiku-4-5")
            assert source.text
            assert target_tokens
            return Written("Short.", by, usage={"input_tokens": 1_000_000})

    session = store.session(user_id="ada", session_id="s-1")
    for number in range(6):
        session.append([refold.UserInput(text=f"{number} " + "why " * 60), answer()])
    assert session.compact(WINDOW, summarizer=Paid()) is not None

    (row,) = store.costs("ada")

    prices = refold.strategies.price_of("claude-haiku-4-5")
    assert row.answers == 1
    assert row.dollars == pytest.approx(prices.input)


def answer() -> refold.AgentResponse:
    return refold.AgentResponse(text="because " * 60)


def test_an_answer_in_parts_is_billed_once(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    for output, place in ((1, "usage"), (40, "source")):
        usage = {"input_tokens": 9, "output_tokens": output}
        session.append(
            refold.AgentResponse(text="a"),
            meta={
                "response_id": "msg-1",
                place: usage if place == "usage" else {"usage": usage},
            },
        )

    (row,) = store.costs("ada")

    assert (row.answers, row.usage.input, row.usage.output) == (1, 9, 40)
