"""The history of files in the events of a run and its sub-agents, in order of time.

``FileHistories`` folds calls and their results.  It replays each edit, and compares
each read with the lines that the edits before it yield.  It never guesses: a file that
something else may have changed is in doubt until a read or a write shows its lines.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from difflib import unified_diff
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.files import calls
from refold.projections.files.calls import Change, FileUse
from refold.projections.files.content import (
    Content,
    Gap,
    Line,
    OriginKind,
    Place,
    has_placeholder,
    lines_of,
)
from refold.projections.files.patches import FilePatch, Hunk
from refold.projections.rejections import is_rejected

EntryKind: TypeAlias = Literal[
    "read", "write", "edit", "delete", "move", "rejected", "unknown"
]
"""The kinds of entries.  ``rejected``: a person rejected the change.
``unknown``: something else may have changed the file."""
Reason: TypeAlias = Literal[
    "command",
    "agent",
    "reported",
    "left",
    "other_run",
    "outside",
    "not_found",
    "ambiguous",
    "not_replayed",
    "redacted",
    "not_read",
    "other_path",
    "no_result",
]
"""The reasons for which a file or a line may differ from what is shown."""

# The types of events from which histories are folded.
TYPES: Final = frozenset(
    {
        "agent_response",
        "request",
        "system",
        "tool_call",
        "tool_result",
        "user_input",
    }
)
# The numbers of lines in the row of a diff that states a place.
_PLACE_OF_DIFF: Final = re.compile(r"(?P<sign>[-+])(?P<number>\d+)(?=[ ,])")
# The user left the client; the session was resumed later.
_LEFT: Final = re.compile("<command-name>/(?:exit|quit)</command-name>")


class Asked(NamedTuple):
    """The events that asked for a call.

    user:     the message of the user, or the task of a sub-agent; None if none came.
    text:     the beginning of that message.
    request:  the recorded request to the model; None without one.
    response: the answer of the model that made the call.
    """

    user: int | None = None
    text: str = ""
    request: int | None = None
    response: int | None = None


class Entry(NamedTuple):
    """One use of a file: the call, what it changed, and what asked for it.

    seq:     of the call.  The event at ``result`` says that it succeeded.
    old, new: the replaced and the new text of each edit; for a write, the text before,
             as far as it is known, and the new text.
    diffs:   the unified diff of each of them.
    added, removed: numbers of lines.
    reason:  of an ``unknown`` entry, or why an edit could not be replayed.
    detail:  the beginning of the command of an ``unknown`` entry.
    """

    kind: EntryKind
    path: str
    place: Place
    result: int
    ts: datetime
    tool: str
    asked: Asked
    changes: tuple[Change, ...] = ()
    diffs: tuple[str, ...] = ()
    added: int = 0
    removed: int = 0
    lines: tuple[int, int] | None = None
    reason: Reason | None = None
    detail: str = ""
    moved_to: str = ""
    agrees: bool | None = None


class Compared(NamedTuple):
    """A read compared with the content that the earlier edits yield.

    outcome: ``unknown`` if all lines that it shows were unknown or in doubt.
    lines:   how many lines could be compared.
    edited:  whether the run edited or wrote the file before.
    """

    path: str
    place: Place
    outcome: Literal["equal", "unequal", "unknown"]
    lines: int
    edited: bool
    reason: Reason | None = None
    since: Place | None = None


class Doubt(NamedTuple):
    """Why a file may have changed: the reason, the event, and the step of the fold."""

    reason: Reason
    place: Place
    step: int
    detail: str = ""


class BlamedLine(NamedTuple):
    """A line with the event that wrote it.

    text:  None if it is not known.
    doubt: why it may have changed since; None if it is proved.
    """

    number: int
    text: str | None
    origin: OriginKind | None
    entry: Entry | None
    doubt: Doubt | None


class FileHistory:
    """The entries and the content of one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.content = Content()
        self.doubt: Doubt | None = None
        self.edited = False
        self.last_run = ""

    @property
    def reads(self) -> int:
        """How often the file was read."""
        return sum(entry.kind == "read" for entry in self.entries)

    @property
    def changes(self) -> list[Entry]:
        """The entries that changed the file."""
        kinds = ("write", "edit", "delete", "move")
        return [entry for entry in self.entries if entry.kind in kinds]

    @property
    def rejected(self) -> int:
        """How many changes a person rejected."""
        return sum(entry.kind == "rejected" for entry in self.entries)

    @property
    def added(self) -> int:
        """How many lines were added."""
        return sum(entry.added for entry in self.changes)

    @property
    def removed(self) -> int:
        """How many lines were removed."""
        return sum(entry.removed for entry in self.changes)

    def _entries_by_place(self) -> dict[Place, Entry]:
        """Return the first entry of each event, with the diffs of all its entries.

        A patch can edit a file twice, or edit and move it; and the result of an edit
        can report another change.
        """
        entries: dict[Place, Entry] = {}
        for entry in self.entries:
            first = entries.setdefault(entry.place, entry)
            if first is not entry and entry.diffs:
                entries[entry.place] = first._replace(
                    changes=(*first.changes, *entry.changes),
                    diffs=(*first.diffs, *entry.diffs),
                )
        return entries

    def blame(self) -> list[BlamedLine]:
        """Return the lines of the file with the events that wrote them."""
        lines: list[BlamedLine] = []
        entries = self._entries_by_place()
        for number, line in self.content.numbered().items():
            is_proved = self.doubt is None or line.seen > self.doubt.step
            lines.append(
                BlamedLine(
                    number=number,
                    text=line.text,
                    origin=line.origin.kind,
                    entry=entries.get(line.origin.place),
                    doubt=None if is_proved else self.doubt,
                )
            )
        return lines


