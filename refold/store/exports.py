"""Exports: everything stored about a user, in a folder that is complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from refold.domain.erasure import SALT, ErasureScope, StoredExport, subject, timestamp
from refold.domain.events import Item, JsonObject
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import EventLog, Scope, SessionInfo
from refold.redaction.guard import restored
from refold.store.appends import Order, Writer
from refold.store.history import read_pages
from refold.store.memory.consent import User
from refold.store.work.jobs import spread

# The formats of exports that ``check_export`` reads: of one user, and of tables.
FORMAT: Final = "refold-export/1"
TABLES: Final = "refold-tables/1"
MANIFEST: Final = "manifest.json"


class File(NamedTuple):
    """A file of an export, by its path within it."""

    path: str
    bytes: int
    sha256: str


class Files:
    """Writes the files of an export, each of which is on disk once it is closed.

    A file that a killed process left incomplete is written again from its start.

    written: the complete files, by path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, File] = {}

    def write(self, path: str, data: bytes) -> None:
        """Write a file with this content."""
        with self.writing(path) as append:
            append(data)

    def write_json(self, path: str, value: JsonObject) -> None:
        """Write an indented JSON file."""
        self.write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))

    def finish(self, form: str, at: int, facts: JsonObject) -> JsonObject:
        """Write the manifest, which names every file; returns it.

        form:  the format of the export.
        at:    when the export was made, in microseconds since 1970.
        facts: further keys of the manifest.
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
    def writing(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """Write a new file in pieces; only its owner can read it.

        The block gets a function that appends bytes to the file.
        """
        place = self.folder / path
        self._make_folder(place.parent)
        hashed = hashlib.sha256()
        size = 0
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:

            def append(data: bytes) -> None:
                nonlocal size
                file.write(data)
                hashed.update(data)
                size += len(data)

            yield append
            file.flush()
            os.fsync(file.fileno())
        self.written[path] = File(path, size, hashed.hexdigest())

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and its missing parents; only the owner can read them."""
        if folder != self.folder and not folder.exists():
            self._make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)


# The number of events in memory at one time, however long a session is.
_PAGE: Final = 100
_MOST_NAMED: Final = 5  # sessions in an error


class Exported(NamedTuple):
    """The folder of an export, and its manifest.

    unrecorded: why the store could not record the export; empty if it could.  An
                erasure does not name an unrecorded export.
    """

    path: Path
    manifest: JsonObject
    unrecorded: str = ""


class CopyRecords:
    """Records that an export copies data of users, so that an erasure names the copy.

    A user is recorded before the first byte of their data is written.  An export that
    fails and leaves no copy must call ``drop``.

    form:       the format of the copy.
    location:   a path, or ``stdout`` or ``HTTP``.
    sessions:   the sessions in the copy; None means all.
    unrecorded: why the store could not record the export, which continues all the same;
                empty if it could.
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
        if isinstance(location, Path):
            location = str(location.absolute())
        storable_location, _ = repaired(location)
        self._export = StoredExport(
            export_id or str(uuid4()),
            writer.clock(),
            form,
            storable_location,
            os.uname().nodename,
            sessions,
        )

    def record(self, user_id: str) -> None:
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
            # If this fails, an erasure names a copy that does not exist: no harm.
            with suppress(errors.RefoldError):
                self._writer.log.erasures.drop_export(user_id, self._export.export_id)

    @contextmanager
    def dropped_on_failure(self) -> Iterator[None]:
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

    The folder must be absent or empty.  It appears when the export is complete.  Each
    stream is exported up to its head when it is read.  Sessions that begin during the
    export are left out.  Only the list of files grows in memory.

    executor: exports sessions in other processes; None exports them in this process.

    Raises Erased if the user or a session is erased during the export, SessionNotFound
    for a user without sessions, and ExportFailed if ``out`` is not empty or if sessions
    cannot be listed.
    """
    out = out.absolute()
    copies = CopyRecords(store.writer, "folder", out)
    with copies.dropped_on_failure(), complete_or_absent(out) as folder:
        export = _Export(store.writer, user_id, Files(folder))
        export.refuse_impossible()
        copies.record(user_id)
        manifest = export.run(store, executor)
    return Exported(out, manifest, copies.unrecorded)


