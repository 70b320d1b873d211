"""The conversation store of pydantic-ai: entries and records as items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from refold.adapters.frameworks import as_stored, needed, settled, unstored
from refold.adapters.importers import base, messages, openai
from refold.domain.envelope import Draft, Format, Native
from refold.domain.errors import Erased, SessionNotFound, StaleSession
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    needed("pydantic_ai.conversation_store", "pydantic-ai")
import pydantic_ai.conversation_store as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessagesTypeAdapter

_NAME: Final = "pydantic-ai"
_CACHED: Final = 10_000
_RECORD: Final = TypeAdapter(ai.ConversationRecord)


def _view(kind: str, value: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    if kind != "entry":
        return
    message = value["message"]
    moment = message.get("timestamp") or message["parts"][0].get("timestamp")
    origin = base.Origin(
        "",
        ts=datetime.fromisoformat(moment) if moment else None,
        request_id=message.get("run_id"),
        model=message.get("model_name"),
        response_id=message.get("provider_response_id"),
        usage=message.get("usage"),
    )
    answer = message["kind"] == "response"
    found = _response(message) if answer else _request(message, calls)
    yield from base.typed(found, origin)


def _response(message: Mapping[str, Any]) -> Iterator[base.Found]:
    parts = message["parts"]
    texts = [one["content"] for one in parts if one["part_kind"] == "text"]
    thinking = [
        messages.thinking_of({**one, "type": "thinking", "thinking": one["content"]})
        for one in parts
        if one["part_kind"] == "thinking"
    ]
    yield from messages.answered(texts, thinking)
    for one in parts:
        if one["part_kind"] == "tool-call":
            made = {"name": one["tool_name"], "arguments": one["args"]}
            yield from openai.call_of(one["tool_call_id"], made, "")


def _request(
    message: Mapping[str, Any], calls: Mapping[str, Any]
) -> Iterator[base.Found]:
    for one in message["parts"]:
        content, call = one.get("content"), one.get("tool_call_id")
        match one["part_kind"]:
            case "user-prompt":
                parts = [content] if isinstance(content, str) else content
                yield messages.said([part for part in parts if isinstance(part, str)])
            case "system-prompt":
                yield messages.system(content)
            case "tool-return" | "retry-prompt" if call in calls:
                good = one.get("outcome") == "success"
                yield messages.returned(call, content, failed=not good)


FORMAT = Format(_NAME, _view)


def _step(state: Any, item: NativeItem) -> Any:
    """Where the newest record is, and each entry with the one before it."""
    span = [item.seq, item.events[-1].seq]
    if item.format == _NAME and item.kind == "record":
        return {**state, "record": span if item.value else None}
    if item.format == _NAME:
        state["entries"][item.id] = [*span, item.value["parent_id"]]
    return state


class _Kept:
    """A conversation's session as it was read: its record, and where entries are."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seq = session.writer.log.head(session.stream).seq
        state = session.native.fold(
            _NAME, step=_step, start={"record": None, "entries": {}}
        )
        self.entries: dict[str, list[Any]] = state["entries"]
        self.record: Any = None
        if state["record"] is not None:
            (item,) = session.native.read(spans=[tuple(state["record"])])
            self.record = _RECORD.validate_python(item.value)

    @property
    def revision(self) -> str | None:
        """Which writing of the record it is."""
        return self.record.revision if self.record else None

    def upto(self, entry_id: str | None) -> Iterator[str]:
        """The entries of this session from that one back."""
        while entry_id in self.entries:
            yield str(entry_id)
            entry_id = self.entries[str(entry_id)][2]

    def read(self, ids: Sequence[str]) -> list[Any]:
        """These entries, in their order."""
        spans = sorted(tuple(self.entries[name][:2]) for name in ids)
        values = {one.id: one.value for one in self.session.native.read(spans=spans)}
        told = _loaded([values[name] for name in ids])
        return [
            ai.ConversationEntry(id=name, parent_id=self.entries[name][2], message=one)
            for name, one in zip(ids, told, strict=True)
        ]


