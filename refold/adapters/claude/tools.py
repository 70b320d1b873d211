"""Calls of tools that Refold answers itself: recorded once, with what they gave.

Nothing here needs the SDK: blocks may be JSON, from whichever client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Unpack

from refold.domain.access_log import Access
from refold.domain.envelope import Draft, Envelope, Meta
from refold.domain.errors import (
    EventTooLarge,
    Expired,
    Frozen,
    IdempotencyConflict,
    InvalidEvent,
    RedactionFailed,
    StaleSession,
)
from refold.domain.events import Event, JsonObject, StateUpdate, ToolCall, ToolResult
from refold.domain.ids import FILES_SESSION, MAIN, StreamId, bounded
from refold.domain.ports import EventLog
from refold.projections.context.text import Block, result_block
from refold.projections.memory import tool
from refold.projections.memory.advice import ChoiceArgs, chosen_by
from refold.redaction.guard import restored
from refold.store.appends import Order, Writer
from refold.store.history import read_on, with_blobs
from refold.store.memory import retrieve, wishes
from refold.store.sessions import Session

_PAGE: Final = 200
_TRIES: Final = 4
_KEY: Final = "memories:"
# A try is lost only to a writer that won, so that many of them come to an end.
_MOST_TRIES: Final = 64
_OPTED_OUT: Final = "Error: the user wants no memory: nothing is kept and nothing shown"
_EXPIRED: Final = "Error: the file is not whole any more, and cannot be changed"
_LOST: Final = "Error: others are changing these files: try again"


class Call(NamedTuple):
    """A ``tool_use`` block, by its parts."""

    call_id: str
    name: str
    given: Any


class Told(NamedTuple):
    """What a model is told.

    advised: the items of memory in it, by id.
    """

    text: str
    is_error: bool = False
    untrusted: bool = False
    advised: tuple[str, ...] = ()


def call_of(tool_use: Any) -> Call | None:
    """The call of a block of a response: the SDK's, or its JSON.

    None for another kind of block.  Raises InvalidEvent for one without id or name.
    """
    if not isinstance(tool_use, Mapping):
        names = ("type", "id", "name", "input")
        tool_use = {name: getattr(tool_use, name, None) for name in names}
    if tool_use.get("type") != "tool_use":
        return None
    call_id, name = tool_use.get("id"), tool_use.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InvalidEvent("a tool_use block has an id and a name")
    return Call(call_id, name, tool_use.get("input"))


@dataclass(frozen=True, slots=True)
class Answers:
    """Records calls and results in a session; the same call again is the same record.

    agent: whose calls these are, if there are several agents in the session.
    """

    session: Session
    agent: str | None = None

    def answer(
        self, tool_use: Any, name: str, tell: Callable[[Call], Told]
    ) -> Block | None:
        """The result of a call as a block, made and recorded if it was not yet.

        None for a block that is no call of the tool of that name.  Where a capture has
        recorded the call, only its result is added.

        Raises what ``session.append`` raises.
        """
        call = call_of(tool_use)
        if call is None or call.name != name:
            return None
        for left in reversed(range(_TRIES)):
            recorded = self._recorded(call)
            if recorded is not None:
                return _block(self.session, call.call_id, recorded)
            try:
                self._append(call, tell(call))
            except (InvalidEvent, IdempotencyConflict):
                # Somebody else recorded the call, or its result, in between.
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _append(self, call: Call, told: Told) -> None:
        result = ToolResult(
            call_id=call.call_id,
            tool_name=call.name,
            content=told.text,
            status="error" if told.is_error else "ok",
            untrusted=told.untrusted,
        )
        advised = {"advised": list(told.advised)} if told.advised else {}
        events: list[Event | Draft] = [Draft(result, meta=Meta.of(advised))]
        if not self._is_open(call):
            given = call.given if isinstance(call.given, dict) else str(call.given)
            made = ToolCall(call_id=call.call_id, tool_name=call.name, arguments=given)
            events.insert(0, made)
        self.session.append(
            events, idempotency_key=_key(call), agent=self.agent, unscanned="stub"
        )

    def _is_open(self, call: Call) -> bool:
        writer, stream = self.session.writer, self.session.stream
        name = writer.recorded_id(stream.user_id, call.call_id)
        return name in writer.log.head(stream).state.open_calls

    def _recorded(self, call: Call) -> Envelope | None:
        log, stream = self.session.writer.log, self.session.stream
        earlier = log.receipt(stream, _key(call))
        if earlier is not None:
            return log.read(stream, after=earlier.last_seq - 1, limit=1)[0]
        if self._is_open(call):
            return None
        return result_of(self.session, call.call_id)


def result_of(session: Session, call_id: str) -> Envelope | None:
    """The newest recorded result of a call."""
    log, upto = session.writer.log, None
    call_id = session.writer.recorded_id(session.user_id, call_id)
    while page := log.read(
        session.stream, upto=upto, limit=_PAGE, types=("tool_result",), newest=True
    ):
        for envelope in reversed(page):
            payload = envelope.payload
            if isinstance(payload, ToolResult) and payload.call_id == call_id:
                return envelope
        upto = page[0].seq - 1
    return None


def not_recorded(session: Session, events: Sequence[Event]) -> list[Event]:
    """The events without results that the session has already, word for word."""
    return [event for event in events if not _is_recorded(session, event)]


def _is_recorded(session: Session, event: Event) -> bool:
    if not isinstance(event, ToolResult):
        return False
    found = result_of(session, event.call_id)
    if found is None:
        return False
    return result_block("", event) == _block(session, "", found)


def _block(session: Session, call_id: str, recorded: Envelope) -> Block:
    """As a context has it: redacted, and cut where it was too long."""
    whole = with_blobs(session.writer.log, recorded).payload
    return result_block(call_id, whole if isinstance(whole, ToolResult) else None)


def _key(call: Call) -> str:
    return f"{call.name}:{call.call_id}"


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The files of one user, below ``/memories``."""

    writer: Writer
    user_id: str

    @property
    def _stream(self) -> StreamId:
        return StreamId(self.user_id, FILES_SESSION, MAIN)

    def texts(self, at: int | None = None) -> dict[str, str]:
        """Each file's whole text by its path: now, or when ``at`` was the newest seq.

        Where the whole of a text has expired, it is what is left of it.

        Raises Erased, KeyUnavailable, CorruptEvent.
        """
        upto = self.writer.log.head(self._stream).seq
        return dict(self._files(upto if at is None else bounded("at", at)))

    def do(self, command: object, *, key: str | None = None, by: str = "") -> tool.Done:
        """Do a command of the memory tool, and record what it changes.

        Agents that change the same file at once do so one after another, each on what
        the others left.  Of a user who opted out of memory only deleting is done.

        key: makes a retry safe: the same command gives the first result again.
        by:  the session in which it was asked for.

        Raises Erased, KeyUnavailable, CorruptEvent, StoreUnavailable.
        """
        log = self.writer.log
        name = command.get("command") if isinstance(command, Mapping) else None
        for _ in range(_MOST_TRIES):
            head = log.head(self._stream).seq
            if name != "delete" and wishes(log, self.user_id).consent.memory_opt_out:
                return tool.Done(_OPTED_OUT, is_error=True)
            earlier = log.receipt(self._stream, key) if key else None
            files = self._files(earlier.first_seq - 1 if earlier else head)
            done = tool.run(files, command)
            if earlier or not done.changes:
                return done
            if done.set and files.expired:
                return tool.Done(_EXPIRED, is_error=True)
            try:
                self._append(done, head, key, by)
            except (StaleSession, IdempotencyConflict):
                continue
            except (EventTooLarge, Frozen, InvalidEvent, RedactionFailed) as error:
                return tool.Done(f"Error: not kept: {error}", is_error=True)
            return done
        return tool.Done(_LOST, is_error=True)

    def _files(self, upto: int) -> _Files:
        files = _Files(self.writer.log, self._stream, upto)
        if self.writer.audit is not None:
            counts = {"keys": len(files)}
            access = Access("session_load", self.user_id, FILES_SESSION, counts=counts)
            self.writer.audit.note(access)
        return files

    def _append(self, done: tool.Done, head: int, key: str | None, by: str) -> None:
        """Raises StaleSession if the session is not at ``head`` any more."""
        event = StateUpdate(
            set={_KEY + path: text for path, text in done.set.items()},
            unset=tuple(_KEY + path for path in done.unset),
        )
        meta = {"tool_name": tool.FILES_NAME, **({"session_id": by} if by else {})}
        draft = Draft(event, meta=Meta.of(meta))
        now = self.writer.clock()
        clean = self.writer.redacted(draft, user_id=self.user_id, now=now)
        kept: Any = clean.event
        if ([*kept.set], kept.unset) != ([*event.set], event.unset):
            raise InvalidEvent("the path would have to be redacted: choose another")
        order = Order(self._stream, (draft,), key, head, (clean,))
        self.writer.append(order)


