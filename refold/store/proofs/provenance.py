"""Provenance: where the knowledge comes from that a model was sent a context."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import Request
from refold.domain.ids import StreamId
from refold.domain.model import quiet
from refold.domain.ports import EventLog
from refold.projections.context.view import View

Kind: TypeAlias = Literal["recorded", "reconstructed", "assumed"]
# The types of events with which an answer of a model can begin.
_ANSWERS: Final = ("agent_response", "tool_call", "reflection")


def kind_of(envelope: Envelope) -> Kind:
    """What this event knows of a request.

    ``recorded``: its digest was stored when it was sent.  ``reconstructed``: an import
    derived its digest from a transcript.  ``assumed``: the event has no digest of one,
    or it activates a strategy, and nothing was sent.
    """
    if isinstance(envelope.payload, Request):
        return "assumed" if envelope.meta.status == ACTIVATED else "recorded"
    return "assumed" if reconstructed_in(envelope) is None else "reconstructed"


def reconstructed_in(envelope: Envelope) -> str | None:
    """The digest of the request that an imported answer is an answer to."""
    request = (envelope.meta.source or {}).get("request")
    return request if isinstance(request, str) else None


@quiet
class Provenance(NamedTuple):
    """How it is known that a context was sent.

    seq:    of the event that has the digest of its request; None if none has.
    same:   whether the context has that digest.  It has another one where the events
            that it is made of were redacted after the request was sent.
    """

    kind: Kind
    seq: int | None = None
    digest: str | None = None
    same: bool = False

    def to_json(self) -> dict[str, Any]:
        """The keys that ``refold context --json`` adds to those of the view."""
        request = None
        if self.seq is not None:
            request = {"seq": self.seq, "digest": self.digest, "same": self.same}
        return {"provenance": self.kind, "request": request}


ASSUMED: Final = Provenance("assumed")


def provenance(log: EventLog, stream: StreamId, view: View) -> Provenance:
    """How it is known that ``view``, of the session of this stream, was sent.

    Only the requests next to the end of the view count: the newest at or before it,
    the first behind it, and the answer behind it if that was imported.
    """
    for envelope in _requests_around(log, stream, view.at):
        request = envelope.payload
        if isinstance(request, Request):
            same = request.digest == view.digest
            if same or _was(log, stream, view, envelope):
                return Provenance("recorded", envelope.seq, request.digest, same)
    for envelope in log.read(stream, after=max(view.at, 0), types=_ANSWERS, limit=1):
        if reconstructed_in(envelope) == view.digest:
            return Provenance("reconstructed", envelope.seq, view.digest, same=True)
    return ASSUMED


def _requests_around(log: EventLog, stream: StreamId, at: int) -> list[Envelope]:
    """The requests that were sent next to this seq: the newest before it, first."""
    around: list[Envelope] = []
    upto = at
    while upto > 0:
        found = log.read(stream, upto=upto, types=("request",), limit=1, newest=True)
        if not found or kind_of(found[0]) == "recorded":
            around += found
            break
        upto = found[0].seq - 1
    after = max(at, 0)
    while found := log.read(stream, after=after, types=("request",), limit=1):
        if kind_of(found[0]) == "recorded":
            around += found
            break
        after = found[0].seq
    return around


def _was(log: EventLog, stream: StreamId, view: View, envelope: Envelope) -> bool:
    """Whether the view is of this request, of which something was redacted since."""
    request = envelope.payload
    if not isinstance(request, Request):
        return False
    of_the_same = (
        view.at in (envelope.seq, request.through_seq)
        and view.fingerprint == request.strategy.fingerprint
        and view.derived_seq == request.derived_seq
        and view.extras.dump() == request.handed
    )
    if not of_the_same:
        return False
    later = envelope.seq
    return bool(log.read(stream, after=later, types=("redaction_applied",), limit=1))
