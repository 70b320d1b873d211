"""All that is kept of a user, written to a directory: readable, whole, or not there."""

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
from refold.store.history import read_on
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

    What was begun in another process, and is the same, is written over.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, File] = {}

    def write(self, path: str, data: bytes) -> None:
        """A file of these bytes."""
        with self.opened(path) as write:
            write(data)

    def write_json(self, path: str, value: JsonObject) -> None:
        """A file that a person can read."""
        self.write(path, orjson.dumps(value, option=orjson.OPT_INDENT_2))

    def finish(self, form: str, at: int, said: JsonObject) -> JsonObject:
        """Write the manifest, which names every file; returns it."""
        manifest: JsonObject = {
            "format": form,
            "made_at": timestamp(at),
            "refold": version("refold"),
            **said,
            "files": [file._asdict() for file in self.written.values()],
        }
        manifest["digest"] = digest(manifest)
        self.write_json(MANIFEST, manifest)
        return manifest

    @contextmanager
    def opened(self, path: str) -> Iterator[Callable[[bytes], None]]:
        """A new file that only its owner can read, to be written piece by piece."""
        place = self.folder / path
        self._make(place.parent)
        hashed, size = hashlib.sha256(), 0
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
        """The directories down to this one, the owner's alone whatever the umask."""
        if folder != self.folder and not folder.exists():
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)


# Events are opened a page at a time, however long a session is.
_PAGE = 100
_NAMED = 5


class Exported(NamedTuple):
    """Where an export is, and what its manifest says.

    unrecorded: why the store has no record of it, so that no erasure names it; empty if
                the store has one.
    """

    path: Path
    manifest: JsonObject
    unrecorded: str = ""


class CopyRecords:
    """Records that an export copies data of users, so that an erasure names the copy.

    Each user's record is there before the first byte of theirs is written.  An export
    that fails and leaves nothing behind ends with ``drop``.

    form:       the format of the copy.
    location:   a path, or how the copy leaves: ``stdout``, ``HTTP``.
    sessions:   of which sessions it is; None is all.
    unrecorded: why the store took no record, if so; the export is made all the same.
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
        """Record the copy of this user's data, once."""
        if user_id in self._users:
            return
        try:
            self._writer.log.erasures.record_export(user_id, self._export)
        except errors.Erased:
            return  # whoever reads what was erased is refused as well
        except (errors.StoreUnavailable, errors.KeyUnavailable) as error:
            self.unrecorded = str(error)
        else:
            self._users[user_id] = None

    def drop(self) -> None:
        """Forget the export, which left no copy."""
        for user_id in self._users:
            # An erasure that began since reports a copy too many, which harms nobody.
            with suppress(errors.RefoldError):
                self._writer.log.erasures.drop_export(user_id, self._export.export_id)

    @contextmanager
    def whole_or_dropped(self) -> Iterator[None]:
        """Forget the export if the block fails."""
        try:
            yield
        except BaseException:
            self.drop()
            raise


