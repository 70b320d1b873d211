"""Claude Code's session files: each line is an entry with one block of a message."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from refold.adapters.importers import attachments, base, decisions, messages
from refold.adapters.importers.branches import (
    NO_CHANGES,
    Branches,
    Change,
    Changes,
)
from refold.adapters.importers.identity import Identities
from refold.adapters.importers.unrecorded import Unrecorded
from refold.domain.envelope import NO_META, Draft, Format, Meta, Native
from refold.domain.events import JsonObject, ProviderEdit, is_unreached
from refold.domain.ids import unknown_response_id

NAME = "claude-code"
# The folder with the files of a session's sub-agents.
SUB_AGENTS: Final = "subagents"
_MAIN = ""  # the name of the run of the main conversation
# A run without an agent's id is named by this many digits of its first entry's id.
_NAME_DIGITS: Final = 8
# The types of entries that are no part of a conversation, and what the report says.
_NOTES = {
    "summary": "session title",
    "system": "notice of the client, no message",
    "file-history-snapshot": "snapshot of files that the client keeps for undo",
    "progress": "progress report",
}
_NOTE = "note of the client, not part of the conversation"
_NOTES_ON_SESSION = ("agent-color", "agent-name", "ai-title", "custom-title", "tag")
_NOTES_ON_WORK = (
    "last-prompt",
    "mode",
    "permission-mode",
    "pr-link",
    "worktree-state",
)
for _type in _NOTES_ON_SESSION + _NOTES_ON_WORK:
    _NOTES[_type] = _NOTE
QUEUE: Final = "queue-operation"
_TYPES_WITHOUT_MESSAGE: Final = frozenset({*_NOTES, QUEUE, "attachment"})
# The flags of an entry, by the names that ``meta.source`` gives them.
_FLAGS = {
    "isMeta": "meta",
    "isCompactSummary": "compact_summary",
    "isVisibleInTranscriptOnly": "transcript_only",
}
# The fields with the duration of a call, and their units in milliseconds.
_DURATIONS = {"durationMs": 1.0, "totalDurationMs": 1.0, "durationSeconds": 1000.0}
# The rules by which events are added that no entry records.
_SENT_AGAIN: Final = "files sent again after a compaction"
_RESUMED: Final = "context of a resumed session"
_CLEARED: Final = "results cleared without a record"
_COMMAND: Final = re.compile(r"/[a-z][\w:-]*(\s|$)")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][\w.-]{0,39}")


def recognises(source: base.Source) -> bool:
    """Whether a file has the entries of Claude Code.

    The first message must have one of Claude Code's own fields.  Only entries without a
    message may come before it.  A file without any message is recognized by these.
    """
    has_entries = False
    for line in source.lines():
        entry = base.mapping(line.value)
        if entry.get("type") in ("user", "assistant"):
            own_fields = entry.keys() & {"sessionId", "parentUuid", "isSidechain"}
            if "parts" in base.mapping(entry, "message"):  # an entry of Qwen Code
                return False
            return bool(own_fields) and isinstance(entry.get("message"), dict | str)
        if base.text(entry, "type") not in _TYPES_WITHOUT_MESSAGE or "role" in entry:
            return False
        if "prev_hash" in entry:  # an event that Refold exported
            return False
        has_entries = True
    return has_entries


def read(source: base.Source) -> Iterable[base.Transcript]:
    """Return the transcripts of the main conversation and of each sub-agent's run."""
    conversations = _Conversations(source)
    for line in source.lines():
        conversations.take(line)
    return conversations.transcripts()


def session_of_file(path: Path, sessions: Iterable[str]) -> str:
    """Return the session that a file belongs to; an empty text if it names none.

    A resumed session begins with entries of the session that it continues, so a file
    may name several.  The name of the file decides, if its entries name that session
    too.  Otherwise it is the first one that they name.

    sessions: the sessions that the entries name, in order.
    """
    session_in_path = session_in_name(path)
    first = ""
    for session in sessions:
        if session == session_in_path:
            return session
        first = first or session
    return first


def session_in_name(path: Path) -> str:
    """Return the session in the name of a file.

    The file of a sub-agent is ``SESSION/subagents/agent-….jsonl``.  A file that was
    moved aside has another suffix after ``.jsonl``.
    """
    if path.parent.name == SUB_AGENTS:
        return path.parent.parent.name
    return path.name.partition(".jsonl")[0]


