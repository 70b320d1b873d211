"""One session: append events, read them, and build the context for a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
)

from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, SystemPrompt
from refold.domain.session import LABEL, labelling
from refold.store import appends
from refold.store.recorded import recorded, view_size
from refold.store.session.core import (
    SessionCore,
    build_context,
    check_seq,
    folded_state,
    recorded_labels,
)
from refold.store.session.former import FormerNames

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from refold.domain.events import Request
    from refold.projections.context.budget import CrossSessionLayers, ExtraArgs
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.strategy import Layers, Strategy
    from refold.projections.context.view import View
    from refold.store import contexts
    from refold.store.proofs import explanations
    from refold.store.proofs.verification import Verified
    from refold.store.session.attempt import Attempt
    from refold.store.session.delegation import Delegation
    from refold.store.session.history import SessionHistory
    from refold.store.session.memory import SessionMemory
    from refold.store.session.native import NativeItems
    from refold.store.session.proofs import SessionProofs
    from refold.store.session.reviews import SessionReviews
    from refold.store.session.strategies import SessionStrategies
    from refold.store.session.vault import SessionVault

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def _awaitable(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the method for asyncio, which runs it in a thread."""
    name = method.__name__

    # Without ``updated``, this does not count as a recorded method itself.
    @wraps(method, updated=())
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio

        work = partial(getattr(self, name), *args, **kwargs)
        return cast(T, await asyncio.to_thread(work))

    call.__name__ = f"a{name}"
    call.__qualname__ = f"Session.a{name}"
    call.__doc__ = f"``{name}`` for asyncio: it runs in a thread."
    return call


