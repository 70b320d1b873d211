"""Memory for a model that asks for it with a tool."""

from __future__ import annotations

from collections.abc import Iterator

from refold.domain.audit import Access
from refold.domain.ids import StreamId
from refold.projections.memory.advice import Choosing, Line
from refold.projections.memory.declared.said import lines
from refold.projections.memory.item import Item
from refold.projections.memory.tool import Answer, Known, Query, answer
from refold.store.declared import profile_of
from refold.store.remembering import remember
from refold.store.writing import Writer


def retrieve(writer: Writer, stream: StreamId, query: Query, how: Choosing) -> Answer:
    """What the memory of the stream's user says to a query, in the session it is of.

    Of a user who opted out nothing is said, and without consent nothing of what they
    are like.  Raises Erased, KeyUnavailable, CorruptEvent.
    """
    now = writer.clock()
    memory = remember(writer.log, stream.user_id)
    profile = list(_profile(writer, stream.user_id, now))
    found = answer(query, Known(memory.items, memory.means, profile), how, now=now)
    if writer.audit is not None:
        counts = {"items": len(found.items)}
        access = Access("memory_load", stream.user_id, stream.session_id, counts=counts)
        writer.audit.note(access)
    return found


def _profile(writer: Writer, user_id: str, now: int) -> Iterator[tuple[Line, Item]]:
    """What may be said of the user, which without their consent is nothing."""
    profile = profile_of(writer.log, user_id, now)
    items = {item.memory_id: item for item in profile.items}
    for line in lines(profile, now):
        if line.memory_id in items:
            yield line, items[line.memory_id]
