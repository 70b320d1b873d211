"""What a recorder writes into a session around one call of the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from refold.adapters.claude.answers import broken_off, error_of, events_of, plain
from refold.adapters.claude.tool_calls import not_recorded
from refold.adapters.claude.turns import events_of_user
from refold.domain.canonical import canonical
from refold.domain.envelope import Meta
from refold.domain.errors import (
    InvalidConfiguration,
    InvalidEvent,
    RecordingFailed,
    RefoldError,
    UnknownModel,
)
from refold.domain.events import Event, JsonObject
from refold.projections.context.extras import HandedIn
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer
from refold.projections.models import window_of
from refold.store.choosing import for_agent
from refold.store.sessions import Session

log = logging.getLogger("refold")

Content: TypeAlias = str | Event | Sequence[Any] | None
_OURS: Final = frozenset(
    {"model", "max_tokens", "system", "messages", "tools", "stream"}
)
# Of the client, not of what the model is sent; headers may hold secrets.
_UNTOLD: Final = frozenset({"extra_headers", "extra_query", "timeout"})
_BETAS: Final = {
    "clear_": "context-management-2025-06-27",
    "compact_": "compact-2026-01-12",
}


class Asked(NamedTuple):
    """A request that is recorded and may be sent: what the SDK's ``create`` takes.

    ``began_at`` is in microseconds; ``beta`` is whether only the beta API takes it.
    """

    body: dict[str, Any]
    began_at: int
    request_id: str | None
    beta: bool


@dataclass(frozen=True, slots=True)
class Book:
    """One session, and how its model is asked."""

    session: Session
    model: str
    max_tokens: int
    strategy: str | Strategy | None = None
    summarizer: Summarizer | None = None
    agent: str | None = None
    handed: HandedIn = field(default_factory=HandedIn)

    @property
    def chosen(self) -> str | Strategy | None:
        """The strategy, for this agent if it is one of several."""
        if self.agent is None:
            return self.strategy
        return for_agent(self.agent, self.strategy)

    @property
    def window(self) -> HandedIn:
        """What the model's window leaves for a request; nothing if it is not known."""
        try:
            return {"window": max(1, window_of(self.model) - self.max_tokens)}
        except UnknownModel:
            return {}

    def ask(
        self,
        content: Content,
        *,
        request_id: str | None,
        options: Mapping[str, Any] | None,
        handed: HandedIn,
    ) -> Asked:
        """Record what the user brings, and the request, before anything is sent."""
        told = _told(options or {})
        events = events_of_user(content)
        if events:
            self._brought(events, request_id)
        given: HandedIn = {**self.window, **self.handed, **handed}
        view = self.session.prepare(self.chosen, summarizer=self.summarizer, **given)
        body = view.to_request(model=self.model, max_tokens=self.max_tokens)
        body |= options or {}
        betas = [*body.get("betas", ()), *_betas(body)]
        if betas:
            body["betas"] = list(dict.fromkeys(betas))
        self.session.append(
            view.request(model=self.model, matches=True),
            request_id=request_id,
            agent=self.agent,
            meta={"max_tokens": self.max_tokens, **({"options": told} if told else {})},
        )
        return Asked(body, self.session.writer.clock(), request_id, bool(betas))

    def _brought(self, events: list[Event], request_id: str | None) -> None:
        """Record what the user brings, and no result that is recorded already."""
        try:
            self.session.append(events, request_id=request_id, agent=self.agent)
        except InvalidEvent:
            new = not_recorded(self.session, events)
            if len(new) == len(events):
                raise
            if new:
                self.session.append(new, request_id=request_id, agent=self.agent)

    def answered(self, asked: Asked, message: Any) -> None:
        """Record a whole answer.  Raises RecordingFailed, which has it."""
        try:
            self.record(
                plain(message), request_id=asked.request_id, took=self._took(asked)
            )
        except Exception as error:
            raise RecordingFailed(message, error) from error

    def broke_off(
        self, asked: Asked, message: Any, error: BaseException | None
    ) -> None:
        """Record what came of an answer, and why no more did.

        Raises RecordingFailed if something came; else ``error`` is what is raised.
        """
        if message is not None and message.stop_reason is not None:
            self.answered(asked, message)
            return
        said = plain(message)
        try:
            self.session.append(
                broken_off(said, error_of(error)),
                request_id=asked.request_id,
                agent=self.agent,
                meta=_meta(said or {}, self._took(asked)),
            )
        except RefoldError as failure:
            if message is not None:
                raise RecordingFailed(message, failure) from failure
            log.warning("a failed call of the model could not be recorded: %s", failure)

    def record(
        self,
        message: JsonObject,
        *,
        request_id: str | None = None,
        took: float | None = None,
    ) -> None:
        """Record an answer; the same answer again is the same record."""
        key = message.get("id")
        self.session.append(
            events_of(message),
            request_id=request_id,
            agent=self.agent,
            meta=_meta(message, took),
            idempotency_key=f"response:{key}" if key else None,
        )

    def _took(self, asked: Asked) -> float:
        return max(0, self.session.writer.clock() - asked.began_at) / 1000


def _meta(message: JsonObject, took: float | None) -> Meta:
    known = {"model": message.get("model"), "response_id": message.get("id")}
    return Meta.of({**known, "duration_ms": took})


def _told(options: Mapping[str, Any]) -> JsonObject:
    """Of the options what the request's record says: what the API acts on."""
    body = options.get("extra_body")
    inside = body.keys() if isinstance(body, Mapping) else set()
    taken = sorted(_OURS & (options.keys() | inside))
    if taken:
        raise InvalidConfiguration(
            f"options: {taken[0]} is what the recorder sets from the session and from "
            "its own arguments"
        )
    told = {key: value for key, value in options.items() if key not in _UNTOLD}
    try:
        canonical(told)
    except TypeError:
        raise InvalidConfiguration("options: must be JSON, to be recorded") from None
    return told


def _betas(body: Mapping[str, Any]) -> list[str]:
    """The betas that the context management of a request needs."""
    edits = body.get("context_management", {}).get("edits", ())
    kinds = [edit["type"] for edit in edits]
    return [
        beta
        for start, beta in _BETAS.items()
        if any(kind.startswith(start) for kind in kinds)
    ]
