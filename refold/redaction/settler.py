"""From findings to texts without them, where another pass would find nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from refold.redaction.engines import IN_RUN, Hit
from refold.redaction.engines.fold import Folded
from refold.redaction.plan import Plan, Tagger
from refold.redaction.registered import Registered, overlapping
from refold.redaction.scanner import (
    CONTEXT,
    FAST,
    NO_CONCERN,
    Concern,
    Finding,
    Prepared,
    Scanner,
)
from refold.redaction.types import UNSCANNED, Placeholders
from refold.redaction.values import Meter, OverBudget, RedactionError, Tally

# A text that still has findings after so many rounds was made to have them.
_ROUNDS = 8
# What a program registered, and what a model recognizes, next to what rules find.
_REGISTERED, _RECOGNIZED = 1000, 10
_ERROR: Final = "ERROR"
# What a name is tied to its value by ends with one of these.
_TIES: Final = frozenset("=:：＝ \t\n\"'`>|,;(@%是为は는은")
# Types of values that are tied to names: others end where they end.
_TIED: Final = frozenset({"SECRET", "API_KEY", "AUTH_TOKEN", "JWT", "PASSWORD_HASH"})
# What may go on behind a placeholder, and what never does.
_GOES_ON: Final = re.compile(r"[^\s\"'`,;:=()\[\]{}<>|&\\]{4,256}")
_DIVIDES: Final = frozenset(" \t\r\n\"'`,;:=()[]{}<>|&\\")
# What a text is looked at for a third time counts more: few but those made for it are.
_AGAIN: Final = 4
# How many steps it takes to put a placeholder and to look at what is around it, or
# right behind it.
_PLACED, _BEHIND = 8, 64


class Finds(Protocol):
    """Something besides rules that finds values: registered ones, a user's model."""

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """(start, end, type) of what is in ``text``."""


class Text(NamedTuple):
    """A text to redact, and what is known of it.

    prepared: by the scanner; None if nothing triggers a rule.
    whole:    it is all there is under its key.
    number:   it is an integer's.
    """

    text: str
    prepared: Prepared | None = None
    concern: Concern = NO_CONCERN
    whole: bool = True
    number: bool = False


@dataclass(slots=True)
class _Account:
    """What was found in a whole text, the ``index`` of it, and the steps it took."""

    index: int
    meter: Meter
    tag: Tagger | None
    until: float  # when it is to be done, or 0
    over: bool = False  # it took too many steps
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True, eq=False)
class _Piece:
    """A piece of a text: what it reads, or what it was divided into."""

    given: Text
    account: _Account
    rounds: int = 0
    first: bool = True  # the text begins with it
    parts: list[_Piece | str] | None = None

    def __str__(self) -> str:
        return self.given.text if self.parts is None else "".join(map(str, self.parts))


