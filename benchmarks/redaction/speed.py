"""How fast: each engine, the other tools, and a pass over the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson

from benchmarks.redaction import events, prose
from benchmarks.redaction.clock import Race, sample, seconds
from benchmarks.redaction.corpora import Corpora
from benchmarks.redaction.events import Json
from benchmarks.redaction.figures import Figures
from benchmarks.redaction.finding import Tool
from refold.redaction.redactor import Redactor

# What a slow tool is given of a corpus, in bytes.
_PEER_SAMPLE = 60_000
_SLOW_SAMPLE = 1_000_000


def speed(
    figures: Figures,
    corpora: Corpora,
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> None:
    """Race all over each corpus, in turn, best of ``rounds``."""
    for name in ("clean", "mixed", "clean_long", "mixed_long"):
        texts: list[str] = getattr(corpora, name)
        figures.speed[name] = _texts(texts, engines, tools, rounds)
    for name in ("events", "small_leaves"):
        values: list[Json] = getattr(corpora, name)
        figures.speed[name] = _values(values, engines, tools, rounds)
    small = _values(corpora.small_events, engines, (), rounds)
    per_event = events.size(corpora.small_events[0])
    figures.small_event_us = {
        name: per_event / rate for name, rate in small.items() if name in engines
    }


def adversarial(
    figures: Figures, texts: Mapping[str, str], engines: Mapping[str, Redactor]
) -> None:
    """Milliseconds that each text takes each engine, best of two."""
    for name, redactor in engines.items():
        figures.adversarial_ms[name] = {
            kind: min(seconds(redactor.text, [text]) for _ in range(2)) * 1000
            for kind, text in texts.items()
        }


def _texts(
    texts: list[str],
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> dict[str, float]:
    race = Race[str](_bytes)
    race.enter("bytes.lower", lambda text: text.encode().lower(), texts)
    for name, redactor in engines.items():
        most = _SLOW_SAMPLE if name == "stdlib" else len(texts) * 10**9
        race.enter(name, redactor.text, sample(texts, _bytes, most))
    few = sample(prose.chunks("".join(texts)), _bytes, _PEER_SAMPLE)
    if _bytes(texts[0]) > _PEER_SAMPLE:
        few = ["".join(few)]
    for tool in tools:
        race.enter(tool.name, tool.spans, few)
    return _megabytes(race.run(rounds))


def _values(
    values: list[Json],
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> dict[str, float]:
    race = Race[Json](events.size)
    race.enter("orjson.dumps", orjson.dumps, values)
    for name, redactor in engines.items():
        most = _SLOW_SAMPLE if name == "stdlib" else len(values) * 10**9
        race.enter(name, redactor.value, sample(values, events.size, most))
    for tool in tools:
        few = sample(values, events.size, _PEER_SAMPLE)
        race.enter(tool.name, _dumped(tool), few)
    return _megabytes(race.run(rounds))


def _dumped(tool: Tool) -> Callable[[Json], object]:
    """The tool on the value's JSON: the others know texts only."""
    return lambda value: tool.spans(orjson.dumps(value).decode())


def _bytes(text: str) -> int:
    return len(text.encode())


def _megabytes(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: rate / 1e6 for name, rate in rates.items()}
