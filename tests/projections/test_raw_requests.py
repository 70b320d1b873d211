"""The requests of a log that is never compacted are told by digest, in one walk."""

from __future__ import annotations

from hypothesis import given

from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, SystemPrompt, UserInput
from refold.projections.compare import RawRequests, moments
from refold.projections.context.render import render
from refold.projections.context.strategies.keep_all import KeepAll
from tests.projections.logs import call, log_of, logs, result

ALL = KeepAll()


def whole(events: list[Envelope]) -> str:
    return render(ALL, ALL.read(ALL.begin(), events), events).digest


@given(logs())
def test_each_digest_is_that_of_the_context_before_the_answer(
    events: list[Envelope],
) -> None:
    told = {one.seq: digest for one, digest in RawRequests(events).digests()}

    assert told == {seq: whole(events[: seq - 1]) for seq in told}
    assert told.keys() == {moment.seq for moment in moments(events)}


def test_what_only_grows_is_rendered_once() -> None:
    more = [UserInput(text="go on"), AgentResponse(text="I do."), call(), result()]
    events = log_of(SystemPrompt(text="Be brief."), *more * 3)

    told = [digest for _, digest in RawRequests(events).digests()]

    assert told == [whole(events[:2]), whole(events[:6]), whole(events[:10])]


def test_a_session_may_begin_with_its_agent() -> None:
    events = log_of(AgentResponse(text="Hello."), AgentResponse(text="Anybody?"))

    told = [digest for _, digest in RawRequests(events).digests()]

    assert told == [whole([]), whole(events[:1])]
