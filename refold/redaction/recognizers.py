"""A user's own recognizer of values, and the guard that runs it safely."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Protocol

from refold.redaction.types import canonical, well_formed
from refold.redaction.values import RedactionError

_HAN = re.compile("[\u3400-\u9fff]")
# Calls that ran out of time go on in the background; this many run at most.
_MOST_RUNNING: Final = 4


class Span(NamedTuple):
    """A value in a text: its place in characters, its type, its probability."""

    start: int
    end: int
    type: str
    score: float


class Recognizer(Protocol):
    """Finds values in texts, in memory and on this machine.

    Threads may call it at the same time.
    """

    def analyze(self, text: str, language: str) -> Iterable[Span]:
        """The values in ``text``; ``language`` is a code like ``en`` or ``zh``."""


class _Failed(Exception):
    """A recognizer gave no usable answer; the message holds no text."""


@dataclass(frozen=True, eq=False, repr=False)
class Guard:
    """Runs a recognizer that may be slow or wrong so that it can do no harm.

    budget_ms:  the most time for one text; a call that takes longer is given up.
    on_failure: ``closed`` refuses a text that was not recognized; ``open`` lets it pass
                with what the rules found.
    max_bytes:  a longer text, in UTF-8, is not given to the recognizer; that counts as
                a failure.
    language:   the language of all texts, or ``auto``: ``zh`` for a text with a Chinese
                character, else ``en``.
    min_score:  spans with a lower score are no findings.
    """

    recognizer: Recognizer
    _: KW_ONLY
    budget_ms: int = 200
    on_failure: Literal["closed", "open"] = "closed"
    max_bytes: int = 65_536
    language: str = "auto"
    min_score: float = 0.6
    _running: BoundedSemaphore = field(
        init=False, default_factory=lambda: BoundedSemaphore(_MOST_RUNNING)
    )

    def spans(self, text: str) -> list[Span]:
        """The recognizer's findings in ``text``, in order, with our names of types.

        Raises RedactionError if the recognizer fails and ``on_failure`` is ``closed``.
        """
        if not text.strip():
            return []
        try:
            spans = sorted(_span(item, len(text)) for item in self._analyzed(text))
            return [span for span in spans if span.score >= self.min_score]
        except _Failed as failed:
            reason = str(failed)
        if self.on_failure == "open":
            return []
        # Outside of `except`, so that no context is attached.
        raise RedactionError(f"the recognizer {reason}")

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, type) of each span, in the form that a redactor needs."""
        return [(span.start, span.end, span.type) for span in self.spans(text)]

    def _analyzed(self, text: str) -> list[object]:
        """The recognizer's answer.  Raises _Failed, also when it is late."""
        if len(text.encode("utf-8", "surrogatepass")) > self.max_bytes:
            raise _Failed(f"takes at most {self.max_bytes} bytes")
        budget = self.budget_ms / 1000
        deadline = monotonic() + budget
        late = _Failed(f"took more than {self.budget_ms:.0f} ms")
        if not self._running.acquire(timeout=budget):
            raise late
        answers: SimpleQueue[list[object] | str] = SimpleQueue()
        # A daemon thread, so that a call that never ends cannot keep the program alive.
        Thread(target=self._run, args=(text, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            raise late from None
        if isinstance(answer, str):
            raise _Failed(f"stopped with {answer}")
        return answer

    def _run(self, text: str, answers: SimpleQueue[list[object] | str]) -> None:
        """Put the recognizer's answer, or the type of its error, into ``answers``."""
        try:
            language = self.language
            if language == "auto":
                language = "zh" if _HAN.search(text) else "en"
            answers.put(list(self.recognizer.analyze(text, language)))
        except BaseException as error:
            # The message may hold the text, the type does not.
            answers.put(type(error).__name__)
        finally:
            self._running.release()


def _span(item: Any, length: int) -> Span:
    """``item`` as a span in a text of that length; an unknown type becomes OTHER.

    Raises _Failed for anything else than a span.
    """
    try:
        start, end, kind, score = item
        inside = type(start) is type(end) is int and 0 <= start < end <= length
        probability = float(score)
    except (TypeError, ValueError):
        raise _Failed("returned something that is not a span") from None
    if not inside:
        raise _Failed("returned a span outside of the text")
    if not 0 <= probability <= 1:
        raise _Failed("returned a score that is not from 0 to 1")
    name = canonical(kind) if isinstance(kind, str) else ""
    if not well_formed(name):
        name = "OTHER"
    return Span(start, end, name, probability)
