"""Finds the files of transcripts that are new or have changed since the last look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

# A file that changes at each look is taken after this many looks.
_MOST_LOOKS: Final = 5
# A conversation of OpenHands: the file, and the folder with its events.
_EVENTS: Final = "events"
_STATE_FILE: Final = "base_state.json"

_Stamp = tuple[tuple[int, int], ...]


class Watch:
    """Remembers the state of files, and returns those that changed and then rested.

    files: lists the files that exist now.
    """

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._taken: dict[Path, _Stamp] = {}
        # The state of files that have changed, and the number of looks since then.
        self._changed: dict[Path, tuple[_Stamp, int]] = {}

    def take(self) -> list[Path]:
        """Return the files to import now.

        A file that changed since the last look may be in the middle of a line, so it is
        returned at the next look without a change.
        """
        resting: list[Path] = []
        changed: dict[Path, tuple[_Stamp, int]] = {}
        for path in self._files():
            stamp = _stamp(path)
            if stamp is None or stamp == self._taken.get(path):
                continue
            before, looks = self._changed.get(path, (None, 0))
            if stamp == before or looks >= _MOST_LOOKS:
                resting.append(path)
                self._taken[path] = stamp
            else:
                changed[path] = (stamp, looks + 1)
        self._changed = changed
        return resting

    def put_back(self, path: Path) -> None:
        """Have a file that could not be imported returned again."""
        self._taken.pop(path, None)


def _stamp(path: Path) -> _Stamp | None:
    """Return the state of a file and its companions; None if it is gone."""
    own = _state(path)
    if own is None:
        return None
    companions = [path.with_name(f"{path.name}-wal")]
    if path.name == _STATE_FILE:
        companions.append(path.parent / _EVENTS)
    states = [own]
    for companion in companions:
        state = _state(companion)
        if state is not None:
            states.append(state)
    return tuple(states)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except (OSError, ValueError):
        return None
    return info.st_mtime_ns, info.st_size
