"""Lines that join tool calls to their results, like the branches of a history."""

from __future__ import annotations

from typing import Final

LANES: Final = 3


class Rails:
    """Keeps a lane for each open call; calls beyond the lanes go without one."""

    def __init__(self) -> None:
        self._lanes: list[str | None] = [None] * LANES

    def open(self, call_id: str) -> str:
        """Begin the lane of a call; returns what to draw beside it."""
        if None not in self._lanes:
            return self.passing()
        lane = self._lanes.index(None)
        self._lanes[lane] = call_id
        return self._drawn(lane, "╭")

    def close(self, call_id: str) -> str:
        """End the lane of a call; returns what to draw beside its result."""
        if call_id not in self._lanes:
            return self.passing()
        lane = self._lanes.index(call_id)
        drawn = self._drawn(lane, "╰")
        self._lanes[lane] = None
        return drawn

    def passing(self) -> str:
        """What to draw beside an event that opens and closes nothing."""
        return "".join("│" if call else " " for call in self._lanes)

    def _drawn(self, lane: int, corner: str) -> str:
        """The corner in its lane, and a line from there to the event."""
        drawn = [("│" if call else " ") for call in self._lanes]
        drawn[lane] = corner
        for right in range(lane + 1, LANES):
            drawn[right] = "┼" if self._lanes[right] else "─"
        return "".join(drawn)
