"""The user's words stay in every context that a summary shortens."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.domain.events import (
    AgentResponse,
    Aggregate,
    Attachment,
    HumanReview,
    Planner,
    Reflection,
    ToolCall,
    ToolResult,
    UserInput,
    Verdict,
)
from refold.domain.tokens import estimate_text
from refold.projections.context import render
from refold.projections.context.limits import protected_tokens
from refold.projections.context.protected import (
    JUDGMENTS,
    Protected,
    Words,
    protected,
    without_long_pastes,
)
from refold.projections.context.render import ExchangeRenderer, Piece
from refold.projections.context.strategies import spec
from refold.projections.context.units import Exchange
from refold.projections.context.view import View
from refold.store import Session, SessionStore
from tests.projections.logs import call, log_of, result
from tests.support.nested import blocks_of

RULE = "Never edit anything under vendored/."
STRATEGIES = (
    "turn_window:full_turns=1,cached_turns=1",
    "history_summary:trigger_on_history_size_chars=500,"
    "history_tail_size_chars_to_exclude=50",
    "recursive_summary",
    "token_ratio:max_context_tokens=2000",
    "message_window:context_size=12,tail_keep_size=4,compression_window_size=4,"
    "compression_hard_limit=6",
    "hybrid:threshold_low=400,threshold_high=900",
)


NEARLY_FULL = "token_ratio:max_context_tokens=8000,keep_recent_turns=1"


def content(*events: Any, budget: int = 4_000) -> Protected:
    return protected(log_of(*events), budget)


def texts_of(protected: Protected) -> list[str]:
    return [part.text for part in protected.words]


def messages(count: int) -> list[Any]:
    """Append turns with a call each, and another message of the user."""
    events: list[Any] = [UserInput(text=f"Fix the parser. {RULE}")]
    for number in range(count):
        name = f"c{number}"
        events += [
            AgentResponse(text="I look at the file. " * 10, stop_reason="tool_use"),
            call(name, "Read", file_path=f"src/part_{number}.py"),
            result(name, "a line of code\n" * 20),
            AgentResponse(text="Done with this part. " * 10),
            UserInput(text=f"Now part {number}, and mind the case {number * 7}."),
        ]
    return events


def sent_text(view: View) -> str:
    blocks = list(blocks_of(view.messages))
    return "\n".join(str(block.get("text") or block.get("content")) for block in blocks)


@pytest.fixture
def store() -> Any:
    with refold.open("memory://") as opened:
        yield opened


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_word_of_the_user_survives_successive_compactions(
    store: SessionStore, strategy: str
) -> None:
    session = store.session(user_id="ada", session_id="s")
    spoken: list[str] = []
    for event in messages(12):
        session.append(event)
        if isinstance(event, UserInput):
            spoken.append(event.text)
            session.prepare(strategy)

    view = session.context(strategy)

    assert any(span.kind == "summary" for span in view.spans)
    assert [text for text in spoken if text not in sent_text(view)] == []


def test_the_words_follow_the_summary_and_are_named_by_their_seq(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(messages(6))
    session.compact(STRATEGIES[0])

    view = session.context(STRATEGIES[0])

    assert f"[1] Fix the parser. {RULE}" in sent_text(view)
    (explained,) = [
        part for part in session.why(STRATEGIES[0]).parts if part.cause == "protected"
    ]
    assert 1 in explained.seqs


def test_a_budget_of_zero_protects_nothing(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(messages(6))
    strategy = f"{STRATEGIES[0]},protected_tokens=0"
    session.compact(strategy)

    view = session.context(strategy)

    assert view.protected == ()
    assert "Earlier words of the user" not in sent_text(view)


def test_the_words_give_way_to_a_small_window(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    for number in range(12):
        text = f"Remark {number}. " + "and so on " * 40
        session.append([UserInput(text=text), AgentResponse(text="Done.")])
    session.append(UserInput(text="Report."))
    session.append([AgentResponse(text="Done. " * 100)] * 8)
    while session.compact(STRATEGIES[0]):
        pass
    whole = session.context(STRATEGIES[0])
    words = sum(
        estimate_text(block["text"])
        for block in whole.messages[0]["content"]
        if block["text"].startswith("Earlier words of the user")
    )
    # Without the words, the view fits; with the share of such a window, it does not.
    window = (whole.tokens - words) * 12 // 10

    view = session.context(STRATEGIES[0], window=window)

    assert len(whole.protected) > 9
    assert view.over_budget == 0
    assert view.protected
    (cut,) = [cut for cut in view.cuts if cut.section == "protected"]
    assert cut.tokens > cut.budget


def test_decisions_and_the_newest_plan_are_protected_too() -> None:
    protected = content(
        Planner(plan="first"),
        UserInput(text="Go."),
        HumanReview(trigger="t", question="May I deploy?", decision="no"),
        Planner(plan=[{"content": "Write tests", "status": "in_progress"}]),
    )

    assert "Go." in texts_of(protected)
    assert "May I deploy? no" in texts_of(protected)
    assert "- Write tests (in_progress)" in texts_of(protected)


def test_a_pasted_log_is_cut_and_the_instruction_around_it_stays() -> None:
    log = "\n".join(f"2026-01-01 12:00:{n:02d} worker {n}: ok" for n in range(60))
    text = f"Find out why this fails.\n\n```\n{log}\n```\n\nDo not restart it."

    shown = without_long_pastes(text)

    assert shown.startswith("Find out why this fails.")
    assert shown.endswith("Do not restart it.")
    assert len(shown) < 700


def test_a_message_that_people_type_is_never_cut() -> None:
    text = "word " * 399

    assert without_long_pastes(text) == text


def test_an_attached_text_keeps_its_two_ends() -> None:
    note = Attachment(name="a.txt", text="buy milk\n" * 200)

    (text,) = texts_of(content(UserInput(text="Read this.", attachments=(note,))))

    assert text.startswith("Read this.\nbuy milk")
    assert len(text) < 500


def test_over_the_budget_old_messages_without_a_constraint_give_way_first() -> None:
    chatter = [UserInput(text=f"remark {n} " + "and more " * 40) for n in range(40)]
    protected = content(UserInput(text=f"Hello. {RULE}"), *chatter, budget=500)

    shown = texts_of(protected)

    assert protected.is_cut
    assert sum(part.tokens for part in protected.words) <= 500
    assert shown[0].endswith(RULE)
    assert shown[-1].startswith("remark 39")


@given(
    st.lists(st.text("ab. \n不", min_size=1, max_size=400), max_size=12),
    st.integers(0, 400),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_kept_and_every_message_is_shown_or_named(
    texts: list[str], budget: int
) -> None:
    events = [UserInput(text=text) for text in texts]

    protected = content(*events, budget=budget)

    assert sum(part.tokens for part in protected.words) <= budget
    spoken = {seq for seq, text in enumerate(texts, start=1) if text.strip()}
    shown = {part.seq for part in protected.words}
    assert shown | set(protected.left_out) == spoken
    assert not shown & set(protected.left_out)


def test_a_message_that_repeats_another_one_is_only_named() -> None:
    asked = "Import the cards of the new students, and never print a number."
    rows = log_of(*[UserInput(text=asked)] * 3, UserInput(text="Go on."))

    repeated = [part.text for part in protected(rows, 1_000).words]
    named = [part.text for part in protected(rows, 1_000, raw={}).words]
    raw = [part.text for part in protected(rows, 1_000, raw={asked: 9}).words]

    assert repeated == [asked, asked, asked, "Go on."]
    assert named == ["(as in 3)", "(as in 3)", asked, "Go on."]
    assert raw == ["(as in 9)", "(as in 9)", "(as in 9)", "Go on."]


def task(**change: str) -> Planner:
    return Planner(plan={"task": change})


def test_changes_of_tasks_are_joined_into_the_current_plan() -> None:
    rows = log_of(
        task(subject="Read the parser", description="all of it"),
        task(subject="Fix the table"),
        task(taskId="1", status="completed"),
        task(taskId="2", status="in_progress"),
        Planner(plan={"mode": "plan"}),
        task(taskId="7", status="open"),
    )

    (plan,) = protected(rows, 1_000, joins_plans=True).words

    assert (plan.seq, plan.label) == (6, "plan")
    assert plan.text == (
        "- Read the parser (completed)\n- Fix the table (in_progress)\n- task 7 (open)"
    )


def test_a_list_of_tasks_replaces_earlier_ones_but_no_plan_in_prose() -> None:
    rows = log_of(
        Planner(plan=[{"content": "Old", "status": "pending"}]),
        Planner(plan="First read, then write."),
        Planner(plan=[{"content": "New", "status": "pending"}]),
    )

    words = protected(rows, 1_000, joins_plans=True).words

    assert [part.text for part in words] == [
        "First read, then write.",
        "- New (pending)",
    ]


def test_a_long_plan_shows_its_open_tasks() -> None:
    rows = log_of(
        *[task(subject=f"Part {number} " + "of it " * 20) for number in range(30)],
        *[task(taskId=str(number), status="completed") for number in range(1, 30)],
    )

    (plan,) = protected(rows, 4_000, joins_plans=True).words

    assert plan.text.startswith("(29 of 30 tasks are completed.)\n- Part 29 of it")


def test_a_decision_has_the_reason_that_a_person_gave() -> None:
    rows = log_of(
        HumanReview(
            trigger="tool_approval",
            decision="rejected",
            bundle={"call_id": "1", "reason": "I did not say commit."},
        )
    )

    words = protected(rows, 1_000, joins_plans=True).words

    assert [part.text for part in words] == ["rejected: I did not say commit."]


@pytest.mark.parametrize("spec_text", STRATEGIES)
def test_a_summary_keeps_the_current_plan_with_its_open_tasks(
    store: SessionStore, spec_text: str
) -> None:
    session = store.session(user_id="ada", session_id="tasks")
    session.append(
        [
            UserInput(text="Fix the parser."),
            task(subject="Read the parser"),
            task(subject="Fix the table"),
            task(taskId="1", status="completed"),
            AgentResponse(text="I have read it."),
            *messages(12),
        ]
    )

    text = sent_text(session.prepare(spec_text))

    assert "- Read the parser (completed)\n- Fix the table (open)" in text


def test_a_view_without_room_for_the_users_words_says_so(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="small")
    session.append(messages(12))

    view = session.prepare(f"{STRATEGIES[1]},protected_tokens=1")

    assert "no room for earlier words of the user" in sent_text(view)
    assert view.cuts


def test_a_message_with_another_attachment_repeats_nothing() -> None:
    asked = "Import the cards of the students in this list, as you did before."
    rows = log_of(
        UserInput(text=asked, attachments=(Attachment(text="ada"),)),
        UserInput(text=asked, attachments=(Attachment(text="bob"),)),
    )

    words = protected(rows, 1_000, raw={asked: 9}).words

    assert [part.text for part in words] == [f"{asked}\nada", f"{asked}\nbob"]


@pytest.mark.parametrize(("version", "copies"), [(2, 3), (3, 1)])
def test_repetitions_are_named_from_version_3_of_history_summary_on(
    store: SessionStore, version: int, copies: int
) -> None:
    strategy = spec.parse(
        {
            "name": "history_summary",
            "version": version,
            "params": {
                "trigger_on_history_size_chars": 2_000,
                "history_tail_size_chars_to_exclude": 100,
            },
        }
    )
    asked = "Import the cards of the new students, and never print a number."
    session = store.session(user_id="ada", session_id="again")
    for text in (asked, asked, asked, "Go on."):
        session.append([UserInput(text=text), AgentResponse(text="so " * 400)])

    session.compact(strategy)

    shown = str(session.context(strategy).messages)
    assert shown.count(asked) == copies


def test_the_budget_is_a_share_of_the_window() -> None:
    assert protected_tokens(200_000) == 16_000
    assert protected_tokens(20_000) == 4_000
    assert protected_tokens(8_000) == 2_000


REFLECTION = Reflection(
    pass_=False,
    confidence=0.4,
    issues=("the table has no index",),
    suggestion="Add one before the import.",
)
VERDICTS = Aggregate(
    results=(
        Verdict(item_id="q1", verdict="correct"),
        Verdict(item_id="q2", verdict="incorrect", error_type="unit", topic="speed"),
    )
)


@pytest.mark.parametrize("spec_text", STRATEGIES)
@pytest.mark.parametrize("is_late", [True, False])
def test_judgments_of_an_old_turn_survive_every_compaction(
    store: SessionStore, spec_text: str, is_late: bool
) -> None:
    session = store.session(user_id="ada", session_id="judged")
    session.append([UserInput(text="Fix the import."), REFLECTION, VERDICTS])
    for _ in range(3):
        session.append(messages(6))
        if not is_late:
            session.prepare(spec_text)
    session.compact(spec_text)

    text = sent_text(session.prepare(spec_text))

    assert "Earlier words of the user" in text
    reflection = "not passed, confidence 0.4: the table has no index; Add one before"
    assert reflection in text
    assert "1 correct, 1 incorrect: q2 incorrect (unit, speed)" in text


def judgments_in(content: Protected) -> list[Words]:
    return [part for part in content.words if part.label in JUDGMENTS]


def test_judgments_give_way_before_words() -> None:
    asked = UserInput(text="Look at the file and tell me what is wrong with it. " * 20)
    rows = log_of(*[asked, REFLECTION, VERDICTS] * 20)

    content = protected(rows, 6_000, has_notes=True)

    assert [part.label for part in content.words].count("user") == 20
    shown = {part.seq for part in judgments_in(content)}
    left_out = set(content.left_out_judgments)
    assert shown
    assert shown | left_out == {row.seq for row in rows if row.type != "user_input"}
    assert max(left_out) < min(shown)
    assert content.is_cut


def test_judgments_take_a_quarter_of_the_budget_even_if_more_has_room() -> None:
    rows = log_of(*[UserInput(text="Go on."), REFLECTION, VERDICTS] * 100)
    budget = 8_000
    everything = protected(rows, 100_000)

    content = protected(rows, budget)

    assert everything.tokens < budget
    assert sum(part.tokens for part in judgments_in(everything)) > budget // 4
    assert sum(part.tokens for part in judgments_in(content)) <= budget // 4
    assert content.left_out_judgments
    assert not content.left_out
    assert not content.shortened


@pytest.mark.parametrize(("keeps_newest", "shown"), [(True, 3), (False, 0)])
def test_a_long_judgment_takes_no_room_of_shorter_ones(
    keeps_newest: bool, shown: int
) -> None:
    long = Reflection(suggestion="Look at it again. " * 200)
    rows = log_of(UserInput(text="Go."), *[REFLECTION] * 3, long)
    short_tokens = 26
    long_tokens = 99
    budget = 4 * 90  # a quarter has room for the three short ones only

    content = protected(rows, budget, keeps_newest_judgments=keeps_newest)

    tokens = [part.tokens for part in judgments_in(protected(rows, 9_000))]
    assert tokens == [*[short_tokens] * 3, long_tokens]
    assert len(judgments_in(content)) == shown


def test_cuts_speak_of_shortened_messages_only_if_there_are_some(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="cuts")
    for number in range(40):
        text = f"Remark {number}. " + "and so on " * 20
        session.append([UserInput(text=text), AgentResponse(text="Yes."), REFLECTION])
    strategy = f"{STRATEGIES[1]},protected_tokens="

    for tokens, is_shortened in ((3_000, False), (1_200, True)):
        view = session.prepare(f"{strategy}{tokens}")

        (cut,) = [cut for cut in view.cuts if cut.section == "protected"]
        assert "reflections and verdicts were left out" in cut.reason
        assert ("were shortened" in cut.reason) is is_shortened


def test_a_view_names_judgments_that_it_leaves_out_even_if_it_protects_nothing_else(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="alone")
    for _ in range(20):
        session.append([AgentResponse(text="so " * 400), REFLECTION])
    session.append(UserInput(text="And now?"))

    view = session.prepare(f"{STRATEGIES[1]},protected_tokens=12")

    assert view.protected == ()
    assert "(Left out: reflections and verdicts of turns 1.)" in sent_text(view)


@pytest.mark.parametrize("spec_text", STRATEGIES)
def test_a_judgment_is_shown_once(store: SessionStore, spec_text: str) -> None:
    session = store.session(user_id="ada", session_id="once")
    answer = AgentResponse(text="I have looked at it.")
    session.append([UserInput(text="Fix it."), answer, REFLECTION, VERDICTS])
    session.append(messages(18))

    text = sent_text(session.prepare(spec_text))

    assert text.count("the table has no index") == 1
    assert text.count("q2 incorrect") == 1


def test_a_view_over_the_window_renders_its_exchanges_once(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="window")
    for number in range(40):
        text = f"Remark {number}. " + "and so on " * 40
        session.append([UserInput(text=text), AgentResponse(text="Done.")])
    while session.compact(STRATEGIES[0]):
        pass
    rendered: list[int] = []
    pieces = ExchangeRenderer.pieces

    def counted(renderer: ExchangeRenderer, exchange: Exchange) -> list[Piece]:
        rendered.append(exchange[0].seq)
        return pieces(renderer, exchange)

    monkeypatch.setattr(ExchangeRenderer, "pieces", counted)
    whole = session.context(STRATEGIES[0])
    rendered.clear()

    view = session.context(STRATEGIES[0], window=whole.tokens * 9 // 10)

    assert 0 < len(view.protected) <= len(whole.protected)
    assert view.over_budget == 0
    assert view.cuts
    assert len(rendered) == len(set(rendered))


def test_a_view_names_the_judgments_that_it_leaves_out(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="many")
    for _ in range(40):
        session.append([*messages(1), REFLECTION])

    view = session.prepare(f"{STRATEGIES[1]},protected_tokens=3000")

    assert "(Left out: reflections and verdicts of turns 2" in sent_text(view)
    (cut,) = [cut for cut in view.cuts if cut.section == "protected"]
    assert "reflections and verdicts were left out: seqs" in cut.reason


def _full_of_words(store: SessionStore, *, remarks: int) -> Session:
    """A session with an early verdict, and more words than a small budget has."""
    session = store.session(user_id="ada", session_id="full-of-words")
    session.append([UserInput(text="Check the answers."), REFLECTION, VERDICTS])
    for number in range(remarks):
        text = f"Remark {number}. " + "and so on and on " * 20
        session.append([UserInput(text=text), AgentResponse(text="Yes, of course.")])
    return session


def test_the_newest_verdict_stays_if_words_of_the_user_fill_the_budget(
    store: SessionStore,
) -> None:
    session = _full_of_words(store, remarks=80)

    view = session.prepare("token_ratio:max_context_tokens=8000")

    text = sent_text(view)
    assert "verdict] 1 correct, 1 incorrect: q2 incorrect" in text
    assert "reflection] not passed, " in text
    assert all(f"Remark {number}. and so on" in text for number in range(80))
    (cut,) = [cut for cut in view.cuts if cut.section == "protected"]
    assert "the oldest messages were shortened" in cut.reason
    assert "left out" not in cut.reason


def test_the_newest_verdict_gives_way_before_a_message_is_left_out() -> None:
    asked = [UserInput(text=f"Remark {number} of many.") for number in range(60)]
    rows = log_of(REFLECTION, VERDICTS, *asked)
    messages_alone = protected(log_of(*asked), 9_000).tokens

    content = protected(rows, messages_alone, keeps_traces=True)

    assert [part.label for part in content.words] == ["user"] * 60
    assert content.left_out == ()
    assert content.left_out_judgments == (1, 2)
    assert not content.shortened_judgments


def test_the_newest_message_stays_whole_before_a_verdict() -> None:
    old = [UserInput(text=f"Look at table {n} and its rows. " * 12) for n in range(5)]
    newest = UserInput(text="Please rename the module of the parser to grammar. " * 9)
    rows = log_of(*old, newest, VERDICTS)
    everything = protected(rows, 9_000)

    content = protected(rows, everything.tokens // 2, keeps_traces=True)

    texts = {part.seq: part.text for part in content.words}
    assert texts[6] == newest.text
    assert len(texts[1]) < len(old[0].text)
    assert content.shortened


def test_pasted_parts_give_way_before_verdicts() -> None:
    pasted = "Look at this log:\n```\n" + "12:00 connection lost\n" * 60 + "```\n"
    text = pasted + "Why? It worked before. " * 100
    rows = log_of(UserInput(text=text), UserInput(text="And?"), VERDICTS)
    everything = protected(rows, 9_000)

    content = protected(rows, everything.tokens - 20, keeps_traces=True)

    assert everything.tokens == content.tokens
    assert judgments_in(content) == judgments_in(everything)
    assert content.shortened
    assert not content.shortened_judgments


def test_an_earlier_version_gives_up_verdicts_before_it_shortens_words(
    store: SessionStore,
) -> None:
    session = _full_of_words(store, remarks=80)
    params = {"max_context_tokens": 8000}
    before = spec.parse({"name": "token_ratio", "version": 7, "params": params})

    view = session.prepare(before)

    assert "verdict]" not in sent_text(view)
    (cut,) = [cut for cut in view.cuts if cut.section == "protected"]
    assert "reflections and verdicts were left out: seqs 2-3" in cut.reason


@pytest.mark.parametrize("spec_text", ["keep_all", STRATEGIES[1]])
def test_a_decision_has_the_note_of_the_person_who_decided(
    store: SessionStore, spec_text: str
) -> None:
    session = store.session(user_id="ada", session_id="noted")
    session.append([UserInput(text="Delete the copies."), AgentResponse(text="I ask.")])
    asked = session.append(
        HumanReview(trigger="risk", severity="high", question="Delete 40 files?")
    )
    session.decide(asked.last_seq, "reject", by="bo", note="The audit needs them.")
    session.append(messages(12))

    view = session.prepare(spec_text)

    assert "The audit needs them." in sent_text(view)


def test_the_words_stay_if_something_else_makes_the_view_too_long(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="long")
    session.append(messages(12))
    while session.compact(STRATEGIES[0]):
        pass
    whole = session.context(STRATEGIES[0])

    view = session.context(STRATEGIES[0], window=whole.raw_tokens // 2)

    assert view.over_budget
    # Its share of such a window is smaller, and none of it would make the view fit.
    assert len(view.protected) > 1


def large_png() -> str:
    """Return a PNG image of 1,092 by 1,092 pixels in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", 1_092, 1_092, 8, 2, 0, 0, 0)
    row = b"\0" * (1 + 3 * 1_092)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    image += chunk(b"IDAT", zlib.compress(row * 1_092)) + chunk(b"IEND", b"")
    return base64.b64encode(image).decode()


