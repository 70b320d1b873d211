"""The way to a view: from an outline and the events it names to what a model is sent.

``render`` puts together, in this order: what was handed in, the memory layers, the
summaries, what stays raw behind them, and the raw part.  Each becomes pieces
(``Press``), and pieces become messages that alternate (``_drafts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Final, NamedTuple

from refold.domain import events
from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context import budget, text as markup, units, view
from refold.projections.context.compaction import note_lines, summary_text
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Manner, Shown, Strategy, told_of_user
from refold.projections.context.text import (
    THINKING,
    Block,
    Numbered,
    Role,
    tagged,
    text_block,
)
from refold.projections.context.view import Origin, View, ViewSpan

_Rows = Sequence[Envelope]
_Derived = Mapping[int, events.Event]
OPENING: Final = "(The session begins with the agent.)"
_ONWARD: Final = "(The agent went on.)"
# Who wrote a summary, as the agent is told before it: what it reads as "I" is itself.
_WHOSE: Final = "“I” in them is you, the agent; the task goes on behind them."
_INTRODUCTION: Final = (
    f"Earlier parts of this session, in short, oldest first. {_WHOSE}\n"
)
_BEGIN: Final = "===== EARLIER CONVERSATION, COMPRESSED ====="
_END: Final = "===== END OF THE COMPRESSED CONVERSATION ====="
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ID_LENGTH: Final = 64
_NAME_LENGTH: Final = 128
_SUFFIX: Final = 8
# Of a smaller window that a strategy is told of, messages have this one's quarter.
_SMALLEST: Final = 4_000


def render(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    *,
    summaries: Iterable[Envelope] = (),
    extras: budget.Extras = budget.NO_EXTRAS,
    budgets: budget.Budgets | None = None,
) -> View:
    """The view of a session under ``strategy``, valid for the Messages API.

    events:    of the main stream, oldest first: at least those at ``outline.reads()``.
               Others are passed over, so a whole log serves any outline of it.
    summaries: of the derived stream: at least ``outline.shown_summaries``.
    budgets:   how many tokens sections of ``extras`` may have.  With these, even if
               they are none, what does not fit in the window is left out too, and
               ``cuts`` says what and why.  None: all of ``extras`` is sent.

    What the session holds is never cut by budgets: ``over_budget`` says by how much the
    whole is too large.  The view's extras are those that fit: made of them, it is the
    same again.

    Raises ValueError if the newest event or a summary is missing, InvalidEvent for a
    budget of no section, or below 0.
    """
    if budgets is None:
        return _rendered(strategy, outline, events, summaries, extras)
    events, summaries = list(events), list(summaries)
    fitting, cuts = extras.within_budgets(budgets)
    view = _rendered(strategy, outline, events, summaries, fitting)
    if view.over_budget:
        fitting, more = fitting.within_window(view.tokens)
        cuts += more
        if fitting != view.extras:
            view = _rendered(strategy, outline, events, summaries, fitting)
    return replace(view, cuts=tuple(cuts))


def _rendered(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    summaries: Iterable[Envelope],
    extras: budget.Extras,
) -> View:
    outline = strategy.judged(outline)
    shown, manner = strategy.show(outline), strategy.manner
    rows = _rows(strategy, outline, shown, events)
    window = min(extras.window_tokens, manner.window or extras.window_tokens)
    back = given_back(rows, manner.sends_back)
    limit = max(window, min(extras.window_tokens, _SMALLEST)) // 4
    press = Press(limit, markup.questions(rows), shown.cleared, shown.inputs, back)
    found = {envelope.seq: envelope.payload for envelope in summaries}
    examples = list(_examples(extras, press))
    memory = _memory(outline, rows, found, extras)
    left_out: list[Piece] = []
    if shown.left and shown.left.messages:
        first, last, _ = shown.left
        text = tagged("left_out", "", **shown.left._asdict())
        left_out = [_note(text, ViewSpan("stub", first, last))]
    # Each group has spans of its own, even where its neighbour is of the same kind.
    groups = [
        [*examples, *memory, *_summaries(manner, outline, found)],
        *_behind(outline, rows, press, manner.pin_tokens),
        left_out,
        [
            piece
            for exchange in units.arrange(_within(rows, shown.raw))
            for piece in press.pieces(exchange)
        ],
    ]
    pieces = [piece for group in groups for piece in group]
    system, system_tokens, system_spans = _system(outline, rows, extras)
    added = _added(extras)
    drafts = _drafts(pieces)
    if added:
        _insert(drafts, added, outline.user_seq)
    messages = [
        {"role": role, "content": [block for _, block in placed]}
        for role, placed in drafts
    ]
    own = sum(piece.tokens for piece in (*pieces, *added))
    tokens = own + system_tokens + estimate(extras.tools)
    return View(
        messages=messages,
        system=system,
        tokens=tokens,
        digest=view.view_digest(system, messages),
        spans=(*system_spans, *_spans(groups), *(piece.span for piece in added)),
        over_budget=max(0, tokens - extras.window_tokens),
        strategy=strategy.name,
        fingerprint=strategy.fingerprint,
        at=outline.through_seq,
        ref=strategy.ref,
        derived_seq=outline.derived_seq,
        origins=tuple(tuple([at for at, _ in placed]) for _, placed in drafts),
        extras=extras,
        tools=extras.tools,
        stable=strategy.stable_prefix,
        api=manner.api_parameters or {},
    )


def _rows(
    strategy: Strategy, outline: Outline, shown: Shown, events: Iterable[Envelope]
) -> list[Envelope]:
    spans = outline.reads(shown.raw)
    named = (event for event in events if units.holds(spans, event.seq))
    rows = [event for event in map(strategy.sees, named) if event is not None]
    if outline.events and not (rows and rows[-1].seq == outline.through_seq):
        raise ValueError(f"the event at seq {outline.through_seq} was not handed in")
    return rows


def _within(rows: Sequence[Envelope], spans: units.Spans) -> list[Envelope]:
    return [row for row in rows if units.holds(spans, row.seq)]


def _examples(extras: budget.Extras, press: Press) -> Iterator[Piece]:
    for message in extras.examples:
        content = message["content"]
        blocks = [text_block(content)] if isinstance(content, str) else list(content)
        for block in blocks:
            if block["type"] == "tool_use":
                press.take_id(block["id"], 0)
        numbered: Numbered = [(None, block) for block in blocks]
        tokens = estimate(blocks) + MESSAGE_OVERHEAD
        yield Piece(message["role"], numbered, tokens, ViewSpan("examples"))


def _memory(
    outline: Outline, rows: _Rows, summaries: _Derived, extras: budget.Extras
) -> Iterator[Piece]:
    """The user's profile, what was handed in, the scope's digest, the agent's notes."""
    layers = outline.layers
    yield from _elsewhere(extras, "user")
    if known := told_of_user(_within(rows, layers.facts_shown)):
        yield _layer("user", known, layers.facts_shown)
    if extras.advice_text.strip():
        yield _note(budget.framed(extras.advice_text), ViewSpan("memory"))
    for text in extras.memory:
        if text.strip():
            block = text_block(tagged("memory", text))
            tokens = estimate_text(text) + MESSAGE_OVERHEAD
            yield Piece("user", [(None, block)], tokens, ViewSpan("memory"))
    for about, live in (("scope", layers.scope_shown), ("notes", layers.written_shown)):
        yield from _elsewhere(extras, about)
        if live is not None:
            body = tagged("memory", summary_text(_found(summaries, live)), of=about)
            yield _note(body, _summary_span(live, "memory"))
    noting = _within(rows, layers.notes_shown)
    if new := [line for row in noting for line in note_lines(row)]:
        yield _layer("notes", "\n".join(new), layers.notes_shown)


