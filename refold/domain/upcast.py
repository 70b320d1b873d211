"""Older versions of payloads: each upcast converts a payload to the next version."""

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

# The name that pydantic gives to the schema of any JSON value.
_ANY_JSON: Final = "pydantic.types.JsonValue:"


def event_trusted(event_type: str, payload: JsonObject) -> SessionEvent:
    """Return the event of a payload that was validated before.

    The result is the same as that of ``event_of``, but JSON values inside of the
    payload are not validated again.

    payload: in the current version.
    """
    cls = EVENT_CLASSES[event_type]
    try:
        fields, extra, set_fields = _fields_of(cls).validate_python(payload)
    except ValidationError:
        return event_of(event_type, payload)
    return built(cls, fields, set_fields, extra)  # type: ignore[return-value]  # a member of the union


def meta_of_stored(meta: Mapping[str, Any]) -> Meta:
    """Return the meta that ``Meta.dump`` wrote."""
    if not meta:
        return NO_META
    fields, extra, set_fields = _fields_of(Meta).validate_python(meta)
    return built(Meta, fields, set_fields, extra)


@cache
def _fields_of(cls: type[BaseModel]) -> SchemaValidator:
    """Return a validator for the fields of a class, which accepts any JSON values."""
    schema: Any = cls.__pydantic_core_schema__
    definitions = schema.get("definitions", [])
    model = schema["schema"] if definitions else schema
    fields = definitions_schema(_unchecked(model["schema"]), definitions)
    return SchemaValidator(fields, model["config"])


def _unchecked(schema: Any) -> Any:
    """Return the schema with any value allowed in the places of JSON values."""
    if isinstance(schema, list):
        return [_unchecked(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("schema_ref")).startswith(_ANY_JSON):
        return {"type": "any"}
    return {key: _unchecked(part) for key, part in schema.items()}


Upcast = Callable[[JsonObject], JsonObject]
# By type and version, the conversion to the next version.
UPCASTS: Mapping[tuple[str, int], Upcast] = {
    ("compaction", 1): dict,  # the fields that were added have defaults
    ("provider_edit", 1): dict,  # the same
    ("redaction_applied", 1): dict,  # the same
    ("request", 1): dict,  # the same
    ("request", 2): dict,  # the same
    ("request", 3): dict,  # the same
    ("system", 1): dict,  # the same
}


def upcast(
    event_type: str,
    version: int,
    payload: JsonObject,
    *,
    upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
) -> SessionEvent:
    """Return the event of a stored payload of any version.

    Raises InvalidEvent for an unknown type or version, so that no event of the log
    disappears silently.
    """
    cls = EVENT_CLASSES.get(event_type)
    if cls is None:
        raise InvalidEvent(f"unknown event type {event_type!r}: upgrade Refold")
    if not 1 <= version <= cls.version:
        raise InvalidEvent(
            f"{event_type} of version {version}, this Refold reads up to "
            f"{cls.version}: upgrade Refold"
        )
    for step in range(version, cls.version):
        payload = upcasts[event_type, step](payload)
    return event_of(event_type, payload)


def is_current(event_type: str, version: int) -> bool:
    """Whether this is the current version of a known type."""
    cls = EVENT_CLASSES.get(event_type)
    return cls is not None and cls.version == version


def event_of_stored(event_type: str, version: int, payload: JsonObject) -> SessionEvent:
    """Return the event of a stored, authentic payload.

    It does the same as ``upcast``, but does not validate the current version again,
    because that was done before the payload was encrypted.
    """
    if is_current(event_type, version):
        return event_trusted(event_type, payload)
    return upcast(event_type, version, payload)
