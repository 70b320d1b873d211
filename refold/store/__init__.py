"""Where the parts meet: sessions that append, read, show a context and verify."""

from refold.store.rechecking import Exposure, Rechecked
from refold.store.sessions import Session
from refold.store.store import SessionStore
from refold.store.writing import Receipt

__all__ = ["Exposure", "Receipt", "Rechecked", "Session", "SessionStore"]
