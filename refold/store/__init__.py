"""Where the parts meet: sessions that append, read, show a context and verify."""

from refold.store.appends import Receipt
from refold.store.sessions import Session
from refold.store.store import SessionStore
from refold.store.verification import Exposure, Rechecked

__all__ = ["Exposure", "Receipt", "Rechecked", "Session", "SessionStore"]
