"""One session: append to it, read it, show what a model is sent, prove it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import Fork, Request, SystemPrompt
from refold.domain.ids import StreamId, check_session_id
from refold.domain.ports import Head, Standing
from refold.domain.record import Draft
from refold.domain.sizes import Scope
from refold.projections.context.abridged import Abridged
from refold.projections.context.extras import HandedIn
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer
from refold.projections.context.view import View
from refold.projections.context.writing import fitting
from refold.store import appending
from refold.store.attempts import Attempt
from refold.store.audited import audits
from refold.store.audited_calls import SESSION
from refold.store.choosing import chosen
from refold.store.compacting import Compactor
from refold.store.comparing import Compared, How, compare
from refold.store.drafting import Appendable, Beside, drafts_of
from refold.store.explained import Explanation
from refold.store.explaining import Explainer
from refold.store.handing import take
from refold.store.history import History, born
from refold.store.moments import SessionAt
from refold.store.reading import Reads
from refold.store.requested import RequestedViews
from refold.store.reviewing import AsksHumans
from refold.store.sweeping import bring_up, lagging
from refold.store.upkeep import Upkeep
from refold.store.verifying import Verified, Verifier
from refold.store.viewing import As, Viewer, opened
from refold.store.writing import Order, Receipt, Writer

if TYPE_CHECKING:
    from refold.projections.memory.advice import ChoosingArgs
    from refold.projections.memory.section import Advice


@audits(SESSION, "writer")
@dataclass(frozen=True, slots=True)
class Session(Reads, AsksHumans):
    """One session of one user.  It holds no state: make as many as you like."""

    stream: StreamId
    writer: Writer
    upkeep: Upkeep = field(default_factory=Upkeep, compare=False, repr=False)

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
        drafts = drafts_of(events, Beside(ts, request_id, agent, Meta.of(meta)))
        order = Order(self.stream, drafts, idempotency_key, expected_seq)
        receipt = self.writer.append(order)
        self._keep_up(order)
        return receipt

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
        drafts = drafts_of(events, Beside(ts, request_id, agent, Meta.of(meta)))
        order = Order(self.stream, drafts, idempotency_key, expected_seq)
        receipt = await appending.append(self.writer, order)
        if "wait" in (self.upkeep.automatic, self.upkeep.remember):
            await asyncio.to_thread(self._keep_up, order)
        else:
            self._keep_up(order)
        return receipt

    def _keep_up(self, order: Order) -> None:
        events = [draft.event for draft in order.drafts]
        self.upkeep.appended(events, self.stream, self.compact)
        if self.upkeep.remember != "off":
            self.upkeep.learned(order.drafts, self.user_id, partial(self._learn, order))

    def _learn(self, order: Order) -> None:
        """Make the user's memory anew, of the scenarios that were named here."""
        from refold.store.advising import Adviser

        tags = {draft.meta.scenario for draft in order.drafts}
        Adviser(self.writer, self.user_id).learn(*(tag for tag in tags if tag))

    def attempt(
        self,
        what: str,
        *,
        request_id: str | None = None,
        agent: str | None = None,
        retryable: bool | None = None,
    ) -> Attempt:
        """``with session.attempt("parse the plan"):`` records it if that fails.

        An exception becomes an ``error`` event with its place in the code and in the
        session, and goes on to who is outside.  Calls that the step made and that have
        no result are closed with ``status="unknown"``.  ``async with`` works too.

        retryable: whether trying again may help; left out, it may after a time-out, or
                   where a connection or the database failed.
        """
        return Attempt(self, what, request_id, agent, retryable)

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
        child = replace(self, stream=self.stream._replace(session_id=session_id))
        event = Fork(session_id=self.session_id, at_seq=at)
        born_ = Head(born(self.writer.log, child.stream, event))
        order = Order(child.stream, (Draft(event),), expected_seq=0)
        self.writer.append(order, born=born_)
        return child

    def at(self, seq: int) -> SessionAt:
        """The session as it was when ``seq`` was its newest event, to read.

        Raises InvalidEvent if it has no such event.
        """
        if not 1 <= seq <= self.head().seq:
            raise InvalidEvent(f"seq {seq} is not in session {self.session_id!r}")
        return SessionAt(self, seq)

    def context(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        as_: As = "sent",
        **handed: Unpack[HandedIn],
    ) -> View:
        """What the next model call is sent, or was sent when ``at`` was the end.

        It never compacts.  Left out, ``strategy`` is that of the last recorded
        request, else the settings', else everything raw.  ``as_`` matters only with
        ``at``: ``sent`` counts the summaries that were there then, ``rebuilt`` those
        decided up to there, whenever they were made.  HandedIn says what may be handed
        in; with ``at`` and nothing handed in, it is what the last request then had.

        Raises SessionNotFound, UnknownStrategy, RedactionFailed, InvalidEvent for an
        ``at`` outside and for what cannot be handed in.
        """
        self.writer.used(self.stream)
        taken = take(self.writer, self.user_id, handed)
        if at is None:
            viewer, chosen_, standing = self._opened(strategy)
            return viewer.show(chosen_, taken, standing=standing)
        viewer = self._viewer()
        self.at(at)
        chosen_ = self._chosen(viewer, strategy, at)
        taken = taken if handed else viewer.handed_at(at)
        return viewer.render(chosen_, viewer.at(chosen_, at, as_), taken)

    def advice(
        self,
        strategy: str | Strategy | None = None,
        **how: Unpack[ChoosingArgs],
    ) -> Advice:
        """What memory says to the model in this session: ``context(advice=…)``.

        It is chosen of the user's memory for the first request, and again after each
        compaction; in between it is what the last recorded request of this strategy
        had, so that a prompt begins as it did before.  What expired meanwhile, or is
        not wanted any more, is not said.

        Raises SessionNotFound, InvalidConfiguration, Erased.
        """
        # Who asks for no memory need not wait for what makes it.
        from refold.projections.memory.advice import chosen_by
        from refold.store.advising import Adviser

        choosing = chosen_by(how)
        chosen_ = self._chosen(self._viewer(), strategy, None)
        adviser = Adviser(self.writer, self.user_id)
        return adviser.for_session(self.stream, chosen_, choosing)

    def compact(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Envelope | None:
        """Do one step of compaction if one is due: its summary, or None.

        Folds of older summaries that follow from it are done in the same step.
        """
        return self.compactor(strategy, summarizer=summarizer).step()

    def prepare(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
        wait: bool = True,
        **handed: Unpack[HandedIn],
    ) -> View:
        """What an agent loop calls before the model: compact if due, then context.

        wait: False has a thread of the store compact, and gives the context as it is.
        """
        self.writer.used(self.stream)
        taken = take(self.writer, self.user_id, handed)
        viewer, chosen_, standing = self._opened(strategy)
        compactor = self._compactor(viewer, chosen_, summarizer)
        if not wait:
            name = (self.stream, chosen_.fingerprint)
            self.upkeep.background.ask(name, compactor.step)
        elif compactor.is_due(standing):
            compactor.step()
            return viewer.show(chosen_, taken)
        return viewer.show(chosen_, taken, standing=standing)

    def compactor(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Compactor:
        """What ``compact`` does its step with: it also says when one may be due."""
        viewer = self._viewer()
        return self._compactor(viewer, self._chosen(viewer, strategy, None), summarizer)

    def _compactor(
        self, viewer: Viewer, strategy: Strategy, summarizer: Summarizer | None
    ) -> Compactor:
        writes = summarizer or self.upkeep.summarizer or Abridged()
        return Compactor(self.writer, viewer, strategy, fitting(strategy, writes))

    def compare(
        self, strategies: Iterable[str | Strategy] | None = None, **how: Unpack[How]
    ) -> Compared:
        """What several strategies, or all, would have sent and cost; writes nothing."""
        return compare(self._viewer(), strategies, how)

    def record_request(
        self,
        view: View,
        *,
        model: str | None = None,
        matches: bool | None = None,
        request_id: str | None = None,
    ) -> Receipt:
        """Record that ``view`` was sent to a model, so that it can be shown again.

        matches: whether the bytes sent were those of the view.
        """
        return self.append(
            view.request(model=model, matches=matches), request_id=request_id
        )

    def replay(self) -> Iterator[tuple[Envelope, View]]:
        """Each recorded request with the view it was made of, derived again."""
        self.writer.used(self.stream)
        views = RequestedViews(self._viewer())
        for envelope in self.writer.log.read(self.stream, types=("request",)):
            if isinstance(envelope.payload, Request):
                yield envelope, views.view(envelope.payload)

    def why(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        message: int | None = None,
    ) -> Explanation:
        """Why the context at ``at`` is as it is, proved; raises as ``context`` does."""
        self.writer.used(self.stream)
        viewer = self._viewer() if at is None else self.at(at).session._viewer()
        chosen_ = self._chosen(viewer, strategy, at)
        return Explainer(viewer, chosen_).explain(at, message=message)

    def verify(self, *, chain_only: bool = False) -> Verified:
        """Prove chains, heads, calls and results, and everything derived.

        chain_only: that no row was changed, added or taken away, and no more: nothing
                    is decrypted.
        """
        log, stream = self.writer.log, self.stream
        return Verifier(log, stream, chain_only=chain_only).run()

    def catch_up(self) -> int:
        """Bring the stored views to the head; returns how many moved."""
        self.head()
        log, scope = self.writer.log, Scope(self.user_id, self.session_id)
        return sum(bring_up(log, view.place) for view in lagging(log, scope))

    def stats(self) -> dict[str, Any]:
        """What ``SessionStore.stats`` gives, of this session."""
        self.head()
        scope = Scope(self.user_id, self.session_id)
        return self.writer.log.stats(scope, now=self.writer.clock())

    def _viewer(self) -> Viewer:
        log = self.writer.log
        return Viewer(log, History.of(log, self.head().state))

    def _opened(
        self, strategy: str | Strategy | None
    ) -> tuple[Viewer, Strategy, Standing]:
        """Of one read; if no strategy is named, it is looked up before."""
        if strategy is None:
            chosen_ = self._chosen(self._viewer(), None, None)
        else:
            chosen_ = chosen(strategy, None)
        viewer, standing = opened(self.writer.log, self.stream, chosen_)
        return viewer, chosen_, standing

    def _chosen(
        self, viewer: Viewer, strategy: str | Strategy | None, at: int | None
    ) -> Strategy:
        if strategy is not None:
            return chosen(strategy, None)
        newest = viewer.history.newest_request
        upto = newest if at is None else min(at, newest)
        return chosen(None, viewer.last_request(upto=upto) if upto else None)
