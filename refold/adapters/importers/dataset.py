"""Datasets for training and tables of events, each with its lineage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

import orjson

from refold.adapters.frameworks import import_extra
from refold.adapters.importers.atif import trajectory
from refold.adapters.sql.recorder import Recorder, Subjects
from refold.domain.canonical import load_packaged_toml
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
_COLUMNS: Final = load_packaged_toml("refold.adapters.sql", "data", "exported.toml")
_GROUP_BYTES: Final = 8 << 20  # of the rows that are written at once, about
_SHORT_BYTES: Final = 400  # of a row without its last column, about
# The columns of a model's usage, which only answers have.
_USAGE_COLUMNS: Final = 5


@dataclass
class Dataset:
    """A dataset of chats for training.

    scope:          the consent that a user must have given, and not withdrawn.
    out:            the file that the rows are written to, which a later erasure names.
    users:          the users whose rows are in it so far.
    users_left_out: the number of users without the consent so far.
    """

    store: SessionStore
    scope: str = TRAINING
    out: Path | None = None
    export_id: str = field(default_factory=lambda: str(uuid4()))
    users: list[str] = field(default_factory=list)
    users_left_out: int = 0

    def rows(self, user_id: str | None = None) -> Iterator[JsonObject]:
        """Yield a row for each session, of one user or of all.

        Before a user's first row, the export is recorded with the user.

        Raises ExportFailed at the end if one of the users is under erasure; the rows
        must not be used then.
        """
        infos = self.store.sessions(user_id)
        writer = self.store.writer
        copies = None
        if self.out is not None:
            export_id = self.export_id
            copies = CopyRecords(writer, "dataset", self.out, export_id=export_id)
        with nullcontext() if copies is None else copies.dropped_on_failure():
            yield from self._rows(infos, copies)
            check_dataset(writer, self.users)

    def _rows(
        self, infos: Sequence[SessionInfo], copies: CopyRecords | None
    ) -> Iterator[JsonObject]:
        """Yield a row for each session of users with consent."""
        for user in dict.fromkeys(info.user_id for info in infos):
            decision = self.store.user(user).status().scopes.get(self.scope)
            if decision is None or not decision.granted:
                self.users_left_out += 1
                continue
            salt = record_dataset(self.store.writer, user, self.export_id, self.scope)
            if copies is not None:
                copies.record(user)
            self.users.append(user)
            consent: JsonObject = {"scope": self.scope, "at": decision.at}
            for info in infos:
                if info.user_id == user:
                    yield from self._row(user, info.session_id, salt, consent)

    def _row(
        self, user: str, name: str, salt: bytes, consent: JsonObject
    ) -> Iterator[JsonObject]:
        """Yield the row of a session, unless it has no message."""
        session = self.store.session(user_id=user, session_id=name)
        events = [
            envelope
            for envelope in session.history.timeline()
            if envelope.stream == "main"
        ]
        messages: list[Any] = [*_chat(trajectory(events, "")["steps"])]
        if not messages:
            return
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
        yield {"messages": messages, **_outcome(events), "lineage": lineage}


def _chat(steps: Any) -> Iterator[JsonObject]:
    """Yield the messages of a trajectory in the form for training chat models."""
    for step in steps:
        fields: JsonObject = {"content": _text(step.get("message"))}
        reasoning = step.get("reasoning_content")
        if reasoning:
            fields["reasoning_content"] = reasoning
        calls: list[Any] = [_call(call) for call in step.get("tool_calls", ())]
        if calls:
            fields["tool_calls"] = calls
        role = "assistant" if step["source"] == "agent" else step["source"]
        if any(fields.values()):
            yield {"role": role, **fields}
        for result in step.get("observation", {}).get("results", ()):
            content = _text(result.get("content"))
            call_id = result.get("source_call_id")
            if call_id:
                yield {"role": "tool", "tool_call_id": call_id, "content": content}
            else:
                yield {"role": "user", "content": content}


def _call(call: Mapping[str, Any]) -> JsonObject:
    """Return a call of a trajectory in the form of OpenAI's chat API."""
    arguments = orjson.dumps(call["arguments"]).decode()
    function: JsonObject = {"name": call["function_name"], "arguments": arguments}
    return {"id": call["tool_call_id"], "type": "function", "function": function}


def _text(content: Any) -> str:
    """Return the text of a message, with the paths of its images."""
    if isinstance(content, str):
        return content
    return "\n\n".join(
        part["text"] if part["type"] == "text" else f"[{part['source']['path']}]"
        for part in content or ()
    )


def _redaction(events: Iterable[Envelope]) -> JsonObject:
    """Return the rules that redacted the texts, and the number of values by type."""
    rules: set[str] = set()
    types: Counter[str] = Counter()
    for event in events:
        rules.add(str(event.redaction.get("rules")))
        counts = event.redaction.get("types")
        types.update(counts if isinstance(counts, dict) else {})
    return {"rules": [*sorted(rules)], "types": dict(sorted(types.items()))}


