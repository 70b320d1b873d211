"""What may still be found in the pieces that are left of a text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from refold.redaction.compiled import CONTEXT
from refold.redaction.engines import Hit
from refold.redaction.scan import Prepared

# How many characters before a hit rules, their words and their judges may look at.
_BACK: Final = 3 * CONTEXT
# Next to these, the end of a text makes no more difference than any other character.
_INERT: Final = frozenset(" \t\r\n,;\"'`<>[]{}|!?")
_IN_RUN: Final = "0123456789 .()-/"
_LONG: Final = 48


def rest(
    prepared: Prepared,
    start: int,
    stop: int,
    reach: Sequence[int],
    ahead: Sequence[int],
    furthest: int,
) -> list[Hit] | None:
    """The hits, in order, of a text that may come out otherwise in its piece by itself.

    All others found nothing, and will not.  None: the piece has to be scanned, as there
    may be new ones.

    reach: by trigger, how many characters before its end a hit may begin.
    ahead: by trigger, how many characters after its end its rules look at.
    furthest: the largest of ``reach``.
    """
    text = prepared.text
    first, last = start == 0, stop == len(text)
    if prepared.folded.text is not text or not (
        (first or _is_inert(text, start, start, min(stop, start + _LONG)))
        and (last or _is_inert(text, stop - 1, max(start, stop - _LONG), stop))
    ):
        return None
    hits = prepared.hits
    begin = bisect_right(hits, start, key=itemgetter(1))
    limit = bisect_right(hits, stop + furthest, begin, key=itemgetter(1))
    return [
        (number, min(end, stop) - start)
        for number, end in hits[begin:limit]
        if end - reach[number] <= stop
        and (
            (not first and end - start < _BACK)
            or (not last and end + ahead[number] > stop)
        )
    ]


def _is_inert(text: str, place: int, start: int, stop: int) -> bool:
    """Whether no value can begin or end, at ``place``, only now."""
    character = text[place]
    if character <= "\x7f" and character not in _INERT:
        return False
    # A run of digits that goes on so far may be another one when it is cut.
    return stop - start < _LONG or bool(text[start:stop].strip(_IN_RUN))
