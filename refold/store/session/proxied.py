"""Finds the events of a transcript that a proxy has recorded in their session.

A capture, a hook, and an import use the same rule, so it makes no difference which of
them reads an entry, and when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from refold.domain import errors
from refold.domain.envelope import Draft, Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    Item,
    Request,
    StateUpdate,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.session import SessionState
from refold.redaction.guard import Limits
from refold.store.history import read_pages
from refold.store.session.core import SessionCore, is_recorded_by_proxy

# The limits of the proxy, which stores longer texts than other writers do.
_LIMITS: Final = Limits(leaf_bytes=786_432, event_bytes=1_048_576)
# Fields of ``meta.source`` of an input that the client wrote, not a person.
_OF_CLIENT: Final = ("attachment", "context", "meta")


class _Name(NamedTuple):
    """The part of an event that a request and a transcript have alike."""

    type: str
    value: str


class _Texts:
    """Texts of a session, each of which belongs to one event of a transcript.

    counts: how often the session has each.
    taken:  those that belong to events of the transcript since ``settle``.
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.taken = Counter[str]()
        self._settled = Counter[str]()

    def add(self, text: str) -> None:
        """Add a text of the session."""
        self.counts[text] += 1

    def take(self, text: str) -> bool:
        """Take a text for an event of the transcript; False if none is left."""
        if self.counts[text] <= self._settled[text] + self.taken[text]:
            return False
        self.taken[text] += 1
        return True

    def settle(self) -> None:
        """Keep what was taken."""
        self._settled += self.taken
        self.taken.clear()

    def clear(self) -> None:
        """Forget all texts."""
        self.counts.clear()
        self.taken.clear()
        self._settled.clear()


