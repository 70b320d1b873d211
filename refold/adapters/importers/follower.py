"""Live capture: what a client adds to its transcripts is appended as they grow.

An entry is known by its id, else by its bytes: what is read again after a kill, or when
its file was moved or rewritten, is not appended again.  Where reading stopped is kept
among the settings, only to save work.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from refold.adapters.config import home
from refold.adapters.importers import base, claude_code, codex
from refold.domain import errors
from refold.domain.envelope import Format, Native
from refold.store.sessions import Session
from refold.store.store import SessionStore

_log = logging.getLogger(__name__)
_TAIL: Final = 1024  # bytes before a place, by which a rewritten file is known
_ENTRIES, _BYTES = 200, 4 << 20  # that are appended at once
_OPEN: Final = 32  # files that are held, so that what is swept away is read to its end
_IDLE: Final = 1600  # of so many seconds one is spent with looking for changes
_SHORTEST, _LONGEST = 0.25, 30.0  # seconds between two looks, at all files
_BEGINS: Final = re.compile(rb'\{"')
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


def _claude_code(entry: dict[str, Any], place: Place) -> tuple[str, Format]:
    session = _stem(place)
    if entry.get("isSidechain") is True:
        part = base.text(entry, "agentId") or "sub-agents"
        session = f"{base.text(entry, 'sessionId') or session}~{part}"
    return session, claude_code.FORMAT


def _codex(entry: dict[str, Any], place: Place) -> tuple[str, Format]:
    if entry.get("type") == "turn_context":
        told = base.mapping(entry, "payload")
        place.model = base.text(told, "model") or place.model
    if not place.session:
        place.session = codex.name_of(entry)
    return place.session or _stem(place)[-36:], codex.format_of(place.model)


def _stem(place: Place) -> str:
    return Path(place.path).name.partition(".jsonl")[0]


# What names a program's folder, the folder if nothing does, and that of transcripts in
# it; and what gives the session of an entry and its format, and may note in the place
# what later entries of the file do not say.
CLIENTS: Final[dict[str, tuple[str, str, str, Callable[..., tuple[str, Format]]]]] = {
    "claude-code": ("CLAUDE_CONFIG_DIR", "~/.claude", "projects", _claude_code),
    "codex": ("CODEX_HOME", "~/.codex", "sessions", _codex),
}


def folder_of(client: str) -> Path:
    """Where a program keeps its transcripts."""
    variable, usual, name, _ = CLIENTS[client]
    return Path(os.environ.get(variable) or usual, name)


class _Entry(NamedTuple):
    session: str
    native: Native
    end: int


class Follower:
    """Appends what a client writes, for one user; ``look`` once, or ``run``.

    One process at a time follows a folder into the store at ``url``.  ``appended`` and
    ``refused`` count the entries of all of them.
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
        self._store, self._user, self._name = store, user_id, client
        *_, self._reads = CLIENTS[client]
        self.folder = folder.expanduser().absolute()
        whose = "\0".join((url, user_id, client, str(self.folder)))
        name = f"{sha256(whose.encode()).hexdigest()[:32]}.json"
        self._kept = home() / "capture" / name
        self._places: dict[str, Place] = {}
        self._files: dict[str, BinaryIO] = {}
        self.appended = self.refused = 0
        self._changed = False  # since where reading stopped was saved
        self._listing_sec = 0.0

    @contextmanager
    def alone(self, *, wait: bool) -> Iterator[None]:
        """Keep other processes from following the same; ``wait`` until they do not.

        Raises InvalidConfiguration if another does.
        """
        self._kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._kept.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise errors.InvalidConfiguration(
                    f"{self.folder} is captured by another process already"
                ) from None
            with suppress(OSError, ValueError, TypeError, KeyError):
                kept = orjson.loads(self._kept.read_bytes())
                self.appended, self.refused = kept["appended"], kept["refused"]
                files = kept["files"].items()
                self._places = {k: Place(**{**v, "stamp": (0, 0)}) for k, v in files}
            try:
                yield
            finally:
                while self._files:
                    self._files.popitem()[1].close()

    def run(self, stop: Event) -> None:
        """Follow until ``stop`` is set; a store that is away is waited for.

        Files that changed lately are looked at often, the whole folder as seldom as
        its size asks.
        """
        due = 0.0
        while not stop.is_set():
            whole = time.monotonic() >= due
            try:
                self.look(whole=whole)
            except _STORES as error:
                _log.warning("capture waits: %s", error)
            if whole:
                pause = max(self._listing_sec * _IDLE, _SHORTEST)
                due = time.monotonic() + min(pause, _LONGEST)
            stop.wait(_SHORTEST)

    def look(self, *, whole: bool = True) -> int:
        """Append what is new in all files; gives how many entries that were.

        ``whole``: not only in those that changed lately; and remember it.

        Raises StoreUnavailable, KeyUnavailable, Frozen: what was not appended is read
        again then.
        """
        before = self.appended
        if not whole:
            for key, file in [*self._files.items()]:
                self._look_at(key, self._places[key].path, os.fstat(file.fileno()))
            return self.appended - before
        seen = set[str]()
        began = time.process_time()
        # The newest last: those are held.
        found = sorted(_listed(self.folder), key=lambda one: one[1].st_mtime)
        self._listing_sec = time.process_time() - began
        for path, info in found:
            key = f"{info.st_dev}:{info.st_ino}"
            seen.add(key)
            self._look_at(key, path, info)
        for key in self._places.keys() - seen:  # swept away, or moved out of sight
            if key in self._files:
                with self._files.pop(key) as file:
                    self._read(file, self._places[key])
            del self._places[key]
            self._changed = True
        if self._changed:
            self._save()
        return self.appended - before

    def _look_at(self, key: str, path: str, info: os.stat_result) -> None:
        place = self._places.setdefault(key, Place(path))
        stamp = info.st_size, info.st_mtime_ns
        if place.stamp != stamp or place.path != path:
            place.path, self._changed = path, True
            if file := self._opened(key, path):
                self._read(file, place)
                place.stamp = stamp

    def _opened(self, key: str, path: str) -> BinaryIO | None:
        """The file, which stays open as long as it is among those that change."""
        file = self._files.pop(key, None)
        if file is None:
            with suppress(OSError):  # it is gone since
                file = open(path, "rb")  # noqa: SIM115  # closed when it is let go of
        if file is not None:
            self._files[key] = file
            if len(self._files) > _OPEN:
                self._files.pop(next(iter(self._files))).close()
        return file

    def _read(self, file: BinaryIO, place: Place) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < place.at or _tail(file, place.at) != place.tail:
            place.at = 0  # rewritten: what is known of it is not appended again
        waiting, end = list[_Entry](), place.at
        for end, raw, value in _lines(file, place.at):
            if value is None:
                self._refuse(place, end, "this line holds no JSON object")
            else:
                session, form = self._reads(value, place)
                known = form.id(value) or sha256(raw.strip()).hexdigest()[:32]
                native = Native(form, form.kind(value), known, value)
                waiting.append(_Entry(session, native, end))
            if len(waiting) == _ENTRIES or end - place.at > _BYTES:
                self._append(file, waiting, place, end)
                waiting = []
        self._append(file, waiting, place, end)

    def _append(
        self, file: BinaryIO, entries: list[_Entry], place: Place, end: int
    ) -> None:
        """Append what was read up to ``end``, and remember that it was."""
        labels = {"client": self._name, "folder": Path(place.path).parent.name}
        for name, group in groupby(entries, key=lambda entry: entry.session):
            named = base.session_name(name) or sha256(name.encode()).hexdigest()
            session = self._store.session(user_id=self._user, session_id=named)
            self._put(replace(session, begins=labels), [*group], place)
        place.at, place.tail = end, _tail(file, end)

    def _put(self, session: Session, entries: list[_Entry], place: Place) -> None:
        form, items = entries[0].native.format, [entry.native for entry in entries]
        try:
            done = session.append_items(form, items, opaque="keep", unscanned="stub")
            self.appended += 0 if done.duplicate else len(items)
        except _STORES:
            raise
        except errors.RefoldError as error:
            if len(entries) == 1:
                self._refuse(place, entries[0].end, str(error))
            else:
                for entry in entries:
                    self._put(session, [entry], place)

    def _refuse(self, place: Place, end: int, why: str) -> None:
        self.refused += 1
        _log.warning("%s: not captured up to byte %d: %s", place.path, end, why)

    def _save(self) -> None:
        told: dict[str, Any] = {"client": self._name, "user": self._user}
        told |= {"folder": str(self.folder), "files": self._places}
        told |= {"appended": self.appended, "refused": self.refused}
        told |= {"pid": os.getpid(), "looked_at": int(time.time())}
        new = self._kept.with_suffix(".new")
        new.write_bytes(orjson.dumps(told))
        new.chmod(0o600)
        new.replace(self._kept)
        self._changed = False


