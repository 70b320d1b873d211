"""An export that is imported again gives the context that was exported."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from refold.domain.envelope import Envelope
from refold.projections.context.strategies.spec import parse
from tests.exporters.exporting import (
    comparable,
    context_of,
    transcript_of,
    view_of,
    write,
    written,
)
from tests.projections.logs import logs

FORMS = ("claude-code", "codex", "anthropic", "openai")
STRATEGIES = {
    "keep_all": parse("keep_all"),
    "turn_window": parse("turn_window:full_turns=1,cached_turns=1,summary_tokens=40"),
    "clearing": parse("tool_clearing:trigger_tool_uses=2,keep=1"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(events=logs())
def test_an_imported_export_gives_the_same_context(
    name: str, events: list[Envelope]
) -> None:
    view = view_of(events, STRATEGIES[name])
    if not view.messages:
        return

    for form in FORMS:
        with TemporaryDirectory() as folder:
            path = write(Path(folder), written(view, events, form), form)
            context = context_of(transcript_of(path, form))

        assert comparable(context, form) == comparable(view.messages, form), form


@settings(max_examples=25, deadline=None)
@given(events=logs())
def test_the_messages_of_the_messages_api_are_those_of_the_context(
    events: list[Envelope],
) -> None:
    view = view_of(events)
    if not view.messages:
        return

    (request,) = written(view, events, "anthropic").values

    assert request["messages"] == view.messages
    assert request.get("system") == view.system
