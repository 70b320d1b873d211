"""``refold why``: the parts of a context, what it omits, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.events import STYLES, origin_words
from refold.adapters.cli.options import (
    Call,
    ReaderOption,
    SessionOption,
    StrategyOption,
    VerboseOption,
)
from refold.adapters.cli.output import Part, Result, Screen, cut, shown
from refold.adapters.cli.parameters import changed_parameters, parameters_text
from refold.adapters.display.events import DIGEST, preview, seqs
from refold.adapters.display.values import type_counts, visible
from refold.domain.errors import counted
from refold.domain.ids import MAIN
from refold.projections.context.units import spans_of
from refold.store.proofs.explanations import BECAUSE, LEFT_OUT

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope
    from refold.projections.context.why import Asked, Part as ContextPart
    from refold.store.proofs.differences import Difference
    from refold.store.proofs.explanations import Explanation, SummaryRecord


def why(
    call: Call,
    session: SessionOption,
    user: ReaderOption = None,
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
    verbose: VerboseOption = False,
) -> Result:
    """Explain why a context is as it is, with proof.

    Shows each part with its events and the decision behind it, which is repeated to
    check it; then the omitted events, and why.  --verbose adds the parameters of the
    strategy, digests and hashes.  Exits with 1 if a proof does not hold.
    """
    if message is not None and open_ is not None:
        raise typer.BadParameter("give one of --message and --open", ctx=call)
    opened_session = call.session(user, session)
    explained = opened_session.why(strategy, at=at, message=message)
    code = int(_broken(explained))
    if open_ is None:
        return Result(
            explained.to_json,
            lambda screen: show(screen, explained, verbose=verbose),
            code,
        )
    records = explained.with_absorbed(open_)

    def value() -> dict[str, Any]:
        seqs_of_records = {record.node.seq for record in records}
        opened: list[Any] = []
        for summary in explained.to_json()["summaries"]:
            if summary["seq"] in seqs_of_records:
                opened.append(summary)
        return {"summary": open_, "summaries": opened}

    return Result(
        value,
        lambda screen: _show_opened(screen, explained, records, verbose=verbose),
        code,
    )


def _broken(explained: Explanation) -> bool:
    """Whether a proof fails; events that were redacted again do not count."""
    if any(chain.problems for chain in explained.chains):
        return True
    if any(record.source == "broken" for record in explained.records):
        return True
    sent = explained.sent
    return sent is not None and sent.proof == "broken"


_WIDTH: Final = 100
_DEEPEST: Final = 8
_MOMENT: Final = "%Y-%m-%d %H:%M:%S"
_FEW_TYPES: Final = 4
_STYLES: Final = {"summary": "blue", "stub": "yellow"}  # of parts, by their kind
_PROOFS: Final = {
    "holds": ("✓ same when recomputed", "green"),
    "superseded": ("superseded: redacted since", "yellow"),
    "broken": ("✗ differs when recomputed", "bold red"),
}


def show(
    screen: Screen,
    explained: Explanation,
    show_details: Callable[[ContextPart], object] | None = None,
    *,
    verbose: bool = False,
) -> None:
    """Print an explanation.

    show_details: called with each part, after its first line; then each message is
                  printed.
    verbose:      whether to print each message, and all parameters, digests and hashes.
    """
    _show_figures(screen, explained, verbose=verbose)
    # The decision behind a summary is printed with the first part that shows it.
    records = {record.node.seq: record for record in explained.records}
    last_reason = ""
    prints_each = verbose or show_details is not None or explained.message is not None
    for messages in _messages(explained, joins=not prints_each):
        screen.line("")
        if len(messages) > 1:
            _show_joined(screen, explained, messages)
            reason = BECAUSE["raw"]
            if reason != last_reason:
                last_reason = reason
                _show_wrapped(screen, reason, "    ")
            continue
        (parts,) = messages
        name = "system prompt"
        if parts[0].message:
            name = f"message {parts[0].message}  {parts[0].role}"
        screen.line((name, "bold"))
        for part in parts:
            _show_part(screen, explained, part)
            if show_details is not None:
                show_details(part)
            reason = BECAUSE[part.cause]
            if reason != last_reason or explained.message is not None:
                last_reason = reason
                _show_wrapped(screen, _whole_reason(explained, part), "    ")
            if part.span is not None and part.span.summary in records:
                record = records.pop(part.span.summary)
                hint = f": --open {record.node.seq} shows them"
                _show_record(screen, record, "    ", hint, verbose=verbose)
            if explained.message is not None:
                for seq in part.seqs:
                    envelope = explained.events[seq]
                    _show_event(screen, explained, envelope, "    ", verbose=verbose)
    _show_omissions(screen, explained)


_FEWEST_JOINED: Final = 3  # messages


def _messages(
    explained: Explanation, *, joins: bool
) -> Iterator[list[list[ContextPart]]]:
    """Yield groups of messages, each as its parts.

    joins: whether messages that are sent as they were recorded form one group.
    """
    run: list[list[ContextPart]] = []
    for _, group in groupby(explained.parts, lambda part: part.message):
        message = list(group)
        if joins and all(_is_plain(explained, part) for part in message):
            run.append(message)
            continue
        yield from _joined(run)
        run = []
        yield [message]
    yield from _joined(run)


def _joined(run: list[list[ContextPart]]) -> list[list[list[ContextPart]]]:
    """Return a run of messages as one group, or as one group each if it is short."""
    if len(run) < _FEWEST_JOINED:
        return [[message] for message in run]
    return [run]


def _is_plain(explained: Explanation, part: ContextPart) -> bool:
    """Whether a part is sent as it was recorded, and there is nothing else to say."""
    if part.cause != "raw" or explained.superseded.intersection(part.seqs):
        return False
    return part.message > 0 and bool(part.seqs)


def _show_joined(
    screen: Screen, explained: Explanation, messages: Sequence[Sequence[ContextPart]]
) -> None:
    """Print several messages that are sent as they were recorded."""
    seqs_of_parts: set[int] = set()
    for parts in messages:
        for part in parts:
            seqs_of_parts.update(part.seqs)
    place = seqs(min(seqs_of_parts), max(seqs_of_parts))
    events = [explained.events[seq] for seq in sorted(seqs_of_parts)]
    name = f"messages {messages[0][0].message} to {messages[-1][0].message}"
    screen.line((name, "bold"))
    screen.line(f"  {'raw':<10}  {place:<16}  {events[0].ts:%H:%M:%S}")
    _show_wrapped(screen, _types(events), "    ", style="")


def _show_opened(
    screen: Screen,
    explained: Explanation,
    records: Sequence[SummaryRecord],
    *,
    verbose: bool,
) -> None:
    """Print a summary, the summaries that it absorbs, and their events."""
    for record in records:
        indent = "  " * min(record.depth, _DEEPEST)
        summary = record.node.summary
        span = seqs(summary.first_seq, summary.last_seq)
        depth = ""
        if record.depth > _DEEPEST:  # not indented any further
            depth = f"  {record.depth} deep"
        screen.line(
            indent,
            (f"summary {record.node.seq}", "bold blue"),
            f"  level {summary.level}  {span}{depth}",
        )
        _show_record(screen, record, indent + "  ", verbose=verbose)
        max_lines = 4 if record.depth else None
        for text in (summary.abridged, summary.text):
            screen.body(text, indent=indent + "  | ", max_lines=max_lines)
        for envelope in explained.source_events(record):
            _show_event(screen, explained, envelope, indent + "  ", verbose=verbose)


def _show_figures(screen: Screen, explained: Explanation, *, verbose: bool) -> None:
    """Print the size of a context, its origin, its bill, and the checked chains."""
    view = explained.view
    strategy = explained.strategy
    ref = strategy.ref
    over = f"  {view.over_budget:,} over its window" if view.over_budget else ""
    screen.line(
        (f"{ref.name} {ref.version}", "bold"),
        f"  at seq {explained.at}  {counted(view.tokens, 'token')}"
        f"  {counted(len(view.messages), 'message')}",
        (over, "bold red"),
    )
    params = ref.params if verbose else changed_parameters(strategy)
    if params:
        _show_wrapped(screen, parameters_text(params), "  parameters  ")
    if verbose:
        screen.line((f"  fingerprint {ref.fingerprint[:DIGEST]}", "dim"))
        screen.line((f"  digest      {view.digest}", "dim"))
    origin, origin_in_words = origin_words(explained.provenance)
    _show_wrapped(screen, origin_in_words, "  provenance  ", first=origin)
    _show_bill(screen, explained)
    _show_request(screen, explained, verbose=verbose)
    if min(explained.events) < 1:
        screen.line(
            "  seqs        0 and below belong to the session it was forked from"
        )
    for chain in explained.chains:
        name = chain.stream.stream
        stream = name
        if name != MAIN:
            stream = "summaries"
            if verbose:
                stream += f" (derived stream {name[:DIGEST]})"
        proved = ("✗", "bold red") if chain.problems else ("✓ proved", "green")
        end = f", ends in {chain.hash[:DIGEST]}" if verbose else ""
        screen.line(
            f"  chain       {chain.stream.session_id}, {stream}: ",
            proved,
            f"  {counted(chain.events, 'event')}{end}",
        )
        for problem in chain.problems:
            screen.line("    ", (problem.code, "red"), "  ", shown(problem.detail))


def _show_bill(screen: Screen, explained: Explanation) -> None:
    """Print Refold's count of tokens and the number that was billed."""
    bill = explained.bill
    if bill is None:
        return
    parts = (
        f"{bill.input:,} input, {bill.cache_read:,} cache read, "
        f"{bill.cache_write:,} cache write"
    )
    screen.line(
        f"  billed      {counted(bill.billed, 'token')} for the answer at seq "
        f"{bill.seq} ({parts})"
    )
    difference = bill.expected / bill.billed - 1
    if bill.offset is None:
        about = "without prompts and tools that the log does not have"
    else:
        about = f"and {bill.offset:,} that the log lacks, by the first answer's bill"
    screen.line(
        f"  counted     {counted(bill.counted, 'token')}, {about}: {difference:+.0%}"
    )


