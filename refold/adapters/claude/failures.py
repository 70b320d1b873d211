"""What went wrong with a request to Claude, in words that hold none of its content."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import anthropic

from refold.domain.errors import SummarizerFailed

if TYPE_CHECKING:
    from anthropic import APIResponse
    from anthropic.types import Message

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
    wait = _wait(response.headers.get("retry-after"))
    if response.status_code >= 400 and wait > LONGEST_WAIT_SEC:
        response.close()
        raise SummarizerFailed(
            f"HTTP {response.status_code}, not to be asked again for {wait:.0f} s"
        )
    return response


def _wait(header: str | None) -> float:
    try:
        return float(header or 0)
    except ValueError:  # a date, which the API does not send
        return 0


def _status(error: anthropic.APIStatusError) -> str:
    kind = _plain(error.type)
    said = f"HTTP {error.status_code}{f' {kind}' if kind else ''}{_attempts(error)}"
    request_id = _plain(error.request_id)
    hint = _HINTS.get(error.status_code)
    if error.status_code == 400 and "too long" in (error.api_message or ""):
        hint = "the source is too long for the model"
    return said + (f" ({request_id})" if request_id else "") + _after_colon(hint)


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


def _after_colon(hint: str | None) -> str:
    return f": {hint}" if hint else ""
