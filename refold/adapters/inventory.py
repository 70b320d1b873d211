"""How an erasure removes the files that the inventory registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from refold.adapters import capture_state
from refold.domain.inventory import places

# By the name of the place: what removes a user's files, and returns those removed.
_REMOVERS: Final[Mapping[str, Callable[[str], list[Path]]]] = {
    "capture state": capture_state.forget_user,
}


def forget_files(user_id: str) -> dict[str, list[str]]:
    """Remove the files of a user on this machine; returns them by their place."""
    removed: dict[str, list[str]] = {}
    for place in places("file", "remove files"):
        remove = _REMOVERS[place.name]
        removed[place.name] = [str(path) for path in remove(user_id)]
    return removed
