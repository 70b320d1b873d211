"""Replaces findings by placeholders, so that another pass would find nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from refold.redaction.engines import IN_RUN, Hit
from refold.redaction.engines.fold import Folded
from refold.redaction.json_numbers import Quoted, quoted
from refold.redaction.learned import Learned, RegisteredAndLearned, learnable
from refold.redaction.plan import Plan, Spellings, Tagger
from refold.redaction.scanner import (
    CONTEXT,
    FAST,
    NO_KEY_CONTEXT,
    Finding,
    KeyContext,
    Prepared,
    Scanner,
    has_run,
    overlapping,
)
from refold.redaction.types import UNSCANNED, Placeholders
from refold.redaction.values import (
    Meter,
    OverBudget,
    OverTime,
    RedactionError,
    Tally,
)

# Only a text made for it still has findings after so many rounds.
_ROUNDS: Final = 8
# The priorities of registered values and of a recognizer's, next to those of rules.
_REGISTERED: Final = 1000
_RECOGNIZED: Final = 10
# The rule of findings that are registered values, or secrets of the session.
_BY_REGISTERED: Final = "registered"
_ERROR: Final = "ERROR"
# A name and its value are tied together by one of these characters.
_TIES: Final = frozenset("=:：＝ \t\n\"'`>|,;(@%是为は는은")
# Types whose values are tied to names.  Values of other types end by their own form.
_TIED: Final = frozenset({"SECRET", "API_KEY", "AUTH_TOKEN", "JWT", "PASSWORD_HASH"})
# A text right after a placeholder that may continue its value, and the characters that
# never do.
_CONTINUES: Final = re.compile(r"[^\s\"'`,;:=()\[\]{}<>|&\\]{4,256}")
_DIVIDES: Final = frozenset(" \t\r\n\"'`,;:=()[]{}<>|&\\")
# From the third round on, steps count this many times: only texts made for it need it.
_AGAIN: Final = 4
_BEGIN_NUMBERS: Final = frozenset("-0123456789")
# The steps for one placeholder with the look around it, and for a look right after it.
_PLACED: Final = 8
_BEHIND: Final = 64


class Finds(Protocol):
    """Another source of findings than rules: registered values, a user's model."""

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """(start, end, type) of each value in ``text``."""


class Text(NamedTuple):
    """A text to redact.

    prepared:    the scanner's result; None if nothing in the text triggers a rule.
    key_context: the rules for which its key is context.
    whole:       nothing else stands under its key.
    number:      it is the digits of an integer.
    """

    text: str
    prepared: Prepared | None = None
    key_context: KeyContext = NO_KEY_CONTEXT
    whole: bool = True
    number: bool = False


@dataclass(slots=True)
class _Account:
    """The progress of one whole text.

    index: its place among the texts that are redacted together.
    over:  it took too many steps.
    tally: its findings so far.
    clean: parts between its findings that have none.  In lists and tables, the same
           part stands between most findings.
    """

    index: int
    meter: Meter
    tag: Tagger | None
    over: bool = False
    tally: Tally = field(default_factory=Tally)
    clean: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Piece:
    """A part of a text, and the parts into which it was divided.

    rounds: how often the text around it was divided before.
    first:  the text begins with it.
    """

    source: Text
    account: _Account
    rounds: int = 0
    first: bool = True
    parts: list[_Piece | str] | None = None

    def __str__(self) -> str:
        if self.parts is None:
            return self.source.text
        return "".join(map(str, self.parts))