def _elsewhere(extras: budget.Extras, layer: str) -> Iterator[Piece]:
    """What the user's other sessions say in it; the session's own comes behind."""
    for text in extras.layers.of(layer) if extras.layers else ():
        yield _note(text, ViewSpan("memory"))


def _layer(about: str, body: str, spans: units.Spans) -> Piece:
    span = ViewSpan("memory", spans[0][0], spans[-1][1])
    return _note(tagged("memory", body, of=about), span)


def _summary_span(live: units.LiveSummary, kind: view.SpanKind = "summary") -> ViewSpan:
    return ViewSpan(kind, live.first, live.last, live.seq)


def _note(
    text: str, span: ViewSpan, *, role: Role = "user", more: int = MESSAGE_OVERHEAD
) -> Piece:
    """A text that stands in no log; ``more`` is what it costs beside its words."""
    tokens = estimate_text(text) + more
    return Piece(role, [(None, text_block(text))], tokens, span)


def _summaries(manner: Manner, outline: Outline, found: _Derived) -> Iterator[Piece]:
    for index, live in enumerate(outline.summaries):
        summary = _found(found, live)
        if manner.form == "tool":
            yield from _as_tool(live, summary)
        elif manner.template:
            yield _as_told(live, summary, manner.template)
        else:
            yield _as_text(live, summary, _INTRODUCTION if index == 0 else "")
    if outline.summaries and manner.form == "acknowledged":
        span = _summary_span(outline.summaries[-1])
        yield _note(manner.acknowledgement, span, role="assistant")


