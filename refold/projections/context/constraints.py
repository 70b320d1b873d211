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
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.domain.canonical import load_packaged_toml
from refold.projections.context.marked_patterns import MarkedPattern, SentenceWords

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


_LISTS: Final = {
    f"<{name}>": "|".join(_WORDS[name].split())
    for name in ("verbs", "ordinary", "no_report", "subjects")
}


def _with_lists(expression: str) -> str:
    """Replace the names of lists, such as <verbs>, by their words joined by "or"."""
    for name, words in _LISTS.items():
        expression = expression.replace(name, words)
    return expression


def _pattern(name: str, *, words: bool = False, ends: bool = False) -> re.Pattern[str]:
    """Return the regular expression of a list of alternatives.

    words: whether a match begins and ends at the edges of words.
    ends:  whether it ends there.
    """
    alternatives = "|".join(_WORDS["patterns"][name])
    pattern = f"(?:{_with_lists(alternatives)})"
    if words:
        pattern = rf"\b{pattern}\b"
    elif ends:
        pattern = rf"{pattern}\b"
    return re.compile(pattern, re.IGNORECASE)


def _marked_patterns(*, anywhere: bool) -> dict[str, MarkedPattern]:
    """Return the patterns of a table by name.

    anywhere: whether a sentence has them anywhere, as whole words; if not, a clause
              begins with them.
    """
    table = _WORDS["anywhere" if anywhere else "beginnings"]
    return {
        name: MarkedPattern(map(_with_lists, alternatives), whole_words=anywhere)
        for name, alternatives in table.items()
    }


_ANYWHERE: Final = _marked_patterns(anywhere=True)
_BEGINNINGS: Final = _marked_patterns(anywhere=False)
_MARKED_WORDS: Final = frozenset().union(
    *(pattern.marked_words for pattern in _ANYWHERE.values()),
    *(pattern.marked_words for pattern in _BEGINNINGS.values()),
)

