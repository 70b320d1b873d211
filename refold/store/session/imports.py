"""Imports: they append the entries of a transcript that a session does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from refold.domain import errors, ports
from refold.domain.envelope import Draft, Envelope, Meta, from_microseconds
from refold.domain.events import AgentResponse, Event, Thinking, ToolCall, ToolResult
from refold.domain.session import SessionState, labelling, labels_in
from refold.redaction.chokepoint import RedactedEvent
from refold.redaction.learned import Learned
from refold.redaction.plan import Tagger
from refold.store import appends, contexts, vault
from refold.store.history import History, read_pages
from refold.store.marks import with_seqs
from refold.store.proofs.rerun import with_requests
from refold.store.session.core import SessionCore
from refold.store.session.forking import continue_exported, fork
from refold.store.session.proxied import ProxiedEvents

# An import begins again if another writer appended to the session, at most this often.
_TRIES: Final = 8
_LONGEST_TITLE: Final = 200  # characters
_MOST_OF_TITLE: Final = 1_000  # characters of a title of a client that are read
_BATCH: Final = 200  # drafts in one append
# Called with the number of drafts that are written or present.
Progress = Callable[[int], object]
# A draft, and its redacted event.
_Prepared = tuple[Draft, RedactedEvent]


class Extended(NamedTuple):
    """The result of an import.

    events:     the number of written events.
    duplicates: the number of events that the session had already.
    redactions: the number of redacted values, by type.
    skipped:    the entries that the session refused, or that were left out.
    """

    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def append_transcript(
    session: SessionCore,
    transcript: ports.Transcript,
    *,
    where: str,
    progress: Progress | None = None,
    names: Mapping[str, str] = ports.NO_LABELS,
) -> Extended:
    """Append a transcript as ``extend`` does, and the records of a Refold export.

    A session that was a fork becomes a fork again.  The records of an export, which are
    summaries and requests, are appended only if redaction changes no event: otherwise
    their digests would be wrong.

    A session of a client that began with an export of this store becomes a fork of the
    exported session, with the entries that the client added.

    names: maps the ids of sessions in the file to their ids in this store.

    Raises ImportFailed.
    """
    transcript = _continued(session, transcript)
    if transcript.forked_from and session.writer.log.head(session.stream).seq == 0:
        _fork_again(session, transcript.forked_from, where, names)
    left_out_records: tuple[ports.Skipped, ...] = ()
    # If redaction finds more now than in the exporting store, the digests are wrong.
    if transcript.has_records and _redaction_finds(session, transcript.drafts):
        skipped_before = len(transcript.skipped)
        transcript = transcript.without_records()
        left_out_records = transcript.skipped[skipped_before:]
    is_of_session = transcript.session_id in ("", session.session_id)
    extended = extend(
        session,
        _with_folder(transcript),
        where=where,
        progress=progress,
        merges=is_of_session,
    )
    for name, drafts in transcript.derived:
        stream = session.stream._replace(stream=name)
        present = session.writer.log.head(stream).seq
        missing = drafts[present:]
        if not missing:
            continue
        order = appends.Order(stream, missing, expected_seq=present)
        try:
            session.writer.append(order)
        except (errors.InvalidEvent, errors.StaleSession) as error:
            raise errors.ImportFailed(where, str(error)) from None
    times = [draft.ts for draft in transcript.drafts if draft.ts is not None]
    is_titled = set_client_title(
        session,
        transcript.title,
        format=transcript.format,
        ts=times[-1] if times else None,
    )
    return extended._replace(
        events=extended.events + (1 if is_titled else 0),
        skipped=(*left_out_records, *extended.skipped),
    )


def _continued(session: SessionCore, transcript: ports.Transcript) -> ports.Transcript:
    """Return the transcript without the entries that this store exported."""
    exported = transcript.exported
    if exported is None or not continue_exported(session, exported):
        return transcript
    drafts = [draft for draft in transcript.drafts if not exported.wrote(draft)]
    return replace(transcript, drafts=tuple(drafts))


def set_client_title(
    session: SessionCore,
    title: str,
    *,
    format: str,  # noqa: A002  # as in ``ports.Transcript``
    ts: datetime | None,
) -> bool:
    """Label the session with the client's title; returns whether an event was written.

    A title that a person set stays, and so does one of a closed session.

    format: of the transcript with the title.
    ts:     the time of the newest entry; None means now.
    """
    if not title:
        return False
    meta = Meta(source={"title_of": format})
    state = session.writer.log.head(session.stream).state
    learned = session.writer.learned(state)

    def labelled(title: str) -> tuple[Draft, RedactedEvent]:
        draft = Draft(labelling({"title": title}), ts=ts, meta=meta)
        # The numbers of the session: a title with a value in it is imported once, too.
        tag = session.writer.numbering(session.stream, state.numbers)
        return draft, _redact(session, draft, tag, learned)

    def redacted_title(title: str) -> str:
        return labels_in(labelled(title)[1].event).get("title") or ""

    title = _shortened(title, redacted_title)
    if not title:
        return False
    draft, redacted = labelled(title)
    states = session.writer.log.read(session.stream, types=("state",))
    for envelope in reversed(states):
        if "title" not in labels_in(envelope.payload):
            continue
        is_of_client = "title_of" in (envelope.meta.source or {})
        if not is_of_client or labels_in(envelope.payload) == labels_in(redacted.event):
            return False
        break
    with suppress(errors.SessionClosed):
        session.writer.append(appends.Order(session.stream, (draft,)))
        session.writer.log.label(session.stream, labels_in(redacted.event))
        return True
    return False


def _with_folder(transcript: ports.Transcript) -> tuple[Draft, ...]:
    """Return the drafts; the first one names the client's folder in its source.

    The folder is no label ``project``: sessions share memory by that label, so a person
    sets it.
    """
    if not transcript.folder or not transcript.drafts:
        return transcript.drafts
    first, *others = transcript.drafts
    source = {**(first.meta.source or {}), "folder": transcript.folder}
    meta = first.meta.model_copy(update={"source": source})
    return (replace(first, meta=meta), *others)


def _shortened(title: str, redacted: Callable[[str], str]) -> str:
    """Return a title in one line of at most 200 characters.

    It never ends within a value that redaction replaces: redaction may not recognize
    the first half of an address.
    """
    line = " ".join(title.split())[:_MOST_OF_TITLE]
    if len(line) <= _LONGEST_TITLE:
        return line
    places = range(_LONGEST_TITLE - 1, 0, -1)
    ends = [end for end in places if line[end] == " " or not line[end].isascii()]
    whole = redacted(line)
    for end in ends or places[::10]:
        beginning = line[:end].rstrip()
        if whole.startswith(redacted(beginning)):
            return beginning + "…"
    return ""


def _redaction_finds(session: SessionCore, drafts: Sequence[Draft]) -> bool:
    """Whether redaction changes one of the drafts."""
    tag = session.writer.numbering(session.stream, {})
    no_secrets = session.writer.learned(SessionState(session.stream))
    for draft in drafts:
        _, redacted = _redacted_or_as_text(session, draft, tag, no_secrets)
        if redacted.counts:
            return True
    return False


def _fork_again(
    session: SessionCore, origin: tuple[str, int], where: str, names: Mapping[str, str]
) -> None:
    """Fork the session from the event that had the exported seq."""
    name, exported_at = origin
    stream = session.stream._replace(session_id=names.get(name, name))
    seqs: list[int] = []
    for envelope in read_pages(session.writer.log, stream):
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
    progress: Progress | None = None,
    merges: bool = False,
) -> Extended:
    """Append the drafts that the session does not have.

    All drafts are checked before any is written.  They are written in batches, so an
    interrupted import continues where it stopped.

    drafts:   a complete transcript, from its beginning.  ``meta.source`` marks each
              draft as imported.  A draft with a key belongs to an entry, which is
              looked up by that key, however it was appended.  Drafts without keys are
              compared in order with the events that were imported before.
    where:    the name of the transcript in errors.
    progress: called with the number of drafts that are written or present.
    merges:   whether the transcript is one of this session, even if the session has
              none of its entries.

    Raises ImportFailed if the transcript was rewritten since, or contains an event that
    the session does not accept.
    """
    for _ in range(_TRIES):
        head = session.writer.log.head(session.stream)
        tag = session.writer.numbering(session.stream, head.state.numbers)
        missing = _missing(session, head.state, drafts, where, tag, merges=merges)
        numbers = tag.known if isinstance(tag, vault.Numbering) else None
        with suppress(errors.StaleSession):
            present = len(drafts) - len(missing.prepared) - len(missing.refused)
            order = appends.Order(session.stream, (), None, head.seq, numbers=numbers)
            extended = _append(session, order, missing.prepared, present, progress)
            return extended._replace(skipped=missing.refused)
    reason = "other writers keep changing this session: try again"
    raise errors.ImportFailed(where, reason)


class _Missing(NamedTuple):
    """The drafts that a session does not have.

    prepared: the drafts that it accepts, redacted.
    refused:  the entries that come too late, such as the result of a call that has one.
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
    """Return the drafts that the session does not have in this state.

    Raises ImportFailed.
    """
    comparison = _Comparison(session, tag, session.writer.learned(state))
    new = _without_present(session, state, drafts, where, comparison, merges=merges)
    new = [comparison.with_stored_id(draft) for draft in new]
    new = _without_proxied(session, state, new)
    refused: tuple[ports.Skipped, ...] = ()
    try:
        if len(new) < len(drafts):
            new, refused = _accepted(session, state, new)
        seqs_of_keys: dict[str, tuple[int, int]] = {}
        for seq, draft in enumerate(new, start=state.head_seq + 1):
            if draft.key:
                seqs_of_keys[draft.key] = (seq, seq)
        new = with_seqs(session.writer.log, session.stream, new, seqs_of_keys)
        incoming = [draft.event for draft in new]
        events, _ = session.writer.decided(state, incoming, user_id=session.user_id)
        redacted_drafts: list[_Prepared] = []
        learned = session.writer.learned(state)
        for draft, event in zip(new, events, strict=True):
            if draft.event is not event:
                draft = replace(draft, event=event)
            draft, redacted_event = _redacted_or_as_text(session, draft, tag, learned)
            seq = state.head_seq + len(redacted_drafts) + 1
            learned.learn(redacted_event.secrets, seq)
            redacted_drafts.append((draft, redacted_event))
    except (errors.InvalidEvent, errors.SessionClosed, errors.EventTooLarge) as error:
        raise errors.ImportFailed(where, str(error)) from None
    log = session.writer.log
    now = from_microseconds(session.writer.clock())
    viewer = contexts.Viewer(log, History.of(log, state))
    redacted_events = [event for _, event in redacted_drafts]
    with_digests = with_requests(viewer, state, redacted_events, now)
    prepared = [
        (draft, event)
        for (draft, _), event in zip(redacted_drafts, with_digests, strict=True)
    ]
    return _Missing(prepared, refused)


