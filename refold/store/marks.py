"""Marks: they name by keys the entries that an edit of a client changes."""

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
    """Return the drafts with seqs in place of the keys in their marks.

    A key names an entry of the log, or one of these drafts.  Keys of entries that were
    never recorded are left out.

    own: the seqs that these drafts will have, by their keys.
    """
    keys: dict[str, None] = {}
    for draft in drafts:
        if draft.mark is not None:
            keys.update(dict.fromkeys(draft.mark.keys))
    if not keys:
        return list(drafts)
    spans_by_key = dict(own)
    for key, (first, last) in log.known(stream, [*keys]).items():
        spans_by_key[key] = (first, last)
    return [_with_seqs_of_mark(draft, spans_by_key) for draft in drafts]


def with_own_seqs(drafts: Sequence[Draft]) -> list[Draft]:
    """Return the drafts of a whole transcript with seqs in place of keys.

    The first draft gets seq 1.
    """
    spans_by_key: dict[str, Span] = {}
    for seq, draft in enumerate(drafts, start=1):
        if draft.key:
            spans_by_key[draft.key] = (seq, seq)
    return [_with_seqs_of_mark(draft, spans_by_key) for draft in drafts]


def _with_seqs_of_mark(draft: Draft, spans_by_key: Mapping[str, Span]) -> Draft:
    event = draft.event
    mark = draft.mark
    if mark is None or not isinstance(event, ProviderEdit):
        return draft
    spans = {
        "left_out": _spans_of_keys(mark.left_out, spans_by_key),
        "restored": _spans_of_keys(mark.restored, spans_by_key),
        "cleared": _spans_of_keys(mark.cleared, spans_by_key),
        "in_place": _spans_of_keys(mark.in_place, spans_by_key),
    }
    return replace(draft, event=event.model_copy(update=spans), mark=None)


def _spans_of_keys(
    keys: Iterable[str], spans_by_key: Mapping[str, Span]
) -> tuple[Span, ...]:
    return joined(spans_by_key[key] for key in keys if key in spans_by_key)
