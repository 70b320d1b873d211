"""Lists of sessions with their overviews: sorted, filtered, and in pages.

An overview is a stored view of its session, encrypted with the session's key.  It is
deleted and erased with the session.  No append writes it: a list folds the events that
stored overviews lack, of the sessions with the newest writes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from refold.domain import errors, ids, ports
from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.model import repr_without_texts
from refold.projections.models import Usage, digest_of_prices
from refold.projections.overview import SHAPE, Overview, OverviewFold
from refold.projections.search.terms import folded
from refold.store.history import read_pages
from refold.store.memory.views import keep_view

# The names of the stored views: of an overview, and of a fold that continues it.
OVERVIEW: Final = f"overview{ports.VIEW_NAME_SEPARATOR}{SHAPE}"
_FOLD: Final = f"overview_fold{ports.VIEW_NAME_SEPARATOR}{SHAPE}"
# A shorter session is folded again as a whole, and needs no stored fold.
_FEWEST_FOLDED: Final = 256
# The most events that one list reads.  It shows other sessions as they were stored.
MOST_EVENTS: Final = 50_000
# The most sessions without a current overview that a page names.
MOST_UNREADABLE: Final = 100
# A session that accepts events is live for this time after its newest event.
LIVE: Final = 3_600_000_000  # microseconds

Sort: TypeAlias = Literal[
    "last", "started", "duration", "title", "project", "agent", "model", "turns",
    "calls", "failures", "tokens", "dollars", "redactions", "files", "session",
]  # fmt: skip
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
# Texts are sorted from A to Z by default, times and numbers from the greatest.
ASCENDING: Final = frozenset({"title", "project", "agent", "model", "session"})
State: TypeAlias = Literal["live", "ended"]


@repr_without_texts
class SessionOverview(NamedTuple):
    """A session in a list.

    is_current: whether the overview includes all events of the session.
    is_live:    whether the session accepts events, and got its newest one in the last
                hour.
    parent:     the session that delegated this one, or that it was forked from.
    newest_event_at: the time of the newest event, as the database orders a page by it;
                0 in a list of another order.
    is_readable: False if it is not current because a key is missing or an event is
                damaged.
    """

    info: ports.SessionInfo
    overview: Overview
    is_current: bool
    is_live: bool
    parent: str = ""
    newest_event_at: int = 0
    is_readable: bool = True

    @property
    def last_at(self) -> int:
        """The time of the newest event; without an overview, that of the last write."""
        if self.newest_event_at:
            return self.newest_event_at
        return self.overview.last_at or microseconds(self.info.updated_at)

    @property
    def tokens(self) -> int:
        """The tokens of all answers, as their providers counted them."""
        return _tokens_of(self.overview.usage)

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold sessions --json`` prints."""
        overview = self.overview
        return {
            **self.info.to_json(),
            "status": self.info.status,
            "title": overview.title,
            "title_from": overview.title_from,
            "project": overview.project,
            "agent": overview.agent,
            "model": overview.model,
            "started_at": _time(overview.started_at or None),
            "last_event_at": _time(overview.last_at or None),
            "duration_ms": overview.duration // 1000,
            "turns": overview.turns,
            "calls": overview.calls,
            "failures": overview.failures,
            "answers": overview.answers,
            "usage": dict(overview.usage._asdict()),
            "dollars": round(overview.dollars, 6),
            "unpriced": overview.unpriced,
            "undercounted": overview.undercounted,
            "redactions": overview.redactions,
            "files_changed": overview.files_changed,
            "outcome": overview.outcome or None,
            "live": self.is_live,
            "parent": self.parent or None,
            "forked": overview.is_fork,
            "up_to_date": self.is_current,
        }


def _tokens_of(usage: Usage) -> int:
    return usage.input + usage.written + usage.read + usage.output


def _time(at: int | None) -> str | None:
    if at is None:
        return None
    return from_microseconds(at).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class OverviewFilter:
    """The sessions that a list shows; an empty field restricts nothing.

    text:   words, each of which the title, the project, the agent, the model, or the
            name of the session contains.
    state:  ``live`` or ``ended``.
    failed: only sessions with a failure.
    since:  only sessions with an event at or after this time.
    until:  only sessions that began before this time.
    """

    text: str = ""
    project: str = ""
    agent: str = ""
    model: str = ""
    state: State | Literal[""] = ""
    failed: bool = False
    since: datetime | None = None
    until: datetime | None = None

    def matches(self, session: SessionOverview) -> bool:
        """Whether a list with this filter shows the session."""
        return _Conditions(self).accept(
            session.overview,
            last_at=session.last_at,
            session_id=session.info.session_id,
            is_live=session.is_live,
        )


EVERY_SESSION: Final = OverviewFilter()


# The fields of an overview in their order: an overview, or its stored form.
_Fields: TypeAlias = Sequence[Any]


def _index(field: str) -> int:
    return Overview._fields.index(field)


_TITLE: Final = _index("title")
_PROJECT: Final = _index("project")
_AGENT: Final = _index("agent")
_MODEL: Final = _index("model")
_STARTED_AT: Final = _index("started_at")
_LAST_AT: Final = _index("last_at")
_FAILURES: Final = _index("failures")
_USAGE: Final = _index("usage")
_FIELDS: Final = len(Overview._fields)