class Settler:
    """Redacts texts by a plan.  It holds no text: threads may share it."""

    def __init__(
        self,
        plan: Plan,
        scanner: Scanner,
        registered: Finds | None = None,
        recognizer: Finds | None = None,
    ) -> None:
        self.plan = plan
        self.scanner = scanner
        self.registered = registered
        self.recognizer = recognizer
        self.placeholders = Placeholders(plan.labels, plan.numbered_types)
        self._tied_marks = self._marks_of_tied()
        # Keys without findings that give no context, such as the fields of events.
        self.quiet: set[str] = set()
        self._kept = {kind for kind, action in plan.actions.items() if action == "keep"}
        self._dropping = {
            kind for kind, action in plan.actions.items() if action == "drop_leaf"
        }
        self._allowed = [re.compile(pattern) for pattern in plan.allow_patterns]
        self._allows_some = bool(self._kept or plan.allow_values or self._allowed)

    def learning(self, learned: Learned) -> Settler:
        """This settler, which also finds the secrets of a session."""
        settler = copy(self)
        settler.registered = learned
        if self.registered:
            settler.registered = RegisteredAndLearned(self.registered, learned)
        return settler

    def _marks_of_tied(self) -> tuple[str, ...]:
        """The beginnings of placeholders of types that are tied to names."""
        marks: list[str] = []
        for kind in sorted(_TIED):
            marks.append(self.placeholders.of(kind)[:-1])
            if self.plan.numbered:
                marks.append(f"[{kind}_")
                marks.append(f"[~{kind}_")
        return tuple(marks)

    def stub(self, text: str) -> tuple[str, Tally] | None:
        """The stub for a text over the limit of bytes; None within the limit.

        Raises RedactionError if the plan refuses such texts.
        """
        limit = self.plan.max_leaf_bytes
        if len(text) * 4 <= limit or len(text.encode(errors="replace")) <= limit:
            return None
        if self.plan.over_budget == "refuse":
            raise RedactionError(f"a text is over the policy's limit of {limit} bytes")
        return self._unscanned(text)

    def _unscanned(self, text: str) -> tuple[str, Tally]:
        return self.placeholders.unscanned(text), Tally({UNSCANNED: 1}, {"budget": 1})

    def settle(
        self, texts: Sequence[Text], tag: Tagger | None, whole: Meter | None = None
    ) -> list[tuple[str, Tally]]:
        """Each of ``texts`` redacted, with its tally.

        Placeholders divide a text.  Each piece is redacted by itself, and so are the
        pieces between the new placeholders, until no piece has a finding.

        whole: the meter of the value that holds them.

        Raises OverBudget, OverTime.
        """
        roots: list[_Piece] = []
        pending: list[_Piece] = []
        for index, text in enumerate(texts):
            meter = self.scanner.meter(text.text, whole)
            if text.prepared is not None and not text.key_context.rules:
                meter.spent = text.prepared.spent
            root = _Piece(text, _Account(index, meter, tag))
            roots.append(root)
            if self.placeholders.within(text.text):
                pending += self._divided(root)
            else:
                pending += self._redacted(root)
        while pending := self._scanned(pending):
            remaining: list[_Piece] = []
            for piece in pending:
                remaining += self._redacted(piece)
            pending = remaining
        return [self._result(root) for root in roots]

    def file(
        self, text: str, declared: str | None = None, whole: Meter | None = None
    ) -> tuple[str, Tally] | None:
        """The file that ``text`` is, without its findings; None if it is no file.

        A placeholder stands for a file that cannot be cleaned.

        declared: the type that the place of the text declares.
        whole:    the meter of the value that holds it.

        Raises OverBudget, OverTime.
        """
        # Few events have files.
        from refold.redaction.files import search_file

        if whole is not None:
            whole.add(len(text) // FAST)
            whole.check_time()
        cleans = self.plan.files == "clean"
        search = partial(self._tallies, whole=whole)
        verdict = search_file(text, declared, search, cleans=cleans)
        if verdict is None:
            return None
        clean = verdict.text
        if clean is None:
            clean = self.placeholders.of(next(iter(verdict.tally.types)))
        return clean, verdict.tally

    def _tallies(self, texts: Sequence[str], whole: Meter | None = None) -> list[Tally]:
        """Return the findings in each of ``texts``, without tags.

        Raises OverBudget, OverTime.
        """
        prepared = self.scanner.survey(texts, whole)
        jobs = [Text(text, prepared.get(index)) for index, text in enumerate(texts)]
        results = self.settle(jobs, None, whole)
        tallies: list[Tally] = []
        for text, (clean, tally) in zip(texts, results, strict=True):
            tallies.append(Tally() if clean == text else tally)
        return tallies

    def _redacted(self, piece: _Piece) -> Sequence[_Piece]:
        """Redact ``piece`` once; return the pieces of it that still need redaction."""
        account = piece.account
        if account.over:
            return ()
        try:
            account.meter.spend(1)
            if piece.rounds and piece.source.text in account.clean:
                return ()
            findings = self._findings(piece)
            if findings:
                return self._replaced(piece, findings)
            if piece.rounds:
                account.clean.add(piece.source.text)
            return ()
        except OverBudget:
            if self.plan.over_budget == "refuse":
                raise OverBudget(index=account.index) from None
        account.over = True
        return ()

    def _result(self, root: _Piece) -> tuple[str, Tally]:
        text = root.source.text
        tally = root.account.tally
        if root.account.over:
            return self._unscanned(text)
        for kind in self._dropping:
            if kind in tally.types:
                return self.placeholders.of(kind), tally
        clean = str(root)
        # An unchanged text is returned itself.
        return text if clean == text else clean, tally

    def _divided(self, root: _Piece) -> list[_Piece]:
        """The pieces of a text between the placeholders that it already has."""
        pieces = self.placeholders.pieces(root.source.text)
        whole = len(pieces) == 1 and root.source.whole
        root.parts = []
        unsettled: list[_Piece] = []
        for index, (text, is_placeholder) in enumerate(pieces):
            if is_placeholder:
                root.parts.append(text)
                continue
            before = self._before_placeholder(pieces, index)
            if before is not None:
                more = self._continued(before, text, root)
                if more:
                    root.parts.append(self._placeholder(root, more, text[: more.end]))
                    text = text[more.end :]
            source = root.source._replace(text=text, prepared=None, whole=whole)
            piece = _Piece(source, root.account, first=index == 0)
            root.parts.append(piece)
            unsettled.append(piece)
        return unsettled

    def _before_placeholder(
        self, pieces: Sequence[tuple[str, bool]], index: int
    ) -> str | None:
        """The text before the placeholder that stands right before a piece.

        None if there is no placeholder of a tied type.  After several placeholders in
        a row it is None too, because they may be values of their own.
        """
        if index == 0 or not pieces[index - 1][0].startswith(self._tied_marks):
            return None
        if index == 1:
            return ""
        before, is_placeholder = pieces[index - 2]
        return None if is_placeholder else before

    def _placeholder(
        self, piece: _Piece, finding: Finding, value: str, number: Quoted | None = None
    ) -> str:
        """The placeholder for ``value``; the finding is added to the tally.

        number: the value is a number of JSON in a text, which becomes a string.
        """
        account = piece.account
        tag = account.tag(finding.type, value) if account.tag else ""
        if number is not None and hasattr(account.tag, "respelled"):
            spellings = cast(Spellings, account.tag)
            tag = spellings.respelled(tag, value, is_number=True)
        account.tally.add(finding.type, finding.rule)
        if finding.rule != _BY_REGISTERED and learnable(finding.type, value):
            account.tally.secrets.append((finding.type, value))
        placeholder = self.placeholders.of(finding.type, tag)
        return number.quote + placeholder + number.quote if number else placeholder

    def _continued(self, before: str, text: str, piece: _Piece) -> Finding | None:
        """The value at the start of ``text`` that would be found after ``before``.

        A placeholder stands between the two texts.  A second pass sees only the
        placeholder, so the rest of its value must be redacted in the first.
        """
        if before and before[-1] not in _TIES:
            return None  # no name is tied to the value there
        meter = piece.account.meter
        match = _CONTINUES.match(text)
        if not match or meter.spent > meter.limit:
            return None
        meter.add(_BEHIND)
        value = match.group()
        context = before[-CONTEXT:]
        start = len(context)
        finding = self._found_at(f"{context}{value}", start, piece.source)
        if finding is None:
            return None
        alone = self.scanner.look(value)
        if alone:
            # A value that is found without context is replaced by itself, later.
            starts = [finding.start for finding in alone.findings or ()]
            end = min(starts, default=len(value))
            finding = self._found_at(f"{context}{value[:end]}", start, piece.source)
            if finding is None:
                return None
        return finding._replace(start=0, end=finding.end - start)

    def _found_at(self, text: str, start: int, source: Text) -> Finding | None:
        """Return the finding in ``text`` that begins at ``start``; None without one."""
        prepared = self.scanner.look(text) or Prepared(text, Folded(text))
        key_context = NO_KEY_CONTEXT if start else source.key_context
        for finding in self.scanner.findings(prepared, key_context, whole=not start):
            if finding.start == start and not self._is_allowed(text, finding):
                return finding
        return None

    def _scanned(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Scan the pieces together; return those that may have findings."""
        unscanned = [piece for piece in pieces if piece.source.prepared is None]
        if not unscanned:
            return list(pieces)
        prepared = self.scanner.survey([piece.source.text for piece in unscanned])
        ready = [piece for piece in pieces if piece.source.prepared is not None]
        for index, piece in enumerate(unscanned):
            scanned = prepared.get(index)
            steps = len(piece.source.text) // FAST
            if scanned is not None:
                steps += scanned.spent
            if piece.rounds >= 2:
                steps *= _AGAIN
            piece.account.meter.add(steps)
            if scanned is not None or piece.source.key_context.rules or self.finds_more:
                piece.source = piece.source._replace(prepared=scanned)
                ready.append(piece)
        return ready

    @property
    def finds_more(self) -> bool:
        """Whether there are registered values or a recognizer."""
        return bool(self.registered) or self.recognizer is not None

    def finds_more_in(self, texts: Iterable[str]) -> bool:
        """Whether registered values or a recognizer may find something in ``texts``."""
        if self.recognizer is not None:
            return True
        if not self.registered:
            return False
        clean = getattr(self.registered, "clean", None)
        return clean is None or not clean(texts)

    def _replaced(self, piece: _Piece, findings: Sequence[Finding]) -> list[_Piece]:
        """Replace the findings; return the pieces between them that may have more."""
        source = piece.source
        text = source.text
        # Findings that overlap are replaced together; the weightiest gives the type.
        extents = [
            (start, stop, max(group, key=_weight))
            for start, stop, group in overlapping(findings)
        ]
        piece.account.meter.spend(_PLACED * len(extents))
        if piece.rounds == _ROUNDS:
            extents = [(0, len(text), extents[0][2])]
        rest = None
        if source.prepared is not None:
            rest = _Rest(source.prepared, self.scanner)
        piece.parts = []
        unsettled: list[_Piece] = []
        end = 0
        # The text before the last placeholder, if its value is tied to a name there.
        before: str | None = None
        number: Quoted | None = None
        for start, stop, finding in (*extents, (len(text), len(text), None)):
            if finding is not None and text[start] in _BEGIN_NUMBERS:
                number = quoted(text, start, stop, number)
            else:
                number = None
            if number is not None:
                start = max(end, number.start)
            if before is not None and end < start and text[end] not in _DIVIDES:
                more = self._continued(before, text[end:start], piece)
                if more:
                    value = text[end : end + more.end]
                    piece.parts.append(self._placeholder(piece, more, value))
                    end += more.end
            between = self._between(source, rest, end, start)
            if isinstance(between, str):
                piece.parts.append(between)
            else:
                first = piece.first and end == 0
                part = _Piece(between, piece.account, piece.rounds + 1, first=first)
                unsettled.append(part)
                piece.parts.append(part)
            if finding is not None:
                value = text[start:stop]
                piece.parts.append(self._placeholder(piece, finding, value, number))
                # Of several placeholders in a row, none is tied to a name.  At the
                # start of the text, its key is the name.
                alone = piece.first if start == 0 else start > end
                before = None
                if alone and finding.type in _TIED:
                    before = text[max(0, end, start - CONTEXT) : start]
            end = stop
        return unsettled

    def _between(
        self, source: Text, rest: _Rest | None, start: int, stop: int
    ) -> Text | str:
        """The part between two findings, with the hits in it that must be judged again.

        A part that can have no finding is returned as a string.
        """
        text = source.text[start:stop]
        if not text or text.isspace():
            return text
        hits = None
        if rest:
            hits = rest.hits_between(text, start, stop)
        if hits is None:
            prepared = None
        elif hits or source.key_context.rules or self.finds_more:
            prepared = Prepared(text, Folded(text), hits)
        else:
            return text
        return Text(text, prepared, source.key_context, False, source.number)

    def _findings(self, piece: _Piece) -> list[Finding]:
        """The findings of rules, registered values and the recognizer in ``piece``."""
        account = piece.account
        text = piece.source.text
        if self.finds_more:
            account.meter.spend(len(text) // FAST)
        try:
            findings = self._of_rules(piece.source, account.meter)
            if self.recognizer is not None and not piece.rounds:
                for start, end, kind in self.recognizer.find(text):
                    findings.append(
                        Finding(start, end, kind, "recognizer", _RECOGNIZED)
                    )
        except (OverBudget, OverTime):
            raise
        except Exception:
            if self.plan.on_error == "drop_leaf":
                return [Finding(0, len(text), _ERROR, "error", _REGISTERED)]
            raise
        if self._allows_some:
            findings = [
                finding for finding in findings if not self._is_allowed(text, finding)
            ]
        if self.registered:
            for start, end, kind in self.registered.find(text):
                findings.append(Finding(start, end, kind, _BY_REGISTERED, _REGISTERED))
        return findings

    def _of_rules(self, source: Text, meter: Meter) -> list[Finding]:
        prepared = source.prepared
        if prepared is None:
            if not source.key_context.rules:
                return []
            prepared = Prepared(source.text, Folded(source.text))
        if prepared.findings is not None and not (
            source.key_context.rules or source.number
        ):
            return [*prepared.findings]
        findings = self.scanner.findings(
            prepared,
            source.key_context,
            meter=meter,
            whole=source.whole,
            number=source.number,
        )
        for finding in prepared.findings or ():
            # Some findings follow from the object around a text, not from the text.
            if finding.rule in self.scanner.of_objects and finding not in findings:
                findings.append(finding)
        return findings

    def _is_allowed(self, text: str, finding: Finding) -> bool:
        """Whether the plan keeps the value that was found."""
        if finding.type in self._kept:
            return True
        value = text[finding.start : finding.end]
        if value in self.plan.allow_values:
            return True
        return any(pattern.fullmatch(value) for pattern in self._allowed)


def _weight(finding: Finding) -> tuple[int, int, str]:
    """The weight of a finding: its rule's priority, then its length."""
    # The rule's name decides between equals, so that their order does not matter.
    return finding.priority, finding.end - finding.start, finding.rule


# How many characters before a hit rules, their words and their checks may look at.
_BACK: Final = 3 * CONTEXT
# Next to these characters, the end of a text is like any other character.
_INERT: Final = frozenset(" \t\r\n,;\"'`<>[]{}|!?")
_LONG: Final = 48
# Parts of up to so many characters are remembered with their hits.
_SHORT: Final = 48


class _Rest:
    """The hits of a text whose findings may change in a part of it."""

    __slots__ = ("_ends", "_hits", "_of_short", "_scanner", "_text")

    def __init__(self, prepared: Prepared, scanner: Scanner) -> None:
        text = prepared.text
        self._text = text if prepared.folded.text is text else ""
        self._scanner = scanner
        self._hits = prepared.hits
        self._ends = [end for _, end in self._hits]
        # By short part: its hits.
        self._of_short: dict[str, list[Hit] | None] = {}

    def hits_between(self, part: str, start: int, stop: int) -> list[Hit] | None:
        """The hits in ``part``, which stands between two findings, as ``hits`` says.

        In lists and tables, the same short part stands between most findings.
        """
        if start == 0 or stop == len(self._text) or stop - start > _SHORT:
            return self.hits(start, stop)
        if part not in self._of_short:
            self._of_short[part] = self.hits(start, stop)
        return self._of_short[part]

    def hits(self, start: int, stop: int) -> list[Hit] | None:
        """The hits in a part, in order.  None if the part must be scanned again."""
        text = self._text
        scanner = self._scanner
        first = start == 0
        last = stop == len(text)
        if not text:
            return None
        if not first and not _is_inert(text, start, start, min(stop, start + _LONG)):
            return None
        if not last and not _is_inert(text, stop - 1, max(start, stop - _LONG), stop):
            return None
        lengths = scanner.lengths
        reach = scanner.reach
        ahead = scanner.ahead
        begin = bisect_right(self._ends, start)
        limit = bisect_right(self._ends, stop + scanner.furthest, begin)
        hits: list[Hit] = []
        has_digits: bool | None = None  # not known
        for number, end in self._hits[begin:limit]:
            length = lengths[number]
            if length:
                if end - length < start or end > stop:
                    continue
            elif end - reach[number] > stop:
                continue
            else:
                # Shapes only lead to rules in runs of digits.
                if has_digits is None:
                    has_digits = has_run(text, start, stop)
                if not has_digits:
                    continue
            near_start = not first and end - start < _BACK
            near_stop = not last and end + ahead[number] > stop
            if near_start or near_stop:
                hits.append((number, min(end, stop) - start))
        return hits


def _is_inert(text: str, place: int, start: int, stop: int) -> bool:
    """Whether a cut at ``place`` cannot let a new value begin or end there.

    ``start`` and ``stop`` bound the characters of the part next to the cut.
    """
    character = text[place]
    if character <= "\x7f" and character not in _INERT:
        return False
    # A run of digits that is longer than this may be another run when it is cut.
    return stop - start < _LONG or bool(text[start:stop].strip(IN_RUN))
