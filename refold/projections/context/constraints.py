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
        if _FENCE.match(line):
            is_code = not is_code
            continue
        if is_code or _QUOTED_LINE.match(line):
            continue
        bullet = _BULLET.match(line)
        start = bullet.end() if bullet else 0
        for ending in _SENTENCE_END.finditer(line):
            yield from _place(line, line_start, start, ending.end())
            start = ending.end()
        yield from _place(line, line_start, start, len(line))


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
    if _CHINESE_CHARACTER.search(sentence):
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


def _kind_of_english(sentence: str) -> Kind | None:
    sentence = sentence.replace("’", "'").strip()
    sentence = _POLITE_END.sub("", sentence).strip("*_ ")
    is_request = _POLITE_QUESTION.match(_without(_AND, sentence)) is not None
    if sentence.endswith("?") and not is_request:
        return None
    plain = _QUOTATION.sub("QUOTED", sentence).rstrip(".!?) ")
    if _REPORT.search(plain):
        return None
    if _APPROVAL.search(_without(_OPENING, plain)) and not _is_about_others(plain):
        return "approval"
    if _is_standing(plain):
        return "rule"
    for clause in _clauses(plain):
        if _QUESTION.match(clause) and not is_request:
            continue
        kind = _kind_of_clause(clause)
        if kind is not None:
            return kind
    return None


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
    without_opening = _without(_OPENING, sentence)
    adverbial = _ADVERBIAL.match(without_opening)
    if adverbial is None or not _STANDING.match(without_opening):
        return False
    main = _without(_OPENING, without_opening[adverbial.end() :])
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
    main = _ADVERBIAL.match(_without(_OPENING, sentence))
    if main:
        sentence = _without(_OPENING, sentence)
        sentence = sentence[main.end() :]
        yield sentence
    breaks = _CONCLUSION if _STATEMENT.match(sentence) else _CLAUSE_BREAK
    for ending in breaks.finditer(sentence):
        yield sentence[ending.end() :]


def _without(opening: re.Pattern[str], clause: str) -> str:
    start = opening.match(clause)
    return clause[start.end() :] if start else clause


def _kind_of_clause(clause: str) -> Kind | None:
    without_opening = _without(_OPENING, clause)
    for candidate in dict.fromkeys((clause, without_opening)):
        kind = _kind_of_instruction(candidate)
        if kind is not None:
            return kind
    return None


def _kind_of_instruction(clause: str) -> Kind | None:
    if _PERMISSION.match(clause):
        return "permission"
    prohibition = _PROHIBITION.match(clause)
    if prohibition:
        reports = clause[:2].lower() == "no" and _REPORTS_NONE.search(clause)
        return None if reports else "prohibition"
    if _RULE.match(clause):
        return "rule"
    if _UNWANTED.match(clause):
        return "prohibition"
    if _WISH.match(clause):
        return "rule" if _RESTRICTION.search(clause, 3) else None
    obligation = _OBLIGATION.match(clause)
    if obligation:
        return _kind_of_obligation(clause, obligation)
    if _IMPERATIVE.match(clause):
        # A restriction inside of "the tests that never run" restricts the tests.
        own = _SUBORDINATE.split(clause, maxsplit=1)[0]
        return "rule" if _RESTRICTION.search(own) else None
    return None


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
