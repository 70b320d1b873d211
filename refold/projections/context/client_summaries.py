"""Summaries of a client: what stays of them next to the summaries of Refold.

A client that compacts its own history sends a summary in its place.  When Refold later
compacts the part that begins with this summary, the view still shows it, because the
log has nothing else that says the same in so few words.  A summary over its budget is
cut by its structure: code first, then the ends of the longest sections.  The sections
that name requests of the user, rules, and open work are cut last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from refold.domain.errors import counted
from refold.domain.tokens import estimate_text
from refold.projections.context.excerpts import cut_to_sentences

# A block of code keeps this number of lines at its beginning.
_LINES_OF_CODE: Final = 2
# A cut section keeps this number of characters, or its first line if that is longer.
_SHORTEST_SECTION: Final = 160
_LONGEST_HEADING: Final = 60
# A note about cut sections names this number of them.
_MOST_NAMED: Final = 4
_HEADING_TOKENS: Final = 40  # of the lines before and after a summary
_LONGEST_NOTICE: Final = 110  # tokens
_FENCE: Final = re.compile(r"\s*(?P<fence>```|~~~)")
# The first line of a section: a Markdown heading, a numbered or bold point, a tag, or a
# line that announces what follows.
_HEADING: Final = re.compile(
    r"#{1,6}[ \t]+\S|\**\d{1,2}[.)]\**[ \t]+\S|\*\*[^*]+\*\*|<[A-Za-z_][\w-]*>[ \t]*$"
    r"|[^\s*+•-][^.!?]{0,60}:\**[ \t]*$"
)
_HEADING_MARKUP: Final = re.compile(r"[#*<>`]+|^\s*\d{1,2}[.)]\s*")
# Sections about the user's requests, rules, and open work.
_IMPORTANT: Final = re.compile(
    r"\b(?:request|intent|goal|task|user|feedback|instruction|constraint|rule|prefer"
    r"|decision|pending|open|todo|next|current|remaining|problem|blocked)"
    r"|请求|目标|任务|用户|约束|规则|决定|待办|下一步|当前",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """A summary of a client as a view shows it.

    turn:     the number of the turn that it begins.
    original: the text that the client sent.
    text:     the part that the view shows; empty if there is no room.
    left_out: by section, the number of its lines that the view does not show.
    """

    seq: int
    turn: int
    original: str
    text: str
    left_out: tuple[tuple[str, int], ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether the view does not show all of it."""
        return bool(self.left_out)

    @property
    def tokens(self) -> int:
        """The cost in a view."""
        tokens = estimate_text(self.notice)
        if self.text:
            tokens += estimate_text(self.text) + _HEADING_TOKENS
        return tokens

    @property
    def whole_tokens(self) -> int:
        """The cost of all of it."""
        return estimate_text(self.original) + _HEADING_TOKENS

    @property
    def lines_left_out(self) -> int:
        """The number of lines that the view does not show."""
        return sum(lines for _, lines in self.left_out)

    @property
    def notice(self) -> str:
        """A sentence about what is left out, and where; empty for a whole summary."""
        if not self.left_out:
            return ""
        most_first = sorted(self.left_out, key=lambda part: -part[1])
        places: list[str] = []
        for name, lines in most_first[:_MOST_NAMED]:
            places.append(f"{counted(lines, 'line')} of {name or 'the text'}")
        others = sum(lines for _, lines in most_first[_MOST_NAMED:])
        if others:
            places.append(f"{counted(others, 'line')} of other sections")
        return (
            f"(Left out of the client's summary: {', '.join(places)}. "
            f"The log has all of it in turn {self.turn}.)"
        )


def shortened(
    summaries: Iterable[ClientSummary], budget: int
) -> tuple[ClientSummary, ...]:
    """Return summaries of a client within a budget in tokens.

    The newest one gets its room first.  Without room, only the note about a summary is
    left, whatever the budget.

    summaries: whole, oldest first.
    """
    shown: list[ClientSummary] = []
    room = budget
    for summary in reversed(list(summaries)):
        if summary.tokens > room:
            summary = _within(summary, room - _HEADING_TOKENS - _LONGEST_NOTICE)
        room -= summary.tokens
        shown.append(summary)
    shown.reverse()
    return tuple(shown)


