"""The wire protocols of providers, one module for each."""

from __future__ import annotations

from typing import Final

from refold.adapters.proxy.conversation import WireProtocol
from refold.adapters.proxy.protocols import (
    anthropic,
    gemini,
    ollama,
    openai_chat,
    openai_responses,
)

PROTOCOLS: Final[tuple[WireProtocol, ...]] = (
    anthropic,
    openai_chat,
    openai_responses,
    gemini,
    ollama,
)


def of(method: str, path: str) -> WireProtocol | None:
    """Return the protocol of a request; None for one that is not recorded.

    path: behind the prefix of the upstream, with or without its query.
    """
    for protocol in PROTOCOLS:
        if protocol.matches(method, path):
            return protocol
    return None


def named(name: str) -> WireProtocol:
    """Return the protocol with this ``NAME``.  Raises KeyError."""
    for protocol in PROTOCOLS:
        if name == protocol.NAME:
            return protocol
    raise KeyError(name)
