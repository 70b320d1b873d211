"""The files that agents keep of a user: working memory, in the session ``_files``.

A file is a key of that state, so that it is redacted, versioned and erased like all
that is kept.  No context is made of it, and memory learns nothing from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from refold.domain.audit import Access
from refold.domain.envelope import Meta
from refold.domain.errors import (
    EventTooLarge,
    Expired,
    Frozen,
    IdempotencyConflict,
    InvalidEvent,
    RedactionFailed,
    StaleSession,
)
from refold.domain.events import StateUpdate
from refold.domain.ids import FILES_SESSION, MAIN, StreamId, bounded
from refold.domain.ports import EventLog
from refold.domain.record import Draft
from refold.projections.memory.files import NAME, Done, run
from refold.redaction.guard import restored
from refold.store.paging import read_on
from refold.store.users import consent_status
from refold.store.writing import Order, Writer

_KEY: Final = "memories:"
# A try is lost only to a writer that won, so that many of them come to an end.
_TRIES: Final = 64
_OPTED_OUT: Final = "Error: the user wants no memory: nothing is kept and nothing shown"
_EXPIRED: Final = "Error: the file is not whole any more, and cannot be changed"
_LOST: Final = "Error: others are changing these files: try again"


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The files of one user, below ``/memories``."""

    writer: Writer
    user_id: str

    @property
    def _stream(self) -> StreamId:
        return StreamId(self.user_id, FILES_SESSION, MAIN)

    def texts(self, at: int | None = None) -> dict[str, str]:
        """Each file's whole text by its path: now, or when ``at`` was the newest seq.

        Where the whole of a text has expired, it is what is left of it.

        Raises Erased, KeyUnavailable, CorruptEvent.
        """
        upto = self.writer.log.head(self._stream).seq
        return dict(self._files(upto if at is None else bounded("at", at)))

    def do(self, command: object, *, key: str | None = None, by: str = "") -> Done:
        """Do a command of the memory tool, and record what it changes.

        Agents that change the same file at once do so one after another, each on what
        the others left.  Of a user who opted out of memory only deleting is done.

        key: makes a retry safe: the same command gives the first result again.
        by:  the session in which it was asked for.

        Raises Erased, KeyUnavailable, CorruptEvent, StoreUnavailable.
        """
        for _ in range(_TRIES):
            head = self.writer.log.head(self._stream).seq
            if self._opted_out() and not _deletes(command):
                return Done(_OPTED_OUT, is_error=True)
            earlier = self.writer.log.receipt(self._stream, key) if key else None
            files = self._files(earlier.first_seq - 1 if earlier else head)
            done = run(files, command)
            if earlier or not done.changes:
                return done
            if done.set and files.expired:
                return Done(_EXPIRED, is_error=True)
            try:
                self._append(done, head, key, by)
            except (StaleSession, IdempotencyConflict):
                continue
            except (EventTooLarge, Frozen, InvalidEvent, RedactionFailed) as error:
                return Done(f"Error: not kept: {error}", is_error=True)
            return done
        return Done(_LOST, is_error=True)

    def _files(self, upto: int) -> _Files:
        files = _Files(self.writer.log, self._stream, upto)
        if self.writer.audit is not None:
            counts = {"keys": len(files)}
            access = Access("session_load", self.user_id, FILES_SESSION, counts=counts)
            self.writer.audit.note(access)
        return files

    def _opted_out(self) -> bool:
        return consent_status(self.writer.log, self.user_id).memory_opt_out

    def _append(self, done: Done, head: int, key: str | None, by: str) -> None:
        """Raises StaleSession if the session is not at ``head`` any more."""
        event = StateUpdate(
            set={_KEY + path: text for path, text in done.set.items()},
            unset=tuple(_KEY + path for path in done.unset),
        )
        meta = {"tool_name": NAME, **({"session_id": by} if by else {})}
        draft = Draft(event, meta=Meta.of(meta))
        now = self.writer.clock()
        clean = self.writer.redacted(draft, user_id=self.user_id, now=now)
        if _keys(clean.event) != _keys(event):
            raise InvalidEvent("the path holds what must not be kept: choose another")
        order = Order(self._stream, (draft,), key, head, (clean,))
        self.writer.append(order)


class _Files(Mapping[str, str]):
    """Files by path, each read whole when it is asked for.

    expired: the whole of one that was asked for is gone.
    """

    def __init__(self, log: EventLog, stream: StreamId, upto: int) -> None:
        self._log, self._stream, self.expired = log, stream, False
        self._kept: dict[str, str] = {}
        for update in _updates(log, stream, upto):
            for key in update.unset:
                self._kept.pop(key.removeprefix(_KEY), None)
            for key, text in update.set.items():
                if key.startswith(_KEY) and isinstance(text, str):
                    self._kept[key.removeprefix(_KEY)] = text

    def __getitem__(self, path: str) -> str:
        return str(restored({path: self._kept[path]}, self._blob)[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _blob(self, sha256: str) -> bytes | None:
        try:
            return self._log.blob(self._stream, sha256)
        except Expired:
            self.expired = True
            return None


def _updates(log: EventLog, stream: StreamId, upto: int) -> Iterator[StateUpdate]:
    if upto == 0:
        return
    for envelope in read_on(log, stream, upto=upto, types=("state",)):
        if isinstance(envelope.payload, StateUpdate):
            yield envelope.payload


def _keys(event: object) -> tuple[object, ...]:
    if not isinstance(event, StateUpdate):
        return ()
    return (*event.set, *event.unset)


def _deletes(command: object) -> bool:
    return isinstance(command, Mapping) and command.get("command") == "delete"
