"""What rules find in texts: an engine names the places, patterns judge them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from refold.redaction.checks import Candidate
from refold.redaction.engines import (
    IN_RUN,
    MANY,
    UNPAIRED,
    EngineName,
    Hit,
    Trigger,
    engine_of,
    run_end,
    run_start,
    spoken,
    spoken_after,
)
from refold.redaction.engines.fold import TELLING, Folded, fold
from refold.redaction.engines.patterns import holds_space, needed, reach
from refold.redaction.rules.rule import Rule
from refold.redaction.values import Meter

# How far before its value a word of its context may begin, in characters.
CONTEXT: Final = 64
# How far before a literal of the gate a pattern of context may begin.
WORD: Final = 16
# How far a value may reach around its run of digits.
LEAD, TRAIL = 12, 24
# What may stand between a word and the value it speaks of.
_LINK = (
    r"[0-9]?(?:[\s:：=＝是为\"'`*#_\-–—.?？()+>~/\\|]|(?<![\"'\]}0-9])[,，]"
    r"|(?i:number|num|no|nr|is|was|at|on|to|me|us|home|work|office|value)|号码?|编号){0,24}"
    r"[0-9]?"
)
_LINKING = " \t\r\n:：=＝是为\"'`*#_-–—.?？()+>~/\\|,，"
# A word that ends a key, or a text that names what stands beside it, as JSON has it.
_NEAR = 24
# Of more words, one expression takes an engine many times as long.
_TOGETHER: Final = 16
_NEAR_QUOTE = rf'[^"]{{0,{_NEAR}}}"'
# Of letters, only these and not their other case.
TELLING_TRIGGERS: Final = tuple(Trigger(shape=f"(?-i:{one})") for one in TELLING)


class Compiled(NamedTuple):
    """A rule, ready to run; ``number`` is its place among the rules of a scanner."""

    number: int
    rule: Rule
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None
    context: re.Pattern[str] | None
    # Whether what stands before a literal begins after the last space there.
    one_word: bool = False
    # Each context holds one of these, in lower case; empty: nothing is known.
    words: tuple[str, ...] = ()
    # A word of the gate near the end of a key in lower case; None: any key may do.
    ends: re.Pattern[str] | None = None

    def speaks(self, key: str, lower: str) -> bool:
        """Whether ``key``, in lower case too, is context for what is under it."""
        near = self.ends is None or self.ends.search(lower)
        return bool(near and self.context and self.context.search(key))


def compiled(number: int, rule: Rule) -> Compiled:
    """``rule`` with its patterns compiled."""
    return Compiled(
        number,
        rule,
        re.compile(rule.pattern),
        re.compile(rf"(?:{rule.before})\Z") if rule.before else None,
        re.compile(rf"(?:{rule.context}){_LINK}\Z") if rule.context else None,
        bool(rule.before) and not holds_space(rule.before),
        needed(rule.context) if rule.context else (),
        None if rule.at == "gate" else _ending(rule.gate),
    )


def _ending(words: Iterable[str]) -> re.Pattern[str]:
    """One of ``words`` in lower case near the end of a text."""
    any_word = "|".join(map(re.escape, words)) or r"(?!)"
    return re.compile(rf"(?:{any_word})(?=.{{0,{_NEAR}}}\Z)", re.DOTALL)


def triggers(rules: Sequence[Compiled]) -> dict[Trigger, list[Compiled]]:
    """What to look for, and the rules that each of it may make find something.

    A text in which there is nothing of it is clean under any key.
    """
    found: dict[Trigger, list[Compiled]] = {trigger: [] for trigger in TELLING_TRIGGERS}
    # Words of keys; those in ASCII apart, as engines look for them faster.
    keys: dict[tuple[bool, int], dict[str, None]] = {}
    shapes: dict[tuple[str, int], list[Compiled]] = {}
    for ready in rules:
        rule = ready.rule
        if rule.at == "digits" and rule.gate:
            for word in rule.gate:
                found.setdefault(spoken(word), []).append(ready)
                if not rule.context:
                    found.setdefault(spoken_after(word), []).append(ready)
        elif rule.at == "digits":
            # How digits look that may be a value, and how many there are at least.
            least = max(rule.digits, 6)
            shape = rule.shape or rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{least - 1}}}"
            shapes.setdefault((shape, least), []).append(ready)
        elif rule.at == "gate":
            for literal in rule.gate:
                trigger = Trigger(literal, rule.lead, rule.then)
                found.setdefault(trigger, []).append(ready)
        # Where there is a literal, the value itself is a hit.
        if rule.at == "leaf" or (rule.at == "digits" and rule.context and rule.in_keys):
            run = MANY if rule.at == "digits" and rule.digits >= MANY else 0
            for word in rule.gate:
                keys.setdefault((word.isascii(), run), {})[re.escape(word)] = None
    for (shape, least), alike in shapes.items():
        found[Trigger(shape=shape, run=least)] = alike
    for (_, run), words in keys.items():
        several = [*words]
        for first in range(0, len(several), _TOGETHER):
            some = several[first : first + _TOGETHER]
            near = rf"(?:{'|'.join(some)}){_NEAR_QUOTE}"
            found[Trigger(shape=near, run=run, key=True)] = []
    return found


_RUN = re.compile(r"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
_DIGITS = "0123456789"
# So many hits are looked at by themselves.
_FEW = 96
_CODES, _COLON = frozenset(_DIGITS.encode()), ord(":")
# How far from the end of its shape the digits of a value with letters may be.
_SEEN = 48


class Runs:
    """Runs of six or more digits, with up to three separators between two."""

    __slots__ = ("_final", "_first", "_spans", "_stops", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        # Those of a part of the text, which grows where there are many hits.
        self._first, self._final = 0, -1
        self._spans: list[tuple[int, int]] = []
        self._stops: list[int] = []

    def at(self, end: int) -> Iterator[tuple[int, int]]:
        """The run around the last digit before ``end``, if that is one."""
        text = self._text
        end = min(end, len(text))
        for place in range(end, max(0, end - 16), -1):
            if text[place - 1] in _DIGITS:
                return self._within(place - 1, place)
        return iter(())

    def near(self, end: int) -> Iterator[tuple[int, int]]:
        """The runs that a value with letters may have which is seen to end there."""
        return self._within(max(0, end - _SEEN), min(len(self._text), end + _SEEN))

    def _within(self, first: int, final: int) -> Iterator[tuple[int, int]]:
        if not self._first <= first <= final <= self._final:
            self._look(first, final)
        spans = self._spans
        for index in range(bisect_right(self._stops, first), len(spans)):
            if spans[index][0] >= final:
                return
            yield spans[index]

    def _look(self, first: int, final: int) -> None:
        text, goes_on = self._text, self._first <= first <= self._final
        further = first + 2 * (self._final - self._first) if goes_on else 0
        self._first = run_start(text, first, IN_RUN)
        self._final = run_end(text, min(len(text), max(final, further)), IN_RUN)
        runs = _RUN.finditer(text, self._first, self._final)
        self._spans = [run.span() for run in runs]
        self._stops = [stop for _, stop in self._spans]

    def all(self) -> Iterator[tuple[int, int]]:
        """Every run."""
        return (match.span() for match in _RUN.finditer(self._text))


# The triggers that say that a text must be folded come first.
_TELLING = len(TELLING_TRIGGERS)
# What of a shape is no letter of the value: escapes of JSON, refused ones, classes.
_NO_LETTER = re.compile(r"\\\\\[nrtbf\]|\[\^[^\]]*\]|\\.")
# What a judge takes, and how many characters a pattern passes over in one step.
_JUDGED, FAST, _FASTER = 6, 64, 256
# So many steps any text may take, however short, and one without a budget.
_FLOOR: Final = 1024
_UNLIMITED: Final = 1 << 62
# An extent begins with its start and its end.
_Extent = TypeVar("_Extent", bound=tuple[Any, ...])
# So many keys are remembered with the rules that they concern.
_REMEMBERED = 4096


class Finding(NamedTuple):
    """An extent of a text that must go, and why."""

    start: int
    end: int
    type: str
    rule: str
    priority: int = 0


def overlapping(
    extents: Iterable[_Extent],
) -> Iterator[tuple[int, int, list[_Extent]]]:
    """Groups of extents that overlap: (start, end, group), in order and disjoint."""
    group: list[_Extent] = []
    end = 0
    for extent in sorted(extents, key=itemgetter(0, 1)):
        if group and extent[0] >= end:
            yield group[0][0], end, group
            group = []
        group.append(extent)
        end = max(end, extent[1])
    if group:
        yield group[0][0], end, group


class Concern(NamedTuple):
    """The rules that a key gives context to."""

    rules: tuple[Compiled, ...] = ()
    numbers: frozenset[int] = frozenset()


NO_CONCERN: Final = Concern()


class Prepared(NamedTuple):
    """A text as rules see it, with the places where something may be found in it.

    found: what is found there under a key that says nothing; None: it was not judged,
           (): nothing is, and nothing divides it.
    spent: how many steps that took.
    """

    text: str
    folded: Folded
    hits: Sequence[Hit] = ()
    found: Sequence[Finding] | None = None
    spent: int = 0


class Scanner:
    """Rules over an engine.  It holds no text: threads may share it."""

    def __init__(
        self,
        rules: Sequence[Rule],
        engine: EngineName = "auto",
        min_score: float = 0.6,
        work_per_kb: int = 0,
    ) -> None:
        self.rules = tuple(compiled(number, rule) for number, rule in enumerate(rules))
        found = triggers(self.rules)
        self._triggers = tuple(found)
        ranked = sorted(self.rules, key=lambda c: (-c.rule.priority, c.rule.id))
        self._rank = {c.number: rank for rank, c in enumerate(ranked)}
        self._around = [_around(t) for t in self._triggers]
        # By trigger: its rules, its literal, and how far before a hit that may begin.
        self._judges = [
            (rules, t.literal, t.reach if t.then else 0) for t, rules in found.items()
        ]
        # Triggers of values that a key may give context to.
        self._keyed = frozenset(
            number
            for number, ready in enumerate(found.values())
            if any(
                c.rule.at == "gate" and c.rule.context and c.rule.in_keys for c in ready
            )
        )
        # By trigger: how far before its end it may begin, how far after it rules look.
        self.reach = tuple(t.reach for t in self._triggers)
        self.ahead = tuple(
            max((reach(one.rule.pattern) + TRAIL for one in rules), default=0)
            + 4 * CONTEXT
            for rules in found.values()
        )
        self.furthest = max(self.reach, default=0)
        self._min_score = min_score
        self._work_per_kb = work_per_kb
        self._floor = _FLOOR if work_per_kb else _UNLIMITED
        self._engine = engine_of(engine, self._triggers)
        self._with_context = [c for c in self.rules if c.context and c.rule.in_keys]
        # A word in a key without which only the rules that take any may be concerned.
        words = {w for c in self._with_context if c.ends for w in c.rule.gate}
        self._in_keys = _ending(sorted(words))
        self._of_any_key = [c for c in self._with_context if not c.ends]
        self._known = lru_cache(_REMEMBERED)(self._concern)
        self._halves = [
            (f'{word[:place]}"'.encode(), f'"{word[place + 1 :]}'.encode())
            for ready in self._with_context
            for word in ready.rule.gate
            for place, character in enumerate(word)
            if character == " "
        ]
        # Programs whose arguments may be strings of an array: the first words of them.
        of_list = [gate for c in self.rules if c.rule.of_list for gate in c.rule.gate]
        self._programs = {f'{gate.split()[0]}"'.encode() for gate in of_list}

    @property
    def engine(self) -> str:
        """The name of the engine and its version."""
        return self._engine.name

    def meter(self, text: str) -> Meter:
        """What counts the steps that ``text`` takes, up to what it may take."""
        return Meter(self._floor + (self._work_per_kb * len(text) >> 10))

    @property
    def gates(self) -> bool:
        """Whether ``proves_clean`` is worth asking before anything else."""
        return self._engine.gates

    def clean(self, text: str) -> bool:
        """Whether nothing can be found in a ``text`` or in JSON, with its keys."""
        return self._in_json(text.encode(errors=UNPAIRED)) == []

    def proves_clean(self, data: bytes) -> bool:
        """Whether nothing is found in ``data``, compact JSON.

        Each hit is judged in its string; False is no proof of the contrary.
        """
        hits = self._in_json(data)
        if b'","-' in data and any(program in data for program in self._programs):
            return False  # it may be a command, each word of it a string of its own
        if not hits or len(hits) > _FEW or b"\\" in data:
            return hits == []
        lower = data.lower()
        if any(before in lower and after in lower for before, after in self._halves):
            return False  # two keys together may say what neither says by itself
        judged = set()
        for number, end in hits:
            place = min(end - 2, len(data) - 1)  # of the last byte of what was hit
            if number in self._keyed:
                return False  # its key may say what it is
            if data.count(b'"', 0, place) % 2 == 0:
                if any(code in _CODES for code in data[max(0, place - 1) : place + 1]):
                    return False  # a number
                continue
            start = data.rfind(b'"', 0, place) + 1
            if start in judged:
                continue
            judged.add(start)
            stop = data.find(b'"', place)
            if data[stop + 1] == _COLON or not self._holds_nothing(data[start:stop]):
                return False
        return True

    def _in_json(self, data: bytes) -> list[Hit] | None:
        return self._engine.in_json(b"\n%b\n" % data)

    def _holds_nothing(self, string: bytes) -> bool:
        """Whether nothing is found in a string under a key that says nothing."""
        if b"[" in string or string[:1] in b"{ ":
            return False  # a placeholder, or JSON
        prepared = self.look(string.decode())
        return prepared is None or prepared.found == ()

    def concern(self, key: str, said: str = "") -> Concern:
        """The rules for which ``key``, or what is ``said`` of all, is context."""
        if said:
            own, more = self.concern(key), self.concern(said)
            others = [c for c in more.rules if c.number not in own.numbers]
            return Concern((*own.rules, *others), own.numbers | more.numbers)
        return self._known(key) if len(key) <= CONTEXT else self._concern(key)

    def _concern(self, key: str) -> Concern:
        # Context reaches no further, and keys may be long.
        near = fold(key).text[-2 * CONTEXT :]
        lower = near.lower()
        named = self._in_keys.search(lower)
        asked = self._with_context if named else self._of_any_key
        rules = tuple(c for c in asked if c.speaks(near, lower))
        return Concern(rules, frozenset(c.number for c in rules))

    def survey(self, texts: Sequence[str]) -> dict[int, Prepared]:
        """Scan all ``texts`` at once: those in which something may be found."""
        if len(texts) == 1:
            prepared = self.look(texts[0])
            return {} if prepared is None else {0: prepared}
        found: dict[int, Prepared | None] = {}
        folded: dict[int, Folded] = {}
        for index, hits in self._hits(texts):
            if told := [end for number, end in hits if number < _TELLING]:
                folded[index] = fold(texts[index], told=told)
            else:
                found[index] = self._judged(texts[index], Folded(texts[index]), hits)
        again = dict(self._hits([one.text for one in folded.values()]))
        for place, (index, one) in enumerate(folded.items()):
            found[index] = self._judged(texts[index], one, again.get(place, ()))
        return {index: one for index, one in found.items() if one is not None}

    def stirs(self, text: str) -> bool:
        """Whether anything in ``text`` triggers a rule, whatever may follow it."""
        return bool(self._placed(text))

    def _placed(self, text: str) -> list[Hit]:
        """What is in ``text``, and where it ends, in characters."""
        data = text.encode(errors=UNPAIRED)
        hits = self._engine.scan(b"\n%b\n" % data)
        return _in_characters(data, hits) if hits else hits

    def look(self, text: str) -> Prepared | None:
        """Scan one text, as ``survey`` does."""
        hits = self._placed(text)
        if not hits:
            return None
        told = [end for number, end in hits if number < _TELLING]
        if not told:
            return self._judged(text, Folded(text), hits)
        folded = fold(text, told=told)
        return self._judged(text, folded, self._placed(folded.text))

    def _judged(
        self, text: str, folded: Folded, hits: Sequence[Hit]
    ) -> Prepared | None:
        """The text with what is found in it under a key that says nothing.

        None: no rule matches at any of these places, whatever a key says.  That is how
        most hits end: a word is there, and no value behind it.
        """
        # Between placeholders, pieces are texts of their own.
        plain = folded.text is text and "[" not in text
        prepared, meter = Prepared(text, folded, hits), self.meter(text)
        try:
            anchored, runs = self._anchored(prepared, NO_CONCERN, meter, whole=False)
            if plain and not (anchored or runs):
                return None
            found: Sequence[Finding] = self._found(prepared, anchored, runs, meter)
        except Exception:
            # Who settles it knows what an error means.
            return prepared._replace(spent=meter.spent)
        found = found or (() if plain else [])
        return Prepared(text, folded, hits, found, meter.spent)

    def _hits(self, texts: Sequence[str]) -> Iterator[tuple[int, list[Hit]]]:
        """(index of a text, what is in it, and where it ends) for those with any."""
        if not texts:
            return
        placed = self._placed("\n".join(texts))
        if not placed:
            return
        ends = list(accumulate([len(text) + 1 for text in texts]))
        by_text: dict[int, list[Hit]] = {}
        last = len(texts) - 1
        for number, end in placed:
            index = min(bisect_left(ends, end), last)
            start = ends[index] - len(texts[index]) - 1
            hit = (number, min(end - start, len(texts[index])))
            by_text.setdefault(index, []).append(hit)
            reach = self._judges[number][2]
            while reach and end - start < reach and index:
                # What follows a literal may be the next text: it belongs to its own.
                index -= 1
                start = ends[index] - len(texts[index]) - 1
                by_text.setdefault(index, []).append((number, len(texts[index])))
        yield from by_text.items()

    def findings(
        self,
        prepared: Prepared,
        concern: Concern = NO_CONCERN,
        *,
        meter: Meter | None = None,
        whole: bool = False,
        number: bool = False,
    ) -> list[Finding]:
        """What is in a text that stands under a key of that ``concern``.

        meter:  counts the steps; left out, the text's own.
        whole:  the text is all there is under the key.
        number: the text is an integer's, which needs context or a checksum.

        Raises OverBudget.
        """
        meter = meter or self.meter(prepared.text)
        anchored, runs = self._anchored(prepared, concern, meter, whole=whole)
        if not (anchored or runs):
            return []
        return self._found(
            prepared, anchored, runs, meter, concern.numbers, number=number
        )

    def _found(
        self,
        prepared: Prepared,
        anchored: Sequence[tuple[Compiled, Candidate]],
        runs: Mapping[tuple[int, int], Mapping[int, Compiled]],
        meter: Meter,
        numbers: frozenset[int] = frozenset(),
        *,
        number: bool = False,
    ) -> list[Finding]:
        """What of the matches and runs is a finding."""
        found: list[Finding] = []
        folded = prepared.folded

        def judged(ready: Compiled, candidate: Candidate) -> bool:
            meter.spend(_JUDGED + (candidate.end - candidate.start) // FAST)
            concerned = ready.number in numbers
            if number and not (concerned or ready.rule.certain):
                return False
            if not self._accepted(ready, candidate, concerned=concerned):
                return False
            rule = ready.rule
            start, end = folded.span(candidate.start, candidate.end)
            found.append(Finding(start, end, rule.type, rule.id, rule.priority))
            return True

        for ready, candidate in anchored:
            judged(ready, candidate)
        for run, rules in runs.items():
            # Its rules look at all of it, and a little further.
            meter.spend(_JUDGED + (run[1] - run[0]) // FAST)
            self._judge_run(folded.text, run, rules, numbers, judged)
        return found

    def _judge_run(
        self,
        text: str,
        run: tuple[int, int],
        rules: Mapping[int, Compiled],
        concerned: frozenset[int],
        judged: Callable[[Compiled, Candidate], bool],
    ) -> None:
        """Let rules judge a run of digits, until one takes all of it."""
        start, end = run
        first, last = max(0, start - LEAD), min(len(text), end + TRAIL)
        near = ""
        for number in sorted(rules, key=self._rank.__getitem__):
            ready = rules[number]
            if end - start < ready.rule.digits:
                continue
            if ready.rule.gate and number not in concerned:
                near = near or text[max(0, first - CONTEXT) : last].lower()
                if not any(map(near.__contains__, ready.rule.gate)):
                    continue
            whole = False
            for match in ready.pattern.finditer(text, first, last):
                # What ends where the look ends may be longer: it is another run's, and
                # so is what has no digit of this one.
                if match.start() >= end or match.end() <= start:
                    continue
                if match.end() < last or last == len(text):
                    a, b = match.span(ready.rule.group)
                    taken = judged(ready, Candidate(text, a, b, match))
                    whole = whole or (taken and a <= start and end <= b)
            if whole:
                return

    def _accepted(
        self, ready: Compiled, candidate: Candidate, *, concerned: bool
    ) -> bool:
        """Whether the score of ``candidate``, with its context, is enough."""
        rule = ready.rule
        score, least = rule.score, self._min_score
        if candidate.start >= candidate.end:
            return False
        # The context that it needs is a longer look than a judge's.
        needed = score < least and not concerned
        if needed and not _has_word(ready, candidate):
            return False
        if rule.validator is not None:
            verdict = rule.validator(candidate)
            if verdict is False:
                return False
            if verdict is not True:
                score += verdict
        if score >= least and not needed:
            return True
        return score + rule.boost >= least and (
            concerned or _in_context(ready, candidate)
        )

    def _anchored(
        self, prepared: Prepared, concern: Concern, meter: Meter, *, whole: bool
    ) -> tuple[
        list[tuple[Compiled, Candidate]], dict[tuple[int, int], dict[int, Compiled]]
    ]:
        """What patterns match at literals, and which rules are for which runs."""
        text = prepared.folded.text
        found: list[tuple[Compiled, Candidate]] = []
        # By run: the triggers it has, which hardly ever differ between runs.
        spoken: dict[tuple[int, int], set[int]] = {}
        runs: Runs | None = None
        seen: set[tuple[int, int]] = set()
        # By trigger: how far its literals were already looked for.
        looked: dict[int, int] = {}
        # By rule: what it has looked at of the extents of its values.
        parted: dict[int, set[int]] = {}
        judges = self._judges
        steps, left = 0, meter.limit - meter.spent
        for number, end in prepared.hits:
            rules, literal, reach = judges[number]
            if steps > left:
                break
            if not literal:
                if rules and (number, end) not in seen:
                    seen.add((number, end))
                    runs = runs or Runs(text)
                    near = runs.near(end) if self._around[number] else runs.at(end)
                    for run in near:
                        spoken.setdefault(run, set()).add(number)
                continue
            if reach:
                # Of what ended before, only the literal's beginning may still count.
                before = looked.get(number, 0)
                looked[number] = end
                if before <= end:
                    reach = min(reach, end - before + len(literal) - 1)
                places = _places(text, literal, end - reach, end)
            else:
                places = [end - len(literal)]
            for place in places:
                if place < 0 or (number, place) in seen:
                    continue
                for ready in rules:
                    if match := ready.pattern.match(text, place):
                        # Places without a match differ between engines.
                        steps += 4 + (match.end() - place) // _FASTER
                        seen.add((number, place))
                        known = parted.setdefault(ready.number, set())
                        for candidate in _of(ready, text, place, match, known):
                            found.append((ready, candidate))
        meter.spend(steps)
        alike: dict[frozenset[int], dict[int, Compiled]] = {}
        by_run: dict[tuple[int, int], dict[int, Compiled]] = {}
        for run, numbers in spoken.items():
            same = frozenset(numbers)
            if same not in alike:
                alike[same] = {c.number: c for n in same for c in judges[n][0]}
            by_run[run] = alike[same].copy() if concern.rules else alike[same]
        for ready in concern.rules:
            if ready.rule.at == "digits":
                for run in Runs(text).all():
                    by_run.setdefault(run, {})[ready.number] = ready
            elif ready.rule.at == "leaf" and whole:
                match = ready.pattern.fullmatch(text)
                if match:
                    start, end = match.span(ready.rule.group)
                    found.append((ready, Candidate(text, start, end, match)))
        return found, by_run


def _around(trigger: Trigger) -> bool:
    """Whether its digits are before a word, or apart, and not where a hit ends."""
    if trigger.word:
        return trigger == spoken_after(trigger.word)
    return bool(re.search("[A-Za-z]", _NO_LETTER.sub("", trigger.shape)))


def _in_characters(data: bytes, hits: list[Hit]) -> list[Hit]:
    """The same hits, with places in the decoded text and not in the bytes around it."""
    if data.isascii():
        return [(number, end - 1) for number, end in hits]
    placed = []
    byte = character = 0
    length = len(data)
    hits.sort(key=itemgetter(1))
    for number, end in hits:
        stop = end - 1
        while stop < length and data[stop] & 0xC0 == 0x80:
            stop -= 1
        if stop > byte:
            character += len(data[byte:stop].decode())
            byte = stop
        placed.append((number, character))
    return placed


def _places(text: str, literal: str, first: int, end: int) -> list[int]:
    """Where ``literal`` begins, from ``first`` on, so that it is before ``end``."""
    first = max(first, 0)
    window = text[first:end].lower()
    places = []
    place = window.find(literal)
    while place >= 0:
        places.append(first + place)
        place = window.find(literal, place + 1)
    return places


def _of(
    ready: Compiled, text: str, place: int, match: re.Match[str], known: set[int]
) -> Iterator[Candidate]:
    """What the pattern matched at ``place``, if what must be before it is there."""
    rule = ready.rule
    start, end = match.span(rule.group)
    if ready.before:
        first = max(0, place - rule.reach)
        if ready.one_word:
            first = max(first, text.rfind(" ", first, place) + 1)
        lead = ready.before.search(text, first, place)
        if not lead:
            return
        if "value" in ready.before.groupindex:
            start, end = lead.span("value")
        elif not rule.group:
            start = lead.start()
    spans = rule.parts(text, match, known) if rule.parts else [(start, end)]
    for start, end in spans:
        yield Candidate(text, start, end, match)


def _has_word(ready: Compiled, found: Candidate) -> bool:
    """Whether a word that the rule's context may begin with stands near the value."""
    if ready.context is None or not ready.words:
        return ready.context is not None
    near = found.text[max(0, found.start - CONTEXT) : found.start].lower()
    return any(map(near.__contains__, ready.words))


def _in_context(ready: Compiled, found: Candidate) -> bool:
    """Whether a word of the rule's context stands before the value."""
    context, text, end = ready.context, found.text, found.start
    if context is None or not _has_word(ready, found):
        return False
    start = max(0, end - CONTEXT)
    near = text[start:end].lower()
    # A number that ends the line before is no word: so stand lines of most logs.
    last = near.rstrip(_LINKING)
    if last[-2:].isdigit() and "\n" in near[len(last) :]:
        return False
    if ready.rule.at == "digits" and ready.rule.gate:
        places = [near.find(word) for word in ready.rule.gate]
        first = min((place for place in places if place >= 0), default=-1)
        if first < 0:
            return False
        # A pattern of context begins little before its word.
        start += max(0, first - WORD)
    # Most words stand right before the value.
    close = max(start, end - WORD)
    return bool(context.search(text, close, end) or context.search(text, start, end))
