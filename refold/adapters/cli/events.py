"""Styles of events in a terminal, and the lines that join calls to results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from refold.domain.canonical import load_packaged_toml

if TYPE_CHECKING:
    from refold.adapters.cli.output import Part
    from refold.store.proofs.provenance import Provenance

STYLES: Final = load_packaged_toml("refold.adapters.cli", "styles.toml")


def origin_words(origin: Provenance) -> tuple[Part, str]:
    """Return the origin of a context with its style, and the words that explain it."""
    style = "yellow"
    match origin.kind:
        case "recorded" if origin.same:
            style = "green"
            words = f" as request seq {origin.seq} when it was sent"
        case "recorded":
            place = f" as request seq {origin.seq}"
            words = f"{place}: redacted since, shorter than what was sent"
        case "reconstructed":
            words = f" from a transcript: the context of the answer at seq {origin.seq}"
            if origin.rules:
                words += f"; by rule: {', '.join(origin.rules)}"
        case "assumed":
            words = (
                ": no request is recorded here; the strategy derives this from the log"
            )
    return (origin.kind, style), words


LANES: Final = 3


class Rails:
    """Draws a line from each call to its result, in one of a few lanes.

    While all lanes are taken, further calls have no line.
    """

    def __init__(self) -> None:
        # The call in each lane; None for a free lane.
        self._calls: list[str | None] = [None] * LANES

    def open(self, call_id: str) -> str:
        """Begin the line of a call, and return the signs before the call."""
        if None not in self._calls:
            return self.passing()
        lane = self._calls.index(None)
        self._calls[lane] = call_id
        return self._branch(lane, "╭")

    def close(self, call_id: str) -> str:
        """End the line of a call, and return the signs before its result."""
        if call_id not in self._calls:
            return self.passing()
        lane = self._calls.index(call_id)
        self._calls[lane] = None
        return self._branch(lane, "╰")

    def passing(self) -> str:
        """Return the signs before an event at which no line begins or ends."""
        return "".join("│" if call else " " for call in self._calls)

    def _branch(self, lane: int, corner: str) -> str:
        """Return the signs for a line from a lane to an event, across other lanes."""
        crossed = self._calls[lane + 1 :]
        line = "".join("┼" if call else "─" for call in crossed)
        return self.passing()[:lane] + corner + line