class _Files(Mapping[str, str]):
    """Files by path, each read whole when it is asked for.

    expired: the whole of one that was asked for is gone.
    """

    def __init__(self, log: EventLog, stream: StreamId, upto: int) -> None:
        self._log, self._stream, self.expired = log, stream, False
        self._kept: dict[str, str] = {}
        found = read_on(log, stream, upto=upto, types=("state",)) if upto else ()
        updates = (one.payload for one in found)
        for update in (one for one in updates if isinstance(one, StateUpdate)):
            for key in update.unset:
                self._kept.pop(key.removeprefix(_KEY), None)
            for key, text in update.set.items():
                if key.startswith(_KEY) and isinstance(text, str):
                    self._kept[key.removeprefix(_KEY)] = text

    def __getitem__(self, path: str) -> str:
        return str(restored({path: self._kept[path]}, self._blob)[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _blob(self, sha256: str) -> bytes | None:
        try:
            return self._log.blob(self._stream, sha256)
        except Expired:
            self.expired = True
            return None


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
        self._answers = Answers(session, agent)

    @property
    def definition(self) -> JsonObject:
        """The tool for ``tools``."""
        return {**tool.DEFINITION}

    def answer(self, tool_use: Any) -> Block | None:
        """The ``tool_result`` of a ``tool_use`` block; None for another tool's.

        Call and result are recorded.  The same call again changes nothing and has the
        same result.  What is wrong with a call is told to the model.

        Raises what ``session.append`` raises.
        """
        return self._answers.answer(tool_use, tool.FILES_NAME, self._told)

    def run(self, command: object) -> tool.Done:
        """Do a command, and record no call of it: for who records calls otherwise."""
        return self._files.do(command, by=self.session.session_id)

    def texts(self, at: int | None = None) -> dict[str, str]:
        """Each file's text by its path, now or at a seq of the session ``_files``."""
        return self._files.texts(at)

    def _told(self, call: Call) -> Told:
        session_id = self.session.session_id
        # With its length, or two pairs of session and call could have one key.
        key = f"{tool.FILES_NAME}:{len(session_id)}:{session_id}:{call.call_id}"
        done = self._files.do(call.given, key=key, by=session_id)
        shows = not done.is_error and call.given.get("command") in tool.SHOWING
        return Told(done.text, done.is_error, untrusted=self._untrusted and shows)


class MemoryRetrieval:
    """Answers calls of ``memory_retrieval`` in one session, about its user alone.

    how:   how memories are chosen, as for ``session.advice``; ``tokens`` is how many
           an answer may cost.
    agent: whose calls these are, if there are several agents in the session.

    Raises InvalidConfiguration.
    """

    def __init__(
        self, session: Session, *, agent: str | None = None, **how: Unpack[ChoiceArgs]
    ) -> None:
        self.session, self._how = session, chosen_by(how)
        self._answers = Answers(session, agent)

    @property
    def definition(self) -> JsonObject:
        """The tool for ``tools``; it names the session's user as who is asked about."""
        return tool.definition(self.session.user_id)

    def answer(self, tool_use: Any) -> Block | None:
        """The ``tool_result`` of a ``tool_use`` block; None for another tool's.

        Call and result are recorded, and the items shown with them.  The same call
        again has the same result.  What is wrong with a call is told to the model.

        Raises what ``session.append`` raises.
        """
        return self._answers.answer(tool_use, tool.NAME, self._told)

    def _told(self, call: Call) -> Told:
        session = self.session
        query = tool.asked(call.given, user_id=session.user_id)
        if isinstance(query, tool.Refused):
            return Told(query.why, is_error=True)
        found = retrieve(session.writer, session.stream, query, self._how)
        return Told(found.text, advised=found.items)
