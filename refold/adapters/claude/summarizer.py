"""The summarizer ``anthropic``, which asks Claude, and a counter of tokens."""

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

SUMMARY_PROMPT: Final = "summary-1"
# The prompt for a summary that stands next to the words of the user.
BESIDE_USER_PROMPT: Final = "summary-2"
SCOPE_PROMPT: Final = "scope-1"
NOTES_PROMPT: Final = "notes-1"
WORDS: Final = "{words}"


class Prompt(NamedTuple):
    """A prompt with the placeholder ``{words}`` for the length of the answer.

    name: recorded with each summary.  A released file of ``prompts/`` never changes: a
          new wording has a new number, so that a recorded name still means one text.
    """

    name: str
    text: str

    @classmethod
    def named(cls, name: str) -> Prompt:
        """Return the prompt in the file of this name."""
        file = files(__package__) / "prompts" / f"{name}.txt"
        return cls(name, file.read_text(encoding="utf-8").strip())

    @classmethod
    def for_notes(cls, source: Source) -> Prompt:
        """Return the prompt for rewriting notes: the strategy's, then Refold's rules.

        Raises SummarizerFailed if the strategy has none.
        """
        notes = source.notes
        if notes is None or not notes.compression_prompt:
            raise SummarizerFailed("no prompt says how to rewrite the notes")
        parts = [notes.compression_prompt]
        if notes.recent_memories_subprompt:
            parts.append(notes.recent_memories_subprompt)
        parts.append(cls.named(NOTES_PROMPT).text)
        text = "\n\n".join(parts)
        recent = notes.num_recent_memories_to_keep
        text = text.replace("{compression_target}", str(notes.lines))
        text = text.replace("{num_recent_memories_to_keep}", str(recent))
        return cls(NOTES_PROMPT, text)

    @classmethod
    def own(cls, text: str) -> Prompt:
        """Return a prompt with the caller's text.

        Without ``{words}`` in the text, a rule about the length is added to it.

        Raises InvalidConfiguration if the text is empty.
        """
        if not text.strip():
            raise InvalidConfiguration(
                "the summarizer's prompt is empty: leave it out to use Refold's"
            )
        if WORDS not in text:
            text = f"{text.rstrip()}\n\nUse at most {WORDS} words."
        return cls(f"own-{text_digest(text)[:12]}", text)

    def within(self, words: int) -> str:
        """Return the text to send for a summary of at most this many words."""
        return self.text.replace(WORDS, str(words))


def tagged(source: Source) -> str:
    """Return the text of a source in tags, one for each earlier summary and the log.

    The names of the tags contain a digest of the text, so that the text cannot close
    them.
    """
    mark = source.digest[:12]
    parts = [(f"earlier-{mark}", summary) for summary in source.summaries]
    log = source.text
    if source.summaries:
        log = log.removeprefix("\n".join(source.summaries)).removeprefix("\n")
    if log:
        parts.append((f"log-{mark}", log))
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts)


LONGEST_WAIT_SEC: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")
_HINTS: Final = {
    401: "check the key in ANTHROPIC_API_KEY",
    403: "this key has no permission for it",
    404: "check the name of the model and the base URL",
    413: "the source is too long for one request",
}


def failure(error: anthropic.AnthropicError, *, timeout: float) -> SummarizerFailed:
    """Return the error to raise for an error of the SDK.

    It does not contain the SDK's message, in which the API may quote the request.
    """
    if isinstance(error, anthropic.APITimeoutError):
        return SummarizerFailed(f"no answer within {timeout:g} s{_attempts(error)}")
    if isinstance(error, anthropic.APIStatusError):
        return SummarizerFailed(_status(error))
    if isinstance(error, anthropic.APIConnectionError):
        return SummarizerFailed(f"the API could not be reached{_attempts(error)}")
    return SummarizerFailed(f"the SDK raised {type(error).__name__}")


def check_stop(message: Message, *, max_tokens: int) -> None:
    """Raise SummarizerFailed for a refusal, and for an answer that was cut off."""
    match message.stop_reason:
        case "end_turn" | "stop_sequence":
            return
        case "refusal":
            reason = "the model refused"
            if message.stop_details:
                reason += _in_brackets(message.stop_details.category)
            raise SummarizerFailed(reason)
        case "max_tokens":
            raise SummarizerFailed(
                f"the answer was cut off after {max_tokens} tokens: raise max_tokens"
            )
        case "model_context_window_exceeded":
            raise SummarizerFailed("source and answer are too long for the model")
        case other:
            raise SummarizerFailed(f"the answer did not end{_in_brackets(other)}")


