"""How many tokens a context is for a model: estimated, calibrated, or by its provider.

For reports and for filling a window.  Decisions of strategies use the estimates that
are stored with the events (``refold.domain.tokens``), so that replay decides the same.
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

from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownModel
from refold.domain.events import AgentResponse, JsonObject, Request, UserInput
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate_text
from refold.projections.context.view import View
from refold.projections.models import DEFAULT_TOKENIZER, Usage, model_info

# An image costs by its size in pixels, a page of a document by what is on it; neither
# is known without decoding it.
ATTACHMENT_TOKENS: Final = 1_600
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BLANKS: Final = b" \t\r\n\v\f"
_WORD = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+")
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]"
    "|[\U00020000-\U0003ffff]"
)


class Features(NamedTuple):
    """How much of each kind there is.

    word:   pieces of words in ASCII letters; ``readFile`` is two.
    mark:   ASCII signs that are neither letter nor blank.
    other:  characters that are neither ASCII nor Chinese, Japanese or Korean.
    frame:  tokens that no text decides: around messages and calls, and of images.
    """

    word: int = 0
    letter: int = 0
    mark: int = 0
    line: int = 0
    cjk: int = 0
    other: int = 0
    frame: int = 0


def of_text(text: str) -> Features:
    """The features of a text."""
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
    """The features of a request, in the shapes of the Messages API."""
    parts = [*_of_content(system or "")]
    parts += [of_json(tool)._replace(frame=MESSAGE_OVERHEAD) for tool in tools]
    for message in messages:
        parts.append(Features(frame=MESSAGE_OVERHEAD))
        parts += _of_content(message["content"])
    return total(parts)


def of_json(value: Any) -> Features:
    """The features of a JSON value, written without blanks."""
    return of_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def total(parts: Iterable[Features]) -> Features:
    """The sum of features."""
    return Features(*map(sum, zip(*parts, Features(), strict=True)))


def _of_content(content: str | Sequence[Mapping[str, Any]]) -> Iterator[Features]:
    if isinstance(content, str):
        yield of_text(content)
    else:
        yield from chain(*map(_of_block, content))


def _of_block(block: Mapping[str, Any]) -> Iterator[Features]:
    match block:
        case {"type": "tool_use", "name": str(name), "input": given}:
            yield of_text(name)._replace(frame=2 * MESSAGE_OVERHEAD)
            yield of_json(given)
        case {"type": "tool_result"}:
            yield Features(frame=2 * MESSAGE_OVERHEAD)
            yield from _of_content(block.get("content") or "")
        case {"type": "redacted_thinking"}:
            # Encrypted: it says nothing of its tokens.
            yield Features()
        case (
            {"type": "text", "text": str(text)}
            | {"type": "thinking", "thinking": str(text)}
            | {"source": {"type": "text", "data": str(text)}}
        ):
            yield of_text(text)
        case {"type": "image" | "document"}:
            yield Features(frame=ATTACHMENT_TOKENS)
        case _:
            yield of_json(block)


# Shares of a weight: of all together, and of each alone.
_UNSURE_TOGETHER: Final = 0.4
_UNSURE_ALONE: Final = 0.25
# What a request costs beside what is recorded of it, in tokens.
_UNSURE_BESIDE: Final = 2_000.0
# What no weights explain: the share by which requests differ from their estimate.
_NOISE: Final = 0.05
# A weight below this share of its start is noise: it would make text cost nothing.
_LEAST: Final = 0.2


@dataclass(frozen=True, slots=True)
class Weights:
    """Tokens for one of each feature, and how sure that is.

    seen: how many requests were learned from.
    """

    values: tuple[float, ...]
    spread: tuple[tuple[float, ...], ...]
    start: tuple[float, ...]
    seen: int = 0

    @property
    def beside(self) -> float:
        """What every request cost beside what is recorded of it."""
        return max(0.0, self.values[-1])

    def tokens(self, features: Features) -> float:
        """What a text of these features costs; more text never costs less."""
        each = zip(self.values, self.start, features[:-1], strict=False)
        own = sum(max(value, _LEAST * start) * count for value, start, count in each)
        return features.frame + own

    def learned(self, features: Features, tokens: int) -> Weights:
        """The weights after a request that cost ``tokens``, which is above 0."""
        # In shares of what it cost, or long requests would drown the short ones.
        seen = [count / tokens for count in features[:-1]] + [1 / tokens]
        moved = [_dot(row, seen) for row in self.spread]
        doubt = _dot(seen, moved) + _NOISE**2
        wrong = 1 - features.frame / tokens - _dot(seen, self.values)
        pairs = zip(self.values, moved, strict=True)
        values = tuple(value + move * wrong / doubt for value, move in pairs)
        spread = (
            tuple(cell - a * b / doubt for cell, b in zip(row, moved, strict=True))
            for row, a in zip(self.spread, moved, strict=True)
        )
        return Weights(values, tuple(spread), self.start, self.seen + 1)


def starting(tokenizer: str) -> Weights:
    """The weights measured for ``tokenizer``; of one not measured, the default's."""
    known = measured()
    start = (*known.get(tokenizer, known[DEFAULT_TOKENIZER]), 0.0)
    together = [_UNSURE_TOGETHER * weight for weight in start]
    alone = [(_UNSURE_ALONE * max(weight, 0.05)) ** 2 for weight in start]
    alone[-1] = _UNSURE_BESIDE**2
    spread = [[a * b for b in together] for a in together]
    for place, own in enumerate(alone):
        spread[place][place] += own
    return Weights(start, tuple(map(tuple, spread)), start)


