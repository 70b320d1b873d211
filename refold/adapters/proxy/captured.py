"""Recognizes events of a request that another writer, such as a capture, appended.

The session contains these events in their redacted form.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from refold.adapters.proxy.history import Digest, Entry, History, Item, item_of
from refold.adapters.proxy.parts import (
    CapturedAnswer,
    Redact,
    Rest,
    rest_of,
)
from refold.domain.events import Event


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
        history.adopt(recorded, item)


class Completion(NamedTuple):
    """The rest of an answer that another writer appended in part.

    item:  of the whole answer; its event has the texts and thinking of the rest.
    order: the event with the order of the rest; None if it is not needed.
    name:  of the answer, as in ``CapturedAnswer``.
    """

    item: Item
    order: Event | None
    name: str


def completion_of_answer(
    history: History, items: Sequence[Item], redact: Redact
) -> Completion | None:
    """Return the rest of the newest answer that another writer appended in part.

    The request has the whole answer, and the entry of the answer gets its digest.
    Returns None if the answer needs no completion, or if contexts show something behind
    it.
    """
    answer = history.newest_captured
    if answer is None or answer.first_seq not in history.captured:
        return None
    if answer.first_seq not in history.shown:
        return None
    index = history.shown.index(answer.first_seq)
    if index >= len(items):
        return None
    for seq, item in zip(history.shown[:index], items, strict=False):
        if not history.matches(history.entries[seq], item):
            return None
    own_seqs = {part.seq for part in answer.parts}
    if not own_seqs.issuperset(history.shown[index:]):
        return None
    entry = history.entries[answer.first_seq]
    if entry.type != "agent_response" or items[index].type != entry.type:
        return None
    rest = rest_of(_answer_at(items, index), answer, redact)
    if rest is None or rest.response is None:
        return None
    item = items[index]._replace(event=rest.response, continues=entry.seq)
    history.adopt(entry, item)
    entry.changed = rest.stored_is_redacted
    return Completion(item, rest.order, answer.name)


def without_unsigned_thinking(
    history: History, items: Sequence[Item], redact: Redact
) -> Sequence[Item]:
    """Return items without the unsigned thinking that another writer appended.

    It begins an answer of which the log has nothing else.
    """
    answer = history.newest_captured
    index = len(history.shown)
    if answer is None or answer.first_seq not in history.leads or index >= len(items):
        return items
    item = items[index]
    if item.type != "agent_response":
        return items
    rest = rest_of(_answer_at(items, index), answer, redact)
    if rest is None or rest.response is None:
        return items
    shortened = item._replace(event=rest.response)
    return [*items[:index], shortened, *items[index + 1 :]]


def _answer_at(items: Sequence[Item], index: int) -> list[Event]:
    """Return the events of the answer in a request that begins with this item."""
    events: list[Event] = []
    for item in items[index:]:
        is_first = not events
        if item.event is None or (item.type == "agent_response" and not is_first):
            break
        if item.type not in ("agent_response", "tool_call", "provider_edit"):
            break
        if item.lead is not None and not is_first:
            break
        events.append(item.event)
    return events


def rest_of_answer(
    history: History,
    events: Sequence[Event],
    redact: Redact,
    *,
    after: int,
    response_id: str | None,
) -> tuple[CapturedAnswer, Rest] | None:
    """Return an answer that another writer appended in part, and the rest of it.

    events: of the whole answer.
    after:  the seq of the request.
    response_id: the provider's id of the answer.  If the other writer did not know it,
            the content decides.

    Returns None if no other writer has appended the beginning of this answer.
    """
    if not history.captured_answers:
        return None
    newest_in_request = _newest_in_request(history, after)
    for answer in reversed(history.captured_answers):
        if not answer.response_id and answer.is_followed:
            continue  # its writer named each entry of an answer, not the answer
        if answer.parts[-1].seq <= newest_in_request:
            return None  # it belongs to an earlier answer, which may be equal
        if answer.parts[-1].seq <= after and answer.first_seq in history.shown:
            return None
        if answer.response_id and answer.response_id != response_id:
            continue
        first_seq = answer.first_seq
        if first_seq not in history.captured and first_seq not in history.silent:
            continue  # the proxy has completed it
        rest = rest_of(events, answer, redact)
        if rest is not None:
            return answer, rest
    return None


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
