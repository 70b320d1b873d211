"""A conversation store for pydantic-ai: entries and records are items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from refold.adapters.frameworks import (
    as_stored,
    import_extra,
    in_thread,
    redact_unstored,
)
from refold.adapters.importers import base, messages, openai
from refold.domain.envelope import Draft, Format, Mark, Native
from refold.domain.errors import Erased, SessionNotFound, StaleSession
from refold.domain.events import ProviderEdit
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    import_extra("pydantic_ai.conversation_store", "pydantic-ai")
import pydantic_ai.conversation_store as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessagesTypeAdapter

_NAME: Final = "pydantic-ai"
_CACHED: Final = 10_000
_RECORD: Final = TypeAdapter(ai.ConversationRecord)


def _events_of(kind: str, value: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    """Yield the events of an entry; a record has none."""
    if kind != "entry":
        return
    message = value["message"]
    timestamp = message.get("timestamp") or message["parts"][0].get("timestamp")
    origin = base.Origin(
        "",
        ts=datetime.fromisoformat(timestamp) if timestamp else None,
        request_id=message.get("run_id"),
        model=message.get("model_name"),
        response_id=message.get("provider_response_id"),
        usage=message.get("usage"),
    )
    if message["kind"] == "response":
        pieces = _response(message)
    else:
        pieces = _request(message, calls)
    yield from base.drafts_of(pieces, origin)


def _response(message: Mapping[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield a response of the model, and its calls."""
    parts = message["parts"]
    texts = [part["content"] for part in parts if part["part_kind"] == "text"]
    thinking = []
    for part in parts:
        if part["part_kind"] == "thinking":
            block = {**part, "type": "thinking", "thinking": part["content"]}
            thinking.append(messages.thinking_of(block))
    yield from messages.response(texts, thinking)
    for part in parts:
        if part["part_kind"] == "tool-call":
            function = {"name": part["tool_name"], "arguments": part["args"]}
            yield from openai.call_of(part["tool_call_id"], function, "")


