"""Marks: which seqs an edit of a client changes, from the keys that a draft names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from refold.domain.envelope import Draft
from refold.domain.events import ProviderEdit, Span
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog
from refold.projections.context.units import joined


def with_seqs(
    log: EventLog, stream: StreamId, drafts: Sequence[Draft], own: Mapping[str, Span]
) -> list[Draft]:
    """Return the drafts, with the seqs that their marks name by keys.

    A key stands for an entry of the log, or for one of these drafts.  Keys of entries
    that nobody recorded are passed over.

    own: the seqs that these drafts will have, by their keys.
    """
    keys: dict[str, None] = {}
    for draft in drafts:
        if draft.mark is not None:
            keys.update(dict.fromkeys(draft.mark.keys))
    if not keys:
        return list(drafts)
    places = dict(own)
    for key, (first, last) in log.known(stream, [*keys]).items():
        places[key] = (first, last)
    return [_filled(draft, places) for draft in drafts]


def filled(drafts: Sequence[Draft]) -> list[Draft]:
    """Return the drafts of a whole transcript, with the seqs that their marks name.

    The first draft gets seq 1.
    """
    places: dict[str, Span] = {}
    for seq, draft in enumerate(drafts, start=1):
        if draft.key:
            places[draft.key] = (seq, seq)
    return [_filled(draft, places) for draft in drafts]


def _filled(draft: Draft, places: Mapping[str, Span]) -> Draft:
    event = draft.event
    mark = draft.mark
    if mark is None or not isinstance(event, ProviderEdit):
        return draft
    spans = {
        "left_out": _spans(mark.left_out, places),
        "restored": _spans(mark.restored, places),
        "cleared": _spans(mark.cleared, places),
        "in_place": _spans(mark.in_place, places),
    }
    return replace(draft, event=event.model_copy(update=spans), mark=None)


def _spans(keys: Iterable[str], places: Mapping[str, Span]) -> tuple[Span, ...]:
    return joined(places[key] for key in keys if key in places)
