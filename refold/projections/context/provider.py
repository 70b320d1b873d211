"""Blocks of the provider, which requests send back unchanged, in whole pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.placeholders import STANDS_FOR
from refold.domain.stubs import STUB_SIGN, Read, no_blobs, whole
from refold.projections.context.text import THINKING, Block, Numbered

# Blocks that a request may contain only if it asks for their feature.
_ON_REQUEST: Final = frozenset({"compaction"})
# The provider recognizes only unchanged blocks with such a field, at any depth.
_SEALED: Final = re.compile(r"encrypted_|signature")
_USE: Final = "_tool_use"
_RESULT: Final = "_tool_result"
# Events behind which a block begins a new response.
_BEFORE_RESPONSE: Final = (events.UserInput, events.ToolResult)


@dataclass(slots=True)
class ProviderBlocks:
    """The provider's blocks of a view, by the seq of the response that they belong to.

    before, behind: those that stand before and behind the response's text.
    content:        the response in its order: blocks of the provider, texts, and the
                    numbers of its calls and its thinking (``ProviderEdit.content``).
    container:      the newest container of the provider that has not expired.
    left_out:       (seq, type, reason) of each block that cannot be sent back.
    """

    before: dict[int, Numbered] = field(default_factory=dict)
    behind: dict[int, Numbered] = field(default_factory=dict)
    content: dict[int, list[tuple[int, Block]]] = field(default_factory=dict)
    container: str | None = None
    left_out: list[tuple[int, str, str]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        rows: Sequence[Envelope],
        requested: Collection[str],
        read: Read = no_blobs,
    ) -> ProviderBlocks:
        """Collect the blocks of these events, which are in order.

        requested: types of blocks that the request asks for.
        read:      returns the blobs of texts that the size guard moved.
        """
        collected = cls()
        response: int | None = None
        waiting: Numbered = []
        for row in rows:
            match row.payload:
                case events.AgentResponse():
                    response = row.seq
                    if waiting:
                        collected.before[response] = waiting
                    waiting = []
                case events.ProviderEdit() as edit:
                    blocks = collected._usable(row.seq, edit, requested, read)
                    if response is None:
                        waiting += [(row.seq, block) for block in blocks if block]
                    else:
                        collected._add(response, row.seq, edit, blocks)
                        if edit.container is not None:
                            collected.container = _live(edit.container, rows[-1].at)
                case event if isinstance(event, _BEFORE_RESPONSE):
                    response = None
                    waiting = []
        return collected

    def _add(
        self,
        response: int,
        seq: int,
        edit: events.ProviderEdit,
        blocks: Sequence[Block | None],
    ) -> None:
        """Add the blocks of an edit behind a response.

        blocks: None for each block that cannot be sent back.
        """
        places = [entry for entry in edit.content or () if "block" in entry]
        if edit.content and len(places) == len(blocks):
            content: list[tuple[int, Block]] = []
            for entry in edit.content:
                number = entry.get("block")
                if not isinstance(number, int):
                    content.append((seq, entry))
                    continue
                block = blocks[number] if number < len(blocks) else None
                if block is not None:
                    content.append((seq, block))
            self.content[response] = content
            return
        for block in blocks:
            if block is not None:
                is_first = block["type"] in _ON_REQUEST
                place = self.before if is_first else self.behind
                place.setdefault(response, []).append((seq, block))

    def _usable(
        self,
        seq: int,
        edit: events.ProviderEdit,
        requested: Collection[str],
        read: Read,
    ) -> list[Block | None]:
        """Return the blocks of an edit, with None for each that cannot be sent back."""
        usable: list[Block | None] = []
        for stored in edit.blocks:
            kind = str(stored.get("type"))
            block: Block | None = _restored(dict(stored), read)
            if kind in _ON_REQUEST and kind not in requested:
                block = None
            elif _holds(block, lambda text: STUB_SIGN in text):
                self.left_out.append((seq, kind, "a blob of it is gone"))
                block = None
            elif _is_sealed(block) and _holds(block, STANDS_FOR.search):
                self.left_out.append((seq, kind, "it was redacted"))
                block = None
            usable.append(block)
        return usable


def _live(container: Any, at: int) -> str | None:
    """Return the id of a container that has not expired at this time."""
    match container:
        case {"id": str(name), "expires_at": str(expires_at)}:
            try:
                expires = datetime.fromisoformat(expires_at)
                return name if expires.timestamp() * 1_000_000 > at else None
            except (ValueError, OverflowError):
                return None
        case {"id": str(name)}:
            return name
    return None


def _restored(value: Any, read: Read) -> Any:
    """Return a value with the whole texts in place of those that were cut."""
    if isinstance(value, str):
        return whole(value, read) if STUB_SIGN in value else value
    if isinstance(value, dict):
        return {key: _restored(item, read) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, read) for item in value]
    return value


def _holds(value: Any, test: Callable[[str], object]) -> bool:
    """Whether a text in the value passes the test."""
    if isinstance(value, str):
        return bool(test(value))
    if isinstance(value, dict):
        return any(_holds(item, test) for item in value.values())
    if isinstance(value, list):
        return any(_holds(item, test) for item in value)
    return False


def _is_sealed(value: Any) -> bool:
    """Whether the provider would not recognize the value after a change."""
    if isinstance(value, dict):
        if value.get("type") in _ON_REQUEST:
            return True
        return any(
            _SEALED.match(key) or _is_sealed(item) for key, item in value.items()
        )
    if isinstance(value, list):
        return any(map(_is_sealed, value))
    return False


def is_of_provider(block: Block) -> bool:
    """Whether a block of the agent is neither a text, nor a call, nor thinking."""
    return block["type"] not in THINKING and block["type"] not in ("text", "tool_use")


def halves(blocks: Iterable[Block], *, paused: bool) -> list[Block]:
    """Return the blocks of one message that are half of a pair.

    paused: whether the provider continues the message, so that its calls at the end
            still get their results.
    """
    uses: dict[str, Block] = {}
    last_uses: dict[str, Block] = {}
    results: dict[str, Block] = {}
    for block in blocks:
        kind = block["type"]
        if kind.endswith(_USE):
            uses[str(block.get("id"))] = block
            last_uses[str(block.get("id"))] = block
        elif kind.endswith(_RESULT):
            results[str(block.get("tool_use_id"))] = block
        else:
            last_uses = {}
    waiting = last_uses if paused else {}
    half: list[Block] = []
    for name, use in uses.items():
        if name not in results and name not in waiting:
            half.append(use)
    for name, result in results.items():
        if name not in uses:
            half.append(result)
    return half
