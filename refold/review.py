"""When a human is asked to look: rules, questions, decisions."""

from refold.projections.review.incidents import (
    Decided as Decided,
    Decision as Decision,
    Recovery as Recovery,
    Review as Review,
)
from refold.projections.review.rules import ReviewRules as ReviewRules
from refold.store.reviews import (
    Reviewed as Reviewed,
    ReviewList as ReviewList,
    Reviews as Reviews,
)
