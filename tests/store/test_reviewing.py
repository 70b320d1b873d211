"""A human is asked each question once and decides it once, and the log records it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import refold
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog
from refold.projections.review.bundle import fires_again, read_bundle
from refold.projections.review.rules import ReviewRules
from refold.store import Session, SessionStore, reviews
from tests.support.stores import open_at, prepare

RISKY = refold.Reflection(issues=("safety",))
MAIL = "lin@example.com"


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    with open_at(store_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def session(store: SessionStore) -> Session:
    """A session in which a human is to be asked at seq 2."""
    session = store.session(user_id="ada", session_id="s-1")
    session.append([refold.UserInput(text=f"write to {MAIL}"), RISKY])
    return session


def questions(session: Session) -> list[refold.HumanReview]:
    payloads = [envelope.payload for envelope in session.events()]
    return [payload for payload in payloads if isinstance(payload, refold.HumanReview)]


def fail(session: Session, call_id: str, **how: Any) -> None:
    session.append(
        [
            refold.ToolCall(call_id=call_id, tool_name="book"),
            refold.ToolResult(call_id=call_id, content="error: timed out"),
        ],
        **how,
    )


def test_a_question_is_asked_once(store: SessionStore, session: Session) -> None:
    first = session.reviews.ask()
    again = session.reviews.ask()

    assert (first.asked, again.asked) == ([3], [])
    (question,) = questions(session)
    assert (question.trigger, question.severity) == ("high_risk", "critical")
    assert question.decision is None
    assert session.verify().problems == []


def test_the_bundle_of_a_question_is_redacted_and_needs_no_store(
    session: Session,
) -> None:
    session.reviews.ask()

    (question,) = questions(session)
    stored = session.writer.log.read(session.stream)[-1].to_json()
    assert MAIL not in str(stored)
    assert question.bundle is not None
    bundle = read_bundle(json.dumps(question.bundle))
    assert fires_again(bundle)
    assert [entry.hash for entry in bundle.events] == [
        envelope.hash for envelope in session.events()[:2]
    ]


def test_a_long_session_is_not_read_again_from_its_start(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    session.append([refold.UserInput(text="go"), RISKY])
    for number in range(100):
        fail(session, f"c-{number}")
    session.append([RISKY] * 20)
    first = session.reviews.ask()
    read = session.writer.log.read
    after: list[int] = []

    def recorded_read(*args: Any, **options: Any) -> Any:
        after.append(options.get("after", 0))
        return read(*args, **options)

    monkeypatch.setattr(
        type(session.writer.log), "read", lambda _, *a, **h: recorded_read(*a, **h)
    )
    session.append(refold.UserInput(text="next"))
    again = session.reviews.ask()

    assert len(first.asked) == 2
    assert again.asked == []
    assert after[0] == 222


def test_a_dropped_fold_is_rebuilt(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    session.append([refold.UserInput(text="go")] * 250)
    session.append(refold.Reflection(confidence=0.1))
    before = session.reviews.ask()
    names = store.log.view_names("ada", "s-1")
    store.log.drop_views("ada", "s-1")

    assert [name[:7] for name in names] == ["review-"]
    assert session.reviews.ask() == before
    assert session.verify().problems == []


def test_changed_figures_do_not_ask_again(session: Session) -> None:
    mild = '[high_risk]\nwhen = "issue"\nissues = ["safety"]\nseverity = "low"'
    session.reviews.ask()

    again = session.reviews.ask(ReviewRules.read(f"{mild}\nsteps = []"))

    assert again.asked == []
    assert len(questions(session)) == 1


def test_concurrent_scans_ask_once(store_url: str, tmp_path: Path) -> None:
    url = prepare(store_url, tmp_path)
    barrier = Barrier(4)
    with refold.open(url) as store:
        store.session(user_id="ada", session_id="s-1").append(
            [refold.UserInput(text="go"), RISKY]
        )

    def ask(_: int) -> list[int]:
        with refold.open(url) as own:
            barrier.wait()
            return own.session(user_id="ada", session_id="s-1").reviews.ask().asked

    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(ask, range(4)))

    assert sorted(asked) == [[], [], [], [3]]
    with refold.open(url) as store:
        assert len(questions(store.session(user_id="ada", session_id="s-1"))) == 1


def test_a_scan_that_began_before_a_rivals_question_asks_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.store import reviews as asking

    source = asking._source

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(asking, "_source", source)
        session.reviews.ask()  # another scan, between the check and the question
        return source(*args)

    monkeypatch.setattr(asking, "_source", slow)

    assert session.reviews.ask().asked == []
    assert len(questions(session)) == 1


def test_a_rival_scan_with_other_rules_asks_nothing_either(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refold.store import reviews as asking

    source = asking._source
    other = ReviewRules.read(
        '[high_risk]\nwhen = "issue"\nissues = ["safety"]\nsteps=[]'
    )

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(asking, "_source", source)
        session.reviews.ask(other)
        return source(*args)

    monkeypatch.setattr(asking, "_source", slow)

    assert session.reviews.ask().asked == []
    assert len(questions(session)) == 1


def test_recovery_degrades_then_retries_then_asks_a_human(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="a flight to Oslo"))
    for number in range(3):
        fail(session, f"c-{number}")

    steps = []
    scan = session.reviews.ask()
    while not scan.asked:
        (next_,) = scan.recoveries
        steps.append(next_.step)
        key = next_.idempotency_key
        fail(session, f"{next_.step}", meta=next_.meta, idempotency_key=key)
        scan = session.reviews.ask()

    assert steps == ["degrade", "retry"]
    assert session.reviews.ask().recoveries == []
    (question,) = questions(session)
    assert question.trigger == "tool_failing"
    assert fires_again(read_bundle(json.dumps(question.bundle)))
    taken = [w.code for e in session.events() for w in e.meta.warnings]
    assert set(taken) == {"degraded", "retried"}


def test_a_step_done_twice_is_stored_once(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(3):
        fail(session, f"c-{number}")
    (step,) = session.reviews.ask().recoveries
    key = step.idempotency_key
    text = refold.AgentResponse(text="with less")

    session.append(text, meta=step.meta, idempotency_key=key)
    again = session.append(text, meta=step.meta, idempotency_key=key)

    assert again.duplicate
    assert session.head().seq == 7


def test_questions_are_listed_by_severity_then_age(store: SessionStore) -> None:
    for user, name in (("bob", "b"), ("ada", "a")):
        session = store.session(user_id=user, session_id=name)
        session.append(refold.UserInput(text="go"))
        session.append([refold.Reflection(confidence=0.1), refold.Final(), RISKY])
        session.reviews.ask()
    store.session(user_id="bob", session_id="none").append(refold.UserInput(text="go"))

    listed = store.reviews.list()

    assert [(question.user_id, question.severity) for question in listed] == [
        ("bob", "critical"),
        ("ada", "critical"),
        ("bob", "medium"),
        ("ada", "medium"),
    ]
    assert store.reviews.list("ada") == [
        question for question in listed if question.user_id == "ada"
    ]
    assert store.reviews.list("ada", session_id="none") == []
    assert store.reviews.list("nobody") == []


def test_a_decision_is_an_event_and_closes_the_question(
    store: SessionStore, session: Session
) -> None:
    session.reviews.ask()

    receipt = session.reviews.decide(3, "corrected", by="lin", note=f"asked {MAIL}")

    question, event = session.events()[-2:]
    assert isinstance(question.payload, refold.HumanReview)
    assert event.seq == receipt.last_seq == 4
    assert event.payload == refold.HumanReview(
        trigger="high_risk",
        severity="critical",
        question=question.payload.question,
        decision="corrected",
        decided_by="lin",
        refers_to=3,
    )
    assert event.payload.question
    assert store.reviews.list() == []
    (listed,) = store.reviews.list(open_only=False)
    assert listed.decided is not None
    assert listed.decided[:3] == (4, "corrected", "lin")
    assert listed.decided.note == "asked [REDACTED:EMAIL]"
    assert session.reviews.ask().asked == []


def test_a_compacted_context_has_a_decision_with_its_question(
    session: Session,
) -> None:
    session.reviews.ask()
    session.reviews.decide(3, "reject", by="lin")
    decision = session.events()[-1].payload
    assert isinstance(decision, refold.HumanReview)
    for number in range(20):
        session.append(refold.UserInput(text=f"step {number}"))
        session.append(refold.AgentResponse(text="done"))
    strategy = "turn_window:full_turns=1,cached_turns=1"

    while session.compact(strategy):
        pass

    context = str(session.context(strategy).messages)
    assert decision.question
    assert f"{decision.question} reject" in context


@pytest.mark.parametrize("second", ["accept", "reject"])
def test_a_second_decision_is_refused(session: Session, second: Any) -> None:
    session.reviews.ask()
    session.reviews.decide(3, "accept", by="lin")

    with pytest.raises(refold.errors.AlreadyDecided) as refused:
        session.reviews.decide(3, second, by="lin")

    assert (refused.value.seq, refused.value.decided_at) == (3, 4)
    assert session.head().seq == 4


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.each_engine
def test_two_concurrent_decisions_get_one_winner(
    store_url: str, tmp_path: Path, *, same: bool
) -> None:
    url = prepare(store_url, tmp_path)
    barrier = Barrier(4)
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append([refold.UserInput(text="go"), RISKY])
        session.reviews.ask()

    def decide(number: int) -> bool:
        decision: Any = "accept" if same or number % 2 else "reject"
        with refold.open(url) as own:
            barrier.wait()
            try:
                own.session(user_id="ada", session_id="s-1").reviews.decide(
                    3, decision, by="lin"
                )
            except refold.errors.AlreadyDecided:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        decided = list(pool.map(decide, range(4)))

    assert decided.count(True) == 1
    with refold.open(url) as store:
        assert store.session(user_id="ada", session_id="s-1").head().seq == 4


@pytest.mark.parametrize("same", [True, False])
def test_a_decision_after_a_rival_decision_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, same: bool
) -> None:
    session.reviews.ask()
    look = reviews._open_question

    def slow(log: EventLog, stream: StreamId, seq: int) -> Any:
        question = look(log, stream, seq)
        monkeypatch.setattr(reviews, "_open_question", look)
        session.reviews.decide(seq, "accept" if same else "reject", by="lin")
        return question

    monkeypatch.setattr(reviews, "_open_question", slow)

    with pytest.raises(refold.errors.AlreadyDecided):
        session.reviews.decide(3, "accept", by="lin")
    assert session.head().seq == 4


@pytest.mark.parametrize(
    ("seq", "decision", "by"),
    [
        (1, "accept", "lin"),
        (9, "accept", "lin"),
        (0, "accept", "lin"),
        (-1, "accept", "lin"),
        ("3", "accept", "lin"),
        (3.0, "accept", "lin"),
        (True, "accept", "lin"),
        (3, "yes", "lin"),
        (3, "accept", ""),
        (3, "accept", " "),
    ],
)
def test_an_invalid_decision_is_refused(
    session: Session, seq: Any, decision: Any, by: str
) -> None:
    session.reviews.ask()

    with pytest.raises(refold.InvalidEvent):
        session.reviews.decide(seq, decision, by=by)
    assert session.head().seq == 3


def test_a_decision_is_not_a_question(session: Session) -> None:
    session.reviews.ask()
    session.reviews.decide(3, "accept", by="lin")

    with pytest.raises(refold.InvalidEvent, match="not a question"):
        session.reviews.decide(4, "accept", by="lin")


def test_a_question_appended_by_a_program_is_listed_and_decided(
    memory: SessionStore, empty_session: Session
) -> None:
    empty_session.append(refold.HumanReview(trigger="cost", question="Go on?"))

    (listed,) = memory.reviews.list()
    empty_session.reviews.decide(1, "accept", by="lin")

    assert (listed.trigger, listed.question, listed.bundle) == ("cost", "Go on?", None)
    assert memory.reviews.list() == []


def test_a_decision_appended_by_a_program_counts(empty_session: Session) -> None:
    empty_session.append(refold.HumanReview(trigger="cost", question="Go on?"))
    empty_session.append(refold.HumanReview(trigger="cost", decision="no", refers_to=1))

    with pytest.raises(refold.errors.AlreadyDecided):
        empty_session.reviews.decide(1, "accept", by="lin")


def test_the_first_of_two_appended_decisions_counts(
    memory: SessionStore, empty_session: Session
) -> None:
    empty_session.append(refold.HumanReview(trigger="cost", question="Go on?"))
    for word in ("no", "yes"):
        decision = refold.HumanReview(trigger="cost", decision=word, refers_to=1)
        empty_session.append(decision)

    (listed,) = memory.reviews.list(open_only=False)

    assert listed.decided is not None
    assert (listed.decided.seq, listed.decided.decision) == (2, "no")


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.review(),
        lambda session: session.decide(1, "accept", by="lin"),
    ],
)
def test_a_missing_session_has_no_questions(
    empty_session: Session, call: Callable[[Session], Any]
) -> None:
    with pytest.raises(refold.SessionNotFound):
        call(empty_session)


def test_a_session_that_accepts_no_events_accepts_no_question(
    store: SessionStore, session: Session
) -> None:
    store.erasures.freeze("ada", "disputed")
    with pytest.raises(refold.errors.Frozen):
        session.reviews.ask()
    store.erasures.unfreeze("ada", "over")
    session.reviews.ask()
    session.end()

    with pytest.raises(refold.SessionClosed):
        session.reviews.decide(3, "accept", by="lin")

    assert store.reviews.list() == []
    (left,) = store.reviews.list(open_only=False)
    assert (left.closed, left.is_open) == (True, False)


BADGES = """version = 1
[[rules]]
id = "org.badge"
type = "BADGE"
pattern = '\\bBDG-[A-Z]{2}\\d{12}\\b'
examples = ["badge «BDG-QX471100000000» was"]
counter_examples = ["BDG-4711"]
"""


def test_a_later_redaction_rule_covers_bundles(store_url: str, tmp_path: Path) -> None:
    url = prepare(store_url, tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(BADGES, encoding="utf-8")
    badges = [f"BDG-AB{number:012d}" for number in range(400)]
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text=" and ".join(badges)))
        session.append(refold.Planner(plan={"badges": badges}))
        session.append([refold.AgentResponse(text=",".join(badges)), RISKY])
        session.reviews.ask()
        (before,) = questions(session)
    with refold.open(url, policy=policy) as store:
        (done,) = store.reredact("ada")
        (after,) = questions(store.session(user_id="ada", session_id="s-1"))

    assert done.problem is None
    assert "BDG" in json.dumps(before.bundle)
    assert "BDG" not in json.dumps(after.bundle)


def test_a_question_is_asked_without_events_if_the_store_refuses_them(
    store_url: str, tmp_path: Path
) -> None:
    limits = refold.redaction.Limits(leaf_bytes=1_024, event_bytes=4_096)
    rules = ReviewRules.read('[r]\nwhen = "tool_fails"\nfailures = 20\nsteps = []')
    url = prepare(store_url, tmp_path)
    with refold.open(url, limits=limits) as store:
        session = store.session(user_id="ada", session_id="s-1")
        for number in range(20):
            fail(session, f"c-{number}")

        first = session.reviews.ask(rules)
        again = session.reviews.ask(rules)

        (question,) = questions(session)
        bundle = read_bundle(json.dumps(question.bundle))
        assert (first.asked, again.asked) == ([41], [])
        assert (bundle.events, bundle.left_out) == ((), 40)
        assert "4096" in (bundle.refused or "")


def test_a_bundle_shrinks_to_the_limit_of_the_store(
    store_url: str, tmp_path: Path
) -> None:
    limits = refold.redaction.Limits(leaf_bytes=1_024, event_bytes=8_192)
    url = prepare(store_url, tmp_path)
    with refold.open(url, limits=limits) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append([refold.UserInput(text="word " * 180)] * 30)
        session.append(RISKY)
        session.reviews.ask()

        (question,) = questions(session)
        bundle = read_bundle(json.dumps(question.bundle))
        assert fires_again(bundle)


def test_a_refused_question_does_not_block_the_others(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.append([refold.UserInput(text="next"), RISKY])
    append = type(session.writer).append

    def refusing(writer: Any, order: Any) -> Any:
        if order.idempotency_key == "refold.review/high_risk/2":
            raise refold.InvalidEvent("no")
        return append(writer, order)

    with monkeypatch.context() as patched:
        patched.setattr(type(session.writer), "append", refusing)
        with pytest.raises(refold.InvalidEvent):
            session.reviews.ask()

    assert [question.trigger for question in questions(session)] == ["high_risk"]
    assert session.reviews.ask().asked == [6]


@pytest.mark.parametrize("rules", ["rules.toml", {}, [], 0])
def test_rules_of_a_wrong_type_are_refused(session: Session, rules: Any) -> None:
    with pytest.raises(refold.InvalidConfiguration):
        session.reviews.ask(rules)


def test_an_erased_session_has_no_questions(
    store: SessionStore, session: Session
) -> None:
    session.reviews.ask()

    store.erase("ada", "asked for", session_id="s-1")

    assert store.reviews.list(open_only=False) == []
    with pytest.raises(refold.Erased):
        session.reviews.ask()


def test_a_fork_asks_about_its_own_events(
    store: SessionStore, session: Session
) -> None:
    fork = session.fork(2, session_id="s-2")

    assert fork.reviews.ask().asked == []
    fork.append(RISKY)
    assert fork.reviews.ask().asked == [3]
    assert questions(session) == []
