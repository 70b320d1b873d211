"""What the recorder in memory says of its sizes: as the databases do, in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from refold.adapters.recorder import HeadRow
from refold.adapters.sealing import SealedEvent
from refold.domain.ids import MAIN, StreamId
from refold.domain.sizes import RATES, Lagging


def sizes(
    heads: Mapping[StreamId, HeadRow],
    rows: Sequence[SealedEvent],
    *,
    now: int,
) -> dict[str, Any]:
    """The figures of these heads and rows; rates up to ``now``."""
    main = [head for stream, head in heads.items() if stream.stream == MAIN]
    found: dict[str, Any] = {
        "users": len({stream.user_id for stream in heads}),
        "sessions": len(main),
        "derived_streams": len(heads) - len(main),
        "tokens": sum(head.tokens for head in main),
        **_sized(rows),
    }
    for name, span in RATES.items():
        active = sum(head.updated_at > now - span for head in main)
        recent = [row for row in rows if row.header.ts > now - span]
        found |= {f"sessions_{name}": active, **_sized(recent, f"_{name}")}
    return found


def _sized(rows: Sequence[SealedEvent], suffix: str = "") -> dict[str, int]:
    size = sum(len(row.state) for row in rows)
    return {f"events{suffix}": len(rows), f"event_bytes{suffix}": size}


def counted(what: str, bytes_: Sequence[int]) -> dict[str, int]:
    """How many there are of these sizes, and what they take together."""
    return {f"{what}s": len(bytes_), f"{what}_bytes": sum(bytes_)}


def lag_of(views: Iterable[Lagging]) -> list[dict[str, Any]]:
    """How far the views of each strategy are behind."""
    named = attrgetter("place.name")
    lag = []
    for name, group in groupby(sorted(views, key=named), key=named):
        behind = [view.events for view in group]
        lag.append(
            {
                "fingerprint": name,
                "views": len(behind),
                "behind": sum(events > 0 for events in behind),
                "events": sum(behind),
                "most": max(behind),
            }
        )
    return lag