_QUOTATION: Final = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|`[^`\n]*`")
_POLITE_WORDS: Final = ("ok", "okay", "please", "alright", "thanks", "right")
_LONGEST_POLITE_WORD: Final = max(map(len, _POLITE_WORDS))
_POLITE_END: Final = re.compile(
    rf",?(?<!\s)\s*+(?:(?:{'|'.join(_POLITE_WORDS)})\s*[?.!]*)+$", re.IGNORECASE
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
# Words before an instruction, and any number of them.
_OPENING: Final = _BEGINNINGS["opening"]
_OPENINGS: Final = re.compile(
    rf"(?:{_OPENING.source}(?:[\s,:*—–-]+|$))+", re.IGNORECASE
)
# The beginning of an adverbial that ends without a comma.
_FROM_NOW_ON: Final = _BEGINNINGS["from_now_on"]
# "For this task, …", "Since it is slow, …": the instruction follows.
_ADVERBIAL: Final = re.compile(
    r"(?:for|in|on|during|while|when|whenever|every time|each time|since|because|as|if"
    r"|unless|until|once|after|before|should|apart from|except for|other than|starting"
    r"|from|within|throughout|going|without)\b[^,:]{1,160}[,:]\s+"
    rf"|{_FROM_NOW_ON.source}\s+",
    re.IGNORECASE,
)
# An adverbial that makes every instruction after it a standing one.
_STANDING: Final = _BEGINNINGS["standing"]
_CLAUSE_BREAK: Final = re.compile(
    r"[,;:(]\s+|\s[—–-]+\s|,?\s+(?:and|but|so|then|or)\s+", re.IGNORECASE
)
# The breaks after which an instruction may follow on a statement.
_CONCLUSION: Final = re.compile(
    r"[;:]\s+|\s[—–-]+\s|,?\s+so\s+"
    r"|,\s+(?:and |but )?(?=(?:please|never (?!\w+[^s\W]s\b|\w+ed\b)|do not|don't)\b)",
    re.IGNORECASE,
)

_IMPERATIVE: Final = _BEGINNINGS["imperative"]
_ADVERB: Final = re.compile(r"\b(?:always|only|then|either|\w+ly) ", re.IGNORECASE)
# A wish of the user about the agent's work.
_WISH: Final = _BEGINNINGS["wish"]
_UNWANTED: Final = _BEGINNINGS["unwanted"]
# An obligation with a subject that the agent controls.
_OBLIGATION: Final = _BEGINNINGS["obligation"]
# An obligation for everything or for nothing.
_QUANTIFIED: Final = _BEGINNINGS["quantified"]
# An obligation that restricts the agent without another sign of a restriction.
_STRONG: Final = _ANYWHERE["strong"]
# "You must see", "must be a mistake": a conclusion or a condition.
_CONCLUDES: Final = re.compile(
    r"\b(?:must|should|may|might|can|can't|cannot|need to|have to|has to) "
    + _pattern("concluded", ends=True).pattern,
    re.IGNORECASE,
)

# Signs of a restriction in an instruction.
_RESTRICTION: Final = _ANYWHERE["restriction"]

_APPROVAL: Final = _ANYWHERE["approval"]
_PERMISSION: Final = _BEGINNINGS["permission"]
_PROHIBITION: Final = _BEGINNINGS["prohibition"]
# Words with which "no …" reports something.
_REPORTS_NONE: Final = _pattern("reports_none", words=True)
_RULE: Final = _BEGINNINGS["rule"]
# A clause with one of these subjects states something about them.
_STATEMENT: Final = _pattern("statement", ends=True)


def _kind_of_english(sentence: str) -> Kind | None:
    sentence = sentence.replace("’", "'").strip()
    sentence = _without_polite_end(sentence).strip("*_ ")
    if sentence.endswith("?") and not _is_polite_request(sentence):
        return None
    words = SentenceWords(sentence, _MARKED_WORDS)
    plain = sentence
    if not _QUOTES.isdisjoint(sentence):
        plain = _QUOTATION.sub("QUOTED", sentence)
    plain = plain.rstrip(".!?) ")
    kind = _kind_without_reports(plain, sentence, words)
    if kind is None or _REPORT.search(plain):
        return None
    return kind


def _kind_without_reports(
    plain: str, sentence: str, words: SentenceWords
) -> Kind | None:
    """Return the kind of constraint, also of one that the sentence only reports.

    plain: the sentence without quotations.
    words: the words of ``sentence``.
    """
    if words.may_match(_APPROVAL):
        approval = _APPROVAL.search(_without_opening(plain))
        if approval is not None and not _is_about_others(plain):
            return "approval"
    if _may_be_standing(plain, words) and _is_standing(plain):
        return "rule"
    checks = _Checks.of(sentence, words)
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


def _without_polite_end(sentence: str) -> str:
    """Return a sentence without "thanks", "please" and the like at its end."""
    ending = sentence.rstrip("?.!").rstrip()
    is_ascii = ending[-_LONGEST_POLITE_WORD:].isascii()
    if is_ascii and not ending.lower().endswith(_POLITE_WORDS):
        return sentence
    return _POLITE_END.sub("", sentence)


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
    def of(cls, sentence: str, words: SentenceWords) -> _Checks:
        """Return the patterns that clauses of this sentence may match."""
        may_restrict = words.may_match(_RESTRICTION)
        may_oblige = words.may_match(_OBLIGATION) and (
            may_restrict
            or words.may_match(_QUANTIFIED)
            or ("you" in sentence.lower() and words.may_match(_STRONG))
        )
        return cls(
            permission=words.may_match(_PERMISSION),
            prohibition=words.may_match(_PROHIBITION),
            rule=words.may_match(_RULE),
            unwanted=words.may_match(_UNWANTED),
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


def _may_be_standing(sentence: str, words: SentenceWords) -> bool:
    """Whether a sentence with these words may begin with a standing adverbial."""
    has_end = "," in sentence or ":" in sentence or words.may_match(_FROM_NOW_ON)
    return has_end and words.may_match(_STANDING)


def _is_standing(sentence: str) -> bool:
    """Whether an instruction follows an adverbial such as "every time"."""
    without_opening = _without_opening(sentence)
    adverbial = _ADVERBIAL.match(without_opening)
    if adverbial is None or not _STANDING.match(without_opening):
        return False
    main = _without_opening(without_opening[adverbial.end() :])
    if _is_imperative(main):
        return True
    return any(mood.match(main) for mood in (_WISH, _OBLIGATION, _NEGATIVE))


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
    if not _OPENING.may_begin(clause):
        return clause
    # Underscores are emphasis here.  For an expression, they are letters of a word.
    openings = _OPENINGS.match(clause.replace("_", " "))
    return clause[openings.end() :] if openings else clause


def _kind_of_clause(clause: str, checks: _Checks) -> Kind | None:
    kind = _kind_of_instruction(clause, checks)
    if kind is None:
        without_opening = _without_opening(clause)
        if without_opening != clause:
            kind = _kind_of_instruction(without_opening, checks)
    return kind


def _kind_of_instruction(clause: str, checks: _Checks) -> Kind | None:
    if checks.permission and _begins_with(_PERMISSION, clause):
        return "permission"
    if checks.prohibition and _PROHIBITION.match(clause):
        reports = clause[:2].lower() == "no" and _REPORTS_NONE.search(clause)
        return None if reports else "prohibition"
    if checks.rule and _RULE.match(clause):
        return "rule"
    if checks.unwanted and _begins_with(_UNWANTED, clause):
        return "prohibition"
    if checks.with_restriction and _begins_with(_WISH, clause):
        return "rule" if _RESTRICTION.search(clause, 3) else None
    obligation = _OBLIGATION.match(clause) if checks.obligation else None
    if obligation:
        return _kind_of_obligation(clause, obligation)
    if checks.with_restriction and _is_imperative(clause):
        # A restriction inside of "the tests that never run" restricts the tests.
        own = _SUBORDINATE.split(clause, maxsplit=1)[0]
        return "rule" if _RESTRICTION.search(own) else None
    return None


def _begins_with(pattern: MarkedPattern, clause: str) -> bool:
    """Whether the clause matches, for a pattern with few first words."""
    return pattern.may_begin(clause) and pattern.match(clause) is not None


def _is_imperative(clause: str) -> bool:
    """Whether the clause begins with an imperative, or with an adverb before one."""
    if _begins_with(_IMPERATIVE, clause):
        return True
    after_adverb = _without(_ADVERB, clause)
    return after_adverb != clause and _begins_with(_IMPERATIVE, after_adverb)


_SUBORDINATE: Final = re.compile(
    r",? (?:that|which|who|whose|where|because|since|if|when|whether|why|what|how)\b"
    r"|[,;:] (?:i|it|we|they|this)\b(?! (?:must|has to|may|can't))",
    re.IGNORECASE,
)


def _kind_of_obligation(clause: str, obligation: re.Match[str]) -> Kind | None:
    """Return a rule, if the obligation is more than a conclusion about a fact."""
    if _CONCLUDES.search(clause):
        return None
    if _QUANTIFIED.match(clause):
        return "rule"
    is_the_agents = clause[:3].lower() == "you"
    if is_the_agents and _STRONG.search(obligation[0]):
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