class _Open(NamedTuple):
    """A call without its result.

    envelope:     the envelope of the call.
    agent_events: the number of events of sub-agents before it.
    is_doubted:   whether the files are in doubt that it may have changed.
    """

    call: ToolCall
    envelope: Envelope
    asked: Asked
    agent_events: int
    is_doubted: bool = False

    @property
    def place(self) -> Place:
        """The place of the call."""
        return Place(self.envelope.session_id, self.envelope.seq)


class _Session:
    """The state of the fold for one session.

    agent_events: the number of events of its sub-agents so far.
    """

    def __init__(self) -> None:
        self.asked = Asked()
        self.open_calls: dict[str, _Open] = {}
        self.agent_events = 0


class FileHistories:
    """Folds the events of a run, and of its sub-agents, into histories of files.

    Take the events in order of time.  Texts that were moved to blobs must be whole.
    """

    def __init__(self) -> None:
        self.files: dict[str, FileHistory] = {}
        self.compared: list[Compared] = []
        self._sessions: dict[str, _Session] = {}
        self._step = 0

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> FileHistories:
        """Fold these events."""
        histories = cls()
        for envelope in envelopes:
            histories.take(envelope)
        histories.end()
        return histories

    def matching(self, name: str) -> list[str]:
        """Return the paths that end with ``name``, or are equal to it."""
        clean = posixpath.normpath(name)
        if clean in self.files:
            return [clean]
        suffix = "/" + _with_slashes(clean).lstrip("/")
        return sorted(
            path for path in self.files if f"/{_with_slashes(path)}".endswith(suffix)
        )

    def _session(self, name: str) -> _Session:
        return self._sessions.setdefault(name, _Session())

    def take(self, envelope: Envelope) -> None:
        """Take the next event."""
        session = self._session(envelope.session_id)
        name = envelope.session_id
        while "~" in name:
            name = name.rpartition("~")[0]
            self._session(name).agent_events += 1
        event = envelope.payload
        match event:
            case UserInput(text=text) if _is_of_user(envelope):
                self._doubt_unanswered(session)
                asked = Asked(user=envelope.seq, text=_beginning(text))
                session.asked = asked
                self._take_note(envelope, text)
            case UserInput(text=text) | SystemPrompt(text=str(text)):
                self._take_note(envelope, text)
            case Request() if not envelope.activates_strategy:
                self._doubt_unanswered(session)
                session.asked = session.asked._replace(request=envelope.seq)
            case AgentResponse():
                session.asked = session.asked._replace(response=envelope.seq)
            case ToolCall(call_id=call_id) as call:
                opened = _Open(call, envelope, session.asked, session.agent_events)
                session.open_calls[call_id] = opened
                for command in calls.commands_of(event):
                    self._step += 1
                    self._take_command(command, envelope, session.asked)
            case ToolResult(call_id=call_id) if call_id in session.open_calls:
                opened = session.open_calls.pop(call_id)
                has_agent = session.agent_events > opened.agent_events
                self._take_result(opened, envelope, event, has_agent=has_agent)

    def _take_note(self, envelope: Envelope, text: str) -> None:
        """Take a client's notes about files that something else may have changed."""
        if _LEFT.search(text):
            self._step += 1
            for file in self.files.values():
                self._doubt(file, "left", Place(envelope.session_id, envelope.seq))
                self._add_unknown(file, envelope, envelope, Asked(), "left", "")
        for reported in calls.reported_in(text):
            self._report(reported.path, envelope, envelope)

    def _take_result(
        self, opened: _Open, result: Envelope, event: ToolResult, *, has_agent: bool
    ) -> None:
        """Take the result of a call.

        has_agent: whether events of a sub-agent came since the call.
        """
        if is_rejected(event):
            self._take_rejected(opened, result)
            return
        if event.status == "unknown":
            self._doubt_changed_files(opened, result)
        for use in calls.uses_of(opened.call, event):
            self._step += 1
            if isinstance(use, calls.Delegated):
                if not has_agent:
                    self._take_delegated(opened, result)
            elif isinstance(use, calls.Commanded):
                self._take_command(use, opened.envelope, opened.asked)
            else:
                self._take_use(use, opened.envelope, opened.asked, result)
        for reported in calls.reported_in(calls.text_of(event.content)):
            self._report(reported.path, opened.envelope, result)

    def _take_rejected(self, opened: _Open, result: Envelope) -> None:
        """Add the changes that a person rejected; they change no content."""
        for use, file in self._changed_files(opened):
            diffs: list[str] = []
            added = 0
            removed = 0
            changes = _changes_of(use, file.content)
            for change in changes:
                first: int | None = None
                if not change.old or isinstance(use, calls.Written):
                    first = 1
                else:
                    matches = file.content.find(change.old)
                    if matches:
                        first = _number_of(file.content, matches[0].first)
                diff, more, fewer = _diff(change.old, change.new, first=first)
                diffs.append(diff)
                added += more
                removed += fewer
            file.entries.append(
                Entry(
                    kind="rejected",
                    path=file.path,
                    place=opened.place,
                    result=result.seq,
                    ts=result.ts,
                    tool=opened.call.tool_name,
                    asked=opened.asked,
                    changes=tuple(changes),
                    diffs=tuple(diffs),
                    added=added,
                    removed=removed,
                )
            )

    def _changed_files(self, opened: _Open) -> Iterator[tuple[FileUse, FileHistory]]:
        """Yield the changes that a call makes if it succeeds, each with its file."""
        for use in _changes_by(opened.call):
            file = self._file(use.path)
            if file is not None:
                yield use, file

    def end(self) -> None:
        """End the fold: calls without a result may have changed files."""
        for session in self._sessions.values():
            self._doubt_unanswered(session)

    def _doubt_unanswered(self, session: _Session) -> None:
        """Put the files in doubt that calls without a result may have changed."""
        for call_id, opened in session.open_calls.items():
            if opened.is_doubted:
                continue
            session.open_calls[call_id] = opened._replace(is_doubted=True)
            self._doubt_changed_files(opened, opened.envelope)

    def _doubt_changed_files(self, opened: _Open, result: Envelope) -> None:
        """Put the files in doubt that a call with an unknown result may have changed.

        result: the result, or the call itself if it has none.
        """
        for _, file in self._changed_files(opened):
            self._step += 1
            self._doubt(file, "no_result", opened.place)
            self._add_unknown(
                file, opened.envelope, result, opened.asked, "no_result", ""
            )

    def _take_delegated(self, opened: _Open, result: Envelope) -> None:
        """Put all files in doubt after a sub-agent whose events are not recorded."""
        for file in self.files.values():
            self._doubt(file, "agent", opened.place)
            self._add_unknown(file, opened.envelope, result, opened.asked, "agent", "")

    def _report(self, path: str, call: Envelope, result: Envelope) -> None:
        file = self._file(path, only_known=True)
        if file is not None:
            self._step += 1
            self._doubt(file, "reported", Place(call.session_id, call.seq))
            self._add_unknown(file, call, result, Asked(), "reported", "")

    def _take_use(
        self, use: FileUse, call: Envelope, asked: Asked, result: Envelope
    ) -> None:
        place = Place(call.session_id, call.seq)
        tool = getattr(call.payload, "tool_name", "")
        file = self._file(use.path)
        if file is None:
            return
        self._doubt_other_run(file, place)
        if not isinstance(use, calls.Shown):
            self._doubt_other_paths(file, call, asked, result)
        entry = Entry(
            kind="edit",
            path=file.path,
            place=place,
            result=result.seq,
            ts=result.ts,
            tool=tool,
            asked=asked,
        )
        match use:
            case calls.Shown():
                self._show(file, use, entry)
            case calls.Written(text=text):
                self._write(file, text, entry)
            case calls.Replaced(changes=changes, takes_line_ends=takes_line_ends):
                self._replace(file, changes, entry, takes_line_ends=takes_line_ends)
            case calls.LinesReplaced():
                self._replace_lines(file, use, entry)
            case calls.Patched(patch=patch):
                self._patch(file, patch, entry)
            case calls.Deleted():
                _, _, removed = _diff(_known_text(file.content), "")
                file.content.forget()
                file.doubt = None
                file.entries.append(entry._replace(kind="delete", removed=removed))
            case calls.Unread():
                self._doubt(file, "not_replayed", place)
                file.entries.append(entry._replace(reason="not_replayed"))

    def _take_command(self, use: calls.Commanded, call: Envelope, asked: Asked) -> None:
        """Put the files in doubt that a command may have changed.

        This happens when it begins, since an interrupted command has no result, and
        again when it ends.
        """
        place = Place(call.session_id, call.seq)
        for file in self.files.values():
            if use.touched.may_be(file.path):
                self._doubt(file, "command", place, use.command)
                self._add_unknown(file, call, call, asked, "command", use.command)

    def _add_unknown(
        self,
        file: FileHistory,
        call: Envelope,
        result: Envelope,
        asked: Asked,
        reason: Reason,
        detail: str,
    ) -> None:
        entry = Entry(
            kind="unknown",
            path=file.path,
            place=Place(call.session_id, call.seq),
            result=result.seq,
            ts=result.ts,
            tool=getattr(call.payload, "tool_name", ""),
            asked=asked,
            reason=reason,
            detail=detail,
        )
        last = file.entries[-1] if file.entries else None
        if last is not None and last.kind == "unknown" and reason != "reported":
            return  # the first reason stays until the file is read or changed again
        file.entries.append(entry)

    def _file(self, path: str, *, only_known: bool = False) -> FileHistory | None:
        clean = posixpath.normpath(path) if path else ""
        if not clean:
            return None
        if clean not in self.files and not only_known:
            self.files[clean] = FileHistory(clean)
        return self.files.get(clean)

    def _doubt_other_run(self, file: FileHistory, place: Place) -> None:
        """Put a file in doubt that another run used last."""
        run = place.session_id.partition("~")[0]
        if file.last_run not in ("", run):
            file.doubt = Doubt("other_run", place, self._step - 1)
        file.last_run = run

    def _doubt_other_paths(
        self, file: FileHistory, call: Envelope, asked: Asked, result: Envelope
    ) -> None:
        """Put the files in doubt that may be the changed file under another path."""
        for other in self.files.values():
            if other is not file and _may_be_same(file.path, other.path):
                self._doubt(other, "other_path", Place(call.session_id, call.seq))
                self._add_unknown(other, call, result, asked, "other_path", "")

    def _doubt(
        self, file: FileHistory, reason: Reason, place: Place, detail: str = ""
    ) -> None:
        file.doubt = Doubt(reason, place, self._step, detail)

    def _show(self, file: FileHistory, use: calls.Shown, entry: Entry) -> None:
        """Compare the lines that an event shows with those known, and take them."""
        compared, moved = self._compare(file, use, entry.place)
        if use.requested:
            self.compared.append(compared)
            first = use.first
            last = first + len(use.lines) - 1
            agrees = {"equal": True, "unequal": False}.get(compared.outcome)
            file.entries.append(
                entry._replace(
                    kind="read",
                    lines=(first, last) if use.lines else None,
                    agrees=agrees,
                )
            )
        if not use.lines:
            return
        file.content.show(
            use.first,
            use.lines,
            entry.place,
            self._step,
            to_end=use.to_end and not _lacks_empty_line(file.content, use),
            moved=moved,
        )
        if moved:
            self._doubt_others(file, "outside", entry.place)

    def _doubt_others(self, file: FileHistory, reason: Reason, place: Place) -> None:
        """Put all lines in doubt that the current step does not show."""
        file.doubt = Doubt(reason, place, self._step - 1)

    def _compare(
        self, file: FileHistory, use: calls.Shown, place: Place
    ) -> tuple[Compared, bool]:
        """Compare the lines shown with those known; return whether they contradict."""
        known = file.content.numbered()
        total = len(known) if file.content.is_whole else None
        equal = 0
        unequal = 0
        in_doubt = 0
        doubtful_unequal = 0
        redacted = 0
        for number, text in enumerate(use.lines, start=use.first):
            line = known.get(number)
            if text is None or (line is not None and line.text is None):
                continue
            if line is None:
                if total is not None and number > total:
                    if file.doubt is None:
                        unequal += 1
                    else:
                        doubtful_unequal += 1
                continue
            is_doubtful = file.doubt is not None and line.seen <= file.doubt.step
            if is_doubtful:
                in_doubt += 1
                if line.text != text:
                    doubtful_unequal += 1
            elif line.text == text:
                equal += 1
            elif has_placeholder(text) or has_placeholder(line.text):
                redacted += 1
            else:
                unequal += 1
        if use.to_end and total is not None:
            last = use.first + len(use.lines) - 1
            is_short = last < total and not _lacks_empty_line(file.content, use)
            if is_short and not file.doubt:
                unequal += 1
        outcome: Literal["equal", "unequal", "unknown"] = "unknown"
        reason: Reason | None = None
        since: Place | None = None
        has_equal_or_no_doubt = bool(equal) or not in_doubt
        if unequal and has_equal_or_no_doubt:
            outcome = "unequal"
        elif equal and not unequal:
            outcome = "equal"
        elif in_doubt and file.doubt is not None:
            reason = file.doubt.reason
            since = file.doubt.place
        elif redacted:
            reason = "redacted"
        else:
            reason = "not_read"
        compared = Compared(
            path=file.path,
            place=place,
            outcome=outcome,
            lines=equal + unequal,
            edited=file.edited,
            reason=reason,
            since=since,
        )
        return compared, bool(unequal or doubtful_unequal)

    def _write(self, file: FileHistory, text: str, entry: Entry) -> None:
        before = _known_text(file.content)
        diff, added, removed = _diff(before, text, first=1)
        file.content.write(text, entry.place, self._step)
        file.doubt = None
        file.edited = True
        file.entries.append(
            entry._replace(
                kind="write",
                changes=(Change(before, text),),
                diffs=(diff,),
                added=added,
                removed=removed,
            )
        )

    def _replace(
        self,
        file: FileHistory,
        changes: Sequence[Change],
        entry: Entry,
        *,
        takes_line_ends: bool = False,
        is_patch: bool = False,
    ) -> None:
        reason: Reason | None = None
        first_line: int | None = None
        diffs: list[str] = []
        added = 0
        removed = 0
        for change in changes:
            problem: Reason | None
            if is_patch and not change.old:
                problem, line = self._append(file, change.new, entry.place)
            else:
                problem, line = self._replace_one(
                    file, change, entry.place, takes_line_ends=takes_line_ends
                )
            reason = reason or problem
            first_line = first_line or line
            diff, more, fewer = _diff(change.old, change.new, first=line)
            diffs.append(diff)
            added += more
            removed += fewer
        file.edited = True
        file.entries.append(
            entry._replace(
                changes=tuple(changes),
                diffs=tuple(diffs),
                added=added,
                removed=removed,
                lines=None if first_line is None else (first_line, first_line),
                reason=reason,
            )
        )

    def _append(
        self, file: FileHistory, text: str, place: Place
    ) -> tuple[Reason | None, int | None]:
        """Add lines to the end of a file, as a patch without old lines does."""
        content = file.content
        if not content.is_whole:
            self._doubt(file, "not_replayed", place)
            return "not_replayed", None
        first = len(content.items) + 1
        lines = content.known()
        if lines and lines[-1].text == "":
            first -= 1  # before the end of the last line
        content.replace_lines(first, first - 1, lines_of(text), place, self._step)
        return None, first

    def _replace_one(
        self,
        file: FileHistory,
        change: Change,
        place: Place,
        *,
        takes_line_ends: bool,
    ) -> tuple[Reason | None, int | None]:
        """Replay one replacement; return why it failed, and where it begins."""
        content = file.content
        old = change.old
        new = change.new
        if not old:  # creates the file
            content.write(new, place, self._step)
            file.doubt = None
            return None, 1
        matches = content.find(old)
        if takes_line_ends and not new and not old.endswith("\n"):
            whole_lines = content.find(old + "\n")
            if whole_lines:
                matches = whole_lines
                old += "\n"
        if len(matches) == 1 or (matches and change.every):
            line = _number_of(content, matches[0].first)
            for match in reversed(matches):
                content.replace(match, new, place, self._step)
            more = new.count("\n") - old.count("\n")
            if change.every and more and not content.is_whole:
                first_gap = next(
                    index
                    for index, item in enumerate(content.items)
                    if isinstance(item, Gap)
                )
                content.doubt_from(first_gap)
                if file.doubt is None:
                    file.doubt = Doubt("not_read", place, 0)
            return None, line
        reason: Reason = "not_read"
        if matches:
            reason = "ambiguous"
        elif content.is_whole:
            reason = "not_found"
        if has_placeholder(old) or has_placeholder(new):
            reason = "redacted"
        if matches or content.is_whole:
            self._doubt(file, reason, place)
        else:
            content.grow_gap(old, new.count("\n") - old.count("\n"))
            if file.doubt is None:
                file.doubt = Doubt(reason, place, 0)
        return reason, None

    def _replace_lines(
        self, file: FileHistory, use: calls.LinesReplaced, entry: Entry
    ) -> None:
        new = lines_of(use.text.removesuffix("\n"))
        known = file.content.numbered()
        numbers = range(use.first, use.last + 1)
        old = [known[number].text or "" for number in numbers if number in known]
        diff, added, removed = _diff("\n".join(old), "\n".join(new), first=use.first)
        file.content.replace_lines(use.first, use.last, new, entry.place, self._step)
        file.edited = True
        file.entries.append(
            entry._replace(
                changes=(Change("\n".join(old), "\n".join(new)),),
                diffs=(diff,),
                added=added,
                removed=removed,
                lines=(use.first, use.first + len(new) - 1),
            )
        )

    def _patch(self, file: FileHistory, patch: FilePatch, entry: Entry) -> None:
        changes = [_change_of(hunk) for hunk in patch.hunks]
        self._replace(file, changes, entry, is_patch=True)
        if not patch.moved_to:
            return
        target = self._file(patch.moved_to)
        if target is None:
            return
        target.content = file.content
        target.doubt = file.doubt
        target.edited = True
        target.entries = [
            *file.entries,
            entry._replace(kind="move", moved_to=target.path),
        ]
        file.content = Content()
        file.entries.append(entry._replace(kind="move", moved_to=target.path))


