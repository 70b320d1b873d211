"""Exports: everything stored about a user, in a folder that is complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple
from uuid import uuid4

import orjson

from refold.domain import errors
from refold.domain.canonical import digest, repaired
from refold.domain.chain import GENESIS
from refold.domain.envelope import Draft, Envelope, microseconds
from refold.domain.erasure import SALT, StoredExport, Whose, subject, timestamp
from refold.domain.events import Item, JsonObject
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import EventLog, Scope, SessionInfo
from refold.redaction.guard import restored
from refold.store.appends import Order, Writer
from refold.store.history import read_pages
from refold.store.memory.consent import User
from refold.store.work.jobs import spread

FORMAT: Final = "refold-export/1"
TABLES: Final = "refold-tables/1"
MANIFEST: Final = "manifest.json"


class File(NamedTuple):
    """A file of an export, by its path within it."""

    path: str
    bytes: int
    sha256: str


class Files:
    """Writes the files of an export; each is on disk when it is closed.

    A file that another process began is written again from its start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, File] = {}

    def write(self, path: str, data: bytes) -> None:
        """Write a file of these bytes."""
        with self.opened(path) as write:
            write(data)

    def write_json(self, path: str, value: JsonObject) -> None:
        """Write a JSON file that people can read."""
        self.write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))

    def finish(self, form: str, at: int, facts: JsonObject) -> JsonObject:
        """Write the manifest, which names every file; returns it.

        form:  the format of the export.
        at:    when it was made, in microseconds since 1970.
        facts: what else the manifest says.
        """
        manifest: JsonObject = {
            "format": form,
            "made_at": timestamp(at),
            "refold": version("refold"),
            **facts,
            "files": [file._asdict() for file in self.written.values()],
        }
        manifest["digest"] = digest(manifest)
        self.write_json(MANIFEST, manifest)
        return manifest

    @contextmanager
    def opened(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """Open a new file that only its owner can read, to write it in pieces."""
        place = self.folder / path
        self._make(place.parent)
        hashed = hashlib.sha256()
        size = 0
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:

            def write(data: bytes) -> None:
                nonlocal size
                file.write(data)
                hashed.update(data)
                size += len(data)

            yield write
            file.flush()
            os.fsync(file.fileno())
        self.written[path] = File(path, size, hashed.hexdigest())

    def _make(self, folder: Path) -> None:
        """Make the directories down to this one; only the owner can read them."""
        if folder != self.folder and not folder.exists():
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)


# The events that are decrypted at a time, however long a session is.
_PAGE: Final = 100
# The most sessions that an error names.
_NAMED: Final = 5


class Exported(NamedTuple):
    """The folder of an export, and its manifest.

    unrecorded: why the store could not record the export, so that erasures will not
                name it; empty if it is recorded.
    """

    path: Path
    manifest: JsonObject
    unrecorded: str = ""


class CopyRecords:
    """Records that an export copies data of users, so that an erasure names the copy.

    A user is recorded before the first byte of their data is written.  An export that
    fails and leaves no copy must call ``drop``.

    form:       the format of the copy.
    location:   a path, or the way out: ``stdout``, ``HTTP``.
    sessions:   the sessions in the copy; None is all.
    unrecorded: why the store could not record the export, which continues; else empty.
    """

    def __init__(
        self,
        writer: Writer,
        form: str,
        location: str | Path,
        *,
        sessions: tuple[str, ...] | None = None,
        export_id: str | None = None,
    ) -> None:
        self.unrecorded = ""
        self._writer = writer
        self._users: dict[str, None] = {}
        place = str(location.absolute()) if isinstance(location, Path) else location
        self._export = StoredExport(
            export_id or str(uuid4()),
            writer.clock(),
            form,
            repaired(place)[0],
            os.uname().nodename,
            sessions,
        )

    def of(self, user_id: str) -> None:
        """Record the copy of this user's data, if it is not recorded yet."""
        if user_id in self._users:
            return
        try:
            self._writer.log.erasures.record_export(user_id, self._export)
        except errors.Erased:
            return  # the user's data cannot be read either
        except (errors.StoreUnavailable, errors.KeyUnavailable) as error:
            self.unrecorded = str(error)
        else:
            self._users[user_id] = None

    def drop(self) -> None:
        """Delete the records of an export that left no copy."""
        for user_id in self._users:
            # If that fails, an erasure names a copy that does not exist: no harm.
            with suppress(errors.RefoldError):
                self._writer.log.erasures.drop_export(user_id, self._export.export_id)

    @contextmanager
    def whole_or_dropped(self) -> Iterator[None]:
        """Delete the records if the block fails."""
        try:
            yield
        except BaseException:
            self.drop()
            raise


