"""Reading yesterday's shapes: each step turns a payload into the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaValidator
from pydantic_core.core_schema import definitions_schema

from refold.domain.envelope import NO_META, Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import EVENT_CLASSES, JsonObject, SessionEvent, event_of
from refold.domain.model import built

# What pydantic calls the schema of any JSON in that of a model.
_ANY_JSON: Final = "pydantic.types.JsonValue:"


def event_trusted(event_type: str, payload: JsonObject) -> SessionEvent:
    """The event of a payload of today's shape that was validated once.

    The same as ``event_of`` makes of it; only JSON in it is not looked through again.
    """
    cls = EVENT_CLASSES[event_type]
    try:
        fields, extra, named = _fields_of(cls).validate_python(payload)
    except ValidationError:
        return event_of(event_type, payload)
    return built(cls, fields, named, extra)  # type: ignore[return-value]  # a member of the union


def meta_trusted(meta: Mapping[str, Any]) -> Meta:
    """The meta that ``meta`` is the dump of."""
    if not meta:
        return NO_META
    fields, extra, named = _fields_of(Meta).validate_python(meta)
    return built(Meta, fields, named, extra)


@cache
def _fields_of(cls: type[BaseModel]) -> SchemaValidator:
    """What makes the fields of ``cls``, and takes any JSON in them as it is."""
    schema: Any = cls.__pydantic_core_schema__
    definitions = schema.get("definitions", [])
    model = schema["schema"] if definitions else schema
    fields = definitions_schema(_unchecked(model["schema"]), definitions)
    return SchemaValidator(fields, model["config"])


def _unchecked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_unchecked(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("schema_ref")).startswith(_ANY_JSON):
        return {"type": "any"}
    return {key: _unchecked(one) for key, one in schema.items()}


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
    if is_current(event_type, version):
        return event_trusted(event_type, payload)
    return upcast(event_type, version, payload)
