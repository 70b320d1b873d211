"""Extras of a context, which the caller provides, and the budgets that bound a context.

Each section of the extras has a budget (``within_budgets``), the whole context has the
model's window (``within_window``), and a single message has a share of the window
(``shorten``).  The strategy bounds pinned events, and ``render`` applies that bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self, TypedDict

import orjson

from refold.domain.canonical import canonical
from refold.domain.errors import InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.model import repr_without_texts
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context import text as markup
from refold.projections.context.text import Block, Message, Numbered

TITLE: Final = "## Memory (Verified)"


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Advice:
    """Advice from memory for a model: a section of Markdown and its items.

    items:       the ids of the items that the text states.
    tokens:      the cost in a context; empty advice costs nothing.
    left_out:    the ids of the best items that did not fit.
    sessions:    the sessions that the text cites.
    derived_seq: the head of the derived stream when the advice was chosen.
    """

    text: str = ""
    items: tuple[str, ...] = ()
    tokens: int = 0
    left_out: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    derived_seq: int = 0

    def to_request(self) -> JsonObject:
        """Return the JSON that a request records."""
        return {
            "text": self.text,
            "items": [*self.items],
            "sessions": [*self.sessions],
            "derived_seq": self.derived_seq,
        }

    @classmethod
    def from_request(
        cls, recorded: JsonObject | None, items: tuple[str, ...]
    ) -> Advice:
        """Read the JSON that ``to_request`` made; NO_ADVICE for any other value.

        items: the ids that the request records as advised.  The text must state all of
               them.
        """
        match recorded:
            case {"text": str(text), "sessions": list(ids), "derived_seq": int(seq)}:
                if text.startswith(TITLE) and all(item in text for item in items):
                    return cls(
                        text=text,
                        items=items,
                        tokens=cost(text),
                        sessions=tuple(map(str, ids)),
                        derived_seq=seq,
                    )
        return NO_ADVICE


NO_ADVICE: Final = Advice()


def cost(text: str) -> int:
    """Return the tokens that advice with this text adds to a context."""
    if not text:
        return 0
    return estimate_text(framed(text)) + MESSAGE_OVERHEAD


def framed(text: str) -> str:
    """Return advice in the form in which a message contains it."""
    return markup.tagged("memory", text, of="advice")


class Cut(NamedTuple):
    """A section that is over its budget, and what was done about it.

    tokens: the size of the whole section.
    budget: the most tokens that the section may have.
    """

    section: str
    tokens: int
    budget: int
    reason: str


class CrossSessionLayers(NamedTuple):
    """The part of memory layers that comes from the user's other sessions.

    refs:  by layer, the places of the texts.  A request records only these, so that an
           erasure of the other session also removes the texts from this one.
    texts: (layer, text).
    """

    refs: JsonObject
    texts: tuple[tuple[str, str], ...] = ()

    def of(self, layer: str) -> list[str]:
        """Return the texts of a layer in the form in which messages contain them."""
        attributes = {"of": layer, "from": "earlier sessions"}
        return [
            markup.tagged("memory", text, **attributes)
            for name, text in self.texts
            if name == layer
        ]

    @property
    def sessions(self) -> set[str]:
        """The ids of the sessions that the texts come from."""
        refs: Any = self.refs
        places = [*refs["user"], *refs["scope"], *refs["notes"]]
        return {session_id for session_id, *_ in places}


WINDOW_TOKENS: Final = 200_000
SECTIONS: Final = (
    "system",
    "tools",
    "examples",
    "advice",
    "memory",
    "layers",
    "evidence",
    "state",
)
# The sections that may be cut, in the order in which they give way to the window.
_CUTTABLE: Final = ("evidence", "examples", "memory", "layers", "advice")
_TOO_LONG: Final = "sent whole: only extras can be left out; compact the session"
# The sections that are lists, and the type of their items.
_LISTS: Final = {"examples": dict, "memory": str, "evidence": str, "tools": dict}
Budgets = Mapping[str, int]


class _Item(NamedTuple):
    """The parts of a section that are kept or left out together, and their tokens."""

    parts: tuple[Any, ...]
    tokens: int


class ExtraArgs(TypedDict, total=False):
    """The extras of a context as the keyword arguments of a call.

    system:   a system prompt that replaces the session's own.
    tools:    tool definitions, sent unchanged.
    examples: messages of the Messages API that come first, in alternating roles.
    advice:   the result of ``store.advice`` or ``session.memory.advice``.
    memory:   texts about the user, then about the project, the most important first.
    evidence: documents for this request only, the best first.
    state:    a working memory to show, such as ``session.state()``.
    window:   the most tokens of a request, without the answer.
    budgets:  by section name, the most tokens of the section.
    """

    system: str | None
    tools: Sequence[JsonObject]
    examples: Sequence[Message]
    advice: Advice | None
    memory: Sequence[str]
    evidence: Sequence[str]
    state: JsonObject | None
    window: int | None
    budgets: Budgets


@dataclass(frozen=True, slots=True)
class Extras:
    """The parts of a context that the caller provides; ``ExtraArgs`` describes them.

    advice:        the JSON that a request records of an ``Advice``.
    window_tokens: the most tokens of a request.  A message over a quarter of it is
                   shortened.
    layers:        the part of memory layers from the user's other sessions.
    """

    system: str | None = None
    examples: tuple[Message, ...] = ()
    advice: JsonObject | None = None
    memory: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    state: JsonObject | None = None
    tools: tuple[JsonObject, ...] = ()
    window_tokens: int = WINDOW_TOKENS
    layers: CrossSessionLayers | None = None

    @property
    def advice_text(self) -> str:
        """The text of the advice, or an empty text."""
        return str(self.advice["text"]) if self.advice else ""

    @property
    def advised(self) -> tuple[str, ...]:
        """The ids of the items that the advice states."""
        ids = self.advice["items"] if self.advice else None
        if not isinstance(ids, list):
            return ()
        return tuple(map(str, ids))

    @classmethod
    def of(cls, args: ExtraArgs) -> Self:
        """Build the extras from the arguments of a call, except the budgets.

        Raises InvalidEvent, naming the section, for a value that no request can hold.
        """
        names = ExtraArgs.__annotations__
        unknown = sorted(set(args) - set(names))
        if unknown:
            raise InvalidEvent(
                f"a context has no section or limit {unknown[0]!r} "
                f"(it has: {', '.join(names)})"
            )
        window = args.get("window")
        advice = args.get("advice")
        if not isinstance(advice, Advice | None):
            raise InvalidEvent(
                "advice: must be the result of store.advice or session.memory.advice"
            )
        lists: dict[str, Any] = {
            name: _checked_list(name, args.get(name, ()), item_type)
            for name, item_type in _LISTS.items()
        }
        extras = cls(
            **lists,
            system=args.get("system"),
            advice=advice.to_request() if advice and advice.text else None,
            state=args.get("state"),
            window_tokens=WINDOW_TOKENS if window is None else window,
        )
        if not isinstance(extras.system, str | None):
            raise InvalidEvent("system: must be a text")
        if not isinstance(extras.state, dict | None):
            raise InvalidEvent("state: must be an object of names and JSON values")
        if not isinstance(extras.window_tokens, int) or extras.window_tokens < 1:
            raise InvalidEvent(f"window: must be at least 1 token, not {window!r}")
        problems = markup.violations(extras.examples) if extras.examples else []
        if problems:
            raise InvalidEvent(f"examples: {problems[0]}")
        if extras.examples and extras.examples[-1]["role"] != "assistant":
            raise InvalidEvent("examples: the last message must be the assistant's")
        return extras

    def dump(self) -> dict[str, str]:
        """Return the sections that are not empty, each as canonical JSON."""
        dumped: dict[str, str] = {}
        for name in SECTIONS:
            value = getattr(self, name)
            if name == "layers" and self.layers is not None:
                value = self.layers.refs
            if value in (None, ()):
                continue
            try:
                dumped[name] = canonical(value).decode()
            except TypeError:
                raise InvalidEvent(f"{name}: must be JSON") from None
        return dumped

    @classmethod
    def load(cls, dumped: Mapping[str, str], window_tokens: int) -> Self:
        """Read the sections that ``dump`` wrote.  Raises ValueError for others."""
        values: dict[str, Any] = {
            name: orjson.loads(text) for name, text in dumped.items()
        }
        for name in _LISTS.keys() & values:
            values[name] = tuple(values[name])
        for name in ("advice", "layers"):
            if not isinstance(values.get(name), dict | None):
                raise ValueError(f"{name} is not an object")
        if values.get("layers") is not None:
            values["layers"] = CrossSessionLayers(values["layers"])
        try:
            return cls(**values, window_tokens=window_tokens)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def _items(self, section: str) -> list[_Item]:
        """Return the items of a section, in order, with their tokens in a context.

        Each text of ``memory`` and ``layers`` is a message of its own, which has an
        overhead.  All ``evidence`` is in one message.
        """
        match section:
            case "examples":
                return _example_items(self.examples)
            case "memory":
                return [
                    _Item((text,), estimate_text(text) + MESSAGE_OVERHEAD)
                    for text in self.memory
                ]
            case "evidence":
                return [_Item((text,), estimate_text(text)) for text in self.evidence]
            case "advice":
                if not self.advice_text:
                    return []
                return [_Item((self.advice,), cost(self.advice_text))]
            case "layers":
                if self.layers is None or not self.layers.texts:
                    return []
                texts = [text for _, text in self.layers.texts]
                tokens = [estimate_text(text) + MESSAGE_OVERHEAD for text in texts]
                return [_Item((self.layers,), sum(tokens))]
        value = getattr(self, section)
        return [_Item((value,), estimate(value))] if value else []

    def _with(self, section: str, items: Sequence[_Item]) -> Self:
        """Return the extras with only these items of a section."""
        parts: list[Any] = []
        for item in items:
            parts += item.parts
        value: Any = tuple(parts)
        if section in ("advice", "layers"):  # One item, which is the whole section.
            value = parts[0] if parts else None
        changed: dict[str, Any] = {section: value}
        return replace(self, **changed)

    def within_budgets(self, budgets: Budgets) -> tuple[Self, list[Cut]]:
        """Remove the last items of each section over its budget.

        System, tools, and state are never cut; a cut reports that they are too large.

        Returns the remaining extras, and a cut for each section over its budget.

        Raises InvalidEvent for an unknown section or a budget below 0.
        """
        extras = self
        cuts: list[Cut] = []
        for name, budget in budgets.items():
            if name not in SECTIONS:
                raise InvalidEvent(
                    f"budgets: there is no section {name!r} "
                    f"(there is: {', '.join(SECTIONS)})"
                )
            if not isinstance(budget, int) or budget < 0:
                raise InvalidEvent(f"budgets: {name} must be 0 tokens or more")
            items = self._items(name)
            tokens = sum(item.tokens for item in items)
            if tokens <= budget:
                continue
            if name not in _CUTTABLE:
                cuts.append(Cut(name, tokens, budget, "sent whole: it cannot be cut"))
                continue
            totals = list(accumulate(item.tokens for item in items))
            count = bisect_right(totals, budget)
            extras = extras._with(name, items[:count])
            cuts.append(Cut(name, tokens, budget, _dropped(items, count)))
        return extras, cuts

    def within_window(self, tokens: int) -> tuple[Self, list[Cut]]:
        """Remove items until a context of ``tokens`` tokens fits into the window.

        Evidence gives way first, then examples, memory, layers, and advice; of each
        section, the last items first.

        Returns the remaining extras, and a cut for each section that lost items.
        """
        extras = self
        cuts: list[Cut] = []
        excess = tokens - self.window_tokens
        still_over = excess
        for name in _CUTTABLE:
            items = self._items(name)
            count = len(items)
            while count and still_over > 0:
                count -= 1
                still_over -= items[count].tokens
            if count < len(items):
                section_tokens = sum(item.tokens for item in items)
                reason = f"the whole is over the window: {_dropped(items, count)}"
                # The budget with which this section alone would have made room.
                budget = max(0, section_tokens - excess)
                cuts.append(Cut(name, section_tokens, budget, reason))
                extras = extras._with(name, items[:count])
        if still_over > 0:
            cuts.append(Cut("whole", tokens, self.window_tokens, _TOO_LONG))
        return extras, cuts


NO_EXTRAS: Final = Extras()


def _example_items(messages: Sequence[Message]) -> list[_Item]:
    """Group examples: each from a question of the user up to the next question."""
    examples: list[_Item] = []
    for message in messages:
        tokens = estimate(message["content"]) + MESSAGE_OVERHEAD
        if examples and not _is_question(message):
            example = examples[-1]
            examples[-1] = _Item((*example.parts, message), example.tokens + tokens)
        else:
            examples.append(_Item((message,), tokens))
    return examples


def _is_question(message: Message) -> bool:
    """Whether the user asks, instead of answering a tool call."""
    if message["role"] != "user":
        return False
    content = message["content"]
    blocks = content if isinstance(content, list) else ()
    return all(block["type"] != "tool_result" for block in blocks)


def _dropped(items: Sequence[_Item], count: int) -> str:
    """Say how many items are left out when the first ``count`` are kept."""
    return f"the last {len(items) - count} of {len(items)} left out"


def _checked_list(name: str, value: object, item_type: type) -> tuple[Any, ...]:
    """Return the items of a section; raises InvalidEvent if one has another type."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise InvalidEvent(f"{name}: must be a list")
    if not all(isinstance(item, item_type) for item in value):
        items = "texts" if item_type is str else "objects"
        raise InvalidEvent(f"{name}: must be a list of {items}")
    return tuple(value)