def _number_of(content: Content, index: int) -> int | None:
    """Return the number of the line at an item; None if a gap hides it."""
    number = 1
    for item in content.items[:index]:
        if isinstance(item, Line):
            number += 1
        elif item.length is None:
            return None
        else:
            number += item.length
    return number


def _known_text(content: Content) -> str:
    """Return the known lines of a file as a text."""
    return "\n".join(line.text or "" for line in content.known())


def _lacks_empty_line(content: Content, use: calls.Shown) -> bool:
    """Whether a read shows everything but the empty line after the final newline."""
    last = use.first + len(use.lines) - 1
    known = content.known()
    return content.is_whole and len(known) == last + 1 and known[-1].text == ""


def _with_slashes(path: str) -> str:
    """Return a path of Windows with the slashes of other systems."""
    return path.replace("\\", "/")


def _may_be_same(path: str, other: str) -> bool:
    """Whether two paths may name the same file, since one of them is relative."""
    first = _with_slashes(path)
    second = _with_slashes(other)
    if len(first) < len(second):
        first, second = second, first
    return not second.startswith("/") and first.endswith(f"/{second}")


def _is_of_user(envelope: Envelope) -> bool:
    """Whether the user wrote an input, and not the client in the user's name."""
    source = envelope.meta.source or {}
    flags = ("meta", "compact_summary", "transcript_only")
    return not any(source.get(flag) for flag in flags)


