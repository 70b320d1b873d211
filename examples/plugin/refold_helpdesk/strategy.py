"""The strategy ``customer_posts``: the newest posts of the customer stay raw."""

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from refold.strategies import (
    Compaction,
    Detail,
    Outline,
    Strategy,
    batch,
    held_back,
    oldest_units,
)


class CustomerPosts(Strategy):
    """Summarize everything before the newest posts of the customer.

    keep:           the number of the customer's posts that stay raw.
    summary_tokens: the length of the summary.
    """

    name: ClassVar[str] = "customer_posts"
    needs: ClassVar[Detail] = "units"

    keep: int = Field(default=3, ge=1)
    summary_tokens: int = Field(default=400, ge=1)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Compact everything before the posts to keep, if there is anything."""
        posts: list[int] = []
        for index, unit in enumerate(outline.units):
            if unit.type == "user_input":
                posts.append(index)
        if len(posts) <= self.keep or held_back(outline, now):
            return None
        first_kept = posts[-self.keep]
        return batch(
            outline,
            oldest_units(outline, first_kept),
            target=self.summary_tokens,
            reason=f"{len(posts)} posts of the customer, {self.keep} stay raw",
            absorbs=outline.summaries,
        )
