"""What kind of task a session is: a tag, or what a classifier makes of its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import UserInput

if TYPE_CHECKING:
    from refold.projections.memory.shown import Shown

# Told an event, it names the scenario that the event shows, or None.  It must be
# deterministic: memory that is made again must come out the same.
Classifier: TypeAlias = Callable[[Envelope], str | None]
# What is known of all sessions together, whatever their scenario.
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


def by_scenario(shown: Iterable[Shown]) -> dict[str, list[Shown]]:
    """The sessions of each scenario; ``general`` are all of them.  In order of ids."""
    found: dict[str, list[Shown]] = {GENERAL: []}
    for one in sorted(shown, key=lambda one: one.session_id):
        for name in {GENERAL, one.scenario}:
            found.setdefault(name, []).append(one)
    return {name: found[name] for name in sorted(found) if found[name]}


def tagged(envelope: Envelope) -> str | None:
    """The scenario that the writer named, if it can be a name."""
    tag = envelope.meta.scenario
    return tag if tag and len(tag) <= _LONGEST and tag.isprintable() else None