def _outcome(events: Iterable[Envelope]) -> JsonObject:
    """Return the outcome and the reward of the run, if the log has them."""
    outcome: JsonObject = {}
    for envelope in events:
        event = envelope.payload
        if isinstance(event, Outcome):
            outcome = {"outcome": event.outcome, "reward": event.reward}
    return outcome


class _Recorded(NamedTuple):
    """The epoch and the salt of a user with whom an export was recorded."""

    epoch: int
    salt: bytes


@dataclass
class Tables:
    """An export of events as Parquet, in files by buckets of users.

    recorder: reads the rows; metadata needs nothing else, and no key.
    store:    decrypts the rows, for all columns; None exports metadata alone.
    buckets:  the most files; SHA-256 of a user's name determines the user's file.
    """

    recorder: Recorder
    store: SessionStore | None = None
    buckets: int = 16
    export_id: str = field(default_factory=lambda: str(uuid4()))
    # With all columns: the users so far; None for those who are left out.
    _users: dict[str, _Recorded | None] = field(default_factory=dict)
    _copies: CopyRecords | None = None

    def write(self, out: Path) -> exports.Exported:
        """Write the export to ``out``, a new folder that appears whole at the end.

        Memory is bounded, except for the names of sessions.  Other processes can
        write during the export.  Users who are erased during it are left out: their
        file is written again.  An export of all columns is first recorded with each
        user; frozen users allow no record, so they are left out.

        Raises ExportFailed if ``out`` exists, InvalidConfiguration without the extra,
        and the errors of reading.
        """
        if self.store is None:
            return self._write(out)  # without a key, no record can be encrypted
        self._copies = CopyRecords(
            self.store.writer, "parquet", out, export_id=self.export_id
        )
        with self._copies.dropped_on_failure():
            return self._write(out)

    def _write(self, out: Path) -> exports.Exported:
        """Do what ``write`` documents, without the record of the copies."""
        began_at = now()
        generation = Subjects(self.recorder.database).key_generation()
        sessions_of_file: defaultdict[str, set[StreamId]] = defaultdict(set)
        event_counts: dict[str, int] = {}
        for path, session in self._files_of_sessions():
            sessions_of_file[path].add(session)
        with exports.complete_or_absent(out.absolute()) as folder:
            files = exports.Files(folder)
            unwritten = sorted(sessions_of_file)
            while unwritten:
                for path in unwritten:
                    (folder / path).unlink(missing_ok=True)
                    sessions = sorted(sessions_of_file[path])
                    event_counts[path] = self._write_file(files, path, sessions)
                # Files with sessions that were erased since are written again.
                unwritten = self._drop_erased(sessions_of_file)
            users = self._users_of_files(sessions_of_file)
            counts: JsonObject = {
                "events": sum(event_counts.values()),
                "users": len(users),
                "left": sum(1 for user in self._users.values() if user is None),
            }
            description: JsonObject = {
                "export": self.export_id,
                "columns": "all" if self.store else "metadata",
                "generation": generation,
                "counts": counts,
                "users": users,
            }
            manifest = files.finish(exports.TABLES, began_at, description)
        return exports.Exported(out.absolute(), manifest)

    def _files_of_sessions(self) -> Iterator[tuple[str, StreamId]]:
        """Yield each session with its file, except of users under erasure."""
        jobs = self.store.log.erasures.jobs() if self.store else ()
        under_erasure = {job.scope.user_id for job in jobs}
        for info in listed(self.recorder.sessions):
            if info.status != "erased" and info.user_id not in under_erasure:
                number = int(sha256(info.user_id.encode()).hexdigest()[:15], 16)
                path = f"{number % self.buckets:04}.parquet"
                yield path, StreamId(info.user_id, info.session_id)

    def _drop_erased(self, sessions_of_file: dict[str, set[StreamId]]) -> list[str]:
        """Remove sessions that no longer exist; return the files that had some."""
        # All sessions, without those that still exist.
        erased = {path: {*sessions} for path, sessions in sessions_of_file.items()}
        for path, session in self._files_of_sessions():
            erased.get(path, set()).discard(session)
        changed = [path for path, sessions in erased.items() if sessions]
        for path in changed:
            sessions_of_file[path] -= erased[path]
        return changed

    def _users_of_files(
        self, sessions_of_file: Mapping[str, set[StreamId]]
    ) -> JsonObject:
        """Return the file and the epoch of each exported user, for the manifest."""
        users: JsonObject = {}
        for path, sessions in sorted(sessions_of_file.items()):
            for session in sorted(sessions):
                user_id = session.user_id
                if user_id not in self._users:  # an export of metadata
                    users[user_id] = {"file": path, "epoch": None}
                    continue
                user = self._users[user_id]
                if user is not None:
                    users[user_id] = {"file": path, "epoch": user.epoch}
        return users

    def _write_file(
        self, files: exports.Files, path: str, sessions: list[StreamId]
    ) -> int:
        """Write the rows of sessions to a file, a group at a time; return their number.

        Memory holds one group.
        """
        arrow = import_extra("pyarrow", "parquet")
        parquet = import_extra("pyarrow.parquet", "parquet")
        columns = _COLUMNS["metadata"] | (_COLUMNS["content"] if self.store else {})
        types = {"uuid": arrow.uuid()}
        schema = arrow.schema(
            (name, types.get(kind, kind)) for name, kind in columns.items()
        )
        rows = chain.from_iterable(map(self._rows, sessions))
        count = 0
        with files.writing(path) as write:
            sink = SimpleNamespace(write=write, closed=False, flush=lambda: None)
            with parquet.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                use_dictionary=_COLUMNS["few"]["names"],
            ) as writer:
                for group in _groups(rows):
                    values = self._columns_of(group)
                    values_by_name = dict(zip(columns, values, strict=True))
                    writer.write_table(arrow.table(values_by_name, schema))
                    count += len(group)
        return count

    def _columns_of(self, group: list[Sequence[Any]]) -> list[list[Any]]:
        """Return the columns of a group of rows.

        The hash is in hex, and the export's id follows it.
        """
        columns = [[*column] for column in zip(*group, strict=True)]
        columns[_HASH_COLUMN] = [digest.hex() for digest in columns[_HASH_COLUMN]]
        columns.insert(_HASH_COLUMN + 1, [self.export_id] * len(group))
        return columns

    def _rows(self, session: StreamId) -> Iterator[Sequence[Any]]:
        """Yield the rows of a session, without ``export_id``; the hash is in bytes."""
        if self.store is None:
            yield from self.recorder.plain(session)
            return
        user_id = session.user_id
        user = self._recorded(user_id)
        if user is None:
            return
        owner = (
            user.epoch,
            subject(user.salt, user_id, None),
            subject(user.salt, user_id, [session.session_id]),
        )
        for name in self.store.log.streams(user_id, session.session_id):
            stream = session._replace(stream=name)
            request: Envelope | None = None
            with suppress(Erased):
                for envelope in History(self.store.log, stream).events():
                    if envelope.type == "request" and not envelope.activates_strategy:
                        request = envelope
                    yield (*stream, *_columns(envelope.decoded(), request, owner))

    def _recorded(self, user_id: str) -> _Recorded | None:
        """Record the export with a user, once; None if the user is left out."""
        if self.store and user_id not in self._users:
            self._users[user_id] = None
            with suppress(Erased, Frozen):
                salt = record_dataset(self.store.writer, user_id, self.export_id, "")
                if self._copies is not None:
                    self._copies.record(user_id)
                keys = cast("Any", self.store.log).keys
                epoch = keys.user(user_id, now=None).epoch
                self._users[user_id] = _Recorded(epoch, salt)
            self.store.access_log.note("export", user_id)
        return self._users[user_id]


