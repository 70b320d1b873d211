"""Live capture: appends the entries that a client adds to its transcripts.

An entry is identified by its id, or else by its content and the number of equal entries
before it in the file.  So nothing is appended twice if an entry is read again, because
the process was killed, or the file was moved or rewritten.  The place where reading
stopped is saved only to save work.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Final, NamedTuple

from refold.adapters.capture_state import CaptureState, Holder, all_states
from refold.adapters.importers import base, claude_code, codex, lines
from refold.adapters.importers.claude_code import FileMemory, ImpliedEvents
from refold.adapters.importers.codex_history import Change, History
from refold.adapters.importers.identity import Identities
from refold.adapters.importers.unrecorded import is_resumption
from refold.adapters.proxy_lock import is_proxy_running
from refold.domain import errors, ports
from refold.domain.envelope import (
    Draft,
    Format,
    Native,
    from_microseconds,
    microseconds,
)
from refold.domain.ports import Exported
from refold.store.appends import Receipt
from refold.store.session.forking import continue_exported
from refold.store.session.imports import set_client_title
from refold.store.session.proxied import ProxiedEvents
from refold.store.session.session import Session
from refold.store.store import SessionStore

_log = logging.getLogger(__name__)
_TAIL: Final = 1024  # bytes before a place, which show whether a file was rewritten
_ENTRIES: Final = 200  # that are appended at once
_BYTES: Final = 4 << 20  # of lines that are appended at once
_OPEN: Final = 32  # files that stay open, so that deleted ones are read to their end
# The listing of a folder takes one part in this number of the time.
_IDLE: Final = 1600
_SHORTEST: Final = 0.25  # seconds between two looks
_LONGEST: Final = 30.0  # seconds between two looks at all files
# A proxy has recorded a request or an answer this long after the client wrote it.
_LONGEST_WAIT: Final = 10.0  # seconds
_REFUSALS: Final = 20  # the newest, which are saved for ``status``
_LOG_LINES: Final = 5  # that ``status`` shows of a process that a hook started
# Errors of the whole store or user, after which no other entry can be appended either.
_STORE_ERRORS: Final = (errors.StoreUnavailable, errors.KeyUnavailable, errors.Frozen)


@dataclass(slots=True)
class Place:
    """The place where reading a file stopped, and facts about the file up to there.

    at:       the byte after the last line that was read.
    tail:     a digest of the bytes before ``at``.
    stamp:    the file's size and time of change when it was last read.
    session:  the session of the file; empty if no entry has named it yet.
    model:    the model that the last turn of Codex named.
    queued:   whether messages wait in the client's queue.
    leaf:     the id of the last entry, if an entry that names it as its parent can be
              appended without reading the earlier ones again.
    document: whether the file is a JSON document of several lines.
    time:     the time of the last entry that has one, in microseconds since 1970; 0 if
              no entry had one yet.
    """

    path: str
    at: int = 0
    tail: str = ""
    stamp: tuple[int, int] = (0, 0)
    session: str = ""
    model: str | None = None
    queued: bool = False
    leaf: str = ""
    document: bool = False
    time: int = 0


def _claude_code(entry: dict[str, Any], reading: _Reading) -> tuple[str, Format]:
    """Return the session and the format of an entry, as ``refold import`` does.

    Raises _OtherSession if the file belongs to another session than its place says.
    """
    place = reading.place
    path = Path(place.path)
    session_in_path = claude_code.session_in_name(path)
    names_same_session = base.session_name(entry, "sessionId") == session_in_path
    if names_same_session and place.session not in ("", session_in_path):
        place.session = session_in_path
        raise _OtherSession
    if names_same_session and not place.session:
        place.session = session_in_path
    if not place.session:
        place.session = claude_code.session_of_file(path, reading.sessions())
    session = place.session or session_in_path
    if entry.get("isSidechain") is True:
        # Old versions name no agent.  Then the first entry of the run names it.
        run = base.text(entry, "agentId") or reading.memory.runs.run_of(entry)
        if run:
            session = f"{session}~{run}"
    return session, claude_code.FORMAT


def _codex(entry: dict[str, Any], reading: _Reading) -> tuple[str, Format]:
    """Return the session and the format of a line of Codex; remember its model."""
    place = reading.place
    if entry.get("type") == "turn_context":
        place.model = base.text(entry, "payload", "model") or place.model
    if not place.session:
        place.session = codex.name_of(entry)
    id_in_name = _stem(place)[-36:]
    return place.session or id_in_name, codex.format_of(place.model)


def _stem(place: Place) -> str:
    """Return the name of a file without ``.jsonl`` and anything after it."""
    return Path(place.path).name.partition(".jsonl")[0]


class _Waits(Exception):
    """A running proxy may be about to record the last entries of the file."""


class _OtherSession(Exception):
    """The file belongs to another session than its first entries named."""


class Client(NamedTuple):
    """A client whose transcripts can be captured.

    variable:    the variable of the environment that names the client's folder.
    home:        the folder if the variable is not set.
    transcripts: the folder of transcripts in it.
    identify:    returns the session and the format of an entry.  It may store facts in
                 the place of the reading that later entries do not repeat.
    """

    variable: str
    home: str
    transcripts: str
    identify: Callable[[dict[str, Any], _Reading], tuple[str, Format]]


CLIENTS: Final = {
    "claude-code": Client("CLAUDE_CONFIG_DIR", "~/.claude", "projects", _claude_code),
    "codex": Client("CODEX_HOME", "~/.codex", "sessions", _codex),
}


def folder_of(client: str) -> Path:
    """Return the folder in which a client stores its transcripts."""
    of_client = CLIENTS[client]
    home = os.environ.get(of_client.variable) or of_client.home
    return Path(home, of_client.transcripts).expanduser()


class AlreadyCaptured(errors.InvalidConfiguration):
    """Another process captures the same folder for the same user into the same store.

    temporary: whether that process ends by itself.
    """

    def __init__(self, folder: Path, holder: Holder) -> None:
        self.temporary = holder.temporary
        process = f"process {holder.pid}" if holder.pid else "another process"
        super().__init__(f"{folder} is captured by {process} already")


class Refusal(NamedTuple):
    """A line that was not captured, or only in part.

    why: completes the sentence "the line …".
    """

    path: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{base.shown(self.path)} line {self.line} {self.why}"


class Unreadable(NamedTuple):
    """A file or folder that could not be read.

    why: completes the sentence "the path …".
    """

    path: str
    why: str

    def __str__(self) -> str:
        return f"{base.shown(self.path)} {self.why}"


class CaughtUp(NamedTuple):
    """The number of entries that a process appended, and of those that it refused."""

    appended: int
    refused: int


class _Entry(NamedTuple):
    """An entry to append.

    line:   the number of its line, from the place where reading began.
    ts:     its time; None if it has none.
    before: events that it implies before it: messages and files that the client sent,
            and changes to its history.
    after:  changes to the history after it.
    is_recorded: whether a proxy recorded the entry itself, or a part of it.
    """

    session: str
    native: Native
    line: int
    ts: datetime | None
    before: tuple[Draft, ...] = ()
    after: tuple[Draft, ...] = ()
    is_recorded: bool = False


@dataclass(slots=True)
class _Batch:
    """Entries that are appended at once.

    damage:  lines that cannot be appended, each with the reason.
    is_last: whether its entries are the last ones of the file.
    """

    entries: list[_Entry] = field(default_factory=list)
    damage: list[tuple[int, str]] = field(default_factory=list)
    is_last: bool = False

    def set_times(self, last: int) -> int:
        """Give entries without a time that of the entry before, as an import does.

        Those before the first entry with a time get its time.

        last: the time of the last entry before the batch; 0 for none.

        Returns the time of the last entry with one.
        """
        first = next((entry.ts for entry in self.entries if entry.ts is not None), None)
        time = from_microseconds(last) if last else first
        for index, entry in enumerate(self.entries):
            time = entry.ts or time
            self.entries[index] = entry._replace(ts=time)
        return last if time is None else microseconds(time)


class _Memory(FileMemory):
    """Remembers the entries of a file, because later entries depend on them.

    It serves both clients: the base class Claude Code, the history Codex.

    titled: the title that the session was labelled with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.codex_history = History()
        self.codex_answers = codex.Answers()
        self.titled = ""
        self._titles = claude_code.Titles()
        self._codex_title = ""

    def take_title(self, entry: dict[str, Any]) -> None:
        """Remember the title in an entry, if it has one."""
        self._titles.take(entry)
        self._codex_title = codex.title_in(entry) or self._codex_title

    @property
    def title(self) -> str:
        """The title that the client gave the session; empty without one."""
        return self._codex_title or self._titles.title()


