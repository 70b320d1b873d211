"""Frozen values whose errors and reprs never show what they hold."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Final, Self, TypeVar, get_args
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter, ValidationError


class Model(BaseModel):
    """A frozen value whose errors and repr never show what it holds."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        said = _numbers(type(self)) | {"type"} & type(self).model_fields.keys()
        return [
            (name, value if name in said else Concealed(value))
            for name, value in self
            if value is not None
        ]


M = TypeVar("M", bound=Model)
T = TypeVar("T")
_NUMBERS: Final = frozenset({int, float, bool, NoneType, AwareDatetime, UUID})
_set: Final = object.__setattr__


def built(
    cls: type[M],
    fields: dict[str, Any],
    named: set[str],
    extra: dict[str, Any] | None = None,
    private: dict[str, Any] | None = None,
) -> M:
    """A model of these fields, all of them; ``named`` were given, not defaults.

    As ``model_construct``, in a third of its time: a log is read event by event.
    """
    model = cls.__new__(cls)
    _set(model, "__dict__", fields)
    _set(model, "__pydantic_fields_set__", named)
    _set(model, "__pydantic_extra__", extra)
    _set(model, "__pydantic_private__", private)
    return model


def copied(value: Any) -> Any:
    """The same, and itself unless a JSON object or list is in it: those are copied."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    if kind is tuple:
        items = [copied(item) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else tuple(items)
    if not isinstance(value, Model):
        return value
    fields, extra = vars(value), copied(value.__pydantic_extra__)
    others = {
        name: new for name, old in fields.items() if (new := copied(old)) is not old
    }
    if not others and not extra:
        return value
    return built(kind, {**fields, **others}, {*value.model_fields_set}, extra)


@cache
def _numbers(kind: type[Model]) -> frozenset[str]:
    """The fields that can only be numbers: what may be any JSON is content."""
    held = {name: field.annotation for name, field in kind.model_fields.items()}
    return frozenset(
        name
        for name, one in held.items()
        if _NUMBERS.issuperset(get_args(one) or [one])
    )


# What makes JSON of the values of a class, and values of JSON; made when first used.
adapter: Final[Callable[[type], TypeAdapter[Any]]] = cache(TypeAdapter)


class Kept:
    """A dataclass that is kept as JSON."""

    __slots__ = ()

    def dump(self) -> dict[str, Any]:
        """All of it as JSON."""
        dumped: dict[str, Any] = adapter(type(self)).dump_python(self, mode="json")
        return dumped

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Self:
        """What ``dump`` wrote, also after it was JSON."""
        loaded: Self = adapter(cls).validate_python(dumped)
        return loaded


def quiet(kind: type[T]) -> type[T]:
    """Have values of this dataclass or named tuple show numbers, and no text."""
    names = getattr(kind, "_fields", None) or [one.name for one in fields(kind)]  # type: ignore[arg-type]  # a dataclass

    def told(self: T) -> str:
        held = {name: getattr(self, name) for name in names}
        shown = [
            f"{name}={value if type(value) in _NUMBERS else Concealed(value)!r}"
            for name, value in held.items()
        ]
        return f"{kind.__name__}({', '.join(shown)})"

    kind.__repr__ = told  # type: ignore[method-assign,assignment]  # of all its values
    return kind


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
