"""Token counts of a context: estimated, calibrated, or counted by the provider.

These counts serve reports and filling a window.  Strategies decide by the estimates
stored with the events (``refold.domain.tokens``), so that a replay decides the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import chain
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownModel
from refold.domain.events import AgentResponse, JsonObject, Request, UserInput
from refold.domain.parts import media_tokens
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate_text
from refold.projections.context.view import View
from refold.projections.models import DEFAULT_TOKENIZER, Usage, model_info

_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BLANKS: Final = b" \t\r\n\v\f"
_WORD = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+")
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]"
    "|[\U00020000-\U0003ffff]"
)


class Features(NamedTuple):
    """The counts in a text or request that its tokens depend on.

    word:   parts of words in ASCII letters; ``readFile`` has two.
    letter: ASCII letters.
    mark:   ASCII characters that are neither letters nor whitespace.
    line:   newlines.
    cjk:    Chinese, Japanese, and Korean characters.
    other:  other characters outside of ASCII.
    frame:  tokens that do not depend on text: around messages and calls, of images.
    """

    word: int = 0
    letter: int = 0
    mark: int = 0
    line: int = 0
    cjk: int = 0
    other: int = 0
    frame: int = 0


def of_text(text: str) -> Features:
    """Return the features of a text."""
    ascii_only = text.encode("ascii", "ignore")
    no_letters = ascii_only.translate(None, _LETTERS)
    foreign = len(text) - len(ascii_only)
    cjk = sum(1 for _ in _CJK.finditer(text)) if foreign else 0
    return Features(
        word=sum(1 for _ in _WORD.finditer(ascii_only)),
        letter=len(ascii_only) - len(no_letters),
        mark=len(no_letters.translate(None, _BLANKS)),
        line=ascii_only.count(b"\n"),
        cjk=cjk,
        other=foreign - cjk,
    )


def of_request(
    messages: Iterable[Mapping[str, Any]],
    system: str | Sequence[Mapping[str, Any]] | None = None,
    tools: Iterable[Mapping[str, Any]] = (),
) -> Features:
    """Return the features of a request in the form of the Messages API."""
    parts = [*_of_content(system or "")]
    parts += [of_json(tool)._replace(frame=MESSAGE_OVERHEAD) for tool in tools]
    for message in messages:
        parts.append(Features(frame=MESSAGE_OVERHEAD))
        parts += _of_content(message["content"])
    return total(parts)


def of_json(value: Any) -> Features:
    """Return the features of a JSON value written without whitespace."""
    return of_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def total(parts: Iterable[Features]) -> Features:
    """Return the sum of features."""
    return Features(*map(sum, zip(*parts, Features(), strict=True)))


def _of_content(content: str | Sequence[Mapping[str, Any]]) -> Iterator[Features]:
    if isinstance(content, str):
        yield of_text(content)
    else:
        yield from chain(*map(_of_block, content))


def _of_block(block: Mapping[str, Any]) -> Iterator[Features]:
    match block:
        case {"type": "tool_use", "name": str(name), "input": arguments}:
            yield of_text(name)._replace(frame=2 * MESSAGE_OVERHEAD)
            yield of_json(arguments)
        case {"type": "tool_result"}:
            yield Features(frame=2 * MESSAGE_OVERHEAD)
            yield from _of_content(block.get("content") or "")
        case {"type": "redacted_thinking"}:
            # The length of encrypted data says nothing about its tokens.
            yield Features()
        case (
            {"type": "text", "text": str(text)}
            | {"type": "thinking", "thinking": str(text)}
            | {"source": {"type": "text", "data": str(text)}}
        ):
            yield of_text(text)
        case {"type": "image" | "document"}:
            yield Features(frame=media_tokens(block))
        case _:
            yield of_json(block)


# Standard deviations before any request is observed, as shares of a weight: of all
# weights together, and of each by itself.
_COMMON_DEVIATION: Final = 0.4
_OWN_DEVIATION: Final = 0.25
# The same for the tokens that a request costs in addition to its recorded content.
_UNRECORDED_DEVIATION: Final = 2_000.0
# The share by which requests differ from an estimate with perfect weights.
_NOISE: Final = 0.05
# A weight is used with at least this share of its starting value, so that noise never
# makes text free.
_LEAST_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Weights:
    """The tokens per feature, with their covariance.

    The last value is the tokens that every request costs in addition to its recorded
    content.

    spread: the covariance matrix of ``values``.
    start:  the values before any request was observed.
    seen:   the number of observed requests.
    """

    values: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...]
    start: tuple[float, ...]
    seen: int = 0

    @property
    def unrecorded(self) -> float:
        """The tokens that every request costs in addition to its recorded content."""
        return max(0.0, self.values[-1])

    def tokens(self, features: Features) -> float:
        """Return the cost of a text with these features; more text never costs less."""
        weighted: list[float] = []
        for value, start, count in zip(
            self.values, self.start, features[:-1], strict=False
        ):
            weighted.append(max(value, _LEAST_SHARE * start) * count)
        return features.frame + sum(weighted)

    def learned(self, features: Features, tokens: int) -> Weights:
        """Return the weights after a request that cost ``tokens``, above 0.

        One step of recursive least squares (a Kalman filter without a motion model).
        """
        # Shares of the request's cost, so that long requests do not dominate.
        observed = [count / tokens for count in features[:-1]] + [1 / tokens]
        gain = [_dot(row, observed) for row in self.spread]
        variance = _dot(observed, gain) + _NOISE**2
        error = 1 - features.frame / tokens - _dot(observed, self.values)
        values = tuple(
            value + step * error / variance
            for value, step in zip(self.values, gain, strict=True)
        )
        spread: list[tuple[float, ...]] = []
        for row, row_gain in zip(self.spread, gain, strict=True):
            reduced = [
                cell - row_gain * column_gain / variance
                for cell, column_gain in zip(row, gain, strict=True)
            ]
            spread.append(tuple(reduced))
        return Weights(values, tuple(spread), self.start, self.seen + 1)


def starting_weights(tokenizer: str) -> Weights:
    """Return the weights measured for a tokenizer; the default's if it was not."""
    weights = measured()
    start = (*weights.get(tokenizer, weights[DEFAULT_TOKENIZER]), 0.0)
    common = [_COMMON_DEVIATION * weight for weight in start]
    own_variance = [(_OWN_DEVIATION * max(weight, 0.05)) ** 2 for weight in start]
    own_variance[-1] = _UNRECORDED_DEVIATION**2
    spread: list[tuple[float, ...]] = []
    for index, deviation in enumerate(common):
        row = [deviation * other for other in common]
        row[index] += own_variance[index]
        spread.append(tuple(row))
    return Weights(start, tuple(spread), start)


