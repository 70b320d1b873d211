"""Recognizes events of a request that another writer, such as a capture, appended.

The session has them redacted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refold.adapters.proxy.history import Digest, Entry, History, Item, item_of
from refold.domain.events import Event

# Returns an event as the session would record it.
Redact = Callable[[Event], Event]


def adopt(
    history: History, items: Sequence[Item], redact: Redact, digest: Digest
) -> None:
    """Give entries of other writers the digests of the items that they record.

    Later requests then recognize them at once.
    """
    used: set[int] = set()
    for item in items:
        if item.event is None or item.digest in history.digests:
            continue
        entry = _captured(history, item, redact, digest, used)
        if entry is None:
            continue
        used.add(entry.seq)
        entry.changed = True
        entry.digest = item.digest
        entry.digests |= {item.digest}
        history.digests.add(item.digest)
        entry.bare = item.bare
        if item.bare:
            history.digests.add(item.bare)


def without_captured(
    history: History,
    items: Sequence[Item],
    redact: Redact,
    digest: Digest,
    *,
    after: int,
) -> list[bool]:
    """Return for each item of an answer whether no other writer has appended it.

    after: the seq of the request.  A slow store may record a request after the capture
           of its answer; the id of a call shows that.
    """
    used: set[int] = set()
    for seq in history.captured:
        if seq <= after and history.entries[seq].type != "tool_call":
            used.add(seq)
    missing: list[bool] = []
    for item in items:
        entry = _captured(history, item, redact, digest, used)
        if entry is not None:
            used.add(entry.seq)
        missing.append(entry is None)
    return missing


def _captured(
    history: History, item: Item, redact: Redact, digest: Digest, used: set[int]
) -> Entry | None:
    """Return the entry of another writer that has an item; None without one.

    used: the seqs of entries that have other items.
    """
    digests: set[str] | None = None
    for seq in sorted(history.captured - used):
        entry = history.entries[seq]
        if entry.type != item.type or entry.edits:
            continue
        if entry.call_id != item.call_id:
            continue
        if digests is None:
            digests = _digests(item, redact, digest)
        if entry.digest in digests:
            return entry
    return None


def _digests(item: Item, redact: Redact, digest: Digest) -> set[str]:
    """Return the digests of an item and of its redacted form."""
    if item.event is None:
        return {item.digest}
    redacted = item_of(redact(item.event), digest)
    return {item.digest} if redacted is None else {item.digest, redacted.digest}
