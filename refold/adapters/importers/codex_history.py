"""The history that Codex sends: the items that compactions and rollbacks leave.

Codex only appends lines to a rollout.  The line ``compacted`` has the items that
replace the history before it, and ``thread_rolled_back`` the number of turns that the
user took back.  ``History`` follows the lines in order, and returns the change that
each of these two makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, messages
from refold.domain.canonical import canonical
from refold.domain.envelope import Mark
from refold.domain.events import EditReason

# The first words of texts that the client writes in the name of the user.  Such texts
# begin no turn.
_OF_CLIENT: Final = (
    "<environment_context",
    "<user_instructions",
    "# AGENTS.md instructions",
    "<skill>",
    "<subagent_notification",
    "<turn_aborted",
    "<user_shell_command",
)
# Notes of the client about errors, which contexts show.
_ERRORS: Final = frozenset({"error", "stream_error", "turn_aborted", "task_complete"})
# Fields of an item that the model does not get.
_NOT_SENT: Final = frozenset({"id", "status", "phase", "end_turn"})


class Item(NamedTuple):
    """An item of the history.

    key:       the key of its draft.
    identity:  equal for items that a model sees as equal.
    is_turn:   whether it is an input of the user, which begins a turn.
    of_client: whether the client wrote it to describe its state.
    in_place:  whether it replaces earlier items.
    """

    key: str
    identity: bytes
    is_turn: bool = False
    of_client: bool = False
    in_place: bool = False


class New(NamedTuple):
    """An item that a compaction added, and the key to record it under."""

    key: str
    value: dict[str, Any]


class Change(NamedTuple):
    """A change of the client to its history.

    key:  the key of the draft that records the change.
    mark: the items that it leaves out or restores, by the keys of their drafts.
    new:  the items to record before the change.
    """

    reason: EditReason
    key: str
    mark: Mark
    new: tuple[New, ...] = ()


class History:
    """Follows the lines of one rollout in the order of its file."""

    def __init__(self) -> None:
        self._items: tuple[Item, ...] = ()
        # The history before each turn that was not taken back.
        self._before_turns: list[tuple[Item, ...]] = []

    def take(self, entry: dict[str, Any], key: str) -> Change | None:
        """Take the next line; returns the change that it makes, or None.

        key: the key of the line's entry.
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
            self._add(Item(key, b""))  # no item of a compaction equals a note
        return None

    def _add(self, item: Item) -> None:
        """Add an item to the end of the history."""
        if item.is_turn:
            self._before_turns.append(self._items)
        self._items = (*self._items, item)

    def _rolled_back(self, payload: dict[str, Any], key: str) -> Change | None:
        """Return to the history before the last turns, which the user took back."""
        count = int(base.number(payload, "num_turns") or 0)
        if count <= 0 or not self._before_turns:
            return None
        first = max(0, len(self._before_turns) - count)
        history = self._before_turns[first]
        if first > 0:
            history = _without_state(history)
        self._before_turns = self._before_turns[:first]
        return self._changed("rollback", key, history)

    def _compacted(self, payload: dict[str, Any], key: str) -> Change | None:
        """Replace the history by the items in a line: a summary, and perhaps others."""
        values = [*base.each(payload, "replacement_history")]
        if not values:
            return self._summarized(payload, key)
        new: list[New] = []
        items: list[Item] = []
        for number, value in enumerate(values, start=1):
            item_key = f"{key}\0item{number}"
            new.append(New(item_key, value))
            items.append(_item(item_key, value)._replace(is_turn=False))
        start, retained_items = _retained_run(self._items, items)
        end = start + len(retained_items)
        in_place = [item._replace(in_place=True) for item in items[:start]]
        history = (*in_place, *retained_items, *items[end:])
        return self._changed("compaction", key, history, (*new[:start], *new[end:]))

    def _summarized(self, payload: dict[str, Any], key: str) -> Change | None:
        """Keep only the user's inputs, and add a summary, as older versions do."""
        inputs = tuple(item for item in self._items if item.is_turn)
        summary = base.text(payload, "message")
        if summary is None:
            return self._changed("compaction", key, inputs)
        content = [{"type": "input_text", "text": summary}]
        value = {"type": "message", "role": "user", "content": content}
        new = New(f"{key}\0summary", value)
        item = _item(new.key, value)._replace(is_turn=False)
        return self._changed("compaction", key, (*inputs, item), (new,))

    def _changed(
        self,
        reason: EditReason,
        key: str,
        history: tuple[Item, ...],
        new: tuple[New, ...] = (),
    ) -> Change | None:
        """Continue with another history; returns the change, or None without one.

        new: the items in it that a compaction added.
        """
        keys_before = {item.key for item in self._items}
        keys_after = {item.key for item in history}
        keys_of_new = {item.key for item in new}
        restored: list[str] = []
        in_place: list[str] = []
        for item in history:
            if item.key in keys_of_new:
                if item.in_place:
                    in_place.append(item.key)
            elif item.key not in keys_before:
                restored.append(item.key)
        left_out = [item.key for item in self._items if item.key not in keys_after]
        mark = Mark(
            left_out=tuple(left_out),
            restored=tuple(restored),
            in_place=tuple(in_place),
        )
        self._items = history
        if not mark.keys and not new:
            return None
        return Change(reason, f"{key}\0mark", mark, new)


def _retained_run(
    history: Sequence[Item], replacement: Sequence[Item]
) -> tuple[int, tuple[Item, ...]]:
    """Return the first items in a row of a replacement that the history already has.

    Returns the index of the first one in the replacement, and the items as they are in
    the history.  Items of the replacement before them replace the history, and items
    after them follow.  An item that replaced an earlier history does not count.  It is
    recorded again, so that the items get the order of the replacement.
    """
    for start in range(len(replacement)):
        run = tuple(_run(history, replacement[start:]))
        if run:
            return start, run
    return len(replacement), ()


def _run(history: Sequence[Item], replacement: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of the history with which a replacement begins, in their order.

    The history may have other items between them.
    """
    index = 0
    for item in replacement:
        while index < len(history) and not _is_same(history[index], item):
            index += 1
        if index == len(history):
            return
        yield history[index]
        index += 1


def _is_same(old: Item, new: Item) -> bool:
    """Whether an item of the history is retained as an item of a replacement."""
    return old.identity == new.identity and not old.in_place


def _without_state(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return the items without the state that the client wrote at their end."""
    end = len(items)
    while end and items[end - 1].of_client:
        end -= 1
    return items[:end]


def _item(key: str, value: dict[str, Any]) -> Item:
    """Return the item in a line, or in the replacement of a compaction."""
    role = value.get("role")
    text = messages.joined_text(_plain_parts(value.get("content")))
    is_message = base.text(value, "type") in ("message", None) and bool(text)
    if not is_message:
        content = {name: part for name, part in value.items() if name not in _NOT_SENT}
        return Item(key, canonical(content))
    is_of_client = role in ("developer", "system")
    if role == "user":
        is_of_client = text.lstrip().startswith(_OF_CLIENT)
    return Item(
        key=key,
        identity=canonical([role, text]),
        is_turn=role == "user" and not is_of_client,
        of_client=is_of_client,
    )


def _plain_parts(content: Any) -> Any:
    """Return the content, with each part that has a text replaced by the text."""
    if not isinstance(content, list):
        return content
    return [base.text(part, "text") or part for part in content]
