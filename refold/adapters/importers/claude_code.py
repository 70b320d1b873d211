"""Claude Code's session files: one entry a line, one block of a message an entry."""

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

NAME = "claude-code"
SUB_AGENTS: Final = "subagents"  # the folder of their files, in that of their session
_MAIN = ""
_ROOT_DIGITS: Final = 8  # of the id of the first entry of a run that names no agent
_NOTES = {
    "summary": "session title",
    "system": "notice of the client, no message",
    "file-history-snapshot": "snapshot of files that the client keeps for undo",
    "progress": "progress report",
}
_NOTE = "note of the client, not part of the conversation"
_OF_SESSION = ("agent-color", "agent-name", "ai-title", "custom-title", "tag")
_OF_WORK = ("last-prompt", "mode", "permission-mode", "pr-link", "worktree-state")
_NOTES |= dict.fromkeys(_OF_SESSION + _OF_WORK, _NOTE)
QUEUE: Final = "queue-operation"
_BESIDE_MESSAGES: Final = frozenset({*_NOTES, QUEUE, "attachment"})
_FLAGS = {
    "isMeta": "meta",
    "isCompactSummary": "compact_summary",
    "isVisibleInTranscriptOnly": "transcript_only",
}
_DURATIONS = {"durationMs": 1.0, "totalDurationMs": 1.0, "durationSeconds": 1000.0}
_SENT_AGAIN: Final = "files sent again after a compaction"
_RESUMED: Final = "context of a resumed session"
_CLEARED: Final = "results cleared without a record"
_COMMAND: Final = re.compile(r"/[a-z][\w:-]*(\s|$)")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][\w.-]{0,39}")


def recognises(source: base.Source) -> bool:
    """Whether the first message has Claude Code's frame, and only notes before."""
    seen = False
    for line in source.lines():
        entry = base.mapping(line.value)
        if entry.get("type") in ("user", "assistant"):
            framed = entry.keys() & {"sessionId", "parentUuid", "isSidechain"}
            return bool(framed) and isinstance(entry.get("message"), dict | str)
        if base.text(entry, "type") not in _BESIDE_MESSAGES or "role" in entry:
            return False
        if "prev_hash" in entry:  # an event that Refold exported
            return False
        seen = True
    return seen


def read(source: base.Source) -> Iterable[base.Transcript]:
    """The main conversation, and each sub-agent's as a transcript of its own."""
    reading = _Conversations(source)
    for line in source.lines():
        reading.entry(line)
    return reading.transcripts()


def session_of_file(path: Path, sessions: Iterable[str]) -> str:
    """The session of a file, of those that its entries name.

    It is the one that the file or, for a sub-agent's, its folder is named after; else
    the first: a resumed session begins with entries of the one that it goes on from.
    Empty if the entries name none.
    """
    named = name_of_file(path)
    first = ""
    for session in sessions:
        if session == named:
            return session
        first = first or session
    return first


def name_of_file(path: Path) -> str:
    """The session that a file is named after, also once it was moved aside.

    The file of a sub-agent is in a folder of its session.
    """
    if path.parent.name == SUB_AGENTS:
        return path.parent.parent.name
    return path.name.partition(".jsonl")[0]


def sub_agents_of(path: Path) -> list[Path]:
    """The files of the sub-agents that the session in ``path`` began."""
    if path.suffix != ".jsonl":
        return []
    folder = path.with_suffix("") / SUB_AGENTS
    try:
        return sorted(folder.rglob("agent-*.jsonl"))
    except OSError:
        return []


class Chains:
    """Tells the runs of sub-agents apart, as their entries come.

    A run goes by its agent's id.  Old versions wrote none: there it goes by the id of
    the run's first entry.
    """

    def __init__(self) -> None:
        self._chain_of: dict[str, str] = {}

    def chain(self, entry: dict[str, Any], place: str = "") -> str:
        """What the run of an entry is called; empty for the main conversation."""
        if entry.get("isSidechain") is not True:
            return _MAIN
        uuid = base.text(entry, "uuid")
        chain = base.text(entry, "agentId")
        if chain is None:
            for name in ("parentUuid", "logicalParentUuid"):
                parent = base.text(entry, name) or ""
                chain = chain or self._chain_of.get(parent)
        if chain is None:
            chain = (uuid or place)[:_ROOT_DIGITS]
        if uuid:
            self._chain_of[uuid] = chain
        return chain


