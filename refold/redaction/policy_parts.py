"""The tables of a policy file, each as it is written."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from refold.redaction.toml_lines import Place

Score: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Action: TypeAlias = Literal["redact", "keep", "drop_leaf"]


class Wrong(ValueError):
    """What is wrong with a policy, and the place in it where that stands."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


class Part(BaseModel):
    """A table of the file: it has the keys that are listed here, and no other."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True
    )


class Scan(Part):
    """``[scan]``: what is looked at, and how long."""

    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    max_leaf_bytes: Annotated[int, Field(ge=1024)] = 16_777_216
    budget_ms: Count = 0


class SkipPart(Part):
    """``[skip]``: what is left alone, by JSON pointer or by key."""

    pointers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Allow(Part):
    """``[allow]``: values that are no finding, whatever a rule says."""

    values: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()


class TypePart(Part):
    """``[types.X]``: what is done with findings of a type."""

    action: Action = "redact"


class LimitsPart(Part):
    """``[limits]``: of the size guard, in bytes."""

    leaf_bytes: int = 65_536
    event_bytes: int = 1_048_576


class RecognizerPart(Part):
    """``[recognizer]``: how far a recognizer that the program gives is trusted."""

    budget_ms: Annotated[int, Field(ge=1, le=600_000)] = 200
    max_bytes: Annotated[int, Field(ge=1)] = 65_536
    on_failure: Literal["closed", "open"] = "closed"
    language: str = "auto"


class OwnRule(Part):
    """``[[rules]]``: a rule of one's own."""

    id: str
    type: str
    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    trigger: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    context_required: bool = False
    window: Annotated[int, Field(ge=1, le=64)] = 24
    score: Score = 0.9
    context_boost: Score = 0.45
    validator: str = ""
    examples: Annotated[tuple[str, ...], Field(min_length=1)]
    counter_examples: tuple[str, ...] = ()
