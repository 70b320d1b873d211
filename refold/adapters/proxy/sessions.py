"""Finds the session of a request: by the client's names, or by a common history.

A client that names its session has one session in the store, under the name that
``refold capture`` and ``refold import`` give it.  That session has the client's main
conversation.  Sub-agents and side requests, such as one for a title, are threads: each
has a session of its own, which is linked to the main one.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, NamedTuple

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import WireRequest
from refold.adapters.proxy.hiding import Hiding
from refold.adapters.proxy.history import (
    MATCHED_BY_ID,
    Digest,
    History,
    Item,
    Items,
    digest_with,
    response_id_of,
)
from refold.adapters.proxy.views import SentExtras, Views
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    JsonObject,
    Request,
    ToolCall,
    UserInput,
)
from refold.domain.ids import StreamId
from refold.domain.session import PROXY, RECORDED_BY, labels_in
from refold.projections.context.text import leaves
from refold.redaction.chokepoint import RedactedEvent
from refold.store import history as stored
from refold.store.session.session import Session
from refold.store.store import SessionStore

# The label with a keyed digest of the first message, by which a session is found again
# whose client names none.
START: Final = "starts_with"
# The most threads in memory, and the most events of conversations in them.
_MOST_THREADS: Final = 256
_MOST_ENTRIES: Final = 200_000
_MOST_NAMES: Final = 1_024
# The most sessions of the store that are read to find one with the same beginning.
_MOST_READ: Final = 8
# A shorter text in a call may be in any prompt by chance.
_SHORTEST_PROMPT: Final = 12  # characters
_SHORTEST_SUMMARY: Final = 40
_LONGEST_SUMMARY: Final = 200_000
# The events that answers consist of.
_ANSWERS: Final = ("agent_response", "tool_call")
# Requests belong to one thread if they share this part of their tools.
_SAME_TOOLS: Final = 0.5
_SYSTEM_CHARACTERS: Final = 64


class Link(NamedTuple):
    """The session that began a thread, and the call that did."""

    session_id: str
    seq: int
    call_id: str = ""


class Prompt(NamedTuple):
    """A call without a result, and the texts in its arguments that may be a prompt."""

    seq: int
    texts: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Thread:
    """A conversation that the proxy records, in a session of its own.

    group:     the client's name of its session; empty if it names none.
    main:      whether it is the main conversation of the client's session.
    history:   its conversation so far.
    head_seq:  the newest seq of the session that the proxy knows; 0 for a new one.
    tools:     the names of the tools in its last request; None if no request is
               recorded, as in a session that a capture began.
    system:    the beginning of the system prompt in its last request.
    last_text: the last text of the model, which may be a summary.
    prompts:   calls without a result, by call id.
    answered:  whether its last request has a complete answer.
    in_flight: the number of its requests without an answer.
    ends:      the newest seq of each response, by its id.
    largest:   the cost of its largest message.
    link:      the session that began it.
    labels:    those that the session lacks.
    views:     of its next requests; None if they must be read from the store.
    sent:      the system prompt and the tools of the last request, and their redacted
               form.
    last_request: the last request, redacted; it has the same system prompt and tools.
    numbers:   the table of numbered placeholders; None if the head has it.
    hiding:    the values that the provider does not get; None if it gets all.
    """

    session: Session
    group: str = ""
    main: bool = True
    history: History = field(default_factory=History)
    head_seq: int = 0
    tools: frozenset[str] | None = None
    system: str = ""
    last_text: str = ""
    prompts: dict[str, Prompt] = field(default_factory=dict)
    answered: bool = False
    in_flight: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    largest: int = 0
    link: Link | None = None
    labels: dict[str, str | None] = field(default_factory=dict)
    views: Views | None = None
    sent: tuple[str | None, tuple[JsonObject, ...], SentExtras] | None = None
    last_request: RedactedEvent | None = None
    numbers: Mapping[str, int] | None = None
    hiding: Hiding | None = None

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.session.session_id

    def heard(self, seq: int, event: object) -> None:
        """Remember what later requests are recognized by."""
        if isinstance(event, AgentResponse) and event.text.strip():
            self.last_text = self._revealed(event.text.strip()[:_LONGEST_SUMMARY])
        elif isinstance(event, ToolCall):
            texts = [
                self._revealed(text.strip())
                for text in leaves(event.arguments, keys=False)
                if len(text.strip()) >= _SHORTEST_PROMPT
            ]
            self.prompts[event.call_id] = Prompt(seq, tuple(texts))

    def _revealed(self, text: str) -> str:
        """Return a text as the client has it."""
        return text if self.hiding is None else self.hiding.placeholders.revealed(text)

    def before(self, response_id: str) -> list[Item]:
        """Return the items up to a response, which a request may continue."""
        end = self.ends.get(response_id, self.head_seq)
        return [
            self.history.entries[seq].item() for seq in self.history.shown if seq <= end
        ]

    def shared(self, items: Sequence[Item]) -> int:
        """Return the number of items at the beginning that both have.

        If no answer is among them, the client may have left out an earlier message, as
        some do when they continue a conversation.  Without any, an earlier history of
        the thread may have some: a client can return to a branch that it left.
        """
        count = 0
        for seq, item in zip(self.history.shown, items, strict=False):
            entry = self.history.entries[seq]
            is_same = item.digest in (entry.digest, entry.bare)
            # Most items are the same, so they call no function.
            if not is_same and not self.history.matches(entry, item):
                break
            count += 1
        if not items or has_answer(items[:count]):
            return count
        if not count:
            return len(self.history.found(items))
        if not self.history.may_have(items[min(count, len(items) - 1)]):
            return count
        in_order = self.history.in_order(items)
        return len(in_order) if has_answer(items[: len(in_order)]) else count


class Threads:
    """The threads of one user.  Those that were used last stay in memory.

    session_id: the session of clients that name none; None for new ones.
    folder:     the folder in which the clients work; empty if it is unknown.
    numbered:   whether values get numbered placeholders.
    """

    def __init__(
        self,
        store: SessionStore,
        user_id: str,
        session_id: str | None = None,
        folder: str = "",
        *,
        numbered: bool = False,
    ) -> None:
        self._numbered = numbered
        self._store = store
        self._user_id = user_id
        self._session_id = session_id
        self._folder = folder
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._by_response: OrderedDict[str, str] = OrderedDict()
        self._items: Items | None = None
        self._names: OrderedDict[str, str] = OrderedDict()

    @property
    def items(self) -> Items:
        """Makes the items of messages."""
        if self._items is None:
            writer = self._store.writer
            key = writer.log.pseudonym_key(self._user_id, now=writer.clock())
            self._items = Items(digest_with(key))
        return self._items

    @property
    def digest(self) -> Digest:
        """Makes keyed digests with the user's key."""
        return self.items.digest

    def forget(self, thread: Thread) -> None:
        """Drop a thread from memory; its next request reads it from the store."""
        self._threads.pop(thread.session_id, None)

    def forget_all(self) -> None:
        """Drop all threads, and the user's key."""
        self._threads.clear()
        self._items = None
        self._names.clear()

    def answered_with(self, thread: Thread, response_id: str) -> None:
        """Remember that a response belongs to a thread."""
        self._by_response[response_id] = thread.session_id
        while len(self._by_response) > _MOST_THREADS * 16:
            self._by_response.popitem(last=False)

    def find(self, wire: WireRequest, items: Sequence[Item]) -> Thread:
        """Return the thread of a request, which is a new one if no other matches."""
        thread = self._found(wire, items)
        self._threads[thread.session_id] = thread
        self._threads.move_to_end(thread.session_id)
        self._drop_oldest(thread)
        return thread

    def _found(self, wire: WireRequest, items: Sequence[Item]) -> Thread:
        hint = wire.hint
        if hint.previous_response_id:
            thread = self._with_response(hint.previous_response_id, hint.session_id)
            if thread is not None:
                return thread
        if hint.session_id:
            return self._in_group(wire, items, self._name(hint.session_id))
        if self._session_id is not None:
            return self._in_group(wire, items, self._session_id)
        return self._without_name(wire, items)

    # Sessions that the client names.

    def _in_group(self, wire: WireRequest, items: Sequence[Item], group: str) -> Thread:
        """Return the thread in a session that the client names."""
        main = self._thread(group, group)
        hint = wire.hint
        if hint.thread:
            name = self._name(f"{group}~{hint.thread}")
            thread = self._thread(name, group, main=False)
            if not thread.head_seq:
                others = self._of_group(group)
                link = self._link(items, others)
                link = link or _link_to_last_call(items, [main, *others])
                thread.link = link or _link_to(main)
                thread.labels = self._labels(wire)
            return thread
        best = self._best(wire, items, [main, *self._of_group(group)])
        if best is not None:
            return best
        tools = tool_names(wire)
        # In a session that the operator chose, the first request is the conversation.
        is_main = bool(tools) or hint.is_conversation or not hint.session_id
        if not main.head_seq and is_main:
            main.labels = self._labels(wire)
            return main
        # A client compacts its history, or begins again, only between its requests.
        is_idle = main.head_seq > 0 and main.in_flight == 0
        if is_idle and _same_kind(main.tools, tools):
            link = self._link(items, self._of_group(group))
            if link is None:
                return main
        return self._side_thread(wire, items, group, main)

    def _side_thread(
        self, wire: WireRequest, items: Sequence[Item], group: str, main: Thread
    ) -> Thread:
        """Return the thread with this beginning, which is not the main one.

        Its name follows from its beginning, so that it is found again.
        """
        beginning = self._beginning(items, tool_names(wire))
        name = session_name(f"{group}~{beginning[:12]}")
        thread = self._thread(name, group, main=False)
        if not thread.head_seq:
            thread.link = self._link(items, self._of_group(group)) or _link_to(main)
            thread.labels = self._labels(wire)
        return thread

    def _of_group(self, group: str) -> list[Thread]:
        return [thread for thread in self._threads.values() if thread.group == group]

    # Sessions without a name.

    def _without_name(self, wire: WireRequest, items: Sequence[Item]) -> Thread:
        """Return the thread with the longest common history.

        A request that only begins as another session does begins a new one: two runs
        may begin with the same words.
        """
        unnamed = self._of_group("")
        start = self._beginning(items[:1], frozenset())
        best = self._best(wire, items, unnamed, names_session=False)
        if best is None:
            stored_threads = [*self._stored_with(start)]
            best = self._best(wire, items, stored_threads, names_session=False)
            unnamed += stored_threads
        if best is not None:
            return best
        for thread in reversed(unnamed):
            if _repeats_summary(thread, items):
                return thread
        link = self._link(items, unnamed) or self._link_to_history(wire, items, unnamed)
        session_id = self._name(
            f"{wire.hint.agent or wire.protocol}-{uuid.uuid4().hex}"
        )
        thread = Thread(self._session(session_id), link=link, main=link is None)
        thread.labels = {**self._labels(wire), START: start}
        return thread

    def _link_to_history(
        self, wire: WireRequest, items: Sequence[Item], threads: Sequence[Thread]
    ) -> Link | None:
        """Return the thread of another agent whose history a request begins with.

        Such a request extracts memories from a conversation, for example.
        """
        best: Thread | None = None
        longest = 0
        for thread in threads:
            if not _is_of_other_agent(thread, wire):
                continue
            shared = thread.shared(items)
            if shared > longest and has_answer(items[:shared]):
                best = thread
                longest = shared
        return None if best is None else _link_to(best)

    def _stored_with(self, start: str) -> Iterator[Thread]:
        """Yield the newest sessions of the store that begin with the same message.

        Those in memory are left out.
        """
        infos = self._store.writer.log.sessions(
            self._user_id,
            labels={START: start},
            limit=_MOST_READ + len(self._threads),
            newest_first=True,
        )
        others = [info for info in infos if info.session_id not in self._threads]
        for info in others[:_MOST_READ]:
            if info.status != "erased":
                yield self._thread(info.session_id, "")

    # Any session.

    def _labels(self, wire: WireRequest) -> dict[str, str | None]:
        """Return the labels of a new session."""
        labels: dict[str, str | None] = {RECORDED_BY: PROXY}
        if wire.hint.agent:
            labels["client"] = wire.hint.agent
        if self._folder:
            labels["folder"] = self._folder
        return labels

    def _best(
        self,
        wire: WireRequest,
        items: Sequence[Item],
        threads: Iterable[Thread],
        *,
        names_session: bool = True,
    ) -> Thread | None:
        """Return the thread with the longest common history; None if none has one."""
        best: Thread | None = None
        longest = 0
        tools = tool_names(wire)
        if not items:
            return None
        first = items[0]
        may_match_by_id = first.type in MATCHED_BY_ID
        for thread in threads:
            # Most threads are other conversations, which cost no call of a function.
            if not may_match_by_id and first.digest not in thread.history.digests:
                continue
            if not names_session and _is_of_other_agent(thread, wire):
                continue
            shared = thread.shared(items)
            if shared <= longest:
                continue
            if not has_answer(items[:shared]):
                if not _same_kind(thread.tools, tools):
                    continue
                if not names_session and not _is_retry(thread, shared):
                    continue
            best = thread
            longest = shared
        return best

    def _link(self, items: Sequence[Item], threads: Sequence[Thread]) -> Link | None:
        """Return the call whose arguments contain the first message, if one does."""
        text = first_text(items)
        best: Link | None = None
        longest = 0
        for thread in threads:
            for call_id, prompt in thread.prompts.items():
                for candidate in prompt.texts:
                    if len(candidate) >= longest and candidate in text:
                        longest = len(candidate)
                        best = Link(thread.session_id, prompt.seq, call_id)
        return best

    def _with_response(self, response_id: str, group: str | None) -> Thread | None:
        """Return the thread with a response; after a restart, the store is searched."""
        name = self._by_response.get(response_id)
        if name is not None:
            return self._thread(name, self._name(group) if group else "")
        log = self._store.writer.log
        newest = log.sessions(
            self._user_id,
            labels={RECORDED_BY: PROXY},
            limit=_MOST_READ,
            newest_first=True,
        )
        for info in newest:
            if info.status == "erased":
                continue
            stream = StreamId(self._user_id, info.session_id)
            responses = log.read(stream, types=_ANSWERS)
            if any(response_id_of(event.meta) == response_id for event in responses):
                return self._thread(info.session_id, self._name(group) if group else "")
        return None

    def _name(self, name: str) -> str:
        """Return the id of the session for a client's name.

        A store redacts no ids.  So a name in which redaction finds something, such as
        an address, becomes a keyed digest.
        """
        session_id = self._names.get(name)
        if session_id is None:
            clean, _ = self._store.writer.redactor.value({"name": name})
            is_clean = clean["name"] == name
            session_id = session_name(name) if is_clean else self.digest(name.encode())
            self._names[name] = session_id
            if len(self._names) > _MOST_NAMES:
                self._names.popitem(last=False)
        return session_id

    def _session(self, session_id: str) -> Session:
        session = self._store.session(user_id=self._user_id, session_id=session_id)
        if not self._numbered:
            return session
        writer = session.writer
        writer = replace(writer, redactor=writer.redactor.numbering)
        return replace(session, writer=writer)

    def _thread(self, session_id: str, group: str, *, main: bool = True) -> Thread:
        """Return a thread from memory, else as the store has it."""
        thread = self._threads.get(session_id)
        if thread is None:
            thread = self.read(self._session(session_id), group, main=main)
            self._threads[session_id] = thread
        return thread

    def read(self, session: Session, group: str, *, main: bool) -> Thread:
        """Read a thread from the store.  Raises Erased."""
        log = session.writer.log
        head = log.head(session.stream)
        thread = Thread(session, group, main)
        if head.seq == 0:
            return thread
        events = list(stored.History.of(log, head.state).events())
        thread.history = History.of(events, self.digest)
        thread.head_seq = head.seq
        labels: dict[str, str | None] = {}
        for envelope in events:
            thread.heard(envelope.seq, envelope.payload)
            labels |= labels_in(envelope.payload)
            thread.answered = _is_answered(thread, envelope)
            thread.largest = max(thread.largest, envelope.token_estimate)
            if envelope.type in _ANSWERS and response_id_of(envelope.meta):
                thread.ends[response_id_of(envelope.meta)] = envelope.seq
        for call_id in thread.prompts.keys() - head.state.open_calls.keys():
            del thread.prompts[call_id]
        if RECORDED_BY not in labels:
            thread.labels = {RECORDED_BY: PROXY}
        request = _newest_request(events)
        if request is not None:
            extras = stored.read_extras(log, session.stream, request)
            thread.tools = frozenset(str(tool.get("name")) for tool in extras.tools)
            thread.system = (extras.system or "")[:_SYSTEM_CHARACTERS]
        return thread

    def _beginning(self, items: Sequence[Item], tools: frozenset[str]) -> str:
        """Return a keyed digest of the first message and the tools."""
        parts = [item.digest for item in items[:1]]
        return self.digest("\0".join([*parts, *sorted(tools)]).encode())

    def _drop_oldest(self, current: Thread) -> None:
        """Keep the threads in memory within their bounds."""
        total = sum(len(thread.history.entries) for thread in self._threads.values())
        while len(self._threads) > _MOST_THREADS or total > _MOST_ENTRIES:
            oldest = next(iter(self._threads.values()))
            if oldest is current:
                return
            total -= len(oldest.history.entries)
            del self._threads[oldest.session_id]


