"""Branches of a Claude Code session: the entries that the client still sends.

Each entry of a session file names its parent.  The client sends the path from the first
entry to the last one.  A rewind begins a new branch at an earlier entry, and a
compaction begins a new path with a summary.  ``Branches`` follows the entries in order,
and returns the changes that each makes to the client's context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base
from refold.domain.envelope import Mark
from refold.domain.events import EditReason

CLEARED_TEXT: Final = "[Old tool result content cleared]"
_BROKEN: Final = (
    "entry whose parent is not in the file: the order of the file is followed there"
)


class Change(NamedTuple):
    """A change of the client to its history.

    mark: the entries that it changes, by the keys of their drafts.
    rule: the rule that found the change; empty if an entry records it.
    """

    reason: EditReason
    mark: Mark
    cleared_text: str = ""
    rule: str = ""


class Changes(NamedTuple):
    """The changes that an entry shows: those before its events, and those after.

    note: why the chain of parents could not be followed; empty if it could.
    """

    before: tuple[Change, ...] = ()
    after: tuple[Change, ...] = ()
    note: str = ""


NO_CHANGES: Final = Changes()


@dataclass(eq=False, slots=True)
class _Node:
    """An entry of the conversation.

    uuid:     its id; empty for a queued message without an entry.
    keys:     of the drafts of its events.
    response: the id of the model's response that it belongs to.
    calls:    the ids of the calls in it.
    results:  the ids of the calls whose results are in it.
    floats:   whether it is an attachment, which may name any earlier entry as parent.
    """

    uuid: str
    keys: tuple[str, ...]
    response: str | None = None
    calls: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    floats: bool = False


class _Link(NamedTuple):
    """A node on a path, and the link before it."""

    node: _Node
    before: _Link | None


@dataclass(slots=True)
class _Boundary:
    """A compaction whose summary has not come yet.

    preserved:       the ids of the entries that stay.
    preserved_first: whether these come before the summary.
    uuid:            of the entry that marks the compaction.
    since:           the entries since the boundary.
    """

    preserved: tuple[str, ...]
    preserved_first: bool
    uuid: str | None = None
    since: list[_Node] = field(default_factory=list)


class Branches:
    """Follows the entries of one conversation in the order of its file."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}
        self._links: dict[str, _Link] = {}
        self._results: dict[str, _Node] = {}
        self._leaf: _Link | None = None
        self._boundary: _Boundary | None = None
        self._has_links = False
        # The last preserved entry after each summary.  An entry that names the summary
        # as its parent follows this one.
        self._last_preserved: dict[str, str] = {}

    def ends_with(self, uuid: str) -> bool:
        """Whether a message whose parent is this entry only continues the path."""
        if self._leaf is None or self._boundary is not None or self._leaf.node.floats:
            return False
        return self._nearest(uuid) == self._leaf.node.uuid

    def add(self, keys: tuple[str, ...]) -> None:
        """Add an input without an id after the last entry."""
        self._push(_Node("", keys))

    def take(
        self, entry: dict[str, Any], keys: tuple[str, ...], *, is_message: bool
    ) -> Changes:
        """Take the next entry; return the changes that it shows.

        keys:       of the drafts of its events.
        is_message: whether the entry is part of the conversation.
        """
        uuid = base.text(entry, "uuid") or ""
        parent = base.text(entry, "parentUuid")
        if uuid and uuid in self._parents:
            return NO_CHANGES  # the file has the entry twice
        if uuid:
            self._parents[uuid] = parent
        if entry.get("subtype") == "compact_boundary":
            self._boundary = _boundary(entry, self._segment)
            return NO_CHANGES
        after = tuple(self._recorded_changes(entry))
        if not is_message:
            return Changes(after=after)
        node = _Node(
            uuid=uuid,
            keys=keys,
            response=base.text(entry, "message", "id"),
            calls=frozenset(_ids(entry, "tool_use", "id")),
            results=frozenset(_ids(entry, "tool_result", "tool_use_id")),
            floats=entry.get("type") == "attachment",
        )
        for call_id in node.results:
            self._results[call_id] = node
        if self._boundary is not None:
            return self._after_boundary(self._boundary, node, entry)
        if entry.get("isCompactSummary") is True and parent is None:
            return self._compacted(_Boundary((), preserved_first=False), node)
        if "parentUuid" not in entry:
            self._push(node)
            return NO_CHANGES
        return self._attach(node, parent)

    def resumed(
        self, parent: str | None, *, loses_parallel_results: bool
    ) -> tuple[Change, ...]:
        """Return the changes of a client that read the conversation from its file.

        Content without an entry is left out, because the file does not have it.

        parent:                 the parent of the next message.
        loses_parallel_results: whether messages are left out that the next message does
                                not follow.
        """
        ancestors = self._ancestors(parent)
        nodes = _path(self._leaf)
        if not any(node.uuid in ancestors for node in nodes if node.uuid):
            return ()
        left_out: list[_Node] = []
        retained: list[_Node] = []
        for node in nodes:
            is_lost = not node.uuid
            if loses_parallel_results and node.uuid and not node.floats:
                is_lost = node.uuid not in ancestors
            if is_lost:
                left_out.append(node)
            else:
                retained.append(node)
        calls_without_result: set[str] = set()
        for node in left_out:
            calls_without_result |= node.results
        for node in list(retained):
            # The client sends no call without its result.
            if node.calls and node.calls <= calls_without_result:
                retained.remove(node)
                left_out.append(node)
        if not left_out:
            return ()
        self._leaf = None
        for node in retained:
            self._push(node)
        return (Change("removal", Mark(left_out=_keys(left_out))),)

    def cleared(self, call_ids: Iterable[str]) -> tuple[Change, ...]:
        """Return the change of a client that cleared the results of these calls."""
        cleared: list[_Node] = []
        for call_id in call_ids:
            if call_id in self._results:
                cleared.append(self._results[call_id])
        if not cleared:
            return ()
        return (Change("clearing", Mark(cleared=_keys(cleared)), CLEARED_TEXT),)

    # Compaction.

    def _after_boundary(
        self, boundary: _Boundary, node: _Node, entry: dict[str, Any]
    ) -> Changes:
        """Take an entry after a boundary: an attachment, or usually the summary."""
        if node.floats:
            boundary.since.append(node)
            self._push(node)
            return NO_CHANGES
        self._boundary = None
        if entry.get("isCompactSummary") is True:
            return self._compacted(boundary, node)
        change = self._without_old(boundary, ())
        self._push(node)
        return Changes(before=change)

    def _compacted(self, boundary: _Boundary, summary: _Node) -> Changes:
        """Take a summary, which replaces the path before it."""
        if self._leaf is None:
            self._push(summary)
            return NO_CHANGES
        return Changes(after=self._without_old(boundary, (summary,)))

    def _without_old(
        self, boundary: _Boundary, summary: tuple[_Node, ...]
    ) -> tuple[Change, ...]:
        """Begin a new path with the summary and the preserved entries.

        summary: has one node, or none if the compaction has no summary.
        """
        path = _path(self._leaf)
        by_uuid = {node.uuid: node for node in path if node.uuid}
        preserved: list[_Node] = []
        for uuid in boundary.preserved:
            if uuid in by_uuid:
                preserved.append(by_uuid[uuid])
        retained = {id(node) for node in (*preserved, *boundary.since)}
        left_out = [node for node in path if id(node) not in retained]
        self._leaf = None
        in_place: tuple[_Node, ...] = ()
        if boundary.preserved_first:
            parts = (*preserved, *summary)
        else:
            parts = (*summary, *preserved)
            in_place = summary
            if summary and boundary.uuid:
                self._parents[boundary.uuid] = summary[0].uuid
            if summary and preserved:
                self._last_preserved[summary[0].uuid] = preserved[-1].uuid
        for node in (*parts, *boundary.since):
            self._push(node)
        mark = Mark(left_out=_keys(left_out), in_place=_keys(in_place))
        return (Change("compaction", mark),)

    def _segment(self, head: str, tail: str) -> tuple[str, ...]:
        """Return the ids of the messages from ``head`` to ``tail``.

        Returns none if ``head`` is not above ``tail``.
        """
        uuids: list[str] = []
        link = self._links.get(tail)
        while link is not None:
            uuids.append(link.node.uuid)
            if link.node.uuid == head:
                return tuple(reversed(uuids))
            link = link.before
        return ()

    def _recorded_changes(self, entry: dict[str, Any]) -> Iterator[Change]:
        """Yield the changes that an entry records: clearings and removals."""
        call_ids = base.sequence(entry, "microcompactMetadata", "compactedToolIds")
        yield from self.cleared(call_ids)
        removed: list[_Node] = []
        for place in (
            ("microcompactMetadata", "clearedAttachmentUUIDs"),
            ("snipMetadata", "removedUuids"),
        ):
            for uuid in base.sequence(entry, *place):
                if uuid in self._links:
                    removed.append(self._links[uuid].node)
        if removed:
            yield Change("removal", Mark(left_out=_keys(removed)))

    # Branches.

    def _attach(self, node: _Node, parent: str | None) -> Changes:
        """Put a message after its parent; return the changes that this makes."""
        target = self._nearest(parent)
        if target is not None:
            target = self._last_preserved.get(target, target)
        if self._leaf is None:
            self._push(node)
            return NO_CHANGES
        if target is None and not self._has_links:
            self._push(node)  # the file names no parents
            return NO_CHANGES
        if target is None and not self._is_root(parent):
            self._push(node)
            return Changes(note=_BROKEN)
        if target is None:
            if node.results or node.floats:
                self._push(node)
                return NO_CHANGES
            return self._rewound(node, _path(self._leaf))
        self._has_links = True
        if target == self._leaf.node.uuid and not self._leaf.node.floats:
            self._push(node)
            return NO_CHANGES
        later = self._nodes_after(target)
        if later is None:
            return self._on_other_branch(node, target)
        if node.results or node.floats:
            self._push(node)
            return NO_CHANGES
        return self._rewound(node, later)

    def _ancestors(self, uuid: str | None) -> set[str]:
        """Return the ids of an entry, its parent, the parent's parent, and so on."""
        ancestors: set[str] = set()
        while uuid is not None and uuid not in ancestors:
            ancestors.add(uuid)
            uuid = self._parents.get(uuid)
        return ancestors

    def _nearest(self, uuid: str | None) -> str | None:
        """Return the first message among an entry and its ancestors; None without one.

        Entries that are no messages, such as progress reports, are parents, too.
        """
        seen: set[str] = set()
        while uuid is not None and uuid not in self._links:
            if uuid in seen:
                return None
            seen.add(uuid)
            uuid = self._parents.get(uuid)
        return uuid

    def _is_root(self, uuid: str | None) -> bool:
        """Whether the chain of parents ends at an entry that has none."""
        seen: set[str] = set()
        while uuid is not None:
            if uuid in seen or uuid not in self._parents:
                return False
            seen.add(uuid)
            uuid = self._parents[uuid]
        return True

    def _nodes_after(self, uuid: str) -> list[_Node] | None:
        """Return the nodes of the path after an entry; None if it is not on the path.

        If the entry is an attachment, it may follow nodes that its parent does not.
        Then these are the nodes after its parent.
        """
        target: str | None = uuid
        newest_first: list[_Node] = []
        link = self._leaf
        while link is not None:
            if target is not None and link.node.uuid == target:
                if not link.node.floats:
                    return newest_first[::-1]
                parent = self._parents.get(target)
                target = self._nearest(parent)
                if target is None and not self._is_root(parent):
                    return newest_first[::-1]
            newest_first.append(link.node)
            link = link.before
        if target is None:  # an attachment without a parent begins the path
            return newest_first[::-1]
        return None

    def _rewound(self, node: _Node, later: list[_Node]) -> Changes:
        """Go back to an earlier message, or to the start, and add a node there.

        The later nodes are left out, except parts of the same response, results of
        calls that stay, and attachments of entries that stay: the client writes
        parallel calls and their results as siblings.

        later: the nodes of the path after that message.
        """
        link = self._leaf
        for _ in later:
            link = link and link.before
        earlier = _path(link)
        responses = {other.response for other in earlier if other.response}
        calls: set[str] = set()
        for other in earlier:
            calls |= other.calls
        uuids = {other.uuid for other in earlier}
        own_attachments = self._attachments_above(node)
        left_out: list[_Node] = []
        retained: list[_Node] = []
        stays = True  # whether the previous node stays
        for other in later:
            is_part = other.response is not None and other.response in responses
            is_result = bool(other.results) and other.results <= calls
            attached_to = self._nearest(self._parents.get(other.uuid))
            is_attached = other.floats and (
                attached_to in uuids or other.uuid in own_attachments
            )
            # An input without an id belongs to the node before it.
            is_input_of_previous = not other.uuid and stays
            stays = is_part or is_result or is_attached or is_input_of_previous
            if stays:
                retained.append(other)
                calls |= other.calls
                uuids.add(other.uuid)
            else:
                left_out.append(other)
        self._leaf = link
        for other in (*retained, node):
            self._push(other)
        if not left_out:
            return NO_CHANGES
        return Changes(before=(Change("rewind", Mark(left_out=_keys(left_out))),))

    def _attachments_above(self, node: _Node) -> set[str]:
        """Return the ids of the attachments that a node follows directly."""
        uuids: set[str] = set()
        uuid = self._nearest(self._parents.get(node.uuid))
        while uuid is not None and uuid not in uuids:
            if not self._links[uuid].node.floats:
                break
            uuids.add(uuid)
            uuid = self._nearest(self._parents.get(uuid))
        return uuids

    def _on_other_branch(self, node: _Node, target: str) -> Changes:
        """Return to a branch that was left, unless the node only completes it.

        target: the id of the entry that the node follows.
        """
        branch = self._links[target]
        if node.results or node.floats:
            self._links[node.uuid] = _Link(node, branch)
            return Changes(after=(Change("fork", Mark(left_out=node.keys)),))
        old_path = _path(self._leaf)
        new_path = _path(branch)
        ids_of_old = {id(other) for other in old_path}
        ids_of_new = {id(other) for other in new_path}
        left_out = [other for other in old_path if id(other) not in ids_of_new]
        restored = [other for other in new_path if id(other) not in ids_of_old]
        self._leaf = branch
        self._push(node)
        mark = Mark(left_out=_keys(left_out), restored=_keys(restored))
        return Changes(before=(Change("fork", mark),))

    def _push(self, node: _Node) -> None:
        """Add a node to the end of the path."""
        self._leaf = _Link(node, self._leaf)
        if node.uuid:
            self._links[node.uuid] = self._leaf


