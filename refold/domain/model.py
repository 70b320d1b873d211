"""Frozen values whose errors and reprs never show what they hold."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Model(BaseModel):
    """A frozen value whose errors and repr never show what it holds."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [(name, Concealed(value)) for name, value in self if value is not None]


class Concealed:
    """Stands for a value in a repr: its kind and size, never its content."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        sized = f" of {len(self._value)}" if hasattr(self._value, "__len__") else ""
        return f"<{type(self._value).__name__}{sized}>"


def explain(what: str, error: ValidationError, fields: Container[str]) -> str:
    """Say which of ``fields`` are wrong and why, without what stood in them.

    Below a field nothing is named: keys there are the writer's text.
    """
    reasons = []
    for detail in error.errors(include_input=False, include_url=False):
        if detail["type"] == "extra_forbidden":
            reasons.append("a field it does not have")
            continue
        first = str(detail["loc"][0]) if detail["loc"] else ""
        place = first if first in fields else "a value"
        reasons.append(f"{place}: {detail['msg']}")
    return f"{what}: " + "; ".join(dict.fromkeys(reasons))
