"""Where the parts meet: sessions that append, read, show a context and verify."""

from refold.store.appends import Receipt
from refold.store.session.session import Session
from refold.store.store import SessionStore

__all__ = ["Receipt", "Session", "SessionStore"]
