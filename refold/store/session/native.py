"""Native items: the values of a framework or provider that a session records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from refold.domain import errors, ports
from refold.domain.envelope import LATER, Draft, Envelope, Format, Meta, Native
from refold.domain.ids import bounded, check_id
from refold.domain.session import labelling
from refold.projections.items import NativeItem, first_of, groups, has_bytes, whole
from refold.redaction.guard import restored
from refold.store import appends, contexts
from refold.store.history import read_pages
from refold.store.recorded import recorded
from refold.store.session.core import start_upkeep
from refold.store.session.part import SessionPart

# The first page that is read for the newest items has at least this many events.
_SMALLEST_PAGE: Final = 64


@dataclass(frozen=True, slots=True)
class NativeItems(SessionPart):
    """Append items of a framework to a session, and read them whole."""

    def append(
        self,
        format: Format,  # noqa: A002  # as the field of Native is named
        items: Iterable[Any],
        *,
        expected_seq: int | None = None,
        request_id: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        opaque: Literal["refuse", "keep"] = "refuse",
        unscanned: appends.Unscanned = "refuse",
    ) -> appends.Receipt:
        """Record items, each as the events that its format derives from it.

        An item with an id is recorded once: if the session has part of a batch, the
        rest is appended.

        items:  values of the framework, or ``Native`` with kind and id.  A ``Draft``
                among the items is appended like an event.
        opaque: the handling of bytes in an item, which cannot be redacted.  ``refuse``
                refuses the append; ``keep`` stores them and counts them as unscanned.

        The other arguments and the errors are those of ``Session.append``.
        """
        empty_draft = Draft(LATER, *appends.draft_fields(ts, request_id, agent, meta))
        drafts: list[Draft] = []
        for item in items:
            if isinstance(item, Draft):
                drafts.append(item)
                continue
            native = item
            if not isinstance(item, Native):
                native = Native(format, format.kind(item), format.id(item), item)
            if opaque == "refuse" and has_bytes(native.value):
                why = "bytes cannot be redacted: opaque='keep' keeps them as they are"
                raise errors.InvalidEvent(why)
            drafts.append(replace(empty_draft, native=native, key=native.key))
        labels = self._first_labels()
        if labels:
            first_ts = drafts[0].ts if drafts else ts
            drafts.insert(0, Draft(labelling(labels), ts=first_ts, key="labels"))
        order = appends.Order(
            self.stream, tuple(drafts), None, expected_seq, unscanned=unscanned
        )
        receipt = self.writer.append(order)
        if labels:
            self.writer.log.label(self.stream, labels)
        start_upkeep(self.session, order)
        return receipt

    def put_bytes(
        self, data: bytes, *, opaque: Literal["refuse", "keep"] = "refuse"
    ) -> appends.Receipt:
        """Record bytes.  No rule can read them, so ``opaque="keep"`` is needed."""
        return self.append(Format("bytes"), [data], opaque=opaque)

    @recorded("session_load", "items")
    def would_store(
        self,
        format: Format,  # noqa: A002  # as the field of Native is named
        items: Iterable[Any],
    ) -> list[Any]:
        """Return the items as a reader would get them after an append, with stubs."""
        natives = (Native(format, value=item) for item in items)
        originals_and_stored = self.writer.redacted_items(self.stream, natives)
        return [stored for _, stored in originals_and_stored]

    @recorded("session_load")
    def read(
        self,
        *,
        kind: str | None = None,
        after: int = 0,
        newest: int | None = None,
        spans: Sequence[tuple[int, int]] = (),
        others: bool = False,
    ) -> Iterator[NativeItem]:
        """Yield the items with ``seq > after``, whole, each with its events.

        kind:   only items of this kind.
        newest: only this number of the newest items, oldest first.
        spans:  only the items in these ranges of seqs, which are in order.
        others: also yield events that belong to no item, as items without a format.
        """
        self.writer.used(self.stream)
        after = bounded("after", after)

        def of_kind(page: Iterable[Envelope]) -> Iterator[NativeItem]:
            for item in self._items(page):
                if item.format and kind in (None, item.kind):
                    yield item

        if spans:
            return of_kind(self.writer.log.read(self.stream, spans=spans))
        if newest is not None:
            return self._newest(bounded("newest", newest), after, of_kind)
        events = self._pages(after)
        if others:
            return self._items(events)
        return of_kind(events)

    def _newest(
        self,
        count: int,
        after: int,
        of_kind: Callable[[Iterable[Envelope]], Iterator[NativeItem]],
    ) -> Iterator[NativeItem]:
        """Return the last ``count`` items of a kind.

        This reads backward from the head, in growing pages, until there are enough.

        of_kind: yields the items of the kind in a page of events.
        """
        if count == 0:
            return iter(())
        newest: list[NativeItem] = []
        upto = self.session.head().seq
        size = max(4 * count, _SMALLEST_PAGE)
        while upto > after and len(newest) < count:
            first = max(after, upto - size)
            size *= 2
            page = self.writer.log.read(self.stream, after=first, upto=upto)
            # Events at the beginning of the page may belong to an item that begins
            # before it.  They are left to the next page.
            begin = first_of(page) if first > after else 0
            if begin < len(page):
                newest = [*of_kind(page[begin:]), *newest]
                upto = page[begin].seq - 1
        return iter(newest[-count:])

    @recorded("session_load")
    def fold(
        self,
        name: str,
        *,
        step: Callable[[Any, NativeItem], Any],
        start: Any = None,
        version: int = 1,
    ) -> Any:
        """Fold all items and events with ``step``, beginning with ``start``.

        The state is JSON.  It is stored with the session, so that the next call folds
        only new items.

        version: increase it when ``step`` changes.
        """
        log = self.writer.log
        separator = ports.VIEW_NAME_SEPARATOR
        key = check_id("name", f"fold{separator}{name}{separator}{version}")
        stored = log.load_view(self.stream, key)
        state = start
        through_seq = 0
        if stored is not None and "state" in stored.body:
            state = stored.body["state"]
            through_seq = stored.through_seq
        last = through_seq
        for item in self._items(self._pages(through_seq)):
            state = step(state, item)
            last = item.events[-1].seq
        if last - through_seq >= contexts.WORTH_STORING:
            view = ports.StoredView(last, 0, {"state": state})
            replaces = stored.through_seq if stored else 0
            log.save_view(self.stream, key, view, replaces=replaces)
        return state

    def _items(self, envelopes: Iterable[Envelope]) -> Iterator[NativeItem]:
        """Yield the items in these events; an event of no item has no format."""

        def read_blob(sha256: str) -> bytes | None:
            try:
                return self.writer.log.blob(self.stream, sha256)
            except errors.Expired:
                return None

        for native, events in groups(envelopes):
            first = events[0]
            if native is None:
                yield NativeItem(first.seq, "", first.type, None, None, events)
                continue
            record: Any = restored(dict(native), read_blob)
            payloads = [
                restored(event.payload.payload(), read_blob) for event in events
            ]
            value = whole(record, payloads, read_blob)
            yield NativeItem(
                seq=first.seq,
                format=str(record.get("format")),
                kind=str(record.get("kind")),
                id=record.get("id"),
                value=value,
                events=events,
            )

    def _pages(self, after: int) -> Iterator[Envelope]:
        return read_pages(self.writer.log, self.stream, after=after)

    def _first_labels(self) -> Mapping[str, str]:
        """Return the labels that the first append records; none for a later append."""
        labels = self.session.first_labels
        # A cached head shows without a read that the session has events.
        if not labels or self.writer.heads.get(self.stream) is not None:
            return ports.NO_LABELS
        if self.writer.log.head(self.stream).seq > 0:
            return ports.NO_LABELS
        return labels
