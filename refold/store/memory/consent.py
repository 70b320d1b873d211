"""The consent and preferences of a user, recorded in the session ``_user``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold.domain import errors, events
from refold.domain.envelope import Draft, Envelope
from refold.domain.erasure import timestamp
from refold.domain.ids import MAIN, MEMORY_ID, USER_SESSION, StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import EventLog
from refold.domain.preferences import Preference, stating, unstating
from refold.store.appends import Order, Receipt, Writer
from refold.store.history import read_pages
from refold.store.recorded import recorded
from refold.store.turn_settings import TurnSettings, saved_turns

DECLARATIVE_MEMORY: Final = "declarative_memory"
MEMORY_OPT_OUT: Final = "memory_opt_out"
# One to four words of up to 64 lower-case letters and ``_``, with dots between them.  A
# scope is looked up by its name, so redaction must not change the name: it changes no
# text of this form.
_SCOPE: Final = re.compile(r"[a-z][a-z_]{0,63}(\.[a-z][a-z_]{0,63}){0,3}")


class Decision(NamedTuple):
    """A user's last decision on one scope, and when it was recorded."""

    granted: bool
    at: str


class ConsentStatus(NamedTuple):
    """The current consent of a user.  Nothing is allowed without a decision.

    scopes: the last decision on each scope that has one.
    """

    scopes: dict[str, Decision]

    @property
    def memory_opt_out(self) -> bool:
        """Whether the user's data must stay out of memory; sessions still work."""
        return self.allows(MEMORY_OPT_OUT)

    @property
    def declarative_memory(self) -> bool:
        """Whether memory may hold facts about the user: granted and not opted out."""
        return self.allows(DECLARATIVE_MEMORY) and not self.memory_opt_out

    def allows(self, scope: str) -> bool:
        """Whether the last decision on the scope granted it."""
        return scope in self.scopes and self.scopes[scope].granted

    def to_json(self) -> events.JsonObject:
        decisions: events.JsonObject = {}
        for scope, decision in sorted(self.scopes.items()):
            decisions[scope] = {"granted": decision.granted, "at": decision.at}
        return {
            MEMORY_OPT_OUT: self.memory_opt_out,
            DECLARATIVE_MEMORY: self.declarative_memory,
            "consent": decisions,
        }


