"""How long what is kept: a time-to-live for sessions, blobs, memory and audit each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from refold.domain.errors import InvalidConfiguration

Since: TypeAlias = Literal["append", "access"]
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_TIME: Final = re.compile(r"([0-9]{1,6})([dhms])")
LONGEST: Final = timedelta(days=999_999)  # what can be written; and dates can be told


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """When what expires; None is never, and so is what is left out.

    sessions: a session that nobody used for so long.
    since:    what uses one: ``append`` alone, or ``access``: reading it by name too.
    blobs:    the whole texts behind cut ones, that long after they were written.
    memory:   at most so long after the session that it was learned from was used: it
              goes with that session, which must expire as soon or sooner.
    audit:    records of who did what.

    Raises InvalidConfiguration for a time that is not above zero, and for one that
    could not be kept.
    """

    sessions: timedelta | None = None
    since: Since = "append"
    blobs: timedelta | None = None
    memory: timedelta | None = None
    audit: timedelta | None = None

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidConfiguration(
                f"since is one of append, access, not {self.since!r}"
            )
        for name in ("sessions", "blobs", "memory", "audit"):
            time = getattr(self, name)
            if time is not None and time <= timedelta(0):
                raise InvalidConfiguration(f"{name} must expire after more than 0s")
            if time is not None and time > LONGEST:
                raise InvalidConfiguration(f"{name} must expire within 999999 days")
        if self.memory and not (self.sessions and self.sessions <= self.memory):
            raise InvalidConfiguration(
                "memory goes with the sessions it is made of: sessions must expire "
                "after no longer than memory"
            )

    @classmethod
    def preset(cls, name: str) -> Self:
        """The policy of that name.  Raises InvalidConfiguration if there is none."""
        if name not in _PRESETS:
            known = ", ".join(_PRESETS)
            raise InvalidConfiguration(f"there is no preset {name!r}; there is {known}")
        return cls.of(_PRESETS[name])

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The policy that TOML says: ``sessions = "30d"``, and so on.

        Raises InvalidConfiguration for what is no TOML, key or time.
        """
        try:
            found = tomllib.loads(text if isinstance(text, str) else text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidConfiguration(
                'a retention policy is TOML with lines such as sessions = "30d"'
            ) from None
        return cls.of(found)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """The policy of these keys.  Raises InvalidConfiguration."""
        known = {field.name for field in fields(cls)}
        for name in found:
            if name not in known:
                raise InvalidConfiguration(
                    f"a retention policy has no {name!r}, only {', '.join(known)}"
                )
        times = {name: _time(name, v) for name, v in found.items() if name != "since"}
        return cls(**times, since=found.get("since", "append"))


_PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "seed": {"sessions": "30d", "memory": "90d", "audit": "14d"},
}


def _time(name: str, text: object) -> timedelta:
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidConfiguration(
            f'{name} is a number and d, h, m or s in quotes, such as "30d"'
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
