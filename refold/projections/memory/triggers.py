"""When a session has become worth looking at: rules over its events, and no more.

They say when memory is made, never what goes into it: whatever ran late, or twice,
comes out the same.
"""

from __future__ import annotations

from refold.domain.envelope import Meta
from refold.domain.events import (
    AgentError,
    Aggregate,
    Event,
    Final,
    HumanReview,
    Reflection,
)


def may_trigger(event: Event, meta: Meta) -> bool:
    """Whether memory is worth making anew after this.

    The run ended, a human decided, an item was judged incorrect, something failed or
    was degraded, or the agent reflected: it may be unsure, or have done so before.
    """
    match event:
        case Aggregate(results=results):
            return any(one.verdict == "incorrect" for one in results)
        case Reflection() | AgentError() | Final() | HumanReview(decision=str()):
            return True
    return bool(meta.warnings)
