"""The store and its sessions, which connect the log, redaction, and projections."""

from refold.store.appends import Receipt
from refold.store.session.session import Session
from refold.store.store import SessionStore

__all__ = ["Receipt", "Session", "SessionStore"]
