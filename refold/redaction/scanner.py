"""Finds what rules match in texts: an engine names the places, patterns judge them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from refold.domain.locks import computed_once
from refold.redaction.checks import Candidate
from refold.redaction.engines import (
    IN_RUN,
    MANY,
    UNPAIRED,
    EngineName,
    Hit,
    Trigger,
    Warming,
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

# How far before its value a word of context may begin, in characters.
CONTEXT: Final = 64
# How far before a literal of the gate a pattern of context may begin.
WORD: Final = 16
# How far a value may reach before and after its run of digits.
LEAD: Final = 12
TRAIL: Final = 24
# The characters and words that may stand between a word of context and its value.
_LINK = (
    r"[0-9]?(?:[\s:：=＝是为\"'`*#_\-–—.?？()+>~/\\|]|(?<![\"'\]}0-9])[,，]"
    r"|(?i:number|num|no|nr|is|was|at|on|to|me|us|home|work|office|value)|号码?|编号){0,24}"
    r"[0-9]?"
)
_LINKING = " \t\r\n:：=＝是为\"'`*#_-–—.?？()+>~/\\|,，"
# The most characters between a word and the end of its key, or of a name in JSON.
_NEAR: Final = 24
# An expression of more words would take an engine many times as long.
_TOGETHER: Final = 16
_NEAR_QUOTE = rf'[^"]{{0,{_NEAR}}}"'
# These letters are matched in this case only.
TELLING_TRIGGERS: Final = tuple(
    Trigger(shape=f"(?-i:{letters})") for letters in TELLING
)


class Compiled:
    """A rule with its patterns, each compiled when it is first used.

    A short process uses few of the rules, and compiling all of them takes most of the
    time of its first scan.

    number:        its place among the rules of a scanner.
    needs_context: whether a match without context is no finding, whatever its check
                   says.
    """

    def __init__(self, number: int, rule: Rule, min_score: float = 0.0) -> None:
        self.number = number
        self.rule = rule
        self.needs_context = rule.score < min_score

    @computed_once
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the rule."""
        return re.compile(self.rule.pattern)

    @computed_once
    def before(self) -> re.Pattern[str] | None:
        """The pattern of what stands right before a match, if the rule has one."""
        before = self.rule.before
        return re.compile(rf"(?:{before})\Z") if before else None

    @computed_once
    def context(self) -> re.Pattern[str] | None:
        """The pattern of a context right before a match, if the rule has one."""
        context = self.rule.context
        return re.compile(rf"(?:{context}){_LINK}\Z") if context else None

    @computed_once
    def one_word(self) -> bool:
        """Whether the pattern before a literal matches no space."""
        return bool(self.rule.before) and not holds_space(self.rule.before)

    @computed_once
    def words(self) -> tuple[str, ...]:
        """Every context holds one of these, in lower case; empty if unknown."""
        return needed(self.rule.context) if self.rule.context else ()

    @property
    def accepts_any_key(self) -> bool:
        """Whether a key may be context without a word of the gate near its end."""
        return self.rule.at == "gate"

    def accepts_key(self, key: str, lower: str) -> bool:
        """Whether ``key`` is context for its text.

        The key must have a word of the gate near its end, unless the rule takes any
        key.

        lower: the key in lower case.
        """
        context = self.context
        if context is None:
            return False
        # Searching for a context takes longer than looking for its words.
        if self.words and not any(map(lower.__contains__, self.words)):
            return False
        return context.search(key) is not None


