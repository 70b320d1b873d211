"""Several agents in one session: what each of them sees of the others."""

from __future__ import annotations

from refold.domain.envelope import Envelope
from refold.domain.events import Final, UserInput
from refold.projections.context.tags import tagged


def seen_by(reader: str | None, envelope: Envelope) -> Envelope | None:
    """The event as the agent ``reader`` sees it, or None if it does not.

    An event without an agent is everybody's, one with an agent that agent's own.  Of
    another's run only the result is seen: its ``final``, which comes in as a user's
    input does.  No reader sees everything.
    """
    if reader is None or envelope.agent in (None, reader):
        return envelope
    if not isinstance(envelope.payload, Final):
        return None
    result = envelope.payload
    text = tagged(
        "agent_result", result.text, agent=envelope.agent, outcome=result.outcome
    )
    given = UserInput(text=text)
    return envelope.model_copy(update={"payload": given, "type": given.type})
