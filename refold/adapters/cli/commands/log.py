"""``refold sessions``, ``log``, ``search``, ``label`` and ``mcp``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.adapters.display.values import visible
from refold.domain.envelope import from_microseconds
from refold.domain.errors import (
    Erased,
    SessionNotFound,
    counted,
)

if TYPE_CHECKING:
    from refold.adapters.cli.timeline import Timeline
    from refold.adapters.display.events import Numbered
    from refold.adapters.display.filters import RunFilter, Selected
    from refold.domain.ports import SessionInfo
    from refold.store import Session, SessionStore
    from refold.store.overviews import SessionOverview
    from refold.store.search import SearchHit


SortName = Literal[
    "last", "started", "duration", "title", "project", "agent", "model", "turns",
    "calls", "failures", "tokens", "dollars", "redactions", "files", "session",
]  # fmt: skip


def sessions(
    call: options.Call,
    user: options.UserFilter = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only sessions with this label; repeat it for several.",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="S", help="Only sessions after this one, sorted by name."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show at most N sessions.")
    ] = None,
    sort: Annotated[
        SortName | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by last (the newest event), started, duration, title, project, "
            "agent, model, turns, calls, failures, tokens, dollars, redactions, files, "
            "or session.  Default: last.",
        ),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Reverse the order.")
    ] = False,
    find: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="Only sessions whose title, project, agent, model or name has these "
            "words.",
        ),
    ] = "",
    project: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Only sessions of this project: of its label, or else of its folder.",
        ),
    ] = "",
    agent: Annotated[
        str, typer.Option(metavar="NAME", help="Only sessions of this agent.")
    ] = "",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Only sessions with this model.")
    ] = "",
    state: Annotated[
        Literal["live", "ended"] | None,
        typer.Option(
            metavar="STATE", help="Only sessions that are live, or that have ended."
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only sessions with a failure.")
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="D",
            parser=options.since,
            help="Only sessions with events since then: 2026-03-16 or 7d.",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            metavar="D",
            parser=options.since,
            help="Only sessions that began before then.",
        ),
    ] = None,
    whole_ids: Annotated[
        bool,
        typer.Option("--ids", help="Print whole names of sessions in a terminal, too."),
    ] = False,
) -> output.Result:
    """List sessions with what they are about, the newest first.

    A line has the time of the newest event in UTC, the title, the column of --sort,
    the numbers of calls and failures, the cost, and the session.  ≥ marks a number
    that is too low: a model has no known price, or output tokens are not all
    recorded.
    """
    from refold.store.overviews import OverviewFilter, by_day

    store = call.store()
    labels = dict(_parsed_label(text) for text in label or ())
    chosen = sort or ("last" if after is None else "session")
    if after is not None and chosen != "session":
        raise typer.BadParameter("--after needs the order of --sort session")
    if after is not None or labels:
        user = options.chosen_user(store, user)
    matching = OverviewFilter(
        text=find,
        project=project,
        agent=agent,
        model=model,
        state=state or "",
        failed=failed,
        since=since,
        until=until,
    )
    page = store.overviews(
        user,
        label=labels,
        sort=chosen,
        descending=_is_descending(chosen, reverse=reverse),
        matching=matching,
        after=after,
        limit=limit,
    )
    is_filtered = labels or after or limit is not None or matching != OverviewFilter()

    def show(screen: output.Screen) -> None:
        if limit == 0:
            screen.line(f"0 of {counted(page.total, 'session')}: --limit is 0")
            return
        if not page.sessions:
            screen.line("no session matches" if is_filtered else _why_none(store, user))
            return
        cuts_names = screen.cuts and not whole_ids
        lines = _Lines(
            screen,
            page.sessions,
            sort=chosen,
            short=options.names_in_lists(store, user) if cuts_names else {},
        )
        if chosen == "last":
            for index, (day, group) in enumerate(by_day(page.sessions)):
                if index == 0:
                    lines.head(day)
                else:
                    screen.line((day, "bold"))
                for session in group:
                    lines.session(session, with_day=False)
        else:
            lines.head("last event (UTC)")
            for session in page.sessions:
                lines.session(session, with_day=True)
        if page.next is not None and screen.cuts:
            shown = f"{len(page.sessions):,} of {counted(page.total, 'session')}"
            screen.line((shown, "dim"))
        if screen.cuts and any(
            session.overview.is_lower_bound for session in page.sessions
        ):
            screen.line((_LOWER_BOUND, "dim"))
        if page.unread:
            count = counted(page.unread, "session")
            screen.line((f"{count} not read to the end: run this again", "yellow"))

    if page.unreadable:
        count = counted(page.unreadable_total, "session")
        names = ", ".join(map(visible, page.unreadable[:_MOST_NAMED]))
        possessive = "its"
        if page.unreadable_total > 1:
            possessive = "their"
        if page.unreadable_total > _MOST_NAMED:
            names += ", …"
        output.complain(
            f"{count} cannot be read; {possessive} title and totals may be out of date "
            f"({names}): `refold verify` says why"
        )
    entries = (session.to_json() for session in page.sessions)
    return output.Result(output.Array(entries), show)


_TO_THE_MINUTE: Final = len("2026-03-16 10:00")
_LOWER_BOUND: Final = (
    "≥ marks a number that is too low: a model has no known price, or output tokens "
    "are not all recorded."
)
_MOST_NAMED: Final = 10  # sessions that cannot be read
_WIDEST_TEXT: Final = 20  # columns of a text in the column of an order


class _Column(NamedTuple):
    """The column of an order that other lists do not show."""

    name: str
    width: int
    value: Callable[[SessionOverview], str]


def _time_column(session: SessionOverview) -> str:
    if not session.overview.started_at:
        return ""
    return values.moment(session.overview.started_at)[:_TO_THE_MINUTE]


def _short(text: str) -> str:
    return output.cut(visible(text), _WIDEST_TEXT)


def _short_path(text: str) -> str:
    return output.cut_left(visible(text), _WIDEST_TEXT)


_COLUMNS: Final[Mapping[str, _Column]] = {
    "started": _Column("started", _TO_THE_MINUTE, _time_column),
    "duration": _Column(
        "duration",
        10,
        lambda session: values.duration(session.overview.duration / 1000),
    ),
    "project": _Column(
        "project", _WIDEST_TEXT, lambda session: _short_path(session.overview.project)
    ),
    "agent": _Column(
        "agent", _WIDEST_TEXT, lambda session: _short(session.overview.agent)
    ),
    "model": _Column(
        "model", _WIDEST_TEXT, lambda session: _short(session.overview.model)
    ),
    "turns": _Column("turns", 6, lambda session: str(session.overview.turns)),
    "tokens": _Column("tokens", 7, lambda session: values.short_number(session.tokens)),
    "redactions": _Column(
        "redactions", 10, lambda session: str(session.overview.redactions)
    ),
    "files": _Column("files", 6, lambda session: str(session.overview.files_changed)),
}


def _is_descending(sort: str, *, reverse: bool) -> bool | None:
    """Whether the greatest value comes first; None for the default of the column."""
    if not reverse:
        return None
    return sort in ("title", "project", "agent", "model", "session")


class _Lines:
    """Prints sessions, each as one line.

    sort:  the order, which may add a column.
    short: the short names of sessions, by their names; others are printed as a whole.
    """

    def __init__(
        self,
        screen: output.Screen,
        sessions: Sequence[SessionOverview],
        *,
        sort: str,
        short: Mapping[str, str],
    ) -> None:
        self._screen = screen
        self._column = _COLUMNS.get(sort)
        self._short = short
        self._names_users = len({session.info.user_id for session in sessions}) > 1
        self._width = 0  # columns of the names; without a terminal, they are not padded
        if screen.cuts:
            names = [self._name(session.info) for session in sessions]
            self._width = max(map(output.columns_of, names))

    def head(self, first: str) -> None:
        """Print a line with the names of the columns."""
        name = (output.padded("session", self._width), "dim")
        self._screen.line(
            (first, "bold"),
            end=(
                (f"{self._in_column(None)}calls failed     US$", "dim"),
                "  ",
                name,
            ),
        )

    def session(self, session: SessionOverview, *, with_day: bool) -> None:
        """Print a session."""
        overview = session.overview
        moment = values.moment(from_microseconds(session.last_at))
        time = moment[:_TO_THE_MINUTE]
        if not with_day:
            time = time[len("2026-03-16 ") :]
        title = overview.title or "(no title)"
        if session.parent:
            title = f"↳ {title}"
        if session.info.status not in ("open", "closed"):
            title = f"({session.info.status}) {title}"
        cost = f"{overview.dollars:.2f}"
        if overview.is_lower_bound:
            cost = f"≥{cost}"
        style = "red" if overview.failures else "dim"
        self._screen.line(
            (f"{time}  ", "dim"),
            ("● ", "green") if session.is_live else "",
            cut=visible(title),
            end=(
                self._in_column(session),
                f"{overview.calls:>5}",
                (f"{overview.failures:>7}", style),
                f"{cost:>8}  ",
                (output.padded(self._name(session.info), self._width), "cyan"),
            ),
        )

    def _in_column(self, session: SessionOverview | None) -> str:
        """Return the value of a session in the column of the order, or its name.

        Without such a column, it is empty.
        """
        column = self._column
        if column is None:
            return ""
        text = column.name if session is None else column.value(session)
        missing = column.width - output.columns_of(text)
        return " " * max(0, missing) + f"{text}  "

    def _name(self, info: SessionInfo) -> str:
        name = visible(self._short.get(info.session_id, info.session_id))
        return f"{visible(info.user_id)}/{name}" if self._names_users else name


def label(
    call: options.Call,
    user: options.UserOption,
    session: options.SessionOption,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL",
            help="NAME=VALUE, once or more; an empty value removes the label.",
        ),
    ],
) -> output.Result:
    """Set or remove labels of a session."""
    changes: dict[str, str | None] = {}
    for text in labels:
        name, value = _parsed_label(text)
        changes[name] = value or None
    opened = call.session(user, session)
    opened.head()  # raises if there is no such session
    opened.label(**changes)
    current = opened.labels()

    def show(screen: output.Screen) -> None:
        pairs = [f"{name}={value}" for name, value in current.items()]
        screen.line(", ".join(pairs) or "no labels")

    return output.Result(current, show)


def search(
    call: options.Call,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help='Words to find, "phrases", and filters.'),
    ],
    user: options.ReaderOption = None,
    session: Annotated[
        str | None, options.session_option("Search only in this session.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show at most N events.")
    ] = 20,
    per_session: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Show at most N events of a session while others match; 0: any.",
        ),
    ] = 5,
) -> output.Result:
    """Find events by words, phrases and filters, the best first.

    Any of the words matches.  Events with more of the words, and with rarer ones, come
    first.  A phrase in double quotes must be in each event; quote it for the shell, as
    in '"connection refused"'.  Filters restrict the events: type:tool_result,
    tool:Bash, file:src/app.py, file:src/, model:opus, failed:, failed:no,
    after:2026-03-16, before:2026-03-17, session:NAME.
    """
    query = " ".join(words)
    store = call.store()
    user = options.chosen_user(store, user)
    session = options.optional_session_name(store, user, session)
    result = store.search_with_total(
        user, query, session_id=session, limit=limit, per_session=per_session
    )
    if not result.hits:
        options.sessions(store, user, session)  # raises for a mistyped name
    if result.unreadable:
        sessions = counted(len(result.unreadable), "session")
        names = ", ".join(result.unreadable)
        output.complain(
            f"{sessions} cannot be read and may have more matches ({names}): "
            f"`refold verify --user {user}` says why"
        )

    def show(screen: output.Screen) -> None:
        from refold.store.overviews import titles_of

        names = [hit.session_id for hit in result.hits]
        titles = titles_of(store.log, user, names, now=store.clock())
        short = options.names_in_lists(store, user) if screen.cuts else {}
        for hits in result.by_session():
            session_id = hits[0].session_id
            name = output.shown_in_line(short.get(session_id, session_id))
            title = output.cut(titles.get(session_id, ""), _TITLE_WIDTH)
            for hit in hits:
                screen.line(
                    f"{name} {hit.seq}  ",
                    (hit.type, "bold"),
                    f"  {hit.ts:%Y-%m-%d}",
                    cut=output.shown_in_line(f"  {title}") if title else "",
                )
                for line in _excerpt_lines(hit, min(screen.width, _WIDEST) - _INDENT):
                    screen.line(" " * _INDENT, *line)
            more = hits[0].more_in_session
            if more and session is None:
                most = "" if result.total_is_exact else "at most "
                screen.line(
                    " " * _INDENT,
                    (f"{most}{more:,} more in this session", "dim"),
                    f" (--session {name})",
                )
        shown = len(result.hits)
        if not result.total:
            screen.line("no event matches")
        elif result.total > shown:
            most = "" if result.total_is_exact else "at most "
            total = most + counted(result.total, "event")
            more = max(2 * shown, 20)
            screen.line(f"{shown} of {total}; --limit {more} shows more")

    return output.Result([hit.to_json() for hit in result.hits], show)


_TITLE_WIDTH: Final = 44  # columns of a title after a hit
_INDENT: Final = 4  # columns before an excerpt
_WIDEST: Final = 80  # columns of a line with an excerpt


def _excerpt_lines(hit: SearchHit, width: int) -> Iterator[list[output.Part]]:
    """Yield the excerpt of a hit in lines of a width, with the matches marked."""
    from rich.cells import get_character_cell_size

    characters: list[tuple[str, bool]] = []
    for piece, is_match in hit.pieces():
        for character in output.shown_in_line(piece):
            characters.append((character, is_match))
    while characters:
        end = 0
        columns = 0
        last_space = 0
        for character, _ in characters:
            columns += get_character_cell_size(character)
            if columns > width:
                break
            end += 1
            if character == " ":
                last_space = end
        if end < len(characters) and last_space:
            end = last_space
        yield _parts(characters[:end])
        del characters[:end]


def _parts(characters: Sequence[tuple[str, bool]]) -> list[output.Part]:
    """Return characters as parts of a line; matches are bold."""
    parts: list[output.Part] = []
    for is_match, group in groupby(characters, key=itemgetter(1)):
        text = output.shown("".join(character for character, _ in group))
        parts.append((text, "bold yellow") if is_match else text)
    if not isinstance(parts[-1], tuple):
        parts[-1] = parts[-1].rstrip()
    return parts


def mcp(
    call: options.Call,
    user: options.ReaderOption = None,
) -> None:
    """Let an agent read a user's sessions, by MCP over stdio.

    `refold serve` offers the same tools over HTTP, at /mcp.
    """
    # This needs an extra.
    from refold.adapters.frameworks.mcp import server

    store = call.store()
    only_user = options.chosen_user(store, user)
    server(store, lambda: only_user).run()


def _parsed_label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label."""
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter("give a label as NAME=VALUE")
    return name, value