# The marks in the place of what a text loses: ``{}`` becomes the number of characters.
_MARK = "\n(… {} characters left out; the log has them all …)\n"
# The seq is filled in first; then ``{{}}`` is the ``{}`` of a mark.
_MARK_WITH_SEQ = "\n(… {{}} characters left out; the log has them all at seq {} …)\n"
# A shortened text keeps at least this many characters of its own.
_FEWEST_CHARACTERS = 40


Shortener = Callable[[str, int, str], str]
"""Shortens a text to a number of characters.

The arguments are the text, the number, and the mark for what is left out.
"""


def shorten(
    blocks: Numbered,
    limit: int,
    shortener: Shortener = markup.cut_around_placeholders,
    *,
    names_seqs: bool = False,
) -> Numbered:
    """Shorten the texts of blocks to ``limit`` tokens in all.

    Each text gets a part of the limit in proportion to its size.  Thinking and images
    stay unchanged.

    blocks:     each with the seq of its event.
    names_seqs: whether the mark in a shortened text names the seq.
    """
    sizes = [_size(block) for _, block in blocks]
    total = sum(sizes)
    if total <= limit:
        return blocks
    shortened: list[tuple[int | None, Block]] = []
    for (seq, block), size in zip(blocks, sizes, strict=True):
        share = limit * size // total
        named_seq = seq if names_seqs else None
        shortened.append((seq, _shorten_block(block, share, named_seq, shortener)))
    return shortened