def sub_agents_of(path: Path) -> list[Path]:
    """Return the files of the sub-agents that the session in ``path`` started."""
    if path.suffix != ".jsonl":
        return []
    folder = path.with_suffix("") / SUB_AGENTS
    try:
        return sorted(folder.rglob("agent-*.jsonl"))
    except OSError:
        return []


class SubAgentRuns:
    """Assigns each entry of a file to the run of a sub-agent, in order of the entries.

    A run has the name of its agent's id.  Old versions of the client wrote no such id:
    then the name is the beginning of the id of the run's first entry.
    """

    def __init__(self) -> None:
        self._run_by_entry: dict[str, str] = {}

    def run_of(self, entry: dict[str, Any], place: str = "") -> str:
        """Return the name of an entry's run; empty for the main conversation.

        place: names the run if neither the agent nor the entry has an id.
        """
        if entry.get("isSidechain") is not True:
            return _MAIN
        uuid = base.text(entry, "uuid")
        run = base.text(entry, "agentId")
        if run is None:
            for field in ("parentUuid", "logicalParentUuid"):
                parent = base.text(entry, field) or ""
                run = run or self._run_by_entry.get(parent)
        if run is None:
            run = (uuid or place)[:_NAME_DIGITS]
        if uuid:
            self._run_by_entry[uuid] = run
        return run


class Queued(NamedTuple):
    """A message that the user typed while the agent worked.

    entry: the record of the queue in which the message arrived.
    key:   of that record.
    """

    place: str
    entry: dict[str, Any]
    key: str | None

    @property
    def text(self) -> str:
        """The text of the message."""
        return _plain(self.entry.get("content"))

    @property
    def is_command(self) -> bool:
        """Whether it is a command for the client, such as ``/compact``."""
        return _COMMAND.match(self.text) is not None

    @property
    def input_key(self) -> str | None:
        """The key of the input event that the message became when it was sent."""
        return None if self.key is None else f"{self.key}\0sent"

    def drafts(self) -> list[Draft]:
        """Return the inputs that the message became, as a capture appends them."""
        origin = _origin(self.entry, "")
        origin.source["queued"] = True
        pieces = messages.user(self.entry.get("content"))
        drafts: list[Draft] = []
        key = self.input_key
        for draft in base.drafts_of(pieces, origin):
            drafts.append(replace(draft, key=key))
            key = f"{self.input_key}\0more"
        return drafts


