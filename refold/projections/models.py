"""Models: their windows, prices, prompt caches, and tokenizers.

The packaged tables (``refold/projections/data/models``) hold what providers had
published when the tables were written.  Registered models take precedence.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidConfiguration, UnknownModel
from refold.domain.events import AgentResponse, Request, Summary, ToolCall

if TYPE_CHECKING:
    from importlib.abc import Traversable

DEFAULT_TOKENIZER: Final = "claude-4-7"
MILLION: Final = 1_000_000
# The average token of an answer has fewer characters than this.  The text of English
# answers has four to five, and that of code three to four.
_MOST_CHARACTERS: Final = 8
# The suffix of a variant with a window of a million tokens.
_WIDE_WINDOW: Final = "[1m]"
# A greater number in a ``usage`` is no count of tokens.
_MOST_TOKENS: Final = 1 << 40
_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
# The provider before a name: ``vertex_ai/`` or ``us.anthropic.``.
_PROVIDER_PREFIX = re.compile(r"\A(?:[\w.-]+/)*(?:(?:[a-z]+\.)?anthropic\.)?")
# The date or variant after a name: ``-20250514``, ``@latest`` or ``-v1:0``.
_VARIANT_SUFFIX = re.compile(
    r"(?:-v\d+)?(?:[-@](?:20\d{6}|20\d\d-\d\d-\d\d|\d{4}|latest|default))?"
    r"(?:-v\d+)?(?::[\w-]+)?"
)


def _equal_to(name: str) -> Callable[[dict[str, Any]], float]:
    """Return a factory for a default that is equal to another field.

    The factory gets no value of a field that failed validation.  Then it returns 0, and
    pydantic reports that field.
    """
    return lambda fields: float(fields.get(name, 0))


class Prices(BaseModel):
    """US dollars per million tokens, at the standard rate.

    A missing cache price is equal to ``input``.

    cache_write_5m: for a prefix that lives ``cache_ttl_sec`` (five minutes on Claude).
    cache_write_1h: for a prefix that lives an hour.
    long:           the prices for all tokens of a request with a long prompt.
    above:          a prompt is long if it has more than this many tokens.
    """

    model_config = _FROZEN

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_write_5m: float = Field(default_factory=_equal_to("input"), ge=0)
    cache_write_1h: float = Field(default_factory=_equal_to("cache_write_5m"), ge=0)
    cache_read: float = Field(default_factory=_equal_to("input"), ge=0)
    above: int | None = Field(default=None, gt=0)
    long: Prices | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Prices:
        if (self.above is None) != (self.long is None):
            raise ValueError("above and long belong together")
        return self

    def for_prompt(self, tokens: int) -> Prices:
        """Return the prices for a prompt of this many tokens, cached ones included."""
        if self.above is not None and self.long and tokens > self.above:
            return self.long
        return self

    def cost(
        self,
        *,
        uncached: int = 0,
        written: int = 0,
        read: int = 0,
        output: int = 0,
        ttl: Literal["5m", "1h"] = "5m",
    ) -> float:
        """Return the US dollars for one request.

        uncached: tokens of the prompt that are neither written to nor read from the
                  cache.
        written:  tokens written to the cache for ``ttl``.
        read:     tokens read from the cache.
        output:   tokens of the answer.
        """
        prices = self.for_prompt(uncached + written + read)
        write_price = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        prompt_cost = (
            uncached * prices.input + written * write_price + read * prices.cache_read
        )
        return (prompt_cost + output * prices.output) / MILLION


class ModelInfo(BaseModel):
    """The facts about a model, or about all models whose names have a prefix.

    name:             a prefix ends with a star: ``claude-opus-*``.
    context_tokens:   the tokens that a request and its answer share.
    cache_min_tokens: a shorter prefix of a prompt is not cached.
    cache_ttl_sec:    how long a cached prefix lives after its last use.
    prices:           None if they are unknown.
    """

    model_config = _FROZEN

    name: str = Field(min_length=1)
    context_tokens: int = Field(gt=0)
    max_output_tokens: int | None = Field(default=None, gt=0)
    tokenizer: str = DEFAULT_TOKENIZER
    aliases: tuple[str, ...] = ()
    cache_min_tokens: int = Field(default=0, ge=0)
    cache_ttl_sec: int = Field(default=300, gt=0)
    prices: Prices | None = None


class Usage(NamedTuple):
    """The tokens of answers as providers counted them.

    input:      of prompts, neither written to a cache nor read from one.
    written:    written to a cache.
    written_1h: the part of ``written`` that lives an hour.
    read:       read from a cache.
    output:     of answers.
    """

    input: int = 0
    written: int = 0
    written_1h: int = 0
    read: int = 0
    output: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, Any] | None) -> Usage | None:
        """Read the ``usage`` of an answer of any supported API.

        An answer of several steps has the usage of each as ``iterations``: the result
        is their sum.  Returns None for a usage that counts no tokens.
        """
        if not usage:
            return None
        iterations = usage.get("iterations")
        if isinstance(iterations, list) and len(iterations) > 1:
            return cls._sum_of(iterations)
        if not any(isinstance(usage.get(name), int) for name in _COUNTED):
            return None
        cached_input = 0  # OpenAI includes cached tokens in the input tokens
        for name in _INPUT:
            details = usage.get(f"{name}_details")
            if isinstance(details, Mapping):
                cached_input += _count(details, "cached_tokens")
        creation = usage.get("cache_creation")
        written_1h = 0
        if isinstance(creation, Mapping):
            written_1h = _count(creation, _WRITTEN_1H)
        return cls(
            input=max(_first_count(usage, *_INPUT) - cached_input, 0),
            written=max(_first_count(usage, *_WRITTEN), written_1h),
            written_1h=written_1h,
            read=_first_count(usage, *_READ) or cached_input,
            output=_first_count(usage, *_OUTPUT),
        )

    @classmethod
    def _sum_of(cls, iterations: Iterable[Any]) -> Usage:
        """Return the sum of the usages of an answer's steps."""
        total = cls()
        for iteration in iterations:
            if isinstance(iteration, Mapping):
                total += cls.of(iteration) or cls()
        return total

    def __add__(self, other: object) -> Usage:
        """Return the sum of both."""
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            input=self.input + other.input,
            written=self.written + other.written,
            written_1h=self.written_1h + other.written_1h,
            read=self.read + other.read,
            output=self.output + other.output,
        )

    def cost(self, model: str | None) -> float | None:
        """Return the US dollars for one answer; None if the prices are unknown."""
        try:
            prices = price_of(model or "")
        except UnknownModel:
            return None
        prices = prices.for_prompt(self.input + self.written + self.read)
        cost_of_hour = prices.cost(written=self.written_1h, ttl="1h")
        cost_of_rest = prices.cost(
            uncached=self.input,
            written=self.written - self.written_1h,
            read=self.read,
            output=self.output,
        )
        return cost_of_hour + cost_of_rest


