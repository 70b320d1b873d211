"""How the summary that a strategy decided on is written, checked, and recognized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from refold.domain import errors
from refold.domain.envelope import Envelope
from refold.domain.events import SummarizerRef, ToolCall
from refold.projections.context import compaction
from refold.projections.context.abridged import Abridged, made_by, with_ledger
from refold.projections.context.compaction import Source, Summarizer
from refold.projections.context.limits import Limits
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import RULES_WITH_REPLACED_FILES, Strategy
from refold.projections.context.text import count_value_words, own_words


def summarizer_for(strategy: Strategy, summarizer: Summarizer) -> Summarizer:
    """Return the summarizer with the strategy's prompt and model.

    Raises InvalidConfiguration if it calls a model and the strategy's prompt is empty.
    """
    for_strategy = getattr(summarizer, "for_strategy", None)
    if for_strategy is None:
        return summarizer
    prompt = strategy.manner.prompt
    if prompt is not None and not prompt.strip():
        raise errors.InvalidConfiguration(
            f"{strategy.name} has an empty prompt: give it one if a model is to be "
            "asked, or use the summarizer abridged"
        )
    adapted: Summarizer = for_strategy(prompt=prompt, model=strategy.manner.model)
    return adapted


def write_summary(
    strategy: Strategy,
    summarizer: Summarizer,
    source: Source,
    *,
    outline: Outline,
    target_tokens: int,
    most_chars: int | None = None,
) -> compaction.Written:
    """Have ``summarizer`` write the summary of a source in the form of the strategy.

    A strategy with an abridged history gets one, made without a model, in addition to
    the summarizer's text; from the summarizer ``Abridged`` it gets the history alone.

    outline:       the outline that the compaction was decided on.
    target_tokens: the length of the summary, about.
    most_chars:    the most characters of the abridged history, if fewer than the
                   strategy allows.

    Raises SummaryRefused, and the errors of the summarizer.
    """
    if source.kind == "notes":
        return _rewritten_notes(strategy, summarizer, source, target_tokens)
    if source.kind == "session" and strategy.protected_budget:
        source = replace(
            source, user_stays=True, judgments_stay=strategy.shows_judgments_once
        )
    if strategy.rules < RULES_WITH_REPLACED_FILES:
        source = replace(source, replaced=())
    elif source.replaced:
        words = source.words + _words_of_calls(source.replaced)
        source = replace(source, words=words)
    if source.envelopes and not strategy.names_seqs:
        first_turn = outline.turn_at(source.envelopes[0].seq)
        source = replace(source, first_turn=first_turn)
    if source.kind == "session" and strategy.manner.history is not None:
        limits = strategy.manner.history
        if most_chars is not None:
            total_chars = min(limits.total_chars, most_chars)
            limits = limits.model_copy(update={"total_chars": total_chars})
        return _with_history(summarizer, source, target_tokens, limits)
    written = summarizer.summarise(source, target_tokens=target_tokens)
    _check(written, source)
    if source.kind == "session" and not isinstance(summarizer, Abridged):
        most_tokens = max(target_tokens // 3, 1)
        text, ledger = with_ledger(source, written.text, most_tokens=most_tokens)
        written = replace(written, text=text, abridged=ledger)
    return written


def _words_of_calls(envelopes: Iterable[Envelope]) -> int:
    """Return the number of words in the arguments of calls."""
    words = 0
    for envelope in envelopes:
        if isinstance(envelope.payload, ToolCall):
            words += count_value_words(envelope.payload.arguments)
    return words


def _check(written: compaction.Written, source: Source) -> None:
    text = "\n".join((written.abridged, written.text))
    compaction.check_summary(text, source)


def _with_history(
    summarizer: Summarizer, source: Source, target_tokens: int, limits: Limits
) -> compaction.Written:
    """Return the summary of a session with an abridged history within these limits."""
    if isinstance(summarizer, Abridged):
        written = compaction.Written("", made_by(limits))
        historian = replace(summarizer, limits=limits, newest_first=True)
    else:
        written = summarizer.summarise(source, target_tokens=target_tokens)
        _check(written, source)
        historian = Abridged(limits, newest_first=True)
    history = _history(source, historian, written.text)
    written = replace(written, abridged=history)
    _check(written, source)
    return written


def _rewritten_notes(
    strategy: Strategy, summarizer: Summarizer, source: Source, target_tokens: int
) -> compaction.Written:
    """Return the notes in fewer lines."""
    layers = strategy.manner.layers
    if layers is None or layers.notes is None:
        raise ValueError(f"{strategy.name} keeps no notes")
    rules = layers.notes
    source_with_rules = replace(source, notes=rules)
    written = summarizer.summarise(source_with_rules, target_tokens=target_tokens)
    lines = [line.strip() for line in written.text.splitlines() if line.strip()]
    written = replace(written, text="\n".join(lines))
    compaction.check_summary(written.text, source)
    if len(lines) > rules.lines + rules.lines // 4:
        before = len(compaction.lines_of_notes(source))
        raise errors.SummarizerFailed(
            f"{before} lines of notes would become {len(lines)}, "
            f"not about {rules.lines}"
        )
    return written


def _history(source: Source, historian: Abridged, text: str) -> str:
    """Return an abridged history that goes with ``text``.

    Its limit is halved until text and history together have no more words than the
    source.  The newest turns remain longest.
    """
    room = source.words - own_words(text)
    limits = historian.limits
    while True:
        most = limits.total_chars
        limited = replace(historian, limits=limits)
        history = limited.summarise(source, target_tokens=most).text
        if most == 1 or own_words(history) <= room:
            return history
        limits = limits.model_copy(update={"total_chars": most // 2})


def wrote(strategy: Strategy, summarizer: Summarizer, by: SummarizerRef) -> bool:
    """Whether this summarizer wrote a recorded summary, as far as it can tell.

    by: the recorded author.
    """
    if isinstance(summarizer, Abridged):
        return by == made_by(strategy.manner.history or summarizer.limits)
    recognizes = getattr(summarizer, "wrote", None)
    return recognizes is not None and bool(recognizes(by))


def failure_reason(error: Exception) -> str:
    """Return the reason of a failed compaction, for the log and for people.

    Messages of foreign errors may contain text of the session and are left out.
    """
    match error:
        case errors.SummaryRefused():
            return str(error)
        case errors.SummarizerFailed(reason=reason):
            return reason
        case _:
            return f"the summarizer raised {type(error).__name__}"
