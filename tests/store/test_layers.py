"""Memory layers in a store: recorded, reproduced, proved and explained."""

from __future__ import annotations

import re

import pytest

import refold
from refold.domain.events import CompactionNote, Summary, Verdict
from refold.opener import make_redactor
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies.spec import parse
from refold.store import Session, SessionStore

LAYERS = (
    "turn_window:full_turns=1,cached_turns=1,layers.user=true,layers.scope=true,"
    "layers.notes={max_lines=3,compression_target=2,num_recent_memories_to_keep=1,"
    "compression_prompt='Shorten.'}"
)


def turn(session: Session, number: int) -> None:
    """A turn in which the agent takes a note, and the request that began it."""
    session.append(refold.UserInput(text=f"question {number}, why"))
    session.record_request(session.prepare(LAYERS))
    call = refold.ToolCall(
        call_id=f"c{number}", tool_name="remember", arguments={"memory": f"n{number}"}
    )
    session.append(
        [
            call,
            refold.ToolResult(call_id=f"c{number}", content="noted"),
            refold.AgentResponse(text=f"answer {number}, because"),
        ]
    )


def kinds(session: Session) -> list[str]:
    (_, derived) = session.history.streams()
    payloads = [event.payload for event in session.history.derived(derived)]
    return [summary.kind for summary in payloads if isinstance(summary, Summary)]


def test_requests_with_layers_are_reproduced_and_proved(
    store: SessionStore, session: Session
) -> None:
    session.append(refold.StateUpdate(set={"user:mail": "ada@lin.example"}))
    for number in range(6):
        turn(session, number)

    assert set(kinds(session)) == {"scope", "notes", "session"}
    sent = session.context(LAYERS)
    text = str(sent.messages)
    assert "[REDACTED:EMAIL]" in text
    assert '<memory of=\\"scope\\"' in text or '<memory of="scope"' in text
    assert all(
        envelope.payload.digest == view.digest  # type: ignore[union-attr]  # requests
        for envelope, view in session.proofs.replay()
    )
    assert session.verify().problems == []
    store.log.drop_views("ada", session.stream.session_id)
    assert session.context(LAYERS) == sent


def test_a_rebuild_writes_the_same_layers_as_a_live_run(
    store: SessionStore, session: Session
) -> None:
    for number in range(6):
        turn(session, number)
        session.prepare(LAYERS)
    other = store.session(user_id="ada", session_id="again")
    for event in session.events():
        if not isinstance(event.payload, refold.Request):
            other.append(event.payload)

    (rebuilt,) = store.rebuild(LAYERS, user_id="ada", session_id="again")

    assert rebuilt.problem == ""
    assert kinds(other) == kinds(session)


def test_why_names_the_sources_of_a_layer(
    store: SessionStore, session: Session
) -> None:
    session.append(refold.StateUpdate(set={"user:name": "Ada"}))
    for number in range(6):
        turn(session, number)

    explained = session.why(LAYERS)

    shown = {seq for part in explained.parts for seq in part.seqs}
    assert 1 in shown
    assert 1 not in {event.seq for event in explained.unshown}
    causes = [part.cause for part in explained.parts]
    assert causes.count("memory") == 4
    of_layers = {record.node.summary.kind for record in explained.records}
    assert of_layers == {"scope", "notes", "session"}
    assert {record.source for record in explained.records} == {"holds"}
    assert all(record.asked_again.same for record in explained.records)


class _FailsAtScope(Abridged):
    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        if source.kind == "scope":
            raise RuntimeError("no")
        return super().summarise(source, target_tokens=target_tokens)


def test_a_failing_layer_delays_no_compaction_of_the_session(
    session: Session,
) -> None:
    for number in range(4):
        exchange = [refold.UserInput(text=f"why {number}?"), answer(number)]
        session.append(exchange)
    for _ in range(3):
        session.compact(LAYERS, summarizer=_FailsAtScope())

    (_, derived) = session.history.streams()
    notes = [event.payload for event in session.history.derived(derived)]
    assert [note.kind for note in notes if isinstance(note, CompactionNote)] == [
        "scope"
    ]
    assert kinds(session).count("session") == 2


def answer(number: int) -> refold.AgentResponse:
    return refold.AgentResponse(text=f"because of {number}")


