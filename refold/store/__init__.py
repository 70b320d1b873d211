"""Where the parts meet: sessions that append, read, show a context and verify."""

from refold.store.appends import Receipt
from refold.store.proofs.verification import Exposure, Rechecked
from refold.store.session.session import Session
from refold.store.store import SessionStore

__all__ = ["Exposure", "Receipt", "Rechecked", "Session", "SessionStore"]