@repr_without_texts
@dataclass(frozen=True, slots=True)
class User:
    """The decisions of a user that hold for all their sessions."""

    writer: Writer
    user_id: str

    def _append(self, event: events.Event) -> Receipt:
        return self.writer.append(Order(session_of_user(self.user_id), (Draft(event),)))

    def consent(self, scope: str, *, granted: bool = True, reason: str = "") -> Receipt:
        """Record whether the user allows something from now on.

        scope: the subject of the decision: ``declarative_memory``, or a name of your
               own of lower-case letters, ``_`` and up to three dots.

        Raises InvalidEvent for another scope, and the errors of an append.
        """
        if not _SCOPE.fullmatch(scope):
            raise errors.InvalidEvent(
                "a consent's scope is a name of lower-case letters, _ and dots"
            )
        return self._append(events.Consent(scope=scope, granted=granted, reason=reason))

    def withdraw(self, scope: str, *, reason: str = "") -> Receipt:
        """Record that the user does not allow something any longer."""
        return self.consent(scope, granted=False, reason=reason)

    def opt_out(self, *, reason: str = "") -> Receipt:
        """Record that the user's data must stay out of memory from now on."""
        return self.consent(MEMORY_OPT_OUT, reason=reason)

    def opt_in(self, *, reason: str = "") -> Receipt:
        """Revoke an opt-out.  Scopes that need consent still need it."""
        return self.withdraw(MEMORY_OPT_OUT, reason=reason)

    def forget(self, memory_id: str, *, reason: str = "") -> Receipt:
        """Record that memory must not contain this item any longer.

        Memory leaves the item out whenever it is built, whatever sessions show.

        Raises InvalidEvent for a text that cannot be the id of an item.
        """
        if not MEMORY_ID.fullmatch(memory_id):
            raise errors.InvalidEvent(
                "an item of memory is named by m and 15 hex digits"
            )
        return self._append(events.Forget(item_id=memory_id, reason=reason))

    def prefer(self, key: str, value: Preference) -> Receipt:
        """Record a preference that the user stated or confirmed.

        key:   a name of up to 64 lower-case letters, digits and ``_``.
        value: true, false, a number, or a text of at most 64 letters, digits and
               ``_ . : + / -`` and of at most six words.  A sentence is refused.

        Raises InvalidEvent for any other key or value, for one that redaction would
        change, and if the user does not allow ``declarative_memory``.
        """
        event = stating(key, value)
        if not self.status().declarative_memory:
            raise errors.InvalidEvent(
                "preferences need the user's consent: record that first, with "
                f"user.consent({DECLARATIVE_MEMORY!r})"
            )
        now = self.writer.clock()
        clean = self.writer.redacted(Draft(event), user_id=self.user_id, now=now)
        if clean.event != event:
            raise errors.InvalidEvent(
                "redaction would change this preference: give another"
            )
        return self._append(event)

    def unprefer(self, key: str) -> Receipt:
        """Record that the user does not have this preference any longer.

        Raises InvalidEvent for a text that cannot be the name of a preference.
        """
        return self._append(unstating(key))

    def save_turns(
        self, *, full_turns: int | None = None, cached_turns: int | None = None
    ) -> Receipt:
        """Save the numbers of turns that ``turn_window`` uses for this user.

        A saved number overrides the settings file.  A parameter of a call and an
        environment variable override a saved number.  None removes a saved number.

        full_turns:   A, the number of turns that stay raw after a compaction.
        cached_turns: B, the number of turns that one compaction covers.

        Raises InvalidEvent for a number below 1 or above 10 000.
        """
        return self._append(TurnSettings(full_turns, cached_turns).event())

    @recorded("session_load")
    def saved_turns(self) -> TurnSettings:
        """Return the numbers of turns that the user saved.

        Raises Erased, KeyUnavailable, CorruptEvent.
        """
        return saved_turns(self.writer.log, self.user_id)

    @recorded("memory_load", "scopes")
    def status(self) -> ConsentStatus:
        """Return the user's consent.  Raises Erased, KeyUnavailable, CorruptEvent."""
        return read_decisions(self.writer.log, self.user_id).consent


class UserDecisions(NamedTuple):
    """The decisions of a user about memory.

    consent:   the last decision on each scope.
    forgotten: the ids of the items of memory that the user removed.
    """

    consent: ConsentStatus
    forgotten: frozenset[str] = frozenset()

    def after(self, envelopes: Iterable[Envelope]) -> UserDecisions:
        """Return the decisions after these events, which are in order."""
        scopes = dict(self.consent.scopes)
        forgotten = set(self.forgotten)
        for envelope in envelopes:
            match envelope.payload:
                case events.Consent(scope=scope, granted=granted):
                    scopes[scope] = Decision(granted, timestamp(envelope.at))
                case events.Forget(item_id=item_id):
                    forgotten.add(item_id)
        return UserDecisions(ConsentStatus(scopes), frozenset(forgotten))


def read_decisions(log: EventLog, user_id: str) -> UserDecisions:
    """Read the decisions of a user.  Raises Erased, KeyUnavailable, CorruptEvent."""
    stream = session_of_user(user_id)
    undecided = UserDecisions(ConsentStatus({}))
    if log.head(stream).seq == 0:
        return undecided
    return undecided.after(read_pages(log, stream, types=("consent", "forget")))


def session_of_user(user_id: str) -> StreamId:
    """Return the session ``_user``: the user's decisions that hold for all sessions."""
    return StreamId(user_id, USER_SESSION, MAIN)