def export_user(
    store: Any, user_id: str, out: Path, executor: Executor | None
) -> Exported:
    """Write everything stored about the user to the folder ``out``.

    The folder must not exist, or be empty; it appears when the export is complete.
    Each stream is exported up to its head at that moment; sessions that begin during
    the export are not in it.  Only the list of files grows in memory.

    executor: runs the sessions in processes of its own; None is this process.

    Raises Erased if the user or a session is erased during the export, SessionNotFound
    for a user without sessions, ExportFailed if ``out`` is not empty, or sessions
    cannot be listed.
    """
    out = out.absolute()
    copies = CopyRecords(store.writer, "folder", out)
    with copies.whole_or_dropped(), whole_or_nothing(out) as folder:
        export = _Export(store.writer, user_id, Files(folder))
        export.refuse_absent()
        copies.of(user_id)
        manifest = export.run(store, executor)
    return Exported(out, manifest, copies.unrecorded)


@contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """Yield a private folder, which is moved to ``out`` if the block succeeds.

    Raises ExportFailed if ``out`` is not empty, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise errors.ExportFailed(
            f"{str(out)!r} exists already: export to a new or empty folder"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield folder
            os.rename(folder, out)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise errors.ExportFailed(
            f"{str(out)!r} cannot be written ({error.strerror}): "
            f"{errors.remedy_for(error)}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Export:
    writer: Writer
    user_id: str
    files: Files

    @property
    def log(self) -> EventLog:
        return self.writer.log

    def refuse_absent(self) -> None:
        """Raise the error of ``run`` if nothing of the user can be exported."""
        self._sessions()

    def run(self, store: Any, executor: Executor | None) -> JsonObject:
        """Write all files, the manifest last; returns the manifest.

        Raises Erased if the user or a session was erased during it.
        """
        infos = self._sessions()
        facts: dict[int, JsonObject] = {}
        work = partial(_session, self.files.folder)
        numbered = enumerate(infos, start=1)
        for number, session_facts, files in spread(store, work, numbered, executor):
            facts[number] = session_facts
            self.files.written |= files
        sessions = [facts[number] for number in sorted(facts)]
        manifest = self._manifest(sessions, self._about())
        self.log.erasures.refuse_erased(self.user_id)
        existing = {
            info.session_id
            for info in self.log.sessions(self.user_id)
            if info.status != "erased"
        }
        for info in infos:
            if info.session_id not in existing:
                raise errors.Erased(f"session {info.session_id!r}")
        return manifest

    def _sessions(self) -> list[SessionInfo]:
        """The sessions to export.

        Raises Erased and SessionNotFound if there is none, ExportFailed if some cannot
        be listed.
        """
        self.log.erasures.refuse_erased(self.user_id)
        all_infos = self.log.sessions(self.user_id)
        infos = [info for info in all_infos if info.status != "erased"]
        if not infos:
            if all_infos:
                raise errors.Erased("the user")
            raise errors.SessionNotFound(self.user_id, "*")
        orphans = self.log.orphans(Scope(self.user_id))
        if orphans:
            quoted = sorted({repr(orphan.session_id) for orphan in orphans})
            names = ", ".join(quoted[:_NAMED])
            raise errors.ExportFailed(
                f"there are events of {names} and no head, so they are not listed: "
                f"`refold repair --user {self.user_id} --apply` lists them again"
            )
        return infos

    def session(self, number: int, info: SessionInfo) -> JsonObject:
        """Write the streams of one session, the main one first; returns its facts."""
        folder = f"sessions/{number:05}"
        main = StreamId(info.user_id, info.session_id, MAIN)
        streams: list[Any] = []
        for name in self.log.streams(info.user_id, info.session_id):
            place = "events" if name == MAIN else f"derived/{name}"
            stream = main._replace(stream=name)
            streams.append(self._stream(stream, f"{folder}/{place}.jsonl"))
        origin = self.log.head(main).state.forked_from
        parent: Any = None
        if origin is not None:
            session_id, at_seq = origin
            parent = {"session_id": session_id, "at_seq": at_seq}
        return {
            "session_id": info.session_id,
            "status": info.status,
            "created_at": timestamp(microseconds(info.created_at)),
            "updated_at": timestamp(microseconds(info.updated_at)),
            "tokens": info.tokens,
            "forked_from": parent,
            "views": self._views(main, f"{folder}/views.json"),
            "streams": streams,
        }

    def _stream(self, stream: StreamId, path: str) -> JsonObject:
        """Write the events of a stream up to its head, one a line, and their blobs."""
        head = self.log.head(stream)
        after = 0
        with self.files.opened(path) as write:
            while after < head.seq:
                page = self.log.read(stream, after=after, upto=head.seq, limit=_PAGE)
                if not page:
                    raise errors.Erased(f"session {stream.session_id!r}")
                for envelope in page:
                    write(orjson.dumps(envelope.to_json()) + b"\n")
                    self._blobs(envelope)
                after = page[-1].seq
        return {
            "stream": stream.stream,
            "seq": head.seq,
            "hash": head.hash.hex(),
            "file": path,
        }

    def _blobs(self, envelope: Envelope) -> None:
        """Write the whole texts that were cut from the event, each once."""
        main = envelope.stream_id.main

        def write(sha256: str) -> None:
            path = f"blobs/{sha256}"
            if path in self.files.written:
                return
            with suppress(errors.Expired):
                data = self.log.blob(main, sha256)
                if data is not None:
                    self.files.write(path, data)

        restored(envelope.payload.payload(), write)

    def _views(self, main: StreamId, path: str) -> str | None:
        """Write the stored views of a session; returns the path, or None for none."""
        views: JsonObject = {}
        for name in self.log.view_names(main.user_id, main.session_id):
            view = self.log.load_view(main, name)
            if view is not None:
                views[name] = {"through_seq": view.through_seq, "body": view.body}
        if not views:
            return None
        self.files.write_json(path, views)
        return path

    def _about(self) -> JsonObject:
        """Write the user's consent, holds, accesses and certificates.

        Returns how many certificates and holds there are.
        """
        erasures = self.log.erasures
        holds: list[Any] = [
            {**hold._asdict(), "created_at": timestamp(hold.created_at)}
            for hold in erasures.holds(self.user_id)
        ]
        status = User(self.writer, self.user_id).status().to_json()
        certificates = [
            certificate.to_json() for certificate in erasures.certificates(self.user_id)
        ]
        accesses: list[Any] = [
            {"session_id": session_id, "reads": reads, "last": timestamp(last)}
            for _, session_id, reads, last in self.log.retention.accesses(self.user_id)
        ]
        about: JsonObject = {
            "user_id": self.user_id,
            **status,
            "holds": holds,
            "accesses": accesses,
        }
        self.files.write_json("user.json", about)
        with self.files.opened("certificates.jsonl") as write:
            for certificate in certificates:
                write(orjson.dumps(certificate) + b"\n")
        return {"certificates": len(certificates), "holds": len(holds)}

    def _manifest(self, sessions: list[JsonObject], counts: JsonObject) -> JsonObject:
        """Write the manifest; returns it.

        sessions: the facts of each session.
        counts:   more counts than those of the sessions.
        """
        events = 0
        derived = 0
        for session in sessions:
            streams: Any = session["streams"]
            for stream in streams:
                if stream["stream"] == MAIN:
                    events += stream["seq"]
                else:
                    derived += stream["seq"]
        blobs = [path for path in self.files.written if path.startswith("blobs/")]
        facts: JsonObject = {
            "store": self.log.erasures.facts(),
            "tree_head": self.log.erasures.tree_head(),
            "user_id": self.user_id,
            "counts": {
                "sessions": len(sessions),
                "events": events,
                "derived": derived,
                "blobs": len(blobs),
                **counts,
            },
            "sessions": list(sessions),
        }
        return self.files.finish(FORMAT, self.writer.clock(), facts)


def _session(
    folder: Path, store: Any, item: tuple[int, SessionInfo], _: object
) -> tuple[int, JsonObject, dict[str, File]]:
    """Write the streams of one session; returns its number, its facts and its files.

    item: the number of the session in the export, and the session.
    """
    number, info = item
    export = _Export(store.writer, info.user_id, Files(folder))
    facts = export.session(number, info)
    return number, facts, export.files.written


DATASET: Final = "refold-dataset/1"


def record_dataset(writer: Writer, user_id: str, export_id: str, scope: str) -> bytes:
    """Record that rows of a user will be exported; returns the salt of their row ids.

    The event is in the user's own session, so that an erasure can name the export.

    scope: the scope that the user granted for it; empty if it needs no consent.

    Raises Erased, Frozen.
    """
    salt = os.urandom(SALT)
    # Not under the name "salt", whose values are redacted as secrets.
    value: JsonObject = {"seed": salt.hex(), "consent": scope, "export": export_id}
    event = Item(format=DATASET, kind="export", value=value)
    stream = StreamId(user_id, USER_SESSION, MAIN)
    writer.append(Order(stream, (Draft(event),)))
    return salt


def check_dataset(writer: Writer, users: Iterable[str]) -> None:
    """Check that no user of a dataset is erased, or under erasure.

    An erasure that begins later finds the export recorded.

    Raises ExportFailed.
    """
    erasures = writer.log.erasures
    for user_id in users:
        with suppress(errors.Erased):
            erasures.refuse_erased(user_id)
            if not erasures.jobs(user_id):
                continue
        raise errors.ExportFailed(
            "a user in the dataset is being erased: export again without them"
        )


def datasets(log: EventLog, whose: Whose) -> list[JsonObject]:
    """Return the datasets that may hold rows of a user, or of some of their sessions.

    Each has the id of its export and the ids of the rows.  Raises the errors of
    reading the user's own session.
    """
    stream = StreamId(whose.user_id, USER_SESSION, MAIN)
    exported: list[JsonObject] = []
    for envelope in read_pages(log, stream, types=("item",)):
        item = envelope.payload
        if not isinstance(item, Item) or item.format != DATASET:
            continue
        match item.value:
            # Earlier versions wrote the seed as "salt".
            case {"seed": str(seed), "export": export}:
                pass
            case {"salt": str(seed), "export": export}:
                pass
            case _:
                continue
        key = bytes.fromhex(seed)
        rows: list[Any] = []
        if whose.sessions is None:
            rows.append(subject(key, whose.user_id, None))
        else:
            for name in whose.sessions:
                rows.append(subject(key, whose.user_id, [name]))
        exported.append({"export": export, "rows": rows})
    return exported


class ExportProblem(NamedTuple):
    """A file that differs from the manifest, and how."""

    path: str
    detail: str


class ExportChecked(NamedTuple):
    """The counts of a manifest, and the files that differ from it."""

    user_id: str
    counts: JsonObject
    problems: list[ExportProblem]


def check_export(folder: Path) -> ExportChecked:
    """Check every file of an export against its manifest, and each stream's chain.

    Raises InvalidConfiguration if the folder has no manifest of an export.  An export
    that was interrupted has none.
    """
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        manifest = None
    known = isinstance(manifest, dict) and manifest.get("format") in (FORMAT, TABLES)
    if not known:
        raise errors.InvalidConfiguration(
            f"there is no {MANIFEST} of an export in {str(folder)!r}: name a folder "
            "that `refold export --out` wrote"
        )
    try:
        problems = list(_problems(folder, manifest))
        return ExportChecked(manifest.get("user_id", ""), manifest["counts"], problems)
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = ExportProblem(MANIFEST, "it is not a manifest of an export")
        return ExportChecked("", {}, [problem])


def _problems(folder: Path, manifest: dict[str, Any]) -> Iterator[ExportProblem]:
    content = {name: value for name, value in manifest.items() if name != "digest"}
    if digest(content) != manifest.get("digest"):
        yield ExportProblem(MANIFEST, "it is not what was written")
        return
    listed = {file["path"]: file for file in manifest["files"]}
    existing: set[str] = set()
    for place, _, names in os.walk(folder):  # links are files, too
        for name in names:
            existing.add((Path(place) / name).relative_to(folder).as_posix())
    for path in sorted(existing - set(listed) - {MANIFEST}):
        yield ExportProblem(path, "the manifest does not name it")
    wrong = {path: _difference(folder, path, file) for path, file in listed.items()}
    for path, detail in wrong.items():
        if detail:
            yield ExportProblem(path, detail)
    for session in manifest.get("sessions", ()):
        for stream in session["streams"]:
            path = stream["file"]
            if path not in wrong:
                yield ExportProblem(path, "the manifest does not name it")
            elif not wrong[path]:
                detail = _break_in_chain(folder, stream)
                if detail:
                    yield ExportProblem(path, detail)


def _difference(folder: Path, path: str, file: JsonObject) -> str:
    """How a file differs from the manifest; empty if it does not."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return "it is outside of the export"
    try:
        with (folder / path).open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
    except OSError:
        return "it is missing, or cannot be read"
    if File(path, size, sha256)._asdict() != file:
        return "it is not what was written"
    if path.startswith("blobs/") and pure.name != sha256:
        return "its name is not the digest of its text"
    return ""


def _break_in_chain(folder: Path, stream: JsonObject) -> str:
    """Where the chain of a stream's events breaks; empty if it does not."""
    seq = 0
    last_hash = GENESIS.hex()
    try:
        with (folder / str(stream["file"])).open("rb") as lines:
            for line in lines:
                event = orjson.loads(line)
                if event["seq"] != seq + 1 or event["prev_hash"] != last_hash:
                    return f"the event after seq {seq} does not continue the chain"
                seq = event["seq"]
                last_hash = event["hash"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return f"the line after seq {seq} is not an event"
    if seq != stream["seq"] or last_hash != stream["hash"]:
        return f"the chain ends at seq {seq}, the manifest says {stream['seq']}"
    return ""