def _without_present(
    session: SessionCore,
    state: SessionState,
    drafts: Sequence[Draft],
    where: str,
    comparison: _Comparison,
    *,
    merges: bool,
) -> list[Draft]:
    """Return the drafts that the session does not have.

    A draft is recognized by its key, else by its place in the file, else by its order.

    Raises ImportFailed if the session has an entry with another content.
    """
    imported: dict[int, Envelope] = {}  # by seq
    for envelope in read_pages(session.writer.log, session.stream, upto=state.head_seq):
        if "format" in (envelope.meta.source or {}):
            imported[envelope.seq] = envelope
    keys = [draft.key for draft in drafts if draft.key]
    # The seqs of the entries that the session has, by their keys.
    present = session.writer.log.known(session.stream, keys) if keys else {}
    if not present and not merges:
        # This is another transcript, or one that an earlier version imported, without
        # keys.
        return _after_equal(session, drafts, [*imported.values()], where, comparison)
    missing: list[Draft] = []
    is_present = False  # whether the session has the entry of the draft
    for draft in drafts:
        if draft.key is None:
            is_present = False
        elif not draft.continues:
            is_present = draft.key in present
        # Of an entry that the proxy recorded in part, the session has other drafts.
        if not is_present and draft.key not in present:
            missing.append(draft)
            continue
        if draft.mark is not None:
            continue  # its event has seqs that depend on when it was appended
        seqs = present.get(draft.key or "")
        stored = imported.get(seqs.first_seq) if seqs else None
        if stored is not None and not comparison.is_same(draft, stored):
            raise _rewritten(session, stored, where)
    for first, last in present.values():
        for seq in range(first, last + 1):
            imported.pop(seq, None)
    if not present:
        return _after_equal(session, missing, [*imported.values()], where, comparison)
    missing = _without_late_reasoning(missing, drafts, present)
    # Events of earlier versions have no keys, and are recognized by their places.
    by_place = {_place_of(envelope.meta): envelope for envelope in imported.values()}
    not_by_place: list[Draft] = []
    for draft in missing:
        stored = by_place.get(_place_of(draft.meta))
        if stored is None or not comparison.is_same(draft, stored):
            not_by_place.append(draft)
    return not_by_place


