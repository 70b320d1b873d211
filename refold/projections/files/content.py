"""The content of a file as a run's events show it: lines with their origin, and gaps.

An edit replaces known lines.  A read shows lines that are then known.  Lines that
something else may have changed since are in doubt: they stay, with the reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.domain.placeholders import STANDS_FOR

OriginKind: TypeAlias = Literal["written", "found", "outside"]
"""How a line came into a file: an event of the run wrote it, it stood there when the
run first read it, or something outside of the recorded edits changed it."""

# Texts with more lines are compared only at their beginning and end.
_MOST_COMPARED: Final = 20_000


# Pairs of equal lines in two texts up to which these are compared in the middle.
_MOST_PAIRS: Final = 4_000_000
# A longer text puts all lines in doubt that it may reach from a gap.
_MOST_AT_EDGE: Final = 500


class Place(NamedTuple):
    """An event of a session."""

    session_id: str
    seq: int


class Origin(NamedTuple):
    """The origin of a line: the event that wrote it or first showed it."""

    kind: OriginKind
    place: Place


class Line(NamedTuple):
    """A line of a file.

    text: None if an event shows only a part of it.
    seen: the number of the step that last proved the line.
    """

    text: str | None
    origin: Origin
    seen: int


class Gap(NamedTuple):
    """Lines that are not known; ``length`` is None if their number is not known."""

    length: int | None


Item: TypeAlias = Line | Gap
_NOT_PROVED: Final = -1


def lines_of(text: str) -> list[str]:
    """Return the lines of a text; a final newline makes an empty last one.

    The line ends of Windows are like others, since editors show both alike.
    """
    return text.replace("\r\n", "\n").split("\n")


def has_placeholder(text: str | None) -> bool:
    """Whether a text has a placeholder, so the bytes behind it are not known."""
    return text is not None and STANDS_FOR.search(text) is not None


class Found(NamedTuple):
    """Where a text stands: in the items ``first`` to ``last``, from a column on."""

    first: int
    last: int
    start: int
    end: int


class Content:
    """The known content of one file."""

    def __init__(self) -> None:
        self.items: list[Item] = [Gap(None)]

    def numbered(self) -> dict[int, Line]:
        """Return the known lines by their number, which counts from 1."""
        lines: dict[int, Line] = {}
        number = 1
        for item in self.items:
            if isinstance(item, Line):
                lines[number] = item
                number += 1
            elif item.length is None:
                break
            else:
                number += item.length
        return lines

    @property
    def is_whole(self) -> bool:
        """Whether every line is known."""
        return all(isinstance(item, Line) for item in self.items)

    def known(self) -> list[Line]:
        """Return the known lines in order."""
        return [item for item in self.items if isinstance(item, Line)]

    def forget(self) -> None:
        """Forget everything, as after a deletion."""
        self.items = [Gap(None)]

    def write(self, text: str, place: Place, step: int) -> None:
        """Replace everything by ``text``; unchanged lines keep their origin."""
        written = Origin("written", place)
        self.items = [*_carried(self.known(), lines_of(text), written, step)]

    def find(self, text: str) -> list[Found]:
        """Return the places of a text in the known lines, none of which overlap."""
        wanted = "\n".join(lines_of(text))
        places: list[Found] = []
        for first, texts in self._known_runs():
            joined = "\n".join(texts)
            starts = [0]
            for line in texts[:-1]:
                starts.append(starts[-1] + len(line) + 1)
            start = joined.find(wanted)
            while start >= 0:
                end = start + len(wanted)
                head = bisect_right(starts, start) - 1
                tail = bisect_right(starts, end) - 1
                places.append(
                    Found(
                        first=first + head,
                        last=first + tail,
                        start=start - starts[head],
                        end=end - starts[tail],
                    )
                )
                start = joined.find(wanted, end)
        return places

    def _known_runs(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the adjacent lines whose text is known, with the index of the first."""
        first = 0
        texts: list[str] = []
        for index, item in enumerate(self.items):
            if isinstance(item, Line) and item.text is not None:
                if not texts:
                    first = index
                texts.append(item.text)
            elif texts:
                yield first, texts
                texts = []
        if texts:
            yield first, texts

    def replace(self, match: Found, new: str, place: Place, step: int) -> None:
        """Replace the text at a place; unchanged lines keep their origin."""
        old_lines = [
            item
            for item in self.items[match.first : match.last + 1]
            if isinstance(item, Line)
        ]
        before = (old_lines[0].text or "")[: match.start]
        after = (old_lines[-1].text or "")[match.end :]
        new_lines = lines_of(f"{before}{new}{after}")
        written = Origin("written", place)
        carried = _carried(old_lines, new_lines, written, step)
        self.items[match.first : match.last + 1] = carried

    def replace_lines(
        self, first: int, last: int, new: Sequence[str], place: Place, step: int
    ) -> None:
        """Replace the lines ``first`` to ``last``; unchanged lines keep their origin.

        ``last`` before ``first`` inserts lines before ``first``.
        """
        before, old, after = self._cut(first, last)
        written = Origin("written", place)
        old_lines = [item for item in old if isinstance(item, Line)]
        carried = _carried(old_lines, list(new), written, step)
        self.items = _joined([*before, *carried, *after])

    def grow_gap(self, text: str, more_lines: int) -> None:
        """Note that ``text`` was replaced within a gap or at its edge.

        Lines behind the first gap are in doubt if their numbers may have changed, and
        so are lines that may be a part of the replaced text.
        """
        gaps = [index for index, item in enumerate(self.items) if isinstance(item, Gap)]
        if not gaps:
            self.doubt_from(0)
            return
        self._doubt_edges(text)
        first = self.items[gaps[0]]
        if len(gaps) == 1 and isinstance(first, Gap):
            if first.length is not None:
                self.items[gaps[0]] = Gap(max(0, first.length + more_lines))
        elif more_lines:
            self.doubt_from(gaps[0])

    def doubt_from(self, index: int) -> None:
        """Put the lines from an item on in doubt."""
        self._doubt_lines(index, len(self.items))

    def _doubt_edges(self, text: str) -> None:
        """Put lines beside a gap in doubt that a replaced text may contain."""
        wanted = lines_of(text)
        for index, item in enumerate(self.items):
            if not isinstance(item, Gap):
                continue
            if len(wanted) > _MOST_AT_EDGE:
                self._doubt_lines(index - len(wanted), index)
                self._doubt_lines(index + 1, index + 1 + len(wanted))
                continue
            for count in range(1, len(wanted) + 1):
                self._doubt_edge(index - count, wanted[:count], is_head=True)
                self._doubt_edge(index + 1, wanted[-count:], is_head=False)

    def _doubt_edge(self, first: int, wanted: list[str], *, is_head: bool) -> None:
        """Put lines in doubt if they can be the head or the tail of a text."""
        if first < 0:
            return
        items = self.items[first : first + len(wanted)]
        texts = [item.text for item in items if isinstance(item, Line)]
        if len(texts) != len(wanted) or None in texts:
            return
        lines = [text or "" for text in texts]
        if is_head:
            matches = lines[0].endswith(wanted[0]) and lines[1:] == wanted[1:]
        else:
            matches = lines[-1].startswith(wanted[-1]) and lines[:-1] == wanted[:-1]
        if matches:
            self._doubt_lines(first, first + len(wanted))

    def _doubt_lines(self, first: int, end: int) -> None:
        """Put the lines among these items in doubt."""
        for place in range(max(0, first), min(end, len(self.items))):
            self.items[place] = _doubted(self.items[place])

    def show(
        self,
        first: int,
        shown: Sequence[str | None],
        place: Place,
        step: int,
        *,
        to_end: bool,
        moved: bool,
    ) -> None:
        """Take the lines that an event shows, from the number ``first`` on.

        to_end: whether they go to the end of the file.
        moved:  whether they contradict what was known, so that lines may have moved.
        """
        if moved:
            self._show_moved(first, shown, place, step)
        else:
            last = first + len(shown) - 1
            before, old, after = self._cut(first, last)
            known = self._by_number(old, first)
            lines = [
                _shown_line(known.get(number), text, place, step)
                for number, text in enumerate(shown, start=first)
            ]
            self.items = _joined([*before, *lines, *after])
        if to_end:
            self._end_at(first + len(shown) - 1)
        elif self._length() == first + len(shown) - 1:
            self.items.append(Gap(None))  # there may be more lines

    def _show_moved(
        self, first: int, shown: Sequence[str | None], place: Place, step: int
    ) -> None:
        """Take lines of a file that something outside of the events has changed."""
        known = self.known()
        texts = [text if text is not None else "" for text in shown]
        blocks = _blocks([line.text or "" for line in known], texts)
        outside = Origin("outside", place)
        lines = [Line(text, outside, step) for text in shown]
        start = len(known)
        end = 0
        for old, new, count in blocks:
            for offset in range(count):
                unchanged = known[old + offset]
                lines[new + offset] = unchanged._replace(seen=step)
            if count:
                start = min(start, old)
                end = max(end, old + count)
        before: list[Item] = [*known[:start]]
        if not end:
            before = []
        after: list[Item] = [*known[end:]] if end else []
        del before[first - 1 :]
        if len(before) < first - 1:
            before.append(Gap(first - 1 - len(before)))
        self.items = [
            *(_doubted(item) for item in before),
            *lines,
            *(_doubted(item) for item in after),
            Gap(None),
        ]

    def _length(self) -> int | None:
        """Return the number of lines, or None if it is not known."""
        total = 0
        for item in self.items:
            if isinstance(item, Line):
                total += 1
            elif item.length is None:
                return None
            else:
                total += item.length
        return total

    def _end_at(self, last: int) -> None:
        """Remove everything after the line ``last``."""
        before, _, _ = self._cut(last + 1, last)
        self.items = before

    def _by_number(self, items: list[Item], first: int) -> dict[int, Line]:
        part = Content()
        part.items = items
        return {number + first - 1: line for number, line in part.numbered().items()}

    def _cut(self, first: int, last: int) -> tuple[list[Item], list[Item], list[Item]]:
        """Return the items before the line ``first``, up to ``last``, and after it."""
        before: list[Item] = []
        within: list[Item] = []
        after: list[Item] = []
        number = 1
        for item in self.items:
            if isinstance(item, Line):
                if number < first:
                    before.append(item)
                elif number <= last:
                    within.append(item)
                else:
                    after.append(item)
                number += 1
                continue
            for end, part in ((first - 1, before), (last, within)):
                room = max(0, end - number + 1)
                size = room if item.length is None else min(room, item.length)
                if size:
                    part.append(Gap(size))
                    number += size
                    if item.length is not None:
                        item = Gap(item.length - size)
            if item.length != 0:
                after.append(item)
                number += item.length or 0
        return before, within, after


