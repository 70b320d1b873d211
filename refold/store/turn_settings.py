"""The numbers of turns that a user saved for the strategy ``turn_window``."""

from __future__ import annotations

from typing import Final, NamedTuple

from refold.domain import events
from refold.domain.errors import InvalidEvent
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import EventLog
from refold.store.history import read_pages

MOST_TURNS: Final = 10_000
# The parameters of the strategy, with their keys in the state of the session ``_user``.
_KEYS: Final = {
    "full_turns": "turn_window.full_turns",
    "cached_turns": "turn_window.cached_turns",
}


class TurnSettings(NamedTuple):
    """The numbers of turns that a user saved; None for a number that is not saved.

    full_turns:   A, the number of turns that stay raw after a compaction.
    cached_turns: B, the number of turns that one compaction covers.
    """

    full_turns: int | None = None
    cached_turns: int | None = None

    def params(self) -> dict[str, int]:
        """Return the saved numbers, by parameter of the strategy."""
        return {
            name: number
            for name, number in self._asdict().items()
            if number is not None
        }

    def event(self) -> events.StateUpdate:
        """Return the event that saves these numbers, and removes all others.

        Raises InvalidEvent for a number below 1 or above ``MOST_TURNS``.
        """
        numbers = self.params()
        for number in numbers.values():
            if not _is_number_of_turns(number):
                raise InvalidEvent(
                    f"a number of turns is a whole number from 1 to {MOST_TURNS}"
                )
        unset = [key for name, key in _KEYS.items() if name not in numbers]
        return events.StateUpdate(
            set={_KEYS[name]: number for name, number in numbers.items()},
            unset=tuple(unset),
        )


def saved_turns(log: EventLog, user_id: str) -> TurnSettings:
    """Read the user's numbers.  Raises Erased, KeyUnavailable, CorruptEvent."""
    stream = StreamId(user_id, USER_SESSION, MAIN)
    if log.head(stream).seq == 0:
        return TurnSettings()
    numbers: dict[str, int] = {}
    for envelope in read_pages(log, stream, types=("state",)):
        update = envelope.payload
        if isinstance(update, events.StateUpdate):
            for name, key in _KEYS.items():
                number = update.set.get(key)
                if isinstance(number, int) and _is_number_of_turns(number):
                    numbers[name] = number
                elif key in update.unset:
                    numbers.pop(name, None)
    return TurnSettings(**numbers)


def _is_number_of_turns(number: int) -> bool:
    return not isinstance(number, bool) and 1 <= number <= MOST_TURNS
