"""Extracts: what memory keeps of a session that retention erases."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple

import orjson

from refold.domain import errors, events
from refold.domain.canonical import canonical
from refold.domain.envelope import Draft
from refold.domain.erasure import OF_TOOLS, OF_USER
from refold.domain.ids import KEPT, MAIN, StreamId
from refold.domain.ports import EventLog, SessionInfo
from refold.projections.memory import verdicts
from refold.projections.memory.sessions import EXTRACTOR_VERSION
from refold.store.appends import Order, Writer
from refold.store.history import with_whole_texts
from refold.store.memory.consent import wishes
from refold.store.memory.sessions import EVERYTHING, judged_in, shown_in

# The kinds of items that an extract of each sort holds.
_KINDS: Final = {"tools": OF_TOOLS, "user": OF_USER}
_EXTRACTORS: Final = {"tools": EXTRACTOR_VERSION, "user": verdicts.EXTRACTOR_VERSION}
# The key of a ``state`` event under which the extract is recorded.
_EXTRACT: Final = "extract"


class Extract(NamedTuple):
    """Names, counts, and seqs of an erased session.

    sort:    ``tools``: the content is a dumped ``SessionFacts``; ``user``: a dumped
             ``Judged``.
    until:   when each kind of item expires, in microseconds since 1970.
    gone:    the kinds that have expired.
    used_at: when the session was last used, in microseconds since 1970.
    """

    session_id: str
    sort: str
    content: dict[str, Any]
    until: dict[str, int]
    gone: tuple[str, ...] = ()
    used_at: int = 0

    def lasts(self, lasting: Mapping[str, timedelta]) -> int:
        """When all of it has expired, in microseconds since 1970.

        The earlier time counts: that of the policy when it was kept, or that of
        ``lasting``.
        """
        ends = _ends_of(self.until, lasting, self.used_at)
        return max(
            (min(self.until[kind], end) for kind, end in ends.items()), default=0
        )


def _ends_of(
    kinds: Iterable[str], lasting: Mapping[str, timedelta], used_at: int
) -> dict[str, int]:
    """When each of these kinds expires, if ``lasting`` has it."""
    ends: dict[str, int] = {}
    for kind in kinds:
        if kind in lasting:
            ends[kind] = used_at + lasting[kind] // timedelta(microseconds=1)
    return ends


def extract_names(log: EventLog, user_id: str, session_id: str) -> dict[str, str]:
    """The names of the sessions for extracts of this session, by their sort.

    They need not exist.
    """
    key = log.pseudonym_key(user_id, now=0)
    name = hmac.new(key, session_id.encode(), "sha256").hexdigest()[:32]
    return {sort: f"{KEPT}{sort}.{name}" for sort in _KINDS}


def keep_extracts(
    writer: Writer, info: SessionInfo, lasting: Mapping[str, timedelta], used_at: int
) -> None:
    """Record extracts of a session that will be erased, in sessions of their own.

    An extract about the user needs their consent; nothing is recorded of a user who
    opted out.

    lasting: how long items of each kind last.
    used_at: when the session was last used, in microseconds since 1970.
    """
    log = writer.log
    consent = wishes(log, info.user_id).consent
    if consent.memory_opt_out:
        return
    contents = {"tools": shown_in(log, info, EVERYTHING).dump()}
    if consent.declarative_memory:
        contents["user"] = judged_in(log, info).dump()
    names = extract_names(log, info.user_id, info.session_id)
    for sort, content in contents.items():
        now = writer.time.now()
        ends = _ends_of(_KINDS[sort], lasting, used_at)
        if max(ends.values(), default=0) <= now:
            continue
        body: events.JsonObject = {
            "session_id": info.session_id,
            "extractor": _EXTRACTORS[sort],
            "of": sort,
            "until": {**ends},
            "used_at": used_at,
            "told": orjson.loads(canonical(content)),  # without tuples
        }
        draft = Draft(events.StateUpdate(set={_EXTRACT: body}))
        clean = writer.redacted(draft, user_id=info.user_id, now=now)
        # If redaction changes it, it holds something that must not be kept.
        if clean.event == draft.event:
            stream = StreamId(info.user_id, names[sort], MAIN)
            writer.append(Order(stream, (draft,)))


def extracts(log: EventLog, user_id: str, sort: str, now: int) -> Iterator[Extract]:
    """Yield the extracts of one sort whose sessions do not exist any longer."""
    infos = [info for info in log.sessions(user_id) if info.status != "erased"]
    existing = {info.session_id for info in infos}
    for info in infos:
        if not info.session_id.startswith(f"{KEPT}{sort}"):
            continue
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            extract = _extract(log, StreamId(user_id, info.session_id, MAIN), now)
            if extract is not None and extract.session_id not in existing:
                yield extract


def _extract(log: EventLog, stream: StreamId, now: int) -> Extract | None:
    """The extract in a session; None if another version of the extractor made it."""
    newest = log.read(stream, types=("state",), limit=1, newest=True)
    if not newest:
        return None
    event = with_whole_texts(log, newest[0], events.StateUpdate)
    body: Any = event.set.get(_EXTRACT)
    if not isinstance(body, dict) or _EXTRACTORS.get(body["of"]) != body["extractor"]:
        return None
    sort = body["of"]
    until = body["until"]
    return Extract(
        session_id=body["session_id"],
        sort=sort,
        content=body["told"],
        until=until,
        gone=tuple(kind for kind in _KINDS[sort] if until.get(kind, 0) <= now),
        used_at=body.get("used_at", 0),
    )


def expired_extracts(
    log: EventLog, user_id: str, lasting: Mapping[str, timedelta], now: int
) -> list[str]:
    """The names of sessions with expired extracts, or ones without consent."""
    consent = wishes(log, user_id).consent
    expired: list[str] = []
    for info in log.sessions(user_id):
        name = info.session_id
        if not name.startswith(KEPT) or info.status == "erased":
            continue
        extract = _extract(log, StreamId(user_id, name, MAIN), now)
        allowed = not consent.memory_opt_out and (
            f"{KEPT}user" not in name or consent.declarative_memory
        )
        if not allowed or extract is None or extract.lasts(lasting) <= now:
            expired.append(name)
    return expired