class _Conditions:
    """The conditions of a filter, prepared for many sessions."""

    def __init__(self, matching: OverviewFilter) -> None:
        self._failed = matching.failed
        self._state = matching.state
        self._since: int | None = None
        if matching.since is not None:
            self._since = microseconds(matching.since)
        self._until: int | None = None
        if matching.until is not None:
            self._until = microseconds(matching.until)
        self._parts: list[tuple[int, str]] = []  # a field, and a text that it contains
        wanted_texts = (
            (_PROJECT, matching.project),
            (_AGENT, matching.agent),
            (_MODEL, matching.model),
        )
        for index, wanted in wanted_texts:
            if wanted:
                self._parts.append((index, folded(wanted)))
        self._words = folded(matching.text).split()

    def accept(
        self, fields: _Fields, *, last_at: int, session_id: str, is_live: bool
    ) -> bool:
        """Whether a session with this overview meets all conditions."""
        if self._failed and not fields[_FAILURES]:
            return False
        if self._state and is_live != (self._state == "live"):
            return False
        if self._since is not None and last_at < self._since:
            return False
        if self._until is not None and (fields[_STARTED_AT] or last_at) >= self._until:
            return False
        for index, wanted in self._parts:
            if wanted not in folded(fields[index]):
                return False
        if not self._words:
            return True
        names = (
            fields[_TITLE],
            fields[_PROJECT],
            fields[_AGENT],
            fields[_MODEL],
            session_id,
        )
        words_of_session = folded("\n".join(names))
        return all(word in words_of_session for word in self._words)


class OverviewPage(NamedTuple):
    """A page of a list.

    sessions:   in their order.
    next:       the value of ``after`` for the next page; None on the last one.
    total:      the number of sessions that the filter matches.
    unread:     the number of sessions with events that no overview includes yet, of all
                sessions; of those of the page if only these were read (``read_page``).
    unreadable: sessions without a current overview, because a key of theirs is missing
                or an event is damaged; chosen like those of ``unread``, sorted, and at
                most 100.  Each is an id, or ``user/id`` in a list with sessions of
                several users.
    unreadable_total: the number of all such sessions.
    """

    sessions: list[SessionOverview]
    next: str | None
    total: int
    unread: int
    unreadable: tuple[str, ...] = ()
    unreadable_total: int = 0


# A session by its user and its id.
_Place: TypeAlias = tuple[str, str]


def _unreadable_names(
    places: Iterable[_Place], *, names_users: bool
) -> tuple[str, ...]:
    """Return the names that a page gives to its unreadable sessions."""
    first = sorted(places)[:MOST_UNREADABLE]
    if names_users:
        return tuple(f"{user_id}/{session_id}" for user_id, session_id in first)
    return tuple(session_id for _, session_id in first)


def page_of(
    sessions: Sequence[SessionOverview],
    *,
    sort: Sort = "last",
    descending: bool | None = None,
    matching: OverviewFilter = EVERY_SESSION,
    after: str | None = None,
    limit: int | None = None,
) -> OverviewPage:
    """Sort sessions, and return the page after ``after``.

    descending: None means texts from A to Z, times and numbers from the greatest.
    after:      ``next`` of the page before.

    Raises InvalidConfiguration for an unknown sort.
    """
    _check_sort(sort)
    key = _KEYS[sort]
    is_unfiltered = matching == EVERY_SESSION
    unread = 0
    unreadable: list[_Place] = []
    users: set[str] = set()
    selected: dict[_Place, SessionOverview] = {}
    entries: list[_Entry] = []
    for session in sessions:
        info = session.info
        users.add(info.user_id)
        if not session.is_readable:
            unreadable.append((info.user_id, info.session_id))
        elif not session.is_current:
            unread += 1
        if is_unfiltered or matching.matches(session):
            selected[info.user_id, info.session_id] = session
            value = key(session.overview, session.last_at, info.session_id)
            entries.append((value, info.user_id, info.session_id, info))
    part = _part(entries, sort, descending=descending, after=after, limit=limit)
    return OverviewPage(
        [selected[user_id, session_id] for _, user_id, session_id, _ in part.entries],
        part.following,
        total=len(entries),
        unread=unread,
        unreadable=_unreadable_names(unreadable, names_users=len(users) > 1),
        unreadable_total=len(unreadable),
    )


def _check_sort(sort: str) -> None:
    if sort not in SORTS:
        raise InvalidConfiguration(f"sort by one of {', '.join(SORTS)}")


# The head of a session in a list.
_Head: TypeAlias = ports.HeadColumns | ports.SessionInfo
# A session in an order: its key, its user, its id, and its head.  Entries compare by
# their keys, then by their names.  Exact tuples are sorted faster than those with named
# fields, and the collector of garbage does not visit them again and again.
_Entry: TypeAlias = tuple[Any, str, str, _Head]


def _head_seq_of(head: _Head) -> int:
    if isinstance(head, ports.SessionInfo):
        return head.head_seq
    return ports.ListedHead(*head).head_seq


