"""Attempts: steps of an agent whose failures are recorded in the session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from refold.domain import errors
from refold.domain.canonical import repaired
from refold.domain.events import (
    AgentError,
    JsonObject,
    ToolResult,
    is_busy,
    is_unreached,
)
from refold.domain.model import repr_without_texts
from refold.store.session.core import SessionCore

if TYPE_CHECKING:
    from refold.domain.session import SessionState

# After these errors, another attempt may succeed.
_TRANSIENT: Final = (TimeoutError, ConnectionError, errors.StoreUnavailable)
_MOST_MESSAGE_CHARS: Final = 2_000  # of an error that are recorded
# The failure is appended again if another writer was first, at most this often.
_TRIES: Final = 9
_MOST_NAMED_CALLS: Final = 20  # open calls that a failure names


@repr_without_texts
@dataclass(slots=True)
class Attempt:
    """A step whose failure is recorded; use it with ``with`` or ``async with``.

    Raises the exception that the step raised.  If the failure cannot be recorded, a
    note on that exception says so.

    what:      the name of the step.
    retryable: whether another attempt may succeed; None decides by the exception.
    """

    session: SessionCore
    what: str
    request_id: str | None = None
    agent: str | None = None
    retryable: bool | None = None
    _started_at: int = field(default=0, init=False)
    _open_before: frozenset[str] = field(default=frozenset(), init=False)

    def __enter__(self) -> Self:
        state = self._state()
        self._started_at = state.head_seq
        self._open_before = frozenset(state.open_calls)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):
            return  # the step succeeded, or the program was interrupted
        where = self._place(trace)
        try:
            storable_text, _ = repaired(str(error)[:_MOST_MESSAGE_CHARS])
            message = str(storable_text)
            try:
                self._record(error, where, message)
            except (errors.RedactionFailed, errors.InvalidEvent):
                # Record the failure without its message, which cannot be stored.
                self._record(error, where, "")
        except (errors.RefoldError, OSError) as failure:
            error.add_note(f"refold could not record this failure: {failure}")

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _state(self) -> SessionState:
        return self.session.writer.log.head(self.session.stream).state

    def _place(self, trace: TracebackType | None) -> str:
        """Return the name of the step, with the innermost line of code that raised."""
        frames = list(walk_tb(trace))
        if not frames:
            return self.what
        frame, line = frames[-1]
        # The path of the file would reveal the machine, the module does not.
        module = frame.f_globals.get("__name__", "?")
        return f"{self.what} ({module}.{frame.f_code.co_qualname}, line {line})"

    def _record(self, error: Exception, where: str, message: str) -> None:
        """Append the failure, with a result for each call that the step left open."""
        code = type(error).__name__
        status = _http_status(error)
        retryable = self.retryable
        if retryable is None and status is not None:
            retryable = is_busy(status)
        if retryable is None:
            retryable = isinstance(error, _TRANSIENT) or is_unreached(code)
        context: dict[str, Any] = {"after_seq": self._started_at}
        if status is not None:
            context["status"] = status
        if error.__cause__ is not None:
            context["cause"] = type(error.__cause__).__name__
        for tries_left in reversed(range(_TRIES)):
            state = self._state()
            failure = AgentError(
                code=code,
                message=message,
                where=where,
                retryable=retryable,
                context=context | self._context_of(state),
            )
            try:
                self.session.append(
                    [*self._results(state, code), failure],
                    request_id=self.request_id,
                    agent=self.agent,
                    expected_seq=state.head_seq,
                )
                return
            except errors.StaleSession:
                if not tries_left:
                    raise

    def _unfinished(self, state: SessionState) -> list[str]:
        """Return the ids of the calls that the step made and left without a result."""
        return [call for call in state.open_calls if call not in self._open_before]

    def _results(self, state: SessionState, code: str) -> list[ToolResult]:
        """Return a result of unknown outcome for each call that the step left open."""
        text = f"{self.what} failed with {code} before there was a result"
        return [
            ToolResult(call_id=call_id, content=text, status="unknown")
            for call_id in self._unfinished(state)
        ]

    def _context_of(self, state: SessionState) -> JsonObject:
        """Return the fields of the failure's context that depend on the state."""
        context: JsonObject = {"upto_seq": state.head_seq}
        unfinished = self._unfinished(state)
        if unfinished:
            context["open_calls"] = [*unfinished[:_MOST_NAMED_CALLS]]
        return context


def _http_status(error: Exception) -> int | None:
    """Return the HTTP status of an error of httpx or of a provider's SDK, or None."""
    response = getattr(error, "response", None)
    status_of_response = getattr(response, "status_code", None)
    status = getattr(error, "status_code", status_of_response)
    return status if isinstance(status, int) else None
