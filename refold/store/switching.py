"""Switching strategies: which one a session's readers get, and which is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.domain.envelope import ACTIVATED
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import CompactionNote
from refold.domain.record import Draft
from refold.store.choosing import chosen
from refold.store.history import History
from refold.store.viewing import Viewer
from refold.store.writing import Order

if TYPE_CHECKING:
    from refold.domain.ids import StreamId
    from refold.domain.ports import EventLog
    from refold.projections.context.strategy import Strategy
    from refold.store.sessions import Session


def activate(session: Session, strategy: Strategy) -> bool:
    """Let readers that name no strategy get this one from now on.

    They get that of the last recorded request, so one is recorded: what the next call
    is sent under the new strategy, with the status ``activated``.

    Returns False, with nothing changed, if they get it already, or if the session is
    closed: nothing is sent from it any more.  Raises SessionNotFound.
    """
    if session.head().status == "closed":
        return False
    if default_fingerprint(session) == strategy.fingerprint:
        return False
    request = session.context(strategy).request()
    session.append(request, meta={"status": ACTIVATED})
    return True


def retire(session: Session, fingerprint: str, *, why: str = "") -> bool:
    """Give up a strategy's derived stream: its stored view goes, its events stay.

    Returns False if there is none, or it was given up before.  A summary that is made
    in it later takes it up again.

    Raises InvalidConfiguration if it is what readers get who name none.
    """
    log, stream = session.writer.log, session.stream._replace(stream=fingerprint)
    if default_fingerprint(session) == fingerprint:
        raise InvalidConfiguration(
            f"session {session.session_id!r} shows what it is asked for under the "
            "strategy that is to be retired: activate another one first"
        )
    newest = log.read(stream, limit=1, newest=True)
    retired = bool(newest) and _is_retirement(newest[0].payload)
    if newest and not retired:
        note = CompactionNote(phase="retired", why=why)
        session.writer.append(Order(stream, (Draft(note),)))
    _drop_view(log, session.stream, fingerprint)
    return bool(newest) and not retired


def default_fingerprint(session: Session) -> str:
    """Of the strategy that a reader gets who names none."""
    log, state = session.writer.log, session.head().state
    if state.last_request:
        request = Viewer(log, History.of(log, state)).last_request()
        if request is not None:
            return request.strategy.fingerprint
    return chosen(None, None).fingerprint


def _is_retirement(event: object) -> bool:
    return isinstance(event, CompactionNote) and event.phase == "retired"


def _drop_view(log: EventLog, stream: StreamId, name: str) -> None:
    """Drop one stored view; what is lost of others if cut off here is folded again."""
    names = log.view_names(stream.user_id, stream.session_id)
    if name not in names:
        return
    others = {other: log.load_view(stream, other) for other in names if other != name}
    log.drop_views(stream.user_id, stream.session_id)
    for other, view in others.items():
        if view is not None:
            log.save_view(stream, other, view, replaces=0)