def cut_to(
    text: str,
    tokens: int,
    seq: int | None,
    shortener: Shortener = markup.cut_around_placeholders,
) -> str:
    """Shorten a text to its head and tail in about ``tokens``, with a mark between.

    seq: the event that the mark names; None names none.
    """
    size = estimate_text(text)
    if size <= tokens:
        return text
    mark = _MARK
    if seq is not None:
        mark = _MARK_WITH_SEQ.format(seq)
    fewest = len(mark) + _FEWEST_CHARACTERS
    characters = max(len(text) * tokens // size, fewest)
    shortened = shortener(text, characters, mark)
    # The head and the tail may have more tokens per character than the whole text.
    while estimate_text(shortened) > tokens and characters > fewest:
        characters = max(characters * 9 // 10, fewest)
        shortened = shortener(text, characters, mark)
    return shortened


def _content(block: Block) -> str | list[Block]:
    """Return the text or the blocks in a block; empty if it cannot be shortened."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "tool_use", "input": arguments}:
            return markup.value_text(arguments)
        case {"type": "tool_result", "content": str(content) | list(content)}:
            return content
    return ""


def _size(block: Block) -> int:
    """Return the tokens of the texts in a block that can be shortened."""
    content = _content(block)
    if isinstance(content, str):
        return estimate_text(content)
    return sum(_size(part) for part in content)


def _shorten_block(
    block: Block, tokens: int, seq: int | None, shortener: Shortener
) -> Block:
    """Return the block with its texts shortened to ``tokens`` in all."""
    size = _size(block)
    if size <= tokens:
        return block
    content = _content(block)
    if isinstance(content, list):
        parts: list[Block] = []
        for part in content:
            share = tokens * _size(part) // size
            parts.append(_shorten_block(part, share, seq, shortener))
        return {**block, "content": parts}
    shortened = cut_to(content, tokens, seq, shortener)
    match block["type"]:
        case "text":
            return {**block, "text": shortened}
        case "tool_use":
            # The input must stay an object; a shortened one is no JSON any more.
            return {**block, "input": {"arguments": shortened}}
    return {**block, "content": shortened}
