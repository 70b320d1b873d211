"""The history that Codex sends: what compactions and rollbacks leave of a rollout.

A rollout is only added to.  A line ``compacted`` says which items take the place of the
history before it, and ``thread_rolled_back`` how many turns the user took back.
``History`` follows the lines as they come, and says what each of these two changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, messages
from refold.domain.canonical import canonical
from refold.domain.envelope import Mark
from refold.domain.events import EditReason

# What the client writes in the user's name begins so; it begins no turn.
_OF_CLIENT: Final = (
    "<environment_context",
    "<user_instructions",
    "# AGENTS.md instructions",
    "<skill>",
    "<subagent_notification",
    "<turn_aborted",
    "<user_shell_command",
)
# What the client notes of errors, which contexts show.
_ERRORS: Final = frozenset({"error", "stream_error", "turn_aborted", "task_complete"})
# Fields of an item that say nothing about what the model is sent.
_ASIDE: Final = frozenset({"id", "status", "phase", "end_turn"})


class Item(NamedTuple):
    """An item of the history.

    key:       of its draft.
    identity:  the same for items that a model sees as equal.
    is_turn:   whether it is an input of the user, which begins a turn.
    of_client: whether the client wrote it to describe its state.
    in_place:  whether it stands in the place of an earlier history.
    """

    key: str
    identity: bytes
    is_turn: bool = False
    of_client: bool = False
    in_place: bool = False


class New(NamedTuple):
    """An item that a compaction added, to be recorded under ``key``."""

    key: str
    value: dict[str, Any]


class Change(NamedTuple):
    """What the client changed in its history.

    key: of the draft that records it.
    new: the items to be recorded before it.
    """

    reason: EditReason
    key: str
    mark: Mark
    new: tuple[New, ...] = ()


class History:
    """Follows the lines of one rollout in the order of its file."""

    def __init__(self) -> None:
        self._items: tuple[Item, ...] = ()
        # For each turn that stands, the history before it.
        self._before_turns: list[tuple[Item, ...]] = []

    def take(self, entry: dict[str, Any], key: str) -> Change | None:
        """Take the next line; returns what it changes, or None.

        key: of the line's entry.
        """
        payload = entry.get("payload")
        kind = base.text(entry, "type")
        if not isinstance(payload, dict):  # as the first versions wrote it
            if kind is not None:
                self._add(_item(key, entry))
            return None
        if kind == "response_item":
            self._add(_item(key, payload))
        elif kind == "compacted":
            return self._compacted(payload, key)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            return self._rolled_back(payload, key)
        elif kind == "event_msg" and base.text(payload, "type") in _ERRORS:
            self._add(Item(key, b""))
        return None

    def _add(self, item: Item) -> None:
        if item.is_turn:
            self._before_turns.append(self._items)
        self._items = (*self._items, item)

    def _rolled_back(self, payload: dict[str, Any], key: str) -> Change | None:
        """The user took back the last turns."""
        count = int(base.number(payload, "num_turns") or 0)
        if count <= 0 or not self._before_turns:
            return None
        first = max(0, len(self._before_turns) - count)
        kept = self._before_turns[first]
        if first > 0:
            kept = _without_state(kept)
        self._before_turns = self._before_turns[:first]
        return self._changed("rollback", key, kept)

    def _compacted(self, payload: dict[str, Any], key: str) -> Change | None:
        """A summary, and perhaps more, took the place of the history."""
        values = [*base.each(payload, "replacement_history")]
        if not values:
            return self._summarized(payload, key)
        new: list[New] = []
        items: list[Item] = []
        for number, value in enumerate(values, start=1):
            item_key = f"{key}\0item{number}"
            new.append(New(item_key, value))
            items.append(_item(item_key, value)._replace(is_turn=False))
        lead, kept = _kept(self._items, items)
        end = lead + len(kept)
        in_place = [item._replace(in_place=True) for item in items[:lead]]
        history = (*in_place, *kept, *items[end:])
        return self._changed("compaction", key, history, (*new[:lead], *new[end:]))

    def _summarized(self, payload: dict[str, Any], key: str) -> Change | None:
        """Older versions kept the user's inputs, and put a summary behind them."""
        kept = tuple(item for item in self._items if item.is_turn)
        summary = base.text(payload, "message")
        if summary is None:
            return self._changed("compaction", key, kept)
        content = [{"type": "input_text", "text": summary}]
        value = {"type": "message", "role": "user", "content": content}
        new = New(f"{key}\0summary", value)
        item = _item(new.key, value)._replace(is_turn=False)
        return self._changed("compaction", key, (*kept, item), (new,))

    def _changed(
        self,
        reason: EditReason,
        key: str,
        history: tuple[Item, ...],
        new: tuple[New, ...] = (),
    ) -> Change | None:
        """Go on with another history, and say how it differs."""
        before = {item.key for item in self._items}
        after = {item.key for item in history}
        added = {item.key for item in new}
        mark = Mark(
            left_out=tuple(item.key for item in self._items if item.key not in after),
            restored=tuple(
                item.key
                for item in history
                if item.key not in before and item.key not in added
            ),
            in_place=tuple(
                item.key for item in history if item.key in added and item.in_place
            ),
        )
        self._items = history
        if not mark.keys and not new:
            return None
        return Change(reason, f"{key}\0mark", mark, new)


def _kept(
    history: Sequence[Item], replacement: Sequence[Item]
) -> tuple[int, tuple[Item, ...]]:
    """The run of a replacement that the history has: its start, and those items.

    What stands before the run takes the place of the history, what stands behind it
    follows.  An item that stood in the place of a history before is recorded again, so
    that the order is that of the replacement.
    """
    for start in range(len(replacement)):
        run = tuple(_run(history, replacement[start:]))
        if run:
            return start, run
    return len(replacement), ()


def _run(history: Sequence[Item], replacement: Iterable[Item]) -> Iterator[Item]:
    """The items of the history that a replacement begins with, in their order."""
    at = 0
    for item in replacement:
        while at < len(history) and not _is_same(history[at], item):
            at += 1
        if at == len(history):
            return
        yield history[at]
        at += 1


def _is_same(known: Item, item: Item) -> bool:
    return known.identity == item.identity and not known.in_place


def _without_state(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items without the state that the client wrote before the next turn."""
    end = len(items)
    while end and items[end - 1].of_client:
        end -= 1
    return items[:end]


def _item(key: str, value: dict[str, Any]) -> Item:
    role = value.get("role")
    texts = messages.joined_text(_plain_parts(value.get("content")))
    is_message = base.text(value, "type") in ("message", None) and bool(texts)
    if not is_message:
        content = {name: part for name, part in value.items() if name not in _ASIDE}
        return Item(key, canonical(content))
    is_of_client = role in ("developer", "system")
    if role == "user":
        is_of_client = texts.lstrip().startswith(_OF_CLIENT)
    return Item(
        key=key,
        identity=canonical([role, texts]),
        is_turn=role == "user" and not is_of_client,
        of_client=is_of_client,
    )


def _plain_parts(content: Any) -> Any:
    """The content with its texts as the words that they are, whatever their type."""
    if not isinstance(content, list):
        return content
    return [base.text(part, "text") or part for part in content]
