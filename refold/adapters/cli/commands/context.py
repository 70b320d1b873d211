"""``refold context``: what a model is sent, or was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.events import STYLES, origin_words
from refold.adapters.cli.options import (
    As,
    Call,
    SessionOption,
    StrategyOption,
    UserOption,
)
from refold.adapters.cli.output import Result, Screen
from refold.adapters.display import events
from refold.adapters.display.events import DIGEST, content, marks, readable, seqs
from refold.adapters.display.values import types
from refold.domain.errors import counted
from refold.projections.context.units import holds
from refold.store.proofs.provenance import provenance

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.view import View
    from refold.store.proofs.provenance import Provenance


def context(
    call: Call,
    user: UserOption,
    session: SessionOption,
    strategy: StrategyOption = None,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="SEQ", min=1, help="Show the context as it was after this event."
        ),
    ] = None,
    before_call: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Show what the model was sent before its N-th tool call.",
        ),
    ] = None,
    before_response: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Show what the model was sent before its N-th response.",
        ),
    ] = None,
    as_: Annotated[
        As,
        typer.Option(
            "--as",
            help="sent: with the summaries that existed then; rebuilt: with the "
            "summaries that the strategy would have made by then.",
        ),
    ] = "sent",
) -> Result:
    """Show the context that a model is sent, or was sent earlier.

    Makes no summaries: `refold compact` does.
    """
    given = [place for place in (at, before_call, before_response) if place is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "give one of --at, --before-call and --before-response", ctx=call
        )
    chosen = call.store().session(user_id=user, session_id=session)
    chosen.head()
    if before_call is not None:
        at = events.before(chosen.pages(), "tool call", before_call)
    if before_response is not None:
        at = events.before(chosen.pages(), "response", before_response)
    view = chosen.context(strategy, at=at, as_=as_)
    behind = chosen.pages(upto=view.at)
    origin = provenance(chosen.writer.log, chosen.stream, view)
    return Result(
        lambda: view.to_json() | origin.to_json(),
        lambda out: _show(out, view, behind, origin),
    )


_TALL: Final = 8
_FEW: Final = 12


def _show(
    screen: Screen, view: View, behind: Iterable[Envelope], origin: Provenance
) -> None:
    """Print ``view``; ``behind`` are the events up to its seq."""
    told: dict[str, Any] = view.to_json()
    _figures(screen, told, origin)
    if system := told["system"]:
        if not isinstance(system, str):
            system = "\n\n".join(str(block.get("text", "")) for block in system)
        _message(screen, "system", system)
    for message in told["messages"]:
        _message(screen, message["role"], message["content"])
    hidden(screen, told["spans"], behind)


def _figures(screen: Screen, told: Mapping[str, Any], origin: Provenance) -> None:
    over = ("  over its budget", "bold red") if told["over_budget"] else ""
    screen.line(
        (f"{told['strategy']}", "bold"),
        f"  at seq {told['at']}  ",
        (counted(told["tokens"], "token"), "bold"),
        f"  {counted(len(told['messages']), 'message')}",
        over,
    )
    screen.line(*origin_words(origin))
    screen.line((f"digest {told['digest']}", "dim"))
    screen.line((f"strategy fingerprint {told['fingerprint'][:DIGEST]}", "dim"))
    for span in told["spans"]:
        said, first, last = span["kind"], span.get("first"), span.get("last")
        if first is not None:
            said = f"{said:<8} {seqs(first, last)}"
        screen.line(("  " + said, "blue" if span["kind"] == "summary" else "dim"))


def _message(screen: Screen, role: str, content: Any) -> None:
    screen.line("")
    screen.line((role, STYLES["roles"].get(role, "bold")))
    blocks(screen, content)


def blocks(screen: Screen, content: Any) -> None:
    """Print what a message holds: a text, or blocks."""
    whole = [{"type": "text", "text": content}]
    for block in whole if isinstance(content, str) else content:
        head, body, style = _said(block)
        if head:
            screen.line("  ", (head, style))
        screen.body(body, indent="  " if not head else "    ", tall=_TALL)


def _said(block: Mapping[str, Any]) -> tuple[str, str, str]:
    """A block's head line, its text, and the colour of its head."""
    match block.get("type"):
        case "text":
            return "", str(block["text"]), ""
        case "thinking":
            return "thinking", str(block.get("thinking") or ""), "dim"
        case "tool_use":
            head = f"calls {block.get('name')} ({block.get('id')})"
            return head, readable(block.get("input")), "yellow"
        case "tool_result":
            how = " (failed)" if block.get("is_error") else ""
            head = f"result{how} of {block.get('tool_use_id')}"
            return head, content(block.get("content")), "red" if how else "green"
        case kind:
            rest = {key: item for key, item in block.items() if key != "type"}
            return str(kind), readable(rest), "magenta"


def hidden(
    screen: Screen, spans: Sequence[Mapping[str, Any]], behind: Iterable[Envelope]
) -> None:
    """Say what redaction and the size guard replaced in the events behind a view."""
    found: Counter[str] = Counter()
    places: dict[str, list[int]] = {}
    stubs: list[int] = []
    placed = [span for span in spans if span.get("first") is not None]
    shown = tuple((span["first"], span["last"]) for span in placed)
    for envelope in behind:
        if not holds(shown, envelope.seq):
            continue
        seen = marks(envelope)
        found.update(seen.redacted)
        for kind in seen.redacted:
            places.setdefault(kind, []).append(envelope.seq)
        if seen.guarded:
            stubs.append(envelope.seq)
    screen.line("")
    screen.line(("replaced before storing", "bold"), " in the events of this context")
    for kind, count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        where = f"  in seq {_listed(places[kind])}"
        screen.line("  ", (types({kind: count}), "red"), where)
    if stubs:
        what = "texts moved to blobs (too large, or base64):"
        screen.line("  ", (what, "yellow"), f" in seq {_listed(stubs)}")
    if not found and not stubs:
        screen.line("  nothing")


def _listed(seqs: Sequence[int]) -> str:
    more = f" and {len(seqs) - _FEW} more" if len(seqs) > _FEW else ""
    return ", ".join(map(str, seqs[:_FEW])) + more
