"""Stored views of memory, which the next call reads instead of the log.

They are stored like the views of strategies: encrypted, and dropped with the session.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from refold.domain import errors
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, StoredView

# The names of memory's views begin with one of these prefixes.
FACTS_PREFIX: Final = "memory-"  # the facts that a session shows about tools
VERDICTS_PREFIX: Final = "declared-"  # the facts that the verdicts of a session show
ADVICE_PREFIX: Final = "advice-"  # a shortlist of what a model may be shown


def drop_views(log: EventLog, user_id: str, *prefixes: str) -> None:
    """Drop all views of each session with a view whose name begins with a prefix.

    This also drops the views of strategies, which are folded again when needed.  The
    views of a frozen user stay until the user is no longer frozen.
    """
    for info in log.sessions(user_id):
        if not info.is_live:
            continue
        names = log.view_names(user_id, info.session_id)
        if any(name.startswith(prefixes) for name in names):
            log.drop_views(user_id, info.session_id)


def keep_view(
    log: EventLog, stream: StreamId, name: str, view: StoredView, *, replaces: int
) -> None:
    """Store a view for the next call, unless another process stored one first.

    A program that may only read stores nothing, and computes the view each time.

    replaces: the seq of the view that is stored already; 0 if none is.
    """
    with suppress(errors.StoreUnavailable):
        log.save_view(stream, name, view, replaces=replaces)
