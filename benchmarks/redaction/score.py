"""How much of the labelled was found, and how much of the found is labelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.redaction.datasets import Case
from benchmarks.redaction.finding import Span, Tool
from benchmarks.redaction.labelled import Item


@dataclass(slots=True)
class Count:
    """Of one type: labelled values, those covered wholly and partly; and findings."""

    spans: int = 0
    whole: int = 0
    part: int = 0
    found: int = 0
    false: int = 0

    @property
    def missed(self) -> int:
        """Values of which no sign was covered."""
        return self.spans - self.whole - self.part

    @property
    def recall(self) -> float:
        """Share of the values that were covered wholly."""
        return self.whole / self.spans if self.spans else 1.0

    @property
    def precision(self) -> float:
        """Share of the findings that touch something labelled."""
        return 1 - self.false / self.found if self.found else 1.0

    def add(self, other: Count) -> None:
        """Count ``other`` in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Score:
    """Counts by type, and what was not covered or falsely found."""

    types: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)

    @property
    def total(self) -> Count:
        """All types together."""
        total = Count()
        for count in self.types.values():
            total.add(count)
        return total


def score(tool: Tool, items: Iterable[Item]) -> Score:
    """Run ``tool`` over ``items``.

    Types that start with ``other:`` are labelled but not asked for: they count neither
    as missed nor, where something is found in them, as falsely found.
    """
    result = Score()
    for item in items:
        found = tool.spans(item.text)
        _count_labelled(result, item, found)
        _count_found(result, item, found)
    return result


def _count_labelled(result: Score, item: Item, found: Sequence[Span]) -> None:
    for span in item.spans:
        if span.type.startswith("other:"):
            continue
        count = result.types[span.type]
        count.spans += 1
        left = _left(item.text, span, found)
        if not left:
            count.whole += 1
            continue
        value = item.text[span.start : span.end]
        count.part += left < sum(map(str.isalnum, value))
        result.missed.append(f"{item.name or span.type}: {item.text!r}")


def _count_found(result: Score, item: Item, found: Sequence[Span]) -> None:
    for span in found:
        result.types[span.type].found += 1
        if not any(s.start < span.end and span.start < s.end for s in item.spans):
            result.types[span.type].false += 1
            result.false.append(f"{span.type}: {item.text!r}")


def _left(text: str, span: Span, found: Sequence[Span]) -> int:
    """How many letters and digits of ``span`` nothing covers."""
    return sum(
        text[at].isalnum() and not any(f.start <= at < f.end for f in found)
        for at in range(span.start, span.end)
    )


def wrong(tool: Tool, cases: Iterable[Case]) -> dict[str, str]:
    """Which cases do not come out as they must, and in which way."""
    verdicts = {case.id: _fault(tool, case) for case in cases}
    return {name: fault for name, fault in verdicts.items() if fault}


def _fault(tool: Tool, case: Case) -> str:
    found = tool.spans(case.text)
    if not case.must:
        return f"found {found[0].type} in {case.text!r}" if found else ""
    if not found:
        return f"missed in {case.text!r}"
    start = case.text.find(case.expected)
    whole = Span(start, start + len(case.expected), "")
    return f"partly covered in {case.text!r}" if _left(case.text, whole, found) else ""
