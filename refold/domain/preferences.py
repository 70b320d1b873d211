"""Preferences that a user stated: keys with values too short for a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from refold.domain.errors import InvalidEvent
from refold.domain.events import StateUpdate

Preference: TypeAlias = bool | int | float | str

_PREFIX: Final = "preference."
_KEY: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+/-]{0,63}")
_SEPARATOR: Final = re.compile(r"[_.:+/-]+")
_MOST_WORDS: Final = 6
_LARGEST: Final = 1e6


def is_preference(key: object, value: object) -> bool:
    """Whether a name and a boolean, a number, or a short token make a preference.

    A number is at most a million, so that it cannot be a telephone number.  A token has
    up to 64 letters, digits, and ``_ . : + / -``, and at most six words.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return False
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST  # false for NaN
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        return False
    words = [word for word in _SEPARATOR.split(value) if word]
    return len(words) <= _MOST_WORDS


def stating(key: str, value: Preference) -> StateUpdate:
    """Return the event that states a preference.

    Raises InvalidEvent if key and value make no preference.
    """
    if not is_preference(key, value):
        raise InvalidEvent(
            "a preference is a name of lower-case letters, digits and _ with true, "
            "false, a number or a token of up to 64 letters, digits and _ . : + / -, "
            "at most six words: no sentence"
        )
    return StateUpdate(set={_PREFIX + key: value})


def unstating(key: str) -> StateUpdate:
    """Return the event that removes a preference.

    Raises InvalidEvent for a key that no preference has.
    """
    if not is_preference(key, True):
        raise InvalidEvent(
            "the name of a preference has up to 64 lower-case letters, digits and _"
        )
    return StateUpdate(unset=(_PREFIX + key,))


def check_update(update: StateUpdate) -> None:
    """Check the preferences in an update.  Raises InvalidEvent for an invalid one."""
    for name in _keys_in(update.set):
        stating(name, update.set[_PREFIX + name])  # type: ignore[arg-type]  # checked there
    for name in _keys_in(update.unset):
        unstating(name)


def stated(update: StateUpdate) -> Iterator[tuple[str, Any]]:
    """Yield the preferences that an update sets, without those that redaction broke."""
    for key in _keys_in(update.set):
        value = update.set[_PREFIX + key]
        if is_preference(key, value):
            yield key, value


def unstated(update: StateUpdate) -> Iterator[str]:
    """Yield the keys of the preferences that an update removes."""
    return _keys_in(update.unset)


def _keys_in(names: Iterable[str]) -> Iterator[str]:
    """Yield the keys of preferences among these names of the working memory."""
    for name in names:
        if name.startswith(_PREFIX):
            yield name.removeprefix(_PREFIX)