def _info_of(head: _Head) -> ports.SessionInfo:
    """Return a session of a list for a caller."""
    if isinstance(head, ports.SessionInfo):
        return head
    return ports.ListedHead(*head).info()


class _Part(NamedTuple):
    """The entries of a page, and the value of ``after`` for the page after it."""

    entries: list[_Entry]
    following: str | None


def _part(
    entries: list[_Entry],
    sort: Sort,
    *,
    descending: bool | None,
    after: str | None,
    limit: int | None,
) -> _Part:
    """Sort all entries of a list, and return those of a page."""
    if descending is None:
        descending = sort not in ASCENDING
    entries.sort(reverse=descending)
    if sort in _TEXTS:  # sessions without the text come last in both directions
        with_text = [entry for entry in entries if entry[0]]
        entries = with_text + [entry for entry in entries if not entry[0]]
    start = 0
    if not isinstance(after, str | None):
        raise _no_place()
    if after and sort == "session":
        start = _start_after_name(entries, after, descending=descending)
    elif after and sort in _TEXTS:
        start = _start_after_row(entries, after)
    elif after:
        start = _start_after_value(entries, after, descending=descending)
    end = len(entries) if limit is None else start + limit
    page = entries[start:end]
    following = None
    if page and end < len(entries):
        following = _cursor(page[-1], sort, row=end)
    return _Part(page, following)


# The arguments: the fields of an overview, the time of the newest event, the name.
_Key: TypeAlias = Callable[[_Fields, int, str], Any]
_TEXTS: Final = ASCENDING - {"session"}
_LATEST: Final = 2**63 - 1  # the latest time that a database stores
# The number of a row, and the head of its session; both are below 10^15.
_ROW: Final = re.compile(r"row([1-9][0-9]{0,14})\.([0-9]{1,15})")


def _text_key(name: str) -> _Key:
    """Return a key that sorts by a text, in upper or lower case."""
    field = _index(name)

    def key(fields: _Fields, _last_at: int, _session_id: str) -> str:
        return folded(fields[field])

    return key


def _number_key(name: str) -> _Key:
    """Return a key that sorts by a number."""
    field = _index(name)

    def key(fields: _Fields, _last_at: int, _session_id: str) -> Any:
        return fields[field]

    return key


def _tokens(fields: _Fields, _last_at: int, _session_id: str) -> int:
    return _tokens_of(Usage(*fields[_USAGE]))


_KEYS: Final[Mapping[str, _Key]] = {
    "last": lambda _fields, last_at, _name: last_at,
    "started": _number_key("started_at"),
    "duration": lambda fields, _at, _name: fields[_LAST_AT] - fields[_STARTED_AT],
    "title": _text_key("title"),
    "project": _text_key("project"),
    "agent": _text_key("agent"),
    "model": _text_key("model"),
    "turns": _number_key("turns"),
    "calls": _number_key("calls"),
    "failures": _number_key("failures"),
    "tokens": _tokens,
    "dollars": _number_key("dollars"),
    "redactions": _number_key("redactions"),
    "files": _number_key("files_changed"),
    "session": lambda _fields, _at, name: name,
}


def _cursor(entry: _Entry, sort: Sort, *, row: int) -> str:
    """Return the place of a session in the order.

    No text of the session is part of it, since it stands in URLs.  In the order of a
    text, the place has the number of the row and the head of the session instead.

    row: the number of the session in the list, counted from 1.
    """
    key, _, session_id, head = entry
    if sort == "session":
        return session_id
    if sort in _TEXTS:
        return f"row{row}.{_head_seq_of(head)}~{session_id}"
    return f"{key!r}~{session_id}"


def _start_after_name(
    entries: Sequence[_Entry], after: str, *, descending: bool
) -> int:
    """Return the index of the first session after a name."""
    for index, (_, _, name, _) in enumerate(entries):
        if (name < after) if descending else (name > after):
            return index
    return len(entries)


def _start_after_row(entries: Sequence[_Entry], after: str) -> int:
    """Return the index of the first session after a session, or after its former row.

    The row counts if the session has new events, which may have changed its text, or if
    it is no longer in the list.

    Raises InvalidEvent for a text that is no place in the order of a text.
    """
    place, _, session_id = after.partition("~")
    match = _ROW.fullmatch(place)
    if match is None:
        raise _no_place()
    row = int(match[1])
    head_seq = int(match[2])
    for index, (_, _, name, head) in enumerate(entries):
        if name == session_id:
            if _head_seq_of(head) == head_seq:
                return index + 1
            if index < row:
                return row
            break
    return row - 1  # the rows after the former one moved up


def _start_after_value(
    entries: Sequence[_Entry], after: str, *, descending: bool
) -> int:
    """Return the index of the first session after a place in the order.

    Raises InvalidEvent for a text that is no place in the order of a number.
    """
    place, _, session_id = after.partition("~")
    try:
        value = float(place)
    except ValueError:
        raise _no_place() from None
    end = (value, session_id)
    for index, (key, _, name, _) in enumerate(entries):
        own = (key, name)
        if (own < end) if descending else (own > end):
            return index
    return len(entries)


def _no_place() -> errors.InvalidEvent:
    return errors.InvalidEvent(
        "`after` is not one that a list with this order returned"
    )


