"""Edits: what a client changed in its own history, as contexts apply it.

A client may compact its history, go back to an earlier message, or clear old results.
The log keeps every event, and a ``provider_edit`` records the change.  Contexts from
that event on follow all edits so far, under every strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    JsonObject,
    ProviderEdit,
    ToolCall,
    ToolResult,
)
from refold.domain.tokens import estimate, estimate_text
from refold.projections.context.units import (
    Spans,
    SpanSet,
    holds,
    is_among,
    joined,
    spans_of,
    without,
)


class Edit(NamedTuple):
    """A recorded edit: its seq, and the fields of ``ProviderEdit``.

    is_compaction: whether the client replaced the events by a summary.
    """

    at: int
    left_out: Spans = ()
    restored: Spans = ()
    cleared: Spans = ()
    cleared_text: str = ""
    in_place: Spans = ()
    is_compaction: bool = False
    arguments: JsonObject | str | None = None
    without_arguments: tuple[str, ...] = ()

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
            is_compaction=self.is_compaction,
            arguments=self.arguments,
            without_arguments=self.without_arguments,
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
        is_compaction=event.reason == "compaction",
        arguments=event.arguments,
        without_arguments=event.without_arguments or (),
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
    cleared:  by seq, the edits that change the content of an event, in their order.
    in_place: the events that contexts show before all others.
    replaced: of the events left out, those that a compaction of the client replaced.
              Events of branches that it abandoned are not among them.
    summaries: the summaries of these compactions, as far as contexts show them.
    """

    left_out: Spans = ()
    cleared: Mapping[int, Sequence[Edit]] = MappingProxyType({})
    in_place: Spans = ()
    replaced: Spans = ()
    summaries: Spans = ()

    def shown(self, envelope: Envelope) -> Envelope | None:
        """Return the event as contexts show it, or None if they leave it out."""
        if is_among(self.left_out, envelope.seq):
            return None
        return self.cleared_form(envelope) or envelope

    def cleared_form(self, envelope: Envelope) -> Envelope | None:
        """Return the event with its new content; None for an event that stays."""
        edits = self.cleared.get(envelope.seq)
        if edits is None:
            return None
        if envelope.type == "tool_result":
            return _cleared(envelope, edits[-1].cleared_text)
        if envelope.type == "agent_response":
            return _without_thinking(envelope)
        if envelope.type == "tool_call":
            return _rewritten(envelope, edits)
        return None


NOTHING: Final = Edited()


def applied(edits: Iterable[Edit]) -> Edited:
    """Return the result of edits, which are in the order of the log."""
    edits = tuple(edits)
    left_out = SpanSet()
    in_place = SpanSet()
    cleared: dict[int, list[Edit]] = {}
    for edit in edits:
        left_out.add(edit.left_out)
        left_out.remove(edit.restored)
        in_place.add(edit.in_place)
        for first, last in edit.cleared:
            for seq in range(first, last + 1):
                cleared.setdefault(seq, []).append(edit)
    if not (left_out.spans or in_place.spans or cleared):
        return NOTHING
    replaced, summaries = _replaced(edits, left_out)
    return Edited(
        left_out=left_out.spans,
        cleared=cleared,
        in_place=left_out.missing(in_place.spans),
        replaced=replaced,
        summaries=summaries,
    )


def _replaced(edits: Sequence[Edit], left_out: SpanSet) -> tuple[Spans, Spans]:
    """Return the events that compactions of the client replaced, and its summaries.

    A compaction counts as long as contexts show its summary, or as a later compaction
    that counts replaced the summary.  If the client went back to an earlier message,
    the compactions after that message are on an abandoned branch.

    left_out: by all edits.
    """
    by_compaction: dict[int, Spans] = {}
    earlier = SpanSet()  # the events that were left out before an edit
    for edit in edits:
        if edit.is_compaction:
            by_compaction[edit.at] = earlier.missing(edit.left_out)
        if edit.restored:
            for at, spans in by_compaction.items():
                by_compaction[at] = without(spans, edit.restored)
        earlier.add(edit.left_out)
        earlier.remove(edit.restored)
    replaced = SpanSet()
    summaries: list[int] = []
    for edit in reversed(edits):
        if not edit.is_compaction:
            continue
        summary = _summary_seq(edit)
        is_abandoned = summary is not None and left_out.holds(summary)
        if summary is not None and replaced.holds(summary):
            is_abandoned = False
        if is_abandoned:
            continue
        replaced.add(by_compaction[edit.at])
        if summary is not None and not left_out.holds(summary):
            summaries.append(summary)
    return replaced.spans, spans_of(summaries)


def _summary_seq(edit: Edit) -> int | None:
    """Return the seq of a client's summary, in place of the events or before the edit.

    Of several events in their place, it is the last one.  It is None if the client
    compacted without a summary.
    """
    if edit.in_place:
        return edit.in_place[-1][1]
    newest = edit.at - 1
    return None if holds(edit.left_out, newest) else newest


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
    """Return the result with ``text`` in the place of its content."""
    event = envelope.payload
    if not isinstance(event, ToolResult):
        return envelope
    changes = {
        "payload": event.model_copy(update={"content": text}),
        "token_estimate": estimate_text(text),
    }
    return envelope.model_copy(update=changes)


def _without_thinking(envelope: Envelope) -> Envelope:
    """Return the response as a client sends it that drops thinking."""
    event = envelope.payload
    if not isinstance(event, AgentResponse):
        return envelope
    shortened = event.model_copy(update={"thinking": ()})
    changes = {"payload": shortened, "token_estimate": estimate(shortened.payload())}
    return envelope.model_copy(update=changes)


def _rewritten(envelope: Envelope, edits: Iterable[Edit]) -> Envelope:
    """The call with the arguments that the client sent in place of the model's."""
    event = envelope.payload
    if not isinstance(event, ToolCall):
        return envelope
    arguments: JsonObject | str = event.arguments
    for edit in edits:
        if isinstance(edit.arguments, str):
            arguments = edit.arguments
            continue
        before = arguments if isinstance(arguments, dict) else {}
        arguments = {**before, **(edit.arguments or {})}
        for name in edit.without_arguments:
            arguments.pop(name, None)
    rewritten = event.model_copy(update={"arguments": arguments})
    changes = {"payload": rewritten, "token_estimate": estimate(rewritten.payload())}
    return envelope.model_copy(update=changes)