def status() -> list[dict[str, Any]]:
    """What is captured by whom: files, bytes that wait, and whether a process runs."""
    found = []
    for path in sorted((home() / "capture").glob("*.json")):
        told = orjson.loads(path.read_bytes())
        places = told.pop("files").values()
        there = [(place["at"], Path(place["path"])) for place in places]
        waits = sum(max(0, f.stat().st_size - at) for at, f in there if f.exists())
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                running = False
            except BlockingIOError:
                running = True
        found.append({**told, "files": len(places), "bytes": waits, "running": running})
    return found


def _listed(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The transcripts below a folder, those that were rotated too."""
    folders = [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif ".jsonl" in entry.name and entry.is_file():
                        yield entry.path, entry.stat()


def _lines(
    file: BinaryIO, at: int
) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """The lines that are whole, each with where it ends and the object in it.

    One that is still being written has no end of line, and is no JSON yet.
    """
    file.seek(at)
    while raw := file.readline(base.MAX_LINE):
        at += len(raw)
        value = _object(raw)
        torn = not raw.endswith(b"\n") and len(raw) < base.MAX_LINE
        if value is None and torn:
            return
        if raw.strip():
            yield at, raw, value


def _object(raw: bytes) -> dict[str, Any] | None:
    """The entry of a line; behind the beginning of one that was never finished, too."""
    for number, found in enumerate(islice(_BEGINS.finditer(raw), 64)):
        with suppress(ValueError, RecursionError):
            value, _ = base.loads(raw[found.start() :])
            if not isinstance(value, dict):
                continue
            framed = "type" in value and value.keys() & {"uuid", "timestamp"}
            if not number or (framed and raw.endswith(b"\n")):
                return value
    return None


def _tail(file: BinaryIO, at: int) -> str:
    start = max(0, at - _TAIL)
    return sha256(os.pread(file.fileno(), at - start, start)).hexdigest()[:16]
