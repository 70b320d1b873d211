"""Extracts: the facts that memory keeps of a session that retention erases."""

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
from refold.store.memory.consent import read_decisions
from refold.store.memory.sessions import (
    EVERYTHING,
    facts_of_session,
    verdicts_of_session,
)

# The sorts of extracts: facts about tools, and facts about the user.  Each sort has its
# kinds of items, and the version of the extractor that finds them.
_KINDS: Final = {"tools": OF_TOOLS, "user": OF_USER}
_EXTRACTORS: Final = {"tools": EXTRACTOR_VERSION, "user": verdicts.EXTRACTOR_VERSION}
# The key of a ``state`` event under which the extract is recorded.
_EXTRACT: Final = "extract"


class Extract(NamedTuple):
    """Names, counts, and seqs of an erased session.

    sort:    ``tools`` or ``user``.
    content: for ``tools`` a dumped ``SessionFacts``, for ``user`` a dumped ``Judged``.
    until:   when each kind of item expires, in microseconds since 1970.
    gone:    the kinds of items that have expired.
    used_at: when the session was last used, in microseconds since 1970.
    """

    session_id: str
    sort: str
    content: dict[str, Any]
    until: dict[str, int]
    gone: tuple[str, ...] = ()
    used_at: int = 0

    def expires_at(self, lasting: Mapping[str, timedelta]) -> int:
        """Return when the last kind of item expires, in microseconds since 1970.

        A kind expires by the policy under which the extract was recorded, or by
        ``lasting``, whichever is earlier.

        lasting: how long items of each kind last after the last use of the session.
        """
        last_end = 0
        for kind, end in _ends_of(self.until, lasting, self.used_at).items():
            last_end = max(last_end, min(self.until[kind], end))
        return last_end


def _ends_of(
    kinds: Iterable[str], lasting: Mapping[str, timedelta], used_at: int
) -> dict[str, int]:
    """Return when each of these kinds expires.  Kinds without a time are left out."""
    ends: dict[str, int] = {}
    for kind in kinds:
        if kind in lasting:
            ends[kind] = used_at + lasting[kind] // timedelta(microseconds=1)
    return ends


def extract_names(log: EventLog, user_id: str, session_id: str) -> dict[str, str]:
    """Return the ids of the sessions that hold extracts of this session, by sort.

    These sessions need not exist.
    """
    key = log.pseudonym_key(user_id, now=0)
    name = hmac.new(key, session_id.encode(), "sha256").hexdigest()[:32]
    return {sort: f"{KEPT}{sort}.{name}" for sort in _KINDS}


def keep_extracts(
    writer: Writer, info: SessionInfo, lasting: Mapping[str, timedelta], used_at: int
) -> None:
    """Record the extracts of a session that will be erased, each in its own session.

    An extract about the user needs their consent.  Nothing is recorded if the user
    opted out.

    lasting: how long items of each kind last after the last use of the session.
    used_at: when the session was last used, in microseconds since 1970.
    """
    log = writer.log
    consent = read_decisions(log, info.user_id).consent
    if consent.memory_opt_out:
        return
    contents = {"tools": facts_of_session(log, info, EVERYTHING).dump()}
    if consent.declarative_memory:
        contents["user"] = verdicts_of_session(log, info).dump()
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
            # As it will be read from the log: with lists in place of tuples.
            "told": orjson.loads(canonical(content)),
        }
        draft = Draft(events.StateUpdate(set={_EXTRACT: body}))
        clean = writer.redacted(draft, user_id=info.user_id, now=now)
        # An extract that redaction changes contains a value that must not be kept.
        if clean.event == draft.event:
            stream = StreamId(info.user_id, names[sort], MAIN)
            writer.append(Order(stream, (draft,)))


def extracts(log: EventLog, user_id: str, sort: str, now: int) -> Iterator[Extract]:
    """Yield the extracts of one sort, of sessions that no longer exist."""
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
    """Return the extract in a session; None if another extractor version made it."""
    newest = log.read(stream, types=("state",), limit=1, newest=True)
    if not newest:
        return None
    event = with_whole_texts(log, newest[0], events.StateUpdate)
    body: Any = event.set.get(_EXTRACT)
    if not isinstance(body, dict):
        return None
    sort = body["of"]
    if _EXTRACTORS.get(sort) != body["extractor"]:
        return None
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
    """Return the ids of sessions whose extract expired or is no longer allowed.

    Extracts that this version cannot read count as expired.
    """
    consent = read_decisions(log, user_id).consent
    expired: list[str] = []
    for info in log.sessions(user_id):
        session_id = info.session_id
        if not session_id.startswith(KEPT) or info.status == "erased":
            continue
        extract = _extract(log, StreamId(user_id, session_id, MAIN), now)
        is_allowed = not consent.memory_opt_out
        if f"{KEPT}user" in session_id and not consent.declarative_memory:
            is_allowed = False
        if not is_allowed or extract is None or extract.expires_at(lasting) <= now:
            expired.append(session_id)
    return expired