def _show_request(screen: Screen, explained: Explanation, *, verbose: bool) -> None:
    """Print the recorded request of a context, and whether it was sent unchanged."""
    sent = explained.sent
    if sent is None:
        if verbose:  # the provenance says so, too
            screen.line("  request     none recorded")
        return
    remark = "" if sent.shown else "  (this context differs from it)"
    screen.line(
        f"  request     seq {sent.envelope.seq}, ",
        f"digest {sent.request.digest[:DIGEST]} ",
        _PROOFS[sent.proof],
        remark,
    )
    matches = {True: "sent unchanged", False: "sent with other content", None: ""}
    revealed = sent.request.revealed
    values = ", ".join(f"{count} {kind}" for kind, count in revealed.items())
    vault = f"with {values} from the vault" if values else ""
    details = (sent.request.model or "", matches[sent.request.matches], vault)
    text = ", ".join(detail for detail in details if detail)
    _show_wrapped(screen, visible(text), " " * 14)
    if sent.request.matches is False:
        _show_differences(screen, sent.differences, verbose=verbose)


_FEW_DIFFERENCES: Final = 3
_WITHOUT_REASON: Final = (
    "the log has no reason: the caller reported that it sent something else"
)


def _show_differences(
    screen: Screen, differences: Sequence[Difference], *, verbose: bool
) -> None:
    """Print where a provider got something else than the context, and why."""
    if not differences:
        _show_wrapped(screen, _WITHOUT_REASON, " " * 14)
    listed = differences if verbose else differences[:_FEW_DIFFERENCES]
    for difference in listed:
        place = f"seq {difference.seq}"
        if difference.message == 0:
            place = f"system prompt ({place})"
        elif difference.message is not None:
            place = f"message {difference.message} ({place})"
        _show_wrapped(screen, visible(f"{place}: {difference.reason}"), " " * 14)
    more = len(differences) - len(listed)
    if more > 0:
        text = f"and {counted(more, 'more difference')}: -v lists all"
        _show_wrapped(screen, text, " " * 14)