def _beginning(text: str) -> str:
    return " ".join(text[:800].split())[:200]


def _changes_by(call: ToolCall) -> Iterator[FileUse]:
    """Yield the changes of files that a call makes if it succeeds."""
    accepted = ToolResult(call_id=call.call_id)
    for use in calls.uses_of(call, accepted):
        if not isinstance(use, calls.Shown | calls.Commanded | calls.Delegated):
            yield use


def _changes_of(use: calls.FileUse, content: Content) -> list[Change]:
    """Return the replaced and the new texts of a change, as far as they are known."""
    match use:
        case calls.Written(text=text):
            return [Change(_known_text(content), text)]
        case calls.Replaced(changes=changes):
            return list(changes)
        case calls.LinesReplaced(first=first, last=last, text=text):
            known = content.numbered()
            old = [known[n].text or "" for n in range(first, last + 1) if n in known]
            return [Change("\n".join(old), text)]
        case calls.Patched(patch=patch):
            return [_change_of(hunk) for hunk in patch.hunks]
        case calls.Deleted():
            return [Change(_known_text(content), "")]
    return []


def _change_of(hunk: Hunk) -> Change:
    """Return the replaced and the new text of a hunk."""
    # Without new lines, the end of the last old line goes, too.
    end = "\n" if hunk.old and not hunk.new else ""
    return Change("\n".join(hunk.old) + end, "\n".join(hunk.new))


