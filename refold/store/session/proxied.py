"""Finds the events of a transcript that a proxy has recorded in their session.

A capture, a hook, and an import use the same rule, so it makes no difference which of
them reads an entry, and when.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from refold.domain import errors
from refold.domain.envelope import Draft, Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    Item,
    ProviderEdit,
    Request,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.ids import provider_response_id
from refold.domain.session import SessionState
from refold.redaction.guard import Limits
from refold.store.history import read_pages
from refold.store.session.core import SessionCore, is_recorded_by_proxy

# The limits of the proxy, which stores longer texts than other writers do.
_LIMITS: Final = Limits(leaf_bytes=786_432, event_bytes=1_048_576)
# Fields of ``meta.source`` of an input that the client wrote, not a person.
_OF_CLIENT: Final = ("attachment", "context", "meta")

# The reasons of edits by which a client shows another branch of its history.
_OF_BRANCHES: Final = ("fork", "rewind")

_WithText: TypeAlias = AgentResponse | SystemPrompt | UserInput


class _Name(NamedTuple):
    """The part of an event that a request and a transcript have alike."""

    type: str
    value: str


class _Occurrences:
    """The events of the proxy by name, each of which belongs to one of a transcript.

    Two events may have the same name, such as two equal inputs.
    """

    def __init__(self) -> None:
        self._seqs: dict[_Name, list[int]] = {}  # ascending
        # By name, how many events belong to events of the transcript, or stand before
        # one that does.
        self._settled: dict[_Name, int] = {}
        self._taken: dict[_Name, int] = {}

    def add(self, name: _Name, seq: int) -> None:
        """Add an event of the proxy."""
        self._seqs.setdefault(name, []).append(seq)

    def take(self, name: _Name, *, after: int = 0) -> int | None:
        """Take the first event behind a seq for one of the transcript.

        Returns its seq; None if no event with this name is left.
        """
        seqs = self._seqs.get(name)
        if seqs is None:
            return None
        count = self._taken.get(name) or self._settled.get(name, 0)
        index = max(count, bisect_right(seqs, after))
        if index >= len(seqs):
            return None
        self._taken[name] = index + 1
        return seqs[index]

    def discard(self, name: _Name, seq: int) -> None:
        """Remove an event that only comes again."""
        self._seqs[name].remove(seq)

    def newest(self, name: _Name) -> int:
        """Return the newest seq of a name; 0 without one."""
        seqs = self._seqs.get(name)
        return seqs[-1] if seqs else 0

    def settle(self) -> None:
        """Keep what was taken."""
        self._settled |= self._taken
        self._taken.clear()

    def put_back(self) -> None:
        """Give back what was taken since ``settle``."""
        self._taken.clear()

    def __bool__(self) -> bool:
        """Whether the proxy recorded any."""
        return bool(self._seqs)


class ProxiedEvents:
    """The events that a proxy recorded in a session, compared with a transcript.

    A proxied request has the whole conversation in the form that the model saw.  So
    these rules decide whether the session has an event of the transcript:

    - An answer was recorded if an event of the proxy has its response id, or one of its
      call ids, its text, or its thinking.  A transcript may have an answer in parts,
      which have the same id of their importer: all of them were recorded, or none.
    - A result was recorded if an event of the proxy has its call id.
    - Everything else that a request may contain was recorded if the next answer was:
      the request of that answer had it, though perhaps in another form.  Without such
      an answer, an input was recorded if the proxy recorded its text behind the answers
      and results of earlier entries, and not before the request of an earlier input.
      The same decides about an input that a rewind left out before the next answer,
      and about what the client wrote itself; without its own text in the log, it was
      recorded if the input before it was.

    An item of the client, such as a snapshot of files, is in no request.

    The object can be used for later parts of the same transcript, too.
    """

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._state = SessionState(session.stream)
        self._through_seq = 0
        # The newest seq of each response of the proxy, by id.
        self._responses: dict[str, int] = {}
        self._calls = _Occurrences()  # and results
        self._texts = _Occurrences()
        self._thinking = _Occurrences()
        # The texts of the proxy's answers, and their seqs.
        self._answer_texts: list[str] = []
        self._answer_seqs: list[int] = []
        # By the importer's id of an answer, the seq of its event of the proxy.
        self._seqs_of_answers: dict[str, int] = {}
        self._matched_answers: dict[str, int] = {}  # since ``settle``
        # All inputs and answers with a text, also those of other writers.
        self._text_seqs: list[int] = []
        self._text_names: list[_Name] = []
        # The texts that belong to the next request, with their seqs.
        self._of_request: dict[_Name, list[int]] = {}
        # How many texts the next request leaves out.  It may have them again, in
        # another place.
        self._left_out = Counter[_Name]()
        # The newest answer or result that belongs to an event of the transcript.
        self._settled_seq = 0
        self._matched_seq = 0
        # The seqs of the proxy's requests, ascending.
        self._requests: list[int] = []
        # The newest request.
        self._asked: str | None = None
        # Whether the newest content of the proxy waits for an answer.  Its request may
        # not be recorded yet, if the store is slow.
        self._is_answering = False
        # Whether an event of the proxy was read.
        self._has_events = False

    def read(self, state: SessionState) -> bool:
        """Read the events up to a state; returns whether the proxy recorded some."""
        self._state = state
        if not self._through_seq and not is_recorded_by_proxy(self._session):
            return False
        log = self._session.writer.log
        upto = state.head_seq
        for envelope in read_pages(
            log, self._session.stream, after=self._through_seq, upto=upto
        ):
            is_of_proxy = "wire" in (envelope.meta.model_extra or {})
            if is_of_proxy and isinstance(envelope.payload, Request):
                self._asked = envelope.request_id
                self._is_answering = True
            elif envelope.request_id is not None:
                is_answer = envelope.request_id == self._asked
                self._is_answering = self._is_answering and not is_answer
            elif is_of_proxy:
                self._is_answering = True
            if is_of_proxy:
                self._read(envelope)
            name = _name_of_text(envelope.payload)
            if name is not None:
                self._read_text(name, envelope, is_of_proxy=is_of_proxy)
            if isinstance(envelope.payload, ProviderEdit):
                self._read_left_out(envelope.payload)
        self._through_seq = max(self._through_seq, upto)
        return self._has_events

    def _read(self, envelope: Envelope) -> None:
        event = envelope.payload
        if isinstance(event, Request):
            self._requests.append(envelope.seq)
            # A text that comes again stands before the request that leaves it out.
            self._left_out.clear()
            self._of_request.clear()
            return
        self._has_events = True
        if isinstance(event, AgentResponse | ToolCall) and envelope.meta.response_id:
            self._responses[envelope.meta.response_id] = envelope.seq
        if isinstance(event, AgentResponse):
            for name in _names_of_thinking(event):
                self._thinking.add(name, envelope.seq)
            if event.text.strip():
                self._answer_texts.append(_plain(event.text))
                self._answer_seqs.append(envelope.seq)
        if isinstance(event, ToolCall | ToolResult):
            # The provider's id, if the log has another one.
            call_id = envelope.meta.call_id or event.call_id
            self._calls.add(_Name(event.type, call_id), envelope.seq)

    def _read_text(self, name: _Name, envelope: Envelope, *, is_of_proxy: bool) -> None:
        """Add a text of the proxy, unless it comes again in place of an earlier one."""
        self._text_seqs.append(envelope.seq)
        self._text_names.append(name)
        if not is_of_proxy:
            return
        is_of_answer = envelope.request_id is not None
        if is_of_answer:
            self._texts.add(name, envelope.seq)
        elif self._left_out[name]:
            self._left_out[name] -= 1
        else:
            self._texts.add(name, envelope.seq)
            self._of_request.setdefault(name, []).append(envelope.seq)

    def _read_left_out(self, edit: ProviderEdit) -> None:
        """Count the texts that an edit leaves out."""
        for first, last in edit.left_out:
            start = bisect_left(self._text_seqs, first)
            stop = bisect_right(self._text_seqs, last)
            self._left_out.update(self._text_names[start:stop])
        # Messages that come to the front of the context are stored before the edit.
        for name, seqs in self._of_request.items():
            while seqs and self._left_out[name]:
                self._left_out[name] -= 1
                self._texts.discard(name, seqs.pop())

    def recorded(self, drafts: Sequence[Draft]) -> list[bool]:
        """Return for each draft of a transcript whether the proxy recorded it.

        drafts: in the order of the transcript, those of earlier calls before them.
        """
        self._texts.put_back()
        self._calls.put_back()
        self._thinking.put_back()
        self._matched_answers.clear()
        answers = self._recorded_answers(drafts)
        newest_seq = self._settled_seq
        decided: list[bool] = []
        for run in _runs(drafts):
            next_answer = answers.get(run.stop, 0)
            abandoned = _left_out_by_rewinds(drafts[run.start : run.stop])
            missing: set[str] = set()  # the keys of drafts that were not recorded
            previous = False  # the decision on the input or result before
            for index in run:
                draft = drafts[index]
                event = draft.event
                if isinstance(event, Item | StateUpdate):
                    is_recorded = False
                elif isinstance(event, ToolResult):
                    result_seq = self._seq_of_call(event)
                    newest_seq = max(newest_seq, result_seq)
                    is_recorded = result_seq > 0
                    previous = is_recorded
                elif _leaves_out(draft, missing):
                    is_recorded = False
                elif next_answer and draft.key not in abandoned:
                    is_recorded = True
                else:
                    input_seq = self._take_input(event, after=newest_seq)
                    is_recorded = input_seq is not None
                    if _is_prompt(draft):
                        if input_seq is not None:
                            newest_seq = max(
                                newest_seq, self._request_before(input_seq)
                            )
                        previous = is_recorded
                    elif previous:
                        # Text of the client itself may stand before the input, too.
                        is_recorded = True
                if not is_recorded and draft.key is not None:
                    missing.add(draft.key)
                decided.append(is_recorded)
            if run.stop < len(drafts):
                decided.append(next_answer > 0)
                newest_seq = max(newest_seq, next_answer)
        self._matched_seq = newest_seq
        return decided

    def _take_input(self, event: Event, *, after: int) -> int | None:
        """Return the seq behind this one at which the proxy recorded an input."""
        if not isinstance(event, UserInput | SystemPrompt):
            return None
        return self._take_text(event, after=after)

    def _request_before(self, seq: int) -> int:
        """Return the seq of the newest request before a seq; 0 without one."""
        index = bisect_left(self._requests, seq)
        return self._requests[index - 1] if index else 0

    def may_follow(self, drafts: Sequence[Draft]) -> bool:
        """Whether a proxy that runs may still record the last of these drafts.

        drafts: the last ones of the transcript.
        """
        recorded = self.recorded(drafts)
        for draft, is_recorded in reversed([*zip(drafts, recorded, strict=True)]):
            if isinstance(draft.event, Item | StateUpdate):
                continue
            if is_recorded:
                return False
            return self._is_answering or not _is_of_answer(draft)
        return False

    def settle(self) -> None:
        """Let the drafts of the last call keep their events of the proxy."""
        self._texts.settle()
        self._calls.settle()
        self._thinking.settle()
        self._seqs_of_answers |= self._matched_answers
        self._matched_answers.clear()
        self._settled_seq = self._matched_seq

    def _recorded_answers(self, drafts: Sequence[Draft]) -> dict[int, int]:
        """Return the seq that the proxy gave each draft of an answer, by index.

        It is 0 if the proxy did not record the answer.  All drafts of one response have
        the same seq.  A response without text and calls has that of the next one.
        """
        groups: dict[str, list[int]] = {}
        answers = _NamesOfAnswers()
        for index, draft in enumerate(drafts):
            if _is_of_answer(draft):
                groups.setdefault(answers.name(index, draft), []).append(index)
        seqs: dict[str, int | None] = {}
        newest_seq = self._settled_seq
        last_name = next(reversed(groups), "")
        for name, indices in groups.items():
            parts = [drafts[index].event for index in indices]
            of_events = [self._take_answer(part, after=newest_seq) for part in parts]
            of_named = [seq for seq in of_events if seq is not None]
            if name in self._responses:
                of_named.append(self._responses[name])
            if name in self._seqs_of_answers:
                of_named.append(self._seqs_of_answers[name])
            if not any(of_named):
                joined_seq = self._seq_of_parts(
                    parts, after=newest_seq, is_whole=name != last_name
                )
                of_named.append(joined_seq)
            seqs[name] = max(of_named, default=None)
            newest_seq = max([newest_seq, *of_named])
            if seqs[name]:
                self._matched_answers[name] = newest_seq
        recorded: dict[int, int] = {}
        next_seq = 0
        for name, indices in reversed(groups.items()):
            seq = seqs[name]
            if seq is not None:
                next_seq = seq
            for index in indices:
                recorded[index] = next_seq
        return recorded

    def _take_answer(self, event: Event, *, after: int) -> int | None:
        """Return the seq that the proxy gave an event of an answer.

        It is 0 if the proxy did not record it, and None if it has no name.
        """
        if isinstance(event, ToolCall):
            return self._seq_of_call(event)
        if isinstance(event, AgentResponse) and event.text.strip():
            return self._take_text(event, after=after) or 0
        if isinstance(event, AgentResponse) and event.thinking:
            return self._take_thinking(event, after=after)
        return None

    def _take_thinking(self, event: AgentResponse, *, after: int) -> int | None:
        """Take the thinking of an answer behind a seq, and return its seq."""
        if not self._thinking:
            return None
        for stored in self._stored_forms(event):
            if isinstance(stored, AgentResponse):
                for name in _names_of_thinking(stored):
                    seq = self._thinking.take(name, after=after)
                    if seq is not None:
                        return seq
        return None

    def _seq_of_parts(
        self, parts: Iterable[Event], *, after: int, is_whole: bool
    ) -> int:
        """Return the seq behind another at which the proxy has the texts of parts.

        The proxy has the texts of an answer as one.  Returns 0 if it has them nowhere.

        is_whole: whether these are all parts of the answer, not only the first ones.
        """
        texts = [part.text for part in parts if isinstance(part, AgentResponse)]
        joined = "".join(texts)
        if not joined.strip() or not self._answer_seqs:
            return 0
        start = bisect_right(self._answer_seqs, after)
        for text in self._stored_texts(AgentResponse(text=joined)):
            for index in range(start, len(self._answer_seqs)):
                answer = self._answer_texts[index]
                if answer == text or (not is_whole and answer.startswith(text)):
                    return self._answer_seqs[index]
        return 0

    def _seq_of_call(self, event: ToolCall | ToolResult) -> int:
        """Return the seq that the proxy gave a call or a result; 0 if it gave none.

        An id may come again.  Each event of the transcript has the next one.
        """
        name = _Name(event.type, event.call_id)
        return self._calls.take(name) or self._calls.newest(name)

    def _take_text(self, event: _WithText, *, after: int) -> int | None:
        """Take the text of an event behind a seq, and return its seq."""
        if not self._texts:
            return None
        kind = _kind_of_text(event)
        for text in self._stored_texts(event):
            seq = self._texts.take(_Name(kind, text), after=after)
            if seq is not None:
                return seq
        return None

    def _stored_texts(self, event: _WithText) -> Iterator[str]:
        """Yield the text of an event as the session may have it."""
        for stored in self._stored_forms(event):
            if isinstance(stored, _WithText):
                yield _plain(stored.text or "")

    def _stored_forms(self, event: Event) -> Iterator[Event]:
        """Yield an event as the session may have it.

        Secrets that the session showed later were not redacted in it.
        """
        writer = self._session.writer
        tag = writer.numbering(self._session.stream, self._state.numbers)
        no_secrets = writer.learned(SessionState(self._session.stream))
        for learned in (no_secrets, writer.learned(self._state)):
            with suppress(errors.EventTooLarge, errors.RedactionFailed):
                yield writer.redacted(
                    Draft(event),
                    user_id=self._session.user_id,
                    now=writer.clock(),
                    limits=_LIMITS,
                    unscanned="stub",
                    tag=tag,
                    learned=learned,
                ).event
            if not self._state.learned:
                return


def _name_of_text(event: Event) -> _Name | None:
    """Return the name of an input or of an answer with a text; None for others."""
    if not isinstance(event, _WithText):
        return None
    text = _plain(event.text or "")
    if isinstance(event, AgentResponse) and not text:
        return None
    return _Name(_kind_of_text(event), text)


def _names_of_thinking(response: AgentResponse) -> Iterator[_Name]:
    """Yield the name of each block of thinking in a response."""
    for block in response.thinking:
        value = block.signature or block.data or block.thinking
        if value:
            yield _Name("thinking", value)


def _kind_of_text(event: _WithText) -> str:
    return "answer" if isinstance(event, AgentResponse) else "input"


def _plain(text: str) -> str:
    """Return a text with single spaces, as clients may change the white space."""
    return " ".join(text.split())


class _NamesOfAnswers:
    """Names the answer of each draft.

    An importer that knows no id of the provider takes everything up to the next input
    for one answer.  A text that comes again begins another one.
    """

    def __init__(self) -> None:
        self._texts: dict[str, set[str]] = {}  # by the importer's id
        self._numbers = Counter[str]()

    def name(self, index: int, draft: Draft) -> str:
        """Return the name of a draft's answer.

        index: of the draft.
        """
        response_id = draft.meta.response_id
        if not response_id:
            return f"\0{index}"
        if provider_response_id(response_id):
            return response_id
        text = draft.event.text if isinstance(draft.event, AgentResponse) else ""
        texts = self._texts.setdefault(response_id, set())
        if text.strip():
            if text in texts:
                texts.clear()
                self._numbers[response_id] += 1
            texts.add(text)
        return f"{response_id}\0{self._numbers[response_id]}"


def _is_of_answer(draft: Draft) -> bool:
    return isinstance(draft.event, AgentResponse | ToolCall)


def _is_prompt(draft: Draft) -> bool:
    """Whether a person wrote the input."""
    source = draft.meta.source or {}
    return isinstance(draft.event, UserInput) and not any(
        name in source for name in _OF_CLIENT
    )


def _left_out_by_rewinds(drafts: Iterable[Draft]) -> set[str]:
    """Return the keys of the drafts that the client left by going back."""
    keys: set[str] = set()
    for draft in drafts:
        event = draft.event
        is_edit = isinstance(event, ProviderEdit) and event.reason in _OF_BRANCHES
        if is_edit and draft.mark is not None:
            keys.update(draft.mark.left_out)
    return keys


def _leaves_out(draft: Draft, keys: Container[str]) -> bool:
    """Whether a draft is an edit that leaves out one of these drafts."""
    if draft.mark is None:
        return False
    return any(key in keys for key in draft.mark.left_out)


def _runs(drafts: Sequence[Draft]) -> Iterator[range]:
    """Yield the indices of the drafts before each answer, and behind the last one.

    ``stop`` of a range is the index of the answer.
    """
    start = 0
    for index, draft in enumerate(drafts):
        if _is_of_answer(draft):
            yield range(start, index)
            start = index + 1
    yield range(start, len(drafts))
