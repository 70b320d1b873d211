"""The port for a model of the user's own that finds what no rule can, and its guard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Protocol

from refold.redaction.types import canonical, well_formed
from refold.redaction.values import RedactionError

_HAN = re.compile("[\u3400-\u9fff]")
# Runs that were given up go on in the background: no more than so many at a time.
_AT_ONCE: Final = 4


class Span(NamedTuple):
    """A value in a text: places in characters, its type, how likely it is (0 to 1)."""

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
        ...


class _Failed(Exception):
    """A recognizer gave no answer that can be used; the message holds no text."""


class Guard:
    """A recognizer that may be slow or wrong, and can do no harm by it.

    budget_ms:  how long one text may take; what takes longer is given up.
    on_failure: ``closed``: a text that was not recognized is refused; ``open``: it
                passes with what the rules found.
    max_bytes:  a longer text, in UTF-8, is not given to the recognizer: that is a
                failure too.
    language:   of all texts, or ``auto``: ``zh`` where there is a Chinese character,
                else ``en``.
    min_score:  what is less likely is no finding.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        budget_ms: int = 200,
        on_failure: Literal["closed", "open"] = "closed",
        max_bytes: int = 65_536,
        language: str = "auto",
        min_score: float = 0.6,
    ) -> None:
        self._recognizer, self._language = recognizer, language
        self._budget, self._open = budget_ms / 1000, on_failure == "open"
        self._max_bytes, self._min_score = max_bytes, min_score
        self._running = BoundedSemaphore(_AT_ONCE)

    def spans(self, text: str) -> list[Span]:
        """What the recognizer finds in ``text``, in order, with our names of types.

        Raises RedactionError if it fails and that is to stop redaction.
        """
        if not text.strip():
            return []
        try:
            return self._checked(self._analyzed(text), len(text))
        except _Failed as failed:
            reason = str(failed)
        if self._open:
            return []
        # Outside of `except`, so that no context is attached.
        raise RedactionError(f"the recognizer {reason}")

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, type) of each span, as a redactor asks for them."""
        return [(span.start, span.end, span.type) for span in self.spans(text)]

    def _analyzed(self, text: str) -> list[object]:
        if len(text.encode("utf-8", "surrogatepass")) > self._max_bytes:
            raise _Failed(f"takes at most {self._max_bytes} bytes")
        deadline = monotonic() + self._budget
        late = _Failed(f"took more than {self._budget * 1000:.0f} ms")
        if not self._running.acquire(timeout=self._budget):
            raise late
        answers: SimpleQueue[list[object] | str] = SimpleQueue()
        # A daemon, so that one that never ends does not keep the program from it.
        Thread(target=self._run, args=(text, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            raise late from None
        if isinstance(answer, str):
            raise _Failed(f"stopped with {answer}")
        return answer

    def _run(self, text: str, answers: SimpleQueue[list[object] | str]) -> None:
        try:
            answers.put(list(self._recognizer.analyze(text, self._spoken(text))))
        except BaseException as error:
            # Its message may hold the text, its type does not.
            answers.put(type(error).__name__)
        finally:
            self._running.release()

    def _spoken(self, text: str) -> str:
        if self._language != "auto":
            return self._language
        return "zh" if _HAN.search(text) else "en"

    def _checked(self, found: list[object], length: int) -> list[Span]:
        spans = sorted(_span(item, length) for item in found)
        return [span for span in spans if span.score >= self._min_score]


def _span(item: Any, length: int) -> Span:
    """``item`` as a span within a text of that length; no name of a type is OTHER."""
    start: Any
    end: Any
    kind: Any
    score: Any
    try:
        start, end, kind, score = item
        well = (type(start), type(end)) == (int, int) and 0 <= start < end <= length
        found = float(score)
    except (TypeError, ValueError):
        raise _Failed("gave something that is no span") from None
    if not well:
        raise _Failed("gave a span outside of the text")
    if not 0 <= found <= 1:
        raise _Failed("gave a score that is not from 0 to 1")
    name = canonical(kind) if isinstance(kind, str) else ""
    return Span(start, end, name if well_formed(name) else "OTHER", found)
