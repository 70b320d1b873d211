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
from refold.store.memory.consent import Wishes, wishes
from refold.store.memory.profile import profile_of

# The confidence that a line of the profile needs: the default of advice.
_CONFIDENCE: Final = 0.5
# The newest other sessions that layers are read from.
_MOST_SESSIONS: Final = 20
_MOST_FACTS: Final = 40
# The newest answers of a session in which one with a text is looked for.
_ANSWERS: Final = 10
_ANSWER_TYPES: Final = ("final", "agent_response")


def elsewhere(
    log: EventLog, stream: StreamId, wanted: Layers, last: events.Request | None
) -> CrossSessionLayers | None:
    """Return the texts of these layers from the user's other sessions, or None.

    last: the request whose layers are repeated, if all of their texts are still allowed
          and readable.
    """
    wishes_now = wishes(log, stream.user_id)
    if wishes_now.consent.memory_opt_out:
        return None
    finder = _Finder(log, stream, wanted, wishes_now)
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
    wishes: Wishes

    def refs(self) -> dict[str, Any]:
        """The places of the texts, in the form that ``read_layer_texts`` documents.

        The oldest text of a layer comes first, so that the newest one comes last.
        """
        names = self._other_sessions()
        about = self._about()
        cited: set[str] = set()
        for line in about:
            cited.update(line.cited)
        return {
            "about": [line.text.partition(";")[0] for line in about],
            "items": [line.memory_id for line in about],
            "cited": sorted(cited),
            "user": self._facts(names)[::-1] if self.wanted.user else [],
            "scope": self._scope(names)[::-1] if self.wanted.scope else [],
            "notes": self._notes(names)[::-1] if self.wanted.notes else [],
            "whole_placeholders": True,
        }

    def still_allows(self, refs: Mapping[str, Any]) -> bool:
        """Whether the lines about the user still hold, and the cited sessions exist."""
        if not refs["about"]:
            return True
        infos = self.log.sessions(self.stream.user_id)
        existing = {info.session_id for info in infos if info.status != "erased"}
        current = {line.memory_id for line in self._about()}
        return existing.issuperset(refs["cited"]) and current.issuperset(refs["items"])

    def _other_sessions(self) -> list[str]:
        """The user's newest sessions, except this one and those it was forked from."""
        # A fork already shows the events of its parents.
        shown = {self.stream.session_id}
        stream = self.stream
        origin = self.log.head(stream).state.forked_from
        while origin:
            parent, _ = origin
            shown.add(parent)
            stream = stream._replace(session_id=parent)
            origin = self.log.head(stream).state.forked_from

        def age(info: SessionInfo) -> tuple[Any, str]:
            return info.updated_at, info.session_id

        others = [
            info
            for info in self.log.sessions(self.stream.user_id)
            if not info.is_apart and info.session_id not in shown
        ]
        others.sort(key=age, reverse=True)
        return [info.session_id for info in others[:_MOST_SESSIONS]]

    def _about(self) -> list[Line]:
        """The lines of the profile that are certain enough; none without consent."""
        if not self.wanted.user or not self.wishes.consent.declarative_memory:
            return []
        user_id = self.stream.user_id
        infos = self.log.sessions(user_id)
        now = max((microseconds(info.updated_at) for info in infos), default=0)
        about = lines(profile_of(self.log, user_id, now), now)
        return [line for line in about if line.confidence >= _CONFIDENCE]

    def _read(self, name: str, event_type: str) -> list[Envelope]:
        """The events of one type of a session; none if it cannot be read."""
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            stream = self.stream._replace(session_id=name)
            return list(read_pages(self.log, stream, types=(event_type,)))
        return []

    def _facts(self, names: Sequence[str]) -> list[Any]:
        """For each session, the events that set a name which no newer event sets."""
        set_later: set[str] = set()
        places: list[Any] = []
        for name in names:
            seqs: list[int] = []
            for envelope in reversed(self._read(name, "state")):
                keys = set(user_names(envelope))
                if keys - set_later and len(set_later) < _MOST_FACTS:
                    seqs.append(envelope.seq)
                set_later |= keys
            if seqs:
                places.append([name, seqs[::-1]])
        return places

    def _notes(self, names: Sequence[str]) -> list[Any]:
        """The newest notes, up to as many lines as the layer may have."""
        notes = self.wanted.notes
        tool = notes.tool if notes else None
        lines_left = notes.max_lines if notes else 0
        places: list[Any] = []
        for name in names:
            seqs: list[int] = []
            for envelope in reversed(self._read(name, "tool_call")):
                count = len(note_lines(envelope, tool))
                if count and count <= lines_left:
                    seqs.append(envelope.seq)
                    lines_left -= count
            if seqs:
                places.append([name, seqs[::-1]])
        return places

    def _scope(self, names: Sequence[str]) -> list[Any]:
        """Digests of the newest sessions of the same project, within a token budget."""
        project = self._project()
        if project is None:
            return []
        infos = self.log.sessions(self.stream.user_id, labels={"project": project})
        same_project = {info.session_id for info in infos}
        tokens_left = self.wanted.scope_tokens
        places: list[Any] = []
        for name in names:
            digest = self._digest(name) if name in same_project else None
            if digest is None:
                continue
            tokens_left -= estimate_text(summary_or_answer(digest))
            if tokens_left < 0:
                break
            places.append([name, digest.stream, digest.seq])
        return places

    def _project(self) -> str | None:
        """The session's project label; None if the session is not found by it.

        It is not found by a label that redaction changed.
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

    def _digest(self, name: str) -> Envelope | None:
        """The event that stands for a session, or None.

        It is the newest digest of the scope, else the newest summary, else the last
        answer with a text.
        """
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            main = self.stream._replace(session_id=name)
            summaries: list[Envelope] = []
            for stream_name in self.log.streams(main.user_id, main.session_id):
                if stream_name == MAIN:
                    continue
                derived = main._replace(stream=stream_name)
                for entry in read_pages(self.log, derived, types=("summary",)):
                    if _kind(entry) != "notes":
                        summaries.append(entry)
            summaries.sort(
                key=lambda entry: (_kind(entry) == "scope", entry.at, entry.seq)
            )
            newest_answers = self.log.read(
                main, types=_ANSWER_TYPES, limit=_ANSWERS, newest=True
            )
            answers = [
                entry for entry in newest_answers if summary_or_answer(entry).strip()
            ]
            candidates = summaries or answers
            return candidates[-1] if candidates else None
        return None


def _kind(envelope: Envelope) -> str:
    """The kind of a summary."""
    return str(getattr(envelope.payload, "kind", ""))
