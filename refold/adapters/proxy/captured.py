"""Recognizes events of a request that another writer, such as a capture, appended.

The session contains these events in their redacted form.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

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
    shared: set[int] = set()
    for seq, item in zip(history.shown, items, strict=False):
        entry = history.entries[seq]
        if item.digest not in (entry.digest, entry.bare):
            break
        shared.add(seq)
    # The digests of the entries after the shared ones.  A digest may occur several
    # times, such as that of a second "yes".
    unmatched = Counter[str]()
    for seq, entry in history.entries.items():
        if seq not in shared:
            unmatched.update(entry.digests)
            unmatched[entry.bare] += 1
    captured = _Captured(history, redact, digest, used=shared)
    for item in items[len(shared) :]:
        if item.event is None:
            continue
        if unmatched[item.digest]:
            unmatched[item.digest] -= 1
            continue
        recorded = captured.take(item)
        if recorded is None:
            continue
        recorded.changed = True
        recorded.digest = item.digest
        recorded.digests |= {item.digest}
        history.digests.add(item.digest)
        recorded.bare = item.bare
        if item.bare:
            history.digests.add(item.bare)


def captured_events(
    history: History,
    items: Sequence[Item],
    redact: Redact,
    digest: Digest,
    *,
    after: int,
    response_id: str | None,
) -> list[Entry | None]:
    """Return for each item of an answer its event from another writer.

    The event is None if no other writer has appended the item yet.

    response_id: the provider's id of the answer.  An event with another id belongs to
           another answer, which may be equal.
    after: the seq of the request.  A slow store may record a request after the capture
           of its answer.  Such an answer has calls that the request does not have, and
           texts behind everything that the request has.
    """
    # An id may come again with an equal call, and a text after a rewind.
    newest_in_request = _newest_in_request(history, after)
    shown = set(history.shown)
    used: list[int] = []
    for seq in history.captured:
        entry = history.entries[seq]
        is_call = entry.type == "tool_call"
        is_left_out = seq not in shown and (is_call or seq > newest_in_request)
        is_earlier = seq <= after and not is_left_out
        if is_earlier or _is_of_other_answer(entry, response_id):
            used.append(seq)
    captured = _Captured(history, redact, digest, used)
    return [captured.take(item) for item in items]


def _is_of_other_answer(entry: Entry, response_id: str | None) -> bool:
    """Whether an event belongs to an answer with another id of the provider."""
    if not entry.response_id or not response_id:
        return False
    return entry.response_id != response_id


def left_out_by_late_request(
    history: History, entries: Iterable[Entry | None], *, after: int
) -> list[int]:
    """Return the seqs of an answer's events that its request left out.

    The request was recorded after them.  Contexts can show them again, since they stand
    behind everything that the request has.

    entries: those of ``captured_events``.
    after:   the seq of the request.
    """
    newest_in_request = _newest_in_request(history, after)
    shown = set(history.shown)
    seqs = [entry.seq for entry in entries if entry is not None]
    return [seq for seq in seqs if seq not in shown and seq > newest_in_request]


def _newest_in_request(history: History, request_seq: int) -> int:
    """Return the seq of the newest event that a request has."""
    asked = (seq for seq in history.shown if seq < request_seq)
    return max(asked, default=request_seq)


class _Captured:
    """The entries of other writers, each of which records one item.

    used: the seqs of the entries that already belong to other items.
    """

    def __init__(
        self, history: History, redact: Redact, digest: Digest, used: Iterable[int]
    ) -> None:
        self._redact = redact
        self._digest = digest
        self._types: set[tuple[str, str]] = set()  # each with a call id
        self._free: dict[tuple[str, str, str], deque[Entry]] = {}  # also by digest
        for seq in sorted(history.captured.difference(used)):
            entry = history.entries[seq]
            if entry.edits:
                continue
            self._types.add((entry.type, entry.call_id))
            name = (entry.type, entry.call_id, entry.digest)
            self._free.setdefault(name, deque()).append(entry)

    def take(self, item: Item) -> Entry | None:
        """Take the first free entry that records an item; returns None without one."""
        if (item.type, item.call_id) not in self._types:
            return None  # the check saves a redaction, which takes time
        first: deque[Entry] | None = None
        for digest in _digests(item, self._redact, self._digest):
            free = self._free.get((item.type, item.call_id, digest))
            if free and (first is None or free[0].seq < first[0].seq):
                first = free
        if first is None:
            return None
        return first.popleft()


def _digests(item: Item, redact: Redact, digest: Digest) -> set[str]:
    """Return the digests of an item and of its redacted form."""
    if item.event is None:
        return {item.digest}
    redacted = item_of(redact(item.event), digest)
    if redacted is None:
        return {item.digest}
    return {item.digest, redacted.digest}