def _show_part(screen: Screen, explained: Explanation, part: ContextPart) -> None:
    """Print the first line of a part: its kind, its events, and their types."""
    span = part.span
    name = "none"
    style = ""
    place = ""
    if span is not None:
        name = span.kind
        style = _STYLES.get(span.kind, "")
        if span.first is not None:
            place = seqs(span.first, span.last)
        if span.summary is not None:
            name += f" {span.summary}"
    events = [explained.events[seq] for seq in part.seqs]
    summary_of_events = ""
    if events:
        summary_of_events = f"{_types(events)}  {events[0].ts:%H:%M:%S}"
    details = f"  {place:<16}  {summary_of_events}".rstrip()
    remark = ""
    if explained.superseded.intersection(part.seqs):
        remark = "  shorter than what was sent: redacted since"
    if details:
        name = f"{name:<10}"
    screen.line("  ", (name, style), details, (remark, "yellow"))


def _whole_reason(explained: Explanation, part: ContextPart) -> str:
    """Return the reason for a part, with the pins and the decision behind it."""
    reason = BECAUSE[part.cause]
    pins = {explained.pins[seq].seq for seq in part.seqs if seq in explained.pins}
    if pins:
        reason += f" (pin at seq {', '.join(map(str, sorted(pins)))})"
    if part.cause in ("open", "newest_input", "pinned", "raw") and explained.newest:
        reason += f"; summary {explained.newest} was the newest decision"
    return reason


