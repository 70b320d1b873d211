"""Messages of the Messages API, with the system prompt in a field of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from refold.adapters.importers import base, messages
from refold.adapters.importers.openai import origin_of, skip_header

NAME = "anthropic"


def recognises(source: base.Source) -> bool:
    """Whether these are chat messages with parts that only this API has."""
    return messages.dialect(source) == "anthropic"


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each list of messages."""
    for conversation in messages.conversations(source):
        recording = base.Recording(NAME, source.name)
        header = conversation.header
        shared = base.Origin("", model=base.text(header, "model"))
        if header.get("system") is not None:
            place = " ".join(filter(None, (conversation.place, "system")))
            origin = replace(shared, place=place, model=None)
            recording.take([messages.system(header["system"])], origin)
        for message in conversation.messages:
            recording.take(_pieces(message), origin_of(message, shared))
        skip_header(recording, conversation)
        yield recording.transcript(base.session_name(conversation.session))


def _pieces(message: messages.Message) -> Iterator[base.PieceOrSkipped]:
    value = message.value
    content = value.get("content")
    match value.get("role"):
        case "system":
            yield messages.system_message(content)
        case "user":
            yield from messages.user(content)
        case "assistant":
            yield from messages.agent(content, stop_reason=value.get("stop_reason"))
        case role:
            yield messages.unknown_role(role)
