"""From findings to texts without them, where another pass would find nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from refold.redaction.fold import Folded
from refold.redaction.glance import Glance
from refold.redaction.placeholder import Placeholders
from refold.redaction.plan import Plan, Tagger
from refold.redaction.registered import Registered
from refold.redaction.rest import Rest
from refold.redaction.scan import NO_CONCERN, Concern, Finding, Prepared, Scanner
from refold.redaction.values import RedactionError, Tally

# A text that still has findings after so many rounds was made to have them.
_ROUNDS = 8
# What a program registered, and what a model recognizes, next to what rules find.
_REGISTERED, _RECOGNIZED = 1000, 10
_ERROR: Final = "ERROR"


class Finds(Protocol):
    """Something besides rules that finds values: registered ones, a user's model."""

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """(start, end, type) of what is in ``text``."""
        ...


class Text(NamedTuple):
    """A text to redact, and what is known of it.

    hits:   as the scanner prepared it; None if nothing triggers a rule.
    whole:  it is all there is under its key.
    number: it is an integer's.
    """

    text: str
    prepared: Prepared | None = None
    concern: Concern = NO_CONCERN
    whole: bool = True
    number: bool = False


class _Part:
    """A part of a text: what it reads, or what it was divided into."""

    __slots__ = ("parts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: list[_Part | str] | None = None

    def __str__(self) -> str:
        return self.text if self.parts is None else "".join(map(str, self.parts))


class _Job(NamedTuple):
    part: _Part
    given: Text
    rounds: int
    tally: Tally


class Settler:
    """Redacts texts by a plan.  It holds none: threads may share it."""

    def __init__(
        self,
        plan: Plan,
        scanner: Scanner,
        *,
        registered: Finds | None = None,
        recognizer: Finds | None = None,
    ) -> None:
        self.plan, self.scanner = plan, scanner
        self.registered, self.recognizer = registered, recognizer
        self.placeholders = Placeholders(plan.labels)
        self.glance = Glance(plan, scanner, self.placeholders)
        self._kept = {kind for kind, action in plan.actions.items() if action == "keep"}
        self._drops = {k for k, action in plan.actions.items() if action == "drop_leaf"}
        self._allowed = [re.compile(pattern) for pattern in plan.allow_patterns]
        self._allows = bool(plan.allow_values or plan.allow_patterns)

    def settle(
        self, texts: Sequence[Text], tag: Tagger | None, until: float
    ) -> list[tuple[str, Tally]]:
        """Each of ``texts`` redacted, with what was found in it.

        What is already a placeholder divides a text: each piece is redacted by itself,
        until nothing more is found in any.  Raises RedactionError after ``until``.
        """
        done: list[tuple[str, Tally]] = []
        roots: list[tuple[int, _Part]] = []
        jobs: list[_Job] = []
        for given in texts:
            _check_time(until)
            tally = Tally()
            if self.placeholders.within(given.text):
                root = _Part(given.text)
                jobs += self._divided(root, given, tally)
            else:
                findings = self._findings(given.text, given, first=True)
                if not findings:
                    done.append((given.text, tally))
                    continue
                root = _Part(given.text)
                jobs += self._replaced(_Job(root, given, 0, tally), findings, tag)
            roots.append((len(done), root))
            done.append((given.text, tally))
        jobs = self._prepared(jobs)
        while jobs:
            pending = []
            for job in jobs:
                _check_time(until)
                findings = self._findings(
                    job.part.text, job.given, first=job.rounds == 0
                )
                if findings:
                    pending += self._replaced(job, findings, tag)
            jobs = self._prepared(pending)
        for index, root in roots:
            text, tally = done[index]
            done[index] = self._finished(text, str(root), tally)
        return done

    def _finished(self, text: str, clean: str, tally: Tally) -> tuple[str, Tally]:
        for kind in self._drops:
            if kind in tally.types:
                return self.placeholders.of(kind), tally
        return (text if clean == text else clean), tally

    def _divided(self, part: _Part, given: Text, tally: Tally) -> list[_Job]:
        """The pieces of a text between the placeholders it already has."""
        pieces = self.placeholders.pieces(given.text)
        whole = len(pieces) == 1 and given.whole
        jobs = []
        part.parts = []
        for piece, kept in pieces:
            if kept:
                part.parts.append(piece)
                continue
            child = _Part(piece)
            part.parts.append(child)
            jobs.append(
                _Job(
                    child,
                    given._replace(text=piece, prepared=None, whole=whole),
                    0,
                    tally,
                )
            )
        return jobs

    def _prepared(self, jobs: Sequence[_Job]) -> list[_Job]:
        """Those of ``jobs`` in which something may be found, all scanned at once."""
        unknown = [job for job in jobs if job.given.prepared is None]
        if not unknown:
            return list(jobs)
        prepared = self.scanner.survey([job.part.text for job in unknown])
        ready = [job for job in jobs if job.given.prepared is not None]
        for index, (part, given, rounds, tally) in enumerate(unknown):
            if index in prepared or given.concern.rules or self.finds_more:
                known = given._replace(prepared=prepared.get(index))
                ready.append(_Job(part, known, rounds, tally))
        return ready

    @property
    def finds_more(self) -> bool:
        """Whether anything besides rules may find something."""
        return bool(self.registered) or self.recognizer is not None

    def finds_more_in(self, texts: Iterable[str]) -> bool:
        """Whether anything besides rules may find something in any of ``texts``."""
        if self.recognizer is not None:
            return True
        return bool(self.registered) and not (
            isinstance(self.registered, Registered) and self.registered.clean(texts)
        )

    def _replaced(
        self, job: _Job, findings: Sequence[Finding], tag: Tagger | None
    ) -> list[_Job]:
        """Put placeholders for what is found; what is left is to be looked at again."""
        part, given, rounds, tally = job
        text = part.text
        extents = list(resolved(findings))
        if rounds == _ROUNDS:
            best = extents[0][2]
            extents = [(0, len(text), best)]
        parts: list[_Part | str] = []
        left: list[_Part] = []
        end = 0
        for start, stop, best in extents:
            left.append(_Part(text[end:start]))
            value = text[start:stop]
            mark = tag(best.type, value) if tag else ""
            parts += [left[-1], self.placeholders.of(best.type, mark)]
            tally.add(best.type, best.rule)
            end = stop
        left.append(_Part(text[end:]))
        part.parts = [*parts, left[-1]]
        rest = None if given.prepared is None else Rest(given.prepared, self.scanner)
        return [
            _Job(child, again, rounds + 1, tally)
            for child, (start, stop) in zip(left, _between(extents, text), strict=True)
            if child.text
            and not child.text.isspace()
            and (again := self._again(given, rest, child.text, start, stop))
        ]

    def _again(
        self, given: Text, rest: Rest | None, piece: str, start: int, stop: int
    ) -> Text | None:
        """A piece of a text, to be looked at again; None: nothing can be in it."""
        prepared = None
        hits = rest.of(start, stop) if rest else None
        if hits is not None:
            if not (hits or given.concern.rules or self.finds_more):
                return None
            prepared = Prepared(piece, Folded(piece), hits)
        return Text(piece, prepared, given.concern, False, given.number)

    def _findings(self, text: str, given: Text, *, first: bool) -> list[Finding]:
        try:
            found = self._of_rules(text, given)
            if self.recognizer is not None and first:
                found += [
                    Finding(start, end, kind, "recognizer", _RECOGNIZED)
                    for start, end, kind in self.recognizer.find(text)
                ]
        except Exception:
            if self.plan.on_error == "drop_leaf":
                return [Finding(0, len(text), _ERROR, "error", _REGISTERED)]
            raise
        if self._kept or self._allows:
            found = [one for one in found if not self._let(text, one)]
        if self.registered:
            found += [
                Finding(start, end, kind, "registered", _REGISTERED)
                for start, end, kind in self.registered.find(text)
            ]
        return found

    def _of_rules(self, text: str, given: Text) -> list[Finding]:
        prepared = given.prepared
        if prepared is None:
            if not given.concern.rules:
                return []
            prepared = Prepared(text, Folded(text))
        return self.scanner.findings(
            prepared, given.concern, whole=given.whole, number=given.number
        )

    def _let(self, text: str, found: Finding) -> bool:
        """Whether the policy keeps what was found."""
        if found.type in self._kept:
            return True
        if not self._allows:
            return False
        value = text[found.start : found.end]
        return value in self.plan.allow_values or any(
            pattern.fullmatch(value) for pattern in self._allowed
        )


def _check_time(until: float) -> None:
    if until and perf_counter() > until:
        raise RedactionError("it took longer than the policy's budget_ms")


def _between(
    extents: Sequence[tuple[int, int, Finding]], text: str
) -> Iterator[tuple[int, int]]:
    """Where the pieces between ``extents`` are, and those at both ends."""
    end = 0
    for start, stop, _ in extents:
        yield end, start
        end = stop
    yield end, len(text)


def resolved(findings: Iterable[Finding]) -> Iterator[tuple[int, int, Finding]]:
    """Join findings that overlap: (start, end, the best of them), in order and apart.

    Nothing that was found survives.  The best is that of the most specific rule, then
    the longest.
    """
    found = list(findings)
    if len(found) == 1:
        yield found[0].start, found[0].end, found[0]
        return
    group: list[Finding] = []
    end = 0
    for finding in sorted(found, key=lambda found: (found.start, found.end)):
        if group and finding.start >= end:
            yield group[0].start, end, max(group, key=_weight)
            group = []
        group.append(finding)
        end = max(end, finding.end) if len(group) > 1 else finding.end
    if group:
        yield group[0].start, end, max(group, key=_weight)


def _weight(finding: Finding) -> tuple[int, int, str]:
    # The rule's name decides between equals, so that it does not matter who came first.
    return finding.priority, finding.end - finding.start, finding.rule
