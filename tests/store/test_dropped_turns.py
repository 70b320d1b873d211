"""A view names the turns that it neither shows nor summarizes, and their media."""

from __future__ import annotations

import pytest

import refold
from refold.domain.parts import image_tokens
from refold.projections.context.budget import Cut
from refold.projections.context.view import View
from refold.store import Session
from tests.store.test_media import LARGE
from tests.support import files

DROPPING = (
    "last_turns:n=1",
    "token_budget:max_tokens=60",
    "hybrid:threshold_low=40,threshold_high=100000,last_n_events=2",
    "message_window:context_size=3,tail_keep_size=2",
)
SUMMARIZING = (
    "turn_window:full_turns=1,cached_turns=1",
    "history_summary:trigger_on_history_size_chars=200,"
    "history_tail_size_chars_to_exclude=50",
    "recursive_summary:keep_last=1,every=1",
    "token_ratio:max_context_tokens=300,keep_recent_turns=1",
    "hybrid:threshold_low=40,threshold_high=60,last_n_events=2",
)


def append_turns_with_image(session: Session, count: int) -> None:
    """Append turns of an input and an answer; the first has an image."""
    image = {"kind": "image", "media_type": "image/png", "data": LARGE}
    first = refold.events.Attachment(**image)
    for number in range(count):
        text = f"Question {number} about the old harbour and its boats."
        attachments = () if number else (first,)
        session.append(refold.UserInput(text=text, attachments=attachments))
        answer = f"Answer {number}: there are a few of them left today."
        session.append(refold.AgentResponse(text=answer))


def cuts_of(view: View, section: str) -> list[Cut]:
    return [cut for cut in view.cuts if cut.section == section]


@pytest.mark.parametrize("strategy", DROPPING)
def test_dropped_turns_are_named_with_their_seqs(
    session: Session, strategy: str
) -> None:
    append_turns_with_image(session, 6)

    view = session.context(strategy)

    (cut,) = cuts_of(view, "turns")
    shown = {origin.seq for origins in view.origins for origin in origins if origin.seq}
    first = min(shown - {session.head().seq})
    reason = "the strategy drops these turns without a summary"
    assert cut.reason.startswith(f"{reason}: seqs 1-{first - 1}")
    hidden = [event for event in session.events() if event.seq not in shown]
    assert cut.tokens >= sum(event.token_estimate for event in hidden)
    assert f"seqs 1-{first - 1}" in str(view.to_json()["cuts"])


@pytest.mark.parametrize("strategy", DROPPING)
def test_the_media_of_dropped_turns_are_named(session: Session, strategy: str) -> None:
    append_turns_with_image(session, 6)

    (cut,) = cuts_of(session.context(strategy), "media")

    assert cut.reason == "image of seq 1: its turn is not shown"
    assert cut.tokens >= image_tokens(files.WIDTH, files.HEIGHT)


@pytest.mark.parametrize("strategy", SUMMARIZING)
def test_the_media_of_summarized_turns_are_named(
    session: Session, strategy: str
) -> None:
    append_turns_with_image(session, 6)
    while session.compact(strategy):
        pass

    view = session.context(strategy)

    assert any(span.kind == "summary" for span in view.spans)
    (cut,) = cuts_of(view, "media")
    assert cut.reason == "image of seq 1: its turn is not shown"


@pytest.mark.parametrize("strategy", ["keep_all", *DROPPING, *SUMMARIZING])
def test_nothing_is_named_while_everything_is_shown(
    session: Session, strategy: str
) -> None:
    session.append(refold.UserInput(text="Hi"))

    assert session.context(strategy).cuts == ()


@pytest.mark.parametrize("strategy", DROPPING)
def test_stored_outlines_name_the_same_turns(session: Session, strategy: str) -> None:
    append_turns_with_image(session, 4)
    session.context(strategy)
    append_turns_with_image(session, 4)

    cuts = session.context(strategy).cuts

    assert cuts == session.context(strategy, at=session.head().seq).cuts
    assert cuts


def test_media_that_a_client_removed_are_not_named(session: Session) -> None:
    append_turns_with_image(session, 2)
    session.append(refold.events.ProviderEdit(reason="rewind", left_out=((1, 2),)))

    assert session.context("keep_all").cuts == ()
