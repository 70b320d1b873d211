"""The words of the agent that an answer is about: "2", "yes", "let's go with A"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from refold.projections.context.excerpts import cut_to_sentences
from refold.projections.context.limits import LONGEST_ANSWER, LONGEST_CHOICE

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


def subject_of(answer: str, offer: str, *, at_length: bool = False) -> str:
    """Return the words of the agent that an answer of the user is about.

    These are the options that it names, or else the question that it agrees or
    disagrees with.

    answer:    the message of the user.
    offer:     the text of the agent before it.
    at_length: whether an answer may also be long, and name options anywhere.

    Returns an empty text for a message that no text of the agent explains.
    """
    answer = answer.strip()
    is_long = len(answer) > LONGEST_ANSWER
    if is_long and not at_length:
        return ""
    offer = _FENCED.sub("", offer).rstrip()
    question = _question_at_end(offer)
    if _ASKS_NUMBER.search(question) and not is_long:
        return _shown(question)
    if question or _LETS_CHOOSE.search(offer):
        chosen: list[str] = []
        if not is_long and not (at_length and _COUNTS_OTHERS.match(answer)):
            chosen = _chosen(answer, list(_OPTION.finditer(offer)))
        if not chosen and at_length:
            chosen = _named_options(answer, offer)
        if chosen:
            return "; ".join(_shown(option) for option in chosen[:_MOST_OPTIONS])
    agreement = _AGREES_AT_LENGTH if is_long else _AGREES
    return _shown(question) if agreement.match(answer) else ""


def may_answer(text: str) -> bool:
    """Whether a message may be an answer that words of the agent explain."""
    text = text.strip()
    if len(text) <= LONGEST_ANSWER:
        return True
    if len(text) > LONGEST_CHOICE:
        return False
    if _AGREES_AT_LENGTH.match(text):
        return True
    return next(_references(text), None) is not None


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


# ---- Options that a message names anywhere ----


class _Reference(NamedTuple):
    """The place at which a message names an option.

    label:   the option's letter, or its number in digits; empty for an ordinal.
    ordinal: the place in the list, from 0, or -1 for the last one.
    """

    place: int
    label: str
    ordinal: int = 0


class _Option(NamedTuple):
    label: str
    text: str


_CHINESE_NUMBERS: Final = {
    "一": "1",
    "二": "2",
    "两": "2",
    "三": "3",
    "四": "4",
    "五": "5",
}
_OPTION_NOUN: Final = (
    r"(?:options?|approach(?:es)?|variants?|alternatives?|solutions?|proposals?"
    r"|suggestions?|choices?)"
)
_CHINESE_NOUN: Final = r"(?:方案|选项|做法|办法|方法|思路|方式)"
_CHINESE_LABEL: Final = r"(?:\d{1,2}|[A-Ha-h]|[一二两三四五])"
_CHINESE_LABELS: Final = rf"{_CHINESE_LABEL}(?:\s*[和与及、]\s*{_CHINESE_LABEL})*"
# An option on a line of its own, also as "Option A (recommended)" and "方案一".
_LABELLED_LINE: Final = re.compile(
    r"^[ \t]*(?:[-*+•>][ \t]+|#{1,6}[ \t]+)?\**"
    rf"(?:(?:{_OPTION_NOUN}[ \t]*|{_CHINESE_NOUN}[ \t]*)(?P<chinese>[一二两三四五])"
    rf"|(?:(?:{_OPTION_NOUN}|{_CHINESE_NOUN})[ \t]*)?(?P<label>\d{{1,2}}|[A-H]))"
    r"\**+(?:[ \t]*[(（][^()（）\n]{1,40}[)）]\**+)?[ \t]*+[.):：、—–-]\**[ \t]*\S.*$",
    re.IGNORECASE | re.MULTILINE,
)
# Options inside of a sentence: "(A) rewrite it or (B) patch it".
_INLINE: Final = re.compile(r"(?<![\w(])\(?(?P<label>[A-H]|[1-9])\)\s+(?=\S)")
_END_OF_INLINE: Final = re.compile(r"[?？\n]|[.。](?:\s|$)")
_LONGEST_INLINE: Final = 200
# Text that is not the user's: code, quotations, and quoted lines.
_QUOTED: Final = re.compile(
    r"`[^`\n]*`|\"[^\"\n]*\"|“[^“”\n]*”|「[^「」\n]*」|^[ \t]*>[^\n]*", re.MULTILINE
)
# Verbs with which a message chooses, up to the words in front of the label.
_CHOOSES: Final = (
    r"\b(?:(?:go(?:ing)?|proceed|stick|start|continue|agree|happy|fine|ok|okay)"
    r"(?: ahead)? with|(?:opt|vote|vot(?:ing)|settle) (?:for|on)|in favou?r of"
    r"|lean(?:ing)? (?:towards?|to)|go(?:ing)? for"
    r"|fix(?:es)?(?: for)?|address|tackle|(?:work|focus) on|look (?:at|into)"
    r"|investigate|do|pick|choose|chose|take|use|prefer|favou?r|implement|try"
    r"|like|want|so|then|(?:choice|pick|vote|preference|decision) is)"
)
# The words after a bare label: "A because …", "B over C".
_AFTER_LABEL: Final = (
    r"(?=\s*(?:[,.;:!)，。；！）]|$)|\s+[-–—(]"
    r"|\s+(?:it is|because|since|but|over|instead|please|for now|now"
    r"|as (?:it|that|this|you|we)"
    r"|and (?:then|also|please|make|keep|add|do|not|drop|skip|let|see|check)"
    r"|then|here|though|with|so (?:that|we)|if)\b)"
)
_BARE_LABEL: Final = r"(?:[A-H]|\d{1,2})(?![A-Za-z0-9_%]|\.\d)"
_BETWEEN_LABELS: Final = r"\s*(?:,|and\b|or\b|&|\+|over\b|rather than|instead of)\s*"
_BARE: Final = rf"{_BARE_LABEL}(?:{_BETWEEN_LABELS}{_BARE_LABEL})*"
_ORDINAL: Final = r"(?:first|second|third|fourth|fifth|last)"
_OF_LIST: Final = (
    r"(?:option|approach|variant|alternative|solution|proposal|suggestion|choice)"
)
_CHINESE_CHOOSES: Final = r"(?:选择?|用|采用|就|走|按|要|倾向于?|同意|支持|那就)"
_NAMED_ANYWHERE: Final = re.compile(
    # "option B", "approach 2 and 3"
    rf"\b(?i:{_OPTION_NOUN})\s+\(?#?(?P<named>{_BARE}(?!-)|[b-h](?![\w.'’-]))"
    # "go with A because", "I prefer B."
    rf"|(?i:{_CHOOSES})(?: both)?(?: either)? (?:#|(?i:number|no\.) )?\(?"
    rf"(?P<bare>{_BARE})\)?{_AFTER_LABEL}"
    # "the second option"
    rf"|\b(?i:(?:(?P<earlier>{_ORDINAL}) (?:and|or|over) (?:the )?|the )"
    rf"(?P<ordinal>{_ORDINAL}) {_OF_LIST})\b"
    # "go with the second one"
    rf"|(?i:{_CHOOSES} the (?P<one>{_ORDINAL})(?: one\b|{_AFTER_LABEL}))"
    # "就用方案A", "选项 2"
    rf"|{_CHINESE_NOUN}\s*(?P<chinese>{_CHINESE_LABELS})(?![A-Za-z0-9_种个]|\.\d)"
    # "就用 A 吧", "选 2"
    rf"|{_CHINESE_CHOOSES}\s*(?P<chosen>[A-H]|\d{{1,2}})"
    r"(?=\s*(?:吧|，|。|；|！|,|\.|、|因为|但|方案|$))"
    # "第二个方案", "选第二个"
    rf"|第(?P<nth>[一二三四五1-5])\s*[个种条项]?{_CHINESE_NOUN}"
    rf"|{_CHINESE_CHOOSES}\s*第(?P<picked>[一二三四五1-5])\s*[个种条项]",
    re.MULTILINE,
)
_BEGINS_SENTENCE: Final = re.compile(
    r"(?:^|(?<=[.!?。！？]\s))[ \t]*(?P<label>[A-H])"
    r"(?:,\s|，|\s+[-–—]\s|\s+(?:it is|please)\b)",
    re.MULTILINE,
)
# "第二个测试": the second test, not the second option.
_COUNTS_OTHERS: Final = re.compile(
    rf"\W*+第[一二三四五][个种条项](?!{_CHINESE_NOUN}|[吧就更比较好可也对行])[\u4e00-\u9fff]"
)
_AGREES_AT_LENGTH: Final = re.compile(
    r"\W*+(?:yes|yep|yeah|yup|sure|no|nope|agreed|agree|sounds good|looks good"
    r"|go ahead|correct|exactly|yes please|好的?|可以的?|是的?|对的?|行|不用?|嗯|同意)"
    r"(?=[,.!;:，。！；、]|\s[-–—]\s)",
    re.IGNORECASE,
)


# A letter inside of a word is no label.
_ONE_OF_LABELS: Final = re.compile(
    r"(?<![A-Za-z])[A-Ha-h](?![A-Za-z])|\d{1,2}|[一二两三四五]"
)


def _references(text: str) -> Iterator[_Reference]:
    """Yield the places at which a message names an option, in its own words.

    The message may choose the option or reject it: a reader needs the option's text to
    understand both.
    """
    own = _QUOTED.sub(_blank, _FENCED.sub(_blank, text))
    for named in _NAMED_ANYWHERE.finditer(own):
        yield from _references_of(named)
    if len(_ITEM.findall(own)) <= 1:
        for begin in _BEGINS_SENTENCE.finditer(own):
            yield _Reference(begin.start("label"), begin["label"])


def _blank(quoted: re.Match[str]) -> str:
    """Return as many spaces, so that places stay the same."""
    return " " * len(quoted[0])


def _references_of(named: re.Match[str]) -> Iterator[_Reference]:
    place = named.start()
    ordinal = named["ordinal"] or named["one"]
    nth = named["nth"] or named["picked"]
    if named["earlier"]:
        yield _Reference(place, "", _ORDINALS[named["earlier"].lower()])
    if ordinal:
        yield _Reference(place, "", _ORDINALS[ordinal.lower()])
    elif nth:
        yield _Reference(place, "", int(_CHINESE_NUMBERS.get(nth, nth)) - 1)
    else:
        labels = named["named"] or named["bare"] or named["chinese"] or named["chosen"]
        for label in _ONE_OF_LABELS.findall(labels):
            yield _Reference(place, _CHINESE_NUMBERS.get(label, label.upper()))


def _named_options(answer: str, offer: str) -> list[str]:
    """Return the options of an offer that an answer names, in its order."""
    options = _options_in(offer)
    chosen: list[str] = []
    for reference in sorted(_references(answer)):
        option = _option_of(reference, options)
        if option is not None and option.text not in chosen:
            chosen.append(option.text)
    return chosen


def _options_in(offer: str) -> list[_Option]:
    """Return the options of the newest list in an offer."""
    lines = [
        _Option(_label_of(line["chinese"] or line["label"]), line[0])
        for line in _LABELLED_LINE.finditer(offer)
    ]
    if len(lines) < _FEWEST_OPTIONS:
        lines = _inline_options(offer)
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].label in ("1", "A"):
            return lines[index:]
    return lines


_FEWEST_OPTIONS: Final = 2


def _label_of(label: str) -> str:
    return _CHINESE_NUMBERS.get(label, label.upper())


def _inline_options(offer: str) -> list[_Option]:
    """Return the options inside of the sentences of an offer."""
    labels = list(_INLINE.finditer(offer))
    options: list[_Option] = []
    for index, label in enumerate(labels):
        end = min(len(offer), label.start() + _LONGEST_INLINE)
        if index + 1 < len(labels):
            end = min(end, labels[index + 1].start())
        sentence_end = _END_OF_INLINE.search(offer, label.end(), end)
        if sentence_end is not None:
            end = sentence_end.start()
        text = _JOINING_WORD.sub("", offer[label.start() : end])
        options.append(_Option(_label_of(label["label"]), text))
    return options if len(options) >= _FEWEST_OPTIONS else []


_JOINING_WORD: Final = re.compile(r"[,;，；]?\s*(?:\b(?:or|and)\b|或者?|还是)?\s*\Z")


def _option_of(reference: _Reference, options: Sequence[_Option]) -> _Option | None:
    """Return the option that a reference names; None if the offer lacks it."""
    place = reference.ordinal
    if reference.label:
        for option in options:
            if option.label == reference.label:
                return option
        # "Option 2" of options with letters is the second one, and the reverse.
        is_number = reference.label.isdigit()
        if any(option.label.isdigit() == is_number for option in options):
            return None
        place = (
            int(reference.label) - 1 if is_number else ord(reference.label) - ord("A")
        )
        if place < 0:  # "option 0"
            return None
    if not options or place >= len(options):
        return None
    return options[place]