def _without_proxied(
    session: SessionCore, state: SessionState, drafts: list[Draft]
) -> list[Draft]:
    """Return the drafts that a proxy has not recorded in this session."""
    proxied = ProxiedEvents(session)
    if not drafts or not proxied.read(state):
        return drafts
    recorded = proxied.recorded(drafts)
    return [
        draft
        for draft, is_recorded in zip(drafts, recorded, strict=True)
        if not is_recorded
    ]


def _place_of(meta: Meta) -> tuple[object, object]:
    """Return the id of an imported entry, and its place in the file."""
    source = meta.source or {}
    return source.get("id"), source.get("place")


def _after_equal(
    session: SessionCore,
    drafts: Sequence[Draft],
    imported: Sequence[Envelope],
    where: str,
    comparison: _Comparison,
) -> list[Draft]:
    """Return the drafts after the imported ones.

    Raises ImportFailed if a draft differs from the imported event in its place.
    """
    for draft, envelope in zip(drafts, imported, strict=False):
        if not comparison.is_same(draft, envelope):
            raise _rewritten(session, envelope, where)
    return [*drafts[len(imported) :]]


def _rewritten(
    session: SessionCore, envelope: Envelope, where: str
) -> errors.ImportFailed:
    """Return the error for an entry that differs from its imported event."""
    reason = (
        f"the transcript was rewritten: seq {envelope.seq} of session "
        f"{session.session_id!r} holds something else; import it into another session"
    )
    return errors.ImportFailed(where, reason, seq=envelope.seq)