def refuse_long_waits(request: Any, call_next: Any) -> APIResponse[Any]:
    """Raise SummarizerFailed if the server asks for a wait of over a minute.

    This is a middleware of the SDK, which would wait for any time.
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
    """Return the reason of an HTTP error: status, kind, attempts, request, and hint."""
    reason = f"HTTP {error.status_code}"
    kind = _plain(error.type)
    if kind:
        reason += f" {kind}"
    reason += _attempts(error)
    reason += _in_brackets(error.request_id)
    hint = _HINTS.get(error.status_code)
    if error.status_code == 400 and "too long" in (error.api_message or ""):
        hint = "the source is too long for the model"
    if hint is not None:
        reason += f": {hint}"
    return reason


def _attempts(error: anthropic.APIError) -> str:
    """Return the number of attempts as text, if there was more than one."""
    # The SDK counts its retries in this header.
    retries = error.request.headers.get("x-stainless-retry-count", "0")
    if not retries.isdecimal() or int(retries) == 0:
        return ""
    return f" after {int(retries) + 1} attempts"


def _plain(word: object) -> str:
    """Return a word that a server sent if it is a plain name, or nothing."""
    if isinstance(word, str) and _WORD.fullmatch(word):
        return word
    return ""


def _in_brackets(word: object) -> str:
    """Return a plain name in brackets, or nothing."""
    name = _plain(word)
    if not name:
        return ""
    return f" ({name})"


DEFAULT_MODEL: Final = "claude-sonnet-5-5"
_ANSWER_TOKENS: Final = 4_096
_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)


class AnthropicSummarizer:
    """Asks Claude for summaries through the Messages API.

    The model gets a prompt and the text of the source, which is the redacted log, and
    nothing else of the session.

    client:      a client of the SDK, which may have its own base URL, proxy, or
                 middleware.  By default, one is made from the SDK's variables, such as
                 ``ANTHROPIC_API_KEY`` and ``ANTHROPIC_BASE_URL``.  That one does not
                 wait for over a minute if the API asks for it.
    max_tokens:  the limit of an answer, with thinking; by default twice the tokens of
                 the summary plus 4 096.
    timeout:     seconds for each attempt.
    max_retries: the number of attempts after the first.
    temperature: not sent by default, because newer models accept none.
    prompt:      replaces Refold's prompt.  ``{words}`` in it becomes the length of the
                 summary.  It must ask for an answer between ``<summary>`` tags.

    Raises InvalidConfiguration for values that cannot work, or if there is no key.
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
        _check("model", model, is_valid=bool(model.strip()))
        _check("max_tokens", max_tokens, is_valid=max_tokens is None or max_tokens > 0)
        _check("timeout", timeout, is_valid=timeout > 0)
        _check("max_retries", max_retries, is_valid=max_retries >= 0)
        _check("temperature", temperature, is_valid=0 <= (temperature or 0) <= 1)
        self.model = model
        if prompt is None:
            self.prompt = Prompt.named(SUMMARY_PROMPT)
        else:
            self.prompt = Prompt.own(prompt)
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._timeout = timeout
        if client is None:
            client = own_client()
        self._client = client.with_options(timeout=timeout, max_retries=max_retries)

    def for_strategy(
        self, *, prompt: str | None, model: str | None
    ) -> AnthropicSummarizer:
        """Return a copy with this prompt and model; None leaves its own."""
        changed = copy(self)
        if prompt is not None:
            changed.prompt = Prompt.own(prompt)
        if model:
            changed.model = model
        return changed

    def wrote(self, by: SummarizerRef) -> bool:
        """Whether it would ask the same model with the same prompt and temperature."""
        return (
            by.kind == "anthropic"
            and by.params.get("asked", by.model) == self.model
            and self._asks_with(by.params.get("prompt"))
            and by.params.get("temperature") == self._temperature
        )

    def _asks_with(self, prompt_name: object) -> bool:
        names = {self.prompt.name}
        if self.prompt.name == SUMMARY_PROMPT:
            names.add(BESIDE_USER_PROMPT)
        return prompt_name in names

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Ask for a summary of about ``target_tokens``, at 0.75 words a token.

        Raises SummarizerFailed if the model writes none, and SummaryRefused for a
        summary that is empty or has more words than its source.
        """
        if not source.words:
            raise SummarizerFailed("there are no words to summarise")
        words = max(1, min(target_tokens * 3 // 4, source.words))
        prompt = self._prompt_for(source)
        prompt_text = prompt.within(words)
        max_tokens = self._max_tokens or 2 * target_tokens + _ANSWER_TOKENS
        message = self._ask(prompt_text, tagged(source), max_tokens)
        check_stop(message, max_tokens=max_tokens)
        summary = _summary_in(message)
        check_summary(summary, source)
        return Written(
            summary,
            self._ref(message, max_tokens, prompt),
            usage=_usage_of(message),
            prompt_digest=text_digest(prompt_text),
        )

    def _prompt_for(self, source: Source) -> Prompt:
        """Return the prompt for this kind of source."""
        if source.kind == "session":
            is_own = self.prompt.name != SUMMARY_PROMPT
            if is_own or not source.user_stays:
                return self.prompt
            return Prompt.named(BESIDE_USER_PROMPT)
        if source.kind == "scope":
            return Prompt.named(SCOPE_PROMPT)
        return Prompt.for_notes(source)

    def _ask(self, prompt: str, source: str, max_tokens: int) -> Message:
        """Send a request, and return the model's message.

        Raises SummarizerFailed.
        """
        # The SDK has no argument for the temperature, but some models still accept it.
        extra_body: dict[str, float] = {}
        if self._temperature is not None:
            extra_body["temperature"] = self._temperature
        try:
            answer = self._client.messages.create(
                model=self.model,
                max_tokens=max_tokens,
                system=prompt,
                messages=[{"role": "user", "content": source}],
                extra_body=extra_body,
            )
        except anthropic.AnthropicError as error:
            # The SDK's error carries the request, so it must not be the cause.
            raise failure(error, timeout=self._timeout) from None
        # The SDK does not check the answer of another server.
        match answer:
            case anthropic.types.Message(content=list(), model=str()):
                return answer
        raise SummarizerFailed("the answer is not a message: check the base URL")

    def _ref(self, message: Message, max_tokens: int, prompt: Prompt) -> SummarizerRef:
        """Return the record of the model and the parameters of a summary."""
        params: JsonObject = {"prompt": prompt.name, "max_tokens": max_tokens}
        if self._temperature is not None:
            params["temperature"] = self._temperature
        if message.model != self.model:
            params["asked"] = self.model
        return SummarizerRef(kind="anthropic", model=message.model, params=params)


def _summary_in(message: Message) -> str:
    """Return the text between the tags of an answer.

    Raises SummarizerFailed if there are no tags.
    """
    texts = [block.text for block in message.content if block.type == "text"]
    _, start_tag, rest = "".join(texts).partition("<summary>")
    summary, end_tag, _ = rest.rpartition("</summary>")
    if not start_tag or not end_tag:
        raise SummarizerFailed("the answer has no <summary> tags")
    return summary.strip()


def _usage_of(message: Message) -> JsonObject | None:
    """Return the numbers of tokens that the API reports; None without any."""
    usage: JsonObject = {}
    for name in _COUNTS:
        count = getattr(message.usage, name, None)
        if isinstance(count, int):
            usage[name] = count
    return usage or None


def _check(name: str, value: object, *, is_valid: bool) -> None:
    """Raise InvalidConfiguration for a value that is not valid."""
    if not is_valid:
        raise InvalidConfiguration(f"the summarizer cannot work with {name}={value!r}")


def own_client() -> anthropic.Anthropic:
    """Return a client made from the SDK's variables and profiles.

    Raises InvalidConfiguration if they have no key, or do not work.
    """
    try:
        client = anthropic.Anthropic(middleware=[refuse_long_waits])
    except anthropic.AnthropicError as error:
        raise InvalidConfiguration(
            f"the Anthropic SDK cannot be set up ({type(error).__name__}): check its "
            "variables ANTHROPIC_…"
        ) from None
    headers = {name.lower() for name in client.default_headers}
    has_key = "x-api-key" in headers or "authorization" in headers
    if client.credentials is None and not has_key:
        raise InvalidConfiguration(
            "there is no key for Claude: set ANTHROPIC_API_KEY, or use abridged"
        )
    return client


class AnthropicCounter:
    """Lets the Messages API count tokens, which costs a request but no tokens.

    The API gets the whole context, which is redacted like the log.  It does not count
    server tools, nor images and documents with a URL.

    client:      a client of the SDK, with the key and the base URL.
    timeout:     seconds for each attempt.
    max_retries: the number of attempts after the first.
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
        if system:
            request["system"] = system
        if tools:
            request["tools"] = list(tools)
        try:
            answer: Any = self._client.messages.count_tokens(**request)
        except anthropic.AnthropicError as error:
            # The SDK's error carries the request, so it must not be the cause.
            reason = failure(error, timeout=self._timeout).reason
            raise CountingFailed(reason) from None
        # The SDK does not check the answer of another server.
        tokens = getattr(answer, "input_tokens", None)
        if not isinstance(tokens, int):
            raise CountingFailed("the answer is not a count: check the base URL")
        return tokens
