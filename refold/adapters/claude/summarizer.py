"""anthropic: the summarizer that asks Claude."""

from __future__ import annotations

import re
from copy import copy
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anthropic

from refold.domain.canonical import text_digest
from refold.domain.errors import CountingFailed, InvalidConfiguration, SummarizerFailed
from refold.domain.events import JsonObject, SummarizerRef
from refold.projections.context.compaction import Source, Written, check_summary
from refold.projections.tokens import Messages

if TYPE_CHECKING:
    from anthropic import APIResponse
    from anthropic.types import Message

NEWEST: Final = "summary-1"
SCOPE: Final = "scope-1"
NOTES: Final = "notes-1"
WORDS: Final = "{words}"


class Prompt(NamedTuple):
    """A prompt with a place for how many words the answer may have.

    A file of ``prompts/`` is never changed once it was released: another wording is
    another number, so that a recorded name still says what was asked.
    """

    name: str
    text: str

    @classmethod
    def named(cls, name: str) -> Prompt:
        """The prompt in the file of that name."""
        file = files(__package__) / "prompts" / f"{name}.txt"
        return cls(name, file.read_text(encoding="utf-8").strip())

    @classmethod
    def for_notes(cls, source: Source) -> Prompt:
        """The prompt for rewriting notes: what the strategy asks, then the rules."""
        wanted = source.notes
        if wanted is None or not wanted.compression_prompt:
            raise SummarizerFailed("no prompt says how to rewrite the notes")
        own = (wanted.compression_prompt, wanted.recent_memories_subprompt)
        rules = cls.named(NOTES).text
        text = "\n\n".join(part for part in (*own, rules) if part)
        recent = wanted.num_recent_memories_to_keep
        text = text.replace("{compression_target}", str(wanted.lines))
        text = text.replace("{num_recent_memories_to_keep}", str(recent))
        return cls(NOTES, text)

    @classmethod
    def own(cls, text: str) -> Prompt:
        """A prompt of the caller's.

        Where it does not hold ``{words}``, the rule of length is put behind it.

        Raises InvalidConfiguration if it is empty.
        """
        if not text.strip():
            raise InvalidConfiguration(
                "the prompt of the summarizer is empty: leave it out for Refold's own"
            )
        if WORDS not in text:
            text = f"{text.rstrip()}\n\nUse at most {WORDS} words."
        return cls(f"own-{text_digest(text)[:12]}", text)

    def within(self, words: int) -> str:
        """The text that is sent, for a summary of so many words."""
        return self.text.replace(WORDS, str(words))


def tagged(source: Source) -> str:
    """The text of a source in tags, what it absorbs apart from the log.

    The names of the tags hold a part of the text's own digest: no text can close
    them before its end.
    """
    mark, log = source.digest[:12], source.text
    parts = [(f"earlier-{mark}", text) for text in source.summaries]
    if parts:
        log = log.removeprefix("\n".join(source.summaries)).removeprefix("\n")
    if log:
        parts.append((f"log-{mark}", log))
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts)


LONGEST_WAIT_SEC: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_HINTS: Final = {
    401: "check the key in ANTHROPIC_API_KEY",
    403: "this key may not do that",
    404: "check the name of the model and the base URL",
    413: "the source is too long for one request",
}


def failure(error: anthropic.AnthropicError, *, timeout: float) -> SummarizerFailed:
    """What is said of an error of the SDK.

    Never its message: the API may quote the request there.
    """
    if isinstance(error, anthropic.APITimeoutError):
        return SummarizerFailed(f"no answer within {timeout:g} s{_attempts(error)}")
    if isinstance(error, anthropic.APIStatusError):
        return SummarizerFailed(_status(error))
    if isinstance(error, anthropic.APIConnectionError):
        return SummarizerFailed(f"the API could not be reached{_attempts(error)}")
    return SummarizerFailed(f"the SDK raised {type(error).__name__}")


def check_stop(message: Message, *, max_tokens: int) -> None:
    """Let an answer pass that the model ended by itself.

    Raises SummarizerFailed for a refusal, and for an answer that was cut off.
    """
    match message.stop_reason:
        case "end_turn" | "stop_sequence":
            return
        case "refusal":
            category = message.stop_details.category if message.stop_details else None
            raise SummarizerFailed(f"the model refused{_in_brackets(category)}")
        case "max_tokens":
            raise SummarizerFailed(
                f"the answer was cut off after {max_tokens} tokens: raise max_tokens"
            )
        case "model_context_window_exceeded":
            raise SummarizerFailed("source and answer are too long for the model")
        case other:
            raise SummarizerFailed(f"the answer did not end{_in_brackets(other)}")


def refuse_long_waits(request: Any, call_next: Any) -> APIResponse[Any]:
    """A middleware of the SDK, which else waits as long as a server tells it to.

    Raises SummarizerFailed for what is to be asked again in over a minute.
    """
    response: APIResponse[Any] = call_next(request)
    try:
        wait = float(response.headers.get("retry-after") or 0)
    except ValueError:  # a date, which the API does not send
        wait = 0
    if response.status_code >= 400 and wait > LONGEST_WAIT_SEC:
        response.close()
        raise SummarizerFailed(
            f"HTTP {response.status_code}, no retry for {wait:.0f} s"
        )
    return response


