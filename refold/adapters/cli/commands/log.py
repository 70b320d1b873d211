"""``refold sessions`` and ``refold log``: what there is, and what happened in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters.cli import options, output
from refold.adapters.cli.events import STYLES, Rails
from refold.adapters.display import values
from refold.adapters.display.events import Numbering, marks, preview_of
from refold.domain import events
from refold.domain.errors import Erased, SessionNotFound, counted
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput

if TYPE_CHECKING:
    from refold.adapters.display.events import Numbered, Preview
    from refold.domain.envelope import Envelope
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
    labels = dict(map(_label, label or ()))
    found = options.pages(store, user, label=labels, after=after, limit=limit)
    first = next(found, [])

    def show(out: output.Screen) -> None:
        names = ("user", "session", "#events", "#tokens", "last write (UTC)")
        if first:
            for page in chain([first], found):
                out.table(names, map(_row, page))
        elif labels or after or limit is not None:
            out.line("no other sessions are like that")
        else:
            out.line(_none(store, user))

    told = (info.to_json() for info in chain(first, chain.from_iterable(found)))
    return output.Result(output.Array(told), show)


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
    given = {name: value or None for name, value in map(_label, labels)}
    one = call.store().session(user_id=user, session_id=session)
    one.head()
    one.label(**given)
    kept = one.labels()
    told = [f"{name}={value}" for name, value in kept.items()]
    return output.Result(kept, lambda out: out.line(", ".join(told) or "no labels"))


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
    store, said = call.store(), " ".join(words)
    found = store.search(user, said, session_id=session, limit=limit)

    def show(out: output.Screen) -> None:
        for one in found:
            where = f"{one.session_id} {one.seq}  "
            out.line(where, (one.type, "bold"), "  ", output.shown(one.snippet))
        if not found:
            out.line("no event has all of these words")

    return output.Result([one.to_json() for one in found], show)


def mcp(
    call: options.Call,
    user: options.UserOption,
) -> None:
    """Let an agent read a user's sessions, by MCP over stdio.

    `refold serve` offers the same tools over HTTP, at /mcp.
    """
    # It needs an extra.
    from refold.adapters.frameworks.mcp import server

    server(call.store(), lambda: user).run()


def _label(given: str) -> tuple[str, str]:
    name, found, value = given.partition("=")
    if not found:
        raise typer.BadParameter("give a label as NAME=VALUE")
    return name, value


def _none(store: SessionStore, user: str | None) -> str:
    if user is None:
        return "no sessions yet: `refold import` adds transcripts"
    try:
        store.session(user_id=user, session_id="any").head()
    except Erased:
        return f"user {user!r} was erased"
    except SessionNotFound:
        pass
    return f"user {user!r} has no sessions"


_MINUTE: Final = len("2026-03-16 10:00")


def _row(info: SessionInfo) -> list[output.Part]:
    ended = "" if info.status == "open" else f" ({info.status})"
    minute = values.moment(info.updated_at)[:_MINUTE]
    counts = map(values.number, (info.head_seq, info.tokens))
    return [info.user_id, info.session_id + ended, *counts, minute]


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
    chosen = call.store().session(user_id=user, session_id=session)
    last = chosen.head().seq
    entries = chosen.timeline(after=after, limit=limit)

    def show(screen: output.Screen) -> None:
        if verbosity == "quiet":
            _answer(screen, entries)
            return
        numbering = Numbering()
        for _ in numbering.number(chosen.pages(upto=after) if after else ()):
            pass  # numbers count from the session's first event on
        timeline = Timeline(screen, verbosity, last_seq=last)
        if not timeline.show(numbering.number(entries)):
            output.complain(f"there are no events after seq {after}")

    return output.Result((envelope.to_json() for envelope in entries), show)


def _answer(screen: output.Screen, entries: Iterable[Envelope]) -> None:
    answer = ""
    for envelope in entries:
        if isinstance(envelope.payload, AgentResponse | events.Final):
            answer = envelope.payload.text or answer
    if answer:
        screen.line(output.shown(answer))
    else:
        output.complain("there is no answer in this part of the session")


_TALL: Final = 6
_STREAM: Final = 12
_SHORTEST: Final = 20


class Timeline:
    """Prints events as they come, in the order of the log."""

    def __init__(
        self, screen: output.Screen, verbosity: options.Verbosity, *, last_seq: int
    ) -> None:
        self._screen, self._short = screen, verbosity == "compact"
        self._seq = max(3, len(str(last_seq)))
        self._rails = Rails()
        self._day = ""

    def show(self, numbered: Iterable[Numbered]) -> int:
        """Print them; returns how many there were."""
        count = 0
        for item, whole in _with_answers(numbered):
            self._date(item.envelope)
            self._event(item, whole)
            count += 1
        return count

    def _date(self, envelope: Envelope) -> None:
        if envelope.stream != "main":
            return
        day = f"{envelope.ts:%Y-%m-%d}"
        if isinstance(envelope.payload, UserInput) or day != self._day:
            self._screen.line("")
        if day != self._day:
            self._day = day
            self._screen.line((f"{'':>{self._seq}}  {day} UTC", "dim"))

    def _event(self, item: Numbered, whole: bool) -> None:
        said = preview_of(item.envelope)
        if self._short and not whole:
            self._one_line(item, said)
            return
        self._head(item, said)
        margin = (" " * (self._seq + 11), (self._rails.passing(), "yellow"), " ")
        tall = None if whole or self._short else _TALL
        self._screen.body(said.body, indent=margin, tall=tall)

    def _one_line(self, item: Numbered, said: Preview) -> None:
        body = "" if item.envelope.stream != "main" else said.body
        lines = [line.strip() for line in body.split("\n") if line.strip()]
        taken = 1
        while len(" ".join(lines[:taken])) < _SHORTEST and taken < len(lines):
            taken += 1
        left = len(lines) - taken
        more = f"  (+{counted(left, 'line')})" if left > 0 else ""
        self._head(item, said, " ".join(lines[:taken]) + more)

    def _head(self, item: Numbered, said: Preview, text: str = "") -> None:
        """The line that an event begins with: marks and tokens stand at its end."""
        envelope = item.envelope
        style = STYLES["events"].get(envelope.type, "dim")
        derived = envelope.stream != "main"
        nth = item.response if item.call is None else item.call
        seq = f"·{envelope.seq}" if derived else str(envelope.seq)
        head: list[output.Part] = [
            (f"{seq:>{self._seq}}  {envelope.ts:%H:%M:%S} ", "dim"),
            (self._rail(item), "yellow"),
            " ",
            (envelope.type, "bold red" if said.failed else style),
            ("" if nth is None else f" #{nth}", style),
        ]
        if envelope.agent:
            head += [("  agent ", "dim"), output.shown(envelope.agent)]
        if said.note:
            head += ["  ", output.shown(said.note)]
        if item.call and item.began == envelope.seq and not self._short:
            head.append((f"  response #{item.response}", "dim"))
        if derived:
            head.append((f"  stream {envelope.stream[:_STREAM]}", "dim"))
        said_here = output.shown(f"  {text}") if text else ""
        self._screen.line(*head, cut=said_here, end=_end(envelope))

    def _rail(self, item: Numbered) -> str:
        match item.envelope.payload:
            case ToolCall(call_id=call_id):
                return self._rails.open(call_id)
            case ToolResult(call_id=call_id):
                return self._rails.close(call_id)
        return self._rails.passing()


def _end(envelope: Envelope) -> list[output.Part]:
    hidden, end = marks(envelope), list[output.Part]()
    if hidden.redacted:
        redacted = f" redacted {values.types(hidden.redacted)} "
        end += [(redacted, "bold white on red"), "  "]
    if hidden.guarded:
        times = f" × {hidden.guarded}" if hidden.guarded > 1 else ""
        end += [(f" guarded{times} ", "black on yellow"), "  "]
    if hidden.warnings:
        end += [(f" {', '.join(hidden.warnings)} ", "black on yellow"), "  "]
    return [*end, (f"{envelope.token_estimate:,} tok", "dim")]


def _with_answers(numbered: Iterable[Numbered]) -> Iterator[tuple[Numbered, bool]]:
    """Each event, and whether it is the user's or the last answer of its turn."""
    held: list[Numbered] = []
    for item in numbered:
        users = isinstance(item.envelope.payload, UserInput)
        if users or _is_answer(item):
            yield from _released(held, last=users)
            held = []
        held.append(item)
    yield from _released(held, last=True)


def _released(held: list[Numbered], *, last: bool) -> Iterator[tuple[Numbered, bool]]:
    for item in held:
        users = isinstance(item.envelope.payload, UserInput)
        yield item, users or (last and _is_answer(item))


def _is_answer(item: Numbered) -> bool:
    said = item.envelope.payload
    return isinstance(said, AgentResponse | events.Final) and bool(said.text.strip())