class Settler:
    """Redacts texts by a plan.  It holds none: threads may share it."""

    def __init__(
        self,
        plan: Plan,
        scanner: Scanner,
        registered: Finds | None = None,
        recognizer: Finds | None = None,
    ) -> None:
        self.plan, self.scanner = plan, scanner
        self.registered, self.recognizer = registered, recognizer
        self.placeholders = Placeholders(plan.labels, plan.numbered_kinds)
        tied = sorted(_TIED)
        marks = [self.placeholders.of(one)[:-1] for one in tied]
        if plan.numbered:
            marks += [f"[{sign}{one}_" for one in tied for sign in ("", "~")]
        self._tied_marks = tuple(marks)
        # Keys that hold nothing and give no context, as those of events are.
        self.quiet: set[str] = set()
        self._kept = {kind for kind, action in plan.actions.items() if action == "keep"}
        self._drops = {k for k, action in plan.actions.items() if action == "drop_leaf"}
        self._allowed = [re.compile(pattern) for pattern in plan.allow_patterns]
        self._lets = bool(self._kept or plan.allow_values or self._allowed)

    def stub(self, text: str) -> tuple[str, Tally] | None:
        """What stands for a text over the limit of bytes.  Raises RedactionError."""
        limit = self.plan.max_leaf_bytes
        if len(text) * 4 <= limit or len(text.encode(errors="replace")) <= limit:
            return None
        if self.plan.over_budget == "refuse":
            raise RedactionError(f"a text is over the policy's limit of {limit} bytes")
        return self._unscanned(text)

    def _unscanned(self, text: str) -> tuple[str, Tally]:
        return self.placeholders.unscanned(text), Tally({UNSCANNED: 1}, {"budget": 1})

    def settle(
        self, texts: Sequence[Text], tag: Tagger | None, until: float
    ) -> list[tuple[str, Tally]]:
        """Each of ``texts`` redacted, with what was found in it.

        What is already a placeholder divides a text: each piece is redacted by itself,
        until nothing more is found in any.  Raises RedactionError after ``until``.
        """
        roots, pending = list[_Piece](), list[_Piece]()
        for index, given in enumerate(texts):
            meter = self.scanner.meter(given.text)
            if given.prepared is not None and not given.concern.rules:
                meter.spent = given.prepared.spent
            root = _Piece(given, _Account(index, meter, tag, until))
            roots.append(root)
            divides = self.placeholders.within(given.text)
            pending += self._divided(root) if divides else self._looked(root)
        while pending := self._prepared(pending):
            pending = [left for piece in pending for left in self._looked(piece)]
        return [self._finished(root) for root in roots]

    def _looked(self, piece: _Piece) -> Sequence[_Piece]:
        """What is left to be looked at of ``piece`` without what is found in it."""
        account = piece.account
        if account.over:
            return ()
        try:
            account.meter.spend(1)
            found = self._findings(piece)
            return self._settled(piece, found) if found else ()
        except OverBudget:
            if self.plan.over_budget == "refuse":
                raise OverBudget(index=account.index) from None
        account.over = True
        return ()

    def _finished(self, root: _Piece) -> tuple[str, Tally]:
        text, tally = root.given.text, root.account.tally
        if root.account.over:
            return self._unscanned(text)
        for kind in self._drops:
            if kind in tally.types:
                return self.placeholders.of(kind), tally
        clean = str(root)
        return text if clean == text else clean, tally

    def _divided(self, root: _Piece) -> list[_Piece]:
        """The pieces of a text between the placeholders it already has."""
        pieces = self.placeholders.pieces(root.given.text)
        whole = len(pieces) == 1 and root.given.whole
        root.parts = []
        for index, (text, kept) in enumerate(pieces):
            if kept:
                root.parts.append(text)
                continue
            # Of several placeholders in a row, some may be values of their own.
            before = None
            tied = index > 0 and pieces[index - 1][0].startswith(self._tied_marks)
            if tied and (index == 1 or not pieces[index - 2][1]):
                before = pieces[index - 2][0] if index > 1 else ""
            if before is not None and (more := self._going_on(before, text, root)):
                root.parts.append(self._put(root, more, text[: more.end]))
                text = text[more.end :]
            given = root.given._replace(text=text, prepared=None, whole=whole)
            root.parts.append(_Piece(given, root.account, first=not index))
        return [part for part in root.parts if isinstance(part, _Piece)]

    def _put(self, piece: _Piece, found: Finding, value: str) -> str:
        """The placeholder of a value, which is counted."""
        account = piece.account
        mark = account.tag(found.type, value) if account.tag else ""
        account.tally.add(found.type, found.rule)
        return self.placeholders.of(found.type, mark)

    def _going_on(self, before: str, text: str, piece: _Piece) -> Finding | None:
        """What stands right behind a placeholder, if it would be found in its place."""
        if before and before[-1] not in _TIES:
            return None  # no name is tied to what stood there
        match, given, meter = _GOES_ON.match(text), piece.given, piece.account.meter
        if not match or meter.spent > meter.limit:
            return None
        meter.spent += _BEHIND
        start = min(len(before), CONTEXT)
        value = match.group()
        whole = f"{before[len(before) - start :]}{value}"
        found = self._tied(whole, start, given)
        if found and (alone := self.scanner.look(value)):
            # What tells by itself is found where it stands.
            first = min([one.start for one in alone.found or ()], default=len(value))
            found = self._tied(whole[: start + first], start, given)
        return found and found._replace(start=0, end=found.end - start)

    def _tied(self, text: str, start: int, given: Text) -> Finding | None:
        """What is found in ``text`` from ``start`` on, of what is before it."""
        prepared = self.scanner.look(text) or Prepared(text, Folded(text))
        concern = NO_CONCERN if start else given.concern
        for one in self.scanner.findings(prepared, concern, whole=not start):
            if one.start == start and not self._let(text, one):
                return one
        return None

    def _prepared(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Those of ``pieces`` in which something may be found, all scanned at once."""
        unknown = [piece for piece in pieces if piece.given.prepared is None]
        if not unknown:
            return list(pieces)
        prepared = self.scanner.survey([piece.given.text for piece in unknown])
        ready = [piece for piece in pieces if piece.given.prepared is not None]
        for index, piece in enumerate(unknown):
            again = prepared.get(index)
            steps = len(piece.given.text) // FAST + (again.spent if again else 0)
            piece.account.meter.spent += steps * (1 if piece.rounds < 2 else _AGAIN)
            if index in prepared or piece.given.concern.rules or self.finds_more:
                piece.given = piece.given._replace(prepared=again)
                ready.append(piece)
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

    def _settled(self, piece: _Piece, findings: Sequence[Finding]) -> list[_Piece]:
        """Put placeholders for what is found; return what is to be looked at again."""
        given, text = piece.given, piece.given.text
        # Nothing that was found survives; the most telling of it names the whole.
        extents = [
            (start, stop, max(group, key=_weight))
            for start, stop, group in overlapping(findings)
        ]
        piece.account.meter.spend(_PLACED * len(extents))
        if piece.rounds == _ROUNDS:
            extents = [(0, len(text), extents[0][2])]
        rest = None if given.prepared is None else _Rest(given.prepared, self.scanner)
        piece.parts = []
        left = []
        end, before = 0, None
        for start, stop, best in (*extents, (len(text), len(text), None)):
            if before is not None and end < start and text[end] not in _DIVIDES:
                more = self._going_on(before, text[end:start], piece)
                if more:
                    value = text[end : end + more.end]
                    piece.parts.append(self._put(piece, more, value))
                    end += more.end
            again = self._left(given, rest, end, start)
            if isinstance(again, str):
                piece.parts.append(again)
            else:
                rounds, first = piece.rounds + 1, piece.first and not end
                left.append(_Piece(again, piece.account, rounds, first=first))
                piece.parts.append(left[-1])
            if best is not None:
                piece.parts.append(self._put(piece, best, text[start:stop]))
                # All of the text is what its key names; of several in a row, none is.
                alone = piece.first if start == 0 else start > end
                tied = alone and best.type in _TIED
                before = text[max(0, end, start - CONTEXT) : start] if tied else None
            end = stop
        return left

    def _left(
        self, given: Text, rest: _Rest | None, start: int, stop: int
    ) -> Text | str:
        """A piece with the hits to judge anew; its text, if there is nothing in it."""
        text = given.text[start:stop]
        if not text or text.isspace():
            return text
        hits = rest.of(start, stop) if rest else None
        if hits is None:
            prepared = None
        elif hits or given.concern.rules or self.finds_more:
            prepared = Prepared(text, Folded(text), hits)
        else:
            return text
        return Text(text, prepared, given.concern, False, given.number)

    def _findings(self, piece: _Piece) -> list[Finding]:
        account, text = piece.account, piece.given.text
        if account.until and perf_counter() > account.until:
            raise RedactionError("it took longer than the policy's budget_ms")
        try:
            found = self._of_rules(piece.given, account.meter)
            if self.recognizer is not None and not piece.rounds:
                found += [
                    Finding(start, end, kind, "recognizer", _RECOGNIZED)
                    for start, end, kind in self.recognizer.find(text)
                ]
        except OverBudget:
            raise
        except Exception:
            if self.plan.on_error == "drop_leaf":
                return [Finding(0, len(text), _ERROR, "error", _REGISTERED)]
            raise
        if self._lets:
            found = [one for one in found if not self._let(text, one)]
        if self.registered:
            found += [
                Finding(start, end, kind, "registered", _REGISTERED)
                for start, end, kind in self.registered.find(text)
            ]
        return found

    def _of_rules(self, given: Text, meter: Meter) -> list[Finding]:
        prepared = given.prepared
        if prepared is None:
            if not given.concern.rules:
                return []
            prepared = Prepared(given.text, Folded(given.text))
        if prepared.found is not None and not (given.concern.rules or given.number):
            return [*prepared.found]
        return self.scanner.findings(
            prepared, given.concern, meter=meter, whole=given.whole, number=given.number
        )

    def _let(self, text: str, found: Finding) -> bool:
        """Whether the policy keeps what was found."""
        value = text[found.start : found.end]
        return (
            found.type in self._kept
            or value in self.plan.allow_values
            or any(pattern.fullmatch(value) for pattern in self._allowed)
        )


def _weight(finding: Finding) -> tuple[int, int, str]:
    """How telling it is: that of the most specific rule most, then the longest."""
    # The rule's name decides between equals, so that it does not matter who came first.
    return finding.priority, finding.end - finding.start, finding.rule


# How many characters before a hit rules, their words and their judges may look at.
_BACK: Final = 3 * CONTEXT
# Next to these, the end of a text makes no more difference than any other character.
_INERT: Final = frozenset(" \t\r\n,;\"'`<>[]{}|!?")
_LONG: Final = 48


class _Rest:
    """The hits that may come out otherwise in a piece by itself: no others will."""

    __slots__ = ("_ends", "_hits", "_scanner", "_text")

    def __init__(self, prepared: Prepared, scanner: Scanner) -> None:
        text = prepared.text
        self._text = text if prepared.folded.text is text else ""
        self._scanner = scanner
        self._hits = sorted(prepared.hits, key=itemgetter(1))
        self._ends = [end for _, end in self._hits]

    def of(self, start: int, stop: int) -> list[Hit] | None:
        """Those of a piece, in order; None: it has to be scanned for others."""
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