def read_page(
    overviews: Overviews,
    user_id: str,
    *,
    sort: Sort,
    descending: bool | None,
    labels: Mapping[str, str],
    after: str | None,
    limit: int,
) -> OverviewPage | None:
    """Return a page for which the database has the order; None for other orders.

    These are the orders of the newest event and of names.  No overview of a session
    outside the page is read, so this takes as long in a large store as in a small one,
    except that the database looks at the head of each session.

    Raises InvalidEvent for an ``after`` of another order.
    """
    if sort not in ("last", "session"):
        return None
    if descending is None:
        descending = sort not in ASCENDING
    place: tuple[int, str] | None = None
    if after and sort == "session":
        place = (0, after)
    elif after:
        place = _time_and_name(after)
    if place is not None and not place[1].isprintable():
        raise _no_place()  # no session has such a name, and databases refuse it
    limit = min(limit, _LATEST - 1)  # one more is read
    rows = overviews.log.listed_sessions(
        user_id,
        order="newest_event" if sort == "last" else "name",
        descending=descending,
        labels=labels,
        after=place,
        # One more shows whether a page follows.
        limit=ids.bounded("limit", limit + 1),
    )
    page = rows[:limit]
    following: str | None = None
    if len(rows) > limit:
        last = page[-1]
        following = last.info.session_id
        if sort == "last":
            following = f"{last.newest_event}~{following}"
    times = {row.info.session_id: row.newest_event for row in page}
    sessions: list[SessionOverview] = []
    for session in overviews.of_page(user_id, [row.info for row in page]):
        newest_event_at = times[session.info.session_id]
        sessions.append(session._replace(newest_event_at=newest_event_at))
    unread = 0
    unreadable: list[_Place] = []
    for session in sessions:
        if not session.is_readable:
            unreadable.append((user_id, session.info.session_id))
        elif not session.is_current:
            unread += 1
    return OverviewPage(
        sessions,
        following,
        total=overviews.log.count_listed(user_id, labels=labels),
        unread=unread,
        unreadable=_unreadable_names(unreadable, names_users=False),
        unreadable_total=len(unreadable),
    )


def read_sorted_page(
    overviews: Overviews,
    user_id: str | None,
    *,
    sort: Sort,
    descending: bool | None,
    matching: OverviewFilter,
    labels: Mapping[str, str],
    after: str | None,
    limit: int,
) -> OverviewPage:
    """Return a page in any order, with any filter, of a user or of all.

    Each overview is decrypted for its place in the order, and forgotten.  Only those of
    the page are read once more, as a whole.

    Raises InvalidConfiguration for an unknown sort, InvalidEvent for an ``after`` of
    another order.
    """
    _check_sort(sort)
    selection = overviews.select(user_id, sort=sort, matching=matching, labels=labels)
    part = _part(
        selection.entries, sort, descending=descending, after=after, limit=limit
    )
    return OverviewPage(
        overviews.of_entries(part.entries, selection),
        part.following,
        total=len(selection.entries),
        unread=len(selection.unread),
        unreadable=_unreadable_names(
            selection.unreadable, names_users=selection.users > 1
        ),
        unreadable_total=len(selection.unreadable),
    )


def _time_and_name(after: str) -> tuple[int, str]:
    """Return the time and the name in a place in the order of the newest event.

    Raises InvalidEvent for another text.
    """
    place, separator, session_id = after.partition("~")
    try:
        time = int(float(place))
    except (ValueError, OverflowError):
        raise _no_place() from None
    if not separator:
        raise _no_place()
    return max(-_LATEST, min(time, _LATEST)), session_id


class _Stored(NamedTuple):
    """A stored overview, with the seqs up to which it has folded the session."""

    through_seq: int
    derived_seq: int
    overview: Overview

    def includes(self, head_seq: int, derived_seq: int) -> bool:
        """Whether the overview includes all events up to these seqs.

        It may include more: another process folds the events that a session gets after
        its head was read.
        """
        return self.through_seq >= head_seq and self.derived_seq >= derived_seq


_NO_OVERVIEW: Final = Overview()


class EventBudget:
    """The number of events that may still be read; without a number, any number."""

    def __init__(self, most_events: int | None) -> None:
        self._left = most_events

    @property
    def left(self) -> int:
        """The number of events; a very large one if it is not bounded."""
        return _LATEST if self._left is None else self._left

    def end_of(self, after: int, head_seq: int) -> int:
        """Return the last seq after ``after`` that may be read, up to ``head_seq``."""
        if self._left is None:
            return head_seq
        return min(head_seq, after + self._left)

    def take_one(self) -> None:
        """Count an event that was read."""
        if self._left is not None:
            self._left -= 1

    def lower(self, left: int) -> None:
        """Leave at most this number of events."""
        if self._left is not None:
            self._left = max(0, min(self._left, left))


def _events_to_read(head_seq: int, through_seq: int) -> int:
    """Return the number of events that the next fold of a session reads.

    through_seq: the seq of the stored overview.
    """
    if through_seq < _FEWEST_FOLDED:  # no fold was stored
        return head_seq
    # The stored overview may be newer than this head, and lack only summaries.
    return max(0, head_seq - through_seq)


