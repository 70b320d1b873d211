"""From an outline and the events it names to the view that a model is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from pydantic import JsonValue

from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event, Summary, SystemPrompt
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context.compaction import note_lines, summary_text
from refold.projections.context.messages import (
    Piece,
    Press,
    assemble,
    given_back,
    insert,
    messages_of,
    origins_of,
)
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Shown, Strategy, profile
from refold.projections.context.text import (
    Block,
    Numbered,
    questions,
    tagged,
    text_block,
    value_text,
)
from refold.projections.context.units import (
    LiveSummary,
    Spans,
    arrange,
    holds,
    joined,
    upto,
    without,
)
from refold.projections.context.view import (
    NO_EXTRAS,
    SECTIONS,
    Cut,
    Extras,
    Message,
    View,
    ViewSpan,
    cost,
    cost as advice_cost,
    framed,
    view_digest,
)


def of_user(outline: Outline, rows: Sequence[Envelope]) -> Iterator[Piece]:
    """The user's profile and preferences, a line each."""
    spans = outline.layers.facts_shown
    known = profile(row for row in rows if holds(spans, row.seq))
    body = "\n".join(f"{name}: {_line(value)}" for name, value in known.items())
    if body:
        yield _piece(body, "user", _span(spans))


def of_scope(outline: Outline, summaries: Mapping[int, Event]) -> Iterator[Piece]:
    """The digest of the scope."""
    live = outline.layers.scope_shown
    if live is not None:
        span = ViewSpan("memory", live.first, live.last, live.seq)
        yield _piece(summary_text(_found(summaries, live)), "scope", span)


def of_notes(
    outline: Outline, rows: Sequence[Envelope], summaries: Mapping[int, Event]
) -> Iterator[Piece]:
    """The agent's notes: those that were rewritten, then the newer ones."""
    live, spans = outline.layers.written_shown, outline.layers.notes_shown
    if live is not None:
        span = ViewSpan("memory", live.first, live.last, live.seq)
        yield _piece(summary_text(_found(summaries, live)), "notes", span)
    new = [line for row in rows if holds(spans, row.seq) for line in note_lines(row)]
    if new:
        yield _piece("\n".join(new), "notes", _span(spans))


def by_seq(summaries: Iterable[Envelope]) -> dict[int, Event]:
    """The events of a derived stream by their seq."""
    return {envelope.seq: envelope.payload for envelope in summaries}


def _line(value: JsonValue) -> str:
    """On one line, so that no value can look like two."""
    text = value_text(value)
    return text if len(text.splitlines()) <= 1 else canonical(value).decode()


def _found(summaries: Mapping[int, Event], live: LiveSummary) -> Summary:
    summary = summaries.get(live.seq)
    if not isinstance(summary, Summary):
        raise ValueError(f"summary {live.seq} of the derived stream is missing")
    return summary


def _piece(body: str, about: str, span: ViewSpan) -> Piece:
    text = tagged("memory", body, of=about)
    tokens = estimate_text(text) + MESSAGE_OVERHEAD
    return Piece("user", [(None, text_block(text))], tokens, span)


def _span(spans: Spans) -> ViewSpan:
    return ViewSpan("memory", spans[0][0], spans[-1][1])


TOOL = "memory_compress"
_BEGIN = "===== EARLIER CONVERSATION, COMPRESSED ====="
_END = "===== END OF THE COMPRESSED CONVERSATION ====="


def as_tool(live: LiveSummary, summary: Summary) -> list[Piece]:
    """The summary as what a call of ``memory_compress`` returned."""
    id_ = f"toolu_refold_{live.seq}"
    use = {"type": "tool_use", "id": id_, "name": TOOL, "input": {}}
    text = f"{_BEGIN}\n{summary_text(summary)}\n{_END}"
    result = {"type": "tool_result", "tool_use_id": id_, "content": text}
    span = ViewSpan("summary", live.first, live.last, live.seq)
    tokens = live.tokens + 2 * MESSAGE_OVERHEAD
    return [
        Piece("assistant", [(None, use)], 0, span),
        Piece("user", [(None, result)], tokens, span),
    ]


def acknowledged(text: str, live: LiveSummary) -> Piece:
    """What the agent answers to the summaries, so that the next input is the user's."""
    span = ViewSpan("summary", live.first, live.last, live.seq)
    tokens = estimate_text(text) + MESSAGE_OVERHEAD
    return Piece("assistant", [(None, text_block(text))], tokens, span)


_INTRODUCTION = "Earlier parts of this session, in short, oldest first:\n"


