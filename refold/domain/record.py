"""An event on its way into the log, before it has a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from refold.domain.envelope import NO_META, Meta
from refold.domain.events import Event


@dataclass(frozen=True, slots=True)
class Draft:
    """An event and what its writer knows beside it; nothing of it is redacted yet.

    ``ts`` must carry a time zone; None is the writer's clock at append.
    ``request_id`` traces and may be shared by many events.
    """

    event: Event
    ts: datetime | None = None
    request_id: str | None = field(default=None, repr=False)
    agent: str | None = field(default=None, repr=False)
    meta: Meta = NO_META
