"""Append a transcript to a session: only the entries that the session lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from refold.domain import errors, ports
from refold.domain.envelope import Draft, Envelope, Meta, from_microseconds
from refold.domain.events import AgentResponse
from refold.domain.session import SessionState, labels_in
from refold.redaction.chokepoint import RedactedEvent
from refold.redaction.plan import Tagger
from refold.store import appends, contexts, vault
from refold.store.history import History, read_on
from refold.store.marks import with_seqs
from refold.store.proofs.rerun import with_requests
from refold.store.session.core import SessionCore
from refold.store.session.forking import fork

_TRIES: Final = 8
_BATCH: Final = 200  # drafts that are written together
Progress = Callable[[int], object]
_Prepared = tuple[Draft, RedactedEvent]


class Extended(NamedTuple):
    """The result of an import: events written and present, findings by type."""

    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def take_in(
    session: SessionCore,
    transcript: ports.Transcript,
    *,
    where: str,
    progress: Progress = bool,
    names: Mapping[str, str] = ports.NO_LABELS,
) -> Extended:
    """Append a transcript as ``extend`` does, with the records of a Refold export.

    A fork is forked again; ``names`` maps the file's names of sessions to names here.
    Summaries and requests are kept if the session becomes what it was, byte for byte.

    Raises ImportFailed.
    """
    if transcript.forked_from and session.writer.log.head(session.stream).seq == 0:
        _fork_again(session, transcript.forked_from, where, names)
    left_out: tuple[ports.Skipped, ...] = ()
    tag = session.writer.numbering(session.stream, {})
    # Records do not fit if redaction finds more now than when they were written.
    if transcript.has_records and any(
        _fitting(session, draft, tag)[1].found for draft in transcript.drafts
    ):
        skipped_before = len(transcript.skipped)
        transcript = transcript.without_records()
        left_out = transcript.skipped[skipped_before:]
    ours = transcript.session_id in ("", session.session_id)
    done = extend(
        session, transcript.drafts, where=where, progress=progress, merges=ours
    )
    for name, drafts in transcript.derived:
        stream = session.stream._replace(stream=name)
        present = session.writer.log.head(stream).seq
        if new := drafts[present:]:
            try:
                session.writer.append(appends.Order(stream, new, expected_seq=present))
            except (errors.InvalidEvent, errors.StaleSession) as error:
                raise errors.ImportFailed(where, str(error)) from None
    return done._replace(skipped=(*left_out, *done.skipped))


def _fork_again(
    session: SessionCore, origin: tuple[str, int], where: str, names: Mapping[str, str]
) -> None:
    """Fork the session again from the event that stands for the exported seq."""
    name, exported_at = origin
    stream = session.stream._replace(session_id=names.get(name, name))
    seqs: list[int] = []
    for envelope in read_on(session.writer.log, stream):
        exported = (envelope.meta.source or {}).get("seq")
        if isinstance(exported, int) and exported <= exported_at:
            seqs.append(envelope.seq)
    if not seqs:
        why = f"goes on from session {name!r}: import that first, from the same export"
        raise errors.ImportFailed(where, why)
    fork(replace(session, stream=stream), max(seqs), session_id=session.session_id)


def extend(
    session: SessionCore,
    drafts: Sequence[Draft],
    *,
    where: str,
    progress: Progress = bool,
    merges: bool = False,
) -> Extended:
    """Append those of ``drafts`` that the session does not have.

    The drafts are a whole transcript, from its beginning; ``meta.source`` marks each
    as imported.  Drafts with keys belong to entries, which are there or not, whoever
    appended them.  Drafts without keys are compared with the imported events, in their
    order.

    Everything is checked before anything is written.  Batches are written one after
    the other, so that an interrupted import continues where it stopped.  ``progress``
    gets the number of drafts that are done.

    merges: the transcript is of this session, also if the session has none of it yet.

    Raises ImportFailed, naming ``where``, if the transcript was rewritten since, or
    holds an event that the session does not accept.
    """
    for _ in range(_TRIES):
        head = session.writer.log.head(session.stream)
        tag = session.writer.numbering(session.stream, head.state.numbers)
        missing = _missing(session, head.state, drafts, where, tag, merges=merges)
        numbers = tag.known if isinstance(tag, vault.Numbering) else None
        with suppress(errors.StaleSession):
            present = len(drafts) - len(missing.prepared) - len(missing.refused)
            order = appends.Order(session.stream, (), None, head.seq, numbers=numbers)
            done = _append(session, order, missing.prepared, present, progress)
            return done._replace(skipped=missing.refused)
    why = "other writers keep changing this session: try again"
    raise errors.ImportFailed(where, why)


class _Missing(NamedTuple):
    """The drafts that a session lacks, redacted, and the entries that it refuses.

    An entry that is appended late may no longer fit: a result whose call was closed.
    """

    prepared: list[_Prepared]
    refused: tuple[ports.Skipped, ...] = ()


def _missing(
    session: SessionCore,
    state: SessionState,
    drafts: Sequence[Draft],
    where: str,
    tag: Tagger,
    *,
    merges: bool,
) -> _Missing:
    new = _without_known(session, state, drafts, where, tag, merges=merges)
    refused: tuple[ports.Skipped, ...] = ()
    try:
        if len(new) < len(drafts):
            new, refused = _accepted(session, state, new)
        own = {
            draft.key: (seq, seq)
            for seq, draft in enumerate(new, start=state.head_seq + 1)
            if draft.key
        }
        new = with_seqs(session.writer.log, session.stream, new, own)
        incoming = [draft.event for draft in new]
        events, _ = session.writer.decided(state, incoming, user_id=session.user_id)
        fitting: list[_Prepared] = []
        for draft, event in zip(new, events, strict=True):
            if draft.event is not event:
                draft = replace(draft, event=event)
            fitting.append(_fitting(session, draft, tag))
    except (errors.InvalidEvent, errors.SessionClosed, errors.EventTooLarge) as error:
        raise errors.ImportFailed(where, str(error)) from None
    log = session.writer.log
    now = from_microseconds(session.writer.clock())
    viewer = contexts.Viewer(log, History.of(log, state))
    redacted = with_requests(viewer, state, [event for _, event in fitting], now)
    prepared = [
        (draft, event) for (draft, _), event in zip(fitting, redacted, strict=True)
    ]
    return _Missing(prepared, refused)


def _without_known(
    session: SessionCore,
    state: SessionState,
    drafts: Sequence[Draft],
    where: str,
    tag: Tagger,
    *,
    merges: bool,
) -> list[Draft]:
    """The drafts that the session has neither by their keys nor by their place."""
    imported = {
        envelope.seq: envelope
        for envelope in read_on(session.writer.log, session.stream, upto=state.head_seq)
        if "format" in (envelope.meta.source or {})
    }
    keys = [draft.key for draft in drafts if draft.key]
    known = session.writer.log.known(session.stream, keys) if keys else {}
    if not known and not merges:
        # Another transcript under this name, or one that an earlier version imported.
        return _behind_equal(session, drafts, [*imported.values()], where, tag)
    rest: list[Draft] = []
    present = False  # whether the session has the entry of the draft
    for draft in drafts:
        if draft.key is None:
            present = False
        elif not draft.continues:
            present = draft.key in known
        if not present:
            rest.append(draft)
            continue
        place = known.get(draft.key or "")
        envelope = imported.get(place.first_seq) if place else None
        if draft.mark is not None:
            continue  # its event has the seqs of that time
        if envelope is not None and not _same(session, draft, envelope, tag):
            raise _rewritten(session, envelope, where)
    for first, last in known.values():
        for seq in range(first, last + 1):
            imported.pop(seq, None)
    if not known:
        return _behind_equal(session, rest, [*imported.values()], where, tag)
    # Earlier versions gave entries no keys: there an entry is known by its place.
    places = {_place_of(envelope.meta): envelope for envelope in imported.values()}
    return [
        draft
        for draft in rest
        if (stored := places.get(_place_of(draft.meta))) is None
        or not _same(session, draft, stored, tag)
    ]


def _place_of(meta: Meta) -> tuple[object, object]:
    """The id of an imported entry, and its place in the file."""
    source = meta.source or {}
    return source.get("id"), source.get("place")


def _behind_equal(
    session: SessionCore,
    drafts: Sequence[Draft],
    imported: Sequence[Envelope],
    where: str,
    tag: Tagger,
) -> list[Draft]:
    """The drafts behind those that were imported, one for one."""
    for draft, envelope in zip(drafts, imported, strict=False):
        if not _same(session, draft, envelope, tag):
            raise _rewritten(session, envelope, where)
    return [*drafts[len(imported) :]]


def _rewritten(
    session: SessionCore, envelope: Envelope, where: str
) -> errors.ImportFailed:
    why = (
        f"the transcript was rewritten: seq {envelope.seq} of session "
        f"{session.session_id!r} holds something else; import it into another session"
    )
    return errors.ImportFailed(where, why, seq=envelope.seq)


def _accepted(
    session: SessionCore, state: SessionState, drafts: Sequence[Draft]
) -> tuple[list[Draft], tuple[ports.Skipped, ...]]:
    """The drafts that the session accepts as it stands, and the others as skipped."""
    accepted: list[Draft] = []
    refused: list[ports.Skipped] = []
    for draft in drafts:
        try:
            _, state = session.writer.decided(
                state, [draft.event], user_id=session.user_id
            )
        except errors.InvalidEvent as error:
            place = str((draft.meta.source or {}).get("place", ""))
            refused.append(ports.Skipped(place, f"comes too late: {error}"))
        else:
            accepted.append(draft)
    return accepted, tuple(refused)


def _same(session: SessionCore, draft: Draft, envelope: Envelope, tag: Tagger) -> bool:
    """Whether the draft is what was recorded, also if the rules changed since."""
    event, stored = draft.event, envelope.payload
    if event.type != envelope.type:
        return False
    # A client may write the tokens of an answer behind it, after an import.
    without_usage = isinstance(stored, AgentResponse) and stored.usage is None
    if isinstance(event, AgentResponse) and without_usage:
        draft = replace(draft, event=event.model_copy(update={"usage": None}))
    incoming = _fitting(session, draft, tag)[1].event
    if appends.same_event(envelope.payload, incoming):
        return True
    again = _redact(session, replace(draft, event=envelope.payload), tag)
    if appends.superseded(envelope, incoming):
        return True
    return appends.same_event(again.event, incoming)


def _fitting(session: SessionCore, draft: Draft, tag: Tagger) -> _Prepared:
    """Redact a draft; too many small parts are kept as one text and a blob."""
    try:
        return draft, _redact(session, draft, tag)
    except errors.EventTooLarge:
        if (event := appends.as_text(draft.event)) is None:
            raise
    whole = replace(draft, event=event, meta=draft.meta.warned("kept_as_text"))
    return whole, _redact(session, whole, tag)


def _redact(session: SessionCore, draft: Draft, tag: Tagger) -> RedactedEvent:
    writer, user_id = session.writer, session.user_id
    now = writer.clock()
    return writer.redacted(draft, user_id=user_id, now=now, unscanned="stub", tag=tag)


def _append(
    session: SessionCore,
    order: appends.Order,
    new: Sequence[_Prepared],
    present: int,
    progress: Progress,
) -> Extended:
    findings = Counter[str]()
    done = present
    progress(done)
    for batch in _batches(new):
        drafts, redacted = zip(*batch, strict=True)
        receipt = session.writer.append(
            order._replace(drafts=drafts, prepared=redacted)
        )
        order = order._replace(expected_seq=receipt.last_seq)
        for event in redacted:
            findings.update(event.found)
        done += len(batch)
        progress(done)
    labels: dict[str, str | None] = {}
    for draft, _ in new:
        labels |= labels_in(draft.event)
    if labels:
        session.writer.log.label(session.stream, labels)
    return Extended(len(new), present, findings)


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    """The drafts in batches; those of one entry are written together."""
    batch: list[_Prepared] = []
    for draft, event in prepared:
        if len(batch) >= _BATCH and not draft.continues:
            yield batch
            batch = []
        batch.append((draft, event))
    if batch:
        yield batch
