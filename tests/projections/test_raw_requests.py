"""One walk computes the digests of all requests of a log without compactions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, SystemPrompt, UserInput
from refold.projections import compare
from refold.projections.compare import RawRequests, moments
from refold.projections.context.outline import Outline
from refold.projections.context.render import render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from tests.projections.logs import call, log_of, logs, result

ALL = KeepAll()


def rendered_in_full(events: list[Envelope]) -> str:
    return render(ALL, ALL.read(ALL.begin(), events), events).digest


@given(logs())
def test_each_digest_is_of_the_context_before_the_answer(
    events: list[Envelope],
) -> None:
    digests = {
        envelope_.seq: digest for envelope_, digest in RawRequests(events).digests()
    }

    assert digests == {seq: rendered_in_full(events[: seq - 1]) for seq in digests}
    assert digests.keys() >= {moment.seq for moment in moments(events)}


def test_growing_requests_are_rendered_once_even_behind_an_open_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0

    def counted(strategy: Strategy, outline: Outline, seen: Any, **more: Any) -> View:
        nonlocal read
        read += len(seen)
        return render(strategy, outline, seen, **more)

    monkeypatch.setattr(compare, "render", counted)
    more = [
        event
        for turn in range(30)
        for event in (
            UserInput(text="go on"),
            AgentResponse(text="I do."),
            call(f"c{turn}"),
            result(f"c{turn}"),
        )
    ]
    events = log_of(SystemPrompt(text="Be brief."), call("never"), *more)

    digests = [digest for _, digest in RawRequests(events).digests()]

    # The first two requests are rendered completely.
    assert read < len(events) + 10
    assert digests[:3] == [
        rendered_in_full(events[:1]),
        rendered_in_full(events[:3]),
        rendered_in_full(events[:7]),
    ]
    assert digests[-1] == rendered_in_full(events[:-3])


def test_a_session_may_begin_with_its_agent() -> None:
    events = log_of(AgentResponse(text="Hello."), AgentResponse(text="Anybody?"))

    digests = [digest for _, digest in RawRequests(events).digests()]

    assert digests == [rendered_in_full([]), rendered_in_full(events[:1])]
