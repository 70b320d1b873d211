"""Requests of Anthropic's Messages API, as its SDK takes them."""

from __future__ import annotations

from collections import Counter

from refold.adapters.exporters import base
from refold.adapters.exporters.base import Entry

NAME = "anthropic"
IS_LINES = False


def write(conversation: base.Conversation, _: base.Target) -> base.Written:
    """Return the system prompt, the tools and the messages of the context."""
    request: Entry = {}
    if conversation.model:
        request["model"] = conversation.model
    if conversation.system:
        request["system"] = conversation.system
    if conversation.tools:
        request["tools"] = list(conversation.tools)
    request["messages"] = [
        {"role": message.role, "content": message.blocks}
        for message in conversation.messages
    ]
    return base.Written([request], Counter())
