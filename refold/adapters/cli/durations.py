"""Lengths of time as people write them: ``30d``, ``12h``, ``15m``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import typer

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def duration(text: str | None) -> timedelta | None:
    """The time that ``text`` says; refuses what is none, as a wrong argument."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})([dhms])", text.strip())
    if found is None:
        raise typer.BadParameter("a time is a number and d, h, m or s, such as 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
