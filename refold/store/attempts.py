"""What goes wrong in a step of an agent, as events of its session.

A failure that is only raised leaves a log that ends in the middle of something: calls
without results, and no word why.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from refold.domain.canonical import repaired
from refold.domain.errors import (
    InvalidEvent,
    RedactionFailed,
    RefoldError,
    StaleSession,
    StoreUnavailable,
)
from refold.domain.events import AgentError, Event, JsonObject, ToolResult

if TYPE_CHECKING:
    from refold.domain.session import SessionState
    from refold.store.sessions import Session

# What may go well the next time, if nobody says otherwise.
_PASSING: Final = (TimeoutError, ConnectionError, StoreUnavailable)
_LONGEST: Final = 2_000
_TRIES: Final = 8
_NAMED_CALLS: Final = 20


@dataclass(slots=True)
class Attempt:
    """A step whose failure is recorded; use it with ``with`` or ``async with``.

    Raises what the step raised.  If that cannot be recorded, a note on the exception
    says so.
    """

    session: Session
    what: str
    request_id: str | None = None
    agent: str | None = None
    retryable: bool | None = None
    _after: int = field(default=0, init=False)
    _open: frozenset[str] = field(default=frozenset(), init=False)

    def __enter__(self) -> Self:
        state = self._state()
        self._after, self._open = state.head_seq, frozenset(state.open_calls)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):
            return  # it went well, or somebody ended it
        try:
            self._record(error, trace)
        except (RefoldError, OSError) as failed:
            error.add_note(f"refold could not record this failure: {failed}")

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _record(self, error: Exception, trace: TracebackType | None) -> None:
        where = f"{self.what}{_place(trace)}"
        message = str(repaired(str(error)[:_LONGEST])[0])
        try:
            self._append(error, where, message)
        except (RedactionFailed, InvalidEvent):
            # What was raised cannot be written down; that it was can.
            self._append(error, where, "")

    def _append(self, error: Exception, where: str, message: str) -> None:
        for last in (*[False] * _TRIES, True):
            state = self._state()
            left = [call for call in state.open_calls if call not in self._open]
            failure = AgentError(
                code=type(error).__name__,
                message=message,
                where=where,
                retryable=self._may_pass(error),
                context=self._context(state.head_seq, left, error),
            )
            try:
                self.session.append(
                    [*self._closing(left, error), failure],
                    request_id=self.request_id,
                    agent=self.agent,
                    expected_seq=state.head_seq,
                )
            except StaleSession:
                if last:
                    raise
            else:
                return

    def _closing(self, calls: list[str], error: Exception) -> list[Event]:
        name = type(error).__name__
        text = f"{self.what} failed with {name} before there was a result"
        return [
            ToolResult(call_id=call, content=text, status="unknown") for call in calls
        ]

    def _state(self) -> SessionState:
        return self.session.writer.log.head(self.session.stream).state

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, _PASSING) if self.retryable is None else self.retryable

    def _context(self, head: int, left: list[str], error: Exception) -> JsonObject:
        """Where in the session it was, and nothing that the step worked on."""
        context: dict[str, Any] = {"after_seq": self._after, "upto_seq": head}
        if left:
            context["open_calls"] = left[:_NAMED_CALLS]
        if error.__cause__ is not None:
            context["cause"] = type(error.__cause__).__name__
        return context


def _place(trace: TracebackType | None) -> str:
    """The innermost place in code, by module: a path would name the machine."""
    *_, innermost = [None, *walk_tb(trace)]
    if innermost is None:
        return ""
    frame, line = innermost
    module = frame.f_globals.get("__name__", "?")
    return f" ({module}.{frame.f_code.co_qualname}, line {line})"
