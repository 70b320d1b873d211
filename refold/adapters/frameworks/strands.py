"""A session repository of Strands Agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from refold.adapters.frameworks import as_stored, needed, unstored
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format, Native
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    needed("strands.session", "strands")
import strands.types.session as kinds
from strands.hooks.events import BeforeModelCallEvent  # by it Strands knows when to ask
from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException


def _view(kind: str, item: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    if kind == "message":
        yield from base.typed(_found(item["message"], calls), base.Origin(""))


def _found(message: dict[str, Any], calls: Mapping[str, Any]) -> Iterator[base.Found]:
    parts, role = message.get("content") or (), message.get("role")
    texts = [part["text"] for part in parts if "text" in part]
    if texts and role == "user":
        yield messages.said(texts)
    elif texts:
        yield from messages.answered(texts)
    for part in parts:
        if used := part.get("toolUse"):
            yield messages.called(used["toolUseId"], used["name"], used["input"])
        result = part.get("toolResult")
        if result and result["toolUseId"] in calls:
            told = [one.get("text", one.get("json")) for one in result["content"]]
            content = told[0] if len(told) == 1 else told
            failed = result.get("status") == "error"
            yield messages.returned(result["toolUseId"], content, failed=failed)


FORMAT = Format("strands", _view)


def _shown(message: Any) -> dict[str, Any]:
    return {"message": kinds.encode_bytes_values(message)}


class RefoldSessionRepository(SessionRepository):
    """Keeps the sessions of one user, each agent's messages as a session of its own.

    ``RepositorySessionManager(session_id, session_repository=…)`` takes it.  A message
    that is updated is shown anew; the log keeps what it was.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store, self._user_id = store, user_id

    def create_session(self, session: Any, **_: Any) -> Any:
        """Begin a session.  Raises SessionException if it is there."""
        place = self._place(session.session_id)
        if self._newest(place, "session") is not None:
            raise SessionException(f"session {session.session_id} exists already")
        self._put(place, "session", session.to_dict())
        return session

    def read_session(self, session_id: str, **_: Any) -> Any:
        """The session; None if there is none."""
        found = self._newest(self._place(session_id), "session")
        return None if found is None else kinds.Session.from_dict(found)

    def delete_session(self, session_id: str) -> None:
        """Erase a session and its agents'; it may begin again.  Raises OnHold."""
        label = {"strands_session": session_id}
        for info in self._store.sessions(self._user_id, label=label):
            name = info.session_id
            one = self._store.session(user_id=self._user_id, session_id=name)
            one.delete("deleted through Strands")

    def create_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Begin an agent's messages.  Raises SessionException for no such session."""
        if self._newest(self._place(session_id), "session") is None:
            raise SessionException(f"session {session_id} does not exist")
        place = self._place(session_id, session_agent.agent_id)
        self._put(place, "agent", session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> Any:
        """The agent's newest state; None if there is none."""
        found = self._newest(self._place(session_id, agent_id), "agent")
        return None if found is None else kinds.SessionAgent.from_dict(found)

    def update_agent(self, session_id: str, session_agent: Any, **_: Any) -> None:
        """Keep a newer state.  Raises SessionException for no such agent."""
        place = self._place(session_id, session_agent.agent_id)
        before = self._newest(place, "agent")
        if before is None:
            raise SessionException(f"agent {session_agent.agent_id} does not exist")
        made = {**session_agent.to_dict(), "created_at": before["created_at"]}
        self._put(place, "agent", made)

    def create_message(
        self, session_id: str, agent_id: str, session_message: Any, **_: Any
    ) -> None:
        """Append a message; one with the same number is kept once."""
        place = self._place(session_id, agent_id)
        name = str(session_message.message_id)
        self._put(place, "message", session_message.to_dict(), name)

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **_: Any
    ) -> Any:
        """The message of that number; None if there is none."""
        found = self._messages(self._place(session_id, agent_id))
        return found.get(message_id)

    def update_message(
        self, session_id: str, agent_id: str, session_message: Any, **_: Any
    ) -> None:
        """Show it anew from now on.  Raises SessionException for no such message."""
        place = self._place(session_id, agent_id)
        before = self._messages(place).get(session_message.message_id)
        if before is None:
            raise SessionException(f"message {session_message.message_id} is not there")
        made = {**session_message.to_dict(), "created_at": before.created_at}
        self._put(place, "update", made)

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **_: Any,
    ) -> list[Any]:
        """The messages from ``offset`` on, at most ``limit``, in their order."""
        found = self._messages(self._place(session_id, agent_id))
        ordered = [found[number] for number in sorted(found)]
        return ordered[offset : None if limit is None else offset + limit]

    def filter(self, session_id: str) -> Any:
        """For an agent's ``hooks=[…]``: the model is sent what the log may keep.

        The agent's own messages and its system prompt become that.
        """

        def tell(event: BeforeModelCallEvent) -> None:
            agent: Any = event.agent
            place = self._place(session_id, agent.agent_id)

            def known() -> Iterator[Any]:
                kept = self._messages(place).values()
                return (_shown(one.to_message()) for one in kept)

            given = [*map(_shown, agent.messages)]
            told = as_stored(place, FORMAT, given, known=known)
            agent.system_prompt = unstored(place, FORMAT, agent.system_prompt)
            for message, one in zip(agent.messages, told, strict=True):
                message.update(kinds.decode_bytes_values(one["message"]))

        return tell

    def _place(self, session_id: str, agent_id: str = "") -> Session:
        labels = {"framework": "strands", "strands_session": session_id}
        name = f"strands\0{session_id}\0{agent_id}"
        return self._store.named(name, user_id=self._user_id, labels=labels)

    def _put(
        self, place: Session, kind: str, value: Any, name: str | None = None
    ) -> None:
        native = Native(FORMAT, kind, name, value)
        place.native.append(FORMAT, [native], unscanned="stub")

    def _newest(self, place: Session, kind: str) -> Any:
        if self._store.log.head(place.stream).seq == 0:
            return None
        return next((one.value for one in place.native.read(kind=kind, newest=1)), None)

    def _messages(self, place: Session) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for item in place.native.read():
            if item.kind in ("message", "update"):
                made = kinds.SessionMessage.from_dict(item.value)
                found[made.message_id] = made
        return found
