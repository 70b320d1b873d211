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

        Each question is asked once.  Concurrent calls do not repeat it, nor do rules
        with other limits.

        rules: the rules; None means the rules that Refold ships.

        Raises SessionNotFound, and the errors of an append.
        """
        return ask(self.writer, self.session.head(), rules)

    def decide(
        self, seq: int, decision: Decision, *, by: str, note: str = ""
    ) -> Receipt:
        """Record a human's decision on the question at ``seq``.

        decision: ``accept`` if the agent's work was right; ``reject`` if it was wrong;
                  ``corrected`` if a human corrected it; ``dismissed`` if no answer is
                  needed.
        by:       the person who decided; redacted, like the note.

        Raises SessionNotFound, AlreadyDecided, and the errors of an append.  Raises
        InvalidEvent for any other decision, or if there is no question at ``seq``.
        """
        return decide(self.writer, self.stream, seq, decision, by=by, note=note)
