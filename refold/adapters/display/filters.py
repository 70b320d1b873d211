"""Filters of the events of a run: failures, and the calls of a tool or about a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refold.adapters.display.events import Numbering
from refold.domain import events
from refold.projections.context.text import leaves
from refold.projections.overview import is_failure

if TYPE_CHECKING:
    from refold.adapters.display.events import Numbered
    from refold.domain.envelope import Envelope


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of the events of a run; an empty one accepts all events.

    A call and its result match together: a failed result also selects its call.

    failed: only failures, as totals count them.
    tools:  only calls of a tool with one of these names, in any case.
    files:  only calls whose arguments name one of these files.  A path without its
            first folders is enough.
    """

    failed: bool = False
    tools: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it accepts all events."""
        return not self.failed and not self.tools and not self.files

    def select(self, envelopes: Iterable[Envelope]) -> Selected:
        """Return the events that match, of all events of a run in their order."""
        selected = Selected()
        calls: dict[int, _Call] = {}
        for item in Numbering().number(envelopes):
            has_failed = is_failure(item.envelope)
            if item.call is not None:
                call = calls.setdefault(item.call, _Call())
                self._take(call, item, has_failed=has_failed)
                if isinstance(item.envelope.payload, events.ToolCall):
                    selected.tools[item.envelope.payload.tool_name] += 1
            elif has_failed and not self.tools and not self.files:
                selected.add(item.envelope)
        for call in calls.values():
            if call.matches and (call.has_failed or not self.failed):
                selected.places.update(call.places)
        return selected

    def _take(self, call: _Call, item: Numbered, *, has_failed: bool) -> None:
        """Add a call or its result."""
        envelope = item.envelope
        call.places.append((envelope.stream, envelope.seq))
        if has_failed:
            call.has_failed = True
        event = envelope.payload
        if isinstance(event, events.ToolCall):
            call.matches = self.accepts_call(event)

    def accepts_call(self, call: events.ToolCall) -> bool:
        """Whether a call is of one of the tools and about one of the files."""
        tools = {name.lower() for name in self.tools}
        if tools and call.tool_name.lower() not in tools:
            return False
        if not self.files:
            return True
        names = "|".join(re.escape(file.removeprefix("./")) for file in self.files)
        path = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-]|\.\w)")
        return any(path.search(text) for text in leaves(call.arguments))


@dataclass(slots=True)
class _Call:
    """A call with its result.

    places: the stream and seq of both.
    """

    places: list[tuple[str, int]] = field(default_factory=list)
    matches: bool = False
    has_failed: bool = False


@dataclass(slots=True)
class Selected:
    """The events of a run that match a filter.

    places: the stream and seq of each.
    tools:  the number of calls of each tool of the run.
    """

    places: set[tuple[str, int]] = field(default_factory=set)
    tools: Counter[str] = field(default_factory=Counter)

    def add(self, envelope: Envelope) -> None:
        """Add an event."""
        self.places.add((envelope.stream, envelope.seq))

    def __contains__(self, envelope: Envelope) -> bool:
        return (envelope.stream, envelope.seq) in self.places

    def filtered(self, envelopes: Iterable[Envelope]) -> Iterator[Numbered]:
        """Yield those of all events of the run that match, with their numbers."""
        for item in Numbering().number(envelopes):
            if item.envelope in self:
                yield item
