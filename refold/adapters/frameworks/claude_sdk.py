"""The session store of the Claude Agent SDK.

Sessions and entries have the same names as with ``refold import`` and ``refold
capture``, so a transcript that arrives in several ways is one session.

The client keeps its own files under ``CLAUDE_CONFIG_DIR``, too, without redaction or
erasure.  Remove them, or let the client remove them.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from refold.adapters.frameworks import import_extra, in_thread, redact_unstored
from refold.adapters.importers import claude_code
from refold.adapters.importers.claude_code import FORMAT, FileMemory, edit_drafts
from refold.domain.envelope import Draft, Native
from refold.domain.errors import Erased, RefoldError, SessionNotFound
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    import_extra("claude_agent_sdk", "claude-sdk")
from claude_agent_sdk import (
    HookMatcher,
    SessionStore as _Protocol,
    fold_session_summary,
)

_PROJECT: Final = "claude_project"
_SESSION: Final = "claude_session"
_PART: Final = "claude_part"
_MAIN: Final = "main"
_SUB_AGENT: Final = re.compile(rf"{claude_code.SUB_AGENTS}/(?:.*/)?agent-([\w.-]+)")
_MOST_TRANSCRIPTS: Final = 256  # the transcripts whose entries are remembered
_PAGE: Final = 100
Key = Mapping[str, Any]


class LinesMissing(RefoldError):
    """An import recorded the events of a transcript, and the client needs its lines."""

    def __init__(self, session_id: str, *, seq: int) -> None:
        super().__init__(
            f"session {session_id!r} cannot be resumed: seq {seq} was imported, and "
            "an import keeps events, not the lines of the client. Resume from the "
            "client's own file, or capture that file into another store"
        )


class _Transcript:
    """The entries of a transcript that this process received, for the next ones."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._memory: FileMemory | None = None
        self._entry_ids: set[str] = set()  # of the entries received

    def forget(self) -> None:
        """Read the session again before the next entries."""
        self._memory = None
        self._entry_ids.clear()

    def drafts(self, session: Session, entries: Sequence[Any]) -> list[Draft | Native]:
        """Return the drafts of the next entries, with the queued inputs before them."""
        first = next(filter(None, map(FORMAT.id, entries)), None)
        is_repeated = first is not None and first in self._entry_ids
        if self._memory is None or is_repeated:
            self.forget()
            self._memory = _remembered(session, entries)
        drafts: list[Draft | Native] = []
        for entry in entries:
            native = self._memory.identities.native(FORMAT, entry)
            learned = self._memory.take(entry, native)
            drafts += learned.drafts_before()
            changes = learned.changes
            drafts += edit_drafts(changes.before, entry, native.key)
            drafts.append(native)
            first_after = len(changes.before)
            drafts += edit_drafts(changes.after, entry, native.key, first=first_after)
            entry_id = FORMAT.id(entry)
            if entry_id:
                self._entry_ids.add(entry_id)
        return drafts


def _remembered(session: Session, entries: Sequence[Any]) -> FileMemory:
    """Read the entries of a session that come before the next ones.

    The next entries may be in the session already: the client sends the transcript
    again, or a capture has read further than the client mirrored.  The first entry with
    an id shows the place.
    """
    memory = FileMemory()
    if session.writer.log.head(session.stream).seq == 0:
        return memory
    leading: list[Any] = []
    end: int | None = None
    for entry in entries:
        if FORMAT.id(entry):
            key = Native(FORMAT, FORMAT.kind(entry), FORMAT.id(entry)).key or ""
            place = session.writer.log.known(session.stream, [key]).get(key)
            end = place.first_seq if place else None
            break
        leading.append(entry)
    for item in session.native.read():
        if end is not None and item.seq >= end:
            break
        if item.format == claude_code.NAME and isinstance(item.value, dict):
            identity = item.id or ""
            memory.identities.restore(identity)
            memory.take(item.value, Native(FORMAT, item.kind, identity))
    if end is not None:
        for entry in leading:
            memory.identities.take_back(entry)
    return memory


