"""Stored views: sealed under their session's key, read with what is behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from cryptography.exceptions import InvalidTag

from refold.adapters.keys import KeyRing, seal
from refold.adapters.recorder import Recorder, ViewRow
from refold.adapters.sealing import SealedEvent, pack, unpack
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import PAGE, Standing, StoredView

if TYPE_CHECKING:
    from refold.adapters.log import SealedLog


@dataclass(frozen=True, slots=True)
class Views:
    """The stored views of all sessions."""

    recorder: Recorder
    keys: KeyRing

    def load(self, stream: StreamId, name: str) -> StoredView | None:
        """The stored state of a projection; empty if it is not what was stored."""
        return self.opened(stream, name, self.recorder.view_row(stream, name))

    def opened(
        self, stream: StreamId, name: str, row: ViewRow | None
    ) -> StoredView | None:
        """What a row holds; empty if it is not what was stored."""
        if row is None:
            return None
        main, made = _seq(row.through_seq), _seq(row.derived_seq)
        context = _context(stream, name, main, made)
        try:
            shows, derived = _spans(row.main_spans), _spans(row.derived_spans)
            plain = self.keys.unseal(*stream[:2], row.body, context)
            body = orjson.loads(unpack(plain))
        except (InvalidTag, TypeError, ValueError):  # SQLite takes any type anywhere
            return StoredView(main, made)
        return StoredView(main, made, body, shows, derived)

    def save(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store it if the stored one stands at ``replaces``."""
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        context = _context(stream, name, view.through_seq, view.derived_seq)
        body = seal(key.cipher, pack(canonical(view.body)), context)
        spans = (orjson.dumps(s).decode() for s in (view.shows, view.shows_derived))
        row = ViewRow(view.through_seq, view.derived_seq, body, *spans)
        return self.recorder.save_view_row(
            stream, name, row, replaces=replaces, key_check=key.check
        )


def standing(log: SealedLog, stream: StreamId, name: str, *, shown: bool) -> Standing:
    """How a session stands: head, stored view and what is behind it, in one read.

    Where a row does not open they are read apart: it may be one that nobody needs.
    """
    found = log.recorder.standing(stream, name, shown=shown, limit=PAGE)
    head = log.open_head(stream, found.head)
    view = Views(log.recorder, log.keys).opened(stream, name, found.view)
    try:
        return Standing(head, view, *(_opened(log, rows) for rows in found[2:]))
    except CorruptEvent:
        known, derived = view or StoredView(0, 0), stream._replace(stream=name)
        new = log.read(stream, after=known.through_seq, limit=PAGE)
        made = log.read(derived, after=known.derived_seq, limit=PAGE)
        return Standing(head, view, new=new, derived=made)


def _context(stream: StreamId, name: str, through: int, derived: int) -> bytes:
    place = b"%d %d" % (through, derived)
    return length_prefixed((b"view", str(stream).encode(), name.encode(), place))


def _seq(written: object) -> int:
    return written if isinstance(written, int) else 0


def _spans(written: str) -> tuple[Span, ...]:
    return tuple((first, last) for first, last in orjson.loads(written))


def _opened(log: SealedLog, rows: list[SealedEvent]) -> list[Envelope]:
    return log.opened(lambda: rows)
