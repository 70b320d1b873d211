"""The importer ``helpdesk``: each ticket becomes a session."""

from collections.abc import Iterator
from typing import Any

from refold.adapters.importers import base

NAME = "helpdesk"


def recognises(source: base.Source) -> bool:
    """Whether the file is an export of the help desk."""
    return "helpdesk" in base.mapping(source.document)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Read a transcript for each ticket."""
    for number, ticket in enumerate(base.each(source.document, "tickets")):
        recording = base.Recording(NAME, source.name)
        for index, post in enumerate(base.each(ticket, "posts")):
            place = f"tickets[{number}].posts[{index}]"
            origin = base.Origin(place, ts=base.moment(post, "at"))
            recording.take([_event(post)], origin)
        yield recording.transcript(base.session_name(ticket, "number"))


def _event(post: dict[str, Any]) -> base.Piece | base.Skipped:
    text = base.text(post, "text") or ""
    match base.text(post, "by"):
        case "customer":
            return base.Piece("user_input", {"text": text})
        case "agent":
            return base.Piece("agent_response", {"text": text})
    return base.Skipped("", "a post by neither the customer nor the agent")
