"""The budget of a context: what a caller hands in, and where all of it is cut to size.

Each section that is handed in has a budget of its own (``within_budgets``); the whole
has the model's window (``within_window``); one message has a share of it (``shorten``).
What pinned events may take is the strategy's to say, and ``render`` keeps to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, Self, TypedDict

import orjson

from refold.domain.canonical import canonical
from refold.domain.errors import InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.model import quiet
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context import text as markup
from refold.projections.context.text import Block, Message, Numbered

TITLE: Final = "## Memory (Verified)"


@quiet
@dataclass(frozen=True, slots=True)
class Advice:
    """What is said to a model: a section of Markdown, and the items in it.

    tokens:      what it adds to a context; nothing to say costs nothing.
    left_out:    the next that were worth saying, and for which there was no room.
    sessions:    those that it cites.
    derived_seq: how far the session was compacted when it was chosen for it.
    """

    text: str = ""
    items: tuple[str, ...] = ()
    tokens: int = 0
    left_out: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    derived_seq: int = 0

    def handed(self) -> JsonObject:
        """As a request records it."""
        named: JsonObject = {"items": [*self.items], "sessions": [*self.sessions]}
        return {"text": self.text, **named, "derived_seq": self.derived_seq}

    @classmethod
    def recorded(cls, handed: JsonObject | None, items: tuple[str, ...]) -> Advice:
        """What ``handed`` made; NO_ADVICE if it is not that."""
        match handed:
            case {"text": str(text), "sessions": list(named), "derived_seq": int(seq)}:
                if text.startswith(TITLE) and all(item in text for item in items):
                    sessions = tuple(map(str, named))
                    return cls(text, items, cost(text), (), sessions, seq)
        return NO_ADVICE


NO_ADVICE: Final = Advice()


def cost(text: str) -> int:
    """What a section of this text adds to a context, in tokens."""
    return estimate_text(framed(text)) + MESSAGE_OVERHEAD if text else 0


def framed(text: str) -> str:
    """The section as it stands in a message."""
    return markup.tagged("memory", text, of="advice")


class Cut(NamedTuple):
    """A section that is over its budget, both in tokens, and what was done about it."""

    section: str
    tokens: int
    budget: int
    reason: str


class Elsewhere(NamedTuple):
    """What memory layers show of the user's other sessions.

    refs:  where it stands, by layer: this is what a request records, so that what is
           erased there is gone here too.
    texts: what stands there, each with its layer.
    """

    refs: JsonObject
    texts: tuple[tuple[str, str], ...] = ()

    def of(self, layer: str) -> list[str]:
        """The texts of a layer, as they stand in a message."""
        about = {"of": layer, "from": "earlier sessions"}
        mine = [text for name, text in self.texts if name == layer]
        return [markup.tagged("memory", text, **about) for text in mine]

    @property
    def sessions(self) -> set[str]:
        """The sessions that it is from."""
        places: Any = self.refs
        return {at[0] for name in ("user", "scope", "notes") for at in places[name]}


WINDOW_TOKENS: Final = 200_000
SECTIONS: Final = (
    *("system", "tools", "examples", "advice", "memory", "layers", "evidence", "state"),
)
# What goes first when the whole is too much.
_GIVEN_UP: Final = ("evidence", "examples", "memory", "layers", "advice")
_TOO_LONG: Final = (
    "sent whole: only what is handed in can be left out; compact the session"
)
# The sections that are lists, and what of.
_LISTS: Final = {"examples": dict, "memory": str, "evidence": str, "tools": dict}
Budgets = Mapping[str, int]
# What of a section is kept or left out together, with its tokens.
_Item = tuple[tuple[Any, ...], int]


class HandedIn(TypedDict, total=False):
    """What a call may hand in, by keyword.

    system:   a system prompt instead of the session's own.
    tools:    tool definitions, sent as they are.
    examples: Messages API messages that come first, in alternating roles.
    advice:   what memory says, as ``store.advice`` and ``session.advice`` give it.
    memory:   texts about the user, then about the project, the most important first.
    evidence: documents for this request alone, the best first.
    state:    a working memory to show, such as ``session.state()``.
    window:   how many tokens a request may have, the answer not counted.
    budgets:  how many of them a section may have, by its name above.
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
    """The parts of a context that no session holds; HandedIn says what each is.

    A message over a quarter of ``window_tokens`` is shortened.
    """

    system: str | None = None
    examples: tuple[Message, ...] = ()
    advice: JsonObject | None = None
    memory: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    state: JsonObject | None = None
    tools: tuple[JsonObject, ...] = ()
    window_tokens: int = WINDOW_TOKENS
    layers: Elsewhere | None = None

    @property
    def advice_text(self) -> str:
        """What memory says to the model."""
        return str(self.advice["text"]) if self.advice else ""

    @property
    def advised(self) -> tuple[str, ...]:
        """The items of memory that it says."""
        found = self.advice["items"] if self.advice else None
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @classmethod
    def of(cls, given: HandedIn) -> Self:
        """The extras that a call handed in, its budgets left out.

        Raises InvalidEvent, naming the section, for what no request could hold.
        """
        if unknown := sorted(set(given) - set(HandedIn.__annotations__)):
            known = f"(there is: {', '.join(HandedIn.__annotations__)})"
            raise InvalidEvent(f"there is no {unknown[0]!r} to hand in {known}")
        window, advice = given.get("window"), given.get("advice")
        if not isinstance(advice, Advice | None):
            raise InvalidEvent("advice: is what store.advice or session.advice gives")
        lists: dict[str, Any] = {
            name: _tuple(name, given.get(name, ()), kind)
            for name, kind in _LISTS.items()
        }
        extras = cls(
            **lists,
            system=given.get("system"),
            advice=advice.handed() if advice and advice.text else None,
            state=given.get("state"),
            window_tokens=WINDOW_TOKENS if window is None else window,
        )
        if not isinstance(extras.system, str | None):
            raise InvalidEvent("system: must be a text")
        if not isinstance(extras.state, dict | None):
            raise InvalidEvent("state: must be an object of names and JSON values")
        if not isinstance(extras.window_tokens, int) or extras.window_tokens < 1:
            raise InvalidEvent(f"window: at least 1 token, not {window!r}")
        problems = markup.violations(extras.examples) if extras.examples else []
        if problems:
            raise InvalidEvent(f"examples: {problems[0]}")
        if extras.examples and extras.examples[-1]["role"] != "assistant":
            raise InvalidEvent("examples: the last message must be the assistant's")
        return extras

    def dump(self) -> dict[str, str]:
        """The sections that hold something, each as canonical JSON."""
        found = {name: getattr(self, name) for name in SECTIONS}
        if self.layers is not None:
            found["layers"] = self.layers.refs
        given = ((name, v) for name, v in found.items() if v not in (None, ()))
        try:
            return {name: canonical(value).decode() for name, value in given}
        except TypeError:
            raise InvalidEvent("what is handed in must be JSON") from None

    @classmethod
    def load(cls, dumped: Mapping[str, str], window_tokens: int) -> Self:
        """The extras that ``dump`` wrote.  Raises ValueError for anything else."""
        values: dict[str, Any] = {k: orjson.loads(text) for k, text in dumped.items()}
        for name in _LISTS.keys() & values:
            values[name] = tuple(values[name])
        for name in ("advice", "layers"):
            if not isinstance(values.get(name), dict | None):
                raise ValueError(f"{name} is no object")
        if values.get("layers") is not None:
            values["layers"] = Elsewhere(values["layers"])
        try:
            return cls(**values, window_tokens=window_tokens)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def _items(self, section: str) -> list[_Item]:
        match section:
            case "examples":
                return _groups(self.examples)
            case "memory" | "evidence":
                more = MESSAGE_OVERHEAD if section == "memory" else 0
                texts: tuple[str, ...] = getattr(self, section)
                return [((text,), estimate_text(text) + more) for text in texts]
            case "advice":
                text = self.advice_text
                return [((self.advice,), cost(text))] if text else []
            case "layers":
                said = self.layers.texts if self.layers else ()
                told = sum(estimate_text(one) + MESSAGE_OVERHEAD for _, one in said)
                return [((self.layers,), told)] if said else []
        value = getattr(self, section)
        return [((value,), estimate(value))] if value else []

    def _with(self, section: str, items: Sequence[_Item]) -> Self:
        kept: Any = tuple(one for group, _ in items for one in group)
        if section in ("advice", "layers"):
            kept = kept[0] if kept else None
        changed: dict[str, Any] = {section: kept}
        return replace(self, **changed)

    def within_budgets(self, budgets: Budgets) -> tuple[Self, list[Cut]]:
        """A section over its budget loses its last items; what had to be cut.

        System, tools and state are never cut: that they are too large is told.

        Raises InvalidEvent for a budget of no section, or below 0.
        """
        extras, cuts = self, []
        for name, budget in budgets.items():
            if name not in SECTIONS:
                known = f"(there is: {', '.join(SECTIONS)})"
                raise InvalidEvent(f"budgets: there is no section {name!r} {known}")
            if not isinstance(budget, int) or budget < 0:
                raise InvalidEvent(f"budgets: {name} must be 0 tokens or more")
            items = self._items(name)
            tokens = sum(cost for _, cost in items)
            if tokens <= budget:
                continue
            if name not in _GIVEN_UP:
                cuts.append(Cut(name, tokens, budget, "sent whole: it cannot be cut"))
                continue
            sums = accumulate(cost for _, cost in items)
            kept = sum(total <= budget for total in sums)
            extras = extras._with(name, items[:kept])
            cuts.append(Cut(name, tokens, budget, _dropped(items, kept)))
        return extras, cuts

    def within_window(self, tokens: int) -> tuple[Self, list[Cut]]:
        """What is left of it if the whole, of so many tokens, is over the window.

        Evidence goes first, then examples, memory and advice, last items first.
        """
        extras, cuts = self, []
        too_many = over = tokens - self.window_tokens
        for name in _GIVEN_UP:
            items = self._items(name)
            kept = len(items)
            while kept and over > 0:
                kept -= 1
                over -= items[kept][1]
            if kept < len(items):
                own = sum(cost for _, cost in items)
                why = f"the whole is over the window: {_dropped(items, kept)}"
                cuts.append(Cut(name, own, max(0, own - too_many), why))
                extras = extras._with(name, items[:kept])
        if over > 0:
            cuts.append(Cut("whole", tokens, self.window_tokens, _TOO_LONG))
        return extras, cuts


