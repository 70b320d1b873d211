"""Finds standing constraints in what a user wrote, in English and Chinese.

A constraint says how the agent must act beyond its next step: a prohibition, a rule, a
required approval, a limit, a format.  No model is asked.  A sentence is split into
clauses.  A clause is a constraint if it has the mood of an instruction (an imperative,
"you must", "I want") and a sign of a restriction (a negation, "only", "always", "at
most", "without"), or if it names the user's approval.  Statements about programs and
people, questions, code, and quotations are none, although they use the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.domain.canonical import load_packaged_toml

Kind = Literal["prohibition", "rule", "approval", "permission"]

_WORDS: Final = load_packaged_toml("refold.projections", "data", "constraints.toml")


class Constraint(NamedTuple):
    """A sentence that states a constraint.

    start, end: its place in the text, in characters.
    kind:       a ``permission`` takes back an earlier constraint.
    """

    start: int
    end: int
    text: str
    kind: Kind


def constraints_in(text: str) -> Iterator[Constraint]:
    """Yield the constraints of a user's message, in order.

    The time is linear in the length of the text.
    """
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
    places = _places_by_text.get(digest)
    if places is None:
        places = [*_places_in(text)]
        if len(_places_by_text) >= _MOST_TEXTS:
            _places_by_text.clear()
        _places_by_text[digest] = places
    for start, end, kind in places:
        yield Constraint(start, end, text[start:end], kind)


# Each context of a long session looks at all messages of its user again.  So the places
# in them are remembered, by a digest of each message, and no text is.
_Place: TypeAlias = tuple[int, int, Kind]
_MOST_TEXTS: Final = 32_768
_places_by_text: Final[dict[bytes, list[_Place]]] = {}


def _places_in(text: str) -> Iterator[_Place]:
    """Yield the start, the end, and the kind of each constraint."""
    for start, end in _sentences(text):
        kind = _kind_of(text[start:end])
        if kind is not None:
            yield start, end, kind


# A sentence that is longer is pasted material, and no pattern looks at it.
_LONGEST_SENTENCE: Final = 600

_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
# Lines that quote something: code, tables, markup, and the output of programs.
_QUOTED_LINE: Final = re.compile(
    r"\s{4,}\S|\t|\s*(?:>|//|/\*|\*/|#!|\||<|\{|\}|\$ |@@|[+-]{3} )"
    r"|\s*(?:errors?|warning|messages?|traceback|expected|actual|info|debug|fatal|warn"
    r"|npm (?:warn|err!?)|错误|警告|报错)\s*[:：]"
    r"|\s*\w+(?:Error|Exception|Warning):|\s*\d{4}-\d\d-\d\d[T ]",
    re.IGNORECASE,
)
_BULLET: Final = re.compile(
    r"\s*(?:[-*•]|\d{1,3}[.)])\s+(?:\[[ x]\]\s*)?|\s*#{1,6}\s+|\s+"
)
# A full stop ends a sentence before white space, except after an abbreviation.  Of
# several, only the first is tried, and the first after an abbreviation.
_SENTENCE_END: Final = re.compile(
    # The characters of an end come first: most places have none.
    r"(?=[.!?])"
    r"(?:(?<![.!?])|(?<=\be\.g[.!?])|(?<=\bi\.e[.!?])|(?<=\betc[.!?])|(?<=\bvs[.!?]))"
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)[.!?]++[\"')\]*]*+(?=\s|$)"
    r"|[。！？；]+|;(?=\s)"
)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of sentences, except in code, quotations, and pasted output."""
    is_code = False
    position = 0
    for line in text.splitlines(keepends=True):
        line_start = position
        position += len(line)
        if ("```" in line or "~~~" in line) and _FENCE.match(line):
            is_code = not is_code
            continue
        if is_code or line.isspace() or _is_quoted(line):
            continue
        start = 0
        first = line[0]
        if first in _BULLET_SIGNS or first.isspace() or first.isdecimal():
            bullet = _BULLET.match(line)
            if bullet is not None:
                start = bullet.end()
        for ending in _SENTENCE_END.finditer(line):
            yield from _place(line, line_start, start, ending.end())
            start = ending.end()
        yield from _place(line, line_start, start, len(line))