def _accepted(
    session: SessionCore, state: SessionState, drafts: Sequence[Draft]
) -> tuple[list[Draft], tuple[ports.Skipped, ...]]:
    """Return the drafts that the session accepts, and the others as skipped entries."""
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


class _Comparison:
    """Compares the drafts of a transcript with the events that the session has."""

    def __init__(self, session: SessionCore, tag: Tagger, learned: Learned) -> None:
        self._session = session
        self._tag = tag
        self._learned = learned
        # The ids of calls in the session, by different ones in the transcript.
        self._stored_ids: dict[str, str] = {}

    def is_same(self, draft: Draft, envelope: Envelope) -> bool:
        """Whether a draft is a recorded event.  The rules may have changed since."""
        event = draft.event
        stored = envelope.payload
        if event.type != envelope.type:
            return False
        # A client may add the usage of an answer to its transcript after an import.
        if isinstance(event, AgentResponse) and isinstance(stored, AgentResponse):
            if stored.usage is None:
                event = event.model_copy(update={"usage": None})
            draft = replace(draft, event=_with_recorded_thinking(event, stored))
        if _has_other_id(draft, envelope):
            draft = replace(draft, event=_with_call_of(stored, event))
        if not self._is_equal(draft, envelope):
            return False
        if isinstance(event, ToolCall) and isinstance(stored, ToolCall):
            self._stored_ids[event.call_id] = stored.call_id
        return True

    def _is_equal(self, draft: Draft, envelope: Envelope) -> bool:
        """Whether a draft, once redacted, equals a recorded event."""
        stored = envelope.payload
        # Secrets that the session showed after this event were not redacted in it.
        learned = self._learned.before(envelope.seq)
        _, redacted = _redacted_or_as_text(self._session, draft, self._tag, learned)
        incoming = redacted.event
        if appends.same_event(stored, incoming):
            return True
        if appends.superseded(envelope, incoming):
            return True
        stored_under_current_rules = _redact(
            self._session, replace(draft, event=stored), self._tag, learned
        )
        return appends.same_event(stored_under_current_rules.event, incoming)

    def with_stored_id(self, draft: Draft) -> Draft:
        """Return a draft; a result gets the id that its call has in the session."""
        event = draft.event
        if not isinstance(event, ToolResult):
            return draft
        stored_id = self._stored_ids.get(event.call_id, event.call_id)
        if stored_id == event.call_id:
            return draft
        provider_id = draft.meta.call_id or event.call_id
        former_id = provider_id if provider_id != stored_id else None
        meta = draft.meta.model_copy(update={"call_id": former_id})
        renamed = event.model_copy(update={"call_id": stored_id})
        return replace(draft, event=renamed, meta=meta)


def _with_recorded_thinking(
    response: AgentResponse, stored: AgentResponse
) -> AgentResponse:
    """Return a response of a transcript with the thinking that an import records.

    Earlier versions recorded no encrypted form of reasoning, and only its summary if it
    had one.
    """
    if any(block.data or block.signature for block in stored.thinking):
        return response
    if not any(block.data for block in response.thinking):
        return response
    thinking: list[Thinking] = []
    for block in response.thinking[: len(stored.thinking)]:
        thinking.append(block.model_copy(update={"data": None}))
    return response.model_copy(update={"thinking": tuple(thinking)})


