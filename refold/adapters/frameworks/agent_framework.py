"""A history provider of Microsoft's Agent Framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from refold.adapters.frameworks import as_stored, erased, needed, settled, unstored
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    needed("agent_framework", "agent-framework")
import agent_framework as af


def _view(_: str, item: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    origin = base.Origin("", response_id=item.get("message_id"))
    yield from base.typed(_found(item, calls), origin)


def _found(item: dict[str, Any], calls: Mapping[str, Any]) -> Iterator[base.Found]:
    parts, role = item.get("contents") or (), item.get("role")
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    if role == "user" and texts:
        yield messages.said(texts)
    elif role == "system":
        yield messages.system("\n\n".join(texts))
    elif texts:
        yield from messages.answered(texts)
    for part in parts:
        call_id = part.get("call_id")
        if part.get("type") == "function_call":
            yield messages.called(call_id, part.get("name"), part.get("arguments"))
        elif part.get("type") == "function_result" and call_id in calls:
            failed = bool(part.get("exception"))
            yield messages.returned(call_id, part.get("result"), failed=failed)


FORMAT = Format(
    "agent-framework", _view, lambda _: "message", lambda item: item.get("message_id")
)


class RefoldHistoryProvider(af.HistoryProvider):
    """Keeps the conversations of one user: ``context_providers=[…]`` takes it.

    What an agent is given of them is what is stored: redacted.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        user_id: str,
        source_id: str = "refold",
        **how: Any,
    ) -> None:
        super().__init__(source_id, **how)
        self._store, self._user_id = store, user_id

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # of other providers
        **_: Any,
    ) -> list[Any]:
        """The messages of a conversation, as they are stored."""
        items = await settled(lambda: [*self._session(session_id).native.read()])
        return [af.Message.from_dict(item.value) for item in items]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Any],  # the framework's word
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # of other providers
        **_: Any,
    ) -> None:
        """Append what is new of these: one without an id is given one, for a retry."""
        for message in messages:
            message.message_id = message.message_id or str(uuid4())
        items = [message.to_dict() for message in messages]
        if items:
            await settled(
                lambda: self._session(session_id).native.append(
                    FORMAT, items, unscanned="stub"
                )
            )

    async def delete(self, session_id: str | None) -> None:
        """Erase a conversation; it may begin again.  Raises OnHold where it is held."""
        await settled(lambda: erased(self._session(session_id), "the Agent Framework"))

    async def redacted(self, session_id: str | None, given: Sequence[Any]) -> list[Any]:
        """These messages as the log may keep them: what a model is to be sent."""
        items = [message.to_dict() for message in given]
        for item in items:  # what the framework adds to those that it loads
            item.get("additional_properties", {}).pop("_attribution", None)
        told = await settled(
            lambda: as_stored(self._session(session_id), FORMAT, items)
        )
        return [af.Message.from_dict(one) for one in told]

    @property
    def filter(self) -> Any:
        """For ``middleware=[provider.filter]``: the model is sent what is stored."""

        async def sent(context: Any, call_next: Any) -> None:
            name = getattr(getattr(context, "session", None), "session_id", None)
            options = dict(context.options or {})
            context.messages = await self.redacted(name, context.messages)
            if text := options.get("instructions"):
                options["instructions"] = await settled(
                    lambda: unstored(self._session(name), FORMAT, text)
                )
                context.options = options
            await call_next()

        return af.chat_middleware(sent)

    def _session(self, session_id: str | None) -> Session:
        labels = {"framework": "agent-framework"}
        name = f"agent-framework\0{session_id or ''}"
        return self._store.named(name, user_id=self._user_id, labels=labels)