def _why_none(store: SessionStore, user: str | None) -> str:
    """Return a sentence for an empty list of sessions."""
    if user is None:
        return "no sessions yet: `refold run` and `refold import` add them"
    try:
        store.session(user_id=user, session_id="any").head()
    except Erased:
        return f"user {user!r} was erased"
    except SessionNotFound:
        pass
    return f"user {user!r} has no sessions"


def log(
    call: options.Call,
    session: options.SessionOption,
    user: options.ReaderOption = None,
    after: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show events after this seq.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show at most N entries.")
    ] = None,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Only failures, each result with its call."),
    ] = False,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only calls of this tool and their results.  May be repeated: calls "
            "of any of these tools.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Only calls whose arguments name this file, and their results; the "
            "end of a path is enough.  May be repeated: calls about any of them.",
        ),
    ] = None,
    verbosity: Annotated[
        options.Verbosity,
        typer.Option(
            help="default: everything; compact: one line per event, except user input "
            "and answers; quiet: only the last answer."
        ),
    ] = "default",
    full: options.FullOption = False,
) -> output.Result:
    """Show the timeline of a session.

    Numbers responses and tool calls, and joins each call to its result by a line.
    Shows summaries after the seq at which they were decided, with their stream.
    Cuts long texts on a terminal only.  With --json, each event has "redacted":
    true, which means that it was scanned: "redaction" lists the findings.
    """
    from refold.adapters.cli.timeline import Timeline, show_last_answer
    from refold.adapters.display.events import Numbering
    from refold.adapters.display.filters import RunFilter

    wanted = RunFilter(failed=failed, tools=tuple(tool or ()), files=tuple(file or ()))
    if verbosity == "quiet" and not wanted.is_empty:
        raise typer.BadParameter(
            "--verbosity quiet shows only the last answer: leave out the filters"
        )
    opened = call.session(user, session)
    last_seq = opened.head().seq
    if not wanted.is_empty:
        timeline = partial(Timeline, verbosity=verbosity, last_seq=last_seq, full=full)
        return _filtered(opened, wanted, timeline, after=after, limit=limit)
    entries = opened.history.timeline(after=after, limit=limit)

    def show(screen: output.Screen) -> None:
        if verbosity == "quiet":
            show_last_answer(screen, entries)
            return
        numbering = Numbering()
        if after:
            # Numbers begin at the session's first event, so the earlier ones count.
            for _ in numbering.number(opened.history.pages(upto=after)):
                pass
        timeline = Timeline(screen, verbosity, last_seq=last_seq, full=full)
        if not timeline.show(numbering.number(entries)) and limit != 0:
            output.complain(f"there are no events after seq {after}")

    return output.Result((envelope.to_json() for envelope in entries), show)


