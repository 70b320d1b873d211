"""Memory layers in a store: recorded, replayed, proved and explained."""

from __future__ import annotations

import refold
from refold.domain.events import CompactionNote, Summary
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.store import Session, SessionStore

LAYERS = (
    "turn_window:full_turns=1,cached_turns=1,layers.user=true,layers.scope=true,"
    "layers.notes={max_lines=3,compression_target=2,num_recent_memories_to_keep=1,"
    "compression_prompt='Shorten.'}"
)


def turn(session: Session, number: int) -> None:
    """A turn in which the agent notes something, and the request that began it."""
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
    (_, derived) = session.streams()
    payloads = [event.payload for event in session.derived(derived)]
    return [summary.kind for summary in payloads if isinstance(summary, Summary)]


def test_what_was_sent_with_layers_is_replayed_and_proved(
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
        for envelope, view in session.replay()
    )
    assert session.verify().problems == []
    store.log.drop_views("ada", session.stream.session_id)
    assert session.context(LAYERS) == sent


def test_a_rebuild_makes_the_layers_that_were_made_live(
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


def test_why_tells_of_a_layer_what_it_was_made_of(
    store: SessionStore, session: Session
) -> None:
    session.append(refold.StateUpdate(set={"user:name": "Ada"}))
    for number in range(6):
        turn(session, number)

    explained = session.why(LAYERS)

    shown = {seq for part in explained.parts for seq in part.seqs}
    assert 1 in shown
    assert 1 not in {one.seq for one in explained.unshown}
    causes = [part.cause for part in explained.parts]
    assert causes.count("memory") == 4
    of_layers = {record.node.summary.kind for record in explained.records}
    assert of_layers == {"scope", "notes", "session"}
    assert {record.source for record in explained.records} == {"holds"}
    assert all(record.asked.same for record in explained.records)


class _FailsAtScope(Abridged):
    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        if source.kind == "scope":
            raise RuntimeError("no")
        return super().summarise(source, target_tokens=target_tokens)


def test_a_layer_that_fails_holds_back_no_compaction_of_the_session(
    session: Session,
) -> None:
    for number in range(4):
        said = [refold.UserInput(text=f"why {number}?"), answer(number)]
        session.append(said)
    for _ in range(3):
        session.compact(LAYERS, summarizer=_FailsAtScope())

    (_, derived) = session.streams()
    notes = [event.payload for event in session.derived(derived)]
    assert [note.kind for note in notes if isinstance(note, CompactionNote)] == [
        "scope"
    ]
    assert kinds(session).count("session") == 2


def answer(number: int) -> refold.AgentResponse:
    return refold.AgentResponse(text=f"because of {number}")