ACROSS = (
    "turn_window:layers.user=true,layers.scope=true,"
    "layers.notes={max_lines=2,compression_target=2,num_recent_memories_to_keep=1}"
)


def earlier_session(store: SessionStore, name: str = "one", **labels: str) -> Session:
    """An earlier session with facts, notes, and an answer."""
    session = store.session(user_id="ada", session_id=name)
    session.append(
        [
            refold.UserInput(text="hello"),
            refold.StateUpdate(set={"user:name": f"Ada {name}", "step": 1}),
            refold.AgentResponse(),
            refold.ToolCall(
                call_id="c", tool_name="remember", arguments={"note": f"note {name}"}
            ),
            refold.ToolResult(call_id="c", content="noted"),
            refold.Final(text=f"The answer of {name}."),
        ]
    )
    if labels:
        session.label(**labels)
    return session


def new_session(store: SessionStore, name: str = "now", **labels: str) -> Session:
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.UserInput(text="and now?"))
    if labels:
        session.label(**labels)
    return session


def context_text(session: Session) -> str:
    return str(session.prepare(ACROSS).messages)


def test_a_layer_shows_other_sessions_of_the_user(
    store: SessionStore,
) -> None:
    earlier_session(store, "one", project="tea")
    earlier_session(store, "other", project="rain")
    store.session(user_id="bob", session_id="his").append(
        refold.StateUpdate(set={"user:name": "Bob"})
    )

    text = context_text(new_session(store, project="tea"))

    assert "name: Ada other" in text
    assert "Ada one" not in text
    assert "The answer of one." in text
    assert "The answer of other." not in text
    assert text.index("note one") < text.index("note other")
    assert "Bob" not in text
    layers = re.findall(r'of=\\?"(\w+)', text)
    assert layers == ["user", "scope", "notes"]


def test_an_ending_without_text_is_no_answer(store: SessionStore) -> None:
    earlier_session(store, "one", project="tea").append(refold.Final(outcome="success"))

    assert "The answer of one." in context_text(new_session(store, project="tea"))


def test_a_fork_shows_its_parents_layer_once(store: SessionStore) -> None:
    fork = earlier_session(store, "one").fork(6, session_id="fork")

    assert context_text(fork).count("name: Ada one") == 1


def test_sessions_without_a_project_share_no_scope(store: SessionStore) -> None:
    earlier_session(store, "one", project="tea")

    assert "The answer of one." not in context_text(new_session(store))
    assert "The answer of one." not in context_text(
        new_session(store, "b", project="a@mail.de")
    )


def test_layers_from_other_sessions_stay_until_a_compaction(
    store: SessionStore,
) -> None:
    earlier_session(store, "one")
    session = new_session(store)
    view = session.prepare(ACROSS)
    session.record_request(view)
    earlier_session(store, "two")

    again = session.prepare(ACROSS)

    assert again.messages[: len(view.messages)] == view.messages
    for number in range(12):
        session.append([refold.UserInput(text=f"why {number}?"), answer(number)])
        session.prepare(ACROSS)
    assert "Ada two" in context_text(session)
    assert [replayed.digest for _, replayed in session.proofs.replay()] == [view.digest]
    assert session.verify().problems == []


def test_no_layer_shows_an_erased_session(store: SessionStore) -> None:
    earlier_session(store, "one")
    session = new_session(store)
    session.record_request(session.prepare(ACROSS))
    assert "Ada one" in context_text(session)

    store.erase("ada", "asked", session_id="one")

    assert "Ada one" not in context_text(session)
    with pytest.raises(refold.errors.Expired):
        list(session.proofs.replay())
    verified = session.verify()
    assert (verified.problems, verified.superseded_digests) == ([], 1)


def test_an_opted_out_user_has_no_layers_of_other_sessions(
    store: SessionStore,
) -> None:
    earlier_session(store, "one")
    session = new_session(store)
    session.record_request(session.prepare(ACROSS))

    store.user("ada").opt_out()

    assert "Ada one" not in context_text(session)
    assert "note one" not in context_text(session)