def session_name(name: str) -> str:
    """Return the id of the session for a client's name, as an import chooses it."""
    return base.session_name(name) or sha256(name.encode()).hexdigest()


def tool_names(wire: WireRequest) -> frozenset[str]:
    """Return the names of the tools in a request."""
    return frozenset(str(tool.get("name")) for tool in wire.tools)


def beginning_of_system(wire: WireRequest) -> str:
    """Return the beginning of the system prompt, which names the agent."""
    return (wire.system or "")[:_SYSTEM_CHARACTERS]


def has_answer(items: Sequence[Item]) -> bool:
    """Whether an answer of the model, or a part of one, is among the items."""
    return any(item.type in _ANSWERS for item in items)


def first_text(items: Sequence[Item]) -> str:
    """Return the text of the first messages of the user."""
    texts: list[str] = []
    for item in items:
        event = item.event
        if not isinstance(event, UserInput):
            break
        texts.append(event.text)
    return "\n".join(texts)


def _link_to_last_call(items: Sequence[Item], threads: Iterable[Thread]) -> Link | None:
    """Return the last call in a request that a thread has; None without one.

    The request of a sub-agent may begin with the history up to the call that began it.
    """
    call_id = ""
    for item in items:
        if item.type == "tool_call":
            call_id = item.call_id
    if not call_id:
        return None
    for thread in threads:
        for entry in reversed(thread.history.entries.values()):
            if entry.type == "tool_call" and entry.call_id == call_id:
                return Link(thread.session_id, entry.seq, call_id)
    return None


