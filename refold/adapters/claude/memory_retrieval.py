"""The tool with which a model asks for what earlier sessions of its user showed."""

from __future__ import annotations

from typing import Any, Unpack

from refold.adapters.claude.tool_calls import Answering, Call, Told, call_of
from refold.domain.events import JsonObject
from refold.projections.context.blocks import Block
from refold.projections.memory.advice import ChoosingArgs, chosen_by
from refold.projections.memory.tool import NAME, Refused, asked, definition
from refold.store.retrieving import retrieve
from refold.store.sessions import Session


class MemoryRetrieval:
    """Answers calls of ``memory_retrieval`` in one session, about its user alone.

    how:   how memories are chosen, as for ``session.advice``; ``tokens`` is how many
           an answer may cost.
    agent: whose calls these are, if there are several agents in the session.

    Raises InvalidConfiguration.
    """

    def __init__(
        self, session: Session, *, agent: str | None = None, **how: Unpack[ChoosingArgs]
    ) -> None:
        self.session, self._how = session, chosen_by(how)
        self._answering = Answering(session, agent)

    @property
    def definition(self) -> JsonObject:
        """The tool for ``tools``; it names the session's user as who is asked about."""
        return definition(self.session.user_id)

    def answer(self, tool_use: Any) -> Block | None:
        """The ``tool_result`` of a ``tool_use`` block; None for another tool's.

        Call and result are recorded, and the items shown with them.  The same call
        again has the same result.  What is wrong with a call is told to the model.

        Raises what ``session.append`` raises.
        """
        call = call_of(tool_use)
        if call is None or call.name != NAME:
            return None
        return self._answering.answer(call, lambda: self._told(call))

    def _told(self, call: Call) -> Told:
        session = self.session
        query = asked(call.given, user_id=session.user_id)
        if isinstance(query, Refused):
            return Told(query.why, is_error=True)
        found = retrieve(session.writer, session.stream, query, self._how)
        return Told(found.text, advised=found.items)
