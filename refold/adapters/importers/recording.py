"""The drafts of one session as an importer finds them, tried on the session's rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from refold.adapters.importers.base import Found, Origin, Piece, Skipped, Transcript
from refold.domain.canonical import canonical
from refold.domain.envelope import Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event, JsonObject, event_of
from refold.domain.ids import StreamId
from refold.domain.record import Draft
from refold.domain.session import SessionState, decide, evolve

# Levels of nesting that are left to whatever stores, shows and exports an event.
_ROOM = 32


class Recording:
    """Takes what was found, keeps what a session accepts, says what it does not.

    Nothing that was taken is changed by what comes later.
    """

    def __init__(self, form: str, name: str) -> None:
        self._form, self._name = form, name
        self._state = SessionState(StreamId("importer", "transcript"))
        self._usage: dict[str, JsonObject] = {}
        self._drafts: list[Draft] = []
        self._skipped: list[Skipped] = []

    @property
    def begun(self) -> bool:
        """Whether there is an event yet."""
        return bool(self._drafts)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The ids of the calls without a result, oldest first."""
        return tuple(self._state.open_calls)

    def take(self, found: Iterable[Found], origin: Origin) -> None:
        """Record what was found in one entry, in its order."""
        for item in found:
            if isinstance(item, Skipped):
                self.skip(item.why, origin.place, item.where)
            elif self._add(item, origin) and origin.usage:
                origin = replace(origin, usage=None)

    def skip(self, why: str, *places: str) -> None:
        """Say that what is at these places is left out."""
        where = " ".join(place for place in (self._name, *places) if place)
        self._skipped.append(Skipped(where, why))

    def transcript(self, session_id: str, *, parent: str | None = None) -> Transcript:
        """What was taken so far."""
        return Transcript(
            session_id, self._form, tuple(self._drafts), tuple(self._skipped), parent
        )

    def _add(self, piece: Piece, origin: Origin) -> bool:
        if why := self._refusal(piece):
            self.skip(why, origin.place)
            return False
        try:
            fields, meta = self._with_usage(piece, origin)
            (event,) = decide(self._state, [event_of(piece.type, fields)])
            _check_depth(event, meta)
        except (InvalidEvent, ValueError, TypeError, RecursionError):
            self.skip(f"it does not make a valid {piece.type} event", origin.place)
            return False
        self._state = evolve(self._state, event)
        if origin.response_id and origin.usage:
            self._usage[origin.response_id] = origin.usage
        self._drafts.append(
            Draft(event, origin.ts, origin.request_id, origin.agent, meta)
        )
        return True

    def _refusal(self, piece: Piece) -> str | None:
        call_id = piece.fields.get("call_id")
        waits = isinstance(call_id, str) and call_id in self._state.open_calls
        if piece.type == "tool_call" and waits:
            return "a call with the same id still waits for its result"
        if piece.type == "tool_result" and not waits:
            return (
                "the result of no open call: its call is not in the file before it, "
                "or has a result already"
            )
        return None

    def _with_usage(self, piece: Piece, origin: Origin) -> tuple[JsonObject, Meta]:
        """Put a response's usage on its first event, once.

        A client may write a response in parts, with the usage as it grew: what a
        later part says is kept beside, in ``meta.source``, where no sum counts it.
        """
        fields = dict(piece.fields)
        source: JsonObject = {
            "format": self._form,
            "place": origin.place,
            **origin.source,
        }
        usage = None
        if origin.usage:
            told = self._usage.get(origin.response_id or "")
            if told is not None and told != origin.usage:
                source["usage"] = origin.usage
            elif told is None and piece.type == "agent_response":
                fields["usage"] = origin.usage
            elif told is None:
                usage = origin.usage
        meta = Meta(
            model=origin.model,
            usage=usage,
            scenario=origin.scenario,
            response_id=origin.response_id,
            source=source,
        )
        return fields, meta


def _check_depth(event: Event, meta: Meta) -> None:
    value: Any = [event.payload(), meta.dump()]
    for _ in range(_ROOM):
        value = [value]
    canonical(value)
