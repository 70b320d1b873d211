"""Excerpts of texts, cut where a reader would cut them."""

from __future__ import annotations

import re
from typing import Final

from refold.domain.envelope import STANDS_FOR

# A cut moves by at most this share of the text on its side, to the end of a line, a
# sentence, or a word.
_LINE_SHARE: Final = 0.4
_SENTENCE_SHARE: Final = 0.4
_WORD_SHARE: Final = 0.2
_SENTENCE_END: Final = re.compile(r"[.!?][\"')\]]*(?=\s)|[。！？；]")
_LONGEST_PLACEHOLDER: Final = 80  # characters


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
        return text[: _outside(text, max(limit, 0), earlier=True)]
    tail = room // 2
    head = room - tail
    end = max(_end_of_head(text, head), min(least, head))
    start = min(_start_of_tail(text, len(text) - tail), len(text) - min(least, tail))
    end = _outside(text, end, earlier=True)
    start = _outside(text, start, earlier=False)
    return text[:end] + mark.format(start - end) + text[start:]


def _end_of_head(text: str, most: int) -> int:
    """The place of the last good cut in the first ``most`` characters."""
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
    """The place of the first good cut from ``first`` on."""
    size = len(text) - first
    line = text.find("\n", first, first + int(size * _LINE_SHARE))
    if line >= 0:
        return line + 1
    sentence = _SENTENCE_END.search(text, first, first + int(size * _SENTENCE_SHARE))
    if sentence:
        return sentence.end()
    word = text.find(" ", first, first + int(size * _WORD_SHARE))
    return word + 1 if word >= 0 else first


def _outside(text: str, place: int, *, earlier: bool) -> int:
    """The place, moved out of a placeholder."""
    nearby = max(0, place - _LONGEST_PLACEHOLDER)
    for match in STANDS_FOR.finditer(text, nearby, place + _LONGEST_PLACEHOLDER):
        if match.start() < place < match.end():
            return match.start() if earlier else match.end()
    return place