class Queued(NamedTuple):
    """A message that waits for the agent, as the record of its arrival has it."""

    place: str
    entry: dict[str, Any]
    key: str | None

    @property
    def text(self) -> str:
        return _plain(self.entry.get("content"))

    @property
    def is_command(self) -> bool:
        return _COMMAND.match(self.text) is not None

    @property
    def input_key(self) -> str | None:
        """The key of the input that it became; its record has its own."""
        return None if self.key is None else f"{self.key}\0sent"

    def drafts(self) -> list[Draft]:
        """The inputs that it became, as a capture appends them."""
        origin = _origin(self.entry, "")
        origin.source["queued"] = True
        found = messages.user(self.entry.get("content"))
        return [
            replace(draft, key=self.input_key if first else f"{self.input_key}\0more")
            for first, draft in _first_marked(base.drafts_of(found, origin))
        ]


def _first_marked(drafts: Iterable[Draft]) -> Iterator[tuple[bool, Draft]]:
    for index, draft in enumerate(drafts):
        yield index == 0, draft


class MessageQueue:
    """Follows messages that wait for the agent, as the entries of a file come.

    A message that left the queue while the agent worked was put before the model.  Some
    versions write it down as an entry of its own too, others do not.

    notes: what became of the records, by their places.
    """

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        self._waiting: list[Queued] = []
        self._left: list[Queued] = []  # which no answer came after yet
        # Where each text of a user stands last, and how many queue records came before.
        self._seen: dict[str, tuple[int, str]] = {}
        self._arrived: dict[str, int] = {}  # of a waiting text, how many came before it
        self._records = 0

    @property
    def is_empty(self) -> bool:
        """Whether no message waits for the agent or for its answer."""
        return not (self._waiting or self._left)

    def take(self, record: Queued) -> None:
        """Follow a record of the queue."""
        self._records += 1
        operation = base.text(record.entry, "operation")
        if operation == "enqueue":
            self._waiting.append(record)
            self._arrived[record.text] = self._records
            return
        if operation in ("dequeue", "remove"):
            self._take_out(record)
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

    def _take_out(self, record: Queued) -> None:
        """Take out the message that the record names, else the oldest."""
        for queued in self._waiting:
            if not record.text or queued.text == record.text:
                self._waiting.remove(queued)
                self._left.append(queued)
                return

    def see(self, entry: dict[str, Any], place: str) -> None:
        """Remember what a user said in an entry of its own."""
        for text in _user_texts(entry):
            self._seen[text] = self._records, place

    def answered(self) -> list[Queued]:
        """The model answers: the messages that it saw, and that stand nowhere else."""
        sent: list[Queued] = []
        unsent: list[Queued] = []
        for queued in self._left:
            if self._note_seen(queued):
                continue
            if queued.is_command or not queued.text:
                unsent.append(queued)
            else:
                why = "queue record; its message is imported as an input"
                self.notes.append((queued.place, why))
                sent.append(queued)
        self._left = unsent
        return sent

    def rest(self) -> list[Queued]:
        """At the end: the messages of which no entry shows that they were sent."""
        unsent: list[Queued] = []
        for queued in (*self._left, *self._waiting):
            if not self._note_seen(queued):
                unsent.append(queued)
        return unsent

    def _note_seen(self, queued: Queued) -> bool:
        """Whether an entry of its own, since it arrived, has the message."""
        records, place = self._seen.get(queued.text, (0, ""))
        if records < self._arrived[queued.text]:
            return False
        why = "queue record; its message is imported from an entry of its own"
        self.notes.append((f"{queued.place}, message in {place}", why))
        return True


class SentAgain(NamedTuple):
    """A file that was sent without a record before an entry.

    entry:      the entry.
    attachment: the file as later versions of the client write it.
    """

    entry: dict[str, Any]
    attachment: dict[str, Any]
    key: str | None

    def pieces(self) -> list[base.PieceOrSkipped]:
        """The events of the file."""
        text = attachments.text_of(self.attachment)
        if text is None:
            return []
        return [base.Piece("system", {"text": text, "where": "conversation"})]

    def drafts(self) -> list[Draft]:
        """The drafts of the file, as a capture appends them."""
        origin = base.Origin("", ts=base.moment(self.entry, "timestamp"))
        drafts: list[Draft] = []
        for draft in base.drafts_of(self.pieces(), origin):
            meta = draft.meta.model_copy(update={"source": self.source})
            drafts.append(replace(draft, key=self.key, meta=meta))
        return drafts

    @property
    def source(self) -> JsonObject:
        """The kind of the attachment, and that a rule and not an entry has it."""
        return {"attachment": self.attachment["type"], "rule": _SENT_AGAIN}


