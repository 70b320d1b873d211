"""Trees of messages: the order in which they were written, and the branch in force.

Chat programs keep each message with its parent.  A user who edits a message, or asks
for another answer, begins a branch.  ``Tree`` returns the messages in the order in
which they were written, and the changes of the history that the program sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from refold.domain.canonical import text_digest
from refold.domain.envelope import Mark
from refold.domain.events import EditReason


class Node(NamedTuple):
    """A message.

    parent:  the id of the message before it; None for the first one.
    time:    seconds since 1970; None if unknown.
    of_user: whether a person wrote it, so that it begins a turn.
    """

    id: str
    parent: str | None
    time: float | None = None
    of_user: bool = False


class Change(NamedTuple):
    """A change of the history: the messages that leave it, and those that return."""

    reason: EditReason
    left_out: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()

    def mark(self, form: str) -> Mark:
        """Return the change with keys of the format in place of ids."""
        return Mark(
            left_out=tuple(key(form, node_id) for node_id in self.left_out),
            restored=tuple(key(form, node_id) for node_id in self.restored),
        )

    @property
    def digest(self) -> str:
        """Return a digest of the ids, by which a session has a change once."""
        return text_digest("\0".join((*self.left_out, "", *self.restored)))


class Step(NamedTuple):
    """A message, and the change of the history before it; None without one."""

    node_id: str
    change: Change | None


def key(form: str, node_id: str) -> str:
    """Return the key of a message's events."""
    return f"{form}\0{node_id}"


@dataclass(order=True, slots=True)
class _Unit:
    """Messages that follow each other: a turn, or the part of one after a branching.

    time:  of its first message, at least that of the unit before it.
    place: of its first message in the file.
    """

    time: float
    place: int
    ids: list[str] = field(compare=False)


class Tree:
    """A tree of messages.  Messages whose parent is unknown are roots.

    broken: the ids of messages whose parents are unknown, or form a circle.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes: dict[str, Node] = {}
        for node in nodes:
            self._nodes.setdefault(node.id, node)
        self._places = {node_id: place for place, node_id in enumerate(self._nodes)}
        self._children: dict[str, list[str]] = {node_id: [] for node_id in self._nodes}
        self._roots: list[str] = []
        # The number of messages before each one on its path, by id.
        self._depths: dict[str, int] = {}
        self.broken: list[str] = []
        for node in self._nodes.values():
            if node.parent in self._children:
                self._children[node.parent].append(node.id)
                continue
            self._roots.append(node.id)
            if node.parent is not None:
                self.broken.append(node.id)

    @property
    def has_branches(self) -> bool:
        """Whether the messages do not form a single path."""
        if len(self._roots) > 1:
            return True
        return any(len(children) > 1 for children in self._children.values())

    def steps(self) -> Iterator[Step]:
        """Yield the messages in the order in which they were written.

        A turn is not interrupted by messages of another branch.
        """
        leaf: str | None = None
        seen: set[str] = set()
        for unit in self._units():
            parent = self._nodes[unit.ids[0]].parent
            if parent not in self._nodes:
                parent = None
            change = None
            if leaf is not None and parent != leaf:
                change = self._change(leaf, parent)
            depth = 0 if parent is None else self._depths[parent] + 1
            for place, node_id in enumerate(unit.ids):
                seen.add(node_id)
                self._depths[node_id] = depth + place
                yield Step(node_id, change)
                change = None
            leaf = unit.ids[-1]
        for node_id in self._nodes:
            if node_id not in seen:  # its parents form a circle
                self.broken.append(node_id)
                yield Step(node_id, None)

    def current(self, leaf: str | None) -> Change | None:
        """Return the change that puts the branch of a message in force.

        It names all messages, so that it holds whatever changes came before it.
        Returns None without branches, or if the tree does not have the message.
        """
        if leaf not in self._nodes or not self.has_branches:
            return None
        path = self.path(leaf)
        shown = set(path)
        others = tuple(node_id for node_id in self._nodes if node_id not in shown)
        return Change("fork", left_out=others, restored=tuple(path))

    def path(self, leaf: str | None) -> list[str]:
        """Return the messages from the first one to ``leaf``."""
        newest_first: dict[str, None] = {}
        while leaf in self._nodes and leaf not in newest_first:
            newest_first[leaf] = None
            leaf = self._nodes[leaf].parent
        return list(reversed(newest_first))

    def _units(self) -> Iterator[_Unit]:
        """Yield the units by time, each after the one that it continues."""
        waiting: list[_Unit] = []
        for root in self._roots:
            heappush(waiting, self._unit(root, 0.0))
        while waiting:
            unit = heappop(waiting)
            yield unit
            for child in self._children[unit.ids[-1]]:
                heappush(waiting, self._unit(child, unit.time))

    def _unit(self, first: str, earliest: float) -> _Unit:
        """Return the unit that begins with a message.

        earliest: the time of the unit before it, if its own time is unknown or earlier.
        """
        time = self._nodes[first].time
        unit = _Unit(max(earliest, time or 0.0), self._places[first], [first])
        children = self._children[first]
        while len(children) == 1 and not self._nodes[children[0]].of_user:
            unit.ids.append(children[0])
            children = self._children[children[0]]
        return unit

    def _change(self, leaf: str, parent: str | None) -> Change:
        """Return the change from the path to ``leaf`` to the path to ``parent``.

        Goes back to the last message that both paths have, and no further.
        """
        old: str | None = leaf
        new = parent
        left_out: list[str] = []
        restored: list[str] = []
        while old != new:
            if old is not None and self._depth(old) >= self._depth(new):
                left_out.append(old)
                old = self._parent(old)
            elif new is not None:
                restored.append(new)
                new = self._parent(new)
        left_out.reverse()
        restored.reverse()
        reason: EditReason = "fork" if restored else "rewind"
        return Change(reason, left_out=tuple(left_out), restored=tuple(restored))

    def _depth(self, node_id: str | None) -> int:
        """Return the number of messages before one; -1 for the place before all."""
        return -1 if node_id is None else self._depths[node_id]

    def _parent(self, node_id: str) -> str | None:
        """Return the parent of a message; None if the tree does not have it."""
        parent = self._nodes[node_id].parent
        return parent if parent in self._nodes else None
