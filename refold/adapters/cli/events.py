"""How a terminal shows events: styles, and lines that join calls to results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from refold.domain.canonical import shipped

if TYPE_CHECKING:
    from refold.adapters.cli.output import Part
    from refold.store.proofs.provenance import Provenance

STYLES: Final = shipped("refold.adapters.cli", "styles.toml")


def origin_words(origin: Provenance) -> tuple[Part, str]:
    """How it is known that a context was sent, as a line says it."""
    style = "green" if origin.same and origin.kind == "recorded" else "yellow"
    match origin.kind:
        case "recorded" if origin.same:
            words = f" as request seq {origin.seq} when it was sent"
        case "recorded":
            place = f" as request seq {origin.seq}"
            words = f"{place}: redacted since, shorter than what was sent"
        case "reconstructed":
            words = f" from a transcript: it is what the answer at seq {origin.seq} had"
        case "assumed":
            words = ": no request is recorded here, the strategy makes this of the log"
    return (origin.kind, style), words


LANES: Final = 3


class Rails:
    """Keeps a lane for each open call; calls beyond the lanes go without one."""

    def __init__(self) -> None:
        self._lanes: list[str | None] = [None] * LANES

    def open(self, call_id: str) -> str:
        """Begin the lane of a call; returns what to draw beside it."""
        return self._turned(None, call_id, "╭")

    def close(self, call_id: str) -> str:
        """End the lane of a call; returns what to draw beside its result."""
        return self._turned(call_id, None, "╰")

    def passing(self) -> str:
        """What to draw beside an event that opens and closes nothing."""
        return "".join("│" if call else " " for call in self._lanes)

    def _turned(self, held: str | None, then: str | None, corner: str) -> str:
        """The corner in the lane of ``held``, and a line from there to the event."""
        if held not in self._lanes:
            return self.passing()
        lane = self._lanes.index(held)
        self._lanes[lane] = then
        line = "".join("┼" if call else "─" for call in self._lanes[lane + 1 :])
        return self.passing()[:lane] + corner + line
