"""A request that is rendered from recorded events is read as the same events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold import open as open_store
from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import WireRequest
from refold.domain.events import Event
from tests.fuzz import wire
from tests.proxy.wire import conversation
from tests.support.provider_shapes import Protocol


def _rendered(request: WireRequest) -> dict[str, Any]:
    """Return the body that a context of the request's events renders to."""
    events: list[Event] = []
    for message in request.messages:
        events += message.events
    with open_store("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(events)
        view = session.context("keep_all")
        return view.to_request(model="some-model", max_tokens=100)


@pytest.mark.parametrize("name", wire.PATHS)
def test_a_rendered_request_has_the_events_of_the_request(name: Protocol) -> None:
    body = json.dumps(wire.REQUESTS[name]).encode()
    request = protocols.named(name).request(body, {}, wire.PATHS[name])
    messages = protocols.named("anthropic-messages")

    first = messages.request(json.dumps(_rendered(request)).encode(), {}, "")
    second = messages.request(json.dumps(_rendered(first)).encode(), {}, "")

    assert first.warnings == ()
    assert second.messages == first.messages
    spoken = [event for event in conversation(request) if event[0] in ("user", "agent")]
    assert [event for event in conversation(first) if event in spoken] == spoken