class RefoldSessionStore(_Protocol):
    """Mirrors transcripts into the sessions of one user; for ``session_store=``.

    The client reads back what is stored, which is redacted.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store = store
        self._user_id = user_id
        self._transcripts: OrderedDict[str, _Transcript] = OrderedDict()
        self._lock = Lock()
        # Names of sessions, each with the project that it belongs to.
        self._known_projects: set[tuple[str, str]] = set()

    async def append(self, key: Key, entries: Sequence[Any]) -> None:
        """Append the new ones of these entries."""
        if entries:
            await in_thread(lambda: self._append(key, entries))

    def _append(self, key: Key, entries: Sequence[Any]) -> None:
        session = self._session(key)
        transcript = self._transcript(session)
        with transcript.lock:
            try:
                drafts = transcript.drafts(session, entries)
                session.native.append(FORMAT, drafts, unscanned="stub")
            except BaseException:
                transcript.forget()
                raise

    def _transcript(self, session: Session) -> _Transcript:
        """Return the transcript of a session.

        The least recently used transcript is dropped, because memory is bounded.
        """
        with self._lock:
            transcript = self._transcripts.pop(session.session_id, None)
            if transcript is None:
                transcript = _Transcript()
            self._transcripts[session.session_id] = transcript
            if len(self._transcripts) > _MOST_TRANSCRIPTS:
                self._transcripts.popitem(last=False)
            return transcript

    async def load(self, key: Key) -> list[Any] | None:
        """Return the stored entries; None if there are none.

        Raises LinesMissing for a session that was imported.
        """
        return await asyncio.to_thread(self._load, key)

    def _load(self, key: Key) -> list[Any] | None:
        session = self._session(key)
        entries: list[Any] = []
        ids: set[str | None] = set()
        imported: dict[Any, int] = {}
        for item in session.native.read(others=True):
            if item.format == claude_code.NAME:
                entries.append(item.value)
                ids.add(item.id)
                continue
            source = item.events[0].meta.source or {}
            # A queued message has its line, too, if any event of the transcript has.
            is_line = source.get("format") == claude_code.NAME and (
                "id" in source or "queued" not in source
            )
            if is_line:
                imported.setdefault(source.get("id"), item.seq)
        for entry_id, seq in imported.items():
            if entry_id not in ids:
                raise LinesMissing(session.session_id, seq=seq)
        return entries or None

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Return names and times of the project's sessions, without sub-agents."""
        return await asyncio.to_thread(self._listed, project_key)

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """Return the SDK's own summaries of the sessions, for its lists."""
        return await asyncio.to_thread(self._listed, project_key, _summary)

    async def delete(self, key: Key) -> None:
        """Erase a session with its sub-agents, or one of them; ids can be used again.

        Raises OnHold under a legal hold.
        """

        def erase() -> None:
            parts = self._parts(key["project_key"], key["session_id"])
            for part, session in parts.items():
                if key.get("subpath") in (None, part):
                    with suppress(SessionNotFound):
                        session.delete("deleted through the Claude Agent SDK")

        await asyncio.to_thread(erase)

    async def list_subkeys(self, key: Key) -> list[str]:
        """Return the names of the parts of a session that are sub-agents'."""
        parts = await asyncio.to_thread(
            self._parts, key["project_key"], key["session_id"]
        )
        return [part for part in parts if part != _MAIN]

    async def redacted(self, value: Any) -> Any:
        """Return a prompt, or other JSON, in the redacted form that may be sent.

        Its placeholders have no numbers, which it gets when it is stored.
        """
        user = self._store.session(user_id=self._user_id, session_id="-")
        return await asyncio.to_thread(redact_unstored, user, FORMAT, value)

    @property
    def hooks(self) -> Any:
        """Hooks for ``ClaudeAgentOptions(hooks=…)``: the model gets redacted text only.

        Results of tools are redacted.  A prompt with something to redact is refused,
        because the SDK lets no hook change it.  Tools get the values that the vault
        allows.
        """
        hooks = {
            "PreToolUse": self._reveal_arguments,
            "PostToolUse": self._redact_result,
            "UserPromptSubmit": self._refuse_prompt,
        }
        return {
            name: [HookMatcher(hooks=[hook], on_failure="block")]
            for name, hook in hooks.items()
        }

    async def _reveal_arguments(self, call: Any, *_: Any) -> Any:
        """Put values into the arguments of a call; permission is decided elsewhere."""
        if call.get("agent_id"):
            return {}  # a sub-agent's placeholders have other numbers
        project = Path(call["transcript_path"]).parent.name
        key = {"project_key": project, "session_id": call["session_id"]}
        arguments = call["tool_input"]

        def reveal() -> Any:
            return self._session(key).vault.reveal(arguments, tool=call["tool_name"])

        try:
            revealed = await asyncio.to_thread(reveal)
        except SessionNotFound:
            return {}
        if revealed == arguments:
            return {}
        return _output("PreToolUse", updatedInput=revealed)

    async def _redact_result(self, result: Any, *_: Any) -> Any:
        response = result["tool_response"]
        redacted = await self.redacted(response)
        if redacted == response:
            return {}
        return _output("PostToolUse", updatedToolOutput=redacted)

    async def _refuse_prompt(self, submitted: Any, *_: Any) -> Any:
        if await self.redacted(submitted["prompt"]) == submitted["prompt"]:
            return {}
        return {
            "decision": "block",
            "reason": "The prompt contains text that is redacted: send the result of "
            "redacted() instead.",
            **_output("UserPromptSubmit", suppressOriginalPrompt=True),
        }

    def _session(self, key: Key) -> Session:
        """Return the session of the transcript's import, or a session of this store.

        It has its own if the client's id is no UUID, or if the session of that name was
        erased or belongs to another project.
        """
        labels = {
            _PROJECT: key["project_key"],
            _SESSION: key["session_id"],
            _PART: key.get("subpath") or _MAIN,
        }
        name = _imported_name(key)
        if name is not None:
            session = self._store.session(user_id=self._user_id, session_id=name)
            with suppress(Erased):
                if self._is_of_project(session, key["project_key"]):
                    return replace(session, first_labels=labels)
        whole_key = "\0".join(labels.values())
        return self._store.named(whole_key, user_id=self._user_id, labels=labels)

    def _is_of_project(self, session: Session, project: str) -> bool:
        """Whether a session belongs to the project, or to none.  Raises Erased."""
        self._store.log.head(session.stream)
        main_name, _, agent = session.session_id.partition("~")
        if (main_name, project) in self._known_projects:
            return True
        sessions = [self._named(main_name)]
        if agent:
            sessions.append(session)
        is_of_other = False
        for candidate in sessions:
            if self._store.log.head(candidate.stream).seq == 0:
                continue
            if self._is_labelled(candidate.session_id, project):
                self._known_projects.add((main_name, project))
                return True
            labels = candidate.labels()
            # A capture labels a sub-agent's session with the folder of sub-agents.
            is_captured = candidate.session_id == main_name and "folder" in labels
            if _PROJECT in labels or is_captured:
                is_of_other = True
        return not is_of_other

    def _is_labelled(self, session_id: str, project: str) -> bool:
        """Whether this store or a capture labelled a session with the project."""
        return any(
            self._store.log.sessions(
                self._user_id, session_id=session_id, labels=labels, limit=1
            )
            for labels in (_of_mirror(project), _of_capture(project))
        )

    def _parts(self, project: str, session_id: str) -> dict[str, Session]:
        """Return the sessions of a transcript and of its sub-agents, by part.

        A session that is being erased is left out, although its rows still exist.
        """
        parts: dict[str, Session] = {}
        infos = self._store.sessions(
            self._user_id, label={_PROJECT: project, _SESSION: session_id}
        )
        for info in infos:
            session = self._named(info.session_id)
            with suppress(Erased):
                parts[session.labels()[_PART]] = session
        for name in self._imported_names(session_id):
            agent = name.partition("~")[2]
            part = f"{claude_code.SUB_AGENTS}/agent-{agent}" if agent else _MAIN
            session = self._named(name)
            if session in parts.values():
                continue
            with suppress(Erased):
                if self._is_of_project(session, project):
                    parts.setdefault(part, session)
        return parts

    def _imported_names(self, session_id: str) -> Iterator[str]:
        """Yield the sessions that an import or a capture named after the transcript."""
        if not _is_uuid(session_id):
            return
        if self._store.log.sessions(self._user_id, session_id=session_id, limit=1):
            yield session_id
        after = f"{session_id}~"
        while True:
            page = self._store.sessions(self._user_id, after=after, limit=_PAGE)
            for info in page:
                if not info.session_id.startswith(f"{session_id}~"):
                    return
                yield info.session_id
            if len(page) < _PAGE:
                return
            after = page[-1].session_id

    def _named(self, session_id: str) -> Session:
        return self._store.session(user_id=self._user_id, session_id=session_id)

    def _listed(
        self, project: str, add_fields: Callable[[Session], Any] | None = None
    ) -> list[Any]:
        """Return entries for a list of the project's sessions, with captured ones.

        add_fields: returns further fields of a session's entry.
        """
        entries: dict[str, Any] = {}
        mirrored = {**_of_mirror(project), _PART: _MAIN}
        for labels in (mirrored, _of_capture(project)):
            for info in self._store.sessions(self._user_id, label=labels):
                session = self._named(info.session_id)
                with suppress(SessionNotFound, Erased):
                    session_id = session.labels().get(_SESSION, info.session_id)
                    mtime = session.head().updated_at // 1000  # milliseconds
                    entry: dict[str, Any] = {"session_id": session_id, "mtime": mtime}
                    if add_fields is not None:
                        entry |= add_fields(session)
                    entries[session_id] = entry
        return [*entries.values()]


