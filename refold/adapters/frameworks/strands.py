"""A session repository for Strands Agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from refold.adapters.frameworks import as_stored, import_extra, redact_unstored
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format, Mark, Native
from refold.domain.errors import StaleSession
from refold.domain.events import ProviderEdit
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    import_extra("strands.session", "strands")
import strands.types.session as kinds
from strands.hooks.events import BeforeModelCallEvent  # the hook's annotation needs it
from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException


def _events_of(kind: str, item: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    """Yield the events of a message; an item of another kind has none."""
    if kind in ("message", "update", "summary"):
        message = item.get("redact_message") or item["message"]
        yield from base.drafts_of(_pieces(message, calls), base.Origin(""))


def _pieces(
    message: dict[str, Any], calls: Mapping[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """Yield the texts, calls and results of a message.

    calls: the open calls; a result without one is left out.
    """
    parts = message.get("content") or ()
    role = message.get("role")
    texts = [part["text"] for part in parts if "text" in part]
    if texts and role == "user":
        yield messages.user_input(texts)
    elif texts:
        yield from messages.response(texts)

    for part in parts:
        call = part.get("toolUse")
        if call:
            yield messages.tool_call(call["toolUseId"], call["name"], call["input"])
        result = part.get("toolResult")
        if result and result["toolUseId"] in calls:
            contents = [
                block.get("text", block.get("json")) for block in result["content"]
            ]
            content = contents[0] if len(contents) == 1 else contents
            failed = result.get("status") == "error"
            yield messages.tool_result(result["toolUseId"], content, failed=failed)


FORMAT = Format("strands", _events_of)


class _CurrentMessage(NamedTuple):
    """A message as it was last created or updated.

    key: the key of its item; None if an earlier version of Refold recorded the update.
    """

    number: int
    key: str | None
    value: dict[str, Any]

    @property
    def has_result(self) -> bool:
        """Whether it has a result, whose call is in the message before."""
        parts = self.value["message"].get("content") or ()
        return any("toolResult" in part for part in parts)


def _key(kind: str, item_id: str | None) -> str | None:
    """The key of an item; None without an id."""
    return Native(FORMAT, kind, item_id).key


def _removed(agent: Mapping[str, Any] | None) -> int:
    """The number of messages that the agent took out of its history, from the first."""
    return int(
        base.number(agent, "conversation_manager_state", "removed_message_count") or 0
    )


def _known_keys(keys: Iterable[str | None]) -> tuple[str, ...]:
    """Return the keys without those that are None."""
    return tuple(key for key in keys if key is not None)


def _encoded(message: Any) -> dict[str, Any]:
    """A message as JSON, in which bytes are encoded."""
    return {"message": kinds.encode_bytes_values(message)}


class RefoldSessionRepository(SessionRepository):
    """Stores the sessions of one user; each agent's messages are a Refold session.

    Pass it to ``RepositorySessionManager(session_id, session_repository=…)``.  After an
    update, the repository and contexts have the new message; the log keeps the old one.
    Contexts leave out messages that the conversation manager removed.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store = store
        self._user_id = user_id

    def create_session(self, session: Any, **_: Any) -> Any:
        """Begin a session.  Raises SessionException if it exists."""
        refold_session = self._session(session.session_id)
        if self._newest(refold_session, "session") is not None:
            raise SessionException(f"session {session.session_id} exists already")
        self._append(refold_session, "session", session.to_dict())
        return session

    def read_session(self, session_id: str, **_: Any) -> Any:
        """The session; None if it does not exist."""
        value = self._newest(self._session(session_id), "session")
        return None if value is None else kinds.Session.from_dict(value)

    def delete_session(self, session_id: str) -> None:
        """Erase a session with those of its agents; its id can be used again.

        Raises OnHold under a legal hold.
        """
        label = {"strands_session": session_id}
        for info in self._store.sessions(self._user_id, label=label):
            session = self._store.session(
                user_id=self._user_id, session_id=info.session_id
            )
            session.delete("deleted through Strands")

    def create_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Store a new agent.  Raises SessionException if the session does not exist."""
        if self._newest(self._session(session_id), "session") is None:
            raise SessionException(f"session {session_id} does not exist")
        session = self._session(session_id, session_agent.agent_id)
        self._append(session, "agent", session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> Any:
        """The agent's newest state; None if the agent does not exist."""
        value = self._newest(self._session(session_id, agent_id), "agent")
        return None if value is None else kinds.SessionAgent.from_dict(value)

    def update_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Store a newer state.  Raises SessionException if the agent does not exist."""
        session = self._session(session_id, session_agent.agent_id)
        while True:
            seq = self._store.log.head(session.stream).seq
            previous = self._newest(session, "agent")
            if previous is None:
                raise SessionException(f"agent {session_agent.agent_id} does not exist")
            value = {**session_agent.to_dict(), "created_at": previous["created_at"]}
            items: list[Native | Draft] = [Native(FORMAT, "agent", None, value)]
            items += self._removal(session, previous, value)
            with suppress(StaleSession):
                session.native.append(FORMAT, items, expected_seq=seq, unscanned="stub")
                return

    def create_message(
        self, session_id: str, agent_id: str, session_message: Any, **_: Any
    ) -> None:
        """Append a message; a second message with the same number changes nothing."""
        session = self._session(session_id, agent_id)
        item_id = str(session_message.message_id)
        self._append(session, "message", session_message.to_dict(), item_id)

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **_: Any
    ) -> Any:
        """The message with that number; None if there is none."""
        messages_by_number = self._messages(self._session(session_id, agent_id))
        return messages_by_number.get(message_id)

    def update_message(
        self, session_id: str, agent_id: str, session_message: Any, **_: Any
    ) -> None:
        """Replace a message in later reads.

        Raises SessionException if the message does not exist.
        """
        session = self._session(session_id, agent_id)
        while True:
            seq = self._store.log.head(session.stream).seq
            items = self._update(session, session_message, seq)
            with suppress(StaleSession):
                session.native.append(FORMAT, items, expected_seq=seq, unscanned="stub")
                return

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **_: Any,
    ) -> list[Any]:
        """At most ``limit`` messages in order, without the first ``offset``."""
        messages_by_number = self._messages(self._session(session_id, agent_id))
        ordered = [messages_by_number[number] for number in sorted(messages_by_number)]
        end = None if limit is None else offset + limit
        return ordered[offset:end]

    def create_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Store the state of a graph or swarm of agents."""
        session = self._session_of_group(session_id, multi_agent.id)
        state = kinds.encode_bytes_values(multi_agent.serialize_state())
        self._append(session, "multi_agent", state)

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **_: Any
    ) -> dict[str, Any] | None:
        """The newest state of a graph or swarm; None if there is none."""
        session = self._session_of_group(session_id, multi_agent_id)
        state = self._newest(session, "multi_agent")
        if state is None:
            return None
        decoded: dict[str, Any] = kinds.decode_bytes_values(state)
        return decoded

    def update_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Store a newer state.

        Raises SessionException if the graph or swarm does not exist.
        """
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"multi-agent {multi_agent.id} does not exist")
        self.create_multi_agent(session_id, multi_agent)

    def filter(self, session_id: str) -> Any:
        """A hook that redacts what the model is sent; pass it in ``hooks=[…]``.

        It changes the agent's own messages and its system prompt.
        """

        def redact_agent(event: BeforeModelCallEvent) -> None:
            agent: Any = event.agent
            session = self._session(session_id, agent.agent_id)

            def read_stored() -> Iterator[Any]:
                for stored_message in self._messages(session).values():
                    yield _encoded(stored_message.to_message())

            encoded_messages = [_encoded(message) for message in agent.messages]
            redacted_messages = as_stored(
                session, FORMAT, encoded_messages, read_stored=read_stored
            )
            agent.system_prompt = redact_unstored(session, FORMAT, agent.system_prompt)
            pairs = zip(agent.messages, redacted_messages, strict=True)
            for message, redacted in pairs:
                message.update(kinds.decode_bytes_values(redacted["message"]))

        return redact_agent

    def _session(self, session_id: str, agent_id: str = "") -> Session:
        """The Refold session of an agent, or of the Strands session itself."""
        labels = {"framework": "strands", "strands_session": session_id}
        name = f"strands\0{session_id}\0{agent_id}"
        return self._store.named(name, user_id=self._user_id, labels=labels)

    def _session_of_group(self, session_id: str, multi_agent_id: str) -> Session:
        """The Refold session of a graph or swarm; no agent has its name."""
        return self._session(session_id, f"multi-agent\0{multi_agent_id}")

    def _append(
        self, session: Session, kind: str, value: Any, item_id: str | None = None
    ) -> None:
        """Append an item; a second one with the same id changes nothing."""
        native = Native(FORMAT, kind, item_id, value)
        session.native.append(FORMAT, [native], unscanned="stub")

    def _update(
        self, session: Session, session_message: Any, seq: int
    ) -> list[Native | Draft]:
        """Return the items that replace a message, and the edit for contexts.

        The events of an item come at the end of the log.  To keep the order, all later
        messages are recorded again, too; contexts leave out their earlier items.

        seq: the head of the session.

        Raises SessionException if the message does not exist.
        """
        current = self._current_messages(session)
        numbers = [message.number for message in current]
        if session_message.message_id not in numbers:
            raise SessionException(f"message {session_message.message_id} is not there")
        changed = numbers.index(session_message.message_id)
        first = changed
        # A result is recorded again together with its call, which comes before it.
        while first > 0 and current[first].has_result:
            first -= 1
        removed = _removed(self._newest(session, "agent"))
        items: list[Native | Draft] = []
        left_out = [message.key for message in current[first:]]
        for place, message in enumerate(current[first:], start=first):
            value = message.value
            if place == changed:
                created_at = value["created_at"]
                value = {**session_message.to_dict(), "created_at": created_at}
            native = Native(FORMAT, "update", f"{message.number}.{seq}", value)
            items.append(native)
            if place < removed:
                left_out.append(native.key)
        mark = Mark(left_out=_known_keys(left_out))
        return [*items, Draft(ProviderEdit(reason="removal"), mark=mark)]

    def _removal(
        self,
        session: Session,
        previous: Mapping[str, Any],
        agent: Mapping[str, Any],
    ) -> list[Native | Draft]:
        """Return the edit for messages that an update of the agent removed.

        If the agent has a summary of them, contexts show it in their place.  Returns no
        items if nothing was removed.
        """
        before = _removed(previous)
        after = _removed(agent)
        if after <= before:
            return []
        left_out = [
            message.key for message in self._current_messages(session)[before:after]
        ]
        summary = base.mapping(agent, "conversation_manager_state", "summary_message")
        if not summary:
            edit = ProviderEdit(reason="removal")
            return [Draft(edit, mark=Mark(left_out=_known_keys(left_out)))]
        for item in session.native.read(kind="summary", newest=1):
            left_out.append(_key("summary", item.id))
        native = Native(FORMAT, "summary", str(after), {"message": summary})
        mark = Mark(left_out=_known_keys(left_out), in_place=_known_keys([native.key]))
        return [native, Draft(ProviderEdit(reason="compaction"), mark=mark)]

    def _current_messages(self, session: Session) -> list[_CurrentMessage]:
        """Return the messages in order, each as it was last created or updated."""
        current: dict[int, _CurrentMessage] = {}
        for item in session.native.read():
            if item.kind in ("message", "update"):
                number = item.value["message_id"]
                current[number] = _CurrentMessage(
                    number, _key(item.kind, item.id), item.value
                )
        return [current[number] for number in sorted(current)]

    def _newest(self, session: Session, kind: str) -> Any:
        """The value of the newest item of a kind; None if there is none."""
        if self._store.log.head(session.stream).seq == 0:
            return None
        for item in session.native.read(kind=kind, newest=1):
            return item.value
        return None

    def _messages(self, session: Session) -> dict[int, Any]:
        """The messages by number, each as it was last updated."""
        messages_by_number: dict[int, Any] = {}
        for item in session.native.read():
            if item.kind in ("message", "update"):
                message = kinds.SessionMessage.from_dict(item.value)
                messages_by_number[message.message_id] = message
        return messages_by_number
