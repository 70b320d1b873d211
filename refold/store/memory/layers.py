"""The texts of memory layers from the user's other sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from refold.domain import errors, events
from refold.domain.envelope import Envelope, microseconds
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, SessionInfo
from refold.domain.session import labels_in
from refold.domain.tokens import estimate_text
from refold.projections.context.budget import CrossSessionLayers
from refold.projections.context.compaction import note_lines
from refold.projections.context.strategy import Layers, user_names
from refold.projections.memory.advice import Line
from refold.projections.memory.profile import lines
from refold.store.history import (
    read_extras,
    read_layer_texts,
    read_pages,
    summary_or_answer,
)
from refold.store.memory.consent import UserDecisions, read_decisions
from refold.store.memory.profile import profile_of

# The confidence that a line of the profile needs: the default of advice.
_CONFIDENCE: Final = 0.5
# Layers are read from this many of the newest other sessions.
_MOST_SESSIONS: Final = 20
# The layer about the user has values of about this many names.
_MOST_FACTS: Final = 40
# An answer with a text is searched for among this many of a session's newest answers.
_MOST_ANSWERS: Final = 10
_ANSWER_TYPES: Final = ("final", "agent_response")


def cross_session_layers(
    log: EventLog, stream: StreamId, wanted: Layers, last: events.Request | None
) -> CrossSessionLayers | None:
    """Return the texts of these layers from the user's other sessions, or None.

    last: the request whose layers are repeated if all of their texts may still be shown
          and can be read.
    """
    decisions = read_decisions(log, stream.user_id)
    if decisions.consent.memory_opt_out:
        return None
    finder = _Finder(log, stream, wanted, decisions)
    if last is not None:
        with suppress(errors.Expired):
            layers = read_extras(log, stream, last).layers
            if layers is None or finder.still_allows(layers.refs):
                return layers
    refs = finder.refs()
    texts = read_layer_texts(log, stream.user_id, refs)
    return CrossSessionLayers(refs, texts) if texts else None


class _Finder(NamedTuple):
    """Finds the texts of layers in the user's other sessions, the newest first."""

    log: EventLog
    stream: StreamId
    wanted: Layers
    decisions: UserDecisions

    def refs(self) -> dict[str, Any]:
        """Return where the texts are, in the form that ``read_layer_texts`` documents.

        In each layer, the newest text comes last.
        """
        session_ids = self._other_sessions()
        about = self._profile_lines()
        cited: set[str] = set()
        for line in about:
            cited.update(line.cited)
        facts: list[Any] = []
        digests: list[Any] = []
        notes: list[Any] = []
        if self.wanted.user:
            facts = self._facts(session_ids)
        if self.wanted.scope:
            digests = self._digests(session_ids)
        if self.wanted.notes:
            notes = self._notes(session_ids)
        return {
            "about": [line.statement for line in about],
            "items": [line.memory_id for line in about],
            "cited": sorted(cited),
            "user": facts[::-1],
            "scope": digests[::-1],
            "notes": notes[::-1],
            "whole_placeholders": True,
        }

    def still_allows(self, refs: Mapping[str, Any]) -> bool:
        """Whether the lines about the user are current, and their sessions exist."""
        if not refs["about"]:
            return True
        infos = self.log.sessions(self.stream.user_id)
        existing = {info.session_id for info in infos if info.status != "erased"}
        current = {line.memory_id for line in self._profile_lines()}
        return existing.issuperset(refs["cited"]) and current.issuperset(refs["items"])

    def _other_sessions(self) -> list[str]:
        """Return the user's newest sessions, except this one and its parents.

        A fork already shows the events of its parents.
        """
        shown = {self.stream.session_id}
        stream = self.stream
        origin = self.log.head(stream).state.forked_from
        while origin:
            parent, _ = origin
            shown.add(parent)
            stream = stream._replace(session_id=parent)
            origin = self.log.head(stream).state.forked_from

        def last_update(info: SessionInfo) -> tuple[Any, str]:
            return info.updated_at, info.session_id

        others = [
            info
            for info in self.log.sessions(self.stream.user_id)
            if not info.is_erased_or_internal and info.session_id not in shown
        ]
        others.sort(key=last_update, reverse=True)
        return [info.session_id for info in others[:_MOST_SESSIONS]]

    def _profile_lines(self) -> list[Line]:
        """Return the profile's lines that are certain enough; none without consent."""
        if not self.wanted.user or not self.decisions.consent.declarative_memory:
            return []
        user_id = self.stream.user_id
        infos = self.log.sessions(user_id)
        now = max((microseconds(info.updated_at) for info in infos), default=0)
        about = lines(profile_of(self.log, user_id, now), now)
        return [line for line in about if line.confidence >= _CONFIDENCE]

    def _read(self, session_id: str, event_type: str) -> list[Envelope]:
        """Return the events of one type of a session; none if it cannot be read."""
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            stream = self.stream._replace(session_id=session_id)
            return list(read_pages(self.log, stream, types=(event_type,)))
        return []

    def _facts(self, session_ids: Sequence[str]) -> list[Any]:
        """Return, for each session, the events that set the current value of a name.

        An event counts if it sets at least one name that no newer event sets.
        """
        set_later: set[str] = set()
        places: list[Any] = []
        for session_id in session_ids:
            seqs: list[int] = []
            for envelope in reversed(self._read(session_id, "state")):
                names = set(user_names(envelope))
                has_current_value = not names <= set_later
                if has_current_value and len(set_later) < _MOST_FACTS:
                    seqs.append(envelope.seq)
                set_later |= names
            if seqs:
                places.append([session_id, seqs[::-1]])
        return places

    def _notes(self, session_ids: Sequence[str]) -> list[Any]:
        """Return the newest notes that fit the number of lines of the layer."""
        notes = self.wanted.notes
        tool = notes.tool if notes else None
        lines_left = notes.max_lines if notes else 0
        places: list[Any] = []
        for session_id in session_ids:
            seqs: list[int] = []
            for envelope in reversed(self._read(session_id, "tool_call")):
                count = len(note_lines(envelope, tool))
                if count and count <= lines_left:
                    seqs.append(envelope.seq)
                    lines_left -= count
            if seqs:
                places.append([session_id, seqs[::-1]])
        return places

    def _digests(self, session_ids: Sequence[str]) -> list[Any]:
        """Return digests of the project's newest sessions, within a token budget."""
        project = self._project()
        if project is None:
            return []
        infos = self.log.sessions(self.stream.user_id, labels={"project": project})
        same_project = {info.session_id for info in infos}
        tokens_left = self.wanted.scope_tokens
        places: list[Any] = []
        for session_id in session_ids:
            if session_id not in same_project:
                continue
            digest = self._digest(session_id)
            if digest is None:
                continue
            tokens_left -= estimate_text(summary_or_answer(digest))
            if tokens_left < 0:
                break
            places.append([session_id, digest.stream, digest.seq])
        return places

    def _project(self) -> str | None:
        """Return the session's project label, or None if it has none.

        Returns None, too, if redaction changed the label: a search by the label would
        not find the session.
        """
        value: str | None = None
        for envelope in read_pages(self.log, self.stream, types=("state",)):
            value = labels_in(envelope.payload).get("project", value)
        if value is None:
            return None
        infos = self.log.sessions(
            self.stream.user_id,
            session_id=self.stream.session_id,
            labels={"project": value},
        )
        return value if infos else None

    def _digest(self, session_id: str) -> Envelope | None:
        """Return the event whose text stands for a session, or None.

        This is the newest digest of the scope, else the newest summary, else the last
        answer with a text.
        """
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            main = self.stream._replace(session_id=session_id)
            summaries: list[Envelope] = []
            for stream_name in self.log.streams(main.user_id, main.session_id):
                if stream_name == MAIN:
                    continue
                derived = main._replace(stream=stream_name)
                for entry in read_pages(self.log, derived, types=("summary",)):
                    if _kind(entry) != "notes":
                        summaries.append(entry)
            if summaries:
                return sorted(summaries, key=_digest_rank)[-1]
            answers = self.log.read(
                main, types=_ANSWER_TYPES, limit=_MOST_ANSWERS, newest=True
            )
            for answer in reversed(answers):
                if summary_or_answer(answer).strip():
                    return answer
        return None


def _digest_rank(summary: Envelope) -> tuple[bool, Any, int]:
    """Rank digests of the scope above other summaries, and then newer ones above."""
    return _kind(summary) == "scope", summary.at, summary.seq


def _kind(envelope: Envelope) -> str:
    """Return the kind of a summary; empty for another event."""
    return str(getattr(envelope.payload, "kind", ""))