def _diff(old: str, new: str, *, first: int | None = None) -> tuple[str, int, int]:
    """Return the unified diff of two texts, and the numbers of new and old lines.

    The end of the last line is no line of its own.

    first: the number of the first line of both texts in the file.  If it is not known,
           the places of the diff have no numbers.
    """
    if (not old or old.endswith("\n")) and (not new or new.endswith("\n")):
        old = old.removesuffix("\n")
        new = new.removesuffix("\n")
    old_lines = old.split("\n") if old else []
    new_lines = new.split("\n") if new else []
    rows = list(unified_diff(old_lines, new_lines, lineterm="", n=3))[2:]
    added = sum(row.startswith("+") for row in rows)
    removed = sum(row.startswith("-") for row in rows)
    shown = [_numbered_place(row, first) if row[:1] == "@" else row for row in rows]
    return "\n".join(shown), added, removed


def _numbered_place(row: str, first: int | None) -> str:
    """Return the row of a diff that states a place, with numbers of the file's lines.

    row: counts from 1 at the beginning of the texts.
    """
    if first is None:
        return "@@"

    def moved(match: re.Match[str]) -> str:
        number = int(match["number"])
        # The place before the first line has the number 0.
        return f"{match['sign']}{number + first - 1}"

    return _PLACE_OF_DIFF.sub(moved, row)
