"""anthropic: the summarizer that asks Claude."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

import anthropic

from refold.adapters.claude.failures import check_stop, failure, refuse_long_waits
from refold.adapters.claude.prompt import SCOPE, Prompt, tagged
from refold.domain.canonical import text_digest
from refold.domain.errors import InvalidConfiguration, SummarizerFailed
from refold.domain.events import JsonObject, SummarizerRef
from refold.projections.context.summarizer import Written, check_summary

if TYPE_CHECKING:
    from anthropic.types import Message, Usage

    from refold.projections.context.source import Source

DEFAULT_MODEL: Final = "claude-sonnet-5-5"
_ANSWER_TOKENS: Final = 4_096
_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)


class AnthropicSummarizer:
    """Has Claude write the summaries, through the Messages API.

    The model is sent a prompt and the text of the source, which is the redacted log;
    nothing else of the session.

    client:      one of the SDK's, to share, with a base URL, a proxy or middleware of
                 its own.  Left out, the SDK makes one from its variables, such as
                 ``ANTHROPIC_API_KEY`` and ``ANTHROPIC_BASE_URL``; only that one
                 refuses to wait for over a minute when the API says so.
    max_tokens:  where an answer is cut off, thinking included; if left out, twice
                 what the summary may have, and 4 096 more.
    timeout:     seconds for each attempt; ``max_retries`` are those after the first.
    temperature: sent only if given: newer models take none.
    prompt:      instead of Refold's own; ``{words}`` in it is how long a summary may
                 be, and the answer has to stand between ``<summary>`` tags.

    Raises InvalidConfiguration for a value that cannot work, and for want of a key.
    """

    def __init__(
        self,
        *,
        model: str = DEFAULT_MODEL,
        client: anthropic.Anthropic | None = None,
        max_tokens: int | None = None,
        timeout: float = 60,
        max_retries: int = 2,
        temperature: float | None = None,
        prompt: str | None = None,
    ) -> None:
        _check("model", model, fits=bool(model.strip()))
        _check("max_tokens", max_tokens, fits=max_tokens is None or max_tokens > 0)
        _check("timeout", timeout, fits=timeout > 0)
        _check("max_retries", max_retries, fits=max_retries >= 0)
        _check("temperature", temperature, fits=0 <= (temperature or 0) <= 1)
        self.model, self.prompt = model, _prompt(prompt)
        self._max_tokens, self._temperature = max_tokens, temperature
        self._timeout = timeout
        self._client = (client or _client()).with_options(
            timeout=timeout, max_retries=max_retries
        )

    def for_strategy(
        self, *, prompt: str | None, model: str | None
    ) -> AnthropicSummarizer:
        """The same with this prompt and model, as far as they are given."""
        other = copy(self)
        if prompt is not None:
            other.prompt = _prompt(prompt)
        other.model = model or self.model
        return other

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Ask for a summary of about ``target_tokens``, in 0.75 words a token.

        Raises SummarizerFailed if none was written, SummaryRefused for one that is
        empty or has more words than its source.
        """
        if not source.words:
            raise SummarizerFailed("there are no words to summarise")
        words = max(1, min(target_tokens * 3 // 4, source.words))
        prompt = self._prompt_for(source)
        asked = prompt.within(words)
        max_tokens = self._max_tokens or 2 * target_tokens + _ANSWER_TOKENS
        message = self._ask(asked, tagged(source), max_tokens)
        check_stop(message, max_tokens=max_tokens)
        text = _between_tags(message)
        check_summary(text, source)
        return Written(
            text,
            self._ref(message, max_tokens, prompt),
            usage=_counts(message.usage),
            prompt_digest=text_digest(asked),
        )

    def _ask(self, prompt: str, source: str, max_tokens: int) -> Message:
        # The SDK has no argument for it any more; models that take it still do.
        warmth = {} if self._temperature is None else {"temperature": self._temperature}
        try:
            answer = self._client.messages.create(
                model=self.model,
                max_tokens=max_tokens,
                system=prompt,
                messages=[{"role": "user", "content": source}],
                extra_body=warmth,
            )
        except anthropic.AnthropicError as error:
            # What the SDK raises carries the request: it is not passed on.
            raise failure(error, timeout=self._timeout) from None
        if not _is_message(answer):
            raise SummarizerFailed("the answer is no message: check the base URL")
        return answer

    def _prompt_for(self, source: Source) -> Prompt:
        match source.kind:
            case "session":
                return self.prompt
            case "scope":
                return Prompt.named(SCOPE)
        return Prompt.for_notes(source)

    def _ref(self, message: Message, max_tokens: int, prompt: Prompt) -> SummarizerRef:
        params: JsonObject = {"prompt": prompt.name, "max_tokens": max_tokens}
        if self._temperature is not None:
            params["temperature"] = self._temperature
        if message.model != self.model:
            params["asked"] = self.model
        return SummarizerRef(kind="anthropic", model=message.model, params=params)


def _prompt(text: str | None) -> Prompt:
    return Prompt.newest() if text is None else Prompt.own(text)


def _check(name: str, value: object, *, fits: bool) -> None:
    if not fits:
        raise InvalidConfiguration(f"the summarizer cannot work with {name}={value!r}")


def _client() -> anthropic.Anthropic:
    """A client by the SDK's own variables and profiles."""
    try:
        client = anthropic.Anthropic(middleware=[refuse_long_waits])
    except anthropic.AnthropicError as error:
        raise InvalidConfiguration(
            f"the Anthropic SDK cannot be set up ({type(error).__name__}): check its "
            "variables ANTHROPIC_…"
        ) from None
    names = {name.lower() for name in client.default_headers}
    if client.credentials is None and not names & {"x-api-key", "authorization"}:
        raise InvalidConfiguration(
            "there is no key for Claude: set ANTHROPIC_API_KEY, or take abridged"
        )
    return client


def _is_message(answer: Any) -> bool:
    """Whether it is what the API sends; the SDK takes what another server sends too."""
    return (
        isinstance(answer, anthropic.types.Message)
        and isinstance(answer.content, list)
        and isinstance(answer.model, str)
    )


def _between_tags(message: Message) -> str:
    text = "".join(block.text for block in message.content if block.type == "text")
    _, opened, rest = text.partition("<summary>")
    summary, closed, _ = rest.rpartition("</summary>")
    if not (opened and closed):
        raise SummarizerFailed("the answer has no <summary> tags")
    return summary.strip()


def _counts(usage: Usage | None) -> JsonObject | None:
    counts = {name: getattr(usage, name, None) for name in _COUNTS}
    return {name: n for name, n in counts.items() if isinstance(n, int)} or None
