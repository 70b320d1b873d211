"""What is known of models: their windows, prices, prompt caches and tokenizers.

The packaged tables (``refold/projections/data/models``) say what providers published
when they were written.  What is registered stands before them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidConfiguration, UnknownModel
from refold.domain.events import Request, Summary

DEFAULT_TOKENIZER: Final = "claude-4-7"
MILLION: Final = 1_000_000
_WIDE: Final = "[1m]"
_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
_BEFORE = re.compile(r"(?:[\w.-]+/)*(?:(?:[a-z]+\.)?anthropic\.)?")
_BEHIND = re.compile(
    r"(?:-v\d+)?(?:[-@](?:20\d{6}|20\d\d-\d\d-\d\d|\d{4}|latest|default))?"
    r"(?:-v\d+)?(?::[\w-]+)?"
)


def _as(name: str) -> Callable[[dict[str, Any]], float]:
    # Not there if it was wrong, which is then the error.
    return lambda given: float(given.get(name, 0))


class Prices(BaseModel):
    """US dollars per million tokens, at the standard rate.

    cache_write_5m: a prefix that lives ``cache_ttl_sec`` (five minutes with Claude).
    above, long:    a request whose prompt has more tokens than ``above`` costs
                    ``long``, all of it.

    What has no price of its own costs as much as ``input``.
    """

    model_config = _FROZEN

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_write_5m: float = Field(default_factory=_as("input"), ge=0)
    cache_write_1h: float = Field(default_factory=_as("cache_write_5m"), ge=0)
    cache_read: float = Field(default_factory=_as("input"), ge=0)
    above: int | None = Field(default=None, gt=0)
    long: Prices | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Prices:
        if (self.above is None) != (self.long is None):
            raise ValueError("above and long belong together")
        return self

    def for_prompt(self, tokens: int) -> Prices:
        """What a request costs whose prompt, cached or not, has so many tokens."""
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
        """US dollars for one request.

        uncached, written, read: its prompt's tokens that are neither written to the
        cache nor read from it, that are written for ``ttl``, that are read.
        """
        prices = self.for_prompt(uncached + written + read)
        write = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        prompt = uncached * prices.input + written * write + read * prices.cache_read
        return (prompt + output * prices.output) / MILLION


class ModelInfo(BaseModel):
    """What is known of one model, or of all whose names begin so (``name*``)."""

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
    """The tokens of answers, as providers counted them.

    input:   of prompts, neither written to a cache nor read from one.
    written: to a cache; ``written_1h`` of these for an hour.
    read:    from a cache.
    """

    input: int = 0
    written: int = 0
    written_1h: int = 0
    read: int = 0
    output: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Usage | None:
        """What ``usage`` of one of several APIs says; None if nothing of tokens."""
        if not told:
            return None
        rounds = told.get("iterations")
        if isinstance(rounds, list) and len(rounds) > 1:
            found = [cls.of(one) for one in rounds if isinstance(one, Mapping)]
            return sum((one for one in found if one), cls())
        if not any(isinstance(told.get(name), int) for name in _COUNTED):
            return None
        details = (told.get(f"{name}_details") for name in _INPUT)
        inside = [one for one in details if isinstance(one, Mapping)]
        cached = sum(_count(one, "cached_tokens") for one in inside)
        kept = told.get("cache_creation")
        hour = _count(kept, _HOUR) if isinstance(kept, Mapping) else 0
        return cls(
            max(_first(told, *_INPUT) - cached, 0),  # OpenAI counts cached ones too
            max(_first(told, *_WRITTEN), hour),
            hour,
            _first(told, *_READ) or cached,
            _first(told, *_OUTPUT),
        )

    def __add__(self, other: object) -> Usage:
        """Both together."""
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))

    def cost(self, model: str | None) -> float | None:
        """US dollars for one answer of ``model``; None if its prices are not known."""
        try:
            prices = price_of(model or "")
        except UnknownModel:
            return None
        prices = prices.for_prompt(self.input + self.written + self.read)
        hour, short = self.written_1h, self.written - self.written_1h
        writing = prices.cost(written=hour, ttl="1h")
        beside = {"read": self.read, "output": self.output, "written": short}
        return writing + prices.cost(uncached=self.input, ttl="5m", **beside)


_INPUT: Final = ("input_tokens", "prompt_tokens")
_OUTPUT: Final = ("output_tokens", "completion_tokens")
_WRITTEN: Final = ("cache_creation_input_tokens", "input_tokens_cache_write")
_READ: Final = ("cache_read_input_tokens", "input_tokens_cache_read")
_COUNTED: Final = (*_INPUT, *_OUTPUT, *_WRITTEN, *_READ)
_HOUR: Final = "ephemeral_1h_input_tokens"


def _first(told: Mapping[str, Any], *names: str) -> int:
    return next((_count(told, name) for name in names if told.get(name)), 0)


def _count(told: Mapping[str, Any], name: str) -> int:
    found = told.get(name)
    # Truth values are numbers in Python, and in a file anything may stand.
    return found if type(found) is int and 0 <= found < _MOST else 0


_MOST: Final = 1 << 40


class Spending(NamedTuple):
    """What answers cost: a session's, a user's, or a day's.

    usage:    the tokens of all of them, those that wrote summaries too.
    dollars:  of those whose model's prices are known; ``unpriced`` are the others.
    """

    user_id: str | None = None
    session_id: str | None = None
    day: str | None = None
    answers: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unpriced: int = 0

    def with_(self, answer: Answer) -> Spending:
        """With one more answer."""
        cost = answer.usage.cost(answer.model)
        return self._replace(
            answers=self.answers + 1,
            usage=self.usage + answer.usage,
            dollars=self.dollars + (cost or 0.0),
            unpriced=self.unpriced + (cost is None),
        )

    def to_json(self) -> dict[str, Any]:
        """As ``refold stats --cost`` prints it; what it is not of is left out."""
        told = {**self._asdict(), "usage": self.usage._asdict()}
        return {name: value for name, value in told.items() if value is not None}


class Answer(NamedTuple):
    """An answer of a model whose usage is known; ``first`` is its first event."""

    first: Envelope
    usage: Usage
    model: str | None


def answers(envelopes: Iterable[Envelope]) -> list[Answer]:
    """The answers of models among the events of one stream.

    A model that an answer does not name is that of the request before.  Of an answer
    that a client wrote in parts, with its usage as it grew, the greatest counts.
    """
    asked: str | None = None
    found: dict[object, Answer] = {}
    for one in envelopes:
        event, meta, model = one.payload, one.meta, None
        if isinstance(event, Request):
            asked = event.model or asked
        elif isinstance(event, Summary):
            model = event.summarizer.model
        grown: Any = (meta.source or {}).get("usage")
        told = getattr(event, "usage", None) or meta.usage or grown
        usage = Usage.of(told if isinstance(told, Mapping) else None)
        if usage is not None:
            name = meta.response_id or one.seq
            known = found.get(name, Answer(one, usage, model or meta.model or asked))
            found[name] = known._replace(usage=Usage(*map(max, known.usage, usage)))
    return list(found.values())


def window_of(model: str) -> int:
    """How many tokens a request and its answer share.  Raises UnknownModel."""
    return model_info(model).context_tokens


def price_of(model: str) -> Prices:
    """What ``model`` costs.  Raises UnknownModel, also if its prices are not known."""
    if (prices := model_info(model).prices) is None:
        raise UnknownModel(model, missing="prices")
    return prices


def model_info(model: str) -> ModelInfo:
    """All that is known of ``model``, by whatever name of it.

    A date, a provider and a variant may stand around the name; ``[1m]`` behind it is
    the model with a window of a million tokens.  Raises UnknownModel.
    """
    name = model.strip().lower()
    table = {**_packaged(), **_registered}
    spellings = list(_spellings(name.removesuffix(_WIDE)))
    for find in (_listed, _family):
        for spelling in spellings:
            if found := find(table, spelling):
                wide = {"context_tokens": MILLION} if name.endswith(_WIDE) else {}
                return found.model_copy(update=wide)
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
    """Make a model known in this process, or known otherwise than it was.

    name: with a star at its end, of all models whose names begin so.

    Raises InvalidConfiguration.
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
    _register([info := _info(f"model {name!r}", fields)])
    return info