@dataclass(slots=True)
class _Folded:
    """The outcome of folding the new events of a user's sessions.

    overviews:  by the name of the session.
    unread:     sessions with further new events.
    unreadable: sessions without a key, or with a damaged event.
    erased:     sessions that were erased in the meantime.
    events:     the number of folded events.
    """

    overviews: dict[str, Overview] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    events: int = 0

    @property
    def stale(self) -> set[str]:
        """The sessions whose overviews lack events after this fold."""
        return self.unread | self.unreadable

    def has_tried(self, session_id: str) -> bool:
        """Whether this fold took up the session, with or without success."""
        return session_id in self.overviews or session_id in self.stale


class _Selection:
    """The sessions of a list, each with no more than its place in the order.

    entries:    of the sessions that the filter matches.
    folded:     the outcome of folding for this list, by user.
    unread:     the sessions with new events that were not folded.
    unreadable: the sessions without a key, or with a damaged event.
    users:      the number of users with sessions in the list, whether or not the filter
                matches them.
    left:       the number of events that this list may still fold.
    """

    def __init__(
        self, sort: Sort, matching: OverviewFilter, *, now: int, left: int
    ) -> None:
        self.entries: list[_Entry] = []
        self.folded: dict[str, _Folded] = {}
        self.unread: set[_Place] = set()
        self.unreadable: set[_Place] = set()
        self.users = 0
        self.left = left
        self._key = _KEYS[sort]
        self._conditions: _Conditions | None = None
        if matching != EVERY_SESSION:
            self._conditions = _Conditions(matching)
        self._now = now

    def add(self, head: ports.HeadColumns, fields: _Fields) -> None:
        """Add a session with this overview, if the filter matches it."""
        user_id, session_id, _, status, _, _, updated_at = head
        last_at = fields[_LAST_AT] or updated_at
        if self._conditions is not None and not self._conditions.accept(
            fields,
            last_at=last_at,
            session_id=session_id,
            is_live=status == "open" and abs(self._now - last_at) < LIVE,
        ):
            return
        key = self._key(fields, last_at, session_id)
        self.entries.append((key, user_id, session_id, head))

    def take(self, user_id: str, result: _Folded) -> None:
        """Take the outcome of folding the new events of a user's sessions."""
        self.folded[user_id] = result
        self.unread |= {(user_id, name) for name in result.unread}
        self.unreadable |= {(user_id, name) for name in result.unreadable}
        self.left -= result.events


class NewestOverview(NamedTuple):
    """The newest overview of a session, and whether it includes all events."""

    overview: Overview | None
    is_current: bool

    @property
    def current(self) -> Overview | None:
        """The overview, if it includes all events."""
        return self.overview if self.is_current else None


