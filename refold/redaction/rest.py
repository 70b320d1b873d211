"""What may still be found in the pieces that are left of a text."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Final

from refold.redaction.compiled import CONTEXT
from refold.redaction.engines import Hit
from refold.redaction.scan import Prepared, Scanner

# How many characters before a hit rules, their words and their judges may look at.
_BACK: Final = 3 * CONTEXT
# Next to these, the end of a text makes no more difference than any other character.
_INERT: Final = frozenset(" \t\r\n,;\"'`<>[]{}|!?")
_IN_RUN: Final = "0123456789 .()-/"
_LONG: Final = 48


class Rest:
    """The hits of a text that may come out otherwise in one of its pieces by itself.

    All others found nothing, and will not.
    """

    __slots__ = ("_ends", "_hits", "_scanner", "_text")

    def __init__(self, prepared: Prepared, scanner: Scanner) -> None:
        text = prepared.text
        self._text = text if prepared.folded.text is text else ""
        self._scanner = scanner
        self._hits = sorted(prepared.hits, key=itemgetter(1))
        self._ends = [end for _, end in self._hits]

    def of(self, start: int, stop: int) -> list[Hit] | None:
        """Those of the piece from ``start`` to ``stop``, in order.

        None: the piece has to be scanned, as there may be new ones.
        """
        text, ends, scanner = self._text, self._ends, self._scanner
        first, last = start == 0, stop == len(text)
        if not text or not (
            (first or _is_inert(text, start, start, min(stop, start + _LONG)))
            and (last or _is_inert(text, stop - 1, max(start, stop - _LONG), stop))
        ):
            return None
        begin = bisect_right(ends, start)
        limit = bisect_right(ends, stop + scanner.furthest, begin)
        reach, ahead = scanner.reach, scanner.ahead
        return [
            (number, min(end, stop) - start)
            for number, end in self._hits[begin:limit]
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
