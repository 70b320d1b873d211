"""Advice in a session is stable, recorded, and respects the user's choices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.events import Verdict
from refold.store import SessionStore
from refold.store.memory.views import ADVICE_PREFIX
from tests.support.rebuilding import Clock, clocked
from tests.support.stores import open_at, prepare

AT_ONCE = timedelta(0)
BOOKED = {"path": [["search"], ["book"]]}


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    with open_at(store_url, tmp_path) as opened:
        for number in range(4):
            add_run(opened, f"good-{number}", ["search", "book"], "success")
            add_run(opened, f"bad-{number}", ["wipe"], "failure")
        opened.session(user_id="ada", session_id="now").append(
            refold.UserInput(text="a flight")
        )
        yield opened


def add_run(
    store: SessionStore, name: str, tools: list[str], outcome: Any, user: str = "ada"
) -> None:
    session = store.session(user_id=user, session_id=name)
    session.append(refold.UserInput(text="a flight to Oslo"))
    for number, tool in enumerate(tools):
        session.append(refold.ToolCall(call_id=f"c{number}", tool_name=tool))
        session.append(refold.ToolResult(call_id=f"c{number}", content="done"))
    session.append(refold.Final(outcome=outcome))


def request_with_advice(session: refold.Session) -> refold.Request:
    """Record one call of the model with advice, and return its request event."""
    view = session.context("turn_window", advice=session.memory.advice("turn_window"))
    session.record_request(view)
    session.append(refold.AgentResponse(text="one moment"))
    request = session.events()[-2].payload
    assert isinstance(request, refold.Request)
    return request


def test_advice_names_what_worked_and_failed_with_sessions(store: SessionStore) -> None:
    advice = store.memory.advice("ada")

    assert "Suggested tool path: search → book (100% of 4 sessions went" in advice.text
    assert "Avoid: wipe (100% of 4 sessions failed" in advice.text
    memory = store.memory.of("ada")
    for name in advice.items:
        item = memory.named(name)
        assert item is not None
        assert item.established


def test_an_empty_shortlist_is_stored_for_a_minute(memory: SessionStore) -> None:
    clock = Clock()
    store = clocked(memory, clock)
    store.session(user_id="ada", session_id="now").append(
        refold.UserInput(text="a flight")
    )
    before = store.memory.advice("ada")
    for number in range(4):
        add_run(store, f"good-{number}", ["search", "book"], "success")

    at_once = store.memory.advice("ada")
    clock.time += timedelta(seconds=61)
    later = store.memory.advice("ada")

    assert (before.text, at_once.text) == ("", "")
    assert "Suggested tool path: search" in later.text


def test_advice_is_sent_to_the_model_and_recorded_in_the_log(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="now")
    advice = session.memory.advice()

    view = session.context(advice=advice)
    session.record_request(view)

    assert "## Memory (Verified)" in str(view.messages)
    request = session.events()[-1].payload
    assert isinstance(request, refold.Request)
    assert request.advised == advice.items
    assert session.context(at=1) != view
    ((_, replayed),) = session.proofs.replay()
    assert replayed.digest == request.digest


def test_advice_stays_the_same_until_the_session_is_compacted(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="now")
    strategy = "turn_window:full_turns=1,cached_turns=1"
    first = session.memory.advice(strategy)
    view = session.context(strategy, advice=first)
    session.record_request(view)
    for number in range(4, 7):
        add_run(store, f"good-{number}", ["search", "pay"], "success")
    store.memory.advice("ada", fresh=AT_ONCE)

    assert session.memory.advice(strategy).text == first.text
    assert "search → pay" in store.memory.advice("ada").text
    for number in range(6):
        session.append(refold.AgentResponse(text=f"step {number}"))
        session.append(refold.UserInput(text=f"and {number}"))
    assert session.compact(strategy) is not None
    assert "search → pay" in session.memory.advice(strategy).text


def test_a_loop_chooses_advice_again_after_a_compaction(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="now")
    strategy = "turn_window:full_turns=1,cached_turns=1"
    texts: list[str] = []
    for number in range(9):
        advice = session.memory.advice(strategy)
        view = session.prepare(strategy, advice=advice)
        session.record_request(view)
        texts.append(advice.text)
        if number == 1:
            for good in range(4, 7):
                add_run(store, f"good-{good}", ["search", "pay"], "success")
            store.memory.advice("ada", fresh=AT_ONCE)
        session.append(refold.AgentResponse(text=f"step {number}"))
        session.append(refold.UserInput(text=f"and {number}"))

    changes = sum(earlier != later for earlier, later in pairwise(texts))
    assert "search → pay" not in texts[1]
    assert "search → pay" in texts[-1]
    assert changes == 1


def test_advice_that_proved_wrong_is_not_repeated(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="now")
    assert "Suggested tool path: search → book" in store.memory.advice("ada").text
    assert request_with_advice(session).advised
    for number in range(30):
        add_run(store, f"worse-{number}", ["search", "book"], "failure")
    store.memory.advice("ada", fresh=AT_ONCE)

    assert (
        "Suggested tool path: search → book"
        not in session.memory.advice("turn_window").text
    )


@pytest.mark.parametrize("how", [{"tokens": 60}, {"top": 1}, {"tools": ["wipe"]}])
def test_a_smaller_budget_applies_at_once(
    store: SessionStore, how: dict[str, Any]
) -> None:
    session = store.session(user_id="ada", session_id="now")
    whole = request_with_advice(session).advised

    less = session.memory.advice("turn_window", **how)

    assert less.tokens <= how.get("tokens", 600)
    assert set(less.items) < set(whole)


def test_an_erased_session_is_no_longer_cited(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="now")
    request_with_advice(session)
    advice = session.memory.advice("turn_window")
    assert "good-3" in advice.sessions

    store.erase("ada", "asked for", session_id="good-3")

    assert "good-3" not in session.memory.advice("turn_window").text


def test_a_session_with_a_scheduled_erasure_contributes_nothing(
    store: SessionStore,
) -> None:
    assert "wipe" in store.memory.advice("ada").text
    for number in range(2):
        name = f"bad-{number}"
        store.erase("ada", "asked for", session_id=name, grace=timedelta(days=9))

    assert "wipe" not in store.memory.advice("ada").text


def test_a_withdrawn_preference_is_not_in_advice(store: SessionStore) -> None:
    ada = store.user("ada")
    ada.consent("declarative_memory")
    ada.prefer("language", "de")
    assert "language = de" in store.memory.advice("ada", top=1).text

    ada.unprefer("language")

    assert "language" not in store.memory.advice("ada", top=1).text


def test_an_unseen_scenario_gets_general_advice(
    store: SessionStore,
) -> None:
    general = store.memory.advice("ada")

    for number in range(9):
        assert store.memory.advice("ada", scenario=f"unheard-of-{number}").items == (
            general.items
        )
    assert len(advice_views(store)) == 1


def test_empty_advice_is_stored_too(store: SessionStore) -> None:
    store.session(user_id="bob", session_id="s").append(refold.UserInput(text="hi"))
    store.memory.advice("bob")

    names = store.log.view_names("bob", "_user")

    assert [name for name in names if name.startswith(ADVICE_PREFIX)]


def test_stored_shortlists_are_not_counted_as_lag(store: SessionStore) -> None:
    store.memory.advice("ada")
    store.session(user_id="ada", session_id="good-0").append(
        refold.UserInput(text="more")
    )

    assert store.stats("ada")["lag"] == []


def test_an_item_forgotten_in_one_scenario_is_forgotten_in_all(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="good-0")
    session.append(refold.UserInput(text="x"), meta={"scenario": "trip"})
    twins = [i for i in store.memory.of("ada").items if i.content == BOOKED]
    assert len(twins) == 2

    store.user("ada").forget(twins[0].memory_id)

    assert not [i for i in store.memory.of("ada").items if i.content == BOOKED]


def test_memory_can_be_limited_to_a_project_or_agent(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="other")
    events = [
        refold.ToolCall(call_id="c", tool_name="deploy"),
        refold.ToolResult(call_id="c", content="done"),
    ]
    session.append(events, agent="ops", meta={"project": "web"})

    web = store.memory.of("ada", project="web")
    ops = store.memory.of("ada", agent="ops")

    assert (web.sessions, len(web.items)) == (1, 1)
    assert {str(item.content) for item in ops.items if item.kind == "path"} == {
        "{'path': [['deploy']]}"
    }


def test_a_clock_that_is_ahead_stores_nothing_for_longer(store: SessionStore) -> None:
    future = datetime(2099, 1, 1, tzinfo=UTC)
    session = store.session(user_id="ada", session_id="ahead")
    call = refold.ToolCall(call_id="c", tool_name="later")
    session.append([call, refold.Final(outcome="success")], ts=future)

    (item,) = (i for i in store.memory.of("ada").items if "later" in str(i.content))

    assert item.updated_at <= store.clock()


def test_a_session_without_advice_at_its_start_gets_none_later(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="now")
    session.record_request(session.context("turn_window"))

    assert session.memory.advice("turn_window") == store.memory.advice("nobody")


def test_the_opt_out_applies_from_the_next_call(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="now")
    assert request_with_advice(session).advised

    store.user("ada").opt_out()

    assert session.memory.advice("turn_window").text == ""
    assert store.memory.advice("ada").text == ""
    store.memory.of("ada")
    assert advice_views(store) == []
    store.user("ada").opt_in()
    assert store.memory.advice("ada").text


def advice_views(store: SessionStore) -> list[str]:
    names = store.log.view_names("ada", "_user")
    return [name for name in names if name.startswith(ADVICE_PREFIX)]


def test_forgotten_items_do_not_return_to_advice(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="now")
    gone = request_with_advice(session).advised[0]

    store.user("ada").forget(gone, reason="wrong")

    assert gone not in session.memory.advice("turn_window").items
    assert gone not in store.memory.advice("ada").items
    assert gone not in store.memory.advice("ada", fresh=AT_ONCE).items
    assert store.memory.of("ada").named(gone) is None


@pytest.mark.parametrize("name", ["", "m", "x" * 16, "m" + "g" * 15])
def test_only_an_item_can_be_forgotten(store: SessionStore, name: str) -> None:
    with pytest.raises(refold.InvalidEvent, match="named by m and 15"):
        store.user("ada").forget(name)


def test_an_erased_session_contributes_no_advice(store: SessionStore) -> None:
    assert "Avoid: wipe" in store.memory.advice("ada").text
    assert advice_views(store)

    for number in range(2):
        store.erase("ada", "asked for", session_id=f"bad-{number}")

    assert "wipe" not in store.memory.advice("ada").text
    assert "bad-0" not in str(store.memory.of("ada").items)


def test_memory_excludes_a_session_that_is_erased_during_its_computation(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = type(store.log).save_view
    erased: list[str] = []

    def erase_first(log: Any, stream: Any, name: str, *args: Any, **how: Any) -> Any:
        if name.startswith(ADVICE_PREFIX) and not erased:
            erased.append(name)
            for number in range(2):
                store.erase("ada", "asked for", session_id=f"bad-{number}")
        return save(log, stream, name, *args, **how)

    monkeypatch.setattr(type(store.log), "save_view", erase_first)
    advice = store.memory.advice("ada")

    assert erased
    assert "wipe" not in advice.text
    assert "wipe" not in store.memory.advice("ada").text


def test_stores_no_shortlist_of_a_frozen_user(store: SessionStore) -> None:
    store.erasures.freeze("ada", "disputed")

    assert "search → book" in store.memory.advice("ada").text
    assert advice_views(store) == []


def test_a_user_without_sessions_has_no_advice(
    store: SessionStore,
) -> None:
    assert store.memory.advice("nobody").text == ""
    assert store.sessions("nobody") == []


def test_users_share_no_memory(store: SessionStore) -> None:
    add_run(store, "s", ["other_tool"], "success", user="bob")

    assert "other_tool" not in store.memory.advice("ada", fresh=AT_ONCE).text
    assert store.memory.advice("bob").text == ""


def test_reports_the_effect_of_shown_items(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="now")
    shown = request_with_advice(session).advised
    session.append(refold.Final(outcome="success"))

    effect = store.memory.of("ada").effect

    assert {lift.memory_id for lift in effect} == set(shown)
    assert {(lift.shown, lift.without) for lift in effect} == {(1, 8)}
    assert effect[0].difference == pytest.approx(0.5)


def test_advice_about_a_user_needs_their_consent(
    store: SessionStore,
) -> None:
    ada = store.user("ada")
    ada.consent("declarative_memory")
    ada.prefer("language", "de")
    verdict = refold.events.Verdict(
        item_id="1", verdict="incorrect", topic="fractions", error_type="sign_error"
    )
    for number in range(4):
        session = store.session(user_id="ada", session_id=f"good-{number}")
        session.append(refold.Aggregate(results=(verdict,) * 3))

    advice = store.memory.advice("ada", fresh=AT_ONCE, top=1, tokens=2_000)
    ada.withdraw("declarative_memory")
    without = store.memory.advice("ada", top=1, tokens=2_000)

    assert "## Profile (with consent)" in advice.text
    assert "- Preference: language = de" in advice.text
    assert "- Common error type: sign_error" in advice.text
    assert advice.text.startswith(without.text)
    assert "Profile" not in without.text
    assert not store.memory.profile("ada").items


def test_an_append_can_recompute_memory(store_url: str, tmp_path: Path) -> None:
    with open_at(store_url, tmp_path, remember="wait") as store:
        for number in range(3):
            add_run(store, f"s-{number}", ["search"], "success")

        assert store.memory.advice("ada", fresh=timedelta(days=1)).text
        assert advice_views(store)


def test_memory_of_many_users_needs_a_setting(store_url: str, tmp_path: Path) -> None:
    off = pytest.raises(refold.InvalidConfiguration, match="shared_memory=True")
    with open_at(store_url, tmp_path) as store, off:
        store.memory.shared()
    with open_at(store_url, tmp_path, shared_memory=True) as store:
        for number in range(6):
            add_run(store, f"s-{number}", ["search"], "success", user=f"user-{number}")
        six = store.memory.shared()
        store.user("user-0").opt_out()
        five = store.memory.shared()
        store.erase("user-1", "asked for")
        four = store.memory.shared()

    assert (six.sessions, five.sessions) == (6, 5)
    assert "search" in five.advice(now=store.clock()).text
    assert "user-" not in str(six)
    assert (four.items, four.sessions) == ([], 0)


def test_a_consent_takes_effect_at_once(store: SessionStore) -> None:
    for number in range(3):
        store.session(user_id="ada", session_id=f"judged-{number}").append(
            refold.Aggregate(
                results=(
                    Verdict(
                        item_id="1",
                        verdict="incorrect",
                        error_type="sign error",
                        subject="math",
                    ),
                    Verdict(item_id="2", verdict="correct", subject="math"),
                )
            )
        )
    before = store.memory.advice("ada").text

    store.user("ada").consent("declarative_memory")

    assert "Learning progress: math" not in before
    assert "Learning progress: math 50%" in store.memory.advice("ada").text
    store.user("ada").withdraw("declarative_memory")
    assert store.memory.advice("ada").text == before


def test_a_warning_recomputes_memory(store_url: str, tmp_path: Path) -> None:
    with refold.open(prepare(store_url, tmp_path), remember="wait") as store:
        for number in range(4):
            add_run(store, f"good-{number}", ["search", "book"], "success")
        session = store.session(user_id="ada", session_id="now")
        session.append(refold.ToolCall(call_id="c", tool_name="search"))
        store.log.drop_views("ada", "_user")

        session.append(
            refold.ToolResult(call_id="c", content="fine"),
            meta={"warnings": [{"code": "degraded"}]},
        )

        assert any(
            name.startswith(ADVICE_PREFIX)
            for name in store.log.view_names("ada", "_user")
        )
