"""``refold log``: what happened in a session, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from refold.adapters.cli import options as opening, output as wording
from refold.adapters.cli.options import Json, OneSession, SomeUser, User, Verbosity
from refold.adapters.cli.output import (
    Marks,
    Screen,
    complain,
    counted,
    marks,
    print_json,
    shown,
    types,
)
from refold.adapters.cli.previews import (
    OTHER_STYLE,
    STYLES,
    Numbered,
    Preview,
    Rails,
    preview,
)
from refold.domain import events
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.domain.ports import SessionInfo
    from refold.store import Session


def log(
    context: typer.Context,
    user: User,
    session: OneSession,
    after: Annotated[
        int, typer.Option(min=0, metavar="N", help="Begin behind this seq.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Show at most N entries.")
    ] = None,
    verbosity: Annotated[
        Verbosity,
        typer.Option(
            help="default: everything; compact: a line each, but for what the user "
            "said and each turn's answer; quiet: the last answer alone."
        ),
    ] = Verbosity.DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the timeline of a session.

    Responses and tool calls are numbered, and a call is joined to its result.
    Summaries stand behind the seq at which they were decided, with their stream.
    On a terminal a long text is cut; piped, or with --json, nothing is.
    """
    with opening.existing(context) as store:
        chosen = store.session(user, session)
        last = chosen.head().seq
        entries = chosen.timeline(after=after, limit=limit)
        if as_json:
            for envelope in entries:
                print_json(envelope.to_json())
        elif verbosity is Verbosity.QUIET:
            _answer(entries)
        else:
            numbered = _numbered(chosen, entries, after)
            if not _show(numbered, verbosity, last):
                complain(f"there is nothing behind seq {after}")


def _numbered(
    session: Session, entries: Iterable[Envelope], after: int
) -> Iterator[Numbered]:
    """The entries with their numbers, counted from the session's first event on."""
    from refold.adapters.cli.previews import Numbering

    numbering = Numbering()
    for _ in numbering.number(session.pages(upto=after) if after else ()):
        pass
    return numbering.number(entries)


def _show(numbered: Iterable[Numbered], verbosity: Verbosity, last: int) -> int:
    from refold.adapters.cli.output import Screen

    return Timeline(Screen(), verbosity, last_seq=last).show(numbered)


def _answer(entries: Iterable[Envelope]) -> None:
    """Print the last thing that the agent said as an answer, and nothing else."""
    from refold.adapters.cli.output import Screen, shown
    from refold.domain.events import AgentResponse, Final as Ending

    answer = ""
    for envelope in entries:
        if (
            isinstance(envelope.payload, AgentResponse | Ending)
            and envelope.payload.text
        ):
            answer = envelope.payload.text
    if answer:
        Screen().text(shown(answer))
    else:
        complain("there is no answer in this part of the session")


_TALL: Final = 6
_STREAM: Final = 12
_SHORTEST: Final = 20


class Timeline:
    """Prints events as they come, in the order of the log."""

    def __init__(self, screen: Screen, verbosity: Verbosity, *, last_seq: int) -> None:
        self._screen, self._short = screen, verbosity is Verbosity.COMPACT
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
        said = preview(item.envelope.payload)
        if self._short and not whole:
            self._one_line(item, said)
            return
        self._screen.text(self._head(item, said, ""))
        tall = None if whole or self._short else _TALL
        self._body(said.body, tall)

    def _one_line(self, item: Numbered, said: Preview) -> None:
        body = "" if item.envelope.stream != "main" else said.body
        lines = [line.strip() for line in body.split("\n") if line.strip()]
        taken = 1
        while len(" ".join(lines[:taken])) < _SHORTEST and taken < len(lines):
            taken += 1
        left = len(lines) - taken
        more = f"  (+{counted(left, 'line')})" if left > 0 else ""
        self._screen.text(self._head(item, said, " ".join(lines[:taken]) + more))

    def _head(self, item: Numbered, said: Preview, text: str) -> Text:
        """The line that an event begins with, cut to the terminal's width."""
        envelope = item.envelope
        style = STYLES.get(envelope.type, OTHER_STYLE)
        derived = envelope.stream != "main"
        seq = f"·{envelope.seq}" if derived else str(envelope.seq)
        head = Text.assemble(
            (f"{seq:>{self._seq}}  ", "dim"),
            (f"{envelope.ts:%H:%M:%S} ", "dim"),
            (self._rail(item), "yellow"),
            " ",
            (envelope.type, "bold red" if said.failed else style),
            (_number(item), style),
        )
        if envelope.agent:
            head.append("  agent ", "dim").append_text(shown(envelope.agent))
        if said.note:
            head.append("  ").append_text(shown(said.note))
        if item.call and item.began == envelope.seq and not self._short:
            head.append(f"  response #{item.response}", "dim")
        if derived:
            head.append(f"  stream {envelope.stream[:_STREAM]}", "dim")
        return self._with_end(head, text, _end(envelope, marks(envelope)))

    def _with_end(self, head: Text, text: str, end: Text) -> Text:
        """Put marks and tokens at the line's end, and ``text`` between as it fits."""
        if text:
            head.append("  ").append_text(shown(text))
        width = self._screen.width
        if width is None:
            return Text.assemble(head, "  ", end)
        room = width - end.cell_len - 2
        head.truncate(max(room, _SHORTEST), overflow="ellipsis")
        return Text.assemble(head, " " * max(2, room - head.cell_len + 2), end)

    def _rail(self, item: Numbered) -> str:
        if item.envelope.stream != "main":
            return self._rails.passing()
        match item.envelope.payload:
            case ToolCall(call_id=call_id):
                return self._rails.open(call_id)
            case ToolResult(call_id=call_id):
                return self._rails.close(call_id)
            case _:
                return self._rails.passing()

    def _body(self, body: str, tall: int | None) -> None:
        rail = (self._rails.passing(), "yellow")
        margin = Text.assemble(" " * (self._seq + 11), rail, " ")
        self._screen.body(body, indent=margin, tall=tall)


