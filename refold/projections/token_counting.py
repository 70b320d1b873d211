"""How many tokens a context is for a model: estimated, calibrated, or by its provider.

For reports and for filling a window.  Decisions of strategies use the estimates that
are stored with the events (``refold.domain.tokens``), so that replay decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownModel
from refold.domain.events import AgentResponse, JsonObject, Request, UserInput
from refold.projections.calibration import Weights, starting
from refold.projections.context.view import View
from refold.projections.models import DEFAULT_TOKENIZER, model_info
from refold.projections.text_features import Features, of_request

Messages: TypeAlias = Sequence[Mapping[str, Any]]
# Of the Messages API, of OpenAI (where cached ones are among them), of Inspect AI.
_INPUT: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "prompt_tokens",
    "input_tokens_cache_write",
    "input_tokens_cache_read",
)


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
        ...


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
        tokens = weights.tokens(of_request(messages, system, tools))
        return ceil(tokens + weights.beside)

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
        return self.learned.get(model) or starting(_tokenizer_of(model))


def tokens_of(view: View, *, model: str, counter: TokenCounter | None = None) -> int:
    """How many tokens ``view`` is for ``model``; without a counter, a calibrated guess.

    ``view.tokens`` is the estimate that strategies decide by.
    """
    counter = counter or Calibrated()
    return counter.count(view.messages, view.system, view.tools, model=model)


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
    return (counter or Calibrated()).learn(observations(events, view_of, last=last))


def observations(
    events: Iterable[Envelope], view_of: Callable[[Envelope], View], *, last: int = 20
) -> list[Observation]:
    """The requests of a session whose bytes and whose cost are both known."""
    pairs = [pair for pair in _answered(events) if _input_tokens(pair[1])]
    found = []
    for asked, answered in pairs[max(0, len(pairs) - last) :]:
        request, view = asked.payload, view_of(asked)
        model = _model_of(asked, answered)
        # Another digest: these are not the bytes that were sent and paid for.
        if model and isinstance(request, Request) and view.digest == request.digest:
            features = of_request(view.messages, view.system, view.tools)
            found.append(Observation(model, features, _input_tokens(answered)))
    return found


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


def _model_of(asked: Envelope, answered: Envelope) -> str | None:
    request = asked.payload
    named = request.model if isinstance(request, Request) else None
    return named or answered.meta.model or asked.meta.model


def _input_tokens(envelope: Envelope) -> int:
    """What the prompt of a response was, cached or not; 0 if it does not say."""
    response = envelope.payload
    usage = response.usage if isinstance(response, AgentResponse) else None
    return input_tokens(usage or envelope.meta.usage)


def input_tokens(usage: JsonObject | None) -> int:
    """The tokens of a prompt, read from cache or not, by the ``usage`` of its response.

    0 if it does not say, and for a response of several prompts (``iterations``).
    """
    if not usage or len(_list(usage.get("iterations"))) > 1:
        return 0
    counts = (usage.get(name) for name in _INPUT)
    return sum(count for count in counts if isinstance(count, int))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _tokenizer_of(model: str) -> str:
    try:
        return model_info(model).tokenizer
    except UnknownModel:
        return DEFAULT_TOKENIZER
