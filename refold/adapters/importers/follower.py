"""Live capture: what a client adds to its transcripts is appended as they grow.

An entry is known by its id, else by its content and by how many equal ones stand before
it in the file: reading it again after a kill, a move or a rewrite of the file appends
nothing.  Where reading stopped is saved among the settings, only to save work.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Final, NamedTuple

from refold.adapters.capture_state import CaptureState, Holder, all_states
from refold.adapters.importers import base, claude_code, codex, lines
from refold.adapters.importers.claude_code import FileMemory, ImpliedEvents
from refold.adapters.importers.codex_history import Change, History
from refold.adapters.importers.unrecorded import is_resumption
from refold.domain import errors
from refold.domain.envelope import Draft, Format, Native
from refold.store.session.session import Session
from refold.store.store import SessionStore

_log = logging.getLogger(__name__)
_TAIL: Final = 1024  # bytes before a place, by which a rewritten file is known
_ENTRIES: Final = 200  # that are appended at once
_BYTES: Final = 4 << 20  # of them
_OPEN: Final = 32  # files that are held, so that what is swept away is read to its end
_IDLE: Final = 1600  # of so many seconds one is spent with looking for changes
_SHORTEST: Final = 0.25  # seconds between two looks
_LONGEST: Final = 30.0  # seconds between two looks at all files
_REFUSALS: Final = 20  # the newest, which are saved for ``status``
_LOG_LINES: Final = 5  # of a process that a hook started, which ``status`` shows
_STORES: Final = (errors.StoreUnavailable, errors.KeyUnavailable, errors.Frozen)


@dataclass(slots=True)
class Place:
    """Where reading a file stopped, and what was learned in it by then.

    tail:  a digest of the bytes before ``at``.
    stamp: size and time of change when it was last read.
    """

    path: str
    at: int = 0
    tail: str = ""
    stamp: tuple[int, int] = (0, 0)
    session: str = ""
    model: str | None = None
    queued: bool = False  # messages wait in the program's queue
    leaf: str = ""  # the entry that the next one continues, if nothing else matters
    document: bool = False  # the file is a JSON document of several lines


def _claude_code(entry: dict[str, Any], reading: _Reading) -> tuple[str, Format]:
    """Return the session and the format of an entry, as ``refold import`` does."""
    place = reading.place
    path = Path(place.path)
    named = claude_code.session_in_name(path)
    own = base.session_name(entry, "sessionId")
    if own == named and place.session not in ("", named):
        place.session = named
        raise _OtherSession
    if not place.session and own == named:
        place.session = named
    if not place.session:
        place.session = claude_code.session_of_file(path, reading.sessions())
    session = place.session or named
    if entry.get("isSidechain") is True:
        # Only old versions name no agent: then the run is known by its first entry.
        run = base.text(entry, "agentId") or reading.memory.runs.run_of(entry)
        if run:
            session = f"{session}~{run}"
    return session, claude_code.FORMAT


def _codex(entry: dict[str, Any], reading: _Reading) -> tuple[str, Format]:
    place = reading.place
    if entry.get("type") == "turn_context":
        told = base.mapping(entry, "payload")
        place.model = base.text(told, "model") or place.model
    if not place.session:
        place.session = codex.name_of(entry)
    return place.session or _stem(place)[-36:], codex.format_of(place.model)


def _stem(place: Place) -> str:
    return Path(place.path).name.partition(".jsonl")[0]


class _OtherSession(Exception):
    """A file turns out to be of another session than its first entries are of."""


# What names a program's folder, the folder if nothing does, and that of transcripts in
# it; and what gives the session of an entry and its format, and may note in the place
# of its reading what later entries of the file do not say.
CLIENTS: Final[dict[str, tuple[str, str, str, Callable[..., tuple[str, Format]]]]] = {
    "claude-code": ("CLAUDE_CONFIG_DIR", "~/.claude", "projects", _claude_code),
    "codex": ("CODEX_HOME", "~/.codex", "sessions", _codex),
}


def folder_of(client: str) -> Path:
    """Where a program keeps its transcripts."""
    variable, usual, name, _ = CLIENTS[client]
    return Path(os.environ.get(variable) or usual, name)


class AlreadyCaptured(errors.InvalidConfiguration):
    """Another process captures the same folder for the same user into the same store.

    temporary: that process ends by itself.
    """

    def __init__(self, folder: Path, holder: Holder) -> None:
        self.temporary = holder.temporary
        process = f"process {holder.pid}" if holder.pid else "another process"
        super().__init__(f"{folder} is captured by {process} already")


class Refusal(NamedTuple):
    """A line that was not captured whole, and why, as a predicate of the line."""

    path: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{base.shown(self.path)} line {self.line} {self.why}"


class Unreadable(NamedTuple):
    """A file or folder that could not be read, and why, as a predicate of its path."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{base.shown(self.path)} {self.why}"


