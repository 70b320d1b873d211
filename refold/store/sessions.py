"""One session: append to it, read it, show what a model is sent, prove it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import CorruptEvent, InvalidEvent, SessionNotFound
from refold.domain.events import Event, Fork, JsonObject, SystemPrompt
from refold.domain.ids import StreamId, check_session_id
from refold.domain.ports import Head
from refold.domain.record import Draft
from refold.domain.session import SessionState, evolve
from refold.store.writing import Order, Receipt, Writer

_PAGE: Final = 1000
Appendable = Event | Draft


@dataclass(frozen=True, slots=True)
class Session:
    """One session of one user.  It holds no state: make as many as you like."""

    stream: StreamId
    writer: Writer

    @property
    def user_id(self) -> str:
        return self.stream.user_id

    @property
    def session_id(self) -> str:
        return self.stream.session_id

    def append(
        self,
        events: Appendable | Sequence[Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
    ) -> Receipt:
        """Record ``events``, all of them or none; durable when it returns.

        Each is validated, redacted and size-guarded before anything is written.

        events:          one or several; a Draft carries its own ts, meta and so on.
        request_id:      traces; many appends may share one.
        idempotency_key: makes a retry safe: the same key with the same content gives
                         the first receipt again, and writes nothing.
        ts:              when it happened, with a time zone; the clock if left out.
        expected_seq:    the seq the writer last saw; 0 = a new session, None =
                         whatever it is.

        Raises InvalidEvent, EventTooLarge, RedactionFailed, StaleSession,
        IdempotencyConflict, SessionClosed, Erased, KeyUnavailable, StoreUnavailable.
        """
        given = [events] if isinstance(events, Event | Draft) else list(events)
        beside = Draft(Event(type=""), ts, request_id, agent, _meta(meta))
        drafts = tuple(_draft(event, beside) for event in given)
        return self.writer.append(
            Order(self.stream, drafts, idempotency_key, expected_seq)
        )

    async def append_async(
        self,
        events: Appendable | Sequence[Appendable],
        *,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        agent: str | None = None,
        ts: datetime | None = None,
        meta: Meta | Mapping[str, object] | None = None,
        expected_seq: int | None = None,
    ) -> Receipt:
        """``append`` for asyncio: the loop is not blocked meanwhile."""
        return await asyncio.to_thread(
            self.append,
            events,
            request_id=request_id,
            idempotency_key=idempotency_key,
            agent=agent,
            ts=ts,
            meta=meta,
            expected_seq=expected_seq,
        )

    def close(self) -> Receipt:
        """End the session: from here on it takes nothing but summaries."""
        return self.append(SystemPrompt(closed=True))

    def fork(self, at: int, session_id: str) -> Session:
        """Begin another session that goes on from this one as it was at ``at``.

        Nothing is copied: its context reads this session's events first.  Calls that
        were open at ``at`` can be answered in both.

        Raises SessionNotFound, InvalidEvent if ``at`` is not a seq of this session,
        StaleSession if the new session exists already.
        """
        check_session_id(session_id)
        if not 1 <= at <= self.head().seq:
            raise InvalidEvent(f"cannot fork at seq {at}: it is not in the session")
        child = Session(self.stream._replace(session_id=session_id), self.writer)
        born = Head(SessionState(child.stream, 0, self._state_at(at).open_calls))
        event = Fork(session_id=self.session_id, at_seq=at)
        order = Order(child.stream, (Draft(event),), expected_seq=0)
        self.writer.append(order, born=born)
        return child

    def _state_at(self, seq: int) -> SessionState:
        return self.folded(upto=seq)

    def head(self) -> Head:
        """The session's end.  Raises SessionNotFound if it has not begun."""
        head = self.writer.log.head(self.stream)
        if head.seq == 0:
            raise SessionNotFound(self.user_id, self.session_id)
        return head

    def events(self, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """The events of the main stream with ``seq > after``, at most ``limit``."""
        self.head()
        return self.writer.log.read(self.stream, after=after, limit=limit)

    def pages(self, after: int = 0, upto: int | None = None) -> Iterator[Envelope]:
        """The same as an iterator that reads a page at a time."""
        log = self.writer.log
        while page := log.read(self.stream, after=after, upto=upto, limit=_PAGE):
            yield from page
            after = page[-1].seq

    def derived(self, name: str) -> list[Envelope]:
        """The events of a derived stream, in its order."""
        return self.writer.log.read(self.stream._replace(stream=name))

    def streams(self) -> list[str]:
        """The names of the session's streams, the main one first."""
        return self.writer.log.streams(self.user_id, self.session_id)

    def blob(self, sha256: str) -> str:
        """The whole (redacted) text that a stub in an event stands for.

        Raises InvalidEvent if ``sha256`` is not 64 hex digits, CorruptEvent if the
        text is not this user's, or not there.
        """
        try:
            bytes.fromhex(sha256)
        except ValueError:
            raise InvalidEvent(
                "a blob is named by the 64 hex digits of its SHA-256"
            ) from None
        data = self.writer.log.blob(self.user_id, sha256)
        if data is None:
            raise CorruptEvent(f"blob {sha256}", seq=0, reason="there is no such blob")
        return data.decode()

    def folded(self, upto: int | None = None) -> SessionState:
        """What the session accepts next, folded from its events alone."""
        state = SessionState(self.stream)
        for envelope in self.pages(upto=upto):
            if isinstance(envelope.payload, Fork) and envelope.seq == 1:
                parent = Session(
                    self.stream._replace(session_id=envelope.payload.session_id),
                    self.writer,
                )
                calls = parent.folded(upto=envelope.payload.at_seq).open_calls
                state = SessionState(self.stream, 0, calls)
            state = evolve(state, envelope.payload)
        return state


def _meta(meta: Meta | Mapping[str, object] | None) -> Meta:
    if meta is None or isinstance(meta, Meta):
        return meta or Meta()
    return Meta(**meta)  # type: ignore[arg-type]


def _draft(given: Appendable, beside: Draft) -> Draft:
    if isinstance(given, Draft):
        draft = given
    elif isinstance(given, Event):
        draft = Draft(given, beside.ts, beside.request_id, beside.agent, beside.meta)
    else:
        raise InvalidEvent(
            f"append takes events, not {type(given).__name__}: refold.UserInput(text=…)"
        )
    if draft.ts is not None and draft.ts.tzinfo is None:
        raise InvalidEvent("ts needs a time zone: datetime.now(UTC)")
    return draft


__all__ = ["JsonObject", "Session"]