def _nearly_full_session(store: SessionStore) -> tuple[Session, list[str]]:
    """A session whose newest turn has 5,900 tokens of results, and earlier messages."""
    session = store.session(user_id="ada", session_id="full")
    texts = [f"Remark {number}. " + "and so on " * 20 for number in range(32)]
    for text in texts:
        session.append([UserInput(text=text), AgentResponse(text="Done.")])
    session.append(UserInput(text="Read all of it."))
    for number in range(3):
        name = f"c{number}"
        session.append(AgentResponse(stop_reason="tool_use"))
        session.append(ToolCall(call_id=name, tool_name="Read"))
        output = f"begin {number}\n" + "word " * 1_550 + f"\nend {number}"
        session.append(ToolResult(call_id=name, content=output))
    return session, texts


def test_long_results_of_the_newest_turn_give_way_before_words(
    store: SessionStore,
) -> None:
    session, texts = _nearly_full_session(store)

    view = session.prepare(f"{NEARLY_FULL},trigger_threshold=0.5")

    assert view.over_budget == 0
    sent = sent_text(view)
    assert all(text.strip() in sent for text in texts)
    for number in range(3):
        assert f"begin {number}" in sent
        assert f"end {number}" in sent
    (cut,) = [cut for cut in view.cuts if cut.section == "results"]
    seqs = [event.seq for event in session.events() if event.type == "tool_result"]
    assert cut.reason.endswith(f"seqs {seqs[0]}, {seqs[1]}, {seqs[2]}")
    assert cut.budget < cut.tokens
    assert not [cut for cut in view.cuts if cut.section == "protected"]