def _request(
    message: Mapping[str, Any], calls: Mapping[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """Yield the inputs, system prompts and results of a request to the model.

    calls: the open calls; a result without one is left out.
    """
    for part in message["parts"]:
        content = part.get("content")
        call_id = part.get("tool_call_id")
        match part["part_kind"]:
            case "user-prompt":
                contents = [content] if isinstance(content, str) else content
                yield messages.user_input(
                    [text for text in contents if isinstance(text, str)]
                )
            case "system-prompt":
                yield messages.system(content)
            case "tool-return" | "retry-prompt" if call_id in calls:
                failed = part.get("outcome") != "success"
                yield messages.tool_result(call_id, content, failed=failed)


FORMAT = Format(_NAME, _events_of)


def _step(state: Any, item: NativeItem) -> Any:
    """Fold in an item: the place of the newest record, or of an entry.

    An entry's place ends with the id of the entry before it.
    """
    if item.format != _NAME:
        return state
    span = [item.seq, item.events[-1].seq]
    if item.kind == "record":
        return {**state, "record": span if item.value else None}
    state["entries"][item.id] = [*span, item.value["parent_id"]]
    return state


class _Conversation:
    """The session of a conversation: its record, and the places of its entries.

    record: None if there is none, or if it was deleted.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seq = session.writer.log.head(session.stream).seq
        state = session.native.fold(
            _NAME, step=_step, start={"record": None, "entries": {}}
        )
        self._places: dict[str, list[Any]] = state["entries"]
        self.record: Any = None
        if state["record"] is not None:
            (item,) = session.native.read(spans=[tuple(state["record"])])
            self.record = _RECORD.validate_python(item.value)

    @property
    def revision(self) -> str | None:
        """Return the revision of the record."""
        return self.record.revision if self.record else None

    @property
    def entry_ids(self) -> set[str]:
        """Return the ids of the entries in this session."""
        return set(self._places)

    def has_entry(self, entry_id: str) -> bool:
        """Whether the entry is in this session."""
        return entry_id in self._places

    def parent_of(self, entry_id: str) -> str | None:
        """Return the id of the entry before an entry of this session."""
        parent: str | None = self._places[entry_id][2]
        return parent

    def back_from(self, entry_id: str | None) -> Iterator[str]:
        """Yield the ids of the entries of this session, from this one to the first."""
        while entry_id is not None and entry_id in self._places:
            yield entry_id
            entry_id = self.parent_of(entry_id)

    def edit_for(
        self, head_id: str | None, new_parents: Mapping[str, str | None]
    ) -> Draft | None:
        """Return the edit for contexts if the head of the record moves, or None.

        Contexts show the entries before the head.  The entries of other branches are
        left out.

        new_parents: by the id of each new entry, the entry before it.
        """
        shown = self.entry_ids
        before: set[str] = set()
        if self.record:
            shown = before = set(self.back_from(self.record.head_id))
        after: set[str] = set()
        entry_id = head_id
        while entry_id is not None and entry_id in new_parents:
            after.add(entry_id)
            entry_id = new_parents[entry_id]
        after.update(self.back_from(entry_id))
        left_out = (shown | new_parents.keys()) - after
        restored = (after & self.entry_ids) - before
        if not left_out and not restored:
            return None
        mark = Mark(
            left_out=tuple(sorted(map(_key, left_out))),
            restored=tuple(sorted(map(_key, restored))),
        )
        return Draft(ProviderEdit(reason="fork"), mark=mark)

    def read(self, ids: Sequence[str]) -> list[Any]:
        """Return these entries, in the order of the ids."""
        spans = sorted(tuple(self._places[entry_id][:2]) for entry_id in ids)
        values = {item.id: item.value for item in self.session.native.read(spans=spans)}
        entry_messages = _load([values[entry_id] for entry_id in ids])
        return [
            ai.ConversationEntry(
                id=entry_id, parent_id=self.parent_of(entry_id), message=message
            )
            for entry_id, message in zip(ids, entry_messages, strict=True)
        ]


def _key(entry_id: str) -> str:
    """Return the key of an entry's draft."""
    return Native(FORMAT, "entry", entry_id).key or ""


def _dump(history: Sequence[Any]) -> list[Any]:
    """Return messages as the JSON that entries store."""
    dumped = ModelMessagesTypeAdapter.dump_python([*history], mode="json")
    return [{"message": message} for message in dumped]


def _load(values: Sequence[Any]) -> list[Any]:
    """Return the messages of stored entries."""
    stored = [value["message"] for value in values]
    return [*ModelMessagesTypeAdapter.validate_python(stored)]


class _Filter(AbstractCapability[Any]):
    def __init__(self, conversations: RefoldConversationStore) -> None:
        self._conversations = conversations

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Redact the messages and instructions of a request."""
        parameters = request_context.model_request_parameters
        session = self._conversations._session(ctx.conversation_id)
        redact_text = partial(redact_unstored, session, FORMAT)

        def redact() -> Any:
            history = []
            for message in request_context.messages:
                instructions = getattr(message, "instructions", None)
                if instructions:
                    redacted = redact_text(instructions)
                    history.append(replace(message, instructions=redacted))
                else:
                    history.append(message)
            parts = [
                replace(part, content=redact_text(part.content))
                for part in parameters.instruction_parts or []
            ]
            return replace(
                request_context,
                messages=self._conversations._as_stored(ctx.conversation_id, history),
                model_request_parameters=replace(
                    parameters, instruction_parts=parts or None
                ),
            )

        return await in_thread(redact)


class RefoldConversationStore(ai.ConversationStore):
    """Stores the conversations of one user.

    A deleted conversation is erased when no other history needs an entry of it.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store = store
        self._user_id = user_id
        self._session_of_head: dict[str, str] = {}  # session ids by their head entry

    async def read_record(self, conversation_id: str) -> Any:
        """Return the conversation's record; None if there is none."""

        def read() -> Any:
            record = self._load_conversation(self._session(conversation_id)).record
            if record:
                # The id in the stored record may be redacted.
                record.conversation_id = conversation_id
            return record

        return await in_thread(read)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[Any]:
        """Return the records, the newest first."""
        records = []
        for conversation in await in_thread(lambda: [*self._all()]):
            record = conversation.record
            if record and scope in (None, record.scope):
                records.append(record)
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[Any]:
        """Return the entries up to ``head_id``, or the last ``limit`` of them."""
        return await in_thread(lambda: self._history(head_id, limit))

    async def read_entry(self, entry_id: str) -> Any:
        """Return the entry with this id.  Raises KeyError."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def write_record(
        self,
        record: Any,
        *,
        new_entries: Sequence[Any] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries.

        Raises ConversationConflict if the stored record has another revision, or if the
        head is no stored or new entry.
        """
        conversation_id = record.conversation_id
        dumped = _dump([entry.message for entry in new_entries])
        natives = [
            Native(FORMAT, "entry", entry.id, {"parent_id": entry.parent_id, **value})
            for entry, value in zip(new_entries, dumped, strict=True)
        ]
        natives.append(
            Native(FORMAT, "record", None, _RECORD.dump_python(record, mode="json"))
        )
        new_ids = {entry.id for entry in new_entries}
        new_parents = {entry.id: entry.parent_id for entry in new_entries}

        def write() -> None:
            head_id = record.head_id
            if head_id and head_id not in new_ids and self._with_entry(head_id) is None:
                raise ai.ConversationConflict(conversation_id)
            self._write(
                conversation_id,
                natives,
                expected_revision,
                lambda conversation: conversation.edit_for(head_id, new_parents),
            )

        await in_thread(write)

    async def delete_record(
        self, conversation_id: str, *, expected_revision: str
    ) -> None:
        """Delete a record, and erase sessions that no history needs.

        Raises ConversationConflict if the record has another revision or is missing,
        and OnHold under a legal hold.
        """

        def delete() -> None:
            conversation = self._load_conversation(self._session(conversation_id))
            record = conversation.record
            if record is None or conversation.revision != expected_revision:
                raise ai.ConversationConflict(conversation_id)
            unneeded = self._unneeded_without(conversation.session)
            for session in unneeded:
                session.delete("deleted through pydantic-ai")
            if conversation.session not in unneeded:
                no_record = Native(FORMAT, "record", None, None)
                self._write(conversation_id, [no_record], expected_revision)

        await in_thread(delete)

    @property
    def filter(self) -> Any:
        """Return a capability that redacts the requests to the model.

        Pass it in ``Agent(capabilities=[…])``.
        """
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
        """Return the comparison of ``save``, for which a redacted message is unchanged.

        A message of the history that redaction turns into the stored message is
        replaced with the stored message.
        """
        entries = await self._history_of(record, limit=window) if record else ()
        stored = [entry.message for entry in entries]
        redacted = await in_thread(
            lambda: self._as_stored(conversation_id, history[: len(stored)], stored)
        )
        compared = []
        triples = zip(stored, redacted, history, strict=False)
        for stored_message, redacted_message, message in triples:
            is_same = stored_message == redacted_message
            compared.append(stored_message if is_same else message)
        compared += history[len(compared) :]
        return await super()._unsaved_after_history(
            record, conversation_id, compared, branches, window=window
        )

    def _as_stored(
        self, conversation_id: str, history: Sequence[Any], stored: Sequence[Any] = ()
    ) -> list[Any]:
        """Return the messages in the form in which they would be stored.

        stored: the stored messages; without them, the conversation's history is read.
        """
        session = self._session(conversation_id)

        def read_stored() -> list[Any]:
            if stored:
                return _dump(stored)
            record = self._load_conversation(session).record
            entries = self._history(record.head_id if record else None, None)
            return _dump([entry.message for entry in entries])

        values = as_stored(session, FORMAT, _dump(history), read_stored=read_stored)
        return _load(values)

    def _write(
        self,
        conversation_id: str,
        natives: list[Native],
        expected: str | None,
        edit_of: Callable[[_Conversation], Draft | None] = lambda _: None,
    ) -> None:
        """Append items if the record has the expected revision.

        edit_of: returns what the record changes in the history of contexts.

        If another writer was first, the revision is checked again: it may have written
        no record.  Raises ConversationConflict.
        """
        session = self._session(conversation_id)
        while True:
            conversation = self._load_conversation(session)
            if conversation.revision != expected:
                raise ai.ConversationConflict(conversation_id)
            edit = edit_of(conversation)
            items = natives if edit is None else [*natives, edit]
            try:
                session.native.append(
                    FORMAT, items, expected_seq=conversation.seq, unscanned="stub"
                )
            except StaleSession:
                continue
            return

    def _history(self, entry_id: str | None, limit: int | None) -> list[Any]:
        """Return the entries up to this one, oldest first, also of several sessions.

        Raises KeyError for an entry that does not exist.
        """
        newest_first: list[Any] = []
        while entry_id is not None and (limit is None or len(newest_first) < limit):
            conversation = self._with_entry(entry_id)
            if conversation is None:
                raise KeyError(entry_id)
            remaining = None if limit is None else limit - len(newest_first)
            ids = [*islice(conversation.back_from(entry_id), remaining)]
            newest_first += conversation.read(ids)
            entry_id = conversation.parent_of(ids[-1])
        return newest_first[::-1]

    def _with_entry(self, entry_id: str) -> _Conversation | None:
        """Return the conversation whose session has the entry; None if none has it."""
        session_id = self._session_of_head.get(entry_id)
        if session_id is not None:
            with suppress(Erased, SessionNotFound):
                conversation = self._load_conversation(
                    self._session_with_id(session_id)
                )
                if conversation.has_entry(entry_id):
                    return conversation
        for conversation in self._all():
            if conversation.has_entry(entry_id):
                return conversation
        return None

    def _unneeded_without(self, deleted: Session) -> list[Session]:
        """Return the sessions whose entries no record needs, once one is deleted.

        A record needs the entries before its head and before its branches.
        """
        conversations = [*self._all()]
        parents: dict[str | None, str | None] = {}
        for conversation in conversations:
            for stored_id in conversation.entry_ids:
                parents[stored_id] = conversation.parent_of(stored_id)

        needed: set[str | None] = set()
        without_record = []
        for conversation in conversations:
            if conversation.record is None or conversation.session == deleted:
                without_record.append(conversation)
                continue
            record = conversation.record
            for tip in (record.head_id, *record.branches):
                entry_id: str | None = tip
                while entry_id in parents and entry_id not in needed:
                    needed.add(entry_id)
                    entry_id = parents[entry_id]
        return [
            conversation.session
            for conversation in without_record
            if needed.isdisjoint(conversation.entry_ids)
        ]

    def _all(self) -> Iterator[_Conversation]:
        infos = self._store.sessions(self._user_id, label={"framework": _NAME})
        for info in infos:
            yield self._load_conversation(self._session_with_id(info.session_id))

    def _load_conversation(self, session: Session) -> _Conversation:
        """Read a conversation, and remember the session of its head."""
        conversation = _Conversation(session)
        record = conversation.record
        if record and record.head_id and conversation.has_entry(record.head_id):
            if len(self._session_of_head) >= _CACHED:
                self._session_of_head.clear()
            self._session_of_head[record.head_id] = session.session_id
        return conversation

    def _session_with_id(self, session_id: str) -> Session:
        return self._store.session(user_id=self._user_id, session_id=session_id)

    def _session(self, conversation_id: str) -> Session:
        labels = {"framework": _NAME, "pydantic_ai_conversation": conversation_id}
        name = f"{_NAME}\0{conversation_id}"
        return self._store.named(name, user_id=self._user_id, labels=labels)