class Overviews:
    """The overviews of a log's sessions."""

    def __init__(self, log: ports.EventLog, *, now: int) -> None:
        self.log = log
        self._now = now
        # A view that was stored with other prices is folded again.
        self._prices = digest_of_prices()

    def of(
        self, infos: Sequence[ports.SessionInfo], *, most_events: int = MOST_EVENTS
    ) -> list[SessionOverview]:
        """Return the overviews of these sessions, after folding their new events.

        most_events: fold no more events than this.  The sessions with the newest writes
                     come first, and a long one may be folded in several calls.  The
                     others keep the overview that is stored.
        """
        by_user: dict[str, list[ports.SessionInfo]] = {}
        for info in infos:
            by_user.setdefault(info.user_id, []).append(info)
        sessions: list[SessionOverview] = []
        left = most_events
        for user_id, of_user in by_user.items():
            names = {info.session_id for info in of_user}
            listed, folded_events = self._of_user(user_id, of_user, names, left)
            left -= folded_events
            sessions += listed
        return sessions

    def of_page(
        self,
        user_id: str,
        infos: Sequence[ports.SessionInfo],
        *,
        most_events: int = MOST_EVENTS,
        folded: _Folded | None = None,
    ) -> list[SessionOverview]:
        """Return the overviews of some sessions of a user, and read no others.

        folded: the outcome of folding some of them just now, which is not repeated.
        """
        if not infos:
            return []
        names = {info.session_id for info in infos}
        mains = {name.rpartition("~")[0] for name in names} - names - {""}
        if mains:
            names |= self.log.listed_names(user_id, sorted(mains))
        listed, _ = self._of_user(
            user_id, infos, names, most_events, reads_all=False, folded=folded
        )
        return listed

    def select(
        self,
        user_id: str | None,
        *,
        sort: Sort,
        matching: OverviewFilter,
        labels: Mapping[str, str] = ports.NO_LABELS,
        most_events: int = MOST_EVENTS,
    ) -> _Selection:
        """Return an entry for each session that the filter matches, in no order.

        New events are folded first, as in ``of``.
        """
        selection = _Selection(sort, matching, now=self._now, left=most_events)
        by_user: dict[str, dict[str, ports.HeadColumns]] = {}
        for head in self.log.listed_heads(user_id, labels=labels):
            owner, session_id, _, _, _, _, _ = head
            by_user.setdefault(owner, {})[session_id] = head
        selection.users = len(by_user)
        for owner, heads in by_user.items():
            self._select_of_user(owner, heads, selection, reads_all=not labels)
        return selection

    def _select_of_user(
        self,
        user_id: str,
        heads: Mapping[str, ports.HeadColumns],
        selection: _Selection,
        *,
        reads_all: bool,
    ) -> None:
        """Add the sessions of a user to a selection.

        reads_all: whether to read the views of all sessions of the user, because these
                   are all or most of them.
        """
        session_ids = None if reads_all else list(heads)
        derived = self.log.derived_seqs(user_id, session_ids)
        current: set[str] = set()
        # The stored overviews of other sessions, and the seqs that they include.
        earlier: dict[str, _Fields] = {}
        through: dict[str, int] = {}
        try:
            for name, through_seq, derived_seq, body in self.log.views_named(
                user_id, OVERVIEW, session_ids
            ):
                head = heads.get(name)
                fields = _fields_of(body, self._prices)
                if head is None or fields is None:
                    continue
                _, _, head_seq, _, _, _, _ = head
                # As in _Stored.includes, without an object.
                if through_seq >= head_seq and (
                    not derived or derived_seq >= derived.get(name, 0)
                ):
                    selection.add(head, fields)
                    current.add(name)
                else:
                    earlier[name] = fields
                    through[name] = through_seq
        except errors.Erased:
            return
        except errors.KeyUnavailable:
            pass  # the list has the plain facts about the sessions
        if len(current) == len(heads):
            return
        stale = {name: head for name, head in heads.items() if name not in current}
        listed = [ports.ListedHead(*head) for head in stale.values()]
        result = self._fold_stale(user_id, listed, through, selection.left)
        selection.take(user_id, result)
        for name, head in stale.items():
            if name in result.erased:
                continue
            if name in result.overviews:
                selection.add(head, result.overviews[name])
                continue
            selection.add(head, earlier.get(name, _NO_OVERVIEW))

    def of_entries(
        self, entries: Sequence[_Entry], selection: _Selection
    ) -> list[SessionOverview]:
        """Return the sessions of a page of a selection, in their order.

        A session that was erased since is left out.
        """
        infos: dict[str, list[ports.SessionInfo]] = {}
        for _, user_id, _, head in entries:
            infos.setdefault(user_id, []).append(_info_of(head))
        sessions: dict[tuple[str, str], SessionOverview] = {}
        for user_id, of_user in infos.items():
            for session in self.of_page(
                user_id,
                of_user,
                most_events=selection.left,
                folded=selection.folded.get(user_id),
            ):
                sessions[user_id, session.info.session_id] = session
        page: list[SessionOverview] = []
        for _, user_id, session_id, _ in entries:
            listed = sessions.get((user_id, session_id))
            if listed is not None:
                page.append(listed)
        return page

    def _of_user(
        self,
        user_id: str,
        infos: Sequence[ports.SessionInfo],
        names: set[str],
        most_events: int,
        *,
        reads_all: bool = True,
        folded: _Folded | None = None,
    ) -> tuple[list[SessionOverview], int]:
        """Return the overviews of sessions of a user, and the number of folded events.

        names:     sessions of the user, which may be parents of these.
        reads_all: as in ``_select_of_user``.
        folded:    the outcome of folding some of them just now, which is not repeated.
        """
        earlier = folded or _Folded()
        session_ids: list[str] | None = None
        if not reads_all:
            session_ids = [info.session_id for info in infos]
        stored: dict[str, _Stored] = {}
        try:
            for name, through_seq, derived_seq, body in self.log.views_named(
                user_id, OVERVIEW, session_ids
            ):
                overview = _loaded(body, self._prices)
                if overview is not None:
                    stored[name] = _Stored(through_seq, derived_seq, overview)
        except errors.Erased:
            return [], 0
        except errors.KeyUnavailable:
            pass  # the list has the plain facts about the sessions
        derived = self.log.derived_seqs(user_id, session_ids)
        stale: list[ports.SessionInfo] = []
        for info in infos:
            if earlier.has_tried(info.session_id):
                continue
            of_session = stored.get(info.session_id)
            derived_seq = derived.get(info.session_id, 0)
            if of_session is None or not of_session.includes(
                info.head_seq, derived_seq
            ):
                stale.append(info)
        through = {name: of_session.through_seq for name, of_session in stored.items()}
        result = self._fold_stale(user_id, stale, through, most_events)
        stale_after = earlier.stale | result.stale
        unreadable = earlier.unreadable | result.unreadable
        listed: list[SessionOverview] = []
        for info in infos:
            name = info.session_id
            if name in result.erased:
                continue
            overview = result.overviews.get(name) or earlier.overviews.get(name)
            if overview is None:
                of_session = stored.get(name)
                overview = _NO_OVERVIEW if of_session is None else of_session.overview
            session = self._listed(
                info,
                overview,
                names,
                is_current=name not in stale_after,
            )
            if name in unreadable:
                session = session._replace(is_readable=False)
            listed.append(session)
        return listed, result.events

    def _fold_stale(
        self,
        user_id: str,
        stale: Iterable[ports.SessionInfo | ports.ListedHead],
        through: Mapping[str, int],
        most_events: int,
    ) -> _Folded:
        """Fold the new events of sessions of a user, those of the newest writes first.

        A session without a stored fold is read from its beginning.  All events that are
        read count.

        through: the seqs of their stored overviews.
        """
        result = _Folded()
        budget = EventBudget(most_events)
        heads: list[Any] = sorted(stale, key=attrgetter("updated_at"), reverse=True)
        for head in heads:
            name = head.session_id
            needed = _events_to_read(head.head_seq, through.get(name, 0))
            left_before = budget.left
            is_too_long = needed > left_before or not left_before
            if is_too_long and left_before < _FEWEST_FOLDED:
                result.unread.add(name)
                continue
            try:
                overview, is_whole = self._fold(
                    StreamId(user_id, name), head.head_seq, budget
                )
                result.overviews[name] = overview
            except errors.Erased:
                result.erased.add(name)
                continue
            except errors.KeyUnavailable:
                result.unreadable.add(name)
                continue
            except errors.CorruptEvent:
                # The session is listed without an overview; `verify` names the damage.
                result.unreadable.add(name)
                budget.lower(left_before - needed)  # as if all of it had been read
            else:
                if not is_whole:
                    result.unread.add(name)
        # A session that was erased, or lost its key, while it was read counts, too.
        result.events = most_events - budget.left
        return result

    def _listed(
        self,
        info: ports.SessionInfo,
        overview: Overview,
        names: set[str],
        *,
        is_current: bool,
    ) -> SessionOverview:
        last_at = overview.last_at or microseconds(info.updated_at)
        accepts_events = info.status == "open"
        parent = overview.parent
        if not parent:
            # An import names the session of a sub-agent after that of its parent.
            main, separator, _ = info.session_id.rpartition("~")
            if separator and main in names:
                parent = main
        return SessionOverview(
            info=info,
            overview=overview,
            is_current=is_current,
            # The time of an event in the future is wrong, and says nothing.
            is_live=accepts_events and abs(self._now - last_at) < LIVE,
            parent=parent,
        )

    def refresh(
        self,
        stream: StreamId,
        head_seq: int,
        *,
        progress: Callable[[], object] | None = None,
    ) -> int:
        """Store the overview of a session up to a seq; returns its new events.

        An overview that includes later events stays.

        progress: called after each page of events that was read.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        derived_seq = self._derived_seq(stream)
        stored = self._usable(self.log.load_view(stream, OVERVIEW))
        if stored is None:
            self.fold(stream, head_seq, progress=progress)
            return head_seq
        if stored.includes(head_seq, derived_seq):
            return 0
        self.fold(stream, head_seq, progress=progress)
        new_events = max(0, head_seq - stored.through_seq)
        return new_events + max(0, derived_seq - stored.derived_seq)

    def _usable(self, view: ports.StoredView | None) -> _Stored | None:
        """Return a stored overview; None if there is none, or a list cannot use it."""
        if view is None:
            return None
        overview = _loaded(view.body, self._prices)
        if overview is None:
            return None
        return _Stored(view.through_seq, view.derived_seq, overview)

    def _derived_seq(self, stream: StreamId) -> int:
        """Return the sum of the seqs of the derived streams of a session."""
        derived_seq = 0
        for name in self.log.streams(stream.user_id, stream.session_id):
            if name != ids.MAIN:
                derived_seq += self.log.head(stream._replace(stream=name)).seq
        return derived_seq

    def of_session(
        self, stream: StreamId, head_seq: int, *, most_events: int | None = None
    ) -> Overview | None:
        """Return the overview of one session, after folding its new events.

        Returns None if more events than ``most_events`` are new; None folds any number.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        return self.newest(stream, head_seq, EventBudget(most_events)).current

    def newest(
        self, stream: StreamId, head_seq: int, budget: EventBudget
    ) -> NewestOverview:
        """Return the newest overview of one session, after folding its new events.

        If the budget does not suffice for them, that is the stored one.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        derived_seq = self._derived_seq(stream)
        stored = self._usable(self.log.load_view(stream, OVERVIEW))
        through = 0
        newest: Overview | None = None
        if stored is not None:
            newest = stored.overview
            if stored.includes(head_seq, derived_seq):
                return NewestOverview(newest, is_current=True)
            through = stored.through_seq
        needed = _events_to_read(head_seq, through)
        if needed > budget.left:
            return NewestOverview(newest, is_current=False)
        left_before = budget.left
        try:
            overview, is_whole = self._fold(stream, head_seq, budget)
        except errors.CorruptEvent:
            budget.lower(left_before - needed)  # as if all of it had been read
            raise
        return NewestOverview(overview, is_current=is_whole)

    def fold(
        self,
        stream: StreamId,
        head_seq: int,
        *,
        most_events: int | None = None,
        progress: Callable[[], object] | None = None,
    ) -> Overview:
        """Fold a session up to ``head_seq``, and store the overview.

        Another process may have stored an overview with later events.  It is never
        replaced by one without them.

        most_events: read at most this number of events; the next fold continues with
                     the others.  None reads all.
        progress:    called after each page of events that was read.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        budget = EventBudget(most_events)
        overview, _ = self._fold(stream, head_seq, budget, progress=progress)
        return overview

    def _fold(
        self,
        stream: StreamId,
        head_seq: int,
        budget: EventBudget,
        *,
        progress: Callable[[], object] | None = None,
    ) -> tuple[Overview, bool]:
        """Fold a session as ``fold`` does, within a budget.

        Also returns whether the budget sufficed.
        """
        log = self.log
        view = log.load_view(stream, OVERVIEW)
        replaces = view.through_seq if view is not None else 0
        stored = self._usable(view)
        if stored is not None and stored.through_seq >= head_seq:
            head_seq = stored.through_seq
            if stored.includes(head_seq, self._derived_seq(stream)):
                return stored.overview, True
        fold, through, ends = self._stored_fold(stream)
        end_seq = budget.end_of(through, max(head_seq, through))
        is_whole = end_seq >= head_seq
        for envelope in read_pages(
            log, stream, after=through, upto=end_seq, progress=progress
        ):
            budget.take_one()
            fold.take(envelope)
        derived_seq = 0
        for name in log.streams(stream.user_id, stream.session_id):
            if name == ids.MAIN:
                continue
            derived = stream._replace(stream=name)
            end = ends.get(name, 0)
            upto = budget.end_of(end, _LATEST)
            for envelope in read_pages(
                log, derived, after=end, upto=upto, progress=progress
            ):
                budget.take_one()
                fold.take_derived(envelope)
                end = envelope.seq
            # Then it is not known whether the stream has more events.
            is_whole = is_whole and budget.left > 0
            ends[name] = end
            derived_seq += end
        overview = fold.overview()
        is_behind = stored is not None and (
            end_seq < stored.through_seq
            or (derived_seq < stored.derived_seq and not is_whole)
        )
        if stored is not None and is_behind:
            # The budget ended before the events that the stored overview includes.
            overview = stored.overview
        else:
            body: JsonObject = {"overview": overview.dump(), "prices": self._prices}
            new_view = ports.StoredView(end_seq, derived_seq, body)
            keep_view(log, stream, OVERVIEW, new_view, replaces=replaces)
        if end_seq + derived_seq >= _FEWEST_FOLDED:
            state: JsonObject = {
                "fold": fold.dump(),
                "derived": dict(ends),
                "prices": self._prices,
            }
            new_fold = ports.StoredView(end_seq, derived_seq, state)
            keep_view(log, stream, _FOLD, new_fold, replaces=through)
        return overview, is_whole

    def _stored_fold(
        self, stream: StreamId
    ) -> tuple[OverviewFold, int, dict[str, int]]:
        """Return a fold to continue, its seq, and the ends of derived streams."""
        stored = self.log.load_view(stream, _FOLD)
        if stored is not None:
            body: dict[str, Any] = dict(stored.body)
            with suppress(KeyError, TypeError, ValueError):
                _check_prices(body, self._prices)
                fold = OverviewFold.load(body["fold"])
                return fold, stored.through_seq, dict(body["derived"])
            with suppress(errors.StoreUnavailable):  # a program that may only read
                self.log.drop_view(stream, _FOLD)
        return OverviewFold(), 0, {}