@contextmanager
def complete_or_absent(out: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes ``out`` if the block succeeds.

    If the block fails, the folder is deleted.

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
    """Writes the files of one user's export."""

    writer: Writer
    user_id: str
    files: Files

    @property
    def log(self) -> EventLog:
        return self.writer.log

    def refuse_impossible(self) -> None:
        """Raise the error of ``run`` if the user cannot be exported."""
        self._exportable()

    def run(self, store: Any, executor: Executor | None) -> JsonObject:
        """Write all files, the manifest last; returns the manifest.

        Raises Erased if the user or a session was erased during the export.
        """
        infos = self._exportable()
        facts: dict[int, JsonObject] = {}
        work = partial(_write_session, self.files.folder)
        numbered = enumerate(infos, start=1)
        for number, session_facts, files in spread(store, work, numbered, executor):
            facts[number] = session_facts
            self.files.written |= files
        sessions = [facts[number] for number in sorted(facts)]
        manifest = self._write_manifest(sessions, self._write_user())
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

    def _exportable(self) -> list[SessionInfo]:
        """Return the sessions to export.

        Raises Erased or SessionNotFound if there is none, and ExportFailed if there are
        sessions that cannot be listed.
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
            names = ", ".join(quoted[:_MOST_NAMED])
            raise errors.ExportFailed(
                f"there are events of {names} and no head, so they are not listed: "
                f"`refold repair --user {self.user_id} --apply` lists them again"
            )
        return infos

    def write_session(self, number: int, info: SessionInfo) -> JsonObject:
        """Write the streams of one session, the main one first; returns its facts."""
        folder = f"sessions/{number:05}"
        main = StreamId(info.user_id, info.session_id, MAIN)
        streams: list[Any] = []
        for name in self.log.streams(info.user_id, info.session_id):
            place = "events" if name == MAIN else f"derived/{name}"
            stream = main._replace(stream=name)
            streams.append(self._write_stream(stream, f"{folder}/{place}.jsonl"))
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
            "views": self._write_views(main, f"{folder}/views.json"),
            "streams": streams,
        }

    def _write_stream(self, stream: StreamId, path: str) -> JsonObject:
        """Write the events of a stream up to its head, one a line, and their blobs."""
        head = self.log.head(stream)
        after = 0
        with self.files.writing(path) as write:
            while after < head.seq:
                page = self.log.read(stream, after=after, upto=head.seq, limit=_PAGE)
                if not page:
                    raise errors.Erased(f"session {stream.session_id!r}")
                for envelope in page:
                    write(orjson.dumps(envelope.to_json()) + b"\n")
                    self._write_blobs(envelope)
                after = page[-1].seq
        return {
            "stream": stream.stream,
            "seq": head.seq,
            "hash": head.hash.hex(),
            "file": path,
        }

    def _write_blobs(self, envelope: Envelope) -> None:
        """Write the blobs that the event names, each once."""
        main = envelope.stream_id.main

        def write(sha256: str) -> None:
            path = f"blobs/{sha256}"
            if path in self.files.written:
                return
            with suppress(errors.Expired):
                data = self.log.blob(main, sha256)
                if data is not None:
                    self.files.write(path, data)

        # ``restored`` calls the function with each blob; its result is not needed.
        restored(envelope.payload.payload(), write)

    def _write_views(self, main: StreamId, path: str) -> str | None:
        """Write the stored views of a session; returns the path, None without views."""
        views: JsonObject = {}
        for name in self.log.view_names(main.user_id, main.session_id):
            view = self.log.load_view(main, name)
            if view is not None:
                views[name] = {"through_seq": view.through_seq, "body": view.body}
        if not views:
            return None
        self.files.write_json(path, views)
        return path

    def _write_user(self) -> JsonObject:
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
        with self.files.writing("certificates.jsonl") as write:
            for certificate in certificates:
                write(orjson.dumps(certificate) + b"\n")
        return {"certificates": len(certificates), "holds": len(holds)}

    def _write_manifest(
        self, sessions: list[JsonObject], counts: JsonObject
    ) -> JsonObject:
        """Write the manifest; returns it.

        sessions: the facts of each session.
        counts:   further counts, by name.
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


def _write_session(
    folder: Path, store: Any, item: tuple[int, SessionInfo], _: object
) -> tuple[int, JsonObject, dict[str, File]]:
    """Write the streams of one session; returns its number, its facts and its files.

    item: the number of the session in the export, and the session.
    """
    number, info = item
    export = _Export(store.writer, info.user_id, Files(folder))
    facts = export.write_session(number, info)
    return number, facts, export.files.written


# The format of the event that records a dataset for each user in it.
DATASET: Final = "refold-dataset/1"


def record_dataset(writer: Writer, user_id: str, export_id: str, scope: str) -> bytes:
    """Record that rows of a user will be exported; returns the salt of their row ids.

    The event is in the session ``_user``, so that an erasure can name the export.

    scope: the scope that the user granted for the export; empty if it needs none.

    Raises Erased, Frozen.
    """
    salt = os.urandom(SALT)
    # Redaction would replace the value of a key "salt", so the key is "seed".
    value: JsonObject = {"seed": salt.hex(), "consent": scope, "export": export_id}
    event = Item(format=DATASET, kind="export", value=value)
    stream = StreamId(user_id, USER_SESSION, MAIN)
    writer.append(Order(stream, (Draft(event),)))
    return salt


def check_dataset(writer: Writer, users: Iterable[str]) -> None:
    """Check that no user of a dataset is erased, or under erasure.

    An erasure that begins after this check finds the record of the export.

    Raises ExportFailed.
    """
    erasures = writer.log.erasures
    for user_id in users:
        try:
            erasures.refuse_erased(user_id)
            is_erased = bool(erasures.jobs(user_id))
        except errors.Erased:
            is_erased = True
        if is_erased:
            raise errors.ExportFailed(
                "a user in the dataset is being erased: export again without them"
            )


def datasets(log: EventLog, scope: ErasureScope) -> list[JsonObject]:
    """Return the datasets that may have rows of a user, or of some of their sessions.

    Each has the id of its export and the ids of the rows.

    Raises the errors of reading the session ``_user``.
    """
    stream = StreamId(scope.user_id, USER_SESSION, MAIN)
    exported: list[JsonObject] = []
    for envelope in read_pages(log, stream, types=("item",)):
        item = envelope.payload
        if not isinstance(item, Item) or item.format != DATASET:
            continue
        value = item.value
        if not isinstance(value, Mapping) or "export" not in value:
            continue
        export = value["export"]
        # Earlier versions wrote the key "salt".
        seed = value.get("seed")
        if not isinstance(seed, str):
            seed = value.get("salt")
        if not isinstance(seed, str):
            continue
        key = bytes.fromhex(seed)
        rows: list[Any] = []
        if scope.sessions is None:
            rows.append(subject(key, scope.user_id, None))
        else:
            for session_id in scope.sessions:
                rows.append(subject(key, scope.user_id, [session_id]))
        exported.append({"export": export, "rows": rows})
    return exported


class ExportProblem(NamedTuple):
    """A file that differs from the manifest, and the difference."""

    path: str
    detail: str


class ExportChecked(NamedTuple):
    """The counts of a manifest, and the files that differ from it."""

    user_id: str
    counts: JsonObject
    problems: list[ExportProblem]


def check_export(folder: Path) -> ExportChecked:
    """Check every file of an export against its manifest, and each stream's chain.

    Raises InvalidConfiguration if the folder has no manifest of an export.  The folder
    of an interrupted export has none.
    """
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        manifest = None
    is_export = False
    if isinstance(manifest, dict):
        is_export = manifest.get("format") in (FORMAT, TABLES)
    if not is_export:
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
    """Yield the differences between an export and its manifest."""
    content = {name: value for name, value in manifest.items() if name != "digest"}
    if digest(content) != manifest.get("digest"):
        yield ExportProblem(MANIFEST, "it is not what was written")
        return
    listed = {file["path"]: file for file in manifest["files"]}
    existing: set[str] = set()
    for place, _, names in os.walk(folder):  # symbolic links are among the names, too
        for name in names:
            existing.add((Path(place) / name).relative_to(folder).as_posix())
    for path in sorted(existing - set(listed) - {MANIFEST}):
        yield ExportProblem(path, "the manifest does not name it")
    differences = {
        path: _difference(folder, path, file) for path, file in listed.items()
    }
    for path, detail in differences.items():
        if detail:
            yield ExportProblem(path, detail)
    for session in manifest.get("sessions", ()):
        for stream in session["streams"]:
            path = stream["file"]
            if path not in differences:
                yield ExportProblem(path, "the manifest does not name it")
            elif not differences[path]:
                detail = _break_in_chain(folder, stream)
                if detail:
                    yield ExportProblem(path, detail)


def _difference(folder: Path, path: str, file: JsonObject) -> str:
    """Describe how a file differs from the manifest; empty if it does not."""
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
    """Describe where the hash chain of a stream breaks; empty if it does not."""
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