# The place of the hash in a row; ``export_id`` follows it in the file.
_HASH_COLUMN: Final = 9


def _groups(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    """Yield rows in groups of a bounded size; only the last column may be long."""
    group: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += _SHORT_BYTES + len(row[-1])
        if size > _GROUP_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _columns(
    envelope: Envelope, request: Envelope | None, owner: Sequence[Any]
) -> Sequence[Any]:
    """Return the columns of an event after those of its stream.

    request: the last request before it in the stream.
    owner:   the epoch of the user, and the keyed hashes of the user and the session.
    """
    redaction = orjson.dumps(envelope.redaction).decode()
    meta = orjson.dumps(envelope.meta.dump()).decode()
    payload = orjson.dumps(envelope.payload.payload()).decode()
    model = envelope.meta.model
    usage: Sequence[Any] = [None] * _USAGE_COLUMNS
    cost: Any = None
    if "usage" in meta or "usage" in payload:  # most events are no answers
        exchange = [envelope] if request is None else [request, envelope]
        answer = next(iter(answers(exchange)), None)
        if answer is not None:
            model = answer.model
            usage = answer.usage
            cost = answer.usage.cost(answer.model)
    return (
        envelope.seq,
        envelope.type,
        envelope.at,
        envelope.token_estimate,
        envelope.schema_version,
        envelope.event_id.bytes,
        bytes.fromhex(envelope.hash),
        envelope.request_id,
        envelope.agent,
        model,
        *usage,
        cost,
        *owner,
        envelope.redaction.get("rules"),
        envelope.redaction.get("n"),
        redaction,
        meta,
        payload,
    )
