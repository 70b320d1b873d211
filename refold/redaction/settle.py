"""From findings to a text without them, where another pass would find nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from refold.redaction.placeholder import pieces, placeholder
from refold.redaction.scan import Finding, Rules, Survey

# A text that still has findings after so many rounds was made to have them.
_ROUNDS = 8


class Finds(Protocol):
    """An engine: it says which rules some texts may concern, and what they find."""

    engine: str

    def survey(self, texts: Sequence[str]) -> Survey: ...

    def findings(
        self, text: str, rules: Rules, *, key: str, whole: bool
    ) -> Sequence[Finding]: ...


class Settler:
    """Redacts texts with what an engine finds, and counts that."""

    def __init__(self, engine: Finds, counts: Counter[str]) -> None:
        self.engine, self.counts = engine, counts

    def text(self, text: str, rules: Rules, key: str = "") -> str:
        """``text``, which stands under ``key``, without what ``rules`` find.

        What is already a placeholder divides it: each piece is redacted by itself,
        until nothing more is found in any.
        """
        if not rules:
            return text
        parts = pieces(text)
        whole = parts == [(text, False)]
        clean = "".join(
            part if kept else self._settled(part, rules, key, whole=whole)
            for part, kept in parts
        )
        return text if clean == text else clean

    def _settled(
        self, text: str, rules: Rules, key: str, *, whole: bool = False, rounds: int = 0
    ) -> str:
        findings = (
            self.engine.findings(text, rules, key=key, whole=whole) if text else ()
        )
        if not findings:
            return text
        extents = list(resolved(findings))
        if rounds == _ROUNDS:
            extents = [(0, len(text), extents[0][2])]
        out, end = [], 0
        for start, stop, kind in extents:
            out.append(self._settled(text[end:start], rules, key, rounds=rounds + 1))
            out.append(placeholder(kind))
            self.counts[kind] += 1
            end = stop
        out.append(self._settled(text[end:], rules, key, rounds=rounds + 1))
        return "".join(out)


def resolved(findings: Iterable[Finding]) -> Iterator[tuple[int, int, str]]:
    """Join findings that overlap: (start, end, type), in order and apart.

    Nothing that was found survives.  The type is that of the most specific rule, then
    of the longest finding.
    """
    group: list[Finding] = []
    end = 0
    for finding in sorted(findings, key=lambda found: (found.start, found.end)):
        if group and finding.start >= end:
            yield group[0].start, end, _kind(group)
            group = []
        group.append(finding)
        end = max(end, finding.end) if len(group) > 1 else finding.end
    if group:
        yield group[0].start, end, _kind(group)


def _kind(group: Sequence[Finding]) -> str:
    best = max(group, key=lambda found: (found.rule.priority, found.end - found.start))
    return best.rule.type