class CaughtUp(NamedTuple):
    """How many entries a process appended, and how many it could not."""

    appended: int
    refused: int


class _Entry(NamedTuple):
    """An entry to be appended, and its line, counted from where reading began."""

    session: str
    native: Native
    line: int
    before: tuple[Draft, ...] = ()  # what it shows to be sent or changed before it
    after: tuple[Draft, ...] = ()  # what it changes


@dataclass(slots=True)
class _Batch:
    """Entries that are appended at once, and what stood between them, by line."""

    entries: list[_Entry] = field(default_factory=list)
    damage: list[tuple[int, str]] = field(default_factory=list)


class _Memory(FileMemory):
    """What the entries of a file mean for later ones in it, for each client."""

    def __init__(self) -> None:
        super().__init__()
        self.codex_history = History()


class _Learned(NamedTuple):
    """What an entry shows about earlier ones.

    codex: what a line of Codex changes in the history.
    """

    claude_code: ImpliedEvents = ImpliedEvents()
    codex: Change | None = None


class _Reading:
    """One pass over a file, from where the last one stopped."""

    def __init__(
        self,
        file: BinaryIO,
        key: str,
        place: Place,
        form: Format,
        memories: dict[str, _Memory],
    ) -> None:
        self.file = file
        self.key = key
        self.place = place
        self._form = form
        self._memories = memories
        self._start = place.at
        self.offset = place.at  # of the line that is read
        self._lines_before: int | None = None

    def line_in_file(self, line: int) -> int:
        """The number in the file of a line that is counted from where reading began."""
        if self._lines_before is None:
            self._lines_before = _newlines(self.file, self._start)
        return self._lines_before + line

    @property
    def memory(self) -> _Memory:
        """What the entries before say of the next one; they are read again for it."""
        if self.key not in self._memories:
            memory = _Memory()
            for entry in self._entries(upto=self.offset):
                native = memory.identities.native(self._form, entry)
                self.learn(memory, entry, native)
            self._memories[self.key] = memory
        return self._memories[self.key]

    def learn(self, memory: _Memory, entry: dict[str, Any], native: Native) -> _Learned:
        if self._form is not claude_code.FORMAT:
            change = memory.codex_history.take(entry, native.key or "")
            return _Learned(codex=change)
        run = memory.runs.run_of(entry)
        return _Learned(memory.take(entry, native, run=run))

    def continues(self, entry: dict[str, Any]) -> bool:
        """Whether an entry just continues the one before it."""
        if self._form is not claude_code.FORMAT:
            return True
        leaf = self.place.leaf
        is_plain = entry.get("type") in ("user", "assistant", "progress")
        is_summary = entry.get("isCompactSummary") is True
        is_plain = is_plain and not is_summary and not is_resumption(entry)
        if not is_plain or not leaf or entry.get("parentUuid") != leaf:
            return False
        self.place.leaf = base.text(entry, "uuid") or ""
        return True

    def sessions(self) -> Iterator[str]:
        """The sessions that the entries of the whole file name, in their order."""
        for entry in self._entries():
            if session := base.session_name(entry, "sessionId"):
                yield session

    def _entries(self, upto: int | None = None) -> Iterator[dict[str, Any]]:
        """The entries before a place; all of them if no place is given."""
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
    """Appends what a client writes, for one user: ``catch_up`` once, or ``run``.

    One process at a time follows a folder into the store at ``url``.  ``appended`` and
    ``refused`` count the entries of all of them; ``refusals`` are the newest ones.
    ``unreadable`` are the files and folders that the last look could not read.
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
        *_, self._reads = CLIENTS[client]
        self.folder = folder.expanduser().absolute()
        self.state = CaptureState.of(
            url=url, user_id=user_id, client=client, folder=self.folder
        )
        self._lock = -1  # the descriptor that holds it, between two
        self._places: dict[str, Place] = {}
        self._files: dict[str, BinaryIO] = {}
        self._memories: dict[str, _Memory] = {}
        self.appended = 0
        self.refused = 0
        self.refusals: list[Refusal] = []
        self.unreadable: list[Unreadable] = []
        self._not_saved = ""  # why where reading stopped could not be saved
        self._changed = False  # since where reading stopped was saved
        self._listing_sec = 0.0

    @contextmanager
    def alone(
        self, *, inherited: int | None = None, temporary: bool = False
    ) -> Iterator[None]:
        """Keep other processes from following the same.

        inherited: the descriptor of a lock that the parent process acquired.
        temporary: tell the others that this process ends by itself.

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
            self._lock = -1
            os.close(lock)

    def catch_up(self) -> CaughtUp | None:
        """Append what is new.

        Returns None if another process follows: it does the work, as it is asked to.

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
        appended = 0
        while (since := self.state.take_request()) is not None:
            try:
                appended += self.look()
            except errors.RefoldError:
                self._request_again(since)
                raise
        return appended

    def run(self, stop: Event, *, linger: float | None = None) -> None:
        """Follow until ``stop`` is set; while the store is away, wait for it.

        Files that changed lately are looked at often, the whole folder as seldom as
        its size asks, and at a request.

        linger: end also after so many seconds without anything new.
        """
        whole_from = 0.0
        busy_at = time.monotonic()
        warning = ""
        while not stop.is_set():
            since = self.state.take_request()
            whole = since is not None or time.monotonic() >= whole_from
            appended = 0
            try:
                appended = self.look(whole=whole)
                warning = ""
            except _STORES as error:
                if warning != str(error):  # once, not at every look
                    warning = str(error)
                    _log.warning("capture waits: %s", warning)
                if since is not None:
                    self._request_again(since)
                    since = None
            if whole:
                pause = max(self._listing_sec * _IDLE, _SHORTEST)
                whole_from = time.monotonic() + min(pause, _LONGEST)
            if appended or since is not None:
                busy_at = time.monotonic()
            if linger is not None and time.monotonic() - busy_at > linger:
                return
            stop.wait(_SHORTEST)

    def _request_again(self, since: float) -> None:
        """Leave a request to the next look, or to another process."""
        with suppress(OSError):  # a full disk; what failed before says more
            self.state.request(since=since)

    def look(self, *, whole: bool = True) -> int:
        """Append what is new in all files; gives how many entries that were.

        whole: not only in those that changed lately; and save where reading stopped.

        Raises StoreUnavailable, KeyUnavailable, Frozen, Erased: the next look reads
        what was not appended again.
        """
        self._check_lock()
        before = self.appended
        if not whole:
            for key, file in [*self._files.items()]:
                with suppress(OSError):  # the next look at all files reports it
                    self._look_at(key, self._places[key].path, os.fstat(file.fileno()))
            return self.appended - before
        seen = set[str]()
        began = time.process_time()
        # The newest last: those are held.
        unreadable: list[Unreadable] = []
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
        for key in self._places.keys() - seen:  # swept away, or moved out of sight
            if key in self._files:
                try:
                    with self._files.pop(key) as file:
                        self._read(file, key)
                except OSError as error:
                    unreadable.append(_unreadable(self._places[key].path, error))
            del self._places[key]
            self._memories.pop(key, None)
            self._changed = True
        self._report(unreadable)
        if self._changed:
            self._save()
        return self.appended - before

    def _report(self, unreadable: list[Unreadable]) -> None:
        """Say once of each file or folder that it cannot be read."""
        for problem in unreadable:
            if problem not in self.unreadable:
                _log.warning("%s", problem)
        if unreadable != self.unreadable:
            self.unreadable = unreadable
            self._changed = True

    def _look_at(self, key: str, path: str, info: os.stat_result) -> None:
        place = self._places.setdefault(key, Place(path))
        stamp = info.st_size, info.st_mtime_ns
        if place.stamp != stamp or place.path != path:
            place.path = path
            self._changed = True
            if file := self._opened(key, path):
                self._read(file, key)
                self._places[key].stamp = stamp

    def _opened(self, key: str, path: str) -> BinaryIO | None:
        """The file, which stays open as long as it is among those that change."""
        file = self._files.pop(key, None) or _open(path, key)
        if file is not None:
            self._files[key] = file
            if len(self._files) > _OPEN:
                oldest = next(iter(self._files))
                self._files.pop(oldest).close()
                self._memories.pop(oldest, None)
        return file

    def _read(self, file: BinaryIO, key: str) -> None:
        """Append the entries of whole lines, from where reading stopped."""
        place = self._places[key]
        size = os.fstat(file.fileno()).st_size
        if size < place.at or _tail(file, place.at) != place.tail:
            # Rewritten, or another file by now.  Entries that are known are not
            # appended again.
            place = self._places[key] = Place(place.path, document=place.document)
            self._memories.pop(key, None)
        if (not place.at or place.document) and lines.is_document(file):
            self._pass_over(file, place)
            return
        if place.document:
            place = self._places[key] = Place(place.path)
        form = claude_code.FORMAT
        if self._client == codex.NAME:
            form = codex.format_of(place.model)
        try:
            self._read_on(_Reading(file, key, place, form, self._memories))
        except _OtherSession:
            place.at = 0
            place.leaf = ""
            self._memories.pop(key, None)
            self._read_on(_Reading(file, key, place, form, self._memories))
        except BaseException:
            # The next look reads the same lines, and must count them once.
            self._memories.pop(key, None)
            raise

    def _pass_over(self, file: BinaryIO, place: Place) -> None:
        """Report a file that is no transcript once, however many lines it has."""
        if not place.document:
            why = "starts a JSON document of several lines, which is no transcript"
            self._refuse(Refusal(place.path, 1, why))
        place.document = True
        place.at = os.fstat(file.fileno()).st_size
        place.tail = _tail(file, place.at)

    def _read_on(self, reading: _Reading) -> None:
        place = reading.place
        batch = _Batch()
        end = place.at
        for line in lines.raw_lines(reading.file, place.at):
            reading.offset = line.offset
            if line.data is None:
                if not line.ended:
                    break
                why = f"is longer than {lines.MAX_LINE:,} bytes"
                batch.damage.append((line.number, why))
            else:
                content = lines.parse_line(line.data)
                if not line.ended and not _is_whole(content):
                    break  # somebody still writes it
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
        self._append(reading, batch, end)

    def _entry(self, reading: _Reading, line: int, value: dict[str, Any]) -> _Entry:
        session, form = self._reads(value, reading)
        identity = form.id(value)
        is_known = reading.key in self._memories
        is_plain = identity and not is_known and not reading.place.queued
        if is_plain and reading.continues(value):
            # What the entries before say makes no difference to it.
            return _Entry(
                session, Native(form, form.kind(value), identity, value), line
            )
        memory = reading.memory
        native = memory.identities.native(form, value)
        learned = reading.learn(memory, value, native)
        reading.place.queued = not memory.queue.is_empty
        reading.place.leaf = ""
        if memory.is_continued(value, memory.runs.run_of(value)):
            reading.place.leaf = str(value["uuid"])
        before = learned.claude_code.drafts_before()
        changes = learned.claude_code.changes
        before += claude_code.edit_drafts(changes.before, value, native.key)
        after = claude_code.edit_drafts(
            changes.after, value, native.key, first=len(changes.before)
        )
        if learned.codex is not None:
            after += codex.drafts_of(learned.codex, value, reading.place.model)
        return _Entry(session, native, line, tuple(before), tuple(after))

    def _append(self, reading: _Reading, batch: _Batch, end: int) -> None:
        """Append what was read up to ``end``, and remember that it was."""
        place = reading.place
        labels = {"client": self._client, "folder": Path(place.path).parent.name}
        for name, group in groupby(batch.entries, key=lambda entry: entry.session):
            session_id = base.session_name(name) or sha256(name.encode()).hexdigest()
            session = self._store.session(user_id=self._user, session_id=session_id)
            self._put_all(replace(session, begins=labels), [*group], batch)
        for line, why in sorted(batch.damage):
            self._refuse(Refusal(place.path, reading.line_in_file(line), why))
        place.at = end
        place.tail = _tail(reading.file, end)

    def _put_all(self, session: Session, entries: list[_Entry], batch: _Batch) -> None:
        """Append entries, each with what it shows to be sent or changed."""
        waiting: list[_Entry] = []
        for entry in entries:
            if entry.before:
                if waiting:
                    self._put(session, waiting, batch)
                self._put_drafts(session, entry, entry.before, batch)
                waiting = []
            waiting.append(entry)
            if entry.after:
                self._put(session, waiting, batch)
                self._put_drafts(session, entry, entry.after, batch)
                waiting = []
        if waiting:
            self._put(session, waiting, batch)

    def _put(self, session: Session, entries: list[_Entry], batch: _Batch) -> None:
        natives = [entry.native for entry in entries]
        form = natives[0].format
        known = 0
        if len(natives) > 1:  # of one entry, the receipt says whether it was known
            keys = {native.key for native in natives if native.key}
            repeated = len(natives) - len(keys)
            known = repeated + len(session.writer.log.known(session.stream, [*keys]))
        try:
            receipt = session.native.append(
                form, natives, opaque="keep", unscanned="stub"
            )
            if not receipt.duplicate:
                self.appended += len(natives) - known
        except _STORES:
            raise
        except errors.RefoldError as error:
            if isinstance(error, errors.Erased) and error.of_user:
                raise
            if len(entries) == 1:
                batch.damage.append((entries[0].line, f"was refused: {error}"))
            else:
                for entry in entries:
                    self._put(session, [entry], batch)

    def _put_drafts(
        self,
        session: Session,
        entry: _Entry,
        drafts: tuple[Draft, ...],
        batch: _Batch,
    ) -> None:
        """Append what an entry shows; what is refused is reported with its line."""
        try:
            session.append(drafts, unscanned="stub")
        except _STORES:
            raise
        except errors.RefoldError as error:
            if isinstance(error, errors.Erased) and error.of_user:
                raise
            if len(drafts) == 1:
                batch.damage.append((entry.line, f"was refused in part: {error}"))
                return
            for draft in drafts:
                self._put_drafts(session, entry, (draft,), batch)

    def _refuse(self, refusal: Refusal) -> None:
        self.refused += 1
        self.refusals = [*self.refusals, refusal][-_REFUSALS:]
        self._changed = True
        _log.warning("%s", refusal)

    def _load(self) -> None:
        """Read where reading stopped; without that, all files are read again."""
        self._places = {}
        self.appended = 0
        self.refused = 0
        with suppress(OSError, ValueError, TypeError, KeyError):
            saved = json.loads(self.state.places.read_bytes())
            places = {
                key: Place(**{**place, "stamp": (0, 0)})
                for key, place in saved["files"].items()
            }
            refusals = [Refusal(*refusal) for refusal in saved["refusals"]]
            self.appended = saved["appended"]
            self.refused = saved["refused"]
            self._places = places
            self.refusals = refusals

    def _check_lock(self) -> None:
        if self._lock < 0 or not self.state.holds(self._lock):
            raise errors.InvalidConfiguration(
                f"the state of the capture of {self.folder} was removed, as an erasure "
                "does it: start the capture again if it is still wanted"
            )

    def _save(self) -> None:
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
        if not self.state.holds(self._lock):  # erased while this was written
            self.state.forget()
        self._check_lock()
        self._changed = False

    def _warn_not_saved(self, error: OSError) -> None:
        """Say once that the next process has to read files again from their start."""
        why = str(error.strerror).lower()
        if why != self._not_saved:
            self._not_saved = why
            _log.warning(
                "%s cannot be written (%s): capture goes on, and the next process "
                "reads the files again",
                base.shown(self.state.places),
                why,
            )


def status() -> list[dict[str, Any]]:
    """What is captured by whom: files, bytes that wait, and whether a process runs."""
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
    with suppress(OSError):
        return log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return []


def _listed(
    folder: Path, unreadable: list[Unreadable]
) -> Iterator[tuple[str, os.stat_result]]:
    """The transcripts below a folder, those that were rotated too.

    Links to folders are followed.  Adds to ``unreadable`` what cannot be read.
    """
    folders = [str(folder)]
    seen: set[str] = set()
    while folders:
        path = folders.pop()
        try:
            key = _key(os.stat(path))
            if key in seen:  # by a link, too
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
    if isinstance(error, PermissionError):
        return Unreadable(path, "cannot be read: check its permissions")
    return Unreadable(path, f"cannot be read ({str(error.strerror).lower()})")


def _key(info: os.stat_result) -> str:
    """What a file is known by, whatever it is called."""
    return f"{info.st_dev}:{info.st_ino}"


def _open(path: str, key: str) -> BinaryIO | None:
    """The file of this key at ``path``; None if it has gone, or another has its name.

    A client may rotate its files between the listing and this.

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
    """Whether nothing can follow in a line that has no end yet."""
    objects = all(isinstance(value.value, dict) for value in content.values)
    return objects and not content.damage


def _newlines(file: BinaryIO, end: int) -> int:
    """How many lines end before a place of the file."""
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
    start = max(0, at - _TAIL)
    return sha256(os.pread(file.fileno(), at - start, start)).hexdigest()[:16]
