"""Prepare a model call: compact where needed, until the context fits the window."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final

from refold.domain import errors
from refold.domain.tokens import estimate
from refold.projections.context.abridged import Abridged
from refold.projections.context.budget import ExtraArgs
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import summarizer_for
from refold.projections.tokens import tokens_of
from refold.store import contexts
from refold.store.compactions import Compactor
from refold.store.session.core import SessionCore, read_snapshot, show

if TYPE_CHECKING:
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.view import View

# An estimated token is at most so many real tokens, for any model's tokenizer: line
# breaks cost the most.
_MOST_PER_ESTIMATE: Final = 10


def compactor_for(
    session: SessionCore,
    viewer: contexts.Viewer,
    strategy: Strategy,
    summarizer: Summarizer | None,
) -> Compactor:
    """The compactor of a session; without a summarizer it uses that of the store."""
    chosen = summarizer or session.upkeep.summarizer or Abridged()
    return Compactor(session.writer, viewer, strategy, summarizer_for(strategy, chosen))


def prepare(
    session: SessionCore,
    strategy: str | Strategy | None,
    handed_in: ExtraArgs,
    *,
    summarizer: Summarizer | None,
    wait: bool,
    model: str | None,
) -> View:
    """Do what ``Session.prepare`` documents, without revealing placeholders."""
    handed = contexts.take(session.writer, session.user_id, handed_in)
    viewer, chosen, snapshot = read_snapshot(session, strategy, prepares=True)
    writes = summarizer or session.upkeep.summarizer
    compactor = Compactor.of(session.writer, viewer, chosen, writes)
    if not wait:
        name = (session.stream, chosen.fingerprint)
        session.upkeep.background.ask(name, compactor.step)
    outline = viewer.current(chosen, snapshot)
    if wait and compactor.is_due(outline):
        outline = compactor.catch_up(outline)
        view = show(session, viewer, chosen, handed, outline=outline)
    else:
        view = show(session, viewer, chosen, handed, snapshot=snapshot, outline=outline)
    window = handed.extras.window_tokens
    if chosen.manner.window:
        window = min(window, chosen.manner.window)
    pressed: Outline | None = None
    # The provider shortens a view with edits of the context.
    is_shortened = "context_management" in view.api
    is_narrow = False
    while (excess := _excess(chosen, view, window, model)) and not is_shortened:
        pressed = compactor.press(excess, window, pressed) if wait else None
        if pressed is not None:
            view = show(session, viewer, chosen, handed)
            continue
        if view.protected and wait and not is_narrow:
            # Nothing else is left to compact, so the words of the user give way.
            extras = replace(handed.extras, window_tokens=max(1, view.tokens - excess))
            handed = handed._replace(extras=extras)
            view = show(session, viewer, chosen, handed)
            is_narrow = True
            continue
        raise _too_large(
            excess,
            window,
            chosen,
            view,
            handed,
            wait=wait,
            is_excluded=outline.excluded,
        )
    return view


def _excess(strategy: Strategy, view: View, window: int, model: str | None) -> int:
    """By how many estimated tokens a view exceeds the window.

    The window of the strategy applies whatever window and model the caller names.
    """
    estimated = view.tokens - view.extras.window_tokens
    excess = max(0, estimated, strategy.over_window(view.tokens))
    if model is None or view.tokens * _MOST_PER_ESTIMATE < window:
        return excess
    real = tokens_of(view, model=model)
    return max(excess, ceil((real - window) * view.tokens / max(real, 1)))


def _too_large(
    excess: int,
    window: int,
    strategy: Strategy,
    view: View,
    handed: contexts.Handed,
    *,
    wait: bool,
    is_excluded: bool,
) -> errors.ContextTooLarge:
    """The error for a context that exceeds its window, with a remedy.

    is_excluded: whether the strategy excludes the agent of the newest response.
    """
    if not strategy.compacts:
        remedy = f"{strategy.name} makes no summaries, turn_window does"
    elif is_excluded:
        remedy = (
            "nothing is compacted, because exclude_agents names the agent of the "
            "newest response"
        )
    elif not wait:
        remedy = "a summary is written in the background: wait=True waits for it"
    else:
        prompt = estimate(view.system or "")
        extras = estimate(handed.extras.dump())
        remedy = (
            f"the system prompt has about {prompt:,} tokens, the sections of the "
            f"caller have {extras:,}, and the strategy cannot compact the rest further"
        )
    return errors.ContextTooLarge(window + excess, window, remedy=remedy)