def _found(summaries: _Derived, live: units.LiveSummary) -> events.Summary:
    if isinstance(summary := summaries.get(live.seq), events.Summary):
        return summary
    raise ValueError(f"summary {live.seq} of the derived stream is missing")


def _as_told(live: units.LiveSummary, summary: events.Summary, template: str) -> Piece:
    """The summary in the words of who configured it."""
    apart = "{abridged_history}" in template
    words = summary.text or ("" if apart else summary.abridged)
    told = {"{summary}": words, "{abridged_history}": summary.abridged}
    places = "|".join(map(re.escape, told))
    text = re.sub(places, lambda found: told[found[0]], template)
    tokens = live.tokens + estimate_text(template) + MESSAGE_OVERHEAD
    return Piece("user", [(None, text_block(text))], tokens, _summary_span(live))


def _as_text(live: units.LiveSummary, summary: events.Summary, before: str) -> Piece:
    body = summary_text(summary)
    if summary.abridged and summary.text:
        parts = tagged("abridged", summary.abridged), tagged("text", summary.text)
        body = "\n".join(parts)
    text = tagged("summary", body, first=live.first, last=live.last, level=live.level)
    tokens = live.tokens + MESSAGE_OVERHEAD
    span = _summary_span(live)
    return Piece("user", [(None, text_block(before + text))], tokens, span)


def _as_tool(live: units.LiveSummary, summary: events.Summary) -> list[Piece]:
    """The summary as what a call of ``memory_compress`` returned."""
    id_ = f"toolu_refold_{live.seq}"
    use = {"type": "tool_use", "id": id_, "name": view.COMPRESS, "input": {}}
    text = f"{_BEGIN}\n{_WHOSE}\n{summary_text(summary)}\n{_END}"
    result = {"type": "tool_result", "tool_use_id": id_, "content": text}
    span, tokens = _summary_span(live), live.tokens + 2 * MESSAGE_OVERHEAD
    return [
        Piece("assistant", [(None, use)], 0, span),
        Piece("user", [(None, result)], tokens, span),
    ]