class ProxiedEvents:
    """The events that a proxy recorded in a session, compared with a transcript.

    A proxied request has the whole conversation in the form that the model saw.  So
    these rules decide whether the session has an event of the transcript:

    - An answer was recorded if an event of the proxy has its response id, or one of its
      call ids, or its text.
    - A result was recorded if an event of the proxy has its call id.
    - Everything else that a request may contain was recorded if the next answer was:
      the request of that answer had it, though perhaps in another form.  Without such
      an answer, an input was recorded if a proxied request that was not answered has
      its text; what the client wrote behind the input follows the input.

    An item of the client, such as a snapshot of files, is in no request.

    The object can be used for later parts of the same transcript, too.
    """

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._state = SessionState(session.stream)
        self._through_seq = 0
        self._responses: set[str] = set()
        self._calls: set[_Name] = set()
        # Of two equal answers, the proxy may have recorded only the first.
        self._texts = _Texts()
        # The inputs behind the last answer or result.
        self._unanswered = _Texts()
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
        self._through_seq = max(self._through_seq, upto)
        return self._has_events

    def _read(self, envelope: Envelope) -> None:
        event = envelope.payload
        if isinstance(event, Request):
            return
        self._has_events = True
        if isinstance(event, UserInput | SystemPrompt):
            self._unanswered.add(_plain(event.text or ""))
            return
        self._unanswered.clear()
        if isinstance(event, AgentResponse | ToolCall) and envelope.meta.response_id:
            self._responses.add(envelope.meta.response_id)
        if isinstance(event, ToolCall | ToolResult):
            # The provider's id, if the log has another one.
            self._calls.add(_Name(event.type, envelope.meta.call_id or event.call_id))
        elif isinstance(event, AgentResponse) and event.text.strip():
            self._texts.add(_plain(event.text))

    def recorded(self, drafts: Sequence[Draft]) -> list[bool]:
        """Return for each draft of a transcript whether the proxy recorded it.

        drafts: in the order of the transcript, those of earlier calls before them.
        """
        self._texts.taken.clear()
        self._unanswered.taken.clear()
        answers = self._recorded_answers(drafts)
        decided: list[bool] = []
        for run in _runs(drafts):
            next_answer = answers.get(run.stop)
            previous = False  # the decision on the input or result before
            for index in run:
                draft = drafts[index]
                event = draft.event
                if isinstance(event, Item | StateUpdate):
                    decided.append(False)
                elif isinstance(event, ToolResult):
                    previous = _Name(event.type, event.call_id) in self._calls
                    decided.append(previous)
                elif next_answer:
                    decided.append(True)
                elif _is_prompt(draft):
                    previous = self._take_input(draft.event)
                    decided.append(previous)
                else:
                    decided.append(previous)
            if run.stop < len(drafts):
                decided.append(bool(next_answer))
        return decided

    def _take_input(self, event: Event) -> bool:
        """Whether a proxied request without an answer has this input."""
        return isinstance(event, UserInput) and self._take(self._unanswered, event)

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
        self._unanswered.settle()

    def _recorded_answers(self, drafts: Sequence[Draft]) -> dict[int, bool]:
        """Return for each draft of an answer whether the proxy recorded it, by index.

        All drafts of one response have the same decision.  A response without text and
        calls has that of the next one.
        """
        groups: dict[str, list[int]] = {}
        for index, draft in enumerate(drafts):
            if _is_of_answer(draft):
                name = draft.meta.response_id or f"\0{index}"
                groups.setdefault(name, []).append(index)
        decisions: dict[str, bool | None] = {}
        for name, indices in groups.items():
            named = [self._take_answer(drafts[index].event) for index in indices]
            decisions[name] = name in self._responses or _any_true(named)
        recorded: dict[int, bool] = {}
        next_recorded = False
        for name, indices in reversed(groups.items()):
            decision = decisions[name]
            if decision is not None:
                next_recorded = decision
            for index in indices:
                recorded[index] = next_recorded
        return recorded

    def _take_answer(self, event: Event) -> bool | None:
        """Whether the proxy recorded an event of an answer; None if it has no name."""
        if isinstance(event, ToolCall):
            return _Name(event.type, event.call_id) in self._calls
        if isinstance(event, AgentResponse) and event.text.strip():
            return self._take(self._texts, event)
        return None

    def _take(self, texts: _Texts, event: AgentResponse | UserInput) -> bool:
        """Whether there is a text that belongs to no other event of the transcript."""
        if not texts.counts:
            return False
        return any(texts.take(text) for text in self._stored_texts(event))

    def _stored_texts(self, event: AgentResponse | UserInput) -> Iterator[str]:
        """Yield the text of an event as the session may have it.

        Secrets that the session showed later were not redacted in it.
        """
        writer = self._session.writer
        tag = writer.numbering(self._session.stream, self._state.numbers)
        no_secrets = writer.learned(SessionState(self._session.stream))
        for learned in (no_secrets, writer.learned(self._state)):
            with suppress(errors.EventTooLarge, errors.RedactionFailed):
                redacted = writer.redacted(
                    Draft(event),
                    user_id=self._session.user_id,
                    now=writer.clock(),
                    limits=_LIMITS,
                    unscanned="stub",
                    tag=tag,
                    learned=learned,
                ).event
                if isinstance(redacted, AgentResponse | UserInput):
                    yield _plain(redacted.text)
            if not self._state.learned:
                return


def _any_true(decisions: Sequence[bool | None]) -> bool | None:
    """Whether a decision is positive; None if there is none."""
    if True in decisions:
        return True
    return False if False in decisions else None


def _plain(text: str) -> str:
    """Return a text with single spaces, as clients may change the white space."""
    return " ".join(text.split())


def _is_of_answer(draft: Draft) -> bool:
    return isinstance(draft.event, AgentResponse | ToolCall)


def _is_prompt(draft: Draft) -> bool:
    """Whether a person wrote the input."""
    source = draft.meta.source or {}
    return isinstance(draft.event, UserInput) and not any(
        name in source for name in _OF_CLIENT
    )


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