def _link_to(main: Thread) -> Link:
    return Link(main.session_id, main.head_seq)


def _same_kind(one: frozenset[str] | None, other: frozenset[str]) -> bool:
    """Whether two requests have about the same tools; None stands for any tools."""
    if one is None:
        return bool(other)
    if not one or not other:
        return one == other
    return len(one & other) >= _SAME_TOOLS * len(one | other)


def _is_of_other_agent(thread: Thread, wire: WireRequest) -> bool:
    """Whether a request is of another agent than the thread.

    Its system prompt and its tools are others.  An agent may change one of them.
    """
    if thread.tools is None or thread.system == beginning_of_system(wire):
        return False
    return not _same_kind(thread.tools, tool_names(wire))


def _is_retry(thread: Thread, shared: int) -> bool:
    """Whether a request that only begins as a thread does repeats its last request.

    Otherwise it is that of another conversation: two runs may begin with the same
    words, one after the other or at the same time.

    shared: the number of items at the beginning that both have.
    """
    if thread.in_flight:
        return False
    return shared == len(thread.history.shown) or not thread.answered


def _repeats_summary(thread: Thread, items: Sequence[Item]) -> bool:
    """Whether the first message contains the last answer, as after a compaction."""
    if len(thread.last_text) < _SHORTEST_SUMMARY:
        return False
    return thread.last_text in first_text(items)


def _is_answered(thread: Thread, envelope: Envelope) -> bool:
    """Whether the last request up to an event has a complete answer."""
    if isinstance(envelope.payload, Request):
        return False
    if envelope.type in _ANSWERS:
        return True
    if envelope.type == "error":
        return False
    return thread.answered


def _newest_request(events: Sequence[Envelope]) -> Request | None:
    for envelope in reversed(events):
        if isinstance(envelope.payload, Request) and not envelope.activates_strategy:
            return envelope.payload
    return None