class MessageQueue:
    """Finds the messages that were typed while the agent worked, and sent to the model.

    A message that leaves the queue while the agent works is sent to the model.  Some
    versions of the client write an entry for it too, and others only the records of the
    queue.  Without an entry, the message is imported from its record.

    notes: for the report: the place of each record, and what became of its message.
    """

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self._waiting: list[Queued] = []
        # The messages that left the queue since the model's last answer.
        self._left: list[Queued] = []
        # The entry of each text of the user: the number of queue records before it, and
        # its place.  The last entry with the text counts.
        self._entries: dict[str, tuple[int, str]] = {}
        # The number of the record in which each text arrived.
        self._arrivals: dict[str, int] = {}
        self._record_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether no message is in the queue, or left it since the last answer."""
        return not (self._waiting or self._left)

    def take_record(self, record: Queued) -> None:
        """Take the next record of the queue."""
        self._record_count += 1
        operation = base.text(record.entry, "operation")
        if operation == "enqueue":
            self._waiting.append(record)
            self._arrivals[record.text] = self._record_count
            return
        if operation in ("dequeue", "remove"):
            self._remove(record)
            why = "queue record: a message left the queue"
        elif operation == "popAll":
            for queued in self._waiting:
                why = "queued message that the user took back"
                self.notes.append((queued.place, why))
            self._waiting = []
            why = "queue record: the user took the messages back"
        else:
            why = "queue record of an unknown kind"
        self.notes.append((record.place, why))

    def _remove(self, record: Queued) -> None:
        """Remove the message that the record names, or the oldest if it names none."""
        for queued in self._waiting:
            if not record.text or queued.text == record.text:
                self._waiting.remove(queued)
                self._left.append(queued)
                return

    def take_entry(self, entry: dict[str, Any], place: str) -> None:
        """Remember the texts in an entry of the user."""
        for text in _user_texts(entry):
            self._entries[text] = (self._record_count, place)

    def take_answer(self) -> list[Queued]:
        """Take an answer of the model; return the messages that were sent before it.

        Messages with an entry of their own are left out.
        """
        sent: list[Queued] = []
        unsent: list[Queued] = []
        for queued in self._left:
            if self._has_entry(queued):
                continue
            if queued.is_command or not queued.text:
                unsent.append(queued)
            else:
                why = "queue record; its message is imported as an input"
                self.notes.append((queued.place, why))
                sent.append(queued)
        self._left = unsent
        return sent

    def unsent(self) -> list[Queued]:
        """Return the messages that no entry shows to be sent.

        The file must have been read to its end.
        """
        unsent: list[Queued] = []
        for queued in (*self._left, *self._waiting):
            if not self._has_entry(queued):
                unsent.append(queued)
        return unsent

    def _has_entry(self, queued: Queued) -> bool:
        """Whether an entry after the arrival has the message; this is noted."""
        records_before, place = self._entries.get(queued.text, (0, ""))
        if records_before < self._arrivals[queued.text]:
            return False
        why = "queue record; its message is imported from an entry of its own"
        self.notes.append((f"{queued.place}, message in {place}", why))
        return True


class SentAgain(NamedTuple):
    """A file that the client sent again after a compaction, without recording it.

    entry:      the entry before which it was sent.
    attachment: the file in the form in which later versions of the client record it.
    """

    entry: dict[str, Any]
    attachment: dict[str, Any]
    key: str | None

    def pieces(self) -> list[base.PieceOrSkipped]:
        """Return the event of the file; none if it has no text."""
        text = attachments.text_of(self.attachment)
        if text is None:
            return []
        return [base.Piece("system", {"text": text, "where": "conversation"})]

    def drafts(self) -> list[Draft]:
        """Return the event of the file, as a capture appends it."""
        origin = base.Origin("", ts=base.moment(self.entry, "timestamp"))
        drafts: list[Draft] = []
        for draft in base.drafts_of(self.pieces(), origin):
            meta = draft.meta.model_copy(update={"source": self.source})
            drafts.append(replace(draft, key=self.key, meta=meta))
        return drafts

    @property
    def source(self) -> JsonObject:
        """The type of the attachment, and the rule that stands in for a record."""
        return {"attachment": self.attachment["type"], "rule": _SENT_AGAIN}


class ImpliedEvents(NamedTuple):
    """The events that an entry implies, apart from those of its own content.

    files:   that the client sent again before the entry.
    sent:    queued messages that the client sent before the entry.
    changes: of the client to its history, before and after the entry.
    """

    files: tuple[SentAgain, ...] = ()
    sent: tuple[Queued, ...] = ()
    changes: Changes = NO_CHANGES

    def drafts_before(self) -> list[Draft]:
        """Return the files and messages before the entry, as a capture appends them."""
        drafts: list[Draft] = []
        for file in self.files:
            drafts += file.drafts()
        for queued in self.sent:
            drafts += queued.drafts()
        return drafts


class FileMemory:
    """Remembers the entries of a file, because later entries depend on them.

    It finds out what each entry implies: files that the client sent again, queued
    messages that it sent, and changes to its history.
    """

    def __init__(self) -> None:
        self.identities = Identities()
        self.runs = SubAgentRuns()
        self.queue = MessageQueue()
        self._branches = defaultdict[str, Branches](Branches)
        self._unrecorded = defaultdict[str, Unrecorded](Unrecorded)
        # The runs whose history the client changed since the last answer.
        self._changed_runs: set[str] = set()

    def take(
        self, entry: dict[str, Any], native: Native, place: str = "", run: str = _MAIN
    ) -> ImpliedEvents:
        """Take the next entry; return the events that it implies.

        native: the entry as the log stores it.
        run:    the name of the entry's run.
        """
        if entry.get("type") == QUEUE:
            self.queue.take_record(Queued(place, entry, native.key))
            return ImpliedEvents()
        files: list[SentAgain] = []
        before: list[Change] = []
        if not is_for_user_only(entry):
            files, before = self._unrecorded_before(entry, native, run)
        branches = self._branches[run]
        sent: list[Queued] = []
        if entry.get("type") == "assistant" and entry.get("isSidechain") is not True:
            sent = self.queue.take_answer()
            for queued in sent:
                if queued.input_key is not None:
                    branches.add((queued.input_key,))
        self.queue.take_entry(entry, place)
        changes = branches.take(entry, _keys(entry, native), is_message=_is_sent(entry))
        changes = changes._replace(before=(*before, *changes.before))
        if changes.before or changes.after:
            self._changed_runs.add(run)
        elif entry.get("type") == "assistant":
            self._changed_runs.discard(run)
        return ImpliedEvents(tuple(files), tuple(sent), changes)

    def _unrecorded_before(
        self, entry: dict[str, Any], native: Native, run: str
    ) -> tuple[list[SentAgain], list[Change]]:
        """Return what the client did before an entry without recording it.

        This is the files that it sent again, and the changes to its history.
        """
        branches = self._branches[run]
        unrecorded = self._unrecorded[run].take(entry)
        # A bill that falls without a change of the history shows a resumed session.
        fell_without_change = unrecorded.fell and run not in self._changed_runs
        changes: list[Change] = []
        if unrecorded.resumed or fell_without_change:
            resumed = branches.resumed(
                base.text(entry, "parentUuid"),
                loses_parallel_results=unrecorded.loses_parallel_results,
            )
            changes += _with_rule(resumed, _RESUMED)
        changes += _with_rule(branches.cleared(unrecorded.cleared), _CLEARED)
        files: list[SentAgain] = []
        for attachment in unrecorded.files:
            key = None if native.key is None else f"{native.key}\0file{len(files)}"
            files.append(SentAgain(entry, attachment, key))
            if key is not None:
                branches.add((key,))
        return files, changes

    def is_continued(self, entry: dict[str, Any], run: str = _MAIN) -> bool:
        """Whether the next entry changes no history if it names this one as its parent.

        Then a capture can append it without reading the entries before it.
        """
        if self._unrecorded[run].next_may_need_before(entry):
            return False
        uuid = base.text(entry, "uuid")
        return uuid is not None and self._branches[run].ends_with(uuid)


def _is_sent(entry: dict[str, Any]) -> bool:
    """Whether an entry is part of the conversation with the model."""
    if entry.get("type") in ("user", "assistant", "attachment"):
        return not is_for_user_only(entry)
    return _is_local_command(entry)


def is_for_user_only(entry: dict[str, Any]) -> bool:
    """Whether the client shows an entry to the user only, and never sends it."""
    is_hidden = entry.get("isVisibleInTranscriptOnly") is True
    return is_hidden and entry.get("isCompactSummary") is not True


def _is_local_command(entry: dict[str, Any]) -> bool:
    """Whether an entry has the output of a client's command, which the model reads."""
    return entry.get("type") == "system" and entry.get("subtype") == "local_command"


