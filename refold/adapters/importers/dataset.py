"""What leaves a store to be worked with, and whence: chats for training, tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

import orjson

from refold.adapters.frameworks import import_extra
from refold.adapters.importers.atif import trajectory
from refold.adapters.sql.recorder import Recorder, Subjects
from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope
from refold.domain.erasure import subject
from refold.domain.errors import Erased, Frozen
from refold.domain.events import Final as Outcome, JsonObject
from refold.domain.ids import StreamId
from refold.domain.ports import SessionInfo, listed
from refold.projections.models import answers
from refold.store import SessionStore, exports
from refold.store.exports import (
    DATASET,
    CopyRecords,
    check_dataset,
    record_dataset,
)
from refold.store.history import History
from refold.store.store import now

TRAINING: Final = "training"
_COLUMNS: Final = shipped("refold.adapters.sql", "data", "exported.toml")
_GROUP: Final = 8 << 20  # bytes of rows that are written at once, about
_SHORT: Final = 400  # of them, what is short in a row


@dataclass
class Dataset:
    """A dataset that is made of a store, row by row.

    scope: the consent that a user must have given, and not withdrawn.
    out:   the file that the rows are written to, for the report of a later erasure.
    users: whose rows are in it so far; ``left`` is how many others were left out.
    """

    store: SessionStore
    scope: str = TRAINING
    out: Path | None = None
    export_id: str = field(default_factory=lambda: str(uuid4()))
    users: list[str] = field(default_factory=list)
    left: int = 0

    def rows(self, user_id: str | None = None) -> Iterator[JsonObject]:
        """A row for each session, of one user or of all.

        That there is a row of theirs is recorded with each user before it is made.

        Raises ExportFailed at the end if one of them is being erased: what was written
        must not be used then.
        """
        infos = self.store.sessions(user_id)
        writer = self.store.writer
        copies = None
        if self.out is not None:
            export_id = self.export_id
            copies = CopyRecords(writer, "dataset", self.out, export_id=export_id)
        with nullcontext() if copies is None else copies.whole_or_dropped():
            yield from self._rows(infos, copies)
            check_dataset(writer, self.users)

    def _rows(
        self, infos: Sequence[SessionInfo], copies: CopyRecords | None
    ) -> Iterator[JsonObject]:
        """A row for each session of users with consent."""
        for user in dict.fromkeys(info.user_id for info in infos):
            allowed = self.store.user(user).status().scopes.get(self.scope)
            if allowed is None or not allowed.granted:
                self.left += 1
                continue
            salt = record_dataset(self.store.writer, user, self.export_id, self.scope)
            if copies is not None:
                copies.of(user)
            self.users.append(user)
            consent: JsonObject = {"scope": self.scope, "at": allowed.at}
            for info in infos:
                if info.user_id == user:
                    yield from self._row(user, info.session_id, salt, consent)

    def _row(
        self, user: str, name: str, salt: bytes, consent: JsonObject
    ) -> Iterator[JsonObject]:
        session = self.store.session(user_id=user, session_id=name)
        events = [one for one in session.history.timeline() if one.stream == "main"]
        if chat := [*_chat(trajectory(events, "")["steps"])]:
            lineage: JsonObject = {
                "format": DATASET,
                "export": self.export_id,
                "user": subject(salt, user),
                "session": subject(salt, user, [name]),
                "seqs": [events[0].seq, events[-1].seq],
                "head": events[-1].hash,
                "consent": consent,
                "redaction": _redaction(events),
            }
            held: JsonObject = {"messages": [*chat]}
            yield held | _outcome(events) | {"lineage": lineage}


def _chat(steps: Any) -> Iterator[JsonObject]:
    """The messages of a trajectory as chat models are trained on them."""
    for step in steps:
        said: JsonObject = {"content": _text(step.get("message"))}
        calls: list[Any] = [_call(call) for call in step.get("tool_calls", ())]
        if thought := step.get("reasoning_content"):
            said["reasoning_content"] = thought
        if calls:
            said["tool_calls"] = calls
        role = {"agent": "assistant"}.get(step["source"], step["source"])
        if any(said.values()):
            yield {"role": role, **said}
        for result in step.get("observation", {}).get("results", ()):
            named = {"tool_call_id": i} if (i := result.get("source_call_id")) else {}
            who = "tool" if named else "user"
            yield {"role": who, **named, "content": _text(result.get("content"))}


def _call(call: Mapping[str, Any]) -> JsonObject:
    arguments = orjson.dumps(call["arguments"]).decode()
    function: JsonObject = {"name": call["function_name"], "arguments": arguments}
    return {"id": call["tool_call_id"], "type": "function", "function": function}


def _text(content: Any) -> str:
    """A message's text; of images the place is named."""
    if isinstance(content, str):
        return content
    return "\n\n".join(
        part["text"] if part["type"] == "text" else f"[{part['source']['path']}]"
        for part in content or ()
    )


