"""What is read of one session: its part of the API."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, InvalidEvent, SessionNotFound
from refold.domain.events import JsonObject
from refold.domain.ids import MAIN, StreamId, bounded, check_id
from refold.domain.ports import Head
from refold.projections.context.state import fold_state
from refold.store.filling import with_blobs
from refold.store.paging import read_on
from refold.store.timeline import merged
from refold.store.writing import Writer


class Reads:
    """The part of a session that shows what was recorded."""

    __slots__ = ()
    stream: StreamId
    writer: Writer

    @property
    def user_id(self) -> str:
        return self.stream.user_id

    @property
    def session_id(self) -> str:
        return self.stream.session_id

    def head(self) -> Head:
        """The session's end.  Raises SessionNotFound if it has not begun."""
        head = self.writer.log.head(self.stream)
        if head.seq == 0:
            raise SessionNotFound(self.user_id, self.session_id)
        return head

    def events(self, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """The events of the main stream with ``seq > after``, at most ``limit``."""
        self.writer.used(self.stream)
        self.head()
        after = bounded("after", after)
        limit = None if limit is None else bounded("limit", limit)
        return self.writer.log.read(self.stream, after=after, limit=limit)

    def pages(self, after: int = 0, upto: int | None = None) -> Iterator[Envelope]:
        """The same as an iterator that reads a page at a time."""
        log, after = self.writer.log, bounded("after", after)
        upto = None if upto is None else bounded("upto", upto)
        return read_on(log, self.stream, after=after, upto=upto)

    def derived(self, name: str) -> list[Envelope]:
        """The events of a derived stream, in its order."""
        check_id("stream", name)
        return self.writer.log.read(self.stream._replace(stream=name))

    def streams(self) -> list[str]:
        """The names of the session's streams, the main one first."""
        return self.writer.log.streams(self.user_id, self.session_id)

    def blob(self, sha256: str) -> str:
        """The whole (redacted) text that a stub in an event stands for.

        Raises InvalidEvent if ``sha256`` is not 64 hex digits, CorruptEvent if the
        text is not this session's, or not there.
        """
        self.writer.used(self.stream)
        try:
            bytes.fromhex(sha256)
        except ValueError:
            raise InvalidEvent(
                "a blob is named by the 64 hex digits of its SHA-256"
            ) from None
        stream: StreamId | None = self.stream
        while stream is not None:
            data = self.writer.log.blob(stream, sha256)
            if data is not None:
                return data.decode()
            stream = self._parent(stream)
        raise CorruptEvent(f"blob {sha256}", seq=0, reason="there is no such blob")

    def _parent(self, stream: StreamId) -> StreamId | None:
        """What ``stream`` was forked from: its events are read, and its blobs too."""
        origin = self.writer.log.head(stream).state.forked_from
        return None if origin is None else stream._replace(session_id=origin[0])

    def timeline(self, after: int = 0, limit: int | None = None) -> Iterator[Envelope]:
        """The events as they happened, summaries and their like where decided.

        A derived entry comes after its ``decided_at_seq``, marked by its stream.
        """
        self.writer.used(self.stream)
        self.head()
        limit = None if limit is None else bounded("limit", limit)
        names = [name for name in self.streams() if name != MAIN]
        derived = [entry for name in names for entry in self.derived(name)]
        return islice(merged(self.pages(after=after), derived, after), limit)

    def state(self, at: int | None = None) -> JsonObject:
        """The session's working memory: what ``state`` events set and left set."""
        self.writer.used(self.stream)
        self.head()
        state: JsonObject = {}
        log, at = self.writer.log, None if at is None else bounded("at", at)
        for envelope in log.read(self.stream, upto=at, types=("state",)):
            state = fold_state(state, with_blobs(log, envelope))
        return state