def _shown_line(known: Line | None, text: str | None, place: Place, step: int) -> Line:
    """Return the line that an event shows at the place of a known one."""
    if known is None:
        return Line(text, Origin("found", place), step)
    if text is None or known.text == text:
        return known._replace(seen=step)
    if known.text is None:
        return Line(text, known.origin, step)
    return Line(text, Origin("outside", place), step)


def _doubted(item: Item) -> Item:
    return item._replace(seen=_NOT_PROVED) if isinstance(item, Line) else item


def _joined(items: list[Item]) -> list[Item]:
    """Return the items with adjacent gaps as one."""
    joined: list[Item] = []
    for item in items:
        previous = joined[-1] if joined else None
        if isinstance(item, Gap) and isinstance(previous, Gap):
            if previous.length is None or item.length is None:
                joined[-1] = Gap(None)
            else:
                joined[-1] = Gap(previous.length + item.length)
        else:
            joined.append(item)
    return joined


def _carried(
    old: Sequence[Line], new: Sequence[str], origin: Origin, step: int
) -> list[Line]:
    """Return new lines; those that were there before keep their origin."""
    lines = [Line(text, origin, step) for text in new]
    for first, second, count in _blocks([line.text for line in old], new):
        for offset in range(count):
            lines[second + offset] = old[first + offset]._replace(seen=step)
    return lines


def _blocks(
    old: Sequence[str | None], new: Sequence[str]
) -> list[tuple[int, int, int]]:
    """Return the runs of equal lines: where they begin in both, and their lengths."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    blocks = [(0, 0, head), (len(old) - tail, len(new) - tail, tail)]
    old_rest = old[head : len(old) - tail]
    new_rest = new[head : len(new) - tail]
    if not old_rest or not new_rest:
        return blocks
    if len(old_rest) + len(new_rest) > _MOST_COMPARED:
        return blocks
    numbers = Counter(old_rest)
    if sum(numbers[line] for line in new_rest) > _MOST_PAIRS:
        return blocks
    matcher = SequenceMatcher(None, old_rest, new_rest, autojunk=False)
    for match in matcher.get_matching_blocks():
        blocks.append((head + match.a, head + match.b, match.size))
    return blocks
