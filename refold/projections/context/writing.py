"""From a decision's source to a summary's words: the summarizer, and what is beside."""

from __future__ import annotations

from dataclasses import replace

from refold.domain.errors import (
    InvalidConfiguration,
    SummarizerFailed,
    SummaryRefused,
)
from refold.projections.context.abridged import Abridged, Limits
from refold.projections.context.markup import own_words
from refold.projections.context.source import Source
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer, Written, check_summary


def fitting(strategy: Strategy, summarizer: Summarizer) -> Summarizer:
    """The summarizer, to be asked as the strategy wants it.

    Raises InvalidConfiguration if a model is to be asked and the prompt is empty.
    """
    asked = getattr(summarizer, "asked", None)
    if asked is None:
        return summarizer
    prompt = strategy.prompt_for_model
    if prompt is not None and not prompt.strip():
        raise InvalidConfiguration(
            f"{strategy.name} has an empty prompt: give it one if a model is to be "
            "asked, or take the summarizer abridged"
        )
    fitted: Summarizer = asked(prompt=prompt, model=strategy.model_for_summaries)
    return fitted


def write(
    strategy: Strategy, summarizer: Summarizer, source: Source, *, target_tokens: int
) -> Written:
    """What ``summarizer`` makes of the source, as the strategy wants it.

    Where the strategy wants an abridged history beside the text, that is made without
    a model; with a summarizer that needs none there is no text beside it.

    Raises SummaryRefused, and what the summarizer raises.
    """
    limits = strategy.history_beside
    if limits is None:
        written = summarizer.summarise(source, target_tokens=target_tokens)
        check_summary("\n".join((written.abridged, written.text)), source)
        return written
    if isinstance(summarizer, Abridged):
        written = replace(_history(source, limits), text="")
    else:
        written = summarizer.summarise(source, target_tokens=target_tokens)
        check_summary(written.text, source)
    room = source.words - own_words(written.text)
    history = _history(source, limits)
    while own_words(history.abridged) > room and limits.total_chars > 1:
        limits = replace(limits, total_chars=limits.total_chars // 2)
        history = _history(source, limits)
    written = replace(written, abridged=history.abridged)
    check_summary("\n".join((written.abridged, written.text)), source)
    return written


def _history(source: Source, limits: Limits) -> Written:
    """The abridged history of all turns that the source tells of, newest first kept."""
    most = limits.total_chars
    written = Abridged(limits).summarise(source, target_tokens=most)
    return Written("", written.by, abridged=written.text)


def why_failed(error: Exception) -> str:
    """What is said of an error: of one not ours, the message may hold what was sent."""
    match error:
        case SummaryRefused():
            return str(error)
        case SummarizerFailed(reason=reason):
            return reason
        case _:
            return f"the summarizer raised {type(error).__name__}"
