"""From a decision's source to a summary's words: the summarizer, and what is beside."""

from __future__ import annotations

from dataclasses import replace

from refold.domain.errors import (
    InvalidConfiguration,
    SummarizerFailed,
    SummaryRefused,
)
from refold.projections.context.abridged import Abridged, Limits, made_by
from refold.projections.context.markup import own_words
from refold.projections.context.notes import noted
from refold.projections.context.source import Source
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import Summarizer, Written, check_summary


def fitting(strategy: Strategy, summarizer: Summarizer) -> Summarizer:
    """The summarizer, to be asked as the strategy wants it.

    Raises InvalidConfiguration if a model is to be asked and the prompt is empty.
    """
    for_strategy = getattr(summarizer, "for_strategy", None)
    if for_strategy is None:
        return summarizer
    prompt = strategy.prompt_for_model
    if prompt is not None and not prompt.strip():
        raise InvalidConfiguration(
            f"{strategy.name} has an empty prompt: give it one if a model is to be "
            "asked, or take the summarizer abridged"
        )
    fitted: Summarizer = for_strategy(prompt=prompt, model=strategy.model_for_summaries)
    return fitted


def write(
    strategy: Strategy, summarizer: Summarizer, source: Source, *, target_tokens: int
) -> Written:
    """What ``summarizer`` makes of the source, as the strategy wants it.

    Where the strategy wants an abridged history beside the text, that is made without
    a model; with a summarizer that needs none there is no text beside it.

    Raises SummaryRefused, and what the summarizer raises.
    """
    limits = strategy.history_beside if source.kind == "session" else None
    if source.kind == "notes":
        return _notes(strategy, summarizer, source, target_tokens)
    if limits is None or not isinstance(summarizer, Abridged):
        written = summarizer.summarise(source, target_tokens=target_tokens)
        check_summary("\n".join((written.abridged, written.text)), source)
    else:
        written = Written("", made_by(limits))
    if limits is not None:
        written = replace(written, abridged=_beside(source, limits, written.text))
        check_summary("\n".join((written.abridged, written.text)), source)
    return written


def _notes(
    strategy: Strategy, summarizer: Summarizer, source: Source, target_tokens: int
) -> Written:
    """Notes that were rewritten: to fewer lines, or it is no use."""
    layers = strategy.memory_layers
    if layers is None or layers.notes is None:
        raise ValueError(f"{strategy.name} keeps no notes")
    asked = replace(source, notes=layers.notes)
    written = summarizer.summarise(asked, target_tokens=target_tokens)
    lines = [line.strip() for line in written.text.splitlines() if line.strip()]
    written = replace(written, text="\n".join(lines))
    check_summary(written.text, source)
    wanted, before = layers.notes.lines, len(noted(source))
    if len(lines) > wanted + wanted // 4:
        raise SummarizerFailed(
            f"{before} lines of notes would become {len(lines)}, not about {wanted}"
        )
    return written


def _beside(source: Source, limits: Limits, text: str) -> str:
    """The history of all turns that the source tells of, newest first kept.

    Half as long, and again, until with ``text`` it has no more words than the source.
    """
    room = source.words - own_words(text)
    while True:
        most = limits.total_chars
        history = Abridged(limits).summarise(source, target_tokens=most).text
        if most == 1 or own_words(history) <= room:
            return history
        limits = replace(limits, total_chars=most // 2)


def why_failed(error: Exception) -> str:
    """What is said of an error: of one not ours, the message may hold what was sent."""
    match error:
        case SummaryRefused():
            return str(error)
        case SummarizerFailed(reason=reason):
            return reason
        case _:
            return f"the summarizer raised {type(error).__name__}"