def _behind(
    outline: Outline, rows: Sequence[Envelope], press: Press, pin_tokens: int
) -> list[list[Piece]]:
    """What stays raw behind the summaries: exchanges left open, and pinned events."""
    if outline.compacted_through is None:
        return []
    raw, newest = outline.kept, outline.kept_input
    if newest is not None and not units.holds(units.joined(chain(*raw)), newest):
        raw = (*raw, ((newest, newest),))
    kept = units.joined(chain(*raw))
    pinned = units.without(units.upto(outline.pinned, outline.compacted_through), kept)
    exchanges = chain(*(units.arrange(_within(rows, spans)) for spans in raw))
    groups = [press.pieces(exchange) for exchange in exchanges]
    groups += _pinned(_within(rows, pinned), press, pin_tokens)
    groups = [group for group in groups if group]
    return sorted(groups, key=lambda group: group[0].span.first or 0)


def _pinned(rows: Sequence[Envelope], press: Press, left: int) -> Iterator[list[Piece]]:
    """Pinned exchanges, oldest first, as far as their budget goes; else a stub."""
    for exchange in units.arrange(rows):
        pieces = press.pieces(exchange, partial=True)
        tokens = sum(piece.tokens for piece in pieces)
        if tokens > left:
            first, last = exchange[0].seq, exchange[-1].seq
            about = {"first": first, "last": last, "tokens": tokens}
            text = tagged("pinned", "", **about, over_budget=True)
            yield [_note(text, ViewSpan("stub", first, last), more=0)]
        else:
            left -= tokens
            yield [o._replace(span=o.span._replace(kind="pinned")) for o in pieces]


def _system(
    outline: Outline, rows: Iterable[Envelope], extras: budget.Extras
) -> tuple[str | None, int, list[ViewSpan]]:
    seq, text, tokens = None, extras.system, estimate_text(extras.system or "")
    if text is None and outline.system_seq is not None:
        row = next(row for row in rows if row.seq == outline.system_seq)
        if isinstance(row.payload, events.SystemPrompt):
            seq, text, tokens = row.seq, row.payload.text, row.token_estimate
    if not text or not text.strip():
        return None, 0, []
    return text, tokens, [ViewSpan("system", seq, seq)]


def _added(extras: budget.Extras) -> list[Piece]:
    """Evidence and working memory, which stand inside the last user message."""
    texts = [tagged("evidence", text) for text in extras.evidence if text.strip()]
    added = [_note(text, ViewSpan("evidence"), more=0) for text in texts]
    if extras.state is not None:
        text = tagged("state", markup.value_text(extras.state))
        added.append(_note(text, ViewSpan("state"), more=0))
    return added


def _spans(groups: Iterable[Sequence[Piece]]) -> Iterator[ViewSpan]:
    """The spans in the order of the view; in a group, neighbouring events join."""
    for group in groups:
        own = (piece.span for piece in group)
        for kind, run in groupby(own, lambda span: span.kind):
            spans = list(run)
            if kind in ("raw", "pinned", "stub"):
                seqs = [seq for span in spans for seq in span[1:3] if seq is not None]
                yield ViewSpan(kind, min(seqs), max(seqs))
            else:
                yield from spans


class Piece(NamedTuple):
    """Blocks of one role, what they cost, and what they stand for."""

    role: Role
    blocks: Numbered
    tokens: int
    span: ViewSpan

    @property
    def placed(self) -> list[tuple[Origin, Block]]:
        """Each block with where it is from."""
        return [(Origin(self.span, seq), block) for seq, block in self.blocks]