def _dumped(messages: Sequence[Any]) -> list[Any]:
    told = ModelMessagesTypeAdapter.dump_python([*messages], mode="json")
    return [{"message": one} for one in told]


def _loaded(told: Sequence[Any]) -> list[Any]:
    return [*ModelMessagesTypeAdapter.validate_python([v["message"] for v in told])]


class _Filter(AbstractCapability[Any]):
    def __init__(self, kept: RefoldConversationStore) -> None:
        self._kept = kept

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """The request with messages and instructions as they may be kept."""
        params, history = request_context.model_request_parameters, []
        session = self._kept._session(ctx.conversation_id)
        clean = partial(unstored, session, FORMAT)

        def told() -> Any:
            for one in request_context.messages:
                said = getattr(one, "instructions", None)
                history.append(replace(one, instructions=clean(said)) if said else one)
            parts = params.instruction_parts or []
            new = [replace(one, content=clean(one.content)) for one in parts]
            return replace(
                request_context,
                messages=self._kept._told(ctx.conversation_id, history),
                model_request_parameters=replace(params, instruction_parts=new or None),
            )

        return await settled(told)


class RefoldConversationStore(ai.ConversationStore):
    """Keeps the conversations of one user.

    A deleted conversation is erased once no other's history needs an entry of it.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store, self._user_id = store, user_id
        self._where: dict[str, str] = {}  # in which session an entry is

    async def read_record(self, conversation_id: str) -> Any:
        """The conversation's record, or None."""

        def read() -> Any:
            record = self._kept(self._session(conversation_id)).record
            if record:
                record.conversation_id = conversation_id  # redacted, it names another
            return record

        return await settled(read)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[Any]:
        """The records, the newest first."""
        kept = await settled(lambda: [*self._all()])
        records = [one.record for one in kept if one.record]
        found = [one for one in records if scope is None or one.scope == scope]
        return sorted(found, key=lambda one: one.updated_at, reverse=True)[:limit]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[Any]:
        """The entries up to ``head_id``, or the last of them."""
        return await settled(lambda: self._history(head_id, limit))

    async def read_entry(self, entry_id: str) -> Any:
        """The entry of this id.  Raises KeyError."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def write_record(
        self,
        record: Any,
        *,
        new_entries: Sequence[Any] = (),
        expected_revision: str | None,
    ) -> None:
        """Keep a record with its new entries.  Raises ConversationConflict."""
        name = record.conversation_id
        told = _dumped([one.message for one in new_entries])
        made = [
            Native(FORMAT, "entry", one.id, {"parent_id": one.parent_id, **message})
            for one, message in zip(new_entries, told, strict=True)
        ]
        value = _RECORD.dump_python(record, mode="json")

        def write() -> None:
            head, new = record.head_id, {one.id for one in new_entries}
            if head and head not in new and self._of(head) is None:
                raise ai.ConversationConflict(name)
            made.append(Native(FORMAT, "record", None, value))
            self._write(name, made, expected_revision)

        await settled(write)

    async def delete_record(
        self, conversation_id: str, *, expected_revision: str
    ) -> None:
        """Delete a record, and erase what no history needs.

        Raises ConversationConflict; OnHold under a legal hold.
        """

        def delete() -> None:
            kept = self._kept(self._session(conversation_id))
            if kept.record is None or kept.revision != expected_revision:
                raise ai.ConversationConflict(conversation_id)
            unneeded = self._unneeded(kept.session)
            for one in unneeded:
                one.delete("deleted through pydantic-ai")
            if kept.session not in unneeded:
                gone = [Native(FORMAT, "record", None, None)]
                self._write(conversation_id, gone, expected_revision)

        await settled(delete)

    @property
    def filter(self) -> Any:
        """For ``Agent(capabilities=[…])``: the model is sent what the log may keep."""
        return _Filter(self)

    async def _unsaved_after_history(
        self,
        record: Any,
        conversation_id: str,
        history: list[Any],
        branches: list[str],
        *,
        window: int | None,
    ) -> Any:
        """What ``save`` compares: what would be stored as it is there is the same."""
        kept = record and await self._history_of(record, limit=window)
        stored = [one.message for one in kept or ()]
        told = await settled(
            lambda: self._told(conversation_id, history[: len(stored)], stored)
        )
        both = zip(stored, told, history, strict=False)
        same = [one if one == new else given for one, new, given in both]
        same += history[len(same) :]
        unsaved = super()._unsaved_after_history
        return await unsaved(record, conversation_id, same, branches, window=window)

    def _told(
        self, conversation_id: str, history: Sequence[Any], stored: Sequence[Any] = ()
    ) -> list[Any]:
        """The messages as they would be stored."""
        session = self._session(conversation_id)

        def known() -> list[Any]:
            record = self._kept(session).record
            head = record.head_id if record else None
            return _dumped(stored or [one.message for one in self._history(head, None)])

        told = as_stored(session, FORMAT, _dumped(history), known=known)
        return _loaded(told)

    def _write(self, name: str, made: list[Native], expected: str | None) -> None:
        session = self._session(name)
        while True:
            kept = self._kept(session)
            if kept.revision != expected:
                raise ai.ConversationConflict(name)
            try:
                session.native.append(
                    FORMAT, made, expected_seq=kept.seq, unscanned="stub"
                )
                return
            except StaleSession:
                continue  # another wrote: see whether it was a record

    def _history(self, entry_id: str | None, limit: int | None) -> list[Any]:
        found = list[Any]()
        while entry_id is not None and (limit is None or len(found) < limit):
            kept = self._of(entry_id)
            if kept is None:
                raise KeyError(entry_id)
            left = None if limit is None else limit - len(found)
            ids = [*islice(kept.upto(entry_id), left)]
            found += kept.read(ids)
            entry_id = kept.entries[ids[-1]][2]
        return found[::-1]

    def _of(self, entry_id: str) -> _Kept | None:
        """The session that the entry is in."""
        if entry_id in self._where:
            with suppress(Erased, SessionNotFound):
                kept = self._kept(self._at(self._where[entry_id]))
                if entry_id in kept.entries:
                    return kept
        return next((one for one in self._all() if entry_id in one.entries), None)

    def _unneeded(self, gone: Session) -> list[Session]:
        """The sessions that no record needs an entry of, once that one has none."""
        kept, seen = [*self._all()], set[str]()
        before = {name: at[2] for one in kept for name, at in one.entries.items()}
        left = [one.record for one in kept if one.record and one.session != gone]
        for tip in [tip for one in left for tip in (one.head_id, *one.branches)]:
            while tip in before and tip not in seen:
                seen.add(tip)
                tip = before[tip]
        bare = [one for one in kept if one.record is None or one.session == gone]
        return [one.session for one in bare if seen.isdisjoint(one.entries)]

    def _all(self) -> Iterator[_Kept]:
        infos = self._store.sessions(self._user_id, label={"framework": _NAME})
        return (self._kept(self._at(info.session_id)) for info in infos)

    def _kept(self, session: Session) -> _Kept:
        kept = _Kept(session)
        if kept.record and kept.record.head_id in kept.entries:
            if len(self._where) >= _CACHED:
                self._where.clear()
            self._where[kept.record.head_id] = session.session_id
        return kept

    def _at(self, session_id: str) -> Session:
        return self._store.session(user_id=self._user_id, session_id=session_id)

    def _session(self, conversation_id: str) -> Session:
        labels = {"framework": _NAME, "pydantic_ai_conversation": conversation_id}
        name = f"{_NAME}\0{conversation_id}"
        return self._store.named(name, user_id=self._user_id, labels=labels)
