"""What is kept of memory between calls: stored views, by the beginnings of names."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from refold.domain.errors import StoreUnavailable
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, StoredView

# Beside the views of strategies, sealed and dropped like them.
SHOWN: Final = "memory-"
JUDGED: Final = "declared-"
ADVICE: Final = "advice-"


def drop_kept(log: EventLog, user_id: str, *kept: str) -> None:
    """Drop what is kept; other views go with it, and are folded again when needed.

    Of a user who is frozen it stays: it is dropped when they go on.
    """
    for info in log.sessions(user_id):
        names = log.view_names(user_id, info.session_id) if info.is_live else []
        if any(name.startswith(kept) for name in names):
            log.drop_views(user_id, info.session_id)


def keep(
    log: EventLog, stream: StreamId, name: str, view: StoredView, *, replaces: int
) -> None:
    """Keep it for the next call, if another was not first and it may be written.

    A program that may only read makes it each time.
    """
    with suppress(StoreUnavailable):
        log.save_view(stream, name, view, replaces=replaces)
