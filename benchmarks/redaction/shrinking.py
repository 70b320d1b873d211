"""Makes an example shorter as long as it shows the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.redaction.events import Json


def shrunk(case: Json, shows: Callable[[Json], bool], *, tries: int) -> Json:
    """The smallest value found that still ``shows`` it, after at most ``tries``."""
    smaller = _smaller(case)
    while tries:
        tries -= 1
        candidate = next(smaller, _NONE)
        if candidate is _NONE:
            break
        if shows(candidate):
            case, smaller = candidate, _smaller(candidate)
    return case


_NONE: dict[str, Json] = {}


def _smaller(case: Json) -> Iterator[Json]:
    """Values like ``case`` with something less, what takes most away first."""
    if isinstance(case, str):
        yield from _shorter(case)
    elif isinstance(case, list):
        yield from case
        for at, child in enumerate(case):
            yield [*case[:at], *case[at + 1 :]]
            for less in _smaller(child):
                yield [*case[:at], less, *case[at + 1 :]]
    elif isinstance(case, dict):
        yield from case.values()
        for key, child in case.items():
            rest = {other: value for other, value in case.items() if other != key}
            yield rest
            for less in _smaller(child):
                yield {**case, key: less}
            for less in _shorter(key):
                yield {**rest, less: child}


def _shorter(text: str) -> Iterator[str]:
    step = (len(text) + 1) // 2
    while step:
        for at in range(0, len(text), step):
            yield text[:at] + text[at + step :]
        step //= 2
