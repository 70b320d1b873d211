"""Refold as a contestant: its engines, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.redaction.events import Json
from benchmarks.redaction.finding import Span, replaced
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS

EngineName: TypeAlias = Literal["auto", "vectorscan", "stdlib"]
__all__ = [
    "ENGINES",
    "LANGUAGES",
    "PACKS",
    "EngineName",
    "Refold",
    "engines",
    "redactor",
]

# Best first.
ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")
LANGUAGES = ("pii-common", "pii-cn", "secrets", "pii-us", "pii-eu", "network")


def redactor(
    engine: EngineName = "auto", packs: Iterable[str] = DEFAULT_PACKS
) -> Redactor:
    """A redactor with the rules of ``packs``."""
    rules = tuple(rule for pack in packs for rule in PACKS[pack])
    return Redactor(Plan(rules=rules, engine=engine))


def engines() -> dict[str, Redactor]:
    """A redactor of the default policy for each engine that is installed."""
    found: dict[str, Redactor] = {}
    for engine in ENGINES:
        try:
            found[engine] = redactor(engine)
        except Exception as error:
            print(f"{engine}: not measured ({type(error).__name__}: {error})")
    return found


@dataclass(frozen=True)
class Refold:
    """The redactor, asked for spans."""

    redactor: Redactor
    name: str = "refold"

    def spans(self, text: str) -> Sequence[Span]:
        """What it replaces."""
        return replaced(text, self.redactor.text(text)[0])

    def value(self, value: Json) -> Json:
        """A JSON value without what was found."""
        return self.redactor.value(value)[0]