def _number(item: Numbered) -> str:
    if item.call is not None:
        return f" #{item.call}"
    return f" #{item.response}" if item.response is not None else ""


def _end(envelope: Envelope, hidden: Marks) -> Text:
    end = Text()
    if hidden.redacted:
        end.append(f" redacted {types(hidden.redacted)} ", "bold white on red")
        end.append("  ")
    if hidden.guarded:
        times = f" × {hidden.guarded}" if hidden.guarded > 1 else ""
        end.append(f" guarded{times} ", "black on yellow")
        end.append("  ")
    if hidden.warnings:
        end.append(f" {', '.join(hidden.warnings)} ", "black on yellow")
        end.append("  ")
    return end.append(f"{envelope.token_estimate:,} tok", "dim")


def _with_answers(numbered: Iterable[Numbered]) -> Iterator[tuple[Numbered, bool]]:
    """Each event, and whether it is the user's or the last answer of its turn."""
    held: list[Numbered] = []
    for item in numbered:
        payload = item.envelope.payload
        if isinstance(payload, UserInput) or _is_answer(item):
            yield from _released(held, last=isinstance(payload, UserInput))
            held = []
        held.append(item)
    yield from _released(held, last=True)


def _released(held: list[Numbered], *, last: bool) -> Iterator[tuple[Numbered, bool]]:
    for item in held:
        users = isinstance(item.envelope.payload, UserInput)
        yield item, users or (last and _is_answer(item))


def _is_answer(item: Numbered) -> bool:
    payload = item.envelope.payload
    return isinstance(payload, AgentResponse | events.Final) and bool(
        payload.text.strip()
    )


def sessions(
    context: typer.Context, user: SomeUser = None, as_json: Json = False
) -> None:
    """List the sessions, with their size and age."""
    with opening.existing(context) as store:
        found = store.sessions(user)
    if as_json:
        print_json([_as_json(info) for info in found])
        return
    _sessions_show(found, user)


def _sessions_show(found: list[SessionInfo], user: str | None) -> None:
    from refold.adapters.cli.output import Screen

    out = Screen()
    if not found:
        whose = f" of user {user!r}" if user else ""
        out.line(f"no sessions{whose} yet: `refold import` brings transcripts in")
        return
    out.table(
        ("user", "session", "#events", "#tokens", "begun (UTC)", "last change (UTC)"),
        (
            (
                info.user_id,
                info.session_id
                + ("" if info.status == "open" else f" ({info.status})"),
                wording.number(info.head_seq),
                wording.number(info.tokens),
                wording.moment(info.created_at),
                wording.moment(info.updated_at),
            )
            for info in found
        ),
    )


def _as_json(info: SessionInfo) -> dict[str, object]:
    return {
        "user_id": info.user_id,
        "session_id": info.session_id,
        "head_seq": info.head_seq,
        "created_at": wording.rfc3339(info.created_at),
        "updated_at": wording.rfc3339(info.updated_at),
        "tokens": info.tokens,
    }