@dataclass(frozen=True, slots=True)
class Press:
    """Turns exchanges into pieces.

    limit: the most tokens that one message may take.
    asked: the questions that human decisions may refer to, by their seq.
    cleared: whether a result is told as a stub, ``inputs``: its call without arguments.
    back:  the provider's own blocks that it is given back, by the response's seq.
    taken: the ids of calls given so far in this view.
    """

    limit: int
    asked: Mapping[int, str] = field(default_factory=dict)
    cleared: Callable[[Envelope], bool] = lambda _: False
    inputs: bool = False
    back: Mapping[int, Numbered] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def pieces(self, exchange: units.Exchange, *, partial: bool = False) -> list[Piece]:
        """The pieces of an exchange; none if it holds nothing to show.

        partial: the exchange may lack events that the log has, so a call without a
                 result is told as text: it may have one.
        """
        if isinstance(exchange[0].payload, events.AgentResponse | events.ToolCall):
            return self._response(exchange, partial=partial)
        (envelope,) = exchange
        if isinstance(envelope.payload, events.UserInput):
            told = markup.user_blocks(envelope.payload)
            blocks: Numbered = [(envelope.seq, block) for block in told]
            return self._piece("user", blocks, exchange)
        entry = markup.entry_of(envelope.payload, self.asked)
        if entry is None or not (entry.body.strip() or any(entry.attributes.values())):
            return []
        blocks = [(envelope.seq, text_block(entry.text(seq=envelope.seq)))]
        return self._piece(entry.role, blocks, exchange)

    def _response(self, exchange: units.Exchange, *, partial: bool) -> list[Piece]:
        first, calls = exchange[0], _calls(exchange)
        told = [called for called in calls if partial and called.result is None]
        made = [called for called in calls if called not in told]
        ids = [self.take_id(call.call_id, at.seq) for at, call, _ in made]
        thought: Numbered = []
        blocks: Numbered = [*map(_told, told), *map(self._use, ids, made)]
        if isinstance(response := first.payload, events.AgentResponse):
            thought = [(first.seq, block) for block in markup.thinking_blocks(response)]
            if response.text.strip():
                # The API takes no text with white space at its end as the last one.
                said = text_block(response.text.rstrip())
                blocks = [(first.seq, said), *blocks]
        back = self.back.get(first.seq, [])
        blocks = [*back, *(thought if blocks else ()), *blocks]
        own = [o for o in exchange if not isinstance(o.payload, events.ToolResult)]
        pieces = self._piece("assistant", blocks, own)
        if back and pieces:
            more = estimate([block for _, block in back])
            pieces[0] = pieces[0]._replace(tokens=pieces[0].tokens + more)
        for id_, called in zip(ids, made, strict=True):
            pieces += self._answer(id_, called)
        return pieces

    def _answer(self, id_: str, called: Called) -> list[Piece]:
        if called.result is None:
            span = ViewSpan("raw", called.envelope.seq, called.envelope.seq)
            return [Piece("user", [(None, markup.result_block(id_, None))], 0, span)]
        envelope, result = called.result
        block = markup.result_block(id_, result)
        if not self.cleared(envelope):
            return self._piece("user", [(envelope.seq, block)], [envelope])
        text = markup.cleared_text(envelope.seq, envelope.token_estimate)
        block = {**block, "content": text}  # an error stays one
        span = ViewSpan("stub", envelope.seq, envelope.seq)
        tokens = estimate_text(text) + MESSAGE_OVERHEAD
        return [Piece("user", [(envelope.seq, block)], tokens, span)]

    def _use(self, id_: str, called: Called) -> tuple[int | None, Block]:
        call, result = called.call, called.result
        emptied = self.inputs and result is not None and self.cleared(result[0])
        return called.envelope.seq, {
            "type": "tool_use",
            "id": id_,
            "name": _legal(call.tool_name, _NAME_LENGTH, "unnamed"),
            "input": {} if emptied else markup.call_input(call.arguments),
        }

    def take_id(self, call_id: str, seq: int) -> str:
        """An id for the call recorded at ``seq``: its call_id, if that can be.

        Ids are given in the order in which calls are shown.
        """
        legal = _legal(call_id, _ID_LENGTH)
        chosen, number = legal, 0
        while chosen in self.taken:
            suffix = f"_{seq}" if not number else f"_{seq}_{number}"
            chosen, number = legal[: _ID_LENGTH - len(suffix)] + suffix, number + 1
        self.taken.add(chosen)
        return chosen

    def _piece(self, role: Role, blocks: Numbered, events: _Rows) -> list[Piece]:
        if not blocks:
            return []
        tokens = sum(event.token_estimate for event in events)
        span = ViewSpan("raw", events[0].seq, events[-1].seq)
        if tokens > self.limit:
            shown = budget.shorten(blocks, self.limit)
            if shown is not blocks:
                # Of an image that is what its text costs.
                tokens = sum(estimate(block) for _, block in shown)
                blocks, span = shown, span._replace(kind="stub")
        return [Piece(role, blocks, tokens + MESSAGE_OVERHEAD, span)]