def _keys(entry: dict[str, Any], native: Native) -> tuple[str, ...]:
    """Return the keys that the drafts of an entry may have."""
    if native.key is None:
        return ()
    content = _content(entry)
    others: list[str] = []
    if isinstance(content, list):
        # At most one draft more than there are blocks.
        for number in range(1, len(content) + 2):
            others.append(f"{native.key}\0{number}")
    return (native.key, *others)


def mark_key(key: str | None, *, number: int) -> str:
    """Return the key of a change to the history that an entry shows.

    key:    the entry's own.
    number: of the change, among those that the entry shows.
    """
    return f"{key}\0edit{number}"


def _with_rule(changes: Iterable[Change], rule: str) -> list[Change]:
    """Return the changes, each with the rule that found it since no entry has it."""
    return [change._replace(rule=rule) for change in changes]


def edit_drafts(
    changes: Iterable[Change], entry: dict[str, Any], key: str | None, *, first: int = 0
) -> list[Draft]:
    """Return the changes to the history that an entry shows, as a capture appends them.

    key:   of the entry.
    first: the number of the first change.
    """
    drafts: list[Draft] = []
    for number, change in enumerate(changes, start=first):
        edit = ProviderEdit(reason=change.reason, cleared_text=change.cleared_text)
        draft = Draft(
            edit,
            base.moment(entry, "timestamp"),
            key=mark_key(key, number=number),
            mark=change.mark,
            meta=Meta(source={"rule": change.rule}) if change.rule else NO_META,
        )
        drafts.append(draft)
    return drafts