def _show_record(
    screen: Screen,
    record: SummaryRecord,
    indent: str,
    hint: str = "",
    *,
    verbose: bool,
) -> None:
    """Print a summary's decision, its rule, its writer, and the proofs.

    hint: follows the list of the summaries that it absorbs.
    """
    node = record.node
    summary = node.summary
    decided_at = ""
    if record.decided_on:
        decided_at = f" ({record.decided_on.ts:{_MOMENT}})"
    recorded = f"recorded {node.envelope.ts:{_MOMENT}}"
    if summary.appended_at_seq != summary.decided_at_seq:
        recorded += f" at seq {summary.appended_at_seq}"
    decision = f"decided at seq {summary.decided_at_seq}{decided_at}, {recorded}"
    _show_wrapped(screen, decision, indent, style="")
    adopted = summary.adopted
    if adopted:
        original = f"summary {adopted.seq} of strategy {adopted.stream[:DIGEST]}"
        screen.line(indent, f"adopted: written as {original}")
    else:
        _show_decision(screen, record.asked_again, record.source, indent)
    writer = summary.summarizer.kind
    if summary.summarizer.model:
        writer += f" ({summary.summarizer.model})"
    source = f"source: {counted(summary.source_event_count, 'event')}"
    summary_hash = ""
    if verbose:
        if summary.prompt_digest:
            writer += f", prompt {summary.prompt_digest[:DIGEST]}"
        source += f", digest {summary.source_digest[:DIGEST]}"
        summary_hash = f", hash {node.envelope.hash[:DIGEST]}"
    screen.line(indent, source, "  ", _PROOFS[record.source])
    screen.line(
        indent,
        f"by {writer}: {summary.tokens_before:,} → "
        f"{counted(summary.tokens_after, 'token')}{summary_hash}",
    )
    if summary.absorbs:
        absorbs = ", ".join(map(str, summary.absorbs))
        screen.line(indent, f"level {summary.level}, absorbs {absorbs}{hint}")


