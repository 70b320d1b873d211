"""``refold sessions``, ``log``, ``search``, ``label`` and ``mcp``."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.domain.errors import Erased, SessionNotFound

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.store import SessionStore


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
        typer.Option(metavar="S", help="Only sessions after this one, by name."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show at most N sessions.")
    ] = None,
) -> output.Result:
    """List sessions with their size and age."""
    store = call.store()
    labels = dict(_parsed_label(text) for text in label or ())
    pages = options.pages(store, user, label=labels, after=after, limit=limit)
    first = next(pages, [])

    def show(screen: output.Screen) -> None:
        names = ("user", "session", "#events", "#tokens", "last write (UTC)")
        if first:
            for page in chain([first], pages):
                screen.table(names, map(_row, page))
        elif labels or after or limit is not None:
            screen.line("no session matches")
        else:
            screen.line(_why_none(store, user))

    infos = chain(first, chain.from_iterable(pages))
    return output.Result(output.Array(info.to_json() for info in infos), show)


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
    opened = call.store().session(user_id=user, session_id=session)
    opened.head()  # raises if there is no such session
    opened.label(**changes)
    current = opened.labels()

    def show(screen: output.Screen) -> None:
        pairs = [f"{name}={value}" for name, value in current.items()]
        screen.line(", ".join(pairs) or "no labels")

    return output.Result(current, show)


def search(
    call: options.Call,
    user: options.UserOption,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="Words that each event must contain."),
    ],
    session: Annotated[
        str | None, options.session_option("Search only in this session.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show at most N events.")
    ] = 20,
) -> output.Result:
    """Find events that contain all the given words."""
    query = " ".join(words)
    store = call.store()
    hits = store.search(user, query, session_id=session, limit=limit)
    if not hits:
        options.sessions(store, user, session)  # raises for a mistyped name

    def show(screen: output.Screen) -> None:
        for hit in hits:
            place = f"{hit.session_id} {hit.seq}  "
            screen.line(place, (hit.type, "bold"), "  ", output.shown(hit.snippet))
        if not hits:
            screen.line("no event contains all of these words")

    return output.Result([hit.to_json() for hit in hits], show)


def mcp(
    call: options.Call,
    user: options.UserOption,
) -> None:
    """Let an agent read a user's sessions, by MCP over stdio.

    `refold serve` offers the same tools over HTTP, at /mcp.
    """
    # This needs an extra.
    from refold.adapters.frameworks.mcp import server

    server(call.store(), lambda: user).run()


def _parsed_label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label."""
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter("give a label as NAME=VALUE")
    return name, value


def _why_none(store: SessionStore, user: str | None) -> str:
    """Return a sentence for an empty list of sessions."""
    if user is None:
        return "no sessions yet: `refold import` adds transcripts"
    try:
        store.session(user_id=user, session_id="any").head()
    except Erased:
        return f"user {user!r} was erased"
    except SessionNotFound:
        pass
    return f"user {user!r} has no sessions"


_TO_THE_MINUTE: Final = len("2026-03-16 10:00")


def _row(info: SessionInfo) -> list[output.Part]:
    """Return the row of a session."""
    status = "" if info.status == "open" else f" ({info.status})"
    return [
        info.user_id,
        info.session_id + status,
        values.number(info.head_seq),
        values.number(info.tokens),
        values.moment(info.updated_at)[:_TO_THE_MINUTE],
    ]


def log(
    call: options.Call,
    user: options.UserOption,
    session: options.SessionOption,
    after: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show events after this seq.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show at most N entries.")
    ] = None,
    verbosity: Annotated[
        options.Verbosity,
        typer.Option(
            help="default: everything; compact: one line per event, except user input "
            "and answers; quiet: only the last answer."
        ),
    ] = "default",
) -> output.Result:
    """Show the timeline of a session.

    Numbers responses and tool calls, and joins each call to its result by a line.
    Shows summaries after the seq at which they were decided, with their stream.
    Cuts long texts on a terminal only.  With --json, each event has "redacted":
    true, which means that it was scanned: "redaction" lists the findings.
    """
    from refold.adapters.cli.timeline import Timeline, show_last_answer
    from refold.adapters.display.events import Numbering

    opened = call.store().session(user_id=user, session_id=session)
    last_seq = opened.head().seq
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
        timeline = Timeline(screen, verbosity, last_seq=last_seq)
        if not timeline.show(numbering.number(entries)):
            output.complain(f"there are no events after seq {after}")

    return output.Result((envelope.to_json() for envelope in entries), show)