def _filtered(
    session: Session,
    wanted: RunFilter,
    timeline: Callable[[output.Screen], Timeline],
    *,
    after: int,
    limit: int | None,
) -> output.Result:
    """Return the events of a session that match a filter."""
    selected = wanted.select(session.history.timeline())

    def matches() -> Iterator[Numbered]:
        # Numbers begin at the session's first event.
        numbered = selected.filtered(session.history.timeline())
        later = (item for item in numbered if item.envelope.seq > after)
        return islice(later, limit)

    def show(screen: output.Screen) -> None:
        if not timeline(screen).show(matches()) and limit != 0:
            output.complain(_why_no_match(wanted, selected, after))

    return output.Result((item.envelope.to_json() for item in matches()), show)


_LISTED_TOOLS: Final = 8


def _why_no_match(wanted: RunFilter, selected: Selected, after: int) -> str:
    """Return a sentence for a filter that selects nothing."""
    parts: list[str] = []
    if len(wanted.tools) == 1:
        parts.append("calls of this tool")
    elif wanted.tools:
        parts.append("calls of these tools")
    if len(wanted.files) == 1:
        parts.append("calls that name this file")
    elif wanted.files:
        parts.append("calls that name one of these files")
    if wanted.failed:
        parts.append("failures")
    if len(parts) > 1:
        reason = f"no event matches all filters ({', '.join(parts)})"
    else:
        reason = f"no {parts[0]}"
    place = f" after seq {after}" if after else ""
    used_tools = {name.lower() for name in selected.tools}
    wanted_tools = {name.lower() for name in wanted.tools}
    if wanted_tools and not wanted_tools & used_tools:
        tools = [name for name, _ in selected.tools.most_common(_LISTED_TOOLS)]
        return f"{reason}{place}; its tools are: {', '.join(tools) or 'none'}"
    return f"{reason}{place} in this session"