# The first characters of a quoted line, and of a bullet, other than white space and
# digits.
_QUOTE_SIGNS: Final = frozenset(">/*#|<{}$@+-")
_BULLET_SIGNS: Final = frozenset("-*•#")


def _is_quoted(line: str) -> bool:
    """Whether a line, which is not empty, quotes something."""
    first = line[0]
    may_be_quoted = (
        first in _QUOTE_SIGNS
        or ":" in line
        or "：" in line
        or first.isspace()
        or first.isdecimal()
    )
    return may_be_quoted and _QUOTED_LINE.match(line) is not None


def _place(
    line: str, line_start: int, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the place of a sentence with words, without the white space around it."""
    sentence = line[start:end]
    stripped = sentence.strip()
    if stripped and len(stripped) <= _LONGEST_SENTENCE:
        first = line_start + start + sentence.index(stripped)
        yield first, first + len(stripped)


_CHINESE_CHARACTER: Final = re.compile(r"[\u4e00-\u9fff]")


def _kind_of(sentence: str) -> Kind | None:
    """Return the kind of constraint that a sentence states; None if it states none."""
    if not sentence.isascii() and _CHINESE_CHARACTER.search(sentence):
        return _kind_of_chinese(sentence)
    return _kind_of_english(sentence)


# ---- English ----


def _one_of(name: str) -> str:
    return "(?:" + "|".join(sorted(_WORDS[name].split(), key=len, reverse=True)) + ")"


def _pattern(name: str, *, words: bool = False, ends: bool = False) -> re.Pattern[str]:
    """Return the regular expression of a list of alternatives.

    words: whether a match begins and ends at the edges of words.
    ends:  whether it ends there.
    """
    alternatives = "|".join(_WORDS["patterns"][name])
    for list_name in ("verbs", "ordinary", "no_report"):
        alternatives = alternatives.replace(f"<{list_name}>", _one_of(list_name))
    pattern = f"(?:{alternatives})"
    if words:
        pattern = rf"\b{pattern}\b"
    elif ends:
        pattern = rf"{pattern}\b"
    return re.compile(pattern, re.IGNORECASE)


_QUOTATION: Final = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|`[^`\n]*`")
_POLITE_END: Final = re.compile(
    r",?(?<!\s)\s*+(?:(?:ok|okay|please|alright|thanks|right)\s*[?.!]*)+$",
    re.IGNORECASE,
)
# A report of what a text, a program, or another person says.
_REPORT: Final = _pattern("report", words=True)
# A sentence that asks, although it may lack the question mark.
_QUESTION: Final = _pattern("question", ends=True)
_POLITE_QUESTION: Final = re.compile(
    r"(?:can|could|would|will) you (?:please )?(?:also )?"
    r"(?:never|always|only|not|avoid \w+|stop \w+ing|make sure)\b",
    re.IGNORECASE,
)
# Openings before an instruction, as often as they come.
_OPENING: Final = re.compile(
    rf"(?:{_pattern('opening').pattern}(?:[\s,:*_—–-]+|$))+", re.IGNORECASE
)
# "For this task, …", "Since it is slow, …": the instruction follows.
_ADVERBIAL: Final = re.compile(
    r"(?:for|in|on|during|while|when|whenever|every time|each time|since|because|as|if"
    r"|unless|until|once|after|before|should|apart from|except for|other than|starting"
    r"|from|within|throughout|going|without)\b[^,:]{1,160}[,:]\s+"
    r"|(?:from now on|from here on|going forward|in (?:the )?future)\s+",
    re.IGNORECASE,
)
# An adverbial that makes every instruction after it a standing one.
_STANDING: Final = _pattern("standing")
_CLAUSE_BREAK: Final = re.compile(
    r"[,;:(]\s+|\s[—–-]+\s|,?\s+(?:and|but|so|then|or)\s+", re.IGNORECASE
)
# The breaks after which an instruction may follow on a statement.
_CONCLUSION: Final = re.compile(
    r"[;:]\s+|\s[—–-]+\s|,?\s+so\s+"
    r"|,\s+(?:and |but )?(?=(?:please|never (?!\w+[^s\W]s\b|\w+ed\b)|do not|don't)\b)",
    re.IGNORECASE,
)

_VERB: Final = _one_of("verbs")
_IMPERATIVE: Final = re.compile(
    rf"(?:always |only |then |either |\w+ly )?{_VERB}\b(?!:)", re.I
)
# A wish of the user about the agent's work.
_WISH: Final = _pattern("wish")
_UNWANTED: Final = _pattern("unwanted")
# An obligation with a subject that the agent controls.
_OBLIGATION: Final = _pattern("obligation", words=True)
# "You must see", "must be a mistake": a conclusion or a condition.
_CONCLUDES: Final = re.compile(
    r"\b(?:must|should|may|might|can|can't|cannot|need to|have to|has to) "
    + _pattern("concluded", ends=True).pattern,
    re.IGNORECASE,
)

# Signs of a restriction in an instruction.
_RESTRICTION: Final = _pattern("restriction", words=True)

_APPROVAL: Final = _pattern("approval")
_PERMISSION: Final = _pattern("permission")
_PROHIBITION: Final = _pattern("prohibition")
# Words with which "no …" reports something.
_REPORTS_NONE: Final = _pattern("reports_none", words=True)
_RULE: Final = _pattern("rule")
# A clause with one of these subjects states something about them.
_STATEMENT: Final = _pattern("statement", ends=True)


class _Signs:
    """The words of a sentence by which most patterns are skipped.

    A pattern can only match a sentence that has certain words.  Looking for words takes
    a small part of the time of the patterns.  If ``words`` is None, the sentence has
    letters that patterns equate with others, and every pattern is tried.
    """

    __slots__ = ("words",)

    def __init__(self, sentence: str) -> None:
        self.words: frozenset[str] | None = None
        if sentence.isascii():
            words = sentence.lower().translate(_SPACES).split()
            self.words = _SIGN_WORDS.intersection(words)
        elif _EQUATED.isdisjoint(sentence):
            self.words = _SIGN_WORDS.intersection(_WORD.findall(sentence.lower()))

    def may_have(self, words: frozenset[str]) -> bool:
        """Whether the sentence may have one of these words."""
        return self.words is None or not words.isdisjoint(self.words)

    def may_have_each(self, sets: Iterable[frozenset[str]]) -> bool:
        """Whether the sentence may have a word of each of these sets."""
        if self.words is None:
            return True
        for words in sets:  # noqa: SIM110  # a generator takes twice the time
            if words.isdisjoint(self.words):
                return False
        return True

    @property
    def may_approve(self) -> bool:
        """Whether the sentence may name the user's approval."""
        if not self.may_have(_APPROVAL_WORDS):
            return False
        return any(map(self.may_have_each, _APPROVALS))

    def may_be_standing(self, sentence: str) -> bool:
        """Whether the sentence may begin with an adverbial such as "every time"."""
        has_end = "," in sentence or ":" in sentence
        if not has_end and not self.may_have(_FROM_NOW_ON):
            return False
        return self.may_have(_STANDING_WORDS) or self.may_have_each(_ONCE_YOU)

    def may_restrict(self, sentence: str) -> bool:
        """Whether the sentence may have a sign of a restriction."""
        return self.may_have(_RESTRICTION_WORDS) or "compatib" in sentence.lower()


# These letters match ASCII letters in patterns that ignore case.
_EQUATED: Final = frozenset("ıſİK")
_WORD: Final = re.compile(r"[^\W_]+")
_SPACES: Final = {
    code: " " for code in range(128) if not (chr(code).isalnum() and code < 128)
}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Each pattern needs a word of its set, or of each set of a tuple.
_APPROVALS: Final = (
    (
        _set("my our me i us we"),
        _set(
            "approval approve confirmation confirm confirmed ok okay goahead ahead"
            " permission consent signoff sign yes nod blessing green review reviewed"
            " say agree agreed"
        ),
    ),
    (_set("me us my"), _set("before first prior instead")),
    (_set("check"), _set("first before")),
    (
        _set("ask check consult clear run show"),
        _set("me us first"),
        _set("before prior instead if should when"),
    ),
    (_set("ask"), _set("first before me stop")),
    (_set("wait hold"),),
    (_set("let"), _set("me")),
    (_set("i"), _set("before")),
    (_set("not don"), _set("go continue proceed start")),
)
_APPROVAL_WORDS: Final = frozenset().union(*(sets[-1] for sets in _APPROVALS))
_FROM_NOW_ON: Final = _set("now here forward future")
_ONCE_YOU: Final = (
    _set("you"),
    _set("when whenever before after once if should long"),
)
_STANDING_WORDS: Final = _set(
    "time whenever before each every any all future now here forward today rest"
    " throughout unless until while without apart except stop ask tell not don never"
)
_PERMISSION_WORDS: Final = _set("now again all forget ignore drop cancel ask")
_PROHIBITION_WORDS: Final = _set(
    "not don dont mustn never neither avoid refrain steer stay keep forbid prohibit"
    " won let stop quit circumstances hands nothing forbidden limits taboo no"
)
_RULE_WORDS: Final = _set(
    "only always nothing limit restrict confine keep cap keeping leave leaving require"
    " stick stay tabs spaces indent prefer treat first"
)
_UNWANTED_WORDS: Final = _set("not don never didn")
_RESTRICTION_WORDS: Final = _set(
    "never always only solely exclusively nothing nowhere no not t most least more"
    " fewer less maximum max up stay below under within per sentence sentences line"
    " lines paragraph paragraphs words decimals spaces characters without instead"
    " rather over every each whenever times everywhere throughout now forward here"
    " future rest today until unless all alone untouched unchanged intact as limits"
    " quotes away reversible small short private secret confidential offline signed"
    " same existing conventional english german french spanish italian chinese"
    " japanese json yaml csv markdown plain bullet snake camelcase utc metric imperial"
    " iso yyyy british american pascalcase feature separate strictly long anonymous"
    " anonymously anonymized confidentially quiet blank place time longer so making"
    " must nobody imperative yourself"
)
_OBLIGATION_WORDS: Final = _set(
    "must should shall have has need needs are may can cannot mustn shouldn allowed"
    " confined require requires scope"
)
_QUANTIFIERS: Final = _set("everything nothing nobody no all each every any both")
_STRONG_WORDS: Final = _set("must has have need")
_SIGN_WORDS: Final = frozenset().union(
    _FROM_NOW_ON,
    _STANDING_WORDS,
    _PERMISSION_WORDS,
    _PROHIBITION_WORDS,
    _RULE_WORDS,
    _UNWANTED_WORDS,
    _RESTRICTION_WORDS,
    _OBLIGATION_WORDS,
    _QUANTIFIERS,
    _STRONG_WORDS,
    *chain.from_iterable(_APPROVALS),
    *_ONCE_YOU,
)
# The first words of clauses that these patterns match.
_FIRST_OF_WISH: Final = _set("i we it")
_FIRST_OF_PERMISSION: Final = _set("you feel forget ignore drop cancel it")
_FIRST_OF_IMPERATIVE: Final = _set(_WORDS["verbs"]) | _set("always only then either")
_FIRST_OF_OPENING: Final = _set(
    "please pls also and but so then or ok okay now just again well yes hey oh instead"
    " finally otherwise too still first simply kindly moreover plus note important"
    " reminder rule rules constraint constraints hard remember keep be one my this here"
    " make can could would will you"
)


def _first_word(clause: str) -> str:
    """Return the word with which a clause begins, in small letters; empty if none."""
    word = _WORD.match(clause)
    return word[0].lower() if word else ""


def _kind_of_english(sentence: str) -> Kind | None:
    sentence = sentence.replace("’", "'").strip()
    sentence = _without_polite_end(sentence).strip("*_ ")
    if sentence.endswith("?") and not _is_polite_request(sentence):
        return None
    signs = _Signs(sentence)
    plain = sentence
    if not _QUOTES.isdisjoint(sentence):
        plain = _QUOTATION.sub("QUOTED", sentence)
    plain = plain.rstrip(".!?) ")
    kind = _kind_of_signs(plain, sentence, signs)
    if kind is None or _REPORT.search(plain):
        return None
    return kind


def _kind_of_signs(plain: str, sentence: str, signs: _Signs) -> Kind | None:
    """Return the kind of constraint, unless the sentence only reports it.

    plain:    the sentence without quotations.
    sentence: the sentence, to which ``signs`` belong.
    """
    if signs.may_approve:
        approval = _APPROVAL.search(_without_opening(plain))
        if approval is not None and not _is_about_others(plain):
            return "approval"
    if signs.may_be_standing(plain) and _is_standing(plain):
        return "rule"
    checks = _Checks.of(sentence, signs)
    if not any(checks):
        return None
    for clause in _clauses(plain):
        kind = _kind_of_clause(clause, checks)
        if kind is not None and (
            not _QUESTION.match(clause) or _is_polite_request(sentence)
        ):
            return kind
    return None


_QUOTES: Final = frozenset('"“«`')
_POLITE_WORDS: Final = ("ok", "okay", "please", "alright", "thanks", "right")


def _without_polite_end(sentence: str) -> str:
    """Return a sentence without "thanks", "please" and the like at its end."""
    ending = sentence.rstrip("?.!").rstrip()
    is_ascii = ending[-_LONGEST_POLITE_WORD:].isascii()
    if is_ascii and not ending.lower().endswith(_POLITE_WORDS):
        return sentence
    return _POLITE_END.sub("", sentence)


_LONGEST_POLITE_WORD: Final = max(map(len, _POLITE_WORDS))


def _is_polite_request(sentence: str) -> bool:
    """Whether a question asks the agent to do something."""
    return _POLITE_QUESTION.match(_without(_AND, sentence)) is not None


class _Checks(NamedTuple):
    """The patterns that a clause of a sentence may match, by the sentence's words.

    with_restriction: wishes and imperatives, which need a sign of a restriction.
    """

    permission: bool
    prohibition: bool
    rule: bool
    unwanted: bool
    with_restriction: bool
    obligation: bool

    @classmethod
    def of(cls, sentence: str, signs: _Signs) -> _Checks:
        """Return the patterns that clauses of this sentence may match."""
        may_restrict = signs.may_restrict(sentence)
        may_oblige = signs.may_have(_OBLIGATION_WORDS) and (
            may_restrict
            or signs.may_have(_QUANTIFIERS)
            or ("you" in sentence.lower() and signs.may_have(_STRONG_WORDS))
        )
        return cls(
            permission=signs.may_have(_PERMISSION_WORDS),
            prohibition=signs.may_have(_PROHIBITION_WORDS),
            rule=signs.may_have(_RULE_WORDS),
            unwanted=signs.may_have(_UNWANTED_WORDS),
            with_restriction=may_restrict,
            obligation=may_oblige,
        )


_AND: Final = re.compile(r"(?:(?:and|but|so|ok|also|please)[\s,]+)+", re.IGNORECASE)
# A subject that is neither the agent nor the user's wish.
_OTHERS: Final = re.compile(
    r"(?:the|it|he|she|they|this|that|there)\b"
    r"(?![^.]{0,60}\b(?:must|needs?|requires?|has to|may)\b)"
    r"|i (?!want|need|don't want|do not want|'d|would)\w+",
    re.IGNORECASE,
)


def _is_about_others(sentence: str) -> bool:
    return _OTHERS.match(sentence) is not None and not re.search(
        r"\b(?:,|so|but|and) (?:please |never |don't |do not )", sentence, re.IGNORECASE
    )


def _is_standing(sentence: str) -> bool:
    """Whether an instruction follows an adverbial such as "every time"."""
    without_opening = _without_opening(sentence)
    adverbial = _ADVERBIAL.match(without_opening)
    if adverbial is None or not _STANDING.match(without_opening):
        return False
    main = _without_opening(without_opening[adverbial.end() :])
    return any(
        mood.match(main) for mood in (_IMPERATIVE, _WISH, _OBLIGATION, _NEGATIVE)
    )


_NEGATIVE: Final = re.compile(
    r"(?:never|do not|don't|only|always|it (?:has to|must|should)|no) \w+", re.I
)


def _clauses(sentence: str) -> Iterator[str]:
    """Yield the sentence, the part after an adverbial, and the parts after each break.

    Each goes on to the sentence's end.  "We ship on Friday and don't test" states
    something to its end; an instruction follows on a statement only as its conclusion:
    "…, so do not use it".
    """
    yield sentence
    without_opening = _without_opening(sentence)
    main = _ADVERBIAL.match(without_opening)
    if main:
        sentence = without_opening[main.end() :]
        yield sentence
    breaks = _CONCLUSION if _STATEMENT.match(sentence) else _CLAUSE_BREAK
    for ending in breaks.finditer(sentence):
        yield sentence[ending.end() :]


def _without(opening: re.Pattern[str], clause: str) -> str:
    start = opening.match(clause)
    return clause[start.end() :] if start else clause


def _without_opening(clause: str) -> str:
    """Return a clause without the words before its instruction."""
    first = _first_word(clause)
    if first.isascii() and first not in _FIRST_OF_OPENING:
        return clause
    return _without(_OPENING, clause)


def _kind_of_clause(clause: str, checks: _Checks) -> Kind | None:
    kind = _kind_of_instruction(clause, checks)
    if kind is None:
        without_opening = _without_opening(clause)
        if without_opening != clause:
            kind = _kind_of_instruction(without_opening, checks)
    return kind


def _kind_of_instruction(clause: str, checks: _Checks) -> Kind | None:
    first = _first_word(clause)
    is_ascii = first.isascii()
    begins_permission = not is_ascii or first in _FIRST_OF_PERMISSION
    if checks.permission and begins_permission and _PERMISSION.match(clause):
        return "permission"
    if checks.prohibition and _PROHIBITION.match(clause):
        reports = clause[:2].lower() == "no" and _REPORTS_NONE.search(clause)
        return None if reports else "prohibition"
    if checks.rule and _RULE.match(clause):
        return "rule"
    begins_wish = not is_ascii or first in _FIRST_OF_WISH
    if checks.unwanted and begins_wish and _UNWANTED.match(clause):
        return "prohibition"
    if checks.with_restriction and begins_wish and _WISH.match(clause):
        return "rule" if _RESTRICTION.search(clause, 3) else None
    obligation = _OBLIGATION.match(clause) if checks.obligation else None
    if obligation:
        return _kind_of_obligation(clause, obligation)
    may_command = (
        not is_ascii or first in _FIRST_OF_IMPERATIVE or _LY.match(clause) is not None
    )
    if checks.with_restriction and may_command and _IMPERATIVE.match(clause):
        # A restriction inside of "the tests that never run" restricts the tests.
        own = _SUBORDINATE.split(clause, maxsplit=1)[0]
        return "rule" if _RESTRICTION.search(own) else None
    return None


_LY: Final = re.compile(r"\w+ly ", re.IGNORECASE)


_SUBORDINATE: Final = re.compile(
    r",? (?:that|which|who|whose|where|because|since|if|when|whether|why|what|how)\b"
    r"|[,;:] (?:i|it|we|they|this)\b(?! (?:must|has to|may|can't))",
    re.IGNORECASE,
)


_QUANTIFIED: Final = re.compile(
    r"(?:everything|nothing|nobody|no one|no|all|each|every|any|both)\b", re.IGNORECASE
)


def _kind_of_obligation(clause: str, obligation: re.Match[str]) -> Kind | None:
    """Return a rule, if the obligation is more than a conclusion about a fact."""
    if _CONCLUDES.search(clause):
        return None
    if _QUANTIFIED.match(clause):
        return "rule"
    is_the_agents = clause[:3].lower() == "you"
    strong = re.search(r"\b(?:must|has to|have to|need to)\b", obligation[0], re.I)
    if is_the_agents and strong:
        return "rule"
    if _RESTRICTION.search(clause, obligation.start()):
        return "rule"
    return None


# ---- Chinese ----

_CHINESE_QUESTION: Final = _pattern("chinese_question")
# A report, a quotation, or a statement about a program or a person.
_CHINESE_STATEMENT: Final = _pattern("chinese_statement")
_CHINESE_CONSTRAINTS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("permission", _pattern("chinese_permission")),
    ("approval", _pattern("chinese_approval")),
    ("prohibition", _pattern("chinese_prohibition")),
    ("rule", _pattern("chinese_rule")),
)


def _kind_of_chinese(sentence: str) -> Kind | None:
    sentence = sentence.strip("。！!.；; ")
    if _CHINESE_QUESTION.search(sentence) or _CHINESE_STATEMENT.search(sentence):
        return None
    for kind, pattern in _CHINESE_CONSTRAINTS:
        if pattern.search(sentence):
            return kind
    return None
