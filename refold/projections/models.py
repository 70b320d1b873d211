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
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from refold.domain.errors import InvalidConfiguration, UnknownModel

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
        return (
            uncached * prices.input
            + written * write
            + read * prices.cache_read
            + output * prices.output
        ) / MILLION


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


def window_of(model: str) -> int:
    """How many tokens a request to ``model`` and its answer share.

    Raises UnknownModel.
    """
    return model_info(model).context_tokens


def price_of(model: str) -> Prices:
    """What ``model`` costs.  Raises UnknownModel, also if its prices are not known."""
    prices = model_info(model).prices
    if prices is None:
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
    info = _info(
        f"model {name!r}",
        {
            "name": name,
            "context_tokens": context_tokens,
            "prices": dict(prices) if isinstance(prices, Mapping) else prices,
            "max_output_tokens": max_output_tokens,
            "tokenizer": tokenizer,
            "aliases": tuple(aliases),
            "cache_min_tokens": cache_min_tokens,
            "cache_ttl_sec": cache_ttl_sec,
        },
    )
    _register([info])
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
        reasons = (
            f"{'.'.join(map(str, detail['loc'])) or 'it'}: {detail['msg']}"
            for detail in error.errors(include_input=False, include_url=False)
        )
        raise InvalidConfiguration(f"{where}: " + "; ".join(reasons)) from None


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
