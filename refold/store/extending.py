"""Bringing a transcript into a session: add what is new, refuse what was rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import orjson

from refold.domain.envelope import Envelope
from refold.domain.errors import (
    EventTooLarge,
    ImportFailed,
    InvalidEvent,
    SessionClosed,
    StaleSession,
)
from refold.domain.events import ToolCall, ToolResult
from refold.domain.record import Draft
from refold.domain.session import SessionState, decide
from refold.redaction.chokepoint import RedactedEvent
from refold.store.sessions import Session
from refold.store.writing import Order, same_event, superseded

_BATCH: Final = 200
_TRIES: Final = 8
Progress = Callable[[int], None]


class Extended(NamedTuple):
    """What an import did: events written, those that were there, findings by type."""

    events: int
    duplicates: int
    redactions: Counter[str]


class _Prepared(NamedTuple):
    draft: Draft
    redacted: RedactedEvent


def extend(
    session: Session,
    drafts: Sequence[Draft],
    *,
    where: str,
    progress: Progress | None = None,
) -> Extended:
    """Append what ``drafts`` hold beyond the events this session was given of them.

    The drafts are a whole transcript, from its beginning; ``meta.source`` marks each
    as imported.  Everything is judged before anything is written; then batches are
    written one after the other, so that an import that is cut off goes on where it
    stopped.  ``progress`` is told how many drafts are done.

    Raises ImportFailed, naming ``where``, if the transcript was rewritten since, or
    holds an event that the session does not accept.
    """
    for _ in range(_TRIES):
        head = session.writer.log.head(session.stream)
        new = _new(session, head.state, drafts, where)
        try:
            return _append(session, head.seq, new, len(drafts) - len(new), progress)
        except StaleSession:
            continue
    raise ImportFailed(where, "others write to this session all the time: try again")


def _imported(session: Session, upto: int) -> Iterator[Envelope]:
    for envelope in session.pages(upto=upto):
        if envelope.meta.source is not None:
            yield envelope


def _new(
    session: Session, state: SessionState, drafts: Sequence[Draft], where: str
) -> list[_Prepared]:
    known = 0
    for draft, envelope in zip(
        drafts, _imported(session, state.head_seq), strict=False
    ):
        known += 1
        if not _same(session, draft, envelope):
            raise ImportFailed(
                where,
                f"the transcript was rewritten: seq {envelope.seq} of session "
                f"{session.session_id!r} holds something else; import it into another "
                "session",
                seq=envelope.seq,
            )
    return _prepare(session, state, drafts[known:], where)


def _same(session: Session, draft: Draft, envelope: Envelope) -> bool:
    """Whether the draft is what was recorded, also if the rules changed since."""
    if draft.event.type != envelope.type:
        return False
    incoming = _fitting(session, draft).redacted.event
    if same_event(envelope.payload, incoming):
        return True
    again = _redact(session, replace(draft, event=envelope.payload))
    return same_event(again.event, incoming) or superseded(envelope, incoming)


def _prepare(
    session: Session, state: SessionState, drafts: Sequence[Draft], where: str
) -> list[_Prepared]:
    try:
        events = decide(state, [draft.event for draft in drafts])
    except (InvalidEvent, SessionClosed) as error:
        raise ImportFailed(where, str(error)) from None
    decided = [
        replace(draft, event=event) for draft, event in zip(drafts, events, strict=True)
    ]
    try:
        return [_fitting(session, draft) for draft in decided]
    except (InvalidEvent, EventTooLarge) as error:
        raise ImportFailed(where, str(error)) from None


def _fitting(session: Session, draft: Draft) -> _Prepared:
    """Redact; what is too large in many small pieces is kept as one text and a blob."""
    try:
        return _Prepared(draft, _redact(session, draft))
    except EventTooLarge:
        whole = _as_text(draft)
        if whole is None:
            raise
        return _Prepared(whole, _redact(session, whole))


def _as_text(draft: Draft) -> Draft | None:
    match draft.event:
        case ToolResult(content=list() | dict() as content):
            update = {"content": _text(content)}
        case ToolCall(arguments=dict() as arguments):
            update = {"arguments": _text(arguments)}
        case _:
            return None
    changed = draft.event.model_copy(update=update)
    return replace(draft, event=changed, meta=draft.meta.warned("kept_as_text"))


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _redact(session: Session, draft: Draft) -> RedactedEvent:
    writer = session.writer
    user_id = session.stream.user_id
    return writer.redacted(draft, user_id=user_id, now=writer.clock())


def _append(
    session: Session,
    expected: int,
    new: Sequence[_Prepared],
    duplicates: int,
    progress: Progress | None,
) -> Extended:
    found: Counter[str] = Counter()
    if progress:
        progress(duplicates)
    for start in range(0, len(new), _BATCH):
        batch = new[start : start + _BATCH]
        order = Order(
            session.stream,
            tuple(item.draft for item in batch),
            None,
            expected,
            tuple(item.redacted for item in batch),
        )
        expected = session.writer.append(order).last_seq
        for item in batch:
            found.update(item.redacted.content["redaction"].get("types", {}))  # type: ignore[union-attr, arg-type]  # counts
        if progress:
            progress(duplicates + start + len(batch))
    return Extended(len(new), duplicates, found)
