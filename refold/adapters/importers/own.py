"""Imports exports of Refold: a file of envelopes, or the folder of a user."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from refold.adapters.importers import base
from refold.domain.envelope import Draft, Meta
from refold.domain.errors import InvalidEvent, SessionClosed
from refold.domain.events import DERIVED_TYPES, Event, Fork, ToolResult
from refold.domain.ids import KEPT, MAIN, RESERVED, StreamId
from refold.domain.ports import Skipped, Transcript
from refold.domain.session import SessionState
from refold.domain.upcast import upcast
from refold.redaction.guard import restored

NAME = "refold"
MANIFEST = "manifest.json"
_FIELDS = frozenset(
    {"event_id", "seq", "type", "session_id", "stream", "payload", "prev_hash", "hash"}
)
_FINGERPRINT = re.compile("[0-9a-f]{64}")
# Reads the blob with this SHA-256, or returns None.
ReadBlob = Callable[[str], bytes | None]
# The events of each derived stream.
Derived = tuple[tuple[str, tuple[Draft, ...]], ...]


class Entry(NamedTuple):
    """The envelope of a line, and the line's place."""

    where: str
    value: Mapping[str, Any]


def recognises(source: base.Source) -> bool:
    """Whether the first line is an envelope."""
    first = next(source.lines(), None) if source.is_lines else None
    return first is not None and base.mapping(first.value).keys() >= _FIELDS


def read(source: base.Source) -> Iterator[Transcript]:
    """Yield a transcript for each session of a file.

    A file has no blobs, so texts that the size guard cut stay cut.
    """
    yield from _transcripts([source], lambda _: None)


def is_folder(path: Path) -> bool:
    """Whether ``refold export --out`` made this folder."""
    try:
        return (path / MANIFEST).is_file()
    except (OSError, ValueError):
        return False


def read_folder(folder: Path) -> list[Transcript]:
    """Return a transcript for each session of a user's export, with whole texts.

    Raises ImportFailed.
    """
    manifest = base.Source(folder / MANIFEST)
    sources: list[base.Source] = []
    for session in base.each(manifest.document, "sessions"):
        for stream in base.each(session, "streams"):
            name = base.text(stream, "file") or ""
            sources.append(base.Source(folder / _inside(manifest, name)))

    def read_blob(sha256: str) -> bytes | None:
        file = folder / "blobs" / sha256
        return file.read_bytes() if file.is_file() and not file.is_symlink() else None

    return list(_transcripts(sources, read_blob))


def _inside(manifest: base.Source, name: str) -> PurePosixPath:
    """Return the path of a file in the folder.  Raises ImportFailed."""
    if not name:
        raise manifest.failed("has a stream without a file: export again")
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts
    if is_inside:
        # A link in the folder may also lead outside.
        folder = manifest.path.parent
        try:
            target = (folder / path).resolve()
            is_inside = target.is_relative_to(folder.resolve())
        except (OSError, ValueError, RuntimeError):
            is_inside = False
    if not is_inside:
        raise manifest.failed("names a file outside of its folder: export again")
    return path


def _transcripts(
    sources: Iterable[base.Source], read_blob: ReadBlob
) -> Iterator[Transcript]:
    """Yield the sessions; a fork comes after the session that it was forked from."""
    sessions: dict[str, list[Entry]] = {}
    users: set[str] = set()
    for source in sources:
        for line in source.lines():
            value = base.mapping(line.value)
            if not value.keys() >= _FIELDS:
                raise source.failed("is not an envelope", line=line.number)
            users.add(str(value.get("user_id")))
            entry = Entry(source.at(f"line {line.number}"), value)
            sessions.setdefault(str(value["session_id"]), []).append(entry)
        if len(users) > 1:
            raise source.failed("holds several users: export one, with --user")
    waiting = [
        _SessionReader(name, read_blob).read(entries)
        for name, entries in sessions.items()
    ]
    done: set[str] = set()
    while True:
        ready = [
            transcript
            for transcript in waiting
            if not _waits(transcript, sessions, done)
        ]
        if not ready:
            break
        yield from ready
        done.update(transcript.session_id for transcript in ready)
        waiting = [transcript for transcript in waiting if transcript not in ready]
    # Forks of each other, which no export of Refold has.
    yield from waiting


def _waits(
    transcript: Transcript, sessions: Mapping[str, object], done: set[str]
) -> bool:
    """Whether the transcript is a fork of a session that was not yielded yet."""
    if not transcript.forked_from:
        return False
    parent, _ = transcript.forked_from
    return parent in sessions and parent not in done


