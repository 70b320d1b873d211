"""What a user allows: recorded as events in the session that concerns all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold.domain.certificate import timestamp
from refold.domain.errors import InvalidEvent
from refold.domain.events import Consent, JsonObject
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import EventLog
from refold.domain.record import Draft
from refold.store.audited import audits
from refold.store.audited_calls import USER
from refold.store.writing import Order, Receipt, Writer

DECLARATIVE_MEMORY: Final = "declarative_memory"
MEMORY_OPT_OUT: Final = "memory_opt_out"
# A scope is looked up by its name, so it must be none that redaction would change.
_SCOPE: Final = re.compile(r"[a-z][a-z_]{0,63}(\.[a-z][a-z_]{0,63}){0,3}")
_PAGE: Final = 1000


class Said(NamedTuple):
    """The last word of a user on one scope, and when it was recorded."""

    granted: bool
    at: str


class ConsentStatus(NamedTuple):
    """What a user allows now; what was never asked is not allowed.

    scopes: the last word on each scope that there was one on.
    """

    scopes: dict[str, Said]

    @property
    def memory_opt_out(self) -> bool:
        """Whether nothing of the user may go to memory; sessions work all the same."""
        return self.allows(MEMORY_OPT_OUT)

    @property
    def declarative_memory(self) -> bool:
        """Whether what the user is like may be remembered: asked for, and not out."""
        return self.allows(DECLARATIVE_MEMORY) and not self.memory_opt_out

    def allows(self, scope: str) -> bool:
        """Whether the last word on the scope was yes."""
        return scope in self.scopes and self.scopes[scope].granted

    def to_json(self) -> JsonObject:
        return {
            "memory_opt_out": self.memory_opt_out,
            "declarative_memory": self.declarative_memory,
            "consent": {name: dict(said._asdict()) for name, said in self._sorted()},
        }

    def _sorted(self) -> list[tuple[str, Said]]:
        return sorted(self.scopes.items())


@audits(USER, "writer")
@dataclass(frozen=True, slots=True)
class User:
    """A user as a whole, apart from any one session."""

    writer: Writer
    user_id: str

    @property
    def _stream(self) -> StreamId:
        return StreamId(self.user_id, USER_SESSION, MAIN)

    def consent(self, scope: str, *, granted: bool = True, reason: str = "") -> Receipt:
        """Record that the user allows something from now on, or does not any more.

        scope: what it is about: ``declarative_memory``, or a name of your own of
               lower-case letters, ``_`` and up to three dots.

        Raises InvalidEvent for another scope, and as an append does.
        """
        if not _SCOPE.fullmatch(scope):
            raise InvalidEvent(
                "a consent's scope is a name of lower-case letters, _ and dots"
            )
        event = Consent(scope=scope, granted=granted, reason=reason)
        return self.writer.append(Order(self._stream, (Draft(event),)))

    def withdraw(self, scope: str, *, reason: str = "") -> Receipt:
        """Record that the user does not allow it any more."""
        return self.consent(scope, granted=False, reason=reason)

    def opt_out(self, *, reason: str = "") -> Receipt:
        """Record that nothing of the user may go to memory from now on."""
        return self.consent(MEMORY_OPT_OUT, reason=reason)

    def opt_in(self, *, reason: str = "") -> Receipt:
        """Take an opt-out back; what needs its own consent needs it all the same."""
        return self.withdraw(MEMORY_OPT_OUT, reason=reason)

    def status(self) -> ConsentStatus:
        """What the user allows now.  Raises Erased, KeyUnavailable, CorruptEvent."""
        return consent_status(self.writer.log, self.user_id)


def consent_status(log: EventLog, user_id: str) -> ConsentStatus:
    """What a user allows now.  Raises Erased, KeyUnavailable, CorruptEvent."""
    stream, after = StreamId(user_id, USER_SESSION, MAIN), 0
    scopes: dict[str, Said] = {}
    log.head(stream)  # raises Erased
    while page := log.read(stream, after=after, limit=_PAGE, types=("consent",)):
        for envelope in page:
            if isinstance(envelope.payload, Consent):
                said = Said(envelope.payload.granted, timestamp(envelope.at))
                scopes[envelope.payload.scope] = said
        after = page[-1].seq
    return ConsentStatus(scopes)
