"""Reading yesterday's shapes: each step turns a payload into the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from refold.domain.envelope import NO_META, Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import EVENT_CLASSES, JsonObject, SessionEvent, event_of
from refold.domain.model import built

_Turn = Callable[[Any], Any]
_MISSING: Final = object()


class _Unlike(Exception):
    """The value is not of the simple kind that is built here."""


class _Shape(NamedTuple):
    """How a class is built: its fields at their defaults, and those JSON changes."""

    cls: type[Any]
    blank: dict[str, Any]
    made: tuple[tuple[str, Callable[[], Any]], ...]
    turned: tuple[tuple[str, _Turn], ...]
    required: tuple[str, ...]


def event_trusted(event_type: str, payload: JsonObject) -> SessionEvent:
    """The event of a payload of today's shape that was validated once.

    The same as ``event_of`` makes of it, which is asked where that is not simple.
    """
    shape = _SHAPES[event_type]
    if shape is None:
        return event_of(event_type, payload)
    try:
        return _filled(shape, payload)  # type: ignore[no-any-return]  # a member of the union
    except _Unlike:
        return event_of(event_type, payload)


def _filled(shape: _Shape, given: JsonObject) -> Any:
    """The model of these fields and of the defaults of the others."""
    cls, blank, made, turned, required = shape
    fields = {**blank, **given}
    if len(fields) != len(blank):
        raise _Unlike
    for name in required:
        if name not in given:
            raise _Unlike
    for name, turn in turned:
        fields[name] = turn(fields[name])
    for name, make in made:
        if name not in given:
            fields[name] = make()
    return built(cls, fields, set(given))


def meta_trusted(meta: Mapping[str, Any]) -> Meta:
    """The meta that ``meta`` is the dump of."""
    if not meta:
        return NO_META
    extra: dict[str, Any] = {}
    fields = _BLANK_META.copy()
    for name, value in meta.items():
        kind = _PLAIN_META.get(name)
        if kind is None:
            if name in fields:
                return Meta(**meta)
            extra[name] = value
        elif type(value) is not kind:
            return Meta(**meta)
        else:
            fields[name] = value
    return built(Meta, fields, set(meta), extra)


def _shape(cls: type[BaseModel]) -> _Shape | None:
    """How to build ``cls``; None if it holds models that must be."""
    fields = cls.model_fields
    turns = {name: _turn(field) for name, field in fields.items()}
    if _never in turns.values():
        return None
    return _Shape(
        cls,
        {
            name: _MISSING if field.is_required() else field.default
            for name, field in fields.items()
        },
        tuple(
            (name, field.default_factory)  # type: ignore[misc]  # ours take no argument
            for name, field in fields.items()
            if field.default_factory is not None
        ),
        tuple((name, turn) for name, turn in turns.items() if turn is not None),
        tuple(name for name, field in fields.items() if field.is_required()),
    )


def _turn(field: FieldInfo) -> _Turn | None:
    """What makes of JSON what the field holds; None: it holds JSON as it is."""
    kind = field.annotation
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    turns = {_turn_of(kind) for kind in kinds} - {None}
    return turns.pop() if len(turns) == 1 else _never if turns else None


def _turn_of(kind: Any) -> _Turn | None:
    origin = get_origin(kind)
    if origin is tuple:
        parts = [_turn_of(item) for item in get_args(kind) if item is not Ellipsis]
        turns = {turn for turn in parts if turn is not None}
        if not turns:
            return _tuple
        return _each(turns.pop()) if len({*parts}) == 1 else _empty
    if origin in (dict, list):
        return _never if any(_turn_of(item) for item in get_args(kind)) else None
    if kind is float:
        return _float
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _model(kind)
    # JSON values are what they are; whatever else there may be is not known here.
    json = kind in _AS_JSON or getattr(kind, "__name__", "") == "JsonValue"
    return None if json or origin is Literal else _never


@cache
def _model(kind: type[BaseModel]) -> _Turn:
    """What makes a model of its dump, if it is a simple one."""
    shape, checks = _shape(kind), kind.__pydantic_decorators__
    if shape is None or checks.field_validators or checks.model_validators:
        return _never
    return partial(_made, shape)


def _made(shape: _Shape, value: Any) -> Any:
    if value is None:
        return None
    if type(value) is not dict:
        raise _Unlike
    return _filled(shape, value)


def _each(turn: _Turn) -> _Turn:
    """The same of each item of a tuple."""

    def each(value: Any) -> Any:
        if type(value) not in (list, tuple):
            raise _Unlike
        return tuple([turn(item) for item in value])

    return each


def _tuple(value: Any) -> Any:
    if type(value) is list:
        return tuple(value)
    if type(value) is tuple:
        return value
    raise _Unlike


def _empty(value: Any) -> Any:
    """Of models there are mostly none; where there are some, they are to be made."""
    if value:
        raise _Unlike
    return _tuple(value)


def _float(value: Any) -> Any:
    if value is None or type(value) is float:
        return value
    raise _Unlike


def _never(_: Any) -> Any:
    raise _Unlike


_AS_JSON: Final = frozenset({str, int, bool, type(None)})
_PLAIN_META: Final[dict[str, type]] = {
    **dict.fromkeys(("model", "tool_name", "status", "scenario", "response_id"), str),
    **dict.fromkeys(("usage", "source"), dict),
    "duration_ms": float,
}
_BLANK_META: Final[dict[str, Any]] = {
    name: field.default for name, field in Meta.model_fields.items()
}
_SHAPES: Final = {name: _shape(cls) for name, cls in EVENT_CLASSES.items()}


Upcast = Callable[[JsonObject], JsonObject]
UPCASTS: Mapping[tuple[str, int], Upcast] = {
    ("compaction", 1): dict,  # the fields that were added have defaults
    ("redaction_applied", 1): dict,  # the same
    ("request", 1): dict,  # the same
    ("request", 2): dict,  # the same
    ("request", 3): dict,  # the same
}


def upcast(
    event_type: str,
    version: int,
    payload: JsonObject,
    *,
    upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
) -> SessionEvent:
    """Make an event of a stored payload, whatever version wrote it.

    Raises InvalidEvent for a type or version this Refold does not know: an audit
    log never forgets silently.
    """
    known = EVENT_CLASSES.get(event_type)
    if known is None:
        raise InvalidEvent(f"unknown event type {event_type!r}: upgrade Refold")
    if not 1 <= version <= known.version:
        raise InvalidEvent(
            f"{event_type} of version {version}, this Refold reads up to "
            f"{known.version}: upgrade Refold"
        )
    for step in range(version, known.version):
        payload = upcasts[event_type, step](payload)
    return event_of(event_type, payload)


def is_current(event_type: str, version: int) -> bool:
    """Whether it is a type that is known here, in today's shape."""
    known = EVENT_CLASSES.get(event_type)
    return known is not None and known.version == version


def recorded(event_type: str, version: int, payload: JsonObject) -> SessionEvent:
    """``upcast`` for what was validated before it was sealed, and is as it was.

    In today's shape it is not validated again.
    """
    known = EVENT_CLASSES.get(event_type)
    if known is not None and known.version == version:
        return event_trusted(event_type, payload)
    return upcast(event_type, version, payload)
