"""A history provider for Microsoft's Agent Framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from refold.adapters.frameworks import (
    as_stored,
    erase_session,
    import_extra,
    in_thread,
    redact_unstored,
)
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    import_extra("agent_framework", "agent-framework")
import agent_framework as af

_NAME = "agent-framework"


def _events_of(
    kind: str,  # noqa: ARG001  # every item is a message
    message: Any,
    calls: Mapping[str, Any],
) -> Iterator[Draft]:
    """Yield the events of a message.

    calls: the open calls by id.
    """
    origin = base.Origin("", response_id=message.get("message_id"))
    yield from base.drafts_of(_pieces(message, calls), origin)


def _pieces(
    message: dict[str, Any], calls: Mapping[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """Yield the texts, calls and results of a message.

    calls: the open calls; a result without one is left out.
    """
    parts = message.get("contents") or ()
    role = message.get("role")
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    if role == "user" and texts:
        yield messages.user_input(texts)
    elif role == "system":
        yield messages.system("\n\n".join(texts))
    elif texts:
        yield from messages.response(texts)

    for part in parts:
        call_id = part.get("call_id")
        if part.get("type") == "function_call":
            yield messages.tool_call(call_id, part.get("name"), part.get("arguments"))
        elif part.get("type") == "function_result" and call_id in calls:
            failed = bool(part.get("exception"))
            yield messages.tool_result(call_id, part.get("result"), failed=failed)


FORMAT = Format(
    _NAME,
    view=_events_of,
    kind=lambda _: "message",
    id=lambda message: message.get("message_id"),
)


class RefoldHistoryProvider(af.HistoryProvider):
    """Stores the conversations of one user; pass it in ``context_providers=[…]``.

    The agent reads the messages back as they are stored: redacted.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        user_id: str,
        source_id: str = "refold",
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self._store = store
        self._user_id = user_id

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # passed by the framework
        **_: Any,
    ) -> list[Any]:
        """Return the messages of a conversation, as they are stored."""
        items = await in_thread(lambda: list(self._session(session_id).native.read()))
        return [af.Message.from_dict(item.value) for item in items]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Any],  # named by the framework
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # passed by the framework
        **_: Any,
    ) -> None:
        """Append the messages that are not stored yet.

        A message without an id gets one, so that a retry does not repeat it.
        """
        for message in messages:
            message.message_id = message.message_id or str(uuid4())
        items = [message.to_dict() for message in messages]
        if items:
            await in_thread(
                lambda: self._session(session_id).native.append(
                    FORMAT, items, unscanned="stub"
                )
            )

    async def delete(self, session_id: str | None) -> None:
        """Erase a conversation; its id can be used again.

        Raises OnHold under a legal hold.
        """
        await in_thread(
            lambda: erase_session(self._session(session_id), "the Agent Framework")
        )

    async def redacted(
        self, session_id: str | None, unredacted: Sequence[Any]
    ) -> list[Any]:
        """Return the messages as the log would store them, ready to send to a model."""
        items = [message.to_dict() for message in unredacted]
        for item in items:
            # The framework adds this to messages that it loads.
            item.get("additional_properties", {}).pop("_attribution", None)
        stored_items = await in_thread(
            lambda: as_stored(self._session(session_id), FORMAT, items)
        )
        return [af.Message.from_dict(item) for item in stored_items]

    @property
    def filter(self) -> Any:
        """A middleware that sends the model the redacted messages and instructions.

        Pass it in ``middleware=[provider.filter]``.
        """

        async def redact_request(context: Any, call_next: Any) -> None:
            agent_session = getattr(context, "session", None)
            session_id = getattr(agent_session, "session_id", None)
            context.messages = await self.redacted(session_id, context.messages)
            options = dict(context.options or {})
            instructions = options.get("instructions")
            if instructions:
                options["instructions"] = await in_thread(
                    lambda: redact_unstored(
                        self._session(session_id), FORMAT, instructions
                    )
                )
                context.options = options
            await call_next()

        return af.chat_middleware(redact_request)

    def _session(self, session_id: str | None) -> Session:
        """Return the session of a conversation, which is created on first use."""
        labels = {"framework": _NAME}
        name = f"{_NAME}\0{session_id or ''}"
        return self._store.named(name, user_id=self._user_id, labels=labels)