@cache
def measured() -> Mapping[str, tuple[float, ...]]:
    """The weights of each measured tokenizer, in the order of the features."""
    found = shipped("refold.projections", "data", "tokenizers.toml").items()
    fields = Features._fields[:-1]
    return {name: tuple(float(each[field]) for field in fields) for name, each in found}


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
        """The input tokens of a request, in the shapes of the Messages API."""


class Observation(NamedTuple):
    """A request whose cost is known: its model, its features, its input tokens."""

    model: str
    features: Features
    tokens: int


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Estimates without asking anyone, and better with every request it learns from.

    What all learned requests cost beside what is recorded of them is added to each
    count: what the provider puts before tools, and tools that it was not shown.
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
        """See TokenCounter.  A model that is not known is counted as the newest."""
        weights = self.weights(model)
        own = weights.tokens(of_request(messages, system, tools))
        return ceil(own + weights.beside)

    def learn(self, observations: Iterable[Observation]) -> Calibrated:
        """A counter that knows these requests too."""
        learned = dict(self.learned)
        for model, features, tokens in observations:
            if tokens > 0:
                known = learned.get(model) or self.weights(model)
                learned[model] = known.learned(features, tokens)
        return Calibrated(learned)

    def weights(self, model: str) -> Weights:
        """What it knows of ``model``."""
        if model in self.learned:
            return self.learned[model]
        try:
            return starting(model_info(model).tokenizer)
        except UnknownModel:
            return starting(DEFAULT_TOKENIZER)


def tokens_of(view: View, *, model: str, counter: TokenCounter | None = None) -> int:
    """How many tokens ``view`` is for ``model``; without a counter, a calibrated guess.

    ``view.tokens`` is the estimate that strategies decide by.
    """
    counter = counter or Calibrated()
    return counter.count(view.messages, view.system, view.tools, model=model)


@cache
def weight_of(model: str) -> float:
    """How many of the model's tokens an estimated one is in what agents read and write.

    At least 1, to two places.  Raises UnknownModel.
    """
    typical = (files("refold.projections") / "data" / "typical.txt").read_text("utf-8")
    real = starting(model_info(model).tokenizer).tokens(of_text(typical))
    return max(1.0, round(real / estimate_text(typical), 2))


def learned_from(
    events: Iterable[Envelope],
    view_of: Callable[[Envelope], View],
    *,
    last: int = 20,
    counter: Calibrated | None = None,
) -> Calibrated:
    """A counter that learned from the requests of a session and what they cost.

    events:  of the main stream, oldest first.
    view_of: the view that the ``request`` event of an envelope says was sent.
    last:    how many requests to learn from, the newest; each costs a view.
    """
    pairs = [pair for pair in _answered(events) if _input_tokens(pair[1])]
    found = []
    for asked, answered in pairs[max(0, len(pairs) - last) :]:
        request, view = asked.payload, view_of(asked)
        # Another digest: these are not the bytes that were sent and paid for.
        if not isinstance(request, Request) or view.digest != request.digest:
            continue
        model = request.model or answered.meta.model or asked.meta.model
        if model:
            features = of_request(view.messages, view.system, view.tools)
            found.append(Observation(model, features, _input_tokens(answered)))
    return (counter or Calibrated()).learn(found)


def _answered(events: Iterable[Envelope]) -> Iterable[tuple[Envelope, Envelope]]:
    """Each request that went out as the log has it, with the response it got."""
    asked: Envelope | None = None
    for envelope in events:
        match envelope.payload:
            case Request(matches=matches):
                asked = None if matches is False else envelope
            case AgentResponse() if asked:
                yield asked, envelope
                asked = None
            case UserInput():
                asked = None


def _input_tokens(envelope: Envelope) -> int:
    response = envelope.payload
    usage = response.usage if isinstance(response, AgentResponse) else None
    return input_tokens(usage or envelope.meta.usage)


def input_tokens(usage: JsonObject | None) -> int:
    """The tokens of a prompt, read from cache or not, by the ``usage`` of its response.

    0 if it does not say, and for a response of several prompts (``iterations``).
    """
    iterations = (usage or {}).get("iterations")
    several = isinstance(iterations, list) and len(iterations) > 1
    told = None if several else Usage.of(usage)
    return told.input + told.written + told.read if told else 0
