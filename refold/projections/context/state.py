"""The session's working memory: the keys that its state events set and unset."""

from __future__ import annotations

from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, StateUpdate


def fold_state(state: JsonObject, envelope: Envelope) -> JsonObject:
    """The working memory after this event; what one event unsets and sets is set."""
    update = envelope.payload
    if not isinstance(update, StateUpdate):
        return state
    kept = {key: value for key, value in state.items() if key not in update.unset}
    return {**kept, **update.set}
