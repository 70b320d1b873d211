"""Redaction after the fact: what the present rules find in a session, and take out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    EventTooLarge,
    Expired,
    KeyUnavailable,
    RedactionFailed,
)
from refold.domain.events import JsonObject, RedactionApplied, ToolCall, event_of
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Rewritten, SessionInfo
from refold.domain.record import Draft
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent
from refold.redaction.engine import RedactionError
from refold.redaction.guard import Limits, restored
from refold.redaction.payload import redact_payload
from refold.store.paging import read_on
from refold.store.writing import Writer

_UNREADABLE = (CorruptEvent, KeyUnavailable, RedactionFailed, EventTooLarge)


class Exposure(NamedTuple):
    """What the present rules find in one place of a session; never the value.

    ``where`` is ``event``, ``view`` (named by ``stream``) or ``state`` of a head.
    ``blobs`` counts those of the event's blobs that hold some of it.
    """

    user_id: str
    session_id: str
    stream: str
    seq: int | None
    where: Literal["event", "view", "state"]
    types: dict[str, int]
    blobs: int = 0

    def to_json(self) -> JsonObject:
        """The exposure as JSON."""
        return self._asdict()


class Rechecked(NamedTuple):
    """A session that was looked at, and what was done about what was found.

    ``applied`` is None if nothing was to be replaced, or was only looked for.
    ``unfinished``: an earlier re-redaction was cut off before it destroyed the old
    key.  ``problem`` says why a session could not be looked at or replaced.
    """

    session: SessionInfo
    events: int
    exposures: list[Exposure]
    applied: Rewritten | None = None
    unfinished: bool = False
    problem: str | None = None


class _Again(NamedTuple):
    source: Envelope
    redacted: RedactedEvent
    types: Counter[str]
    blobs: int
    rules_before: str


class Rechecker:
    """One session under the present rules: what is found, and what stands for it."""

    def __init__(self, writer: Writer, stream: StreamId) -> None:
        self._writer, self._stream = writer, stream
        self._again: dict[tuple[str, int], _Again] = {}
        self._checked: dict[str, int] = {}
        self.events = 0

    def run(self) -> list[Exposure]:
        """Look at every event, blob, view and head of the session."""
        names = self._writer.log.streams(*self._stream[:2])
        found = [exposed for name in names for exposed in self._in_stream(name)]
        return [*found, *self._in_views()]

    def _in_stream(self, name: str) -> Iterator[Exposure]:
        stream = self._stream._replace(stream=name)
        for envelope in read_on(self._writer.log, stream):
            self.again(envelope)
            again = self._again.get((name, envelope.seq))
            if again is not None:
                yield self._exposure(name, "event", again.types, again)
            self.events += 1
        state = self._writer.log.head(stream).state
        if changed := self._names(state):
            yield self._exposure(name, "state", changed)

    def _in_views(self) -> Iterator[Exposure]:
        log = self._writer.log
        for name in log.view_names(*self._stream[:2]):
            stored = log.load_view(self._stream, name)
            types = self._found(stored.body) if stored else None
            if types:
                yield self._exposure(name, "view", types)

    def _exposure(
        self,
        name: str,
        where: Literal["event", "view", "state"],
        types: Counter[str],
        again: _Again | None = None,
    ) -> Exposure:
        user_id, session_id, _ = self._stream
        counted = dict(sorted(types.items()))
        seq, blobs = (again.source.seq, again.blobs) if again else (None, 0)
        return Exposure(user_id, session_id, name, seq, where, counted, blobs)

    def again(self, envelope: Envelope) -> RedactedEvent | None:
        """What stands in the event's place, or None if nothing is found in it.

        Each is looked at once, unless it holds something else by now: what others
        took out meanwhile must not come back.
        """
        name, seq = envelope.stream, envelope.seq
        known = self._again.get((name, seq))
        new = seq > self._checked.get(name, 0)
        if new or (known is not None and known.source != envelope):
            self._checked[name] = max(seq, self._checked.get(name, 0))
            self._again.pop((name, seq), None)
            known = self._redone(envelope)
            if known is not None:
                self._again[name, seq] = known
        return known.redacted if known else None

    def _redone(self, envelope: Envelope) -> _Again | None:
        payload, in_payload = self._whole(envelope.payload.payload())
        meta, in_meta = self._whole(envelope.meta.dump())
        beside: JsonObject = {
            "request_id": envelope.request_id,
            "agent": envelope.agent,
            "meta": meta,
        }
        types = self._found(beside, (envelope.type, payload))
        if not types:
            return None
        draft = Draft(
            event_of(envelope.type, payload),
            envelope.ts,
            envelope.request_id,
            envelope.agent,
            Meta.of(meta),
        )
        redacted = self._redacted(draft)
        kept = {blob.sha256 for blob in redacted.blobs}
        blobs = len((in_payload | in_meta) - kept)
        before = str(envelope.redaction.get("rules", ""))
        return _Again(envelope, redacted, types, blobs, before)

    def _whole(self, value: JsonObject) -> tuple[JsonObject, set[str]]:
        """``value`` with its blobs in it, and which they are."""
        used: set[str] = set()

        def read(sha256: str) -> bytes | None:
            try:
                data = self._writer.log.blob(self._stream, sha256)
            except Expired:
                return None
            if data is not None:
                used.add(sha256)
            return data

        return restored(value, read), used

    def _found(
        self, beside: JsonObject, payload: tuple[str, JsonObject] | None = None
    ) -> Counter[str]:
        redactor = self._writer.redactor
        try:
            types = Counter(redactor.value(beside)[1].types)
            if payload is not None:
                types.update(redact_payload(redactor, *payload)[1].types)
        except RedactionError as error:
            what = payload[0] if payload else "stored"
            raise RedactionFailed(what, reason=str(error)) from None
        return types

    def _redacted(self, draft: Draft) -> RedactedEvent:
        """Redact with room to spare: a placeholder may be longer than its value."""
        writer = self._writer
        limits = writer.limits
        wider = Limits(limits.leaf_bytes, limits.event_bytes * 2)
        user_id, now = self._stream.user_id, writer.clock()
        return writer.redacted(draft, user_id=user_id, now=now, limits=wider)

    def state(self, state: SessionState) -> SessionState:
        """The state without what the names of its calls' tools must not say."""
        calls = {
            call_id: call._replace(tool_name=self._tool_name(call_id, call.tool_name))
            for call_id, call in state.open_calls.items()
        }
        return state.with_calls(calls)

    def _names(self, state: SessionState) -> Counter[str]:
        types: Counter[str] = Counter()
        for call in state.open_calls.values():
            types += self._found({"tool_name": call.tool_name})
        return types

    def _tool_name(self, call_id: str, name: str) -> str:
        """As the call's own event has it now, or redacted alone in a fork's state."""
        for again in self._again.values():
            event = again.redacted.event
            if isinstance(event, ToolCall) and event.call_id == call_id:
                return event.tool_name
        clean: Any = self._writer.redactor.value({"tool_name": name})[0]
        return str(clean["tool_name"])

    def record(self, event: RedactionApplied) -> RedactedEvent:
        """The event that binds what was replaced, with what the rules say of it."""
        places = [(event.stream, seq) for seq in event.seqs]
        again = [self._again[place] for place in places]
        types = sum((one.types for one in again), Counter[str]())
        update = {
            "rules": self._writer.redactor.rule_set,
            "rules_before": tuple(sorted({one.rules_before for one in again})),
            "types": dict(sorted(types.items())),
            "blobs": sum(one.blobs for one in again),
        }
        return self._redacted(Draft(event.model_copy(update=update)))


