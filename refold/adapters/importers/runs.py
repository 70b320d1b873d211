"""The conversations in a file of a coding agent: the main one, and its sub-agents'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from refold.adapters.importers import base
from refold.domain.envelope import Mark
from refold.domain.events import EditReason

MAIN: Final = ""  # the name of the run of the main conversation


class Run:
    """The events of one conversation, and the entries that contexts of it show.

    Entries have keys, by which a session has each of them once.
    """

    def __init__(self, form: str, name: str) -> None:
        self.recording = base.Recording(form, name)
        self._visible: dict[str, None] = {}
        self._left_out: dict[str, None] = {}

    @property
    def visible(self) -> list[str]:
        """The keys of the entries that contexts show, without system prompts."""
        return [*self._visible]

    def has(self, key: str) -> bool:
        """Whether an entry with this key was recorded."""
        return key in self._visible or key in self._left_out

    def take(self, pieces: Iterable[base.PieceOrSkipped], origin: base.Origin) -> None:
        """Record the pieces of one entry."""
        pieces = list(pieces)
        before = self.recording.event_count
        self.recording.take(pieces, origin)
        is_recorded = self.recording.event_count > before
        if is_recorded and origin.key is not None and not _is_prompt(pieces):
            self._visible[origin.key] = None

    def show_only(
        self,
        keys: Sequence[str],
        origin: base.Origin,
        reason: EditReason,
        *,
        before_others: Sequence[str] = (),
    ) -> None:
        """Record that the client's history has only these entries from here on.

        before_others: entries, such as a summary, that contexts show first.
        """
        wanted = dict.fromkeys(key for key in keys if self.has(key))
        left_out = [key for key in self._visible if key not in wanted]
        restored = [key for key in wanted if key in self._left_out]
        if not left_out and not restored and not before_others:
            return
        mark = Mark(
            left_out=tuple(left_out),
            restored=tuple(restored),
            in_place=tuple(before_others),
        )
        self.recording.mark(mark, origin, reason)
        for key in left_out:
            del self._visible[key]
            self._left_out[key] = None
        for key in restored:
            del self._left_out[key]
        self._visible = wanted

    def leave_out(
        self, keys: Iterable[str], origin: base.Origin, reason: EditReason
    ) -> None:
        """Record that the client's history lacks these entries from here on."""
        left_out = tuple(key for key in keys if key in self._visible)
        if not left_out:
            return
        self.recording.mark(Mark(left_out=left_out), origin, reason)
        for key in left_out:
            del self._visible[key]
            self._left_out[key] = None

    def clear(self, key: str, text: str, origin: base.Origin) -> None:
        """Record that the client replaced the content of a result by this text."""
        mark = Mark(cleared=(key,))
        self.recording.mark(mark, origin, "clearing", cleared_text=text)


class Runs:
    """All conversations in a file."""

    def __init__(self, form: str, name: str) -> None:
        self._form = form
        self._name = name
        self._runs: dict[str, Run] = {}
        self.main = self.of(MAIN)

    def has(self, name: str) -> bool:
        """Whether a run of this name has begun."""
        return name in self._runs

    def of(self, name: str) -> Run:
        """Return the run of this name, which begins if there is none."""
        run = self._runs.get(name)
        if run is None:
            run = Run(self._form, self._name)
            self._runs[name] = run
        return run

    def transcripts(
        self,
        session: str,
        *,
        parent: str | None = None,
        title: str = "",
        folder: str = "",
    ) -> list[base.Transcript]:
        """Return the transcripts, the main conversation first.

        session: the name of the main conversation.
        parent:  the conversation that started it, if it is a sub-agent's.
        """
        if parent and session:
            name = base.session_name(f"{parent}~{session}")
            main = self.main.recording.transcript(name, parent=parent)
        else:
            main = self.main.recording.transcript(session)
        transcripts: list[base.Transcript] = []
        for run_name, run in self._runs.items():
            if run_name == MAIN:
                continue
            name = base.session_name(f"{session}~{run_name}") if session else ""
            transcript = run.recording.transcript(name, parent=session or None)
            transcripts.append(replace(transcript, folder=folder))
        if transcripts and not main.drafts:  # the file of a sub-agent
            first = transcripts[0]
            transcripts[0] = replace(first, skipped=(*main.skipped, *first.skipped))
            return transcripts
        return [replace(main, title=title, folder=folder), *transcripts]


def _is_prompt(pieces: Iterable[base.PieceOrSkipped]) -> bool:
    """Whether an entry is the system prompt, which no client leaves out."""
    for piece in pieces:
        if isinstance(piece, base.Piece):
            is_system = piece.type == "system"
            return is_system and piece.fields.get("where") != "conversation"
    return False
