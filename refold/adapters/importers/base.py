"""What an importer is: a file in, transcripts of drafts out, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from refold.adapters.importers.source import Source
from refold.domain.errors import InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import RESERVED, check_session_id
from refold.domain.record import Draft

_MILLISECONDS_FROM = 100_000_000_000  # as seconds: the year 5138


@dataclass(frozen=True, slots=True)
class Skipped:
    """What did not become an event: its place in the file and why, never content."""

    where: str
    why: str


class Piece(NamedTuple):
    """An event as an importer read it: its type and its fields, not checked yet."""

    type: str
    fields: dict[str, Any]


Found: TypeAlias = Piece | Skipped


def placed(found: Found, place: str) -> Found:
    """The same, and if it was skipped, said to be at ``place``."""
    return found if isinstance(found, Piece) else Skipped(place, found.why)


@dataclass(frozen=True, slots=True)
class Origin:
    """What the events of one entry share.

    ``place`` is the entry's line or index; ``source`` is what else is to stand in
    ``meta.source``.  ``usage`` is the response's as this entry tells it.
    """

    place: str
    ts: datetime | None = None
    request_id: str | None = None
    agent: str | None = None
    model: str | None = None
    scenario: str | None = None
    response_id: str | None = None
    usage: JsonObject | None = None
    source: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transcript:
    """One session of a file, as drafts that an empty session accepts in this order.

    ``session_id`` is empty where the file names none.  ``parent_session_id`` is the
    session that a sub-agent's run belongs to.
    """

    session_id: str
    format: str
    drafts: tuple[Draft, ...]
    skipped: tuple[Skipped, ...]
    parent_session_id: str | None = None


class Importer(Protocol):
    """Reads one format.

    ``recognises`` says yes to its own format only.  ``read`` gives the transcripts
    in the order in which they begin; from a file that has grown at its end it gives
    the same drafts and then further ones.  Both raise ImportFailed for a file that
    cannot be read whole.
    """

    name: str

    def recognises(self, source: Source) -> bool: ...

    def read(self, source: Source) -> Iterable[Transcript]: ...


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """``value`` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str | None:
    """``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """``value`` if it is a finite number and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def milliseconds(value: Any, *, per_unit: float = 1.0) -> float | None:
    """A duration that a file gives, in milliseconds, if it can be one."""
    amount = number(value)
    if amount is None or amount < 0:
        return None
    return round(amount * per_unit, 3)


def moment(value: Any) -> datetime | None:
    """The time in UTC that ``value`` names: ISO 8601, or seconds since 1970.

    A time without a zone is taken as UTC, a number beyond any date as milliseconds.
    """
    try:
        if isinstance(value, str):
            when = datetime.fromisoformat(value.strip())
            return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
        seconds = number(value)
        if seconds is None:
            return None
        scale = 1000 if seconds >= _MILLISECONDS_FROM else 1
        return datetime.fromtimestamp(seconds / scale, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def session_name(value: Any) -> str:
    """``value`` if it can name a session, else nothing: the caller names it then."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        name = check_session_id(value)
        return "" if name in RESERVED else name
    except InvalidEvent:
        return ""