class _Implied(NamedTuple):
    """The facts that follow from an entry and those before it.

    claude_code: the events that an entry of Claude Code implies.
    codex:       the change that a line of Codex makes to the history.
    response_id: of the answer of Codex that the entry belongs to; empty without one.
    """

    claude_code: ImpliedEvents = ImpliedEvents()
    codex: Change | None = None
    response_id: str = ""


class _Reading:
    """One pass over a file, from the place where the last one stopped.

    key:      identifies the file.
    memories: the memory of each file, by its key.
    is_last:  whether the file cannot be read again.
    offset:   the first byte of the current line.
    """

    def __init__(
        self,
        file: BinaryIO,
        key: str,
        place: Place,
        form: Format,
        memories: dict[str, _Memory],
        *,
        is_last: bool,
    ) -> None:
        self.file = file
        self.key = key
        self.place = place
        self._form = form
        self._memories = memories
        self._is_last = is_last
        self._start = place.at
        self.offset = place.at
        self._lines_before: int | None = None

    def may_wait(self) -> bool:
        """Whether a proxy may still be about to record the last entries."""
        if self._is_last:
            return False
        written_at = os.fstat(self.file.fileno()).st_mtime
        return abs(time.time() - written_at) < _LONGEST_WAIT

    def line_in_file(self, line: int) -> int:
        """Return the number of a line in the file.

        line: its number from the place where reading began.
        """
        if self._lines_before is None:
            self._lines_before = _newlines(self.file, self._start)
        return self._lines_before + line

    @property
    def memory(self) -> _Memory:
        """The memory of the entries before the current line.

        Without one, the file is read again from its start.
        """
        if self.key not in self._memories:
            memory = _Memory()
            for entry in self._entries(upto=self.offset):
                native = memory.identities.native(self._form, entry)
                self.take(memory, entry, native)
            memory.titled = memory.title
            self._memories[self.key] = memory
        return self._memories[self.key]

    def take(self, memory: _Memory, entry: dict[str, Any], native: Native) -> _Implied:
        """Add the next entry to a memory; return what follows from it."""
        memory.take_title(entry)
        if self._form is not claude_code.FORMAT:
            key = native.key or ""
            change = memory.codex_history.take(entry, key)
            response_id = memory.codex_answers.take(entry, key)
            return _Implied(codex=change, response_id=response_id)
        run = memory.runs.run_of(entry)
        return _Implied(memory.take(entry, native, run=run))

    def continues(self, entry: dict[str, Any]) -> bool:
        """Whether an entry only continues the one before, and implies no events.

        If so, the entry becomes the leaf of the place.
        """
        if self._form is not claude_code.FORMAT:
            return True
        if entry.get("type") not in ("user", "assistant", "progress"):
            return False
        if entry.get("isCompactSummary") is True or is_resumption(entry):
            return False
        leaf = self.place.leaf
        if not leaf or entry.get("parentUuid") != leaf:
            return False
        self.place.leaf = base.text(entry, "uuid") or ""
        return True

    def earlier(self, *, is_sub_agent: bool) -> Iterator[_Entry]:
        """Yield the entries before the place where reading began.

        is_sub_agent: whether to yield those of sub-agents, if the file marks any.
        """
        identities = Identities()
        answers = codex.Answers()
        for number, entry in enumerate(self._entries(upto=self._start)):
            native = identities.native(self._form, entry)
            if self._form is not claude_code.FORMAT:
                response_id = answers.take(entry, native.key or "")
                native = codex.of_answer(native, self.place.model, response_id)
            if entry.get("isSidechain", is_sub_agent) is is_sub_agent:
                yield _Entry("", native, number, None)

    def sessions(self) -> Iterator[str]:
        """Yield the sessions that the entries of the file name, in their order."""
        for entry in self._entries():
            session = base.session_name(entry, "sessionId")
            if session:
                yield session

    def _entries(self, upto: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the entries before the byte ``upto``, or all of them."""
        position = self.file.tell()
        try:
            for line in lines.raw_lines(self.file):
                if upto is not None and line.offset >= upto:
                    break
                if line.data is None:
                    continue
                for value in lines.parse_line(line.data).values:
                    if isinstance(value.value, dict):
                        yield value.value
        finally:
            self.file.seek(position)


class Follower:
    """Appends the entries that a client writes, for one user.

    ``catch_up`` looks once, ``run`` follows.  One process at a time follows a folder
    into the store at ``url``.

    appended, refused: the number of entries that all processes appended and refused.
    refusals:          the newest refused lines.
    unreadable:        the files and folders that the last look could not read.
    """

    def __init__(
        self,
        store: SessionStore,
        client: str,
        *,
        user_id: str,
        folder: Path,
        url: str = "",
    ) -> None:
        self._store = store
        self._user = user_id
        self._client = client
        self._identify = CLIENTS[client].identify
        self.folder = folder.expanduser().absolute()
        self.state = CaptureState.of(
            url=url, user_id=user_id, client=client, folder=self.folder
        )
        self._lock = -1  # the descriptor that holds the lock during ``alone``
        self._places: dict[str, Place] = {}
        self._files: dict[str, BinaryIO] = {}
        self._memories: dict[str, _Memory] = {}
        # The events of proxies in the sessions that have some.
        self._proxied: dict[str, ProxiedEvents] = {}
        # Whether a session continues an exported one, by its name and the event.
        self._continued: dict[tuple[str, Exported], bool] = {}
        self.appended = 0
        self.refused = 0
        self.refusals: list[Refusal] = []
        self.unreadable: list[Unreadable] = []
        self._not_saved = ""  # why the state could not be saved; empty if it was
        self._changed = False  # whether the state changed since it was saved
        self._listing_sec = 0.0

    @contextmanager
    def alone(
        self, *, inherited: int | None = None, temporary: bool = False
    ) -> Iterator[None]:
        """Keep other processes from following the folder while the block runs.

        inherited: the descriptor of a lock that the parent process acquired.
        temporary: whether this process ends by itself, which the others can read.

        Raises AlreadyCaptured if another process follows it.
        """
        if inherited is not None and self.state.inherit(inherited):
            lock: int | None = inherited
        else:
            lock = self.state.acquire()
        if lock is None:
            holder = self.state.holder() or Holder(0, temporary=True)
            raise AlreadyCaptured(self.folder, holder)
        self._lock = lock
        try:
            self.state.sign(lock, temporary=temporary)
            self._load()
            yield
        except errors.Erased:
            self.state.forget()
            raise
        finally:
            while self._files:
                self._files.popitem()[1].close()
            self._memories.clear()
            self._proxied.clear()
            self._lock = -1
            os.close(lock)

    def catch_up(self) -> CaughtUp | None:
        """Append the new entries.

        Returns None if another process follows the folder: it takes the request.

        Raises StoreUnavailable, KeyUnavailable, Frozen, and Erased for the user.
        """
        self.state.request()
        return self.answer_requests()

    def answer_requests(self) -> CaughtUp | None:
        """Look for new entries as long as requests of other processes wait.

        Returns None if there was no request, or if another process answers it.

        Call it after ``run``, outside ``alone``: another process that did not get the
        lock may have left its request to this one while this one ended.
        """
        done: CaughtUp | None = None
        while self.state.requested():
            try:
                with self.alone(temporary=True):
                    refused_before = self.refused
                    appended = self._take_requests()
                    refused = self.refused - refused_before
            except AlreadyCaptured:
                return done
            before = done or CaughtUp(0, 0)
            done = CaughtUp(before.appended + appended, before.refused + refused)
        return done

    def _take_requests(self) -> int:
        """Look for new entries once for each waiting request.

        Returns the number of appended entries.
        """
        appended = 0
        requested_at = self.state.take_request()
        while requested_at is not None:
            try:
                appended += self.look()
            except errors.RefoldError:
                self._request_again(requested_at)
                raise
            requested_at = self.state.take_request()
        return appended

    def run(self, stop: Event, *, linger: float | None = None) -> None:
        """Follow until ``stop`` is set; if the store is unavailable, wait for it.

        Files that changed lately are looked at often.  The whole folder is listed at a
        request, and otherwise more rarely the longer that takes.

        linger: also end after this number of seconds without new entries.
        """
        next_listing = 0.0
        busy_at = time.monotonic()
        warning = ""
        while not stop.is_set():
            requested_at = self.state.take_request()
            lists = requested_at is not None or time.monotonic() >= next_listing
            appended = 0
            try:
                appended = self.look(whole=lists)
                warning = ""
            except _STORE_ERRORS as error:
                if warning != str(error):  # once, not at every look
                    warning = str(error)
                    _log.warning("capture waits: %s", warning)
                if requested_at is not None:
                    self._request_again(requested_at)
                    requested_at = None
            if lists:
                pause = max(self._listing_sec * _IDLE, _SHORTEST)
                next_listing = time.monotonic() + min(pause, _LONGEST)
            if appended or requested_at is not None:
                busy_at = time.monotonic()
            if linger is not None and time.monotonic() - busy_at > linger:
                return
            stop.wait(_SHORTEST)

    def _request_again(self, requested_at: float) -> None:
        """Leave a request to the next look, or to another process."""
        with suppress(OSError):  # a full disk; the error before says more
            self.state.request(since=requested_at)

    def look(self, *, whole: bool = True) -> int:
        """Append the new entries; returns their number.

        whole: look at all files, and save the state.  Otherwise look only at the files
               that changed lately.

        Raises StoreUnavailable, KeyUnavailable, Frozen, Erased.  The next look then
        reads the lines again that were not appended.
        """
        self._check_lock()
        before = self.appended
        if not whole:
            for key, file in list(self._files.items()):
                with suppress(OSError):  # the next look at all files reports it
                    self._look_at(key, self._places[key].path, os.fstat(file.fileno()))
            return self.appended - before
        seen: set[str] = set()
        began = time.process_time()
        unreadable: list[Unreadable] = []
        # The newest are last, so that they stay open.
        files = sorted(
            _listed(self.folder, unreadable), key=lambda file: file[1].st_mtime
        )
        self._listing_sec = time.process_time() - began
        for path, info in files:
            key = _key(info)
            seen.add(key)
            try:
                self._look_at(key, path, info)
            except OSError as error:
                unreadable.append(_unreadable(path, error))
        for key in self._places.keys() - seen:
            self._leave_file(key, unreadable)
        self._report(unreadable)
        if self._changed:
            self._save()
        return self.appended - before

    def _leave_file(self, key: str, unreadable: list[Unreadable]) -> None:
        """Read a file that was deleted or moved away to its end, and forget it.

        It can be read only if it is still open.  An error is added to ``unreadable``.
        """
        if key in self._files:
            try:
                with self._files.pop(key) as file:
                    self._read(file, key, is_last=True)
            except OSError as error:
                unreadable.append(_unreadable(self._places[key].path, error))
        del self._places[key]
        self._memories.pop(key, None)
        self._changed = True

    def _report(self, unreadable: list[Unreadable]) -> None:
        """Warn about each file or folder that cannot be read, once."""
        for problem in unreadable:
            if problem not in self.unreadable:
                _log.warning("%s", problem)
        if unreadable != self.unreadable:
            self.unreadable = unreadable
            self._changed = True

    def _look_at(self, key: str, path: str, info: os.stat_result) -> None:
        """Read a file if it changed since the last look."""
        place = self._places.setdefault(key, Place(path))
        stamp = (info.st_size, info.st_mtime_ns)
        if place.stamp == stamp and place.path == path:
            return
        place.path = path
        self._changed = True
        file = self._opened(key, path)
        if file is not None:
            try:
                self._read(file, key)
            except _Waits:
                return  # the next look reads the rest
            self._places[key].stamp = stamp

    def _opened(self, key: str, path: str) -> BinaryIO | None:
        """Return the open file; None if it is gone.

        The files that were used last stay open.
        """
        file = self._files.pop(key, None) or _open(path, key)
        if file is not None:
            self._files[key] = file
            if len(self._files) > _OPEN:
                oldest = next(iter(self._files))
                self._files.pop(oldest).close()
                self._memories.pop(oldest, None)
        return file

    def _read(self, file: BinaryIO, key: str, *, is_last: bool = False) -> None:
        """Append the entries in complete lines, from where reading stopped.

        is_last: whether the file cannot be read again.
        """
        place = self._places[key]
        size = os.fstat(file.fileno()).st_size
        if size < place.at or _tail(file, place.at) != place.tail:
            # The file was rewritten, or is another one by now.  It is read from its
            # start; entries that the session has are not appended again.
            place = Place(place.path, document=place.document)
            self._places[key] = place
            self._forget(key)
        if (not place.at or place.document) and lines.is_document(file):
            self._pass_over(file, place)
            return
        if place.document:  # it is a transcript by now
            place = Place(place.path)
            self._places[key] = place
        form = claude_code.FORMAT
        if self._client == codex.NAME:
            form = codex.format_of(place.model)

        def append_new() -> None:
            self._append_new(
                _Reading(file, key, place, form, self._memories, is_last=is_last)
            )

        try:
            append_new()
        except _OtherSession:
            place.at = 0
            place.leaf = ""
            self._forget(key)
            append_new()
        except BaseException:
            # The next look reads the same lines, and must count them once.
            self._forget(key)
            raise

    def _forget(self, key: str) -> None:
        """Forget the entries of a file, some of which are going to be read again.

        They may belong to any session, so none keeps the events of the proxy that its
        entries took.
        """
        self._memories.pop(key, None)
        self._proxied.clear()

    def _pass_over(self, file: BinaryIO, place: Place) -> None:
        """Skip a file that is no transcript, and report it once."""
        if not place.document:
            why = "starts a JSON document of several lines, which is not a transcript"
            self._refuse(Refusal(place.path, 1, why))
        place.document = True
        place.at = os.fstat(file.fileno()).st_size
        place.tail = _tail(file, place.at)

    def _append_new(self, reading: _Reading) -> None:
        """Append the entries of a reading in batches, up to the last complete line."""
        place = reading.place
        batch = _Batch()
        end = place.at
        for line in lines.raw_lines(reading.file, place.at):
            reading.offset = line.offset
            if line.data is None:
                if not line.is_complete:
                    break
                why = f"is longer than {lines.MAX_LINE:,} bytes"
                batch.damage.append((line.number, why))
            else:
                content = lines.parse_line(line.data)
                if not line.is_complete and not _is_whole(content):
                    break  # the client is still writing this line
                for damage in content.damage:
                    batch.damage.append((line.number, damage.why))
                for value in content.values:
                    if isinstance(value.value, dict):
                        entry = self._entry(reading, line.number, value.value)
                        batch.entries.append(entry)
                    else:
                        batch.damage.append((line.number, "is no JSON object"))
            end = line.end
            if len(batch.entries) >= _ENTRIES or end - place.at > _BYTES:
                self._append(reading, batch, end)
                batch = _Batch()
        batch.is_last = True
        self._append(reading, batch, end)

    def _entry(self, reading: _Reading, line: int, value: dict[str, Any]) -> _Entry:
        """Return the entry in a line, with the events that it implies."""
        session, form = self._identify(value, reading)
        ts = base.moment(value, "timestamp")
        identity = form.id(value)
        has_memory = reading.key in self._memories
        may_continue = identity and not has_memory and not reading.place.queued
        if may_continue and reading.continues(value):
            # The entries before make no difference, so they need not be read again.
            native = Native(form, form.kind(value), identity, value)
            return _Entry(session, native, line, ts)
        memory = reading.memory
        native = memory.identities.native(form, value)
        implied = reading.take(memory, value, native)
        reading.place.queued = not memory.queue.is_empty
        reading.place.leaf = ""
        if memory.is_continued(value, memory.runs.run_of(value)):
            reading.place.leaf = str(value["uuid"])
        before = implied.claude_code.drafts_before()
        changes = implied.claude_code.changes
        before += claude_code.edit_drafts(changes.before, value, native.key)
        after = claude_code.edit_drafts(
            changes.after, value, native.key, first=len(changes.before)
        )
        if implied.response_id:
            native = codex.of_answer(native, reading.place.model, implied.response_id)
        if implied.codex is not None:
            after += codex.drafts_of(implied.codex, value, reading.place.model)
        return _Entry(session, native, line, ts, tuple(before), tuple(after))

    def _append(self, reading: _Reading, batch: _Batch, end: int) -> None:
        """Append a batch, report its damage, and move the place to ``end``."""
        place = reading.place
        time = batch.set_times(place.time)
        labels = {"client": self._client, "folder": Path(place.path).parent.name}
        for name, group in groupby(batch.entries, key=lambda entry: entry.session):
            session = self._session(name)
            entries = self._without_exported(session, list(group), labels)
            session = replace(session, first_labels=labels)
            self._append_unrecorded(reading, session, name, entries, batch)
        self._set_title(reading, time)
        for line, why in sorted(batch.damage):
            self._refuse(Refusal(place.path, reading.line_in_file(line), why))
        place.at = end
        place.tail = _tail(reading.file, end)
        place.time = time

    def _session(self, name: str) -> Session:
        """Return the session for the name that entries give it."""
        session_id = base.session_name(name) or sha256(name.encode()).hexdigest()
        return self._store.session(user_id=self._user, session_id=session_id)

    def _set_title(self, reading: _Reading, time: int) -> None:
        """Label the session of a file with a new title of the client, like an import.

        time: of the newest entry.
        """
        memory = self._memories.get(reading.key)
        if memory is None or memory.title == memory.titled or not reading.place.session:
            return
        session = self._session(reading.place.session)
        ts = from_microseconds(time) if time else None
        try:
            head_seq = session.writer.log.head(session.stream).seq
            if head_seq:
                set_client_title(session, memory.title, format=self._client, ts=ts)
        except _STORE_ERRORS:
            raise
        except errors.RefoldError as error:
            if isinstance(error, errors.Erased) and error.of_user:
                raise
            _log.warning("%s: its title was refused: %s", reading.place.path, error)
        memory.titled = memory.title

    def _without_exported(
        self, session: Session, entries: list[_Entry], labels: dict[str, str]
    ) -> list[_Entry]:
        """Return the entries without those that this store exported to the client.

        The session continues the exported one, as a fork with these labels too.
        """
        own: list[_Entry] = []
        for entry in entries:
            exported = base.exported_in(base.mapping(entry.native.value))
            if exported is None:
                own.append(entry)
                continue
            place = (session.session_id, exported)
            if place not in self._continued:
                is_new = session.writer.log.head(session.stream).seq == 0
                self._continued[place] = continue_exported(session, exported)
                if is_new and self._continued[place]:
                    session.label(**labels)
            if not self._continued[place]:
                own.append(entry)
        return own

    def _append_unrecorded(
        self,
        reading: _Reading,
        session: Session,
        name: str,
        entries: list[_Entry],
        batch: _Batch,
    ) -> None:
        """Append the entries that no proxy recorded.

        If another writer appends to the session at the same time, it may be a proxy
        that records the same entries.  Then nothing is appended, and they are compared
        with the session again.  Entries that were appended are recognized by their key.

        name: of the session, as the entries have it.
        """
        while True:
            head = _head_of(session)
            proxied = self._proxied_events(reading, session, name, head)
            can_wait = (
                proxied is not None
                and batch.is_last
                and reading.may_wait()
                and is_proxy_running()
            )
            if can_wait and proxied and proxied.may_follow(_drafts_of(entries)):
                raise _Waits
            new = entries if proxied is None else _without_recorded(proxied, entries)
            appending = _Appending(session, None if head is None else head.seq)
            try:
                appending.append_all(new)
            except errors.StaleSession:
                self.appended += appending.appended
                continue
            except BaseException:
                self.appended += appending.appended
                raise
            if proxied is not None:
                proxied.settle()
            self.appended += appending.appended
            batch.damage += appending.damage
            return

    def _proxied_events(
        self,
        reading: _Reading,
        session: Session,
        name: str,
        head: ports.Head | None,
    ) -> ProxiedEvents | None:
        """Return the events of the proxy in a session; None without any.

        Earlier entries of the file are compared first, so that each event of the proxy
        belongs to one entry.
        """
        if head is None:
            return None
        proxied = self._proxied.get(session.session_id)
        if proxied is not None:
            proxied.read(head.state)
            return proxied
        proxied = ProxiedEvents(session)
        if not proxied.read(head.state):
            return None
        earlier = list(reading.earlier(is_sub_agent="~" in name))
        keys = [entry.native.key for entry in earlier if entry.native.key]
        present = session.writer.log.known(session.stream, keys) if keys else {}
        missing = [entry for entry in earlier if entry.native.key not in present]
        _without_recorded(proxied, missing)
        proxied.settle()
        self._proxied[session.session_id] = proxied
        if len(self._proxied) > _OPEN:
            del self._proxied[next(iter(self._proxied))]
        return proxied

    def _refuse(self, refusal: Refusal) -> None:
        """Count a refused line, remember it for ``status``, and warn about it."""
        self.refused += 1
        self.refusals = [*self.refusals, refusal][-_REFUSALS:]
        self._changed = True
        _log.warning("%s", refusal)

    def _load(self) -> None:
        """Load the state; without one, all files are read from their start."""
        self._places = {}
        self.appended = 0
        self.refused = 0
        with suppress(OSError, ValueError, TypeError, KeyError):
            saved = json.loads(self.state.places.read_bytes())
            places: dict[str, Place] = {}
            for key, fields in saved["files"].items():
                place = Place(**fields)
                place.stamp = (0, 0)  # the next look reads each file
                places[key] = place
            refusals = [Refusal(*refusal) for refusal in saved["refusals"]]
            self.appended = saved["appended"]
            self.refused = saved["refused"]
            self._places = places
            self.refusals = refusals

    def _check_lock(self) -> None:
        """Raise InvalidConfiguration if an erasure removed the state."""
        if self._lock < 0 or not self.state.is_current_lock(self._lock):
            raise errors.InvalidConfiguration(
                f"the state of the capture of {self.folder} was removed, which an "
                "erasure does: start the capture again if you still want it"
            )

    def _save(self) -> None:
        """Save the state, which ``status`` and the next process read."""
        saved = {
            "client": self._client,
            "user": self._user,
            "folder": str(self.folder),
            "files": {key: asdict(place) for key, place in self._places.items()},
            "appended": self.appended,
            "refused": self.refused,
            "refusals": self.refusals,
            "unreadable": self.unreadable,
            "pid": os.getpid(),
            "looked_at": int(time.time()),
        }
        new = self.state.places.with_suffix(".new")
        try:
            # ASCII: not every file name is valid Unicode.
            new.write_text(json.dumps(saved), "ascii")
            new.chmod(0o600)
            new.replace(self.state.places)
        except OSError as error:
            self._warn_not_saved(error)
            return
        self._not_saved = ""
        if not self.state.is_current_lock(self._lock):  # erased while this was written
            self.state.forget()
        self._check_lock()
        self._changed = False

    def _warn_not_saved(self, error: OSError) -> None:
        """Warn, once, that the next process has to read files from their start."""
        why = str(error.strerror).lower()
        if why != self._not_saved:
            self._not_saved = why
            _log.warning(
                "%s cannot be written (%s): capture goes on, and the next process "
                "reads the files again",
                base.shown(self.state.places),
                why,
            )


class _Appending:
    """Appends entries to a session, as long as nobody else appends to it.

    expected_seq: the seq of its head; None if an append reports why there is none.
    appended:     the number of new entries.
    damage:       refused lines, each with the reason.
    """

    def __init__(self, session: Session, expected_seq: int | None) -> None:
        self._session = session
        self._expected_seq = expected_seq
        self.appended = 0
        self.damage: list[tuple[int, str]] = []

    def append_all(self, entries: Sequence[_Entry]) -> None:
        """Append entries, each between the events that it implies before and after.

        Raises StaleSession if somebody else appended, and the errors of the store.
        """
        adjacent: list[_Entry] = []  # entries without implied events between them
        for entry in entries:
            if entry.before:
                self._append_adjacent(adjacent)
                self._append_drafts(entry, entry.before)
                adjacent = []
            if not entry.is_recorded:
                adjacent.append(entry)
            if entry.after:
                self._append_adjacent(adjacent)
                self._append_drafts(entry, entry.after)
                adjacent = []
        self._append_adjacent(adjacent)

    def _append_adjacent(self, entries: list[_Entry]) -> None:
        """Append adjacent entries and count the new ones.

        If they are refused together, they are appended one by one.
        """
        if not entries:
            return
        session = self._session
        natives = [entry.native for entry in entries]
        form = natives[0].format
        stored_before = 0
        if len(natives) > 1:  # for one entry, the receipt says whether it was stored
            keys = {native.key for native in natives if native.key}
            repeated = len(natives) - len(keys)
            stored = session.writer.log.known(session.stream, list(keys))
            stored_before = repeated + len(stored)
        try:
            receipt = session.native.append(
                form,
                [
                    Draft(ts=entry.ts, native=entry.native, key=entry.native.key)
                    for entry in entries
                ],
                opaque="keep",
                unscanned="stub",
                expected_seq=self._expected_seq,
            )
        except errors.RefoldError as error:
            self._check_of_entry(error)
            if len(entries) == 1:
                self.damage.append((entries[0].line, f"was refused: {error}"))
            else:
                for entry in entries:
                    self._append_adjacent([entry])
            return
        if not receipt.duplicate:
            self.appended += len(natives) - stored_before
        self._follow(receipt)

    def _append_drafts(self, entry: _Entry, drafts: tuple[Draft, ...]) -> None:
        """Append events that an entry implies."""
        try:
            receipt = self._session.append(
                drafts, unscanned="stub", expected_seq=self._expected_seq
            )
        except errors.RefoldError as error:
            self._check_of_entry(error)
            if len(drafts) == 1:
                self.damage.append((entry.line, f"was refused in part: {error}"))
                return
            for draft in drafts:
                self._append_drafts(entry, (draft,))
            return
        self._follow(receipt)

    def _check_of_entry(self, error: errors.RefoldError) -> None:
        """Raise an error again that does not concern the appended entry alone."""
        if isinstance(error, (*_STORE_ERRORS, errors.StaleSession)):
            raise error
        if isinstance(error, errors.Erased) and error.of_user:
            raise error

    def _follow(self, receipt: Receipt) -> None:
        """Remember the new head of the session."""
        if self._expected_seq is not None and not receipt.duplicate:
            self._expected_seq = receipt.last_seq


def _head_of(session: Session) -> ports.Head | None:
    """Return the head of a session; None for an erased one, as an append reports."""
    try:
        return session.writer.log.head(session.stream)
    except errors.Erased:
        return None


def _without_recorded(
    proxied: ProxiedEvents, entries: Sequence[_Entry]
) -> list[_Entry]:
    """Return the entries without the events that a proxy recorded.

    Of an entry that it recorded in part, the rest is appended as single events.
    """
    typed = [_events_of(entry.native) for entry in entries]
    decisions = iter(proxied.recorded(_drafts_of(entries)))
    unrecorded: list[_Entry] = []
    for entry, own in zip(entries, typed, strict=True):
        before = [draft for draft in entry.before if not next(decisions)]
        rest = [draft for draft in own if not next(decisions)]
        after = [draft for draft in entry.after if not next(decisions)]
        is_recorded = len(rest) < len(own)
        if is_recorded:
            for number, draft in enumerate(rest):
                part_key = _part_key(entry.native.key, number)
                before.append(replace(draft, key=part_key, continues=number > 0))
        if before or after or not is_recorded:
            unrecorded.append(
                entry._replace(
                    before=tuple(before), after=tuple(after), is_recorded=is_recorded
                )
            )
    return unrecorded


def _drafts_of(entries: Sequence[_Entry]) -> list[Draft]:
    """Return the events in entries, with those that they imply.

    The events of an entry have the keys by which edits name them.
    """
    drafts: list[Draft] = []
    for entry in entries:
        drafts += entry.before
        for number, draft in enumerate(_events_of(entry.native)):
            drafts.append(replace(draft, key=_part_key(entry.native.key, number)))
        drafts += entry.after
    return drafts


def _part_key(key: str | None, number: int) -> str | None:
    """Return the key of an event of an entry, the first of which has the entry's."""
    return f"{key}\0{number}" if key and number else key


def _events_of(native: Native) -> list[Draft]:
    """Return the events in an entry; none if an append is going to refuse it."""
    try:
        events = native.format.view(native.kind, native.value, {})
        return [event if isinstance(event, Draft) else Draft(event) for event in events]
    except (errors.RefoldError, RecursionError):
        return []


def status() -> list[dict[str, Any]]:
    """Return the state of each capture on this machine, as JSON.

    ``files`` is the number of files, ``bytes`` the number of bytes to read, and
    ``running`` whether a process captures now.
    """
    captures = []
    for state in all_states():
        saved: dict[str, Any] = {
            "client": None,
            "user": None,
            "folder": None,
            "files": {},
            "appended": 0,
            "refused": 0,
            "refusals": [],
            "unreadable": [],
        }
        # A process that failed before it looked has saved nothing.
        with suppress(OSError, ValueError):
            saved |= json.loads(state.places.read_bytes())
        waiting_bytes = 0
        for place in saved["files"].values():
            with suppress(OSError):  # the file is gone
                size = os.stat(place["path"]).st_size
                waiting_bytes += max(0, size - place["at"])
        captures.append(
            {
                **saved,
                "files": len(saved["files"]),
                "refusals": [
                    Refusal(*refusal)._asdict() for refusal in saved["refusals"]
                ],
                "unreadable": [
                    Unreadable(*problem)._asdict() for problem in saved["unreadable"]
                ],
                "bytes": waiting_bytes,
                "running": state.holder() is not None,
                "request_waits_sec": state.waiting(),
                "log": _newest_lines(state.log),
            }
        )
    return captures


def _newest_lines(log: Path) -> list[str]:
    """Return the last lines of a file; none without a file."""
    with suppress(OSError):
        return log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return []


def _listed(
    folder: Path, unreadable: list[Unreadable]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the transcripts below a folder, also rotated ones.

    Links to folders are followed.  Paths that cannot be read are added to
    ``unreadable``.
    """
    folders = [str(folder)]
    seen: set[str] = set()
    while folders:
        path = folders.pop()
        try:
            key = _key(os.stat(path))
            if key in seen:  # a link leads to it, too
                continue
            seen.add(key)
            with os.scandir(path) as entries:
                for entry in entries:
                    with suppress(OSError):  # the file is gone, or a broken link
                        if entry.is_dir():
                            folders.append(entry.path)
                        elif ".jsonl" in entry.name and entry.is_file():
                            yield entry.path, entry.stat()
        except FileNotFoundError:
            pass
        except OSError as error:
            unreadable.append(_unreadable(path, error))


def _unreadable(path: str, error: OSError) -> Unreadable:
    """Return the report of a path that cannot be read."""
    if isinstance(error, PermissionError):
        return Unreadable(path, "cannot be read: check its permissions")
    return Unreadable(path, f"cannot be read ({str(error.strerror).lower()})")


def _key(info: os.stat_result) -> str:
    """Return the key that identifies a file independently of its name."""
    return f"{info.st_dev}:{info.st_ino}"


def _open(path: str, key: str) -> BinaryIO | None:
    """Open the file with this key at ``path``.

    Returns None if it is gone, or if another file has its name: a client may rotate its
    files after they were listed.

    Raises OSError if it cannot be read.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  # its caller closes it
    except FileNotFoundError:
        return None
    if _key(os.fstat(file.fileno())) == key:
        return file
    file.close()
    return None


def _is_whole(content: lines.Line) -> bool:
    """Whether a line without an end is complete: it has only whole objects."""
    has_only_objects = all(isinstance(value.value, dict) for value in content.values)
    return has_only_objects and not content.damage


def _newlines(file: BinaryIO, end: int) -> int:
    """Return how many lines end before the byte ``end`` of the file."""
    count = 0
    at = 0
    while at < end:
        part = os.pread(file.fileno(), min(1 << 20, end - at), at)
        if not part:
            break
        count += part.count(b"\n")
        at += len(part)
    return count


def _tail(file: BinaryIO, at: int) -> str:
    """Return a digest of the last bytes before ``at``."""
    start = max(0, at - _TAIL)
    return sha256(os.pread(file.fileno(), at - start, start)).hexdigest()[:16]