def titles_of(
    log: ports.EventLog,
    user_id: str,
    session_ids: Iterable[str],
    *,
    now: int,
    most_events: int = MOST_EVENTS,
) -> dict[str, str]:
    """Return the titles of some sessions of a user; sessions without one are left out.

    most_events: read at most this number of new events, of all sessions together.  A
                 session for which it does not suffice has its last stored title, if
                 any.
    """
    overviews = Overviews(log, now=now)
    budget = EventBudget(most_events)
    titles: dict[str, str] = {}
    for session_id in dict.fromkeys(session_ids):
        stream = StreamId(user_id, session_id)
        try:
            head_seq = log.head(stream).seq
            overview = overviews.newest(stream, head_seq, budget).overview
        except (errors.Erased, errors.CorruptEvent, errors.KeyUnavailable):
            continue
        if overview is not None and overview.title:
            titles[session_id] = overview.title
    return titles


def _loaded(body: JsonObject, prices: str) -> Overview | None:
    """Read a stored overview; None if it is damaged, or was made with other prices."""
    fields = _fields_of(body, prices)
    if fields is None:
        return None
    try:
        return Overview.load(fields)
    except (TypeError, ValueError):
        return None


def _fields_of(body: JsonObject, prices: str) -> list[Any] | None:
    """Return the fields of a stored overview; None as in ``_loaded``."""
    fields = body.get("overview")
    if not isinstance(fields, list) or len(fields) != _FIELDS:
        return None
    if body.get("prices") != prices:
        return None
    return fields


def _check_prices(body: Mapping[str, Any], prices: str) -> None:
    """Raise ValueError or KeyError if a view was stored with other prices."""
    if body["prices"] != prices:
        raise ValueError("the dollars were counted with other prices")


def by_day(
    sessions: Iterable[SessionOverview],
) -> Iterator[tuple[str, list[SessionOverview]]]:
    """Group sessions by the day of their newest event, in UTC; keeps their order."""
    day = ""
    group: list[SessionOverview] = []
    for session in sessions:
        day_of_session = f"{from_microseconds(session.last_at):%Y-%m-%d}"
        if group and day_of_session != day:
            yield day, group
            group = []
        day = day_of_session
        group.append(session)
    if group:
        yield day, group
