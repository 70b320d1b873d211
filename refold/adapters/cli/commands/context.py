"""``refold context``: the context that a model is sent, or was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.events import STYLES, origin_words
from refold.adapters.cli.options import (
    As,
    Call,
    FullOption,
    ReaderOption,
    SessionOption,
    StrategyOption,
)
from refold.adapters.cli.output import Result, Screen
from refold.adapters.display.events import (
    DIGEST,
    changes_to,
    readable,
    result_text,
    seq_before,
    seqs,
)
from refold.adapters.display.values import type_counts
from refold.domain.errors import counted
from refold.projections.context.edits import applied
from refold.projections.context.units import holds
from refold.store.proofs.provenance import provenance
from refold.store.session.core import viewer_of

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.units import Spans
    from refold.projections.context.view import View
    from refold.store.proofs.provenance import Provenance


def context(
    call: Call,
    session: SessionOption,
    user: ReaderOption = None,
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
    full: FullOption = False,
) -> Result:
    """Show the context that a model is sent, or was sent earlier.

    Makes no summaries: `refold compact` does.  Cuts long texts on a terminal only.
    """
    positions = [at, before_call, before_response]
    if positions.count(None) < 2:
        raise typer.BadParameter(
            "give one of --at, --before-call and --before-response", ctx=call
        )
    opened = call.session(user, session)
    opened.head()  # raises if there is no such session
    if before_call is not None:
        at = seq_before(opened.history.pages(), "tool call", before_call)
    if before_response is not None:
        at = seq_before(opened.history.pages(), "response", before_response)
    view = opened.context(strategy, at=at, as_=as_)
    envelopes = opened.history.pages(upto=view.at)
    origin = provenance(opened.writer.log, opened.stream, view)

    def show(screen: Screen) -> None:
        by_client = applied(viewer_of(opened).history.edits(upto=view.at)).left_out
        _show(screen, view, envelopes, origin, by_client, full=full)

    return Result(lambda: view.to_json() | origin.to_json(), show)


_MAX_LINES: Final = 8  # printed of a text on a terminal
_MAX_LINES_OF_USER: Final = 40  # printed of a text of the user
# In the text of summaries, which has the role of the user.
_SUMMARY_TAG: Final = "<summary "
_MAX_SEQS: Final = 12  # listed before "and 3 more"


def _show(
    screen: Screen,
    view: View,
    envelopes: Iterable[Envelope],
    origin: Provenance,
    by_client: Spans,
    *,
    full: bool,
) -> None:
    """Print a view.

    envelopes: the events of the session up to the seq of the view.
    by_client: the events that the client took out of its own context.
    full:      print long texts in full on a terminal, too.
    """
    view_json: dict[str, Any] = view.to_json()
    _show_figures(screen, view_json, origin)
    if by_client:
        listed = ", ".join(seqs(*span).removeprefix("seq ") for span in by_client)
        reason = "the client took these events out of its own context"
        text = f"seq {listed}: {reason}"
        for number, line in enumerate(wrap(text, screen.width - len(_LEFT_OUT))):
            screen.line((" " * len(_LEFT_OUT) if number else _LEFT_OUT, "yellow"), line)
    system = view_json["system"]
    if system:
        if not isinstance(system, str):
            system = "\n\n".join(str(block.get("text", "")) for block in system)
        _show_message(screen, "system", system, full=full)
    for message in view_json["messages"]:
        _show_message(screen, message["role"], message["content"], full=full)
    show_replacements(screen, view_json["spans"], envelopes)


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
        screen.line((_LEFT_OUT, "yellow"), cut["reason"])
    last_text = ""
    for span in view["spans"]:
        text = f"  {span['kind']}"
        first = span.get("first")
        if first is not None:
            text = f"  {span['kind']:<8} {seqs(first, span.get('last'))}"
        if text == last_text:  # what the user said in a summarized span has its place
            continue
        last_text = text
        screen.line((text, "blue" if span["kind"] == "summary" else "dim"))


_LEFT_OUT: Final = "left out  "


def _show_message(screen: Screen, role: str, content: Any, *, full: bool) -> None:
    """Print a message of a view."""
    screen.line("")
    screen.line((role, STYLES["roles"].get(role, "bold")))
    show_blocks(screen, content, is_users=role == "user", full=full)


def show_blocks(
    screen: Screen, content: Any, *, is_users: bool = False, full: bool = False
) -> None:
    """Print the content of a message: a text, or blocks.

    is_users: whether it is a message of the user, whose texts are cut later.
    full:     print long texts in full on a terminal, too.
    """
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in content:
        head, body, style = _parts(block)
        indent = "  "
        if head:
            screen.line(indent, (head, style))
            indent = "    "
        max_lines = _MAX_LINES
        if is_users and block.get("type") == "text" and _SUMMARY_TAG not in body:
            max_lines = _MAX_LINES_OF_USER
        screen.body(body, indent=indent, max_lines=None if full else max_lines)


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
            body = result_text(block.get("content"))
            call = block.get("tool_use_id")
            if block.get("is_error"):
                return f"result (failed) of {call}", body, "red"
            return f"result of {call}", body, "green"
        case kind:
            fields = {key: item for key, item in block.items() if key != "type"}
            return str(kind), readable(fields), "magenta"


def show_replacements(
    screen: Screen, spans: Sequence[Mapping[str, Any]], envelopes: Iterable[Envelope]
) -> None:
    """Print what was replaced before the events of a view were stored.

    Redaction replaced values by placeholders.  The size guard moved texts to blobs and
    left stubs.
    """
    counts: Counter[str] = Counter()
    seqs_of_type: dict[str, list[int]] = {}
    seqs_of_stubs: list[int] = []
    spans_of_seqs: list[tuple[int, int]] = []
    for span in spans:
        if span.get("first") is not None:
            spans_of_seqs.append((span["first"], span["last"]))
    for envelope in envelopes:
        if not holds(tuple(spans_of_seqs), envelope.seq):
            continue
        changes = changes_to(envelope)
        counts.update(changes.redacted)
        for redacted_type in changes.redacted:
            seqs_of_type.setdefault(redacted_type, []).append(envelope.seq)
        if changes.stubs:
            seqs_of_stubs.append(envelope.seq)
    screen.line("")
    screen.line(("replaced before storing", "bold"), " in the events of this context")
    most_frequent_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for redacted_type, count in most_frequent_first:
        place = f"  in seq {_listed(seqs_of_type[redacted_type])}"
        screen.line("  ", (type_counts({redacted_type: count}), "red"), place)
    if seqs_of_stubs:
        label = "texts moved to blobs (too large, or base64):"
        screen.line("  ", (label, "yellow"), f" in seq {_listed(seqs_of_stubs)}")
    if not counts and not seqs_of_stubs:
        screen.line("  nothing")


def _listed(seqs: Sequence[int]) -> str:
    """Return the first seqs as text, and the number of the others."""
    text = ", ".join(map(str, seqs[:_MAX_SEQS]))
    others = len(seqs) - _MAX_SEQS
    if others > 0:
        text += f" and {others} more"
    return text