def _show_decision(screen: Screen, asked: Asked, source: str, indent: str) -> None:
    """Print whether the strategy makes the same decision when it is asked again.

    source: the proof of the summary's source, a key of ``_PROOFS``.
    """
    if asked.same:
        decision = ("✓ same decision when repeated", "green")
        screen.line(indent, "rule: ", asked.reason, "  ", decision)
        if asked.clock_mattered and asked.clock:
            at = f"{asked.clock:{_MOMENT}}"
            screen.line(indent, f"depends on time: decided at {at}")
        return
    decision_now = "nothing"
    if asked.decided is not None:
        decision_now = seqs(asked.decided.first_seq, asked.decided.last_seq)
    cause = ", because its source was redacted since" if source == "superseded" else ""
    screen.line(
        indent,
        ("rule: another decision when repeated", "yellow"),
        f"{cause}: it now compacts {decision_now}",
    )


def _show_omissions(screen: Screen, explained: Explanation) -> None:
    """Print the omitted events, and the reasons."""
    groups = list(explained.unshown_groups())
    if not groups and explained.message is not None:
        return
    screen.line("")
    nothing = "" if groups else "  nothing"
    screen.line(("left out", "bold"), nothing)
    last_reason = ""
    for omission, events in groups:
        reason = LEFT_OUT[omission.why]
        if omission.summary is not None:
            reason += f": summary {omission.summary}"
        if omission.edit is not None:
            reason += f": seq {omission.edit}"
        if reason != last_reason:
            screen.line("  ", reason)
        last_reason = reason
        spans = [seqs(*span) for span in spans_of(event.seq for event in events)]
        listed = ", ".join(span.removeprefix("seq ") for span in spans)
        via = ""
        if omission.via not in (None, omission.summary):
            via = f"through {omission.via}: "
        _show_wrapped(screen, f"{via}seq {listed}  {_types(events)}", "    ")


def _show_event(
    screen: Screen,
    explained: Explanation,
    envelope: Envelope,
    indent: str,
    *,
    verbose: bool,
) -> None:
    """Print an event as one line with the start of its text, and perhaps its hash."""
    content = preview(envelope.payload)
    text = " ".join(f"{content.note} {content.body}".split())
    head = f"{indent}{envelope.seq:>4}  {envelope.ts:%H:%M:%S}  "
    end = f"  {envelope.hash[:DIGEST]}" if verbose else ""
    if envelope.seq in explained.superseded:
        end += "  redacted since"
    room = min(_WIDTH, screen.width) - len(head) - len(envelope.type) - 2 - len(end)
    screen.line(
        head,
        (envelope.type, STYLES["events"].get(envelope.type, "")),
        "  ",
        cut(visible(text), max(room, 1)),
        (end, "dim"),
    )


def _show_wrapped(
    screen: Screen,
    text: str,
    indent: str,
    *,
    first: Part = "",
    style: str = "dim",
) -> None:
    """Print a text in lines of the screen's width, each indented as the first.

    indent: stands before the first line; spaces of its width before the others.
    first:  the first words, which have their own style.
    """
    first_words = first if isinstance(first, str) else first[0]
    start = len(indent) + len(first_words)
    width = min(_WIDTH, screen.width)
    # The first words cannot be broken: signs of their length stand for them.
    lines = wrap("\0" * start + text, width, subsequent_indent=" " * len(indent))
    for number, line in enumerate(lines):
        if number == 0:
            screen.line((indent, style), first, (line[start:], style))
        else:
            screen.line((line, style))


def _types(events: Iterable[Envelope]) -> str:
    """Return the types of events with their numbers; the rarest are only counted."""
    counts = type_counts(Counter(event.type for event in events)).split(", ")
    listed = counts[:_FEW_TYPES]
    if len(counts) > _FEW_TYPES:
        listed.append(counted(len(counts) - _FEW_TYPES, "other type"))
    return ", ".join(listed)