class _WordsOfKeys:
    """Words that make a key the context of its value, if they are near its end.

    A key has few places and there are many words, so each place is looked up in a
    table of their beginnings.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._longest = 0
        # By its first two characters, or its only one: the words that begin with them.
        self._by_beginning: dict[str, list[str]] = {}
        for word in words:
            self._longest = max(self._longest, len(word))
            self._by_beginning.setdefault(word[:2], []).append(word)

    def near_end_of(self, key: str) -> frozenset[str]:
        """The words that end in the last characters of a key in lower case."""
        end = key[-(_NEAR + self._longest) :]
        length = len(end)
        by_beginning = self._by_beginning
        words: set[str] = set()
        for place in range(length):
            for beginning in (end[place : place + 2], end[place]):
                for word in by_beginning.get(beginning, ()):
                    is_near = length - place - len(word) <= _NEAR
                    if is_near and end.startswith(word, place):
                        words.add(word)
        return frozenset(words)


class _KeyWords(NamedTuple):
    """A kind of trigger for words of keys.

    ascii: engines look faster for words in ASCII, so these are kept apart.
    run:   the least digits that the text must have, as for ``Trigger``.
    """

    ascii: bool
    run: int


def triggers(rules: Sequence[Compiled]) -> dict[Trigger, list[Compiled]]:
    """The triggers to look for, each with the rules that it may let find something.

    A text without any trigger is clean under any key.
    """
    triggered: dict[Trigger, list[Compiled]] = {}
    for trigger in TELLING_TRIGGERS:
        triggered[trigger] = []
    # The keys of the inner dictionaries are words, in order.
    key_words: dict[_KeyWords, dict[str, None]] = {}
    shapes: dict[tuple[str, int], list[Compiled]] = {}
    for ready in rules:
        rule = ready.rule
        if rule.at == "digits" and rule.gate:
            for word in rule.gate:
                triggered.setdefault(spoken(word), []).append(ready)
                if not rule.context:
                    triggered.setdefault(spoken_after(word), []).append(ready)
        elif rule.at == "digits":
            # The form of digits that may be a value, and their least number.
            least = max(rule.digits, 6)
            shape = rule.shape or rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{least - 1}}}"
            shapes.setdefault((shape, least), []).append(ready)
        elif rule.at == "gate":
            for literal in rule.gate:
                trigger = Trigger(literal, rule.lead, rule.then)
                triggered.setdefault(trigger, []).append(ready)
        # A rule with a literal has its trigger in the value, not in the key.
        by_key = rule.at == "digits" and rule.context and rule.in_keys
        if rule.at == "leaf" or by_key:
            run = MANY if rule.at == "digits" and rule.digits >= MANY else 0
            for word in rule.gate:
                kind = _KeyWords(word.isascii(), run)
                key_words.setdefault(kind, {})[re.escape(word)] = None
    for (shape, least), ready_rules in shapes.items():
        triggered[Trigger(shape=shape, run=least)] = ready_rules
    for kind, words in key_words.items():
        escaped = list(words)
        for first in range(0, len(escaped), _TOGETHER):
            alternatives = "|".join(escaped[first : first + _TOGETHER])
            near = rf"(?:{alternatives}){_NEAR_QUOTE}"
            triggered[Trigger(shape=near, run=kind.run, key=True)] = []
    return triggered


_RUN = re.compile(r"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
_DIGITS = "0123456789"
_ANY_DIGIT = re.compile("[0-9]")
# The most characters between the last digit of a shape and the end of its hit.
_AFTER_DIGITS: Final = 16
# More than a scanner has.
_MOST_TRIGGERS: Final = 1 << 16
# With at most this many hits, each is looked at by itself.
_FEW: Final = 96
_DIGIT_CODES = frozenset(_DIGITS.encode())
_COLON = ord(":")
# The most characters between the end of a shape with letters and its digits.
_SEEN: Final = 48


def all_runs(text: str) -> Iterator[tuple[int, int]]:
    """The runs of six or more digits, with up to three separators each time."""
    return (match.span() for match in _RUN.finditer(text))


def has_run(text: str, start: int, stop: int) -> bool:
    """Whether a part of a text, by itself, has a run of six digits or more."""
    return _RUN.search(text, start, stop) is not None


def runs_near(text: str, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of digits around these places, which are in order.

    Only the parts of the text around them are searched, each once.
    """
    runs: list[tuple[int, int]] = []
    length = len(text)
    searched = 0  # the end of the last part
    index = 0
    while index < len(ends):
        first = max(0, ends[index] - _SEEN)
        last = min(length, ends[index] + _SEEN)
        index += 1
        while index < len(ends) and ends[index] - _SEEN <= last:
            last = min(length, ends[index] + _SEEN)
            index += 1
        if last <= searched:
            continue
        first = max(searched, run_start(text, max(first, searched), IN_RUN))
        searched = run_end(text, last, IN_RUN)
        for match in _RUN.finditer(text, first, searched):
            runs.append(match.span())
    return runs


# The first triggers are those after which a text must be folded.
_TELLING = len(TELLING_TRIGGERS)
# Parts of a shape that are no letters of the value: escapes of JSON, refused ones,
# classes.
_NO_LETTER = re.compile(r"\\\\\[nrtbf\]|\[\^[^\]]*\]|\\.")
# The steps of a check.
_JUDGED: Final = 6
# How many characters one step passes over: in a check, and in a pattern.
FAST: Final = 64
_FASTER: Final = 256
# Every text may take these steps, however short; and those of a text without a budget.
_FLOOR: Final = 1024
_UNLIMITED: Final = 1 << 62
# So many times the steps of the shortest text, every value may take.
_WHOLE: Final = 8
# How many bytes around a hit in JSON a rule may need.
_AROUND: Final = 1024
# How many keys are remembered with the rules that they give context to.
_REMEMBERED: Final = 4096


class Finding(NamedTuple):
    """An extent of a text that must be redacted, with its type and rule."""

    start: int
    end: int
    type: str
    rule: str
    priority: int = 0


# An extent begins with its start and its end.
_Extent = TypeVar("_Extent", bound=tuple[Any, ...])


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


class KeyContext(NamedTuple):
    """The rules for which a key is context, and their numbers."""

    rules: tuple[Compiled, ...] = ()
    numbers: frozenset[int] = frozenset()


NO_KEY_CONTEXT: Final = KeyContext()