@cache
def measured() -> Mapping[str, tuple[float, ...]]:
    """Return the weights of each measured tokenizer, in the order of the features."""
    tables = load_packaged_toml("refold.projections", "data", "tokenizers.toml")
    names = Features._fields[:-1]
    measured_weights: dict[str, tuple[float, ...]] = {}
    for tokenizer, weights in tables.items():
        measured_weights[tokenizer] = tuple(float(weights[name]) for name in names)
    return measured_weights


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


Messages: TypeAlias = Sequence[Mapping[str, Any]]


class TokenCounter(Protocol):
    """Counts the tokens of a request before it is sent."""

    def count(
        self,
        messages: Messages,
        system: str | None = None,
        tools: Messages = (),
        *,
        model: str,
    ) -> int:
        """Return the input tokens of a request in the form of the Messages API."""


class Observation(NamedTuple):
    """A request whose cost is known: its model, its features, its input tokens."""

    model: str
    features: Features
    tokens: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Estimates tokens offline, and improves with every request it learns from.

    Each count includes the tokens that the learned requests cost in addition to their
    recorded content, such as the provider's own prompt for tools.

    learned: by model.
    """

    learned: Mapping[str, Weights] = field(default_factory=dict)

    def count(
        self,
        messages: Messages,
        system: str | None = None,
        tools: Messages = (),
        *,
        model: str,
    ) -> int:
        """See TokenCounter.  An unknown model is counted as the newest one."""
        weights = self.weights(model)
        recorded = weights.tokens(of_request(messages, system, tools))
        return ceil(recorded + weights.unrecorded)

    def learn(self, observations: Iterable[Observation]) -> Calibrated:
        """Return a counter that has learned from these requests too."""
        learned = dict(self.learned)
        for model, features, tokens in observations:
            if tokens > 0:
                weights = learned.get(model) or self.weights(model)
                learned[model] = weights.learned(features, tokens)
        return Calibrated(learned)

    def weights(self, model: str) -> Weights:
        """Return the weights for a model."""
        if model in self.learned:
            return self.learned[model]
        try:
            return starting_weights(model_info(model).tokenizer)
        except UnknownModel:
            return starting_weights(DEFAULT_TOKENIZER)


def tokens_of(view: View, *, model: str, counter: TokenCounter | None = None) -> int:
    """Return the tokens of a view for a model.

    ``view.tokens`` is the estimate that strategies decide by.

    counter: None for an estimate that has learned nothing.
    """
    counter = counter or Calibrated()
    return counter.count(view.messages, view.system, view.tools, model=model)


@cache
def weight_of(model: str) -> float:
    """Return the model's tokens per estimated token, in typical texts of agents.

    At least 1, rounded to two places.  Raises UnknownModel.
    """
    typical = (files("refold.projections") / "data" / "typical.txt").read_text("utf-8")
    tokens = starting_weights(model_info(model).tokenizer).tokens(of_text(typical))
    return max(1.0, round(tokens / estimate_text(typical), 2))


def learned_from(
    events: Iterable[Envelope],
    view_of: Callable[[Envelope], View],
    *,
    last: int = 20,
    counter: Calibrated | None = None,
) -> Calibrated:
    """Return a counter that has learned from the requests of a session.

    events:  of the main stream, oldest first.
    view_of: returns the view that a ``request`` event records.
    last:    the most requests to learn from; the newest are used, and each costs a
             rendered view.
    """
    pairs = [
        (request, response)
        for request, response in _answered(events)
        if _input_tokens(response)
    ]
    observations: list[Observation] = []
    for envelope, response in pairs[max(0, len(pairs) - last) :]:
        request = envelope.payload
        view = view_of(envelope)
        # With another digest, these are not the bytes that the provider counted.
        if not isinstance(request, Request) or view.digest != request.digest:
            continue
        model = request.model or response.meta.model or envelope.meta.model
        if model:
            features = of_request(view.messages, view.system, view.tools)
            tokens = _input_tokens(response)
            observations.append(Observation(model, features, tokens))
    return (counter or Calibrated()).learn(observations)


def _answered(events: Iterable[Envelope]) -> Iterator[tuple[Envelope, Envelope]]:
    """Yield each request that was sent as recorded, with its response."""
    request: Envelope | None = None
    for envelope in events:
        match envelope.payload:
            case Request(matches=matches) if not envelope.activates_strategy:
                request = None if matches is False else envelope
            case AgentResponse() if request:
                yield request, envelope
                request = None
            case UserInput():
                request = None


def _input_tokens(envelope: Envelope) -> int:
    response = envelope.payload
    usage = response.usage if isinstance(response, AgentResponse) else None
    return input_tokens(usage or envelope.meta.usage)


def input_tokens(usage: JsonObject | None) -> int:
    """Return the tokens of a prompt, cached ones included, by its response's ``usage``.

    0 if the usage does not state them, or counts several prompts (``iterations``).
    """
    iterations = (usage or {}).get("iterations")
    if isinstance(iterations, list) and len(iterations) > 1:
        return 0
    counted = Usage.of(usage)
    if counted is None:
        return 0
    return counted.input + counted.written + counted.read