class _SessionReader:
    """Reads the entries of one session."""

    def __init__(self, name: str, read_blob: ReadBlob) -> None:
        self._name = name
        self._read_blob = read_blob
        # Whether no event and no blob of the session was left out.
        self._is_whole = True
        self._skipped: list[Skipped] = []
        self._forked_from: tuple[str, int] | None = None
        self._state = SessionState(StreamId("importer", "transcript"))

    def read(self, entries: Sequence[Entry]) -> Transcript:
        """Return the transcript of the session.

        It has the derived streams and the recorded requests only if no event of the
        session is missing, because both refer to events by ``seq``.
        """
        # The internal session of a user, or the memory of an expired session: a store
        # writes both itself.
        if self._name in RESERVED or self._name.startswith(KEPT):
            return self._transcript([])
        drafts: list[Draft] = []
        seqs: list[int] = []
        streams: dict[str, list[Draft]] = {}
        for entry in sorted(entries, key=lambda entry: _seq(entry.value)):
            draft = self._draft(entry)
            stream = entry.value["stream"]
            if draft is None:
                continue
            if stream != MAIN:
                streams.setdefault(stream, []).append(draft)
            elif isinstance(draft.event, Fork):
                self._forked_from = draft.event.session_id, draft.event.at_seq
            else:
                drafts.append(draft)
                seqs.append(_seq(entry.value))
        derived = tuple(
            (name, tuple(events)) for name, events in sorted(streams.items())
        )
        transcript = self._transcript(drafts, derived)
        # In a fork, seq 1 is the event of the fork, which an import writes itself.
        first_seq = 2 if self._forked_from else 1
        has_all_seqs = seqs == [*range(first_seq, first_seq + len(seqs))]
        if self._is_whole and has_all_seqs:
            return transcript
        return transcript.without_records(seqs)

    def _transcript(self, drafts: Sequence[Draft], derived: Derived = ()) -> Transcript:
        """Return the transcript of the session with these events."""
        return Transcript(
            base.session_name(self._name),
            NAME,
            tuple(drafts),
            tuple(self._skipped),
            forked_from=self._forked_from,
            derived=derived,
        )

    def _draft(self, entry: Entry) -> Draft | None:
        """Return the event of an entry, or None if it is left out."""
        value = entry.value
        event_type = value["type"]
        if event_type == "redaction_applied":
            self._skip(
                entry, "records a later redaction: these events are redacted already"
            )
            return None
        try:
            meta = Meta.of(value.get("meta"))
            payload = restored(base.mapping(value["payload"]), self._blob)
            schema_version = int(value.get("schema_version", 1))
            event: Any = upcast(event_type, schema_version, payload)
            event = self._accepted(str(value["stream"]), event, meta)
        except (InvalidEvent, SessionClosed, TypeError, ValueError, RecursionError):
            self._skip(entry, "not valid as an event of its session")
            return None
        source = {"format": NAME, "seq": _seq(value), "of": meta.source}
        return Draft(
            event,
            ts=base.moment(value, "ts"),
            request_id=base.text(value, "request_id"),
            agent=base.text(value, "agent"),
            meta=meta.model_copy(update={"source": source}),
        )

    def _accepted(self, stream: str, event: Event, meta: Meta) -> Event:
        """Return the event as its stream accepts it.

        A result in a fork is not checked if its call may be in the parent session.

        Raises InvalidEvent, SessionClosed.
        """
        if stream != MAIN:
            if not (_FINGERPRINT.fullmatch(stream) and event.type in DERIVED_TYPES):
                raise InvalidEvent("no event of a derived stream")
            return event
        if isinstance(event, Fork):
            return event
        if (
            self._forked_from
            and isinstance(event, ToolResult)
            and event.call_id not in self._state.open_calls
        ):
            return event
        event, self._state = base.accepted(self._state, event, meta)
        return event

    def _skip(self, entry: Entry, why: str) -> None:
        """Report that an entry is left out; the session is not whole then."""
        self._is_whole = False
        self._skipped.append(Skipped(entry.where, why))

    def _blob(self, sha256: str) -> bytes | None:
        """Return a blob; without it, the session is not whole."""
        blob = self._read_blob(sha256)
        if blob is None:
            self._is_whole = False
        return blob


def _seq(value: Mapping[str, Any]) -> int:
    """Return the number of an event in its stream, or 0 if it has none."""
    seq = value.get("seq")
    return seq if isinstance(seq, int) else 0