def _path(link: _Link | None) -> list[_Node]:
    """Return the nodes up to a link, in the order in which they are sent."""
    nodes: list[_Node] = []
    while link is not None:
        nodes.append(link.node)
        link = link.before
    nodes.reverse()
    return nodes


def _keys(nodes: Iterable[_Node]) -> tuple[str, ...]:
    """Return the keys of the drafts of all these nodes."""
    keys: list[str] = []
    for node in nodes:
        keys += node.keys
    return tuple(keys)


def _boundary(
    entry: dict[str, Any], segment: Callable[[str, str], tuple[str, ...]]
) -> _Boundary:
    """Return the compaction that an entry marks, with the messages that it preserved.

    segment: returns the ids of the messages from one to another.
    """
    metadata = base.mapping(entry, "compactMetadata")
    uuids = base.sequence(metadata, "preservedMessages", "uuids")
    preserved = tuple(uuid for uuid in uuids if isinstance(uuid, str))
    anchor = base.text(metadata, "preservedMessages", "anchorUuid")
    if not preserved:
        head = base.text(metadata, "preservedSegment", "headUuid")
        tail = base.text(metadata, "preservedSegment", "tailUuid")
        if head and tail:
            preserved = segment(head, tail)
    anchor = anchor or base.text(metadata, "preservedSegment", "anchorUuid")
    is_first = anchor is not None and anchor == base.text(entry, "uuid")
    return _Boundary(preserved, is_first, base.text(entry, "uuid"))


def _ids(entry: dict[str, Any], kind: str, name: str) -> Iterator[str]:
    """Yield the ids of calls in the blocks of this type."""
    for block in base.each(entry, "message", "content"):
        if block.get("type") == kind:
            call_id = base.text(block, name)
            if call_id is not None:
                yield call_id
