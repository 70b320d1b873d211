"""The view: what a model is sent, and what of the session each piece stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final, Literal, NamedTuple, Self, TypedDict

import orjson

from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.errors import InvalidEvent
from refold.domain.events import JsonObject, Request, StrategyRef
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context.text import IMAGE_TYPES, Block, is_base64, tagged

MOST: Final = 4
_CACHED: Final = {"type": "ephemeral"}
_NEVER: Final = frozenset({"thinking", "redacted_thinking"})
_HEAD: Final = frozenset({"examples", "memory"})
_PASSING: Final = frozenset({"evidence", "state"})

BreakpointsBlock = dict[str, Any]


class Marked(NamedTuple):
    """The parts of a request, some of whose blocks end what may be cached."""

    system: list[BreakpointsBlock]
    tools: list[BreakpointsBlock]
    messages: list[dict[str, Any]]


def marked(view: View, *, stable: bool) -> Marked:
    """The view's parts with ``cache_control`` at the ends of what stays the same.

    These are, each if it is there: system and tools; examples and memory; the
    summaries; and, if the view is ``stable``, everything before evidence and state.
    What the caller marked counts too; there are at most ``MOST`` marks.
    """
    system = [{"type": "text", "text": view.system}] if view.system else []
    tools, messages = [*view.tools], [*view.messages]
    room = MOST - _marks(tools, messages)
    for last in (system, tools):
        if last:
            room -= _mark(last, len(last) - 1) if room > 0 else 0
            break
    places = dict.fromkeys(_ends(view, stable=stable))
    for message, block in list(places)[: max(room, 0)]:
        blocks = [*messages[message]["content"]]
        _mark(blocks, block)
        messages[message] = {**messages[message], "content": blocks}
    return Marked(system, tools, messages)


def _ends(view: View, *, stable: bool) -> Iterator[tuple[int, int]]:
    """The blocks after which something else begins, the newest last."""
    kinds = [
        (origin.span.kind if origin.span else None, (message, block))
        for message, origins in enumerate(view.origins)
        for block, origin in enumerate(origins)
    ]
    first_passing = next(
        (i for i, (kind, _) in enumerate(kinds) if kind in _PASSING), len(kinds)
    )
    for section in (_HEAD, {"summary"}):
        own = [index for index, (kind, _) in enumerate(kinds) if kind in section]
        yield from _cacheable(view, (kinds[i][1] for i in reversed(own)))
    if stable:
        before = (kinds[i][1] for i in range(first_passing - 1, -1, -1))
        yield from _cacheable(view, before)


def _cacheable(
    view: View, places: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The first of ``places`` that may be marked."""
    for message, block in places:
        held = view.messages[message]["content"][block]
        if held["type"] not in _NEVER:
            if "cache_control" not in held:
                yield message, block
            return


def _mark(blocks: list[BreakpointsBlock], index: int) -> int:
    """Mark that block, and say how many marks that made."""
    if "cache_control" in blocks[index]:
        return 0
    blocks[index] = {**blocks[index], "cache_control": dict(_CACHED)}
    return 1


def _marks(
    tools: Sequence[BreakpointsBlock], messages: Sequence[dict[str, Any]]
) -> int:
    blocks = chain(tools, *(message["content"] for message in messages))
    return sum("cache_control" in block for block in blocks)


Message = dict[str, Any]
SpanKind = Literal[
    "system",
    "examples",
    "memory",
    "summary",
    "raw",
    "pinned",
    "stub",
    "evidence",
    "state",
]


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


class Cut(NamedTuple):
    """A section that is over its budget, both in tokens, and what was done about it."""

    section: str
    tokens: int
    budget: int
    reason: str


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
    extras: Extras | None = field(default=None, repr=False)
    tools: tuple[JsonObject, ...] = field(default=(), repr=False)
    cuts: tuple[Cut, ...] = ()
    stable: bool = True
    api: JsonObject = field(default_factory=dict, repr=False)

    def to_request(self, *, model: str, max_tokens: int) -> dict[str, Any]:
        """What ``client.messages.create(**…)`` takes to send this view.

        The ends of what the next request will begin with carry ``cache_control``, at
        most four; ``digest`` is of system and messages without it.
        """
        parts = marked(self, stable=self.stable)
        request: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
        for name, part in zip(("system", "tools"), parts, strict=False):
            if part:
                request[name] = part
        return {**request, "messages": parts.messages, **self.api}

    def request(
        self, *, model: str | None = None, matches: bool | None = None
    ) -> Request:
        """The event that records that this was sent, so that it can be shown again.

        matches: whether the bytes sent were those of the view.  Where redaction had to
                 change a tool definition, they were not.
        """
        extras = self.extras
        tools = extras.tools if extras else ()
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
            handed=extras.dump() if extras else {},
            window_tokens=extras.window_tokens if extras else 200_000,
            advised=extras.advised if extras else (),
        )

    def to_json(self) -> dict[str, Any]:
        """The view as ``refold context --json`` shows it."""
        return {
            "strategy": self.strategy,
            "fingerprint": self.fingerprint,
            "at": self.at,
            "tokens": self.tokens,
            "digest": self.digest,
            "over_budget": self.over_budget,
            "system": self.system,
            "messages": self.messages,
            "spans": [
                {"kind": span.kind, "first": span.first, "last": span.last}
                for span in self.spans
            ],
        }