class Learned(NamedTuple):
    """What an entry shows about earlier ones.

    files:   those that were sent again before it.
    sent:    the queued messages that were sent before it.
    changes: what the client changed in its history.
    """

    files: tuple[SentAgain, ...] = ()
    sent: tuple[Queued, ...] = ()
    changes: Changes = NO_CHANGES

    def drafts_before(self) -> list[Draft]:
        """The drafts of what was sent before the entry, as a capture appends them."""
        drafts: list[Draft] = []
        for file in self.files:
            drafts += file.drafts()
        for queued in self.sent:
            drafts += queued.drafts()
        return drafts


class FileMemory:
    """What the entries of a file mean for later ones in it."""

    def __init__(self) -> None:
        self.identities = Identities()
        self.chains = Chains()
        self.queue = MessageQueue()
        self._branches = defaultdict[str, Branches](Branches)
        self._unrecorded = defaultdict[str, Unrecorded](Unrecorded)
        self._edited: set[str] = set()  # the runs with an edit since the last answer

    def learn(
        self, entry: dict[str, Any], native: Native, place: str = "", chain: str = _MAIN
    ) -> Learned:
        """Take the next entry, of the run that ``chain`` names."""
        if entry.get("type") == QUEUE:
            self.queue.take(Queued(place, entry, native.key))
            return Learned()
        branches = self._branches[chain]
        files: list[SentAgain] = []
        before: tuple[Change, ...] = ()
        if not is_for_user_only(entry):
            shown = self._unrecorded[chain].take(entry)
            is_resumed = shown.fell and chain not in self._edited
            if shown.resumed or is_resumed:
                resumed = branches.resumed(
                    base.text(entry, "parentUuid"),
                    loses_parallel_results=shown.loses_parallel_results,
                )
                before += _by_rule(resumed, _RESUMED)
            before += _by_rule(branches.cleared(shown.cleared), _CLEARED)
            for attachment in shown.files:
                key = None if native.key is None else f"{native.key}\0file{len(files)}"
                files.append(SentAgain(entry, attachment, key))
                if key is not None:
                    branches.add((key,))
        sent: list[Queued] = []
        if entry.get("type") == "assistant" and entry.get("isSidechain") is not True:
            sent = self.queue.answered()
            for queued in sent:
                if queued.input_key is not None:
                    branches.add((queued.input_key,))
        self.queue.see(entry, place)
        changes = branches.take(entry, _keys(entry, native), is_message=_is_sent(entry))
        changes = changes._replace(before=(*before, *changes.before))
        if changes.before or changes.after:
            self._edited.add(chain)
        elif entry.get("type") == "assistant":
            self._edited.discard(chain)
        return Learned(tuple(files), tuple(sent), changes)

    def is_continued(self, entry: dict[str, Any], chain: str = _MAIN) -> bool:
        """Whether an entry that names this one as its parent changes no history."""
        if self._unrecorded[chain].next_may_need_before(entry):
            return False
        uuid = base.text(entry, "uuid")
        return uuid is not None and self._branches[chain].ends_with(uuid)


def _is_sent(entry: dict[str, Any]) -> bool:
    """Whether an entry is part of the conversation with the model."""
    if entry.get("type") in ("user", "assistant", "attachment"):
        return not is_for_user_only(entry)
    return _is_local_command(entry)


def is_for_user_only(entry: dict[str, Any]) -> bool:
    """Whether the client shows an entry to the user, and never sends it."""
    is_hidden = entry.get("isVisibleInTranscriptOnly") is True
    return is_hidden and entry.get("isCompactSummary") is not True


def _is_local_command(entry: dict[str, Any]) -> bool:
    """Whether it is the output of a command of the client, which the model reads."""
    return entry.get("type") == "system" and entry.get("subtype") == "local_command"


def _keys(entry: dict[str, Any], native: Native) -> tuple[str, ...]:
    """The keys that the drafts of an entry may have."""
    if native.key is None:
        return ()
    content = _content(entry)
    most = len(content) + 1 if isinstance(content, list) else 0
    others = [f"{native.key}\0{place}" for place in range(1, most + 1)]
    return (native.key, *others)


def mark_key(key: str | None, *, number: int) -> str:
    """The key of a change that an entry shows; ``key`` is the entry's own."""
    return f"{key}\0edit{number}"


def _by_rule(changes: Iterable[Change], rule: str) -> tuple[Change, ...]:
    """Changes for which a rule stands, and no entry."""
    return tuple([change._replace(rule=rule) for change in changes])