class Prepared(NamedTuple):
    """A text in the form that rules see, with the hits of its triggers.

    findings: those under a key without context.  None if that was not judged; an
              empty tuple if there are none and no placeholder divides the text.
    spent:    the steps that this took.
    """

    text: str
    folded: Folded
    hits: Sequence[Hit] = ()
    findings: Sequence[Finding] | None = None
    spent: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether only a key with context could make a finding in the text."""
        return self.findings == ()


# A rule, and a value that it matched.
_Match: TypeAlias = tuple[Compiled, Candidate]
# The characters that are scanned between two looks at the clock, plus one text.
_AT_A_TIME: Final = 262_144


class _Matches(NamedTuple):
    """The matches of rules in a text, before checks judge them.

    anchored: the candidates at literals.
    runs:     by run of digits, the rules that may find a value in it, in the order in
              which they judge.
    never:    whether there is no match, and no key could change that.
    """

    anchored: Sequence[_Match]
    runs: Mapping[tuple[int, int], Sequence[Compiled]]
    never: bool


class _WithoutWord:
    """Which rules have none of the words of their context in a text.

    A rule that needs a context then finds nothing in it, so no pattern has to be tried.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._lower = ""
        self._without: dict[int, bool] = {}

    def has_none_of(self, ready: Compiled) -> bool:
        """Whether the text has no word that the context of a rule needs."""
        without = self._without.get(ready.number)
        if without is None:
            if not self._lower:
                self._lower = self._text.lower()
            words = ready.words
            without = bool(words) and not any(map(self._lower.__contains__, words))
            self._without[ready.number] = without
        return without


