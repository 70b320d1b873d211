"""The strategies that build a session's contexts: choose, activate, retire."""

from __future__ import annotations

from dataclasses import dataclass

from refold.domain import errors, ports
from refold.domain.envelope import ACTIVATED, Draft
from refold.domain.events import CompactionNote
from refold.domain.ids import MAIN, check_id
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.store import contexts
from refold.store.appends import Order
from refold.store.checkpoints import drop_checkpoints
from refold.store.compactions import Compactor
from refold.store.recorded import recorded
from refold.store.session.core import (
    build_context,
    chosen_strategy,
    compactor_for,
    viewer_of,
)
from refold.store.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class SessionStrategies(SessionPart):
    """Choose, activate, and retire the strategies of a session."""

    @recorded("compaction", only_failures=True)
    def compactor(
        self,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
    ) -> Compactor:
        """Return the object that makes the steps of ``Session.compact``.

        Its ``is_due`` and ``due_at`` tell whether and when a step is pending.
        """
        return compactor_for(self.session, strategy, summarizer)

    def chosen(self, strategy: str | Strategy | None = None) -> Strategy:
        """Return the strategy that ``Session.context`` uses for this argument."""
        return chosen_strategy(self.session, viewer_of(self.session), strategy)

    def default_fingerprint(self) -> str:
        """Return the fingerprint of the strategy that calls without a strategy use."""
        viewer = viewer_of(self.session)
        if viewer.history.newest_request:
            recorded = viewer.newest_request()
            if recorded is not None:
                return recorded.request.strategy.fingerprint
        return self.session.settings.strategy(None).fingerprint

    @recorded("session_catch_up", "views")
    def catch_up(self) -> int:
        """Bring the stored views to the head; returns how many changed."""
        self.session.head()
        scope = ports.Scope(self.user_id, self.session_id)
        return contexts.update_views(self.writer.log, scope)

    def activate(self, strategy: str | Strategy) -> bool:
        """Make this the strategy of all calls that name no strategy.

        Such calls use the strategy of the last recorded request.  So this records a
        request under the new strategy, with the context of the next call and the status
        ``activated``.

        Returns False, and changes nothing, if the calls use this strategy already, or
        if the session has ended.  Raises SessionNotFound.
        """
        chosen = self.session.settings.strategy(strategy)
        if self.session.head().status == "closed":
            return False
        if self.default_fingerprint() == chosen.fingerprint:
            return False
        request = build_context(self.session, chosen).request()
        self.session.append(request, meta={"status": ACTIVATED})
        return True

    def retire(self, fingerprint: str, *, why: str = "") -> bool:
        """Retire a strategy's derived stream: delete its stored view, keep its events.

        The stream is no longer retired once the strategy adds another summary.

        Returns False if there is no such stream, or if it is retired already.

        Raises InvalidConfiguration if calls that name no strategy use this one.
        """
        log = self.writer.log
        stream = self.stream._replace(stream=check_id("stream", fingerprint))
        if self.default_fingerprint() == fingerprint:
            raise errors.InvalidConfiguration(
                f"session {self.session_id!r} shows its context under the strategy "
                "that is to be retired: activate another one first"
            )
        if fingerprint == MAIN:  # the main stream belongs to no strategy
            return False
        newest = log.read(stream, limit=1, newest=True)
        retires = False
        if newest:
            retires = getattr(newest[0].payload, "phase", "") != "retired"
        if retires:
            note = CompactionNote(phase="retired", why=why)
            self.writer.append(Order(stream, (Draft(note),)))
        log.drop_view(self.stream, fingerprint)
        drop_checkpoints(log, self.stream, fingerprint)
        return retires