def test_images_in_results_take_few_attempts_to_make_room(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="images")
    for number in range(40):
        text = f"Remark {number}. " + "and so on " * 20
        session.append([UserInput(text=text), AgentResponse(text="Done.")])
    session.append(UserInput(text="Look."))
    source = {"type": "base64", "media_type": "image/png", "data": large_png()}
    for number in range(4):
        session.append(AgentResponse(stop_reason="tool_use"))
        session.append(ToolCall(call_id=f"c{number}", tool_name="Shot"))
        image = {"type": "image", "source": source}
        session.append(ToolResult(call_id=f"c{number}", content=[image]))
    attempts: list[int] = []
    original = render._Pieces.with_short_results

    def counted(pieces: Any, limit: int) -> Any:
        attempts.append(limit)
        return original(pieces, limit)

    monkeypatch.setattr(render._Pieces, "with_short_results", counted)
    window = "token_ratio:max_context_tokens=9067,keep_recent_turns=1"
    view = session.prepare(f"{window},trigger_threshold=0.5")

    assert view.over_budget == 0
    assert 1 < len(attempts) < 40


def test_results_stay_whole_while_the_view_fits(store: SessionStore) -> None:
    session, _ = _nearly_full_session(store)

    view = session.prepare("token_ratio:max_context_tokens=16000,trigger_threshold=0.5")

    assert "word " * 1_550 in sent_text(view)
    assert not [cut for cut in view.cuts if cut.section == "results"]


def test_neighbors_that_later_messages_repeat_are_named_in_one_line(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="runs")
    tasks = [f"Import the cards of the students of year {year}." for year in range(5)]
    for text in tasks * 3:
        session.append([UserInput(text=text), AgentResponse(text="so " * 400)])

    text = sent_text(session.prepare(STRATEGIES[1]))

    assert "\n[1-4] (as in turns 11-14)\n[5-9] (as in turns 10-14)\n[10] " in text


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(30, "1 message was left out"), (10, "2 messages were left out")],
)
def test_cuts_count_the_messages_that_are_left_out(tokens: int, reason: str) -> None:
    rows = log_of(UserInput(text="Remark. " * 5), UserInput(text="Remark. " * 5))
    content = protected(rows, tokens)

    (cut,) = render._protected_cuts(content)

    assert reason in cut.reason
