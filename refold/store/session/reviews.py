"""Questions to a human about one session, and the decisions on them."""

from __future__ import annotations

from dataclasses import dataclass

from refold.projections.review.incidents import Decision
from refold.projections.review.rules import ReviewRules
from refold.store.appends import Receipt
from refold.store.recorded import recorded
from refold.store.reviews import Reviewed, ask, decide
from refold.store.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class SessionReviews(SessionPart):
    """Ask a human about this session, and record decisions."""

    @recorded("session_review")
    def ask(self, rules: ReviewRules | None = None) -> Reviewed:
        """Append a ``hitl`` event for each question that the rules raise.

        Each question is asked once, by any number of callers, even if the figures of
        its rule change.

        rules: None is the rules that come with Refold.

        Raises SessionNotFound, and what an append raises: SessionClosed, Frozen …
        """
        return ask(self.writer, self.session.head(), rules)

    def decide(
        self, seq: int, decision: Decision, *, by: str, note: str = ""
    ) -> Receipt:
        """Record a human's decision on the question at ``seq``.

        decision: ``accept``: the agent's work was right; ``reject``: it was wrong;
                  ``corrected``: a human corrected it; ``dismissed``: no answer is
                  needed.
        by:       the person who decided; redacted, and so is the note.

        Raises SessionNotFound, InvalidEvent for another decision or if there is no
        question at ``seq``, AlreadyDecided, and what an append raises.
        """
        return decide(self.writer, self.stream, seq, decision, by=by, note=note)
