"""``refold context``: the context that a model is sent, or was sent."""

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
    positions = [at, before_call, before_response]
    if positions.count(None) < 2:
        raise typer.BadParameter(
            "give one of --at, --before-call and --before-response", ctx=call
        )
    opened = call.store().session(user_id=user, session_id=session)
    opened.head()  # raises if there is no such session
    if before_call is not None:
        at = events.before(opened.history.pages(), "tool call", before_call)
    if before_response is not None:
        at = events.before(opened.history.pages(), "response", before_response)
    view = opened.context(strategy, at=at, as_=as_)
    source = opened.history.pages(upto=view.at)
    origin = provenance(opened.writer.log, opened.stream, view)
    return Result(
        lambda: view.to_json() | origin.to_json(),
        lambda screen: _show(screen, view, source, origin),
    )


_TALL: Final = 8  # lines of a text
_FEW: Final = 12  # seqs that are listed


def _show(
    screen: Screen, view: View, source: Iterable[Envelope], origin: Provenance
) -> None:
    """Print a view; ``source`` has the session's events up to its seq."""
    view_json: dict[str, Any] = view.to_json()
    _show_figures(screen, view_json, origin)
    system = view_json["system"]
    if system:
        if not isinstance(system, str):
            system = "\n\n".join(str(block.get("text", "")) for block in system)
        _show_message(screen, "system", system)
    for message in view_json["messages"]:
        _show_message(screen, message["role"], message["content"])
    hidden(screen, view_json["spans"], source)


def _show_figures(screen: Screen, view: Mapping[str, Any], origin: Provenance) -> None:
    """Print the size of a view, its origin, its digests, and its spans."""
    over = ("  over its budget", "bold red") if view["over_budget"] else ""
    screen.line(
        (f"{view['strategy']}", "bold"),
        f"  at seq {view['at']}  ",
        (counted(view["tokens"], "token"), "bold"),
        f"  {counted(len(view['messages']), 'message')}",
        over,
    )
    screen.line(*origin_words(origin))
    screen.line((f"digest {view['digest']}", "dim"))
    screen.line((f"strategy fingerprint {view['fingerprint'][:DIGEST]}", "dim"))
    for cut in view["cuts"]:
        screen.line(("left out  ", "yellow"), cut["reason"])
    for span in view["spans"]:
        text = f"  {span['kind']}"
        first = span.get("first")
        if first is not None:
            text = f"  {span['kind']:<8} {seqs(first, span.get('last'))}"
        screen.line((text, "blue" if span["kind"] == "summary" else "dim"))


def _show_message(screen: Screen, role: str, content: Any) -> None:
    """Print a message of a view."""
    screen.line("")
    screen.line((role, STYLES["roles"].get(role, "bold")))
    blocks(screen, content)


def blocks(screen: Screen, content: Any) -> None:
    """Print the content of a message: a text, or blocks."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in content:
        head, body, style = _parts(block)
        indent = "  "
        if head:
            screen.line(indent, (head, style))
            indent = "    "
        screen.body(body, indent=indent, tall=_TALL)


def _parts(block: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the head line of a block, its text, and the style of the head."""
    match block.get("type"):
        case "text":
            return "", str(block["text"]), ""
        case "thinking":
            return "thinking", str(block.get("thinking") or ""), "dim"
        case "tool_use":
            head = f"calls {block.get('name')} ({block.get('id')})"
            return head, readable(block.get("input")), "yellow"
        case "tool_result":
            body = content(block.get("content"))
            call = block.get("tool_use_id")
            if block.get("is_error"):
                return f"result (failed) of {call}", body, "red"
            return f"result of {call}", body, "green"
        case kind:
            rest = {key: item for key, item in block.items() if key != "type"}
            return str(kind), readable(rest), "magenta"


def hidden(
    screen: Screen, spans: Sequence[Mapping[str, Any]], source: Iterable[Envelope]
) -> None:
    """Print the replacements by redaction and the size guard in a view's events."""
    counts: Counter[str] = Counter()
    seqs_of_type: dict[str, list[int]] = {}
    seqs_of_stubs: list[int] = []
    in_view: list[tuple[int, int]] = []
    for span in spans:
        if span.get("first") is not None:
            in_view.append((span["first"], span["last"]))
    for envelope in source:
        if not holds(tuple(in_view), envelope.seq):
            continue
        changes = marks(envelope)
        counts.update(changes.redacted)
        for redacted_type in changes.redacted:
            seqs_of_type.setdefault(redacted_type, []).append(envelope.seq)
        if changes.guarded:
            seqs_of_stubs.append(envelope.seq)
    screen.line("")
    screen.line(("replaced before storing", "bold"), " in the events of this context")
    for redacted_type, count in sorted(
        counts.items(), key=lambda item: (-item[1], item[0])
    ):
        place = f"  in seq {_listed(seqs_of_type[redacted_type])}"
        screen.line("  ", (types({redacted_type: count}), "red"), place)
    if seqs_of_stubs:
        label = "texts moved to blobs (too large, or base64):"
        screen.line("  ", (label, "yellow"), f" in seq {_listed(seqs_of_stubs)}")
    if not counts and not seqs_of_stubs:
        screen.line("  nothing")


def _listed(seqs: Sequence[int]) -> str:
    """Return the first seqs as text, and the number of the others."""
    text = ", ".join(map(str, seqs[:_FEW]))
    others = len(seqs) - _FEW
    if others > 0:
        text += f" and {others} more"
    return text
