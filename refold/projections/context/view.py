"""The view: the request for a model, and the part of the session behind each block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.events import JsonObject, Request, Span, StrategyRef
from refold.projections.context.budget import NO_EXTRAS, Cut, Extras
from refold.projections.context.provider import is_of_provider
from refold.projections.context.text import THINKING, Block, Message, text_block
from refold.projections.context.units import joined

# The tool whose result is the summary, for strategies that present summaries so.
COMPRESS: Final = "memory_compress"
# The API accepts this number of blocks with `cache_control` in a request.
_MOST_CACHE_MARKS: Final = 4
# Kinds of spans that each end a section of the prompt which the provider should cache.
_CACHED_SECTIONS: Final = (frozenset({"examples", "memory"}), frozenset({"summary"}))
# Kinds of spans that belong to one request only.
_TRANSIENT: Final = frozenset({"evidence", "state"})
_FromCaller = Literal["system", "examples", "memory", "evidence", "state"]
SpanKind = Literal[_FromCaller, "summary", "raw", "pinned", "stub"]


class ViewSpan(NamedTuple):
    """A run of seqs that a piece of the view represents.

    kind:        a ``stub`` represents events that are not shown in full.  A piece of
                 kind ``summary`` also shows what the user said in its span.
    first, last: None for a piece that the caller provided.
    summary:     the seq of the summary in the derived stream.
    """

    kind: SpanKind
    first: int | None = None
    last: int | None = None
    summary: int | None = None


class Origin(NamedTuple):
    """The origin of a block in a message.

    span: the span of its piece; None for a block that Refold added so that the API
          accepts the messages.
    seq:  the event that the block shows, if it shows one.
    """

    span: ViewSpan | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A system prompt and messages for the Messages API.

    tokens:       the stored estimates, a fixed overhead for each message, and the
                  estimates of the extras.
    raw_tokens:   the part of ``tokens`` for events that no summary stands for.
    digest:       the SHA-256 of the canonical JSON of system and messages.
    spans:        the parts of the session that the view represents, in its order.
    over_budget:  the tokens over the model's window, or over a limit of the strategy if
                  that is more.
    strategy:     the name of the strategy; ``fingerprint`` and ``ref`` identify it with
                  its parameters.
    at:           the last seq that was read of the main stream.
    derived_seq:  the last seq that was read of the derived stream.
    origins:      for each message, the origins of its blocks.
    extras:       the extras that are in the view.
    tools:        the tool definitions as the caller provided them.  Those in ``extras``
                  are redacted, because they are recorded.
    cuts:         the sections of extras and the protected content that were over their
                  budget; each image, document, or block of the provider that is left
                  out; and the turns that are neither shown nor summarized.
    protected:    the seqs of events whose own words are shown next to the summaries.
    stable:       whether the next view begins with this one, up to evidence and state.
    api:          further parameters of the request, from the strategy.
    revealed:     by type, the number of real values in place of the log's placeholders.
    revealed_mac: proves these values to somebody with the user's key.
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
    raw_tokens: int = 0
    origins: tuple[tuple[Origin, ...], ...] = field(default=(), repr=False)
    extras: Extras = field(default=NO_EXTRAS, repr=False)
    tools: tuple[JsonObject, ...] = field(default=(), repr=False)
    cuts: tuple[Cut, ...] = ()
    protected: tuple[int, ...] = ()
    stable: bool = True
    api: JsonObject = field(default_factory=dict, repr=False)
    revealed: Mapping[str, int] = field(default_factory=dict)
    revealed_mac: str | None = field(default=None, repr=False)

    def to_request(self, *, model: str, max_tokens: int) -> dict[str, Any]:
        """Return the arguments of ``client.messages.create(**…)`` for this view.

        At most four blocks carry ``cache_control``: the ends of the parts with which
        the next request begins too.  ``digest`` does not include these marks.
        """
        system = [text_block(self.system)] if self.system else []
        tools = list(self.tools or self._compress_tool())
        messages = list(self.messages)
        marks_left = _MOST_CACHE_MARKS
        for block in chain(tools, *(message["content"] for message in messages)):
            if "cache_control" in block:
                marks_left -= 1
        prefix: list[Block] = system or tools
        if prefix and marks_left > 0 and "cache_control" not in prefix[-1]:
            prefix[-1] = _with_cache_mark(prefix[-1])
            marks_left -= 1
        ends = list(dict.fromkeys(self._section_ends()))
        for message_index, block_index in ends[: max(marks_left, 0)]:
            message = messages[message_index]
            blocks = list(message["content"])
            blocks[block_index] = _with_cache_mark(blocks[block_index])
            messages[message_index] = {**message, "content": blocks}
        request: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
        if system:
            request["system"] = system
        if tools:
            request["tools"] = tools
        request["messages"] = messages
        return {**request, **self.api}

    def _compress_tool(self) -> list[JsonObject]:
        """Return the definition of the tool whose results are summaries, if any are.

        The API refuses calls of undefined tools.
        """
        for message in self.messages:
            if any(block.get("name") == COMPRESS for block in message["content"]):
                return [
                    {
                        "name": COMPRESS,
                        "description": (
                            "Tells what came before. It was called for you: do not."
                        ),
                        "input_schema": {"type": "object", "properties": {}},
                    }
                ]
        return []

    def _section_ends(self) -> Iterator[tuple[int, int]]:
        """Yield the last block of each part that the provider should cache.

        These parts are examples and memory, the summaries, and everything that the next
        view begins with.  A block is given by the index of its message and its own.
        """
        kinds: list[SpanKind | None] = []
        places: list[tuple[int, int]] = []
        for message_index, origins in enumerate(self.origins):
            for block_index, origin in enumerate(origins):
                kinds.append(origin.span.kind if origin.span else None)
                places.append((message_index, block_index))
        sections: list[list[tuple[int, int]]] = []
        for section_kinds in _CACHED_SECTIONS:
            sections.append(
                [
                    place
                    for kind, place in zip(kinds, places, strict=True)
                    if kind in section_kinds
                ]
            )
        if self.stable:
            stable_places: list[tuple[int, int]] = []
            for kind, place in zip(kinds, places, strict=True):
                if kind in _TRANSIENT:
                    break
                stable_places.append(place)
            sections.append(stable_places)
        for section in sections:
            end = self._last_markable(section)
            if end is not None:
                yield end

    def _last_markable(self, places: list[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the last of these blocks that can be marked; None if it is marked.

        Thinking cannot carry ``cache_control``, and blocks of the provider go back to
        it as they came.
        """
        for message_index, block_index in reversed(places):
            message = self.messages[message_index]
            block = message["content"][block_index]
            is_own = message["role"] == "assistant" and is_of_provider(block)
            if block["type"] not in THINKING and not is_own:
                if "cache_control" in block:
                    return None
                return message_index, block_index
        return None

    def request(
        self, *, model: str | None = None, matches: bool | None = None
    ) -> Request:
        """Return the event that records this view as sent; a replay shows it again.

        matches: whether exactly the bytes of the view were sent.  They were not if
                 redaction changed a tool definition.
        """
        extras = self.extras
        tools = extras.tools
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
        """Return the view as a table for notebooks.

        It has figures only, because notebooks store their outputs.
        """
        rows = [
            (index, message["role"], *self._figures(index))
            for index, message in enumerate(self.messages)
        ]
        title = (
            f"{self.strategy}: {self.tokens} tokens of {len(rows)} messages up to "
            f"seq {self.at}, {self.over_budget} over the window"
        )
        names = ("", "role", "stands for", "blocks", "characters")
        return html_table(title, names, rows)

    def _figures(self, index: int) -> tuple[str, str, int]:
        """Return what a message represents, its block types, and its length."""
        content = self.messages[index]["content"]
        origins = self.origins[index] if self.origins else ()
        seqs_of: dict[str, list[Span]] = {}
        for origin in origins:
            if origin.span is None:
                continue
            kind, first, last, _ = origin.span
            seqs = seqs_of.setdefault(kind, [])
            if first is not None and last is not None:
                seqs.append((first, last))
        represented: list[str] = []
        for kind_name, seqs in seqs_of.items():
            runs = [f"{first}-{last}" for first, last in joined(seqs)]
            represented.append(" ".join([kind_name, *runs]))
        types = ", ".join(block["type"] for block in content)
        length = sum(len(canonical(block)) for block in content)
        return ", ".join(represented), types, length

    def to_json(self) -> dict[str, Any]:
        """Return the view as ``refold context --json`` prints it."""
        return {
            "strategy": self.strategy,
            "fingerprint": self.fingerprint,
            "at": self.at,
            "tokens": self.tokens,
            "digest": self.digest,
            "over_budget": self.over_budget,
            "cuts": [cut._asdict() for cut in self.cuts],
            "system": self.system,
            "messages": self.messages,
            "spans": [
                {"kind": span.kind, "first": span.first, "last": span.last}
                for span in self.spans
            ],
        }


def html_table(
    title: str, names: Iterable[object], rows: Iterable[Iterable[object]]
) -> str:
    """Return an HTML table for a notebook, with every cell escaped."""
    lines = [_table_row("th", names)]
    lines += [_table_row("td", row) for row in rows]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _table_row(tag: str, cells: Iterable[object]) -> str:
    row = "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells)
    return f"<tr>{row}</tr>"


def view_digest(system: str | None, messages: list[Message]) -> str:
    """Return the digest that proves later that a view is the same, byte for byte."""
    return digest({"system": system, "messages": messages})


def _with_cache_mark(block: Block) -> Block:
    return {**block, "cache_control": {"type": "ephemeral"}}
