"""What a user prefers, as they said it: keys and values in which no sentence fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    return isinstance(value, str) and _is_token(value)


def _is_token(value: str) -> bool:
    words = [word for word in _PARTED.split(value) if word]
    return bool(_TOKEN.fullmatch(value)) and len(words) <= _WORDS


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
    for name, value in update.set.items():
        if _is_named(name):
            stating(_key(name), value)  # type: ignore[arg-type]  # it looks at what it is
    for name in update.unset:
        if _is_named(name):
            unstating(_key(name))


def stated(update: StateUpdate) -> Iterator[tuple[str, Any]]:
    """The preferences that an update sets, those left out that redaction changed."""
    for name, value in update.set.items():
        if _is_named(name) and is_preference(_key(name), value):
            yield _key(name), value


def unstated(update: StateUpdate) -> Iterator[str]:
    """The preferences that an update takes back."""
    for name in update.unset:
        if _is_named(name):
            yield _key(name)


def _is_named(name: str) -> bool:
    return name.startswith(_PREFIX)


def _key(name: str) -> str:
    return name[len(_PREFIX) :]