def _of_mirror(project: str) -> dict[str, str]:
    """Return the label that this store gives the sessions of a project."""
    return {_PROJECT: project}


def _of_capture(project: str) -> dict[str, str]:
    """Return the labels that a capture gives the sessions of a project."""
    return {"client": claude_code.NAME, "folder": project}


def _imported_name(key: Key) -> str | None:
    """Return the session that an import of the transcript becomes, or None."""
    session_id = key["session_id"]
    if not _is_uuid(session_id):
        return None
    part = key.get("subpath")
    if not part:
        return str(session_id)
    sub_agent = _SUB_AGENT.fullmatch(part)
    return f"{session_id}~{sub_agent[1]}" if sub_agent else None


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _output(event: str, **fields: Any) -> Any:
    """Return the answer of a hook."""
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


def _summary(session: Session) -> Any:
    return {"data": session.native.fold("claude-summary", step=_folded) or {}}


def _folded(data: Any, item: NativeItem) -> Any:
    """Return the summary of a session after one more entry.

    data: the summary so far; None before the first entry.
    """
    if not item.format:
        return data
    before: Any = None if data is None else {"session_id": "", "mtime": 0, "data": data}
    key: Any = {"project_key": "", "session_id": ""}
    return fold_session_summary(before, key, [item.value])["data"]
