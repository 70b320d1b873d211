"""What kind of task a session is: a tag, or what a classifier makes of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import UserInput

# Told an event, it names the scenario that the event shows, or None.  It must be
# deterministic: memory that is made again must come out the same.
Classifier: TypeAlias = Callable[[Envelope], str | None]
GENERAL: Final = "general"
_LONGEST: Final = 80


def by_words(scenarios: Mapping[str, tuple[str, ...]]) -> Classifier:
    """A classifier that looks for words in what users say, the first scenario first."""
    lowered = {
        name: tuple(word.lower() for word in words) for name, words in scenarios.items()
    }

    def classify(envelope: Envelope) -> str | None:
        if not isinstance(envelope.payload, UserInput):
            return None
        text = envelope.payload.text.lower()
        for name, words in lowered.items():
            if any(word in text for word in words):
                return name
        return None

    return classify


def tagged(envelope: Envelope) -> str | None:
    """The scenario that the writer named, if it can be a name."""
    tag = envelope.meta.scenario
    return tag if tag and len(tag) <= _LONGEST and tag.isprintable() else None
