"""What a user prefers, as they said it: keys and values in which no sentence fits."""

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
_PARTED: Final = re.compile(r"[_.:+/-]+")
_WORDS, _LARGEST = 6, 1e6


def is_preference(key: object, value: object) -> bool:
    """Whether it may be kept: a name, and a truth, a number or one short token.

    A number is at most a million, so that no telephone number is one; a token
    has up to 64 letters, digits and ``_ . : + / -``, and is of at most six words.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        return False
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST  # false of what is not a number
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        return False
    return len([word for word in _PARTED.split(value) if word]) <= _WORDS


def stating(key: str, value: Preference) -> StateUpdate:
    """The event that states a preference.  Raises InvalidEvent."""
    if not is_preference(key, value):
        raise InvalidEvent(
            "a preference is a name of lower-case letters, digits and _ with true, "
            "false, a number or a token of up to 64 letters, digits and _ . : + / -, "
            "at most six words: no sentence"
        )
    return StateUpdate(set={_PREFIX + key: value})


def unstating(key: str) -> StateUpdate:
    """The event that takes a preference back.  Raises InvalidEvent."""
    if not is_preference(key, True):
        raise InvalidEvent(
            "a preference is named with lower-case letters, digits and _, up to 64"
        )
    return StateUpdate(unset=(_PREFIX + key,))


def check_update(update: StateUpdate) -> None:
    """See that preferences in it are such.  Raises InvalidEvent."""
    for name in _named(update.set):
        stating(name, update.set[_PREFIX + name])  # type: ignore[arg-type]  # it looks at what it is
    for name in _named(update.unset):
        unstating(name)


def stated(update: StateUpdate) -> Iterator[tuple[str, Any]]:
    """The preferences that an update sets, those left out that redaction changed."""
    found = ((name, update.set[_PREFIX + name]) for name in _named(update.set))
    return (one for one in found if is_preference(*one))


def unstated(update: StateUpdate) -> Iterator[str]:
    """The preferences that an update takes back."""
    return _named(update.unset)


def _named(keys: Iterable[str]) -> Iterator[str]:
    return (key[len(_PREFIX) :] for key in keys if key.startswith(_PREFIX))
