"""Lists of sessions with their overviews: sorted, filtered, and in pages.

An overview is a stored view of its session, encrypted with the session's key.  It is
deleted and erased with the session.  No append writes it: a list folds the events that
stored overviews lack, of the sessions with the newest writes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from refold.domain import errors, ids, ports
from refold.domain.envelope import from_microseconds, microseconds
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.model import repr_without_texts
from refold.projections.models import digest_of_prices
from refold.projections.overview import SHAPE, Overview, OverviewFold
from refold.projections.search.terms import folded
from refold.store.history import read_pages
from refold.store.memory.views import keep_view

# The names of the stored views: of an overview, and of a fold that continues it.
OVERVIEW: Final = f"overview{ports.VIEW_NAME_SEPARATOR}{SHAPE}"
_FOLD: Final = f"overview_fold{ports.VIEW_NAME_SEPARATOR}{SHAPE}"
# A shorter session is folded again as a whole, and needs no stored fold.
_FEWEST_FOLDED: Final = 256
# The most events that one list folds.  It shows other sessions as they were stored.
MOST_EVENTS: Final = 50_000
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
    listed_at:  the time by which its page was read; 0 if all sessions were read.
    """

    info: ports.SessionInfo
    overview: Overview
    is_current: bool
    is_live: bool
    parent: str = ""
    listed_at: int = 0

    @property
    def last_at(self) -> int:
        """The time of the newest event; without an overview, that of the last write."""
        if self.listed_at:
            return self.listed_at
        return self.overview.last_at or microseconds(self.info.updated_at)

    @property
    def tokens(self) -> int:
        """The tokens of all answers, as their providers counted them."""
        usage = self.overview.usage
        return usage.input + usage.written + usage.read + usage.output

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
        overview = session.overview
        if self.failed and not overview.failures:
            return False
        if self.state and session.is_live != (self.state == "live"):
            return False
        if self.since is not None and session.last_at < microseconds(self.since):
            return False
        started_at = overview.started_at or session.last_at
        if self.until is not None and started_at >= microseconds(self.until):
            return False
        fields = (
            (self.project, overview.project),
            (self.agent, overview.agent),
            (self.model, overview.model),
        )
        for wanted, value in fields:
            if wanted and folded(wanted) not in folded(value):
                return False
        if not self.text.strip():
            return True
        names = (
            overview.title,
            overview.project,
            overview.agent,
            overview.model,
            session.info.session_id,
        )
        words_of_session = folded("\n".join(names))
        return all(word in words_of_session for word in folded(self.text).split())


EVERY_SESSION: Final = OverviewFilter()


class OverviewPage(NamedTuple):
    """A page of a list.

    sessions: in their order.
    next:     the value of ``after`` for the next page; None on the last one.
    total:    the number of sessions that the filter matches.
    unread:   the number of sessions with events that no overview includes yet, of all
              sessions; of those of the page if only these were read (``read_page``).
    """

    sessions: list[SessionOverview]
    next: str | None
    total: int
    unread: int


