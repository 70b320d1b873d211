"""Proofs about one session: replay and rerun its requests, verify its chains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Unpack

from refold.domain.envelope import Envelope
from refold.domain.events import Request
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.store import contexts
from refold.store.proofs import explanations
from refold.store.proofs.rerun import Model, Rerun, Rerunner
from refold.store.proofs.verification import Verified, Verifier
from refold.store.recorded import recorded, verified_size
from refold.store.session.core import check_seq, chosen_strategy, viewer_of
from refold.store.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class SessionProofs(SessionPart):
    """Verify, explain, compare, replay, and rerun a session; writes nothing."""

    @recorded("session_verify", measure=verified_size)
    def verify(self, *, chain_only: bool = False) -> Verified:
        """Prove chains, heads, calls and results, and everything derived.

        chain_only: prove only that each hash chain is unbroken and ends at its head.
                    Nothing is decrypted.
        """
        return Verifier(self.writer.log, self.stream, chain_only=chain_only).run()

    @recorded("session_why")
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
        self.writer.used(self.stream)
        if at is not None:
            check_seq(self.session, at)
        viewer = viewer_of(self.session)
        chosen = chosen_strategy(self.session, viewer, strategy, at=at)
        explainer = explanations.Explainer(viewer, chosen)
        return explainer.explain(at, message=message, chains=chains)

    @recorded("session_compare")
    def compare(
        self,
        strategies: Iterable[str | Strategy] | None = None,
        **options: Unpack[explanations.CompareArgs],
    ) -> explanations.Compared:
        """Return the contexts and costs under these strategies; None means all."""
        viewer = viewer_of(self.session)
        return explanations.compare(viewer, strategies, options, self.session.settings)

    @recorded("session_replay", "requests")
    def replay(self) -> Iterator[tuple[Envelope, View]]:
        """Yield the event of each sent request, and its view, derived again."""
        self.writer.used(self.stream)
        views = contexts.RequestedViews(viewer_of(self.session))
        for envelope in self.writer.log.read(self.stream, types=("request",)):
            if (
                isinstance(envelope.payload, Request)
                and not envelope.activates_strategy
            ):
                yield envelope, views.view(envelope.payload)

    @recorded("session_rerun")
    def rerun(
        self,
        strategy: str | Strategy | None = None,
        *,
        prompt: str | None = None,
        model: Model | None = None,
    ) -> Rerun:
        """Derive the recorded requests again, and compare each with what was sent.

        Recorded responses and results answer the requests; nothing is written.  The
        current redaction rules apply, also those that are newer than the record.

        strategy: derives all requests under this strategy; None keeps the strategy of
                  each request.
        prompt:   replaces the recorded system prompts.
        model:    answers all requests from the first one that differs or was sent to
                  another model; None calls no model.

        Raises SessionNotFound, UnknownStrategy, RedactionFailed, and what the model
        raises.
        """
        self.writer.used(self.stream)
        chosen = None
        if strategy is not None:
            chosen = self.session.settings.strategy(strategy)
        viewer = viewer_of(self.session)
        rerunner = Rerunner(self.writer, viewer, strategy=chosen, prompt=prompt)
        return rerunner.run(model)
