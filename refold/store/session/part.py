"""The base class of the parts of a session, which are loaded on first use."""

from __future__ import annotations

from dataclasses import dataclass

from refold.domain.ids import StreamId
from refold.store.appends import Writer
from refold.store.session.core import SessionCore


@dataclass(frozen=True, slots=True)
class SessionPart:
    """A part of a session, such as its history or its native items."""

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
        """The id of the session's user."""
        return self.session.stream.user_id

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.session.stream.session_id
