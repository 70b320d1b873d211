"""A session as it was at one of its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.store.viewing import As

if TYPE_CHECKING:
    from refold.store.sessions import Session


@dataclass(frozen=True, slots=True)
class SessionAt:
    """A session as it was when ``seq`` was its newest event."""

    session: Session
    seq: int

    def events(self) -> list[Envelope]:
        """The events up to there."""
        return list(self.session.pages(upto=self.seq))

    def state(self) -> JsonObject:
        """The working memory as it was."""
        return self.session.state(at=self.seq)

    def context(
        self, strategy: str | Strategy | None = None, *, as_: As = "sent"
    ) -> View:
        """What a model was sent then."""
        return self.session.context(strategy, at=self.seq, as_=as_)