def _redaction(events: Iterable[Envelope]) -> JsonObject:
    """By which rules the texts were redacted, and how many values of which type."""
    rules, types = set[str](), Counter[str]()
    for event in events:
        rules.add(str(event.redaction.get("rules")))
        found = event.redaction.get("types")
        types.update(found if isinstance(found, dict) else {})
    return {"rules": [*sorted(rules)], "types": dict(sorted(types.items()))}


def _outcome(events: Iterable[Envelope]) -> JsonObject:
    """How the run ended, if the log says."""
    ends = [one.payload for one in events if isinstance(one.payload, Outcome)]
    return {"outcome": ends[-1].outcome, "reward": ends[-1].reward} if ends else {}


@dataclass
class Tables:
    """An export of events as Parquet, in files by buckets of users.

    recorder: whose rows; metadata asks for nothing else, and for no key.
    store:    what decrypts them, for all columns; None is metadata alone.
    buckets:  how many files at most; SHA-256 of a user's name says which is theirs.
    """

    recorder: Recorder
    store: SessionStore | None = None
    buckets: int = 16
    export_id: str = field(default_factory=lambda: str(uuid4()))
    # Of all columns: epoch and salt of each user; nothing of those who are left out.
    _known: dict[str, Any] = field(default_factory=dict)
    _copies: CopyRecords | None = None

    def write(self, out: Path) -> exports.Exported:
        """Write it to ``out``, a new folder that appears at the end, whole.

        Memory is bounded but for sessions' names.  Others go on writing.  Who is
        erased meanwhile is left out: that file is written again.  All columns are
        recorded with each user first; of frozen users nothing can be, nor is in it.

        Raises ExportFailed if something is there, InvalidConfiguration without the
        extra, and what reading raises.
        """
        if self.store is None:
            return self._write(out)  # it has no key to encrypt a record with
        self._copies = CopyRecords(
            self.store.writer, "parquet", out, export_id=self.export_id
        )
        with self._copies.whole_or_dropped():
            return self._write(out)

    def _write(self, out: Path) -> exports.Exported:
        begun, seen = now(), Subjects(self.recorder.database).key_generation()
        placed, counts = defaultdict[str, set[StreamId]](set), dict[str, int]()
        for path, one in self._placed():
            placed[path].add(one)
        with exports.whole_or_nothing(out.absolute()) as folder:
            files, todo = exports.Files(folder), sorted(placed)
            while todo:
                for path in todo:
                    (folder / path).unlink(missing_ok=True)
                    counts[path] = self._file(files, path, sorted(placed[path]))
                gone = {path: {*sessions} for path, sessions in placed.items()}
                for path, one in self._placed():
                    gone.get(path, set()).discard(one)
                todo = [path for path, sessions in gone.items() if sessions]
                for path in todo:
                    placed[path] -= gone[path]
            users: JsonObject = {
                one.user_id: {"file": path, "epoch": known[0]}
                for path, sessions in sorted(placed.items())
                for one in sorted(sessions)
                if (known := self._known.get(one.user_id, [None]))
            }
            left = sum(not known for known in self._known.values())
            told = {"events": sum(counts.values()), "users": len(users), "left": left}
            said: JsonObject = {
                "export": self.export_id,
                "columns": "all" if self.store else "metadata",
                "generation": seen,
                "counts": {**told},
                "users": users,
            }
            manifest = files.finish(exports.TABLES, begun, said)
        return exports.Exported(out.absolute(), manifest)

    def _placed(self) -> Iterator[tuple[str, StreamId]]:
        """Each session of which nothing was erased, or is about to be, and its file."""
        jobs = self.store.log.erasures.jobs() if self.store else ()
        erasing = {job.whose.user_id for job in jobs}
        for one in listed(self.recorder.sessions):
            if one.status != "erased" and one.user_id not in erasing:
                number = int(sha256(one.user_id.encode()).hexdigest()[:15], 16)
                path = f"{number % self.buckets:04}.parquet"
                yield path, StreamId(one.user_id, one.session_id)

    def _file(self, files: exports.Files, path: str, sessions: list[StreamId]) -> int:
        """Write the sessions' rows to a file, a group at a time; how many they are."""
        arrow, parquet = (
            import_extra(f"pyarrow{of}", "parquet") for of in ("", ".parquet")
        )
        names = _COLUMNS["metadata"] | (_COLUMNS["content"] if self.store else {})
        kinds = {"uuid": arrow.uuid()}
        schema = arrow.schema((name, kinds.get(of, of)) for name, of in names.items())
        how = {"compression": "zstd", "use_dictionary": _COLUMNS["few"]["names"]}
        rows, count = chain.from_iterable(map(self._rows, sessions)), 0
        with files.opened(path) as write:
            sink = SimpleNamespace(write=write, closed=False, flush=lambda: None)
            with parquet.ParquetWriter(sink, schema, **how) as writer:
                for group in _groups(rows):
                    told: list[Any] = [*zip(*group, strict=True)]
                    told[9:10] = map(bytes.hex, told[9]), [self.export_id] * len(group)
                    named = zip(names, map(list, told), strict=True)
                    writer.write_table(arrow.table(dict(named), schema))
                    count += len(group)
        return count

    def _rows(self, session: StreamId) -> Iterator[Sequence[Any]]:
        """The columns of its events, but for ``export_id``; the hash as bytes."""
        user_id, name, _ = session
        if self.store is None:
            yield from self.recorder.plain(session)
        elif known := self._recorded(user_id):
            epoch, salt = known
            whose = [epoch, *(subject(salt, user_id, of) for of in (None, [name]))]
            for stream in self.store.log.streams(user_id, name):
                session, asked = session._replace(stream=stream), list[Envelope]()
                with suppress(Erased):
                    for one in History(self.store.log, session).events():
                        if one.type == "request" and not one.activates:
                            asked = [one]
                        yield (*session, *_columns(one.decoded(), asked, whose))

    def _recorded(self, user_id: str) -> Any:
        """Record the export with a user, once, unless who is left out."""
        if self.store and user_id not in self._known:
            self._known[user_id], log = (), cast("Any", self.store.log)
            with suppress(Erased, Frozen):
                salt = record_dataset(self.store.writer, user_id, self.export_id, "")
                if self._copies is not None:
                    self._copies.of(user_id)
                self._known[user_id] = log.keys.user(user_id, now=None).epoch, salt
            self.store.access_log.note("export", user_id)
        return self._known[user_id]


def _groups(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Rows by row groups; what may be long stands last in a row."""
    group, size = list[Sequence[Any]](), 0
    for row in rows:
        group.append(row)
        size += _SHORT + len(row[-1])
        if size > _GROUP:
            yield group
            group, size = [], 0
    yield from [group] if group else []


def _columns(one: Envelope, asked: list[Envelope], whose: list[Any]) -> Sequence[Any]:
    """What follows on an event's stream; ``asked`` is the request before it there."""
    parts = one.redaction, one.meta.dump(), one.payload.payload()
    _, meta, payload = texts = [orjson.dumps(part).decode() for part in parts]
    told = "usage" in meta or "usage" in payload  # most events are of no answer
    said = next(iter(answers([*asked, one])), None) if told else None
    return (
        one.seq,
        one.type,
        one.at,
        one.token_estimate,
        one.schema_version,
        one.event_id.bytes,
        bytes.fromhex(one.hash),
        one.request_id,
        one.agent,
        *((said.model, *said.usage) if said else (one.meta.model, *[None] * 5)),
        said and said.usage.cost(said.model),
        *whose,
        *map(one.redaction.get, ("rules", "n")),
        *texts,
    )
