"""Excerpts of texts, cut where a reader would cut them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from refold.projections.context.text import outside_placeholders

# A cut moves by at most this share of the text on its side, to the end of a line, a
# sentence, or a word.
_LINE_SHARE: Final = 0.4
_SENTENCE_SHARE: Final = 0.4
_WORD_SHARE: Final = 0.2
_SENTENCE_END: Final = re.compile(r"[.!?][\"')\]]*(?=\s)|[。！？；]")


def cut_to_sentences(
    text: str, limit: int, mark: str = "[…{}…]", *, least: int = 0
) -> str:
    """Shorten ``text`` to at most ``limit`` characters: its two ends and a mark.

    The cuts fall at the ends of lines, sentences, or words if there are any near, and
    never inside a placeholder of a redacted value.  The mark counts toward the limit.
    If it does not fit, only the beginning of the text remains.

    mark:  contains ``{}`` for the number of characters that are left out.
    least: the characters that stay at both ends, if there is room for them; only a
           placeholder may take some of them away.
    """
    if len(text) <= limit:
        return text
    room = limit - len(mark.format(len(text)))
    if room < 2:
        return text[: outside_placeholders(text, max(limit, 0), earlier=True)]
    longest_tail = room // 2
    longest_head = room - longest_tail
    head_end = _end_of_head(text, longest_head)
    head_end = max(head_end, min(least, longest_head))
    tail_start = _start_of_tail(text, len(text) - longest_tail)
    tail_start = min(tail_start, len(text) - min(least, longest_tail))
    head_end = outside_placeholders(text, head_end, earlier=True)
    tail_start = outside_placeholders(text, tail_start, earlier=False)
    left_out = tail_start - head_end
    return text[:head_end] + mark.format(left_out) + text[tail_start:]


def _end_of_head(text: str, most: int) -> int:
    """Return the place of the last good cut in the first ``most`` characters."""
    line = text.rfind("\n", int(most * (1 - _LINE_SHARE)), most)
    if line > 0:
        return line
    first = int(most * (1 - _SENTENCE_SHARE))
    ends = [match.end() for match in _SENTENCE_END.finditer(text, first, most)]
    if ends:
        return ends[-1]
    word = text.rfind(" ", int(most * (1 - _WORD_SHARE)), most)
    return word if word > 0 else most


def _start_of_tail(text: str, first: int) -> int:
    """Return the place of the first good cut from ``first`` on."""
    size = len(text) - first
    line = text.find("\n", first, first + int(size * _LINE_SHARE))
    if line >= 0:
        return line + 1
    sentence = _SENTENCE_END.search(text, first, first + int(size * _SENTENCE_SHARE))
    if sentence:
        return sentence.end()
    word = text.find(" ", first, first + int(size * _WORD_SHARE))
    return word + 1 if word >= 0 else first


# Shorter excerpts of an answer are its two ends.
_SHORTEST_GIST: Final = 160
_LINE: Final = re.compile(r"[^\n]+")
_FENCE: Final = re.compile(r"\s*(?:```|~~~)")
_TABLE_OR_QUOTE: Final = re.compile(r"\s*[|>]")
# Numbered points of an answer, and points with a name in bold letters.
_NAMED_POINT: Final = re.compile(r"\s*(?:\d+[.)]\s|(?:[-*+]\s+)?\*\*)")
_POINT: Final = re.compile(r"\s*[-*+•]\s")
# A line that only announces what follows.
_HEADING: Final = re.compile(r"\s*#{1,6}\s|.*:\**\s*$")
_NUMBER: Final = re.compile(r"\s*(?:#{1,6}\s+|[-*+]\s+)?\**\d+\.")
# White space and marks of earlier cuts at the beginning of a sentence.
_SPACES_AND_MARKS: Final = re.compile(r"(?:\s|\[…\d+…\])+")
_FEWEST_WORDS: Final = 3  # of a heading that says something
# Words of sentences that say what was decided, what is wrong, and what remains.
_TELLING: Final = re.compile(
    r"\b(?:because|cause[ds]?|decid\w+|instead|must|never|only|should|recommend\w*"
    r"|remain\w*|next|todo|not yet|fail\w*|error|bug|broken|fix(?:ed|es)?"
    r"|pass(?:es|ed)?|commit(?:ted)?|push(?:ed)?|revert\w*|skip\w*|wrong|blocked|unable)\b"
    r"|因为|原因|决定|必须|不要|应该|建议|剩余|下一步|失败|错误|修复|通过|提交",
    re.IGNORECASE,
)


def gist(text: str, limit: int, mark: str = "[…{}…]") -> str:
    """Shorten an answer to at most ``limit`` characters: its most telling sentences.

    The first and the last sentence stay, then lines that name the parts of the answer
    and sentences that say what was decided, what failed, or what remains.  A mark
    stands for what is left out between two of them.  A short excerpt, and one of a text
    without sentences, consists of the two ends of the text.

    mark: as of ``cut_to_sentences``.
    """
    if len(text) <= limit:
        return text
    sentences = _sentences(text)
    ends = [sentence for sentence in sentences if sentence.rank == 0]
    shown = _joined(text, ends, mark)
    if limit < _SHORTEST_GIST or len(ends) < 2 or len(shown) > limit:
        return cut_to_sentences(text, limit, mark)
    chosen = ends
    # The most telling first: a rank comes before a place.
    waiting = sorted(sentence for sentence in sentences if sentence.rank > 0)
    longest_mark = len(mark.format(len(text))) + 1  # and the end of a line
    while True:
        # Sentences next to each other need no mark, so there may be room for more.
        room = limit - len(shown)
        added: list[_Sentence] = []
        for sentence in waiting:
            cost = sentence.end - sentence.start + longest_mark
            if cost <= room:
                room -= cost
                added.append(sentence)
        if not added:
            return shown
        chosen = [*chosen, *added]
        waiting = [sentence for sentence in waiting if sentence not in added]
        shown = _joined(text, chosen, mark)


def _joined(text: str, sentences: Iterable[_Sentence], mark: str) -> str:
    """Sentences in their order, with a mark where something is left out."""
    parts: list[str] = []
    end = 0
    for sentence in sorted(sentences, key=lambda sentence: sentence.start):
        gap = text[end : sentence.start]
        gap_mark = mark.format(len(gap))
        if len(gap) <= len(gap_mark):
            parts.append(gap)
        else:
            parts.append(gap_mark)
            if "\n" in gap:
                parts.append("\n")
        parts.append(text[sentence.start : sentence.end])
        end = sentence.end
    return "".join(parts)


class _Sentence(NamedTuple):
    """A sentence of an answer.

    rank: 0 for the first and the last one, and more for those that say less.
    """

    rank: int
    start: int
    end: int


def _sentences(text: str) -> list[_Sentence]:
    """Return the sentences of a text in their order."""
    sentences: list[_Sentence] = []
    is_code = False
    for line in _LINE.finditer(text):
        if _FENCE.match(line[0]):
            is_code = not is_code
            continue
        start = line.start()
        for end_in_line in _ends_of_sentences(line[0], is_code=is_code):
            end = line.start() + end_in_line
            sentence = text[start:end]
            if sentence.strip():
                is_first = start == line.start()
                rank = 5 if is_code else _rank(sentence, is_first=is_first)
                space_or_mark = _SPACES_AND_MARKS.match(sentence)
                if space_or_mark:
                    start += space_or_mark.end()
                if start < end:
                    sentences.append(_Sentence(rank, start, end))
            start = end
    if sentences:
        sentences[0] = sentences[0]._replace(rank=0)
        sentences[-1] = sentences[-1]._replace(rank=0)
    return sentences


def _ends_of_sentences(line: str, *, is_code: bool) -> list[int]:
    """The places in a line where its sentences end.

    The period of a point's number, as in ``2.``, ends no sentence.  A line of code is
    one sentence.
    """
    if is_code:
        return [len(line)]
    ends: list[int] = []
    for match in _SENTENCE_END.finditer(line):
        if not _NUMBER.fullmatch(line[: match.end()]):
            ends.append(match.end())
    return [*ends, len(line)]


def _rank(sentence: str, *, is_first: bool) -> int:
    """The rank of a sentence, from 1 on: the less it says, the higher.

    is_first: whether it begins its line.
    """
    if _TABLE_OR_QUOTE.match(sentence):
        return 4
    if is_first and _HEADING.match(sentence):
        return 2 if len(sentence.split()) > _FEWEST_WORDS else 3
    if is_first and _NAMED_POINT.match(sentence):
        return 1
    if _TELLING.search(sentence):
        return 1
    return 2 if is_first and _POINT.match(sentence) else 3
