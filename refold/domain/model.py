"""Frozen values whose errors and reprs never show their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Final, Self, TypeVar, get_args
from uuid import UUID

from pydantic import (
    VERSION,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
)

# Building the validators of all events takes longer than many processes run.  So each
# is built when its class is first used.  Before 2.14, two threads could disturb each
# other while they do that.
_BUILDS_ON_USE: Final = tuple(map(int, VERSION.split(".")[:2])) >= (2, 14)


class Model(BaseModel):
    """A frozen value whose errors and repr never show its content."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=_BUILDS_ON_USE,
    )

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        shown = _numbers(type(self)) | {"type"}
        arguments: list[tuple[str | None, Any]] = []
        for name, value in self:
            if value is not None:
                arguments.append((name, value if name in shown else Concealed(value)))
        return arguments


def _build_before_fork() -> None:
    """Build what was not used yet.

    While a class is built, its thread holds a lock.  If the process is forked then,
    nothing releases the lock in the child.  So nothing is left to build there.
    """
    waiting: list[type[Model]] = [Model]
    while waiting:
        kind = waiting.pop()
        kind.model_rebuild(raise_errors=False)
        waiting += kind.__subclasses__()


if _BUILDS_ON_USE and hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_build_before_fork)


M = TypeVar("M", bound=Model)
T = TypeVar("T")
# Types without content: a repr may show their values.
_NUMBERS: Final = frozenset({int, float, bool, NoneType, AwareDatetime, UUID})
_set: Final = object.__setattr__


def built(
    cls: type[M],
    fields: dict[str, Any],
    set_fields: set[str],
    extra: dict[str, Any] | None = None,
    private: dict[str, Any] | None = None,
) -> M:
    """Build a model without validation.

    It does the same as ``model_construct`` in a third of the time, which counts when a
    log is read event by event.

    fields:     the values of all fields.
    set_fields: the names of the fields that are no defaults.
    """
    model = cls.__new__(cls)
    _set(model, "__dict__", fields)
    _set(model, "__pydantic_fields_set__", set_fields)
    _set(model, "__pydantic_extra__", extra)
    _set(model, "__pydantic_private__", private)
    return model


def copied(value: Any) -> Any:
    """Return a value with copies of its JSON objects and lists, or itself if none."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    if kind is tuple:
        items = [copied(item) for item in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else tuple(items)
    if not isinstance(value, Model):
        return value
    fields = vars(value)
    extra = copied(value.__pydantic_extra__)
    copies: dict[str, Any] = {}
    for name, old in fields.items():
        new = copied(old)
        if new is not old:
            copies[name] = new
    if not copies and not extra:
        return value
    return built(kind, {**fields, **copies}, set(value.model_fields_set), extra)


@cache
def _numbers(kind: type[Model]) -> frozenset[str]:
    """Return the fields that can only contain numbers, by their annotations."""
    names: set[str] = set()
    for name, field in kind.model_fields.items():
        types = get_args(field.annotation) or (field.annotation,)
        if _NUMBERS.issuperset(types):
            names.add(name)
    return frozenset(names)


# Converts the values of a class to JSON and back; one is made at the first use.
adapter: Final[Callable[[type], TypeAdapter[Any]]] = cache(TypeAdapter)


class JsonDataclass:
    """A dataclass that is stored as JSON."""

    __slots__ = ()

    def dump(self) -> dict[str, Any]:
        """Return the value as JSON."""
        dumped: dict[str, Any] = adapter(type(self)).dump_python(self, mode="json")
        return dumped

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Self:
        """Read what ``dump`` returned, also after it was stored as JSON."""
        loaded: Self = adapter(cls).validate_python(dumped)
        return loaded


def repr_without_texts(kind: type[T]) -> type[T]:
    """Give a dataclass or named tuple a repr with its numbers and without its texts."""
    names = getattr(kind, "_fields", None)
    if names is None:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass

    def quiet_repr(self: T) -> str:
        shown: list[str] = []
        for name in names:
            value = getattr(self, name)
            if type(value) not in _NUMBERS:
                value = Concealed(value)
            shown.append(f"{name}={value!r}")
        return f"{kind.__name__}({', '.join(shown)})"

    kind.__repr__ = quiet_repr  # type: ignore[method-assign,assignment]  # of all its values
    return kind


class Concealed:
    """Replaces a value in a repr: it shows the type and the size, never the content."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        kind = type(self._value).__name__
        if hasattr(self._value, "__len__"):
            return f"<{kind} of {len(self._value)}>"
        return f"<{kind}>"


def explain(subject: str, error: ValidationError, fields: Container[str]) -> str:
    """Return a sentence that names the invalid fields and the reasons.

    It contains no values, and no keys inside of fields, because those are text of the
    writer.

    subject: the name of the object with the fields.
    fields:  the names of its fields.
    """
    reasons: list[str] = []
    for detail in error.errors(include_input=False, include_url=False):
        if detail["type"] == "extra_forbidden":
            reasons.append("a field it does not have")
            continue
        first = str(detail["loc"][0]) if detail["loc"] else ""
        place = first if first in fields else "a value"
        reasons.append(f"{place}: {detail['msg']}")
    return f"{subject}: " + "; ".join(dict.fromkeys(reasons))