class _Section(NamedTuple):
    """A section of a summary.

    heading: its first line; empty for the part before the first heading.
    lines:   all of its lines that are shown.
    hidden:  the number of lines that are left out.
    """

    heading: str
    lines: Sequence[str]
    hidden: int = 0

    @property
    def is_important(self) -> bool:
        """Whether it is about requests of the user, rules, or open work."""
        return not self.heading or bool(_IMPORTANT.search(self.name))

    @property
    def name(self) -> str:
        """The heading without its markup."""
        name = _HEADING_MARKUP.sub("", self.heading).strip().rstrip(":").strip()
        return cut_to_sentences(name, _LONGEST_HEADING, "…")

    @property
    def size(self) -> int:
        """The number of characters that it takes."""
        return sum(len(line) + 1 for line in self.lines)

    def within(self, chars: int) -> _Section:
        """Return the section with its first lines only; at least one of them."""
        stay: list[str] = []
        size = 0
        for line in self.lines:
            size += len(line) + 1
            if stay and size > chars:
                break
            stay.append(line)
        hidden = self.hidden + len(self.lines) - len(stay)
        return self._replace(lines=stay, hidden=hidden)

    @property
    def text(self) -> str:
        """The lines, and a mark for those that are left out."""
        lines = list(self.lines)
        if self.hidden:
            lines.append(f"[… {counted(self.hidden, 'line')} left out …]")
        return "\n".join(lines)


def _within(summary: ClientSummary, tokens: int) -> ClientSummary:
    """Return the summary cut to a number of tokens; without text if they are few."""
    sections = _sections(summary.original)
    if not _fits(sections, tokens):
        sections = [_without_code(section) for section in sections]
    for are_important in (False, True):
        if not _fits(sections, tokens):
            sections = _shorter(sections, tokens, are_important=are_important)
    if not _fits(sections, tokens):
        return _cut_as_text(summary, tokens)
    left_out: dict[str, int] = {}
    for section in sections:
        if section.hidden:
            left_out[section.name] = left_out.get(section.name, 0) + section.hidden
    return replace(summary, text=_joined(sections), left_out=tuple(left_out.items()))


def _cut_as_text(summary: ClientSummary, tokens: int) -> ClientSummary:
    """Return the ends of a summary whose sections are too long; empty without room."""
    lines = summary.original.splitlines()
    text = summary.original
    while text and estimate_text(text) > tokens:
        text = cut_to_sentences(summary.original, len(text) * 3 // 4)
    hidden = sum(1 for line in lines if line not in text)
    return replace(summary, text=text, left_out=(("", max(hidden, 1)),))


def _joined(sections: Iterable[_Section]) -> str:
    return "\n".join(section.text for section in sections)


def _fits(sections: Iterable[_Section], tokens: int) -> bool:
    return estimate_text(_joined(sections)) <= tokens


def _sections(text: str) -> list[_Section]:
    """Return the sections of a summary; a heading inside code begins none."""
    sections: list[_Section] = []
    heading = ""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark["fence"]
        elif mark and mark["fence"] == fence:
            fence = ""
        elif not fence and _HEADING.match(line):
            if lines:
                sections.append(_Section(heading, lines))
            heading = line
            lines = []
        lines.append(line)
    if lines:
        sections.append(_Section(heading, lines))
    return sections


def _without_code(section: _Section) -> _Section:
    """Return the section with the first lines of each block of code only."""
    lines: list[str] = []
    hidden = section.hidden
    fence = ""
    lines_of_block = 0
    for line in section.lines:
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark["fence"]
            lines_of_block = 0
        elif mark and mark["fence"] == fence:
            fence = ""
        elif fence:
            lines_of_block += 1
            if lines_of_block > _LINES_OF_CODE:
                hidden += 1
                continue
        lines.append(line)
    return section._replace(lines=lines, hidden=hidden)


def _shorter(
    sections: Sequence[_Section], tokens: int, *, are_important: bool
) -> list[_Section]:
    """Return the sections, with the longest of one kind cut to the same length.

    The length is the largest one with which all fit, or the shortest one that is left.

    are_important: whether the important ones are cut, or the others.
    """
    lengths = {
        section.size for section in sections if section.is_important == are_important
    }
    longest = max(lengths, default=_SHORTEST_SECTION)
    fitting = _SHORTEST_SECTION
    too_long = max(longest, fitting + 1)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if _fits(_cut(sections, middle, are_important=are_important), tokens):
            fitting = middle
        else:
            too_long = middle
    return _cut(sections, fitting, are_important=are_important)


def _cut(
    sections: Iterable[_Section], chars: int, *, are_important: bool
) -> list[_Section]:
    cut: list[_Section] = []
    for section in sections:
        is_chosen = section.is_important == are_important
        cut.append(section.within(chars) if is_chosen else section)
    return cut