def render(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    *,
    summaries: Iterable[Envelope] = (),
    extras: Extras = NO_EXTRAS,
) -> View:
    """The view of a session under ``strategy``, valid for the Messages API.

    events:    of the main stream, oldest first: at least those at ``outline.reads()``.
               Others are passed over, so a whole log serves any outline of it.
    summaries: of the derived stream: at least ``outline.shown_summaries``.

    Raises ValueError if the newest event or a summary is missing.
    """
    outline = strategy.judged(outline)
    shown = strategy.show(outline)
    rows = _rows(outline, shown, events, strategy.sees)
    press = Press(
        extras.window_tokens // 4,
        questions(rows),
        shown.cleared,
        inputs=shown.inputs,
        back=given_back(rows, strategy.manner.sends_back),
    )
    found = by_seq(summaries)
    groups = [
        list(_examples(extras, press)),
        list(of_user(outline, rows)),
        list(_advice(extras)),
        list(_memory(extras)),
        list(of_scope(outline, found)),
        list(of_notes(outline, rows, found)),
        list(_summaries(strategy, outline, found)),
        *_behind(strategy, outline, rows, press),
        list(_left_out(shown)),
        list(_raw(shown, rows, press)),
    ]
    pieces = [piece for group in groups for piece in group]
    system, system_tokens, system_spans = _system(outline, rows, extras)
    added, added_tokens, added_spans = _added(extras)
    drafts = assemble(pieces)
    insert(drafts, added, added_spans, outline.user_seq)
    messages = messages_of(drafts)
    own = sum(piece.tokens for piece in pieces)
    tokens = own + system_tokens + added_tokens + extras.tools_tokens
    return View(
        messages=messages,
        system=system,
        tokens=tokens,
        digest=view_digest(system, messages),
        spans=(*system_spans, *_spans(groups), *added_spans),
        over_budget=max(0, tokens - extras.window_tokens),
        strategy=strategy.name,
        fingerprint=strategy.fingerprint,
        at=outline.through_seq,
        ref=strategy.ref,
        derived_seq=outline.derived_seq,
        origins=origins_of(drafts),
        extras=extras,
        tools=extras.tools,
        stable=strategy.stable_prefix,
        api=strategy.manner.api_parameters or {},
    )


def _rows(
    outline: Outline,
    shown: Shown,
    events: Iterable[Envelope],
    sees: Callable[[Envelope], Envelope | None],
) -> list[Envelope]:
    spans = outline.reads(shown.raw)
    named = (event for event in events if holds(spans, event.seq))
    rows = [event for event in map(sees, named) if event is not None]
    if outline.events and not (rows and rows[-1].seq == outline.through_seq):
        raise ValueError(f"the event at seq {outline.through_seq} was not handed in")
    return rows


def _raw(shown: Shown, rows: Sequence[Envelope], press: Press) -> Iterator[Piece]:
    """What no summary stands for, word for word."""
    for exchange in arrange(_within(rows, shown.raw)):
        yield from press.pieces(exchange)


def _left_out(shown: Shown) -> Iterator[Piece]:
    """How much is neither shown nor summarised."""
    left = shown.left
    if left is not None and left.messages:
        about = {"first": left.first, "last": left.last, "messages": left.messages}
        text = tagged("left_out", "", **about)
        tokens = estimate_text(text) + MESSAGE_OVERHEAD
        span = ViewSpan("stub", left.first, left.last)
        yield Piece("user", [(None, text_block(text))], tokens, span)


def _behind(
    strategy: Strategy, outline: Outline, rows: Sequence[Envelope], press: Press
) -> list[list[Piece]]:
    """What stays raw behind the summaries: exchanges left open, and pinned events."""
    if outline.compacted_through is None:
        return []
    kept = joined(span for spans in outline.kept for span in spans)
    raw = outline.kept
    if outline.kept_input is not None and not holds(kept, outline.kept_input):
        raw = (*raw, ((outline.kept_input,) * 2,))
        kept = joined((*kept, *raw[-1]))
    pinned = without(upto(outline.pinned, outline.compacted_through), kept)
    groups = [
        press.pieces(exchange)
        for spans in raw
        for exchange in arrange(_within(rows, spans))
    ]
    groups += _pinned(strategy, _within(rows, pinned), press)
    groups = [group for group in groups if group]
    return sorted(groups, key=lambda group: group[0].span.first or 0)


def _pinned(
    strategy: Strategy, rows: Sequence[Envelope], press: Press
) -> Iterator[list[Piece]]:
    """Pinned exchanges, oldest first, as far as their budget goes; else a stub."""
    left = strategy.manner.pin_tokens
    for exchange in arrange(rows):
        pieces = press.pieces(exchange, partial=True)
        tokens = sum(piece.tokens for piece in pieces)
        if tokens > left:
            yield [_stub(exchange[0].seq, exchange[-1].seq, tokens)]
            continue
        left -= tokens
        yield [
            replace(piece, span=piece.span._replace(kind="pinned")) for piece in pieces
        ]


