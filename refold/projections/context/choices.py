"""The choice behind a short answer of the user: "2", "yes", "the second one"."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
_AGREEMENT: Final = (
    r"(?:yes|yep|yeah|yup|ok(?:ay)?|sure|no|nope|please|go ahead|go|do (?:it|that|so)"
    r"|let'?s (?:go|do)|continue|proceed|sounds good|looks good|agreed?|correct|right"
    r"|exactly|好|行|可以|是|对|不|嗯|同意|继续)"
)
_AGREES: Final = re.compile(rf"\W*{_AGREEMENT}(?![a-z])", re.IGNORECASE)
# An answer that names options by their labels, in front or behind a word for them.
_LABELS: Final = re.compile(
    rf"\W*(?:(?:{_AGREEMENT}|do|with|take|the)\W+)*"
    r"(?:(?:options?|approach|number|no\.?|方案|选项|第)\s*)?#?"
    r"(?P<labels>(?:\d{1,2}|[A-H](?=\W|$))"
    r"(?:\s*(?:,|and|or|&|\+|和|、)\s*(?:\d{1,2}|[A-H]\b))*)(?![\w-])",
    re.IGNORECASE,
)
_ARTICLE: Final = re.compile(r"\W*a\s", re.IGNORECASE)
_LABEL: Final = re.compile(r"\d{1,2}|\b[A-H]\b", re.IGNORECASE)
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
_ORDINAL: Final = re.compile(
    rf"(?:\bthe )?({'|'.join(_ORDINALS)})(?: one| option|个|种|$)", re.IGNORECASE
)
_MARKUP: Final = re.compile(r"\*\*|^[ \t]*(?:[-*+•>]|#{1,6})[ \t]+")
_QUESTION: Final = re.compile(r"[^.!?。！？\n]+[?？]")


def choice(answer: str, offer: str) -> str:
    """Return what a short answer of the user chose or was asked, between brackets.

    answer: the message of the user.
    offer:  the text of the agent before it.

    Returns an empty text for a message that no text of the agent explains.
    """
    answer = answer.strip()
    if len(answer) > LONGEST_ANSWER:
        return ""
    offer = _FENCED.sub("", offer)
    chosen = list(_chosen(answer, offer))
    if chosen:
        options = "; ".join(_shown(option) for option in chosen[:_MOST_OPTIONS])
        return f"(chosen: {options})"
    if not _AGREES.match(answer):
        return ""
    questions = _QUESTION.findall(offer)
    return f"(asked: {_shown(questions[-1])})" if questions else ""


def _chosen(answer: str, offer: str) -> Iterator[str]:
    """The lines of the options that an answer names, in the order of the answer."""
    options = list(_OPTION.finditer(offer))
    ordinal = _ORDINAL.search(answer)
    if ordinal is not None:
        place = _ORDINALS[ordinal[1].lower()]
        if options and place < len(options):
            yield options[place][0]
        return
    named = _LABELS.match(answer)
    if named is None or _ARTICLE.match(answer):
        return
    for label in _LABEL.findall(named["labels"]):
        for option in reversed(options):  # the newest of several lists
            if option["label"].lower() == label.lower():
                yield option[0]
                break


def _shown(line: str) -> str:
    """A line of an answer without its markup, cut to its limit."""
    plain = _MARKUP.sub("", line)
    return cut_to_sentences(" ".join(plain.split()), _LONGEST_OPTION)