class Titles:
    """Finds the title of a session in the records of the client.

    A title that a person chose goes before one that the client made.  A ``summary``
    names the last entry of its conversation, and may be one of another session.
    """

    def __init__(self) -> None:
        self._chosen = ""
        self._made = ""
        self._entries: set[str] = set()
        # The title of each conversation, by the id of its last entry.
        self._summaries: dict[str, str] = {}

    def take(self, entry: dict[str, Any]) -> None:
        """Take the next entry of the file."""
        uuid = base.text(entry, "uuid")
        if uuid:
            self._entries.add(uuid)
        match entry.get("type"):
            case "custom-title":
                self._chosen = base.text(entry, "customTitle") or self._chosen
            case "ai-title":
                self._made = base.text(entry, "aiTitle") or self._made
            case "summary":
                leaf = base.text(entry, "leafUuid")
                title = base.text(entry, "summary")
                if leaf and title:
                    self._summaries[leaf] = title

    def title(self) -> str:
        """Return the title; an empty text if the file has none of its session."""
        own = [
            title for leaf, title in self._summaries.items() if leaf in self._entries
        ]
        return self._chosen or self._made or (own[-1] if own else "")


class _Conversations:
    """Collects the main conversation in a file, and the runs of sub-agents."""

    def __init__(self, source: base.Source) -> None:
        new_recording = partial(base.Recording, NAME, source.name)
        self._path = source.path
        self._recordings = defaultdict[str, base.Recording](new_recording)
        # Reports entries that belong to no conversation.
        self._outside = new_recording()
        # The names of the runs that have events, in order.
        self._begun: dict[str, None] = {}
        # The first line of each entry, by the entry's id.
        self._lines: dict[str, base.Line] = {}
        # The sessions that the entries name, in order.
        self._sessions: dict[str, None] = {}
        self._memory = FileMemory()
        self._titles = Titles()
        self._folder = ""
        self._exported = base.ExportedEntries()

    def take(self, line: base.Line) -> None:
        """Take the next line of the file."""
        place = f"line {line.number}"
        entry = base.mapping(line.value)
        uuid = base.text(entry, "uuid")
        native = self._memory.identities.native(FORMAT, entry)
        if uuid:
            first = self._lines.setdefault(uuid, line)
            if first is not line:
                self._skip_repeated(first, line, place)
                return
        self._exported.take(entry, native.key)
        session = base.session_name(entry, "sessionId")
        if session:
            self._sessions.setdefault(session)
        self._folder = self._folder or base.text(entry, "cwd") or ""
        run = self._memory.runs.run_of(entry, place)
        implied = self._memory.take(entry, native, place, run)
        for file in implied.files:
            origin = base.Origin(
                place,
                ts=base.moment(entry, "timestamp"),
                source=file.source,
                key=file.key,
            )
            self._record(run, file.pieces(), origin)
        for queued in implied.sent:
            origin = self._origin(queued.entry, queued.place, queued.input_key)
            origin.source["queued"] = True
            self._record(_MAIN, messages.user(queued.entry.get("content")), origin)
        kind = base.text(entry, "type")
        self._titles.take(entry)
        if kind == QUEUE:
            return
        changes = implied.changes
        if changes.note:
            self._outside.skip(changes.note, place, note=True)
        origin = self._origin(entry, place, native.key)
        self._record_changes(run, changes.before, origin, first=0)
        pieces = _pieces_of(entry)
        if isinstance(pieces, str):
            is_note = kind in _TYPES_WITHOUT_MESSAGE or is_for_user_only(entry)
            self._outside.skip(pieces, place, note=is_note)
        else:
            self._record(run, pieces, origin)
        self._record_changes(run, changes.after, origin, first=len(changes.before))

    def _record_changes(
        self, run: str, changes: Iterable[Change], entry: base.Origin, *, first: int
    ) -> None:
        """Record what the client changed in its history.

        entry: the origin of the events of the entry that shows the changes.
        first: the number of the first change.
        """
        for number, change in enumerate(changes, start=first):
            origin = replace(entry, key=mark_key(entry.key, number=number), usage=None)
            if change.rule:
                origin = replace(origin, source={**origin.source, "rule": change.rule})
            self._recordings[run].mark(
                change.mark, origin, change.reason, cleared_text=change.cleared_text
            )

    def transcripts(self) -> list[base.Transcript]:
        """Return the transcripts, in the order in which the conversations began.

        The first one also reports the entries that belong to no conversation.
        """
        for queued in self._memory.queue.unsent():
            item = {"format": NAME, "kind": QUEUE, "value": queued.entry}
            origin = self._origin(queued.entry, queued.place, queued.key)
            self._record(_MAIN, [base.Piece("item", item)], origin)
        for place, why in self._memory.queue.notes:
            self._outside.skip(why, place, note=True)
        without_events = [run for run in self._recordings if run not in self._begun]
        runs = [*self._begun, *without_events] or [_MAIN]
        session = session_of_file(self._path, self._sessions)
        first, *others = [self._transcript(run, session) for run in runs]
        skipped = (*first.skipped, *self._outside.transcript("").skipped)
        title = self._titles.title()
        exported = self._exported.exported()
        main = replace(first, skipped=skipped, title=title, exported=exported)
        return [replace(each, folder=self._folder) for each in (main, *others)]

    def _record(
        self, run: str, pieces: Iterable[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        """Record pieces of the entry with this origin in the conversation of a run."""
        recording = self._recordings[run]
        recording.take(pieces, origin)
        if recording.begun:
            self._begun.setdefault(run)

    def _skip_repeated(self, first: base.Line, line: base.Line, place: str) -> None:
        """Report an entry that has the id of an earlier one."""
        places = f"{place}, first in line {first.number}"
        if first.raw == line.raw:
            self._outside.skip("entry that stands before it already", places, note=True)
        else:
            why = "entry with the id of an earlier one and other content"
            self._outside.skip(why, places)

    def _transcript(self, run: str, session: str) -> base.Transcript:
        """Return the transcript of a run.

        session: of the file; an empty text if its entries name none.
        """
        recording = self._recordings[run]
        if run == _MAIN:
            return recording.transcript(session)
        if not session:
            return recording.transcript("")
        name = base.session_name(f"{session}~{run}")
        return recording.transcript(name, parent=session)

    def _origin(
        self, entry: dict[str, Any], place: str, key: str | None
    ) -> base.Origin:
        """Return the origin of an entry's events.

        It names the session of an entry that a resumed session took over.
        """
        origin = replace(_origin(entry, place), key=key)
        session = base.session_name(entry, "sessionId")
        if session and session != next(iter(self._sessions)):
            origin.source["session"] = session
        return origin


def _plain(content: Any) -> str:
    """Return the texts of a content, joined, with single spaces."""
    texts = messages.only_texts(content) or []
    return " ".join(" ".join(texts).split())


def _user_texts(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a user's entry: all of it, then each block of its own."""
    content = _content(entry)
    if _is_queued(entry):
        content = base.at(entry, "attachment", "prompt")
    elif entry.get("type") != "user":
        return
    text = _plain(content)
    if text:
        yield text
    if isinstance(content, list):
        for block in content:
            block_text = messages.text_of(block)
            if block_text:
                yield " ".join(block_text.split())


def _origin(entry: dict[str, Any], place: str) -> base.Origin:
    """Return the fields that the events of an entry share."""
    source: JsonObject = {}
    for name, field in (("id", "uuid"), ("parent", "parentUuid")):
        if base.text(entry, field):
            source[name] = entry[field]
    for flag, name in _FLAGS.items():
        if entry.get(flag) is True:
            source[name] = True
    if entry.get("type") == "attachment" and not _is_queued(entry):
        kind = base.text(entry, "attachment", "type") or ""
        if _IDENTIFIER.fullmatch(kind):
            source["attachment"] = kind
    elif entry.get("type") == "attachment":
        mode = base.at(entry, "attachment", "commandMode")
        is_typed = mode in (None, "prompt")
        source["queued"] = True
        if base.at(entry, "attachment", "isMeta") is True or not is_typed:
            source["meta"] = True
    message = base.mapping(entry, "message")
    is_of_model = entry.get("type") == "assistant"
    response = base.text(message, "id")
    response = response or unknown_response_id(entry.get("uuid") or place)
    return base.Origin(
        place,
        ts=base.moment(entry, "timestamp"),
        request_id=base.text(entry, "requestId"),
        agent=base.text(entry, "agentId"),
        model=base.text(message, "model"),
        response_id=response if is_of_model else None,
        usage=base.mapping(message, "usage") or None,
        source=source,
    )


def _events_of(_: str, value: Any, __: object) -> Iterator[Draft]:
    """Return the events of an entry that the log stores as an item."""
    entry = base.mapping(value)
    pieces = _pieces_of(entry)
    if isinstance(pieces, str):
        return iter(())
    return base.drafts_of(pieces, _origin(entry, ""))


# The format of a line of a session file, as an item of the log.
FORMAT = Format(
    NAME,
    view=_events_of,
    kind=lambda entry: base.text(entry, "type") or "",
    id=lambda entry: base.text(entry, "uuid"),
    is_transcript=True,
)


def _pieces_of(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped] | str:
    """Return the pieces of an entry, or the reason that it has none."""
    if is_for_user_only(entry):
        return "shown to the user alone, and never sent to the model"
    if _is_local_command(entry):
        return iter(messages.user(entry.get("content")))
    kind = entry.get("type")
    if kind == "user" or _is_queued(entry):
        return decisions.in_claude_code(_user(entry), entry)
    if kind == "assistant":
        return decisions.in_claude_code(_assistant(entry), entry)
    if base.at(entry, "attachment", "type") == "hook_permission_decision":
        return decisions.in_attachment(entry)
    if entry.get("subtype") == "compact_boundary":
        return "mark of a compaction, which contexts follow"
    if entry.get("subtype") == "microcompact_boundary":
        return "mark of results that the client cleared, which contexts follow"
    if kind == "attachment":
        attachment = base.mapping(entry, "attachment")
        image = attachments.image_of(attachment)
        if image is not None:
            return iter([image])
        text = attachments.text_of(attachment)
        if text is not None:
            fields = {"text": text, "where": "conversation"}
            return iter([base.Piece("system", fields)])
        return _why_left_out(attachment)
    if not isinstance(kind, str):
        return "not an entry: no object with a type"
    return _NOTES.get(kind, "entry of an unknown type")


def _why_left_out(attachment: dict[str, Any]) -> str:
    """Return the reason that an attachment becomes no event."""
    kind = base.text(attachment, "type") or ""
    name = f" ({kind})" if _IDENTIFIER.fullmatch(kind) else ""
    if attachments.is_never_sent(attachment):
        return f"note of the client for itself{name}, never sent to the model"
    return (
        f"context that the client attached{name}: the model may have seen it, and "
        "contexts do not show it"
    )


def _user(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the inputs and the results of calls in a user's entry."""
    content = _content(entry)
    if _is_queued(entry):
        content = entry["attachment"].get("prompt")
    pieces: list[base.PieceOrSkipped] = []
    if isinstance(content, list) and base.exported_in(entry) is not None:
        for part in _split_at_texts(content):
            pieces += messages.user(part)
    else:
        pieces += messages.user(content)
    results: list[base.Piece] = []
    for piece in pieces:
        if isinstance(piece, base.Piece) and piece.type == "tool_result":
            results.append(piece)
    if len(results) == 1:
        details = base.mapping(entry, "toolUseResult")
        for field, unit in _DURATIONS.items():
            duration = base.milliseconds(details, field, per_unit=unit)
            if duration is not None:
                results[0].fields.setdefault("duration_ms", duration)
    yield from pieces


def _split_at_texts(content: list[Any]) -> list[list[Any]]:
    """Return the inputs in an entry that Refold exported: each text begins one."""
    parts: list[list[Any]] = []
    for block in content:
        if not parts or base.at(block, "type") == "text":
            parts.append([])
        parts[-1].append(block)
    return parts


def _assistant(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Return the texts, calls and thoughts of the model, or an error of the API."""
    content = _content(entry)
    if entry.get("isApiErrorMessage") is True:
        message = "".join(messages.only_texts(content) or [])
        code = base.text(entry, "error") or "api_error"
        fields = {"code": code, "message": message, "retryable": is_unreached(code)}
        return iter([base.Piece("error", fields)])
    reason = base.at(entry, "message", "stop_reason")
    if content == []:
        # The answer of the model is empty, or redaction dropped its thoughts.  A
        # capture reads the redacted entry.
        empty: JsonObject = {"text": ""}
        stop_reason = base.text(reason)
        if stop_reason:
            empty["stop_reason"] = stop_reason
        return iter([base.Piece("agent_response", empty)])
    return messages.agent(content, stop_reason=reason)


def _content(entry: dict[str, Any]) -> Any:
    """Return the content of an entry's message: a text, or blocks."""
    message = entry.get("message")
    return message if isinstance(message, str) else base.at(message, "content")


def _is_queued(entry: dict[str, Any]) -> bool:
    """Whether an entry has a message that a user typed while the agent worked."""
    queued = base.at(entry, "attachment", "type") == "queued_command"
    return entry.get("type") == "attachment" and queued
