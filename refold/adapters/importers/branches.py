"""Branches of a Claude Code session: which entries the client still sends.

Each entry of a session file names its parent.  The client sends the path from the last
entry back to the first one.  A rewind begins a new branch at an earlier entry, and a
compaction begins a new path with a summary.  ``Branches`` follows the entries as they
come, and says what the client took out of its context with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """What the client changed in its history.

    rule: the rule that stands for it; empty if an entry records it.
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

    uuid:      of the entry that marks it.
    preserved: the ids of the entries that stay.
    first:     whether these stand before the summary.
    since:     entries that came since the boundary.
    """

    preserved: tuple[str, ...]
    first: bool
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
        # Behind a summary stands what the client preserved; what names the summary as
        # its parent comes after that.
        self._preserved_behind: dict[str, str] = {}

    def ends_with(self, uuid: str) -> bool:
        """Whether a message whose parent is this entry just continues the path."""
        if self._leaf is None or self._boundary is not None or self._leaf.node.floats:
            return False
        return self._nearest(uuid) == self._leaf.node.uuid

    def add(self, keys: tuple[str, ...]) -> None:
        """Add an input without an id, which stands behind the last entry."""
        self._push(_Node("", keys))

    def take(
        self, entry: dict[str, Any], keys: tuple[str, ...], *, is_message: bool
    ) -> Changes:
        """Take the next entry.

        keys:       of the drafts of its events.
        is_message: whether the entry is part of the conversation.
        """
        uuid = base.text(entry, "uuid") or ""
        parent = base.text(entry, "parentUuid")
        if uuid and uuid in self._parents:
            return NO_CHANGES  # it is in the file twice
        if uuid:
            self._parents[uuid] = parent
        if entry.get("subtype") == "compact_boundary":
            self._boundary = _boundary(entry, self._segment)
            return NO_CHANGES
        after = tuple(self._cleared(entry))
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
            return self._compacted(_Boundary((), first=False), node)
        if "parentUuid" not in entry:
            self._push(node)
            return NO_CHANGES
        return self._attach(node, parent)

    def resumed(
        self, parent: str | None, *, loses_parallel_results: bool
    ) -> tuple[Change, ...]:
        """The client read the conversation from its file; a message comes next.

        What no entry has is gone.

        parent:                 of the message.
        loses_parallel_results: whether messages are gone that it does not follow.
        """
        chain = self._chain(parent)
        nodes = _path(self._leaf)
        if not any(node.uuid in chain for node in nodes if node.uuid):
            return ()
        left_out: list[_Node] = []
        stays: list[_Node] = []
        for node in nodes:
            is_gone = not node.uuid
            if loses_parallel_results and node.uuid and not node.floats:
                is_gone = node.uuid not in chain
            (left_out if is_gone else stays).append(node)
        gone_calls: set[str] = set()
        for node in left_out:
            gone_calls |= node.results
        for node in [*stays]:
            # The client sends no call without its result.
            if node.calls and node.calls <= gone_calls:
                stays.remove(node)
                left_out.append(node)
        if not left_out:
            return ()
        self._leaf = None
        for node in stays:
            self._push(node)
        return (Change("removal", Mark(left_out=_keys(left_out))),)

    def cleared(self, call_ids: Iterable[str]) -> tuple[Change, ...]:
        """The client cleared the results of these calls."""
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
        if self._leaf is None:
            self._push(summary)
            return NO_CHANGES
        return Changes(after=self._without_old(boundary, (summary,)))

    def _without_old(
        self, boundary: _Boundary, summary: tuple[_Node, ...]
    ) -> tuple[Change, ...]:
        """Begin the new path with the summary and what the client preserved."""
        path = _path(self._leaf)
        by_uuid = {node.uuid: node for node in path if node.uuid}
        preserved: list[_Node] = []
        for uuid in boundary.preserved:
            if uuid in by_uuid:
                preserved.append(by_uuid[uuid])
        stays = {id(node) for node in (*preserved, *boundary.since)}
        left_out = [node for node in path if id(node) not in stays]
        self._leaf = None
        in_place: tuple[_Node, ...] = ()
        if boundary.first:
            parts = (*preserved, *summary)
        else:
            parts = (*summary, *preserved)
            in_place = summary
            if summary and boundary.uuid:
                self._parents[boundary.uuid] = summary[0].uuid
            if summary and preserved:
                self._preserved_behind[summary[0].uuid] = preserved[-1].uuid
        for node in (*parts, *boundary.since):
            self._push(node)
        mark = Mark(left_out=_keys(left_out), in_place=_keys(in_place))
        return (Change("compaction", mark),)

    def _segment(self, head: str, tail: str) -> tuple[str, ...]:
        """The ids of the messages from ``head`` to ``tail``."""
        uuids: list[str] = []
        link = self._links.get(tail)
        while link is not None:
            uuids.append(link.node.uuid)
            if link.node.uuid == head:
                return tuple(reversed(uuids))
            link = link.before
        return ()

    def _cleared(self, entry: dict[str, Any]) -> Iterator[Change]:
        """Results that the client cleared, and messages that it removed."""
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
        """Put a message where its parent says."""
        target = self._nearest(parent)
        if target is not None:
            target = self._preserved_behind.get(target, target)
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
        behind = self._behind(target)
        if behind is None:
            return self._on_other_branch(node, target)
        if node.results or node.floats:
            self._push(node)
            return NO_CHANGES
        return self._rewound(node, behind)

    def _chain(self, uuid: str | None) -> set[str]:
        """The ids of an entry and of all that it follows."""
        chain: set[str] = set()
        while uuid is not None and uuid not in chain:
            chain.add(uuid)
            uuid = self._parents.get(uuid)
        return chain

    def _nearest(self, uuid: str | None) -> str | None:
        """The nearest message at or above an entry; None if the chain ends before."""
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

    def _behind(self, uuid: str) -> list[_Node] | None:
        """The nodes of the path behind an entry; None if it is not on the path.

        An attachment may follow nodes that its parent knows nothing of, so the search
        goes on from its parent.
        """
        target: str | None = uuid
        behind: list[_Node] = []
        link = self._leaf
        while link is not None:
            if target is not None and link.node.uuid == target:
                if not link.node.floats:
                    behind.reverse()
                    return behind
                above = self._parents.get(target)
                target = self._nearest(above)
                if target is None and not self._is_root(above):
                    behind.reverse()
                    return behind
            behind.append(link.node)
            link = link.before
        if target is None:  # an attachment without a parent begins the path
            behind.reverse()
            return behind
        return None

    def _rewound(self, node: _Node, behind: list[_Node]) -> Changes:
        """Go back to an earlier message, or to the begin; what is behind is left out.

        Parts of the same response, and results of calls that stay, are no branch: the
        client writes parallel calls and their results as siblings.
        """
        link = self._leaf
        for _ in behind:
            link = link and link.before
        kept = _path(link)
        responses = {before.response for before in kept if before.response}
        calls: set[str] = set()
        for before in kept:
            calls |= before.calls
        uuids = {before.uuid for before in kept}
        own_chain = self._attachments_above(node)
        left_out: list[_Node] = []
        stays: list[_Node] = []
        stayed = True  # whether the node before stays
        for other in behind:
            is_part = other.response is not None and other.response in responses
            is_result = bool(other.results) and other.results <= calls
            attached_to = self._nearest(self._parents.get(other.uuid))
            is_attached = other.floats and (
                attached_to in uuids or other.uuid in own_chain
            )
            is_loose = not other.uuid and stayed
            stayed = is_part or is_result or is_attached or is_loose
            if stayed:
                stays.append(other)
                calls |= other.calls
                uuids.add(other.uuid)
            else:
                left_out.append(other)
        self._leaf = link
        for other in (*stays, node):
            self._push(other)
        if not left_out:
            return NO_CHANGES
        return Changes(before=(Change("rewind", Mark(left_out=_keys(left_out))),))

    def _attachments_above(self, node: _Node) -> set[str]:
        """The ids of the attachments that a node follows directly."""
        uuids: set[str] = set()
        uuid = self._nearest(self._parents.get(node.uuid))
        while uuid is not None and uuid not in uuids:
            if not self._links[uuid].node.floats:
                break
            uuids.add(uuid)
            uuid = self._nearest(self._parents.get(uuid))
        return uuids

    def _on_other_branch(self, node: _Node, target: str) -> Changes:
        """Take up a branch that was left, unless the node only completes it."""
        branch = self._links[target]
        if node.results or node.floats:
            self._links[node.uuid] = _Link(node, branch)
            return Changes(after=(Change("fork", Mark(left_out=node.keys)),))
        now = _path(self._leaf)
        then = _path(branch)
        here = {id(other) for other in now}
        there = {id(other) for other in then}
        left_out = [other for other in now if id(other) not in there]
        restored = [other for other in then if id(other) not in here]
        self._leaf = branch
        self._push(node)
        mark = Mark(left_out=_keys(left_out), restored=_keys(restored))
        return Changes(before=(Change("fork", mark),))

    def _push(self, node: _Node) -> None:
        self._leaf = _Link(node, self._leaf)
        if node.uuid:
            self._links[node.uuid] = self._leaf


def _path(link: _Link | None) -> list[_Node]:
    """The nodes up to a link, in the order in which they are sent."""
    nodes: list[_Node] = []
    while link is not None:
        nodes.append(link.node)
        link = link.before
    nodes.reverse()
    return nodes


def _keys(nodes: Iterable[_Node]) -> tuple[str, ...]:
    keys: list[str] = []
    for node in nodes:
        keys += node.keys
    return tuple(keys)


def _boundary(entry: dict[str, Any], segment: Any) -> _Boundary:
    """The compaction that an entry marks, with the messages that it preserved.

    segment: gives the ids of the messages between two.
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
    """The ids of calls in the blocks of this type."""
    for block in base.each(entry, "message", "content"):
        if block.get("type") == kind:
            call_id = base.text(block, name)
            if call_id is not None:
                yield call_id