def recheck(writer: Writer, info: SessionInfo) -> Rechecked:
    """What the present rules find in this session; nothing is changed."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    rechecker = Rechecker(writer, stream)
    try:
        unfinished = bool(writer.log.retired_keys(stream))
        found = rechecker.run()
    except _UNREADABLE as error:
        return Rechecked(info, rechecker.events, [], problem=str(error))
    return Rechecked(info, rechecker.events, found, unfinished=unfinished)


def reredact(writer: Writer, info: SessionInfo) -> Rechecked:
    """Replace what the present rules find, and finish what was cut off before."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    rechecker = Rechecker(writer, stream)
    found: list[Exposure] = []
    try:
        writer.log.retire_keys(stream)
        found = rechecker.run()
        done = None
        if found:
            done = writer.log.rewrite(stream, rechecker, now=writer.clock())
    except _UNREADABLE as error:
        return Rechecked(info, rechecker.events, found, problem=str(error))
    return Rechecked(info, rechecker.events, found, done)


def forks_of(writer: Writer, sessions: Iterable[SessionInfo], of: StreamId) -> set[str]:
    """The names of the sessions that go on from this one, directly or not.

    One whose keys are gone goes on from nothing: a backup of the database may have
    brought back its rows.
    """
    names = {of.session_id}
    return with_forks(writer, sessions, of.user_id, names) - names


def with_forks(
    writer: Writer, sessions: Iterable[SessionInfo], user_id: str, names: Iterable[str]
) -> set[str]:
    """These sessions of a user, and those that go on from them, as ``forks_of``."""
    parents: dict[str, str] = {}
    for info in sessions:
        try:
            state = writer.log.head(StreamId(user_id, info.session_id)).state
        except Erased:
            continue
        if state.forked_from is not None:
            parents[info.session_id] = state.forked_from[0]
    found = set(names)
    while more := {fork for fork, parent in parents.items() if parent in found} - found:
        found |= more
    return found