def _without_late_reasoning(
    missing: Sequence[Draft], drafts: Sequence[Draft], present: Container[str]
) -> list[Draft]:
    """Return the missing drafts without encrypted reasoning before a present entry.

    Earlier versions left out reasoning without a text.  Behind the end of the session,
    it would stand in the wrong place.

    drafts:  all of the transcript.
    present: the keys of the entries that the session has.
    """
    last = 0
    for index, draft in enumerate(drafts):
        if draft.key in present:
            last = index
    earlier = {id(draft) for draft in drafts[:last]}
    return [
        draft
        for draft in missing
        if id(draft) not in earlier or not _is_encrypted_reasoning(draft.event)
    ]


def _is_encrypted_reasoning(event: Event) -> bool:
    """Whether an event has nothing but reasoning that only the provider can read."""
    if not isinstance(event, AgentResponse) or event.text or not event.thinking:
        return False
    return all(block.data and not block.thinking for block in event.thinking)


def _has_other_id(draft: Draft, envelope: Envelope) -> bool:
    """Whether a call or result was recorded with another id for that of the provider.

    Earlier versions took a result for that of the oldest open call with its id.
    """
    event = draft.event
    stored = envelope.payload
    if not isinstance(event, ToolCall | ToolResult):
        return False
    if not isinstance(stored, ToolCall | ToolResult) or event.call_id == stored.call_id:
        return False
    provider_id = draft.meta.call_id or event.call_id
    return provider_id == (envelope.meta.call_id or stored.call_id)


def _with_call_of(stored: Event, event: Event) -> Event:
    """Return a call or result with the recorded id, and a result with its tool."""
    if isinstance(event, ToolCall) and isinstance(stored, ToolCall):
        return event.model_copy(update={"call_id": stored.call_id})
    if isinstance(event, ToolResult) and isinstance(stored, ToolResult):
        call = {"call_id": stored.call_id, "tool_name": stored.tool_name}
        return event.model_copy(update=call)
    return event


def _redacted_or_as_text(
    session: SessionCore, draft: Draft, tag: Tagger, learned: Learned
) -> _Prepared:
    """Redact a draft; an event with too many small parts becomes one text and a blob.

    Raises EventTooLarge for any other event over the limits.
    """
    try:
        return draft, _redact(session, draft, tag, learned)
    except errors.EventTooLarge:
        event = appends.as_text(draft.event)
        if event is None:
            raise
    as_text = replace(draft, event=event, meta=draft.meta.warned("kept_as_text"))
    return as_text, _redact(session, as_text, tag, learned)


def _redact(
    session: SessionCore, draft: Draft, tag: Tagger, learned: Learned
) -> RedactedEvent:
    """Redact a draft; texts that take too much work to redact become stubs."""
    writer = session.writer
    return writer.redacted(
        draft,
        user_id=session.user_id,
        now=writer.clock(),
        unscanned="stub",
        tag=tag,
        learned=learned,
    )


def _append(
    session: SessionCore,
    order: appends.Order,
    new: Sequence[_Prepared],
    present: int,
    progress: Progress | None,
) -> Extended:
    """Append drafts in batches, and label the session as they say.

    order:   the options of the appends.
    present: the number of drafts that the session has already.
    """
    findings = Counter[str]()
    done = present
    if progress is not None:
        progress(done)
    for batch in _batches(new):
        drafts, redacted = zip(*batch, strict=True)
        receipt = session.writer.append(
            order._replace(drafts=drafts, prepared=redacted)
        )
        order = order._replace(expected_seq=receipt.last_seq)
        for event in redacted:
            findings.update(event.counts)
        done += len(batch)
        if progress is not None:
            progress(done)
    labels: dict[str, str | None] = {}
    for draft, _ in new:
        labels |= labels_in(draft.event)
    if labels:
        session.writer.log.label(session.stream, labels)
    return Extended(len(new), present, findings)


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    """Yield the drafts in batches; all drafts of an entry are in the same batch."""
    batch: list[_Prepared] = []
    for draft, event in prepared:
        if len(batch) >= _BATCH and not draft.continues:
            yield batch
            batch = []
        batch.append((draft, event))
    if batch:
        yield batch
