"""The tokens of a context as Claude's provider counts them, asked for each time."""

from __future__ import annotations

from typing import Any

import anthropic

from refold.adapters.claude.failures import failure
from refold.domain.errors import CountingFailed
from refold.projections.token_counting import Messages


class AnthropicCounter:
    """Has the Messages API count, which costs a request but no tokens.

    The request is sent the whole context, which is redacted as the log is.  The API
    counts no server tools, and no images and documents that are given by a URL.

    client:  one of the SDK's; it has the key and the base URL.
    timeout: seconds for each attempt; ``max_retries`` are those after the first.
    """

    def __init__(
        self,
        client: anthropic.Anthropic,
        *,
        timeout: float = 30,
        max_retries: int = 2,
    ) -> None:
        self._timeout = timeout
        self._client = client.with_options(timeout=timeout, max_retries=max_retries)

    def count(
        self,
        messages: Messages,
        system: str | None = None,
        tools: Messages = (),
        *,
        model: str,
    ) -> int:
        """See TokenCounter.  Raises CountingFailed."""
        request: dict[str, Any] = {"model": model, "messages": list(messages)}
        if system:
            request["system"] = system
        if tools:
            request["tools"] = list(tools)
        try:
            counted: Any = self._client.messages.count_tokens(**request)
        except anthropic.AnthropicError as error:
            # What the SDK raises carries the request: it is not passed on.
            reason = failure(error, timeout=self._timeout).reason
            raise CountingFailed(reason) from None
        tokens = getattr(counted, "input_tokens", None)
        if not isinstance(tokens, int):
            raise CountingFailed("the answer is no count: check the base URL")
        return tokens
