"""From findings to texts without them, where another pass would find nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from refold.redaction.engines import IN_RUN, Hit
from refold.redaction.engines.fold import Folded
from refold.redaction.plan import Plan, Tagger
from refold.redaction.registered import Registered
from refold.redaction.scan import (
    CONTEXT,
    NO_CONCERN,
    Concern,
    Finding,
    Prepared,
    Scanner,
)
from refold.redaction.types import Placeholders
from refold.redaction.values import (
    MAX_DEPTH,
    NO_SKIP,
    JsonValue,
    RedactionError,
    Skip,
    Tally,
    TooDeep,
    below,
)

# How many characters before a hit rules, their words and their judges may look at.
_BACK: Final = 3 * CONTEXT
# Next to these, the end of a text makes no more difference than any other character.
_INERT: Final = frozenset(" \t\r\n,;\"'`<>[]{}|!?")
_LONG: Final = 48


class Rest:
    """The hits of a text that may come out otherwise in one of its pieces by itself.

    All others found nothing, and will not.
    """

    __slots__ = ("_ends", "_hits", "_scanner", "_text")

    def __init__(self, prepared: Prepared, scanner: Scanner) -> None:
        text = prepared.text
        self._text = text if prepared.folded.text is text else ""
        self._scanner = scanner
        self._hits = sorted(prepared.hits, key=itemgetter(1))
        self._ends = [end for _, end in self._hits]

    def of(self, start: int, stop: int) -> list[Hit] | None:
        """Those of the piece from ``start`` to ``stop``, in order.

        None: the piece has to be scanned, as there may be new ones.
        """
        text, ends, scanner = self._text, self._ends, self._scanner
        first, last = start == 0, stop == len(text)
        if not text or not (
            (first or _is_inert(text, start, start, min(stop, start + _LONG)))
            and (last or _is_inert(text, stop - 1, max(start, stop - _LONG), stop))
        ):
            return None
        begin = bisect_right(ends, start)
        limit = bisect_right(ends, stop + scanner.furthest, begin)
        reach, ahead = scanner.reach, scanner.ahead
        return [
            (number, min(end, stop) - start)
            for number, end in self._hits[begin:limit]
            if end - reach[number] <= stop
            and (
                (not first and end - start < _BACK)
                or (not last and end + ahead[number] > stop)
            )
        ]


def _is_inert(text: str, place: int, start: int, stop: int) -> bool:
    """Whether no value can begin or end, at ``place``, only now."""
    character = text[place]
    if character <= "\x7f" and character not in _INERT:
        return False
    # A run of digits that goes on so far may be another one when it is cut.
    return stop - start < _LONG or bool(text[start:stop].strip(IN_RUN))


# {"name": "DB_PASSWORD", "value": "…"}: the name is the key of the value.
_BEGINS, _OPENS = "{[ \t\r\n", re.compile(r"\s*[\[{]")
VALUES = ("value", "Value")
NAMES = ("name", "key", "field", "label", "header")
# ["X-Api-Key", "…"]: the first is the key of the second, if that is no name itself.
_LONGEST_NAME = 48
_SECOND = re.compile(r"(?=[^0-9]{0,64}[0-9])(?:\S{4,}|[^A-Za-z]{4,64}\Z)")


class Node:
    """An object or an array of a value, and what is to be written into it."""

    __slots__ = ("depth", "keys", "name", "parent", "skip", "spoken", "value", "writes")

    def __init__(
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        parent: Node | None,
        name: str | int,
        depth: int,
        skip: Skip,
    ) -> None:
        if depth >= MAX_DEPTH:
            raise TooDeep
        self.value, self.parent, self.name = value, parent, name
        self.depth, self.skip = depth, skip
        # The key of the object around it and its own, when that is known.
        self.keys: tuple[str, str] | None = None
        # Whether a key around it may give context to what it holds.
        self.spoken = False
        self.writes: dict[str | int, JsonValue] = {}


class Flat:
    """The leaves of a value that may hold something, and where each stands.

    texts:   strings, and integers as text.
    places:  the node and the name of each text.
    numbers: which of them are integers.
    documents: which of them may be JSON.
    keys:    every key, once.
    named:   objects with a ``value`` that a sibling names.
    flags:   by array and index, the flag that a string follows, as in a command line.
    pairs:   arrays of two strings, and these; the first may name the second.
    """

    def __init__(
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        *,
        depth: int,
        skip: Skip,
        skip_keys: frozenset[str],
    ) -> None:
        self.texts: list[str] = []
        self.places: list[tuple[Node, str | int]] = []
        self.numbers: set[int] = set()
        self.keys: dict[str, None] = {}
        self.named: list[Node] = []
        self.flags: dict[tuple[int, int], str] = {}
        self.pairs: list[tuple[Node, str, str]] = []
        self._skip_keys = skip_keys
        self._shapes: set[tuple[str, ...]] = set()
        self.nodes = [Node(value, None, "", depth, skip)]
        for node in self.nodes:
            if isinstance(node.value, dict):
                self._object(node, node.value)
            else:
                self._array(node, node.value)
        self.documents = [index for index, text in enumerate(self.texts) if opens(text)]

    def _object(self, node: Node, value: dict[str, JsonValue]) -> None:
        shape = tuple(value)
        if shape not in self._shapes:
            self._shapes.add(shape)
            self.keys.update(dict.fromkeys(shape))
        if "value" in value or "Value" in value:
            self.named.append(node)
        if self._skip_keys:
            items = [pair for pair in value.items() if pair[0] not in self._skip_keys]
            self._items(node, items)
        else:
            self._items(node, value.items())

    def _array(self, node: Node, value: list[JsonValue]) -> None:
        if value and type(value[0]) is float and set(map(type, value)) == {float}:
            return
        self._items(node, enumerate(value))
        for index, item in enumerate(value[:-1]):
            if type(item) is str and _is_flag(item) and type(value[index + 1]) is str:
                self.flags[id(node), index + 1] = item
        if len(value) == 2:
            self._pair(node, *value)

    def _pair(self, node: Node, first: JsonValue, second: JsonValue) -> None:
        if (
            isinstance(first, str)
            and isinstance(second, str)
            and len(first) <= _LONGEST_NAME
            and _SECOND.fullmatch(second)
        ):
            self.pairs.append((node, first, second))

    def _items(self, node: Node, items: Iterable[tuple[str | int, JsonValue]]) -> None:
        texts, places, plain = self.texts, self.places, not node.skip
        for name, item in items:
            kind = type(item)
            if kind is str and plain:
                texts.append(item)  # type: ignore[arg-type]  # a str, by its type
                places.append((node, name))
            elif kind is float or kind is bool or item is None:
                continue
            else:
                self._item(node, name, item)

    def _item(self, node: Node, name: str | int, item: JsonValue) -> None:
        skip = below(node.skip, str(name)) if node.skip else node.skip
        if () in skip:
            return
        if isinstance(item, str):
            self.texts.append(item)
        elif isinstance(item, dict | list | tuple):
            item = [*item] if isinstance(item, tuple) else item
            self.nodes.append(Node(item, node, name, node.depth + 1, skip))
            return
        elif isinstance(item, int) and not isinstance(item, bool):
            if not long(item):
                return
            self.numbers.add(len(self.texts))
            self.texts.append(str(item))
        elif isinstance(item, float | bool | None):
            return
        else:
            raise RedactionError(f"a {type(item).__name__} is not JSON")
        self.places.append((node, name))


def opens(text: str) -> bool:
    """Whether ``text`` begins as JSON does."""
    return text[:1] in _BEGINS and bool(_OPENS.match(text))


def _is_flag(text: str) -> bool:
    return text == "-u" or (text[:2] == "--" and text[2:3].isalpha())


def long(number: int) -> bool:
    """Whether the number has 7 to 19 digits: fewer say nothing, more are no card."""
    return 10**6 <= abs(number) < 10**19


_DEEPEST: Final = 4
# In a longer text something is found more often, and is looked for twice then.
_LONGEST: Final = 16_384
_SILENT: Final = (float, bool)


class Unsure(Exception):
    """The value is not of the kind that a glance is for."""


class Glance:
    """Looks at values as ``plan`` says.  It holds none: threads may share it."""

    def __init__(
        self, plan: Plan, scanner: Scanner, placeholders: Placeholders
    ) -> None:
        self._scanner, self._placeholders = scanner, placeholders
        self._longest = min(plan.max_leaf_bytes // 4, _LONGEST)
        self._suits = not (
            plan.skip or plan.skip_keys or plan.budget_ms or plan.on_error != "block"
        )
        # Keys that hold nothing and give no context, as those of events are.
        self._quiet: set[str] = set()

    def sees_nothing(self, value: JsonValue, skip: Skip) -> bool | None:
        """Whether no rule finds anything in ``value``; None if a glance cannot tell.

        What else may find something has to be asked besides.
        """
        if not self._suits or type(value) is not dict:
            return None
        try:
            texts = [*self._texts(value, skip, "", 0)]
        except Unsure:
            return None
        findings = self._scanner.findings
        return not any(
            findings(prepared, whole=True)
            for prepared in self._scanner.survey(texts).values()
        )

    def _texts(
        self, value: dict[str, JsonValue], skip: Skip, parent: str, depth: int
    ) -> Iterator[str]:
        """The texts of an object in which no key says anything.  Raises Unsure."""
        if depth == _DEEPEST or VALUES[0] in value or VALUES[1] in value:
            raise Unsure
        for key, item in value.items():
            if key not in self._quiet:
                self._hear(key)
            inside = below(skip, key)
            if () in inside or item is None or item == []:
                continue
            if inside or (parent and self._scanner.concern(f"{parent} {key}").rules):
                raise Unsure
            yield from self._of_item(item, key, depth)

    def _of_item(self, item: JsonValue, key: str, depth: int) -> Iterator[str]:
        kind = type(item)
        if kind is str:
            self._check(item)  # type: ignore[arg-type]  # a str, by its type
            yield item  # type: ignore[misc]  # a str, by its type
        elif kind is dict:
            yield from self._texts(item, NO_SKIP, key, depth + 1)  # type: ignore[arg-type]  # one
        elif kind is list:
            for one in item:  # type: ignore[union-attr]  # a list, by its type
                if type(one) is not dict:
                    raise Unsure
                yield from self._texts(one, NO_SKIP, key, depth + 1)
        elif not (kind in _SILENT or (kind is int and not long(item))):  # type: ignore[arg-type]  # an int
            raise Unsure

    def _check(self, text: str) -> None:
        """Refuse what is not looked at as a text alone.  Raises Unsure."""
        if len(text) > self._longest or self._placeholders.within(text) or opens(text):
            raise Unsure

    def _hear(self, key: str) -> None:
        """Remember that ``key`` says nothing.  Raises Unsure if it does."""
        if len(key) < 2 or self._scanner.concern(key).rules or self._scanner.look(key):
            raise Unsure
        if len(self._quiet) < 1000 and len(key) < 100:
            self._quiet.add(key)


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