_INPUT: Final = ("input_tokens", "prompt_tokens")
_OUTPUT: Final = ("output_tokens", "completion_tokens")
_WRITTEN: Final = ("cache_creation_input_tokens", "input_tokens_cache_write")
_READ: Final = ("cache_read_input_tokens", "input_tokens_cache_read")
_COUNTED: Final = (*_INPUT, *_OUTPUT, *_WRITTEN, *_READ)
_WRITTEN_1H: Final = "ephemeral_1h_input_tokens"


def _first_count(usage: Mapping[str, Any], *names: str) -> int:
    """Return the count under the first of these names that ``usage`` has."""
    for name in names:
        if usage.get(name):
            return _count(usage, name)
    return 0


def _count(usage: Mapping[str, Any], name: str) -> int:
    """Return the count under this name; 0 if it is no plausible number of tokens."""
    count = usage.get(name)
    # isinstance would accept booleans.
    return count if type(count) is int and 0 <= count < _MOST_TOKENS else 0


class Spending(NamedTuple):
    """The cost of answers, of a session, a user, or a day.

    usage:        the tokens of all answers, including those that wrote summaries.
    dollars:      the cost of the answers whose model has known prices.
    unpriced:     the number of the other answers.
    undercounted: the number of answers with fewer recorded output tokens than their
                  text needs.
    """

    user_id: str | None = None
    session_id: str | None = None
    day: str | None = None
    answers: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unpriced: int = 0
    undercounted: int = 0

    @property
    def is_lower_bound(self) -> bool:
        """Whether the answers cost more than ``dollars``."""
        return bool(self.unpriced or self.undercounted)

    def with_answer(self, answer: Answer) -> Spending:
        """Return the spending with one more answer."""
        cost = answer.usage.cost(answer.model)
        return self._replace(
            answers=self.answers + 1,
            usage=self.usage + answer.usage,
            dollars=self.dollars + (cost or 0.0),
            unpriced=self.unpriced + (1 if cost is None else 0),
            undercounted=self.undercounted + (1 if answer.is_undercounted else 0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of ``refold stats --cost``, without fields that are None."""
        fields = {**self._asdict(), "usage": self.usage._asdict()}
        return {name: value for name, value in fields.items() if value is not None}


class Answer(NamedTuple):
    """An answer of a model with known usage.

    first:      its first event.
    characters: of its texts, its thinking, and the arguments of its calls.
    """

    first: Envelope
    usage: Usage
    model: str | None
    characters: int = 0

    @property
    def is_undercounted(self) -> bool:
        """Whether the usage has fewer output tokens than the text needs."""
        return is_undercounted(self.usage, self.characters)


def answers(envelopes: Iterable[Envelope]) -> list[Answer]:
    """Return the answers of models among the events of one stream.

    An answer that names no model has the model of the last request.  Some clients write
    an answer in parts, each with the usage up to that part.  So the usage of the answer
    consists of the greatest number of each field.  A part with the same usage as the
    part before has none.
    """
    requested_model: str | None = None
    by_response: dict[str | int, Answer] = {}
    for envelope in envelopes:
        event = envelope.payload
        meta = envelope.meta
        model = meta.model
        if isinstance(event, Request):
            requested_model = event.model or requested_model
        elif isinstance(event, Summary):
            model = event.summarizer.model or model
        usage = usage_of(envelope)
        response = meta.response_id or envelope.seq
        answer = by_response.get(response)
        if answer is None and usage is not None:
            answer = Answer(envelope, usage, model or requested_model)
        if answer is None:
            continue
        by_response[response] = answer._replace(
            usage=greatest_of(answer.usage, usage or Usage()),
            characters=answer.characters + characters_of(envelope),
        )
    return list(by_response.values())


def characters_of(envelope: Envelope) -> int:
    """Return the number of characters that a model wrote in an event.

    They are those of a text, of thinking, and of the values in a call's arguments.
    """
    event = envelope.payload
    if isinstance(event, AgentResponse):
        return len(event.text) + sum(
            len(block.thinking or "") for block in event.thinking
        )
    if not isinstance(event, ToolCall):
        return 0
    count = 0
    values: list[Any] = [event.arguments]
    while values:
        value = values.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return count


def is_undercounted(usage: Usage, characters: int) -> bool:
    """Whether a usage has fewer output tokens than this many characters need.

    Claude Code writes many answers with the usage of the first chunk of the stream,
    whose output tokens are those of that chunk.
    """
    return usage.output * _MOST_CHARACTERS < characters


def greatest_of(first: Usage, second: Usage) -> Usage:
    """Return the greater number of each field."""
    return Usage(
        input=max(first.input, second.input),
        written=max(first.written, second.written),
        written_1h=max(first.written_1h, second.written_1h),
        read=max(first.read, second.read),
        output=max(first.output, second.output),
    )


def usage_of(envelope: Envelope) -> Usage | None:
    """Return the usage in an event's payload, its ``meta``, or its imported source."""
    in_payload: Any = getattr(envelope.payload, "usage", None)
    in_source: Any = (envelope.meta.source or {}).get("usage")
    usage = in_payload or envelope.meta.usage or in_source
    return Usage.of(usage if isinstance(usage, Mapping) else None)


def window_of(model: str) -> int:
    """Return the tokens that a request and its answer share.  Raises UnknownModel."""
    return model_info(model).context_tokens


def price_of(model: str) -> Prices:
    """Return a model's prices.

    Raises UnknownModel for an unknown model, and for a model with unknown prices.
    """
    prices = model_info(model).prices
    if prices is None:
        raise UnknownModel(model, missing="prices")
    return prices


def model_info(model: str) -> ModelInfo:
    """Return the facts about a model, by any of its names.

    The name may have a provider as prefix, and a date or variant as suffix; the suffix
    ``[1m]`` means a window of a million tokens.  Raises UnknownModel.
    """
    name = model.strip().lower()
    table = {**_packaged(), **_registered}
    spellings = list(_spellings(name.removesuffix(_WIDE_WINDOW)))
    for look_up in (_by_exact_name, _by_prefix):
        for spelling in spellings:
            info = look_up(table, spelling)
            if info is None:
                continue
            if name.endswith(_WIDE_WINDOW):
                return info.model_copy(update={"context_tokens": MILLION})
            return info.model_copy()
    raise UnknownModel(model)


def register_model(
    name: str,
    *,
    context_tokens: int,
    prices: Prices | Mapping[str, Any] | None = None,
    max_output_tokens: int | None = None,
    tokenizer: str = DEFAULT_TOKENIZER,
    aliases: Iterable[str] = (),
    cache_min_tokens: int = 0,
    cache_ttl_sec: int = 300,
) -> ModelInfo:
    """Register a model in this process, or replace its facts.

    name: a name, or a prefix with a star for all models whose names begin with it.

    ``ModelInfo`` describes the other arguments.

    Raises InvalidConfiguration for a value out of its bounds.
    """
    fields = {
        "name": name,
        "context_tokens": context_tokens,
        "prices": dict(prices) if isinstance(prices, Mapping) else prices,
        "max_output_tokens": max_output_tokens,
        "tokenizer": tokenizer,
        "aliases": tuple(aliases),
        "cache_min_tokens": cache_min_tokens,
        "cache_ttl_sec": cache_ttl_sec,
    }
    info = _validated(f"model {name!r}", fields)
    _register([info])
    return info


def register_models(table: Mapping[str, Any], *, where: str) -> None:
    """Register the entries of a table ``[models]``.

    An entry of a known name changes only the keys that it has.  If one entry is wrong,
    none is registered.

    where: the name of the table in errors.

    Raises InvalidConfiguration for a wrong entry.
    """
    _register(list(_read_table(table, where, _known_fields)))


def packaged_models() -> list[ModelInfo]:
    """Return the models that Refold ships, in the order of their tables."""
    by_name: dict[str, ModelInfo] = {}  # without aliases
    for info in _packaged().values():
        by_name[info.name] = info
    return list(by_name.values())


def digest_of_prices() -> str:
    """Return a digest that changes if one of the prices does."""
    prices = _digest_of_packaged() + _prices_in(_registered)
    return hashlib.blake2b(prices, digest_size=8).hexdigest()


@cache
def _digest_of_packaged() -> bytes:
    """Return a digest of the files that have the packaged prices.

    A list of sessions needs it in each process, so the files are not parsed.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in _packaged_files():
        digest.update(file.read_bytes())
    return digest.digest()


def _prices_in(table: Mapping[str, ModelInfo]) -> bytes:
    """Return the prices of a table as text, sorted by the names of the models."""
    lines: list[str] = []
    for name, info in sorted(table.items()):
        prices = "" if info.prices is None else info.prices.model_dump_json()
        lines.append(f"{name} {prices}")
    return "\n".join(lines).encode()


_registered: dict[str, ModelInfo] = {}


def _register(infos: Iterable[ModelInfo]) -> None:
    """Register models, in place of those with the same names and aliases."""
    # The table is replaced and never changed, because another thread may read it.
    global _registered
    _registered = {**_registered, **_by_name(infos)}


def _packaged_files() -> list[Traversable]:
    """Return the files of models that Refold ships, in the order of their names."""
    folder = files("refold.projections") / "data" / "models"
    return sorted(folder.iterdir(), key=lambda file: file.name)


@cache
def _packaged() -> dict[str, ModelInfo]:
    """Return the models that Refold ships, by name and alias."""
    packaged: dict[str, ModelInfo] = {}
    for file in _packaged_files():
        tables = tomllib.loads(file.read_text("utf-8"))
        packaged |= _by_name(_read_table(tables["models"], file.name, lambda _: {}))
    return packaged


def _by_name(infos: Iterable[ModelInfo]) -> dict[str, ModelInfo]:
    """Return the models by name and alias, in lower case."""
    by_name: dict[str, ModelInfo] = {}
    for info in infos:
        for name in (info.name, *info.aliases):
            by_name[name.lower()] = info
    return by_name


def _known_fields(name: str) -> dict[str, Any]:
    """Return the fields that are set for a model, if its name is known."""
    for table in (_registered, _packaged()):
        info = table.get(name.lower())
        if info is not None:
            return info.model_dump(exclude_unset=True)
    return {}


def _read_table(
    table: Mapping[str, Any],
    where: str,
    defaults_of: Callable[[str], dict[str, Any]],
) -> Iterator[ModelInfo]:
    """Yield the models of a table ``[models]``.

    defaults_of: returns the fields of a name that its entry need not have.
    """
    for name, entry in table.items():
        if not isinstance(entry, Mapping):
            raise InvalidConfiguration(f"{where}: [models.{name!r}] must be a table")
        fields = {**defaults_of(name), **entry, "name": name}
        yield _validated(f"{where}: [models] {name}", fields)


def _validated(where: str, fields: dict[str, Any]) -> ModelInfo:
    """Return the model with these fields.

    Raises InvalidConfiguration with every wrong field.
    """
    try:
        return ModelInfo.model_validate(fields)
    except ValidationError as error:
        reasons: list[str] = []
        for detail in error.errors(include_input=False, include_url=False):
            place = ".".join(map(str, detail["loc"])) or "it"
            reasons.append(f"{place}: {detail['msg']}")
        raise InvalidConfiguration(f"{where}: {'; '.join(reasons)}") from None


def _spellings(name: str) -> Iterator[str]:
    """Yield a name unchanged, then without a provider, then also without a variant.

    Claude's names have dashes in the tables, and dots at some providers.
    """
    bare = _PROVIDER_PREFIX.sub("", name, count=1)
    if bare.startswith("claude"):
        bare = bare.replace(".", "-")
    yield name
    yield bare
    for end in range(1, len(bare)):
        if _VARIANT_SUFFIX.fullmatch(bare, end):
            yield bare[:end]


def _by_exact_name(table: Mapping[str, ModelInfo], name: str) -> ModelInfo | None:
    """Return the model with this name or alias."""
    info = table.get(name)
    if info is None:
        return None
    # The name may be an alias of a model that was registered again.
    return table[info.name.lower()]


def _by_prefix(table: Mapping[str, ModelInfo], name: str) -> ModelInfo | None:
    """Return the models with the longest prefix that this name has."""
    prefixes = [key for key in table if key.endswith("*") and name.startswith(key[:-1])]
    if not prefixes:
        return None
    return table[max(prefixes, key=len)]
