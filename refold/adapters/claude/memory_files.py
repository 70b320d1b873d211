"""The memory tool of the Messages API, its files kept in the log."""

from __future__ import annotations

from typing import Any

from refold.adapters.claude.tool_calls import Answering, Call, Told, call_of
from refold.domain.events import JsonObject
from refold.projections.context.blocks import Block
from refold.projections.memory.files import DEFINITION, NAME, SHOWING, Done
from refold.store.sessions import Session
from refold.store.user_files import UserFiles


class MemoryFiles:
    """Does the commands of the memory tool, on the files of a session's user.

    They are the same in all sessions of the user, and in those of all agents.

    untrusted: what files say is marked as text that others could have written: a
               session that read one then speaks for nothing in memory.
    agent:     whose calls these are, if there are several agents in the session.
    """

    def __init__(
        self, session: Session, *, untrusted: bool = False, agent: str | None = None
    ) -> None:
        self.session, self._untrusted = session, untrusted
        self._files = UserFiles(session.writer, session.user_id)
        self._answering = Answering(session, agent)

    @property
    def definition(self) -> JsonObject:
        """The tool for ``tools``."""
        return {**DEFINITION}

    def answer(self, tool_use: Any) -> Block | None:
        """The ``tool_result`` of a ``tool_use`` block; None for another tool's.

        Call and result are recorded.  The same call again changes nothing and has the
        same result.  What is wrong with a call is told to the model.

        Raises what ``session.append`` raises.
        """
        call = call_of(tool_use)
        if call is None or call.name != NAME:
            return None
        return self._answering.answer(call, lambda: self._told(call))

    def run(self, command: object) -> Done:
        """Do a command, and record no call of it: for who records calls otherwise."""
        return self._files.do(command, by=self.session.session_id)

    def texts(self, at: int | None = None) -> dict[str, str]:
        """Each file's text by its path, now or at a seq of the session ``_files``."""
        return self._files.texts(at)

    def _told(self, call: Call) -> Told:
        session_id = self.session.session_id
        # With its length, or two pairs of session and call could have one key.
        key = f"{NAME}:{len(session_id)}:{session_id}:{call.call_id}"
        done = self._files.do(call.given, key=key, by=session_id)
        shows = not done.is_error and call.given.get("command") in SHOWING
        return Told(done.text, done.is_error, untrusted=self._untrusted and shows)