@dataclass(frozen=True, slots=True)
class Session(SessionCore, FormerNames):
    """One session of one user.

    The object holds no state of the session: any number of objects, threads, and
    processes may use one session.  The parts (``native``, ``history``, ``strategies``,
    ``proofs``, ``memory``, ``reviews``, ``vault``, ``delegation``) load on first use.
    """

    @property
    def native(self) -> NativeItems:
        """The native items of a framework or provider."""
        from refold.store.session.native import NativeItems

        return NativeItems(self)

    @property
    def history(self) -> SessionHistory:
        """Readers of events, derived streams, blobs, and new events."""
        from refold.store.session.history import SessionHistory

        return SessionHistory(self)

    @property
    def strategies(self) -> SessionStrategies:
        """Activate and retire the strategies of the session."""
        from refold.store.session.strategies import SessionStrategies

        return SessionStrategies(self)

    @property
    def proofs(self) -> SessionProofs:
        """Replay, rerun, and compare requests; verify the log."""
        from refold.store.session.proofs import SessionProofs

        return SessionProofs(self)

    @property
    def memory(self) -> SessionMemory:
        """Advice from the user's memory for this session."""
        from refold.store.session.memory import SessionMemory

        return SessionMemory(self)

    @property
    def reviews(self) -> SessionReviews:
        """Questions to a human, and the decisions on them."""
        from refold.store.session.reviews import SessionReviews

        return SessionReviews(self)

    @property
    def vault(self) -> SessionVault:
        """The values that numbered placeholders stand for."""
        from refold.store.session.vault import SessionVault

        return SessionVault(self)

    @property
    def delegation(self) -> Delegation[Session]:
        """Sessions of sub-agents."""
        from refold.store.session.delegation import Delegation

        return Delegation(self)

    def attempt(
        self,
        what: str,
        *,
        request_id: str | None = None,
        agent: str | None = None,
        retryable: bool | None = None,
    ) -> Attempt:
        """Record the failure of a step: ``with session.attempt("parse the plan"):``.

        An exception becomes an ``error`` event with its place in the code and in the
        session, and is raised again.  Calls that the step left without a result are
        closed with ``status="unknown"``.  ``async with`` works too.

        what:      the name of the step.
        retryable: whether another attempt may succeed.  None means true for a timeout,
                   and for a failed connection or database.
        """
        from refold.store.session.attempt import Attempt

        return Attempt(self, what, request_id, agent, retryable)

    def at(self, seq: int) -> SessionAt:
        """Return a view of the session for reading, which ends at ``seq``.

        Raises InvalidEvent if the session has no event with this seq.
        """
        check_seq(self, seq)
        return SessionAt(self, seq)

    @recorded("session_load", "keys")
    def state(self, at: int | None = None) -> JsonObject:
        """Return the working memory, folded from the ``state`` events up to ``at``."""
        self.writer.used(self.stream)
        self.head()
        working_memory: JsonObject = {}
        for name, value in folded_state(self, at).items():
            if not name.startswith(LABEL):
                working_memory[name] = value
        return working_memory

    def label(self, /, **labels: str | None) -> appends.Receipt:
        """Give the session labels by which ``store.sessions`` finds it.

        None removes a label.  Labels are redacted and recorded in the session.  A
        search compares keyed hashes of their values.  Sessions with the same label
        ``project`` share memory layers.

        Raises InvalidEvent, and the errors of an append.
        """
        receipt = self.append(labelling(labels))
        self.writer.log.label(self.stream, labels)
        return receipt

    @recorded("session_load", "labels")
    def labels(self) -> dict[str, str]:
        """Return the session's recorded labels, by name."""
        self.writer.used(self.stream)
        self.head()
        return recorded_labels(self)

    @recorded("session_context", measure=view_size)
    def context(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        as_: contexts.WhichSummaries = "sent",
        reveal: bool = False,
        **extras: Unpack[ExtraArgs],
    ) -> View:
        """Return the context of the next model call, or of the call at seq ``at``.

        This never compacts.

        strategy: None means the strategy of the last recorded request, else of the
                  settings, else ``keep_all``.
        as_:      which summaries the context of ``at`` shows.  ``sent``: those that
                  existed then.  ``rebuilt``: those that were decided up to ``at``, even
                  if they were written later.
        reveal:   replace numbered placeholders of this session by their values in the
                  vault.  Digest and tokens remain those of the redacted form.

        ``ExtraArgs`` lists the extras that may be passed.  With ``at`` and without
        extras, the context has those of the newest request up to that seq.

        Raises SessionNotFound, UnknownStrategy, RedactionFailed.  Raises InvalidEvent
        for an ``at`` outside of the session, and for invalid extras.
        """
        view = build_context(self, strategy, at=at, as_=as_, extras=extras)
        return self.vault.reveal_view(view) if reveal else view

    acontext = _awaitable(context)

    @recorded("session_context", measure=view_size)
    def prepare(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
        wait: bool = True,
        model: str | None = None,
        reveal: bool = False,
        **extras: Unpack[ExtraArgs],
    ) -> View:
        """Compact if a compaction is pending, then return the context; for agent loops.

        The context fits the window.  If pending compactions are not enough, the oldest
        events are summarised until it fits.

        wait:   false compacts in another thread, and returns the current context.
        model:  the model that will be called, whose tokenizer decides whether the
                context fits.  None uses the stored estimates.
        reveal: replace placeholders by values, as ``context`` does.

        Raises ContextTooLarge if no compaction makes the context fit, or if it does not
        fit with ``wait=False``.
        """
        from refold.store.session.preparation import prepare

        self.writer.used(self.stream)
        view = prepare(
            self, strategy, extras, summarizer=summarizer, wait=wait, model=model
        )
        return self.vault.reveal_view(view) if reveal else view

    aprepare = _awaitable(prepare)

    def record_request(
        self,
        view: View,
        *,
        model: str | None = None,
        matches: bool | None = None,
        request_id: str | None = None,
    ) -> appends.Receipt:
        """Record that ``view`` was sent to a model, so that it can be proved later.

        matches: whether exactly the bytes of the view were sent.
        """
        request = view.request(model=model, matches=matches)
        return self.append(request, request_id=request_id)

    def why(
        self,
        strategy: str | Strategy | None = None,
        *,
        at: int | None = None,
        message: int | None = None,
        chains: bool = True,
    ) -> explanations.Explanation:
        """Explain and prove the context at ``at``; raises what ``context`` raises.

        chains: also prove the hash chains, which reads the whole log.
        """
        return self.proofs.why(strategy, at=at, message=message, chains=chains)

    def verify(self, *, chain_only: bool = False) -> Verified:
        """Prove chains, heads, calls and results, and everything derived.

        chain_only: prove only that each hash chain is unbroken and ends at its head.
                    Nothing is decrypted.
        """
        return self.proofs.verify(chain_only=chain_only)

    def fork(self, at: int, *, session_id: str) -> Session:
        """Begin another session that continues this one from ``at``, with its labels.

        Nothing is copied: readers of the fork read this session's events first.  Calls
        that were open at ``at`` can be answered in both sessions.

        Raises SessionNotFound, InvalidEvent if ``at`` is not a seq of this session,
        StaleSession if the new session exists already.
        """
        from refold.store.session.forking import fork, pass_labels

        return pass_labels(self, fork(self, at, session_id=session_id))

    def end(self) -> appends.Receipt:
        """End the session for good; only summaries can be appended afterwards.

        The vault forgets the session's values.
        """
        receipt = self.append(SystemPrompt(closed=True))
        self.writer.vault.forget(self.user_id, self.session_id)
        return receipt

    @recorded("erasure", named=False)
    def delete(self, reason: str = "deleted", *, operator: str = "") -> None:
        """Erase the session, which nobody can read any more when this returns.

        The rows are deleted in the background.  If that is interrupted, ``refold erase
        --due`` completes it.  ``store.named`` then returns a new session for the name.

        Raises OnHold under a legal hold, SessionNotFound.
        """
        from refold.store.erasure import (
            Eraser,
            ErasureRequest,
            ErasureResult,
            erasure_scope,
        )

        eraser = Eraser(self.writer)
        scope = erasure_scope(self.user_id, self.session_id)
        job = eraser.begin(ErasureRequest(scope, reason, operator))
        if not isinstance(job, ErasureResult):
            job = eraser.shred(job)
            name_of_work = ("delete", self.stream)
            self.upkeep.background.ask(name_of_work, partial(eraser.run, job))

    def _layers(
        self, wanted: Layers, last: Request | None
    ) -> CrossSessionLayers | None:
        from refold.store.memory.layers import cross_session_layers

        return cross_session_layers(self.writer.log, self.stream, wanted, last)

    def _learning(self, order: appends.Order) -> Callable[[], object] | None:
        from refold.store.memory.advice import learning

        return learning(self.writer, order)

    def close(self) -> None:
        """Do nothing: the session continues.  To end it, call ``end``.

        This lets ``with`` be used with a session.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SessionAt:
    """A session up to ``seq``, for reading."""

    session: Session
    seq: int

    def events(self) -> list[Envelope]:
        """Return the events up to ``seq``."""
        return list(self.session.history.pages(upto=self.seq))

    def state(self) -> JsonObject:
        """Return the working memory at ``seq``."""
        return self.session.state(at=self.seq)

    def context(
        self,
        strategy: str | Strategy | None = None,
        *,
        as_: contexts.WhichSummaries = "sent",
    ) -> View:
        """Return the context that a model was sent at ``seq``."""
        return self.session.context(strategy, at=self.seq, as_=as_)