def export_user(
    store: Any, user_id: str, out: Path, executor: Executor | None
) -> Exported:
    """Write everything of the user to ``out``, which must not be there, or be empty.

    What is read is of one moment for each stream; sessions that begin meanwhile are
    not in it.  ``out`` appears at the end, whole; memory is bounded but for the list
    of files.

    Raises Erased if the user or a session is erased meanwhile, SessionNotFound for a
    user who has nothing, ExportFailed if something is already at ``out``.
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
    """A directory of the owner's alone that takes its name once it is whole."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise errors.ExportFailed(
            f"{str(out)!r} is there already: export to a new or empty folder"
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
        """Raise as ``run`` does for a user of whom nothing can be exported."""
        self._sessions()

    def run(self, store: Any, executor: Executor | None) -> JsonObject:
        """Write it all, the manifest last, unless some was erased meanwhile."""
        infos, said = self._sessions(), dict[int, JsonObject]()
        work = partial(_session, self.files.folder)
        for at, one, files in spread(store, work, enumerate(infos, start=1), executor):
            said[at] = one
            self.files.written |= files
        manifest = self._manifest([said[at] for at in sorted(said)], self._about())
        self.log.erasures.refuse_erased(self.user_id)
        found = self.log.sessions(self.user_id)
        there = {info.session_id for info in found if info.status != "erased"}
        for info in infos:
            if info.session_id not in there:
                raise errors.Erased(f"session {info.session_id!r}")
        return manifest

    def _sessions(self) -> list[SessionInfo]:
        self.log.erasures.refuse_erased(self.user_id)
        found = self.log.sessions(self.user_id)
        infos = [info for info in found if info.status != "erased"]
        if not infos:
            if found:
                raise errors.Erased("the user")
            raise errors.SessionNotFound(self.user_id, "*")
        lost = self.log.orphans(Scope(self.user_id))
        if lost:
            names = ", ".join(sorted({repr(one.session_id) for one in lost})[:_NAMED])
            raise errors.ExportFailed(
                f"there are events of {names} and no head, so they are not listed: "
                f"`refold repair --user {self.user_id} --apply` lists them again"
            )
        return infos

    def session(self, number: int, info: SessionInfo) -> JsonObject:
        """The streams of one session, the main one first."""
        folder = f"sessions/{number:05}"
        main = StreamId(info.user_id, info.session_id, MAIN)
        streams: list[Any] = []
        for name in self.log.streams(*main[:2]):
            place = "events" if name == MAIN else f"derived/{name}"
            stream = main._replace(stream=name)
            streams.append(self._stream(stream, f"{folder}/{place}.jsonl"))
        origin = self.log.head(main).state.forked_from
        parent: Any = origin and {"session_id": origin[0], "at_seq": origin[1]}
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
        """Its events up to where it ends now, one a line, and their blobs."""
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
        end = head.hash.hex()
        return {"stream": stream.stream, "seq": head.seq, "hash": end, "file": path}

    def _blobs(self, envelope: Envelope) -> None:
        """The whole texts that were cut from the event, each once."""
        main = envelope.stream_id.main

        def write(sha256: str) -> None:
            path = f"blobs/{sha256}"
            if path in self.files.written:
                return
            with suppress(errors.Expired):
                if (data := self.log.blob(main, sha256)) is not None:
                    self.files.write(path, data)

        restored(envelope.payload.payload(), write)

    def _views(self, main: StreamId, path: str) -> str | None:
        """What is kept for contexts: which events they show, by strategy."""
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
        """What is known of the user besides: consent, holds, what was signed."""
        erasures = self.log.erasures
        holds: list[Any] = [
            {**hold._asdict(), "created_at": timestamp(hold.created_at)}
            for hold in erasures.holds(self.user_id)
        ]
        status = User(self.writer, self.user_id).status().to_json()
        signed = [one.to_json() for one in erasures.certificates(self.user_id)]
        uses: list[Any] = [
            {"session_id": of, "reads": reads, "last": timestamp(last)}
            for _, of, reads, last in self.log.retention.accesses(self.user_id)
        ]
        about = {"user_id": self.user_id, **status, "holds": holds, "accesses": uses}
        self.files.write_json("user.json", about)
        with self.files.opened("certificates.jsonl") as write:
            for certificate in signed:
                write(orjson.dumps(certificate) + b"\n")
        return {"certificates": len(signed), "holds": len(holds)}

    def _manifest(self, sessions: list[JsonObject], about: JsonObject) -> JsonObject:
        streams: list[Any] = [s for one in sessions for s in one["streams"]]  # type: ignore[union-attr]  # as _session made it
        events = sum(one["seq"] for one in streams if one["stream"] == MAIN)
        blobs = [path for path in self.files.written if path.startswith("blobs/")]
        said: JsonObject = {
            "store": self.log.erasures.facts(),
            "tree_head": self.log.erasures.tree_head(),
            "user_id": self.user_id,
            "counts": {
                "sessions": len(sessions),
                "events": events,
                "derived": sum(one["seq"] for one in streams) - events,
                "blobs": len(blobs),
                **about,
            },
            "sessions": list(sessions),
        }
        return self.files.finish(FORMAT, self.writer.clock(), said)


def _session(
    folder: Path, store: Any, item: tuple[int, SessionInfo], _: object
) -> tuple[int, JsonObject, dict[str, File]]:
    """Write the streams of one session; what the manifest says of it, and its files."""
    export = _Export(store.writer, item[1].user_id, Files(folder))
    return item[0], export.session(*item), export.files.written


DATASET: Final = "refold-dataset/1"


def record_dataset(writer: Writer, user_id: str, export_id: str, scope: str) -> bytes:
    """Record that rows of a user are about to be exported; gives the salt of their ids.

    It stands in the user's own session, so that an erasure can name the export.
    ``scope`` is the consent that it needs, empty if it needs none.

    Raises Erased, Frozen.
    """
    salt = os.urandom(SALT)
    value: JsonObject = {"salt": salt.hex(), "consent": scope, "export": export_id}
    event = Item(format=DATASET, kind="export", value=value)
    stream = StreamId(user_id, USER_SESSION, MAIN)
    writer.append(Order(stream, (Draft(event),)))
    return salt