def page_of(
    sessions: Iterable[SessionOverview],
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
    if sort not in SORTS:
        raise InvalidConfiguration(f"sort by one of {', '.join(SORTS)}")
    if descending is None:
        descending = sort not in ASCENDING
    key = _KEYS[sort]
    is_unfiltered = matching == EVERY_SESSION
    unread = 0
    selected: list[SessionOverview] = []
    for session in sessions:
        if not session.is_current:
            unread += 1
        if is_unfiltered or matching.matches(session):
            selected.append(session)
    selected.sort(key=lambda session: _order(session, key), reverse=descending)
    if sort in _TEXTS:  # sessions without the text come last in both directions
        selected.sort(key=lambda session: not key(session))
    start = 0
    if not isinstance(after, str | None):
        raise _no_place()
    if after and sort == "session":
        start = _start_after_name(selected, after, descending=descending)
    elif after and sort in _TEXTS:
        start = _start_after_row(selected, after)
    elif after:
        start = _start_after_value(selected, after, key, descending=descending)
    end = len(selected) if limit is None else start + limit
    page = selected[start:end]
    following = None
    if page and end < len(selected):
        following = _cursor(page[-1], sort, key, row=end)
    return OverviewPage(page, following, len(selected), unread)


_Key: TypeAlias = Callable[[SessionOverview], Any]
_TEXTS: Final = ASCENDING - {"session"}
# The number of a row, and the head of its session; both are below 10^15.
_LATEST: Final = 2**63 - 1  # the latest time that a database stores
_ROW: Final = re.compile(r"row([1-9][0-9]{0,14})\.([0-9]{1,15})")


def _text_key(field: str) -> _Key:
    """Return a key that sorts by a text, in upper or lower case."""

    def key(session: SessionOverview) -> str:
        return folded(getattr(session.overview, field))

    return key


_KEYS: Final[Mapping[str, _Key]] = {
    "last": lambda session: session.last_at,
    "started": lambda session: session.overview.started_at,
    "duration": lambda session: session.overview.duration,
    "title": _text_key("title"),
    "project": _text_key("project"),
    "agent": _text_key("agent"),
    "model": _text_key("model"),
    "turns": lambda session: session.overview.turns,
    "calls": lambda session: session.overview.calls,
    "failures": lambda session: session.overview.failures,
    "tokens": lambda session: session.tokens,
    "dollars": lambda session: session.overview.dollars,
    "redactions": lambda session: session.overview.redactions,
    "files": lambda session: session.overview.files_changed,
    "session": lambda session: session.info.session_id,
}


def _order(session: SessionOverview, key: _Key) -> tuple[Any, str, str]:
    return key(session), session.info.user_id, session.info.session_id


def _cursor(session: SessionOverview, sort: Sort, key: _Key, *, row: int) -> str:
    """Return the place of a session in the order.

    No text of the session is part of it, since it stands in URLs.  In the order of a
    text, the place has the number of the row and the head of the session instead.

    row: the number of the session in the list, counted from 1.
    """
    session_id = session.info.session_id
    if sort == "session":
        return session_id
    if sort in _TEXTS:
        return f"row{row}.{session.info.head_seq}~{session_id}"
    return f"{key(session)!r}~{session_id}"


def _start_after_name(
    sessions: Sequence[SessionOverview], after: str, *, descending: bool
) -> int:
    """Return the index of the first session after a name."""
    for index, session in enumerate(sessions):
        name = session.info.session_id
        if (name < after) if descending else (name > after):
            return index
    return len(sessions)


def _start_after_row(sessions: Sequence[SessionOverview], after: str) -> int:
    """Return the index of the first session after a session, or after its former row.

    The row counts if the session has new events, which may have changed its text, or if
    it is no longer in the list.

    Raises InvalidEvent for a text that is no place in the order of a text.
    """
    place, _, session_id = after.partition("~")
    match = _ROW.fullmatch(place)
    if match is None:
        raise _no_place()
    row, head_seq = int(match[1]), int(match[2])
    for index, session in enumerate(sessions):
        if session.info.session_id == session_id:
            if session.info.head_seq == head_seq:
                return index + 1
            if index < row:
                return row
            break
    return row - 1  # the rows after the former one moved up


def _start_after_value(
    sessions: Sequence[SessionOverview], after: str, key: _Key, *, descending: bool
) -> int:
    """Return the index of the first session after a place in the order.

    Raises InvalidEvent for a text that is no place in the order of a number.
    """
    place, _, session_id = after.partition("~")
    try:
        value = float(place)
    except ValueError:
        raise _no_place() from None
    for index, session in enumerate(sessions):
        own = (key(session), session.info.session_id)
        end = (value, session_id)
        if (own < end) if descending else (own > end):
            return index
    return len(sessions)


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
    rows = overviews.log.sessions_in_lists(
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
        listed_at = times[session.info.session_id]
        sessions.append(session._replace(listed_at=listed_at))
    return OverviewPage(
        sessions,
        following,
        total=overviews.log.count_in_lists(user_id, labels=labels),
        unread=sum(1 for session in sessions if not session.is_current),
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


_NO_OVERVIEW: Final = Overview()


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
        self, user_id: str, infos: Sequence[ports.SessionInfo]
    ) -> list[SessionOverview]:
        """Return the overviews of some sessions of a user, and read no others."""
        if not infos:
            return []
        names = {info.session_id for info in infos}
        mains = {name.rpartition("~")[0] for name in names} - names - {""}
        if mains:
            names |= self.log.names_in_lists(user_id, sorted(mains))
        listed, _ = self._of_user(user_id, infos, names, MOST_EVENTS, are_all=False)
        return listed

    def _of_user(
        self,
        user_id: str,
        infos: Sequence[ports.SessionInfo],
        names: set[str],
        most_events: int,
        *,
        are_all: bool = True,
    ) -> tuple[list[SessionOverview], int]:
        """Return the overviews of sessions of a user, and the number of folded events.

        names:   sessions of the user, which may be parents of these.
        are_all: whether these are most of the user's sessions, so that the views of all
                 are read.
        """
        session_ids: list[str] | None = None
        if not are_all:
            session_ids = [info.session_id for info in infos]
        stored: dict[str, _Stored] = {}
        try:
            for name, view in self.log.views_named(user_id, OVERVIEW, session_ids):
                overview = _loaded(view, self._prices)
                if overview is not None:
                    stored[name] = _Stored(view.through_seq, view.derived_seq, overview)
        except errors.Erased:
            return [], 0
        except errors.KeyUnavailable:
            pass  # the list has the plain facts about the sessions
        derived = self.log.derived_seqs(user_id, session_ids)
        stale: list[ports.SessionInfo] = []
        for info in infos:
            of_session = stored.get(info.session_id)
            derived_seq = derived.get(info.session_id, 0)
            if (
                of_session is None
                or of_session.through_seq != info.head_seq
                or of_session.derived_seq != derived_seq
            ):
                stale.append(info)
        stale.sort(key=lambda info: info.updated_at, reverse=True)
        unread: set[str] = set()
        erased: set[str] = set()
        folded_events = 0
        for info in stale:
            of_session = stored.get(info.session_id)
            through = 0 if of_session is None else of_session.through_seq
            new = info.head_seq - through
            left = most_events - folded_events
            is_whole = new <= left
            if not is_whole:
                unread.add(info.session_id)
                if left < _FEWEST_FOLDED:
                    continue
            folded_events += min(new, left)
            try:
                overview = self.fold(
                    StreamId(user_id, info.session_id),
                    info.head_seq,
                    most_events=None if is_whole else left,
                )
                stored[info.session_id] = _Stored(info.head_seq, 0, overview)
            except errors.Erased:
                erased.add(info.session_id)
            except (errors.CorruptEvent, errors.KeyUnavailable):
                # The session is listed without an overview; `verify` names the damage.
                unread.add(info.session_id)
        listed: list[SessionOverview] = []
        for info in infos:
            if info.session_id in erased:
                continue
            of_session = stored.get(info.session_id)
            overview = _NO_OVERVIEW if of_session is None else of_session.overview
            is_current = info.session_id not in unread
            listed.append(self._listed(info, overview, names, is_current=is_current))
        return listed, folded_events

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

    def of_session(
        self, stream: StreamId, head_seq: int, *, most_events: int | None = None
    ) -> Overview | None:
        """Return the overview of one session, after folding its new events.

        Returns None if more events than ``most_events`` are new; None folds any number.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        log = self.log
        derived_seq = 0
        for name in log.streams(stream.user_id, stream.session_id):
            if name != ids.MAIN:
                derived_seq += log.head(stream._replace(stream=name)).seq
        through = 0
        view = log.load_view(stream, OVERVIEW)
        overview = None if view is None else _loaded(view, self._prices)
        if view is not None and overview is not None:
            if (view.through_seq, view.derived_seq) == (head_seq, derived_seq):
                return overview
            through = view.through_seq
        if most_events is not None and head_seq - through > most_events:
            return None
        return self.fold(stream, head_seq)

    def fold(
        self, stream: StreamId, head_seq: int, *, most_events: int | None = None
    ) -> Overview:
        """Fold a session up to ``head_seq``, and store the overview.

        most_events: fold at most this number of new events; the next fold continues
                     with the others.  None folds all.

        Raises Erased, CorruptEvent, KeyUnavailable.
        """
        log = self.log
        stored = log.load_view(stream, OVERVIEW)
        fold, through, ends = self._stored_fold(stream)
        if through > head_seq:
            # The stored fold has events after this seq.
            fold = OverviewFold()
            through = 0
            ends = {}
        end_seq = head_seq
        if most_events is not None:
            end_seq = min(head_seq, through + most_events)
        for envelope in read_pages(log, stream, after=through, upto=end_seq):
            fold.take(envelope)
        derived_seq = 0
        for name in log.streams(stream.user_id, stream.session_id):
            if name == ids.MAIN:
                continue
            derived = stream._replace(stream=name)
            end = ends.get(name, 0)
            for envelope in read_pages(log, derived, after=end):
                fold.take_derived(envelope)
                end = envelope.seq
            ends[name] = end
            derived_seq += end
        overview = fold.overview()
        body: JsonObject = {"overview": overview.dump(), "prices": self._prices}
        view = ports.StoredView(end_seq, derived_seq, body)
        replaces = stored.through_seq if stored else 0
        keep_view(log, stream, OVERVIEW, view, replaces=replaces)
        if end_seq >= _FEWEST_FOLDED:
            state: JsonObject = {
                "fold": fold.dump(),
                "derived": dict(ends),
                "prices": self._prices,
            }
            view = ports.StoredView(end_seq, derived_seq, state)
            keep_view(log, stream, _FOLD, view, replaces=through)
        return overview

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

    most_events: a session with more new events than this is left out.
    """
    overviews = Overviews(log, now=now)
    titles: dict[str, str] = {}
    for session_id in dict.fromkeys(session_ids):
        stream = StreamId(user_id, session_id)
        try:
            head_seq = log.head(stream).seq
            overview = overviews.of_session(stream, head_seq, most_events=most_events)
        except (errors.Erased, errors.CorruptEvent, errors.KeyUnavailable):
            continue
        if overview is not None and overview.title:
            titles[session_id] = overview.title
    return titles


def _loaded(view: ports.StoredView, prices: str) -> Overview | None:
    """Read a stored overview; None if it is damaged, or was made with other prices."""
    body: dict[str, Any] = view.body
    try:
        _check_prices(body, prices)
        return Overview.load(body["overview"])
    except (KeyError, TypeError, ValueError):
        return None


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