def _stub(first: int, last: int, tokens: int) -> Piece:
    text = tagged("pinned", "", first=first, last=last, tokens=tokens, over_budget=True)
    span = ViewSpan("stub", first, last)
    return Piece("user", [(None, text_block(text))], estimate_text(text), span)


def _within(rows: Sequence[Envelope], spans: Spans) -> list[Envelope]:
    return [row for row in rows if holds(spans, row.seq)]


def _summaries(
    strategy: Strategy, outline: Outline, found: Mapping[int, Event]
) -> Iterator[Piece]:
    for index, live in enumerate(outline.summaries):
        summary = found.get(live.seq)
        if not isinstance(summary, Summary):
            raise ValueError(f"summary {live.seq} of the derived stream is missing")
        if strategy.manner.form == "tool":
            yield from as_tool(live, summary)
        else:
            yield _summary(live, summary, first=index == 0)
    if outline.summaries and strategy.manner.form == "acknowledged":
        yield acknowledged(strategy.manner.acknowledgement, outline.summaries[-1])


def _summary(live: LiveSummary, summary: Summary, *, first: bool) -> Piece:
    parts = (summary.abridged, summary.text)
    body = summary_text(summary)
    if all(parts):
        body = "\n".join((tagged("abridged", parts[0]), tagged("text", parts[1])))
    text = tagged("summary", body, first=live.first, last=live.last, level=live.level)
    return Piece(
        "user",
        [(None, text_block((_INTRODUCTION if first else "") + text))],
        live.tokens + MESSAGE_OVERHEAD,
        ViewSpan("summary", live.first, live.last, live.seq),
    )


def _examples(extras: Extras, press: Press) -> Iterator[Piece]:
    for message in extras.examples:
        content = message["content"]
        blocks = [text_block(content)] if isinstance(content, str) else list(content)
        for block in blocks:
            if block["type"] == "tool_use":
                press.ids.take(block["id"], 0)
        numbered: Numbered = [(None, block) for block in blocks]
        tokens = estimate(blocks) + MESSAGE_OVERHEAD
        yield Piece(message["role"], numbered, tokens, ViewSpan("examples"))


def _advice(extras: Extras) -> Iterator[Piece]:
    text = extras.advice_text
    if text.strip():
        block = text_block(framed(text))
        yield Piece("user", [(None, block)], cost(text), ViewSpan("memory"))


def _memory(extras: Extras) -> Iterator[Piece]:
    for text in extras.memory:
        if text.strip():
            block = text_block(tagged("memory", text))
            tokens = estimate_text(text) + MESSAGE_OVERHEAD
            yield Piece("user", [(None, block)], tokens, ViewSpan("memory"))


def _added(extras: Extras) -> tuple[list[Block], int, list[ViewSpan]]:
    """Evidence and working memory, which stand inside the last user message."""
    texts = [tagged("evidence", text) for text in extras.evidence if text.strip()]
    spans = [ViewSpan("evidence") for _ in texts]
    if extras.state is not None:
        texts.append(tagged("state", value_text(extras.state)))
        spans.append(ViewSpan("state"))
    blocks = [text_block(text) for text in texts]
    return blocks, sum(map(estimate_text, texts)), spans


def _system(
    outline: Outline, rows: Iterable[Envelope], extras: Extras
) -> tuple[str | None, int, list[ViewSpan]]:
    seq, text, tokens = None, extras.system, estimate_text(extras.system or "")
    if text is None and outline.system_seq is not None:
        row = next(row for row in rows if row.seq == outline.system_seq)
        if isinstance(row.payload, SystemPrompt):
            seq, text, tokens = row.seq, row.payload.text, row.token_estimate
    if not text or not text.strip():
        return None, 0, []
    return text, tokens, [ViewSpan("system", seq, seq)]


def _spans(groups: Iterable[Sequence[Piece]]) -> Iterator[ViewSpan]:
    """The spans in the order of the view; within a group, neighbours of one kind join.

    Only the events themselves are joined: a summary, and what was handed in, is one.
    """
    for group in groups:
        for kind, run in groupby((piece.span for piece in group), attrgetter("kind")):
            spans = list(run)
            if kind in ("raw", "pinned", "stub"):
                seqs = [seq for span in spans for seq in span[1:3] if seq is not None]
                yield ViewSpan(kind, min(seqs), max(seqs))
            else:
                yield from spans


Budgets = Mapping[str, int]
NO_BUDGETS: Final[Budgets] = MappingProxyType({})
# What goes first when the whole is too much.
_GIVEN_UP: Final = ("evidence", "examples", "memory", "advice")


