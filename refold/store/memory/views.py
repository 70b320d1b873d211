"""Stored views of memory, which the next call reads instead of the log.

They are stored beside the views of strategies, encrypted and dropped like them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from refold.domain import errors
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, StoredView

# How the names of views begin: what a session shows of tools, what its verdicts show,
# and what may be said to a model.
SHOWN: Final = "memory-"
JUDGED: Final = "declared-"
ADVICE: Final = "advice-"


def drop_views(log: EventLog, user_id: str, *prefixes: str) -> None:
    """Drop all views of each session that has one whose name begins so.

    Views of strategies are dropped with them, and are folded again when needed.  The
    views of a frozen user stay until the user is no longer frozen.
    """
    for info in log.sessions(user_id):
        names = log.view_names(user_id, info.session_id) if info.is_live else []
        if any(name.startswith(prefixes) for name in names):
            log.drop_views(user_id, info.session_id)


def keep_view(
    log: EventLog, stream: StreamId, name: str, view: StoredView, *, replaces: int
) -> None:
    """Store a view for the next call, unless another process stored one first.

    A program that may only read stores nothing, and computes the view each time.

    replaces: the seq of the view that is stored now; 0 for none.
    """
    with suppress(errors.StoreUnavailable):
        log.save_view(stream, name, view, replaces=replaces)