def test_the_layer_of_the_user_contains_profile_and_preferences(
    store: SessionStore,
) -> None:
    earlier_session(store, "one")
    store.user("ada").consent("declarative_memory")
    store.user("ada").prefer("language", "de")
    session = new_session(store)

    assert "Preference: language = de" in context_text(session)
    session.record_request(session.prepare(ACROSS))
    store.user("ada").prefer("language", "fr")
    assert "language = de" not in context_text(session)
    assert "language = fr" in context_text(session)
    session.record_request(session.prepare(ACROSS))
    store.user("ada").withdraw("declarative_memory")
    assert "Preference" not in context_text(session)
    assert "Ada one" in context_text(session)


def test_a_digest_of_the_scope_is_shown_before_an_answer(store: SessionStore) -> None:
    old = earlier_session(store, "one", project="tea")
    for number in range(3):
        old.append([refold.UserInput(text=f"why {number}?"), answer(number)])
        old.prepare(LAYERS)

    text = context_text(new_session(store, project="tea"))

    assert "because of 1" in text


def test_a_later_redaction_reaches_layers_of_other_sessions(
    store: SessionStore,
) -> None:
    earlier_session(store, "one-and-all")
    session = new_session(store)
    session.record_request(session.prepare(ACROSS))
    registered = refold.redaction.Registered()
    registered.register("Ada one-and-all")

    log = store.log
    limits = store.writer.limits
    after = SessionStore(log, make_redactor(registered=registered), limits)
    list(after.reredact("ada", session_id="one-and-all"))

    again = after.session(user_id="ada", session_id="now")
    assert "Ada one" not in str(again.prepare(ACROSS).messages)
    verified = again.verify()
    assert (verified.problems, verified.superseded_digests) == ([], 1)


def test_a_rerun_sends_layers_of_other_sessions(store: SessionStore) -> None:
    earlier_session(store, "one")
    session = new_session(store)
    for number in range(3):
        session.append([refold.UserInput(text=f"why {number}?"), answer(number)])
        session.record_request(session.prepare(ACROSS))

    ran = session.proofs.rerun()

    assert (ran.requests, ran.same) == (3, 3)


def test_the_profile_changes_when_one_of_its_sessions_is_erased(
    store: SessionStore,
) -> None:
    store.user("ada").consent("declarative_memory")
    wrong = Verdict(
        item_id="7", verdict="incorrect", error_type="sign error", subject="math"
    )
    for number in range(3):
        earlier_session(store, f"judged-{number}").append(
            refold.Aggregate(results=(wrong,))
        )
    session = new_session(store)
    view = session.prepare(ACROSS)
    session.record_request(view)

    store.erase("ada", "asked", session_id="judged-0")

    assert "Common error type: sign_error" in str(view.messages)
    assert "sign_error" not in context_text(session)


def test_a_replay_shows_no_line_about_an_erased_session(store: SessionStore) -> None:
    store.user("ada").consent("declarative_memory")
    wrong = Verdict(
        item_id="7", verdict="incorrect", error_type="sign error", subject="math"
    )
    for number in range(3):
        judged = store.session(user_id="ada", session_id=f"judged-{number}")
        judged.append(
            [refold.UserInput(text="Check."), refold.Aggregate(results=(wrong,))]
        )
    session = new_session(store)
    view = session.prepare(ACROSS)
    session.record_request(view)
    assert "sign_error" in str(view.messages)
    assert [shown.digest for _, shown in session.proofs.replay()] == [view.digest]

    store.erase("ada", "asked", session_id="judged-0")

    with pytest.raises(refold.errors.Expired):
        list(session.proofs.replay())


def test_a_digest_of_the_scope_keeps_turns_up_to_its_limit(
    memory: SessionStore,
) -> None:
    spec = "turn_window:layers.scope=true"
    session = memory.session(user_id="ada", session_id="s")
    for number in range(5):
        session.append(refold.UserInput(text=f"Question {number}?"))
        session.append(refold.AgentResponse(text=f"Answer {number}."))
        session.compact(spec)

    digest = session.history.derived(parse(spec).fingerprint)[-1].payload
    assert isinstance(digest, Summary)

    assert digest.kind == "scope"
    assert "left_out" not in digest.text
    for number in range(5):
        assert f"Question {number}?" in digest.text
        assert f"Answer {number}." in digest.text