def assembled(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    *,
    summaries: Iterable[Envelope] = (),
    extras: Extras = NO_EXTRAS,
    budgets: Budgets = NO_BUDGETS,
) -> View:
    """The view, with of ``extras`` what fits; ``cuts`` says what does not, and why.

    A section over its budget loses its last items.  If the whole is over the window,
    evidence goes first, then examples, memory and advice, last items first.  What the
    session holds is never cut here; nor are system, tools and state: that they are too
    large is told, and ``over_budget`` says by how much the whole is.

    The view's extras are those that fit: made of them, it is the same again.

    Raises InvalidEvent for a budget of no section, or below 0.
    """
    _check(budgets)
    events, summaries = list(events), list(summaries)
    fitting, cuts = _within_budgets(extras, budgets)
    view = render(strategy, outline, events, summaries=summaries, extras=fitting)
    if view.over_budget:
        fitting, more = _within_window(fitting, view)
        cuts += more
        if fitting != view.extras:
            view = render(
                strategy, outline, events, summaries=summaries, extras=fitting
            )
    return replace(view, cuts=tuple(cuts))


def _check(budgets: Budgets) -> None:
    for name, budget in budgets.items():
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise InvalidEvent(
                f"budgets: there is no section {name!r} (there is: {known})"
            )
        if not isinstance(budget, int) or budget < 0:
            raise InvalidEvent(f"budgets: {name} must be 0 tokens or more")


def _within_budgets(extras: Extras, budgets: Budgets) -> tuple[Extras, list[Cut]]:
    cuts: list[Cut] = []
    for name, budget in budgets.items():
        items = _items(extras, name)
        tokens = sum(cost for _, cost in items)
        if tokens <= budget:
            continue
        if name not in _GIVEN_UP:
            cuts.append(Cut(name, tokens, budget, "sent whole: it cannot be cut"))
            continue
        left, kept = budget, 0
        for _, tokens_of in items:
            left -= tokens_of
            if left < 0:
                break
            kept += 1
        extras = _keep(extras, name, items[:kept])
        cuts.append(Cut(name, tokens, budget, _dropped(len(items) - kept, items)))
    return extras, cuts


def _within_window(extras: Extras, view: View) -> tuple[Extras, list[Cut]]:
    over, window, cuts = view.over_budget, extras.window_tokens, []
    for name in _GIVEN_UP:
        items = _items(extras, name)
        kept = len(items)
        while kept and over > 0:
            kept -= 1
            over -= items[kept][1]
        if kept < len(items):
            tokens = sum(cost for _, cost in items)
            why = f"the whole is over the window: {_dropped(len(items) - kept, items)}"
            cuts.append(Cut(name, tokens, max(0, tokens - view.over_budget), why))
            extras = _keep(extras, name, items[:kept])
    if over > 0:
        why = "sent whole: only what is handed in can be left out; compact the session"
        cuts.append(Cut("whole", view.tokens, window, why))
    return extras, cuts


def _items(extras: Extras, name: str) -> list[tuple[tuple[Any, ...], int]]:
    """What of a section is kept or left out together, with its cost."""
    match name:
        case "examples":
            groups = _groups(extras.examples)
            return [
                (group, sum(estimate(m["content"]) + MESSAGE_OVERHEAD for m in group))
                for group in groups
            ]
        case "memory":
            texts = extras.memory
            return [((t,), estimate_text(t) + MESSAGE_OVERHEAD) for t in texts]
        case "evidence":
            return [((t,), estimate_text(t)) for t in extras.evidence]
        case "advice":
            text = extras.advice_text
            return [((extras.advice,), advice_cost(text))] if text else []
    value = getattr(extras, name)
    return [((value,), estimate(value))] if value else []


def _groups(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Examples, each from a question of the user to before the next."""
    groups: list[tuple[Message, ...]] = []
    for message in messages:
        if groups and not _asks(message):
            groups[-1] = (*groups[-1], message)
        else:
            groups.append((message,))
    return groups


def _asks(message: Message) -> bool:
    content = message["content"]
    return message["role"] == "user" and not (
        isinstance(content, list)
        and any(block["type"] == "tool_result" for block in content)
    )


def _keep(
    extras: Extras, name: str, items: Iterable[tuple[tuple[Any, ...], int]]
) -> Extras:
    kept = tuple(one for group, _ in items for one in group)
    if name == "advice":
        return replace(extras, advice=kept[0] if kept else None)
    changed: dict[str, Any] = {name: kept}
    return replace(extras, **changed)


def _dropped(count: int, items: Sequence[object]) -> str:
    return f"the last {count} of {len(items)} left out"