def drafts_of(
    changes: Iterable[Change], entry: dict[str, Any], key: str | None, *, first: int = 0
) -> list[Draft]:
    """The drafts of changes that an entry shows, as a capture appends them.

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


class _Conversations:
    def __init__(self, source: base.Source) -> None:
        new_recording = partial(base.Recording, NAME, source.name)
        self._path = source.path
        self._recordings = defaultdict[str, base.Recording](new_recording)
        self._aside = new_recording()  # what belongs to no conversation
        self._begun: dict[str, None] = {}
        self._lines: dict[str, base.Line] = {}
        self._sessions: dict[str, None] = {}
        self._memory = FileMemory()

    def entry(self, line: base.Line) -> None:
        place = f"line {line.number}"
        entry = base.mapping(line.value)
        uuid = base.text(entry, "uuid")
        native = self._memory.identities.native(FORMAT, entry)
        if uuid:
            first = self._lines.setdefault(uuid, line)
            if first is not line:
                self._again(first, line, place)
                return
        if session := base.session_name(entry, "sessionId"):
            self._sessions.setdefault(session)
        chain = self._memory.chains.chain(entry, place)
        learned = self._memory.learn(entry, native, place, chain)
        for file in learned.files:
            again = base.Origin(place, ts=base.moment(entry, "timestamp"), key=file.key)
            self._take(chain, file.pieces(), replace(again, source=file.source))
        for queued in learned.sent:
            origin = self._origin(queued.entry, queued.place, queued.input_key)
            origin.source["queued"] = True
            self._take(_MAIN, messages.user(queued.entry.get("content")), origin)
        kind = base.text(entry, "type")
        if kind == QUEUE:
            return
        changes = learned.changes
        if changes.note:
            self._aside.skip(changes.note, place, note=True)
        own = self._origin(entry, place, native.key)
        self._mark(chain, changes.before, own, first=0)
        found = _found(entry)
        if isinstance(found, str):
            note = kind in _BESIDE_MESSAGES or is_for_user_only(entry)
            self._aside.skip(found, place, note=note)
        else:
            self._take(chain, found, own)
        self._mark(chain, changes.after, own, first=len(changes.before))

    def _mark(
        self, chain: str, changes: Iterable[Change], entry: base.Origin, *, first: int
    ) -> None:
        """Record what the client changed in its history.

        entry: the entry that shows it.
        first: the number of the first change of the entry.
        """
        for number, change in enumerate(changes, start=first):
            origin = replace(entry, key=mark_key(entry.key, number=number), usage=None)
            if change.rule:
                origin = replace(origin, source={**origin.source, "rule": change.rule})
            self._recordings[chain].mark(
                change.mark, origin, change.reason, cleared_text=change.cleared_text
            )

    def transcripts(self) -> list[base.Transcript]:
        """Those that began, in that order; what belongs to none is with the first."""
        for queued in self._memory.queue.rest():
            item = {"format": NAME, "kind": QUEUE, "value": queued.entry}
            origin = self._origin(queued.entry, queued.place, queued.key)
            self._take(_MAIN, [base.Piece("item", item)], origin)
        for place, why in self._memory.queue.notes:
            self._aside.skip(why, place, note=True)
        silent = (chain for chain in self._recordings if chain not in self._begun)
        chains = [*self._begun, *silent]
        session = session_of_file(self._path, self._sessions)
        first, *others = (self._told(chain, session) for chain in chains or [_MAIN])
        skipped = *first.skipped, *self._aside.transcript("").skipped
        return [replace(first, skipped=skipped), *others]

    def _take(
        self, chain: str, found: Iterable[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        recording = self._recordings[chain]
        recording.take(found, origin)
        if recording.begun:
            self._begun.setdefault(chain)

    def _again(self, first: base.Line, line: base.Line, place: str) -> None:
        """Say that an entry has the id of an earlier one."""
        places = f"{place}, first in line {first.number}"
        if first.raw == line.raw:
            self._aside.skip("entry that stands before it already", places, note=True)
        else:
            why = "entry with the id of an earlier one and other content"
            self._aside.skip(why, places)

    def _told(self, chain: str, session: str) -> base.Transcript:
        recording = self._recordings[chain]
        if chain == _MAIN or not session:
            return recording.transcript(session if chain == _MAIN else "")
        name = base.session_name(f"{session}~{chain}")
        return recording.transcript(name, parent=session)

    def _origin(
        self, entry: dict[str, Any], place: str, key: str | None
    ) -> base.Origin:
        origin = replace(_origin(entry, place), key=key)
        session = base.session_name(entry, "sessionId")
        if session and session != next(iter(self._sessions)):
            origin.source["session"] = session
        return origin


def _plain(content: Any) -> str:
    """The text of a content, with one space where there are several."""
    texts = messages.only_texts(content) or []
    return " ".join(" ".join(texts).split())


def _user_texts(entry: dict[str, Any]) -> Iterator[str]:
    """The texts that a user's entry has: each block's, and all of it."""
    content = _content(entry)
    if _is_queued(entry):
        content = base.at(entry, "attachment", "prompt")
    elif entry.get("type") != "user":
        return
    if text := _plain(content):
        yield text
    if isinstance(content, list):
        for block in content:
            words = messages.text_of(block)
            if words:
                yield " ".join(words.split())


def _origin(entry: dict[str, Any], place: str) -> base.Origin:
    source: JsonObject = {
        name: entry[key]
        for name, key in (("id", "uuid"), ("parent", "parentUuid"))
        if base.text(entry, key)
    }
    source |= {name: True for flag, name in _FLAGS.items() if entry.get(flag) is True}
    if entry.get("type") == "attachment" and not _is_queued(entry):
        kind = base.text(entry, "attachment", "type") or ""
        if _IDENTIFIER.fullmatch(kind):
            source["attachment"] = kind
    elif entry.get("type") == "attachment":
        typed = base.at(entry, "attachment", "commandMode") in (None, "prompt")
        source["queued"] = True
        if base.at(entry, "attachment", "isMeta") is True or not typed:
            source["meta"] = True
    message = base.mapping(entry, "message")
    of_model = entry.get("type") == "assistant"
    response = base.text(message, "id") or f"msg:{entry.get('uuid') or place}"
    return base.Origin(
        place,
        ts=base.moment(entry, "timestamp"),
        request_id=base.text(entry, "requestId"),
        agent=base.text(entry, "agentId"),
        model=base.text(message, "model"),
        response_id=response if of_model else None,
        usage=base.mapping(message, "usage") or None,
        source=source,
    )


def _view(_: str, entry: Any, __: object) -> Iterator[Draft]:
    found, entry = _found(base.mapping(entry)), base.mapping(entry)
    return base.drafts_of(() if isinstance(found, str) else found, _origin(entry, ""))


# A line of a session file.
FORMAT = Format(
    NAME,
    _view,
    lambda entry: base.text(entry, "type") or "",
    lambda entry: base.text(entry, "uuid"),
)


def _found(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped] | str:
    """The events of an entry, or why there are none."""
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
        return _attached(attachment)
    if not isinstance(kind, str):
        return "not an entry: no object with a type"
    return _NOTES.get(kind, "entry of an unknown type")


def _attached(attachment: dict[str, Any]) -> str:
    """Why an attachment is no event."""
    kind = base.text(attachment, "type") or ""
    name = f" ({kind})" if _IDENTIFIER.fullmatch(kind) else ""
    if attachments.is_never_sent(attachment):
        return f"note of the client for itself{name}, never sent to the model"
    return (
        f"context that the client attached{name}: the model may have seen it, and "
        "contexts do not show it"
    )


def _user(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    content = _content(entry)
    if _is_queued(entry):
        content = entry["attachment"].get("prompt")
    found = list(messages.user(content))
    pieces = [item for item in found if isinstance(item, base.Piece)]
    results = [piece for piece in pieces if piece.type == "tool_result"]
    if len(results) == 1:
        told = base.mapping(entry, "toolUseResult")
        for key, unit in _DURATIONS.items():
            took = base.milliseconds(told, key, per_unit=unit)
            if took is not None:
                results[0].fields.setdefault("duration_ms", took)
    yield from found


def _assistant(entry: dict[str, Any]) -> Iterator[base.PieceOrSkipped]:
    content = _content(entry)
    if entry.get("isApiErrorMessage") is True:
        message = "".join(messages.only_texts(content) or [])
        code = base.text(entry, "error") or "api_error"
        fields = {"code": code, "message": message, "retryable": is_unreached(code)}
        return iter([base.Piece("error", fields)])
    reason = base.at(entry, "message", "stop_reason")
    if content == []:
        # The model answered nothing, or redaction dropped what it thought: a capture
        # reads the redacted entry.
        empty: JsonObject = {"text": ""}
        if stop_reason := base.text(reason):
            empty["stop_reason"] = stop_reason
        return iter([base.Piece("agent_response", empty)])
    return messages.agent(content, stop_reason=reason)


def _content(entry: dict[str, Any]) -> Any:
    message = entry.get("message")
    return message if isinstance(message, str) else base.at(message, "content")


def _is_queued(entry: dict[str, Any]) -> bool:
    """Whether this is what a user typed while the agent worked."""
    queued = base.at(entry, "attachment", "type") == "queued_command"
    return entry.get("type") == "attachment" and queued
