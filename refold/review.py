"""When a human is asked to look: rules, questions, decisions."""

from refold.projections.review.incidents import Decided, Decision, Recovery, Review
from refold.projections.review.rules import ReviewRules
from refold.store.reviews import Reviewed, ReviewList, Reviews

__all__ = [
    "Decided",
    "Decision",
    "Recovery",
    "Review",
    "ReviewList",
    "ReviewRules",
    "Reviewed",
    "Reviews",
]
