"""What ``refold export`` wrote: a file of envelopes, or the folder of a user."""

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
_NAMES = frozenset(
    {"event_id", "seq", "type", "session_id", "stream", "payload", "prev_hash", "hash"}
)
_FINGERPRINT = re.compile("[0-9a-f]{64}")
Blob = Callable[[str], bytes | None]
Derived = tuple[tuple[str, tuple[Draft, ...]], ...]


class Entry(NamedTuple):
    """A line, where it is, and what is on it."""

    where: str
    value: Mapping[str, Any]


def recognises(source: base.Source) -> bool:
    """Whether the first line is an envelope."""
    first = next(source.lines(), None) if source.is_lines else None
    return first is not None and base.mapping(first.value).keys() >= _NAMES


def read(source: base.Source) -> Iterator[Transcript]:
    """A transcript for each session; texts that were cut are cut in a file."""
    yield from _transcripts([source], lambda _: None)


def is_folder(path: Path) -> bool:
    """Whether it is one that ``refold export --out`` made."""
    try:
        return (path / MANIFEST).is_file()
    except (OSError, ValueError):
        return False


def read_folder(folder: Path) -> list[Transcript]:
    """A transcript for each session of a user's export, the texts in it whole.

    Raises ImportFailed.
    """
    index = base.Source(folder / MANIFEST)
    sources = [
        base.Source(folder / _inside(index, base.text(stream, "file") or ""))
        for one in base.each(index.document, "sessions")
        for stream in base.each(one, "streams")
    ]

    def blob(sha256: str) -> bytes | None:
        file = folder / "blobs" / sha256
        return file.read_bytes() if file.is_file() and not file.is_symlink() else None

    return list(_transcripts(sources, blob))


def _inside(index: base.Source, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise index.failed("names a file outside of its folder: export again")
    return path


def _transcripts(sources: Iterable[base.Source], blob: Blob) -> Iterator[Transcript]:
    """The sessions, each behind the one that it was forked from."""
    sessions: dict[str, list[Entry]] = {}
    users = set()
    for source in sources:
        for line in source.lines():
            value = base.mapping(line.value)
            if not value.keys() >= _NAMES:
                raise source.failed("is no envelope", line=line.number)
            users.add(str(value.get("user_id")))
            entry = Entry(source.at(f"line {line.number}"), value)
            sessions.setdefault(str(value["session_id"]), []).append(entry)
        if len(users) > 1:
            raise source.failed("holds several users: export one, with --user")
    found = [_Session(name, blob).read(some) for name, some in sessions.items()]
    done: set[str] = set()
    while ready := [one for one in found if _after(one, sessions) <= done]:
        yield from ready
        done |= {one.session_id for one in ready}
        found = [one for one in found if one not in ready]
    yield from found


def _after(one: Transcript, sessions: Mapping[str, Any]) -> set[str]:
    return {name for name, _ in filter(None, [one.forked_from]) if name in sessions}


class _Session:
    """One session as it is read; ``whole``: nothing of its main stream is left out."""

    def __init__(self, name: str, blob: Blob) -> None:
        self._name, self._blob, self._whole = name, blob, True
        self._skipped: list[Skipped] = []
        self._origin: tuple[str, int] | None = None
        self._state = SessionState(StreamId("importer", "transcript"))

    def read(self, entries: Sequence[Entry]) -> Transcript:
        """Its transcript; with its summaries and requests if it is whole."""
        if self._name in RESERVED or self._name.startswith(KEPT):
            return self._made(())
        main: list[tuple[int, Draft]] = []
        streams: dict[str, list[Draft]] = {}
        for entry in sorted(entries, key=lambda one: _seq(one.value)):
            draft, name = self._draft(entry), entry.value["stream"]
            if draft is None:
                continue
            if name != MAIN:
                streams.setdefault(name, []).append(draft)
            elif isinstance(draft.event, Fork):
                self._origin = draft.event.session_id, draft.event.at_seq
            else:
                main.append((_seq(entry.value), draft))
        seqs, first = [seq for seq, _ in main], 2 if self._origin else 1
        derived = tuple((name, tuple(some)) for name, some in sorted(streams.items()))
        made = self._made([draft for _, draft in main], derived)
        whole = self._whole and seqs == [*range(first, first + len(seqs))]
        return made if whole else made.without_records(seqs)

    def _made(self, drafts: Iterable[Draft], derived: Derived = ()) -> Transcript:
        return Transcript(
            base.session_name(self._name),
            NAME,
            tuple(drafts),
            tuple(self._skipped),
            forked_from=self._origin,
            derived=derived,
        )

    def _draft(self, entry: Entry) -> Draft | None:
        value, kind = entry.value, entry.value["type"]
        if kind == "redaction_applied":
            self._leave(entry, "says what was redacted later: it is redacted here")
            return None
        try:
            meta = Meta.of(value.get("meta"))
            payload = restored(base.mapping(value["payload"]), self._read)
            event: Any = upcast(kind, int(value.get("schema_version", 1)), payload)
            event = self._accepted(str(value["stream"]), event, meta)
        except (InvalidEvent, SessionClosed, TypeError, ValueError, RecursionError):
            self._leave(entry, "not valid as an event of its session")
            return None
        source = {"format": NAME, "seq": _seq(value), "of": meta.source}
        meta = meta.model_copy(update={"source": source})
        who = (base.text(value, "request_id"), base.text(value, "agent"))
        return Draft(event, base.moment(value, "ts"), *who, meta)

    def _accepted(self, stream: str, event: Event, meta: Meta) -> Event:
        """The event as its stream takes it; a fork's calls may be of the one before."""
        if stream != MAIN:
            if not (_FINGERPRINT.fullmatch(stream) and event.type in DERIVED_TYPES):
                raise InvalidEvent("no event of a derived stream")
            return event
        if isinstance(event, Fork):
            return event
        if self._origin and isinstance(event, ToolResult):
            return event
        event, self._state = base.accepted(self._state, event, meta)
        return event

    def _leave(self, entry: Entry, why: str) -> None:
        self._whole = False
        self._skipped.append(Skipped(entry.where, why))

    def _read(self, sha256: str) -> bytes | None:
        found = self._blob(sha256)
        self._whole &= found is not None
        return found


def _seq(value: Mapping[str, Any]) -> int:
    seq = value.get("seq")
    return seq if isinstance(seq, int) else 0