def _legal(text: str, length: int, empty: str = "") -> str:
    """``text`` if the API takes it; else made so, with a digest that keeps it apart."""
    if not text and empty:
        return empty
    clean = _ILLEGAL.sub("_", text)
    if clean == text and 0 < len(text) <= length:
        return text
    return f"{clean[: length - _SUFFIX - 1]}_{text_digest(text)[:_SUFFIX]}"


class Called(NamedTuple):
    """A call where it is recorded, and its result where that is."""

    envelope: Envelope
    call: events.ToolCall
    result: tuple[Envelope, events.ToolResult] | None = None


def _calls(exchange: units.Exchange) -> list[Called]:
    calls: list[Called] = []
    waiting: dict[str, int] = {}
    for envelope in exchange:
        match envelope.payload:
            case events.ToolCall() as call:
                waiting[call.call_id] = len(calls)
                calls.append(Called(envelope, call))
            case events.ToolResult() as result:
                index = waiting.pop(result.call_id)
                calls[index] = calls[index]._replace(result=(envelope, result))
    return calls


def _told(called: Called) -> tuple[int | None, Block]:
    entry = markup.entry_of(called.call)
    seq = called.envelope.seq
    return seq, text_block(entry.text(seq=seq) if entry else called.call.tool_name)


def given_back(rows: Sequence[Envelope], kinds: Collection[str]) -> dict[int, Numbered]:
    """The provider's blocks of these types, none redacted, by their response's seq."""
    found: dict[int, Numbered] = {}
    response = None
    for row in rows if kinds else ():
        redacted = row.redaction.get("n")
        match row.payload:
            case events.AgentResponse():
                response = row.seq
            case events.ProviderEdit(blocks=blocks) if response and not redacted:
                named = [block for block in blocks if block.get("type") in kinds]
                # Those that the guard cut nothing out of.
                told = ((block, " ".join(map(str, block.values()))) for block in named)
                whole = (block for block, text in told if "[refold: " not in text)
                if kept := [(row.seq, block) for block in whole]:
                    found[response] = [*kept]
    return found


class Draft(NamedTuple):
    """A message that still grows, by whole pieces; each block with where it is from."""

    role: Role
    placed: list[tuple[Origin, Block]]


def _drafts(pieces: Iterable[Piece]) -> list[Draft]:
    """Messages that start with the user and alternate.

    Thinking that would come behind other content of the agent is set off by a short
    user message, so that it need not be moved or dropped.
    """
    drafts: list[Draft] = []
    for piece in pieces:
        behind = bool(drafts) and drafts[-1].role == "assistant"
        thinks = behind and piece.blocks[0][1]["type"] in THINKING
        if piece.role == "assistant" and (thinks or not drafts):
            words = text_block(_ONWARD if drafts else OPENING)
            drafts.append(Draft("user", [(Origin(), words)]))
        if not drafts or drafts[-1].role != piece.role:
            drafts.append(Draft(piece.role, []))
        drafts[-1].placed.extend(piece.placed)
    return drafts


def _insert(drafts: list[Draft], added: Sequence[Piece], user_seq: int | None) -> None:
    """Put it into the last user message: before the newest input, or after results."""
    users = [draft for draft in drafts if draft.role == "user"]
    if not users:
        drafts.append(Draft("user", []))
    placed = (users or drafts)[-1].placed
    seqs = [origin.seq for origin, _ in placed]
    if user_seq is not None and user_seq in seqs:
        at = seqs.index(user_seq)
    else:
        at = sum(block["type"] == "tool_result" for _, block in placed)
    placed[at:at] = chain(*(piece.placed for piece in added))
