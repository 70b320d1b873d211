"""The Messages API's messages: a system prompt beside them, everything in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from refold.adapters.importers import messages as blocks, messages as chat
from refold.adapters.importers.base import (
    Found,
    Origin,
    Recording,
    Skipped,
    Source,
    Transcript,
    mapping,
    session_name,
    text,
)
from refold.adapters.importers.openai import origin_of, skip_header


class Anthropic:
    """Reads messages whose calls and results are content blocks."""

    name = "anthropic"

    def recognises(self, source: Source) -> bool:
        """Whether these are chat messages, and some of them can only be of this API."""
        return chat.dialect(source) == "anthropic"

    def read(self, source: Source) -> Iterator[Transcript]:
        """A transcript for each list of messages."""
        for conversation in chat.conversations(source):
            recording = Recording(self.name, source.name)
            header = conversation.header
            shared = Origin("", model=text(header.get("model")))
            if header.get("system") is not None:
                place = " ".join(filter(None, (conversation.place, "system")))
                origin = replace(shared, place=place, model=None)
                recording.take([blocks.system(header["system"])], origin)
            for message in conversation.messages:
                recording.take(_found(message), origin_of(message, shared))
            skip_header(recording, conversation)
            yield recording.transcript(session_name(conversation.session))


def _found(message: chat.Message) -> Iterator[Found]:
    value = mapping(message.value)
    content = value.get("content")
    match value.get("role"):
        case "system":
            yield blocks.system(content)
        case "user":
            yield from blocks.user(content)
        case "assistant":
            yield from blocks.agent(content, stop_reason=value.get("stop_reason"))
        case str():
            yield Skipped("", "a message of a role that is not known")
        case _:
            yield Skipped("", "no message: it is no object with a role")
