"""Streams equal complete texts: documents cut at many places, redacted both ways.

``python -m benchmarks.redaction.streams SECONDS SEED`` cuts documents for that long and
prints each that a stream redacts differently.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from time import monotonic
from typing import NamedTuple

from benchmarks.redaction import adversarial, laws
from refold.redaction.pieces import StreamRedactor
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor

# A stream holds back some hundred characters, so documents must be longer.
_LENGTH = 1800
_PROSE = (
    "The build went on for a while and nobody looked at it. Then the next step began.\n"
)
_JOINTS = ("\n", " ", "", "\n\n", ", ", "\\n", ": ", "=")
_STEPS = (1, 7, 64, 65, 100, 300)


class Run(NamedTuple):
    """A document, and the places at which it is cut into pieces."""

    text: str
    cuts: Sequence[int]

    @property
    def pieces(self) -> Iterator[str]:
        """The pieces, in order."""
        start = 0
        for cut in (*self.cuts, len(self.text)):
            yield self.text[start:cut]
            start = cut


@cache
def _placed() -> list[str]:
    """The texts in which attackers placed secrets."""
    halves = [adversarial.cases(half, times=1) for half in ("dev", "held_out")]
    return [case.text for half in halves for case in half]


def document(random: Random) -> str:
    """Return placed secrets, generated texts and prose in a row."""
    parts: list[str] = []
    length = 0
    while length < _LENGTH:
        kind = random.random()
        if kind < 0.4:
            part = random.choice(_placed())
        elif kind < 0.7:
            part = laws.text(random)
        else:
            part = _PROSE * random.randint(1, 6)
        part += random.choice(_JOINTS)
        parts.append(part)
        length += len(part)
    return "".join(parts)


def runs(random: Random) -> Iterator[Run]:
    """A document, cut once, a few times, and into pieces of one length."""
    text = document(random)
    yield Run(text, [random.randrange(len(text))])
    count = random.randint(2, 12)
    yield Run(text, sorted(random.randrange(len(text)) for _ in range(count)))
    step = random.choice(_STEPS)
    yield Run(text, range(step, len(text), step))


def streamed(redactor: Redactor, run: Run) -> str:
    """The document as a stream redacts it."""
    stream = StreamRedactor(redactor)
    ready = [stream.feed(piece) for piece in run.pieces]
    return "".join([*ready, stream.close()])


def main() -> None:
    """Cut documents, and print the differences."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    random = Random(sys.argv[2] if len(sys.argv) > 2 else "streams")
    redactor = Redactor(Plan(engine="stdlib"))
    end = monotonic() + seconds
    count = 0
    differing = 0
    while monotonic() < end:
        for run in runs(random):
            count += 1
            whole, _ = redactor.text(run.text)
            if streamed(redactor, run) != whole:
                differing += 1
                print(f"differs, cut at {list(run.cuts)[:8]}: {run.text!r}")
    print(f"{count} runs, {differing} differ")


if __name__ == "__main__":
    main()