def view_digest(system: str | None, messages: list[Message]) -> str:
    """What proves that a view is the same, byte for byte."""
    return digest({"system": system, "messages": messages})


Messages = Sequence[dict[str, Any]]
Rule = Callable[[Messages], Iterator[str]]

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_ROLES: Final = {
    "user": frozenset({"text", "image", "document", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", "compaction"}) | _THINKING,
}
_FIELDS: Final = {
    "text": frozenset({"text", "citations"}),
    "image": frozenset({"source"}),
    "document": frozenset({"source", "title", "context", "citations"}),
    "tool_use": frozenset({"id", "name", "input"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
    "compaction": frozenset(
        {"content", "encrypted_content", "signature", "tool_changes"}
    ),
}
_ALWAYS: Final = frozenset({"type", "cache_control"})


def violations(
    messages: Sequence[dict[str, Any]], system: str | None = None
) -> list[str]:
    """What the Messages API would refuse, one sentence each; empty if nothing."""
    problems = [problem for rule in RULES for problem in rule(messages)]
    if system is not None and not system.strip():
        problems.append("system: must not be empty; leave it out")
    return problems


def roles(messages: Messages) -> Iterator[str]:
    """Messages are of the user or the assistant, and the first is the user's."""
    if not messages:
        yield "messages: at least one message is needed"
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            yield f"messages.{index}: role must be user or assistant"
        if set(message) - {"role", "content"}:
            yield f"messages.{index}: holds more than role and content"
    if messages and messages[0].get("role") == "assistant":
        yield "messages.0: the first message must be the user's"


def alternation(messages: Messages) -> Iterator[str]:
    """Roles alternate."""
    for index, (one, other) in enumerate(pairwise(messages)):
        if one.get("role") == other.get("role"):
            yield f"messages.{index + 1}: two messages of one role in a row"


def contents(messages: Messages) -> Iterator[str]:
    """Every message has content, in blocks that its role may have."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"messages.{index}: content must not be empty"
        elif not all(isinstance(block, dict) for block in _blocks(message)):
            yield f"messages.{index}: content must be a text or a list of blocks"
    for where, role, block in _all(messages):
        kind = str(block.get("type"))
        if kind not in _ROLES.get(role, ()):
            yield f"{where}: a {kind} block cannot be in a message of the {role}"
        elif set(block) - _FIELDS[kind] - _ALWAYS:
            yield f"{where}: holds fields that a {kind} block does not have"


def texts(messages: Messages) -> Iterator[str]:
    """No text is empty or white space alone."""
    for where, _, block in _all(messages):
        if block.get("type") == "text" and not _filled(block.get("text")):
            yield f"{where}: text must hold more than white space"


def calls(messages: Messages) -> Iterator[str]:
    """Ids and names of calls are legal, ids unique, inputs objects."""
    ids: Counter[Any] = Counter()
    for where, _, block in _all(messages):
        if block.get("type") != "tool_use":
            continue
        if not _matches(_ID, block.get("id")):
            yield f"{where}: id must match ^{_ID.pattern}$"
        if not _matches(_NAME, block.get("name")):
            yield f"{where}: name must match ^{_NAME.pattern}$"
        if not isinstance(block.get("input"), dict):
            yield f"{where}: input must be an object"
        ids[str(block.get("id"))] += 1
        if ids[str(block.get("id"))] == 2:
            yield f"{where}: tool_use ids must be unique"


def pairs(messages: Messages) -> Iterator[str]:
    """Each call has one result in the next message, and each result such a call."""
    before: Counter[str] = Counter()
    for index, message in enumerate(messages):
        made, given = _ids(message, "tool_use", "id"), _results(message)
        if before - given:
            yield f"messages.{index - 1}: calls without a result right after them"
        if given - before:
            yield f"messages.{index}: results without a call right before them"
        before = made
    if before:
        yield f"messages.{len(messages) - 1}: calls without a result right after them"


def results(messages: Messages) -> Iterator[str]:
    """Results stand first in their message and hold texts and images that are valid."""
    for index, message in enumerate(messages):
        kinds = [block.get("type") == "tool_result" for block in _dicts(message)]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: results must stand before anything else"
    for where, _, block in _all(messages):
        if block.get("type") == "tool_result":
            yield from _result(where, block)


def thinking(messages: Messages) -> Iterator[str]:
    """Thinking is signed, stands first in its message and is not all there is."""
    for index, message in enumerate(messages):
        kinds = [
            block.get("type") in _THINKING
            for block in _dicts(message)
            if block.get("type") != "compaction"
        ]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: thinking must stand before anything else"
        if kinds and kinds[-1]:
            yield f"messages.{index}: the final block cannot be thinking"
    for where, _, block in _all(messages):
        if block.get("type") == "thinking":
            if not isinstance(block.get("thinking"), str):
                yield f"{where}: thinking must be a text"
            if not _filled(block.get("signature")):
                yield f"{where}: thinking needs the provider's signature"
        if block.get("type") == "redacted_thinking" and not _filled(block.get("data")):
            yield f"{where}: redacted thinking needs its data"


def images(messages: Messages) -> Iterator[str]:
    """Images are of a known type and hold base64, or have an address."""
    for where, _, block in _all(messages):
        if block.get("type") == "image":
            yield from _image(where, block)


def ending(messages: Messages) -> Iterator[str]:
    """What the assistant is to go on from does not end in white space."""
    if not messages or messages[-1].get("role") != "assistant":
        return
    last = [block.get("text") for block in _dicts(messages[-1])][-1:]
    if any(isinstance(text, str) and text != text.rstrip() for text in last):
        yield f"messages.{len(messages) - 1}: final text must not end in white space"


RULES: Final[tuple[Rule, ...]] = (
    roles,
    alternation,
    contents,
    texts,
    calls,
    pairs,
    results,
    thinking,
    images,
    ending,
)


def _result(where: str, block: Block) -> Iterator[str]:
    content = block.get("content")
    if not isinstance(block.get("is_error", False), bool):
        yield f"{where}: is_error must be true or false"
    if not isinstance(content, str | list | None):
        yield f"{where}: content must be a text or a list of blocks"
    if isinstance(content, str | list) and not content:
        yield f"{where}: content must not be empty; leave it out"
    if block.get("is_error") and not content:
        yield f"{where}: an error needs a content"
    if isinstance(content, str) and content and not content.strip():
        yield f"{where}: text must hold more than white space"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        yield from _result_part(f"{where}.content.{index}", part)


def _result_part(where: str, part: Any) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        if not _filled(part.get("text")):
            yield f"{where}: text must hold more than white space"
    elif kind == "image":
        yield from _image(where, part)
    elif kind != "document":
        yield f"{where}: a result holds texts, images and documents"


def _image(where: str, block: Block) -> Iterator[str]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        if not _filled(source.get("url")):
            yield f"{where}: an image needs its address"
    elif source.get("type") != "base64":
        yield f"{where}: an image needs a base64 or url source"
    else:
        if source.get("media_type") not in IMAGE_TYPES:
            yield f"{where}: media_type must be one of {', '.join(sorted(IMAGE_TYPES))}"
        if not is_base64(source.get("data")):
            yield f"{where}: data must be base64"


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _dicts(message: dict[str, Any]) -> list[Block]:
    return [block for block in _blocks(message) if isinstance(block, dict)]


def _all(messages: Messages) -> Iterator[tuple[str, str, Block]]:
    for index, message in enumerate(messages):
        for number, block in enumerate(_dicts(message)):
            yield f"messages.{index}.content.{number}", str(message.get("role")), block


def _ids(message: dict[str, Any], kind: str, key: str) -> Counter[str]:
    blocks: Iterable[Block] = _dicts(message)
    return Counter(str(block.get(key)) for block in blocks if block.get("type") == kind)


def _results(message: dict[str, Any]) -> Counter[str]:
    return _ids(message, "tool_result", "tool_use_id")


def _filled(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _matches(pattern: re.Pattern[str], text: Any) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


TITLE: Final = "## Memory (Verified)"


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
        return {
            "text": self.text,
            "items": list(self.items),
            "sessions": list(self.sessions),
            "derived_seq": self.derived_seq,
        }

    @classmethod
    def recorded(cls, handed: JsonObject | None, items: tuple[str, ...]) -> Advice:
        """What ``handed`` made; NO_ADVICE if it is not that."""
        found: dict[str, Any] = dict(handed or {})
        text, sessions = found.get("text"), found.get("sessions")
        derived = found.get("derived_seq")
        if not isinstance(text, str) or not text.startswith(TITLE):
            return NO_ADVICE
        if not isinstance(sessions, list) or not isinstance(derived, int):
            return NO_ADVICE
        if not all(item in text for item in items):
            return NO_ADVICE
        names = tuple(map(str, sessions))
        return cls(text, items, cost(text), (), names, derived)


NO_ADVICE: Final = Advice()


def cost(text: str) -> int:
    """What a section of this text adds to a context, in tokens."""
    return estimate_text(framed(text)) + MESSAGE_OVERHEAD if text else 0


def framed(text: str) -> str:
    """The section as it stands in a message."""
    return tagged("memory", text, of="advice")


WINDOW_TOKENS: Final = 200_000
SECTIONS: Final = (
    *("system", "tools", "examples", "advice", "memory", "evidence", "state"),
)
_LISTS: Final = frozenset({"tools", "examples", "memory", "evidence"})


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
    budgets: Mapping[str, int]


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

    @property
    def tools_tokens(self) -> int:
        """What the tool definitions cost."""
        return estimate(self.tools)

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
        unknown = sorted(set(given) - set(HandedIn.__annotations__))
        if unknown:
            known = ", ".join(HandedIn.__annotations__)
            raise InvalidEvent(
                f"there is no {unknown[0]!r} to hand in (there is: {known})"
            )
        window, advice = given.get("window"), given.get("advice")
        if not isinstance(advice, Advice | None):
            raise InvalidEvent("advice: is what store.advice or session.advice gives")
        extras = cls(
            system=given.get("system"),
            examples=_tuple("examples", given.get("examples", ()), dict),
            advice=advice.handed() if advice and advice.text else None,
            memory=_tuple("memory", given.get("memory", ()), str),
            evidence=_tuple("evidence", given.get("evidence", ()), str),
            state=given.get("state"),
            tools=_tuple("tools", given.get("tools", ()), dict),
            window_tokens=WINDOW_TOKENS if window is None else window,
        )
        extras._check()
        return extras

    def _check(self) -> None:
        if not isinstance(self.system, str | None):
            raise InvalidEvent("system: must be a text")
        if not isinstance(self.state, dict | None):
            raise InvalidEvent("state: must be an object of names and JSON values")
        if not isinstance(self.window_tokens, int) or self.window_tokens < 1:
            raise InvalidEvent(f"window: at least 1 token, not {self.window_tokens!r}")
        problems = violations(self.examples) if self.examples else []
        if problems:
            raise InvalidEvent(f"examples: {problems[0]}")
        if self.examples and self.examples[-1]["role"] != "assistant":
            raise InvalidEvent("examples: the last message must be the assistant's")

    def dump(self) -> dict[str, str]:
        """The sections that hold something, each as canonical JSON."""
        sections = ((name, getattr(self, name)) for name in SECTIONS)
        try:
            return {
                name: canonical(value).decode()
                for name, value in sections
                if value not in (None, ())
            }
        except TypeError:
            raise InvalidEvent("what is handed in must be JSON") from None

    @classmethod
    def load(cls, dumped: Mapping[str, str], window_tokens: int) -> Self:
        """The extras that ``dump`` wrote.  Raises ValueError for anything else."""
        values: dict[str, Any] = {
            name: orjson.loads(text) for name, text in dumped.items()
        }
        for name in _LISTS & values.keys():
            values[name] = tuple(values[name])
        if not isinstance(values.get("advice"), dict | None):
            raise ValueError("advice is no object")
        try:
            return cls(**values, window_tokens=window_tokens)
        except TypeError as error:
            raise ValueError(str(error)) from None


NO_EXTRAS: Final = Extras()


def _tuple(name: str, given: object, kind: type) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidEvent(f"{name}: must be a list")
    if not all(isinstance(item, kind) for item in given):
        what = "texts" if kind is str else "objects"
        raise InvalidEvent(f"{name}: must be a list of {what}")
    return tuple(given)