class Scanner:
    """Rules over an engine.  It holds no text: threads may share it."""

    def __init__(
        self,
        rules: Sequence[Rule],
        engine: EngineName = "auto",
        min_score: float = 0.6,
        work_per_kb: int = 0,
    ) -> None:
        self.rules = tuple(
            Compiled(number, rule, min_score) for number, rule in enumerate(rules)
        )
        triggered = triggers(self.rules)
        self._triggers = tuple(triggered)
        ranked = sorted(
            self.rules, key=lambda ready: (-ready.rule.priority, ready.rule.id)
        )
        self._rank = {ready.number: rank for rank, ready in enumerate(ranked)}
        self._around = [_digits_around(trigger) for trigger in self._triggers]
        # By trigger: its rules.
        self._judges = [tuple(ready) for ready in triggered.values()]
        # The triggers of rules whose matches may be divided into items of an object.
        self._of_objects = frozenset(
            number
            for number, ready in enumerate(triggered.values())
            if any(compiled_rule.rule.of_object for compiled_rule in ready)
        )
        self.of_objects = frozenset(
            ready.rule.id for ready in self.rules if ready.rule.of_object
        )
        # The triggers in values to which a key may give context.
        self._keyed = frozenset(
            number
            for number, ready in enumerate(triggered.values())
            if any(map(_takes_context_of_key, ready))
        )
        # By trigger: the length of its literal, how far before its end a shape may
        # begin, and how far after it the rules look.
        self.lengths = tuple(len(trigger.literal) for trigger in self._triggers)
        self.reach = tuple(trigger.reach for trigger in self._triggers)
        self.ahead = _LooksAhead(triggered.values())
        self.furthest = max(self.reach, default=0)
        self._longest_literal = max(self.lengths, default=0)
        self._min_score = min_score
        self._work_per_kb = work_per_kb
        self._floor = _FLOOR if work_per_kb else _UNLIMITED
        self._engine = engine_of(engine, self._triggers)
        self._with_context = [
            ready for ready in self.rules if ready.rule.context and ready.rule.in_keys
        ]
        # A key without any of these words gives context only to rules for any key.
        words: set[str] = set()
        for ready in self._with_context:
            if not ready.accepts_any_key:
                words.update(ready.rule.gate)
        self._words_of_keys = _WordsOfKeys(words)
        self._key_context_of_short = lru_cache(_REMEMBERED)(self._key_context)
        # Most keys have one of a few sets of such words.
        self._rules_of_words = lru_cache(_REMEMBERED)(self._rules_with_words)
        # Most runs of digits have one of a few sets of triggers.
        self._rules_of = lru_cache(_REMEMBERED)(self._rules_of_triggers)
        self._in_order = lru_cache(_REMEMBERED)(self._in_judging_order)
        self._halves = self._halves_of_words()
        # The first words of commands whose arguments may be strings of an array.
        self._programs: set[bytes] = set()
        for ready in self.rules:
            if ready.rule.of_list:
                for gate in ready.rule.gate:
                    self._programs.add(f'{gate.split()[0]}"'.encode())

    def _halves_of_words(self) -> list[tuple[bytes, bytes]]:
        """Words with a space, divided so that each half ends or begins a string."""
        halves: list[tuple[bytes, bytes]] = []
        for ready in self._with_context:
            for word in ready.rule.gate:
                for place, character in enumerate(word):
                    if character == " ":
                        end_of_first = f'{word[:place]}"'.encode()
                        start_of_second = f'"{word[place + 1 :]}'.encode()
                        halves.append((end_of_first, start_of_second))
        return halves

    @property
    def engine(self) -> str:
        """The name of the engine and its version."""
        return self._engine.name

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The parts of rules that its engine searches for; no registered values."""
        return self._triggers

    def look_for_faster_engine(self) -> None:
        """Load compiled rules from the cache, or have another process compile them."""
        if isinstance(self._engine, Warming):
            self._engine.look_for_faster()

    def meter(self, text: str, whole: Meter | None = None) -> Meter:
        """A meter with the limit of steps for ``text``, a part of a whole value."""
        return Meter(self._floor + self.steps_for(len(text)), whole=whole)

    def whole_meter(self, until: float = 0.0) -> Meter:
        """A meter for a whole value, whose limit grows with the parts of the value.

        until: the time at which the value's ``budget_ms`` ends; 0: never.
        """
        return Meter(_WHOLE * self._floor, until=until)

    def steps_for(self, length: int) -> int:
        """The most steps for so many characters more."""
        return self._work_per_kb * length >> 10

    @property
    def gates(self) -> bool:
        """Whether calling ``proves_clean`` first saves time."""
        return self._engine.gates

    def clean(self, text: str) -> bool:
        """Whether nothing can be found in ``text``, or in JSON with its keys."""
        return self._in_json(text.encode(errors=UNPAIRED)) == []

    def proves_clean(self, data: bytes) -> bool:
        """Whether nothing is found in ``data``, compact JSON.

        Each hit is judged in its string.  False is no proof of the contrary.
        """
        hits = self._in_json(data)
        if b'","-' in data and any(program in data for program in self._programs):
            return False  # it may be a command with each word in its own string
        if not hits or len(hits) > _FEW or b"\\" in data:
            return hits == []
        lower = data.lower()
        for first, second in self._halves:
            if first in lower and second in lower:
                return False  # two keys together may give context that neither gives
        searched_starts: set[int] = set()
        for number, end in hits:
            place = min(end - 2, len(data) - 1)  # of the last byte of the hit
            if number in self._keyed:
                return False  # its key may give context
            if number in self._of_objects and self._matches(data, number, end - 1):
                return False  # its neighbors may give context
            if data.count(b'"', 0, place) % 2 == 0:
                # Outside of strings, only numbers matter.
                if not _DIGIT_CODES.isdisjoint(data[max(0, place - 1) : place + 1]):
                    return False
                continue
            start = data.rfind(b'"', 0, place) + 1
            if start in searched_starts:
                continue
            searched_starts.add(start)
            stop = data.find(b'"', place)
            if data[stop + 1] == _COLON or not self._holds_nothing(data[start:stop]):
                return False
        return True

    def _matches(self, data: bytes, number: int, end: int) -> bool:
        """Whether a rule of a trigger matches in JSON near the end of a hit."""
        if not data.isascii():
            return True  # places in bytes are none in text
        first = max(0, end - _AROUND)
        text = data[first : end + _AROUND].decode()
        rules = self._judges[number]
        literal = self._triggers[number].literal
        lower = text.lower()
        stop = end - first
        place = lower.find(literal, max(0, stop - self.reach[number] - 1), stop + 1)
        while place >= 0:
            for ready in rules:
                start = max(0, place - ready.rule.reach)
                if ready.pattern.match(text, place) and (
                    not ready.before or ready.before.search(text, start, place)
                ):
                    return True
            place = lower.find(literal, place + 1, stop + 1)
        return False

    def _in_json(self, data: bytes) -> list[Hit] | None:
        return self._engine.in_json(b"\n%b\n" % data)

    def _holds_nothing(self, string: bytes) -> bool:
        """Whether nothing is found in a string under a key without context."""
        if b"[" in string or string[:1] in b"{ ":
            return False  # a placeholder, or JSON
        prepared = self.look(string.decode())
        return prepared is None or prepared.is_clean

    def key_context(self, key: str, context: str = "") -> KeyContext:
        """The rules for which ``key``, or the ``context`` of the whole, is context."""
        if context:
            own = self.key_context(key)
            shared = self.key_context(context)
            others = [
                ready for ready in shared.rules if ready.number not in own.numbers
            ]
            return KeyContext((*own.rules, *others), own.numbers | shared.numbers)
        if len(key) <= CONTEXT:
            return self._key_context_of_short(key)
        return self._key_context(key)

    def _key_context(self, key: str) -> KeyContext:
        # Context reaches no further, and keys may be long.
        near = fold(key).text[-2 * CONTEXT :]
        lower = near.lower()
        words = self._words_of_keys.near_end_of(lower)
        candidates = self._rules_of_words(words)
        rules = tuple(ready for ready in candidates if ready.accepts_key(near, lower))
        return KeyContext(rules, frozenset(ready.number for ready in rules))

    def _rules_with_words(self, words: frozenset[str]) -> Sequence[Compiled]:
        """The rules to which a key with these words near its end may give context."""
        rules: list[Compiled] = []
        for ready in self._with_context:
            if ready.accepts_any_key or not words.isdisjoint(ready.rule.gate):
                rules.append(ready)
        return tuple(rules)

    def survey(
        self, texts: Sequence[str], whole: Meter | None = None
    ) -> dict[int, Prepared]:
        """Scan all ``texts`` at once; return those that may have findings, by index.

        whole: the meter of the value that holds them.
        """
        if len(texts) == 1:
            prepared = self.look(texts[0], whole)
            return {} if prepared is None else {0: prepared}
        # The same text often stands in several places.
        unique = dict.fromkeys(texts)
        if len(unique) < len(texts):
            distinct = list(unique)
            by_text: dict[str, Prepared] = {}
            for index, scanned in self.survey(distinct, whole).items():
                by_text[distinct[index]] = scanned
            return {
                index: by_text[text]
                for index, text in enumerate(texts)
                if text in by_text
            }
        results: dict[int, Prepared | None] = {}
        folded: dict[int, Folded] = {}
        for index, hits in self._hits(texts, whole):
            text = texts[index]
            telling = [end for number, end in hits if number < _TELLING]
            if telling:
                folded[index] = fold(text, telling_ends=telling)
            else:
                results[index] = self._judged(text, None, hits, whole)
        if folded:
            folded_texts = [text.text for text in folded.values()]
            hits_in_folded = dict(self._hits(folded_texts, whole))
            for place, (index, folded_text) in enumerate(folded.items()):
                hits = hits_in_folded.get(place, [])
                results[index] = self._judged(texts[index], folded_text, hits, whole)
        return {
            index: prepared
            for index, prepared in results.items()
            if prepared is not None
        }

    def has_trigger(self, text: str) -> bool:
        """Whether ``text`` has a trigger of any rule."""
        return bool(self._placed(text))

    def _placed(self, text: str) -> list[Hit]:
        """The hits in ``text``, once each and in order, with their ends in characters.

        The end of a literal is its own, without the text after it.
        """
        data = text.encode(errors=UNPAIRED)
        hits = self._engine.scan(b"\n%b\n" % data)
        if not hits:
            return hits
        if len(data) != len(text):
            hits = _in_characters(data, hits)
            offset = 0
        else:
            offset = 1  # the byte before the text
        if len(hits) == 1:
            number, end = hits[0]
            return [(number, end - offset)]
        # Numbers are compared faster than pairs.
        codes = {(end - offset) * _MOST_TRIGGERS + number for number, end in hits}
        return [
            (code % _MOST_TRIGGERS, code // _MOST_TRIGGERS) for code in sorted(codes)
        ]

    def look(self, text: str, whole: Meter | None = None) -> Prepared | None:
        """Scan one text, as ``survey`` does."""
        hits = self._placed(text)
        if whole is not None and whole.until:
            whole.check_time()
        if not hits:
            return None
        for number, _ in hits:
            if number < _TELLING:
                break
        else:
            return self._judged(text, None, hits, whole)
        telling = [end for number, end in hits if number < _TELLING]
        folded = fold(text, telling_ends=telling)
        return self._judged(text, folded, self._placed(folded.text), whole)

    def _judged(
        self,
        text: str,
        folded: Folded | None,
        hits: Sequence[Hit],
        whole: Meter | None,
    ) -> Prepared | None:
        """The text with its findings under a key without context.

        None if no rule matches at any hit, whatever the key.  Most hits end so: a word
        is there, and no value after it.

        folded: the folded text; None for a text without a form that is folded.
        """
        # Between placeholders, pieces are texts of their own.
        plain = (folded is None or folded.text is text) and "[" not in text
        folded = folded or Folded(text)
        meter = self.meter(text, whole)
        try:
            matches = self._matches_in(
                folded.text, hits, NO_KEY_CONTEXT, meter, whole=False
            )
            if plain and matches.never:
                return None
            findings: Sequence[Finding] = self._found(folded, matches, meter)
        except Exception:
            # The settler judges the text again and handles the error.
            return Prepared(text, folded, hits, spent=meter.spent)
        if plain and not findings:
            findings = ()
        return Prepared(text, folded, hits, findings, meter.spent)

    def _hits(
        self, texts: Sequence[str], whole: Meter | None
    ) -> Iterable[tuple[int, list[Hit]]]:
        """(index, hits) of each text that has any; ends are places in that text.

        An engine cannot be interrupted, so the clock is read between scans of limited
        length.  Only a long text is scanned in one piece.
        """
        if not texts:
            return ()
        if sum(map(len, texts)) > _AT_A_TIME:
            return self._hits_in_parts(texts, whole)
        if whole is not None and whole.until:
            whole.check_time()
        return self._hits_together(texts)

    def _hits_in_parts(
        self, texts: Sequence[str], whole: Meter | None
    ) -> Iterator[tuple[int, list[Hit]]]:
        """(index, hits) of each text that has any, from several scans."""
        first = 0
        while first < len(texts):
            stop = first
            length = 0
            while stop < len(texts) and length < _AT_A_TIME:
                length += len(texts[stop])
                stop += 1
            if whole is not None:
                whole.check_time()
            for index, hits in self._hits_together(texts[first:stop]):
                yield first + index, hits
            first = stop

    def _hits_together(self, texts: Sequence[str]) -> Iterator[tuple[int, list[Hit]]]:
        """(index, hits) of each text that has any, from one scan."""
        placed = self._placed("\n".join(texts))
        if not placed:
            return
        stops = list(accumulate([len(text) + 1 for text in texts]))
        ends = [end for _, end in placed]
        last = len(texts) - 1
        first = 0  # the first hit that belongs to no earlier text
        while first < len(placed):
            index = min(bisect_left(stops, ends[first]), last)
            size = len(texts[index])
            start = stops[index] - size - 1
            after = len(placed)
            if index < last:
                after = bisect_right(ends, stops[index], first)
            hits = self._within(placed[first:after], start, size)
            if hits:
                yield index, hits
            first = after

    def _within(self, hits: list[Hit], start: int, size: int) -> list[Hit]:
        """The hits that end in a text of this ``size``, with their ends in it.

        A literal that stands in two texts is left out.

        start: where the text begins in the joined texts; hits have their ends there.
        """
        if start:
            hits = [(number, end - start) for number, end in hits]
        lengths = self.lengths
        first = 0
        stop = len(hits)
        # Only the first and the last hits may reach into other texts.
        if start:
            while first < stop and hits[first][1] < self._longest_literal:
                number, end = hits[first]
                if end < lengths[number]:
                    del hits[first]
                    stop -= 1
                else:
                    first += 1
        while stop and hits[stop - 1][1] > size:
            stop -= 1
            number = hits[stop][0]
            if lengths[number]:
                del hits[stop]
            else:
                hits[stop] = (number, size)
        return hits

    def findings(
        self,
        prepared: Prepared,
        key_context: KeyContext = NO_KEY_CONTEXT,
        *,
        meter: Meter | None = None,
        whole: bool = False,
        number: bool = False,
    ) -> list[Finding]:
        """The findings in a text under a key with that context.

        meter:  counts the steps; the text's own by default.
        whole:  nothing else stands under the key.
        number: the text is an integer, which needs context or a checksum.

        Raises OverBudget.
        """
        meter = meter or self.meter(prepared.text)
        folded = prepared.folded
        matches = self._matches_in(
            folded.text, prepared.hits, key_context, meter, whole=whole
        )
        return self._found(folded, matches, meter, key_context.numbers, number=number)

    def _found(
        self,
        folded: Folded,
        matches: _Matches,
        meter: Meter,
        rules_with_context: frozenset[int] = frozenset(),
        *,
        number: bool = False,
    ) -> list[Finding]:
        """The matches and runs that are accepted as findings.

        rules_with_context: the rules for which the key is context.
        """
        text = folded.text
        accepted: list[_Match] = []
        for match in matches.anchored:
            ready, candidate = match
            meter.spend(_JUDGED + (candidate.end - candidate.start) // FAST)
            has_context = ready.number in rules_with_context
            if number and not (has_context or ready.rule.certain):
                continue
            if self._accepted(ready, candidate, has_context=has_context):
                accepted.append(match)
        for run, rules in matches.runs.items():
            # Rules look at the whole run, and a little further.
            meter.spend(_JUDGED + (run[1] - run[0]) // FAST)
            accepted += self._judge_run(
                text, run, rules, rules_with_context, meter, number=number
            )
        is_plain = len(folded.starts) == 1
        findings: list[Finding] = []
        for ready, candidate in accepted:
            rule = ready.rule
            start = candidate.start
            end = candidate.end
            if not is_plain:
                start, end = folded.span(start, end)
            findings.append(Finding(start, end, rule.type, rule.id, rule.priority))
        return findings

    def _judge_run(
        self,
        text: str,
        run: tuple[int, int],
        rules: Iterable[Compiled],
        rules_with_context: frozenset[int],
        meter: Meter,
        *,
        number: bool,
    ) -> list[_Match]:
        """Return the values that rules accept in a run of digits.

        The search ends at a rule that accepts the whole run.

        number: the text is an integer, which needs context or a checksum.
        """
        start, end = run
        length = len(text)
        first = max(0, start - LEAD)
        last = min(length, end + TRAIL)
        near = ""
        accepted: list[_Match] = []
        for ready in rules:
            rule = ready.rule
            if end - start < rule.digits:
                continue
            has_context = ready.number in rules_with_context
            if rule.gate and not has_context:
                near = near or text[max(0, first - CONTEXT) : last].lower()
                if not any(map(near.__contains__, rule.gate)):
                    continue
            if number and not (has_context or rule.certain):
                continue
            whole = False
            for match in ready.pattern.finditer(text, first, last):
                match_start, match_end = match.span()
                if match_start >= end or match_end <= start:
                    continue  # it has no digit of this run
                if match_end == last and last < length:
                    continue  # it may be longer, and then belongs to another run
                candidate = Candidate(text, *match.span(rule.group), match)
                meter.spend(_JUDGED + (candidate.end - candidate.start) // FAST)
                if self._accepted(ready, candidate, has_context=has_context):
                    accepted.append((ready, candidate))
                    if candidate.start <= start and end <= candidate.end:
                        whole = True
            if whole:
                break
        return accepted

    def _accepted(
        self, ready: Compiled, candidate: Candidate, *, has_context: bool
    ) -> bool:
        """Whether the score of ``candidate``, with its context, is enough.

        has_context: the key is context for the rule.
        """
        if candidate.start >= candidate.end:
            return False
        rule = ready.rule
        score = rule.score
        # Looking for the context takes longer than a check; for a word it does not.
        needs_context = ready.needs_context and not has_context
        if needs_context and not _has_word(ready, candidate):
            return False
        if rule.check is not None:
            verdict = rule.check.function(candidate)
            if verdict is False:
                return False
            if verdict is not True:
                score += verdict
        least = self._min_score
        if score >= least and not needs_context:
            return True
        if score + rule.boost < least:
            return False
        return has_context or _in_context(ready, candidate)

    def _matches_in(
        self,
        text: str,
        hits: Sequence[Hit],
        key_context: KeyContext,
        meter: Meter,
        *,
        whole: bool,
    ) -> _Matches:
        """The candidates at literals, and the rules for each run of digits."""
        candidates: list[_Match] = []
        digits: list[Hit] = []
        # By rule: the places that its extents have already looked at.
        looked_at: dict[int, set[int]] = {}
        without_word: _WithoutWord | None = None
        skipped = False
        judges = self._judges
        lengths = self.lengths
        rules_with_context = key_context.numbers
        steps = 0
        left = meter.limit - meter.spent
        for hit in hits:
            number, end = hit
            length = lengths[number]
            if not length:
                if judges[number]:
                    digits.append(hit)
                continue
            if steps > left:
                break
            place = end - length
            for ready in judges[number]:
                if ready.needs_context and ready.number not in rules_with_context:
                    without_word = without_word or _WithoutWord(text)
                    if without_word.has_none_of(ready):
                        skipped = True
                        continue
                match = ready.pattern.match(text, place)
                if match is None:
                    continue
                # Engines differ in places without a match: these cost nothing.
                steps += 4 + (match.end() - place) // _FASTER
                extent = _extent_at(ready, text, place, match)
                if extent is None:
                    continue
                divider = ready.rule.divider
                if divider is None:
                    candidates.append((ready, Candidate(text, *extent, match)))
                    continue
                looked = looked_at.setdefault(ready.number, set())
                for start, end in divider.function(text, match, looked):
                    candidates.append((ready, Candidate(text, start, end, match)))
        if steps:
            meter.spend(steps)
        runs: dict[tuple[int, int], Sequence[Compiled]] = {}
        if digits:
            by_run = _triggers_of_runs(text, digits, self._around)
            for run, numbers in by_run.items():
                runs[run] = self._rules_of(frozenset(numbers))
        if key_context.rules:
            self._add_under_key(text, key_context, candidates, runs, whole=whole)
        never = not (candidates or runs or skipped)
        return _Matches(candidates, runs, never=never)

    def _add_under_key(
        self,
        text: str,
        key_context: KeyContext,
        candidates: list[_Match],
        runs: dict[tuple[int, int], Sequence[Compiled]],
        *,
        whole: bool,
    ) -> None:
        """Add what rules match only because the key of a text is their context."""
        of_digits = [ready for ready in key_context.rules if ready.rule.at == "digits"]
        if of_digits:
            for run in all_runs(text):
                runs[run] = self._in_order(frozenset((*runs.get(run, ()), *of_digits)))
        for ready in key_context.rules:
            if ready.rule.at == "leaf" and whole:
                match = ready.pattern.fullmatch(text)
                if match:
                    start, end = match.span(ready.rule.group)
                    candidates.append((ready, Candidate(text, start, end, match)))

    def _rules_of_triggers(self, triggers: frozenset[int]) -> Sequence[Compiled]:
        """The rules of triggers, in the order in which they judge."""
        rules: list[Compiled] = []
        for number in triggers:
            rules += self._judges[number]
        return self._in_order(frozenset(rules))

    def _in_judging_order(self, rules: frozenset[Compiled]) -> Sequence[Compiled]:
        """The rules in the order in which they judge a run of digits."""
        return sorted(rules, key=lambda ready: self._rank[ready.number])


def _takes_context_of_key(ready: Compiled) -> bool:
    """Whether a key may give context to the rule, whose trigger is in the value."""
    rule = ready.rule
    return rule.at == "gate" and bool(rule.context) and rule.in_keys


class _LooksAhead(dict[int, int]):
    """By trigger: how far after it its rules look, computed on the first use.

    Parsing the patterns of all rules would take most of the time of a first scan, and
    a short process needs few of them.
    """

    def __init__(self, rules: Iterable[Sequence[Compiled]]) -> None:
        super().__init__()
        self._rules = tuple(rules)

    def __missing__(self, trigger: int) -> int:
        ahead = _look_ahead(self._rules[trigger])
        self[trigger] = ahead
        return ahead


def _look_ahead(rules: Iterable[Compiled]) -> int:
    """How far after a trigger its rules, their words and their checks look."""
    furthest = 0
    for ready in rules:
        furthest = max(furthest, reach(ready.rule.pattern) + TRAIL)
    return furthest + 4 * CONTEXT


def _digits_around(trigger: Trigger) -> bool:
    """Whether the digits of a trigger are around its end, and not right at it."""
    if trigger.word:
        return trigger == spoken_after(trigger.word)
    return bool(re.search("[A-Za-z]", _NO_LETTER.sub("", trigger.shape)))


def _in_characters(data: bytes, hits: list[Hit]) -> list[Hit]:
    """The hits with their ends in the decoded text, not in the bytes around it."""
    placed: list[Hit] = []
    byte = 0
    character = 0
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


def _triggers_of_runs(
    text: str, hits: Sequence[Hit], around: Sequence[bool]
) -> dict[tuple[int, int], list[int]]:
    """By run of digits: the triggers whose hits, in order of their ends, belong to it.

    around: by trigger, whether the digits are around its end, and not right at it.
    """
    runs = runs_near(text, [end for _, end in hits])
    starts = [start for start, _ in runs]
    stops = [stop for _, stop in runs]
    triggers: dict[tuple[int, int], list[int]] = {}
    # By trigger: the number of runs that have it or are before those.  Each hit then
    # adds it only to further runs.
    reached: dict[int, int] = {}
    last_end = -1
    at: tuple[int, int] | None = None
    for number, end in hits:
        if around[number]:
            first = bisect_right(stops, max(0, end - _SEEN), reached.get(number, 0))
            stop = bisect_left(starts, end + _SEEN, first)
            for run in runs[first:stop]:
                triggers.setdefault(run, []).append(number)
            reached[number] = stop
            continue
        if end != last_end:
            last_end = end
            at = _run_at(text, runs, bisect_left(starts, end) - 1, end)
        if at is not None:
            triggers.setdefault(at, []).append(number)
    return triggers


def _run_at(
    text: str, runs: Sequence[tuple[int, int]], index: int, end: int
) -> tuple[int, int] | None:
    """The run at ``index`` if the last digit shortly before ``end`` is in it."""
    if index < 0:
        return None
    run = runs[index]
    stop = run[1]
    if end <= stop:
        return run
    is_near = end - stop < _AFTER_DIGITS
    return run if is_near and not _ANY_DIGIT.search(text, stop, end) else None


def _extent_at(
    ready: Compiled, text: str, place: int, match: re.Match[str]
) -> tuple[int, int] | None:
    """The extent of the value of a match at ``place``.

    None if the rule's ``before`` does not match there.
    """
    rule = ready.rule
    before = ready.before
    if before is None:
        return match.span(rule.group)
    first = max(0, place - rule.reach)
    if ready.one_word:
        first = max(first, text.rfind(" ", first, place) + 1)
    lead = before.search(text, first, place)
    if lead is None:
        return None
    if "value" in before.groupindex:
        return lead.span("value")
    if rule.group:
        return match.span(rule.group)
    return lead.start(), match.end()


def _has_word(ready: Compiled, candidate: Candidate) -> bool:
    """Whether a word that the rule's context needs stands near the value."""
    if ready.context is None or not ready.words:
        return ready.context is not None
    start = candidate.start
    near = candidate.text[max(0, start - CONTEXT) : start].lower()
    return any(map(near.__contains__, ready.words))


def _in_context(ready: Compiled, candidate: Candidate) -> bool:
    """Whether the rule's context stands before the value."""
    context = ready.context
    text = candidate.text
    end = candidate.start
    if context is None or not _has_word(ready, candidate):
        return False
    start = max(0, end - CONTEXT)
    near = text[start:end].lower()
    # A number that ends the line before gives no context: most lines of logs look so.
    last = near.rstrip(_LINKING)
    if last[-2:].isdigit() and "\n" in near[len(last) :]:
        return False
    if ready.rule.at == "digits" and ready.rule.gate:
        places = [near.find(word) for word in ready.rule.gate]
        first = min((place for place in places if place >= 0), default=-1)
        if first < 0:
            return False
        # A pattern of context begins shortly before its word.
        start += max(0, first - WORD)
    # Most words stand right before the value.
    close = max(start, end - WORD)
    return bool(context.search(text, close, end) or context.search(text, start, end))
