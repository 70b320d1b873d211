"""``refold why``: the parts of a context, what it omits, and the proof."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.events import STYLES, origin_words
from refold.adapters.cli.options import Call, SessionOption, StrategyOption, UserOption
from refold.adapters.cli.output import Result, Screen, cut, shown
from refold.adapters.display.events import DIGEST, preview, seqs
from refold.adapters.display.values import types, visible
from refold.domain.errors import counted
from refold.projections.context.units import spans_of
from refold.store.proofs.explanations import BECAUSE, LEFT_OUT

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.why import Asked, Part
    from refold.store.proofs.explanations import Explanation, Record


def why(
    call: Call,
    user: UserOption,
    session: SessionOption,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="SEQ",
            min=1,
            help="Explain the context as it was after this event, or that of a "
            "request.  Default: now.",
        ),
    ] = None,
    message: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Explain only the N-th message, event by event."
        ),
    ] = None,
    open_: Annotated[
        int | None,
        typer.Option(
            "--open",
            metavar="SUMMARY",
            min=1,
            help="Open this summary down to its events.",
        ),
    ] = None,
    strategy: StrategyOption = None,
) -> Result:
    """Explain why a context is as it is, with proof.

    Shows each part with its events and the decision behind it, which is repeated to
    check it; then the omitted events, and why.  Exits with 1 if a proof does not
    hold.
    """
    if message is not None and open_ is not None:
        raise typer.BadParameter("give one of --message and --open", ctx=call)
    chosen = call.store().session(user_id=user, session_id=session)
    explained = chosen.why(strategy, at=at, message=message)
    code = int(_broken(explained))
    if open_ is None:
        return Result(explained.to_json, lambda out: show(out, explained), code)
    records = explained.opened(open_)

    def told() -> dict[str, Any]:
        seqs = {record.node.seq for record in records}
        every = explained.to_json()["summaries"]
        opened = [one for one in every if one["seq"] in seqs]
        return {"summary": open_, "summaries": opened}

    return Result(told, lambda out: _show_opened(out, explained, records), code)


def _broken(explained: Explanation) -> bool:
    """Whether a proof fails; events that were redacted again do not count."""
    sent = explained.sent
    return (
        any(chain.problems for chain in explained.chains)
        or any(record.source == "broken" for record in explained.records)
        or (sent is not None and sent.proof == "broken")
    )


_WIDTH: Final = 100
_DEEPEST: Final = 8
_MOMENT: Final = "%Y-%m-%d %H:%M:%S"
_FEW_TYPES: Final = 4
_PROOFS: Final = {
    "holds": ("✓ derived again", "green"),
    "superseded": ("superseded: redacted since", "yellow"),
    "broken": ("✗ does not follow", "bold red"),
}


def show(screen: Screen, explained: Explanation, told: Any = lambda _: None) -> None:
    """Print an explanation; ``told`` is called with each part, below its head."""
    _figures(screen, explained)
    records = {record.node.seq: record for record in explained.records}
    because = ""
    for number, run in groupby(explained.parts, lambda part: part.message):
        parts = list(run)
        screen.line("")
        name = f"message {number}  {parts[0].role}" if number else "system prompt"
        screen.line((name, "bold"))
        for part in parts:
            _part(screen, explained, part)
            told(part)
            if BECAUSE[part.cause] != because or explained.message is not None:
                because = BECAUSE[part.cause]
                _said(screen, _whole_reason(explained, part), "    ")
            if part.span is not None and part.span.summary in records:
                record = records[part.span.summary]
                hint = f": --open {record.node.seq} shows them"
                _record(screen, record, "    ", hint)
            if explained.message is not None:
                for seq in part.seqs:
                    _event(screen, explained, explained.events[seq], "    ")
    _left_out(screen, explained)


def _show_opened(
    screen: Screen, explained: Explanation, records: Sequence[Record]
) -> None:
    for record in records:
        indent = "  " * min(record.depth, _DEEPEST)
        summary = record.node.summary
        span = seqs(summary.first_seq, summary.last_seq)
        level = "" if record.depth <= _DEEPEST else f"  {record.depth} deep"
        screen.line(
            indent,
            (f"summary {record.node.seq}", "bold blue"),
            f"  level {summary.level}  {span}{level}",
        )
        _record(screen, record, indent + "  ")
        for text in (summary.abridged, summary.text):
            screen.body(text, indent=indent + "  | ", tall=4 if record.depth else None)
        for envelope in explained.source_events(record):
            _event(screen, explained, envelope, indent + "  ")


def _figures(screen: Screen, explained: Explanation) -> None:
    view = explained.view
    ref = explained.strategy.ref
    over = f"  {view.over_budget:,} over its window" if view.over_budget else ""
    screen.line(
        (f"{ref.name} {ref.version}", "bold"),
        f"  at seq {explained.at}  {counted(view.tokens, 'token')}"
        f"  {counted(len(view.messages), 'message')}",
        (over, "bold red"),
    )
    params = ", ".join(f"{k}={json.dumps(v)}" for k, v in ref.params.items())
    _said(screen, params, "  ")
    screen.line((f"  fingerprint {ref.fingerprint[:DIGEST]}", "dim"))
    screen.line((f"  digest      {view.digest}", "dim"))
    screen.line("  provenance  ", *origin_words(explained.provenance))
    _request(screen, explained)
    if min(explained.events) < 1:
        origin = "0 and below belong to the session it was forked from"
        screen.line(f"  seqs        {origin}")
    for chain in explained.chains:
        name = chain.stream.stream
        stream = name if name == "main" else f"derived stream {name[:DIGEST]}"
        proved = ("✓ proved", "green") if not chain.problems else ("✗", "bold red")
        screen.line(
            f"  chain       {chain.stream.session_id}, {stream}: ",
            proved,
            f"  {counted(chain.events, 'event')}, ends in {chain.hash[:DIGEST]}",
        )
        for problem in chain.problems:
            screen.line("    ", (problem.code, "red"), "  ", shown(problem.detail))


def _request(screen: Screen, explained: Explanation) -> None:
    sent = explained.sent
    if sent is None:
        screen.line("  request     none recorded")
        return
    screen.line(
        f"  request     seq {sent.envelope.seq}, ",
        f"digest {sent.request.digest[:DIGEST]} ",
        _PROOFS[sent.proof],
        "" if sent.shown else "  (this context differs from it)",
    )
    matches = {True: "sent unchanged", False: "sent with other bytes", None: ""}
    revealed = sent.request.revealed
    values = ", ".join(f"{count} {kind}" for kind, count in revealed.items())
    vault = f"with {values} from the vault" if values else ""
    about = (sent.request.model or "", matches[sent.request.matches], vault)
    told = ", ".join(text for text in about if text)
    _said(screen, visible(told), " " * 14)


def _part(screen: Screen, explained: Explanation, part: Part) -> None:
    span = part.span
    kind = "none" if span is None else span.kind
    style = "blue" if kind == "summary" else "yellow" if kind == "stub" else ""
    where = "" if span is None or span.first is None else seqs(span.first, span.last)
    number = f" {span.summary}" if span and span.summary is not None else ""
    events = [explained.events[seq] for seq in part.seqs]
    about = f"{_types(events)}  {events[0].ts:%H:%M:%S}" if events else ""
    gone = explained.superseded.intersection(part.seqs)
    rest = f"  {where:<16}  {about}".rstrip()
    screen.line(
        "  ",
        (f"{kind + number:<10}" if rest else kind, style),
        rest,
        ("  shorter than what was sent: redacted since" if gone else "", "yellow"),
    )


def _whole_reason(explained: Explanation, part: Part) -> str:
    because = BECAUSE[part.cause]
    if pins := {explained.pins[seq].seq for seq in part.seqs if seq in explained.pins}:
        because += f" (pin at seq {', '.join(map(str, sorted(pins)))})"
    if part.cause in ("open", "newest_input", "pinned", "raw") and explained.newest:
        because += f"; summary {explained.newest} was the newest decision"
    return because


def _record(screen: Screen, record: Record, indent: str, hint: str = "") -> None:
    """Print who decided a summary, by which rule, who wrote it, and the proofs."""
    node = record.node
    summary = node.summary
    on = f" ({record.decided_on.ts:{_MOMENT}})" if record.decided_on else ""
    screen.line(
        indent,
        f"decided at seq {summary.decided_at_seq}{on}, recorded "
        f"{node.envelope.ts:{_MOMENT}} at seq {summary.appended_at_seq}",
    )
    if place := summary.adopted:
        where = f"summary {place.seq} of strategy {place.stream[:DIGEST]}"
        screen.line(indent, f"adopted: written as {where}")
    else:
        _asked(screen, record.asked, record.source, indent)
    model = f" ({summary.summarizer.model})" if summary.summarizer.model else ""
    digest = summary.prompt_digest
    prompt = f", prompt {digest[:DIGEST]}" if digest else ""
    screen.line(
        indent,
        f"source digest {summary.source_digest[:DIGEST]} ",
        _PROOFS[record.source],
        f"  {counted(summary.source_event_count, 'event')}",
    )
    screen.line(
        indent,
        f"by {summary.summarizer.kind}{model}{prompt}: {summary.tokens_before:,} → "
        f"{counted(summary.tokens_after, 'token')}, hash {node.envelope.hash[:DIGEST]}",
    )
    if summary.absorbs:
        absorbs = ", ".join(map(str, summary.absorbs))
        screen.line(indent, f"level {summary.level}, absorbs {absorbs}{hint}")


def _asked(screen: Screen, asked: Asked, source: str, indent: str) -> None:
    if asked.same:
        screen.line(
            indent, "rule: ", asked.reason, "  ", ("✓ decides the same again", "green")
        )
        if asked.clock_mattered and asked.clock:
            at = f"{asked.clock:{_MOMENT}}"
            screen.line(indent, f"depends on time: decided at {at}")
        return
    made = asked.decided
    other = "nothing" if made is None else seqs(made.first_seq, made.last_seq)
    why = ", because its source was redacted since" if source == "superseded" else ""
    screen.line(
        indent,
        ("rule: cannot be derived again", "yellow"),
        f"{why} (at that seq and time it decides {other} now)",
    )


def _left_out(screen: Screen, explained: Explanation) -> None:
    runs = list(explained.runs())
    if not runs and explained.message is not None:
        return
    screen.line("")
    screen.line(("left out", "bold"), "" if runs else "  nothing")
    before = ""
    for one, events in runs:
        summary = "" if one.summary is None else f": summary {one.summary}"
        edit = "" if one.edit is None else f": seq {one.edit}"
        meaning = LEFT_OUT[one.why] + summary + edit
        if meaning != before:
            screen.line("  ", meaning)
        before = meaning
        spans = [seqs(*span) for span in spans_of(event.seq for event in events)]
        listed = ", ".join(span.removeprefix("seq ") for span in spans)
        via = f"through {one.via}: " if one.via not in (None, one.summary) else ""
        _said(screen, f"{via}seq {listed}  {_types(events)}", "    ")


def _event(
    screen: Screen, explained: Explanation, envelope: Envelope, indent: str
) -> None:
    said = preview(envelope.payload)
    text = " ".join(f"{said.note} {said.body}".split())
    head = f"{indent}{envelope.seq:>4}  {envelope.ts:%H:%M:%S}  "
    less = "  redacted since" if envelope.seq in explained.superseded else ""
    end = f"  {envelope.hash[:DIGEST]}{less}"
    room = min(_WIDTH, screen.width) - len(head) - len(envelope.type) - 2 - len(end)
    screen.line(
        head,
        (envelope.type, STYLES["events"].get(envelope.type, "")),
        "  ",
        cut(visible(text), max(room, 1)),
        (end, "dim"),
    )


def _said(screen: Screen, text: str, indent: str) -> None:
    for line in wrap(text, min(_WIDTH, screen.width) - len(indent)):
        screen.line((indent + line, "dim"))


def _types(events: Iterable[Envelope]) -> str:
    few = types(Counter(event.type for event in events)).split(", ")
    more = f", {counted(len(few) - _FEW_TYPES, 'other type')}"
    return ", ".join(few[:_FEW_TYPES]) + (more if len(few) > _FEW_TYPES else "")
