"""The words of the agent that a short answer is about: "2", "yes", "the second one"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from refold.projections.context.excerpts import cut_to_sentences
from refold.projections.context.limits import LONGEST_ANSWER

_LONGEST_OPTION: Final = 160
_MOST_OPTIONS: Final = 3
_FENCED: Final = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.DOTALL | re.MULTILINE)
# A line of an answer that offers an option: "2. …", "- **B)** …", "Option 3: …".
_OPTION: Final = re.compile(
    r"^[ \t]*(?:[-*+•>][ \t]+|#{1,6}[ \t]+)?\**(?:(?:option|approach|方案|选项)[ \t]*)?"
    r"(?P<label>\d{1,2}|[A-H])\**[ \t]*[.):：—-]\**[ \t]*\S.*$",
    re.IGNORECASE | re.MULTILINE,
)
# Words with which the agent lets the user choose.
_LETS_CHOOSE: Final = re.compile(
    r"\b(?:options?|which|choose|choice|pick|prefer)\b|方案|选项|选择|哪", re.IGNORECASE
)
_ANSWER: Final = (
    r"(?:yes|yep|yeah|yup|ok(?:ay)?|sure|no|nope|好|行|可以|是|对|不|嗯|同意)"
)
_AGREEMENT: Final = (
    r"(?:please|go ahead|go|do (?:it|that|so)|let'?s (?:go|do)|continue|proceed"
    r"|sounds good|looks good|agreed?|correct|right|exactly|继续)"
)
# The end of a message, or the beginning of a remark behind the answer.
_AFTER_ANSWER: Final = (
    r"(?:(?:\s+(?:please|thanks|thx)|吧)?\W*\Z|[.,;:)](?:\s|\Z)|\s[-–—]\s"
    r"|[，。；：、）])"
)
_AGREES: Final = re.compile(
    rf"\W*+(?:{_ANSWER}(?![a-z])|{_AGREEMENT}{_AFTER_ANSWER})", re.IGNORECASE
)
# Words in front of a label or an ordinal.
_BEFORE_CHOICE: Final = rf"\W*+(?:(?:{_ANSWER}|{_AGREEMENT}|do|with|take|use|the)\W+)*"
_ONE_LABEL: Final = r"(?:\d{1,2}|[A-H])(?![A-Za-z0-9_]|\+(?!\d))"
_LABELS: Final = rf"{_ONE_LABEL}(?:\s*+(?:,|and\b|or\b|&|\+|和|、)\s*+{_ONE_LABEL})*+"
# An answer that names options by labels: alone, before a remark, or behind a word for
# them.  Elsewhere, a number counts something or is part of a version.
_NAMES_LABELS: Final = re.compile(
    rf"{_BEFORE_CHOICE}(?:"
    rf"(?:options?|approach|number|no\.|方案|选项|第|选)\s*+#?(?P<named>{_LABELS})"
    rf"(?!\.\d|-\w)|#?(?P<alone>{_LABELS}){_AFTER_ANSWER}"
    r")",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(r"\d{1,2}|\b[A-H]\b", re.IGNORECASE)
# A numbered list of the user has labels of its own.
_ITEM: Final = re.compile(r"(?<!\w)(?:\d{1,2}|[A-H])[.):]\s", re.IGNORECASE)
_ORDINALS: Final = {
    "first": 0,
    "second": 1,
    "third": 2,
    "fourth": 3,
    "fifth": 4,
    "last": -1,
    "第一": 0,
    "第二": 1,
    "第三": 2,
    "最后": -1,
}
_NAMES_ORDINAL: Final = re.compile(
    rf"{_BEFORE_CHOICE}(?<=the )(?P<ordinal>first|second|third|fourth|fifth|last)\b"
    rf"(?: (?:one|option|approach)\b|{_AFTER_ANSWER})"
    rf"|{_BEFORE_CHOICE}(?P<chinese>第[一二三]|最后)(?:一?[个种]|{_AFTER_ANSWER})",
    re.IGNORECASE,
)
# A question that a number answers, whatever list stands before it.
_ASKS_NUMBER: Final = re.compile(
    r"\bhow (?:many|much|long|often|old|big|large|deep)\b"
    r"|\b(?:what|which) (?:number|port|percentage|limit|size|timeout|version)\b"
    r"|几|多少|多久",
    re.IGNORECASE,
)
_MARKUP: Final = re.compile(r"\*\*|^[ \t]*(?:[-*+•>]|#{1,6})[ \t]+")
_QUESTION: Final = re.compile(r"(?<![^.!?。！？\n])[^.!?。！？\n]++[?？]")


def subject_of(answer: str, offer: str) -> str:
    """Return the words of the agent that a short answer of the user is about.

    These are the options that it chose, or else the question that it agrees or
    disagrees with.

    answer: the message of the user.
    offer:  the text of the agent before it.

    Returns an empty text for a message that no text of the agent explains.
    """
    answer = answer.strip()
    if len(answer) > LONGEST_ANSWER:
        return ""
    offer = _FENCED.sub("", offer).rstrip()
    question = _question_at_end(offer)
    if _ASKS_NUMBER.search(question):
        return _shown(question)
    if question or _LETS_CHOOSE.search(offer):
        chosen = _chosen(answer, list(_OPTION.finditer(offer)))
        if chosen:
            return "; ".join(_shown(option) for option in chosen[:_MOST_OPTIONS])
    return _shown(question) if _AGREES.match(answer) else ""


def _question_at_end(offer: str) -> str:
    """Return the newest question in the last paragraph of a text; empty without one."""
    questions = _QUESTION.findall(offer.rpartition("\n\n")[2])
    return questions[-1] if questions else ""


def _chosen(answer: str, options: Sequence[re.Match[str]]) -> list[str]:
    """Return the lines of the options that an answer names, in its order."""
    by_ordinal = _NAMES_ORDINAL.match(answer)
    if by_ordinal is not None:
        ordinal = by_ordinal["ordinal"] or by_ordinal["chinese"]
        place = _ORDINALS[ordinal.casefold()]  # also with a long s
        newest = _newest_list(options)
        return [newest[place][0]] if place < len(newest) and newest else []
    by_label = _NAMES_LABELS.match(answer)
    if by_label is None or len(_ITEM.findall(answer)) > 1:
        return []
    chosen: list[str] = []
    for label in _LABEL.findall(by_label["named"] or by_label["alone"]):
        for option in reversed(options):  # the newest of several lists
            if option["label"].lower() == label.lower():
                chosen.append(option[0])
                break
    return chosen


def _newest_list(options: Sequence[re.Match[str]]) -> Sequence[re.Match[str]]:
    """Return the options from the last one on that begins a list."""
    for index in range(len(options) - 1, -1, -1):
        if options[index]["label"].lower() in ("1", "a"):
            return options[index:]
    return options


def _shown(line: str) -> str:
    """Return a line of an answer without its markup, cut to its limit."""
    plain = _MARKUP.sub("", line)
    return cut_to_sentences(" ".join(plain.split()), _LONGEST_OPTION)
