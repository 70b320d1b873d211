"""The view: what a model is sent, and what of the session each piece stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import chain, takewhile
from typing import Any, Final, Literal, NamedTuple

from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.events import JsonObject, Request, Span, StrategyRef
from refold.projections.context.budget import NO_EXTRAS, Cut, Extras
from refold.projections.context.text import THINKING, Block, Message, text_block
from refold.projections.context.units import joined

# The tool that summaries are told as the result of, by strategies that do so.
COMPRESS: Final = "memory_compress"
# How many marks the API takes; thinking cannot carry one.
_MOST: Final = 4
_SECTIONS: Final = (frozenset({"examples", "memory"}), frozenset({"summary"}))
_PASSING: Final = frozenset({"evidence", "state"})
_Given = Literal["system", "examples", "memory", "evidence", "state"]
SpanKind = Literal[_Given, "summary", "raw", "pinned", "stub"]


class ViewSpan(NamedTuple):
    """A run of seqs that one piece of the view stands for; None: it was handed in.

    ``stub`` is what is not shown whole; ``summary`` the summary's seq in the derived
    stream.
    """

    kind: SpanKind
    first: int | None = None
    last: int | None = None
    summary: int | None = None


class Origin(NamedTuple):
    """Where a block of a message is from: its span, and its event if it is of one.

    Without a span, Refold put it there so that the API takes the messages.
    """

    span: ViewSpan | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Messages and system prompt for the Messages API.

    tokens:      stored estimates, a fixed overhead for each message, and what the
                 caller handed in.
    digest:      the SHA-256 of the canonical JSON of system and messages.
    over_budget: tokens over the model's window.
    at:          the last seq of the main stream that was read; ``derived_seq`` that of
                 the derived stream.
    origins:     for each message, that of each of its blocks.
    extras:      what was handed in, as far as it is in the view.
    tools:       the tool definitions as the caller gave them; those in ``extras`` are
                 redacted, as they are recorded.
    cuts:        which sections were over their budget.
    stable:      whether the next view begins as this one, up to evidence and state.
    api:         what else the strategy wants a request to carry.
    revealed:    how many values of which type stand where the log has placeholders;
                 ``revealed_mac`` proves which, to whoever has the user's key.
    """

    messages: list[Message] = field(repr=False)
    system: str | None = field(repr=False)
    tokens: int
    digest: str
    spans: tuple[ViewSpan, ...]
    over_budget: int
    strategy: str
    fingerprint: str
    at: int
    ref: StrategyRef = field(repr=False)
    derived_seq: int = 0
    origins: tuple[tuple[Origin, ...], ...] = field(default=(), repr=False)
    extras: Extras = field(default=NO_EXTRAS, repr=False)
    tools: tuple[JsonObject, ...] = field(default=(), repr=False)
    cuts: tuple[Cut, ...] = ()
    stable: bool = True
    api: JsonObject = field(default_factory=dict, repr=False)
    revealed: Mapping[str, int] = field(default_factory=dict)
    revealed_mac: str | None = field(default=None, repr=False)

    def to_request(self, *, model: str, max_tokens: int) -> dict[str, Any]:
        """What ``client.messages.create(**…)`` takes to send this view.

        The ends of what the next request will begin with carry ``cache_control``, at
        most four; ``digest`` is of system and messages without it.
        """
        system = [text_block(self.system)] if self.system else []
        tools, messages = [*(self.tools or self._told_tools())], [*self.messages]
        held = chain(tools, *(message["content"] for message in messages))
        room = _MOST - sum("cache_control" in block for block in held)
        first: list[Block] = system or tools
        if first and room > 0 and "cache_control" not in first[-1]:
            first[-1] = _marked(first[-1])
            room -= 1
        for message, block in list(dict.fromkeys(self._ends()))[: max(room, 0)]:
            blocks = [*messages[message]["content"]]
            blocks[block] = _marked(blocks[block])
            messages[message] = {**messages[message], "content": blocks}
        request = {"model": model, "max_tokens": max_tokens}
        given = {"system": system, "tools": tools}
        sent = {name: some for name, some in given.items() if some}
        return {**request, **sent, "messages": messages, **self.api}

    def _told_tools(self) -> Iterator[JsonObject]:
        """The tool that tells of summaries: the API takes no call of an unknown one."""
        held = chain(*(message["content"] for message in self.messages))
        if any(block.get("name") == COMPRESS for block in held):
            yield {
                "name": COMPRESS,
                "description": "Tells what came before. It was called for you: do not.",
                "input_schema": {"type": "object", "properties": {}},
            }

    def _ends(self) -> Iterator[tuple[int, int]]:
        """The ends of examples and memory, of summaries, and of all that is stable."""
        kinds = [
            (origin.span.kind if origin.span else None, (message, block))
            for message, origins in enumerate(self.origins)
            for block, origin in enumerate(origins)
        ]
        sections = [[one for one in kinds if one[0] in some] for some in _SECTIONS]
        if self.stable:
            sections.append([*takewhile(lambda one: one[0] not in _PASSING, kinds)])
        for section in sections:
            for _, (message, block) in reversed(section):
                held = self.messages[message]["content"][block]
                if held["type"] not in THINKING:
                    if "cache_control" not in held:
                        yield message, block
                    break

    def request(
        self, *, model: str | None = None, matches: bool | None = None
    ) -> Request:
        """The event that records that this was sent, so that it can be shown again.

        matches: whether the bytes sent were those of the view.  Where redaction had to
                 change a tool definition, they were not.
        """
        extras, tools = self.extras, self.extras.tools
        return Request(
            strategy=self.ref,
            through_seq=max(self.at, 0),
            derived_seq=self.derived_seq,
            digest=self.digest,
            tokens=self.tokens,
            system_digest=None if self.system is None else text_digest(self.system),
            tools_digest=digest(tools) if tools else None,
            model=model,
            matches=matches and tools == self.tools,
            handed=extras.dump(),
            window_tokens=extras.window_tokens,
            advised=extras.advised,
            revealed=dict(self.revealed),
            revealed_mac=self.revealed_mac,
        )

    def _repr_html_(self) -> str:
        """The view as notebooks show it, in figures: what they show, they keep."""
        sent = enumerate(self.messages)
        rows = [(place, one["role"], *self._about(place)) for place, one in sent]
        title = (
            f"{self.strategy}: {self.tokens} tokens of {len(rows)} messages up to "
            f"seq {self.at}, {self.over_budget} over the window"
        )
        names = ("", "role", "stands for", "blocks", "characters")
        return html_table(title, names, rows)

    def _about(self, place: int) -> tuple[str, str, int]:
        """What a message stands for, its blocks by type, and how long it is."""
        content = self.messages[place]["content"]
        origins = self.origins[place] if self.origins else ()
        places: dict[str, list[Span]] = {}
        for kind, first, last, _ in (one.span for one in origins if one.span):
            at = places.setdefault(kind, [])
            at += [(first, last)] if first is not None and last is not None else []
        spans = {k: [f"{a}-{b}" for a, b in joined(at)] for k, at in places.items()}
        told = ", ".join(" ".join((kind, *runs)) for kind, runs in spans.items())
        kinds = ", ".join(block["type"] for block in content)
        return told, kinds, sum(len(canonical(block)) for block in content)

    def to_json(self) -> dict[str, Any]:
        """The view as ``refold context --json`` shows it."""
        names = ("strategy", "fingerprint", "at", "tokens", "digest", "over_budget")
        told = {name: getattr(self, name) for name in (*names, "system", "messages")}
        spans = [{"kind": kind, "first": a, "last": b} for kind, a, b, _ in self.spans]
        return {**told, "spans": spans}


def html_table(
    title: str, names: Iterable[object], rows: Iterable[Iterable[object]]
) -> str:
    """A table for a notebook; whatever stands in it is shown as text."""
    lines = [_row("th", names), *(_row("td", row) for row in rows)]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(one))}</{tag}>' for one in cells)}</tr>"


def view_digest(system: str | None, messages: list[Message]) -> str:
    """What proves that a view is the same, byte for byte."""
    return digest({"system": system, "messages": messages})


def _marked(block: Block) -> Block:
    return {**block, "cache_control": {"type": "ephemeral"}}
