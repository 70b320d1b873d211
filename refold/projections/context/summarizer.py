"""The port of what writes summaries, and the rule that refuses a useless one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from refold.domain.errors import SummaryRefused
from refold.domain.events import JsonObject, SummarizerRef
from refold.projections.context.markup import own_words
from refold.projections.context.source import Source


@dataclass(frozen=True, slots=True)
class Written:
    """What a summarizer wrote, and who it is.

    text:          the words of the summary.
    abridged:      an abridged history beside it, if the strategy wants both.
    prompt_digest: the SHA-256 of the prompt, if a model was asked.
    """

    text: str
    by: SummarizerRef
    abridged: str = ""
    usage: JsonObject | None = None
    prompt_digest: str | None = None


class Summarizer(Protocol):
    """Does the work of a decision; cancelling it changes nothing.

    One that has ``costs = False`` may be asked twice for the same: for all others a
    lease is taken first, and the start is recorded.
    """

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Write at most about ``target_tokens`` tokens that stand for ``source``."""
        ...


def check_summary(text: str, source: Source) -> None:
    """Let a summary pass that helps.

    Its words are counted without markup that Refold added; so are its source's.

    Raises SummaryRefused if it has more words than its source, or none where the
    source has some.
    """
    words = own_words(text)
    if words > source.words:
        raise SummaryRefused(
            "longer than its source", words=words, source_words=source.words
        )
    if not words and source.words:
        raise SummaryRefused("empty", words=0, source_words=source.words)
