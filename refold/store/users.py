"""What a user allows: recorded as events in the session that concerns all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold.domain.certificate import timestamp
from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent
from refold.domain.events import Consent, Forget, JsonObject
from refold.domain.ids import MAIN, MEMORY_ID, USER_SESSION, StreamId
from refold.domain.ports import EventLog
from refold.domain.preferences import Preference, stating, unstating
from refold.domain.record import Draft
from refold.store.audited import audits
from refold.store.audited_calls import USER
from refold.store.paging import read_on
from refold.store.writing import Order, Receipt, Writer

DECLARATIVE_MEMORY: Final = "declarative_memory"
MEMORY_OPT_OUT: Final = "memory_opt_out"
# A scope is looked up by its name, so it must be none that redaction would change.
_SCOPE: Final = re.compile(r"[a-z][a-z_]{0,63}(\.[a-z][a-z_]{0,63}){0,3}")


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

    def forget(self, memory_id: str, *, reason: str = "") -> Receipt:
        """Record that this item of memory is not to be there any more.

        It stays away, also when memory is made anew, whatever sessions show.

        Raises InvalidEvent for what cannot be an item's id.
        """
        if not MEMORY_ID.fullmatch(memory_id):
            raise InvalidEvent("an item of memory is named by m and 15 hex digits")
        event = Forget(item_id=memory_id, reason=reason)
        return self.writer.append(Order(self._stream, (Draft(event),)))

    def prefer(self, key: str, value: Preference) -> Receipt:
        """Record what the user prefers, as they said or confirmed it.

        key:   a name of up to 64 lower-case letters, digits and ``_``.
        value: true, false, a number, or a token of up to 64 letters, digits and
               ``_ . : + / -`` and at most six words: no sentence.

        Raises InvalidEvent for others, for what redaction would change, and unless the
        user allows ``declarative_memory``: nothing is written then.
        """
        event = stating(key, value)
        if not self.status().declarative_memory:
            raise InvalidEvent(
                "preferences are kept of users who allow it: record that first, with "
                f"user.consent({DECLARATIVE_MEMORY!r})"
            )
        draft, now = Draft(event), self.writer.clock()
        clean = self.writer.redacted(draft, user_id=self.user_id, now=now)
        if clean.event != event:
            raise InvalidEvent("redaction would change this preference: give another")
        return self.writer.append(Order(self._stream, (draft,)))

    def unprefer(self, key: str) -> Receipt:
        """Record that it is no preference of the user's any more.

        Raises InvalidEvent for what cannot be the name of one.
        """
        draft = Draft(unstating(key))
        return self.writer.append(Order(self._stream, (draft,)))

    def status(self) -> ConsentStatus:
        """What the user allows now.  Raises Erased, KeyUnavailable, CorruptEvent."""
        return consent_status(self.writer.log, self.user_id)


class Wishes(NamedTuple):
    """What a user allows, and which items of memory they want to be gone."""

    consent: ConsentStatus
    forgotten: frozenset[str] = frozenset()

    def after(self, envelopes: Iterable[Envelope]) -> Wishes:
        """What holds after these events too, in their order."""
        scopes, forgotten = dict(self.consent.scopes), set(self.forgotten)
        for envelope in envelopes:
            match envelope.payload:
                case Consent(scope=scope, granted=granted):
                    scopes[scope] = Said(granted, timestamp(envelope.at))
                case Forget(item_id=item_id):
                    forgotten.add(item_id)
        return Wishes(ConsentStatus(scopes), frozenset(forgotten))


def consent_status(log: EventLog, user_id: str) -> ConsentStatus:
    """What a user allows now.  Raises Erased, KeyUnavailable, CorruptEvent."""
    return wishes(log, user_id).consent


def wishes(log: EventLog, user_id: str) -> Wishes:
    """What a user wants now.  Raises Erased, KeyUnavailable, CorruptEvent."""
    stream, nothing = StreamId(user_id, USER_SESSION, MAIN), Wishes(ConsentStatus({}))
    if log.head(stream).seq == 0:
        return nothing
    return nothing.after(read_on(log, stream, types=("consent", "forget")))