def check_dataset(writer: Writer, users: Iterable[str]) -> None:
    """Refuse a dataset if one of its users was erased, or began to be, meanwhile.

    An erasure that begins later finds the export recorded.  Raises ExportFailed.
    """
    erasures = writer.log.erasures
    for user_id in users:
        with suppress(errors.Erased):
            erasures.refuse_erased(user_id)
            if not erasures.jobs(user_id):
                continue
        raise errors.ExportFailed("somebody in it is being erased: export again")


def datasets(log: EventLog, whose: Whose) -> list[JsonObject]:
    """By export, the ids of rows of these a dataset may hold; raises as reading."""
    user_id, sessions = whose
    stream = StreamId(user_id, USER_SESSION, MAIN)
    found: list[JsonObject] = []
    for envelope in read_on(log, stream, types=("item",)):
        match envelope.payload:
            case Item(format=kind, value={"salt": str(salt), "export": export}) if (
                kind == DATASET
            ):
                of = [None] if sessions is None else [[name] for name in sessions]
                rows = [subject(bytes.fromhex(salt), user_id, one) for one in of]
                found.append({"export": export, "rows": [*rows]})
    return found


class ExportProblem(NamedTuple):
    """Which file is not as the manifest says, and why."""

    path: str
    detail: str


class ExportChecked(NamedTuple):
    """What the manifest says is there, and what does not fit."""

    user_id: str
    counts: JsonObject
    problems: list[ExportProblem]


def check_export(folder: Path) -> ExportChecked:
    """Check every file of an export against its manifest, and each stream's chain.

    Raises InvalidConfiguration where there is no manifest of an export: what was cut
    off has none.
    """
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        manifest = None
    known = isinstance(manifest, dict) and manifest.get("format") in (FORMAT, TABLES)
    if not known:
        raise errors.InvalidConfiguration(
            f"there is no {MANIFEST} of an export in {str(folder)!r}: name a folder "
            "that `refold export --out` made"
        )
    try:
        problems = list(_problems(folder, manifest))
        return ExportChecked(manifest.get("user_id", ""), manifest["counts"], problems)
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = ExportProblem(MANIFEST, "it does not say what an export's says")
        return ExportChecked("", {}, [problem])


def _problems(folder: Path, manifest: dict[str, Any]) -> Iterator[ExportProblem]:
    said = {name: value for name, value in manifest.items() if name != "digest"}
    if digest(said) != manifest.get("digest"):
        yield ExportProblem(MANIFEST, "it is not what was written")
        return
    listed = {file["path"]: file for file in manifest["files"]}
    there = {
        (Path(place) / name).relative_to(folder).as_posix()
        for place, _, names in os.walk(folder)  # links are files too
        for name in names
    }
    for path in sorted(there - set(listed) - {MANIFEST}):
        yield ExportProblem(path, "the manifest does not name it")
    wrong = {path: _wrong(folder, path, file) for path, file in listed.items()}
    yield from (ExportProblem(*one) for one in wrong.items() if one[1])
    for stream in (s for one in manifest.get("sessions", ()) for s in one["streams"]):
        path, detail = stream["file"], "the manifest does not name it"
        if path in wrong:
            detail = "" if wrong[path] else _broken(folder, stream)
        if detail:
            yield ExportProblem(path, detail)


def _wrong(folder: Path, path: str, file: JsonObject) -> str:
    """What is wrong with one file; empty if nothing is."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return "it is outside of the export"
    try:
        with (folder / path).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
    except OSError:
        return "it is missing, or cannot be read"
    if File(path, size, found)._asdict() != file:
        return "it is not what was written"
    if path.startswith("blobs/") and pure.name != found:
        return "it is not the text of that digest"
    return ""


def _broken(folder: Path, stream: JsonObject) -> str:
    """Where a stream's events do not follow on each other; empty if they do."""
    seq, last = 0, GENESIS.hex()
    try:
        with (folder / str(stream["file"])).open("rb") as lines:
            for line in lines:
                event = orjson.loads(line)
                if (event["seq"], event["prev_hash"]) != (seq + 1, last):
                    return f"the event behind seq {seq} does not follow on it"
                seq, last = event["seq"], event["hash"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return f"what is behind seq {seq} is no event"
    if (seq, last) != (stream["seq"], stream["hash"]):
        return f"the chain ends at seq {seq}, the manifest says {stream['seq']}"
    return ""
