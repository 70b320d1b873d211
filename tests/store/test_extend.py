"""A first import adds all entries, a later one the new entries; a rewrite fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import refold
from refold.domain.envelope import Draft
from refold.store import Session, SessionStore
from refold.store.session.imports import Extended, extend
from tests.support.payloads import payload
from tests.support.redacting import unaware

MAIL = "ada.lovelace@analytical.org"


def transcript(count: int, word: str = "x") -> list[Draft]:
    drafts: list[Draft] = []
    for number in range(count):
        meta = refold.events.Meta(source={"format": "test", "place": number})
        events = [
            refold.UserInput(text=f"{word} {number} {MAIL}"),
            refold.ToolCall(call_id=f"c{number}", tool_name="t"),
            refold.ToolResult(call_id=f"c{number}", content={"n": number}),
        ]
        drafts += [Draft(event, meta=meta) for event in events]
    return drafts


def import_drafts(session: Session, drafts: Sequence[Draft]) -> Extended:
    return extend(session, drafts, where="a.jsonl")


def test_the_first_import_adds_everything(session: Session) -> None:
    done = import_drafts(session, transcript(100))

    assert (done.events, done.duplicates, dict(done.redactions)) == (
        300,
        0,
        {"EMAIL": 100},
    )
    assert session.head().seq == 300


def test_a_second_import_adds_nothing(session: Session) -> None:
    import_drafts(session, transcript(30))

    again = import_drafts(session, transcript(30))

    assert (again.events, again.duplicates) == (0, 90)
    assert session.head().seq == 90


def test_a_grown_transcript_adds_its_new_entries(session: Session) -> None:
    import_drafts(session, transcript(30)[:-1])

    grown = import_drafts(session, transcript(40))

    assert (grown.events, grown.duplicates) == (31, 89)
    assert session.head().seq == 120
    shorter = import_drafts(session, transcript(20))
    assert (shorter.events, shorter.duplicates) == (0, 60)


def test_events_appended_in_between_do_not_matter(session: Session) -> None:
    import_drafts(session, transcript(10))
    session.append([refold.Pin(seqs=(1,)), refold.UserInput(text="live")])

    grown = import_drafts(session, transcript(12))

    assert (grown.events, grown.duplicates) == (6, 30)
    assert import_drafts(session, transcript(12)).events == 0


def test_a_rewritten_entry_is_refused_with_its_seq(session: Session) -> None:
    import_drafts(session, transcript(10))
    other = transcript(12)
    other[9] = Draft(refold.UserInput(text="changed"), meta=other[9].meta)

    with pytest.raises(
        refold.errors.ImportFailed, match=r"a\.jsonl: .*seq 10 "
    ) as caught:
        import_drafts(session, other)

    assert caught.value.seq == 10
    assert session.head().seq == 30
    assert MAIL not in str(caught.value)


def test_changed_rules_do_not_look_like_a_rewrite(
    store: SessionStore, session: Session
) -> None:
    writer = replace(session.writer, redactor=unaware())
    lax = refold.Session(session.stream, writer)
    import_drafts(lax, transcript(5))
    assert MAIL in str(session.events()[0].payload.payload())

    assert import_drafts(session, transcript(6)).events == 3


def test_an_invalid_event_in_the_middle_writes_nothing(session: Session) -> None:
    drafts = transcript(100)
    drafts.insert(200, Draft(refold.ToolResult(call_id="none"), meta=drafts[0].meta))

    with pytest.raises(refold.errors.ImportFailed, match="no open call"):
        import_drafts(session, drafts)
    with pytest.raises(refold.SessionNotFound):
        session.head()


def test_a_large_result_of_many_small_parts_becomes_one_text(
    session: Session,
) -> None:
    meta = refold.events.Meta(source={"format": "test"})
    pieces = [{"line": "y" * 1000} for _ in range(1500)]
    drafts = [
        Draft(refold.ToolCall(call_id="c", tool_name="t"), meta=meta),
        Draft(refold.ToolResult(call_id="c", content=pieces), meta=meta),
    ]

    assert import_drafts(session, drafts).events == 2

    result = session.events()[1]
    assert [warning.code for warning in result.meta.warnings] == ["kept_as_text"]
    content = payload(result, refold.ToolResult).content
    sha256 = str(content).split('blob("')[1].split('"')[0]
    assert session.history.blob(sha256).count("y" * 1000) == 1500
    assert import_drafts(session, drafts).events == 0


def test_progress_is_reported_up_to_the_end(session: Session) -> None:
    counts: list[int] = []

    extend(session, transcript(200), where="x", progress=counts.append)

    assert counts[0] == 0
    assert counts[-1] == 600
    assert counts == sorted(counts)