def _status(error: anthropic.APIStatusError) -> str:
    kind = _plain(error.type)
    said = f"HTTP {error.status_code}{f' {kind}' if kind else ''}{_attempts(error)}"
    hint = _HINTS.get(error.status_code)
    if error.status_code == 400 and "too long" in (error.api_message or ""):
        hint = "the source is too long for the model"
    return f"{said}{_in_brackets(error.request_id)}{f': {hint}' if hint else ''}"


def _attempts(error: anthropic.APIError) -> str:
    """How often it was tried, if more than once: the SDK counts in a header."""
    count = error.request.headers.get("x-stainless-retry-count", "0")
    tried = int(count) + 1 if count.isdecimal() else 1
    return f" after {tried} attempts" if tried > 1 else ""


def _plain(word: object) -> str:
    """A name that a server sent, if it looks like one."""
    return word if isinstance(word, str) and _WORD.fullmatch(word) else ""


def _in_brackets(word: object) -> str:
    return f" ({_plain(word)})" if _plain(word) else ""


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
        self.model = model
        self.prompt = Prompt.named(NEWEST) if prompt is None else Prompt.own(prompt)
        self._max_tokens, self._temperature = max_tokens, temperature
        self._timeout = timeout
        self._client = (client or own_client()).with_options(
            timeout=timeout, max_retries=max_retries
        )

    def for_strategy(
        self, *, prompt: str | None, model: str | None
    ) -> AnthropicSummarizer:
        """The same with this prompt and model, as far as they are given."""
        other = copy(self)
        if prompt is not None:
            other.prompt = Prompt.own(prompt)
        other.model = model or self.model
        return other

    def wrote(self, by: SummarizerRef) -> bool:
        """Whether it would ask the same model, with the same prompt, in its place."""
        asked = by.params.get("asked", by.model), by.params.get("prompt")
        warmth = by.params.get("temperature")
        own = (self.model, self.prompt.name), self._temperature
        return by.kind == "anthropic" and (asked, warmth) == own

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Ask for a summary of about ``target_tokens``, in 0.75 words a token.

        Raises SummarizerFailed if none was written, SummaryRefused for one that is
        empty or has more words than its source.
        """
        if not source.words:
            raise SummarizerFailed("there are no words to summarise")
        words = max(1, min(target_tokens * 3 // 4, source.words))
        prompt = self.prompt
        if source.kind != "session":
            scoped = source.kind == "scope"
            prompt = Prompt.named(SCOPE) if scoped else Prompt.for_notes(source)
        asked = prompt.within(words)
        max_tokens = self._max_tokens or 2 * target_tokens + _ANSWER_TOKENS
        message = self._ask(asked, tagged(source), max_tokens)
        check_stop(message, max_tokens=max_tokens)
        said = "".join(b.text for b in message.content if b.type == "text")
        _, opened, rest = said.partition("<summary>")
        text, closed, _ = rest.rpartition("</summary>")
        if not (opened and closed):
            raise SummarizerFailed("the answer has no <summary> tags")
        text = text.strip()
        check_summary(text, source)
        counts = ((name, getattr(message.usage, name, None)) for name in _COUNTS)
        return Written(
            text,
            self._ref(message, max_tokens, prompt),
            usage={name: n for name, n in counts if isinstance(n, int)} or None,
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
        match answer:  # the SDK takes what another server sends too
            case anthropic.types.Message(content=list(), model=str()):
                return answer
        raise SummarizerFailed("the answer is not a message: check the base URL")

    def _ref(self, message: Message, max_tokens: int, prompt: Prompt) -> SummarizerRef:
        params: JsonObject = {"prompt": prompt.name, "max_tokens": max_tokens}
        if self._temperature is not None:
            params["temperature"] = self._temperature
        if message.model != self.model:
            params["asked"] = self.model
        return SummarizerRef(kind="anthropic", model=message.model, params=params)


def _check(name: str, value: object, *, fits: bool) -> None:
    if not fits:
        raise InvalidConfiguration(f"the summarizer cannot work with {name}={value!r}")


def own_client() -> anthropic.Anthropic:
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
            "there is no key for Claude: set ANTHROPIC_API_KEY, or use abridged"
        )
    return client


class AnthropicCounter:
    """Has the Messages API count, which costs a request but no tokens.

    The request is sent the whole context, which is redacted as the log is.  The API
    counts no server tools, and no images and documents that are given by a URL.

    client:  one of the SDK's; it has the key and the base URL.
    timeout: seconds for each attempt; ``max_retries`` are those after the first.
    """

    def __init__(
        self, client: anthropic.Anthropic, *, timeout: float = 30, max_retries: int = 2
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
        request |= {"system": system} if system else {}
        request |= {"tools": list(tools)} if tools else {}
        try:
            counted: Any = self._client.messages.count_tokens(**request)
        except anthropic.AnthropicError as error:
            # What the SDK raises carries the request: it is not passed on.
            reason = failure(error, timeout=self._timeout).reason
            raise CountingFailed(reason) from None
        tokens = getattr(counted, "input_tokens", None)
        if not isinstance(tokens, int):
            raise CountingFailed("the answer is not a count: check the base URL")
        return tokens
