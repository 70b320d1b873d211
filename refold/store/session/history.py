"""Readers of a session: its events page by page, its streams, its blobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from refold.domain import errors, ports
from refold.domain.envelope import Envelope
from refold.domain.events import ToolCall
from refold.domain.ids import MAIN, StreamId, bounded, check_id
from refold.projections.context.units import spans_of
from refold.store import history
from refold.store.history import History, read_pages
from refold.store.recorded import recorded
from refold.store.session.part import SessionPart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(frozen=True, slots=True)
class SessionHistory(SessionPart):
    """Read the events of a session in the forms that programs and people need."""

    @recorded("session_load")
    def pages(self, after: int = 0, upto: int | None = None) -> Iterator[Envelope]:
        """Yield the events with ``after < seq <= upto``, read a page at a time."""
        upto = None if upto is None else bounded("upto", upto)
        after = bounded("after", after)
        return read_pages(self.writer.log, self.stream, after=after, upto=upto)

    @recorded("session_load")
    def timeline(self, after: int = 0, limit: int | None = None) -> Iterator[Envelope]:
        """Yield main and derived events in the order in which they happened.

        A derived event, such as a summary, follows the event at its
        ``decided_at_seq``.  Its ``stream`` distinguishes it from a main event.
        """
        self.writer.used(self.stream)
        self.session.head()
        limit = None if limit is None else bounded("limit", limit)
        derived: list[Envelope] = []
        for name in self.streams():
            if name != MAIN:
                derived.extend(self.derived(name))
        main = self.pages(after=after)
        return islice(history.merge_derived(main, derived, after), limit)

    @recorded("session_load")
    def derived(self, name: str) -> list[Envelope]:
        """Return the events of a derived stream, in its order."""
        check_id("stream", name)
        return self.writer.log.read(self.stream._replace(stream=name))

    @recorded("session_load", "streams")
    def streams(self) -> list[str]:
        """Return the names of the session's streams, the main one first."""
        return self.writer.log.streams(self.user_id, self.session_id)

    @recorded("session_blob")
    def blob(self, sha256: str) -> str:
        """Return the whole redacted text that a stub in an event stands for.

        Raises InvalidEvent if ``sha256`` is not 64 hex digits, CorruptEvent if the
        session has no such text.
        """
        self.writer.used(self.stream)
        try:
            bytes.fromhex(sha256)
        except ValueError:
            why = "a blob is named by the 64 hex digits of its SHA-256"
            raise errors.InvalidEvent(why) from None
        stream: StreamId | None = self.stream
        while stream is not None:
            data = self.writer.log.blob(stream, sha256)
            if data is not None:
                return data.decode()
            # The blobs of a fork's origin belong to the fork, too.
            origin = self.writer.log.head(stream).state.forked_from
            stream = stream._replace(session_id=origin[0]) if origin else None
        reason = "there is no such blob"
        raise errors.CorruptEvent(f"blob {sha256}", seq=0, reason=reason)

    @recorded("session_load", "calls")
    def open_calls(self) -> list[ToolCall]:
        """Return the calls that have no result, in the order in which they were made.

        A program that starts again must carry out each call, or append
        ``ToolResult(status="unknown")`` for it.  A fork also has the open calls of its
        origin.
        """
        log = self.writer.log
        state = self.session.head().state
        unread = dict(state.open_calls)
        open_calls: list[ToolCall] = []
        # An inherited call has the seq that it has in a parent, and the state does not
        # say in which.  So the seqs are looked up in the session, then in its parent,
        # and so on.
        lineage: History | None = History.of(log, state)
        while unread and lineage is not None:
            seqs = sorted(call.seq for call in unread.values())
            calls: list[ToolCall] = []
            for envelope in log.read(lineage.stream, spans=spans_of(seqs)):
                if envelope.type != "tool_call":
                    continue
                call = history.with_whole_texts(log, envelope, ToolCall)
                if unread.pop(call.call_id, None):
                    calls.append(call)
            open_calls = calls + open_calls
            lineage = lineage.parent
        return open_calls

    @recorded("session_load")
    def follow(self, *, after: int = 0, every: float = 1.0) -> Iterator[Envelope]:
        """Yield the events with ``seq > after``, and new events until the session ends.

        Events that this process appends come at once.  Events of other processes come
        within ``every`` seconds.

        Raises SessionNotFound, and Erased once the session is erased.
        """
        self.session.head()
        changed = threading.Event()
        with self.writer.heads.listening(self.stream, changed.set):
            while True:
                changed.clear()
                closed = self._is_closed()
                for envelope in self.pages(after):
                    yield envelope
                    after = envelope.seq
                if closed:
                    return
                changed.wait(every)

    async def follow_async(
        self, *, after: int = 0, every: float = 1.0
    ) -> AsyncIterator[Envelope]:
        """Do the same as ``follow``, for asyncio."""
        await asyncio.to_thread(self.session.head)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        def read_page(page_after: int) -> tuple[list[Envelope], bool]:
            # The end is checked first: a closed session gets no more events.
            closed = self._is_closed()
            return [*islice(self.pages(page_after), ports.PAGE)], closed

        with self.writer.heads.listening(self.stream, wake):
            while True:
                changed.clear()
                page, closed = await asyncio.to_thread(read_page, after)
                for envelope in page:
                    yield envelope
                    after = envelope.seq
                if len(page) == ports.PAGE:
                    continue  # there may be more
                if closed:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), every)

    @recorded("session_stats", "figures")
    def stats(self) -> dict[str, Any]:
        """Return what ``SessionStore.stats`` returns, for this session."""
        self.session.head()
        scope = ports.Scope(self.user_id, self.session_id)
        return self.writer.log.stats(scope, now=self.writer.clock())

    def _is_closed(self) -> bool:
        return self.writer.log.head(self.stream).state.closed