NO_EXTRAS: Final = Extras()


def _groups(messages: Sequence[Message]) -> list[_Item]:
    """Examples, each from a question of the user to before the next."""
    groups: list[_Item] = []
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else ()
        answers = any(block["type"] == "tool_result" for block in blocks)
        asks = message["role"] == "user" and not answers
        tokens = estimate(content) + MESSAGE_OVERHEAD
        if groups and not asks:
            group, before = groups[-1]
            groups[-1] = (*group, message), before + tokens
        else:
            groups.append(((message,), tokens))
    return groups


def _dropped(items: Sequence[_Item], kept: int) -> str:
    return f"the last {len(items) - kept} of {len(items)} left out"


def _tuple(name: str, given: object, kind: type) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidEvent(f"{name}: must be a list")
    if not all(isinstance(item, kind) for item in given):
        what = "texts" if kind is str else "objects"
        raise InvalidEvent(f"{name}: must be a list of {what}")
    return tuple(given)


_POINTER = "\n(… {{}} characters left out; the log has them all at seq {} …)\n"


def shorten(blocks: Numbered, limit: int) -> Numbered:
    """``blocks``, each with its seq, with their texts cut to ``limit`` tokens in all.

    Each text keeps its share.  Thinking and images stay as they are.
    """
    sizes = [_size(block) for _, block in blocks]
    total = sum(sizes)
    if total <= limit:
        return blocks
    return [
        (seq, _cut(block, limit * size // total, seq))
        for (seq, block), size in zip(blocks, sizes, strict=True)
    ]


def cut_to(text: str, tokens: int, seq: int | None) -> str:
    """Head and tail of ``text`` in about ``tokens``, and a pointer between them."""
    size = estimate_text(text)
    if size <= tokens:
        return text
    mark = _POINTER.format(seq)
    least = len(mark) + 40
    keep = max(len(text) * tokens // size, least)
    while (
        estimate_text(short := markup.cut_middle(text, keep, mark)) > tokens
        and keep > least
    ):
        keep = max(keep * 9 // 10, least)
    return short


def _told(block: Block) -> tuple[str, str | list[Block]]:
    """The field of a block that can be cut, and the text or the blocks in it."""
    match block:
        case {"type": "text", "text": str(told)}:
            return "text", told
        case {"type": "tool_use", "input": arguments}:
            return "input", markup.value_text(arguments)
        case {"type": "tool_result", "content": str(told) | list(told)}:
            return "content", told
    return "", ""


def _size(block: Block) -> int:
    """The tokens of what can be cut in a block."""
    _, told = _told(block)
    return estimate_text(told) if isinstance(told, str) else sum(map(_size, told))


def _cut(block: Block, tokens: int, seq: int | None) -> Block:
    size = _size(block)
    if size <= tokens:
        return block
    field, told = _told(block)
    if isinstance(told, str):
        short = cut_to(told, tokens, seq)
        return {**block, field: {"arguments": short} if field == "input" else short}
    cut = [_cut(part, tokens * _size(part) // size, seq) for part in told]
    return {**block, field: cut}