def register_models(table: Mapping[str, Any], *, where: str) -> None:
    """Register the entries of a table ``[models]``; ``where`` is for the error.

    An entry of a known name changes only the keys it has.  If one is wrong, none is
    registered.  Raises InvalidConfiguration.
    """
    _register(list(_infos(table, where, _known)))


def packaged_models() -> list[ModelInfo]:
    """The models that come with Refold, in the order of their tables."""
    return list({info.name: info for info in _packaged().values()}.values())


_registered: dict[str, ModelInfo] = {}


def _register(infos: Iterable[ModelInfo]) -> None:
    # Replaced, not changed: another thread may be reading it.
    global _registered
    _registered = {**_registered, **_by_name(infos)}


@cache
def _packaged() -> dict[str, ModelInfo]:
    found: dict[str, ModelInfo] = {}
    folder = files("refold.projections") / "data" / "models"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        tables = tomllib.loads(file.read_text("utf-8"))
        found |= _by_name(_infos(tables["models"], file.name, lambda _: {}))
    return found


def _by_name(infos: Iterable[ModelInfo]) -> dict[str, ModelInfo]:
    return {name.lower(): info for info in infos for name in (info.name, *info.aliases)}


def _known(name: str) -> dict[str, Any]:
    for table in (_registered, _packaged()):
        if info := table.get(name.lower()):
            return info.model_dump(exclude_unset=True)
    return {}


def _infos(
    table: Mapping[str, Any], where: str, known: Callable[[str], dict[str, Any]]
) -> Iterator[ModelInfo]:
    for name, entry in table.items():
        if not isinstance(entry, Mapping):
            raise InvalidConfiguration(f"{where}: [models.{name!r}] must be a table")
        yield _info(f"{where}: [models] {name}", {**known(name), **entry, "name": name})


def _info(where: str, fields: dict[str, Any]) -> ModelInfo:
    try:
        return ModelInfo.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        named = ((".".join(map(str, one["loc"])) or "it", one["msg"]) for one in found)
        reasons = "; ".join(map(": ".join, named))
        raise InvalidConfiguration(f"{where}: {reasons}") from None


def _spellings(name: str) -> Iterator[str]:
    """``name``, then without a provider before it, then without a variant behind it."""
    bare = _BEFORE.sub("", name, count=1)
    if bare.startswith("claude"):
        bare = bare.replace(".", "-")
    yield name
    yield bare
    cuts = (at for at in range(1, len(bare)) if _BEHIND.fullmatch(bare, at))
    yield from (bare[:at] for at in cuts)


def _listed(table: Mapping[str, ModelInfo], name: str) -> ModelInfo | None:
    found = table.get(name)
    # An alias is of the model by its name: that may be registered anew.
    return table[found.name.lower()] if found else None


def _family(table: Mapping[str, ModelInfo], name: str) -> ModelInfo | None:
    families = [k for k in table if k.endswith("*") and name.startswith(k[:-1])]
    return table[max(families, key=len)] if families else None
