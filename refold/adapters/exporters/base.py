"""The base of exporters: a context as messages, each part with its event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID, uuid4, uuid5

from refold.domain.canonical import canonical, text_digest
from refold.domain.envelope import Envelope
from refold.projections.context.text import THINKING, Block, Role, text_block
from refold.projections.context.view import Origin as BlockOrigin, View
from refold.store.session.core import recorded_labels, viewer_of
from refold.store.session.session import Session

# A value of JSON that a form defines.
Entry = dict[str, Any]
# The field of an exported entry that names its origin.
MARK: Final = "refold"
_DIGITS: Final = 8  # of the digest at the end of a name that was cut
_TEXT_SOURCES: Final = frozenset({"text", "content"})


class Part(NamedTuple):
    """Neighboring blocks of a message that come from one event, or from none.

    seq:   of the event in the session's history; None for a summary, or a text that
           Refold adds.
    model: the model that wrote the event.
    """

    blocks: tuple[Block, ...]
    at: datetime
    seq: int | None = None
    model: str | None = None


class Message(NamedTuple):
    """A message of the context."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all parts."""
        return [block for part in self.parts for block in part.blocks]


class Origin(NamedTuple):
    """The place in a session that an export shows: its last event."""

    session_id: str
    seq: int
    event_id: UUID

    def mark(self) -> Entry:
        """Return the value that each exported entry has in the field ``refold``."""
        return {
            "session": self.session_id,
            "seq": self.seq,
            "event": str(self.event_id),
        }


@dataclass(frozen=True, slots=True)
class Conversation:
    """A context that is exported.

    system:      the system prompt; None without one.
    prompt_from: the format of the transcript from which it was imported.
    model:       the model that answered last.
    """

    origin: Origin
    messages: tuple[Message, ...]
    system: str | None = None
    prompt_from: str | None = None
    tools: tuple[Entry, ...] = ()
    title: str = ""
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The session of the client that an export becomes.

    session_id: its id.
    folder:     the folder in which the client works.
    at:         the time of the export.
    """

    session_id: UUID = field(default_factory=uuid4)
    folder: Path = field(default_factory=Path.cwd)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def entry_id(self, number: int) -> str:
        """Return the id of an entry: the same for the same session and number."""
        return str(uuid5(self.session_id, str(number)))


class Written(NamedTuple):
    """An export.

    values:   the lines of a file of lines, or the one document.
    left_out: what the form cannot hold, and how often.
    """

    values: list[Entry]
    left_out: Counter[str]


class Writer(Protocol):
    """A module that writes one form.

    ``IS_LINES`` says whether the file has several lines.
    """

    NAME: str
    IS_LINES: bool

    def write(self, conversation: Conversation, target: Target) -> Written: ...


def conversation_of(session: Session, view: View) -> Conversation:
    """Return a context of the session for an export.

    Raises SessionNotFound.
    """
    history = viewer_of(session).history
    title = recorded_labels(session).get("title", "")
    envelopes = history.events(upto=view.at)
    return conversation(view, envelopes, session.session_id, title=title)


def conversation(
    view: View, envelopes: Iterable[Envelope], session_id: str, *, title: str = ""
) -> Conversation:
    """Return a view with the times and models of its events.

    envelopes: the events of the session up to that of the view; at least one.
    """
    system_seqs = {span.first for span in view.spans if span.kind == "system"}
    seqs = {origin.seq for origins in view.origins for origin in origins} | system_seqs
    events: dict[int, Envelope] = {}
    last: Envelope | None = None
    for envelope in envelopes:
        last = envelope
        if envelope.seq in seqs:
            events[envelope.seq] = envelope
    if last is None:
        raise ValueError("a context of no event cannot be exported")
    prompt_from: str | None = None
    for seq in system_seqs:
        source = events[seq].meta.source if seq in events else None
        form = (source or {}).get("format")
        if isinstance(form, str):
            prompt_from = form
    messages = tuple(_messages(view, events, start=last.ts))
    models = [part.model for message in messages for part in message.parts]
    named_models = [model for model in models if model]
    return Conversation(
        origin=Origin(session_id, last.seq, last.event_id),
        messages=messages,
        system=view.system,
        prompt_from=prompt_from,
        tools=view.tools,
        title=title,
        model=named_models[-1] if named_models else None,
    )


def _messages(
    view: View, events: Mapping[int, Envelope], *, start: datetime
) -> Iterator[Message]:
    """Yield the messages of a view.

    A block without an event has the time of the event before it.

    events: those that blocks show, by seq.
    start:  the time of the session's last event, if no block has an event.
    """
    times = [envelope.ts for envelope in events.values()]
    at = min(times, default=start)
    for message, origins in zip(view.messages, view.origins, strict=True):
        parts: list[Part] = []
        previous: BlockOrigin | None = None
        for block, origin in zip(message["content"], origins, strict=True):
            if parts and origin == previous and _continues(message["role"], block):
                parts[-1] = parts[-1]._replace(blocks=(*parts[-1].blocks, block))
                continue
            previous = origin
            envelope = events.get(origin.seq) if origin.seq is not None else None
            model: str | None = None
            if envelope is not None:
                at = envelope.ts
                model = envelope.meta.model
            parts.append(Part((block,), at, origin.seq, model))
        yield Message(message["role"], tuple(parts))


def _continues(role: Role, block: Block) -> bool:
    """Whether a block can follow others of its event in one entry.

    Readers of transcripts join the texts of an entry of the user, so each text begins
    an entry.
    """
    return role == "assistant" or block["type"] != "text"


def without_thinking(blocks: Iterable[Block], left_out: Counter[str]) -> list[Block]:
    """Return the blocks without thinking, which only its provider can read."""
    remaining: list[Block] = []
    for block in blocks:
        if block["type"] in THINKING:
            left_out["blocks of thinking"] += 1
        else:
            remaining.append(block)
    return remaining


def cut_name(name: str, longest: int) -> str:
    """Return the name of a tool, cut to the longest that an API accepts.

    The digest at its end keeps different names different.
    """
    if len(name) <= longest:
        return name
    return f"{name[: longest - _DIGITS - 1]}_{text_digest(name)[:_DIGITS]}"


def data_url(block: Block) -> str | None:
    """Return the address of an image or document, which may be a ``data:`` URL."""
    source = block.get("source") or {}
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    if source.get("type") == "url":
        return str(source.get("url"))
    return None


def in_words(block: Block) -> Block:
    """Return a text for a block that a form cannot hold as such."""
    kind = block["type"]
    source = block.get("source") or {}
    title = block.get("title") or ""
    if source.get("type") in _TEXT_SOURCES:
        content: Any = source.get("data", source.get("content"))
        if not isinstance(content, str):
            content = canonical(content).decode()
        return text_block(f"{title}\n{content}" if title else content)
    if kind == "search_result":
        return text_block(canonical(block.get("content")).decode())
    name = f" {title!r}" if title else ""
    return text_block(f"(A file of the kind {kind}{name} stood here.)")


def json_text(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return canonical(value).decode()


def timestamp(at: datetime) -> str:
    """Return a time as the clients write it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
