"""Records the spans that exporters send, as sessions of one store.

An exporter sends spans as they end, so the spans of a trace come in several requests,
and the span of a turn comes last.  Each span of a model call carries the messages that
the model was sent, so it is recorded as the proxy records a request and its answer.
Results of tools come with the next request; spans of tools and agents add nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Lock
from typing import Final, NamedTuple

from refold.adapters.importers import base
from refold.adapters.importers.otlp import Json, attributes_of
from refold.adapters.otlp import spans
from refold.adapters.otlp.spans import ModelCall
from refold.adapters.proxy.conversation import NotRecordable
from refold.adapters.proxy.exchange import Answer, Exchange
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy.sessions import session_name
from refold.domain.errors import Erased, SessionClosed
from refold.domain.ids import StreamId
from refold.domain.ports import SessionInfo
from refold.store.store import SessionStore

_MOST_USERS: Final = 256
_MOST_CALLS: Final = 65_536
# An exporter repeats a request within minutes.
_NEWEST_REQUESTS: Final = 200
_ANSWERS: Final = ("agent_response", "tool_call")
_NEWEST_ANSWERS: Final = 100
_MOST_THREADS: Final = 100  # of one conversation that are searched
_MOST_STREAMS: Final = 16_384


class Taken(NamedTuple):
    """The result of recording the spans of a request.

    rejected: the number of model calls that could not be recorded.
    reason:   of the last one; empty if all were recorded.
    """

    rejected: int = 0
    reason: str = ""


class TraceReceiver:
    """Records spans in a store, for any number of users and threads."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._lock = Lock()
        self._recorders: OrderedDict[str, StoreRecorder] = OrderedDict()
        # The recorded model calls that this process knows, by user and call.
        self._recorded: OrderedDict[tuple[str, str], None] = OrderedDict()
        # The last event of each session up to which it knows them.
        self._known_upto: OrderedDict[StreamId, int] = OrderedDict()

    def take(self, user_id: str, request: Json) -> Taken:
        """Record the model calls in a request, in the order in which they ended.

        A call that was recorded before is not recorded again, so a request can be
        repeated after an error.

        Raises the errors of a store that is unavailable.
        """
        calls = sorted(_model_calls(request), key=_end)
        rejected = 0
        reason = ""
        with self._lock:
            for call in calls:
                try:
                    self._record(user_id, call)
                except (NotRecordable, SessionClosed, Erased) as error:
                    rejected += 1
                    reason = str(error)
        return Taken(rejected, reason)

    def _record(self, user_id: str, call: ModelCall) -> None:
        """Record a model call, unless it is recorded already."""
        if self._is_recorded(user_id, call):
            return
        previous = None if call.has_history else self._newest_response(user_id, call)
        body = spans.body_of_call(call, previous)
        now = datetime.now(UTC)
        exchange = Exchange(
            exchange_id=call.call_id,
            upstream=spans.NAME,
            protocol=spans,
            method="",
            path="",
            headers={},
            body=body,
            truncated=False,
            began_at=call.began_at or now,
        )
        answer = Answer(
            ending="complete",
            status=200,
            headers={},
            body=body,
            truncated=False,
            error="",
            first_byte_at=None,
            ended_at=call.ended_at or call.began_at or now,
        )
        recorder = self._recorder(user_id)
        recorder.begin(exchange)
        recorder.finish(exchange, answer)
        self._remember(user_id, call.call_id)

    def _recorder(self, user_id: str) -> StoreRecorder:
        """Return the recorder of a user; those that were used last stay in memory."""
        recorder = self._recorders.get(user_id)
        if recorder is None:
            recorder = StoreRecorder(self._store, user_id=user_id)
            self._recorders[user_id] = recorder
        self._recorders.move_to_end(user_id)
        if len(self._recorders) > _MOST_USERS:
            _, oldest = self._recorders.popitem(last=False)
            oldest.close()
        return recorder

    def _newest_response(self, user_id: str, call: ModelCall) -> str | None:
        """Return the id of the newest answer in a conversation; None without one."""
        stream = StreamId(user_id, session_name(call.conversation))
        answers = self._store.log.read(
            stream, types=_ANSWERS, limit=_NEWEST_ANSWERS, newest=True
        )
        for answer in reversed(answers):
            if answer.meta.response_id:
                return answer.meta.response_id
        return None

    def _is_recorded(self, user_id: str, call: ModelCall) -> bool:
        """Whether a call is recorded, by this process or another."""
        key = (user_id, call.call_id)
        if key not in self._recorded:
            self._read_new_requests(user_id, session_name(call.conversation))
        return key in self._recorded

    def _remember(self, user_id: str, call_id: str) -> None:
        """Remember that a call is recorded, and forget the oldest ones."""
        self._recorded[user_id, call_id] = None
        if len(self._recorded) > _MOST_CALLS:
            self._recorded.popitem(last=False)

    def _read_new_requests(self, user_id: str, session_id: str) -> None:
        """Read the requests of a conversation that were added since the last time."""
        for info in self._sessions(user_id, session_id):
            stream = StreamId(user_id, info.session_id)
            upto = self._known_upto.get(stream, 0)
            if upto > info.head_seq:  # the session was erased, and begun again
                upto = 0
            if upto == info.head_seq:
                continue
            requests = self._store.log.read(
                stream,
                after=upto,
                types=("request",),
                limit=_NEWEST_REQUESTS,
                newest=True,
            )
            for request in requests:
                if request.request_id is not None:
                    self._remember(user_id, request.request_id)
            self._known_upto[stream] = info.head_seq
            self._known_upto.move_to_end(stream)
            if len(self._known_upto) > _MOST_STREAMS:
                self._known_upto.popitem(last=False)

    def _sessions(self, user_id: str, session_id: str) -> Iterator[SessionInfo]:
        """Yield the session of a conversation, and those of its threads."""
        yield from self._store.log.sessions(user_id, session_id=session_id)
        first = f"{session_id}~"  # sorts before all names that begin with it
        infos = self._store.log.sessions(
            user_id, after=(user_id, first), limit=_MOST_THREADS
        )
        for info in infos:
            if not info.session_id.startswith(first):
                return
            yield info


def _model_calls(request: Json) -> Iterator[ModelCall]:
    """Yield the model calls in a request."""
    for resource in base.each(request, "resourceSpans"):
        about = attributes_of(base.mapping(resource, "resource"))
        service = base.text(about, "service.name")
        for scope in base.each(resource, "scopeSpans"):
            for span in base.each(scope, "spans"):
                call = spans.model_call(span, service)
                if call is not None:
                    yield call


def _end(call: ModelCall) -> float:
    """Return the time of a call's end in seconds since 1970; 0 if it is unknown."""
    return call.ended_at.timestamp() if call.ended_at else 0.0
