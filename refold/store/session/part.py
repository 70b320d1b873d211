"""The base of the objects that a session offers and that load on first use."""

from __future__ import annotations

from dataclasses import dataclass

from refold.domain.ids import StreamId
from refold.store.appends import Writer
from refold.store.session.core import SessionCore


@dataclass(frozen=True, slots=True)
class SessionPart:
    """One side of a session, such as its history or its native items."""

    session: SessionCore

    @property
    def stream(self) -> StreamId:
        """The main stream of the session."""
        return self.session.stream

    @property
    def writer(self) -> Writer:
        """The writer that the session appends with."""
        return self.session.writer

    @property
    def user_id(self) -> str:
        """The user whose session it is."""
        return self.session.stream.user_id

    @property
    def session_id(self) -> str:
        """The name of the session."""
        return self.session.stream.session_id
