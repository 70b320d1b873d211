"""Edits: what a client changed in its own history, as contexts apply it.

A client may compact its history, go back to an earlier message, or clear old results.
The log keeps every event, and a ``provider_edit`` records the change.  Contexts from
that event on follow all edits so far, under every strategy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import ProviderEdit, ToolResult
from refold.domain.tokens import estimate_text
from refold.projections.context.units import Spans, holds, joined, without


class Edit(NamedTuple):
    """A recorded edit: its seq, and the fields of ``ProviderEdit``."""

    at: int
    left_out: Spans = ()
    restored: Spans = ()
    cleared: Spans = ()
    cleared_text: str = ""
    in_place: Spans = ()

    @property
    def changed(self) -> Spans:
        """The events that contexts show differently after it."""
        return joined((*self.left_out, *self.restored, *self.cleared))

    def renumbered(self, *, at_seq: int) -> Edit:
        """Return the edit of a parent as the session numbers it.

        at_seq: the seq at which the session was forked, which becomes 0.
        """

        def moved(spans: Spans) -> Spans:
            return tuple((first - at_seq, last - at_seq) for first, last in spans)

        return Edit(
            at=self.at - at_seq,
            left_out=moved(self.left_out),
            restored=moved(self.restored),
            cleared=moved(self.cleared),
            cleared_text=self.cleared_text,
            in_place=moved(self.in_place),
        )


class HistoryEdited(Exception):
    """An edit changes events that an outline has folded: fold the log again."""


def edit_of(envelope: Envelope) -> Edit | None:
    """Return the edit that an event records, or None if it changes no events."""
    if envelope.type != "provider_edit":
        return None
    event = envelope.payload
    if not isinstance(event, ProviderEdit) or not event.spans:
        return None
    return Edit(
        at=envelope.seq,
        left_out=joined(event.left_out),
        restored=joined(event.restored),
        cleared=joined(event.cleared),
        cleared_text=event.cleared_text,
        in_place=joined(event.in_place),
    )


def edits_in(envelopes: Iterable[Envelope]) -> tuple[Edit, ...]:
    """Return the edits that these events record, in their order."""
    edits: list[Edit] = []
    for envelope in envelopes:
        edit = edit_of(envelope)
        if edit is not None:
            edits.append(edit)
    return tuple(edits)


class Edited(NamedTuple):
    """The result of several edits.

    left_out: the events that contexts leave out.
    cleared:  results whose content contexts replace, each group with the new text.
    in_place: the events that contexts show before all others.
    """

    left_out: Spans = ()
    cleared: tuple[tuple[Spans, str], ...] = ()
    in_place: Spans = ()

    def shown(self, envelope: Envelope) -> Envelope | None:
        """Return the event as contexts show it, or None if they leave it out."""
        if holds(self.left_out, envelope.seq):
            return None
        for spans, text in self.cleared:
            if holds(spans, envelope.seq) and envelope.type == "tool_result":
                return _cleared(envelope, text)
        return envelope


NOTHING: Final = Edited()


def applied(edits: Iterable[Edit]) -> Edited:
    """Return the result of edits, which are in the order of the log."""
    left_out: Spans = ()
    in_place: Spans = ()
    cleared: list[tuple[Spans, str]] = []
    for edit in edits:
        left_out = joined((*left_out, *edit.left_out))
        left_out = without(left_out, edit.restored)
        in_place = joined((*in_place, *edit.in_place))
        if edit.cleared:
            cleared.append((edit.cleared, edit.cleared_text))
    if not (left_out or in_place or cleared):
        return NOTHING
    return Edited(left_out, tuple(cleared), without(in_place, left_out))


def changed_after(edits: Iterable[Edit], seq: int, first: int, last: int) -> bool:
    """Whether an edit after ``seq`` changes an event from ``first`` to ``last``."""
    for edit in edits:
        if edit.at <= seq:
            continue
        for changed_first, changed_last in edit.changed:
            if changed_first <= last and first <= changed_last:
                return True
    return False


def left_out_by(edits: Iterable[Edit], seq: int) -> int | None:
    """Return the seq of the edit that leaves an event out, or None if none does."""
    by: int | None = None
    for edit in edits:
        if holds(edit.left_out, seq):
            by = edit.at
        if holds(edit.restored, seq):
            by = None
    return by


def _cleared(envelope: Envelope, text: str) -> Envelope:
    """The result with ``text`` in the place of its content."""
    event = envelope.payload
    if not isinstance(event, ToolResult):
        return envelope
    changes = {
        "payload": event.model_copy(update={"content": text}),
        "token_estimate": estimate_text(text),
    }
    return envelope.model_copy(update=changes)
